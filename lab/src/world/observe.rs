//! What a scenario asks a lab about a host, all its ports together.

use std::net::IpAddr;

use fabric::packet::Packet;
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::interface::{Interface, NeighborRow};
use ipoib_rs::lagg;
use ipoib_rs::wire::LinkAddress;

use super::World;
use super::host::{HostId, LabInterface, LabPort, Place};
use super::lagg::LabLagg;

impl World<'_> {
    /// A counter of a host's interfaces.
    pub(crate) fn count_of(&self, host: HostId, counter: Counter) -> u64 {
        self.interfaces_of(host).map(|(_, core)| core.counters()[counter]).sum()
    }

    /// ICMP messages that said how large packets may be.
    pub(crate) fn too_big_count(&self, host: HostId) -> u64 {
        let stacks = self.interfaces_of(host).map(|(interface, _)| interface.stack());
        stacks.map(|stack| stack.counters().too_big_reported).sum()
    }

    /// Packets that a host dropped, below the kernel and with a reason; its own multicast that came
    /// back is none.
    pub(crate) fn drops_of(&self, host: HostId) -> Vec<(&'static str, u64)> {
        let mut drops: Vec<(&'static str, u64)> = Vec::new();
        for (interface, core) in self.interfaces_of(host) {
            let reasons = DropReason::ALL.iter().filter(|&&one| one != DropReason::OwnMulticast);
            let core = reasons.map(|&reason| (reason.name(), core.counters()[reason]));
            let stack = interface.stack().counters().iter();
            let stack = stack.filter(|(name, _)| name.starts_with("host_drop"));
            for (name, count) in core.chain(stack).filter(|(_, count)| *count > 0) {
                match drops.iter_mut().find(|(other, _)| *other == name) {
                    Some((_, sum)) => *sum += count,
                    None => drops.push((name, count)),
                }
            }
        }
        drops
    }

    /// The link-layer address that a port has for an IP address.
    pub(crate) fn resolved(&self, place: Place, ip: IpAddr) -> Option<LinkAddress> {
        let port = self.port_at(place).ok()?;
        let mut neighbors = port.interfaces().first()?.stack().neighbors();
        neighbors.find(|row| row.ip == ip)?.address
    }

    /// The neighbour that an IP address has at a port.
    pub(crate) fn neighbor(&self, place: Place, ip: IpAddr) -> Option<NeighborRow> {
        let address = self.resolved(place, ip)?;
        let port = self.port_at(place).ok()?;
        let core = port.node().interface(port.interfaces().first()?.id()?)?;
        core.neighbors().find(|row| row.address == address)
    }

    /// Connections that peers have to a host.
    pub(crate) fn incoming_count(&self, host: HostId) -> usize {
        self.interfaces_of(host).map(|(_, core)| core.incoming().count()).sum()
    }

    /// The port that carries for the lagg of a host.
    pub(crate) fn lagg_carrier(&self, host: HostId) -> Option<Place> {
        let carrier = self.lagg_of(host)?.carrier()?;
        self.ports.get(carrier).map(LabPort::place)
    }

    /// Announcements that the lagg of a host made, and addresses that it has had.
    pub(crate) fn lagg_announcements(&self, host: HostId) -> (u64, u64) {
        self.lagg_of(host).map_or((0, 0), |lagg| {
            (lagg.announced(), lagg.core().counters()[lagg::Counter::AddressChanges])
        })
    }

    fn lagg_of(&self, host: HostId) -> Option<&LabLagg> {
        self.laggs.iter().find(|lagg| lagg.host() == host)
    }

    /// The log of a host.
    pub(crate) fn notices(&self, host: HostId) -> Vec<&str> {
        let ports = self.ports_of(host).flat_map(LabPort::notices);
        ports.map(String::as_str).collect()
    }

    fn ports_of(&self, host: HostId) -> impl Iterator<Item = &LabPort> {
        self.ports.iter().filter(move |port| port.place().host == host)
    }

    fn interfaces_of(
        &self,
        host: HostId,
    ) -> impl Iterator<Item = (&LabInterface, &Interface<Packet>)> {
        self.ports_of(host).flat_map(|port| {
            let interfaces = port.interfaces().iter();
            interfaces.filter_map(|one| Some((one, port.node().interface(one.id()?)?)))
        })
    }
}
