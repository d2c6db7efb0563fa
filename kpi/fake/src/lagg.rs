//! Laggs and their cloner, as far as a module that has none wants them.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use sys_bindings as sys;

use crate::{check, memory, string, sync};

static IS_WATCHING: AtomicBool = AtomicBool::new(false);
static HAS_CLONER: AtomicBool = AtomicBool::new(false);
static CLAIMED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The names of modules that were claimed. Those that are loaded are not among them.
pub fn claimed() -> Vec<String> {
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_lagg_start(_is_alone: c_int) {
    sync::assert_may_sleep("rust_helper_lagg_start");
    check!(!IS_WATCHING.swap(true, Ordering::SeqCst), "interfaces are watched twice");
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_lagg_stop() {
    sync::assert_may_sleep("rust_helper_lagg_stop");
    check!(!HAS_CLONER.load(Ordering::SeqCst), "there may be laggs when nobody watches");
    check!(IS_WATCHING.swap(false, Ordering::SeqCst), "interfaces are not watched");
    // The file goes, and the names with it.
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_cloner_attach(
    _name: *const c_char,
    _callbacks: *const sys::kpi_cloner_callbacks,
    _owner: *mut c_void,
) -> c_int {
    sync::assert_may_sleep("rust_helper_cloner_attach");
    check!(IS_WATCHING.load(Ordering::SeqCst), "there may be laggs when nobody watches");
    check!(!HAS_CLONER.swap(true, Ordering::SeqCst), "there are two cloners");
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_cloner_detach() {
    sync::assert_may_sleep("rust_helper_cloner_detach");
    check!(HAS_CLONER.swap(false, Ordering::SeqCst), "there is no cloner");
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_module_claim(name: *const c_char) -> c_int {
    sync::assert_may_sleep("rust_helper_module_claim");
    let _inside = memory::inside();
    // SAFETY: a name.
    let name = unsafe { string(name) };
    let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    if claimed.contains(&name) {
        return sys::EEXIST as c_int;
    }
    claimed.push(name);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_module_unclaim(name: *const c_char) {
    sync::assert_may_sleep("rust_helper_module_unclaim");
    // SAFETY: a name.
    let name = unsafe { string(name) };
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).retain(|claimed| *claimed != name);
}

/// Functions that are called of a lagg and its ports only.
macro_rules! of_laggs {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($(_: $type),*) $(-> $result)? {
            crate::panic(format_args!("{} is called, and there is no lagg", stringify!($name)))
        }
    )*};
}

type Lagg = *mut sys::kpi_ifnet;
type Named = *mut sys::ifnet;
type Port = *mut sys::kpi_lagg_port;
type PortRef = *const sys::kpi_lagg_port;
type Bytes = *const u8;

of_laggs! {
    rust_helper_copy_out(from: *const c_void, to: *mut c_void, length: usize) -> c_int;
    rust_helper_if_reference_drop(named: Named);
    rust_helper_lagg_announce(lagg: Lagg, has_arp_announced: c_int);
    rust_helper_lagg_port_attach(lagg: Lagg, named: Named, port: *mut Port) -> c_int;
    rust_helper_lagg_port_counter(port: PortRef, counter: u32) -> u64;
    rust_helper_lagg_port_detach(port: Port);
    rust_helper_lagg_port_free(port: Port);
    rust_helper_lagg_port_is(port: PortRef, named: *const sys::ifnet) -> c_int;
    rust_helper_lagg_port_join(port: Port, group: Bytes) -> c_int;
    rust_helper_lagg_port_leave(port: Port, group: Bytes) -> c_int;
    rust_helper_lagg_port_name(port: PortRef) -> *const c_char;
    rust_helper_lagg_port_report(port: PortRef, report: *mut sys::kpi_lagg_report);
    rust_helper_lagg_port_set_cookie(port: Port, cookie: u64);
    rust_helper_lagg_port_set_mtu(port: Port, mtu: u32) -> c_int;
    rust_helper_lagg_port_set_up(port: Port, is_up: c_int) -> c_int;
    rust_helper_lagg_port_take_flags(port: Port);
    rust_helper_lagg_port_transmit(
        port: PortRef,
        packet: *mut sys::mbuf,
        header: *const sys::kpi_link_header
    ) -> c_int;
    rust_helper_lagg_set_capabilities(lagg: Lagg, supported: u64, enabled: u64, assist: u64);
    rust_helper_lagg_set_mtu(lagg: Lagg, mtu: u32);
    rust_helper_lagg_tell_address(lagg: Lagg) -> c_int;
    rust_helper_lagg_wear(lagg: Lagg, address: Bytes, broadcast: Bytes);
}
