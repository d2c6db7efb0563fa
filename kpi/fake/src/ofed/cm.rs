//! The communication manager.

use std::ffi::c_int;

use sys_bindings as sys;

use super::tables::{Locked, key, lock, pointer};
use super::verbs::rust_helper_ib_modify_qp;
use super::{Fault, Message};
use crate::time::uptime;
use crate::{check, sync, trace};

/// How long a peer is waited for that says nothing.
const PATIENCE: i64 = 4 << 32;

pub(super) struct CmId {
    device: usize,
    sent_at: i64,
    pub(super) id: u64,
    /// What it listens for.
    pub(super) service: Option<u64>,
    pub(super) message: Message,
    pub(super) reason: u32,
}

/// A REQ for a service arrives. The number of its id, if somebody keeps it.
pub(super) fn request(service: u64, mtu: u8) -> Option<usize> {
    let mut tables = lock();
    let (listener, device, id) = tables
        .ids
        .iter()
        .find(|(_, at)| at.service == Some(service))
        .map(|(key, at)| (key, at.device, at.id))?;
    let requested = tables.callbacks.and_then(|callbacks| callbacks.cm_requested);
    let requested = requested.expect("it is set");
    let made = make(&mut tables, device, id);
    let number = tables.id_keys.len() - 1;
    let mut request = sys::kpi_cm_request {
        gid: [0; 16],
        private_data: [0, 0, 0, 0x55, 0, 0, 0x0f, 0xf0],
        qpn: 0x99,
        pkey: 0xffff,
        port: 1,
        mtu,
    };
    request.gid[..2].copy_from_slice(&[0xfe, 0x80]);
    request.gid[15] = 0x77;
    // SAFETY: the id is new, and the listener is not destroyed meanwhile. The thread may sleep.
    let call = || unsafe { requested(id, pointer(made), &raw const request) };
    let (tables, is_unwanted) = tables.call(listener, || {
        let (tables, is_unwanted) = lock().call(made, || sync::call(call));
        drop(tables);
        is_unwanted
    });
    drop(tables);
    if is_unwanted == 0 {
        return Some(number);
    }
    rust_helper_cm_destroy(pointer(made));
    None
}

/// Something happens to an id, if it is there.
pub(super) fn event(number: usize, type_: u32, reason: u32) -> bool {
    let mut tables = lock();
    let at = tables.id_keys[number];
    if !tables.ids.has(at) {
        return false;
    }
    let event = sys::kpi_cm_event {
        type_,
        reject_reason: reason,
        private_data: [0, 0, 0, 0x56, 0, 0, 0xff, 0xf4],
    };
    let id = tables.ids.get(at).id;
    let told = tables.callbacks.and_then(|callbacks| callbacks.cm_event).expect("it is set");
    // SAFETY: the id is not destroyed meanwhile. The thread may sleep.
    let call = || unsafe { told(id, pointer(at), &raw const event) };
    let (tables, is_unwanted) = tables.call(at, || sync::call(call));
    drop(tables);
    if is_unwanted != 0 {
        rust_helper_cm_destroy(pointer(at));
    }
    true
}

/// Peers accept what they are asked; or, if they are silent, what they were asked long ago is given
/// up. Whether they were asked.
pub(super) fn accept_all(are_silent: bool) -> bool {
    let asking: Vec<usize> = {
        let tables = lock();
        let waits = |key: usize| {
            tables.ids.find(key).is_some_and(|id| match id.message {
                Message::Request => !are_silent || uptime() - id.sent_at >= PATIENCE,
                Message::Reply => are_silent && uptime() - id.sent_at >= PATIENCE,
                Message::None
                | Message::ReadyToUse
                | Message::Reject
                | Message::DisconnectReply => false,
            })
        };
        let keys = tables.id_keys.iter().enumerate().filter(|(_, key)| waits(**key));
        keys.map(|(number, _)| number).collect()
    };
    for number in &asking {
        let mut tables = lock();
        let at = tables.id_keys[*number];
        if tables.ids.has(at) {
            tables.ids.get(at).message = Message::None;
            drop(tables);
            let kind = match are_silent {
                true => sys::kpi_cm_event_type::KPI_CM_TIMED_OUT,
                false => sys::kpi_cm_event_type::KPI_CM_REPLIED,
            };
            event(*number, kind, 0);
        }
    }
    !asking.is_empty()
}

fn make(tables: &mut Locked, device: usize, id: u64) -> usize {
    tables.devices.hold(device);
    let made = tables.key();
    let at = CmId { device, sent_at: 0, id, service: None, message: Message::None, reason: 0 };
    tables.ids.insert(made, at);
    tables.id_keys.push(made);
    made
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_cm_create(
    device: *mut sys::ib_device,
    id: u64,
    cm_id: *mut *mut sys::ib_cm_id,
) -> c_int {
    sync::assert_may_sleep("cm_create");
    let mut tables = lock();
    if tables.fails(Fault::Create) {
        return sys::ENOMEM.cast_signed();
    }
    let made = make(&mut tables, key(device), id);
    // SAFETY: as kpi/c says: a place for a pointer.
    unsafe { cm_id.write(pointer(made)) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_cm_destroy(cm_id: *mut sys::ib_cm_id) {
    trace::note("destroy_cm_id");
    let mut tables = lock();
    tables.wait_until_idle(key(cm_id), "destroy_cm_id");
    let CmId { device, .. } = tables.ids.remove(key(cm_id));
    tables.devices.release(device);
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_cm_set_id(cm_id: *mut sys::ib_cm_id, id: u64) {
    lock().ids.get(key(cm_id)).id = id;
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_cm_listen(cm_id: *mut sys::ib_cm_id, service: u64) -> c_int {
    sync::assert_may_sleep("cm_listen");
    let mut tables = lock();
    if tables.ids.iter().any(|(_, at)| at.service == Some(service)) {
        return sys::EBUSY.cast_signed();
    }
    if tables.fails(Fault::Send) {
        return sys::ENOMEM.cast_signed();
    }
    tables.ids.get(key(cm_id)).service = Some(service);
    0
}

fn send(cm_id: *mut sys::ib_cm_id, message: Message) -> c_int {
    sync::assert_may_sleep("sending a message");
    let mut tables = lock();
    tables.ids.get(key(cm_id));
    if tables.fails(Fault::Send) {
        return sys::EINVAL.cast_signed();
    }
    let at = tables.ids.get(key(cm_id));
    (at.message, at.sent_at) = (message, uptime());
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_cm_connect(
    cm_id: *mut sys::ib_cm_id,
    connect: *const sys::kpi_cm_connect,
) -> c_int {
    // SAFETY: as kpi/c says.
    let path = unsafe { (*connect).path };
    check!(path.mtu != 0 && path.source_lid != 0, "a REQ without a path");
    send(cm_id, Message::Request)
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_cm_modify_qp(
    cm_id: *mut sys::ib_cm_id,
    pair: *mut sys::ib_qp,
    state: u32,
    _receive_psn: *const u32,
) -> c_int {
    lock().ids.get(key(cm_id));
    rust_helper_ib_modify_qp(pair, state)
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_cm_establish(cm_id: *mut sys::ib_cm_id) -> c_int {
    send(cm_id, Message::ReadyToUse)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_cm_reply(
    cm_id: *mut sys::ib_cm_id,
    reply: *const sys::kpi_cm_reply,
) -> c_int {
    // SAFETY: as kpi/c says.
    check!(unsafe { (*reply).qpn } != 0, "a REP without a queue pair");
    send(cm_id, Message::Reply)
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_cm_reject(cm_id: *mut sys::ib_cm_id, reason: u32) -> c_int {
    lock().ids.get(key(cm_id)).reason = reason;
    send(cm_id, Message::Reject)
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_cm_answer_disconnect(cm_id: *mut sys::ib_cm_id) -> c_int {
    send(cm_id, Message::DisconnectReply)
}
