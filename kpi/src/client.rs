//! HCAs that come and go, and their ports (rdma/ib_verbs.h).
//!
//! A [`Device`] is counted: the objects that are made of it hold it, and the InfiniBand stack does
//! not get to remove it before the last of them is gone. So no object can outlive its adapter.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::{CStr, c_void};
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};

use ipoib_rs::ib::{Gid, IbMtu, Lid, Partition, Pkey, PkeyIndex, PortAttributes};
use ipoib_rs::interface::PortEvent;
use sys_bindings as sys;

use crate::context::{MaySleep, Unlocked};
use crate::errno::Errno;
use crate::ifnet::Reference;
use crate::log::{self, Level};
use crate::owned::{try_arc, try_box};
use crate::{cm, sa, verbs};

/// What wants to know of HCAs.
pub trait Client: Send + Sync {
    /// An HCA is there: those that were there before the registration, and later ones. Called by
    /// one thread at a time, with the list of devices locked: not to be waited for by a thread that
    /// registers or unregisters.
    fn device_added(&self, device: &Device, may_sleep: &mut MaySleep);

    /// An HCA goes. Everything that was made of it must go: the stack waits until it has.
    fn device_removed(&self, device: &Device, may_sleep: &mut MaySleep);

    /// The interface of a port in a partition, for who manages connections by IP addresses.
    fn find_interface(
        &self,
        port: &Port,
        pkey: Pkey,
        may_sleep: &mut MaySleep,
    ) -> Option<Reference>;
}

/// A client that is told of HCAs. One at a time and module.
///
/// # Invariants
///
/// `client` came from a box and is registered; nothing else holds it mutably.
#[derive(Debug)]
pub struct Registration {
    client: NonNull<Registered>,
}

struct Registered {
    client: Box<dyn Client>,
}

// SAFETY: it is only taken down once, by whoever owns it; the client itself is `Send` and `Sync`.
unsafe impl Send for Registration {}
// SAFETY: nothing is reached through a shared reference.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers a client. It is told of the HCAs that are there before this returns.
    ///
    /// # Errors
    ///
    /// No memory, or there is a registration already.
    pub fn new(client: Box<dyn Client>, _may_sleep: &MaySleep) -> Result<Self, Errno> {
        let client = try_box(Registered { client })?;
        let client = NonNull::from(Box::leak(client));
        // SAFETY: may sleep, as the argument proves. The callbacks are constant, and the client
        // stays where it is until `drop` has unregistered it.
        let error =
            unsafe { sys::rust_helper_ofed_register(&raw const CALLBACKS, client.as_ptr().cast()) };
        if let Err(error) = Errno::result(error) {
            // SAFETY: it came from the box above, and an error says that nobody else has it.
            drop(unsafe { Box::from_raw(client.as_ptr()) });
            return Err(error);
        }
        // INVARIANT: it came from a box and is registered.
        Ok(Self { client })
    }

    /// Unregisters: the client is told that every HCA goes.
    pub fn close(self, _may_sleep: &MaySleep) {}
}

/// Where it may sleep.
impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered by the invariant. It returns when every device was removed and no
        // callback runs or is to come.
        unsafe { sys::rust_helper_ofed_unregister() };
        // SAFETY: from a box by the invariant, and nobody else knows it any more.
        drop(unsafe { Box::from_raw(self.client.as_ptr()) });
        sa::forget();
        cm::forget();
    }
}

/// An HCA.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

/// # Invariants
///
/// `device` is registered with the stack while this exists.
struct Inner {
    device: NonNull<sys::ib_device>,
    attributes: DeviceAttributes,
    ports: (u8, u8),
}

// SAFETY: the stack's functions may be called from any thread, and the rest is constant.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// What an HCA can do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeviceAttributes {
    /// The GUID of the node.
    pub node_guid: u64,
    /// The most work requests of one queue.
    pub queue_len_max: u32,
    /// The most segments of a send.
    pub send_segments_max: usize,
    /// The most completions of a queue.
    pub completions_max: u32,
    /// The shared receive queues that it makes.
    pub shared_receives: Option<SharedReceives>,
    /// Whether it computes and checks the checksum of the IP, TCP and UDP headers of datagrams.
    pub checksums_datagrams: bool,
    /// Whether it can keep multicast of its own away from its queue pairs.
    pub blocks_loopback: bool,
    /// Whether it calls completion handlers inside the net epoch.
    pub completes_in_epoch: bool,
}

/// The shared receive queues of an HCA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SharedReceives {
    /// The most receives of one.
    pub queue_len_max: u32,
    /// The most segments of a receive.
    pub segments_max: usize,
}

impl Device {
    /// The name, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        // SAFETY: the device exists by the invariant, and its name is constant while it does.
        let name =
            unsafe { CStr::from_ptr(sys::rust_helper_ib_device_name(self.inner.device.as_ptr())) };
        name.to_str().unwrap_or("?")
    }

    /// What it can do.
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.inner.attributes
    }

    /// Its InfiniBand ports.
    pub fn ports(&self) -> impl Iterator<Item = Port> {
        let (first, last) = self.inner.ports;
        let is_infiniband = |number: &u8| {
            // SAFETY: the device exists by the invariant, and it has that port.
            unsafe { sys::rust_helper_ib_is_infiniband(self.raw().as_ptr(), *number) != 0 }
        };
        let numbers = (first..=last).filter(is_infiniband);
        numbers.map(|number| Port { device: self.clone(), number })
    }

    /// Whether both are the same HCA.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn raw(&self) -> NonNull<sys::ib_device> {
        self.inner.device
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

/// An InfiniBand port of an HCA.
#[derive(Clone, Debug)]
pub struct Port {
    device: Device,
    number: u8,
}

/// Which P_Key an interface is in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PartitionChoice {
    /// That of the port: the valid key at index 0. Where there is none, the default one (IBA
    /// 10.9.1), wherever it stands: a subnet manager may write it to any place.
    Port,
    /// This one, wherever it stands in the port's table.
    Child(Pkey),
}

impl Port {
    /// The HCA.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The number, from 1.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// What the port is now.
    ///
    /// # Errors
    ///
    /// The adapter could not say.
    pub fn attributes(
        &self,
        choice: PartitionChoice,
        _may_sleep: &MaySleep,
    ) -> Result<PortAttributes, Errno> {
        let attributes = self.query()?;
        Ok(PortAttributes {
            is_active: attributes.is_active != 0,
            lid: Lid::new(attributes.lid),
            gid: Gid(attributes.gid),
            mtu: IbMtu::from_code(attributes.max_mtu).ok_or(Errno::EINVAL)?,
            partition: self.partition(choice)?,
        })
    }

    /// The largest message that the port carries, in bytes.
    ///
    /// # Errors
    ///
    /// The adapter could not say.
    pub fn message_bytes_max(&self, _may_sleep: &MaySleep) -> Result<u32, Errno> {
        Ok(self.query()?.max_message_bytes)
    }

    /// The rate of the link, in bits per second.
    ///
    /// # Errors
    ///
    /// The adapter could not say, or says what is not known here.
    pub fn bits_per_second(&self, _may_sleep: &MaySleep) -> Result<u64, Errno> {
        let mut rate = 0;
        // SAFETY: may sleep, as the argument proves; the device exists by its invariant and has the
        // port.
        let error = unsafe {
            sys::rust_helper_ib_query_rate(self.device.raw().as_ptr(), self.number, &raw mut rate)
        };
        Errno::result(error).map(|()| rate)
    }

    /// Has events of the port told from now on.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn watch(
        &self,
        watcher: Arc<dyn PortWatcher>,
        _may_sleep: &MaySleep,
    ) -> Result<PortWatch, Errno> {
        let watcher = NonNull::from(Box::leak(try_box(watcher)?));
        let mut watch = null_mut();
        // SAFETY: may sleep, as the argument proves; the device exists by its invariant. The
        // watcher stays where it is until the watch is over.
        let error = unsafe {
            sys::rust_helper_ib_watch_port(
                self.device.raw().as_ptr(),
                self.number,
                watcher.as_ptr().cast(),
                &raw mut watch,
            )
        };
        match (Errno::result(error), NonNull::new(watch)) {
            // INVARIANT: the watch began with this watcher.
            (Ok(()), Some(watch)) => Ok(PortWatch { watch, watcher, _device: self.device.clone() }),
            (error, _) => {
                // SAFETY: it came from a box, and an error says that nobody else has it.
                drop(unsafe { Box::from_raw(watcher.as_ptr()) });
                Err(error.err().unwrap_or(Errno::ENOMEM))
            }
        }
    }

    fn query(&self) -> Result<sys::kpi_port_attributes, Errno> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the callers may sleep; the device exists by its invariant and has the port.
        let error = unsafe {
            sys::rust_helper_ib_query_port(
                self.device.raw().as_ptr(),
                self.number,
                attributes.as_mut_ptr(),
            )
        };
        Errno::result(error)?;
        // SAFETY: without an error, it is filled in.
        Ok(unsafe { attributes.assume_init() })
    }

    /// `None` if it is not in the port's table.
    fn partition(&self, choice: PartitionChoice) -> Result<Option<Partition>, Errno> {
        let wanted = match choice {
            PartitionChoice::Port => {
                if let Some(first) = self.partition_at(PkeyIndex(0))? {
                    return Ok(Some(first));
                }
                Pkey::DEFAULT
            }
            PartitionChoice::Child(pkey) => pkey,
        };
        match self.find(wanted) {
            Ok(index) => self.partition_at(index),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `None` if that place of the table is empty. The caller may sleep.
    fn partition_at(&self, index: PkeyIndex) -> Result<Option<Partition>, Errno> {
        let mut pkey = 0;
        // SAFETY: the callers may sleep; the device exists by its invariant and has the port.
        let error = unsafe {
            sys::rust_helper_ib_query_pkey(
                self.device.raw().as_ptr(),
                self.number,
                index.0,
                &raw mut pkey,
            )
        };
        Errno::result(error)?;
        Ok(Pkey::new(pkey).map(|pkey| Partition { pkey, index }))
    }

    /// Where a partition stands in the port's table. The caller may sleep.
    pub(crate) fn find(&self, pkey: Pkey) -> Result<PkeyIndex, Errno> {
        let mut index = 0;
        // SAFETY: the callers may sleep; the device exists by its invariant and has the port.
        let error = unsafe {
            sys::rust_helper_ib_find_pkey(
                self.device.raw().as_ptr(),
                self.number,
                pkey.value(),
                &raw mut index,
            )
        };
        Errno::result(error)?;
        Ok(PkeyIndex(index))
    }
}

/// What wants to know of events of a port.
pub trait PortWatcher: Send + Sync {
    /// The port reported something. Called with a lock of the HCA held, possibly by its interrupt:
    /// it asks nothing of the HCA.
    fn port_changed(&self, event: PortEvent, unlocked: &mut Unlocked);
}

/// Events of a port are told while this exists.
///
/// # Invariants
///
/// `watch` was begun with `watcher`, which came from a box.
#[derive(Debug)]
pub struct PortWatch {
    watch: NonNull<sys::kpi_port_watch>,
    watcher: NonNull<Arc<dyn PortWatcher>>,
    _device: Device,
}

// SAFETY: it is only taken down once, by whoever owns it; the watcher is `Send` and `Sync`.
unsafe impl Send for PortWatch {}
// SAFETY: nothing is reached through a shared reference.
unsafe impl Sync for PortWatch {}

impl Drop for PortWatch {
    fn drop(&mut self) {
        // SAFETY: begun by the invariant. It takes the lock under which events are told: when it
        // returns, none is being told. It must not be called by a watcher, which has that lock;
        // a watcher does not own its watch.
        unsafe { sys::rust_helper_ib_unwatch_port(self.watch.as_ptr()) };
        // SAFETY: from a box by the invariant, and nobody else knows it any more.
        drop(unsafe { Box::from_raw(self.watcher.as_ptr()) });
    }
}

/// What the stack calls.
static CALLBACKS: sys::kpi_ofed_callbacks = sys::kpi_ofed_callbacks {
    device_added: Some(device_added),
    device_removed: Some(device_removed),
    find_interface: Some(find_interface),
    port_changed: Some(port_changed),
    completed: Some(verbs::completed),
    qp_event: Some(verbs::qp_event),
    path_answered: Some(sa::path_answered),
    capabilities_answered: Some(sa::capabilities_answered),
    group_answered: Some(sa::group_answered),
    cm_requested: Some(cm::requested),
    cm_event: Some(cm::event),
};

/// # Safety
///
/// `client` is registered and `device` comes to the stack. The thread may sleep.
unsafe extern "C" fn device_added(client: *mut c_void, device: *mut sys::ib_device) -> *mut c_void {
    // SAFETY: the client that was registered, which is not freed before it is unregistered.
    let registered = unsafe { &*client.cast::<Registered>() };
    // SAFETY: the stack calls from a thread, with an sx lock held only.
    let mut may_sleep = unsafe { MaySleep::assume() };
    // SAFETY: `device` exists until `device_removed` returned.
    let device = match unsafe { Device::adopt(device) } {
        Ok(device) => device,
        // It is of another network.
        Err(Errno::EOPNOTSUPP) => return null_mut(),
        Err(error) => {
            log::line(Level::Error, format_args!("an adapter cannot be used: {error:?}"));
            return null_mut();
        }
    };
    registered.client.device_added(&device, &mut may_sleep);
    Arc::into_raw(device.inner).cast_mut().cast()
}

/// # Safety
///
/// `client` is registered, `device` is what `device_added` returned. The thread may sleep.
unsafe extern "C" fn device_removed(client: *mut c_void, device: *mut c_void) {
    // SAFETY: as in `device_added`.
    let registered = unsafe { &*client.cast::<Registered>() };
    // SAFETY: from `Arc::into_raw`; the stack hands it back once.
    let device = Device { inner: unsafe { Arc::from_raw(device.cast::<Inner>()) } };
    // SAFETY: the stack calls from a thread, with an sx lock held only.
    let mut may_sleep = unsafe { MaySleep::assume() };
    registered.client.device_removed(&device, &mut may_sleep);
    device.wait_until_unused(&may_sleep);
}

/// # Safety
///
/// `client` is registered, `device` is what `device_added` returned, and not handed back meanwhile.
/// The thread may sleep.
unsafe extern "C" fn find_interface(
    client: *mut c_void,
    device: *mut c_void,
    number: u8,
    pkey: u16,
) -> *mut sys::ifnet {
    // SAFETY: as in `device_added`.
    let registered = unsafe { &*client.cast::<Registered>() };
    // SAFETY: from `Arc::into_raw`; the stack still has it, so this is another reference.
    let inner = unsafe {
        Arc::increment_strong_count(device.cast::<Inner>());
        Arc::from_raw(device.cast::<Inner>())
    };
    let device = Device { inner };
    // SAFETY: the stack calls from a thread, with an sx lock held only.
    let mut may_sleep = unsafe { MaySleep::assume() };
    let port = device.ports().find(|port| port.number == number);
    let found = port
        .zip(Pkey::new(pkey))
        .and_then(|(port, pkey)| registered.client.find_interface(&port, pkey, &mut may_sleep));
    found.map_or(null_mut(), Reference::into_raw)
}

/// # Safety
///
/// `context` is a watcher whose watch is not over.
unsafe extern "C" fn port_changed(context: *mut c_void, event: u32) {
    // SAFETY: a watcher stays where it is until its watch is over.
    let watcher = unsafe { &*context.cast::<Arc<dyn PortWatcher>>() };
    let event = match event {
        sys::kpi_port_event::KPI_PORT_ACTIVE => PortEvent::PortActive,
        sys::kpi_port_event::KPI_PORT_ERROR => PortEvent::PortError,
        sys::kpi_port_event::KPI_PORT_LID_CHANGED => PortEvent::LidChanged,
        sys::kpi_port_event::KPI_PORT_PKEY_CHANGED => PortEvent::PkeyChanged,
        sys::kpi_port_event::KPI_PORT_SM_CHANGED => PortEvent::SmChanged,
        sys::kpi_port_event::KPI_PORT_CLIENT_REREGISTER => PortEvent::ClientReregister,
        sys::kpi_port_event::KPI_PORT_GID_CHANGED => PortEvent::GidChanged,
        _ => return,
    };
    // SAFETY: the stack calls from a thread of its own, with its own locks held only.
    watcher.port_changed(event, &mut unsafe { Unlocked::assume() });
}

/// Waits of a tenth of a second between two lines of the log.
const WAITS_PER_LINE: u32 = 100;

impl Device {
    /// # Safety
    ///
    /// `device` exists until the stack was told that it may go.
    unsafe fn adopt(device: *mut sys::ib_device) -> Result<Self, Errno> {
        let device = NonNull::new(device).ok_or(Errno::EINVAL)?;
        let mut raw = MaybeUninit::uninit();
        // SAFETY: the device exists, and the thread may sleep.
        let error =
            unsafe { sys::rust_helper_ib_device_attributes(device.as_ptr(), raw.as_mut_ptr()) };
        Errno::result(error)?;
        // SAFETY: without an error, it is filled in.
        let raw: sys::kpi_device_attributes = unsafe { raw.assume_init() };
        let has = |flag: u32| raw.flags & flag != 0;
        let shared_receives = (raw.max_srq_wr > 0).then_some(SharedReceives {
            queue_len_max: raw.max_srq_wr,
            segments_max: raw.max_srq_sge as usize,
        });
        let attributes = DeviceAttributes {
            node_guid: raw.node_guid,
            queue_len_max: raw.max_qp_wr,
            send_segments_max: raw.max_send_sge as usize,
            completions_max: raw.max_cqe,
            shared_receives,
            checksums_datagrams: has(sys::KPI_DEVICE_UD_IP_CSUM),
            blocks_loopback: has(sys::KPI_DEVICE_BLOCK_LOOPBACK),
            completes_in_epoch: has(sys::KPI_DEVICE_KNOWS_EPOCH),
        };
        // INVARIANT: `wait_until_unused` keeps the device until this is gone.
        let inner = Inner { device, attributes, ports: (raw.first_port, raw.last_port) };
        Ok(Self { inner: try_arc(inner)? })
    }

    /// Returns when this is the last that holds the device.
    fn wait_until_unused(self, may_sleep: &MaySleep) {
        let mut waits = 0;
        while Arc::strong_count(&self.inner) > 1 {
            if waits % WAITS_PER_LINE == WAITS_PER_LINE - 1 {
                log::line(
                    Level::Warning,
                    format_args!("{}: goes, but is still in use", self.name()),
                );
            }
            // SAFETY: may sleep, as the argument proves.
            unsafe { sys::rust_helper_ofed_wait() };
            verbs::destroy_again(&self, may_sleep);
            waits += 1;
        }
    }
}
