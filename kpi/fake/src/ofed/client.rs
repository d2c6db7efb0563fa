//! Devices and their ports, and who is told of them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Duration;

use sys_bindings as sys;

use super::tables::{context, key, lock, pointer};
use super::{Fault, Pointer, Port};
use crate::sync::FakeMutex;
use crate::{check, sync, time, trace};

pub(super) struct Device {
    pub(super) name: &'static CStr,
    pub(super) attributes: sys::kpi_device_attributes,
    pub(super) ports: [Port; 2],
    /// What the client gave for it, while it knows it.
    pub(super) data: Option<Pointer>,
}

pub(super) struct Watch {
    pub(super) device: usize,
    pub(super) port: u8,
    pub(super) context: Pointer,
}

const NAMES: [&CStr; 4] = [c"fake0", c"fake1", c"fake2", c"fake3"];

static REGISTRY: FakeMutex = FakeMutex::new(std::borrow::Cow::Borrowed("kpi ofed"));

/// A device comes; the client, if there is one, is told.
pub(super) fn add(attributes: sys::kpi_device_attributes, ports: [Port; 2]) -> usize {
    let mut tables = lock();
    let key = tables.key();
    let name = NAMES[tables.device_count % NAMES.len()];
    tables.device_count += 1;
    tables.devices.insert(key, Device { name, attributes, ports, data: None });
    drop(tables);
    tell_added(key);
    key
}

/// A device goes: nothing of it is left when it is gone.
pub(super) fn remove(key: usize) {
    tell_removed(key);
    lock().devices.remove(key);
    // What the subnet administrator was asked comes back now at the latest.
    super::sa::flush(Some(key));
}

fn tell_added(device: usize) {
    let tables = lock();
    let (Some(client), Some(callbacks)) = (tables.client, tables.callbacks) else { return };
    drop(tables);
    let added = callbacks.device_added.expect("it is set");
    // SAFETY: the client is registered, and the device comes to the stack.
    let data = sync::call(|| unsafe { added(client.0, pointer(device)) });
    lock().devices.get(device).data = (!data.is_null()).then(|| context(data));
}

fn tell_removed(device: usize) {
    time::be_patient();
    let mut tables = lock();
    let data = tables.devices.get(device).data.take();
    let (Some(client), Some(callbacks)) = (tables.client, tables.callbacks) else { return };
    drop(tables);
    let removed = callbacks.device_removed.expect("it is set");
    if let Some(data) = data {
        // SAFETY: the client is registered, and gave that for this device.
        sync::call(|| unsafe { removed(client.0, data.0) });
    }
}

/// The name of the interface of a port in a partition.
pub(super) fn find_interface(device: usize, port: u8, pkey: u16) -> Option<String> {
    let mut tables = lock();
    let (client, callbacks) = (tables.client?, tables.callbacks?);
    let data = tables.devices.get(device).data?;
    drop(tables);
    let find = callbacks.find_interface.expect("it is set");
    // SAFETY: the client is registered, and gave that for this device, which does not go meanwhile.
    let found = sync::call(|| unsafe { find(client.0, data.0, port, pkey) });
    crate::ifnet::release(found)
}

/// A port has an event.
pub(super) fn port_event(device: usize, port: u8, event: u32) {
    let mut tables = lock();
    let is_its = |watch: &Watch| watch.device == device && watch.port == port;
    let watches: Vec<usize> =
        tables.watches.iter().filter(|(_, watch)| is_its(watch)).map(|(key, _)| key).collect();
    for watch in watches {
        if !tables.watches.has(watch) {
            continue;
        }
        let context = tables.watches.get(watch).context;
        let changed = tables.callbacks.and_then(|callbacks| callbacks.port_changed);
        let changed = changed.expect("it is set");
        // SAFETY: the watch is not over before the callback returns.
        let call = || unsafe { changed(context.0, event) };
        (tables, ()) = tables.call(watch, || sync::call_atomic(call));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ofed_register(
    callbacks: *const sys::kpi_ofed_callbacks,
    client: *mut c_void,
) -> c_int {
    sync::assert_may_sleep("register_client");
    let mut tables = lock();
    if tables.client.is_some() {
        return sys::EEXIST.cast_signed();
    }
    if tables.fails(Fault::Create) {
        return sys::ENOMEM.cast_signed();
    }
    // SAFETY: as kpi/c says: it is constant.
    tables.callbacks = Some(unsafe { &*callbacks });
    tables.client = Some(context(client));
    let devices: Vec<usize> = tables.devices.iter().map(|(key, _)| key).collect();
    drop(tables);
    devices.into_iter().for_each(tell_added);
    0
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ofed_unregister() {
    sync::assert_may_sleep("unregister_client");
    trace::note("unregister_client");
    let tables = lock();
    check!(tables.client.is_some(), "no client is registered");
    let devices: Vec<usize> = tables.devices.iter().map(|(key, _)| key).collect();
    drop(tables);
    devices.into_iter().for_each(tell_removed);
    super::sa::flush(None);
    lock().client = None;
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ofed_lock() {
    REGISTRY.lock();
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ofed_unlock() {
    REGISTRY.unlock();
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ofed_wait() {
    sync::assert_may_sleep("ofed_wait");
    // It is shorter where time is real.
    let is_short = !crate::worker::are_by_hand();
    time::pause(Duration::from_millis(if is_short { 1 } else { 100 }));
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_device_name(device: *mut sys::ib_device) -> *const c_char {
    lock().devices.get(key(device)).name.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_device_attributes(
    device: *mut sys::ib_device,
    attributes: *mut sys::kpi_device_attributes,
) -> c_int {
    let mut tables = lock();
    if tables.fails(Fault::Query) {
        return sys::EIO.cast_signed();
    }
    // SAFETY: a place for attributes.
    unsafe { attributes.write(tables.devices.get(key(device)).attributes) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_is_infiniband(device: *mut sys::ib_device, port: u8) -> c_int {
    port_of(lock().devices.get(key(device)), port).is_infiniband.into()
}

fn port_of(device: &Device, port: u8) -> &Port {
    check!((1..=2).contains(&port), "there is no port {port}");
    &device.ports[usize::from(port) - 1]
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_query_port(
    device: *mut sys::ib_device,
    port: u8,
    attributes: *mut sys::kpi_port_attributes,
) -> c_int {
    sync::assert_may_sleep("query_port");
    let mut tables = lock();
    if tables.fails(Fault::Query) {
        return sys::EIO.cast_signed();
    }
    let port = port_of(tables.devices.get(key(device)), port);
    let answer = sys::kpi_port_attributes {
        gid: port.gid,
        lid: port.lid,
        max_mtu: port.mtu,
        is_active: port.is_active.into(),
        max_message_bytes: 1 << 30,
    };
    // SAFETY: a place for attributes.
    unsafe { attributes.write(answer) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_query_rate(
    device: *mut sys::ib_device,
    port: u8,
    bits_per_second: *mut u64,
) -> c_int {
    sync::assert_may_sleep("query_rate");
    let mut tables = lock();
    if tables.fails(Fault::Query) {
        return sys::EIO.cast_signed();
    }
    port_of(tables.devices.get(key(device)), port);
    // SAFETY: a place for a number.
    unsafe { bits_per_second.write(56_000_000_000) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_query_pkey(
    device: *mut sys::ib_device,
    port: u8,
    index: u16,
    pkey: *mut u16,
) -> c_int {
    let mut tables = lock();
    if tables.fails(Fault::Query) {
        return sys::EIO.cast_signed();
    }
    match port_of(tables.devices.get(key(device)), port).pkeys.get(usize::from(index)) {
        Some(found) => {
            // SAFETY: a place for a key.
            unsafe { pkey.write(*found) };
            0
        }
        None => sys::EINVAL.cast_signed(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_find_pkey(
    device: *mut sys::ib_device,
    port: u8,
    pkey: u16,
    index: *mut u16,
) -> c_int {
    let mut tables = lock();
    if tables.fails(Fault::Query) {
        return sys::EIO.cast_signed();
    }
    let keys = &port_of(tables.devices.get(key(device)), port).pkeys;
    match keys.iter().position(|other| other & 0x7fff == pkey & 0x7fff) {
        Some(place) => {
            // SAFETY: a place for an index.
            unsafe { index.write(u16::try_from(place).expect("a short table")) };
            0
        }
        None => sys::ENOENT.cast_signed(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_watch_port(
    device: *mut sys::ib_device,
    port: u8,
    watcher: *mut c_void,
    watch: *mut *mut sys::kpi_port_watch,
) -> c_int {
    sync::assert_may_sleep("watch_port");
    let mut tables = lock();
    if tables.fails(Fault::Create) {
        return sys::ENOMEM.cast_signed();
    }
    let device = key(device);
    tables.devices.hold(device);
    let made = tables.key();
    tables.watches.insert(made, Watch { device, port, context: context(watcher) });
    // SAFETY: a place for a pointer.
    unsafe { watch.write(pointer(made)) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_unwatch_port(watch: *mut sys::kpi_port_watch) {
    trace::note("unwatch_port");
    let mut tables = lock();
    tables.wait_until_idle(key(watch), "unwatch_port");
    let Watch { device, .. } = tables.watches.remove(key(watch));
    tables.devices.release(device);
}
