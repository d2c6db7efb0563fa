//! Connected mode, one interface at a time: what goes in, what must come out.

mod common;

use std::time::Duration;

use common::{Bench, connected_peer, ipv4, path_to, peer};
use ipoib_rs::action::{Action, ConnectError, ConnectionParameters, RejectReason, VerbError};
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::event::{Event, Notice};
use ipoib_rs::ib::{Qpn, ServiceId};
use ipoib_rs::interface::PortEvent;
use ipoib_rs::limits::{LINGER_MAX, Limits};
use ipoib_rs::packet::{CompletionStatus, DatagramSend};
use ipoib_rs::wire::{AddressFlags, EtherType, LinkAddress};

const REP: ConnectionParameters =
    ConnectionParameters { qpn: Qpn::new(0x101).unwrap(), receive_mtu: 65524 };

#[test]
fn b02_large_packets_wait_while_the_connection_is_decided_and_small_ones_go() {
    let mut bench = Bench::asking();
    for len in [9000, 9001, 9002] {
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(len, true)).unwrap();
    }
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(500, true)).unwrap();
    assert_eq!(bench.adapter.wire.last().unwrap().1.len(), 504);
    assert!(bench.adapter.too_big.is_empty() && bench.adapter.connected_wire.is_empty());
    let (op, _, request) = bench.take_open();
    assert_eq!(request.service, ServiceId(0x1000_0000_0000_0101));
    assert_eq!(request.own.receive_mtu, 65524);
    bench.connect_answer(op, Ok(REP));
    let lengths: Vec<usize> =
        bench.adapter.connected_wire.iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(lengths, [9004, 9005, 9006]);
    bench.complete_all();
    bench.finish();
}

#[test]
fn b02_after_a_rej_the_sender_is_told_the_datagram_mtu_and_small_packets_go_on() {
    let mut bench = Bench::asking();
    for _ in 0..3 {
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, true)).unwrap();
    }
    let (op, ..) = bench.take_open();
    bench.connect_answer(op, Err(ConnectError::Rejected(3)));
    assert_eq!(bench.adapter.too_big, [2044, 2044, 2044]);
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(500, true)).unwrap();
    assert_eq!(bench.adapter.wire.last().unwrap().1.len(), 504);
    assert!(bench.adapter.connected_wire.is_empty());
    bench.answer_all();
    bench.complete_all();
    bench.finish();
}

#[test]
fn b02_nothing_is_held_longer_than_the_limit_when_no_answer_comes() {
    let mut bench = Bench::asking();
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, true)).unwrap();
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
    bench.pass(Duration::from_secs(4));
    assert_eq!((bench.adapter.too_big.as_slice(), bench.adapter.released), (&[2044][..], 1));
    assert_eq!(bench.interface.packets_queued(), 0);
    // The answer still counts when it comes.
    let (op, ..) = bench.take_open();
    bench.connect_answer(op, Ok(REP));
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, true)).unwrap();
    assert_eq!(bench.adapter.connected_wire.len(), 1);
    bench.complete_all();
    bench.finish();
}

#[test]
fn b01_towards_a_neighbor_without_the_rc_flag_the_rules_of_size_hold() {
    let mut bench = Bench::connected();
    bench.send(&peer(1), EtherType::IPV4, ipv4(12380, true)).unwrap();
    bench.send(&peer(1), EtherType::IPV4, ipv4(12380, false)).unwrap();
    bench.send(&peer(1), EtherType::ARP, vec![0; 3000]).unwrap();
    bench.answer_all();
    assert_eq!((bench.adapter.too_big.as_slice(), bench.opens_waiting()), (&[2044][..], 0));
    let sizes: Vec<usize> = bench.adapter.wire.iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(sizes, [2048, 2048, 2048, 2048, 2048, 2048, 4 + 20 + 216]);
    assert_eq!(bench.drops(DropReason::TooBigSilent), 1);
    bench.complete_all();
    bench.finish();
}

#[test]
fn a6_never_more_is_sent_than_the_peer_receives_or_this_interface_would() {
    for (receive_mtu, expected) in [(65524, 65520), (8004, 8000), (u32::MAX, 65520), (2048, 2044)] {
        let mut bench = Bench::asking();
        let (op, ..) = bench.take_open();
        bench.connect_answer(op, Ok(ConnectionParameters { receive_mtu, ..REP }));
        let row = bench.interface.neighbors().next().unwrap();
        assert_eq!((row.transport, row.mtu), ("connected", expected));
        bench.finish();
    }
}

#[test]
fn a6_a_connection_that_carries_less_than_a_datagram_is_not_used() {
    for receive_mtu in [0, 4, 5, 1284, 2047] {
        let mut bench = Bench::asking();
        let (op, ..) = bench.take_open();
        bench.connect_answer(op, Ok(ConnectionParameters { receive_mtu, ..REP }));
        assert_eq!(bench.count(Counter::ConnectsFailed), 1);
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(2044, true)).unwrap();
        assert_eq!(bench.adapter.wire.last().unwrap().1.len(), 2048);
        bench.answer_all();
        bench.complete_all();
        bench.finish();
    }
}

#[test]
fn a_peer_with_a_smaller_receive_mtu_gets_fragments_by_its_connection() {
    let mut bench = Bench::asking();
    let (op, ..) = bench.take_open();
    bench.connect_answer(op, Ok(ConnectionParameters { receive_mtu: 4100, ..REP }));
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, true)).unwrap();
    assert_eq!(bench.adapter.connected_wire.len(), 3);
    assert!(bench.adapter.connected_wire.iter().all(|(_, bytes)| bytes.len() <= 4100));
    assert_eq!(bench.adapter.too_big, [4096]);
    bench.finish();
}

#[test]
fn c2_a_neighbor_that_refuses_is_reached_by_datagrams_and_asked_ever_more_rarely() {
    let mut bench = Bench::connected();
    let mut connects = 0;
    for _ in 0..1000 {
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(100, true)).unwrap();
        bench.answer_where(|action| !matches!(action, Action::OpenConnection { .. }));
        while bench.opens_waiting() > 0 {
            let (op, ..) = bench.take_open();
            bench.connect_answer(op, Err(ConnectError::Rejected(8)));
            connects += 1;
        }
        bench.complete_all();
        bench.pass(Duration::from_millis(10));
    }
    assert_eq!(bench.adapter.wire.len(), 1000);
    assert!((2..=5).contains(&connects), "{connects} in 10 s");
    let notices = bench
        .events
        .iter()
        .filter(|event| matches!(event, Event::Notice(Notice::ConnectFailing(..))));
    assert_eq!(notices.count(), 1);
    bench.answer_all();
    bench.finish();
}

#[test]
fn a_connection_that_breaks_is_dropped_at_once_and_asked_for_again() {
    let mut bench = Bench::asking();
    bench.answer_all();
    for _ in 0..3 {
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
    }
    bench.complete_connected(CompletionStatus::Failed);
    // What comes now is fragmented: it goes by UD.
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(3000, false)).unwrap();
    assert_eq!(bench.adapter.connected_wire.len(), 3);
    assert_eq!(bench.adapter.wire.len(), 1 + 2);
    bench.answer_all();
    assert_eq!(bench.count(Counter::SendFlushed), 2);
    bench.complete_all();
    bench.pass(Duration::from_secs(1));
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
    bench.answer_all();
    assert_eq!(bench.adapter.connected_wire.len(), 4);
    bench.complete_connected(CompletionStatus::Success);
    bench.finish();
}

#[test]
fn c1_b08_another_queue_pair_at_the_same_port_is_another_neighbor() {
    let mut bench = Bench::asking();
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(12380, false)).unwrap();
    // The same GID, another queue pair, no RC flag, while a large packet waits.
    let moved = LinkAddress::new(AddressFlags::empty(), Qpn::new(0x777).unwrap(), peer(1).gid());
    bench.send(&moved, EtherType::IPV4, ipv4(12380, true)).unwrap();
    let (op, ..) = bench.take_open();
    bench.connect_answer(op, Ok(REP));
    bench.answer_all();
    assert!(bench.adapter.connected_wire.is_empty(), "the old connection carries nothing");
    assert_eq!((bench.adapter.too_big.as_slice(), bench.connections.len()), (&[2044][..], 0));
    let after: Vec<_> = bench.adapter.wire[1..].iter().map(|(send, _)| send.remote_qpn).collect();
    assert_eq!(after, [moved.qpn(); 7]);
    assert!(bench.adapter.wire.iter().all(|(_, bytes)| bytes.len() <= 2048));
    bench.complete_all();
    bench.finish();
}

#[test]
fn c1_a_new_queue_pair_with_the_flag_gets_a_connection_of_its_own() {
    let mut bench = Bench::asking();
    bench.answer_all();
    let moved = LinkAddress::new(AddressFlags::RC, Qpn::new(0x777).unwrap(), peer(1).gid());
    bench.send(&moved, EtherType::IPV4, ipv4(9000, true)).unwrap();
    bench.answer_where(|action| !matches!(action, Action::OpenConnection { .. }));
    let (op, _, request) = bench.take_open();
    assert_eq!(request.service, ServiceId(0x1000_0000_0000_0777));
    bench.connect_answer(op, Ok(REP));
    assert_eq!((bench.connections.len(), bench.count(Counter::ConnectionsRetired)), (1, 1));
    assert_eq!(bench.adapter.connected_wire.len(), 1);
    bench.finish();
}

#[test]
fn c1_in_a_full_table_a_neighbor_with_another_address_takes_its_own_place() {
    let mut bench = Bench::connected_with(Limits::SMALL, true);
    for n in 1..=4 {
        bench.send(&peer(n), EtherType::IPV4, ipv4(100, true)).unwrap();
    }
    // Three of them are being asked for, so none but its own place can be taken.
    let moved = LinkAddress::new(AddressFlags::empty(), Qpn::new(0x777).unwrap(), peer(1).gid());
    bench.send(&moved, EtherType::IPV4, ipv4(200, true)).unwrap();
    assert_eq!(bench.queries_waiting(), 4);
    bench.answer_all();
    assert_eq!(bench.interface.counters().drops_total(), 0);
    assert_eq!(bench.count(Counter::StaleAnswers), 0);
    let to_first: Vec<(Qpn, usize)> = bench.adapter.wire.iter().take(2).map(sent).collect();
    assert_eq!(to_first, [(moved.qpn(), 104), (moved.qpn(), 204)], "what waited went along");
    // And back, with the path in use.
    bench.send(&peer(1), EtherType::IPV4, ipv4(300, true)).unwrap();
    assert_eq!(bench.adapter.wire.last().map(sent), Some((peer(1).qpn(), 304)));
    assert_eq!(bench.count(Counter::PathQueries), 4);
    bench.complete_all();
    bench.finish();
}

fn sent((send, bytes): &(DatagramSend, Vec<u8>)) -> (Qpn, usize) {
    (send.remote_qpn, bytes.len())
}

#[test]
fn a1_an_address_that_flips_between_two_ports_puts_no_large_packet_on_ud() {
    let mut bench = Bench::connected();
    bench.interface.handle_connected_mtu(40950).unwrap();
    for flip in 0..60u8 {
        // The two ports of one peer; every third time one is seen in datagram mode, and every
        // fourth it refuses.
        let port = 1 + flip % 2;
        let to = if flip % 3 == 0 { peer(port) } else { connected_peer(port) };
        for _ in 0..3 {
            bench.send(&to, EtherType::IPV4, ipv4(12380, false)).unwrap();
        }
        bench.answer_where(|action| !matches!(action, Action::OpenConnection { .. }));
        while bench.opens_waiting() > 0 {
            let (op, ..) = bench.take_open();
            let answer = if flip % 4 == 0 { Err(ConnectError::Rejected(8)) } else { Ok(REP) };
            bench.connect_answer(op, answer);
        }
        bench.answer_all();
        while !bench.adapter.posted_connected.is_empty() {
            bench.complete_connected(CompletionStatus::Success);
        }
        bench.complete_all();
        bench.pass(Duration::from_secs(1));
    }
    assert!(bench.adapter.wire.iter().all(|(_, bytes)| bytes.len() <= 2048));
    let whole = bench.adapter.connected_wire.iter().filter(|(_, bytes)| bytes.len() == 12384);
    let fragments = bench.adapter.wire.iter().filter(|(_, bytes)| bytes.len() == 4 + 20 + 216);
    assert_eq!(whole.count() + fragments.count(), 180, "each arrives whole or in fragments");
    assert_eq!(bench.interface.counters().drops_total(), 0);
    bench.finish();
}

#[test]
fn b08_a_neighbor_that_goes_and_comes_back_is_reached_where_it_is_each_time() {
    let mut bench = Bench::connected();
    for n in [1, 2, 1, 2, 1] {
        bench.send(&connected_peer(n), EtherType::IPV4, ipv4(9000, true)).unwrap();
        bench.answer_all();
        let connection = bench.adapter.connected_wire.last().unwrap().0.connection;
        let row = bench.interface.neighbors().find(|row| row.address == connected_peer(n));
        assert_eq!(row.unwrap().transport, "connected");
        assert_eq!(connection.index(), usize::from(n) - 1);
    }
    bench.finish();
}

#[test]
fn b08_a_flag_that_is_cleared_again_ends_the_connection_again() {
    let mut bench = Bench::connected();
    let flagless = LinkAddress::new(AddressFlags::empty(), connected_peer(1).qpn(), peer(1).gid());
    for round in 1..=3 {
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, true)).unwrap();
        bench.answer_all();
        assert_eq!(bench.connections.len(), 1, "round {round}");
        bench.complete_connected(CompletionStatus::Success);
        bench.send(&flagless, EtherType::IPV4, ipv4(100, true)).unwrap();
        bench.answer_all();
        assert_eq!(bench.count(Counter::ConnectionsRetired), round);
        assert_eq!(bench.connections.len(), 0, "round {round}");
        bench.complete_all();
    }
    bench.finish();
}

#[test]
fn two_queue_pairs_of_one_port_keep_their_connections() {
    let mut bench = Bench::connected();
    let other = LinkAddress::new(AddressFlags::RC, Qpn::new(0x777).unwrap(), peer(1).gid());
    for to in [connected_peer(1), other, connected_peer(1), other, connected_peer(1)] {
        bench.send(&to, EtherType::IPV4, ipv4(9000, true)).unwrap();
        bench.answer_all();
        bench.complete_connected(CompletionStatus::Success);
    }
    // Of the first, when the second was new.
    assert_eq!((bench.count(Counter::ConnectionsRetired), bench.connections.len()), (1, 2));
    bench.finish();
}

#[test]
fn b11_one_account_of_the_ring_over_datagrams_and_connections() {
    let mut bench = Bench::connected_with(Limits::SMALL, true);
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(100, true)).unwrap();
    bench.send(&peer(2), EtherType::IPV4, ipv4(100, true)).unwrap();
    bench.answer_all();
    bench.complete_all();
    for _ in 0..3 {
        bench.send(&peer(2), EtherType::IPV4, ipv4(100, true)).unwrap();
    }
    for _ in 0..5 {
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, true)).unwrap();
    }
    assert!(bench.send(&peer(2), EtherType::IPV4, ipv4(100, true)).is_err());
    assert_eq!(bench.wakes, 0);
    // The connection goes with the five sends that it holds, and that alone restarts the queue.
    bench.connection_lost(bench.connections[0]);
    bench.answer_all();
    assert_eq!((bench.wakes, bench.interface.sends_outstanding()), (1, 3));
    bench.complete_all();
    bench.finish();
}

#[test]
fn c5_a_failed_post_ends_the_packet_once_and_leaves_the_connection_usable() {
    let mut bench = Bench::asking();
    bench.answer_all();
    bench.adapter.refuses_connected_sends = true;
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, true)).unwrap();
    bench.adapter.refuses_connected_sends = false;
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, true)).unwrap();
    assert_eq!((bench.drops(DropReason::PostFailed), bench.adapter.connected_wire.len()), (1, 1));
    bench.finish();
}

#[test]
fn c7_without_a_shared_queue_passive_connections_have_a_cap() {
    let mut bench = Bench::connected_with(Limits::SMALL, false);
    assert_eq!(bench.request(&connected_peer(1), 65524), Ok(()));
    assert_eq!(bench.request(&connected_peer(2), 65524), Ok(()));
    assert_eq!(bench.request(&connected_peer(3), 65524), Err(RejectReason::NoResources));
    bench.answer_all();
    assert_eq!(bench.adapter.own_receives_posted.values().sum::<u32>(), 2 * 4);
    bench.connection_lost(bench.connections[0]);
    bench.answer_all();
    assert_eq!(bench.request(&connected_peer(3), 65524), Ok(()));
    bench.answer_all();
    bench.finish();
}

#[test]
fn with_a_shared_queue_buffers_never_exceed_its_size() {
    let mut bench = Bench::connected_with(Limits::SMALL, true);
    for n in 1..=3 {
        bench.request(&connected_peer(n), 65524).unwrap();
        bench.answer_all();
        assert_eq!(bench.adapter.shared_receives_posted, 8);
    }
    assert_eq!(bench.request(&connected_peer(4), 65524), Err(RejectReason::NoResources));
    let frame = [&[0x08, 0, 0, 0][..], &ipv4(9000, false)].concat();
    bench.receive_connected(bench.connections[0], frame);
    assert_eq!(bench.adapter.delivered[0].0.len(), 9000);
    assert_eq!(bench.adapter.shared_receives_posted, 8);
    bench.finish();
}

#[test]
fn a_message_without_a_whole_header_is_dropped() {
    let mut bench = Bench::connected_with(Limits::SMALL, true);
    bench.request(&connected_peer(1), 65524).unwrap();
    bench.answer_all();
    for len in 0..4 {
        bench.receive_connected(bench.connections[0], vec![0; len]);
    }
    assert_eq!(bench.drops(DropReason::FrameTooShort), 4);
    bench.finish();
}

#[test]
fn a_newer_connection_of_the_same_peer_supersedes_the_older() {
    let mut bench = Bench::connected_with(Limits::SMALL, true);
    for _ in 0..5 {
        bench.request(&connected_peer(1), 65524).unwrap();
        bench.answer_all();
    }
    assert_eq!(bench.count(Counter::AcceptsSuperseded), 4);
    assert_eq!(bench.connections.len(), 2, "the newest, and one that is to go");
    bench.pass(LINGER_MAX);
    bench.answer_all();
    assert_eq!(bench.connections.len(), 1);
    bench.finish();
}

#[test]
fn h6_a_drain_marker_that_cannot_be_posted_stops_nothing() {
    let mut bench = Bench::connected_with(Limits::SMALL, true);
    bench.request(&connected_peer(1), 65524).unwrap();
    bench.answer_all();
    bench.connection_lost(bench.connections[0]);
    bench.answer_where(|action| !matches!(action, Action::PostDrainMarker { .. }));
    match bench.actions.pop_front() {
        Some(Action::PostDrainMarker { op, .. }) => bench.verb(op, Err(VerbError)),
        other => panic!("{other:?}"),
    }
    bench.answer_all();
    assert_eq!((bench.connections.len(), bench.count(Counter::IncomingForced)), (0, 1));
    bench.finish();
}

#[test]
fn an_adapter_that_never_says_last_wqe_is_waited_for_one_second() {
    let mut bench = Bench::connected_with(Limits::SMALL, true);
    bench.request(&connected_peer(1), 65524).unwrap();
    bench.answer_all();
    bench.connection_lost(bench.connections[0]);
    match bench.actions.pop_front() {
        Some(Action::ErrConnection { op, .. }) => bench.verb(op, Ok(())),
        other => panic!("{other:?}"),
    }
    bench.pass(Duration::from_millis(999));
    assert!(bench.actions.is_empty());
    bench.pass(Duration::from_millis(1));
    bench.answer_all();
    assert_eq!((bench.connections.len(), bench.count(Counter::IncomingForced)), (0, 1));
    bench.finish();
}

#[test]
fn a_silent_incoming_connection_is_reaped() {
    let mut bench = Bench::connected_with(Limits::SMALL, true);
    bench.request(&connected_peer(1), 65524).unwrap();
    bench.request(&connected_peer(2), 65524).unwrap();
    bench.answer_all();
    bench.pass(Duration::from_secs(400));
    bench.receive_connected(bench.connections[1], vec![0x08, 0, 0, 0, 1]);
    bench.pass(Duration::from_secs(300));
    bench.answer_all();
    assert_eq!((bench.connections.len(), bench.count(Counter::IncomingReaped)), (1, 1));
    bench.finish();
}

#[test]
fn h9_starting_psns_come_from_the_seed_and_differ() {
    let mut bench = Bench::connected();
    let mut psns = Vec::new();
    for n in 1..=4 {
        bench.send(&connected_peer(n), EtherType::IPV4, ipv4(100, true)).unwrap();
        bench.answer_where(|action| !matches!(action, Action::OpenConnection { .. }));
        let (op, _, request) = bench.take_open();
        psns.push(request.starting_psn.value());
        bench.connect_answer(op, Ok(REP));
    }
    psns.sort_unstable();
    psns.dedup();
    assert!(psns.len() == 4 && !psns.contains(&0));
    bench.complete_all();
    bench.finish();
}

#[test]
fn the_mtu_of_connected_mode_has_limits() {
    let mut bench = Bench::connected();
    assert!(bench.interface.handle_connected_mtu(65521).is_err());
    assert!(bench.interface.handle_connected_mtu(1279).is_err());
    assert_eq!(bench.interface.handle_connected_mtu(40950), Ok(()));
    assert_eq!(bench.interface.mtu(), 40950);
    bench.finish();
}

#[test]
fn a_port_that_goes_down_closes_every_connection() {
    let mut bench = Bench::asking();
    bench.answer_all();
    bench.request(&connected_peer(3), 65524).unwrap();
    bench.answer_all();
    assert_eq!(bench.connections.len(), 2);
    bench.port_event(PortEvent::PortError, |port| port.is_active = false);
    bench.answer_all();
    assert_eq!((bench.connections.len(), bench.is_listening), (0, false));
    bench.port_event(PortEvent::PortActive, |port| port.is_active = true);
    bench.answer_all();
    assert!(bench.is_listening);
    bench.finish();
}

#[test]
fn a_refreshed_path_moves_its_connection_as_well() {
    let mut bench = Bench::asking();
    bench.answer_all();
    bench.port_event(PortEvent::SmChanged, |_| {});
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, true)).unwrap();
    let (op, query) = bench.take_query();
    let mut record = path_to(&query);
    record.lid = ipoib_rs::ib::Lid::new(0x77).unwrap();
    bench.path_answer(op, Ok(record));
    bench.answer_all();
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9001, true)).unwrap();
    bench.answer_all();
    let used: Vec<usize> =
        bench.adapter.connected_wire.iter().map(|(send, _)| send.connection.index()).collect();
    assert_eq!(used.len(), 2);
    assert_eq!(bench.count(Counter::PathsReplaced), 1);
    bench.complete_all();
    bench.finish();
}
