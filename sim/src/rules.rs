//! What goes wrong in a run, and how often. Everything follows from the seed.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipoib_rs::lagg::InactiveInput;
use ipoib_rs::limits::{LAGG_HOLD_DOWN, LAGG_UPDATE_INTERVAL, Limits};

use crate::random::Random;

/// The rules of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Adapters with one interface each, or more if there are children.
    pub station_count: usize,
    /// Whether every second adapter has a second interface in a partition of its own.
    pub has_children: bool,
    /// The sizes of every interface.
    pub limits: Limits,
    /// What adapters can do beside datagrams; `None` if they have no reliable connections.
    pub connected: Option<ConnectedRules>,
    /// Whether the first host has a lagg over the ports of the first two adapters.
    pub lagg: Option<LaggRules>,
    /// How long the disturbed phase lasts.
    pub disturbed: Duration,
    /// How long a packet is under way.
    pub latency: RangeInclusive<Duration>,
    /// How long an adapter takes for an action.
    pub action_delay: RangeInclusive<Duration>,
    /// The time between two batches of traffic.
    pub traffic_gap: RangeInclusive<Duration>,
    /// The time between two disturbances.
    pub disturbance_gap: RangeInclusive<Duration>,
    /// Odds, in 1000, of what happens to one packet or one call.
    pub odds: Odds,
    /// How often each disturbance is chosen, relative to the others; 0 for never.
    pub weights: [u16; Disturbance::ALL.len()],
}

/// The rules of a world with reliable connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectedRules {
    /// Odds, in 1000, that an interface begins in connected mode.
    pub connected_mode: u16,
    /// Odds that an adapter has shared receive queues.
    pub shared_receives: u16,
    /// Odds that an adapter has reliable connections at all.
    pub support: u16,
    /// Odds that an adapter receives less than the largest MTU.
    pub narrow: u16,
    /// Odds of what happens to connections.
    pub odds: ConnectedOdds,
}

/// The rules of a lagg.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LaggRules {
    /// How long a preferred port has to have its link before it takes over.
    pub hold_down: Duration,
    /// How often ports are looked at.
    pub update_interval: Duration,
    /// What is taken from ports that do not carry.
    pub inactive_input: InactiveInput,
    /// Odds, in 1000, that the lagg does not hear of what happens to a port.
    pub event_loss: u16,
}

/// Odds in 1000.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ConnectedOdds {
    /// A message of a connection, or its acknowledgement, is lost.
    pub loss: u16,
    /// It arrives twice.
    pub duplicate: u16,
    /// A message of communication management is lost.
    pub cm_loss: u16,
    /// A peer is refused, for any reason that there is.
    pub cm_refusal: u16,
    /// The adapter keeps to itself that it took the last receive for a queue pair.
    pub last_wqe_loss: u16,
}

/// Odds in 1000.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Odds {
    /// A packet is lost.
    pub loss: u16,
    /// A packet arrives twice.
    pub duplicate: u16,
    /// A packet takes ten times as long, so that others overtake it.
    pub straggler: u16,
    /// The adapter refuses a send.
    pub post_send_failure: u16,
    /// The adapter refuses a receive.
    pub post_receive_failure: u16,
    /// A send or receive is reported as failed.
    pub completion_failure: u16,
    /// An address handle cannot be made.
    pub handle_failure: u16,
    /// Another verb fails.
    pub verb_failure: u16,
}

/// Something that befalls the world at a point in time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Disturbance {
    /// A port goes down and comes back.
    PortFlap,
    /// The subnet manager forgets its members and asks them to register again.
    SmRestart,
    /// The subnet manager asks for registration without need.
    Reregister,
    /// A port gets another LID.
    LidMove,
    /// A P_Key is taken away and given back.
    PkeyRemoval,
    /// A P_Key moves to another place of the table.
    PkeyMove,
    /// The P_Key of a port's own interface becomes another.
    PkeyChange,
    /// The SA answers that it is busy.
    SaBusy,
    /// The SA does not answer.
    SaSilent,
    /// The SA refuses.
    SaRefusal,
    /// An interface is taken down and up by its admin.
    AdminToggle,
    /// An interface is detached and attached again.
    Reattach,
    /// Nearly all packets of the pool are taken.
    PoolDrought,
    /// An adapter withholds its completions.
    Wedge,
    /// Paths need a GRH, or no longer.
    HopLimit,
    /// The subnet manager changes what it can do.
    Capabilities,
    /// A port reports an event although nothing happened.
    SpuriousEvent,
    /// A host stops without a word and starts again: what its peers know of it is wrong.
    HostCrash,
    /// An interface is given another mode by its admin.
    ModeSwitch,
    /// An interface is given another MTU for connected mode by its admin.
    MtuChange,
    /// The queue pair of a connection fails.
    QueuePairFailure,
    /// The admin takes a port out of its lagg and puts it back behind the others.
    PortLeaves,
}

impl Disturbance {
    /// Every disturbance.
    pub const ALL: [Self; 22] = [
        Self::PortFlap,
        Self::SmRestart,
        Self::Reregister,
        Self::LidMove,
        Self::PkeyRemoval,
        Self::PkeyMove,
        Self::PkeyChange,
        Self::SaBusy,
        Self::SaSilent,
        Self::SaRefusal,
        Self::AdminToggle,
        Self::Reattach,
        Self::PoolDrought,
        Self::Wedge,
        Self::HopLimit,
        Self::Capabilities,
        Self::SpuriousEvent,
        Self::HostCrash,
        Self::ModeSwitch,
        Self::MtuChange,
        Self::QueuePairFailure,
        Self::PortLeaves,
    ];
}

const MICROSECOND: Duration = Duration::from_micros(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl Rules {
    /// Two hosts and nothing that goes wrong.
    pub fn calm() -> Self {
        Self {
            station_count: 2,
            has_children: false,
            limits: Limits::DEFAULT,
            connected: None,
            lagg: None,
            disturbed: 10 * SECOND,
            latency: 2 * MICROSECOND..=2 * MICROSECOND,
            action_delay: 10 * MICROSECOND..=10 * MICROSECOND,
            traffic_gap: 100 * MILLISECOND..=100 * MILLISECOND,
            disturbance_gap: SECOND..=SECOND,
            odds: Odds::default(),
            weights: [0; Disturbance::ALL.len()],
        }
    }

    /// The rules of a seed. Each kind of fault is off in some seeds and rare or frequent in others,
    /// so that every combination is met: a fault that is always there can hide what another does.
    pub fn swarm(random: &mut Random) -> Self {
        let limits = *random
            .pick(&[Limits::SMALL, Limits::SMALL, MIDDLE, Limits::DEFAULT])
            .unwrap_or(&Limits::SMALL);
        let latency_max = random.span(2 * MICROSECOND..=500 * MICROSECOND);
        let action_max = random.span(10 * MICROSECOND..=20 * MILLISECOND);
        let traffic_max = random.span(20 * MILLISECOND..=400 * MILLISECOND);
        let disturbance_max = random.span(200 * MILLISECOND..=8 * SECOND);
        let odds = Odds {
            loss: permille(random, 150),
            duplicate: permille(random, 100),
            straggler: permille(random, 100),
            post_send_failure: permille(random, 50),
            post_receive_failure: permille(random, 200),
            completion_failure: permille(random, 50),
            handle_failure: permille(random, 300),
            verb_failure: permille(random, 150),
        };
        let mut weights = [0; Disturbance::ALL.len()];
        for weight in &mut weights {
            *weight = if random.chance(450) { 0 } else { 1 << random.below(6) };
        }
        let station_count = random.within(2..=5) as usize;
        Self {
            station_count,
            has_children: random.chance(400),
            limits,
            connected: ConnectedRules::swarm(random),
            lagg: LaggRules::swarm(random).filter(|_| station_count > 2),
            disturbed: random.span(5 * SECOND..=40 * SECOND),
            latency: MICROSECOND..=latency_max,
            action_delay: MICROSECOND..=action_max,
            traffic_gap: MILLISECOND..=traffic_max,
            disturbance_gap: MILLISECOND..=disturbance_max,
            odds,
            weights,
        }
    }

    /// Whether the SA may be in doubt about who is a member of a group: a request or an answer can
    /// be lost, or an interface can go while the SA is out of its reach.
    pub fn can_lose_answers(&self) -> bool {
        let is_on = |disturbance: &Disturbance| self.weights[*disturbance as usize] > 0;
        let cuts_off = |disturbance: &Disturbance| match disturbance {
            Disturbance::PortFlap
            | Disturbance::LidMove
            | Disturbance::PkeyRemoval
            | Disturbance::PkeyMove
            | Disturbance::PkeyChange
            | Disturbance::SaBusy
            | Disturbance::SaSilent
            | Disturbance::SaRefusal
            | Disturbance::PoolDrought
            | Disturbance::Wedge
            | Disturbance::HostCrash => true,
            Disturbance::SmRestart
            | Disturbance::Reregister
            | Disturbance::AdminToggle
            | Disturbance::Reattach
            | Disturbance::HopLimit
            | Disturbance::Capabilities
            | Disturbance::SpuriousEvent
            | Disturbance::ModeSwitch
            | Disturbance::MtuChange
            | Disturbance::QueuePairFailure
            | Disturbance::PortLeaves => false,
        };
        let mut disturbances = Disturbance::ALL.iter().filter(|one| is_on(one));
        self.odds.loss > 0 || disturbances.any(cuts_off)
    }

    /// The next disturbance; `None` if all are off.
    pub fn disturbance(&self, random: &mut Random) -> Option<Disturbance> {
        let total = self.weights.iter().map(|&weight| u64::from(weight)).sum();
        let mut ticket = random.below(total);
        Disturbance::ALL
            .into_iter()
            .zip(self.weights)
            .find(|&(_, weight)| {
                let is_chosen = ticket < u64::from(weight);
                ticket = ticket.saturating_sub(u64::from(weight));
                is_chosen
            })
            .map(|(disturbance, _)| disturbance)
    }
}

impl ConnectedRules {
    /// Everything in connected mode, with shared receive queues, and nothing that goes wrong.
    pub const CALM: Self = Self {
        connected_mode: 1000,
        shared_receives: 1000,
        support: 1000,
        narrow: 0,
        odds: ConnectedOdds { loss: 0, duplicate: 0, cm_loss: 0, cm_refusal: 0, last_wqe_loss: 0 },
    };

    /// Two of three worlds have connections.
    fn swarm(random: &mut Random) -> Option<Self> {
        let rules = Self {
            connected_mode: *random.pick(&[1000, 800, 500]).unwrap_or(&1000),
            shared_receives: *random.pick(&[1000, 500, 0]).unwrap_or(&1000),
            support: *random.pick(&[1000, 1000, 800]).unwrap_or(&1000),
            narrow: *random.pick(&[0, 300]).unwrap_or(&0),
            odds: ConnectedOdds {
                loss: permille(random, 20),
                duplicate: permille(random, 50),
                cm_loss: permille(random, 300),
                cm_refusal: permille(random, 300),
                last_wqe_loss: permille(random, 500),
            },
        };
        random.chance(667).then_some(rules)
    }
}

impl LaggRules {
    /// As of a lagg that nobody changed, with events that always come.
    pub const CALM: Self = Self {
        hold_down: LAGG_HOLD_DOWN,
        update_interval: LAGG_UPDATE_INTERVAL,
        inactive_input: InactiveInput::Unicast,
        event_loss: 0,
    };

    /// Half of the worlds with three adapters or more have a lagg.
    fn swarm(random: &mut Random) -> Option<Self> {
        use InactiveInput::{All, Refused, Unicast};
        let rules = Self {
            hold_down: random.span(Duration::ZERO..=2 * LAGG_HOLD_DOWN),
            update_interval: random.span(100 * MILLISECOND..=2 * LAGG_UPDATE_INTERVAL),
            inactive_input: *random.pick(&[Unicast, Refused, All]).unwrap_or(&Unicast),
            // One that hears of nothing has to find out everything by itself.
            event_loss: *random.pick(&[0, 0, 200, 1000]).unwrap_or(&0),
        };
        random.chance(500).then_some(rules)
    }
}

/// Between small and default.
const MIDDLE: Limits = Limits {
    send_queue_len: 32,
    receive_queue_len: 64,
    paths_max: 16,
    groups_max: 16,
    path_queue_packets_max: 40,
    path_queue_bytes_max: 96 * 1024,
    group_queue_packets_max: 8,
    group_queue_bytes_max: 32 * 1024,
    pending_packets_max: 128,
    ..Limits::SMALL
};

/// Off in four of ten seeds, else up to `max`, small values more often.
fn permille(random: &mut Random, max: u64) -> u16 {
    if random.chance(400) {
        return 0;
    }
    let ceiling = random.within(1..=max);
    random.within(1..=ceiling) as u16
}

impl fmt::Display for Rules {
    /// One line, for the replay of a failed run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            station_count,
            has_children,
            limits,
            connected,
            lagg,
            disturbed,
            latency,
            action_delay,
            traffic_gap: _,
            disturbance_gap: _,
            odds,
            weights,
        } = self;
        write!(
            f,
            "stations={station_count} children={has_children} send_queue={} paths={} \
             disturbed={disturbed:?} latency<={:?} action<={:?} {odds:?}",
            limits.send_queue_len,
            limits.paths_max,
            latency.end(),
            action_delay.end(),
        )?;
        if let Some(connected) = connected {
            write!(f, " {connected:?}")?;
        }
        if let Some(lagg) = lagg {
            write!(f, " {lagg:?}")?;
        }
        f.write_str(" weights=")?;
        let active = Disturbance::ALL.iter().zip(weights);
        f.debug_map().entries(active.filter(|&(_, &weight)| weight > 0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_rules_and_seeds_differ() {
        let rules = |seed| Rules::swarm(&mut Random::new(seed));
        assert_eq!(rules(7), rules(7));
        assert_ne!(rules(7), rules(8));
    }

    #[test]
    fn every_disturbance_is_off_in_some_seeds_and_on_in_others() {
        let seeds: Vec<_> = (0..100).map(|seed| Rules::swarm(&mut Random::new(seed))).collect();
        for position in 0..Disturbance::ALL.len() {
            let on = seeds.iter().filter(|rules| rules.weights[position] > 0).count();
            assert!((20..90).contains(&on), "{:?}: {on}", Disturbance::ALL[position]);
        }
    }

    #[test]
    fn disturbances_are_chosen_by_weight() {
        let mut rules = Rules::calm();
        let mut random = Random::new(1);
        assert_eq!(rules.disturbance(&mut random), None);
        rules.weights[Disturbance::SmRestart as usize] = 3;
        rules.weights[Disturbance::Wedge as usize] = 1;
        let chosen: Vec<_> = (0..1_000).filter_map(|_| rules.disturbance(&mut random)).collect();
        assert_eq!(chosen.len(), 1_000);
        let wedges =
            chosen.iter().filter(|&&disturbance| disturbance == Disturbance::Wedge).count();
        assert!((200..300).contains(&wedges), "{wedges}");
    }
}
