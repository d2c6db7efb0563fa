//! A lagg: what ifconfig(8) asks of it (net/if_lagg.h), and the interfaces that are its ports.

use alloc::vec::Vec;
use core::ffi::{CStr, c_int, c_void};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use ipoib_rs::lagg::{Capabilities, Identity, PortId, PortLink, PortReport};
use ipoib_rs::packet::Cast;
use ipoib_rs::wire::{LINK_ADDRESS_BYTES, LinkAddress};
use sys_bindings as sys;
use zerocopy::IntoBytes;

use crate::context::{Free, InNetEpoch, MaySleep, Unlocked};
use crate::errno::Errno;
use crate::ifnet::{InterfaceCounter, LinkHeader, NetInterface, driver_of, raw_header};
use crate::mbuf::Packet;

mod request;

pub use request::{HashLayers, Options};

/// What drives a lagg, beside what drives every interface ([`crate::ifnet::Driver`]).
pub trait Aggregator: Send + Sync {
    /// The name of the interface.
    fn name(&self) -> Name;

    /// The ports, in the order of preference.
    ///
    /// # Errors
    ///
    /// No memory.
    fn ports(&self, may_sleep: &mut MaySleep) -> Result<Vec<PortStatus>, Errno>;

    /// One of them; `None` if it is none.
    fn port(&self, which: WhichPort<'_>, unlocked: &mut Unlocked) -> Option<PortStatus>;

    /// Takes an interface as a port.
    ///
    /// # Errors
    ///
    /// It cannot be one.
    fn add_port(&self, named: Named, may_sleep: &mut MaySleep) -> Result<(), Errno>;

    /// Gives a port back.
    ///
    /// # Errors
    ///
    /// It is none.
    fn remove_port(&self, named: Named, may_sleep: &mut MaySleep) -> Result<(), Errno>;

    /// The interface of a port goes: it is no port any more when this returns.
    fn port_departs(&self, port: PortId, may_sleep: &mut MaySleep);

    /// The address of a port is to be announced again. It does that later.
    fn port_moved(&self, port: PortId, unlocked: &mut Unlocked);

    /// Something about a port changed. It looks at the ports later.
    fn ports_changed(&self);

    /// Flags that ports have too may have changed. It looks at them later.
    fn flags_changed(&self);

    /// Whether a packet that a port received is the lagg's.
    fn receives(&self, port: PortId, cast: Cast, epoch: &mut InNetEpoch) -> bool;

    /// What ifconfig(8) may set, to be shown or changed.
    fn options(&self, look: &mut dyn FnMut(&mut Options), unlocked: &mut Unlocked);

    /// How often another port began to carry.
    fn carrier_changes(&self, unlocked: &mut Unlocked) -> u64;
}

/// How somebody calls a port.
#[derive(Clone, Copy, Debug)]
pub enum WhichPort<'a> {
    /// As the network stack does.
    Named(&'a Named),
    /// As the lagg does.
    Id(PortId),
}

/// What ifconfig(8) shows of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortStatus {
    /// The name of its interface.
    pub name: Name,
    /// It is preferred to all others.
    pub is_primary: bool,
    /// It carries.
    pub is_carrier: bool,
    /// It has a link.
    pub has_link: bool,
}

/// The name of an interface, with a 0 at its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Name([u8; NAME_BYTES]);

const NAME_BYTES: usize = sys::IFNAMSIZ as usize;

impl Name {
    /// A name, cut where it is too long for one.
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; NAME_BYTES];
        for (to, from) in bytes.iter_mut().take(NAME_BYTES - 1).zip(name.bytes()) {
            *to = from;
        }
        Self(bytes)
    }

    /// As a text.
    pub fn as_str(&self) -> &str {
        let name = CStr::from_bytes_until_nul(&self.0).unwrap_or_default();
        name.to_str().unwrap_or_default()
    }

    fn raw(&self) -> [core::ffi::c_char; NAME_BYTES] {
        // CAST: the same bits; C has its characters with a sign.
        self.0.map(|byte| byte as core::ffi::c_char)
    }
}

/// A reference to an interface that somebody named.
///
/// # Invariants
///
/// One reference of the interface is this value's.
pub struct Named {
    interface: NonNull<sys::ifnet>,
}

// SAFETY: an interface is referred to from every thread.
unsafe impl Send for Named {}
// SAFETY: as above.
unsafe impl Sync for Named {}

impl Drop for Named {
    fn drop(&mut self) {
        // SAFETY: the reference is owned, by the invariant. It does not sleep.
        unsafe { sys::rust_helper_if_reference_drop(self.interface.as_ptr()) }
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named").finish_non_exhaustive()
    }
}

/// Interfaces are watched, and hand in what the ports of our laggs receive, as long as this exists.
/// Laggs come after it, and go before.
#[derive(Debug)]
pub struct Watch(());

impl Watch {
    /// Begins to watch. There must be no other.
    pub fn new(beside: Beside, _may_sleep: &mut MaySleep) -> Self {
        let is_alone = match beside {
            Beside::Nobody => 1,
            Beside::Stock => 0,
        };
        // SAFETY: may sleep, as the argument proves; there is no other, as the caller says.
        unsafe { sys::rust_helper_lagg_start(is_alone) };
        Self(())
    }
}

/// Where it may sleep.
impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: started by `new`; the owner may sleep where it drops this.
        unsafe { sys::rust_helper_lagg_stop() }
    }
}

/// Who else has laggs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Beside {
    /// Nobody, now and later. So interfaces of other drivers can be ports.
    Nobody,
    /// The if_lagg(4) of the kernel, perhaps.
    Stock,
}

/// A port.
///
/// # Invariants
///
/// `port` is attached as long as `is_attached` says so, and not freed.
pub struct LaggPort {
    port: NonNull<sys::kpi_lagg_port>,
    is_attached: AtomicBool,
}

// SAFETY: the functions of ifnet(9) may be called from any thread, and the C half has a mutex of
// its own for what it changes.
unsafe impl Send for LaggPort {}
// SAFETY: as above.
unsafe impl Sync for LaggPort {}

/// What a port says of itself, beside what the machine wants to know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LaggPortReport {
    /// What the machine wants to know.
    pub report: PortReport,
    /// The rate.
    pub bits_per_second: u64,
}

impl LaggPort {
    /// Takes an interface as a port. Its packets are dropped until it has an id. The lagg has to be
    /// there as long as the port is attached.
    ///
    /// # Errors
    ///
    /// It cannot be one: EINVAL, a lagg itself; EEXIST, a port of this lagg; EBUSY, of another;
    /// EPROTONOSUPPORT, no InfiniBand interface, or of another driver while there may be a stock
    /// lagg; ENXIO, it goes.
    pub fn attach(
        lagg: &NetInterface,
        named: &Named,
        _may_sleep: &mut MaySleep,
    ) -> Result<Self, Errno> {
        let mut port = core::ptr::null_mut();
        // SAFETY: may sleep, as the argument proves; both interfaces exist, by their invariants.
        let error = unsafe {
            sys::rust_helper_lagg_port_attach(lagg.raw(), named.interface.as_ptr(), &raw mut port)
        };
        Errno::result(error)?;
        let port = NonNull::new(port).ok_or(Errno::ENOMEM)?;
        // INVARIANT: attached just now.
        Ok(Self { port, is_attached: AtomicBool::new(true) })
    }

    /// Gives the interface back. Nobody who found the port as one uses it when this returns.
    pub fn detach(&self, _may_sleep: &mut MaySleep) {
        if self.is_attached.swap(false, Ordering::Relaxed) {
            // SAFETY: may sleep, as the argument proves; attached, by the invariant.
            unsafe { sys::rust_helper_lagg_port_detach(self.raw()) }
        }
    }

    /// Under which id it receives.
    pub fn set_id(&self, id: PortId) {
        // SAFETY: the port exists, by the invariant.
        unsafe { sys::rust_helper_lagg_port_set_cookie(self.raw(), id.to_bits()) }
    }

    /// Whether it is this interface.
    pub fn is(&self, named: &Named) -> bool {
        let interface = named.interface.as_ptr();
        // SAFETY: the port exists, by the invariant; the pointer is compared only.
        unsafe { sys::rust_helper_lagg_port_is(self.raw(), interface) != 0 }
    }

    /// The name of the interface.
    pub fn name(&self) -> Name {
        // SAFETY: the port holds a reference of the interface. A name that is changed meanwhile has
        // a 0 behind it all the time.
        let name = unsafe { CStr::from_ptr(sys::rust_helper_lagg_port_name(self.raw())) };
        Name::new(name.to_str().unwrap_or_default())
    }

    /// What it is like now. `None` if its addresses are none. No mutex of ours may be held: its
    /// driver is asked.
    pub fn report(&self, _free: &mut impl Free) -> Option<LaggPortReport> {
        let mut raw = sys::kpi_lagg_report {
            supported: 0,
            enabled: 0,
            assist: 0,
            bits_per_second: 0,
            link: 0,
            mtu: 0,
            mtu_max: 0,
            address: [0; LINK_ADDRESS_BYTES],
            broadcast: [0; LINK_ADDRESS_BYTES],
        };
        // SAFETY: the port exists, by the invariant.
        unsafe { sys::rust_helper_lagg_port_report(self.raw(), &raw mut raw) };
        let link = match raw.link {
            sys::kpi_lagg_link::KPI_LAGG_LINK_JOINED => PortLink::Joined,
            sys::kpi_lagg_link::KPI_LAGG_LINK_UP => PortLink::Up,
            // wildcard: a number of C, not an enum.
            _ => PortLink::Down,
        };
        let report = PortReport {
            identity: Identity {
                address: LinkAddress::from_bytes(&raw.address)?,
                broadcast: LinkAddress::from_bytes(&raw.broadcast)?,
            },
            link,
            mtu: raw.mtu as usize,
            mtu_max: raw.mtu_max as usize,
            capabilities: Capabilities {
                supported: raw.supported,
                enabled: raw.enabled,
                assist: raw.assist,
            },
        };
        Some(LaggPortReport { report, bits_per_second: raw.bits_per_second })
    }

    /// A counter of the interface.
    pub fn counter(&self, counter: InterfaceCounter, _free: &mut impl Free) -> u64 {
        // SAFETY: the port exists, by the invariant, and holds a reference of the interface.
        unsafe { sys::rust_helper_lagg_port_counter(self.raw(), counter.raw()) }
    }

    /// Sends a packet.
    ///
    /// # Errors
    ///
    /// For the sender; the packet is gone either way.
    pub fn transmit(
        &self,
        header: &LinkHeader,
        packet: Packet,
        _epoch: &mut InNetEpoch,
    ) -> Result<(), Errno> {
        let raw = raw_header(header);
        let chain = packet.into_raw();
        // SAFETY: in the net epoch, as the argument proves; the port exists, by the invariant. It
        // is the owner of the packet from now on.
        Errno::result(unsafe {
            sys::rust_helper_lagg_port_transmit(self.raw(), chain.as_ptr(), &raw const raw)
        })
    }

    /// Marks it up or down, as an administrator would.
    ///
    /// # Errors
    ///
    /// What its driver says.
    pub fn set_up(&self, is_up: bool, _may_sleep: &mut MaySleep) -> Result<(), Errno> {
        // SAFETY: may sleep, as the argument proves; the port exists, by the invariant.
        Errno::result(unsafe { sys::rust_helper_lagg_port_set_up(self.raw(), is_up.into()) })
    }

    /// Gives it another MTU.
    ///
    /// # Errors
    ///
    /// What its driver says.
    pub fn set_mtu(&self, mtu: usize, _may_sleep: &mut MaySleep) -> Result<(), Errno> {
        let mtu = u32::try_from(mtu).map_err(|_| Errno::EINVAL)?;
        // SAFETY: as in `set_up`.
        Errno::result(unsafe { sys::rust_helper_lagg_port_set_mtu(self.raw(), mtu) })
    }

    /// Has it join a group.
    ///
    /// # Errors
    ///
    /// What the stack says.
    pub fn join(&self, group: &LinkAddress, _may_sleep: &mut MaySleep) -> Result<(), Errno> {
        let group = group.as_bytes().as_ptr();
        // SAFETY: as in `set_up`; the address has as many bytes as are copied.
        Errno::result(unsafe { sys::rust_helper_lagg_port_join(self.raw(), group) })
    }

    /// Has it leave a group.
    ///
    /// # Errors
    ///
    /// What the stack says.
    pub fn leave(&self, group: &LinkAddress, _may_sleep: &mut MaySleep) -> Result<(), Errno> {
        let group = group.as_bytes().as_ptr();
        // SAFETY: as in `join`.
        Errno::result(unsafe { sys::rust_helper_lagg_port_leave(self.raw(), group) })
    }

    /// Gives it those flags of the lagg that a port has too.
    pub fn take_flags(&self, _may_sleep: &mut MaySleep) {
        // SAFETY: as in `set_up`.
        unsafe { sys::rust_helper_lagg_port_take_flags(self.raw()) }
    }

    fn raw(&self) -> *mut sys::kpi_lagg_port {
        self.port.as_ptr()
    }
}

/// Where it may sleep, if it was not detached.
impl Drop for LaggPort {
    fn drop(&mut self) {
        if *self.is_attached.get_mut() {
            // SAFETY: attached, by the invariant; the owner may sleep where it drops this.
            unsafe { sys::rust_helper_lagg_port_detach(self.raw()) }
        }
        // SAFETY: detached, so nobody else has it. It does not sleep.
        unsafe { sys::rust_helper_lagg_port_free(self.raw()) }
    }
}

impl fmt::Debug for LaggPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LaggPort").field(&self.name().as_str()).finish()
    }
}

/// What a lagg does with its own interface. Nothing, once that is detached.
impl NetInterface {
    /// Puts an address and a broadcast address on; nobody is told. It does not sleep.
    pub fn wear(&self, identity: Option<&Identity>) {
        let nobody = [0; LINK_ADDRESS_BYTES];
        let (address, broadcast) = match identity {
            Some(identity) => (identity.address.as_bytes(), identity.broadcast.as_bytes()),
            None => (&nobody[..], &nobody[..]),
        };
        let (address, broadcast) = (address.as_ptr(), broadcast.as_ptr());
        // SAFETY: the interface exists and is attached. Addresses have as many bytes as are
        // copied.
        self.while_attached(|raw| unsafe { sys::rust_helper_lagg_wear(raw, address, broadcast) });
    }

    /// Tells the stack that the address is another. ARP announces it, if the interface is up.
    /// Whether that was so.
    pub fn tell_address(&self, _may_sleep: &mut MaySleep) -> bool {
        // SAFETY: may sleep, as the argument proves; the interface exists and is attached.
        let told =
            self.while_attached(|raw| unsafe { sys::rust_helper_lagg_tell_address(raw) != 0 });
        told.unwrap_or(false)
    }

    /// Tells the neighbours of the address, by unsolicited advertisements, and, unless that was
    /// done by [`Self::tell_address`], by gratuitous ARP.
    pub fn announce_lagg(&self, has_arp_announced: bool, _may_sleep: &mut MaySleep) {
        let has_announced = has_arp_announced.into();
        // SAFETY: as in `tell_address`.
        self.while_attached(|raw| unsafe { sys::rust_helper_lagg_announce(raw, has_announced) });
    }

    /// Changes the MTU to what the ports have.
    pub fn apply_mtu(&self, mtu: usize, _may_sleep: &mut MaySleep) {
        // SAFETY: as in `tell_address`.
        // CAST: at most 65520.
        self.while_attached(|raw| unsafe { sys::rust_helper_lagg_set_mtu(raw, mtu as u32) });
    }

    /// Says what it can do. It does not sleep.
    pub fn set_capabilities(&self, capabilities: Capabilities) {
        let Capabilities { supported, enabled, assist } = capabilities;
        // SAFETY: the interface exists and is attached.
        self.while_attached(|raw| unsafe {
            sys::rust_helper_lagg_set_capabilities(raw, supported, enabled, assist);
        });
    }
}

/// What the C half calls of a lagg.
pub(crate) static CALLBACKS: sys::kpi_lagg_callbacks = sys::kpi_lagg_callbacks {
    request: Some(request),
    describe: Some(describe),
    receives: Some(receives),
    ports_changed: Some(ports_changed),
    port_moved: Some(port_moved),
    port_departs: Some(port_departs),
    flags_changed: Some(flags_changed),
};

/// # Safety
///
/// `driver` is that of an interface that is not detached.
unsafe fn aggregator_of<'a>(driver: *mut c_void) -> Option<&'a dyn Aggregator> {
    // SAFETY: as the caller says.
    unsafe { driver_of(driver) }.aggregator()
}

/// # Safety
///
/// `driver` is that of a lagg that is not detached, `data` what the request has, and `named` an
/// interface and a reference to it, or NULL. The thread may sleep.
unsafe extern "C" fn request(
    driver: *mut c_void,
    request: u32,
    data: *mut c_void,
    named: *mut sys::ifnet,
) -> c_int {
    // INVARIANT: the reference is given away by the caller.
    let named = NonNull::new(named).map(|interface| Named { interface });
    // SAFETY: as the caller says.
    let Some(lagg) = (unsafe { aggregator_of(driver) }) else {
        return Errno::code(Err(Errno::ENXIO));
    };
    // SAFETY: as the caller says.
    let mut may_sleep = unsafe { MaySleep::assume() };
    // SAFETY: as the caller says.
    Errno::code(unsafe { request::answer(lagg, request, data, named, &mut may_sleep) })
}

/// # Safety
///
/// `driver` is that of a lagg that is not detached, and `data` a `struct lagg_reqport`. The thread
/// is in the net epoch.
unsafe extern "C" fn describe(driver: *mut c_void, cookie: u64, data: *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    let lagg = unsafe { aggregator_of(driver) };
    // SAFETY: the stack calls with no mutex of ours held.
    let mut unlocked = unsafe { Unlocked::assume() };
    let which = WhichPort::Id(PortId::from_bits(cookie));
    let found = lagg.and_then(|lagg| Some((lagg, lagg.port(which, &mut unlocked)?)));
    let Some((lagg, status)) = found else { return Errno::code(Err(Errno::ENOENT)) };
    // SAFETY: as the caller says.
    let data = unsafe { &mut *data.cast::<sys::lagg_reqport>() };
    request::show_port(data, &lagg.name(), &status);
    0
}

/// # Safety
///
/// `driver` is that of a lagg that is not detached. The thread is in the net epoch.
unsafe extern "C" fn receives(driver: *mut c_void, cookie: u64, cast: u32) -> c_int {
    let cast = match cast {
        sys::kpi_if_cast::KPI_IF_UNICAST => Cast::Unicast,
        sys::kpi_if_cast::KPI_IF_MULTICAST => Cast::Multicast,
        // wildcard: a number of C, not an enum.
        _ => Cast::Broadcast,
    };
    // SAFETY: as the caller says; input holds no mutex of ours.
    let mut epoch = unsafe { InNetEpoch::assume() };
    // SAFETY: as the caller says.
    let lagg = unsafe { aggregator_of(driver) };
    let port = PortId::from_bits(cookie);
    let takes = lagg.is_some_and(|lagg| lagg.receives(port, cast, &mut epoch));
    (!takes).into()
}

/// # Safety
///
/// `driver` is that of a lagg that is not detached.
unsafe extern "C" fn ports_changed(driver: *mut c_void) {
    // SAFETY: as the caller says.
    if let Some(lagg) = unsafe { aggregator_of(driver) } {
        lagg.ports_changed();
    }
}

/// # Safety
///
/// `driver` is that of a lagg that is not detached.
unsafe extern "C" fn port_moved(driver: *mut c_void, cookie: u64) {
    // SAFETY: the thread of the port calls with no mutex of ours held.
    let mut unlocked = unsafe { Unlocked::assume() };
    // SAFETY: as the caller says.
    if let Some(lagg) = unsafe { aggregator_of(driver) } {
        lagg.port_moved(PortId::from_bits(cookie), &mut unlocked);
    }
}

/// # Safety
///
/// `driver` is that of a lagg that is not detached. The thread may sleep.
unsafe extern "C" fn port_departs(driver: *mut c_void, cookie: u64) {
    // SAFETY: as the caller says.
    let mut may_sleep = unsafe { MaySleep::assume() };
    // SAFETY: as the caller says.
    if let Some(lagg) = unsafe { aggregator_of(driver) } {
        lagg.port_departs(PortId::from_bits(cookie), &mut may_sleep);
    }
}

/// # Safety
///
/// `driver` is that of a lagg that is not detached.
unsafe extern "C" fn flags_changed(driver: *mut c_void) {
    // SAFETY: as the caller says.
    if let Some(lagg) = unsafe { aggregator_of(driver) } {
        lagg.flags_changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_where_it_does_not_fit() {
        assert_eq!(Name::new("lagg0").as_str(), "lagg0");
        assert_eq!(Name::new("an interface of 21 by").as_str(), "an interface of");
    }
}
