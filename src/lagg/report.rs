//! What an admin sees of a lagg.

use core::net::IpAddr;
use core::time::Duration;

use super::Lagg;
use super::counters::Counters;
use super::port::{Identity, InactiveInput, PortId, PortLink, PortState};

/// A line of the table of ports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortRow {
    /// The port.
    pub port: PortId,
    /// Whether it is preferred to all others (MASTER of ifconfig(8)).
    pub is_primary: bool,
    /// Whether it carries (ACTIVE of ifconfig(8)).
    pub is_carrier: bool,
    /// Whether it has a link.
    pub has_link: bool,
    /// The state: `carrying`, `standby`, `down` or `leaving`.
    pub state: &'static str,
    /// What it is called on the link.
    pub identity: Identity,
    /// Its MTU.
    pub mtu: usize,
    /// Groups that it has joined for the lagg.
    pub groups: u32,
    /// Packets handed to it.
    pub sent: u64,
    /// Packets taken from it.
    pub received: u64,
}

/// A line of the table of groups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GroupRow {
    /// The group.
    pub ip: IpAddr,
    /// Whether it is wanted, or on its way out.
    pub is_listed: bool,
    /// Ports that have joined it.
    pub joined: u32,
}

impl Lagg {
    /// All counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How long a preferred port has to have its link before it takes over.
    pub fn hold_down(&self) -> Duration {
        self.hold_down
    }

    /// How often ports are looked at.
    pub fn update_interval(&self) -> Duration {
        self.update.interval()
    }

    /// What is taken from ports that do not carry.
    pub fn inactive_input(&self) -> InactiveInput {
        self.inactive_input
    }

    /// How many ports take part.
    pub fn port_count(&self) -> u32 {
        self.members().fold(0, |count, _| count + 1)
    }

    /// How many of them have a link.
    pub fn active_count(&self) -> u32 {
        self.members().filter(|(_, port)| port.has_link()).fold(0, |count, _| count + 1)
    }

    /// The ports, in the order of preference.
    pub fn ports(&self) -> impl Iterator<Item = PortRow> + '_ {
        let mut last = 0;
        core::iter::from_fn(move || {
            let next = self.ports.iter().filter(|(_, port)| port.sequence > last);
            let (place, port) = next.min_by_key(|(_, port)| port.sequence)?;
            last = port.sequence;
            let id = PortId { place, generation: port.generation };
            let is_carrier = self.carrier() == Some(id);
            let state = match (port.state, port.report.link) {
                (PortState::Leaving | PortState::Releasing, _) => "leaving",
                (PortState::Member, _) if is_carrier => "carrying",
                (PortState::Member, PortLink::Down) => "down",
                (PortState::Member, PortLink::Up | PortLink::Joined) => "standby",
            };
            Some(PortRow {
                port: id,
                is_primary: self.primary() == Some(id),
                is_carrier,
                has_link: port.has_link(),
                state,
                identity: port.report.identity,
                mtu: port.report.mtu,
                groups: self.groups.joined_by(place),
                sent: port.sent,
                received: port.received,
            })
        })
    }

    /// The groups, in the order of their places.
    pub fn groups(&self) -> impl Iterator<Item = GroupRow> + '_ {
        self.groups.iter().map(|(ip, is_listed, joined)| GroupRow { ip, is_listed, joined })
    }
}
