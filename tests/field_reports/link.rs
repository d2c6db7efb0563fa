//! Reports B19, B20 and B22: the partition of an interface, and its end.

use std::time::Duration;

use ipoib_rs::action::{Action, QueuePairChange};
use ipoib_rs::counters::DropReason;
use ipoib_rs::event::Event;
use ipoib_rs::ib::{Mgid, PkeyIndex, PortAttributes};
use ipoib_rs::interface::PortEvent;
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::Cast;
use ipoib_rs::wire::{EtherType, LinkAddress};

use crate::common::*;

/// The port with its P_Key at another place, or none.
fn port_with(pkey: u16, index: u16) -> PortAttributes {
    PortAttributes { partition: partition(pkey, index), ..port() }
}

fn child() -> Bench {
    let mut bench = Bench::attach_with(port_with(0x8001, 3), Limits::DEFAULT);
    bench.admin_up();
    assert!(bench.interface().is_link_up());
    bench
}

fn joined_groups(bench: &Bench) -> Vec<Mgid> {
    let rows = bench.interface().groups().filter(|row| row.state == "joined");
    let mut groups: Vec<Mgid> = rows.map(|row| row.mgid).collect();
    groups.sort_unstable();
    groups
}

/// The P_Key indices that the queue pair was opened on.
fn opened_on(bench: &Bench) -> Vec<PkeyIndex> {
    let index = |action: &Action| match action {
        Action::ModifyQueuePair {
            change: QueuePairChange::ReadyToSend { pkey_index, .. }, ..
        } => Some(*pkey_index),
        _ => None,
    };
    bench.logged(index).into_iter().map(|(_, index)| index).collect()
}

fn sorted(mut groups: Vec<Mgid>) -> Vec<Mgid> {
    groups.sort_unstable();
    groups
}

#[test]
fn b19_a_pkey_that_comes_back_at_the_same_index_brings_the_link_back() {
    let mut bench = child();
    let group = mgid_in(0x8001, "224.0.0.1");
    bench.listen(&[&group_bytes(group)]);
    let before = joined_groups(&bench);
    bench.port_event(PortEvent::PkeyChanged, port_with(0, 0));
    assert!(!bench.interface().is_link_up());
    assert_eq!(bench.interface().state_name(), "awaiting-pkey");
    bench.run(Duration::from_secs(30));
    assert!(!bench.interface().is_link_up());

    bench.port_event(PortEvent::PkeyChanged, port_with(0x8001, 3));
    assert!(bench.interface().is_link_up());
    assert_eq!(joined_groups(&bench), before);
    assert_eq!(before, sorted(vec![group, mgid_in(0x8001, "255.255.255.255")]));
    assert_eq!(bench.interface().mtu(), 2044);
    bench.detach();
}

#[test]
fn b19_removal_and_return_seen_as_one_event_leave_the_link_up() {
    let mut bench = child();
    bench.port_event(PortEvent::PkeyChanged, port_with(0x8001, 3));
    bench.port_event(PortEvent::PkeyChanged, port_with(0x8001, 3));
    assert!(bench.interface().is_link_up());
    bench.detach();
}

#[test]
fn b19_the_queue_pair_moves_to_another_index_with_the_pkey() {
    let mut bench = child();
    bench.port_event(PortEvent::PkeyChanged, port_with(0x8001, 5));
    assert!(bench.interface().is_link_up());
    assert_eq!(opened_on(&bench), [PkeyIndex(3), PkeyIndex(5)]);
    bench.detach();
}

#[test]
fn b19_whatever_the_order_of_events_the_final_state_follows_the_table() {
    let tables = [(0, 0), (0x8001, 3), (0x8001, 5)];
    for first in tables {
        for second in tables {
            for last in tables {
                // Verbs are slow: the later events come while the first one is dealt with.
                let mut bench = child();
                bench.answers(|action, _| match action {
                    Action::ModifyQueuePair { .. } => Answer::Hold,
                    _ => Answer::Usual,
                });
                for (pkey, index) in [first, second, last] {
                    bench.port_event(PortEvent::PkeyChanged, port_with(pkey, index));
                    bench.run(Duration::from_micros(300));
                }
                bench.answers_as_usual();
                for action in std::mem::take(&mut bench.held) {
                    bench.answer(action, Answer::Usual);
                }
                bench.run(Duration::from_secs(20));
                let case = format!("{first:x?} {second:x?} {last:x?}");
                assert_eq!(bench.interface().is_link_up(), last.0 != 0, "{case}");
                if last.0 != 0 {
                    assert_eq!(opened_on(&bench).last(), Some(&PkeyIndex(last.1)), "{case}");
                }
                bench.detach();
            }
        }
    }
}

#[test]
fn b20_without_a_pkey_nothing_is_joined() {
    let mut bench = Bench::attach_with(port_with(0, 0), Limits::DEFAULT);
    bench.admin_up();
    bench.run(Duration::from_secs(60));
    assert!(!bench.interface().is_link_up());
    assert!(bench.joins().is_empty());
    assert_eq!(bench.interface().broadcast(), None);
    bench.detach();
}

#[test]
fn b20_every_group_follows_the_value_at_index_0() {
    let groups = ["255.255.255.255", "224.0.0.1", "ff02::1:ff00:1"];
    let mut bench = Bench::attach_with(port_with(0, 0), Limits::DEFAULT);
    bench.admin_up();
    for pkey in [0x8001, 0x8002] {
        let seen = bench.log.len();
        bench.port_event(PortEvent::PkeyChanged, port_with(pkey, 0));
        let expected: Vec<Mgid> = groups.iter().map(|group| mgid_in(pkey, group)).collect();
        assert_eq!(bench.interface().broadcast(), Some(expected[0]));
        assert!(bench.events().contains(&Event::BroadcastChanged(expected[0])));
        // The stack lists its groups in terms of the broadcast address once it knows it.
        let listed: Vec<Vec<u8>> = expected[1..].iter().map(|&mgid| group_bytes(mgid)).collect();
        bench.listen(&[&listed[0], &listed[1]]);
        assert_eq!(joined_groups(&bench), sorted(expected.clone()));
        let joined_now = bench.log[seen..].iter().filter_map(|(_, action)| match action {
            Action::JoinGroup { request, .. } => Some((request.mgid, request.pkey.value())),
            _ => None,
        });
        assert!(joined_now.clone().count() >= 3);
        for (mgid, key) in joined_now {
            assert!(expected.contains(&mgid), "{mgid} belongs to the old key");
            assert_eq!(key, pkey);
        }
    }
    bench.detach();
}

#[test]
fn b20_groups_of_the_old_key_are_left_before_those_of_the_new_are_used() {
    let mut bench = Bench::attach_with(port_with(0x8001, 0), Limits::DEFAULT);
    bench.admin_up();
    let old = mgid_in(0x8001, "255.255.255.255");
    bench.port_event(PortEvent::PkeyChanged, port_with(0x8002, 0));
    let left = bench.logged(|action| match action {
        Action::LeaveGroup { mgid, .. } => Some(*mgid),
        _ => None,
    });
    assert_eq!(left.into_iter().map(|(_, mgid)| mgid).collect::<Vec<_>>(), [old]);
    // What arrives for the new broadcast group is taken for broadcast.
    let new = mgid_in(0x8002, "255.255.255.255");
    let frame = frame(Some(new.gid()), EtherType::ARP, &[0; 56]);
    bench.receive(&frame, true);
    assert_eq!(bench.adapter().delivered[0].1.cast, Cast::Broadcast);
    bench.detach();
}

#[test]
fn b22_a_join_that_ends_while_the_interface_goes_down_is_left_again() {
    let mut bench = Bench::joined();
    bench.answers(|action, _| match action {
        Action::JoinGroup { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    bench.listen_to(&["224.0.0.1"]);
    let [join] = bench.held[..] else { panic!("{:?}", bench.held) };
    bench.admin_down();
    // The answer was on its way already when the interface gave up.
    bench.answer(join, Answer::Usual);
    bench.run(Duration::from_secs(5));
    assert_eq!(bench.interface().state_name(), "down");
    // The bench fails if a membership is left.
    bench.detach();
}

#[test]
fn b22_two_interfaces_go_down_with_joins_under_way_and_both_finish() {
    let mut pair = [Bench::joined(), child()];
    for bench in &mut pair {
        bench.answers(|action, _| match action {
            Action::JoinGroup { .. } => Answer::Hold,
            _ => Answer::Usual,
        });
    }
    pair[0].listen_to(&["224.0.0.9"]);
    pair[1].listen(&[&group_bytes(mgid_in(0x8001, "224.0.0.9"))]);
    pair.iter_mut().for_each(Bench::admin_down);
    for bench in &mut pair {
        for action in std::mem::take(&mut bench.held) {
            bench.answer(action, Answer::Usual);
        }
    }
    for mut bench in pair {
        bench.run(Duration::from_secs(5));
        assert_eq!(bench.interface().state_name(), "down");
        bench.detach();
    }
}

#[test]
fn b22_detach_with_50_unanswered_queries_finishes_and_loses_nothing() {
    let mut bench = Bench::joined();
    bench.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    for host in 1..=50 {
        bench.transmit(&neighbour(host), EtherType::IPV4, &ipv4(100, 0)).unwrap();
    }
    assert_eq!((bench.held.len(), bench.interface().packets_queued()), (50, 50));
    bench.admin_down();
    bench.run(Duration::from_secs(5));
    assert_eq!(bench.dropped(DropReason::InterfaceDown), 50);
    assert!(bench.held.is_empty(), "every query is cancelled");
    bench.detach();
}

#[test]
fn b22_detach_while_everything_is_under_way_finishes() {
    let mut bench = Bench::attach();
    bench.answers(|_, _| Answer::Hold);
    bench.admin_up();
    for _ in 0..20 {
        // One step further each time, then detach.
        let mut copy = Bench::attach();
        copy.answers(|_, _| Answer::Hold);
        copy.admin_up();
        let group = LinkAddress::multicast(mgid("224.0.0.5"));
        copy.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, 0)).unwrap();
        copy.transmit(&group, EtherType::IPV4, &ipv4_to([224, 0, 0, 5], 100, 0)).unwrap();
        copy.detach();
    }
    bench.detach();
}
