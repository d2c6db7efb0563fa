//! The hosts of the lab: a namespace, ports of the fabric, and interfaces that connect the two.

mod interface;

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use fabric::node::{
    Delivered, HostEvent, InterfaceConfig, InterfaceId, Node, NodeConfig, NodeEvent, TooBig,
};
use fabric::packet::Packet;
use fabric::port::PortId;
use fabric::{AsyncEvent, Fabric};
use ipoib_rs::event::{Event, Notice};
use ipoib_rs::ib::Pkey;
use ipoib_rs::interface::{ConnectedSupport, Mode, RingFull};
use ipoib_rs::lagg::{Capabilities, Identity, PortLink, PortReport};
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::Delivery;
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{EtherType, LinkAddress, Scope};
use sim::host::Subnet;
use zerocopy::IntoBytes;

use super::interface_error;
use crate::capture::Capture;
use crate::error::Error;
use crate::memberships::Memberships;
use crate::namespace::Namespace;
use crate::tun::Tun;

pub(super) use interface::LabInterface;

/// What comes in by a port of a lagg.
#[derive(Debug)]
pub(super) enum Inbound {
    Received(Packet, Delivery),
    TooBig(Packet, usize),
}

/// What a port has for its lagg.
#[derive(Debug, Default)]
pub(super) struct Enslaved {
    pub(super) inbound: VecDeque<Inbound>,
    /// It is not as it was.
    pub(super) is_changed: bool,
    /// It wants its address to be announced.
    pub(super) has_moved: bool,
    /// It takes packets again.
    pub(super) is_woken: bool,
}

/// The node GUID of the first host.
const HOST_GUID: u64 = 0x0002_C903_0000_1000;
const IPV4_PREFIX_BITS: u8 = 24;
const IPV6_PREFIX_BITS: u8 = 64;
/// What the adapters of hosts can do.
const CONNECTED: ConnectedSupport = ConnectedSupport { mtu_max: 65_520, shares_receives: true };
/// Packets that a device holds for the lab. It tells the kernel's TCP nothing when it is full, as
/// an adapter would: room for what two connections may have under way in packets of 2044 bytes.
const TUN_QUEUE_LEN: &str = "4000";
/// Lines of the log that are kept.
const NOTICES_MAX: usize = 32;

/// A host, by its letter.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct HostId(u8);

impl HostId {
    /// The first host.
    pub(crate) const A: Self = Self(0);
    /// The second host.
    pub(crate) const B: Self = Self(1);
    /// The third host.
    pub(crate) const C: Self = Self(2);
    /// The fourth host.
    pub(crate) const D: Self = Self(3);
    /// The hosts of a scenario.
    pub(crate) const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The first `count` hosts.
    pub(super) fn first(count: u8) -> impl Iterator<Item = Self> {
        (0..count).map(Self)
    }

    /// The GUID of its adapter; ports have the GUIDs that follow.
    pub(super) fn guid(self) -> u64 {
        // Far enough apart for the GUIDs of ports in between.
        HOST_GUID + 0x10 * u64::from(self.0)
    }

    /// The name of its namespace.
    pub(super) fn namespace(self, prefix: &str) -> String {
        format!("{prefix}{}", char::from(b'a' + self.0))
    }

    /// The address of its first interface.
    pub(crate) fn ipv4(self) -> Ipv4Addr {
        Place::first(self).ipv4()
    }

    /// The address of its first interface.
    pub(crate) fn ipv6(self) -> Ipv6Addr {
        Place::first(self).ipv6()
    }

    /// The address of its child interface.
    pub(crate) fn child_ipv4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 1, self.0 + 1)
    }

    /// The address of its child interface.
    pub(crate) fn child_ipv6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xFD00, 0x77, 1, 0, 0, 0, 0, u16::from(self.0) + 1)
    }

    /// The link-local address of each of its interfaces.
    pub(crate) fn link_local(self) -> Ipv6Addr {
        Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, u16::from(self.0) + 1)
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}", char::from(b'a' + self.0))
    }
}

/// A port of a host, by its number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    /// The host.
    pub(crate) host: HostId,
    /// The port, from 0.
    pub(crate) number: u8,
}

impl Place {
    /// A host's first port.
    pub(crate) fn first(host: HostId) -> Self {
        Self { host, number: 0 }
    }

    /// A host's second port.
    pub(crate) fn second(host: HostId) -> Self {
        Self { host, number: 1 }
    }

    /// The name of its interface.
    pub(crate) fn interface(self) -> &'static str {
        if self.number == 0 { "ib0" } else { "ib1" }
    }

    /// The name of its link.
    pub(crate) fn link(self, prefix: &str) -> String {
        let namespace = self.host.namespace(prefix);
        if self.number == 0 { namespace } else { format!("{namespace}.{}", self.interface()) }
    }

    /// The third part of IPv4 addresses; 1 is that of child interfaces.
    fn subnet(self) -> u8 {
        2 * self.number
    }

    /// The address of its interface.
    pub(crate) fn ipv4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.subnet(), self.host.0 + 1)
    }

    /// The address of its interface.
    pub(crate) fn ipv6(self) -> Ipv6Addr {
        let host = u16::from(self.host.0) + 1;
        Ipv6Addr::new(0xFD00, 0x77, self.subnet().into(), 0, 0, 0, 0, host)
    }

    /// One more address of the host in the subnet of this port.
    pub(crate) fn ipv4_floating(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.subnet(), 100 + self.host.0)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.interface(), self.host)
    }
}

/// A port of a host, and the interfaces on it.
#[derive(Debug)]
pub(super) struct LabPort {
    place: Place,
    id: PortId,
    node: Node,
    interfaces: Vec<LabInterface>,
    memberships: Memberships,
    capture: Option<Capture>,
    /// Whether the adapter or the core may have something to do.
    needs_run: bool,
    notices: Vec<String>,
    /// What it has for its lagg, if it is a port of one.
    enslaved: Option<Enslaved>,
    // Last: devices go before their namespace.
    namespace: Rc<Namespace>,
}

impl LabPort {
    /// A port with one interface, up and with addresses. It has no link yet.
    pub(super) fn new(
        fabric: &mut Fabric,
        place: Place,
        id: PortId,
        context: u64,
        namespace: Rc<Namespace>,
        capture: Option<Capture>,
    ) -> Result<Self, Error> {
        let config = NodeConfig::with_context(context);
        let node = Node::new(fabric, id, &config).map_err(interface_error("port"))?;
        let mut port = Self {
            place,
            id,
            node,
            interfaces: Vec::new(),
            memberships: Memberships::open(&namespace)?,
            capture,
            needs_run: false,
            notices: Vec::new(),
            enslaved: None,
            namespace,
        };
        let addresses = [place.ipv4().into(), place.ipv6().into()];
        port.add_interface(fabric, place.interface(), None, &addresses)?;
        Ok(port)
    }

    /// Adds the interface of the port (`None`) or of a partition.
    pub(super) fn add_interface(
        &mut self,
        fabric: &mut Fabric,
        name: &str,
        pkey: Option<Pkey>,
        addresses: &[IpAddr],
    ) -> Result<(), Error> {
        let config = InterfaceConfig {
            pkey,
            scope: Scope::LINK_LOCAL,
            mode: Mode::Datagram,
            connected: Some(CONNECTED),
            seed: self.seed() | self.interfaces.len() as u64,
            limits: Limits::DEFAULT,
        };
        let id = self.node.add_interface(fabric, &config).map_err(interface_error("interface"))?;
        let tun = self.namespace.within(|| Tun::create(name))??;
        if let Some(core) = self.node.interface(id) {
            tun.set_mtu(core.mtu())?;
        }
        self.interfaces.push(LabInterface::new(id, name.to_owned(), tun));
        for &address in addresses {
            self.add_address(name, address)?;
        }
        if self.place.number == 0 {
            // One link has one of them; the ports of a host are on the same.
            self.add_address(name, self.place.host.link_local().into())?;
        }
        let up = ["link", "set", name, "txqueuelen", TUN_QUEUE_LEN, "up"];
        self.namespace.ip(&up)
    }

    /// Gives an interface an address: the kernel, and the lab that answers for it.
    pub(super) fn add_address(&mut self, name: &str, address: IpAddr) -> Result<(), Error> {
        let (subnet, prefix_bits) = subnet_of(address)?;
        self.namespace.add_address(name, address, prefix_bits)?;
        let interface = self.interfaces.iter_mut().find(|other| other.name == name);
        if let Some(interface) = interface {
            interface.add_address(subnet);
        }
        Ok(())
    }

    /// Answers for one more address, whatever interface the kernel has it on.
    pub(super) fn answer_for(&mut self, fabric: &mut Fabric, address: IpAddr) -> Result<(), Error> {
        let (subnet, _) = subnet_of(address)?;
        if let Some(interface) = self.interfaces.first_mut() {
            interface.add_address(subnet);
            interface.stack.announce(fabric.pool_mut());
        }
        self.needs_run = true;
        Ok(())
    }

    /// Answers for an address no longer.
    pub(super) fn forget_address(&mut self, address: IpAddr) {
        for interface in &mut self.interfaces {
            interface.remove_address(address);
        }
    }

    /// Switches the mode of every interface.
    pub(super) fn set_mode(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        mode: Mode,
    ) -> Result<(), Error> {
        for id in self.interfaces.iter().filter_map(LabInterface::id) {
            let result = self.node.set_mode(now, fabric, id, mode);
            result.map_err(interface_error("mode"))?;
        }
        self.needs_run = true;
        Ok(())
    }

    /// Sets the MTU that every interface has in connected mode.
    pub(super) fn set_connected_mtu(
        &mut self,
        fabric: &mut Fabric,
        mtu: usize,
    ) -> Result<(), Error> {
        for id in self.interfaces.iter().filter_map(LabInterface::id) {
            let result = self.node.set_connected_mtu(fabric, id, mtu);
            result.map_err(interface_error("MTU"))?;
        }
        self.needs_run = true;
        Ok(())
    }

    /// From now on it is a port of a lagg, and has no addresses of its own.
    pub(super) fn enslave(&mut self, now: Instant, fabric: &mut Fabric) -> Result<(), Error> {
        self.enslaved = Some(Enslaved { is_changed: true, ..Enslaved::default() });
        for interface in &mut self.interfaces {
            self.namespace.ip(&["address", "flush", "dev", &interface.name])?;
            interface.stack.clear(fabric.pool_mut());
            interface.stack.set_addresses(Vec::new());
        }
        self.set_groups(now, fabric, std::iter::empty());
        Ok(())
    }

    pub(super) fn enslaved(&mut self) -> Option<&mut Enslaved> {
        self.enslaved.as_mut()
    }

    /// Tells the core which groups the lagg wants.
    pub(super) fn set_groups<'a>(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        groups: impl Iterator<Item = &'a LinkAddress> + Clone,
    ) {
        if let Some(id) = self.interfaces.first().and_then(LabInterface::id) {
            let list = groups.map(IntoBytes::as_bytes);
            self.node.handle_multicast_list(now, fabric, id, list);
            self.needs_run = true;
        }
    }

    /// What its lagg may know of it.
    pub(super) fn report(&self) -> Option<PortReport> {
        let core = self.node.interface(self.interfaces.first()?.id()?)?;
        let mtu_max = match core.mode() {
            Mode::Connected => CONNECTED.mtu_max,
            Mode::Datagram => core.mtu(),
        };
        let broadcast = LinkAddress::multicast(core.broadcast()?);
        Some(PortReport {
            identity: Identity { address: core.address(), broadcast },
            link: if core.is_link_up() { PortLink::Joined } else { PortLink::Down },
            mtu: core.mtu(),
            mtu_max,
            capabilities: Capabilities::default(),
        })
    }

    /// Sends a packet of the lagg.
    pub(super) fn transmit(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        to: &LinkAddress,
        protocol: EtherType,
        packet: Packet,
    ) -> Result<(), RingFull<Packet>> {
        self.needs_run = true;
        match self.interfaces.first().and_then(LabInterface::id) {
            Some(id) => self.node.handle_transmit(now, fabric, id, to, protocol, packet),
            None => {
                fabric.pool_mut().free(packet);
                Ok(())
            }
        }
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    pub(super) fn id(&self) -> PortId {
        self.id
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    pub(super) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(super) fn shared_namespace(&self) -> Rc<Namespace> {
        Rc::clone(&self.namespace)
    }

    pub(super) fn interfaces(&self) -> &[LabInterface] {
        &self.interfaces
    }

    pub(super) fn notices(&self) -> &[String] {
        &self.notices
    }

    pub(super) fn capture(&mut self) -> Option<&mut Capture> {
        self.capture.as_mut()
    }

    /// The devices that packets may be read from now.
    pub(super) fn readable_devices(&self) -> impl Iterator<Item = &Tun> {
        let readable = |interface: &&LabInterface| interface.can_send();
        let interfaces = self.interfaces.iter().filter(readable);
        interfaces.map(|interface| &interface.tun)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let stacks = self.interfaces.iter();
        let deadlines = stacks.filter_map(|interface| interface.stack.poll_timeout());
        deadlines.chain(self.node.poll_timeout()).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, fabric: &mut Fabric) {
        if self.node.poll_timeout().is_some_and(|at| at <= now) {
            self.node.handle_timeout(now, fabric);
            self.needs_run = true;
        }
        for interface in &mut self.interfaces {
            interface.stack.handle_timeout(now, fabric.pool_mut());
        }
    }

    /// Looks at what the kernel does not tell: administrative state and groups.
    pub(super) fn watch(&mut self, now: Instant, fabric: &mut Fabric) -> Result<(), Error> {
        for interface in &mut self.interfaces {
            let Some(id) = interface.id.filter(|_| !interface.is_detached) else {
                continue;
            };
            let is_up = interface.tun.is_admin_up()?;
            match (interface.is_admin_up, is_up) {
                (false, true) => self.node.handle_admin_up(now, fabric, id),
                (true, false) => self.node.handle_admin_down(now, fabric, id),
                (true, true) | (false, false) => {}
            }
            interface.is_admin_up = is_up;
            if self.enslaved.is_some() {
                // What its kernel wants is for the lagg to know.
                continue;
            }
            let groups = self.memberships.read(&interface.name)?;
            interface.stack.set_groups(groups);
            interface.feed_groups(now, fabric, &mut self.node);
        }
        self.needs_run = true;
        Ok(())
    }

    /// The adapter has something: [`Self::run`] looks.
    pub(super) fn handle_notification(&mut self) {
        self.needs_run = true;
    }

    pub(super) fn handle_adapter_event(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        event: AsyncEvent,
    ) {
        self.node.handle_event(now, fabric, event);
        self.needs_run = true;
    }

    /// Reads a batch of packets from every device. Whether there was any.
    pub(super) fn read_devices(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
    ) -> Result<bool, Error> {
        let mut any = false;
        for interface in &mut self.interfaces {
            any |= interface.read_device(now, fabric)?;
        }
        Ok(any)
    }

    /// Moves what is in the node and in the stacks. Whether there was anything.
    pub(super) fn run(&mut self, now: Instant, fabric: &mut Fabric) -> Result<bool, Error> {
        let mut any = std::mem::take(&mut self.needs_run);
        if any {
            self.node.run(now, fabric);
        }
        while let Some(NodeEvent { interface, event }) = self.node.poll_event() {
            any = true;
            self.handle_event(now, fabric, interface, event)?;
        }
        while let Some(delivered) = self.node.poll_delivered() {
            any = true;
            self.receive(now, fabric, delivered);
        }
        while let Some(too_big) = self.node.poll_too_big() {
            any = true;
            self.report_too_big(fabric, too_big);
        }
        let mut has_sent = false;
        for interface in &mut self.interfaces {
            has_sent |= interface.send(now, fabric, &mut self.node);
            any |= interface.deliver(fabric);
        }
        if has_sent || any {
            // Sending and events leave actions behind.
            self.node.run(now, fabric);
        }
        Ok(any || has_sent)
    }

    /// Asks every interface to give everything back.
    pub(super) fn detach(&mut self, now: Instant, fabric: &mut Fabric) {
        for interface in &mut self.interfaces {
            interface.stack.clear(fabric.pool_mut());
            interface.drop_refused(fabric);
            if let Some(id) = interface.id {
                self.node.handle_detach(now, fabric, id);
            }
        }
        self.needs_run = true;
    }

    pub(super) fn is_detached(&self) -> bool {
        self.interfaces.iter().all(|interface| interface.is_detached)
    }

    /// Closes the port and the capture.
    pub(super) fn close(mut self, fabric: &mut Fabric) -> Result<(), Error> {
        for interface in &mut self.interfaces {
            interface.stack.clear(fabric.pool_mut());
            interface.drop_refused(fabric);
        }
        self.node.close(fabric);
        self.capture.map_or(Ok(()), Capture::finish)
    }

    fn seed(&self) -> u64 {
        u64::from(self.place.host.0) << 32 | u64::from(self.place.number) << 40
    }

    fn interface_mut(&mut self, id: InterfaceId) -> Option<&mut LabInterface> {
        self.interfaces.iter_mut().find(|other| other.id == Some(id))
    }

    fn receive(&mut self, now: Instant, fabric: &mut Fabric, delivered: Delivered) {
        let Delivered { interface, packet, delivery } = delivered;
        if let Some(enslaved) = &mut self.enslaved {
            return enslaved.inbound.push_back(Inbound::Received(packet, delivery));
        }
        let pool = fabric.pool_mut();
        match self.interface_mut(interface) {
            Some(interface) => interface.stack.receive(now, packet, delivery, pool),
            None => pool.free(packet),
        }
    }

    fn report_too_big(&mut self, fabric: &mut Fabric, too_big: TooBig) {
        let TooBig { interface, packet, mtu } = too_big;
        if let Some(enslaved) = &mut self.enslaved {
            return enslaved.inbound.push_back(Inbound::TooBig(packet, mtu));
        }
        let pool = fabric.pool_mut();
        match self.interface_mut(interface) {
            Some(interface) => interface.stack.handle_too_big(packet, mtu, pool),
            None => pool.free(packet),
        }
    }

    fn handle_event(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        id: InterfaceId,
        event: HostEvent,
    ) -> Result<(), Error> {
        let Self { node, interfaces, enslaved, .. } = self;
        if let Some(enslaved) = enslaved {
            match event {
                HostEvent::SendQueueWoken => enslaved.is_woken = true,
                HostEvent::State(Event::AnnounceAddress) => enslaved.has_moved = true,
                HostEvent::State(_) => enslaved.is_changed = true,
            }
        }
        let Some(interface) = interfaces.iter_mut().find(|other| other.id == Some(id)) else {
            return Ok(());
        };
        let event = match event {
            HostEvent::SendQueueWoken => {
                interface.handle_wake();
                return Ok(());
            }
            HostEvent::State(event) => event,
        };
        match event {
            Event::LinkUp => {
                interface.tun.set_carrier(true)?;
                if enslaved.is_none() {
                    interface.set_link(now, fabric, node);
                    interface.stack.announce(fabric.pool_mut());
                }
            }
            Event::LinkDown => interface.tun.set_carrier(false)?,
            Event::MtuChanged(mtu) => interface.set_mtu(mtu)?,
            Event::AddressChanged(_) | Event::BroadcastChanged(_) if enslaved.is_none() => {
                interface.set_link(now, fabric, node);
            }
            Event::AddressChanged(_) | Event::BroadcastChanged(_) => {}
            Event::AnnounceAddress if enslaved.is_some() => {}
            Event::AnnounceAddress => interface.stack.announce(fabric.pool_mut()),
            Event::Detached => interface.is_detached = true,
            Event::ModeChanged(_) => {}
            Event::Notice(notice) => {
                let line = format!("{}: {}", interface.name, describe(&notice));
                self.note(line);
            }
        }
        Ok(())
    }

    fn note(&mut self, line: String) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(line);
        }
    }
}

/// The subnet of an address of a host, and the length of its prefix.
pub(super) fn subnet_of(address: IpAddr) -> Result<(Subnet, u8), Error> {
    let prefix_bits = match address {
        IpAddr::V4(_) => IPV4_PREFIX_BITS,
        IpAddr::V6(_) => IPV6_PREFIX_BITS,
    };
    let unusable = || Error::Interface(format!("{address} is no address of a host"));
    Ok((Subnet::new(address, prefix_bits).ok_or_else(unusable)?, prefix_bits))
}

fn describe(notice: &Notice) -> String {
    match notice {
        Notice::BroadcastUnusable(mgid) => format!("broadcast group {mgid} cannot be used"),
        Notice::ConnectFailing(address, error) => {
            format!("no connection to {address} ({error:?}), using datagrams")
        }
        Notice::DrainForced => "completions did not come; the queue pair was reset".to_owned(),
        Notice::JoinFailing(mgid, error) => format!("cannot join {mgid} ({error:?}), retrying"),
        Notice::JoinRecovered(mgid) => format!("joined {mgid} after all"),
        Notice::PathFailing(address, error) => format!("no path to {address} ({error:?})"),
        Notice::ResetFailed => "the adapter does not reset the queue pair".to_owned(),
        Notice::TooBig(address, mtu) => format!("packets to {address} exceed its MTU of {mtu}"),
    }
}
