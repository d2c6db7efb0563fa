//! Faults of single packets and calls, drawn by chance while the world is disturbed.

use std::ops::RangeInclusive;
use std::time::Duration;

use fabric::mad::cm::RejectReason;

use crate::random::Random;
use crate::rules::{ConnectedOdds, Odds, Rules};

/// Times as long that a straggler takes.
const STRAGGLER_FACTOR: u32 = 10;

/// Who decides over single packets and calls.
#[derive(Debug)]
pub(super) struct Faults {
    odds: Odds,
    connected: ConnectedOdds,
    latency: RangeInclusive<Duration>,
    action_delay: RangeInclusive<Duration>,
    is_on: bool,
    flight: Random,
    calls: Random,
    delays: Random,
    connections: Random,
    bugs: Random,
}

/// What becomes of a packet on the wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Flight {
    /// It is lost.
    Lost,
    /// It arrives after this span.
    Arrives(Duration),
    /// It arrives twice.
    ArrivesTwice(Duration, Duration),
}

impl Faults {
    pub(super) fn new(rules: &Rules, random: &mut Random) -> Self {
        Self {
            odds: rules.odds,
            connected: rules.connected.map(|connected| connected.odds).unwrap_or_default(),
            latency: rules.latency.clone(),
            action_delay: rules.action_delay.clone(),
            is_on: true,
            flight: random.split(),
            calls: random.split(),
            delays: random.split(),
            connections: random.split(),
            bugs: random.split(),
        }
    }

    /// Ends all faults; delays stay.
    pub(super) fn heal(&mut self) {
        self.is_on = false;
    }

    pub(super) fn flight(&mut self, is_connected: bool) -> Flight {
        let (loss, duplicate) = if is_connected {
            (self.connected.loss, self.connected.duplicate)
        } else {
            (self.odds.loss, self.odds.duplicate)
        };
        if self.is_on && self.flight.chance(loss) {
            return Flight::Lost;
        }
        let first = self.latency();
        if self.is_on && self.flight.chance(duplicate) {
            return Flight::ArrivesTwice(first, self.latency());
        }
        Flight::Arrives(first)
    }

    pub(super) fn action_delay(&mut self) -> Duration {
        self.delays.span(self.action_delay.clone())
    }

    /// How long packets stay with their adapter after they were posted.
    pub(super) fn departure_delay(&mut self) -> Duration {
        self.flight.span(self.latency.clone())
    }

    pub(super) fn refuses_send(&mut self) -> bool {
        self.is_on && self.calls.chance(self.odds.post_send_failure)
    }

    pub(super) fn refuses_receive(&mut self) -> bool {
        self.is_on && self.calls.chance(self.odds.post_receive_failure)
    }

    pub(super) fn fails_completion(&mut self) -> bool {
        self.is_on && self.calls.chance(self.odds.completion_failure)
    }

    pub(super) fn fails_handle(&mut self) -> bool {
        self.is_on && self.calls.chance(self.odds.handle_failure)
    }

    pub(super) fn fails_verb(&mut self) -> bool {
        self.is_on && self.calls.chance(self.odds.verb_failure)
    }

    /// Whether a lagg does not hear of something. That goes on after everything else was put
    /// right: it has to find out by itself.
    pub(super) fn loses_event(&mut self, permille: u16) -> bool {
        self.calls.chance(permille)
    }

    /// Whether a message of communication management is lost.
    pub(super) fn loses_cm_message(&mut self) -> bool {
        self.is_on && self.connections.chance(self.connected.cm_loss)
    }

    /// Why a peer is refused that is not to be refused for any reason of its own.
    pub(super) fn refusal(&mut self) -> Option<RejectReason> {
        if self.is_on && self.connections.chance(self.connected.cm_refusal) {
            self.connections.pick(RejectReason::ALL).copied()
        } else {
            None
        }
    }

    /// Whether the adapter says nothing of having taken its last receive.
    pub(super) fn loses_last_wqe(&mut self) -> bool {
        self.is_on && self.connections.chance(self.connected.last_wqe_loss)
    }

    /// Whether a planted bug shows that does not show always.
    pub(super) fn is_bug_due(&mut self) -> bool {
        self.bugs.chance(100)
    }

    fn latency(&mut self) -> Duration {
        let span = self.flight.span(self.latency.clone());
        if self.is_on && self.flight.chance(self.odds.straggler) {
            span * STRAGGLER_FACTOR
        } else {
            span
        }
    }
}
