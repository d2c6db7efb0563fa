//! Reports B01, B23, B26, C1 and C4: packets to one neighbour.

use std::time::Duration;

use ipoib_rs::action::{Action, SaError, SaRefusal};
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::event::{Event, Notice};
use ipoib_rs::ib::{IbMtu, Lid, Qpn};
use ipoib_rs::interface::PortEvent;
use ipoib_rs::limits::{Limits, PATH_RETRY_FIRST, PENDING_MAX};
use ipoib_rs::packet::CompletionStatus;
use ipoib_rs::wire::{AddressFlags, EtherType, LinkAddress};

use crate::common::*;
use crate::scene::*;

/// What was posted of an IPv4 packet: length of the payload, fragment offset in units of 8 bytes,
/// and whether more follows.
fn pieces(scene: &mut Scene) -> Vec<(usize, u16, bool)> {
    let piece = |bytes: &Vec<u8>| {
        let field = u16::from_be_bytes([bytes[10], bytes[11]]);
        (bytes.len() - 24, field & 0x1FFF, field & 0x2000 != 0)
    };
    scene.adapter().wire.iter().map(|(_, bytes)| piece(bytes)).collect()
}

fn queries(scene: &Scene) -> usize {
    let is_query = |action: &Action| matches!(action, Action::QueryPath { .. }).then_some(());
    scene.logged(is_query).len()
}

#[test]
fn b01_over_long_ipv4_with_df_is_reported_once_with_the_mtu_of_the_neighbour() {
    let mut scene = Scene::with_path();
    scene.send(&peer(1), EtherType::IPV4, ipv4(12380, true));
    let adapter = scene.adapter();
    assert!(adapter.wire.is_empty() && adapter.dropped.is_empty());
    assert_eq!(adapter.too_big, [2044]);
    assert_eq!(scene.dropped(DropReason::TooBigReported), 1);
    scene.finish();
}

#[test]
fn b01_over_long_ipv6_is_reported_once() {
    let mut scene = Scene::with_path();
    scene.send(&peer(1), EtherType::IPV6, ipv6(12380));
    let adapter = scene.adapter();
    assert!(adapter.wire.is_empty() && adapter.dropped.is_empty());
    assert_eq!(adapter.too_big, [2044]);
    scene.finish();
}

#[test]
fn b01_over_long_ipv4_without_df_arrives_in_7_fragments() {
    let mut scene = Scene::with_path();
    scene.send(&peer(1), EtherType::IPV4, ipv4(12380, false));
    let offsets = [0, 253, 506, 759, 1012, 1265];
    let mut expected = offsets.map(|offset| (2024, offset, true)).to_vec();
    expected.push((216, 1518, false));
    assert_eq!(pieces(&mut scene), expected);
    let adapter = scene.adapter();
    assert!(adapter.wire.iter().all(|(_, bytes)| bytes[8..10] == [0x12, 0x34]));
    assert!(adapter.too_big.is_empty() && adapter.dropped.is_empty());
    assert_eq!(scene.counted(Counter::Fragmented), 1);
    scene.finish();
}

#[test]
fn b01_over_long_packets_that_are_no_ip_are_dropped_and_counted() {
    for protocol in [EtherType::ARP, EtherType(0x1234)] {
        let mut scene = Scene::with_path();
        scene.send(&peer(1), protocol, vec![0; 3000]);
        let adapter = scene.adapter();
        assert!(adapter.wire.is_empty() && adapter.too_big.is_empty());
        assert_eq!(adapter.dropped, [DropReason::TooBigSilent]);
        scene.finish();
    }
}

#[test]
fn b01_multicast_icmp_errors_and_later_fragments_are_never_reported() {
    let group = LinkAddress::multicast(mgid("224.1.2.3"));
    let mut icmp_error = ipv4(3000, true);
    icmp_error[9] = 1;
    icmp_error[20] = 3;
    let mut later_fragment = ipv4(3000, true);
    later_fragment[7] = 100;
    let cases = [(group, ipv4(3000, true)), (peer(1), icmp_error), (peer(1), later_fragment)];
    for (to, packet) in cases {
        let mut scene = Scene::with_path();
        scene.send(&to, EtherType::IPV4, packet);
        let adapter = scene.adapter();
        assert!(adapter.wire.is_empty() && adapter.too_big.is_empty());
        assert_eq!(adapter.dropped, [DropReason::TooBigSilent]);
        scene.finish();
    }
}

#[test]
fn b01_a_thousand_over_long_packets_end_one_by_one_with_one_line_in_the_log() {
    let mut scene = Scene::with_path();
    for _ in 0..1000 {
        scene.send(&peer(1), EtherType::IPV4, ipv4(12380, true));
    }
    assert_eq!(scene.adapter().too_big.len(), 1000);
    assert_eq!(scene.dropped(DropReason::TooBigReported), 1000);
    let notice = Event::Notice(Notice::TooBig(peer(1), 2044));
    assert_eq!(scene.events().iter().filter(|&&event| event == notice).count(), 1);
    scene.finish();
}

#[test]
fn b01_the_mtu_is_that_of_the_path_when_it_is_narrower_than_the_link() {
    let mut scene = Scene::joined();
    scene.answers(|action, _| match action {
        Action::QueryPath { query, .. } => {
            let mut record = path_to(query);
            record.mtu = IbMtu::Mtu1024;
            Answer::Path(record)
        }
        _ => Answer::Usual,
    });
    // Queued before the path is known, and sent after it is.
    for packet in [ipv4(1500, true), ipv4(1500, false), ipv4(1020, true)] {
        scene.send(&peer(1), EtherType::IPV4, packet);
    }
    assert_eq!(scene.adapter().too_big, [1020]);
    assert_eq!(pieces(&mut scene), [(1000, 0, true), (480, 125, false), (1000, 0, false)]);
    scene.finish();
}

#[test]
fn b23_a_handle_lives_until_the_last_send_that_uses_it_completed() {
    let mut scene = Scene::with_path();
    for _ in 0..4 {
        scene.send(&peer(1), EtherType::IPV4, ipv4(100, true));
    }
    let old = scene.adapter().posted[0].0.handle;
    scene.answers(|action, _| match action {
        Action::QueryPath { query, .. } => {
            let mut record = path_to(query);
            record.lid = Lid::new(0x222).unwrap();
            Answer::Path(record)
        }
        _ => Answer::Usual,
    });
    scene.port_event(PortEvent::SmChanged, port());
    // The next packet looks the path up again.
    scene.send(&peer(1), EtherType::IPV4, ipv4(100, true));
    scene.send(&peer(1), EtherType::IPV4, ipv4(100, true));
    assert_eq!(scene.counted(Counter::PathsReplaced), 1);
    let latest = scene.adapter().wire.last().unwrap().0;
    assert_ne!(latest.handle, old, "the new record is in use");

    let destroyed = |scene: &Scene| {
        let is_it = |action: &Action| match action {
            Action::DestroyAddressHandle { handle, .. } => (*handle == old).then_some(()),
            _ => None,
        };
        scene.logged(is_it).len()
    };
    let posted = scene.adapter().posted.iter().map(|(send, _)| *send);
    let uses: Vec<_> = posted.filter(|send| send.handle == old).collect();
    assert!(uses.len() >= 4);
    // Out of order; the bench fails if a handle in use is destroyed.
    for (index, send) in uses.iter().rev().enumerate() {
        assert_eq!(destroyed(&scene), 0, "after {index} completions");
        scene.complete(send.id, CompletionStatus::Success);
    }
    assert_eq!(destroyed(&scene), 1);
    scene.finish();
}

#[test]
fn b23_a_reset_queue_pair_lets_go_of_its_handles() {
    let mut scene = Scene::with_path();
    scene.send(&peer(1), EtherType::IPV4, ipv4(100, true));
    scene.send(&peer(1), EtherType::IPV4, ipv4(100, true));
    scene.is_wedged = true;
    scene.admin_down();
    scene.pass(Duration::from_secs(5));
    assert_eq!(scene.interface().state_name(), "down");
    assert_eq!(scene.counted(Counter::SendFlushed), 2);
    scene.finish();
}

#[test]
fn b26_the_largest_datagram_waits_whole_for_its_path_and_goes_in_order() {
    let mut scene = Scene::joined();
    scene.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    // As the stack fragments a datagram of 65507 bytes at 2044: 32 fragments of 2024, one of 747.
    for fragment in 0..33_u8 {
        let len = if fragment < 32 { 2044 } else { 767 };
        let mut packet = ipv4(len, false);
        packet[5] = fragment;
        scene.send(&peer(1), EtherType::IPV4, packet);
    }
    scene.pass(Duration::from_millis(50));
    assert_eq!(scene.interface().packets_queued(), 33);
    scene.answers_as_usual();
    let query = scene.held.pop().unwrap();
    scene.answer(query, Answer::Usual);
    let order: Vec<u8> = scene.adapter().wire.iter().map(|(_, bytes)| bytes[9]).collect();
    assert_eq!(order, (0..33).collect::<Vec<u8>>());
    assert_eq!(scene.interface().counters().drops_total(), 0);
    scene.finish();
}

#[test]
fn b26_an_unanswered_query_frees_the_queue_and_the_next_packet_asks_not_before_a_second() {
    let mut scene = Scene::joined();
    scene.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    let send = |scene: &mut Scene| {
        scene.send(&peer(1), EtherType::IPV4, ipv4(2044, false));
    };
    (0..33).for_each(|_| send(&mut scene));
    let query = scene.held.pop().unwrap();
    scene.answer(query, Answer::Sa(SaError::TimedOut));
    assert_eq!(scene.dropped(DropReason::PathUnresolved), 33);
    assert_eq!(scene.interface().packets_queued(), 0);

    scene.pass(PATH_RETRY_FIRST - Duration::from_millis(1));
    send(&mut scene);
    assert_eq!((queries(&scene), scene.dropped(DropReason::PathUnresolved)), (1, 34));
    scene.pass(Duration::from_millis(1));
    send(&mut scene);
    assert_eq!((queries(&scene), scene.interface().packets_queued()), (2, 1));
    scene.finish();
}

#[test]
fn b26_packets_above_the_limit_are_dropped_and_counted() {
    let mut scene = Scene::joined();
    scene.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    let limit = Limits::DEFAULT.path_queue_packets_max;
    for _ in 0..limit + 5 {
        scene.send(&peer(1), EtherType::IPV4, ipv4(100, false));
    }
    assert_eq!(scene.dropped(DropReason::PathQueueFull), 5);
    assert_eq!(scene.interface().packets_queued(), limit);
    scene.finish();
}

#[test]
fn b26_bytes_above_the_limit_are_dropped_and_counted() {
    let limits = Limits { path_queue_packets_max: 1000, ..Limits::DEFAULT };
    let mut scene = Scene::attach_with(port(), limits);
    scene.admin_up();
    scene.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    let room = limits.path_queue_bytes_max / 2044;
    for _ in 0..room + 5 {
        scene.send(&peer(1), EtherType::IPV4, ipv4(2044, false));
    }
    assert_eq!(scene.dropped(DropReason::PathQueueFull), 5);
    assert_eq!(scene.interface().packets_queued(), room);
    scene.finish();
}

#[test]
fn b26_no_handle_for_a_path_frees_the_queue() {
    let mut scene = Scene::joined();
    scene.answers(|action, _| match action {
        Action::CreateAddressHandle { .. } => Answer::VerbFailed,
        _ => Answer::Usual,
    });
    scene.send(&peer(1), EtherType::IPV4, ipv4(100, false));
    assert_eq!(scene.dropped(DropReason::HandleFailed), 1);
    assert_eq!(scene.interface().packets_queued(), 0);
    scene.finish();
}

#[test]
fn c1_an_address_that_differs_in_qpn_or_flags_is_another_neighbour() {
    let mut scene = Scene::joined();
    let qpn = |number| Qpn::new(number).unwrap();
    let addresses = [
        LinkAddress::new(AddressFlags::RC, qpn(0x40), peer(1).gid()),
        LinkAddress::new(AddressFlags::RC, qpn(0x41), peer(1).gid()),
        LinkAddress::new(AddressFlags::empty(), qpn(0x41), peer(1).gid()),
        LinkAddress::new(AddressFlags::RC, qpn(0x40), peer(1).gid()),
    ];
    for address in &addresses {
        scene.send(address, EtherType::IPV4, ipv4(100, true));
    }
    let qpns: Vec<_> =
        scene.adapter().wire.iter().map(|(send, _)| send.remote_qpn.value()).collect();
    assert_eq!(qpns, [0x40, 0x41, 0x41, 0x40]);
    let mut known: Vec<_> = scene.interface().neighbors().map(|row| row.address).collect();
    known.sort_unstable();
    let mut expected = addresses[..3].to_vec();
    expected.sort_unstable();
    assert_eq!(known, expected);
    scene.finish();
}

#[test]
fn c4_a_refused_query_frees_the_queue_at_once() {
    let refusals = [SaError::Refused(SaRefusal::NoRecords), SaError::TimedOut, SaError::Unusable];
    for refusal in refusals {
        let mut scene = Scene::joined();
        scene.answers(move |action, _| match action {
            Action::QueryPath { .. } => Answer::Sa(refusal),
            _ => Answer::Usual,
        });
        scene.send(&peer(1), EtherType::IPV4, ipv4(100, true));
        assert_eq!(scene.adapter().dropped.len(), 1, "{refusal:?}");
        assert_eq!(scene.dropped(DropReason::PathUnresolved), 1);
        scene.finish();
    }
}

#[test]
fn c4_packets_do_not_wait_for_a_busy_sa_longer_than_they_may() {
    let mut scene = Scene::joined();
    scene.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Sa(SaError::Busy),
        _ => Answer::Usual,
    });
    scene.send(&peer(1), EtherType::IPV4, ipv4(100, true));
    scene.pass(PENDING_MAX - Duration::from_millis(1));
    assert_eq!(scene.interface().packets_queued(), 1);
    assert!(queries(&scene) > 2, "it is asked again");
    scene.pass(Duration::from_millis(1));
    assert_eq!(scene.dropped(DropReason::PendingExpired), 1);
    scene.finish();
}
