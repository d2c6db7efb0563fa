//! Connected mode: interfaces that find, use and lose reliable connections.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric::transit::{Transit, Transport};
use ipoib_rs::action::Action;
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::event::Event;
use ipoib_rs::interface::{ConnectedSupport, Mode};
use ipoib_rs::limits::{LINGER_MAX, Limits};
use ipoib_rs::packet::Cast;
use ipoib_rs::wire::{AddressFlags, EtherType, LinkAddress};

use crate::world::{PARENT, Setup, World};

/// The largest packet of connected mode.
const LARGE_BYTES: usize = 65_520;

/// An IPv6 packet of `len` bytes, different for each `mark`.
fn large(len: usize, mark: u8) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_mul(mark | 1)).collect();
    let [high, low] = (len as u16 - 40).to_be_bytes();
    bytes[..8].copy_from_slice(&[0x60, 0, 0, mark, high, low, 17, 64]);
    bytes[8..40].fill(0xFD);
    bytes
}

/// An IPv4 datagram of `len` bytes that may be fragmented.
fn ipv4(len: usize) -> Vec<u8> {
    ipv4_numbered(len, 1)
}

fn ipv4_numbered(len: usize, number: u8) -> Vec<u8> {
    let [high, low] = (len as u16).to_be_bytes();
    let mut bytes = vec![0x45, 0, high, low, 0, number, 0, 0, 64, 17, 0, 0];
    bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.resize(len, 9);
    bytes
}

fn is_message(transit: &Transit) -> bool {
    matches!(transit.header().transport, Transport::Message { .. })
}

/// Whether it is of communication management (IBA 13.4.4, class 0x07).
fn is_cm(transit: &Transit) -> bool {
    transit.payload_len() == 256 && transit.payload()[1] == 0x07
}

impl World {
    fn count(&self, host: usize, counter: Counter) -> u64 {
        self.interface(host).counters()[counter]
    }

    /// The transport and MTU towards an address in the table of neighbours.
    fn neighbor(&self, host: usize, to: &LinkAddress) -> (&'static str, usize) {
        let mut rows = self.interface(host).neighbors();
        let row = rows.find(|row| row.address == *to).unwrap();
        (row.transport, row.mtu)
    }

    fn set_mode(&mut self, host: usize, mode: Mode) {
        let node = &mut self.hosts[host].node;
        node.set_mode(self.now, &mut self.fabric, PARENT, mode).unwrap();
    }

    /// Sends a large packet and lets it arrive.
    fn exchange(&mut self, from: usize, to: usize, mark: u8) {
        let address = self.address(to);
        let packet = large(LARGE_BYTES, mark);
        self.received(to);
        self.send(from, &address, &packet).unwrap();
        self.settle();
        assert!(self.received(to) == [(packet, Cast::Unicast)], "{from} does not reach {to}");
    }

    /// Nothing of any connection is left, and nothing ever went wrong on the wire.
    fn assert_no_connection(&self) {
        for host in &self.hosts {
            // QP1 and that of the interface.
            assert_eq!(self.fabric.qp_count(host.hca), 2);
            assert_eq!(host.node.cm_connections_len(), 0);
            assert_eq!(host.node.counters().actions_lost, 0);
        }
        assert_eq!(self.fabric.pool().outstanding(), 0);
        assert_eq!(self.fabric.violations().oversize_ud, 0);
    }

    /// Detaches and removes everything, and asserts that nothing is left.
    fn dismantle(mut self) {
        for host in &mut self.hosts {
            host.node.handle_detach(self.now, &mut self.fabric, PARENT);
        }
        self.pass(Duration::from_secs(30));
        assert!(self.hosts.iter().all(|host| host.has_seen(Event::Detached)));
        self.assert_no_connection();
        for mut host in std::mem::take(&mut self.hosts) {
            host.node.remove_interface(&mut self.fabric, PARENT).unwrap();
            assert_eq!(self.fabric.srq_count(host.hca), 0);
            host.node.close(&mut self.fabric);
            assert_eq!(self.fabric.qp_count(host.hca), 0);
        }
        self.subnet.close(&mut self.fabric);
        assert_eq!(self.fabric.pool().outstanding(), 0);
    }
}

#[test]
fn a_large_first_packet_arrives_whole_by_a_connection() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    let to = world.address(1);
    assert!(to.flags().contains(AddressFlags::RC));
    assert_eq!(world.interface(0).mtu(), LARGE_BYTES);
    world.exchange(0, 1, 1);
    assert_eq!(world.neighbor(0, &to), ("connected", LARGE_BYTES));
    assert_eq!(world.count(0, Counter::ConnectedSent), 1);
    assert_eq!(world.count(1, Counter::ConnectedReceived), 1);
    assert_eq!((world.drops(0), world.drops(1)), (0, 0));
    // A connection needs neither a second REQ nor a second queue pair.
    world.exchange(0, 1, 2);
    assert_eq!(world.count(0, Counter::Connects), 1);
    assert_eq!(world.hosts[0].node.cm_counters().established, 1);
    assert_eq!(world.hosts[1].node.cm_counters().established, 1);
    world.dismantle();
}

#[test]
fn both_directions_have_connections_of_their_own_when_they_cross() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    let addresses = [world.address(0), world.address(1)];
    let packets = [large(LARGE_BYTES, 1), large(LARGE_BYTES, 2)];
    // Nobody's REQ has arrived when the other's is sent.
    world.send(0, &addresses[1], &packets[0]).unwrap();
    world.send(1, &addresses[0], &packets[1]).unwrap();
    world.settle();
    assert!(world.received(1) == [(packets[0].clone(), Cast::Unicast)]);
    assert!(world.received(0) == [(packets[1].clone(), Cast::Unicast)]);
    for host in [0, 1] {
        assert_eq!(world.count(host, Counter::Connected), 1);
        assert_eq!(world.count(host, Counter::Accepts), 1);
        assert_eq!(world.neighbor(host, &addresses[1 - host]), ("connected", LARGE_BYTES));
        // QP1, the interface's, one for each direction.
        assert_eq!(world.fabric.qp_count(world.hosts[host].hca), 4);
    }
    world.dismantle();
}

#[test]
fn small_packets_do_not_wait_for_the_connection() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    let to = world.address(1);
    let packet = large(9000, 1);
    // No message of communication management arrives: the connection stays undecided.
    world.is_lost = is_cm;
    world.send(0, &to, b"find the path").unwrap();
    world.settle();
    world.send(0, &to, &packet).unwrap();
    world.send(0, &to, b"small").unwrap();
    world.settle();
    assert_eq!(
        world.received(1),
        [(b"find the path".to_vec(), Cast::Unicast), (b"small".to_vec(), Cast::Unicast)]
    );
    assert_eq!(world.neighbor(0, &to), ("connecting", 2044));
    world.is_lost = |_| false;
    world.pass(Duration::from_secs(1));
    assert!(world.received(1) == [(packet, Cast::Unicast)], "the REQ was repeated");
    assert!(world.hosts[0].node.cm_counters().mads_repeated > 0);
    world.dismantle();
}

#[test]
fn a_peer_in_datagram_mode_rejects_and_gets_fragments() {
    let mut world = World::with(&[Setup::CONNECTED, Setup::DATAGRAM], Limits::DEFAULT);
    let plain = world.address(1);
    // An address that says otherwise, as one from before the peer's mode was changed.
    let to = LinkAddress::new(AddressFlags::RC, plain.qpn(), plain.gid());
    world.send_as(0, &to, EtherType::IPV4, &ipv4(12_380)).unwrap();
    world.settle();
    let fragments = world.received(1);
    let lengths: Vec<usize> = fragments.iter().map(|(bytes, _)| bytes.len()).collect();
    assert_eq!(lengths, [2044, 2044, 2044, 2044, 2044, 2044, 20 + 216]);
    assert_eq!(world.count(0, Counter::ConnectsFailed), 1);
    assert_eq!(world.hosts[0].node.cm_counters().rejections, 1);
    assert_eq!(world.hosts[1].node.cm_counters().requests_unserved, 1);
    assert_eq!(world.neighbor(0, &to), ("refused", 2044));
    // One that must not be fragmented is answered.
    world.send(0, &to, &large(9000, 1)).unwrap();
    world.settle();
    assert_eq!(world.hosts[0].too_big, [(9000, 2044)]);
    world.dismantle();
}

#[test]
fn without_a_shared_queue_every_connection_has_receives_of_its_own() {
    let mut world = World::with(&[Setup::UNSHARED; 3], Limits::DEFAULT);
    for (from, to) in [(0, 1), (2, 1), (1, 0), (1, 2)] {
        for mark in 1..=40 {
            world.exchange(from, to, mark);
        }
    }
    assert_eq!(world.count(1, Counter::Accepts), 2);
    for host in &world.hosts {
        assert_eq!(world.fabric.srq_count(host.hca), 0);
    }
    world.dismantle();
}

#[test]
fn above_the_limit_of_unshared_connections_a_peer_is_refused() {
    let limits = Limits { incoming_unshared_max: 1, ..Limits::DEFAULT };
    let mut world = World::with(&[Setup::UNSHARED; 3], limits);
    world.exchange(0, 1, 1);
    let to = world.address(1);
    world.send_as(2, &to, EtherType::IPV4, &ipv4(5000)).unwrap();
    world.settle();
    assert_eq!(world.received(1).len(), 3, "in fragments");
    assert_eq!(world.neighbor(2, &to), ("refused", 2044));
    assert_eq!(world.count(1, Counter::AcceptsRefused), 1);
    world.dismantle();
}

#[test]
fn a_lost_message_breaks_the_connection_and_it_comes_back_after_a_while() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    world.exchange(0, 1, 1);
    let to = world.address(1);
    world.is_lost = is_message;
    world.send(0, &to, &large(LARGE_BYTES, 2)).unwrap();
    world.settle();
    assert_eq!(world.count(0, Counter::SendFailed), 1);
    assert_eq!(world.count(0, Counter::ConnectionsLost), 1);
    assert_eq!(world.neighbor(0, &to).0, "refused");
    world.is_lost = |_| false;
    // Small packets go on at once.
    world.send(0, &to, b"small").unwrap();
    world.settle();
    assert_eq!(world.received(1), [(b"small".to_vec(), Cast::Unicast)]);
    world.pass(Duration::from_secs(2));
    world.exchange(0, 1, 3);
    assert_eq!(world.neighbor(0, &to), ("connected", LARGE_BYTES));
    world.dismantle();
}

#[test]
fn a_port_that_was_down_has_new_connections_afterwards() {
    for down in [0, 1] {
        let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
        world.exchange(0, 1, 1);
        world.exchange(1, 0, 2);
        let port = world.hosts[down].port;
        world.subnet.link_down(&mut world.fabric, port).unwrap();
        let up = 1 - down;
        let to = world.address(down);
        world.send(up, &to, &large(LARGE_BYTES, 3)).unwrap();
        world.pass(Duration::from_secs(5));
        world.subnet.link_up(&mut world.fabric, port).unwrap();
        world.pass(Duration::from_secs(70));
        world.received(0);
        world.received(1);
        world.exchange(0, 1, 4);
        world.exchange(1, 0, 5);
        world.dismantle();
    }
}

#[test]
fn a_connection_that_nobody_answers_is_given_up_in_time() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    let to = world.address(1);
    world.is_lost = is_cm;
    world.send(0, &to, &large(9000, 1)).unwrap();
    world.pass(Duration::from_secs(5));
    assert_eq!(world.count(0, Counter::ConnectsFailed), 1);
    assert_eq!(world.hosts[0].node.cm_counters().timed_out, 1);
    assert_eq!(world.hosts[0].too_big, [(9000, 2044)]);
    assert_eq!(world.interface(0).packets_queued(), 0);
    world.dismantle();
}

#[test]
fn the_mode_changes_under_traffic_and_no_packet_is_lost_silently() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    for round in 0..8 {
        let mode = if round % 2 == 0 { Mode::Datagram } else { Mode::Connected };
        let switching = round / 2 % 2;
        let lost_before = [0, 1].map(|host| lost(&world, host));
        for number in 0..9 {
            // The last ones are sent after the change.
            if number == 8 {
                world.set_mode(switching, mode);
            }
            for (from, to) in [(0, 1), (1, 0)] {
                let to = world.address(to);
                let packet = ipv4_numbered(1500 + number * 1000, number as u8);
                world.send_as(from, &to, EtherType::IPV4, &packet).unwrap();
            }
        }
        world.pass(Duration::from_secs(3));
        for host in [0, 1] {
            let arrived = whole_datagrams(world.received(host));
            assert!(arrived.contains(&8), "round {round}: {arrived:?}");
            let lost = lost(&world, 1 - host) - lost_before[1 - host];
            assert!(arrived.len() as u64 + lost >= 9, "round {round}: {arrived:?} and {lost}");
        }
    }
    // Posted sends of a connection that ends are flushed; nothing is dropped.
    assert_eq!((world.drops(0), world.drops(1)), (0, 0));
    world.dismantle();
}

/// Sends that did not end well.
fn lost(world: &World, host: usize) -> u64 {
    world.count(host, Counter::SendFlushed) + world.count(host, Counter::SendFailed)
}

/// The numbers of the datagrams that arrived; none may have arrived in part.
fn whole_datagrams(received: Vec<(Vec<u8>, Cast)>) -> BTreeSet<u8> {
    let mut lengths = BTreeMap::<u8, usize>::new();
    for (bytes, _) in received {
        *lengths.entry(bytes[5]).or_default() += bytes.len() - 20;
    }
    for (number, length) in &lengths {
        assert_eq!(*length, 1480 + usize::from(*number) * 1000, "{number}");
    }
    lengths.into_keys().collect()
}

fn payload_len((bytes, _): &(Vec<u8>, Cast)) -> usize {
    bytes.len() - 20
}

#[test]
fn datagram_mode_closes_every_connection() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    world.exchange(0, 1, 1);
    world.exchange(1, 0, 1);
    world.set_mode(0, Mode::Datagram);
    // The peer does not hear of it here, so it may send on for a while.
    world.pass(LINGER_MAX + Duration::from_secs(3));
    assert_eq!(world.interface(0).mtu(), 2044);
    assert!(!world.address(0).flags().contains(AddressFlags::RC));
    world.assert_no_connection();
    world.dismantle();
}

#[test]
fn a_smaller_connected_mtu_holds_for_what_is_sent() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    let to = world.address(1);
    let node = &mut world.hosts[0].node;
    node.set_connected_mtu(&mut world.fabric, PARENT, 40_950).unwrap();
    assert!(node.set_connected_mtu(&mut world.fabric, PARENT, 65_521).is_err());
    assert_eq!(world.interface(0).mtu(), 40_950);
    world.send(0, &to, &large(40_950, 1)).unwrap();
    world.settle();
    assert_eq!(world.received(1).len(), 1);
    assert_eq!(world.neighbor(0, &to), ("connected", 40_950));
    world.dismantle();
}

#[test]
fn a_peer_that_comes_back_with_another_queue_pair_is_another_neighbor() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    world.exchange(0, 1, 1);
    world.exchange(1, 0, 2);
    let before = world.address(1);
    world.hosts[1].node.handle_detach(world.now, &mut world.fabric, PARENT);
    world.pass(Duration::from_secs(2));
    let host = &mut world.hosts[1];
    host.node.remove_interface(&mut world.fabric, PARENT).unwrap();
    assert_ne!(world.neighbor(0, &before).0, "connected", "the peer said that it goes");
    let host = &mut world.hosts[1];
    let config = Setup::CONNECTED.config(7, Limits::DEFAULT);
    host.node.add_interface(&mut world.fabric, &config).unwrap();
    host.node.handle_admin_up(world.now, &mut world.fabric, PARENT);
    world.pass(Duration::from_secs(2));
    let after = world.address(1);
    assert_ne!(before.qpn(), after.qpn());
    world.exchange(0, 1, 3);
    world.exchange(1, 0, 4);
    assert_eq!(world.neighbor(0, &after), ("connected", LARGE_BYTES));
    world.dismantle();
}

#[test]
fn a_peer_that_vanished_without_a_word_is_reached_again() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    world.exchange(0, 1, 1);
    world.exchange(1, 0, 2);
    let before = world.address(1);
    world.crash(1, Setup::CONNECTED);
    assert_ne!(world.address(1), before);
    world.send(0, &before, &large(LARGE_BYTES, 3)).unwrap();
    world.pass(Duration::from_secs(2));
    assert_eq!(world.count(0, Counter::ConnectionsLost), 1);
    world.exchange(0, 1, 4);
    world.exchange(1, 0, 5);
    world.dismantle();
}

#[test]
fn a_detach_with_sends_outstanding_leaves_nothing() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    world.exchange(0, 1, 1);
    world.exchange(1, 0, 1);
    let to = world.address(1);
    for mark in 0..16 {
        world.send(0, &to, &large(LARGE_BYTES, mark)).unwrap();
    }
    assert_eq!(world.interface(0).sends_outstanding(), 16);
    let (now, fabric) = (world.now, &mut world.fabric);
    world.hosts[0].node.handle_detach(now, fabric, PARENT);
    world.pass(Duration::from_secs(3));
    assert!(world.hosts[0].has_seen(Event::Detached));
    assert_eq!(world.hosts[0].node.cm_connections_len(), 0);
    assert_eq!(world.fabric.qp_count(world.hosts[0].hca), 2);
    assert_eq!(world.interface(0).sends_outstanding(), 0);
    world.dismantle();
}

#[test]
fn an_incoming_connection_is_drained_in_order_and_never_by_force() {
    for setup in [Setup::CONNECTED, Setup::UNSHARED] {
        let mut world = World::with(&[setup; 2], Limits::DEFAULT);
        for mark in 1..5 {
            world.exchange(0, 1, mark);
            world.set_mode(1, Mode::Datagram);
            world.pass(LINGER_MAX + Duration::from_secs(2));
            world.assert_no_connection();
            assert_eq!(world.interface(1).incoming().count(), 0);
            world.set_mode(1, Mode::Connected);
            world.pass(Duration::from_secs(2));
        }
        assert_eq!(world.count(1, Counter::IncomingForced), 0, "{setup:?}");
        world.dismantle();
    }
}

#[test]
fn a_message_too_long_for_its_receive_ends_the_connection_at_both_ends() {
    let short = ConnectedSupport { mtu_max: 4000, shares_receives: true };
    let short = Setup { connected: Some(short), ..Setup::CONNECTED };
    let mut world = World::with(&[Setup::CONNECTED, short], Limits::DEFAULT);
    let to = world.address(1);
    // The receiver said what it takes, so that is what is sent.
    world.send_as(0, &to, EtherType::IPV4, &ipv4(9000)).unwrap();
    world.settle();
    assert_eq!(world.neighbor(0, &to), ("connected", 4000));
    let lengths: Vec<usize> = world.received(1).iter().map(|(bytes, _)| bytes.len()).collect();
    assert_eq!(lengths, [3996, 3996, 9000 - 2 * 3976]);
    assert_eq!(world.count(0, Counter::ConnectedSent), 3);
    world.dismantle();
}

#[test]
fn every_action_that_fails_is_answered_and_leaves_nothing() {
    let fails: [fn(&Action) -> bool; 7] = [
        |action| matches!(action, Action::Listen { .. }),
        |action| matches!(action, Action::OpenConnection { .. }),
        |action| matches!(action, Action::AcceptConnection { .. }),
        |action| matches!(action, Action::ErrConnection { .. }),
        |action| matches!(action, Action::PostDrainMarker { .. }),
        |action| matches!(action, Action::DestroyConnection { .. }),
        |action| matches!(action, Action::Unlisten { .. }),
    ];
    for is_failing in fails {
        let mut world = World::with(&[Setup::DATAGRAM; 2], Limits::DEFAULT);
        world.is_failing = is_failing;
        for host in [0, 1] {
            world.set_mode(host, Mode::Connected);
        }
        world.settle();
        let to = world.address(1);
        world.send_as(0, &to, EtherType::IPV4, &ipv4(9000)).unwrap();
        world.pass(Duration::from_secs(3));
        let arrived: usize = world.received(1).iter().map(payload_len).sum();
        assert_eq!(arrived, 8980);
        world.set_mode(1, Mode::Datagram);
        world.pass(Duration::from_secs(5));
        world.is_failing = |_| false;
        world.set_mode(1, Mode::Connected);
        world.pass(Duration::from_secs(70));
        world.exchange(0, 1, 1);
        world.dismantle();
    }
}

#[test]
fn an_adapter_that_refuses_messages_loses_packets_and_nothing_else() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    world.exchange(0, 1, 1);
    let to = world.address(1);
    world.hosts[0].node.refuse_posts(PARENT, 2);
    for mark in [2, 3] {
        world.send(0, &to, &large(9000, mark)).unwrap();
    }
    world.settle();
    assert_eq!(world.interface(0).counters()[DropReason::PostFailed], 2);
    world.hosts[1].node.refuse_posts(PARENT, 1);
    world.exchange(0, 1, 4);
    world.pass(Duration::from_secs(1));
    world.exchange(0, 1, 5);
    assert_eq!(world.count(1, Counter::ReceivePostFailed), 1);
    world.dismantle();
}

#[test]
fn a_wedged_adapter_does_not_keep_an_interface_with_connections() {
    let mut world = World::with(&[Setup::CONNECTED; 2], Limits::DEFAULT);
    world.exchange(0, 1, 1);
    world.exchange(1, 0, 2);
    let (to, hca) = (world.address(1), world.hosts[0].hca);
    world.fabric.set_wedged(hca, true).unwrap();
    world.send(0, &to, &large(LARGE_BYTES, 3)).unwrap();
    world.settle();
    let (now, fabric) = (world.now, &mut world.fabric);
    world.hosts[0].node.handle_detach(now, fabric, PARENT);
    world.pass(Duration::from_secs(30));
    assert!(world.hosts[0].has_seen(Event::Detached));
    world.fabric.set_wedged(hca, false).unwrap();
    world.settle();
    world.dismantle();
}

#[test]
fn a_full_table_of_the_connection_manager_leaves_datagrams() {
    let mut world = World::with(&[Setup::CONNECTED; 3], Limits::DEFAULT);
    world.replace_node(0, Setup::CONNECTED, |config| config.connections_max = 1);
    world.exchange(0, 1, 1);
    let to = world.address(2);
    world.send_as(0, &to, EtherType::IPV4, &ipv4(9000)).unwrap();
    world.settle();
    let arrived: usize = world.received(2).iter().map(payload_len).sum();
    assert_eq!(arrived, 8980);
    assert_eq!(world.neighbor(0, &to), ("refused", 2044));
    assert_eq!(world.hosts[0].node.cm_counters().connects_table_full, 1);
    world.dismantle();
}

/// A splitmix64 sequence.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % end) as usize
    }
}

const LOSSES: [fn(&Transit) -> bool; 6] = [
    |_| false,
    is_message,
    is_cm,
    |transit| is_cm(transit) && transit.header().psn.value() % 3 == 0,
    |transit| matches!(transit.header().transport, Transport::Response { .. }),
    |transit| transit.header().psn.value() % 5 == 0,
];
const FAILURES: [fn(&Action) -> bool; 5] = [
    |_| false,
    |action| matches!(action, Action::OpenConnection { .. }),
    |action| matches!(action, Action::AcceptConnection { .. } | Action::Listen { .. }),
    |action| matches!(action, Action::ErrConnection { .. }),
    |action| matches!(action, Action::PostDrainMarker { .. }),
];

/// One thing that happens to somebody.
fn trouble(world: &mut World, dice: &mut Dice, setup: Setup) {
    let host = dice.below(3);
    let port = world.hosts[host].port;
    match dice.below(16) {
        0 => world.is_lost = LOSSES[dice.below(6)],
        1 => world.is_failing = FAILURES[dice.below(5)],
        2 => world.set_mode(host, Mode::Datagram),
        3 => world.set_mode(host, Mode::Connected),
        4 => world.subnet.link_down(&mut world.fabric, port).unwrap(),
        5 => world.subnet.link_up(&mut world.fabric, port).unwrap(),
        // A node that closes loses what its interface holds.
        6 if world.interface(host).packets_queued() == 0 => world.crash(host, setup),
        7 => {
            let is_wedged = dice.below(2) == 0;
            world.fabric.set_wedged(world.hosts[host].hca, is_wedged).unwrap();
        }
        8 => world.hosts[host].node.refuse_posts(PARENT, dice.below(4) as u32),
        9 => world.pass(Duration::from_millis(1 << dice.below(12))),
        10 => world.settle(),
        _ => {
            let to = world.address((host + 1 + dice.below(2)) % 3);
            let packet = large(41 + dice.below(65_479), 1);
            if let Err(full) = world.send(host, &to, &packet) {
                world.fabric.pool_mut().free(full.0);
            }
        }
    }
}

#[test]
fn after_random_troubles_everybody_is_reached_and_nothing_is_left() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let setup = if seed % 2 == 0 { Setup::CONNECTED } else { Setup::UNSHARED };
        let mut world = World::with(&[setup; 3], Limits::DEFAULT);
        for _ in 0..60 {
            trouble(&mut world, &mut dice, setup);
        }
        world.is_lost = |_| false;
        world.is_failing = |_| false;
        for host in 0..3 {
            let (hca, port) = (world.hosts[host].hca, world.hosts[host].port);
            world.fabric.set_wedged(hca, false).unwrap();
            world.subnet.link_up(&mut world.fabric, port).unwrap();
            world.hosts[host].node.refuse_posts(PARENT, 0);
            world.set_mode(host, Mode::Connected);
        }
        world.pass(Duration::from_secs(200));
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            let address = world.address(to);
            world.send(from, &address, b"is there anybody").unwrap();
            world.pass(Duration::from_secs(10));
            world.exchange(from, to, seed as u8);
        }
        world.dismantle();
    }
}
