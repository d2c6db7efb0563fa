//! Seeds that are run with every build, and bugs that must be found.

use sim::swarm::{Options, Planted, run_twice};
use sim::verdict::FailureKind;

/// Enough for every kind of fault to be met with every other.
const SEEDS: std::ops::Range<u64> = 0..30;

/// Whether some seed ends in a failure of this kind.
fn is_found(planted: Planted, kind: FailureKind) -> bool {
    let options = Options { planted: Some(planted) };
    SEEDS
        .into_iter()
        .any(|seed| run_twice(seed, options).failure.is_some_and(|failure| failure.kind == kind))
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
    assert!(is_found(Planted::Leak, FailureKind::Safety));
}

#[test]
fn a_packet_that_crosses_partitions_is_found() {
    assert!(is_found(Planted::Trespass, FailureKind::Safety));
}

#[test]
fn a_completion_that_comes_twice_is_found() {
    assert!(is_found(Planted::DoubleCompletion, FailureKind::Safety));
}

#[test]
fn a_run_that_depends_on_something_else_is_found() {
    assert!(is_found(Planted::Whim, FailureKind::NonDeterminism));
}

#[test]
fn a_message_that_is_left_out_is_found() {
    assert!(is_found(Planted::LostMessage, FailureKind::Safety));
}

#[test]
fn a_message_that_leaves_as_a_datagram_is_found() {
    assert!(is_found(Planted::WrongQueue, FailureKind::Safety));
}

#[test]
fn a_send_that_is_forgotten_before_its_queue_pair_is_gone_is_found() {
    assert!(is_found(Planted::EarlyDestroy, FailureKind::Safety));
}

#[test]
fn a_queue_pair_that_is_not_destroyed_is_found() {
    assert!(is_found(Planted::LostQueuePair, FailureKind::Safety));
}

#[test]
fn a_connection_that_keeps_its_name_is_found() {
    assert!(is_found(Planted::ForgottenName, FailureKind::Leak));
}

#[test]
fn an_answer_of_a_peer_that_is_not_told_is_found() {
    assert!(is_found(Planted::LostAnswer, FailureKind::Liveness));
}

#[test]
fn a_message_that_is_longer_than_its_receiver_takes_is_found() {
    assert!(is_found(Planted::Promise, FailureKind::Safety));
}

#[test]
fn a_packet_that_is_too_big_and_nobody_is_told_is_found() {
    assert!(is_found(Planted::Silence, FailureKind::Safety));
}

#[test]
fn a_sender_that_is_told_a_wrong_mtu_is_found() {
    assert!(is_found(Planted::WrongMtu, FailureKind::Safety));
}

#[test]
fn a_log_that_says_everything_twice_is_found() {
    assert!(is_found(Planted::Repetition, FailureKind::Safety));
}

#[test]
fn a_connection_that_failed_and_stays_is_found() {
    assert!(is_found(Planted::StuckDrain, FailureKind::Safety));
}

#[test]
fn a_service_that_nobody_has_is_found() {
    assert!(is_found(Planted::WrongService, FailureKind::Safety));
}

#[test]
fn an_mtu_that_is_not_kept_is_found() {
    assert!(is_found(Planted::StaleMtu, FailureKind::Safety));
}

#[test]
fn a_deadline_that_is_lost_is_found() {
    assert!(is_found(Planted::LostTimer, FailureKind::Safety));
}

#[test]
fn a_lagg_that_does_not_wear_the_address_of_the_port_that_carries_is_found() {
    assert!(is_found(Planted::LateAddress, FailureKind::Safety));
}

#[test]
fn a_change_of_a_lagg_that_is_told_twice_is_found() {
    assert!(is_found(Planted::RepeatedNotice, FailureKind::Safety));
}

#[test]
fn a_packet_by_a_port_that_does_not_carry_is_found() {
    assert!(is_found(Planted::IdlePort, FailureKind::Safety));
}

#[test]
fn a_group_that_is_left_although_it_is_wanted_is_found() {
    assert!(is_found(Planted::GroupChurn, FailureKind::Safety));
}

#[test]
fn a_lagg_that_never_looks_at_its_ports_is_found() {
    assert!(is_found(Planted::LostQuery, FailureKind::Liveness));
}
