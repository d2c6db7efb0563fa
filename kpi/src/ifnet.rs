//! An interface of the network stack (ifnet(9)), with the link layer of RFC 4391.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::{CStr, c_int, c_void};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ipoib_rs::ib::Pkey;
use ipoib_rs::packet::{Cast, Delivery, PacketBuf};
use ipoib_rs::wire::{BroadcastGroup, EtherType, LINK_ADDRESS_BYTES, LinkAddress, Scope};
use sys_bindings as sys;
use zerocopy::IntoBytes;

use crate::context::{InNetEpoch, MaySleep, Unlocked};
use crate::errno::Errno;
use crate::lagg::{self, Aggregator};
use crate::mbuf::Packet;
use crate::owned::try_box;
use crate::time;

/// What drives an interface. What is called without a proof that it may sleep must not.
pub trait Driver: Send + Sync {
    /// A packet to send, without the link header.
    ///
    /// # Errors
    ///
    /// For the sender; the packet is gone either way.
    fn transmit(
        &self,
        header: LinkHeader,
        packet: Packet,
        epoch: &mut InNetEpoch,
    ) -> Result<(), Errno>;

    /// Drops what waits to be sent.
    fn flush_queue(&self, unlocked: &mut Unlocked);

    /// The administrator wants the interface up or down.
    fn set_up(&self, is_up: bool, may_sleep: &mut MaySleep);

    /// The administrator wants another MTU.
    ///
    /// # Errors
    ///
    /// It is out of range.
    fn set_mtu(&self, mtu: usize, may_sleep: &mut MaySleep) -> Result<(), Errno>;

    /// The list of multicast groups changed. It looks at the list later.
    fn groups_changed(&self);

    /// The largest MTU that [`Self::set_mtu`] takes now.
    fn mtu_max(&self, unlocked: &mut Unlocked) -> usize;

    /// A counter of the interface.
    fn counter(&self, counter: InterfaceCounter, unlocked: &mut Unlocked) -> u64;

    /// An interface of vlan(4) was put on this one, and may be adopted.
    fn child_configured(&self, vlan: &Vlan, may_sleep: &mut MaySleep);

    /// The interface with this tag, which was adopted, is taken away: that which was made of it
    /// must be detached before this returns.
    fn child_unconfigured(&self, tag: VlanTag, may_sleep: &mut MaySleep);

    /// What drives the lagg that the interface is, if it is one.
    fn aggregator(&self) -> Option<&dyn Aggregator> {
        None
    }
}

/// The tag of an interface of vlan(4): 12 bits, which are the low ones of a P_Key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct VlanTag(pub u16);

/// An interface of vlan(4) on that of a port, see [`Driver::child_configured`].
#[repr(transparent)]
pub struct Vlan {
    raw: sys::kpi_vlan,
}

impl Vlan {
    /// Its tag.
    pub fn tag(&self) -> VlanTag {
        VlanTag(self.raw.tag)
    }
}

impl fmt::Debug for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Vlan").field(&self.raw.tag).finish()
    }
}

/// Where a packet goes to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkHeader {
    /// The neighbour or group.
    pub to: LinkAddress,
    /// The protocol.
    pub protocol: EtherType,
}

/// Counters of an interface, as netstat(1) shows them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum InterfaceCounter {
    /// Packets received.
    PacketsIn,
    /// Received, and in error.
    ErrorsIn,
    /// Bytes received.
    BytesIn,
    /// Packets received by multicast.
    MulticastIn,
    /// Received, and dropped.
    DropsIn,
    /// Packets sent.
    PacketsOut,
    /// Not sent, because of an error.
    ErrorsOut,
    /// Bytes sent.
    BytesOut,
    /// Packets sent by multicast.
    MulticastOut,
    /// Not sent, because a queue was full.
    DropsOut,
}

impl InterfaceCounter {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::PacketsIn,
        Self::ErrorsIn,
        Self::BytesIn,
        Self::MulticastIn,
        Self::DropsIn,
        Self::PacketsOut,
        Self::ErrorsOut,
        Self::BytesOut,
        Self::MulticastOut,
        Self::DropsOut,
    ];

    pub(crate) const fn raw(self) -> u32 {
        use sys::kpi_if_counter as raw;
        match self {
            Self::PacketsIn => raw::KPI_IF_IPACKETS,
            Self::ErrorsIn => raw::KPI_IF_IERRORS,
            Self::BytesIn => raw::KPI_IF_IBYTES,
            Self::MulticastIn => raw::KPI_IF_IMCASTS,
            Self::DropsIn => raw::KPI_IF_IQDROPS,
            Self::PacketsOut => raw::KPI_IF_OPACKETS,
            Self::ErrorsOut => raw::KPI_IF_OERRORS,
            Self::BytesOut => raw::KPI_IF_OBYTES,
            Self::MulticastOut => raw::KPI_IF_OMCASTS,
            Self::DropsOut => raw::KPI_IF_OQDROPS,
        }
    }
}

/// What is to be an interface.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// A new one.
    New {
        /// The name, without the number.
        name: &'a CStr,
        /// The number.
        unit: u32,
    },
    /// One that vlan(4) made.
    Child(&'a Vlan),
}

/// What an interface is made of.
#[derive(Debug)]
pub struct InterfaceConfig<'a> {
    /// Where it comes from.
    pub place: Place<'a>,
    /// The MTU to begin with.
    pub mtu: usize,
    /// The link-layer address.
    pub address: LinkAddress,
    /// That of the broadcast group.
    pub broadcast: LinkAddress,
    /// The rate of the port.
    pub bits_per_second: u64,
    /// Whether checksums of IPv4, TCP and UDP can be left to the adapter.
    pub has_checksums: bool,
}

/// An interface.
///
/// # Invariants
///
/// `interface` was created with `driver`, which came from a box.
#[derive(Debug)]
pub struct NetInterface {
    interface: NonNull<sys::kpi_ifnet>,
    driver: NonNull<Arc<dyn Driver>>,
    is_attached: AtomicBool,
    /// Calls of [`NetInterface::while_attached`] under way.
    users: AtomicU32,
}

// SAFETY: the functions of ifnet(9) may be called from any thread.
unsafe impl Send for NetInterface {}
// SAFETY: as above.
unsafe impl Sync for NetInterface {}

impl NetInterface {
    /// Makes an interface, or adopts one, and attaches it to the network stack, without a link.
    /// One that is adopted may be up already, see [`NetInterface::refresh`].
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn attach(
        config: &InterfaceConfig<'_>,
        driver: Arc<dyn Driver>,
        _may_sleep: &MaySleep,
    ) -> Result<Self, Errno> {
        let lagg = match driver.aggregator() {
            Some(_) => &raw const lagg::CALLBACKS,
            None => core::ptr::null(),
        };
        let driver = NonNull::from(Box::leak(try_box(driver)?));
        let (name, unit) = match config.place {
            Place::New { name, unit } => (name, unit),
            Place::Child(_) => (c"", 0),
        };
        let mut raw = sys::kpi_ifnet_config {
            callbacks: &raw const CALLBACKS,
            driver: driver.as_ptr().cast(),
            name: name.as_ptr(),
            unit,
            // CAST: at most 65520.
            mtu: config.mtu as u32,
            address: [0; LINK_ADDRESS_BYTES],
            broadcast: [0; LINK_ADDRESS_BYTES],
            bits_per_second: config.bits_per_second,
            lagg,
            has_checksums: config.has_checksums,
        };
        raw.address.copy_from_slice(config.address.as_bytes());
        raw.broadcast.copy_from_slice(config.broadcast.as_bytes());
        let mut interface = null_mut();
        // SAFETY: may sleep, as the argument proves. The callbacks are constant, the driver stays
        // where it is until the interface is detached, the rest is copied.
        let error = unsafe {
            match config.place {
                Place::New { .. } => sys::rust_helper_if_create(&raw const raw, &raw mut interface),
                Place::Child(vlan) => sys::rust_helper_if_adopt(
                    &raw const vlan.raw,
                    &raw const raw,
                    &raw mut interface,
                ),
            }
        };
        match (Errno::result(error), NonNull::new(interface)) {
            // INVARIANT: just created with this driver.
            (Ok(()), Some(interface)) => {
                let (is_attached, users) = (AtomicBool::new(true), AtomicU32::new(0));
                Ok(Self { interface, driver, is_attached, users })
            }
            (error, _) => {
                // SAFETY: it came from a box, and an error says that nobody else has it.
                drop(unsafe { Box::from_raw(driver.as_ptr()) });
                Err(error.err().unwrap_or(Errno::ENOMEM))
            }
        }
    }

    /// Has the driver told, as if for the first time, whether the interface is wanted up. That may
    /// have been said before the driver was ready: of one that was adopted always.
    pub fn refresh(&self, _may_sleep: &MaySleep) {
        // SAFETY: may sleep, as the argument proves; the interface exists by its invariant.
        unsafe { sys::rust_helper_if_refresh(self.raw()) }
    }

    /// The name, such as `ib0`.
    pub fn name(&self) -> &str {
        // SAFETY: the interface exists by its invariant, and its name is constant.
        let name = unsafe { CStr::from_ptr(sys::rust_helper_if_name(self.raw())) };
        name.to_str().unwrap_or("ib?")
    }

    /// Counts the interface, for others than the driver. `None` if it is detached.
    pub fn reference(&self) -> Option<Reference> {
        let interface = self.while_attached(|interface| {
            // SAFETY: attached. It counts, and does not sleep.
            unsafe { sys::rust_helper_if_reference(interface) }
        });
        // INVARIANT: counted just now.
        interface.and_then(NonNull::new).map(|interface| Reference { interface })
    }

    /// Says whether there is a carrier. It does not sleep.
    pub fn set_link(&self, is_up: bool) {
        self.while_attached(|interface| {
            // SAFETY: attached; the stack does the rest in a task, for which detaching waits.
            unsafe { sys::rust_helper_if_set_link(interface, is_up.into()) }
        });
    }

    /// Changes the link-layer address, of which ARP and neighbour discovery are told.
    pub fn set_address(&self, address: &LinkAddress, _may_sleep: &MaySleep) {
        self.while_attached(|interface| {
            // SAFETY: may sleep, as the argument proves; attached. The address has as many bytes as
            // are copied.
            unsafe { sys::rust_helper_if_set_address(interface, address.as_bytes().as_ptr()) }
        });
    }

    /// Changes the rate that is shown, in bits per second. It does not sleep.
    pub fn set_rate(&self, bits_per_second: u64) {
        self.while_attached(|interface| {
            // SAFETY: attached.
            unsafe { sys::rust_helper_if_set_rate(interface, bits_per_second) }
        });
    }

    /// Changes the broadcast address.
    pub fn set_broadcast(&self, address: &LinkAddress, _may_sleep: &MaySleep) {
        self.while_attached(|interface| {
            // SAFETY: as in `set_address`.
            unsafe { sys::rust_helper_if_set_broadcast(interface, address.as_bytes().as_ptr()) }
        });
    }

    /// Changes the MTU, as an administrator would.
    pub fn set_mtu(&self, mtu: usize, _may_sleep: &MaySleep) {
        self.while_attached(|interface| {
            // SAFETY: may sleep, as the argument proves; attached.
            // CAST: at most 65520.
            unsafe { sys::rust_helper_if_set_mtu(interface, mtu as u32) }
        });
    }

    /// Says whether the stack may leave checksums to the adapter now. It is asked not to in
    /// connected mode.
    pub fn set_checksums(&self, is_wanted: bool, _may_sleep: &MaySleep) {
        self.while_attached(|interface| {
            // SAFETY: may sleep, as the argument proves; attached.
            unsafe { sys::rust_helper_if_set_checksums(interface, is_wanted.into()) }
        });
    }

    /// Tells the neighbours of the address, by gratuitous ARP and unsolicited advertisements.
    pub fn announce(&self, _may_sleep: &MaySleep) {
        self.while_attached(|interface| {
            // SAFETY: may sleep, as the argument proves; attached.
            unsafe { sys::rust_helper_if_announce(interface) }
        });
    }

    /// Calls `each` with every link-layer multicast address that the stack wants, whatever its
    /// length. `each` must not sleep.
    pub fn each_group(&self, mut each: impl FnMut(&[u8])) {
        // Not inside: it would hold a shared reference while `visit` has an exclusive one.
        let visit = visitor(&each);
        let argument: *mut _ = &raw mut each;
        self.while_attached(|interface| {
            // SAFETY: attached. `visit` is called before this returns, with the argument that it is
            // made for, to which nothing else refers.
            unsafe { sys::rust_helper_if_each_group(interface, Some(visit), argument.cast()) };
        });
    }

    /// Shows a packet that was received, as it was, to bpf(4). It does not sleep.
    pub fn tap_input(&self, packet: &Packet, delivery: Delivery) {
        let cast = number_of(delivery.cast);
        self.while_attached(|interface| {
            // SAFETY: attached, and the packet is a whole one.
            unsafe {
                sys::rust_helper_if_tap_input(interface, packet.raw(), delivery.protocol.0, cast);
            }
        });
    }

    /// Hands a received packet to the stack. No lock may be held that output takes; it does not
    /// sleep.
    pub fn input(&self, packet: Packet, delivery: Delivery, _epoch: &mut InNetEpoch) {
        let cast = number_of(delivery.cast);
        self.while_attached(|interface| {
            let chain = packet.into_raw();
            // SAFETY: attached; the stack is the owner of the packet from now on. The thread is in
            // the net epoch, as the argument proves. It enters the interface's vnet.
            unsafe {
                sys::rust_helper_if_input(interface, chain.as_ptr(), delivery.protocol.0, cast);
            }
        });
    }

    /// Shows a packet that is about to be sent to bpf(4). It does not sleep.
    pub fn tap_output(&self, header: &LinkHeader, packet: &Packet) {
        let raw = raw_header(header);
        // SAFETY: the interface exists by its invariant, and the packet is a whole one.
        unsafe {
            sys::rust_helper_if_tap_output(self.raw(), packet.raw(), &raw const raw);
        }
    }

    /// Tells the sender of an IP packet that it is larger than `mtu`. No lock may be held that
    /// output takes; it does not sleep.
    ///
    /// # Errors
    ///
    /// Nobody was told: no memory, it is no IP packet, or the interface is detached.
    pub fn report_too_big(
        &self,
        packet: Packet,
        mtu: usize,
        _epoch: &mut InNetEpoch,
    ) -> Result<(), Errno> {
        let told = self.while_attached(|interface| {
            let chain = packet.into_raw();
            // SAFETY: as in `input`.
            // CAST: at most 65520.
            Errno::result(unsafe {
                sys::rust_helper_if_too_big(interface, chain.as_ptr(), mtu as u32)
            })
        });
        told.unwrap_or(Err(Errno::ENXIO))
    }

    /// Takes it from the network stack: no call of the driver runs or is to come afterwards, and
    /// what the stack is told from now on, it is not told.
    pub fn detach(&self, may_sleep: &MaySleep) {
        if self.is_attached.swap(false, Ordering::SeqCst) {
            while self.users.load(Ordering::SeqCst) != 0 {
                time::pause_ms(1, may_sleep);
            }
            // SAFETY: may sleep, as the argument proves; attached by `attach` and not detached.
            unsafe { sys::rust_helper_if_detach(self.raw()) }
        }
    }

    /// Which one it is.
    pub fn id(&self) -> InterfaceId {
        InterfaceId(self.interface)
    }

    /// Runs `f` if the interface is attached; it is not detached meanwhile. What the stack has for
    /// an interface goes with that: the link-level address, bpf(4), the task of the link's state.
    pub(crate) fn while_attached<R>(&self, f: impl FnOnce(*mut sys::kpi_ifnet) -> R) -> Option<R> {
        // In one order for all threads: either `detach` sees this user, or this user sees that.
        self.users.fetch_add(1, Ordering::SeqCst);
        let result = self.is_attached.load(Ordering::SeqCst).then(|| f(self.raw()));
        self.users.fetch_sub(1, Ordering::SeqCst);
        result
    }

    pub(crate) fn raw(&self) -> *mut sys::kpi_ifnet {
        self.interface.as_ptr()
    }
}

/// Which interface it is, among those that exist. It is there to be compared.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InterfaceId(NonNull<sys::kpi_ifnet>);

// SAFETY: it is compared only.
unsafe impl Send for InterfaceId {}
// SAFETY: as above.
unsafe impl Sync for InterfaceId {}

impl InterfaceId {
    pub(crate) fn from_raw(raw: *mut sys::kpi_ifnet) -> Option<Self> {
        NonNull::new(raw).map(Self)
    }

    pub(crate) fn raw(self) -> *mut sys::kpi_ifnet {
        self.0.as_ptr()
    }
}

/// Where it may sleep.
impl Drop for NetInterface {
    fn drop(&mut self) {
        if *self.is_attached.get_mut() {
            // SAFETY: attached, and the owner may sleep where it drops it.
            unsafe { sys::rust_helper_if_detach(self.raw()) }
        }
        // SAFETY: detached, so nobody else has it.
        unsafe { sys::rust_helper_if_free(self.raw()) };
        // SAFETY: from a box by the invariant, and nobody else knows it any more.
        drop(unsafe { Box::from_raw(self.driver.as_ptr()) });
    }
}

/// An interface of the stack, which stays while this exists: its memory, not what it does.
///
/// # Invariants
///
/// `interface` is counted for this.
#[derive(Debug)]
pub struct Reference {
    interface: NonNull<sys::ifnet>,
}

// SAFETY: the count may be changed by any thread.
unsafe impl Send for Reference {}

impl Reference {
    /// Gives the count away.
    pub(crate) fn into_raw(self) -> *mut sys::ifnet {
        core::mem::ManuallyDrop::new(self).interface.as_ptr()
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // SAFETY: counted, by the invariant. What is left to do, the stack does later.
        unsafe { sys::rust_helper_if_release(self.interface.as_ptr()) }
    }
}

pub(crate) fn raw_header(header: &LinkHeader) -> sys::kpi_link_header {
    let mut raw = sys::kpi_link_header {
        address: [0; LINK_ADDRESS_BYTES],
        protocol: header.protocol.0.to_be(),
        reserved: 0,
    };
    raw.address.copy_from_slice(header.to.as_bytes());
    raw
}

fn number_of(cast: Cast) -> u32 {
    match cast {
        Cast::Unicast => sys::kpi_if_cast::KPI_IF_UNICAST,
        Cast::Multicast => sys::kpi_if_cast::KPI_IF_MULTICAST,
        Cast::Broadcast => sys::kpi_if_cast::KPI_IF_BROADCAST,
    }
}

/// The function that calls a closure of this type.
fn visitor<F: FnMut(&[u8])>(_each: &F) -> unsafe extern "C" fn(*mut c_void, *const u8, u32) {
    /// # Safety
    ///
    /// `each` is an `F` that nobody else uses meanwhile, `address` has `length` bytes.
    unsafe extern "C" fn visit<F: FnMut(&[u8])>(
        each: *mut c_void,
        address: *const u8,
        length: u32,
    ) {
        // SAFETY: as the caller says.
        let address = unsafe { core::slice::from_raw_parts(address, length as usize) };
        // SAFETY: as the caller says.
        let each = unsafe { &mut *each.cast::<F>() };
        each(address);
    }
    visit::<F>
}

/// What the stack calls.
static CALLBACKS: sys::kpi_ifnet_callbacks = sys::kpi_ifnet_callbacks {
    transmit: Some(transmit),
    flush_queue: Some(flush_queue),
    set_up: Some(set_up),
    set_mtu: Some(set_mtu),
    mtu_max: Some(mtu_max),
    groups_changed: Some(groups_changed),
    counter: Some(counter),
    map_group: Some(map_group),
    child_configured: Some(child_configured),
    child_unconfigured: Some(child_unconfigured),
};

/// # Safety
///
/// `driver` is that of an interface that is not detached.
pub(crate) unsafe fn driver_of<'a>(driver: *mut c_void) -> &'a dyn Driver {
    // SAFETY: it stays where it is until the interface is detached.
    &**unsafe { &*driver.cast::<Arc<dyn Driver>>() }
}

/// # Safety
///
/// `driver` is that of an interface that is not detached, and `chain` the only reference to a chain
/// that begins with a packet header. The thread is in the net epoch.
unsafe extern "C" fn transmit(driver: *mut c_void, chain: *mut sys::mbuf) -> c_int {
    let Some(chain) = NonNull::new(chain) else { return Errno::code(Err(Errno::EINVAL)) };
    // SAFETY: as the caller says. The stack links packets to others in queues only.
    let mut packet = unsafe { Packet::from_raw(chain) };
    // SAFETY: as the caller says.
    let driver = unsafe { driver_of(driver) };
    let mut raw = [0; size_of::<sys::kpi_link_header>()];
    if packet.copy_out(0, &mut raw).is_err() || packet.trim_front(raw.len()).is_err() {
        return Errno::code(Err(Errno::EINVAL));
    }
    let [address @ .., p0, p1, _, _] = raw;
    let Some(to) = LinkAddress::from_bytes(&address) else {
        return Errno::code(Err(Errno::EINVAL));
    };
    let header = LinkHeader { to, protocol: EtherType(u16::from_be_bytes([p0, p1])) };
    // SAFETY: as the caller says; output holds no mutex of ours.
    let mut epoch = unsafe { InNetEpoch::assume() };
    Errno::code(driver.transmit(header, packet, &mut epoch))
}

/// # Safety
///
/// `driver` is that of an interface that is not detached.
unsafe extern "C" fn flush_queue(driver: *mut c_void) {
    // SAFETY: as the caller says.
    let driver = unsafe { driver_of(driver) };
    // SAFETY: the stack calls with no mutex of ours held.
    driver.flush_queue(&mut unsafe { Unlocked::assume() });
}

/// # Safety
///
/// `driver` is that of an interface that is not detached, and the thread may sleep.
unsafe extern "C" fn set_up(driver: *mut c_void, is_up: c_int) {
    // SAFETY: as the caller says.
    let mut may_sleep = unsafe { MaySleep::assume() };
    // SAFETY: as the caller says.
    unsafe { driver_of(driver) }.set_up(is_up != 0, &mut may_sleep);
}

/// # Safety
///
/// `driver` is that of an interface that is not detached, and the thread may sleep.
unsafe extern "C" fn set_mtu(driver: *mut c_void, mtu: u32) -> c_int {
    // SAFETY: as the caller says.
    let mut may_sleep = unsafe { MaySleep::assume() };
    // SAFETY: as the caller says.
    let driver = unsafe { driver_of(driver) };
    Errno::code(driver.set_mtu(mtu as usize, &mut may_sleep))
}

/// # Safety
///
/// `driver` is that of an interface that is not detached.
unsafe extern "C" fn mtu_max(driver: *mut c_void) -> u32 {
    // SAFETY: as the caller says.
    let driver = unsafe { driver_of(driver) };
    // SAFETY: a lagg asks with no mutex of ours held.
    let mtu_max = driver.mtu_max(&mut unsafe { Unlocked::assume() });
    // CAST: at most 65520.
    mtu_max as u32
}

/// # Safety
///
/// `driver` is that of an interface that is not detached.
unsafe extern "C" fn groups_changed(driver: *mut c_void) {
    // SAFETY: as the caller says.
    unsafe { driver_of(driver) }.groups_changed();
}

/// # Safety
///
/// `driver` is that of an interface that is not detached.
unsafe extern "C" fn counter(driver: *mut c_void, counter: u32) -> u64 {
    let known = InterfaceCounter::ALL.into_iter().find(|known| known.raw() == counter);
    let Some(counter) = known else { return 0 };
    // SAFETY: as the caller says.
    let driver = unsafe { driver_of(driver) };
    // SAFETY: the stack calls with no mutex of ours held.
    driver.counter(counter, &mut unsafe { Unlocked::assume() })
}

/// # Safety
///
/// `broadcast` and `address` have as many bytes as an address, `group` as many as one of `family`.
unsafe extern "C" fn map_group(
    broadcast: *const u8,
    family: u32,
    group: *const u8,
    address: *mut u8,
) -> c_int {
    let group = match family {
        sys::kpi_if_family::KPI_IF_INET => {
            // SAFETY: as the caller says; bytes need no alignment.
            IpAddr::V4(Ipv4Addr::from_octets(unsafe { group.cast::<[u8; 4]>().read() }))
        }
        sys::kpi_if_family::KPI_IF_INET6 => {
            // SAFETY: as above.
            IpAddr::V6(Ipv6Addr::from_octets(unsafe { group.cast::<[u8; 16]>().read() }))
        }
        // wildcard: numbers of C, not an enum.
        _ => return Errno::code(Err(Errno::EAFNOSUPPORT)),
    };
    // SAFETY: as the caller says.
    let broadcast = unsafe { broadcast.cast::<[u8; LINK_ADDRESS_BYTES]>().read() };
    let Some(mapped) = group_address(&broadcast, group) else {
        return Errno::code(Err(Errno::EADDRNOTAVAIL));
    };
    let mut bytes = [0; LINK_ADDRESS_BYTES];
    bytes.copy_from_slice(mapped.as_bytes());
    // SAFETY: as the caller says.
    unsafe { address.cast::<[u8; LINK_ADDRESS_BYTES]>().write(bytes) };
    0
}

/// # Safety
///
/// `driver` is that of an interface that is not detached, `vlan` is on it, and stays there until
/// this returns. The thread may sleep.
unsafe extern "C" fn child_configured(driver: *mut c_void, vlan: *const sys::kpi_vlan) {
    // SAFETY: as the caller says.
    let mut may_sleep = unsafe { MaySleep::assume() };
    // SAFETY: as the caller says; the layout is the same.
    let vlan = unsafe { &*vlan.cast::<Vlan>() };
    // SAFETY: as the caller says.
    unsafe { driver_of(driver) }.child_configured(vlan, &mut may_sleep);
}

/// # Safety
///
/// `driver` is that of an interface that is not detached. The thread may sleep.
unsafe extern "C" fn child_unconfigured(driver: *mut c_void, tag: u16) {
    // SAFETY: as the caller says.
    let mut may_sleep = unsafe { MaySleep::assume() };
    // SAFETY: as the caller says.
    unsafe { driver_of(driver) }.child_unconfigured(VlanTag(tag), &mut may_sleep);
}

/// RFC 4391 4: scope and P_Key are those of the broadcast group.
fn group_address(broadcast: &[u8; LINK_ADDRESS_BYTES], group: IpAddr) -> Option<LinkAddress> {
    let scope = Scope::new(broadcast[5] & 0x0F)?;
    let pkey = Pkey::new(u16::from_be_bytes([broadcast[8], broadcast[9]]))?;
    BroadcastGroup::new(scope, pkey).mgid_of(group).map(LinkAddress::multicast)
}
