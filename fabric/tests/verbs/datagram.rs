//! Datagrams from queue pair to queue pair.

use crate::hosts::{
    QKEY, QUEUE_LEN, arrival, failures, global, hosts, local, payloads, queue_pair, receive,
    receives, run, send, sends, to_ready,
};
use fabric::cq::WorkError;
use fabric::packet::SMALL_BYTES_MAX;
use fabric::port::PortState;
use fabric::qp::{QpChange, QpState, ReceiveRequest, SendRequest};
use fabric::{CreateError, FabricConfig, ModifyError, PostError};
use ipoib_rs::ib::{Gid, IbMtu, Lid, Pkey, PkeyIndex, Qkey, Qpn};
use ipoib_rs::packet::PacketBuf;
use ipoib_rs::wire::Grh;
use zerocopy::FromBytes;

const CONFIG: FabricConfig = FabricConfig::DEFAULT;

#[test]
fn a_datagram_arrives_behind_forty_zeros() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 7..8);
    send(&mut fabric, a.qp, 3, (ah, b.qpn), b"hello").unwrap();
    assert!(sends(&mut fabric, a.send_cq).is_empty(), "complete before it left");
    run(&mut fabric);
    assert_eq!(sends(&mut fabric, a.send_cq), [(3, Ok(()))]);
    let (wr_id, arrival) = arrival(&mut fabric, b.receive_cq);
    assert_eq!(wr_id, 7);
    assert_eq!(arrival.packet.bytes(), [&[0; 40][..], b"hello"].concat());
    assert!(!arrival.has_grh);
    assert_eq!(arrival.source_lid, a.lid);
    assert_eq!(arrival.source_qpn, a.qpn);
    fabric.pool_mut().free(arrival.packet);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn a_grh_arrives_in_front_of_the_payload() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let gid = |port| fabric.query_port(port).unwrap().gid;
    let (source, destination) = (gid(a.port), gid(b.port));
    let address = global(b.lid.value(), destination);
    let ah = fabric.create_ah(a.port, &address).unwrap();
    receive(&mut fabric, b.qp, 0..1);
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"hello").unwrap();
    run(&mut fabric);
    let (_, arrival) = arrival(&mut fabric, b.receive_cq);
    assert!(arrival.has_grh);
    let (grh, payload) = Grh::read_from_prefix(arrival.packet.bytes()).unwrap();
    assert_eq!(payload, b"hello");
    assert_eq!((grh.source, grh.destination), (source, destination));
    assert_eq!((grh.next_header, grh.hop_limit), (0x1B, 64));
    assert_eq!(grh.version_class_flow.get() >> 28, 6);
    // BTH 12, DETH 8, payload 5, pad 3, ICRC 4.
    assert_eq!(grh.payload_bytes.get(), 32);
    fabric.pool_mut().free(arrival.packet);
}

#[test]
fn the_packet_itself_moves_to_the_receiver() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..1);
    let mut packet = fabric.allocate(100).unwrap();
    packet.prepend(&[1; 4]).unwrap();
    let address = packet.bytes().as_ptr();
    let request =
        SendRequest { wr_id: 0, ah, remote_qpn: b.qpn, qkey: QKEY, pkey_index: PkeyIndex(0) };
    fabric.post_send(a.qp, request, packet).unwrap();
    run(&mut fabric);
    let (_, arrival) = arrival(&mut fabric, b.receive_cq);
    assert_eq!(arrival.packet.bytes()[40..].as_ptr(), address);
    fabric.pool_mut().free(arrival.packet);
}

#[test]
fn packets_leave_in_the_order_of_posting() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let to_b = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    let to_a = fabric.create_ah(b.port, &local(a.lid)).unwrap();
    send(&mut fabric, a.qp, 0, (to_b, b.qpn), b"1").unwrap();
    send(&mut fabric, b.qp, 0, (to_a, a.qpn), b"2").unwrap();
    send(&mut fabric, a.qp, 1, (to_b, b.qpn), b"3").unwrap();
    let mut order = Vec::new();
    while let Some(transit) = fabric.poll_transit() {
        order.push((transit.source(), transit.payload().to_vec()));
        fabric.discard(transit);
    }
    let expected = [(a.port, "1"), (b.port, "2"), (a.port, "3")];
    assert_eq!(order, expected.map(|(port, text)| (port, text.into())));
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn a_port_reaches_itself_by_its_own_lid() {
    let (mut fabric, [a]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(a.lid)).unwrap();
    receive(&mut fabric, a.qp, 0..1);
    send(&mut fabric, a.qp, 0, (ah, a.qpn), b"self").unwrap();
    run(&mut fabric);
    assert_eq!(payloads(&mut fabric, a.receive_cq), [b"self"]);
}

#[test]
fn a_datagram_as_long_as_the_mtu_is_sent_and_a_longer_one_is_a_violation() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..2);
    send(&mut fabric, a.qp, 0, (ah, b.qpn), &[1; 2048]).unwrap();
    run(&mut fabric);
    assert_eq!(payloads(&mut fabric, b.receive_cq), [[1; 2048]]);
    assert_eq!(fabric.violations().oversize_ud, 0);

    send(&mut fabric, a.qp, 1, (ah, b.qpn), &[1; 2049]).unwrap();
    send(&mut fabric, a.qp, 2, (ah, b.qpn), &[1; 5]).unwrap();
    run(&mut fabric);
    assert_eq!(fabric.violations().oversize_ud, 1);
    let expected = [(0, Ok(())), (1, Err(WorkError::LocalLength)), (2, Err(WorkError::Flushed))];
    assert_eq!(sends(&mut fabric, a.send_cq), expected);
    assert_eq!(fabric.qp_state(a.qp), Some(QpState::SendQueueError));
    assert!(receives(&mut fabric, b.receive_cq).is_empty());
    assert_eq!(fabric.pool().outstanding(), 0);

    // Receives went on; one transition brings the sends back.
    fabric.modify_qp(a.qp, &QpChange::ReadyToSend).unwrap();
    send(&mut fabric, a.qp, 3, (ah, b.qpn), b"again").unwrap();
    run(&mut fabric);
    assert_eq!(payloads(&mut fabric, b.receive_cq), [b"again"]);
}

#[test]
fn a_datagram_longer_than_the_receivers_mtu_is_a_violation() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    fabric.set_mtu(b.port, IbMtu::Mtu1024).unwrap();
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..1);
    send(&mut fabric, a.qp, 0, (ah, b.qpn), &[1; 1025]).unwrap();
    run(&mut fabric);
    assert_eq!(fabric.violations().oversize_ud, 1);
    assert_eq!(fabric.switch_counters().too_long, 1);
    assert!(receives(&mut fabric, b.receive_cq).is_empty());
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn a_receive_that_is_too_short_fails_and_the_next_one_works() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    for (wr_id, bytes) in [(0, 44), (1, 45)] {
        let request = ReceiveRequest { wr_id, bytes };
        fabric.post_receive(b.qp, request).unwrap();
    }
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"hello").unwrap();
    run(&mut fabric);
    assert_eq!(failures(&mut fabric, b.receive_cq), [(0, WorkError::LocalLength)]);
    send(&mut fabric, a.qp, 1, (ah, b.qpn), b"hello").unwrap();
    run(&mut fabric);
    assert_eq!(payloads(&mut fabric, b.receive_cq), [b"hello"]);
    assert_eq!(fabric.port_counters(b.port).unwrap().receives_too_short, 1);
}

#[test]
fn without_a_posted_receive_a_datagram_is_dropped() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"hello").unwrap();
    run(&mut fabric);
    assert_eq!(sends(&mut fabric, a.send_cq), [(0, Ok(()))]);
    assert_eq!(fabric.port_counters(b.port).unwrap().receives_missing, 1);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn a_wrong_qkey_is_counted_and_dropped() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..1);
    fabric.modify_qp(b.qp, &QpChange::SetQkey(Qkey(1))).unwrap();
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"hello").unwrap();
    run(&mut fabric);
    assert!(receives(&mut fabric, b.receive_cq).is_empty());
    assert_eq!(fabric.port_counters(b.port).unwrap().qkey_violations, 1);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn bit_31_of_the_qkey_means_the_queue_pairs_own() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..1);
    let request = SendRequest {
        wr_id: 0,
        ah,
        remote_qpn: b.qpn,
        qkey: Qkey(0x8000_0000),
        pkey_index: PkeyIndex(0),
    };
    let packet = fabric.pool_mut().allocate_from(b"own key").unwrap();
    fabric.post_send(a.qp, request, packet).unwrap();
    run(&mut fabric);
    assert_eq!(payloads(&mut fabric, b.receive_cq), [b"own key"]);
}

#[test]
fn the_switch_keeps_packets_out_of_foreign_partitions() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let foreign = Pkey::new(0x8001);
    fabric.set_pkey_table(b.port, &[foreign]).unwrap();
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..1);
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"hello").unwrap();
    run(&mut fabric);
    assert_eq!(fabric.switch_counters().partition_violations, 1);
    assert_eq!(fabric.port_counters(b.port).unwrap().pkey_violations, 0);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn the_adapter_checks_the_partition_of_the_queue_pair() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let keys = [Some(Pkey::DEFAULT), Pkey::new(0x8001)];
    fabric.set_pkey_table(b.port, &keys).unwrap();
    let child = queue_pair(&mut fabric, b.port, b.send_cq, b.receive_cq);
    fabric.modify_qp(child, &QpChange::Reset).unwrap();
    for change in to_ready(PkeyIndex(1)) {
        fabric.modify_qp(child, &change).unwrap();
    }
    let qpn = fabric.qpn(child).unwrap();
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, child, 0..1);
    send(&mut fabric, a.qp, 0, (ah, qpn), b"hello").unwrap();
    run(&mut fabric);
    assert!(receives(&mut fabric, b.receive_cq).is_empty());
    assert_eq!(fabric.port_counters(b.port).unwrap().pkey_violations, 1);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn two_limited_members_do_not_hear_each_other() {
    let (mut fabric, [a, b, server]) = hosts(CONFIG);
    let limited = Pkey::new(0x7FFF);
    fabric.set_pkey_table(a.port, &[limited]).unwrap();
    fabric.set_pkey_table(b.port, &[limited]).unwrap();
    for (wr_id, to) in [(0, b), (1, server)] {
        receive(&mut fabric, to.qp, 0..1);
        let ah = fabric.create_ah(a.port, &local(to.lid)).unwrap();
        send(&mut fabric, a.qp, wr_id, (ah, to.qpn), b"hello").unwrap();
    }
    run(&mut fabric);
    assert!(receives(&mut fabric, b.receive_cq).is_empty());
    assert_eq!(payloads(&mut fabric, server.receive_cq), [b"hello"]);
}

#[test]
fn a_lid_that_moved_away_in_flight_is_not_answered() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..1);
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"late").unwrap();
    let transit = fabric.poll_transit().unwrap();
    fabric.set_lid(b.port, Lid::new(77)).unwrap();
    fabric.deliver(transit);
    assert_eq!(fabric.port_counters(b.port).unwrap().foreign_lids, 1);
    send(&mut fabric, a.qp, 1, (ah, b.qpn), b"lost").unwrap();
    run(&mut fabric);
    assert_eq!(fabric.switch_counters().unroutable, 1);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn a_port_that_is_not_active_neither_sends_nor_receives() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..1);
    fabric.set_port_state(b.port, PortState::Armed).unwrap();
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"1").unwrap();
    run(&mut fabric);
    assert_eq!(fabric.port_counters(b.port).unwrap().arrivals_while_inactive, 1);
    fabric.set_port_state(a.port, PortState::Down).unwrap();
    send(&mut fabric, a.qp, 1, (ah, b.qpn), b"2").unwrap();
    run(&mut fabric);
    assert_eq!(fabric.port_counters(a.port).unwrap().sends_while_inactive, 1);
    assert_eq!(sends(&mut fabric, a.send_cq), [(0, Ok(())), (1, Ok(()))]);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn a_gid_that_the_port_does_not_have_is_not_answered() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let alias = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0xABCD);
    let ah = fabric.create_ah(a.port, &global(b.lid.value(), alias)).unwrap();
    receive(&mut fabric, b.qp, 0..1);
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"1").unwrap();
    run(&mut fabric);
    assert_eq!(fabric.port_counters(b.port).unwrap().foreign_gids, 1);
    fabric.set_gid(b.port, 3, Some(alias)).unwrap();
    send(&mut fabric, a.qp, 1, (ah, b.qpn), b"2").unwrap();
    run(&mut fabric);
    assert_eq!(payloads(&mut fabric, b.receive_cq), [b"2"]);
}

#[test]
fn the_error_state_flushes_receives_then_sends_in_order() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, a.qp, 10..13);
    for wr_id in 0..3 {
        send(&mut fabric, a.qp, wr_id, (ah, b.qpn), b"x").unwrap();
    }
    fabric.modify_qp(a.qp, &QpChange::Error).unwrap();
    let flushed = WorkError::Flushed;
    let expected = [10, 11, 12].map(|wr_id| (wr_id, flushed));
    assert_eq!(failures(&mut fabric, a.receive_cq), expected);
    let expected = [0, 1, 2].map(|wr_id| (wr_id, Err(flushed)));
    assert_eq!(sends(&mut fabric, a.send_cq), expected);
    assert!(fabric.poll_transit().is_none());

    // What is posted now is flushed at once.
    receive(&mut fabric, a.qp, 20..21);
    send(&mut fabric, a.qp, 21, (ah, b.qpn), b"x").unwrap();
    assert_eq!(failures(&mut fabric, a.receive_cq), [(20, flushed)]);
    assert_eq!(sends(&mut fabric, a.send_cq), [(21, Err(flushed))]);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn a_reset_takes_back_everything_including_completions() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let to_b = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    let other = queue_pair(&mut fabric, b.port, b.send_cq, b.receive_cq);
    let other_qpn = fabric.qpn(other).unwrap();
    receive(&mut fabric, b.qp, 0..4);
    receive(&mut fabric, other, 9..10);
    send(&mut fabric, a.qp, 0, (to_b, b.qpn), b"1").unwrap();
    send(&mut fabric, a.qp, 1, (to_b, other_qpn), b"2").unwrap();
    send(&mut fabric, a.qp, 2, (to_b, b.qpn), b"3").unwrap();
    run(&mut fabric);
    fabric.modify_qp(b.qp, &QpChange::Reset).unwrap();
    assert_eq!(payloads(&mut fabric, b.receive_cq), [b"2"]);
    assert_eq!(fabric.pool().outstanding(), 0);
    assert_eq!(fabric.qp_state(b.qp), Some(QpState::Reset));

    // No receive of before is left either.
    for change in to_ready(PkeyIndex(0)) {
        fabric.modify_qp(b.qp, &change).unwrap();
    }
    send(&mut fabric, a.qp, 3, (to_b, b.qpn), b"4").unwrap();
    run(&mut fabric);
    assert_eq!(fabric.port_counters(b.port).unwrap().receives_missing, 1);
}

#[test]
fn a_destroyed_queue_pair_leaves_nothing_and_its_number_is_not_reused() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..1);
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"1").unwrap();
    run(&mut fabric);
    fabric.destroy_qp(b.qp).unwrap();
    assert_eq!(fabric.pool().outstanding(), 0);
    let again = queue_pair(&mut fabric, b.port, b.send_cq, b.receive_cq);
    assert_ne!(fabric.qpn(again), Some(b.qpn));
    receive(&mut fabric, again, 0..1);
    send(&mut fabric, a.qp, 1, (ah, b.qpn), b"2").unwrap();
    run(&mut fabric);
    assert!(receives(&mut fabric, b.receive_cq).is_empty());
    assert_eq!(fabric.port_counters(b.port).unwrap().unknown_qpns, 1);
    assert_eq!(fabric.qp_state(b.qp), None);
}

#[test]
fn sends_that_are_drained_wait_for_the_ready_state() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..3);
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"1").unwrap();
    fabric.modify_qp(a.qp, &QpChange::DrainSendQueue).unwrap();
    send(&mut fabric, a.qp, 1, (ah, b.qpn), b"2").unwrap();
    assert!(fabric.poll_transit().is_none());
    fabric.modify_qp(a.qp, &QpChange::ReadyToSend).unwrap();
    run(&mut fabric);
    assert_eq!(payloads(&mut fabric, b.receive_cq), [b"1", b"2"]);
}

#[test]
fn only_legal_transitions_are_made() {
    use QpState::{
        Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError,
    };
    let [init, to_rtr, to_rts] = to_ready(PkeyIndex(0));
    let qkey = QpChange::SetQkey(QKEY);
    let drain = QpChange::DrainSendQueue;
    let ways: [(QpState, &[QpChange], &[QpChange]); 7] = [
        (Reset, &[], &[init]),
        (Init, &[init], &[init, to_rtr, QpChange::Error]),
        (ReadyToReceive, &[init, to_rtr], &[to_rts, QpChange::Error]),
        (ReadyToSend, &[init, to_rtr, to_rts], &[qkey, drain, QpChange::Error]),
        (SendQueueDrained, &[init, to_rtr, to_rts, drain], &[qkey, to_rts, QpChange::Error]),
        (SendQueueError, &[init, to_rtr, to_rts], &[to_rts, QpChange::Error]),
        (Error, &[init, QpChange::Error], &[QpChange::Error]),
    ];
    for (state, way, legal) in ways {
        let all = [init, to_rtr, to_rts, qkey, drain, QpChange::Error, QpChange::Reset];
        for change in all {
            let (mut fabric, [a, b]) = hosts(CONFIG);
            fabric.modify_qp(a.qp, &QpChange::Reset).unwrap();
            for step in way {
                fabric.modify_qp(a.qp, step).unwrap();
            }
            if state == SendQueueError {
                let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
                send(&mut fabric, a.qp, 0, (ah, b.qpn), &[0; SMALL_BYTES_MAX]).unwrap();
                run(&mut fabric);
            }
            assert_eq!(fabric.qp_state(a.qp), Some(state));
            let is_legal = legal.contains(&change) || change == QpChange::Reset;
            let result = fabric.modify_qp(a.qp, &change);
            let expected = is_legal.then_some(()).ok_or(ModifyError::IllegalTransition);
            assert_eq!(result, expected, "{state:?} {change:?}");
            if !is_legal {
                assert_eq!(fabric.qp_state(a.qp), Some(state));
            }
        }
    }
}

#[test]
fn a_queue_that_is_full_refuses_and_gives_the_packet_back() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    for wr_id in 0..u64::from(QUEUE_LEN) {
        send(&mut fabric, a.qp, wr_id, (ah, b.qpn), b"x").unwrap();
    }
    let refused = send(&mut fabric, a.qp, 99, (ah, b.qpn), b"too many").unwrap_err();
    assert_eq!(refused.error, PostError::QueueFull);
    assert_eq!(refused.packet.bytes(), b"too many");
    fabric.pool_mut().free(refused.packet);
    receive(&mut fabric, a.qp, 0..u64::from(QUEUE_LEN));
    let request = ReceiveRequest { wr_id: 0, bytes: 1 };
    assert_eq!(fabric.post_receive(a.qp, request), Err(PostError::QueueFull));
    run(&mut fabric);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn work_before_its_state_is_refused() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    fabric.modify_qp(a.qp, &QpChange::Reset).unwrap();
    let request = ReceiveRequest { wr_id: 0, bytes: 1 };
    assert_eq!(fabric.post_receive(a.qp, request), Err(PostError::WrongState));
    for change in &to_ready(PkeyIndex(0))[..2] {
        let refused = send(&mut fabric, a.qp, 0, (ah, b.qpn), b"early").unwrap_err();
        assert_eq!(refused.error, PostError::WrongState);
        fabric.pool_mut().free(refused.packet);
        fabric.modify_qp(a.qp, change).unwrap();
        fabric.post_receive(a.qp, request).unwrap();
    }
}

#[test]
fn a_handle_destroyed_under_a_send_is_a_violation() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"x").unwrap();
    fabric.destroy_ah(ah).unwrap();
    run(&mut fabric);
    assert_eq!(fabric.violations().missing_handles, 1);
    let expected = [(0, Err(WorkError::LocalQpOperation))];
    assert_eq!(sends(&mut fabric, a.send_cq), expected);
    fabric.modify_qp(a.qp, &QpChange::ReadyToSend).unwrap();
    let refused = send(&mut fabric, a.qp, 1, (ah, b.qpn), b"x").unwrap_err();
    assert_eq!(refused.error, PostError::UnknownHandle);
    fabric.pool_mut().free(refused.packet);
    assert_eq!(fabric.ah_count(a.hca), 0);
}

#[test]
fn a_duplicate_is_a_second_packet() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..2);
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"twice").unwrap();
    let transit = fabric.poll_transit().unwrap();
    let second = fabric.duplicate(&transit).unwrap();
    fabric.deliver(second);
    fabric.deliver(transit);
    assert_eq!(payloads(&mut fabric, b.receive_cq), [b"twice", b"twice"]);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn addresses_that_go_nowhere_are_refused() {
    let (mut fabric, [a]) = hosts(CONFIG);
    let unicast = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 1);
    let (mgid, mlid) = crate::hosts::group(1);
    let wrong = [
        global(0, unicast),
        global(0xFFFF, mgid.gid()),
        global(1, mgid.gid()),
        global(mlid.value(), unicast),
    ];
    for address in wrong {
        let result = fabric.create_ah(a.port, &address);
        assert_eq!(result, Err(CreateError::Invalid), "{address:?}");
    }
    let unknown = Qpn::new(0x00AB_CDEF).unwrap();
    let ah = fabric.create_ah(a.port, &local(a.lid)).unwrap();
    send(&mut fabric, a.qp, 0, (ah, unknown), b"x").unwrap();
    run(&mut fabric);
    assert_eq!(fabric.port_counters(a.port).unwrap().unknown_qpns, 1);
}
