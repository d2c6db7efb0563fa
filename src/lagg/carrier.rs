//! Which port carries, when that changes, and what follows.

use core::time::Duration;

use crate::time::Instant;

use super::action::{Action, Event};
use super::counters::Counter;
use super::port::{Identity, Port, PortId, PortLink};
use super::{Face, Lagg, Lifecycle};

/// Who carries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Carriage {
    /// There is no port, and nothing is worn.
    Bare,
    /// No port has a link. What is worn is that of this port, in case it is the one that comes
    /// back.
    Stranded { place: u32 },
    /// This port carries.
    Carried { place: u32 },
}

/// Whether the address that is worn was announced.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Announcement {
    /// It was, or there is none.
    Made,
    /// It is to be, when the lagg is up, the stack knows the address, and the broadcast group is
    /// joined on its port.
    Wanted,
}

/// When ports are looked at again.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateTimer {
    interval: Duration,
    state: UpdateState,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum UpdateState {
    /// There is no port to look at, or it is switched off.
    Idle,
    /// At that time.
    Armed { at: Instant },
    /// Now, and again at that time.
    Due { again_at: Instant },
}

impl UpdateTimer {
    pub(super) const fn new(interval: Duration) -> Self {
        Self { interval, state: UpdateState::Idle }
    }

    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// An interval counts from the moment at which it is set.
    pub(super) fn set_interval(&mut self, now: Instant, interval: Duration) {
        self.interval = interval;
        match self.state {
            UpdateState::Idle => {}
            UpdateState::Armed { .. } => self.state = self.armed(now),
            UpdateState::Due { .. } => self.state = UpdateState::Due { again_at: now + interval },
        }
    }

    /// Takes note of whether there is a port to look at.
    pub(super) fn set_needed(&mut self, now: Instant, is_needed: bool) {
        match self.state {
            UpdateState::Idle if is_needed => self.state = self.armed(now),
            UpdateState::Idle => {}
            UpdateState::Armed { .. } | UpdateState::Due { .. } if is_needed => {}
            UpdateState::Armed { .. } | UpdateState::Due { .. } => self.state = UpdateState::Idle,
        }
    }

    /// Whether it is time to look.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        match self.state {
            UpdateState::Armed { at } if at <= now => {
                self.state = UpdateState::Due { again_at: now + self.interval };
                true
            }
            UpdateState::Idle | UpdateState::Armed { .. } | UpdateState::Due { .. } => false,
        }
    }

    /// Whether the shell is to be asked to look.
    pub(super) fn take_query(&mut self) -> bool {
        match self.state {
            UpdateState::Due { again_at } => {
                self.state = if self.interval.is_zero() {
                    UpdateState::Idle
                } else {
                    UpdateState::Armed { at: again_at }
                };
                true
            }
            UpdateState::Idle | UpdateState::Armed { .. } => false,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            UpdateState::Armed { at } => Some(at),
            UpdateState::Idle | UpdateState::Due { .. } => None,
        }
    }

    fn armed(&self, now: Instant) -> UpdateState {
        if self.interval.is_zero() {
            UpdateState::Idle
        } else {
            UpdateState::Armed { at: now + self.interval }
        }
    }
}

/// How good a port would be as the one that carries; the best is the least.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Fitness {
    /// It has been joined for as long as the hold-down.
    Settled,
    /// It is joined.
    Fresh,
    /// It has a carrier and nothing can be announced by it.
    Unjoined,
}

impl Lagg {
    /// The port that carries.
    pub fn carrier(&self) -> Option<PortId> {
        match self.carriage {
            Carriage::Carried { place } => {
                self.ports.get(place).map(|port| PortId { place, generation: port.generation })
            }
            Carriage::Bare | Carriage::Stranded { .. } => None,
        }
    }

    /// The first port, which is preferred to all others.
    pub fn primary(&self) -> Option<PortId> {
        let (place, port) = self.members().min_by_key(|(_, port)| port.sequence)?;
        Some(PortId { place, generation: port.generation })
    }

    /// What the lagg wears.
    pub fn identity(&self) -> Option<&Identity> {
        self.worn.as_ref()
    }

    /// Whether a port carries.
    pub fn is_link_up(&self) -> bool {
        self.carrier().is_some()
    }

    /// Takes everything that depends on the ports to where it should be; after every input that
    /// says something of them.
    pub(super) fn settle(&mut self, now: Instant, face: &mut impl Face) {
        let carriage = self.elect(now);
        if carriage != self.carriage {
            self.enter_carriage(carriage);
        }
        self.update.set_needed(now, carriage != Carriage::Bare);
        let identity = match carriage {
            Carriage::Bare => None,
            Carriage::Stranded { place } | Carriage::Carried { place } => {
                self.ports.get(place).map(|port| port.report.identity)
            }
        };
        if identity != self.worn {
            self.worn = identity;
            self.counters.count(Counter::AddressChanges);
            face.wear(identity.as_ref());
            if identity.is_some() {
                self.announcement = Announcement::Wanted;
            }
        }
    }

    /// When a port that carries makes way for one that is preferred, if nothing happens to either.
    pub(super) fn failback_at(&self) -> Option<Instant> {
        let Carriage::Carried { place } = self.carriage else {
            return None;
        };
        let current = self.ports.get(place)?;
        let preferred = self.members().filter(|(_, port)| port.sequence < current.sequence);
        preferred.filter_map(|(_, port)| Some(port.joined_since? + self.hold_down)).min()
    }

    pub(super) fn poll_carrier(&mut self) -> Option<Event> {
        let carrier = self.carrier();
        if self.told.carrier != carrier {
            self.told.carrier = carrier;
            return Some(Event::CarrierChanged(carrier));
        }
        if self.told.is_link_up != carrier.is_some() {
            self.told.is_link_up = carrier.is_some();
            return Some(if carrier.is_some() { Event::LinkUp } else { Event::LinkDown });
        }
        None
    }

    /// An announcement waits until the stack knows the address, and until it can be sent.
    pub(super) fn poll_announcement(&mut self) -> Option<Action> {
        let Carriage::Carried { place } = self.carriage else {
            return None;
        };
        let port = self.ports.get(place)?;
        let is_ready = self.announcement == Announcement::Wanted
            && self.lifecycle == Lifecycle::Up
            && self.told.identity == self.worn
            && port.report.link == PortLink::Joined;
        if !is_ready {
            return None;
        }
        let id = PortId { place, generation: port.generation };
        self.announcement = Announcement::Made;
        self.counters.count(Counter::Announcements);
        Some(Action::Announce { port: id })
    }

    fn enter_carriage(&mut self, carriage: Carriage) {
        self.carriage = carriage;
        self.counters.count(Counter::CarrierChanges);
        self.announcement = match carriage {
            // Also if it is the port that carried before its link was lost: an announcement may
            // have been on its way then.
            Carriage::Carried { .. } => Announcement::Wanted,
            Carriage::Stranded { .. } => self.announcement,
            Carriage::Bare => Announcement::Made,
        };
    }

    /// Who is to carry now.
    fn elect(&self, now: Instant) -> Carriage {
        let current = match self.carriage {
            Carriage::Stranded { place } | Carriage::Carried { place } => Some(place),
            Carriage::Bare => None,
        };
        let current = current.filter(|&place| self.ports.get(place).is_some_and(Port::is_member));
        let best = self
            .members()
            .filter(|(_, port)| port.has_link())
            .min_by_key(|(_, port)| (self.fitness(now, port), port.sequence));
        let Some((place, port)) = best else {
            let place = current.or_else(|| self.primary().map(|primary| primary.place));
            return place.map_or(Carriage::Bare, |place| Carriage::Stranded { place });
        };
        match current.and_then(|place| Some((place, self.ports.get(place)?))) {
            Some((current, carries))
                if carries.has_link() && !self.displaces(now, port, carries) =>
            {
                Carriage::Carried { place: current }
            }
            Some(_) | None => Carriage::Carried { place },
        }
    }

    /// Whether `port`, the best there is, takes over from one that has a link.
    fn displaces(&self, now: Instant, port: &Port, current: &Port) -> bool {
        match self.fitness(now, port) {
            Fitness::Settled => {
                port.sequence < current.sequence || current.report.link == PortLink::Up
            }
            Fitness::Fresh => current.report.link == PortLink::Up,
            Fitness::Unjoined => false,
        }
    }

    fn fitness(&self, now: Instant, port: &Port) -> Fitness {
        match port.joined_since {
            Some(since) if since + self.hold_down <= now => Fitness::Settled,
            Some(_) => Fitness::Fresh,
            None => Fitness::Unjoined,
        }
    }
}
