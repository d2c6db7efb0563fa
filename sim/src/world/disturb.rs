//! What goes wrong with ports, the subnet manager and interfaces, and how it is put right.

use std::time::Duration;

use fabric::mad::Status;
use fabric::sm::{Fault, FaultExtent};
use ipoib_rs::action::{SaCapabilities, SaRefusal};
use ipoib_rs::ib::Pkey;
use ipoib_rs::interface::{Mode, PortEvent};
use ipoib_rs::limits::MTU_MIN;

use super::build::{PKEY_CHILD, PKEY_SPARE};
use super::checker::Checkers;
use super::{Item, Visit, World};
use crate::rules::Disturbance;
use crate::trace::Kind;
use crate::verdict::FailureKind;

/// What puts a disturbance right.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Recovery {
    /// The interface is marked up.
    AdminUp(Visit),
    /// The interface is attached.
    Attach(usize),
    /// What is left of a detached interface is removed.
    Remove(Visit),
    /// The port gets its link back.
    LinkUp(usize),
    /// The port gets the keys that it should have, each in its place.
    Pkeys(usize),
    /// The SA answers again.
    Sa,
    /// The adapter completes again.
    Unwedge(usize),
    /// The pool is full again.
    Pool,
}

/// How long a disturbance lasts, in milliseconds: mostly short, so that its end and what it set
/// off overlap.
const LASTING_MS_MAX: u64 = 4_000;
/// How long a detached interface stays before it is removed, to see that it stays still.
const REMOVE_AFTER: Duration = Duration::from_millis(50);
/// Packets that a drought leaves in the pool, at most.
const DROUGHT_LEFT_MAX: u64 = 24;

impl World {
    /// From now on things go wrong, and hosts send.
    pub fn disturb(&mut self) {
        self.is_disturbed = true;
        self.schedule_traffic();
        self.schedule_disturbance();
    }

    /// Ends every fault and puts everything right.
    pub fn heal(&mut self) {
        self.note_fault(format_args!("everything is put right"));
        self.is_disturbed = false;
        self.faults.heal();
        self.recover(Recovery::Sa);
        self.recover(Recovery::Pool);
        for site in 0..self.sites.len() {
            self.recover(Recovery::Unwedge(site));
            self.recover(Recovery::LinkUp(site));
            self.recover(Recovery::Pkeys(site));
        }
        for station in 0..self.stations.len() {
            let visit = self.visit(station);
            self.recover(Recovery::AdminUp(visit));
        }
        if self.rules.can_lose_answers() {
            // Memberships may be left at the SA that nobody knows of; as on a real fabric they end
            // when the subnet manager forgets.
            self.restart_sm();
        }
        self.pings.start_over();
    }

    /// Detaches every interface, for good.
    pub fn close(&mut self) {
        self.note_fault(format_args!("everything is detached"));
        self.is_closing = true;
        for station in 0..self.stations.len() {
            self.detach(station);
        }
    }

    /// Takes the link of a port away.
    pub fn take_port_down(&mut self, site: usize) {
        let port = self.sites[site].port;
        let result = self.subnet.link_down(&mut self.fabric, port);
        debug_assert!(result.is_ok(), "the port exists");
    }

    /// Gives a port its link back.
    pub fn bring_port_up(&mut self, site: usize) {
        let port = self.sites[site].port;
        let result = self.subnet.link_up(&mut self.fabric, port);
        debug_assert!(result.is_ok(), "the port exists");
    }

    /// Lets the subnet manager forget every member.
    pub fn restart_sm(&mut self) {
        self.subnet.manager_mut().restart();
        self.subnet.poll(&mut self.fabric);
    }

    /// Gives a port another LID.
    pub fn move_lid(&mut self, site: usize) {
        let port = self.sites[site].port;
        let result = self.subnet.manager_mut().move_lid(port);
        debug_assert!(result.is_ok(), "there are LIDs left");
        self.subnet.poll(&mut self.fabric);
    }

    /// Lets a port into a partition.
    pub fn grant_pkey(&mut self, site: usize, pkey: u16) {
        let port = self.sites[site].port;
        if let Some(pkey) = Pkey::new(pkey) {
            let result = self.subnet.manager_mut().grant_pkey(port, pkey);
            debug_assert!(result.is_ok(), "{pkey:?} is a partition");
            self.subnet.poll(&mut self.fabric);
        }
    }

    /// Takes a port out of a partition; nothing happens if it is not in it.
    pub fn revoke_pkey(&mut self, site: usize, pkey: u16) {
        let port = self.sites[site].port;
        if let Some(pkey) = Pkey::new(pkey) {
            // A port that is not in the partition stays out of it.
            let _ = self.subnet.manager_mut().revoke_pkey(port, pkey);
            self.subnet.poll(&mut self.fabric);
        }
    }

    /// Attaches the interface of a station, administratively down.
    pub fn attach(&mut self, station: usize) {
        if self.stations[station].attached.is_some() {
            return;
        }
        let (limits, seed) = (self.rules.limits, self.random.word());
        let result =
            self.with_station(station, |station, ground| station.attach(ground, limits, seed));
        if let Err(error) = result {
            self.fail(FailureKind::Leak, format!("attach: {error:?}"));
        }
        self.add_bond_port(station);
    }

    /// Marks an interface up.
    pub fn admin_up(&mut self, station: usize) {
        let now = self.now;
        self.with_station(station, |station, ground| {
            station.pump(ground, |interface, queues| interface.handle_admin_up(now, queues))
        });
    }

    /// Marks an interface down.
    pub fn admin_down(&mut self, station: usize) {
        let now = self.now;
        self.with_station(station, |station, ground| {
            station.pump(ground, |interface, queues| {
                interface.handle_admin_down(now, queues);
            })
        });
    }

    /// Detaches an interface.
    pub fn detach(&mut self, station: usize) {
        self.lose_bond_port(station);
        let now = self.now;
        self.with_station(station, |station, ground| {
            station.pump(ground, |interface, queues| interface.handle_detach(now, queues))
        });
    }

    /// Sets the mode of an interface. False if its adapter has no reliable connections, or if it is
    /// not attached.
    pub fn set_mode(&mut self, station: usize, mode: Mode) -> bool {
        self.with_station(station, |station, ground| station.set_mode(ground, mode))
    }

    /// Sets the MTU of an interface for connected mode.
    pub fn set_connected_mtu(&mut self, station: usize, mtu: usize) {
        self.with_station(station, |station, ground| station.set_connected_mtu(ground, mtu));
    }

    /// Stops a host without a word. It starts again after a while, and may give its connections the
    /// names that those of before had.
    pub fn crash_host(&mut self, site: usize) {
        let bond = (0..self.bonds.len()).find(|&bond| {
            let mut ports = self.bonds[bond].ports.iter();
            ports.any(|port| self.stations[port.station].site == site)
        });
        let sites: Vec<usize> = match bond {
            Some(bond) => {
                let ports = self.bonds[bond].ports.iter();
                ports.map(|port| self.stations[port.station].site).collect()
            }
            None => vec![site],
        };
        for station in 0..self.stations.len() {
            if sites.contains(&self.stations[station].site) {
                self.with_station(station, |station, ground| station.crash(ground));
                self.recover_later(Recovery::Attach(station));
            }
        }
        if let Some(bond) = bond {
            self.crash_bond(bond);
        }
        for site in sites {
            if self.random.chance(500) {
                self.sites[site].cm_seed = self.random.word();
            }
            let guid = self.fabric.query_port(self.sites[site].port).map_or(0, |port| port.guid);
            self.sites[site].forget_connections(guid);
        }
    }

    /// An interface reported that it is detached: it is watched for a while, then removed.
    pub(super) fn retire(&mut self, station: usize) {
        let visit = self.visit(station);
        if let Some(attached) = &mut self.stations[station].attached {
            attached.adapter.is_retired = true;
        }
        let recovery = Item::Recovery(Recovery::Remove(visit));
        self.agenda.add(self.now + REMOVE_AFTER, recovery);
    }

    pub(super) fn make_disturbance(&mut self) {
        if !self.is_disturbed {
            return;
        }
        if let Some(disturbance) = self.rules.disturbance(&mut self.random) {
            self.trace.record(self.now, Kind::Fault, &[disturbance as u64]);
            self.begin(disturbance);
        }
        self.schedule_disturbance();
    }

    fn begin(&mut self, disturbance: Disturbance) {
        let site = self.random.below(self.sites.len() as u64) as usize;
        let station = self.random.below(self.stations.len() as u64) as usize;
        let visit = self.visit(station);
        self.note_fault(format_args!("{disturbance:?} (port {site}, station {station})"));
        match disturbance {
            Disturbance::PortFlap => {
                self.take_port_down(site);
                self.recover_later(Recovery::LinkUp(site));
            }
            Disturbance::SmRestart => self.restart_sm(),
            Disturbance::Reregister => {
                self.subnet.manager_mut().request_reregistration();
                self.subnet.poll(&mut self.fabric);
            }
            Disturbance::LidMove => self.move_lid(site),
            Disturbance::PkeyRemoval => {
                let pkeys = [Pkey::DEFAULT.value(), PKEY_CHILD];
                let pkey = pkeys[self.random.below(2) as usize];
                self.revoke_pkey(site, pkey);
                self.recover_later(Recovery::Pkeys(site));
            }
            Disturbance::PkeyMove => self.move_pkey(site),
            Disturbance::PkeyChange => {
                self.revoke_pkey(site, Pkey::DEFAULT.value());
                self.grant_pkey(site, PKEY_SPARE);
                self.recover_later(Recovery::Pkeys(site));
            }
            Disturbance::SaBusy => self.disturb_sa(Fault::Status(Status::BUSY)),
            Disturbance::SaSilent => self.disturb_sa(Fault::Silent),
            Disturbance::SaRefusal => self.refuse(),
            Disturbance::AdminToggle => {
                self.admin_down(station);
                self.recover_later(Recovery::AdminUp(visit));
            }
            Disturbance::Reattach => self.detach(station),
            Disturbance::PoolDrought => self.begin_drought(),
            Disturbance::Wedge => {
                self.set_wedged(site, true);
                self.recover_later(Recovery::Unwedge(site));
            }
            Disturbance::HopLimit => {
                let hop_limit = if self.random.chance(500) { 64 } else { 0 };
                self.subnet.manager_mut().set_hop_limit(hop_limit);
            }
            Disturbance::Capabilities => {
                let send_only_full_member = self.random.chance(500);
                self.subnet
                    .manager_mut()
                    .set_capabilities(SaCapabilities { send_only_full_member });
            }
            Disturbance::SpuriousEvent => self.report_spurious_event(site),
            Disturbance::HostCrash => self.crash_host(site),
            Disturbance::ModeSwitch => self.switch_mode(station),
            Disturbance::MtuChange => self.change_mtu(station),
            Disturbance::QueuePairFailure => self.fail_queue_pair(station),
            Disturbance::PortLeaves => self.take_bond_port_out(station),
        }
    }

    /// Puts something right; nothing happens if it is right already.
    pub(super) fn recover(&mut self, recovery: Recovery) {
        match recovery {
            Recovery::AdminUp(visit) => {
                if self.is_current(visit) {
                    self.admin_up(visit.station);
                }
            }
            Recovery::Attach(station) => {
                if !self.is_closing {
                    self.attach(station);
                    self.admin_up(station);
                }
            }
            Recovery::Remove(visit) => self.remove(visit),
            Recovery::LinkUp(site) => {
                let port = self.sites[site].port;
                let is_active =
                    self.fabric.port_attributes(port, None).is_some_and(|port| port.is_active);
                if !is_active {
                    self.bring_port_up(site);
                }
            }
            Recovery::Pkeys(site) => self.restore_pkeys(site),
            Recovery::Sa => self.subnet.manager_mut().clear_fault(),
            Recovery::Unwedge(site) => self.set_wedged(site, false),
            Recovery::Pool => {
                for packet in self.hoard.drain(..) {
                    self.fabric.pool_mut().free(packet);
                }
            }
        }
    }

    /// Removes what is left of a detached interface.
    fn remove(&mut self, visit: Visit) {
        if !self.is_current(visit) {
            return;
        }
        let Some(attached) = self.stations[visit.station].attached.take() else {
            return;
        };
        for (name, value) in attached.interface.counters().iter() {
            *self.totals.entry(name).or_default() += value;
        }
        if let Err(what) = Checkers::on_removed(visit.station, &attached) {
            self.fail(FailureKind::Leak, what);
        }
        for frame in attached.waiting {
            self.fabric.pool_mut().free(frame.packet);
        }
        if !attached.adapter.close(&mut self.fabric) {
            let what = format!("station {}: the queue pair is in use", visit.station);
            self.fail(FailureKind::Leak, what);
        }
        if !self.is_closing {
            self.recover_later(Recovery::Attach(visit.station));
        }
    }

    /// Gives a port its keys, the default one at index 0.
    fn restore_pkeys(&mut self, site: usize) {
        let wanted = Pkey::DEFAULT.value();
        let port = self.sites[site].port;
        let first = self.fabric.port_attributes(port, None).and_then(|port| port.partition);
        if first.is_none_or(|first| first.pkey.value() != wanted) {
            // It may stand at another place, while something else is at the first.
            self.revoke_pkey(site, wanted);
            self.revoke_pkey(site, PKEY_SPARE);
            let is_child_first = first.is_some_and(|first| first.pkey.full().value() == PKEY_CHILD);
            if is_child_first {
                self.revoke_pkey(site, PKEY_CHILD);
            }
            self.grant_pkey(site, wanted);
        }
        self.revoke_pkey(site, PKEY_SPARE);
        if self.is_parent(site) {
            self.grant_pkey(site, PKEY_CHILD);
        }
    }

    /// Moves the child's key to another place of the table.
    fn move_pkey(&mut self, site: usize) {
        if self.is_parent(site) {
            self.revoke_pkey(site, PKEY_CHILD);
            self.grant_pkey(site, PKEY_SPARE);
            self.grant_pkey(site, PKEY_CHILD);
            self.revoke_pkey(site, PKEY_SPARE);
        }
    }

    /// Whether a port has a child.
    pub(super) fn is_parent(&self, site: usize) -> bool {
        self.stations.iter().any(|station| station.site == site && station.pkey.is_some())
    }

    fn disturb_sa(&mut self, fault: Fault) {
        if self.random.chance(500) {
            let count = self.random.within(1..=8) as u32;
            let extent = FaultExtent::Next(count);
            self.subnet.manager_mut().set_fault(fault, extent);
        } else {
            let extent = FaultExtent::UntilCleared;
            self.subnet.manager_mut().set_fault(fault, extent);
            self.recover_later(Recovery::Sa);
        }
    }

    fn refuse(&mut self) {
        let code = self.random.within(1..=7) as u8;
        if let Some(refusal) = SaRefusal::from_code(code) {
            self.disturb_sa(Fault::Status(Status::refusal(refusal)));
        }
    }

    fn begin_drought(&mut self) {
        let left = self.random.below(DROUGHT_LEFT_MAX);
        while let Some(packet) = self.fabric.allocate(1) {
            self.hoard.push(packet);
        }
        for _ in 0..left {
            if let Some(packet) = self.hoard.pop() {
                self.fabric.pool_mut().free(packet);
            }
        }
        self.recover_later(Recovery::Pool);
    }

    fn set_wedged(&mut self, site: usize, is_wedged: bool) {
        self.sites[site].is_wedged = is_wedged;
        let port = self.sites[site].port;
        if let Some(status) = self.fabric.query_port(port) {
            let result = self.fabric.set_wedged(status.hca, is_wedged);
            debug_assert!(result.is_ok(), "the adapter exists");
        }
    }

    fn switch_mode(&mut self, station: usize) {
        let mode = match self.stations[station].mode {
            Mode::Datagram => Mode::Connected,
            Mode::Connected => Mode::Datagram,
        };
        if self.sites[self.stations[station].site].support.is_some() {
            self.set_mode(station, mode);
        }
    }

    fn change_mtu(&mut self, station: usize) {
        let support = self.sites[self.stations[station].site].support;
        if let Some(support) = support {
            let mtu = self.random.within(MTU_MIN as u64..=support.mtu_max as u64) as usize;
            self.set_connected_mtu(station, mtu);
        }
    }

    fn report_spurious_event(&mut self, site: usize) {
        const EVENTS: [PortEvent; 7] = [
            PortEvent::ClientReregister,
            PortEvent::GidChanged,
            PortEvent::LidChanged,
            PortEvent::PkeyChanged,
            PortEvent::PortActive,
            PortEvent::PortError,
            PortEvent::SmChanged,
        ];
        if let Some(&event) = self.random.pick(&EVENTS) {
            let port = self.sites[site].port;
            self.fabric.dispatch_event(port, event);
        }
    }

    fn recover_later(&mut self, recovery: Recovery) {
        // Squared: half of them last less than a quarter of the longest.
        let part = self.random.within(0..=1_000);
        let delay = Duration::from_millis(1 + LASTING_MS_MAX * part * part / 1_000_000);
        self.agenda.add(self.now + delay, Item::Recovery(recovery));
    }

    fn schedule_disturbance(&mut self) {
        let gap = self.random.span(self.rules.disturbance_gap.clone());
        self.agenda.add(self.now + gap, Item::Disturbance);
    }

    fn note_fault(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.record(self.now, Kind::Fault, &[]);
        self.trace.note(self.now, what);
    }
}
