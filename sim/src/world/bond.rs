//! Hosts with a lagg over two ports, each on an adapter of its own.
//!
//! The host is that of the first port's station; the second station has none. What the host sends
//! goes by the port that the lagg names, and what ports receive reaches the host if the lagg takes
//! it. Reports on ports come late or never, actions come late, and a port can go at any time.

use std::collections::{BTreeSet, VecDeque};

use fabric::packet::Packet;
use ipoib_rs::ib::Gid;
use ipoib_rs::interface::{Interface, Mode};
use ipoib_rs::lagg::{
    self, Action, AddPortError, Capabilities, Config, Event, Face, Identity, Lagg, PortError,
    PortId, PortLink, PortReport, Removal,
};
use ipoib_rs::limits::{LaggLimits, MTU_MIN};
use ipoib_rs::packet::Delivery;
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{AddressFlags, LinkAddress};

use super::checker::bond::Watch;
use super::{Item, World};
use crate::host::{Frame, Host};
use crate::rules::LaggRules;
use crate::swarm::Planted;
use crate::trace::Kind;
use crate::verdict::FailureKind;

/// Room for every group that a host listens to.
const LIMITS: LaggLimits = LaggLimits { ports_max: 3, groups_max: 8 };

/// A lagg.
#[derive(Debug)]
pub(super) struct Bond {
    /// The station whose host it is; the first of its ports.
    pub(super) host: usize,
    pub(super) ports: Vec<BondPort>,
    pub(super) lagg: Lagg,
    /// Counts laggs: what was meant for an earlier one is ignored.
    epoch: u32,
    pub(super) deadline: Option<Instant>,
    pub(super) is_detached: bool,
    events: VecDeque<Event>,
    actions: VecDeque<Action>,
    pub(super) watch: Watch,
}

/// A port, as the shell knows it.
#[derive(Debug)]
pub(super) struct BondPort {
    pub(super) station: usize,
    /// As the lagg knows it; `None` while it is none of its ports.
    pub(super) id: Option<PortId>,
    /// The groups that the lagg joined on it.
    pub(super) groups: BTreeSet<LinkAddress>,
}

/// What came in by a port of a lagg.
#[derive(Debug)]
pub(super) enum Inbound {
    Received(Packet, Delivery),
    TooBig(Packet, usize),
}

/// An action of a lagg.
#[derive(Clone, Copy, Debug)]
pub(super) struct BondAction {
    bond: usize,
    epoch: u32,
    action: Action,
}

impl Bond {
    pub(super) fn new(stations: &[usize], rules: &LaggRules) -> Option<Self> {
        let port = |&station: &usize| BondPort { station, id: None, groups: BTreeSet::new() };
        let mut bond = Self {
            host: *stations.first()?,
            ports: stations.iter().map(port).collect(),
            lagg: make_lagg(rules)?,
            epoch: 0,
            deadline: None,
            is_detached: false,
            events: VecDeque::new(),
            actions: VecDeque::new(),
            watch: Watch::default(),
        };
        bond.lagg.handle_admin_up();
        Some(bond)
    }

    fn port_of(&mut self, station: usize) -> Option<&mut BondPort> {
        self.ports.iter_mut().find(|port| port.station == station)
    }

    fn port_with(&mut self, id: PortId) -> Option<&mut BondPort> {
        self.ports.iter_mut().find(|port| port.id == Some(id))
    }

    /// The port that carries, by its station.
    pub(super) fn carrier(&self) -> Option<usize> {
        let id = self.lagg.carrier()?;
        self.ports.iter().find(|port| port.id == Some(id)).map(|port| port.station)
    }
}

fn make_lagg(rules: &LaggRules) -> Option<Lagg> {
    let LaggRules { hold_down, update_interval, inactive_input, event_loss: _ } = *rules;
    let config = Config { hold_down, update_interval, inactive_input, seed: 1, limits: LIMITS };
    Lagg::attach(config).ok()
}

/// What the host's stack sees.
struct Mirror<'a> {
    host: &'a mut Host,
    watch: &'a mut Watch,
    planted: Option<Planted>,
}

impl Face for Mirror<'_> {
    fn wear(&mut self, identity: Option<&Identity>) {
        self.watch.on_worn();
        let Some(identity) = identity else {
            return;
        };
        if self.planted != Some(Planted::LateAddress)
            && let Some(broadcast) = identity.broadcast.mgid()
        {
            // An address that is no broadcast group's is that of a port without a P_Key.
            let _ = self.host.set_link(identity.address, broadcast);
        }
    }
}

/// The shell of a lagg, while it is being fed.
struct LockedBond<'a> {
    bond: &'a mut Bond,
    host: &'a mut Host,
    planted: Option<Planted>,
}

impl lagg::Shell for LockedBond<'_> {
    type Face<'a> = Mirror<'a>;

    fn with_lagg<R>(&mut self, feed: impl FnOnce(&mut Lagg, &mut Mirror<'_>) -> R) -> R {
        let Self { bond, host, planted } = self;
        let mut mirror = Mirror { host, watch: &mut bond.watch, planted: *planted };
        feed(&mut bond.lagg, &mut mirror)
    }

    fn observe(&mut self, event: Event) {
        let times = 1 + usize::from(self.planted == Some(Planted::RepeatedNotice));
        self.bond.events.extend(std::iter::repeat_n(event, times));
    }

    fn execute(&mut self, action: Action) {
        self.bond.actions.push_back(action);
    }

    fn schedule(&mut self, deadline: Option<Instant>) {
        self.bond.deadline = deadline;
    }
}

impl World {
    /// Which lagg a station is a port of.
    pub(super) fn bond_of(&self, station: usize) -> Option<usize> {
        let has = |bond: &Bond| bond.ports.iter().any(|port| port.station == station);
        self.bonds.iter().position(has)
    }

    /// Whether a station has no host of its own.
    pub(super) fn is_hostless(&self, station: usize) -> bool {
        self.bond_of(station).is_some_and(|bond| self.bonds[bond].host != station)
    }

    /// The stations through which the host of a station sends and receives.
    pub(super) fn doors_of(&self, station: usize) -> Vec<usize> {
        match self.bond_of(station) {
            Some(bond) => self.bonds[bond].ports.iter().map(|port| port.station).collect(),
            None => vec![station],
        }
    }

    fn feed_bond<R>(
        &mut self,
        index: usize,
        feed: impl FnOnce(&mut Lagg, &mut Mirror<'_>) -> R,
    ) -> R {
        let bond = &mut self.bonds[index];
        let host = &mut self.stations[bond.host].host;
        lagg::pump(&mut LockedBond { bond, host, planted: self.planted }, feed)
    }

    /// The interface of a station is there: it becomes a port.
    pub(super) fn add_bond_port(&mut self, station: usize) {
        let (Some(bond), Some(report)) = (self.bond_of(station), self.report_on(station)) else {
            return;
        };
        let now = self.now;
        let is_port = self.bonds[bond].port_of(station).is_some_and(|port| port.id.is_some());
        if is_port {
            return;
        }
        let added = self.feed_bond(bond, |lagg, face| lagg.handle_port_added(now, &report, face));
        match added {
            Ok(id) => {
                if let Some(port) = self.bonds[bond].port_of(station) {
                    port.id = Some(id);
                }
            }
            Err(AddPortError::Detaching) => {}
            Err(error @ (AddPortError::AddressInUse | AddPortError::TableFull)) => {
                self.fail(FailureKind::Safety, format!("station {station} as a port: {error:?}"));
            }
        }
    }

    /// The interface of a station goes or is gone, and with it the port.
    pub(super) fn lose_bond_port(&mut self, station: usize) {
        let Some(bond) = self.bond_of(station) else {
            return;
        };
        let Some(port) = self.bonds[bond].port_of(station) else {
            return;
        };
        port.groups.clear();
        if let Some(id) = port.id.take() {
            let now = self.now;
            self.feed_bond(bond, |lagg, face| {
                lagg.handle_port_removed(now, id, Removal::Vanished, face);
            });
        }
    }

    /// The admin takes a port out of its lagg, for a while.
    pub(super) fn take_bond_port_out(&mut self, station: usize) {
        let Some(bond) = self.bond_of(station) else {
            return;
        };
        let id = self.bonds[bond].port_of(station).and_then(|port| port.id);
        if let Some(id) = id {
            let now = self.now;
            self.feed_bond(bond, |lagg, face| {
                lagg.handle_port_removed(now, id, Removal::Orderly, face);
            });
        }
    }

    /// The host of a lagg stops without a word.
    pub(super) fn crash_bond(&mut self, bond: usize) {
        let Some(rules) = self.rules.lagg else {
            return;
        };
        self.count_bond(bond);
        let stations: Vec<usize> = self.bonds[bond].ports.iter().map(|port| port.station).collect();
        if let Some(fresh) = Bond::new(&stations, &rules) {
            let epoch = self.bonds[bond].epoch + 1;
            self.bonds[bond] = Bond { epoch, ..fresh };
        }
    }

    /// Every lagg goes for good.
    pub(super) fn close_bonds(&mut self) {
        let now = self.now;
        for bond in 0..self.bonds.len() {
            self.feed_bond(bond, |lagg, face| lagg.handle_detach(now, face));
        }
    }

    pub(super) fn are_bonds_closed(&self) -> bool {
        self.bonds.iter().all(|bond| bond.is_detached)
    }

    pub(super) fn time_out_bond(&mut self, bond: usize) {
        let now = self.now;
        self.feed_bond(bond, |lagg, face| lagg.handle_timeout(now, face));
    }

    /// Something happened to a port: the lagg hears of it in its own time, or not at all.
    pub(super) fn tell_bond(&mut self, station: usize) {
        let Some(rules) = self.rules.lagg.filter(|_| self.bond_of(station).is_some()) else {
            return;
        };
        if !self.faults.loses_event(rules.event_loss) {
            let visit = self.visit(station);
            let delay = self.faults.action_delay();
            self.agenda.add(self.now + delay, Item::BondReport(visit));
        }
    }

    /// A port wants its address to be announced.
    pub(super) fn move_bond_port(&mut self, station: usize) {
        let Some(bond) = self.bond_of(station) else {
            return;
        };
        if let Some(id) = self.bonds[bond].port_of(station).and_then(|port| port.id) {
            self.bonds[bond].watch.on_moved();
            self.feed_bond(bond, |lagg, _| lagg.handle_port_moved(id));
        }
    }

    /// Tells a lagg what its port is like now.
    pub(super) fn report_to_bond(&mut self, station: usize) {
        let (Some(bond), Some(report)) = (self.bond_of(station), self.report_on(station)) else {
            return;
        };
        let now = self.now;
        if let Some(id) = self.bonds[bond].port_of(station).and_then(|port| port.id) {
            self.feed_bond(bond, |lagg, face| {
                lagg.handle_port_reported(now, id, &report, face);
            });
        }
    }

    /// The list of groups that the host of a lagg wants.
    pub(super) fn offer_bond_groups(&mut self, bond: usize) {
        use zerocopy::IntoBytes;
        let groups = self.stations[self.bonds[bond].host].host.joined_groups();
        self.bonds[bond].watch.on_list(&groups);
        let is_churned = self.planted == Some(Planted::GroupChurn);
        self.feed_bond(bond, |lagg, _| {
            if is_churned {
                lagg.handle_multicast_list(std::iter::empty());
            }
        });
        self.feed_bond(bond, |lagg, _| {
            lagg.handle_multicast_list(groups.iter().map(IntoBytes::as_bytes));
        });
    }

    /// The list of groups that a lagg joined on its port, again.
    pub(super) fn offer_port_groups(&mut self, station: usize) {
        let Some(bond) = self.bond_of(station) else {
            return;
        };
        let Some(port) = self.bonds[bond].port_of(station) else {
            return;
        };
        let groups: Vec<LinkAddress> = port.groups.iter().copied().collect();
        self.with_station(station, |station, ground| station.set_groups(ground, &groups));
    }

    fn report_on(&self, station: usize) -> Option<PortReport> {
        let interface = &self.stations[station].attached.as_ref()?.interface;
        let nobody =
            LinkAddress::new(AddressFlags::empty(), interface.address().qpn(), Gid([0; 16]));
        let broadcast = interface.broadcast().map_or(nobody, LinkAddress::multicast);
        let is_up = interface.is_link_up();
        let support = self.sites[self.stations[station].site].support;
        let mtu_max = match (interface.mode(), support) {
            (Mode::Connected, Some(support)) => support.mtu_max,
            (Mode::Connected | Mode::Datagram, _) => interface.mtu(),
        };
        Some(PortReport {
            identity: Identity { address: interface.address(), broadcast },
            link: if is_up { PortLink::Joined } else { PortLink::Down },
            mtu: interface.mtu(),
            mtu_max: mtu_max.max(interface.mtu()),
            capabilities: Capabilities::default(),
        })
    }

    /// Takes everything out of a lagg. Whether there was anything.
    pub(super) fn drive_bond(&mut self, index: usize) -> bool {
        let mut is_busy = self.take_inbound(index);
        is_busy |= self.transmit_bond(index);
        while let Some(event) = self.bonds[index].events.pop_front() {
            is_busy = true;
            self.observe_bond(index, event);
        }
        while let Some(action) = self.bonds[index].actions.pop_front() {
            is_busy = true;
            let bond = &mut self.bonds[index];
            let is_lost = self.planted == Some(Planted::LostQuery) && action == Action::QueryPorts;
            if let Err(what) = bond.watch.on_action(&bond.lagg, &action) {
                self.fail(FailureKind::Safety, format!("lagg: {what}"));
            }
            let item = BondAction { bond: index, epoch: self.bonds[index].epoch, action };
            let delay = self.faults.action_delay();
            if !is_lost {
                self.agenda.add(self.now + delay, Item::BondAction(item));
            }
        }
        is_busy
    }

    fn observe_bond(&mut self, index: usize, event: Event) {
        self.trace.record(self.now, Kind::Report, &[index as u64]);
        self.trace.record_debug(&event);
        self.trace.note(self.now, format_args!("lagg {index}: {event:?}"));
        if let Err(what) = self.bonds[index].watch.on_event(&event) {
            self.fail(FailureKind::Safety, format!("lagg: {what}"));
        }
        match event {
            Event::AddressChanged(_) => self.offer_bond_groups(index),
            Event::Detached => self.bonds[index].is_detached = true,
            Event::CapabilitiesChanged(_)
            | Event::CarrierChanged(_)
            | Event::LinkDown
            | Event::LinkUp
            | Event::MtuChanged(_) => {}
        }
    }

    pub(super) fn execute_bond(&mut self, BondAction { bond, epoch, action }: BondAction) {
        if self.bonds[bond].epoch != epoch {
            return;
        }
        self.trace.record(self.now, Kind::Action, &[bond as u64]);
        self.trace.record_debug(&action);
        self.trace.note(self.now, format_args!("lagg {bond}: {action:?}"));
        match action {
            Action::Announce { port } => {
                if self.bonds[bond].lagg.carrier() == Some(port) {
                    self.announce(self.bonds[bond].host);
                }
            }
            Action::JoinGroup { op, port, group } => {
                let answer = if self.faults.fails_verb() { Err(PortError) } else { Ok(()) };
                if answer.is_ok() {
                    self.change_groups(bond, port, |groups| groups.insert(group));
                }
                self.feed_bond(bond, |lagg, _| lagg.handle_group_answer(op, answer));
            }
            Action::LeaveGroup { op, port, group } => {
                self.change_groups(bond, port, |groups| groups.remove(&group));
                self.feed_bond(bond, |lagg, _| lagg.handle_group_answer(op, Ok(())));
            }
            Action::QueryPorts => {
                for station in self.doors_of(self.bonds[bond].host) {
                    self.report_to_bond(station);
                }
                self.offer_bond_groups(bond);
            }
            Action::RaisePort { port } => {
                let station = self.bonds[bond].port_with(port).map(|port| port.station);
                if let Some(station) = station {
                    self.admin_up(station);
                }
            }
            // The laggs of this world are up as long as they are there.
            Action::LowerPort { .. } => {}
            Action::ReleasePort { port } => self.release_bond_port(bond, port),
            Action::SetPortMtu { op, port, mtu } => {
                let answer = self.set_bond_mtu(bond, port, mtu);
                self.feed_bond(bond, |lagg, _| lagg.handle_mtu_answer(op, answer));
            }
        }
    }

    fn change_groups(
        &mut self,
        bond: usize,
        port: PortId,
        change: impl FnOnce(&mut BTreeSet<LinkAddress>) -> bool,
    ) {
        let Some(port) = self.bonds[bond].port_with(port) else {
            return;
        };
        let (station, is_changed) = (port.station, change(&mut port.groups));
        let groups: Vec<LinkAddress> = port.groups.iter().copied().collect();
        if !is_changed {
            let what = "a group was joined twice, or left and not joined".to_owned();
            self.fail(FailureKind::Safety, format!("lagg: {what}"));
        }
        self.with_station(station, |station, ground| station.set_groups(ground, &groups));
    }

    fn release_bond_port(&mut self, bond: usize, id: PortId) {
        let Some(port) = self.bonds[bond].port_with(id) else {
            return;
        };
        port.id = None;
        let (station, left) = (port.station, port.groups.len());
        if left > 0 {
            let what = format!("station {station} is released with {left} groups of the lagg");
            self.fail(FailureKind::Leak, what);
        }
        self.feed_bond(bond, |lagg, _| lagg.handle_port_released(id));
        if !self.is_closing {
            self.add_bond_port(station);
        }
    }

    fn set_bond_mtu(&mut self, bond: usize, port: PortId, mtu: usize) -> Result<(), PortError> {
        let station = self.bonds[bond].port_with(port).map(|port| port.station).ok_or(PortError)?;
        let support = self.sites[self.stations[station].site].support.ok_or(PortError)?;
        let is_connected = self.interface(station).is_some_and(|one| one.mode() == Mode::Connected);
        if !is_connected || !(MTU_MIN..=support.mtu_max).contains(&mtu) {
            return Err(PortError);
        }
        self.set_connected_mtu(station, mtu);
        Ok(())
    }

    /// What came in by the ports of a lagg.
    fn take_inbound(&mut self, index: usize) -> bool {
        let mut is_busy = false;
        let now = self.now;
        for station in self.doors_of(self.bonds[index].host) {
            while let Some(inbound) =
                self.stations[station].inbox.as_mut().and_then(VecDeque::pop_front)
            {
                is_busy = true;
                let bond = &mut self.bonds[index];
                let id = bond.port_of(station).and_then(|port| port.id);
                let host = &mut self.stations[bond.host].host;
                let pool = self.fabric.pool_mut();
                match inbound {
                    Inbound::TooBig(packet, mtu) => host.handle_too_big(packet, mtu, pool),
                    Inbound::Received(packet, delivery) => {
                        let taken = id.map(|id| bond.lagg.handle_receive(id, delivery.cast));
                        match taken {
                            Some(Ok(())) => host.receive(now, packet, delivery, pool),
                            Some(Err(_)) | None => pool.free(packet),
                        }
                    }
                }
            }
        }
        is_busy
    }

    /// What the host of a lagg wants to send goes by the port that carries.
    pub(super) fn transmit_bond(&mut self, index: usize) -> bool {
        let mut is_busy = false;
        while let Some(frame) = self.stations[self.bonds[index].host].host.poll_transmit() {
            is_busy = true;
            self.offer(self.bonds[index].host, frame);
        }
        is_busy
    }

    /// Hands a frame to the interface of a station, or to that which its lagg names.
    pub(super) fn offer(&mut self, station: usize, frame: Frame) {
        let door = match self.bond_of(station) {
            None => Some(station),
            Some(index) => {
                let bond = &mut self.bonds[index];
                let named = bond.lagg.handle_transmit().ok();
                let mut door = named.and_then(|id| bond.port_with(id)).map(|port| port.station);
                if self.planted == Some(Planted::IdlePort) && self.faults.is_bug_due() {
                    let stations = bond.ports.iter().map(|port| port.station);
                    door = stations.filter(|&station| Some(station) != door).min();
                }
                if let (Some(door), host) = (door, &self.stations[bond.host].host)
                    && let Err(what) = bond.watch.on_transmit(bond.carrier(), door, host)
                {
                    self.fail(FailureKind::Safety, format!("lagg: {what}"));
                }
                door
            }
        };
        match door {
            Some(door) => {
                self.with_station(door, |station, ground| station.offer(ground, frame));
            }
            None => self.fabric.pool_mut().free(frame.packet),
        }
    }

    /// What is not well with a lagg, for people.
    pub(super) fn bond_ailments(&self, index: usize) -> Vec<String> {
        let bond = &self.bonds[index];
        let mut ailments = Vec::new();
        let Some(carrier) = bond.carrier() else {
            return vec![format!("no port of lagg {index} carries")];
        };
        let host = &self.stations[bond.host].host;
        let address = self.interface(carrier).map(Interface::address);
        if host.link_address() != address {
            ailments.push(format!("lagg {index} does not have the address of station {carrier}"));
        }
        let mtus = bond.ports.iter().filter_map(|port| self.interface(port.station));
        if mtus.map(Interface::mtu).any(|mtu| mtu < bond.lagg.mtu()) {
            ailments.push(format!("the MTU of lagg {index} is above that of a port"));
        }
        for port in &bond.ports {
            let station = port.station;
            if port.id.is_none() {
                ailments.push(format!("station {station} is no port of lagg {index}"));
            }
            let joined: BTreeSet<_> = self
                .interface(station)
                .into_iter()
                .flat_map(Interface::groups)
                .filter(|group| group.mlid.is_some())
                .map(|group| LinkAddress::multicast(group.mgid))
                .collect();
            let missing = host.joined_groups().into_iter().find(|group| !joined.contains(group));
            if let Some(group) = missing {
                ailments.push(format!("station {station} has not joined {group}"));
            }
        }
        ailments
    }

    /// Adds up what a lagg counted.
    pub(super) fn count_bond(&mut self, index: usize) {
        for (name, value) in self.bonds[index].lagg.counters().iter() {
            *self.totals.entry(name).or_default() += value;
        }
    }
}
