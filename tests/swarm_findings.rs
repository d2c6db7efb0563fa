//! What the swarm of the simulator found, each as a test of one interface.

mod common;

use std::time::Duration;

use common::{Bench, connected_peer, ipv4};
use ipoib_rs::action::{Action, ConnectError, ConnectionParameters, RejectReason};
use ipoib_rs::counters::Counter;
use ipoib_rs::ib::Qpn;
use ipoib_rs::limits::{INCOMING_YIELD_AFTER, Limits};
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
