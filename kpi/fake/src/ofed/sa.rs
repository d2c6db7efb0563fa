//! The subnet administrator.

use std::ffi::c_int;

use sys_bindings as sys;

use super::Fault;
use super::tables::{Locked, key, lock, pointer};
use crate::time::uptime;
use crate::{check, sync, trace};

/// How long a subnet administrator is waited for that says nothing.
const PATIENCE: i64 = 3 << 32;

pub(super) struct Question {
    device: usize,
    asked_at: i64,
    id: u64,
    /// Unless it is what the subnet administrator can do.
    path: Option<sys::kpi_path>,
    pub(super) is_cancelled: bool,
    is_answered: bool,
}

pub(super) struct Membership {
    device: usize,
    asked_at: i64,
    id: u64,
    group: sys::kpi_group,
    is_answered: bool,
}

/// Answers a question, which may have been answered or cancelled before.
pub(super) fn answer(question: usize, error: c_int, capabilities: u32) {
    let mut tables = lock();
    let callbacks = tables.callbacks.expect("a client asked");
    let asked = &mut tables.questions[question];
    asked.is_answered = true;
    let (id, path) = (asked.id, asked.path);
    drop(tables);
    match path {
        Some(path) => {
            let path = sys::kpi_path { destination_lid: 9, mtu: 4, rate: 3, ..path };
            let answer = if error == 0 { &raw const path } else { std::ptr::null() };
            let answered = callbacks.path_answered.expect("it is set");
            // SAFETY: a path, or NULL.
            sync::call_atomic(|| unsafe { answered(id, error, answer) });
        }
        None => {
            let answered = callbacks.capabilities_answered.expect("it is set");
            // SAFETY: it has no condition.
            sync::call_atomic(|| unsafe { answered(id, error, capabilities) });
        }
    }
}

/// Answers a join, or ends the membership, if it is there.
pub(super) fn answer_join(join: usize, error: c_int) -> bool {
    let mut tables = lock();
    let membership = tables.joins[join];
    if !tables.memberships.has(membership) {
        return false;
    }
    let answered = tables.callbacks.and_then(|callbacks| callbacks.group_answered);
    let answered = answered.expect("it is set");
    let at = tables.memberships.get(membership);
    at.is_answered = true;
    let id = at.id;
    // What was joined, or created with these.
    let group = sys::kpi_group { mlid: 0xc001, mtu: 4, rate: 3, ..at.group };
    // SAFETY: a membership that is there meanwhile, and its group.
    let call = || unsafe { answered(id, error, pointer(membership), &raw const group) };
    let (mut tables, is_unwanted) = tables.call(membership, || sync::call_atomic(call));
    if is_unwanted != 0 {
        remove(&mut tables, membership);
    }
    true
}

/// Answers all that is not answered, and joins all that want to; or, if the subnet administrator is
/// silent, what it was asked long ago. Whether there was any.
pub(super) fn answer_all(is_silent: bool) -> bool {
    let is_late = |asked_at| !is_silent || uptime() - asked_at >= PATIENCE;
    let (questions, joins) = {
        let tables = lock();
        let is_open = |asked: &Question| {
            !asked.is_answered && (asked.is_cancelled || is_late(asked.asked_at))
        };
        let open = tables.questions.iter().enumerate().filter(|(_, asked)| is_open(asked));
        let questions: Vec<(usize, bool)> =
            open.map(|(number, asked)| (number, asked.is_cancelled)).collect();
        let waits = |key: usize| {
            let membership = tables.memberships.find(key);
            membership.is_some_and(|at| !at.is_answered && is_late(at.asked_at))
        };
        let joins = tables.joins.iter().enumerate().filter(|(_, key)| waits(**key));
        (questions, joins.map(|(number, _)| number).collect::<Vec<usize>>())
    };
    let has_any = !questions.is_empty() || !joins.is_empty();
    let error = if is_silent { sys::ETIMEDOUT.cast_signed() } else { 0 };
    for (question, is_cancelled) in questions {
        // What was cancelled comes back late, and says so.
        answer(question, if is_cancelled { sys::EINTR.cast_signed() } else { error }, 0);
    }
    for join in joins {
        // An answer before may have had it left.
        answer_join(join, error);
    }
    has_any
}

/// What is not answered, of a device or of all, comes back.
pub(super) fn flush(device: Option<usize>) {
    let tables = lock();
    let is_open =
        |asked: &Question| !asked.is_answered && device.is_none_or(|device| device == asked.device);
    let open = tables.questions.iter().enumerate().filter(|(_, asked)| is_open(asked));
    let questions: Vec<usize> = open.map(|(number, _)| number).collect();
    let is_heard = tables.client.is_some();
    drop(tables);
    for question in questions {
        if is_heard {
            answer(question, sys::EINTR.cast_signed(), 0);
        }
    }
}

fn ask(
    device: *mut sys::ib_device,
    id: u64,
    path: Option<sys::kpi_path>,
    query_id: *mut c_int,
    query: *mut *mut sys::ib_sa_query,
) -> c_int {
    sync::assert_may_sleep("asking the SA");
    let mut tables = lock();
    tables.devices.get(key(device));
    if tables.fails(Fault::Ask) {
        return sys::EAGAIN.cast_signed();
    }
    let number = tables.questions.len();
    let device = key(device);
    tables.questions.push(Question {
        device,
        asked_at: uptime(),
        id,
        path,
        is_cancelled: false,
        is_answered: false,
    });
    // SAFETY: as kpi/c says: places for both.
    unsafe {
        query_id.write(c_int::try_from(number).expect("few questions"));
        // Not NULL.
        query.write(pointer(number + 1));
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_sa_query_path(
    device: *mut sys::ib_device,
    _port: u8,
    id: u64,
    path: *const sys::kpi_path,
    timeout_ms: u32,
    query_id: *mut c_int,
    query: *mut *mut sys::ib_sa_query,
) -> c_int {
    check!(timeout_ms > 0, "a question without a time limit");
    // SAFETY: as kpi/c says.
    let path = unsafe { path.read() };
    ask(device, id, Some(path), query_id, query)
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_sa_query_capabilities(
    device: *mut sys::ib_device,
    _port: u8,
    id: u64,
    _timeout_ms: u32,
    query_id: *mut c_int,
    query: *mut *mut sys::ib_sa_query,
) -> c_int {
    ask(device, id, None, query_id, query)
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_sa_cancel(query_id: c_int, query: *mut sys::ib_sa_query) {
    trace::note("cancel_query");
    let number = usize::try_from(query_id).unwrap_or(usize::MAX - 1);
    check!(key(query) == number + 1, "a query is cancelled by another's number");
    lock().questions[number].is_cancelled = true;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_sa_join(
    device: *mut sys::ib_device,
    _port: u8,
    id: u64,
    group: *const sys::kpi_group,
    membership: *mut *mut sys::ib_sa_multicast,
) -> c_int {
    sync::assert_may_sleep("joining a group");
    let mut tables = lock();
    if tables.fails(Fault::Ask) {
        return sys::ENOMEM.cast_signed();
    }
    let device = key(device);
    tables.devices.hold(device);
    let made = tables.key();
    // SAFETY: as kpi/c says.
    let group = unsafe { group.read() };
    let asked_at = uptime();
    tables.memberships.insert(made, Membership { device, asked_at, id, group, is_answered: false });
    tables.joins.push(made);
    // SAFETY: as kpi/c says: a place for a pointer.
    unsafe { membership.write(pointer(made)) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_sa_leave(membership: *mut sys::ib_sa_multicast) {
    trace::note("leave_group");
    let mut tables = lock();
    tables.wait_until_idle(key(membership), "leaving a group");
    remove(&mut tables, key(membership));
}

fn remove(tables: &mut Locked, membership: usize) {
    let Membership { device, .. } = tables.memberships.remove(membership);
    tables.devices.release(device);
}
