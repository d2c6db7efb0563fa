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

/// What was posted of an IPv4 packet: length of the payload, fragment offset in units of 8 bytes, and
/// whether more follows.
fn pieces(bench: &mut Bench) -> Vec<(usize, u16, bool)> {
    let piece = |bytes: &Vec<u8>| {
        let field = u16::from_be_bytes([bytes[10], bytes[11]]);
        (bytes.len() - 24, field & 0x1FFF, field & 0x2000 != 0)
    };
    bench.adapter().sent.iter().map(|(_, bytes)| piece(bytes)).collect()
}

fn queries(bench: &Bench) -> usize {
    let is_query = |action: &Action| matches!(action, Action::QueryPath { .. }).then_some(());
    bench.logged(is_query).len()
}

#[test]
fn b01_over_long_ipv4_with_df_is_reported_once_with_the_mtu_of_the_neighbour() {
    let mut bench = Bench::with_path();
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(12380, DF)).unwrap();
    let adapter = bench.adapter();
    assert!(adapter.sent.is_empty() && adapter.dropped.is_empty());
    assert_eq!(adapter.too_big, [(ipv4(12380, DF), 2044)]);
    assert_eq!(bench.dropped(DropReason::TooBigReported), 1);
    bench.detach();
}

#[test]
fn b01_over_long_ipv6_is_reported_once() {
    let mut bench = Bench::with_path();
    bench.transmit(&neighbour(1), EtherType::IPV6, &ipv6(12380)).unwrap();
    let adapter = bench.adapter();
    assert!(adapter.sent.is_empty() && adapter.dropped.is_empty());
    assert_eq!(adapter.too_big, [(ipv6(12380), 2044)]);
    bench.detach();
}

#[test]
fn b01_over_long_ipv4_without_df_arrives_in_7_fragments() {
    let mut bench = Bench::with_path();
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(12380, 0)).unwrap();
    let offsets = [0, 253, 506, 759, 1012, 1265];
    let mut expected = offsets.map(|offset| (2024, offset, true)).to_vec();
    expected.push((216, 1518, false));
    assert_eq!(pieces(&mut bench), expected);
    let adapter = bench.adapter();
    assert!(adapter.sent.iter().all(|(_, bytes)| bytes[8..10] == [0xBE, 0xEF]));
    assert!(adapter.too_big.is_empty() && adapter.dropped.is_empty());
    assert_eq!(bench.counted(Counter::Fragmented), 1);
    bench.detach();
}

#[test]
fn b01_over_long_packets_that_are_no_ip_are_dropped_and_counted() {
    for protocol in [EtherType::ARP, EtherType(0x1234)] {
        let mut bench = Bench::with_path();
        bench.transmit(&neighbour(1), protocol, &[0; 3000]).unwrap();
        let adapter = bench.adapter();
        assert!(adapter.sent.is_empty() && adapter.too_big.is_empty());
        assert_eq!(adapter.dropped, [(vec![0; 3000], DropReason::TooBigSilent)]);
        bench.detach();
    }
}

#[test]
fn b01_multicast_icmp_errors_and_later_fragments_are_never_reported() {
    let group = LinkAddress::multicast(mgid("224.1.2.3"));
    let mut icmp_error = ipv4(3000, DF);
    icmp_error[9] = 1;
    icmp_error[20] = 3;
    let mut later_fragment = ipv4(3000, DF);
    later_fragment[7] = 100;
    let cases = [
        (group, ipv4_to([224, 1, 2, 3], 3000, DF)),
        (neighbour(1), icmp_error),
        (neighbour(1), later_fragment),
    ];
    for (to, packet) in cases {
        let mut bench = Bench::with_path();
        bench.transmit(&to, EtherType::IPV4, &packet).unwrap();
        let adapter = bench.adapter();
        assert!(adapter.sent.is_empty() && adapter.too_big.is_empty());
        assert_eq!(adapter.dropped, [(packet, DropReason::TooBigSilent)]);
        bench.detach();
    }
}

#[test]
fn b01_a_thousand_over_long_packets_end_one_by_one_with_one_line_in_the_log() {
    let mut bench = Bench::with_path();
    for _ in 0..1000 {
        bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(12380, DF)).unwrap();
    }
    assert_eq!(bench.adapter().too_big.len(), 1000);
    assert_eq!(bench.dropped(DropReason::TooBigReported), 1000);
    let notice = Event::Notice(Notice::TooBig(neighbour(1), 2044));
    assert_eq!(bench.events().iter().filter(|&&event| event == notice).count(), 1);
    bench.detach();
}

#[test]
fn b01_the_mtu_is_that_of_the_path_when_it_is_narrower_than_the_link() {
    let mut bench = Bench::joined();
    bench.answers(|action, _| match action {
        Action::QueryPath { query, .. } => {
            let mut record = path_record(query.destination);
            record.mtu = IbMtu::Mtu1024;
            Answer::Path(record)
        }
        _ => Answer::Usual,
    });
    // Queued before the path is known, and sent after it is.
    for packet in [ipv4(1500, DF), ipv4(1500, 0), ipv4(1020, DF)] {
        bench.transmit(&neighbour(1), EtherType::IPV4, &packet).unwrap();
    }
    assert_eq!(bench.adapter().too_big, [(ipv4(1500, DF), 1020)]);
    assert_eq!(pieces(&mut bench), [(1000, 0, true), (480, 125, false), (1000, 0, false)]);
    bench.detach();
}

#[test]
fn b23_a_handle_lives_until_the_last_send_that_uses_it_completed() {
    let mut bench = Bench::with_path();
    for _ in 0..4 {
        bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, DF)).unwrap();
    }
    let sends = bench.adapter().posted();
    let old = sends[0].handle;
    bench.answers(|action, _| match action {
        Action::QueryPath { query, .. } => {
            let mut record = path_record(query.destination);
            record.lid = Lid::new(0x222).unwrap();
            Answer::Path(record)
        }
        _ => Answer::Usual,
    });
    bench.port_event(PortEvent::SmChanged, port());
    // The next packet looks the path up again.
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, DF)).unwrap();
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, DF)).unwrap();
    assert_eq!(bench.counted(Counter::PathsReplaced), 1);
    let latest = bench.adapter().sent.last().unwrap().0;
    assert_ne!(latest.handle, old, "the new record is in use");

    let destroyed = |bench: &Bench| {
        let is_it = |action: &Action| match action {
            Action::DestroyAddressHandle { handle, .. } => (*handle == old).then_some(()),
            _ => None,
        };
        bench.logged(is_it).len()
    };
    let uses: Vec<_> = bench.adapter().posted().into_iter().filter(|s| s.handle == old).collect();
    assert!(uses.len() >= 4);
    // Out of order; the bench fails if a handle in use is destroyed.
    for (index, send) in uses.iter().rev().enumerate() {
        assert_eq!(destroyed(&bench), 0, "after {index} completions");
        bench.complete(send.id, CompletionStatus::Success);
    }
    assert_eq!(destroyed(&bench), 1);
    bench.detach();
}

#[test]
fn b23_a_reset_queue_pair_lets_go_of_its_handles() {
    let mut bench = Bench::with_path();
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, DF)).unwrap();
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, DF)).unwrap();
    bench.adapter().is_wedged = true;
    bench.admin_down();
    bench.run(Duration::from_secs(5));
    assert_eq!(bench.interface().state_name(), "down");
    assert_eq!(bench.counted(Counter::SendFlushed), 2);
    bench.detach();
}

#[test]
fn b26_the_largest_datagram_waits_whole_for_its_path_and_goes_in_order() {
    let mut bench = Bench::joined();
    bench.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    // As the stack fragments a datagram of 65507 bytes at 2044: 32 fragments of 2024, one of 747.
    for fragment in 0..33_u8 {
        let len = if fragment < 32 { 2044 } else { 767 };
        let mut packet = ipv4(len, 0);
        packet[5] = fragment;
        bench.transmit(&neighbour(1), EtherType::IPV4, &packet).unwrap();
    }
    bench.run(Duration::from_millis(50));
    assert_eq!(bench.interface().packets_queued(), 33);
    bench.answers_as_usual();
    let query = bench.held.pop().unwrap();
    bench.answer(query, Answer::Usual);
    let order: Vec<u8> = bench.adapter().sent.iter().map(|(_, bytes)| bytes[9]).collect();
    assert_eq!(order, (0..33).collect::<Vec<u8>>());
    assert_eq!(bench.interface().counters().drops_total(), 0);
    bench.detach();
}

#[test]
fn b26_an_unanswered_query_frees_the_queue_and_the_next_packet_asks_not_before_a_second() {
    let mut bench = Bench::joined();
    bench.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    let send = |bench: &mut Bench| {
        bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(2044, 0)).unwrap();
    };
    (0..33).for_each(|_| send(&mut bench));
    let query = bench.held.pop().unwrap();
    bench.answer(query, Answer::Sa(SaError::TimedOut));
    assert_eq!(bench.dropped(DropReason::PathUnresolved), 33);
    assert_eq!(bench.interface().packets_queued(), 0);

    bench.run(PATH_RETRY_FIRST - Duration::from_millis(1));
    send(&mut bench);
    assert_eq!((queries(&bench), bench.dropped(DropReason::PathUnresolved)), (1, 34));
    bench.run(Duration::from_millis(1));
    send(&mut bench);
    assert_eq!((queries(&bench), bench.interface().packets_queued()), (2, 1));
    bench.detach();
}

#[test]
fn b26_packets_above_the_limit_are_dropped_and_counted() {
    let mut bench = Bench::joined();
    bench.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    let limit = Limits::DEFAULT.path_queue_packets_max;
    for _ in 0..limit + 5 {
        bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, 0)).unwrap();
    }
    assert_eq!(bench.dropped(DropReason::PathQueueFull), 5);
    assert_eq!(bench.interface().packets_queued(), limit);
    bench.detach();
}

#[test]
fn b26_bytes_above_the_limit_are_dropped_and_counted() {
    let limits = Limits { path_queue_packets_max: 1000, ..Limits::DEFAULT };
    let mut bench = Bench::attach_with(port(), limits);
    bench.admin_up();
    bench.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    let room = limits.path_queue_bytes_max / 2044;
    for _ in 0..room + 5 {
        bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(2044, 0)).unwrap();
    }
    assert_eq!(bench.dropped(DropReason::PathQueueFull), 5);
    assert_eq!(bench.interface().packets_queued(), room);
    bench.detach();
}

#[test]
fn b26_no_handle_for_a_path_frees_the_queue() {
    let mut bench = Bench::joined();
    bench.answers(|action, _| match action {
        Action::CreateAddressHandle { .. } => Answer::VerbFailed,
        _ => Answer::Usual,
    });
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, 0)).unwrap();
    assert_eq!(bench.dropped(DropReason::HandleFailed), 1);
    assert_eq!(bench.interface().packets_queued(), 0);
    bench.detach();
}

#[test]
fn c1_an_address_that_differs_in_qpn_or_flags_is_another_neighbour() {
    let mut bench = Bench::joined();
    let qpn = |number| Qpn::new(number).unwrap();
    let addresses = [
        LinkAddress::new(AddressFlags::RC, qpn(0x40), gid(1)),
        LinkAddress::new(AddressFlags::RC, qpn(0x41), gid(1)),
        LinkAddress::new(AddressFlags::empty(), qpn(0x41), gid(1)),
        LinkAddress::new(AddressFlags::RC, qpn(0x40), gid(1)),
    ];
    for address in &addresses {
        bench.transmit(address, EtherType::IPV4, &ipv4(100, DF)).unwrap();
    }
    let qpns: Vec<_> = bench.adapter().sent.iter().map(|(send, _)| send.remote_qpn.value()).collect();
    assert_eq!(qpns, [0x40, 0x41, 0x41, 0x40]);
    let mut known: Vec<_> = bench.interface().neighbors().map(|row| row.address).collect();
    known.sort_unstable();
    let mut expected = addresses[..3].to_vec();
    expected.sort_unstable();
    assert_eq!(known, expected);
    bench.detach();
}

#[test]
fn c4_a_refused_query_frees_the_queue_at_once() {
    let refusals = [SaError::Refused(SaRefusal::NoRecords), SaError::TimedOut, SaError::Unusable];
    for refusal in refusals {
        let mut bench = Bench::joined();
        bench.answers(move |action, _| match action {
            Action::QueryPath { .. } => Answer::Sa(refusal),
            _ => Answer::Usual,
        });
        bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, DF)).unwrap();
        assert_eq!(bench.adapter().dropped.len(), 1, "{refusal:?}");
        assert_eq!(bench.dropped(DropReason::PathUnresolved), 1);
        bench.detach();
    }
}

#[test]
fn c4_packets_do_not_wait_for_a_busy_sa_longer_than_they_may() {
    let mut bench = Bench::joined();
    bench.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Sa(SaError::Busy),
        _ => Answer::Usual,
    });
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, DF)).unwrap();
    bench.run(PENDING_MAX - Duration::from_millis(1));
    assert_eq!(bench.interface().packets_queued(), 1);
    assert!(queries(&bench) > 2, "it is asked again");
    bench.run(Duration::from_millis(1));
    assert_eq!(bench.dropped(DropReason::PendingExpired), 1);
    bench.detach();
}
