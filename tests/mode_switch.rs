//! The mode of an interface is switched under traffic: nothing is lost that could be sent.

mod common;

use std::time::Duration;

use common::{Bench, connected_peer, ipv4};
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::interface::{Mode, PortEvent};
use ipoib_rs::limits::{DRAIN_MAX, LINGER_MAX, Limits};
use ipoib_rs::packet::CompletionStatus;
use ipoib_rs::wire::{AddressFlags, EtherType};

/// An interface with three messages posted on its connection to peer 1.
fn sending() -> Bench {
    let mut bench = Bench::connected();
    for _ in 0..3 {
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
    }
    bench.answer_all();
    assert_eq!((bench.adapter.posted_connected.len(), bench.connections.len()), (3, 1));
    bench
}

/// An interface with a connection of peer 1 to receive from.
fn receiving() -> Bench {
    let mut bench = Bench::connected_with(Limits::SMALL, true);
    bench.request(&connected_peer(1), 65524).unwrap();
    bench.answer_all();
    bench
}

#[test]
fn the_mode_can_be_switched_under_traffic_and_loses_nothing_that_could_be_sent() {
    let mut bench = Bench::asking();
    bench.answer_all();
    assert_eq!(bench.interface.mtu(), 65520);
    for round in 0..20u32 {
        let mode = if round % 2 == 0 { Mode::Datagram } else { Mode::Connected };
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
        assert_eq!(bench.mode(mode), Ok(()));
        bench.answer_all();
        let flags = bench.interface.address().flags();
        assert_eq!(flags.contains(AddressFlags::RC), mode == Mode::Connected);
        assert_eq!(bench.is_listening, mode == Mode::Connected);
        assert_eq!(bench.interface.mtu(), if mode == Mode::Connected { 65520 } else { 2044 });
        bench.complete_all();
        bench.pass(Duration::from_secs(5));
    }
    assert!(bench.adapter.wire.iter().all(|(_, bytes)| bytes.len() <= 2048));
    assert_eq!(bench.interface.counters().drops_total(), 0);
    bench.finish();
}

#[test]
fn a_switch_to_datagram_mode_sends_what_waited_for_a_connection_in_fragments() {
    let mut bench = Bench::asking();
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
    bench.mode(Mode::Datagram).unwrap();
    assert_eq!((bench.adapter.wire.len(), bench.adapter.released), (1 + 5, 1));
    bench.answer_all();
    bench.complete_all();
    bench.finish();
}

#[test]
fn what_is_posted_on_a_connection_goes_out_before_it_closes() {
    let mut bench = sending();
    bench.mode(Mode::Datagram).unwrap();
    bench.answer_all();
    for left in [2, 1, 0] {
        assert_eq!(bench.connections.len(), 1, "closed with {} sends posted", left + 1);
        bench.complete_connected(CompletionStatus::Success);
        bench.answer_all();
        assert_eq!(bench.adapter.posted_connected.len(), left);
    }
    assert_eq!(bench.connections, []);
    assert_eq!((bench.count(Counter::ConnectedSent), bench.count(Counter::SendFlushed)), (3, 0));
    bench.finish();
}

#[test]
fn a_connection_without_posted_sends_closes_at_once() {
    let mut bench = sending();
    for _ in 0..3 {
        bench.complete_connected(CompletionStatus::Success);
    }
    bench.mode(Mode::Datagram).unwrap();
    bench.answer_all();
    assert_eq!(bench.connections, []);
    bench.finish();
}

#[test]
fn an_adapter_that_does_not_finish_the_sends_is_waited_for_one_second() {
    let mut bench = sending();
    bench.mode(Mode::Datagram).unwrap();
    bench.pass(DRAIN_MAX - Duration::from_millis(1));
    bench.answer_all();
    assert_eq!((bench.connections.len(), bench.count(Counter::DrainsTimedOut)), (1, 0));
    bench.pass(Duration::from_millis(1));
    bench.answer_all();
    assert_eq!((bench.connections.len(), bench.count(Counter::DrainsTimedOut)), (0, 1));
    assert_eq!((bench.count(Counter::SendFlushed), bench.interface.sends_outstanding()), (3, 0));
    bench.finish();
}

#[test]
fn a_connection_that_breaks_while_it_is_drained_closes_at_once() {
    for breaks_by_completion in [false, true] {
        let mut bench = sending();
        bench.mode(Mode::Datagram).unwrap();
        bench.complete_connected(CompletionStatus::Success);
        if breaks_by_completion {
            bench.complete_connected(CompletionStatus::Failed);
        } else {
            bench.connection_lost(bench.connections[0]);
        }
        bench.answer_all();
        assert_eq!((bench.connections.len(), bench.count(Counter::ConnectionsLost)), (0, 1));
        bench.finish();
    }
}

#[test]
fn a_link_that_goes_down_ends_a_drain() {
    let mut bench = sending();
    bench.mode(Mode::Datagram).unwrap();
    bench.port_event(PortEvent::PortError, |port| port.is_active = false);
    bench.answer_all();
    assert_eq!((bench.connections.len(), bench.count(Counter::SendFlushed)), (0, 3));
    bench.finish();
}

#[test]
fn a_switch_back_opens_another_connection_beside_the_one_that_is_drained() {
    let mut bench = sending();
    bench.mode(Mode::Datagram).unwrap();
    bench.mode(Mode::Connected).unwrap();
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
    bench.answer_all();
    assert_eq!((bench.connections.len(), bench.adapter.posted_connected.len()), (2, 4));
    for _ in 0..4 {
        bench.complete_connected(CompletionStatus::Success);
    }
    bench.answer_all();
    assert_eq!((bench.connections.len(), bench.count(Counter::ConnectedSent)), (1, 4));
    bench.finish();
}

#[test]
fn what_a_peer_sends_before_it_hears_of_the_mode_is_received() {
    let mut bench = receiving();
    bench.mode(Mode::Datagram).unwrap();
    bench.answer_all();
    // More than there are receives: they are posted again.
    for _ in 0..20 {
        bench.receive_connected(bench.connections[0], vec![0x08; 9004]);
    }
    assert_eq!((bench.adapter.delivered.len(), bench.adapter.shared_receives_posted), (20, 8));
    bench.connection_lost(bench.connections[0]);
    bench.answer_all();
    assert_eq!((bench.connections.len(), bench.count(Counter::IncomingForced)), (0, 0));
    bench.finish();
}

#[test]
fn a_peer_that_never_hears_of_the_mode_is_put_off_in_bounded_time() {
    let mut bench = receiving();
    bench.mode(Mode::Datagram).unwrap();
    bench.pass(LINGER_MAX - Duration::from_millis(1));
    bench.answer_all();
    assert_eq!(bench.connections.len(), 1);
    bench.pass(Duration::from_millis(1));
    bench.answer_all();
    assert_eq!((bench.connections.len(), bench.count(Counter::IncomingForced)), (0, 0));
    bench.finish();
}

#[test]
fn a_connection_whose_peer_holds_it_survives_a_switch_there_and_back() {
    let mut bench = receiving();
    bench.mode(Mode::Datagram).unwrap();
    bench.pass(Duration::from_secs(1));
    bench.mode(Mode::Connected).unwrap();
    bench.pass(2 * LINGER_MAX);
    bench.answer_all();
    assert_eq!(bench.connections.len(), 1);
    bench.receive_connected(bench.connections[0], vec![0x08; 9004]);
    assert_eq!(bench.adapter.delivered.len(), 1);
    bench.finish();
}

#[test]
fn a_superseded_connection_still_delivers_what_its_peer_had_sent() {
    let mut bench = receiving();
    bench.request(&connected_peer(1), 65524).unwrap();
    bench.answer_all();
    assert_eq!(bench.connections.len(), 2);
    bench.receive_connected(bench.connections[0], vec![0x08; 9004]);
    bench.receive_connected(bench.connections[1], vec![0x08; 9004]);
    assert_eq!(bench.adapter.delivered.len(), 2);
    bench.pass(LINGER_MAX);
    bench.answer_all();
    assert_eq!(bench.connections.len(), 1);
    bench.finish();
}

#[test]
fn lingering_connections_make_room_for_peers_that_ask() {
    let mut bench = Bench::connected_with(Limits::SMALL, true);
    for n in 1..=3 {
        bench.request(&connected_peer(n), 65524).unwrap();
    }
    bench.answer_all();
    bench.mode(Mode::Datagram).unwrap();
    bench.receive_connected(bench.connections[0], vec![0x08; 9004]);
    bench.mode(Mode::Connected).unwrap();
    // All three are as before, so a fourth finds no place ...
    assert!(bench.request(&connected_peer(4), 65524).is_err());
    // ... but one that its peer replaced does not keep another peer out for long.
    bench.connection_lost(bench.connections[2]);
    bench.answer_all();
    bench.request(&connected_peer(1), 65524).unwrap();
    bench.answer_all();
    assert!(bench.request(&connected_peer(4), 65524).is_err());
    bench.answer_all();
    bench.request(&connected_peer(4), 65524).unwrap();
    bench.answer_all();
    assert_eq!(bench.connections.len(), 3);
    bench.finish();
}

#[test]
fn the_flag_of_the_address_follows_the_mode_at_once() {
    let mut bench = Bench::connected();
    for _ in 0..1000 {
        for mode in [Mode::Datagram, Mode::Connected] {
            bench.mode(mode).unwrap();
            let has_flag = bench.interface.address().flags().contains(AddressFlags::RC);
            assert_eq!(has_flag, mode == Mode::Connected);
        }
    }
    bench.answer_all();
    assert_eq!((bench.is_listening, bench.count(Counter::ModeChanges)), (true, 2000));
    assert_eq!(bench.drops(DropReason::LinkDown), 0);
    bench.finish();
}
