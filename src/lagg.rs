//! A lagg: several interfaces in one, of which one at a time carries all packets.
//!
//! [`Lagg`] is a machine like [`crate::interface::Interface`] and is driven in the same way. After
//! every input its shell asks for outputs, in this order: [`Lagg::poll_event`] until it is empty,
//! [`Lagg::poll_action`] until it is empty, [`Lagg::poll_timeout`]; and again, until there is
//! neither event nor action. [`pump`] does that.
//!
//! **Who carries.** Ports are preferred in the order in which they were added; the first one is the
//! primary. When the port that carries loses its link, the next one takes over at once. A
//! preferred port takes over from one that works when its own link has held for the hold-down, so
//! that a port that flaps moves nothing.
//!
//! **What is worn.** A lagg has the address and the broadcast address of the port that carries,
//! both at once. They change under the lock under which the port does: [`Face::wear`]. Then the
//! stack is told once, and the new address is announced as soon as the broadcast group is joined on
//! that port.
//!
//! **Lost events.** The shell reports what a port is like now, not what happened to it. A lagg asks
//! for that again and again ([`Action::QueryPorts`]), so that whatever an event failed to say is
//! put right after one interval.
//!
//! **Groups.** Every port is a member of every group of the lagg, so that nothing has to be joined
//! when another port takes over. Each change of the list is a difference: a group that is new costs
//! one join on each port.

mod action;
mod carrier;
mod counters;
mod group;
pub mod hash;
mod mtu;
mod port;
mod pump;
mod report;

use core::time::Duration;

use crate::limits::{LAGG_HOLD_DOWN, LAGG_MTU_IDLE, LAGG_UPDATE_INTERVAL, LaggLimits};
use crate::packet::Cast;
use crate::storage::{OutOfMemory, Slab};
use crate::time::Instant;

pub use action::{Action, Event, OpId, PortError};
use carrier::{Announcement, Carriage, UpdateTimer};
pub use counters::{Counter, Counters, DropReason};
use group::Groups;
pub use mtu::MtuOutOfRange;
pub use port::{
    AddPortError, Capabilities, Identity, InactiveInput, PortId, PortLink, PortReport, Removal,
};
use port::{Port, PortAdmin, PortMtu, PortState};
pub use pump::{Shell, pump};
pub use report::{GroupRow, PortRow};

/// What the network stack sees of a lagg. It is called with the lagg locked, so that nobody sees
/// another port carry than the one whose address is worn. It must not sleep and not call back.
pub trait Face {
    /// Puts on an address and a broadcast address; `None` if there is no port.
    fn wear(&mut self, identity: Option<&Identity>);
}

/// A lagg.
#[derive(Debug)]
pub struct Lagg {
    lifecycle: Lifecycle,
    ports: Slab<Port>,
    carriage: Carriage,
    /// What [`Face::wear`] was last told.
    worn: Option<Identity>,
    announcement: Announcement,
    hold_down: Duration,
    update: UpdateTimer,
    inactive_input: InactiveInput,
    groups: Groups,
    /// The MTU that the administrator wants; without, it is that of the ports.
    mtu_wish: Option<usize>,
    told: Told,
    counters: Counters,
    /// The sequence number of the port that came last.
    sequence: u64,
    /// The generation of the latest port or operation.
    generation: u32,
}

/// What a lagg is made of.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How long a preferred port has to have its link before it takes over from one that works.
    pub hold_down: Duration,
    /// How often ports are looked at; never if zero.
    pub update_interval: Duration,
    /// What is taken from ports that do not carry.
    pub inactive_input: InactiveInput,
    /// Source of everything that must differ between laggs and runs.
    pub seed: u64,
    /// The sizes of its tables.
    pub limits: LaggLimits,
}

impl Config {
    /// The usual one.
    pub const fn new(seed: u64) -> Self {
        Self {
            hold_down: LAGG_HOLD_DOWN,
            update_interval: LAGG_UPDATE_INTERVAL,
            inactive_input: InactiveInput::Unicast,
            seed,
            limits: LaggLimits::DEFAULT,
        }
    }
}

/// Attaching failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttachError {
    /// A limit is zero, or the product of all is above [`crate::limits::LIMIT_MAX`].
    LimitInvalid,
    /// No memory for the tables.
    OutOfMemory,
}

impl From<OutOfMemory> for AttachError {
    fn from(OutOfMemory: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

/// What the administrator wants of a lagg.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Lifecycle {
    Down,
    Up,
    Detaching,
}

/// What the stack was last told.
#[derive(Debug)]
struct Told {
    identity: Option<Identity>,
    capabilities: Capabilities,
    mtu: usize,
    carrier: Option<PortId>,
    is_link_up: bool,
    is_detached: bool,
}

impl Lagg {
    /// Makes a lagg without ports, administratively down, with all memory that it will ever have.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    pub fn attach(config: Config) -> Result<Self, AttachError> {
        let Config { hold_down, update_interval, inactive_input, seed, limits } = config;
        if !limits.are_usable() {
            return Err(AttachError::LimitInvalid);
        }
        Ok(Self {
            lifecycle: Lifecycle::Down,
            ports: Slab::new(limits.ports_max)?,
            carriage: Carriage::Bare,
            worn: None,
            announcement: Announcement::Made,
            hold_down,
            update: UpdateTimer::new(update_interval),
            inactive_input,
            groups: Groups::new(&limits)?,
            mtu_wish: None,
            told: Told {
                identity: None,
                capabilities: Capabilities::default(),
                mtu: LAGG_MTU_IDLE,
                carrier: None,
                is_link_up: false,
                is_detached: false,
            },
            counters: Counters::default(),
            sequence: 0,
            // CAST: any 32 bits will do.
            generation: seed as u32,
        })
    }

    /// The administrator marks the lagg up, and so its ports.
    pub fn handle_admin_up(&mut self) {
        if self.lifecycle == Lifecycle::Down {
            self.lifecycle = Lifecycle::Up;
        }
    }

    /// The administrator marks the lagg down, and so its ports.
    pub fn handle_admin_down(&mut self) {
        if self.lifecycle == Lifecycle::Up {
            self.lifecycle = Lifecycle::Down;
        }
    }

    /// A port is added, behind those that are there.
    ///
    /// # Errors
    ///
    /// [`AddPortError`]; nothing is changed.
    pub fn handle_port_added(
        &mut self,
        now: Instant,
        report: &PortReport,
        face: &mut impl Face,
    ) -> Result<PortId, AddPortError> {
        if self.lifecycle == Lifecycle::Detaching {
            return Err(AddPortError::Detaching);
        }
        let address = report.identity.address;
        if self.ports.iter().any(|(_, port)| port.report.identity.address == address) {
            return Err(AddPortError::AddressInUse);
        }
        let generation = self.next_generation();
        self.sequence += 1;
        let port = Port {
            generation,
            sequence: self.sequence,
            state: PortState::Member,
            report: *report,
            joined_since: (report.link == PortLink::Joined).then_some(now),
            own_mtu: report.mtu,
            mtu: PortMtu::Settled,
            admin: PortAdmin::Untouched,
            sent: 0,
            received: 0,
        };
        let place = self.ports.insert(port).map_err(|_| AddPortError::TableFull)?;
        self.counters.count(Counter::PortsAdded);
        self.groups.review_port(place);
        self.settle(now, face);
        Ok(PortId { place, generation })
    }

    /// What a port is like now: after each event that concerns it, and in answer to
    /// [`Action::QueryPorts`]. It may be reported at any time and as often as one likes.
    pub fn handle_port_reported(
        &mut self,
        now: Instant,
        port: PortId,
        report: &PortReport,
        face: &mut impl Face,
    ) {
        let Some(known) = self.port_mut(port) else {
            self.counters.count(Counter::StaleReports);
            return;
        };
        if known.take_report(now, report) {
            self.groups.review_port(port.place);
        }
        self.settle(now, face);
    }

    /// A port wants its address to be announced again although it is the same
    /// ([`crate::event::Event::AnnounceAddress`]). It has no IP addresses of its own, so the lagg
    /// does it, if that port carries.
    pub fn handle_port_moved(&mut self, port: PortId) {
        if self.carrier() == Some(port) {
            self.announcement = Announcement::Wanted;
        }
    }

    /// A port leaves.
    pub fn handle_port_removed(
        &mut self,
        now: Instant,
        port: PortId,
        removal: Removal,
        face: &mut impl Face,
    ) {
        if self.port_mut(port).is_none() {
            self.counters.count(Counter::StaleReports);
            return;
        }
        self.remove_port(port.place, removal);
        self.settle(now, face);
    }

    /// The answer to [`Action::ReleasePort`]: nobody knows the port any more.
    pub fn handle_port_released(&mut self, port: PortId) {
        match self.port_mut(port).map(|port| port.state) {
            Some(PortState::Releasing) => {
                self.ports.remove(port.place);
            }
            Some(PortState::Member | PortState::Leaving) | None => {
                self.counters.count(Counter::StaleAnswers);
            }
        }
    }

    /// The lagg goes for good: every port is removed. [`Event::Detached`] says when all of them are
    /// released.
    pub fn handle_detach(&mut self, now: Instant, face: &mut impl Face) {
        self.lifecycle = Lifecycle::Detaching;
        for place in 0..self.ports.capacity() {
            self.remove_port(place, Removal::Orderly);
        }
        self.groups.set_list(None, core::iter::empty(), &mut self.counters);
        self.settle(now, face);
    }

    /// The link-layer multicast addresses that the network stack wants to receive, all of them, in
    /// terms of the broadcast address that the lagg wears. Those that are no group of it are
    /// counted and otherwise ignored.
    pub fn handle_multicast_list<'a>(&mut self, list: impl Iterator<Item = &'a [u8]>) {
        if self.lifecycle != Lifecycle::Detaching {
            let broadcast = self.worn.and_then(|worn| worn.broadcast_group());
            self.groups.set_list(broadcast, list, &mut self.counters);
        }
    }

    /// The answer to [`Action::JoinGroup`] and [`Action::LeaveGroup`].
    pub fn handle_group_answer(&mut self, op: OpId, answer: Result<(), PortError>) {
        self.groups.on_answer(op, answer, &mut self.counters);
    }

    /// The administrator wants another MTU, or, with `None`, that of the ports.
    ///
    /// # Errors
    ///
    /// [`MtuOutOfRange`]; nothing is changed.
    pub fn handle_mtu(&mut self, mtu: Option<usize>) -> Result<(), MtuOutOfRange> {
        self.on_mtu(mtu)
    }

    /// The answer to [`Action::SetPortMtu`].
    pub fn handle_mtu_answer(&mut self, op: OpId, answer: Result<(), PortError>) {
        self.on_mtu_answer(op, answer);
    }

    /// The administrator wants another hold-down.
    pub fn handle_hold_down(&mut self, now: Instant, hold_down: Duration, face: &mut impl Face) {
        self.hold_down = hold_down;
        self.settle(now, face);
    }

    /// The administrator wants ports to be looked at more or less often; never if zero.
    pub fn handle_update_interval(&mut self, now: Instant, interval: Duration) {
        self.update.set_interval(now, interval);
        self.update.set_needed(now, self.carriage != Carriage::Bare);
    }

    /// The administrator wants more or less to be taken from ports that do not carry.
    pub fn handle_inactive_input(&mut self, inactive_input: InactiveInput) {
        self.inactive_input = inactive_input;
    }

    /// The deadline of [`Self::poll_timeout`], or any other time.
    pub fn handle_timeout(&mut self, now: Instant, face: &mut impl Face) {
        if self.update.take_due(now) {
            self.groups.retry();
        }
        self.settle(now, face);
    }

    /// A packet is to be sent: by which port. It is counted.
    ///
    /// # Errors
    ///
    /// Why it is to be dropped; that is counted as well.
    pub fn handle_transmit(&mut self) -> Result<PortId, DropReason> {
        let outcome = match (self.lifecycle, self.carriage) {
            (Lifecycle::Down | Lifecycle::Detaching, _) => Err(DropReason::LaggDown),
            (Lifecycle::Up, Carriage::Bare) => Err(DropReason::NoPort),
            (Lifecycle::Up, Carriage::Stranded { .. }) => Err(DropReason::NoLink),
            (Lifecycle::Up, Carriage::Carried { place }) => Ok(place),
        };
        let taken = outcome.and_then(|place| {
            let port = self.ports.get_mut(place).ok_or(DropReason::NoPort)?;
            port.sent = port.sent.wrapping_add(1);
            Ok(PortId { place, generation: port.generation })
        });
        match taken {
            Ok(_) => self.counters.count(Counter::PacketsSent),
            Err(reason) => self.counters.count_drop(reason),
        }
        taken
    }

    /// A packet came in by a port. It is counted.
    ///
    /// # Errors
    ///
    /// Why it is to be dropped; that is counted as well.
    pub fn handle_receive(&mut self, port: PortId, cast: Cast) -> Result<(), DropReason> {
        let is_active = self.carrier() == Some(port);
        let taken = if self.lifecycle != Lifecycle::Up {
            Err(DropReason::ReceivedWhileDown)
        } else if is_active || self.takes_inactive(cast) {
            self.port_mut(port).filter(|port| port.is_member()).ok_or(DropReason::UnknownPort)
        } else {
            Err(DropReason::InactivePort)
        };
        match taken.map(|port| port.received = port.received.wrapping_add(1)) {
            Ok(()) => {
                self.counters.count(Counter::PacketsReceived);
                if !is_active {
                    self.counters.count(Counter::ReceivedInactive);
                }
                Ok(())
            }
            Err(reason) => {
                self.counters.count_drop(reason);
                Err(reason)
            }
        }
    }

    /// The next change that the stack should know of.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.told.identity != self.worn {
            self.told.identity = self.worn;
            return Some(Event::AddressChanged(self.worn));
        }
        let capabilities = self.capabilities();
        if self.told.capabilities != capabilities {
            self.told.capabilities = capabilities;
            return Some(Event::CapabilitiesChanged(capabilities));
        }
        let mtu = self.mtu();
        if self.told.mtu != mtu {
            self.told.mtu = mtu;
            return Some(Event::MtuChanged(mtu));
        }
        self.poll_carrier().or_else(|| self.poll_detached())
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.update.take_query() {
            self.counters.count(Counter::PortQueries);
            return Some(Action::QueryPorts);
        }
        let ports = self.ports.capacity();
        (0..ports)
            .find_map(|place| self.poll_port(place))
            .or_else(|| self.poll_groups())
            .or_else(|| self.poll_announcement())
            .or_else(|| (0..ports).find_map(|place| self.poll_release(place)))
    }

    /// When [`Self::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let failback = self.failback_at();
        self.update.deadline().into_iter().chain(failback).min()
    }

    /// Says what the port should be told of up and down, and of its MTU.
    fn poll_port(&mut self, place: u32) -> Option<Action> {
        let lifecycle = self.lifecycle;
        let port = self.ports.get_mut(place)?;
        let id = PortId { place, generation: port.generation };
        if port.is_member() {
            match (lifecycle, port.admin) {
                (Lifecycle::Up, PortAdmin::Untouched | PortAdmin::Lowered) => {
                    port.admin = PortAdmin::Raised;
                    return Some(Action::RaisePort { port: id });
                }
                (Lifecycle::Down, PortAdmin::Raised) => {
                    port.admin = PortAdmin::Lowered;
                    return Some(Action::LowerPort { port: id });
                }
                (Lifecycle::Up, PortAdmin::Raised)
                | (Lifecycle::Down, PortAdmin::Untouched | PortAdmin::Lowered)
                | (Lifecycle::Detaching, _) => {}
            }
        }
        self.poll_port_mtu(place)
    }

    /// Lets a port go that has given back what it got.
    fn poll_release(&mut self, place: u32) -> Option<Action> {
        let has_groups = self.groups.has_any(place);
        let port = self.ports.get_mut(place)?;
        let is_settled = match port.mtu {
            PortMtu::Settled | PortMtu::Refused { .. } => true,
            PortMtu::Setting { .. } => false,
        };
        if port.state != PortState::Leaving || !is_settled || has_groups {
            return None;
        }
        port.state = PortState::Releasing;
        Some(Action::ReleasePort { port: PortId { place, generation: port.generation } })
    }

    fn poll_detached(&mut self) -> Option<Event> {
        let is_over = self.lifecycle == Lifecycle::Detaching && self.ports.is_empty();
        if !is_over || core::mem::replace(&mut self.told.is_detached, true) {
            return None;
        }
        Some(Event::Detached)
    }

    fn remove_port(&mut self, place: u32, removal: Removal) {
        let Some(port) = self.ports.get_mut(place) else {
            return;
        };
        if port.is_member() {
            self.counters.count(Counter::PortsRemoved);
        }
        match removal {
            Removal::Orderly => match port.state {
                PortState::Member => port.state = PortState::Leaving,
                PortState::Leaving | PortState::Releasing => return,
            },
            Removal::Vanished => {
                self.ports.remove(place);
                self.groups.forget_port(place);
            }
        }
        self.groups.review_port(place);
    }

    fn takes_inactive(&self, cast: Cast) -> bool {
        match (self.inactive_input, cast) {
            (InactiveInput::Refused, _)
            | (InactiveInput::Unicast, Cast::Multicast | Cast::Broadcast) => false,
            (InactiveInput::Unicast, Cast::Unicast) | (InactiveInput::All, _) => true,
        }
    }

    fn port_mut(&mut self, id: PortId) -> Option<&mut Port> {
        self.ports.get_mut(id.place).filter(|port| port.generation == id.generation)
    }

    /// The ports that take part, with their places.
    fn members(&self) -> impl Iterator<Item = (u32, &Port)> {
        self.ports.iter().filter(|(_, port)| port.is_member())
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }
}
