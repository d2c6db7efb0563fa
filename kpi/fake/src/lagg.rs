//! Laggs, their cloner and their ports. What an administrator asks is in [`request`].

mod request;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sys_bindings as sys;

use crate::{check, ifnet, mbuf, memory, string, sync};

pub use request::*;

static IS_WATCHING: AtomicBool = AtomicBool::new(false);
/// References to interfaces that somebody named.
static NAMED: AtomicI32 = AtomicI32::new(0);
static CLONER: Mutex<Option<Cloner>> = Mutex::new(None);
static PORTS: Mutex<BTreeMap<usize, Port>> = Mutex::new(BTreeMap::new());
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
    check!(cloner().is_none(), "there may be laggs when nobody watches");
    check!(table().is_empty(), "ports are left");
    check!(NAMED.load(Ordering::SeqCst) == 0, "references to interfaces are left");
    check!(IS_WATCHING.swap(false, Ordering::SeqCst), "interfaces are not watched");
    // The file goes, and the names with it.
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// What creates laggs.
struct Cloner {
    name: String,
    callbacks: &'static sys::kpi_cloner_callbacks,
    owner: *mut c_void,
    /// The numbers of those that there are, with their interfaces.
    units: BTreeMap<u32, usize>,
    /// Numbers that somebody is about to use, or to give back.
    busy: BTreeSet<u32>,
}

// SAFETY: the owner is given back in any thread.
unsafe impl Send for Cloner {}

struct Port {
    lagg: usize,
    interface: usize,
    name: CString,
    is_attached: bool,
}

fn cloner() -> MutexGuard<'static, Option<Cloner>> {
    CLONER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn table() -> MutexGuard<'static, BTreeMap<usize, Port>> {
    PORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An administrator creates a lagg, of a kind as `kpi_cloner_kind` numbers them. Its name, or the
/// number of the error.
pub fn create(kind: u32) -> Result<String, c_int> {
    let (unit, callbacks, owner, name) = {
        let mut cloner = cloner();
        let cloner = cloner.as_mut().ok_or(sys::EINVAL.cast_signed())?;
        let is_free = |unit: &u32| !cloner.units.contains_key(unit) && !cloner.busy.contains(unit);
        let unit = (0..).find(is_free).expect("there are many");
        cloner.busy.insert(unit);
        (unit, cloner.callbacks, cloner.owner, format!("{}{unit}", cloner.name))
    };
    let mut made = std::ptr::null_mut();
    let create = callbacks.create.expect("it is set");
    // SAFETY: the owner is that of a cloner, which is not detached while a number is busy.
    let error = sync::call(|| unsafe { create(owner, unit, kind, &raw mut made) });
    let mut cloner = cloner();
    let cloner = cloner.as_mut().expect("it is busy");
    cloner.busy.remove(&unit);
    if error != 0 {
        return Err(error);
    }
    cloner.units.insert(unit, made.addr());
    Ok(name)
}

/// An administrator destroys a lagg. Whether there was one.
pub fn destroy(name: &str) -> bool {
    let (unit, interface, callbacks, owner) = {
        let mut cloner = cloner();
        let Some(cloner) = cloner.as_mut() else { return false };
        let unit = name.strip_prefix(&cloner.name).and_then(|unit| unit.parse().ok());
        let Some(interface) = unit.and_then(|unit| cloner.units.remove(&unit)) else {
            return false;
        };
        let unit: u32 = unit.expect("it was found");
        cloner.busy.insert(unit);
        (unit, interface, cloner.callbacks, cloner.owner)
    };
    let destroy = callbacks.destroy.expect("it is set");
    // SAFETY: as for creating; it is what was created, and destroyed once.
    sync::call(|| unsafe { destroy(owner, without_provenance_mut(interface)) });
    if let Some(cloner) = cloner().as_mut() {
        cloner.busy.remove(&unit);
    }
    true
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_cloner_attach(
    name: *const c_char,
    callbacks: *const sys::kpi_cloner_callbacks,
    owner: *mut c_void,
) -> c_int {
    sync::assert_may_sleep("rust_helper_cloner_attach");
    check!(IS_WATCHING.load(Ordering::SeqCst), "there may be laggs when nobody watches");
    if memory::is_exhausted() {
        return sys::EEXIST.cast_signed();
    }
    let _inside = memory::inside();
    // SAFETY: as kpi/c says: a name, and constant callbacks.
    let (name, callbacks) = unsafe { (string(name), &*callbacks) };
    let (units, busy) = (BTreeMap::new(), BTreeSet::new());
    let made = Cloner { name, callbacks, owner, units, busy };
    check!(cloner().replace(made).is_none(), "there are two cloners");
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_cloner_detach() {
    sync::assert_may_sleep("rust_helper_cloner_detach");
    let _inside = memory::inside();
    loop {
        let name = {
            let cloner = cloner();
            check!(cloner.is_some(), "there is no cloner");
            let cloner = cloner.as_ref().expect("looked at above");
            cloner.units.keys().next().map(|unit| format!("{}{unit}", cloner.name))
        };
        let Some(name) = name else { break };
        destroy(&name);
    }
    *cloner() = None;
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

/// Calls the lagg of a port, which is not detached meanwhile, with what it calls the port.
fn call_lagg<R>(
    port: usize,
    call: impl FnOnce(&sys::kpi_lagg_callbacks, *mut c_void, u64) -> R,
) -> Option<R> {
    let _inside = memory::inside();
    let (lagg, cookie) = ifnet::of(port, |interface| interface.port)??;
    ifnet::call_of(lagg, |_, callbacks, driver| {
        call(callbacks.expect("it is a lagg"), driver, cookie)
    })
}

/// Something about an interface changed, which may be a port.
pub(crate) fn port_changed(interface: usize) {
    call_lagg(interface, |callbacks, driver, _| {
        let changed = callbacks.ports_changed.expect("it is set");
        // SAFETY: the driver is that of the lagg.
        sync::call_atomic(|| unsafe { changed(driver) });
    });
}

/// The address of an interface is to be announced. Whether it is a port, whose lagg does that.
pub(crate) fn port_moved(interface: usize) -> bool {
    let moved = call_lagg(interface, |callbacks, driver, cookie| {
        let moved = callbacks.port_moved.expect("it is set");
        // SAFETY: the driver is that of the lagg.
        sync::call_atomic(|| unsafe { moved(driver, cookie) });
    });
    moved.is_some()
}

/// An interface goes, which may be a port.
pub(crate) fn port_departs(interface: usize) {
    call_lagg(interface, |callbacks, driver, cookie| {
        let departs = callbacks.port_departs.expect("it is set");
        // SAFETY: the driver is that of the lagg, and the thread may sleep.
        sync::call(|| unsafe { departs(driver, cookie) });
    });
}

/// Whose a packet is that an interface received, if it is anybody's.
pub(crate) fn receiver_of(
    interface: usize,
    port: Option<(usize, u64)>,
    cast: u32,
) -> Option<usize> {
    let Some((lagg, _)) = port else { return Some(interface) };
    let dropped = call_lagg(interface, |callbacks, driver, cookie| {
        let receives = callbacks.receives.expect("it is set");
        // SAFETY: the driver is that of the lagg. The thread is in the net epoch.
        sync::call_in_epoch(|| unsafe { receives(driver, cookie, cast) })
    });
    (dropped == Some(0)).then_some(lagg)
}

/// What is known of a port that was not freed.
fn with<R>(port: *const sys::kpi_lagg_port, f: impl FnOnce(&mut Port) -> R) -> R {
    let _inside = memory::inside();
    match table().get_mut(&port.addr()) {
        Some(found) => f(found),
        None => crate::panic(format_args!("a port is used that is freed")),
    }
}

fn interface_of(raw: *const sys::kpi_lagg_port) -> usize {
    with(raw, |port| port.interface)
}

fn name_of(raw: *const sys::kpi_lagg_port) -> String {
    with(raw, |port| port.name.to_string_lossy().into_owned())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_lagg_port_attach(
    lagg: *mut sys::kpi_ifnet,
    named: *mut sys::ifnet,
    made: *mut *mut sys::kpi_lagg_port,
) -> c_int {
    static NEXT: Mutex<usize> = Mutex::new(0);

    sync::assert_may_sleep("lagg_port_attach");
    let _inside = memory::inside();
    let key = {
        let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
        *next += 16;
        *next
    };
    let checked = ifnet::of(named.addr(), |interface| {
        if interface.lagg.is_some() {
            return Err(sys::EINVAL);
        }
        match interface.port {
            Some((other, _)) if other == lagg.addr() => return Err(sys::EEXIST),
            Some(_) => return Err(sys::EBUSY),
            None => {}
        }
        if interface.is_foreign {
            return Err(sys::EPROTONOSUPPORT);
        }
        if !interface.is_attached {
            return Err(sys::ENXIO);
        }
        interface.port = Some((lagg.addr(), u64::MAX));
        Ok(interface.name.clone())
    });
    match checked.unwrap_or(Err(sys::ENXIO)) {
        Ok(name) => {
            let (lagg, interface) = (lagg.addr(), named.addr());
            table().insert(key, Port { lagg, interface, name, is_attached: true });
            // SAFETY: as kpi/c says: a place for a pointer.
            unsafe { made.write(without_provenance_mut(key)) };
            0
        }
        Err(error) => error.cast_signed(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_port_detach(raw: *mut sys::kpi_lagg_port) {
    sync::assert_may_sleep("lagg_port_detach");
    let _inside = memory::inside();
    let (interface, was_attached) =
        with(raw, |port| (port.interface, std::mem::take(&mut port.is_attached)));
    check!(was_attached, "a port is detached twice");
    ifnet::of(interface, |interface| interface.port = None);
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_port_free(port: *mut sys::kpi_lagg_port) {
    let _inside = memory::inside();
    let freed = table().remove(&port.addr());
    let is_detached = freed.is_some_and(|port| !port.is_attached);
    check!(is_detached, "a port is freed that is attached, or twice");
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_port_is(
    port: *const sys::kpi_lagg_port,
    named: *const sys::ifnet,
) -> c_int {
    (interface_of(port) == named.addr()).into()
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_port_name(raw: *const sys::kpi_lagg_port) -> *const c_char {
    // It stays where it is until the port is freed.
    with(raw, |port| port.name.as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_port_set_cookie(raw: *mut sys::kpi_lagg_port, cookie: u64) {
    let (lagg, interface) = with(raw, |port| (port.lagg, port.interface));
    ifnet::of(interface, |interface| interface.port = Some((lagg, cookie)));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_lagg_port_report(
    port: *const sys::kpi_lagg_port,
    report: *mut sys::kpi_lagg_report,
) {
    let _inside = memory::inside();
    let key = interface_of(port);
    let mtu_max = ifnet::call_of(key, |callbacks, _, driver| {
        let mtu_max = callbacks.mtu_max.expect("it is set");
        // SAFETY: the driver is that of the interface.
        sync::call_atomic(|| unsafe { mtu_max(driver) })
    });
    let Some((state, is_up)) =
        ifnet::of(key, |interface| (interface.state.clone(), interface.is_up))
    else {
        return;
    };
    // SAFETY: as kpi/c says: a report.
    let report = unsafe { &mut *report };
    let has_link = state.is_link_up && is_up && mtu_max.is_some();
    report.bits_per_second = state.bits_per_second;
    report.link = match has_link {
        true => sys::kpi_lagg_link::KPI_LAGG_LINK_JOINED,
        false => sys::kpi_lagg_link::KPI_LAGG_LINK_DOWN,
    };
    (report.mtu, report.mtu_max) = (state.mtu, mtu_max.unwrap_or(state.mtu));
    (report.address, report.broadcast) = (state.address, state.broadcast);
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_port_counter(port: *const sys::kpi_lagg_port, counter: u32) -> u64 {
    let _inside = memory::inside();
    ifnet::counter(&name_of(port), counter).unwrap_or_default()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_lagg_port_transmit(
    port: *const sys::kpi_lagg_port,
    packet: *mut sys::mbuf,
    header: *const sys::kpi_link_header,
) -> c_int {
    check!(sync::is_in_epoch(), "a port sends outside of the net epoch");
    let _inside = memory::inside();
    // SAFETY: the stack owns the packet from now on; as kpi/c says, a header.
    let (bytes, header) = unsafe { (mbuf::take(packet), header.read()) };
    let protocol = u16::from_be(header.protocol);
    ifnet::transmit(&name_of(port), &header.address, protocol, &bytes)
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_port_set_up(port: *mut sys::kpi_lagg_port, is_up: c_int) -> c_int {
    sync::assert_may_sleep("lagg_port_set_up");
    let _inside = memory::inside();
    ifnet::set_up(&name_of(port), is_up != 0);
    port_changed(interface_of(port));
    0
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_port_set_mtu(port: *mut sys::kpi_lagg_port, mtu: u32) -> c_int {
    sync::assert_may_sleep("lagg_port_set_mtu");
    let _inside = memory::inside();
    if memory::fails("setting the MTU of a port") {
        return sys::EINVAL.cast_signed();
    }
    ifnet::set_mtu_of(&name_of(port), mtu)
}

fn change_groups(
    port: *const sys::kpi_lagg_port,
    change: impl FnOnce(&mut Vec<ifnet::Address>),
) -> c_int {
    sync::assert_may_sleep("groups of a port");
    let _inside = memory::inside();
    if memory::fails("changing the groups of a port") {
        return sys::ENOMEM.cast_signed();
    }
    let key = interface_of(port);
    let groups = ifnet::of(key, |interface| {
        change(&mut interface.groups);
        interface.groups.clone()
    });
    ifnet::set_groups(&name_of(port), &groups.unwrap_or_default());
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_lagg_port_join(
    port: *mut sys::kpi_lagg_port,
    group: *const u8,
) -> c_int {
    // SAFETY: as kpi/c says: an address.
    let group = unsafe { ifnet::address_at(group) };
    change_groups(port, |groups| groups.push(group))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_lagg_port_leave(
    port: *mut sys::kpi_lagg_port,
    group: *const u8,
) -> c_int {
    // SAFETY: as kpi/c says: an address.
    let group = unsafe { ifnet::address_at(group) };
    change_groups(port, |groups| {
        let place = groups.iter().position(|other| *other == group);
        check!(place.is_some(), "a port leaves a group that it is not in");
        groups.swap_remove(place.unwrap_or_default());
    })
}

/// No interface here is promiscuous.
#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_port_take_flags(raw: *mut sys::kpi_lagg_port) {
    with(raw, |port| check!(port.is_attached, "flags of a port that is detached"));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_lagg_wear(
    lagg: *mut sys::kpi_ifnet,
    address: *const u8,
    broadcast: *const u8,
) {
    // SAFETY: as kpi/c says: addresses.
    let worn = unsafe { [address, broadcast].map(|from| ifnet::address_at(from)) };
    ifnet::of(lagg.addr(), |lagg| [lagg.state.address, lagg.state.broadcast] = worn);
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_tell_address(lagg: *mut sys::kpi_ifnet) -> c_int {
    sync::assert_may_sleep("lagg_tell_address");
    ifnet::of(lagg.addr(), |lagg| lagg.is_up).unwrap_or_default().into()
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_announce(lagg: *mut sys::kpi_ifnet, _has_arp_announced: c_int) {
    sync::assert_may_sleep("lagg_announce");
    ifnet::of(lagg.addr(), |lagg| lagg.state.announcements += 1);
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_set_mtu(lagg: *mut sys::kpi_ifnet, mtu: u32) {
    sync::assert_may_sleep("lagg_set_mtu");
    ifnet::of(lagg.addr(), |lagg| lagg.state.mtu = mtu);
}

/// No adapter here can do anything.
#[unsafe(no_mangle)]
extern "C" fn rust_helper_lagg_set_capabilities(
    _lagg: *mut sys::kpi_ifnet,
    _supported: u64,
    _enabled: u64,
    _assist: u64,
) {
}
