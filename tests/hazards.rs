//! Hazards seen in the source of the C driver must not be hazards here.
//!
//! `docs/field-reports.md` says what each of them is about; the tests are named after them.

mod common;
#[path = "common/scene.rs"]
mod scene;

use std::time::Duration;

use ipoib_rs::action::{Action, Membership};
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::event::{Event, Notice};
use ipoib_rs::interface::{Mode, PortEvent};
use ipoib_rs::limits::{DRAIN_MAX, Limits, PENDING_MAX};
use ipoib_rs::packet::CompletionStatus;
use ipoib_rs::wire::{EtherType, LinkAddress};

use common::*;
use scene::*;

#[test]
fn h3_packets_for_a_silent_sa_end_in_bounded_time_without_further_traffic() {
    let mut scene = Scene::joined();
    scene.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    scene.send(&peer(1), EtherType::IPV4, ipv4(100, false));
    scene.send(&peer(1), EtherType::IPV4, ipv4(100, false));
    scene.pass(PENDING_MAX);
    assert_eq!(scene.dropped(DropReason::PendingExpired), 2);
    assert_eq!(scene.interface().packets_queued(), 0);
    scene.finish();
}

#[test]
fn h8_frames_without_both_headers_are_dropped_and_those_with_nothing_behind_them_are_not() {
    let whole = frame(Some(OWN_GID), EtherType::IPV4, &[]);
    assert_eq!(whole.len(), 44);
    for length in 0..=44 {
        for has_grh in [false, true] {
            let mut scene = Scene::joined();
            scene.receive(&whole[..length], has_grh);
            let is_short = length < 44;
            assert_eq!(scene.dropped(DropReason::FrameTooShort), u64::from(is_short), "{length}");
            assert_eq!(scene.adapter().delivered.is_empty(), is_short, "{length}");
            scene.finish();
        }
    }
}

#[test]
fn h12_inputs_before_the_interface_is_ready_end_at_once() {
    let mut scene = Scene::attach();
    scene.send(&peer(1), EtherType::IPV4, ipv4(100, false));
    assert_eq!(scene.dropped(DropReason::InterfaceDown), 1);

    // Nothing is answered, so nothing is ever ready: every input still returns, and what it asked
    // for is done once things are ready.
    scene.answers(|_, _| Answer::Hold);
    scene.admin_up();
    scene.listen_to(&["224.0.0.1"]);
    scene.send(&peer(1), EtherType::IPV4, ipv4(100, false));
    scene.admin_down();
    scene.admin_up();
    scene.port_event(PortEvent::SmChanged, port());
    scene.answers_as_usual();
    for action in std::mem::take(&mut scene.held) {
        scene.answer(action, Answer::Usual);
    }
    scene.pass(Duration::from_secs(5));
    assert!(scene.interface().is_link_up());
    assert!(scene.joins().contains(&mgid("224.0.0.1")));
    scene.finish();
}

#[test]
fn h13_handles_in_use_at_stop_are_reported_and_reclaimed_when_their_sends_end() {
    let mut scene = Scene::with_path();
    scene.send(&peer(1), EtherType::IPV4, ipv4(100, false));
    let id = scene.adapter().posted[0].0.id;
    // The adapter completes nothing in the error state and does not reset.
    scene.is_wedged = true;
    scene.answers(|action, _| match action {
        Action::ModifyQueuePair { change, .. }
            if *change == ipoib_rs::action::QueuePairChange::Reset =>
        {
            Answer::VerbFailed
        }
        _ => Answer::Usual,
    });
    scene.admin_down();
    scene.pass(Duration::from_secs(10));
    assert_eq!(scene.interface().state_name(), "draining", "nothing is freed before its time");
    for notice in [Notice::DrainForced, Notice::ResetFailed] {
        assert!(scene.events().contains(&Event::Notice(notice)), "{notice:?}");
    }
    assert_eq!(scene.counted(Counter::DrainsTimedOut), 1);

    // Late, but it comes.
    scene.complete(id, CompletionStatus::Flushed);
    scene.answers_as_usual();
    scene.pass(Duration::from_secs(10));
    assert_eq!(scene.interface().state_name(), "down");
    scene.finish();
}

#[test]
fn h14_a_send_only_group_is_joined_the_way_that_the_subnet_manager_knows() {
    for is_supported in [true, false] {
        let mut scene = Scene::attach();
        scene.capabilities.send_only_full_member = is_supported;
        scene.admin_up();
        let group = mgid("239.1.2.3");
        let to = LinkAddress::multicast(group);
        scene.send(&to, EtherType::IPV4, ipv4(100, false));
        assert_eq!(scene.adapter().wire.len(), 1);
        let memberships = scene.logged(|action| match action {
            Action::JoinGroup { request, .. } if request.mgid == group => Some(request.membership),
            _ => None,
        });
        let expected = if is_supported { Membership::SendOnlyFull } else { Membership::Full };
        let memberships: Vec<_> = memberships.into_iter().map(|(_, kind)| kind).collect();
        assert_eq!(memberships, [expected]);
        let attached = scene.logged(|action| match action {
            Action::AttachGroup { mgid, .. } => Some(*mgid),
            _ => None,
        });
        assert!(attached.iter().all(|(_, mgid)| *mgid != group), "nobody listens to it");
        scene.finish();
    }
}

/// An interface with `count` messages posted on its connection to peer 1.
fn sending(limits: Limits, count: usize) -> Bench {
    let mut bench = Bench::connected_with(limits, true);
    for _ in 0..count {
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
    }
    bench.answer_all();
    assert_eq!(bench.adapter.posted_connected.len(), count);
    bench
}

#[test]
fn h4_sends_of_a_wedged_connection_stay_posted_until_it_is_destroyed() {
    let mut bench = sending(Limits::DEFAULT, 4);
    bench.mode(Mode::Datagram).unwrap();
    bench.pass(10 * DRAIN_MAX);
    // The adapter may still read the buffers: they are the interface's until it is told otherwise.
    assert_eq!(bench.interface.sends_outstanding(), 4);
    let destroy =
        bench.actions.iter().position(|action| matches!(action, Action::DestroyConnection { .. }));
    let destroy = bench.actions.remove(destroy.unwrap()).unwrap();
    // Late completions are believed as long as the connection is there.
    bench.complete_connected(CompletionStatus::Success);
    assert_eq!(bench.interface.sends_outstanding(), 3);
    bench.answer(destroy);
    assert_eq!((bench.interface.sends_outstanding(), bench.count(Counter::SendFlushed)), (0, 3));
    bench.finish();
}

#[test]
fn h5_sending_while_connections_are_reaped_keeps_the_account_of_the_ring() {
    // Every mix of datagrams and messages, closed at every point of their completion.
    for messages in 0..=8 {
        for completed in 0..=messages {
            let mut bench = sending(Limits::SMALL, messages.min(4));
            for _ in bench.adapter.posted_connected.len()..messages {
                bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
            }
            while bench.interface.sends_outstanding() < 8 {
                bench.send(&peer(2), EtherType::IPV4, ipv4(100, true)).unwrap();
                bench.answer_all();
            }
            for _ in 0..completed {
                bench.complete_connected(CompletionStatus::Success);
            }
            bench.mode(Mode::Datagram).unwrap();
            bench.send(&peer(2), EtherType::IPV4, ipv4(100, true)).ok();
            let on_wire = bench.adapter.posted.len() + bench.adapter.posted_connected.len();
            assert_eq!(bench.interface.sends_outstanding() as usize, on_wire);
            bench.pass(DRAIN_MAX);
            bench.answer_all();
            let left = bench.adapter.posted.len();
            assert_eq!((bench.interface.sends_outstanding() as usize, left), (left, left));
            bench.complete_all();
            assert_eq!(bench.interface.sends_outstanding(), 0);
            bench.finish();
        }
    }
}

#[test]
fn h7_a_stuck_connection_delays_neither_joins_nor_paths_nor_the_link() {
    let mut bench = sending(Limits::DEFAULT, 16);
    bench.connection_lost(bench.connections[0]);
    let is_stuck = |action: &Action| matches!(action, Action::DestroyConnection { .. });
    bench.port_event(PortEvent::ClientReregister, |_| {});
    bench.answer_where(|action| !is_stuck(action));
    assert!(bench.actions.iter().all(is_stuck) && bench.actions.len() == 1);
    bench.port_event(PortEvent::PortError, |port| port.is_active = false);
    bench.port_event(PortEvent::PortActive, |port| port.is_active = true);
    bench.answer_where(|action| !is_stuck(action));
    assert!(bench.interface.is_link_up(), "no time has passed");
    bench.send(&connected_peer(2), EtherType::IPV4, ipv4(9000, false)).unwrap();
    bench.answer_where(|action| !is_stuck(action));
    assert_eq!(bench.adapter.connected_wire.len(), 17);
    bench.answer_all();
    bench.finish();
}

#[test]
fn h15_a_message_that_failed_is_not_counted_as_sent() {
    let mut bench = sending(Limits::DEFAULT, 3);
    bench.complete_connected(CompletionStatus::Success);
    bench.complete_connected(CompletionStatus::Failed);
    bench.complete_connected(CompletionStatus::Flushed);
    let counts = [Counter::PacketsSent, Counter::SendFailed, Counter::SendFlushed];
    assert_eq!(counts.map(|counter| bench.count(counter)), [1, 1, 1]);
    assert_eq!(bench.count(Counter::BytesSent), 9004);
    bench.answer_all();
    bench.finish();
}
