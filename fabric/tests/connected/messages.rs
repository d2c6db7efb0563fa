//! What a connection does when nothing goes wrong.

use fabric::cq::{Outcome, WorkError};
use fabric::packet::Packet;
use fabric::qp::{QpChange, QpConfig, QpState, QpType, SendRequest};
use fabric::transit::{Syndrome, Transport};
use fabric::{AsyncEvent, CreateError, PostError};
use ipoib_rs::ib::Psn;
use ipoib_rs::ib::{IbMtu, PkeyIndex, Qkey};

use crate::ends::{
    Agreement, MESSAGE_BYTES_MAX, QUEUE_LEN, address, another, changes, completions, connect,
    connected, counters, end, ends, events, numbers, psn, queue_pair, receive, receives, run, send,
    send_bytes, send_marker, sends, states,
};

const PLAIN: Agreement = Agreement::DEFAULT;

#[test]
fn a_send_completes_when_its_message_is_acknowledged() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 7..8);
    send_bytes(&mut fabric, &a, 3, b"hello");
    let message = fabric.poll_transit().unwrap();
    fabric.deliver(message);
    assert!(sends(&mut fabric, &a).is_empty(), "not acknowledged yet");
    let mut arrived = completions(&mut fabric, b.receive_cq);
    let completion = arrived.remove(0);
    assert_eq!((completion.qp, completion.qpn), (b.qp, b.qpn));
    assert_eq!(completion.wr_id, 7);
    let Outcome::Received(arrival) = completion.outcome else {
        panic!("{arrived:?}");
    };
    assert_eq!(arrival.packet.bytes(), b"hello", "no room for a GRH");
    assert!(!arrival.has_grh);
    assert_eq!((arrival.source_lid, arrival.source_qpn), (a.lid, a.qpn));
    fabric.pool_mut().free(arrival.packet);

    run(&mut fabric);
    assert_eq!(sends(&mut fabric, &a), [(3, Ok(()))]);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn without_retries_the_packet_itself_moves_to_the_receiver() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..1);
    let packet = fabric.allocate(MESSAGE_BYTES_MAX).unwrap();
    let place = packet.bytes().as_ptr();
    fabric.post_message(a.qp, 0, packet).unwrap();
    run(&mut fabric);
    let completion = fabric.poll_cq(b.receive_cq).unwrap();
    let Outcome::Received(arrival) = completion.outcome else {
        panic!("{completion:?}");
    };
    assert_eq!(arrival.packet.bytes().as_ptr(), place);
    fabric.pool_mut().free(arrival.packet);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn the_longest_message_arrives_whole_and_counts_as_its_packets() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    let before = [counters(&fabric, &a), counters(&fabric, &b)];
    receive(&mut fabric, &b, 0..1);
    let message: Vec<u8> = (0..MESSAGE_BYTES_MAX).map(|place| (place % 251) as u8).collect();
    send_bytes(&mut fabric, &a, 0, &message);
    run(&mut fabric);
    assert_eq!(receives(&mut fabric, &b), [(0, Ok(message))]);
    let after = [counters(&fabric, &a), counters(&fabric, &b)];
    // 32 packets of 2048 bytes and one of 4; one acknowledgement.
    assert_eq!(after[0].sent - before[0].sent, 33);
    assert_eq!(after[1].received - before[1].received, 33);
    assert_eq!(after[1].sent - before[1].sent, 1);
    assert_eq!(after[0].received - before[0].received, 1);
    assert_eq!(fabric.violations().oversize_ud, 0);
}

#[test]
fn every_packet_has_a_sequence_number_of_its_own() {
    let cases = [(IbMtu::Mtu256, 5), (IbMtu::Mtu512, 3), (IbMtu::Mtu2048, 1)];
    for (mtu, packets) in cases {
        let agreement = Agreement { path_mtu: mtu, ..PLAIN };
        let (mut fabric, [a, b]) = connected(&agreement);
        receive(&mut fabric, &b, 0..3);
        for wr_id in 0..3 {
            send_bytes(&mut fabric, &a, wr_id, &[1; 1025]);
        }
        let transits: Vec<_> = std::iter::from_fn(|| fabric.poll_transit()).collect();
        for (number, transit) in (0..3).zip(transits) {
            let first = PLAIN.psns[0].plus(number * packets);
            assert_eq!(transit.header().psn, first);
            assert_eq!(transit.packet_count(), packets);
            let lens = (0..packets).map(|packet| transit.packet_payload(packet).unwrap().len());
            assert_eq!(lens.sum::<usize>(), 1025);
            assert_eq!(transit.packet_payload(packets), None);
            fabric.deliver(transit);
        }
        run(&mut fabric);
        assert_eq!(receives(&mut fabric, &b).len(), 3);
    }
}

#[test]
fn one_acknowledgement_answers_all_messages_before_it() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..3);
    send(&mut fabric, &a, 0..3);
    let messages: Vec<_> = (0..3).map(|_| fabric.poll_transit().unwrap()).collect();
    assert!(fabric.poll_transit().is_none());
    for message in messages {
        fabric.deliver(message);
    }
    let response = fabric.poll_transit().unwrap();
    assert!(fabric.poll_transit().is_none(), "one for three");
    assert_eq!(response.header().psn, PLAIN.psns[0].plus(2));
    let acknowledgement = Transport::Response { syndrome: Syndrome::Ack, msn: 3 };
    assert_eq!(response.header().transport, acknowledgement);
    fabric.deliver(response);
    let sent = [(0, Ok(())), (1, Ok(())), (2, Ok(()))];
    assert_eq!(sends(&mut fabric, &a), sent);
    assert_eq!(numbers(&mut fabric, &b), [0, 1, 2]);
}

#[test]
fn sequence_numbers_begin_again_after_the_largest() {
    let agreement = Agreement {
        psns: [Psn::MAX.previous(), Psn::MAX],
        path_mtu: IbMtu::Mtu256,
        ..Agreement::retrying(1)
    };
    let (mut fabric, [a, b]) = connected(&agreement);
    for round in 0..4 {
        receive(&mut fabric, &a, round..round + 1);
        receive(&mut fabric, &b, round..round + 1);
        let bytes = [round as u8; 700];
        send_bytes(&mut fabric, &a, round, &bytes);
        send_bytes(&mut fabric, &b, round, &bytes);
        run(&mut fabric);
        for end in [&a, &b] {
            assert_eq!(receives(&mut fabric, end), [(round, Ok(bytes.to_vec()))]);
            assert_eq!(sends(&mut fabric, end), [(round, Ok(()))]);
        }
    }
    let dropped = counters(&fabric, &b);
    assert_eq!((dropped.duplicates, dropped.sequence_errors), (0, 0));
}

#[test]
fn a_message_without_bytes_is_a_message() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..2);
    send_marker(&mut fabric, &a, 0);
    let transit = fabric.poll_transit().unwrap();
    assert_eq!((transit.packet_count(), transit.payload_len()), (1, 0));
    fabric.deliver(transit);
    send(&mut fabric, &a, 1..2);
    run(&mut fabric);
    let expected = [(0, Ok(vec![])), (1, Ok(1u64.to_be_bytes().to_vec()))];
    assert_eq!(receives(&mut fabric, &b), expected);
    assert_eq!(sends(&mut fabric, &a), [(0, Ok(())), (1, Ok(()))]);
}

#[test]
fn two_queue_pairs_of_one_port_can_be_connected() {
    let (mut fabric, [a, _]) = ends();
    let cqs = [a.send_cq, a.receive_cq];
    let second = queue_pair(&mut fabric, a.port, cqs, None);
    let ends = [a, another(&fabric, &a, second)];
    connect(&mut fabric, &ends, &PLAIN);
    receive(&mut fabric, &ends[1], 0..1);
    send(&mut fabric, &a, 5..6);
    run(&mut fabric);
    assert_eq!(numbers(&mut fabric, &ends[1]), [5]);
    assert_eq!(sends(&mut fabric, &a), [(5, Ok(()))]);
}

#[test]
fn a_first_message_says_that_the_peer_is_ready() {
    let (mut fabric, ends) = ends();
    let [a, b] = ends;
    for change in changes(&ends, 0, &PLAIN) {
        fabric.modify_qp(a.qp, &change).unwrap();
    }
    let [init, receive_state, send_state] = changes(&ends, 1, &PLAIN);
    for change in [init, receive_state] {
        fabric.modify_qp(b.qp, &change).unwrap();
    }
    events(&mut fabric);
    receive(&mut fabric, &b, 0..2);
    send(&mut fabric, &a, 0..2);
    run(&mut fabric);
    assert_eq!(events(&mut fabric), [AsyncEvent::CommunicationEstablished(b.qp)], "once");
    assert_eq!(numbers(&mut fabric, &b), [0, 1]);
    assert_eq!(sends(&mut fabric, &a).len(), 2, "answered from RTR");
    let refused = fabric.post_message(b.qp, 0, Packet::empty()).unwrap_err();
    assert_eq!(refused.error, PostError::WrongState);
    fabric.modify_qp(b.qp, &send_state).unwrap();
    receive(&mut fabric, &a, 0..1);
    send(&mut fabric, &b, 9..10);
    run(&mut fabric);
    assert_eq!(numbers(&mut fabric, &a), [9]);
}

#[test]
fn in_sqd_messages_wait_and_those_under_way_are_finished() {
    let (mut fabric, [a, b]) = connected(&Agreement::retrying(1));
    receive(&mut fabric, &b, 0..3);
    send(&mut fabric, &a, 0..2);
    let first = fabric.poll_transit().unwrap();
    fabric.modify_qp(a.qp, &QpChange::DrainSendQueue).unwrap();
    send(&mut fabric, &a, 2..3);
    assert!(fabric.poll_transit().is_none());
    // What was sent before is sent again if it is lost.
    fabric.discard(first);
    run(&mut fabric);
    assert_eq!(numbers(&mut fabric, &b), [0]);
    assert_eq!(sends(&mut fabric, &a), [(0, Ok(()))]);
    fabric.modify_qp(a.qp, &QpChange::ReadyToSend).unwrap();
    run(&mut fabric);
    assert_eq!(numbers(&mut fabric, &b), [1, 2]);
    assert_eq!(sends(&mut fabric, &a), [(1, Ok(())), (2, Ok(()))]);
}

#[test]
fn queue_pairs_take_turns() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    let cqs = |end: &crate::ends::End| [end.send_cq, end.receive_cq];
    let second = [a, b].map(|end| {
        let qp = queue_pair(&mut fabric, end.port, cqs(&end), None);
        another(&fabric, &end, qp)
    });
    connect(&mut fabric, &second, &PLAIN);
    send(&mut fabric, &a, 0..2);
    send(&mut fabric, &second[0], 10..12);
    let transits: Vec<_> = std::iter::from_fn(|| fabric.poll_transit()).collect();
    let order: Vec<_> = transits.iter().map(|transit| transit.payload()[7]).collect();
    assert_eq!(order, [0, 10, 1, 11]);
    for transit in transits {
        fabric.discard(transit);
    }
}

#[test]
fn work_of_the_wrong_service_is_refused() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    let ah = fabric.create_ah(a.port, &address(b.lid)).unwrap();
    let request =
        SendRequest { wr_id: 0, ah, remote_qpn: b.qpn, qkey: Qkey(1), pkey_index: PkeyIndex(0) };
    let refused = fabric.post_send(a.qp, request, Packet::empty());
    assert_eq!(refused.unwrap_err().error, PostError::WrongService);

    let config = QpConfig {
        qp_type: QpType::Ud,
        send_cq: a.send_cq,
        receive_cq: a.receive_cq,
        sends_max: 1,
        receives_max: 1,
    };
    let datagram = fabric.create_qp(a.port, &config).unwrap();
    let refused = fabric.post_message(datagram, 0, Packet::empty());
    assert_eq!(refused.unwrap_err().error, PostError::WrongService);

    // A datagram on the wire for a connected queue pair.
    let init = QpChange::Init { pkey_index: PkeyIndex(0), qkey: Qkey(1) };
    for change in [init, QpChange::ReadyToReceive, QpChange::ReadyToSend] {
        fabric.modify_qp(datagram, &change).unwrap();
    }
    receive(&mut fabric, &b, 0..1);
    fabric.post_send(datagram, request, Packet::empty()).unwrap();
    run(&mut fabric);
    assert_eq!(counters(&fabric, &b).wrong_services, 1);
    assert!(receives(&mut fabric, &b).is_empty());
    assert_eq!(states(&fabric, &[a, b]), [QpState::ReadyToSend; 2]);
}

#[test]
fn a_full_queue_refuses_a_message_and_gives_its_packet_back() {
    let (mut fabric, [a, _]) = connected(&PLAIN);
    send(&mut fabric, &a, 0..u64::from(QUEUE_LEN));
    let packet = fabric.allocate(1).unwrap();
    let refused = fabric.post_message(a.qp, 0, packet).unwrap_err();
    assert_eq!(refused.error, PostError::QueueFull);
    fabric.pool_mut().free(refused.packet);
    fabric.destroy_qp(a.qp).unwrap();
    assert_eq!(fabric.pool().outstanding(), 0);
    let refused = fabric.post_message(a.qp, 0, Packet::empty());
    assert_eq!(refused.unwrap_err().error, PostError::UnknownQp);
}

#[test]
fn more_sends_than_sequence_numbers_are_refused() {
    let (mut fabric, [a, _]) = ends();
    let config = QpConfig {
        qp_type: QpType::Rc { srq: None },
        send_cq: a.send_cq,
        receive_cq: a.receive_cq,
        sends_max: 16_385,
        receives_max: 1,
    };
    let refused = fabric.create_qp(a.port, &config);
    assert_eq!(refused, Err(CreateError::Invalid));
    assert_eq!(fabric.qp_count(a.hca), 1);
}

#[test]
fn a_wedged_adapter_withholds_the_completions_of_connections() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    receive(&mut fabric, &b, 0..2);
    fabric.set_wedged(a.hca, true).unwrap();
    fabric.set_wedged(b.hca, true).unwrap();
    send(&mut fabric, &a, 0..1);
    run(&mut fabric);
    fabric.modify_qp(b.qp, &QpChange::Error).unwrap();
    assert!(sends(&mut fabric, &a).is_empty());
    assert!(receives(&mut fabric, &b).is_empty());
    fabric.set_wedged(a.hca, false).unwrap();
    fabric.set_wedged(b.hca, false).unwrap();
    assert_eq!(sends(&mut fabric, &a), [(0, Ok(()))]);
    let expected = [(0, Ok(0u64.to_be_bytes().to_vec())), (1, Err(WorkError::Flushed))];
    assert_eq!(receives(&mut fabric, &b), expected);
}

#[test]
fn a_third_party_does_not_disturb() {
    let (mut fabric, [a, b]) = connected(&PLAIN);
    let c = end(&mut fabric, 3);
    // It believes that it is connected with `b`, and guesses the sequence number right.
    let agreement = Agreement { psns: [PLAIN.psns[0], psn(0)], ..PLAIN };
    for change in changes(&[c, b], 0, &agreement) {
        fabric.modify_qp(c.qp, &change).unwrap();
    }
    receive(&mut fabric, &b, 0..1);
    send(&mut fabric, &c, 0..1);
    run(&mut fabric);
    assert_eq!(counters(&fabric, &b).foreign_sources, 1);
    assert_eq!(sends(&mut fabric, &c), [(0, Err(WorkError::RetryExceeded))]);
    send(&mut fabric, &a, 1..2);
    run(&mut fabric);
    assert_eq!(numbers(&mut fabric, &b), [1]);
}
