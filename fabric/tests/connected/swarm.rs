//! Messages under every order, loss and duplication that a seed brings: each is received once, in
//! order, until the connection breaks.

use fabric::Fabric;
use fabric::qp::{QpChange, QpState};
use fabric::transit::Transit;

use crate::ends::{
    Agreement, End, connect, connected, counters, numbers, receive, run, send, sends, states,
};

const SEEDS: u64 = 200;
const MESSAGES: u64 = 40;

/// A sequence of numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((bits ^ (bits >> 31)) % bound as u64) as usize
    }
}

/// How often, in a hundred times.
#[derive(Clone, Copy, Debug)]
struct Faults {
    loss: usize,
    duplication: usize,
    overtaking: usize,
}

/// What came of a run.
#[derive(Debug, Default, PartialEq)]
struct Account {
    received: Vec<u64>,
    sent: u64,
    failed: u64,
}

fn exchange(seed: u64, agreement: &Agreement, faults: Faults) -> (Fabric, [End; 2], Account) {
    let mut random = Random(seed);
    let (mut fabric, ends) = connected(agreement);
    let [a, b] = ends;
    let mut account = Account::default();
    let mut under_way: Vec<Transit> = Vec::new();
    let (mut posted, mut room) = (0, 0);
    while account.sent + account.failed < MESSAGES {
        while posted < MESSAGES && posted - account.sent - account.failed < 8 {
            send(&mut fabric, &a, posted..posted + 1);
            posted += 1;
        }
        while room - account.received.len() < 8 {
            receive(&mut fabric, &b, 0..1);
            room += 1;
        }
        while let Some(transit) = fabric.poll_transit() {
            if random.below(100) < faults.duplication {
                under_way.extend(fabric.duplicate(&transit));
            }
            under_way.push(transit);
        }
        if !under_way.is_empty() {
            let overtakes = random.below(100) < faults.overtaking;
            let place = if overtakes { random.below(under_way.len()) } else { 0 };
            let transit = under_way.remove(place);
            if random.below(100) < faults.loss {
                fabric.discard(transit);
            } else {
                fabric.deliver(transit);
            }
        }
        account.received.extend(numbers(&mut fabric, &b));
        for (wr_id, result) in sends(&mut fabric, &a) {
            assert_eq!(wr_id, account.sent + account.failed, "seed {seed}");
            match result {
                Ok(()) => {
                    assert_eq!(account.failed, 0, "seed {seed}: a success behind a failure");
                    account.sent += 1;
                }
                Err(_) => account.failed += 1,
            }
        }
    }
    for transit in under_way {
        fabric.deliver(transit);
    }
    account.received.extend(numbers(&mut fabric, &b));
    (fabric, ends, account)
}

/// Runs all seeds twice; how many connections broke.
fn swarm(agreement: &Agreement, faults: Faults) -> u64 {
    let mut broken = 0;
    for seed in 0..SEEDS {
        let (mut fabric, ends, account) = exchange(seed, agreement, faults);
        let received = account.received.len() as u64;
        let in_order: Vec<u64> = (0..received).collect();
        assert_eq!(account.received, in_order, "seed {seed}, {faults:?}");
        assert!(received >= account.sent, "seed {seed}: {account:?}");
        let (_, _, again) = exchange(seed, agreement, faults);
        assert_eq!(account, again, "seed {seed}");
        if account.failed > 0 {
            broken += 1;
            assert_eq!(states(&fabric, &ends)[0], QpState::Error, "seed {seed}");
        } else {
            assert_eq!(received, MESSAGES, "seed {seed}");
        }
        run(&mut fabric);
        assert_eq!(fabric.pool().outstanding(), 0, "seed {seed}");
        heals(&mut fabric, &ends);
    }
    broken
}

/// A new connection of the same queue pairs works.
fn heals(fabric: &mut Fabric, ends: &[End; 2]) {
    for end in ends {
        fabric.modify_qp(end.qp, &QpChange::Reset).unwrap();
    }
    connect(fabric, ends, &Agreement::DEFAULT);
    receive(fabric, &ends[1], 0..1);
    send(fabric, &ends[0], 77..78);
    run(fabric);
    assert_eq!(numbers(fabric, &ends[1]), [77]);
    assert_eq!(sends(fabric, &ends[0]), [(77, Ok(()))]);
}

#[test]
fn duplicates_and_late_acknowledgements_do_not_matter() {
    let faults = Faults { loss: 0, duplication: 30, overtaking: 0 };
    assert_eq!(swarm(&Agreement::DEFAULT, faults), 0);
}

#[test]
fn the_first_loss_breaks_a_connection_without_retries() {
    let faults = Faults { loss: 3, duplication: 0, overtaking: 0 };
    let broken = swarm(&Agreement::DEFAULT, faults);
    assert!(broken > SEEDS / 3, "{broken}");
    assert!(broken < SEEDS, "{broken}");
}

#[test]
fn retries_mend_rare_losses() {
    let faults = Faults { loss: 3, duplication: 3, overtaking: 0 };
    let broken = swarm(&Agreement::retrying(6), faults);
    assert_eq!(broken, 0);
}

#[test]
fn whatever_happens_messages_are_received_once_and_in_order() {
    let faults = Faults { loss: 20, duplication: 20, overtaking: 50 };
    let broken = swarm(&Agreement::retrying(2), faults);
    assert!(broken > 0);
    let (fabric, [_, b], _) = exchange(0, &Agreement::retrying(2), faults);
    assert!(counters(&fabric, &b).duplicates > 0);
}
