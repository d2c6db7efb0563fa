//! What an administrator asks of a lagg, as kpi/c/lagg.c hands it on.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use sys_bindings as sys;
use sys_bindings::kpi_lagg_request as request;

use super::NAMED;
use crate::{ifnet, sync};

static IS_USER: AtomicBool = AtomicBool::new(false);

/// Whether who asks from now on has no privileges.
pub fn be_unprivileged(is_user: bool) {
    IS_USER.store(is_user, Ordering::SeqCst);
}

/// A row of the list of ports, as it is for a process.
pub type RawPort = sys::lagg_reqport;

/// A port as the administrator sees it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PortRow {
    /// The name of its interface.
    pub name: String,
    /// It is preferred.
    pub is_primary: bool,
    /// It carries.
    pub is_carrier: bool,
}

/// Takes an interface as a port. The number of the error, or 0.
pub fn add_port(lagg: &str, port: &str) -> c_int {
    ask_about(lagg, request::KPI_LAGG_ADD_PORT, port).0
}

/// Gives a port back. The number of the error, or 0.
pub fn remove_port(lagg: &str, port: &str) -> c_int {
    ask_about(lagg, request::KPI_LAGG_REMOVE_PORT, port).0
}

/// Asks what a port is like.
///
/// # Errors
///
/// The number.
pub fn port(lagg: &str, port: &str) -> Result<PortRow, c_int> {
    match ask_about(lagg, request::KPI_LAGG_GET_PORT, port) {
        (0, row) => Ok(row_of(&row)),
        (error, _) => Err(error),
    }
}

/// Sets the protocol. The number of the error, or 0.
pub fn set_protocol(lagg: &str, protocol: sys::lagg_proto::Type) -> c_int {
    // SAFETY: all bytes 0 is a value of the type: numbers and NULL.
    let mut all: sys::lagg_reqall = unsafe { MaybeUninit::zeroed().assume_init() };
    all.ra_proto = protocol;
    ask(lagg, request::KPI_LAGG_SET, (&raw mut all).cast(), null_mut())
}

/// The ports, into room for `room` bytes; `None`: at an address that is none.
///
/// # Errors
///
/// The number.
pub fn ports_into(lagg: &str, room: Option<usize>) -> Result<Vec<PortRow>, c_int> {
    const ROWS: usize = 16;
    // SAFETY: all bytes 0 is a value of both types: numbers and NULL.
    let mut all: sys::lagg_reqall = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: see above.
    let mut rows: [sys::lagg_reqport; ROWS] = unsafe { MaybeUninit::zeroed().assume_init() };
    (all.ra_size, all.ra_port) = match room {
        Some(room) => (room, rows.as_mut_ptr()),
        None => (usize::MAX, BAD_ADDRESS),
    };
    match ask(lagg, request::KPI_LAGG_GET, (&raw mut all).cast(), null_mut()) {
        0 => Ok(rows[..usize::try_from(all.ra_ports).expect("few")].iter().map(row_of).collect()),
        error => Err(error),
    }
}

/// The ports.
///
/// # Errors
///
/// The number.
pub fn ports(lagg: &str) -> Result<Vec<PortRow>, c_int> {
    ports_into(lagg, Some(usize::MAX))
}

/// Where no process has memory.
const BAD_ADDRESS: *mut sys::lagg_reqport = without_provenance_mut(0x1000);

fn row_of(row: &sys::lagg_reqport) -> PortRow {
    let name = row.rp_portname.iter().take_while(|byte| **byte != 0);
    PortRow {
        name: name.map(|byte| char::from(byte.cast_unsigned())).collect(),
        is_primary: row.rp_flags & sys::LAGG_PORT_MASTER != 0,
        is_carrier: row.rp_flags & sys::LAGG_PORT_ACTIVE != 0,
    }
}

fn ask_about(lagg: &str, request: u32, port: &str) -> (c_int, sys::lagg_reqport) {
    // SAFETY: all bytes 0 is a value of the type, which consists of numbers.
    let mut row: sys::lagg_reqport = unsafe { MaybeUninit::zeroed().assume_init() };
    for (to, from) in row.rp_portname.iter_mut().zip(port.bytes()) {
        *to = from as c_char;
    }
    if request != request::KPI_LAGG_GET_PORT && IS_USER.load(Ordering::SeqCst) {
        return (sys::EPERM.cast_signed(), row);
    }
    let Some(named) = ifnet::key_of(port) else {
        return (sys::EINVAL.cast_signed(), row);
    };
    NAMED.fetch_add(1, Ordering::SeqCst);
    let error = ask(lagg, request, (&raw mut row).cast(), without_provenance_mut(named));
    (error, row)
}

fn ask(lagg: &str, request: u32, data: *mut c_void, named: *mut sys::ifnet) -> c_int {
    if request == request::KPI_LAGG_SET && IS_USER.load(Ordering::SeqCst) {
        return sys::EPERM.cast_signed();
    }
    let answer = ifnet::key_of(lagg).and_then(|key| {
        ifnet::call_of(key, |_, callbacks, driver| {
            let ask = callbacks.expect("it is a lagg").request.expect("it is set");
            // SAFETY: the data is what belongs to the request. The thread may sleep.
            sync::call(|| unsafe { ask(driver, request, data, named) })
        })
    });
    answer.unwrap_or_else(|| {
        if !named.is_null() {
            rust_helper_if_reference_drop(named);
        }
        sys::ENXIO.cast_signed()
    })
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_reference_drop(_named: *mut sys::ifnet) {
    NAMED.fetch_sub(1, Ordering::SeqCst);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_copy_out(
    from: *const c_void,
    to: *mut c_void,
    length: usize,
) -> c_int {
    sync::assert_may_sleep("copy_out");
    if to.addr() >> 16 == 0 {
        return sys::EFAULT.cast_signed();
    }
    // SAFETY: memory of the process that asks: rows that AddressSanitizer knows the end of.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(from.cast(), length) };
    0
}
