//! How connections break, and what remains.

use fabric::Fabric;
use fabric::cq::WorkError;
use fabric::packet::{Packet, PoolLimits};
use fabric::port::PortState;
use fabric::qp::{QpChange, QpState, ReceiveRequest};
use fabric::transit::{NakCode, Syndrome, Transport};
use ipoib_rs::ib::{IbMtu, Lid, Pkey};

use crate::ends::{
    Agreement, End, another, changes, connect, connected, counters, ends, numbers, psn, queue_pair,
    receive, receives, run, send, send_bytes, send_marker, sends, states,
};

const PLAIN: Agreement = Agreement::DEFAULT;
const RETRY: WorkError = WorkError::RetryExceeded;
const FLUSHED: WorkError = WorkError::Flushed;

/// Sends three messages where `spoil` has made that impossible: the first fails, the others are
/// flushed, and the receives as well. Nothing arrives.
fn messages_fail(spoil: impl FnOnce(&mut Fabric, &[End; 2])) -> (Fabric, [End; 2]) {
    let (mut fabric, ends) = connected(&PLAIN);
    let [a, b] = ends;
    receive(&mut fabric, &a, 0..2);
    receive(&mut fabric, &b, 0..3);
    spoil(&mut fabric, &ends);
    send(&mut fabric, &a, 0..3);
    run(&mut fabric);
    let failed = [(0, Err(RETRY)), (1, Err(FLUSHED)), (2, Err(FLUSHED))];
    assert_eq!(sends(&mut fabric, &a), failed);
    assert_eq!(receives(&mut fabric, &a), [(0, Err(FLUSHED)), (1, Err(FLUSHED))]);
    assert!(receives(&mut fabric, &b).iter().all(|(_, end)| end.is_err()));
    assert_eq!(fabric.qp_state(a.qp), Some(QpState::Error));
    assert_eq!(fabric.pool().outstanding(), 0);
    (fabric, ends)
}

#[test]
fn nothing_arrives_at_a_port_that_is_down() {
    let (fabric, _) = messages_fail(|fabric, [_, b]| {
        fabric.set_port_state(b.port, PortState::Down).unwrap();
    });
    assert_eq!(fabric.switch_counters().links_down, 1);
}

#[test]
fn nothing_arrives_at_a_port_that_is_not_active() {
    let (fabric, [_, b]) = messages_fail(|fabric, [_, b]| {
        fabric.set_port_state(b.port, PortState::Armed).unwrap();
    });
    // The switch lets it pass, so it is lost when all three are under way.
    assert_eq!(counters(&fabric, &b).arrivals_while_inactive, 1);
}

#[test]
fn nothing_arrives_at_a_lid_that_no_port_has() {
    let (fabric, _) = messages_fail(|fabric, [_, b]| {
        fabric.set_lid(b.port, Lid::new(9)).unwrap();
    });
    assert_eq!(fabric.switch_counters().unroutable, 1);
}

#[test]
fn nothing_leaves_a_port_that_is_down() {
    let (fabric, [a, _]) = messages_fail(|fabric, [a, _]| {
        fabric.set_port_state(a.port, PortState::Down).unwrap();
    });
    assert_eq!(counters(&fabric, &a).sends_while_inactive, 1);
}

#[test]
fn nothing_leaves_in_a_partition_that_is_gone() {
    let (fabric, [a, _]) = messages_fail(|fabric, [a, _]| {
        fabric.set_pkey_table(a.port, &[None]).unwrap();
    });
    assert_eq!(counters(&fabric, &a).sends_without_pkey, 1);
}

#[test]
fn the_switch_keeps_messages_of_a_foreign_partition_out() {
    let (fabric, _) = messages_fail(|fabric, [_, b]| {
        let other = Pkey::new(0x8001);
        fabric.set_pkey_table(b.port, &[other]).unwrap();
    });
    assert_eq!(fabric.switch_counters().partition_violations, 1);
}

#[test]
fn a_queue_pair_takes_only_messages_of_its_own_partition() {
    // The port is in the partition of the packet, but the queue pair in another one.
    let (fabric, [_, b]) = messages_fail(|fabric, [_, b]| {
        let table = [Pkey::new(0x8001), Some(Pkey::DEFAULT)];
        fabric.set_pkey_table(b.port, &table).unwrap();
    });
    assert_eq!(counters(&fabric, &b).pkey_violations, 1);
}

#[test]
fn nothing_arrives_at_a_queue_pair_that_is_gone() {
    let (fabric, [_, b]) = messages_fail(|fabric, [_, b]| {
        fabric.destroy_qp(b.qp).unwrap();
    });
    assert_eq!(counters(&fabric, &b).unknown_qpns, 1);
}

#[test]
fn nothing_arrives_at_a_queue_pair_in_error() {
    let (fabric, [_, b]) = messages_fail(|fabric, [_, b]| {
        fabric.modify_qp(b.qp, &QpChange::Error).unwrap();
    });
    assert_eq!(counters(&fabric, &b).unknown_qpns, 1);
}

#[test]
fn nothing_arrives_at_a_queue_pair_that_is_not_connected_yet() {
    let (fabric, [_, b]) = messages_fail(|fabric, [_, b]| {
        for change in [QpChange::Reset, crate::ends::INIT] {
            fabric.modify_qp(b.qp, &change).unwrap();
        }
    });
    assert_eq!(counters(&fabric, &b).unknown_qpns, 1);
}

#[test]
fn a_port_that_goes_down_loses_what_is_under_way() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..3);
    send(&mut fabric, &a, 0..3);
    let transits: Vec<_> = std::iter::from_fn(|| fabric.poll_transit()).collect();
    fabric.set_port_state(b.port, PortState::Down).unwrap();
    assert!(sends(&mut fabric, &a).is_empty());
    for transit in transits {
        fabric.deliver(transit);
    }
    let failed = [(0, Err(RETRY)), (1, Err(FLUSHED)), (2, Err(FLUSHED))];
    assert_eq!(sends(&mut fabric, &a), failed);
    assert_eq!(counters(&fabric, &b).arrivals_while_inactive, 3);
}

#[test]
fn a_lost_message_breaks_a_connection_without_retries() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..3);
    send(&mut fabric, &a, 0..3);
    let lost = fabric.poll_transit().unwrap();
    fabric.discard(lost);
    run(&mut fabric);
    let failed = [(0, Err(RETRY)), (1, Err(FLUSHED)), (2, Err(FLUSHED))];
    assert_eq!(sends(&mut fabric, &a), failed);
    assert!(numbers(&mut fabric, &b).is_empty());
    let late = fabric.post_message(a.qp, 3, Packet::empty());
    assert!(late.is_ok(), "it is flushed at once");
    assert_eq!(sends(&mut fabric, &a), [(3, Err(FLUSHED))]);
}

#[test]
fn a_gap_is_refused_once_and_breaks_a_connection_without_retries() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..4);
    send(&mut fabric, &a, 0..4);
    let transits: Vec<_> = std::iter::from_fn(|| fabric.poll_transit()).collect();
    let mut refusals = Vec::new();
    for (number, transit) in transits.into_iter().enumerate() {
        match number {
            1 => fabric.discard(transit),
            0 | 2.. => fabric.deliver(transit),
        }
        while let Some(response) = fabric.poll_transit() {
            refusals.push((response.header().psn, response.header().transport));
            fabric.deliver(response);
        }
    }
    let answer = |syndrome| Transport::Response { syndrome, msn: 1 };
    let refused = answer(Syndrome::Nak(NakCode::SequenceError));
    assert_eq!(
        refusals,
        [(PLAIN.psns[0], answer(Syndrome::Ack)), (PLAIN.psns[0].plus(1), refused)]
    );
    assert_eq!(counters(&fabric, &b).sequence_errors, 2);
    let expected = [(0, Ok(())), (1, Err(RETRY)), (2, Err(FLUSHED)), (3, Err(FLUSHED))];
    assert_eq!(sends(&mut fabric, &a), expected);
    assert_eq!(numbers(&mut fabric, &b), [0]);
    assert_eq!(states(&fabric, &[a, b])[1], QpState::ReadyToSend);
}

#[test]
fn a_lost_acknowledgement_breaks_a_connection_although_the_message_arrived() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..1);
    send(&mut fabric, &a, 0..1);
    let message = fabric.poll_transit().unwrap();
    fabric.deliver(message);
    let response = fabric.poll_transit().unwrap();
    fabric.discard(response);
    assert_eq!(sends(&mut fabric, &a), [(0, Err(RETRY))]);
    assert_eq!(numbers(&mut fabric, &b), [0]);
}

#[test]
fn a_later_acknowledgement_makes_up_for_a_lost_one() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..2);
    send(&mut fabric, &a, 0..2);
    let messages = [(); 2].map(|()| fabric.poll_transit().unwrap());
    let mut responses = messages.map(|message| {
        fabric.deliver(message);
        fabric.poll_transit()
    });
    let lost = responses[0].take().unwrap();
    fabric.discard(lost);
    assert!(sends(&mut fabric, &a).is_empty());
    let second = responses[1].take().unwrap();
    fabric.deliver(second);
    assert_eq!(sends(&mut fabric, &a), [(0, Ok(())), (1, Ok(()))]);
    assert_eq!(numbers(&mut fabric, &b), [0, 1]);
}

#[test]
fn retries_make_up_for_as_many_losses_in_a_row() {
    let (mut fabric, [a, b]) = connected(&Agreement::retrying(2));
    receive(&mut fabric, &b, 0..9);
    for number in 0..3 {
        send(&mut fabric, &a, number..number + 1);
        for _ in 0..2 {
            let lost = fabric.poll_transit().unwrap();
            fabric.discard(lost);
        }
        run(&mut fabric);
        assert_eq!(sends(&mut fabric, &a), [(number, Ok(()))]);
        assert_eq!(numbers(&mut fabric, &b), [number]);
    }
    send(&mut fabric, &a, 3..4);
    for _ in 0..3 {
        let lost = fabric.poll_transit().unwrap();
        fabric.discard(lost);
    }
    assert_eq!(sends(&mut fabric, &a), [(3, Err(RETRY))]);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn a_message_that_arrived_is_not_received_again_when_it_is_repeated() {
    let (mut fabric, [a, b]) = connected(&Agreement::retrying(1));
    receive(&mut fabric, &b, 0..2);
    send(&mut fabric, &a, 0..1);
    let message = fabric.poll_transit().unwrap();
    fabric.deliver(message);
    let response = fabric.poll_transit().unwrap();
    fabric.discard(response);
    run(&mut fabric);
    assert_eq!(sends(&mut fabric, &a), [(0, Ok(()))]);
    assert_eq!(numbers(&mut fabric, &b), [0]);
    assert_eq!(counters(&fabric, &b).duplicates, 1);
}

#[test]
fn a_duplicate_is_dropped_by_its_sequence_number() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..4);
    send(&mut fabric, &a, 0..2);
    while let Some(transit) = fabric.poll_transit() {
        let second = fabric.duplicate(&transit).unwrap();
        fabric.deliver(transit);
        fabric.deliver(second);
    }
    assert_eq!(numbers(&mut fabric, &b), [0, 1]);
    assert_eq!(sends(&mut fabric, &a), [(0, Ok(())), (1, Ok(()))]);
    assert_eq!(counters(&fabric, &b).duplicates, 2);
    assert!(counters(&fabric, &a).stale_responses > 0);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn without_a_receive_the_sender_fails_and_the_receiver_lives() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..1);
    send(&mut fabric, &a, 0..4);
    run(&mut fabric);
    let expected =
        [(0, Ok(())), (1, Err(WorkError::RnrRetryExceeded)), (2, Err(FLUSHED)), (3, Err(FLUSHED))];
    assert_eq!(sends(&mut fabric, &a), expected);
    assert_eq!(numbers(&mut fabric, &b), [0]);
    assert_eq!(counters(&fabric, &b).receives_missing, 1);
    let states = states(&fabric, &[a, b]);
    assert_eq!(states, [QpState::Error, QpState::ReadyToSend]);
}

#[test]
fn a_receive_that_is_posted_before_the_retries_are_used_up_takes_the_message() {
    let (mut fabric, [a, b]) = connected(&Agreement::retrying(2));
    send(&mut fabric, &a, 0..2);
    for round in 0..2 {
        let message = fabric.poll_transit().unwrap();
        fabric.deliver(message);
        let next = fabric.poll_transit().unwrap();
        if round == 0 {
            // The second message, which is ahead of the first.
            fabric.deliver(next);
            let refusal = fabric.poll_transit().unwrap();
            let header = refusal.header();
            assert_eq!(header.psn, PLAIN.psns[0]);
            assert!(matches!(
                header.transport,
                Transport::Response {
                    syndrome: Syndrome::RnrNak(timer),
                    msn: 0
                } if timer.code() == 12
            ));
            fabric.deliver(refusal);
        } else {
            receive(&mut fabric, &b, 0..2);
            fabric.deliver(next);
        }
    }
    run(&mut fabric);
    assert_eq!(numbers(&mut fabric, &b), [0, 1]);
    assert_eq!(sends(&mut fabric, &a), [(0, Ok(())), (1, Ok(()))]);
}

#[test]
fn a_message_longer_than_the_receive_breaks_both_ends() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    for (wr_id, bytes) in [(0, 3000), (1, 2999), (2, 3000)] {
        let request = ReceiveRequest { wr_id, bytes };
        fabric.post_receive(b.qp, request).unwrap();
    }
    for wr_id in 0..3 {
        send_bytes(&mut fabric, &a, wr_id, &[7; 3000]);
    }
    run(&mut fabric);
    let expected = [(0, Ok(vec![7; 3000])), (1, Err(WorkError::LocalLength)), (2, Err(FLUSHED))];
    assert_eq!(receives(&mut fabric, &b), expected);
    let expected = [(0, Ok(())), (1, Err(WorkError::RemoteInvalidRequest)), (2, Err(FLUSHED))];
    assert_eq!(sends(&mut fabric, &a), expected);
    assert_eq!(counters(&fabric, &b).receives_too_short, 2);
    assert_eq!(states(&fabric, &[a, b]), [QpState::Error; 2]);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn ends_that_disagree_on_the_path_mtu_break_at_the_first_long_message() {
    let (mut fabric, ends) = ends();
    let [a, b] = ends;
    let other = Agreement { path_mtu: IbMtu::Mtu1024, ..PLAIN };
    for change in changes(&ends, 0, &PLAIN) {
        fabric.modify_qp(a.qp, &change).unwrap();
    }
    for change in changes(&ends, 1, &other) {
        fabric.modify_qp(b.qp, &change).unwrap();
    }
    receive(&mut fabric, &b, 0..2);
    send_bytes(&mut fabric, &a, 0, &[1; 1024]);
    send_bytes(&mut fabric, &a, 1, &[1; 1025]);
    run(&mut fabric);
    let failure = Err(WorkError::RemoteInvalidRequest);
    assert_eq!(sends(&mut fabric, &a), [(0, Ok(())), (1, failure)]);
    let failure = Err(WorkError::LocalLength);
    assert_eq!(receives(&mut fabric, &b), [(0, Ok(vec![1; 1024])), (1, failure)]);
}

#[test]
fn a_packet_longer_than_the_mtu_of_a_link_is_lost() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..2);
    fabric.set_mtu(b.port, IbMtu::Mtu256).unwrap();
    send_bytes(&mut fabric, &a, 0, &[1; 256]);
    send_bytes(&mut fabric, &a, 1, &[1; 5000]);
    run(&mut fabric);
    assert_eq!(sends(&mut fabric, &a), [(0, Ok(())), (1, Err(RETRY))]);
    assert_eq!(receives(&mut fabric, &b).len(), 1);
    assert_eq!(fabric.switch_counters().too_long, 3, "its packets");
    assert_eq!(fabric.violations().oversize_ud, 0);
}

#[test]
fn a_marker_on_a_queue_pair_in_error_comes_back_with_its_identity() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..3);
    send(&mut fabric, &b, 5..7);
    fabric.modify_qp(b.qp, &QpChange::Error).unwrap();
    send_marker(&mut fabric, &b, 99);
    let flushed = |wr_id| (wr_id, Err(FLUSHED));
    assert_eq!(receives(&mut fabric, &b), [0, 1, 2].map(flushed));
    assert_eq!(sends(&mut fabric, &b), [5, 6, 99].map(|id| (id, Err(FLUSHED))));
    fabric.post_receive(b.qp, crate::ends::room(3)).unwrap();
    assert_eq!(receives(&mut fabric, &b), [flushed(3)]);
    run(&mut fabric);
    assert!(receives(&mut fabric, &a).is_empty());
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn an_acknowledgement_that_is_owed_leaves_a_queue_pair_in_error() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..1);
    send(&mut fabric, &a, 0..1);
    let message = fabric.poll_transit().unwrap();
    fabric.deliver(message);
    fabric.modify_qp(b.qp, &QpChange::Error).unwrap();
    run(&mut fabric);
    assert_eq!(sends(&mut fabric, &a), [(0, Ok(()))]);
    assert_eq!(numbers(&mut fabric, &b), [0]);
}

#[test]
fn after_a_reset_nothing_of_the_past_remains() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..4);
    send(&mut fabric, &a, 0..3);
    let transit = fabric.poll_transit().unwrap();
    fabric.deliver(transit);
    // One message has a receive, one is under way, one waits, one acknowledgement is owed.
    let under_way = fabric.poll_transit().unwrap();
    fabric.modify_qp(b.qp, &QpChange::Reset).unwrap();
    assert!(sends(&mut fabric, &a).is_empty(), "one is under way");
    fabric.modify_qp(a.qp, &QpChange::Reset).unwrap();
    assert!(sends(&mut fabric, &a).is_empty());
    assert!(receives(&mut fabric, &b).is_empty());
    assert!(fabric.poll_transit().is_none());
    assert_eq!(fabric.pool().outstanding(), 1, "the one under way");

    // It arrives at the next connection of the same queue pairs.
    let agreement = Agreement { psns: [psn(0x10).plus(5000), psn(77)], ..PLAIN };
    connect(&mut fabric, &[a, b], &agreement);
    receive(&mut fabric, &b, 10..12);
    fabric.deliver(under_way);
    assert_eq!(counters(&fabric, &b).duplicates, 1);
    send(&mut fabric, &a, 20..21);
    run(&mut fabric);
    assert_eq!(numbers(&mut fabric, &b), [20]);
    assert_eq!(sends(&mut fabric, &a), [(20, Ok(()))]);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn a_packet_of_an_old_connection_ahead_of_the_new_one_is_dropped() {
    let (mut fabric, ends) = connected(&PLAIN);
    let [a, b] = ends;
    send(&mut fabric, &a, 0..1);
    let old = fabric.poll_transit().unwrap();
    for end in &ends {
        fabric.modify_qp(end.qp, &QpChange::Reset).unwrap();
    }
    let agreement = Agreement { psns: [PLAIN.psns[0].plus(0x00FF_FF00), psn(77)], ..PLAIN };
    connect(&mut fabric, &ends, &agreement);
    receive(&mut fabric, &b, 0..1);
    fabric.deliver(old);
    assert_eq!(counters(&fabric, &b).sequence_errors, 1);
    // The refusal finds a requester that waits for nothing.
    run(&mut fabric);
    assert_eq!(counters(&fabric, &a).stale_responses, 1);
    send(&mut fabric, &a, 1..2);
    run(&mut fabric);
    assert_eq!(numbers(&mut fabric, &b), [1]);
    assert_eq!(sends(&mut fabric, &a), [(1, Ok(()))]);
}

#[test]
fn a_packet_for_a_queue_pair_that_was_destroyed_does_not_find_its_successor() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    send(&mut fabric, &a, 0..1);
    let old = fabric.poll_transit().unwrap();
    fabric.destroy_qp(b.qp).unwrap();
    let cqs = [b.send_cq, b.receive_cq];
    let qp = queue_pair(&mut fabric, b.port, cqs, None);
    let successor = another(&fabric, &b, qp);
    assert_ne!(successor.qpn, b.qpn);
    for change in changes(&[a, successor], 1, &PLAIN) {
        fabric.modify_qp(qp, &change).unwrap();
    }
    receive(&mut fabric, &successor, 0..1);
    fabric.deliver(old);
    assert_eq!(counters(&fabric, &b).unknown_qpns, 1);
    assert_eq!(sends(&mut fabric, &a), [(0, Err(RETRY))]);
    assert!(receives(&mut fabric, &b).is_empty());
}

#[test]
fn a_message_that_cannot_be_copied_is_lost() {
    let (mut fabric, [a, b]) = connected(&Agreement::retrying(1));
    receive(&mut fabric, &b, 0..1);
    let large_max = PoolLimits::DEFAULT.large_max;
    let mut hoard: Vec<_> = (0..large_max).map(|_| fabric.allocate(9000).unwrap()).collect();
    let packet = hoard.pop().unwrap();
    fabric.post_message(a.qp, 0, packet).unwrap();
    run(&mut fabric);
    assert_eq!(sends(&mut fabric, &a), [(0, Err(RETRY))]);
    assert_eq!(counters(&fabric, &a).buffers_missing, 2, "once again");
    for packet in hoard {
        fabric.pool_mut().free(packet);
    }
    assert_eq!(fabric.pool().outstanding(), 0);
}
