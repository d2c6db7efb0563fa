//! Hazards seen in the source of the C driver must not be hazards here.
//!
//! `docs/field-reports.md` says what each of them is about; the tests are named after them.

mod common;

use std::time::Duration;

use ipoib_rs::action::{Action, Membership};
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::event::{Event, Notice};
use ipoib_rs::interface::PortEvent;
use ipoib_rs::limits::PENDING_MAX;
use ipoib_rs::packet::CompletionStatus;
use ipoib_rs::wire::{EtherType, LinkAddress};

use common::*;

#[test]
fn h3_packets_for_a_silent_sa_end_in_bounded_time_without_further_traffic() {
    let mut bench = Bench::joined();
    bench.answers(|action, _| match action {
        Action::QueryPath { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, 0)).unwrap();
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, 0)).unwrap();
    bench.run(PENDING_MAX);
    assert_eq!(bench.dropped(DropReason::PendingExpired), 2);
    assert_eq!(bench.interface().packets_queued(), 0);
    bench.detach();
}

#[test]
fn h8_frames_without_both_headers_are_dropped_and_those_with_nothing_behind_them_are_not() {
    let whole = frame(Some(gid(0)), EtherType::IPV4, &[]);
    assert_eq!(whole.len(), 44);
    for length in 0..=44 {
        for has_grh in [false, true] {
            let mut bench = Bench::joined();
            bench.receive(&whole[..length], has_grh);
            let is_short = length < 44;
            assert_eq!(bench.dropped(DropReason::FrameTooShort), u64::from(is_short), "{length}");
            assert_eq!(bench.adapter().delivered.is_empty(), is_short, "{length}");
            bench.detach();
        }
    }
}

#[test]
fn h12_inputs_before_the_interface_is_ready_end_at_once() {
    let mut bench = Bench::attach();
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, 0)).unwrap();
    assert_eq!(bench.dropped(DropReason::InterfaceDown), 1);

    // Nothing is answered, so nothing is ever ready: every input still returns, and what it asked for
    // is done once things are ready.
    bench.answers(|_, _| Answer::Hold);
    bench.admin_up();
    bench.listen_to(&["224.0.0.1"]);
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, 0)).unwrap();
    bench.admin_down();
    bench.admin_up();
    bench.port_event(PortEvent::SmChanged, port());
    bench.answers_as_usual();
    for action in std::mem::take(&mut bench.held) {
        bench.answer(action, Answer::Usual);
    }
    bench.run(Duration::from_secs(5));
    assert!(bench.interface().is_link_up());
    assert!(bench.joins().contains(&mgid("224.0.0.1")));
    bench.detach();
}

#[test]
fn h13_handles_in_use_at_stop_are_reported_and_reclaimed_when_their_sends_end() {
    let mut bench = Bench::with_path();
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, 0)).unwrap();
    let id = bench.adapter().oldest().unwrap();
    // The adapter completes nothing in the error state and does not reset.
    bench.adapter().is_wedged = true;
    bench.answers(|action, _| match action {
        Action::ModifyQueuePair { change, .. }
            if *change == ipoib_rs::action::QueuePairChange::Reset =>
        {
            Answer::VerbFailed
        }
        _ => Answer::Usual,
    });
    bench.admin_down();
    bench.run(Duration::from_secs(10));
    assert_eq!(bench.interface().state_name(), "draining", "nothing is freed before its time");
    for notice in [Notice::DrainForced, Notice::ResetFailed] {
        assert!(bench.events().contains(&Event::Notice(notice)), "{notice:?}");
    }
    assert_eq!(bench.counted(Counter::DrainsTimedOut), 1);

    // Late, but it comes.
    bench.complete(id, CompletionStatus::Flushed);
    bench.answers_as_usual();
    bench.run(Duration::from_secs(10));
    assert_eq!(bench.interface().state_name(), "down");
    bench.detach();
}

#[test]
fn h14_a_send_only_group_is_joined_the_way_that_the_subnet_manager_knows() {
    for is_supported in [true, false] {
        let mut bench = Bench::attach();
        bench.capabilities.send_only_full_member = is_supported;
        bench.admin_up();
        let group = mgid("239.1.2.3");
        let to = LinkAddress::multicast(group);
        bench.transmit(&to, EtherType::IPV4, &ipv4_to([239, 1, 2, 3], 100, 0)).unwrap();
        assert_eq!(bench.adapter().sent.len(), 1);
        let memberships = bench.logged(|action| match action {
            Action::JoinGroup { request, .. } if request.mgid == group => Some(request.membership),
            _ => None,
        });
        let expected = if is_supported { Membership::SendOnlyFull } else { Membership::Full };
        let memberships: Vec<_> = memberships.into_iter().map(|(_, kind)| kind).collect();
        assert_eq!(memberships, [expected]);
        let attached = bench.logged(|action| match action {
            Action::AttachGroup { mgid, .. } => Some(*mgid),
            _ => None,
        });
        assert!(attached.iter().all(|(_, mgid)| *mgid != group), "nobody listens to it");
        bench.detach();
    }
}
