//! What the swarm of the simulator found, each as a test of one interface.

mod common;

use std::time::Duration;

use common::{Bench, broadcast, connected_peer, ipv4, peer};
use ipoib_rs::action::{
    Action, ConnectError, ConnectionParameters, RejectReason, SaError, SaRefusal,
};
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::ib::Qpn;
use ipoib_rs::interface::PortEvent;
use ipoib_rs::limits::{DRAIN_MAX, INCOMING_YIELD_AFTER, Limits};
use ipoib_rs::wire::{AddressFlags, EtherType, LinkAddress};

const REP: ConnectionParameters =
    ConnectionParameters { qpn: Qpn::new(0x101).unwrap(), receive_mtu: 65524 };

/// The address of a peer after its host started anew: another queue pair of the same port.
fn reborn(peer: u8, life: u32) -> LinkAddress {
    let qpn = Qpn::new(0x1000 + life).unwrap();
    LinkAddress::new(AddressFlags::RC, qpn, connected_peer(peer).gid())
}

#[test]
fn a_lower_mtu_holds_for_a_connection_that_is_there_and_a_higher_one_as_well() {
    let mut bench = Bench::asking();
    let (op, ..) = bench.take_open();
    bench.connect_answer(op, Ok(REP));
    for (mtu, lengths) in [(9000, vec![9004, 4020, 4020]), (65520, vec![12384])] {
        bench.interface.handle_connected_mtu(mtu).unwrap();
        let before = bench.adapter.connected_wire.len();
        for len in [mtu.min(12380), 12380] {
            bench.send(&connected_peer(1), EtherType::IPV4, ipv4(len, false)).unwrap();
        }
        let sent = &bench.adapter.connected_wire[before..];
        assert!(sent.iter().all(|(_, bytes)| bytes.len() <= mtu + 4), "{lengths:?}");
        let row = bench.interface.neighbors().next().unwrap();
        assert_eq!((row.transport, row.mtu), ("connected", mtu));
    }
    bench.complete_all();
    bench.finish();
}

#[test]
fn a_peer_that_restarts_again_and_again_does_not_fill_the_table_of_incoming_connections() {
    for shares_receives in [true, false] {
        let mut bench = Bench::connected_with(Limits::SMALL, shares_receives);
        for life in 0..10 {
            // No DREQ comes: the host has forgotten what it had. It asks until there is room.
            let mut tries = 0;
            while bench.request(&reborn(1, life), 65524) == Err(RejectReason::NoResources) {
                bench.answer_all();
                bench.pass(Duration::from_secs(1));
                bench.answer_all();
                tries += 1;
                assert!(tries < 4, "life {life} is shut out");
            }
            bench.answer_all();
        }
        assert!(bench.count(Counter::AcceptsSuperseded) > 0);
        bench.finish();
    }
}

#[test]
fn a_connection_that_nobody_seems_to_need_makes_room_for_a_peer_that_asks() {
    let full = || {
        let mut bench = Bench::connected_with(Limits::SMALL, true);
        for peer in 1..=3 {
            bench.request(&connected_peer(peer), 65524).unwrap();
            bench.answer_all();
            bench.pass(Duration::from_millis(1));
        }
        assert_eq!(bench.request(&connected_peer(4), 65524), Err(RejectReason::NoResources));
        bench
    };
    let settle = |bench: &mut Bench| {
        bench.answer_all();
        bench.pass(Duration::from_secs(1));
        bench.answer_all();
    };
    // Peer 1 starts anew: then the connection of its earlier life is the one to go.
    let mut bench = full();
    assert_eq!(bench.request(&reborn(1, 1), 65524), Err(RejectReason::NoResources));
    settle(&mut bench);
    assert_eq!(bench.request(&reborn(1, 1), 65524), Ok(()));
    settle(&mut bench);
    bench.finish();
    // All are silent.
    let mut bench = full();
    bench.pass(INCOMING_YIELD_AFTER);
    assert_eq!(bench.request(&connected_peer(4), 65524), Err(RejectReason::NoResources));
    settle(&mut bench);
    assert_eq!(bench.request(&connected_peer(4), 65524), Ok(()));
    settle(&mut bench);
    let gids: Vec<_> = bench.interface.incoming().map(|row| row.gid).collect();
    assert!(!gids.contains(&connected_peer(1).gid()), "the one that is silent longest went");
    bench.finish();
}

#[test]
fn a_newer_connection_of_a_peer_has_room_when_the_table_is_full() {
    let mut bench = Bench::connected_with(Limits::SMALL, true);
    for peer in 1..=3 {
        bench.request(&connected_peer(peer), 65524).unwrap();
        bench.answer_all();
    }
    assert_eq!(bench.request(&connected_peer(1), 65524), Err(RejectReason::NoResources));
    bench.answer_all();
    bench.pass(Duration::from_secs(1));
    bench.answer_all();
    assert_eq!(bench.request(&connected_peer(1), 65524), Ok(()));
    bench.answer_all();
    bench.finish();
}

#[test]
fn a_neighbor_that_is_gone_leaves_its_place_in_the_table_of_connections_to_another() {
    let mut bench = Bench::connected_with(Limits::SMALL, true);
    let refuse = |bench: &mut Bench, peer| {
        bench.send(&connected_peer(peer), EtherType::IPV4, ipv4(100, false)).unwrap();
        bench.answer_where(|action| !matches!(action, Action::OpenConnection { .. }));
        let (op, ..) = bench.take_open();
        bench.connect_answer(op, Err(ConnectError::Rejected(8)));
        bench.answer_all();
        bench.complete_all();
    };
    (1..=3).for_each(|peer| refuse(&mut bench, peer));
    // Each may still be asked again in its own time: there is no place for a fourth.
    bench.send(&connected_peer(4), EtherType::IPV4, ipv4(100, false)).unwrap();
    bench.answer_all();
    bench.complete_all();
    let refusals = bench.count(Counter::OutgoingTableFull);
    assert!(refusals > 0 && bench.connections.is_empty());
    bench.pass(Duration::from_secs(2));
    bench.send(&connected_peer(4), EtherType::IPV4, ipv4(100, false)).unwrap();
    bench.answer_all();
    bench.complete_all();
    assert_eq!(bench.count(Counter::OutgoingTableFull), refusals);
    assert_eq!(bench.connections.len(), 1);
    bench.finish();
}

/// Lets the queue pair be what it is to be, and nothing follow from that.
fn modify(bench: &mut Bench) {
    let is_it = |action: &Action| matches!(action, Action::ModifyQueuePair { .. });
    let at = bench.actions.iter().position(is_it).expect("the queue pair is to be modified");
    let op = bench.actions.remove(at).and_then(|action| action.operation());
    bench.verb(op.expect("it is answered"), Ok(()));
}

#[test]
fn a_stack_that_was_refused_is_woken_when_the_queue_pair_is_reset_with_packets_in_line() {
    let mut bench = Bench::joined_with(Limits::SMALL);
    for _ in 0..12 {
        bench.send(&peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    }
    bench.answer_all();
    assert_eq!((bench.interface.sends_outstanding(), bench.interface.packets_queued()), (8, 4));
    bench.send(&broadcast(), EtherType::IPV4, ipv4(100, false)).unwrap_err();
    assert_eq!(bench.wakes, 0);
    // The adapter completes nothing: what is posted comes back with the reset.
    bench.admin_down();
    modify(&mut bench);
    bench.answer_all();
    bench.pass(DRAIN_MAX);
    bench.adapter.posted.drain(..).for_each(|(_, packet)| drop(packet.end()));
    bench.adapter.receives_posted = 0;
    assert_eq!((bench.interface.sends_outstanding(), bench.wakes), (8, 0));
    modify(&mut bench);
    assert_eq!((bench.interface.sends_outstanding(), bench.wakes), (0, 1));
    bench.finish();
}

#[test]
fn what_waits_for_an_address_is_not_kept_when_the_one_before_comes_back_and_is_out_of_reach() {
    let mut bench = Bench::connected();
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    let (op, _) = bench.take_query();
    bench.path_answer(op, Err(SaError::Refused(SaRefusal::NoRecords)));
    bench.send(&peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    assert_eq!(bench.interface.packets_queued(), 1);
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    assert_eq!(bench.interface.packets_queued(), 0);
    assert_eq!(bench.drops(DropReason::PathUnresolved), 3);
    bench.port_event(PortEvent::ClientReregister, |_| {});
    bench.answer_all();
    bench.finish();
}
