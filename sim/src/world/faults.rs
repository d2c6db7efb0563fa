//! Faults of single packets and calls, drawn by chance while the world is disturbed.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::random::Random;
use crate::rules::{Odds, Rules};

/// Times as long that a straggler takes.
const STRAGGLER_FACTOR: u32 = 10;

/// Who decides over single packets and calls.
#[derive(Debug)]
pub(super) struct Faults {
    odds: Odds,
    latency: RangeInclusive<Duration>,
    action_delay: RangeInclusive<Duration>,
    is_on: bool,
    flight: Random,
    calls: Random,
    delays: Random,
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
            latency: rules.latency.clone(),
            action_delay: rules.action_delay.clone(),
            is_on: true,
            flight: random.split(),
            calls: random.split(),
            delays: random.split(),
        }
    }

    /// Ends all faults; delays stay.
    pub(super) fn heal(&mut self) {
        self.is_on = false;
    }

    pub(super) fn flight(&mut self) -> Flight {
        if self.is_on && self.flight.chance(self.odds.loss) {
            return Flight::Lost;
        }
        let first = self.latency();
        if self.is_on && self.flight.chance(self.odds.duplicate) {
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

    fn latency(&mut self) -> Duration {
        let span = self.flight.span(self.latency.clone());
        if self.is_on && self.flight.chance(self.odds.straggler) {
            span * STRAGGLER_FACTOR
        } else {
            span
        }
    }
}
