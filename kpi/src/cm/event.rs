//! Events of the communication manager.

use alloc::sync::Arc;
use core::ffi::c_int;
use core::ptr::NonNull;

use ipoib_rs::action::{ConnectError, ConnectionId, RejectReason, RequestId};
use ipoib_rs::ib::{Gid, Pkey};
use ipoib_rs::interface::IncomingRequest;
use sys_bindings as sys;

use super::{CmId, ENTRIES, Entry, Inner, QueuePair, REQUESTS_MAX, State};
use super::{destroy, modify, parameters, reject};
use crate::client::PartitionChoice;
use crate::context::{MaySleep, Unlocked};
use crate::errno::Errno;
use crate::registry::Id;

/// What the stack is told: whether to keep an id.
const KEEP: c_int = 0;
const DESTROY: c_int = 1;

/// A reason that the core has no name for (IBA 12.6.7.2): "invalid path MTU".
const INVALID_MTU: u16 = 26;

/// # Safety
///
/// `cm_id` is an id that comes with a REQ to the listener of this number, and is new; `request` is
/// that REQ. The thread may sleep.
pub(crate) unsafe extern "C" fn requested(
    id: u64,
    cm_id: *mut sys::ib_cm_id,
    request: *const sys::kpi_cm_request,
) -> c_int {
    // SAFETY: as the caller says.
    let (Some(cm_id), Some(request)) = (NonNull::new(cm_id), unsafe { request.as_ref() }) else {
        return DESTROY;
    };
    let cm_id = CmId(cm_id);
    // SAFETY: as the caller says; no mutex is held here.
    let may_sleep = unsafe { MaySleep::assume() };
    match admit(Id(id), cm_id, request, &may_sleep) {
        Ok(()) | Err(Refusal::BySomebodyElse) => KEEP,
        Err(Refusal::Because(reason)) => {
            // The peer may have given up already.
            let _ = reject(cm_id, reason);
            DESTROY
        }
    }
}

/// Why there is no connection.
enum Refusal {
    /// For a reason that the peer is to be told.
    Because(u16),
    /// The id was taken out of the table meanwhile: whoever did that destroys it.
    BySomebodyElse,
}

impl From<RejectReason> for Refusal {
    fn from(reason: RejectReason) -> Self {
        Self::Because(reason as u16)
    }
}

/// Asks the handler whether it wants a connection. If so, the id is in the table.
fn admit(
    listener: Id,
    cm_id: CmId,
    request: &sys::kpi_cm_request,
    may_sleep: &MaySleep,
) -> Result<(), Refusal> {
    let found = ENTRIES.with(|entries| match entries.get_mut(listener)? {
        Entry::Listener { manager, .. } => Some(Arc::clone(manager)),
        Entry::Requested { .. } | Entry::Connection { .. } => None,
    });
    let manager = found.ok_or(RejectReason::InvalidServiceId)?;
    let pkey = Pkey::new(request.pkey).ok_or(RejectReason::ConsumerReject)?;
    // IBA 12.7.11: both ends cut messages alike.
    let port = manager.port.attributes(PartitionChoice::Port, may_sleep);
    if port.is_ok_and(|port| request.mtu > port.mtu.code()) {
        return Err(Refusal::Because(INVALID_MTU));
    }
    make_room(&manager);
    let handler = Arc::clone(&manager.handler);
    let entry = Entry::Requested { manager, cm_id };
    let id = ENTRIES.with(|entries| entries.insert(entry));
    let id = id.map_err(|_| RejectReason::NoResources)?;
    // SAFETY: the id exists, and has no other event before this one is over.
    unsafe { sys::rust_helper_cm_set_id(cm_id.0.as_ptr(), id.0) };
    let incoming = IncomingRequest {
        id: RequestId(id.0),
        gid: Gid(request.gid),
        peer: parameters(&request.private_data),
    };
    // SAFETY: the stack calls from a thread of its own, and the mutex of the table is not held.
    let mut unlocked = unsafe { Unlocked::assume() };
    handler.connect_requested(incoming, pkey, &mut unlocked).map_err(|reason| {
        match ENTRIES.with(|entries| entries.remove(id)) {
            Some(_) => reason.into(),
            None => Refusal::BySomebodyElse,
        }
    })
}

/// Refuses the oldest REQ of a manager if there are too many.
fn make_room(manager: &Arc<Inner>) {
    let oldest = ENTRIES.with(|entries| {
        let is_its = |entry: &Entry| match entry {
            Entry::Requested { manager: other, .. } => Arc::ptr_eq(manager, other),
            Entry::Listener { .. } | Entry::Connection { .. } => false,
        };
        let count = entries.iter().filter(|(_, entry)| is_its(entry)).count();
        if count < REQUESTS_MAX {
            return None;
        }
        let ids = entries.iter().filter(|(_, entry)| is_its(entry)).map(|(id, _)| id);
        let oldest = ids.min_by_key(|id| id.generation())?;
        entries.remove(oldest)?.owned_id()
    });
    if let Some(cm_id) = oldest {
        // It is another id than the one whose event this is.
        let _ = reject(cm_id, RejectReason::NoResources as u16);
        destroy(cm_id);
    }
}

/// # Safety
///
/// `cm_id` is the id with this number, `event` an event of it. The thread may sleep.
pub(crate) unsafe extern "C" fn event(
    id: u64,
    cm_id: *mut sys::ib_cm_id,
    event: *const sys::kpi_cm_event,
) -> c_int {
    // SAFETY: as the caller says.
    if let (Some(cm_id), Some(event)) = (NonNull::new(cm_id), unsafe { event.as_ref() }) {
        handle_event(Id(id), CmId(cm_id), event);
    }
    // Whoever has the id in its hands or in the table destroys it.
    KEEP
}

/// The connection that an event is about.
struct Subject {
    id: Id,
    cm_id: CmId,
    manager: Arc<Inner>,
    connection: ConnectionId,
    queue_pair: QueuePair,
    state: State,
}

fn handle_event(id: Id, cm_id: CmId, event: &sys::kpi_cm_event) {
    use sys::kpi_cm_event_type as kind;

    let subject = ENTRIES.with(|entries| match entries.get_mut(id)? {
        Entry::Connection { manager, connection, queue_pair, state } => Some(Subject {
            id,
            cm_id,
            manager: Arc::clone(manager),
            connection: *connection,
            queue_pair: *queue_pair,
            state: *state,
        }),
        // The peer takes its REQ back: accepting it will fail.
        Entry::Requested { .. } | Entry::Listener { .. } => None,
    });
    if event.type_ == kind::KPI_CM_DISCONNECT_REQUESTED {
        // SAFETY: this is an event of the id, and the thread may sleep.
        let _ = unsafe { sys::rust_helper_cm_answer_disconnect(cm_id.0.as_ptr()) };
    }
    let Some(subject) = subject else { return };
    match event.type_ {
        kind::KPI_CM_REPLIED => subject.finish_open(event),
        // CAST: a REJ carries 16 bits.
        kind::KPI_CM_REJECTED => subject.end(ConnectError::Rejected(event.reject_reason as u16)),
        kind::KPI_CM_TIMED_OUT => subject.end(ConnectError::TimedOut),
        kind::KPI_CM_UNSENT
        | kind::KPI_CM_DISCONNECT_REQUESTED
        | kind::KPI_CM_DISCONNECTED
        | kind::KPI_CM_TIMEWAIT_EXITED => subject.end(ConnectError::Unusable),
        _ => {}
    }
}

impl Subject {
    /// The peer agreed: the queue pair is brought to RTS, and the peer told (RTU).
    fn finish_open(&self, event: &sys::kpi_cm_event) {
        let State::Requesting(op) = self.state else { return };
        match self.establish() {
            Ok(()) => {
                if self.enter(State::Live) == self.state {
                    let answer = Ok(parameters(&event.private_data));
                    self.call(|handler, unlocked| handler.connect_answered(op, answer, unlocked));
                }
            }
            Err(_) => {
                // The peer may have given up already.
                let _ = reject(self.cm_id, RejectReason::NoResources as u16);
                self.end(ConnectError::Unusable);
            }
        }
    }

    fn establish(&self) -> Result<(), Errno> {
        modify(self.cm_id, self.queue_pair, sys::kpi_qp_state::KPI_QPS_RTR, None)?;
        modify(self.cm_id, self.queue_pair, sys::kpi_qp_state::KPI_QPS_RTS, None)?;
        // SAFETY: this is an event of the id, and the thread may sleep.
        Errno::result(unsafe { sys::rust_helper_cm_establish(self.cm_id.0.as_ptr()) })
    }

    /// The connection is over, or will not be. The handler is told once.
    fn end(&self, error: ConnectError) {
        match self.enter(State::Over) {
            State::Requesting(op) => {
                self.call(|handler, unlocked| {
                    handler.connect_answered(op, Err(error), unlocked);
                });
            }
            State::Live => self.call(|handler, unlocked| {
                handler.connection_lost(self.connection, unlocked);
            }),
            State::Idle | State::Over => {}
        }
    }

    /// Enters a state. The state before, or [`State::Over`] if the connection is gone.
    fn enter(&self, next: State) -> State {
        ENTRIES.with(|entries| match entries.get_mut(self.id) {
            Some(Entry::Connection { state, .. }) => core::mem::replace(state, next),
            Some(Entry::Listener { .. } | Entry::Requested { .. }) | None => State::Over,
        })
    }

    fn call(&self, call: impl FnOnce(&dyn super::Handler, &mut Unlocked)) {
        // SAFETY: the stack calls from a thread of its own, and the mutex of the table is not held.
        call(&*self.manager.handler, &mut unsafe { Unlocked::assume() });
    }
}
