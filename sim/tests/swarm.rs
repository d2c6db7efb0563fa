//! Seeds that are run with every build, and bugs that must be found.

use sim::swarm::{Options, Planted, run_twice};
use sim::verdict::FailureKind;

/// Enough for every kind of fault to be met with every other.
const SEEDS: std::ops::Range<u64> = 0..30;

fn kinds_found(planted: Option<Planted>) -> Vec<FailureKind> {
    SEEDS
        .filter_map(|seed| run_twice(seed, Options { planted }).failure)
        .map(|failure| failure.kind)
        .collect()
}

#[test]
fn seeds_pass() {
    for seed in SEEDS {
        let failure = run_twice(seed, Options::default()).failure;
        assert_eq!(failure, None, "replay with: sim --replay {seed}");
    }
}

#[test]
fn a_packet_that_is_lost_by_the_shell_is_found() {
    let kinds = kinds_found(Some(Planted::Leak));
    assert!(kinds.contains(&FailureKind::Safety), "{kinds:?}");
}

#[test]
fn a_packet_that_crosses_partitions_is_found() {
    let kinds = kinds_found(Some(Planted::Trespass));
    assert!(kinds.contains(&FailureKind::Safety), "{kinds:?}");
}

#[test]
fn a_completion_that_comes_twice_is_found() {
    let kinds = kinds_found(Some(Planted::DoubleCompletion));
    assert!(kinds.contains(&FailureKind::Safety), "{kinds:?}");
}

#[test]
fn a_run_that_depends_on_something_else_is_found() {
    let kinds = kinds_found(Some(Planted::Whim));
    assert!(kinds.contains(&FailureKind::NonDeterminism), "{kinds:?}");
}
