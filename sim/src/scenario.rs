//! What a seed is put through: faults, then recovery, then the end.

use std::time::Duration;

use ipoib_rs::limits::CONNECT_RETRY_MAX;

use crate::random::Random;
use crate::rules::Rules;
use crate::swarm::{Options, Outcome};
use crate::trace::Verbosity;
use crate::world::{World, WorldBuilder};

/// How long everything may take to work again after all faults ended.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// The same in a world with connections: a neighbour that refused one again and again is left alone
/// for [`CONNECT_RETRY_MAX`].
const RECOVERY_CONNECTED_MAX: Duration = RECOVERY_MAX.saturating_add(CONNECT_RETRY_MAX);
/// How long everything may take to be given back.
const CLOSE_MAX: Duration = Duration::from_secs(30);

/// Runs a seed: things go wrong while hosts send; everything is put right, and all must work
/// again; every interface is detached, and nothing may be left.
pub fn swarm(seed: u64, verbosity: Verbosity, options: Options) -> Outcome {
    let rules = Rules::swarm(&mut Random::new(seed));
    let disturbed = rules.disturbed;
    let recovery = if rules.connected.is_some() { RECOVERY_CONNECTED_MAX } else { RECOVERY_MAX };
    let mut world =
        WorldBuilder::new(seed).rules(rules).verbosity(verbosity).planted(options.planted).build();
    world.disturb();
    world.run_for(disturbed);
    world.demand_recovery(recovery);
    world.demand_closed(CLOSE_MAX);
    outcome(world)
}

fn outcome(mut world: World) -> Outcome {
    world.record_counters();
    let outcome = Outcome {
        hash: world.trace().hash(),
        events: world.trace().events(),
        virtual_time: world.now() - ipoib_rs::time::Instant::ZERO,
        totals: world.totals().clone(),
        log: world.trace().lines().map(str::to_owned).collect(),
        failure: world.failure().cloned(),
    };
    if outcome.failure.is_some() {
        // It still holds packets. With debug assertions a packet that is dropped panics, which
        // would hide the failure.
        std::mem::forget(world);
    }
    outcome
}
