//! Reports B19, B20 and B22: the partition of an interface, and its end.

use std::time::Duration;

use ipoib_rs::action::{Action, QueuePairChange};
use ipoib_rs::counters::DropReason;
use ipoib_rs::event::Event;
use ipoib_rs::ib::{Mgid, PkeyIndex, PortAttributes};
use ipoib_rs::interface::PortEvent;
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::Cast;
use ipoib_rs::wire::EtherType;

use crate::common::*;
use crate::scene::*;

/// The port with its P_Key at another place, or none.
fn port_with(pkey: u16, index: u16) -> PortAttributes {
    PortAttributes { partition: partition(pkey, index), ..port() }
}

fn child() -> Scene {
    let mut scene = Scene::attach_with(port_with(0x8001, 3), Limits::DEFAULT);
    scene.admin_up();
    assert!(scene.interface().is_link_up());
    scene
}

fn joined_groups(scene: &Scene) -> Vec<Mgid> {
    let rows = scene.interface().groups().filter(|row| row.state == "joined");
    let mut groups: Vec<Mgid> = rows.map(|row| row.mgid).collect();
    groups.sort_unstable();
    groups
}

/// The P_Key indices that the queue pair was opened on.
fn opened_on(scene: &Scene) -> Vec<PkeyIndex> {
    let index = |action: &Action| match action {
        Action::ModifyQueuePair {
            change: QueuePairChange::ReadyToSend { pkey_index, .. }, ..
        } => Some(*pkey_index),
        _ => None,
    };
    scene.logged(index).into_iter().map(|(_, index)| index).collect()
}

fn sorted(mut groups: Vec<Mgid>) -> Vec<Mgid> {
    groups.sort_unstable();
    groups
}

#[test]
fn b19_a_pkey_that_comes_back_at_the_same_index_brings_the_link_back() {
    let mut scene = child();
    let group = mgid_in(0x8001, "224.0.0.1");
    scene.listen(&[&group_bytes(group)]);
    let before = joined_groups(&scene);
    scene.port_event(PortEvent::PkeyChanged, port_with(0, 0));
    assert!(!scene.interface().is_link_up());
    assert_eq!(scene.interface().state_name(), "awaiting-pkey");
    scene.pass(Duration::from_secs(30));
    assert!(!scene.interface().is_link_up());

    scene.port_event(PortEvent::PkeyChanged, port_with(0x8001, 3));
    assert!(scene.interface().is_link_up());
    assert_eq!(joined_groups(&scene), before);
    assert_eq!(before, sorted(vec![group, mgid_in(0x8001, "255.255.255.255")]));
    assert_eq!(scene.interface().mtu(), 2044);
    scene.finish();
}

#[test]
fn b19_removal_and_return_seen_as_one_event_leave_the_link_up() {
    let mut scene = child();
    scene.port_event(PortEvent::PkeyChanged, port_with(0x8001, 3));
    scene.port_event(PortEvent::PkeyChanged, port_with(0x8001, 3));
    assert!(scene.interface().is_link_up());
    scene.finish();
}

#[test]
fn b19_the_queue_pair_moves_to_another_index_with_the_pkey() {
    let mut scene = child();
    scene.port_event(PortEvent::PkeyChanged, port_with(0x8001, 5));
    assert!(scene.interface().is_link_up());
    assert_eq!(opened_on(&scene), [PkeyIndex(3), PkeyIndex(5)]);
    scene.finish();
}

#[test]
fn b19_whatever_the_order_of_events_the_final_state_follows_the_table() {
    let tables = [(0, 0), (0x8001, 3), (0x8001, 5)];
    for first in tables {
        for second in tables {
            for last in tables {
                // Verbs are slow: the later events come while the first one is dealt with.
                let mut scene = child();
                scene.answers(|action, _| match action {
                    Action::ModifyQueuePair { .. } => Answer::Hold,
                    _ => Answer::Usual,
                });
                for (pkey, index) in [first, second, last] {
                    scene.port_event(PortEvent::PkeyChanged, port_with(pkey, index));
                    scene.pass(Duration::from_micros(300));
                }
                scene.answers_as_usual();
                for action in std::mem::take(&mut scene.held) {
                    scene.answer(action, Answer::Usual);
                }
                scene.pass(Duration::from_secs(20));
                let case = format!("{first:x?} {second:x?} {last:x?}");
                assert_eq!(scene.interface().is_link_up(), last.0 != 0, "{case}");
                if last.0 != 0 {
                    assert_eq!(opened_on(&scene).last(), Some(&PkeyIndex(last.1)), "{case}");
                }
                scene.finish();
            }
        }
    }
}

#[test]
fn b20_without_a_pkey_nothing_is_joined() {
    let mut scene = Scene::attach_with(port_with(0, 0), Limits::DEFAULT);
    scene.admin_up();
    scene.pass(Duration::from_secs(60));
    assert!(!scene.interface().is_link_up());
    assert!(scene.joins().is_empty());
    assert_eq!(scene.interface().broadcast(), None);
    scene.finish();
}

#[test]
fn b20_every_group_follows_the_value_at_index_0() {
    let groups = ["255.255.255.255", "224.0.0.1", "ff02::1:ff00:1"];
    let mut scene = Scene::attach_with(port_with(0, 0), Limits::DEFAULT);
    scene.admin_up();
    for pkey in [0x8001, 0x8002] {
        let seen = scene.log.len();
        scene.port_event(PortEvent::PkeyChanged, port_with(pkey, 0));
        let expected: Vec<Mgid> = groups.iter().map(|group| mgid_in(pkey, group)).collect();
        assert_eq!(scene.interface().broadcast(), Some(expected[0]));
        assert!(scene.events().contains(&Event::BroadcastChanged(expected[0])));
        // The stack lists its groups in terms of the broadcast address once it knows it.
        let listed: Vec<Vec<u8>> = expected[1..].iter().map(|&mgid| group_bytes(mgid)).collect();
        scene.listen(&[&listed[0], &listed[1]]);
        assert_eq!(joined_groups(&scene), sorted(expected.clone()));
        let joined_now = scene.log[seen..].iter().filter_map(|(_, action)| match action {
            Action::JoinGroup { request, .. } => Some((request.mgid, request.pkey.value())),
            _ => None,
        });
        assert!(joined_now.clone().count() >= 3);
        for (mgid, key) in joined_now {
            assert!(expected.contains(&mgid), "{mgid} belongs to the old key");
            assert_eq!(key, pkey);
        }
    }
    scene.finish();
}

#[test]
fn b20_groups_of_the_old_key_are_left_before_those_of_the_new_are_used() {
    let mut scene = Scene::attach_with(port_with(0x8001, 0), Limits::DEFAULT);
    scene.admin_up();
    let old = mgid_in(0x8001, "255.255.255.255");
    scene.port_event(PortEvent::PkeyChanged, port_with(0x8002, 0));
    let left = scene.logged(|action| match action {
        Action::LeaveGroup { mgid, .. } => Some(*mgid),
        _ => None,
    });
    assert_eq!(left.into_iter().map(|(_, mgid)| mgid).collect::<Vec<_>>(), [old]);
    // What arrives for the new broadcast group is taken for broadcast.
    let new = mgid_in(0x8002, "255.255.255.255");
    let frame = frame(Some(new.gid()), EtherType::ARP, &[0; 56]);
    scene.receive(&frame, true);
    assert_eq!(scene.adapter().delivered[0].1.cast, Cast::Broadcast);
    scene.finish();
}

#[test]
fn b22_a_join_that_ends_while_the_interface_goes_down_is_left_again() {
    let mut scene = Scene::joined();
    scene.answers(|action, _| match action {
        Action::JoinGroup { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    scene.listen_to(&["224.0.0.1"]);
    let join = scene.held.pop().expect("a join");
    scene.admin_down();
    // The answer was on its way already when the interface gave up.
    scene.answer(join, Answer::Usual);
    scene.pass(Duration::from_secs(5));
    assert_eq!(scene.interface().state_name(), "down");
    // The bench fails if a membership is left.
    scene.finish();
}

#[test]
fn b22_two_interfaces_go_down_with_joins_under_way_and_both_finish() {
    let mut pair = [Scene::joined(), child()];
    for scene in &mut pair {
        scene.answers(|action, _| match action {
            Action::JoinGroup { .. } => Answer::Hold,
            _ => Answer::Usual,
        });
    }
    pair[0].listen_to(&["224.0.0.9"]);
    pair[1].listen(&[&group_bytes(mgid_in(0x8001, "224.0.0.9"))]);
    pair.iter_mut().for_each(Scene::admin_down);
    for scene in &mut pair {
        for action in std::mem::take(&mut scene.held) {
            scene.answer(action, Answer::Usual);
        }
    }
    for mut scene in pair {
        scene.pass(Duration::from_secs(5));
        assert_eq!(scene.interface().state_name(), "down");
        scene.finish();
    }
}

#[test]
fn b22_detach_with_50_unanswered_queries_finishes_and_loses_nothing() {
    let mut scene = Scene::joined();
    scene.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    for host in 1..=50 {
        scene.send(&peer(host), EtherType::IPV4, ipv4(100, false));
    }
    assert_eq!((scene.held.len(), scene.interface().packets_queued()), (50, 50));
    scene.admin_down();
    scene.pass(Duration::from_secs(5));
    assert_eq!(scene.dropped(DropReason::InterfaceDown), 50);
    assert!(scene.held.is_empty(), "every query is cancelled");
    scene.finish();
}

#[test]
fn b22_detach_at_every_step_of_coming_up_finishes() {
    for steps in 0..12 {
        let mut scene = Scene::attach();
        let mut answered = 0;
        scene.answers(move |_, _| {
            answered += 1;
            if answered > steps { Answer::Hold } else { Answer::Usual }
        });
        scene.admin_up();
        scene.listen_to(&["224.0.0.1"]);
        scene.send(&peer(1), EtherType::IPV4, ipv4(100, false));
        scene.send(&multicast("224.0.0.5"), EtherType::IPV4, ipv4(100, false));
        assert!(!scene.held.is_empty(), "{steps} steps do not bring everything up");
        // The bench fails if something is left.
        scene.finish();
    }
}
