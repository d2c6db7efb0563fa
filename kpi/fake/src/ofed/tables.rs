//! What the stack and the adapters have, behind one mutex.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use sys_bindings as sys;

use super::arena::Arena;
use super::client::{Device, Watch};
use super::cm::CmId;
use super::sa::{Membership, Question};
use super::verbs::{AddressHandle, CompletionQueue, Domain, Pair, Sent, SharedQueue};
use super::{Fault, Pointer, Stuck};
use crate::{check, memory, sync};

pub(super) struct Tables {
    pub(super) callbacks: Option<&'static sys::kpi_ofed_callbacks>,
    pub(super) client: Option<Pointer>,
    pub(super) devices: Arena<Device>,
    pub(super) watches: Arena<Watch>,
    pub(super) domains: Arena<Domain>,
    pub(super) queues: Arena<CompletionQueue>,
    pub(super) shared: Arena<SharedQueue>,
    pub(super) pairs: Arena<Pair>,
    pub(super) handles: Arena<AddressHandle>,
    pub(super) memberships: Arena<Membership>,
    pub(super) ids: Arena<CmId>,
    /// By the number of the question.
    pub(super) questions: Vec<Question>,
    /// By the number of the join: its membership.
    pub(super) joins: Vec<usize>,
    /// By the number of the id.
    pub(super) id_keys: Vec<usize>,
    /// What the adapters sent.
    pub(super) sent: Vec<Sent>,
    /// Queue pairs that are to say that they took their last receive.
    pub(super) drained: Vec<usize>,
    /// Completion queues whose handlers are to be told.
    pub(super) to_tell: Vec<usize>,
    pub(super) next_fault: Option<Fault>,
    /// How often, still.
    pub(super) stuck: (Stuck, u32),
    pub(super) is_automatic: bool,
    pub(super) next_qpn: u32,
    pub(super) device_count: usize,
    next_key: usize,
    /// Objects about which callbacks run, and in which threads.
    busy: BTreeMap<usize, Vec<ThreadId>>,
}

impl Tables {
    pub(super) const fn new() -> Self {
        Self {
            callbacks: None,
            client: None,
            devices: Arena::new("device"),
            watches: Arena::new("watch"),
            domains: Arena::new("protection domain"),
            queues: Arena::new("completion queue"),
            shared: Arena::new("shared receive queue"),
            pairs: Arena::new("queue pair"),
            handles: Arena::new("address handle"),
            memberships: Arena::new("membership"),
            ids: Arena::new("communication id"),
            questions: Vec::new(),
            joins: Vec::new(),
            id_keys: Vec::new(),
            sent: Vec::new(),
            drained: Vec::new(),
            to_tell: Vec::new(),
            next_fault: None,
            stuck: (Stuck::Destroying, 0),
            is_automatic: false,
            next_qpn: 0x100,
            device_count: 0,
            next_key: 1,
            busy: BTreeMap::new(),
        }
    }

    /// A number for an object.
    pub(super) fn key(&mut self) -> usize {
        // As far apart as pointers.
        self.next_key += 16;
        self.next_key
    }

    /// Whether something fails.
    pub(super) fn fails(&mut self, fault: Fault) -> bool {
        if self.next_fault == Some(fault) {
            self.next_fault = None;
            return true;
        }
        memory::fails(fault.name())
    }

    pub(super) fn objects(&self) -> usize {
        let Self { devices, watches, domains, queues, shared, pairs, handles, .. } = self;
        let verbs = domains.len() + queues.len() + shared.len() + pairs.len() + handles.len();
        devices.len() + watches.len() + verbs + self.memberships.len() + self.ids.len()
    }
}

static TABLES: Mutex<Tables> = Mutex::new(Tables::new());
static IDLE: Condvar = Condvar::new();

/// The tables, locked; what is done meanwhile is done by the stack, not by a driver.
pub(super) struct Locked {
    tables: Option<MutexGuard<'static, Tables>>,
    _inside: memory::Place,
}

impl Deref for Locked {
    type Target = Tables;

    fn deref(&self) -> &Tables {
        self.tables.as_ref().expect("it is locked")
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Tables {
        self.tables.as_mut().expect("it is locked")
    }
}

pub(super) fn lock() -> Locked {
    let inside = memory::inside();
    let tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    Locked { tables: Some(tables), _inside: inside }
}

impl Locked {
    /// Waits until no callback about an object runs. It must not be the one that waits.
    pub(super) fn wait_until_idle(&mut self, key: usize, what: &str) {
        sync::assert_may_sleep(what);
        while let Some(threads) = self.busy.get(&key) {
            let is_own = threads.contains(&thread::current().id());
            check!(!is_own, "{what} waits for the callback that calls it");
            let tables = self.tables.take().expect("it is locked");
            self.tables = Some(IDLE.wait(tables).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Calls a driver about an object, with the tables unlocked meanwhile.
    pub(super) fn call<R>(mut self, key: usize, call: impl FnOnce() -> R) -> (Self, R) {
        let thread = thread::current().id();
        self.busy.entry(key).or_default().push(thread);
        drop(self);
        let result = call();
        let mut locked = lock();
        if let Some(threads) = locked.busy.get_mut(&key) {
            if let Some(place) = threads.iter().position(|other| *other == thread) {
                threads.swap_remove(place);
            }
            if threads.is_empty() {
                locked.busy.remove(&key);
            }
        }
        IDLE.notify_all();
        (locked, result)
    }
}

/// What an object is to `kpi`.
pub(super) fn pointer<T>(key: usize) -> *mut T {
    std::ptr::without_provenance_mut(key)
}

pub(super) fn key<T>(pointer: *const T) -> usize {
    pointer.addr()
}

/// A context that a driver gave.
pub(super) fn context(raw: *mut c_void) -> Pointer {
    Pointer(raw)
}
