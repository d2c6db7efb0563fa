//! The stacks of the hosts: what they send and what reaches them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use fabric::packet::Packet;
use ipoib_rs::ib::{Gid, Qpn};
use ipoib_rs::interface::{Interface, Mode};
use ipoib_rs::limits::CONNECTED_MTU_MAX;
use ipoib_rs::packet::PacketBuf;
use ipoib_rs::wire::{AddressFlags, EtherType, LinkAddress};

use super::build::address_of;
use super::pings::{Lane, Size, Version};
use super::{Item, World, checker};
use crate::host::Frame;
use crate::host::wire::{Echo, EchoKind, IPV6_HEADER_BYTES, IpHeader, TooBig};
use crate::swarm::Planted;
use crate::trace::Kind;
use crate::traffic;
use crate::verdict::FailureKind;

/// What a host sends, chosen by chance.
#[derive(Clone, Copy, Debug)]
enum Sending {
    Ping,
    PingGroup,
    Burst,
    Oversize,
    OversizeGroup,
    UnknownHost,
    UnknownAddress,
    Garbage,
    NewGroup,
    ChangedGroups,
    Large,
    LargeBurst,
    LargePing,
    FlippedAddress,
}

/// What a host sends beside that in a world with connections.
const SENDINGS_CONNECTED: [Sending; 8] = [
    Sending::Ping,
    Sending::Large,
    Sending::Large,
    Sending::Large,
    Sending::LargeBurst,
    Sending::LargePing,
    Sending::LargePing,
    Sending::FlippedAddress,
];

/// The choices, frequent ones several times.
const SENDINGS: [Sending; 17] = [
    Sending::Ping,
    Sending::Ping,
    Sending::Ping,
    Sending::Ping,
    Sending::Ping,
    Sending::Ping,
    Sending::PingGroup,
    Sending::Burst,
    Sending::Burst,
    Sending::Oversize,
    Sending::Oversize,
    Sending::OversizeGroup,
    Sending::UnknownHost,
    Sending::UnknownAddress,
    Sending::Garbage,
    Sending::NewGroup,
    Sending::ChangedGroups,
];

/// The payload of the largest UDP datagram with its UDP header.
const DATAGRAM_BYTES_MAX: usize = 65_515;
/// Large datagrams that are sent at once, at most.
const LARGE_BURST_MAX: u64 = 8;
/// The smallest MTU that hosts cut their datagrams for.
const HOST_MTU: usize = 2_044;
/// What a failure tells of a world that is not well.
const AILMENTS_SHOWN_MAX: usize = 6;
/// Groups that hosts listen to now and then, and send to. Few enough that the smallest table has
/// room for those that hosts need to find each other.
const GROUPS: [&str; 2] = ["239.1.2.3", "ff05::101"];
/// Groups that hosts only send to.
const GROUPS_UNHEARD: [&str; 2] = ["239.1.2.4", "ff02::1:3"];

impl World {
    /// Sends an echo request of `bytes` bytes along a lane.
    pub fn ping(&mut self, lane: Lane, bytes: usize) {
        let addresses = self.addresses_of(lane);
        let size = if bytes <= HOST_MTU { Size::Small } else { Size::Large };
        let echo = self.pings.send(lane, size);
        let packet = traffic::ping(self.fabric.pool_mut(), addresses, bytes, echo);
        self.send(lane.from, packet);
    }

    /// Answers that reached the sender since the world was healed, or since it began.
    pub fn answers(&self, lane: Lane) -> u64 {
        let sizes = [Size::Small, Size::Large];
        sizes.map(|size| self.pings.answered_lately(lane, size)).iter().sum()
    }

    /// Every direction between two stations of one partition, in both versions of IP.
    pub fn lanes(&self) -> Vec<Lane> {
        let count = self.stations.len();
        let has_host = |station: usize| !self.is_hostless(station);
        let is_pair = |&(from, to): &(usize, usize)| {
            let is_link = from != to && self.is_child(from) == self.is_child(to);
            is_link && has_host(from) && has_host(to)
        };
        (0..count)
            .flat_map(|from| (0..count).map(move |to| (from, to)))
            .filter(is_pair)
            .flat_map(|(from, to)| Version::ALL.map(|version| Lane { from, to, version }))
            .collect()
    }

    pub(super) fn schedule_traffic(&mut self) {
        let gap = self.random.span(self.rules.traffic_gap.clone());
        self.agenda.add(self.now + gap, Item::Traffic);
    }

    pub(super) fn make_traffic(&mut self) {
        if !self.is_disturbed {
            return;
        }
        let lanes = self.lanes();
        let has_connections = self.rules.connected.is_some() && self.random.chance(500);
        let sendings: &[Sending] = if has_connections { &SENDINGS_CONNECTED } else { &SENDINGS };
        let sending = self.random.pick(sendings).copied();
        let lane = self.random.pick(&lanes).copied();
        if let (Some(sending), Some(lane)) = (sending, lane) {
            let words = [sending as u64, lane.from as u64, lane.to as u64];
            self.trace.record(self.now, Kind::Send, &words);
            self.make_sending(sending, lane);
        }
        self.schedule_traffic();
    }

    fn make_sending(&mut self, sending: Sending, lane: Lane) {
        let (source, _) = self.addresses_of(lane);
        match sending {
            Sending::Ping => {
                let bytes = self.random.within(56..=HOST_MTU as u64) as usize;
                self.ping(lane, bytes);
            }
            Sending::PingGroup => {
                let everybody = match lane.version {
                    Version::V4 => IpAddr::from(Ipv4Addr::new(224, 0, 0, 1)),
                    Version::V6 => Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1).into(),
                };
                let echo = self.pings.send(lane, Size::Small);
                let pair = (source, everybody);
                let packet = traffic::ping(self.fabric.pool_mut(), pair, 100, echo);
                self.send(lane.from, packet);
            }
            Sending::Burst => self.send_burst(lane),
            Sending::Oversize => {
                let bytes = self.oversize();
                self.send_datagram(lane, bytes);
            }
            Sending::Large => {
                let bytes = self.large();
                self.send_datagram(lane, bytes);
            }
            Sending::LargeBurst => {
                for _ in 0..self.random.within(2..=LARGE_BURST_MAX) {
                    let bytes = self.large();
                    self.send_datagram(lane, bytes);
                }
            }
            Sending::LargePing => {
                let bytes = self.large();
                self.ping(lane, bytes);
            }
            Sending::FlippedAddress => self.send_to_flipped_address(lane),
            Sending::OversizeGroup => self.send_to_group(lane, 5_000),
            Sending::NewGroup => self.send_to_group(lane, 500),
            Sending::UnknownHost => {
                let nobody = match lane.version {
                    Version::V4 => IpAddr::from(Ipv4Addr::new(10, 0, 0, 200)),
                    Version::V6 => Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 200).into(),
                };
                let pair = (source, nobody);
                let packet = traffic::datagram(self.fabric.pool_mut(), pair, 100, false);
                self.send(lane.from, packet);
            }
            Sending::UnknownAddress => self.send_to_unknown_address(lane.from),
            Sending::Garbage => self.send_garbage(lane.from),
            Sending::ChangedGroups => {
                let groups: Vec<IpAddr> = GROUPS
                    .iter()
                    .filter(|_| self.random.chance(500))
                    .filter_map(|group| group.parse().ok())
                    .collect();
                self.stations[lane.from].host.set_groups(groups);
                self.offer_groups_of(lane.from);
            }
        }
    }

    /// A length above the MTU, half of the time by a few bytes only: that is where limits are
    /// taken wrong.
    fn oversize(&mut self) -> usize {
        let bytes_max = if self.random.chance(500) { HOST_MTU + 8 } else { 9_000 };
        self.random.within(HOST_MTU as u64 + 1..=bytes_max as u64) as usize
    }

    /// A length that only connections carry whole, and now and then one that they do not either.
    fn large(&mut self) -> usize {
        match self.random.below(4) {
            0 => self.random.within(HOST_MTU as u64 + 1..=12_380) as usize,
            1 => self.random.within(CONNECTED_MTU_MAX as u64 - 8..=u16::MAX.into()) as usize,
            _ => self.random.within(HOST_MTU as u64 + 1..=CONNECTED_MTU_MAX as u64) as usize,
        }
    }

    fn send_datagram(&mut self, lane: Lane, bytes: usize) {
        let pair = self.addresses_of(lane);
        let dont_fragment = self.random.chance(500);
        let packet = traffic::datagram(self.fabric.pool_mut(), pair, bytes, dont_fragment);
        let packet = packet.map(|mut packet| {
            // Tells it from all others.
            let serial = self.random.word().to_le_bytes();
            packet.bytes_mut()[IPV6_HEADER_BYTES..][..serial.len()].copy_from_slice(&serial);
            packet
        });
        self.send(lane.from, packet);
    }

    /// A packet to the address of a neighbour as it is not, or not any more: with another queue
    /// pair, or with the other flags.
    fn send_to_flipped_address(&mut self, lane: Lane) {
        let Some(address) = self.interface(lane.to).map(Interface::address) else {
            return;
        };
        let to = if self.random.chance(800) {
            let flags = address.flags().symmetric_difference(AddressFlags::RC);
            LinkAddress::new(flags, address.qpn(), address.gid())
        } else {
            let number = self.random.within(2..=0xFF_FFFE) as u32;
            let qpn = Qpn::new(number).unwrap_or(address.qpn());
            LinkAddress::new(address.flags(), qpn, address.gid())
        };
        let bytes = self.large();
        let pair = self.addresses_of(lane);
        let dont_fragment = self.random.chance(500);
        let packet = traffic::datagram(self.fabric.pool_mut(), pair, bytes, dont_fragment);
        if let Some(packet) = packet {
            let protocol = match lane.version {
                Version::V4 => EtherType::IPV4,
                Version::V6 => EtherType::IPV6,
            };
            let frame = Frame { to, protocol, packet };
            self.offer(lane.from, frame);
        }
    }

    /// The fragments of a large datagram, all at once.
    fn send_burst(&mut self, lane: Lane) {
        let (IpAddr::V4(source), IpAddr::V4(destination)) =
            self.addresses_of(Lane { version: Version::V4, ..lane })
        else {
            return;
        };
        let identification = self.random.word() as u16;
        let bytes = self.random.within(2_045..=DATAGRAM_BYTES_MAX as u64) as usize;
        let mut index = 0;
        while let Some(packet) = traffic::fragment(
            self.fabric.pool_mut(),
            (source, destination),
            identification,
            bytes,
            (index, HOST_MTU),
        ) {
            self.send(lane.from, Some(packet));
            index += 1;
        }
    }

    /// A packet to a link-layer address that nobody has, or that is none.
    fn send_to_unknown_address(&mut self, station: usize) {
        let guid = 0x0002_C903_FFFF_0000 + self.random.below(4);
        let gid = match self.random.below(3) {
            0 => Gid([0xFF; 16]),
            1 => Gid([0; 16]),
            _ => Gid::new(Gid::SUBNET_PREFIX_DEFAULT, guid),
        };
        let to = LinkAddress::new(AddressFlags::empty(), Qpn::GSI, gid);
        if let Some(packet) = self.fabric.allocate(100) {
            let frame = Frame { to, protocol: EtherType::IPV4, packet };
            self.offer(station, frame);
        }
    }

    /// Random bytes to everybody, as every protocol that a host listens to.
    fn send_garbage(&mut self, station: usize) {
        const PROTOCOLS: [EtherType; 4] =
            [EtherType::ARP, EtherType::IPV4, EtherType::IPV6, EtherType::RARP];
        let Some(broadcast) = self.interface(station).and_then(Interface::broadcast) else {
            return;
        };
        let bytes = self.random.within(1..=120) as usize;
        let protocol = self.random.pick(&PROTOCOLS).copied();
        let (Some(protocol), Some(mut packet)) = (protocol, self.fabric.allocate(bytes)) else {
            return;
        };
        for byte in packet.bytes_mut() {
            *byte = self.random.word() as u8;
        }
        let to = LinkAddress::multicast(broadcast);
        let frame = Frame { to, protocol, packet };
        self.offer(station, frame);
    }

    fn send_to_group(&mut self, lane: Lane, bytes: usize) {
        let (source, _) = self.addresses_of(lane);
        if let Some(group) = self.some_group(lane.version) {
            let pool = self.fabric.pool_mut();
            let packet = traffic::datagram(pool, (source, group), bytes, false);
            self.send(lane.from, packet);
        }
    }

    fn some_group(&mut self, version: Version) -> Option<IpAddr> {
        let groups: Vec<IpAddr> = GROUPS
            .iter()
            .chain(&GROUPS_UNHEARD)
            .filter_map(|group| group.parse().ok())
            .filter(|&group| Version::of(group) == version)
            .collect();
        self.random.pick(&groups).copied()
    }

    fn send(&mut self, station: usize, packet: Option<Packet>) {
        let now = self.now;
        if let Some(packet) = packet {
            let words = [station as u64, packet.len() as u64];
            self.trace.record(now, Kind::Send, &words);
            self.with_station(station, |station, ground| {
                station.host.send_ip(now, packet, ground.fabric.pool_mut());
            });
            self.transmit(station);
        }
    }

    /// Takes what reached the stack of a station. Whether there was anything.
    pub(super) fn take_deliveries(&mut self, station: usize) -> bool {
        let mut is_busy = false;
        while let Some((packet, reason)) = self.stations[station].host.poll_drop() {
            is_busy = true;
            let words = [station as u64, reason as u64];
            self.trace.record(self.now, Kind::Drop, &words);
            self.fabric.pool_mut().free(packet);
        }
        while let Some(packet) = self.stations[station].host.poll_deliver() {
            is_busy = true;
            let words = [station as u64, packet.len() as u64];
            self.trace.record(self.now, Kind::Delivery, &words);
            self.take_delivery(station, &packet);
            match self.planted {
                // The one way to lose a packet that the ledger does not know of.
                Some(Planted::Leak) if self.random.chance(10) => std::mem::forget(packet),
                Some(_) | None => self.fabric.pool_mut().free(packet),
            }
        }
        is_busy
    }

    fn take_delivery(&mut self, station: usize, packet: &Packet) {
        let Some(header) = IpHeader::parse(packet.bytes()) else {
            let what = format!("station {station}: a damaged packet was delivered");
            return self.fail(FailureKind::Safety, what);
        };
        let at = match self.planted {
            Some(Planted::Trespass) if self.random.chance(10) => self.stations.len() - 1 - station,
            Some(_) | None => station,
        };
        // What the own host says of a packet that is too big bears the address of its destination.
        let is_from_link = TooBig::parse(&header, packet.bytes()).is_none();
        if is_from_link
            && let Some(from) = self.station_of(header.source)
            && let (from, at) = (self.doors_of(from), self.doors_of(at))
            && let Err(what) = self.checkers.on_delivery(self.now, &from, &at)
        {
            self.fail(FailureKind::Safety, what);
        }
        if let Some(echo) = Echo::parse(&header, packet.bytes())
            && echo.kind == EchoKind::Reply
            && !self.pings.receive(station, (echo.identifier, echo.sequence))
        {
            let what = format!("station {station}: an answer to a ping of nobody");
            self.fail(FailureKind::Safety, what);
        }
    }

    fn station_of(&self, address: IpAddr) -> Option<usize> {
        let owns = |station: usize| {
            self.stations[station].host.addresses().iter().any(|own| own.address() == address)
        };
        (0..self.stations.len()).find(|&station| owns(station))
    }

    fn addresses_of(&self, lane: Lane) -> (IpAddr, IpAddr) {
        let address = |station: usize| {
            address_of(self.stations[station].site, self.is_child(station), lane.version)
        };
        (address(lane.from), address(lane.to))
    }

    fn is_child(&self, station: usize) -> bool {
        self.stations[station].pkey.is_some()
    }

    /// Whether everything works: links are up, groups joined, every lane was answered since the
    /// world was healed, and nothing waits.
    pub fn is_well(&self) -> bool {
        let is_open = |lane| self.answers(lane) > 0;
        self.lanes().into_iter().all(is_open) && self.ailments().is_empty()
    }

    /// What is not well, for people.
    pub fn ailments(&self) -> Vec<String> {
        let stations = self.stations.iter().flat_map(|station| station.ailments(&self.fabric));
        let lanes = self
            .lanes()
            .into_iter()
            .filter(|&lane| self.answers(lane) == 0)
            .map(|lane| format!("{lane:?} is not answered"));
        let wide = self.wide_lanes().into_iter().filter(|&lane| !self.is_proven_wide(lane));
        let wide = wide.map(|lane| {
            let rows: Vec<_> =
                self.interface(lane.from).into_iter().flat_map(Interface::neighbors).collect();
            format!("{lane:?} carries no large packets; the neighbours are {rows:?}")
        });
        let bonds = (0..self.bonds.len()).flat_map(|bond| self.bond_ailments(bond));
        stations.chain(lanes).chain(wide).chain(bonds).collect()
    }

    fn is_proven_wide(&self, lane: Lane) -> bool {
        self.pings.answered_lately(lane, Size::Large) > 0
    }

    /// The lanes that large packets must pass: both ends are in connected mode, and have room for
    /// connections with all others that are. A lagg may be over a port that is not.
    fn wide_lanes(&self) -> Vec<Lane> {
        let limits = &self.rules.limits;
        let is_connected = |station: usize| {
            self.interface(station).is_some_and(|interface| interface.mode() == Mode::Connected)
        };
        let has_room = |station: usize| {
            // Both ports of a lagg: each of them has connections of its own.
            let peers = (0..self.stations.len()).filter(|&other| {
                let is_link = other != station && self.is_child(other) == self.is_child(station);
                is_link && is_connected(other)
            });
            let peers = peers.fold(0, |count, _| count + 1);
            let support = self.sites[self.stations[station].site].support;
            let incoming_max = match support {
                Some(support) if support.shares_receives => limits.incoming_max,
                Some(_) | None => limits.incoming_unshared_max.min(limits.incoming_max),
            };
            peers <= limits.outgoing_max.min(incoming_max)
        };
        let is_wide = |lane: &Lane| {
            let mut ends = [lane.from, lane.to].into_iter();
            ends.all(|one| self.bond_of(one).is_none() && is_connected(one) && has_room(one))
        };
        self.lanes().into_iter().filter(is_wide).collect()
    }

    /// Pings along every lane that was not answered since the world was healed.
    fn ping_unanswered(&mut self) {
        for lane in self.lanes() {
            if self.answers(lane) == 0 {
                self.ping(lane, 84);
            }
        }
        for lane in self.wide_lanes() {
            if !self.is_proven_wide(lane) {
                let mtu = |station| self.interface(station).map_or(0, Interface::mtu);
                let bytes = mtu(lane.from).min(mtu(lane.to));
                self.large_ping(lane, bytes);
            }
        }
    }

    fn large_ping(&mut self, lane: Lane, bytes: usize) {
        let echo = self.pings.send(lane, Size::Large);
        let addresses = self.addresses_of(lane);
        let packet = traffic::ping(self.fabric.pool_mut(), addresses, bytes, echo);
        self.send(lane.from, packet);
    }

    /// Puts everything right and pings until everything works, for at most `span`. What does not by
    /// then is a failure.
    pub fn demand_recovery(&mut self, span: Duration) {
        const PING_EVERY: Duration = Duration::from_secs(1);
        self.heal();
        let end = self.now + span;
        while self.failure.is_none() {
            self.ping_unanswered();
            self.offer_groups();
            if self.run_until(PING_EVERY, Self::is_well) {
                return;
            }
            if self.now >= end {
                let ailments = self.ailments();
                let (shown, rest) = ailments.split_at(ailments.len().min(AILMENTS_SHOWN_MAX));
                let what = format!("{} and {} more", shown.join("; "), rest.len());
                return self.fail(FailureKind::Liveness, what);
            }
        }
    }

    /// Offers the lists of groups again. An interface whose table was full took only a part of its
    /// list and keeps no record of the rest.
    fn offer_groups(&mut self) {
        for station in 0..self.stations.len() {
            self.offer_groups_of(station);
            self.offer_port_groups(station);
        }
    }

    fn offer_groups_of(&mut self, station: usize) {
        match self.bond_of(station) {
            Some(bond) => self.offer_bond_groups(bond),
            None => self.with_station(station, |station, ground| station.follow_groups(ground)),
        }
    }

    /// Detaches every interface; what is not given back after `span` is a failure.
    pub fn demand_closed(&mut self, span: Duration) {
        if self.failure.is_some() {
            return;
        }
        self.close_bonds();
        if !self.run_until(span, Self::are_bonds_closed) && self.failure.is_none() {
            self.fail(FailureKind::Leak, "a lagg does not give its ports back".to_owned());
        }
        self.close();
        self.run_until(span, Self::is_closed);
        // What is still in flight arrives and finds nobody.
        self.run_for(Duration::from_secs(1));
        if self.failure.is_none()
            && let Err(what) = checker::check_closed(self)
        {
            self.fail(FailureKind::Leak, what);
        }
    }

    /// Whether no interface is left, and no connection has a name.
    fn is_closed(&self) -> bool {
        self.stations.iter().all(|station| station.attached.is_none())
            && self.sites.iter().all(|site| site.cm.connections_len() == 0)
    }

    /// Adds every counter to the trace, so that two runs are compared by them as well.
    pub fn record_counters(&mut self) {
        for bond in 0..self.bonds.len() {
            self.count_bond(bond);
        }
        for station in &self.stations {
            for (name, value) in station.host.counters().iter() {
                *self.totals.entry(name).or_default() += value;
            }
        }
        for station in &self.stations {
            for (&name, value) in &station.failures {
                *self.totals.entry(name).or_default() += value;
            }
        }
        for site in &self.sites {
            for (name, value) in site.cm_totals() {
                *self.totals.entry(name).or_default() += value;
            }
        }
        for &value in self.totals.values() {
            self.trace.record(self.now, Kind::Report, &[value]);
        }
    }
}
