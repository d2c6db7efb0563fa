//! The world: adapters, a switch, a subnet manager, hosts, and a clock that jumps.
//!
//! A world is a function of its seed and rules. Events happen in the order of time, those of one
//! time in the order in which they were arranged. After every event all checkers look at it.

mod adapter;
mod bond;
mod build;
mod checker;
mod connect;
mod contact;
mod disturb;
mod faults;
mod links;
mod pings;
mod site;
mod stack;
mod station;
mod streams;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fabric::cq::Notification;
use fabric::packet::Packet;
use fabric::port::PortId;
use fabric::qp::QpId;
use fabric::subnet::Subnet;
use fabric::transit::Transit;
use fabric::{AsyncEvent, Fabric};
use ipoib_rs::action::Action;
use ipoib_rs::event::Event;
use ipoib_rs::ib::Qpn;
use ipoib_rs::interface::{Interface, PortEvent};
use ipoib_rs::time::Instant;

use crate::agenda::Agenda;
use crate::random::Random;
use crate::rules::Rules;
use crate::swarm::Planted;
use crate::trace::{Kind, Trace};
use crate::verdict::{Failure, FailureKind};
use bond::{Bond, BondAction};
use checker::Checkers;
use disturb::Recovery;
use faults::{Faults, Flight};
use pings::Pings;
use site::Site;
use station::{Ground, Station};
use streams::Streams;

pub use build::WorldBuilder;
pub use pings::{Lane, Version};

/// Completions that a station takes in one go, at most.
const REAP_MAX: u64 = 8;
/// Packets that leave at the same time, at most.
const DEPARTURES_MAX: u64 = 40;
/// The context of notifications of a port's QP1: this plus the number of the site.
const CONTEXT_SITES: u64 = 1 << 32;
/// The context of notifications of the subnet manager's QP1.
const CONTEXT_SUBNET: u64 = 1 << 33;
/// How long an action waits that an adapter does not let happen, before it is tried again.
const WITHHELD_FOR: Duration = Duration::from_millis(10);
/// How often a deadline may be reached without time going on.
const TIMEOUTS_AT_ONCE_MAX: u32 = 1_000;

/// A simulated world.
#[derive(Debug)]
pub struct World {
    now: Instant,
    agenda: Agenda<Item>,
    fabric: Fabric,
    subnet: Subnet,
    sites: Vec<Site>,
    stations: Vec<Station>,
    bonds: Vec<Bond>,
    streams: Streams,
    /// When the last packet of each connection arrives: links keep their order (IBA 7.6.9).
    tracks: BTreeMap<Track, Instant>,
    rules: Rules,
    faults: Faults,
    random: Random,
    /// Packets that a drought took out of the pool.
    hoard: Vec<Packet>,
    pings: Pings,
    checkers: Checkers,
    trace: Trace,
    failure: Option<Failure>,
    planted: Option<Planted>,
    is_disturbed: bool,
    /// It is arranged that packets leave.
    is_take_off_near: bool,
    /// Interfaces that are removed stay away.
    is_closing: bool,
    timeouts_at_once: u32,
    /// Packets between two ports.
    in_flight: usize,
    /// The counters of every interface and host that was removed.
    totals: Totals,
}

/// Sums of counters by their names.
pub type Totals = BTreeMap<&'static str, u64>;

/// Something that is going to happen.
#[derive(Debug)]
enum Item {
    /// A packet arrives at its port.
    Arrival(Transit),
    /// A port event is told to an interface.
    PortEvent(Visit, PortEvent),
    /// An interface is told that its adapter took the last receive for a queue pair.
    LastWqe(Visit, QpId),
    /// An interface is told that a queue pair failed.
    QueuePairFailed(Visit, QpId),
    /// A lagg is told what its port is like.
    BondReport(Visit),
    /// An action of a lagg is carried out.
    BondAction(BondAction),
    /// Packets that were posted leave their ports.
    TakeOff,
    /// Completions are taken from an adapter.
    Reap(Visit),
    /// An action is carried out.
    Action(Visit, Action),
    /// Hosts send something.
    Traffic,
    /// Something goes wrong.
    Disturbance,
    /// Something that went wrong is put right.
    Recovery(Recovery),
}

/// Whose deadline is reached.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Due {
    /// A station's.
    Station(usize),
    /// That of a site's communication manager.
    Cm(usize),
    /// That of a lagg.
    Bond(usize),
}

/// One direction of a connection: the sender's port and queue pair, and the receiver's port.
type Track = (PortId, Qpn, PortId);

/// A station, and which of its attachments is meant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Visit {
    station: usize,
    epoch: u32,
}

impl World {
    /// Time in this world.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// What went wrong, if something did.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// What happened so far.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Whether the interface of a station is attached and has a carrier.
    pub fn is_link_up(&self, station: usize) -> bool {
        self.interface(station).is_some_and(Interface::is_link_up)
    }

    /// A counter of the interface of a station, by its name; 0 if there is none.
    pub fn counter(&self, station: usize, name: &str) -> u64 {
        let interface = self.interface(station);
        interface
            .and_then(|interface| interface.counters().iter().find(|&(own, _)| own == name))
            .map_or(0, |(_, value)| value)
    }

    /// The partition of the broadcast group of a station's interface.
    pub fn partition(&self, station: usize) -> Option<u16> {
        let broadcast = self.interface(station)?.broadcast()?;
        let [_, _, _, _, high, low, ..] = broadcast.gid().0;
        Some(u16::from_be_bytes([high, low]))
    }

    /// Whether the subnet manager knows every port as a member of every group that its interfaces
    /// have joined.
    pub fn is_registered(&self) -> bool {
        let manager = self.subnet.manager();
        self.stations.iter().all(|station| {
            let port = self.sites[station.site].port;
            let Some(attached) = &station.attached else {
                return true;
            };
            let mut joined = attached.interface.groups().filter(|group| group.mlid.is_some());
            joined.all(|group| manager.members(group.mgid).any(|(member, _)| member == port))
        })
    }

    fn interface(&self, station: usize) -> Option<&Interface<Packet>> {
        let attached = self.stations.get(station)?.attached.as_ref()?;
        Some(&attached.interface)
    }

    /// The counters of every interface that was removed, and of its host at that time.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Lets everything happen that is due within `span`.
    pub fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        self.settle();
        while self.failure.is_none() && self.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = self.now.max(end);
    }

    /// Lets things happen until `is_done` or until `span` is over. Whether it is done.
    pub fn run_until(&mut self, span: Duration, mut is_done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + span;
        self.settle();
        while self.failure.is_none() && !is_done(self) {
            match self.next_at() {
                Some(at) if at <= end => self.step(),
                Some(_) | None => {
                    self.now = end;
                    return is_done(self);
                }
            }
        }
        self.failure.is_none()
    }

    /// When the next thing happens.
    fn next_at(&self) -> Option<Instant> {
        let due = self.next_due().map(|(at, _)| at);
        due.into_iter().chain(self.agenda.next_at()).min()
    }

    /// The next deadline, and whose it is.
    fn next_due(&self) -> Option<(Instant, Due)> {
        let stations = self.stations.iter();
        let stations = stations.filter_map(|one| Some((one.deadline()?, Due::Station(one.index))));
        let sites = (0..).zip(&self.sites);
        let sites = sites.filter_map(|(index, one)| Some((one.cm.poll_timeout()?, Due::Cm(index))));
        let bonds = (0..).zip(&self.bonds);
        let bonds = bonds.filter_map(|(index, one)| Some((one.deadline?, Due::Bond(index))));
        stations.chain(sites).chain(bonds).min()
    }

    /// Lets the next thing happen.
    fn step(&mut self) {
        let due = self.next_due();
        let agenda_at = self.agenda.next_at();
        match due {
            Some((at, due)) if agenda_at.is_none_or(|agenda_at| at <= agenda_at) => {
                self.advance(at);
                self.time_out(due);
            }
            Some(_) | None => {
                if let Some((at, item)) = self.agenda.pop() {
                    self.advance(at);
                    self.happen(item);
                }
            }
        }
        self.settle();
        self.check();
    }

    fn advance(&mut self, at: Instant) {
        if at > self.now {
            self.timeouts_at_once = 0;
        }
        self.now = self.now.max(at);
    }

    fn time_out(&mut self, due: Due) {
        self.timeouts_at_once += 1;
        if self.timeouts_at_once > TIMEOUTS_AT_ONCE_MAX {
            let what = format!("{due:?}: a deadline is reached again and again");
            self.fail(FailureKind::Safety, what);
        }
        match due {
            Due::Station(station) => {
                self.trace.record(self.now, Kind::Timer, &[station as u64]);
                self.with_station(station, |station, ground| station.handle_timeout(ground));
            }
            Due::Cm(site) => {
                self.trace.record(self.now, Kind::Timer, &[CONTEXT_SITES + site as u64]);
                self.sites[site].cm.handle_timeout(self.now);
            }
            Due::Bond(bond) => {
                self.trace.record(self.now, Kind::Timer, &[CONTEXT_SUBNET + bond as u64]);
                self.time_out_bond(bond);
            }
        }
    }

    fn happen(&mut self, item: Item) {
        match item {
            Item::Arrival(transit) => self.arrive(transit),
            Item::PortEvent(visit, event) => {
                if self.is_current(visit) {
                    self.with_station(visit.station, |station, ground| {
                        station.handle_port_event(ground, event);
                    });
                }
            }
            Item::LastWqe(visit, qp) => {
                if self.is_current(visit) {
                    self.with_station(visit.station, |station, ground| {
                        station.handle_last_wqe(ground, qp);
                    });
                }
            }
            Item::QueuePairFailed(visit, qp) => {
                if self.is_current(visit) {
                    self.with_station(visit.station, |station, ground| {
                        station.handle_queue_pair_failed(ground, qp);
                    });
                }
            }
            Item::BondReport(visit) => {
                if self.is_current(visit) {
                    self.report_to_bond(visit.station);
                }
            }
            Item::BondAction(action) => self.execute_bond(action),
            Item::TakeOff => self.take_off(),
            Item::Reap(visit) => self.reap(visit),
            Item::Action(visit, action) if self.is_withheld(visit, &action) => {
                self.agenda.add(self.now + WITHHELD_FOR, Item::Action(visit, action));
            }
            Item::Action(visit, action) => {
                if self.is_current(visit) {
                    self.trace.record(self.now, Kind::Action, &[visit.station as u64]);
                    self.trace.record_debug(&action);
                    let station = visit.station;
                    self.trace.note(self.now, format_args!("station {station}: {action:?}"));
                    self.with_station(visit.station, |station, ground| {
                        station.execute(ground, action);
                    });
                }
            }
            Item::Traffic => self.make_traffic(),
            Item::Disturbance => self.make_disturbance(),
            Item::Recovery(recovery) => self.recover(recovery),
        }
    }

    /// Whether an action waits for an adapter that withholds its completions.
    fn is_withheld(&mut self, visit: Visit, action: &Action) -> bool {
        let station = &mut self.stations[visit.station];
        self.sites[station.site].is_wedged
            && station.epoch == visit.epoch
            && station.waits_for_adapter(self.now, action)
    }

    fn is_current(&self, visit: Visit) -> bool {
        self.stations[visit.station].epoch == visit.epoch
    }

    fn reap(&mut self, visit: Visit) {
        if !self.is_current(visit) {
            return;
        }
        let mut count = 1 + self.random.below(REAP_MAX) as usize;
        if self.planted == Some(Planted::Whim) {
            static CALLS: AtomicUsize = AtomicUsize::new(0);
            count += CALLS.fetch_add(1, Ordering::Relaxed) % 3;
        }
        let has_more =
            self.with_station(visit.station, |station, ground| station.reap(ground, count));
        if has_more {
            let delay = self.faults.action_delay();
            self.agenda.add(self.now + delay, Item::Reap(visit));
        }
    }

    fn arrive(&mut self, transit: Transit) {
        self.in_flight -= usize::from(transit.payload_len() > 0);
        let words = [
            transit.destination().index() as u64,
            transit.payload_len() as u64,
            u64::from(transit.header().psn.value()),
        ];
        self.trace.record(self.now, Kind::Arrival, &words);
        self.checkers.before_arrival(&self.fabric, &transit);
        self.fabric.deliver(transit);
        if let Err(what) = self.checkers.after_arrival(&self.fabric) {
            self.fail(FailureKind::Safety, what);
        }
    }

    /// Lets everything happen that follows at once: notifications, events, what hosts send.
    fn settle(&mut self) {
        loop {
            self.subnet.poll(&mut self.fabric);
            let mut is_busy = self.drive_cms();
            is_busy |= self.take_notifications();
            is_busy |= self.take_port_events();
            for station in 0..self.stations.len() {
                is_busy |= self.drain(station);
            }
            for bond in 0..self.bonds.len() {
                is_busy |= self.drive_bond(bond);
            }
            if !is_busy {
                break;
            }
        }
        if self.fabric.has_egress() && !self.is_take_off_near {
            self.is_take_off_near = true;
            let delay = self.faults.departure_delay();
            self.agenda.add(self.now + delay, Item::TakeOff);
        }
    }

    fn take_notifications(&mut self) -> bool {
        let mut is_busy = false;
        while let Some(Notification { context, .. }) = self.fabric.poll_notification() {
            is_busy = true;
            if context >= CONTEXT_SUBNET {
                self.subnet.poll(&mut self.fabric);
            } else if context >= CONTEXT_SITES {
                self.receive_mads((context - CONTEXT_SITES) as usize);
            } else {
                let station = context as usize;
                let visit = self.visit(station);
                let delay = self.faults.action_delay();
                self.agenda.add(self.now + delay, Item::Reap(visit));
            }
        }
        is_busy
    }

    fn receive_mads(&mut self, site: usize) {
        self.sites[site].gsi.poll(&mut self.fabric);
        self.receive_cm_messages(site);
        for station in 0..self.stations.len() {
            if self.stations[station].site == site {
                self.with_station(station, |station, ground| station.receive_mads(ground));
            }
        }
    }

    fn take_port_events(&mut self) -> bool {
        let mut is_busy = false;
        while let Some(event) = self.fabric.poll_event() {
            is_busy = true;
            match event {
                AsyncEvent::CqOverrun(cq) => {
                    self.fail(FailureKind::Safety, format!("{cq:?} overran"));
                }
                AsyncEvent::Port(port, event) => self.spread(port, event),
                AsyncEvent::LastWqeReached(qp) => self.spread_last_wqe(qp),
                // A queue pair is never in RTR between two verbs, and nobody asks for a limit of a
                // shared receive queue.
                AsyncEvent::CommunicationEstablished(_) | AsyncEvent::SrqLimitReached(_) => {}
            }
        }
        is_busy
    }

    /// Tells an event to the interfaces of a port, each in its own time.
    fn spread(&mut self, port: PortId, event: PortEvent) {
        self.trace.note(self.now, format_args!("port {}: {event:?}", port.index()));
        for station in 0..self.stations.len() {
            if self.sites[self.stations[station].site].port == port {
                let visit = self.visit(station);
                let delay = self.faults.action_delay();
                self.agenda.add(self.now + delay, Item::PortEvent(visit, event));
            }
        }
    }

    /// Takes everything out of a station. Whether there was anything.
    fn drain(&mut self, station: usize) -> bool {
        let mut is_busy = self.transmit(station);
        is_busy |= self.take_deliveries(station);
        let visit = self.visit(station);
        while let Some(event) = self.next_event(station) {
            is_busy = true;
            self.observe(station, event);
        }
        while let Some(action) = self.next_action(station) {
            is_busy = true;
            let delay = self.faults.action_delay();
            self.agenda.add(self.now + delay, Item::Action(visit, action));
        }
        is_busy
    }

    fn next_event(&mut self, station: usize) -> Option<Event> {
        self.stations[station].attached.as_mut()?.events.pop_front()
    }

    fn next_action(&mut self, station: usize) -> Option<Action> {
        self.stations[station].attached.as_mut()?.actions.pop_front()
    }

    /// Reacts to what an interface reports.
    fn observe(&mut self, station: usize, event: Event) {
        self.trace.record(self.now, Kind::Report, &[station as u64]);
        self.trace.record_debug(&event);
        self.trace.note(self.now, format_args!("station {station}: {event:?}"));
        if let Err(what) = Checkers::on_event(&mut self.stations[station], &event) {
            self.fail(FailureKind::Safety, what);
        }
        if self.bond_of(station).is_some() {
            return self.observe_port(station, event);
        }
        match event {
            Event::AddressChanged(_) | Event::BroadcastChanged(_) => {
                self.with_station(station, |station, ground| station.follow_link(ground));
                self.announce(station);
            }
            Event::AnnounceAddress | Event::LinkUp => self.announce(station),
            Event::Detached => self.retire(station),
            Event::LinkDown | Event::ModeChanged(_) | Event::MtuChanged(_) | Event::Notice(_) => {}
        }
    }

    /// What happens to a port concerns its lagg.
    fn observe_port(&mut self, station: usize, event: Event) {
        match event {
            Event::AnnounceAddress => self.move_bond_port(station),
            Event::Detached => self.retire(station),
            Event::AddressChanged(_)
            | Event::BroadcastChanged(_)
            | Event::LinkDown
            | Event::LinkUp
            | Event::ModeChanged(_)
            | Event::MtuChanged(_) => self.tell_bond(station),
            Event::Notice(_) => {}
        }
    }

    /// Has a host's packets sent. Whether there were any.
    fn transmit(&mut self, station: usize) -> bool {
        match self.bond_of(station) {
            Some(bond) => self.transmit_bond(bond),
            None => self.with_station(station, |station, ground| station.transmit(ground)),
        }
    }

    fn announce(&mut self, station: usize) {
        let pool = self.fabric.pool_mut();
        self.stations[station].host.announce(pool);
    }

    /// Lets some of the packets leave that were posted, and decides what becomes of them.
    fn take_off(&mut self) {
        self.is_take_off_near = false;
        let count = 1 + self.random.below(DEPARTURES_MAX);
        for _ in 0..count {
            let Some(transit) = self.fabric.poll_transit() else {
                return;
            };
            let flight = self.faults.flight(transit.is_connected());
            let words = [
                transit.source().index() as u64,
                transit.destination().index() as u64,
                transit.payload_len() as u64,
                u64::from(transit.header().psn.value()),
            ];
            self.trace.record(self.now, Kind::Flight, &words);
            match flight {
                Flight::Lost => {
                    self.trace.record(self.now, Kind::Drop, &words);
                    self.fabric.discard(transit);
                }
                Flight::Arrives(span) => self.fly(span, transit),
                Flight::ArrivesTwice(first, second) => {
                    let copy = self.fabric.duplicate(&transit);
                    self.fly(first, transit);
                    if let Some(copy) = copy {
                        self.fly(second, copy);
                    }
                }
            }
        }
    }

    fn fly(&mut self, span: Duration, transit: Transit) {
        // Packets of a connection without bytes have no buffer.
        self.in_flight += usize::from(transit.payload_len() > 0);
        let mut at = self.now + span;
        if transit.is_connected() {
            let track = (transit.source(), transit.header().source_qpn, transit.destination());
            let last = self.tracks.entry(track).or_insert(at);
            *last = at.max(*last);
            at = *last;
        }
        self.agenda.add(at, Item::Arrival(transit));
    }

    fn check(&mut self) {
        if self.failure.is_some() {
            return;
        }
        if let Err(what) = checker::check(self) {
            self.fail(FailureKind::Safety, what);
        }
    }

    fn fail(&mut self, kind: FailureKind, what: String) {
        self.trace.note(self.now, format_args!("FAILED {what}"));
        let at = self.now;
        self.failure.get_or_insert(Failure { kind, at, what });
    }

    fn visit(&self, station: usize) -> Visit {
        Visit { station, epoch: self.stations[station].epoch }
    }

    fn with_station<R>(
        &mut self,
        index: usize,
        act: impl FnOnce(&mut Station, &mut Ground<'_>) -> R,
    ) -> R {
        let station = &mut self.stations[index];
        let mut ground = Ground {
            now: self.now,
            fabric: &mut self.fabric,
            faults: &mut self.faults,
            site: &mut self.sites[station.site],
            streams: &mut self.streams,
            planted: self.planted,
        };
        act(station, &mut ground)
    }
}
