//! Interfaces of the network stack, which a test uses in its place.
//!
//! An interface that was detached is not used any more: a kernel may have freed what it is made of.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use sys_bindings as sys;

use crate::{check, lagg, mbuf, memory, string, sync, trace};

pub(crate) type Address = [u8; 20];

pub(crate) struct Interface {
    callbacks: &'static sys::kpi_ifnet_callbacks,
    driver: Driver,
    pub(crate) name: CString,
    pub(crate) state: State,
    pub(crate) is_attached: bool,
    /// References that others than the driver have.
    references: u32,
    /// What the administrator wants.
    pub(crate) is_up: bool,
    /// Of a child: its port, and its tag.
    parent: Option<(usize, u16)>,
    /// Callbacks that run.
    users: u32,
    pub(crate) groups: Vec<Address>,
    received: Vec<Received>,
    too_big: Vec<(Vec<u8>, u32)>,
    /// It is of another driver, and no InfiniBand.
    pub(crate) is_foreign: bool,
    /// It is a lagg.
    pub(crate) lagg: Option<&'static sys::kpi_lagg_callbacks>,
    /// It is a port: the lagg, and what the lagg calls it.
    pub(crate) port: Option<(usize, u64)>,
}

#[derive(Clone, Copy)]
struct Driver(*mut c_void);

// SAFETY: the kernel gives it back in any thread.
unsafe impl Send for Driver {}

/// What the stack was told of an interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct State {
    /// The link-layer address.
    pub address: Address,
    /// That of the broadcast group.
    pub broadcast: Address,
    /// The MTU.
    pub mtu: u32,
    /// The rate.
    pub bits_per_second: u64,
    /// Whether there is a carrier.
    pub is_link_up: bool,
    /// How often the address was announced.
    pub announcements: u32,
    /// How many packets bpf(4) saw of those that were sent.
    pub tapped: u32,
}

/// A packet that was handed to the stack.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Received {
    /// The protocol.
    pub protocol: u16,
    /// Unicast, multicast or broadcast, as `kpi_if_cast` numbers them.
    pub cast: u32,
    /// The packet.
    pub bytes: Vec<u8>,
}

static INTERFACES: Mutex<BTreeMap<usize, Interface>> = Mutex::new(BTreeMap::new());
static ARE_WANTED_UP: AtomicBool = AtomicBool::new(false);
static IDLE: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, BTreeMap<usize, Interface>> {
    INTERFACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The names of the interfaces that are attached, in the order of their numbers.
pub fn names() -> Vec<String> {
    let attached = lock();
    let attached = attached.values().filter(|interface| interface.is_attached);
    let mut names: Vec<String> =
        attached.map(|interface| interface.name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// How many interfaces were not freed.
pub fn count() -> usize {
    lock().len()
}

/// What the stack was told of an interface.
pub fn state(name: &str) -> Option<State> {
    with(name, |interface| interface.state.clone())
}

/// What the stack received since the last call.
pub fn take_received(name: &str) -> Vec<Received> {
    with(name, |interface| std::mem::take(&mut interface.received)).unwrap_or_default()
}

/// The packets of which the stack was told that they are too big, and for which MTU, since the last
/// call.
pub fn take_too_big(name: &str) -> Vec<(Vec<u8>, u32)> {
    with(name, |interface| std::mem::take(&mut interface.too_big)).unwrap_or_default()
}

fn with<R>(name: &str, f: impl FnOnce(&mut Interface) -> R) -> Option<R> {
    let mut interfaces = lock();
    let is_it = |interface: &&mut Interface| {
        interface.is_attached && interface.name.as_bytes() == name.as_bytes()
    };
    interfaces.values_mut().find(is_it).map(f)
}

/// Calls the driver of an interface, which is not detached meanwhile. `None`: there is none.
fn call<R>(
    name: &str,
    call: impl FnOnce(&sys::kpi_ifnet_callbacks, *mut c_void) -> R,
) -> Option<R> {
    call_of(key_of(name)?, |callbacks, _, driver| call(callbacks, driver))
}

/// As [`call`], with what it has if it is a lagg.
pub(crate) fn call_of<R>(
    key: usize,
    call: impl FnOnce(
        &sys::kpi_ifnet_callbacks,
        Option<&'static sys::kpi_lagg_callbacks>,
        *mut c_void,
    ) -> R,
) -> Option<R> {
    let (callbacks, lagg, driver) = {
        let mut interfaces = lock();
        let interface = interfaces.get_mut(&key).filter(|interface| interface.is_attached)?;
        interface.users += 1;
        (interface.callbacks, interface.lagg, interface.driver)
    };
    let result = call(callbacks, lagg, driver.0);
    if let Some(interface) = lock().get_mut(&key) {
        interface.users -= 1;
    }
    IDLE.notify_all();
    Some(result)
}

/// Looks at an interface that was not freed.
pub(crate) fn of<R>(key: usize, f: impl FnOnce(&mut Interface) -> R) -> Option<R> {
    let _inside = memory::inside();
    lock().get_mut(&key).map(f)
}

/// The stack sends a packet. The number of the error, or 0.
pub fn transmit(name: &str, to: &Address, protocol: u16, packet: &[u8]) -> c_int {
    let header = [&to[..], &protocol.to_be_bytes(), &[0, 0]].concat();
    let sent = call(name, |callbacks, driver| {
        let chain = mbuf::packet(&[&header[..], packet].concat());
        let transmit = callbacks.transmit.expect("it is set");
        // SAFETY: the only reference to a packet, in the net epoch.
        sync::call_in_epoch(|| unsafe { transmit(driver, chain) })
    });
    sent.unwrap_or(sys::ENXIO.cast_signed())
}

/// An administrator brings an interface up or down.
pub fn set_up(name: &str, is_up: bool) {
    with(name, |interface| interface.is_up = is_up);
    call(name, |callbacks, driver| {
        let set_up = callbacks.set_up.expect("it is set");
        // SAFETY: the thread may sleep.
        sync::call(|| unsafe { set_up(driver, is_up.into()) });
    });
}

/// Whether an administrator brings every interface up that is created, as soon as it is seen.
pub fn be_up_at_once(is_wanted: bool) {
    ARE_WANTED_UP.store(is_wanted, Ordering::SeqCst);
}

/// An administrator sets the MTU. The number of the error, or 0.
pub fn set_mtu(name: &str, mtu: u32) -> c_int {
    if with(name, |interface| interface.port.is_some()) == Some(true) {
        // That is for the lagg to say.
        return sys::EINVAL.cast_signed();
    }
    set_mtu_of(name, mtu)
}

pub(crate) fn set_mtu_of(name: &str, mtu: u32) -> c_int {
    let set = call(name, |callbacks, driver| {
        let set_mtu = callbacks.set_mtu.expect("it is set");
        // SAFETY: the thread may sleep.
        sync::call(|| unsafe { set_mtu(driver, mtu) })
    });
    let error = set.unwrap_or(sys::ENXIO.cast_signed());
    if error == 0 {
        with(name, |interface| interface.state.mtu = mtu);
    }
    error
}

/// The stack wants what waits to be sent dropped.
pub fn flush_queue(name: &str) {
    call(name, |callbacks, driver| {
        let flush_queue = callbacks.flush_queue.expect("it is set");
        // SAFETY: the driver is that of the interface.
        sync::call_atomic(|| unsafe { flush_queue(driver) });
    });
}

/// A counter, by its number in `kpi_if_counter`.
pub fn counter(name: &str, counter: u32) -> Option<u64> {
    call(name, |callbacks, driver| {
        let read = callbacks.counter.expect("it is set");
        // SAFETY: the driver is that of the interface.
        sync::call_atomic(|| unsafe { read(driver, counter) })
    })
}

/// The stack wants other multicast groups.
pub fn set_groups(name: &str, groups: &[Address]) {
    with(name, |interface| interface.groups = groups.to_vec());
    call(name, |callbacks, driver| {
        let changed = callbacks.groups_changed.expect("it is set");
        // SAFETY: the driver is that of the interface.
        sync::call_atomic(|| unsafe { changed(driver) });
    });
}

/// The link-layer address of a multicast group of IPv4.
pub fn map_group(name: &str, group: [u8; 4]) -> Option<Address> {
    let broadcast = state(name)?.broadcast;
    let mut address = [0; 20];
    let error = call(name, |callbacks, _| {
        let map = callbacks.map_group.expect("it is set");
        let inet = sys::kpi_if_family::KPI_IF_INET;
        // SAFETY: an address of each kind, and room for one.
        unsafe { map(broadcast.as_ptr(), inet, group.as_ptr(), address.as_mut_ptr()) }
    })?;
    (error == 0).then_some(address)
}

/// # Safety
///
/// `interface` is one that was created.
fn used<R>(interface: *mut sys::kpi_ifnet, what: &str, f: impl FnOnce(&mut Interface) -> R) -> R {
    let _inside = memory::inside();
    let mut interfaces = lock();
    match interfaces.get_mut(&interface.addr()) {
        Some(found) => {
            check!(found.is_attached, "{what}: of an interface that is detached");
            f(found)
        }
        None => crate::panic(format_args!("{what}: of an interface that is freed")),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_if_create(
    config: *const sys::kpi_ifnet_config,
    interface: *mut *mut sys::kpi_ifnet,
) -> c_int {
    sync::assert_may_sleep("if_create");
    if memory::is_exhausted() {
        return sys::ENOMEM.cast_signed();
    }
    let _inside = memory::inside();
    // SAFETY: as kpi/c says.
    let (config, name) = unsafe { (&*config, string((*config).name)) };
    let name = format!("{name}{}", config.unit);
    // SAFETY: as kpi/c says: constant callbacks, and a place for a pointer.
    unsafe { interface.write(insert(config, name.clone(), None)) };
    if ARE_WANTED_UP.load(Ordering::SeqCst) {
        set_up(&name, true);
    }
    0
}

/// # Safety
///
/// The callbacks of `config` are constant.
unsafe fn insert(
    config: &sys::kpi_ifnet_config,
    name: String,
    parent: Option<(usize, u16)>,
) -> *mut sys::kpi_ifnet {
    static NEXT: Mutex<usize> = Mutex::new(16);

    let is_taken =
        lock().values().any(|other| other.is_attached && other.name.as_bytes() == name.as_bytes());
    check!(!is_taken, "there are two interfaces {name}");
    let made = Interface {
        // SAFETY: as the caller says.
        callbacks: unsafe { &*config.callbacks },
        driver: Driver(config.driver),
        name: CString::new(name).expect("a name"),
        state: State {
            address: config.address,
            broadcast: config.broadcast,
            mtu: config.mtu,
            bits_per_second: config.bits_per_second,
            is_link_up: false,
            announcements: 0,
            tapped: 0,
        },
        is_attached: true,
        references: 0,
        // vlan(4) has it up already.
        is_up: parent.is_some(),
        parent,
        users: 0,
        groups: Vec::new(),
        received: Vec::new(),
        too_big: Vec::new(),
        // SAFETY: as the caller says.
        lagg: unsafe { config.lagg.as_ref() },
        port: None,
        is_foreign: false,
    };
    let key = {
        let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
        *next += 16;
        *next
    };
    lock().insert(key, made);
    std::ptr::without_provenance_mut(key)
}

/// An Ethernet interface, of another driver.
pub fn add_ethernet(name: &str) {
    // SAFETY: all bytes 0 is a value of both types: numbers, NULL, and no functions.
    let mut config: sys::kpi_ifnet_config = unsafe { MaybeUninit::zeroed().assume_init() };
    config.callbacks = &raw const ETHERNET;
    // SAFETY: the callbacks are constant.
    let made = unsafe { insert(&config, name.to_owned(), None) };
    of(made.addr(), |interface| interface.is_foreign = true);
}

/// It goes.
pub fn remove_ethernet(name: &str) {
    if let Some(key) = key_of(name) {
        lock().remove(&key);
    }
}

static ETHERNET: sys::kpi_ifnet_callbacks = sys::kpi_ifnet_callbacks {
    transmit: None,
    flush_queue: None,
    set_up: None,
    set_mtu: None,
    mtu_max: None,
    groups_changed: None,
    counter: None,
    map_group: None,
    child_configured: None,
    child_unconfigured: None,
};

/// An administrator puts an interface of vlan(4) on one. The name of what it became, if anything.
pub fn add_child(name: &str, tag: u16) -> Option<String> {
    let port = key_of(name)?;
    call(name, |callbacks, driver| {
        let configured = callbacks.child_configured.expect("it is set");
        let vlan = sys::kpi_vlan {
            port: std::ptr::without_provenance_mut(port),
            interface: std::ptr::null_mut(),
            tag,
        };
        // SAFETY: it is there until this returns. The thread may sleep.
        sync::call(|| unsafe { configured(driver, &raw const vlan) });
    });
    let interfaces = lock();
    let is_child = |interface: &&Interface| interface.parent == Some((port, tag));
    let child = interfaces.values().find(is_child)?;
    Some(child.name.to_string_lossy().into_owned())
}

/// An administrator takes an interface of vlan(4) away.
pub fn remove_child(name: &str, tag: u16) {
    call(name, |callbacks, driver| {
        let unconfigured = callbacks.child_unconfigured.expect("it is set");
        // SAFETY: the thread may sleep.
        sync::call(|| unsafe { unconfigured(driver, tag) });
    });
}

pub(crate) fn key_of(name: &str) -> Option<usize> {
    let interfaces = lock();
    let is_it = |(_, interface): &(&usize, &Interface)| {
        interface.is_attached && interface.name.as_bytes() == name.as_bytes()
    };
    interfaces.iter().find(is_it).map(|(key, _)| *key)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_if_adopt(
    vlan: *const sys::kpi_vlan,
    config: *const sys::kpi_ifnet_config,
    interface: *mut *mut sys::kpi_ifnet,
) -> c_int {
    sync::assert_may_sleep("if_adopt");
    if memory::is_exhausted() {
        return sys::ENOMEM.cast_signed();
    }
    let _inside = memory::inside();
    // SAFETY: as kpi/c says.
    let (vlan, config) = unsafe { (vlan.read(), &*config) };
    let name = used(vlan.port, "if_adopt", |port| port.name.to_string_lossy().into_owned());
    let name = format!("{name}.{:04x}", vlan.tag);
    // SAFETY: as kpi/c says: constant callbacks, and a place for a pointer.
    unsafe { interface.write(insert(config, name, Some((vlan.port.addr(), vlan.tag)))) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_refresh(interface: *mut sys::kpi_ifnet) {
    sync::assert_may_sleep("if_refresh");
    let (name, is_up) = used(interface, "if_refresh", |interface| {
        (interface.name.to_string_lossy().into_owned(), interface.is_up)
    });
    if is_up {
        set_up(&name, true);
    }
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_detach(interface: *mut sys::kpi_ifnet) {
    sync::assert_may_sleep("if_detach");
    trace::note("if_detach");
    // vlan(4) takes what is on it away first.
    let (name, tags) = {
        let _inside = memory::inside();
        let name = used(interface, "if_detach", |it| it.name.to_string_lossy().into_owned());
        let port = interface.addr();
        let interfaces = lock();
        let parents = interfaces.values().filter(|it| it.is_attached).filter_map(|it| it.parent);
        let tags: Vec<u16> =
            parents.filter(|(parent, _)| *parent == port).map(|(_, tag)| tag).collect();
        (name, tags)
    };
    for tag in tags {
        remove_child(&name, tag);
    }
    lagg::port_departs(interface.addr());
    used(interface, "if_detach", |interface| interface.is_attached = false);
    let mut interfaces = lock();
    while interfaces.get(&interface.addr()).is_some_and(|interface| interface.users > 0) {
        interfaces = IDLE.wait(interfaces).unwrap_or_else(PoisonError::into_inner);
    }
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_free(interface: *mut sys::kpi_ifnet) {
    sync::assert_may_sleep("if_free");
    trace::note("if_free");
    let _inside = memory::inside();
    let freed = lock().remove(&interface.addr());
    let is_free = freed.as_ref().is_none_or(|interface| interface.references == 0);
    check!(is_free, "somebody was not given back an interface");
    let is_detached = freed.is_some_and(|interface| !interface.is_attached);
    check!(is_detached, "an interface is freed that is not detached, or twice");
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_reference(interface: *mut sys::kpi_ifnet) -> *mut sys::ifnet {
    used(interface, "if_reference", |interface| interface.references += 1);
    interface.cast()
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_release(interface: *mut sys::ifnet) {
    let _inside = memory::inside();
    // It may have been freed meanwhile, as far as the driver goes.
    if let Some(interface) = lock().get_mut(&interface.addr()) {
        check!(interface.references > 0, "an interface is released that nobody has");
        interface.references -= 1;
    }
}

/// The name of an interface that somebody was given, and gives back.
pub(crate) fn release(interface: *mut sys::ifnet) -> Option<String> {
    let name = lock().get(&interface.addr())?.name.to_string_lossy().into_owned();
    rust_helper_if_release(interface);
    Some(name)
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_name(interface: *mut sys::kpi_ifnet) -> *const c_char {
    let interfaces = lock();
    match interfaces.get(&interface.addr()) {
        // It stays where it is until the interface is freed.
        Some(interface) => interface.name.as_ptr(),
        None => crate::panic(format_args!("the name of an interface that is freed")),
    }
}

/// # Safety
///
/// `address` is one.
pub(crate) unsafe fn address_at(address: *const u8) -> Address {
    // SAFETY: as the caller says; bytes need no alignment.
    unsafe { address.cast::<Address>().read() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_if_set_address(
    interface: *mut sys::kpi_ifnet,
    address: *const u8,
) {
    sync::assert_may_sleep("if_set_address");
    // SAFETY: as kpi/c says.
    let address = unsafe { address_at(address) };
    used(interface, "if_set_address", |interface| interface.state.address = address);
    lagg::port_changed(interface.addr());
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_if_set_broadcast(
    interface: *mut sys::kpi_ifnet,
    broadcast: *const u8,
) {
    sync::assert_may_sleep("if_set_broadcast");
    // SAFETY: as kpi/c says.
    let broadcast = unsafe { address_at(broadcast) };
    used(interface, "if_set_broadcast", |interface| interface.state.broadcast = broadcast);
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_set_mtu(interface: *mut sys::kpi_ifnet, mtu: u32) {
    sync::assert_may_sleep("if_set_mtu");
    let name = used(interface, "if_set_mtu", |interface| {
        (interface.state.mtu != mtu).then(|| interface.name.to_string_lossy().into_owned())
    });
    // The way that an administrator takes, with an answer that nobody looks at.
    if let Some(name) = name {
        set_mtu_of(&name, mtu);
    }
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_set_link(interface: *mut sys::kpi_ifnet, is_up: c_int) {
    used(interface, "if_set_link", |interface| interface.state.is_link_up = is_up != 0);
    lagg::port_changed(interface.addr());
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_set_rate(interface: *mut sys::kpi_ifnet, bits_per_second: u64) {
    used(interface, "if_set_rate", |interface| interface.state.bits_per_second = bits_per_second);
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_announce(interface: *mut sys::kpi_ifnet) {
    sync::assert_may_sleep("if_announce");
    if lagg::port_moved(interface.addr()) {
        return;
    }
    used(interface, "if_announce", |interface| interface.state.announcements += 1);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_if_each_group(
    interface: *mut sys::kpi_ifnet,
    each: Option<unsafe extern "C" fn(*mut c_void, *const u8, u32)>,
    argument: *mut c_void,
) {
    let groups = used(interface, "if_each_group", |interface| interface.groups.clone());
    let each = each.expect("a function");
    for group in &groups {
        // SAFETY: as kpi/c says.
        sync::call_atomic(|| unsafe { each(argument, group.as_ptr(), 20) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_if_input(
    interface: *mut sys::kpi_ifnet,
    packet: *mut sys::mbuf,
    protocol: u16,
    cast: u32,
) {
    check!(!sync::holds_mutex(), "a packet is handed to the stack with a mutex held");
    check!(sync::is_in_epoch(), "a packet is handed to the stack outside of the net epoch");
    // SAFETY: the stack owns the packet from now on.
    let bytes = unsafe { mbuf::take(packet) };
    let port = used(interface, "if_input", |interface| interface.port);
    let Some(receiver) = lagg::receiver_of(interface.addr(), port, cast) else { return };
    of(receiver, |interface| {
        interface.received.push(Received { protocol, cast, bytes });
    });
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_tap_output(
    interface: *mut sys::kpi_ifnet,
    _packet: *mut sys::mbuf,
    _header: *const sys::kpi_link_header,
) {
    // Output that is under way when an interface is detached goes on.
    let _inside = memory::inside();
    if let Some(interface) = lock().get_mut(&interface.addr()) {
        interface.state.tapped += 1;
    }
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_tap_input(
    interface: *mut sys::kpi_ifnet,
    _packet: *mut sys::mbuf,
    _protocol: u16,
    _cast: u32,
) {
    used(interface, "if_tap_input", |interface| interface.state.tapped += 1);
}

/// No adapter here makes checksums, so nothing is left to one.
#[unsafe(no_mangle)]
extern "C" fn rust_helper_if_set_checksums(interface: *mut sys::kpi_ifnet, _is_wanted: c_int) {
    sync::assert_may_sleep("if_set_checksums");
    used(interface, "if_set_checksums", |_| ());
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_if_too_big(
    interface: *mut sys::kpi_ifnet,
    packet: *mut sys::mbuf,
    mtu: u32,
) -> c_int {
    check!(!sync::holds_mutex(), "the stack is told with a mutex held");
    check!(sync::is_in_epoch(), "the stack is told outside of the net epoch");
    let is_exhausted = memory::is_exhausted();
    // SAFETY: the stack owns the packet from now on.
    let bytes = unsafe { mbuf::take(packet) };
    if is_exhausted {
        return sys::ENOBUFS.cast_signed();
    }
    used(interface, "if_too_big", |interface| interface.too_big.push((bytes, mtu)));
    0
}
