//! A minimal IP host: what sits between an IP stack and an interface of the core.
//!
//! It resolves IP addresses to link-layer addresses (ARP and neighbour discovery over InfiniBand)
//! and maps multicast and broadcast to groups. In the simulator it is the whole stack and answers
//! echo requests; in the lab the kernel's IP stands above it.
//!
//! Sans-IO: time and the pool are arguments. After every input drain [`Host::poll_transmit`],
//! [`Host::poll_deliver`] and [`Host::poll_drop`], then ask [`Host::poll_timeout`].

mod counters;
mod limits;
mod neighbor;
mod subnet;
pub mod wire;

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fabric::packet::{Packet, Pool};
use ipoib_rs::ib::Mgid;
use ipoib_rs::packet::Delivery;
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{BroadcastGroup, EtherType, LinkAddress};
use zerocopy::IntoBytes;

use neighbor::{Evidence, Expiry, Lookup, Table};
use wire::{Advertisement, Arp, ArpOperation, IpHeader, Ndp, Solicitation, TOO_BIG_BYTES_MAX};

pub use counters::{HostCounters, HostDrop};
pub use limits::{HostLimits, REACHABLE, SOLICIT_RETRY, SOLICIT_TRIES_MAX};
pub use subnet::{ParseSubnetError, Subnet};

const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

/// What a host is made of.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Its addresses. Each makes its subnet reachable on the link.
    pub addresses: Vec<Subnet>,
    /// Whether it answers echo requests itself; otherwise they are delivered.
    pub answers_echo: bool,
    /// Sizes.
    pub limits: HostLimits,
}

/// A packet for the interface.
#[derive(Debug)]
pub struct Frame {
    /// The link-layer destination.
    pub to: LinkAddress,
    /// The protocol of the packet.
    pub protocol: EtherType,
    /// The packet, without encapsulation header.
    pub packet: Packet,
}

/// A line of the table of neighbours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HostNeighborRow {
    /// The neighbour.
    pub ip: IpAddr,
    /// Its link-layer address, once known.
    pub address: Option<LinkAddress>,
    /// The state.
    pub state: &'static str,
}

/// The MGID is not that of an IPoIB broadcast group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NotBroadcast;

/// A host with one interface.
#[derive(Debug)]
pub struct Host {
    config: HostConfig,
    link: Option<Link>,
    groups_extra: BTreeSet<IpAddr>,
    neighbors: Table,
    transmits: VecDeque<Frame>,
    deliveries: VecDeque<Packet>,
    dropped: VecDeque<(Packet, HostDrop)>,
    counters: HostCounters,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    address: LinkAddress,
    broadcast: BroadcastGroup,
}

/// Where an IP destination is.
enum Route {
    Group(LinkAddress),
    Local,
    Neighbor,
    Unreachable,
}

impl Host {
    /// A host whose interface has no address yet.
    pub fn new(config: HostConfig) -> Self {
        Self {
            neighbors: Table::new(config.limits),
            config,
            link: None,
            groups_extra: BTreeSet::new(),
            transmits: VecDeque::new(),
            deliveries: VecDeque::new(),
            dropped: VecDeque::new(),
            counters: HostCounters::default(),
        }
    }

    /// Sets the interface's address and broadcast group: at attach, and when one of them changed.
    ///
    /// # Errors
    ///
    /// [`NotBroadcast`], and nothing changed.
    pub fn set_link(&mut self, address: LinkAddress, broadcast: Mgid) -> Result<(), NotBroadcast> {
        let broadcast = BroadcastGroup::from_mgid(broadcast).ok_or(NotBroadcast)?;
        let is_moved = self.link.is_some_and(|link| link.broadcast != broadcast);
        if is_moved {
            // Another partition: who answered there may not be here.
            self.neighbors.doubt_all();
        }
        self.link = Some(Link { address, broadcast });
        Ok(())
    }

    /// The link-layer address; `None` before there was one.
    pub fn link_address(&self) -> Option<LinkAddress> {
        self.link.map(|link| link.address)
    }

    /// The broadcast group; `None` before there was one.
    pub fn broadcast(&self) -> Option<Mgid> {
        self.link.map(|link| link.broadcast.mgid())
    }

    /// Replaces the IP groups that are wanted beside those of the host's own addresses.
    pub fn set_groups(&mut self, groups: impl IntoIterator<Item = IpAddr>) {
        self.groups_extra = groups.into_iter().filter(IpAddr::is_multicast).collect();
    }

    /// Replaces the addresses.
    pub fn set_addresses(&mut self, addresses: Vec<Subnet>) {
        self.config.addresses = addresses;
    }

    /// An IP packet from the stack.
    pub fn send_ip(&mut self, now: Instant, packet: Packet, pool: &mut Pool) {
        let Some(header) = IpHeader::parse(packet.bytes()) else {
            return self.drop_packet(packet, HostDrop::Malformed);
        };
        let Some(link) = self.link else {
            return self.drop_packet(packet, HostDrop::LinkUnset);
        };
        match self.route(link, header.destination) {
            Route::Group(to) => self.transmit(to, header.ether_type(), packet),
            Route::Local => self.deliveries.push_back(packet),
            Route::Neighbor => self.send_unicast(now, &header, packet, pool),
            Route::Unreachable => self.drop_packet(packet, HostDrop::NoRoute),
        }
    }

    /// A packet from the interface.
    pub fn receive(&mut self, now: Instant, packet: Packet, delivery: Delivery, pool: &mut Pool) {
        match delivery.protocol {
            EtherType::ARP => self.receive_arp(now, packet, pool),
            EtherType::IPV4 if !self.config.answers_echo => self.deliveries.push_back(packet),
            EtherType::IPV4 | EtherType::IPV6 => self.receive_ip(now, packet, pool),
            EtherType(_) => self.drop_packet(packet, HostDrop::Malformed),
        }
    }

    /// A packet that the interface will not send because it is larger than `mtu`: the stack is told
    /// by ICMP, as if from behind the link.
    pub fn handle_too_big(&mut self, packet: Packet, mtu: usize, pool: &mut Pool) {
        let mut bytes = [0; TOO_BIG_BYTES_MAX];
        let length = wire::write_too_big(packet.bytes(), mtu, &mut bytes);
        match length.and_then(|length| bytes.get(..length)) {
            Some(answer) => {
                if let Some(answer) = self.allocate(answer, pool) {
                    self.counters.too_big_reported += 1;
                    self.deliveries.push_back(answer);
                }
                pool.free(packet);
            }
            None => self.drop_packet(packet, HostDrop::Malformed),
        }
    }

    /// Tells everybody on the link where the own addresses are. For the events that the link is up,
    /// that its address changed and that an announcement is due.
    pub fn announce(&mut self, pool: &mut Pool) {
        let Some(link) = self.link else { return };
        for position in 0..self.config.addresses.len() {
            match self.config.addresses[position].address() {
                IpAddr::V4(own) => {
                    // RFC 5227 3: the announcement is a request for the own address.
                    let arp = Arp::request((link.address, own), own);
                    let to = LinkAddress::multicast(link.broadcast.mgid());
                    self.transmit_new(to, EtherType::ARP, arp.as_bytes(), pool);
                }
                IpAddr::V6(own) => {
                    // RFC 4861 7.2.6.
                    let bytes = wire::advertisement_packet(own, ALL_NODES, false, link.address);
                    if let Some(mgid) = link.broadcast.mgid_of(ALL_NODES.into()) {
                        let to = LinkAddress::multicast(mgid);
                        self.transmit_new(to, EtherType::IPV6, &bytes, pool);
                    }
                }
            }
            self.counters.announcements_sent += 1;
        }
    }

    /// Time went on. Spurious calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant, pool: &mut Pool) {
        while let Some((ip, expiry)) = self.neighbors.poll_expired(now) {
            match expiry {
                Expiry::Retry { source, known } => self.solicit(ip, source, known, pool),
                Expiry::Lost(waiting) => {
                    self.counters.neighbors_lost += 1;
                    for packet in waiting {
                        self.drop_packet(packet, HostDrop::NeighborUnresolved);
                    }
                }
            }
        }
    }

    /// The next packet for the interface.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        self.transmits.pop_front()
    }

    /// The next IP packet for the stack above.
    pub fn poll_deliver(&mut self) -> Option<Packet> {
        self.deliveries.pop_front()
    }

    /// The next packet whose life ended, and why; it is counted already. The caller frees it.
    pub fn poll_drop(&mut self) -> Option<(Packet, HostDrop)> {
        self.dropped.pop_front()
    }

    /// When [`Self::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.neighbors.deadline()
    }

    /// The link-layer addresses of the groups that the host wants to receive, the broadcast group
    /// apart, in order and each once. Empty while the link is not set.
    pub fn joined_groups(&self) -> Vec<LinkAddress> {
        let Some(link) = self.link else {
            return Vec::new();
        };
        let own = self.config.addresses.iter().flat_map(|subnet| match subnet.address() {
            IpAddr::V4(_) => [Some(ALL_HOSTS.into()), None],
            IpAddr::V6(own) => {
                [Some(IpAddr::from(ALL_NODES)), Some(wire::solicited_node(own).into())]
            }
        });
        let groups: BTreeSet<IpAddr> =
            own.flatten().chain(self.groups_extra.iter().copied()).collect();
        let addresses: BTreeSet<LinkAddress> = groups
            .into_iter()
            .filter_map(|group| link.broadcast.mgid_of(group))
            .map(LinkAddress::multicast)
            .collect();
        addresses.into_iter().collect()
    }

    /// The addresses.
    pub fn addresses(&self) -> &[Subnet] {
        &self.config.addresses
    }

    /// The table of neighbours.
    pub fn neighbors(&self) -> impl Iterator<Item = HostNeighborRow> + '_ {
        self.neighbors.iter().map(|(ip, neighbor)| HostNeighborRow {
            ip,
            address: neighbor.address(),
            state: neighbor.state_name(),
        })
    }

    /// What was counted.
    pub fn counters(&self) -> &HostCounters {
        &self.counters
    }

    /// The packets that wait for a neighbour or to be polled.
    pub fn packets_held(&self) -> usize {
        self.neighbors.packets_held()
            + self.transmits.len()
            + self.deliveries.len()
            + self.dropped.len()
    }

    /// Forgets every neighbour and frees every packet.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.neighbors.clear().for_each(|packet| pool.free(packet));
        let transmits = self.transmits.drain(..).map(|frame| frame.packet);
        let dropped = self.dropped.drain(..).map(|(packet, _)| packet);
        transmits
            .chain(self.deliveries.drain(..))
            .chain(dropped)
            .for_each(|packet| pool.free(packet));
    }

    fn route(&self, link: Link, destination: IpAddr) -> Route {
        if self.is_own(destination) {
            return Route::Local;
        }
        let is_directed_broadcast =
            |subnet: &Subnet| subnet.broadcast().map(IpAddr::from) == Some(destination);
        if let Some(mgid) = link.broadcast.mgid_of(destination) {
            Route::Group(LinkAddress::multicast(mgid))
        } else if self.config.addresses.iter().any(is_directed_broadcast) {
            Route::Group(LinkAddress::multicast(link.broadcast.mgid()))
        } else if self.subnet_of(destination).is_some() {
            Route::Neighbor
        } else {
            Route::Unreachable
        }
    }

    fn send_unicast(&mut self, now: Instant, header: &IpHeader, packet: Packet, pool: &mut Pool) {
        let ip = header.destination;
        // RFC 4861 7.2.2: the source of the packet if it is an own address, else any that fits.
        let source = Some(header.source).filter(|&source| self.is_own(source));
        let Some(source) = source.or_else(|| self.subnet_of(ip).map(|subnet| subnet.address()))
        else {
            return self.drop_packet(packet, HostDrop::NoRoute);
        };
        match self.neighbors.find(now, ip, source) {
            Lookup::Found(to) => return self.transmit(to, header.ether_type(), packet),
            Lookup::FoundUnconfirmed(to) => {
                self.transmit(to, header.ether_type(), packet);
                return self.solicit(ip, source, Some(to), pool);
            }
            Lookup::Missing => {
                if !self.make_room() {
                    return self.drop_packet(packet, HostDrop::NeighborTableFull);
                }
                self.neighbors.add_incomplete(now, ip, source);
                self.solicit(ip, source, None, pool);
            }
            Lookup::Pending => {}
        }
        if let Err(packet) = self.neighbors.enqueue(ip, packet) {
            self.drop_packet(packet, HostDrop::NeighborQueueFull);
        }
    }

    /// Asks for a neighbour: everybody, or the address that is known.
    fn solicit(&mut self, ip: IpAddr, source: IpAddr, known: Option<LinkAddress>, pool: &mut Pool) {
        let Some(link) = self.link else { return };
        self.counters.solicits_sent += 1;
        match (source, ip) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let arp = Arp::request((link.address, source), target);
                let everybody = LinkAddress::multicast(link.broadcast.mgid());
                let to = known.unwrap_or(everybody);
                self.transmit_new(to, EtherType::ARP, arp.as_bytes(), pool);
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let group = wire::solicited_node(target);
                let everybody = link.broadcast.mgid_of(group.into()).map(LinkAddress::multicast);
                let destination = if known.is_some() { target } else { group };
                let bytes = wire::solicitation_packet(source, destination, target, link.address);
                if let Some(to) = known.or(everybody) {
                    self.transmit_new(to, EtherType::IPV6, &bytes, pool);
                }
            }
            // Source and target were chosen from one subnet.
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {}
        }
    }

    fn receive_arp(&mut self, now: Instant, packet: Packet, pool: &mut Pool) {
        let arp = Arp::parse(packet.bytes());
        pool.free(packet);
        let (Some(arp), Some(link)) = (arp, self.link) else {
            self.counters.malformed_received += 1;
            return;
        };
        let (address, sender) = arp.sender();
        if address.gid().is_multicast() || sender.is_multicast() || sender.is_broadcast() {
            self.counters.malformed_received += 1;
            return;
        }
        if self.is_own(sender.into()) {
            // An announcement of our own address by another host; RFC 5227 2.4 leaves the defence
            // to a stack that has connections to lose.
            self.counters.conflicts_received += 1;
            return;
        }
        let is_for_us = self.is_own(arp.target().into());
        // RFC 826, "Packet Reception": the sender is merged if it is known, and added only if the
        // packet is for us. RFC 5227 2.1.1: a probe has no sender address.
        if !sender.is_unspecified() {
            self.learn_arp(now, sender.into(), address, is_for_us);
        }
        match arp.operation() {
            ArpOperation::Request if is_for_us => {
                let reply = Arp::reply((link.address, arp.target()), (address, sender));
                self.counters.answers_sent += 1;
                self.transmit_new(address, EtherType::ARP, reply.as_bytes(), pool);
            }
            ArpOperation::Request | ArpOperation::Reply => {}
        }
    }

    fn learn_arp(&mut self, now: Instant, ip: IpAddr, address: LinkAddress, is_for_us: bool) {
        let is_known = self.neighbors.contains(ip);
        let may_add = is_for_us && self.subnet_of(ip).is_some();
        if is_known || (may_add && self.make_room()) {
            // Whoever sends ARP is alive at that address.
            self.learn(now, ip, address, Evidence::Answered);
        }
    }

    fn receive_ip(&mut self, now: Instant, mut packet: Packet, pool: &mut Pool) {
        let Some(header) = IpHeader::parse(packet.bytes()) else {
            return self.drop_packet(packet, HostDrop::Malformed);
        };
        if Ndp::is_solicitation_or_advertisement(&header, packet.bytes()) {
            self.receive_ndp(now, &header, packet, pool);
        } else if self.config.answers_echo
            && let Some(own) = self.echo_source(&header)
            && wire::answer_echo(&header, own, packet.bytes_mut())
        {
            self.counters.echoes_answered += 1;
            self.send_ip(now, packet, pool);
        } else {
            self.deliveries.push_back(packet);
        }
    }

    /// The own address that answers an echo request to the destination of `header`.
    fn echo_source(&self, header: &IpHeader) -> Option<IpAddr> {
        if self.is_own(header.destination) {
            return Some(header.destination);
        }
        // RFC 1122 3.2.2.6 and RFC 4443 4.2: a request to a group is answered from a unicast
        // address of the interface.
        let route = self.route(self.link?, header.destination);
        let is_group = matches!(route, Route::Group(_));
        self.subnet_of(header.source).filter(|_| is_group).map(|subnet| subnet.address())
    }

    fn receive_ndp(&mut self, now: Instant, header: &IpHeader, packet: Packet, pool: &mut Pool) {
        let subnet_prefix = self.link.map_or(0, |link| link.address.gid().subnet_prefix());
        let message = Ndp::parse(header, packet.bytes(), subnet_prefix);
        pool.free(packet);
        match message {
            Some(Ndp::Solicitation(solicitation)) => {
                self.receive_solicitation(now, solicitation, pool);
            }
            Some(Ndp::Advertisement(advertisement)) => {
                self.receive_advertisement(now, advertisement);
            }
            None => self.counters.malformed_received += 1,
        }
    }

    /// RFC 4861 7.2.3 and 7.2.4.
    fn receive_solicitation(&mut self, now: Instant, message: Solicitation, pool: &mut Pool) {
        let Some(link) = self.link else { return };
        let (source, target) = (message.source, message.target);
        if self.is_own(source.into()) {
            self.counters.conflicts_received += 1;
            return;
        }
        if !self.is_own(target.into()) {
            return;
        }
        self.counters.answers_sent += 1;
        if source.is_unspecified() {
            let bytes = wire::advertisement_packet(target, ALL_NODES, false, link.address);
            if let Some(mgid) = link.broadcast.mgid_of(ALL_NODES.into()) {
                self.transmit_new(LinkAddress::multicast(mgid), EtherType::IPV6, &bytes, pool);
            }
            return;
        }
        let is_known = self.neighbors.contains(source.into());
        if let Some(address) = message.link_address
            && (is_known || self.subnet_of(source.into()).is_some() && self.make_room())
        {
            self.learn(now, source.into(), address, Evidence::Claimed);
        }
        let bytes = wire::advertisement_packet(target, source, true, link.address);
        match message.link_address {
            Some(to) => self.transmit_new(to, EtherType::IPV6, &bytes, pool),
            None => {
                if let Some(packet) = self.allocate(&bytes, pool) {
                    self.send_ip(now, packet, pool);
                }
            }
        }
    }

    /// RFC 4861 7.2.5.
    fn receive_advertisement(&mut self, now: Instant, message: Advertisement) {
        let target = IpAddr::from(message.target);
        if self.is_own(target) {
            self.counters.conflicts_received += 1;
            return;
        }
        if !self.neighbors.contains(target) {
            return;
        }
        let known = self.neighbors.address_of(target);
        // Without an address an unresolved neighbour stays so.
        let Some(address) = message.link_address.or(known) else {
            return;
        };
        let is_other = known.is_some_and(|known| known != address);
        if is_other && !message.is_override {
            return self.neighbors.doubt(target);
        }
        let evidence = if message.is_solicited { Evidence::Answered } else { Evidence::Claimed };
        self.learn(now, target, address, evidence);
    }

    /// Takes note of an address and sends what waited for it.
    fn learn(&mut self, now: Instant, ip: IpAddr, address: LinkAddress, evidence: Evidence) {
        let protocol = match ip {
            IpAddr::V4(_) => EtherType::IPV4,
            IpAddr::V6(_) => EtherType::IPV6,
        };
        for packet in self.neighbors.learn(now, ip, address, evidence) {
            self.transmit(address, protocol, packet);
        }
    }

    fn make_room(&mut self) -> bool {
        let (has_room, evicted) = self.neighbors.make_room();
        self.counters.neighbors_evicted += evicted;
        has_room
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.config.addresses.iter().any(|subnet| subnet.address() == address)
    }

    /// The first own subnet that an address is in.
    fn subnet_of(&self, address: IpAddr) -> Option<Subnet> {
        self.config.addresses.iter().copied().find(|subnet| subnet.contains(address))
    }

    fn transmit(&mut self, to: LinkAddress, protocol: EtherType, packet: Packet) {
        self.transmits.push_back(Frame { to, protocol, packet });
    }

    fn transmit_new(
        &mut self,
        to: LinkAddress,
        protocol: EtherType,
        bytes: &[u8],
        pool: &mut Pool,
    ) {
        if let Some(packet) = self.allocate(bytes, pool) {
            self.transmit(to, protocol, packet);
        }
    }

    fn allocate(&mut self, bytes: &[u8], pool: &mut Pool) -> Option<Packet> {
        let packet = pool.allocate_from(bytes);
        if packet.is_none() {
            self.counters.pool_exhausted += 1;
        }
        packet
    }

    fn drop_packet(&mut self, packet: Packet, reason: HostDrop) {
        self.counters.count_drop(reason);
        self.dropped.push_back((packet, reason));
    }
}

#[cfg(test)]
mod tests;
