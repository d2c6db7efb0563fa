//! Datagram mode, one interface at a time: what goes in, what must come out.

mod common;

use std::time::Duration;

use common::{Bench, broadcast, group, ipv4, path_to, peer, port};
use ipoib_rs::action::{Action, OpId, SaError, SaRefusal};
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::event::Event;
use ipoib_rs::interface::PortEvent;
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::CompletionStatus;
use ipoib_rs::wire::{EtherType, LinkAddress};

#[test]
fn an_interface_comes_up_and_gives_everything_back() {
    let mut bench = Bench::new(port(), Limits::DEFAULT);
    assert_eq!((bench.interface.state_name(), bench.deadline), ("down", None));
    bench.admin_up();
    assert_eq!(bench.interface.state_name(), "opening");
    bench.answer_all();
    assert_eq!(bench.interface.state_name(), "joined");
    assert_eq!(bench.interface.mtu(), 2044);
    assert!(bench.events.contains(&Event::LinkUp));
    assert_eq!(bench.adapter.receives_posted, Limits::DEFAULT.receive_queue_len);
    bench.admin_down();
    bench.answer_all();
    assert_eq!(bench.interface.state_name(), "down");
    assert_eq!(bench.events.last(), Some(&Event::LinkDown));
    bench.admin_up();
    bench.answer_all();
    assert_eq!(bench.interface.state_name(), "joined");
    bench.finish();
}

#[test]
fn carrier_needs_the_port_the_pkey_and_the_broadcast_group() {
    let mut start = port();
    let partition = start.partition.take();
    let lid = start.lid.take();
    start.is_active = false;
    let mut bench = Bench::new(start, Limits::DEFAULT);
    bench.admin_up();
    assert_eq!(bench.interface.state_name(), "awaiting-pkey");
    bench.port_event(PortEvent::PkeyChanged, |port| port.partition = partition);
    assert_eq!(bench.interface.state_name(), "awaiting-port");
    bench.port_event(PortEvent::PortActive, |port| port.is_active = true);
    assert_eq!(bench.interface.state_name(), "awaiting-port", "a port without a LID is no port");
    bench.port_event(PortEvent::LidChanged, |port| port.lid = lid);
    bench.answer_where(|action| matches!(action, Action::ModifyQueuePair { .. }));
    assert_eq!(bench.interface.state_name(), "joining");
    assert!(!bench.interface.is_link_up());
    bench.answer_all();
    assert!(bench.interface.is_link_up());
    bench.finish();
}

#[test]
fn the_first_packet_asks_for_the_path_and_goes_when_it_is_there() {
    let mut bench = Bench::joined();
    bench.send(&peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    assert!(bench.adapter.posted.is_empty());
    assert_eq!(bench.queries_waiting(), 1);
    bench.answer_all();
    let (send, bytes) = &bench.adapter.wire[0];
    assert_eq!(send.remote_qpn, peer(1).qpn());
    assert_eq!(send.qkey, common::QKEY);
    assert_eq!((bytes.len(), &bytes[..4]), (104, &[0x08, 0, 0, 0][..]));
    bench.complete(CompletionStatus::Success);
    assert_eq!(bench.count(Counter::PacketsSent), 1);
    bench.finish();
}

#[test]
fn a_failed_send_is_not_counted_as_sent() {
    let mut bench = Bench::joined();
    bench.send(&peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    bench.answer_all();
    bench.complete(CompletionStatus::Failed);
    assert_eq!((bench.count(Counter::PacketsSent), bench.count(Counter::SendFailed)), (0, 1));
    bench.finish();
}

#[test]
fn a_full_ring_gives_the_packet_back_and_wakes_when_half_is_free() {
    let mut bench = Bench::joined_with(Limits::SMALL);
    bench.send(&peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    bench.answer_all();
    for _ in 1..8 {
        bench.send(&peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    }
    let refused = bench.send(&peer(1), EtherType::IPV4, ipv4(77, false));
    assert_eq!(refused.unwrap_err().len(), 77);
    for completed in 1..=8 {
        assert_eq!(bench.wakes, u32::from(completed > 4), "after {} completions", completed - 1);
        bench.complete(CompletionStatus::Success);
    }
    assert_eq!(bench.wakes, 1);
    bench.finish();
}

#[test]
fn more_packets_than_the_ring_has_places_wait_and_keep_their_order() {
    let mut bench = Bench::joined_with(Limits::SMALL);
    for len in 100..133 {
        bench.send(&peer(1), EtherType::IPV4, ipv4(len, false)).unwrap();
    }
    bench.answer_all();
    assert_eq!(bench.adapter.posted.len(), 8);
    // One more goes behind those that wait.
    bench.send(&peer(1), EtherType::IPV4, ipv4(133, false)).unwrap();
    while !bench.adapter.posted.is_empty() {
        bench.complete(CompletionStatus::Success);
    }
    let lengths: Vec<usize> = bench.adapter.wire.iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(lengths, (104..138).collect::<Vec<_>>());
    assert!(bench.adapter.dropped.is_empty());
    bench.finish();
}

#[test]
fn another_lid_in_a_refreshed_record_replaces_the_handle_without_a_loss() {
    let mut bench = Bench::joined();
    bench.send(&peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    bench.answer_all();
    let old = bench.adapter.wire[0].0.handle;
    bench.port_event(PortEvent::SmChanged, |_| {});
    bench.send(&peer(1), EtherType::IPV4, ipv4(101, false)).unwrap();
    assert_eq!(bench.adapter.wire.last().unwrap().0.handle, old, "old data stays in use");
    let (op, query) = bench.take_query();
    let moved = ipoib_rs::ib::Lid::new(0x77).unwrap();
    let mut record = path_to(&query);
    record.lid = moved;
    bench.path_answer(op, Ok(record));
    bench.answer_all();
    bench.send(&peer(1), EtherType::IPV4, ipv4(102, false)).unwrap();
    let new = bench.adapter.wire.last().unwrap().0.handle;
    assert_ne!(new, old);
    assert_eq!(bench.handles.iter().find(|(one, _)| *one == new).unwrap().1.lid, moved.value());
    assert!(bench.handles.iter().any(|(one, _)| *one == old), "two sends still use it");
    bench.complete_all();
    bench.answer_all();
    assert!(bench.handles.iter().all(|(one, _)| *one != old));
    assert!(bench.adapter.dropped.is_empty());
    bench.finish();
}

#[test]
fn a_busy_sa_is_asked_again_while_packets_wait() {
    let mut bench = Bench::joined();
    bench.send(&peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    let (op, _) = bench.take_query();
    bench.path_answer(op, Err(SaError::Busy));
    assert_eq!(bench.queries_waiting(), 0);
    bench.pass(Duration::from_millis(200));
    assert_eq!(bench.queries_waiting(), 1);
    bench.answer_all();
    assert_eq!(bench.adapter.wire.len(), 1);
    bench.finish();
}

#[test]
fn no_packet_waits_longer_than_the_limit_even_if_the_sa_stays_busy() {
    let mut bench = Bench::joined();
    bench.send(&peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    for _ in 0..100 {
        if bench.queries_waiting() == 0 {
            bench.pass(Duration::from_millis(100));
            continue;
        }
        let (op, _) = bench.take_query();
        bench.path_answer(op, Err(SaError::Busy));
    }
    assert_eq!(bench.drops(DropReason::PendingExpired), 1);
    assert_eq!(bench.queries_waiting(), 0, "nobody waits, so nobody asks");
    assert_eq!(bench.deadline, None);
    bench.finish();
}

#[test]
fn every_answer_is_believed_once() {
    let mut bench = Bench::joined();
    bench.send(&peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    let (op, query) = bench.take_query();
    bench.path_answer(op, Ok(path_to(&query)));
    bench.path_answer(op, Ok(path_to(&query)));
    bench.path_answer(op, Err(SaError::TimedOut));
    assert_eq!(bench.count(Counter::StaleAnswers), 2);
    bench.answer_all();
    assert_eq!(bench.adapter.wire.len(), 1);
    bench.finish();
}

#[test]
fn a_group_that_is_sent_to_is_joined_for_sending_and_upgraded_when_it_is_listened_to() {
    let mut bench = Bench::joined();
    let mgid = group("224.1.2.3");
    let address = LinkAddress::multicast(mgid);
    bench.send(&address, EtherType::IPV4, ipv4(100, false)).unwrap();
    bench.answer_all();
    assert_eq!(bench.adapter.wire.len(), 1);
    assert!(bench.attached.iter().all(|&(one, _)| one != mgid));
    bench.listen(&[zerocopy::IntoBytes::as_bytes(&address)]);
    bench.answer_all();
    assert_eq!(bench.attached.iter().filter(|&&(one, _)| one == mgid).count(), 1);
    let joined: Vec<u8> =
        bench.members.iter().filter(|&&(one, _)| one == mgid).map(|&(_, state)| state).collect();
    assert_eq!(joined, [8, 1]);
    bench.listen(&[]);
    bench.answer_all();
    assert!(bench.members.iter().all(|&(one, _)| one != mgid), "both memberships are left");
    bench.complete_all();
    bench.finish();
}

#[test]
fn an_absent_group_is_created_like_the_broadcast_group() {
    let mut bench = Bench::joined();
    bench.send(&LinkAddress::multicast(group("ff02::1")), EtherType::IPV6, vec![0x60; 80]).unwrap();
    let (op, request) = bench.take_join();
    assert_eq!(request.create, None);
    bench.join_answer(op, Err(SaError::Refused(SaRefusal::InsufficientComponents)));
    let (op, request) = bench.take_join();
    assert_eq!(request.create, Some(common::group_parameters()));
    bench.join_answer(op, Ok(common::record_of(&request)));
    bench.members.push((request.mgid, request.membership.join_state()));
    bench.answer_all();
    assert_eq!(bench.adapter.wire.len(), 1);
    bench.finish();
}

#[test]
fn the_broadcast_group_is_never_created() {
    let mut bench = Bench::new(port(), Limits::DEFAULT);
    bench.admin_up();
    bench.answer_where(|action| matches!(action, Action::ModifyQueuePair { .. }));
    for _ in 0..5 {
        let (op, request) = bench.take_join();
        assert_eq!((request.create, Some(request.mgid)), (None, broadcast().mgid()));
        bench.join_answer(op, Err(SaError::Refused(SaRefusal::NoRecords)));
        assert_eq!(bench.joins_waiting(), 0);
        bench.pass(Duration::from_secs(16));
    }
    let notices = bench.events.iter().filter(|event| matches!(event, Event::Notice(_))).count();
    assert_eq!(notices, 1);
    bench.answer_all();
    assert!(bench.interface.is_link_up());
    bench.finish();
}

/// The queries under way: those that were asked and neither answered nor cancelled.
fn queries_left(bench: &Bench) -> Vec<OpId> {
    let cancelled = |op: &OpId| {
        let is_it =
            |action: &Action| matches!(action, Action::CancelQuery { op: one } if one == op);
        bench.actions.iter().any(is_it)
    };
    let asked = bench.actions.iter().filter_map(|action| match action {
        Action::JoinGroup { op, .. }
        | Action::LeaveGroup { op, .. }
        | Action::QueryPath { op, .. }
        | Action::QuerySaCapabilities { op } => Some(*op),
        Action::AcceptConnection { .. }
        | Action::AttachGroup { .. }
        | Action::CancelQuery { .. }
        | Action::CreateAddressHandle { .. }
        | Action::DestroyAddressHandle { .. }
        | Action::DestroyConnection { .. }
        | Action::DetachGroup { .. }
        | Action::ErrConnection { .. }
        | Action::Listen { .. }
        | Action::ModifyQueuePair { .. }
        | Action::OpenConnection { .. }
        | Action::PostDrainMarker { .. }
        | Action::Unlisten { .. }
        | Action::WakeSendQueue => None,
    });
    asked.filter(|op| !cancelled(op)).collect()
}

#[test]
fn the_query_for_capabilities_is_cancelled_by_detach() {
    let mut bench = Bench::new(port(), Limits::DEFAULT);
    bench.admin_up();
    bench.answer_where(|action| !matches!(action, Action::QuerySaCapabilities { .. }));
    bench.detach();
    bench.answer_where(|action| {
        !matches!(action, Action::QuerySaCapabilities { .. } | Action::CancelQuery { .. })
    });
    assert_eq!(bench.interface.state_name(), "detached");
    assert_eq!(queries_left(&bench), []);
}

#[test]
fn a_query_for_capabilities_that_is_asked_again_is_cancelled_first() {
    let mut bench = Bench::new(port(), Limits::DEFAULT);
    bench.admin_up();
    bench.answer_where(|action| !matches!(action, Action::QuerySaCapabilities { .. }));
    assert_eq!(queries_left(&bench).len(), 1);
    bench.port_event(PortEvent::SmChanged, |_| {});
    let asked = |action: &&Action| matches!(action, Action::QuerySaCapabilities { .. });
    assert_eq!(bench.actions.iter().filter(asked).count(), 2);
    bench.answer_where(|action| matches!(action, Action::JoinGroup { .. }));
    assert_eq!(queries_left(&bench).len(), 1);
}

#[test]
fn a_renewal_under_way_is_cancelled_when_the_port_goes_down() {
    let mut bench = Bench::joined();
    bench.port_event(PortEvent::ClientReregister, |_| {});
    bench.answer_where(|action| matches!(action, Action::QuerySaCapabilities { .. }));
    assert_eq!(bench.joins_waiting(), 1);
    bench.port_event(PortEvent::PortError, |port| port.is_active = false);
    assert_eq!(queries_left(&bench), []);
    bench.actions.retain(|action| !matches!(action, Action::JoinGroup { .. }));
    bench.answer_all();
    assert_eq!(bench.attached, [], "the groups are detached all the same");
    bench.finish();
}

#[test]
fn a_group_upgraded_during_its_renewal_is_joined_fully_after_it() {
    let mut bench = Bench::joined();
    let mgid = group("224.1.2.3");
    let address = LinkAddress::multicast(mgid);
    bench.send(&address, EtherType::IPV4, ipv4(100, false)).unwrap();
    bench.answer_all();
    bench.port_event(PortEvent::ClientReregister, |_| {});
    let before = bench.joins_waiting();
    bench.listen(&[zerocopy::IntoBytes::as_bytes(&address)]);
    assert_eq!(bench.joins_waiting(), before, "the renewal is waited for");
    bench.answer_all();
    assert!(bench.attached.iter().any(|&(one, _)| one == mgid));
    assert!(bench.members.contains(&(mgid, 1)));
    bench.complete_all();
    bench.finish();
}

#[test]
fn a_group_that_is_not_ready_when_registration_is_asked_for_is_registered_later() {
    let mgid = group("224.1.2.3");
    let address = LinkAddress::multicast(mgid);
    let is_join = |action: &Action| {
        matches!(action, Action::JoinGroup { request, .. }
            if request.mgid == mgid)
    };
    let is_handle = |action: &Action| matches!(action, Action::CreateAddressHandle { .. });
    // Its join is under way in the first case, its handle is being made in the second.
    for is_joined in [false, true] {
        let mut bench = Bench::joined();
        bench.listen(&[zerocopy::IntoBytes::as_bytes(&address)]);
        if is_joined {
            bench.answer_where(|action| !is_handle(action));
            assert!(bench.actions.iter().any(is_handle));
        }
        bench.port_event(PortEvent::ClientReregister, |_| {});
        if is_joined {
            bench.answer_where(is_handle);
        } else {
            let join = bench.actions.iter().position(is_join).unwrap();
            let join = bench.actions.remove(join).unwrap();
            bench.answer(join);
            bench.answer_where(|action| !is_join(action));
        }
        assert_eq!(bench.actions.iter().filter(|action| is_join(action)).count(), 1);
        bench.answer_all();
        bench.finish();
    }
}

#[test]
fn a_list_that_fills_the_table_leaves_a_place_for_the_broadcast_group() {
    let mut bench = Bench::new(port(), Limits::SMALL);
    let addresses: Vec<LinkAddress> = (0..Limits::SMALL.groups_max)
        .map(|number| LinkAddress::multicast(group(&format!("239.0.0.{number}"))))
        .collect();
    let list: Vec<&[u8]> = addresses.iter().map(zerocopy::IntoBytes::as_bytes).collect();
    bench.listen(&list);
    assert_eq!(bench.count(Counter::GroupsRefused), 1);
    bench.admin_up();
    bench.answer_all();
    assert!(bench.interface.is_link_up(), "{}", bench.interface.state_name());
    bench.finish();
}

#[test]
fn a_group_given_up_twice_is_still_detached() {
    let mut bench = Bench::joined();
    let address = LinkAddress::multicast(group("224.1.2.3"));
    bench.listen(&[zerocopy::IntoBytes::as_bytes(&address)]);
    bench.answer_all();
    bench.port_event(PortEvent::ClientReregister, |_| {});
    // The list no longer has it while it is being renewed; then the port goes down.
    bench.listen(&[]);
    bench.port_event(PortEvent::PortError, |port| port.is_active = false);
    bench.actions.retain(|action| !matches!(action, Action::JoinGroup { .. }));
    bench.answer_all();
    assert_eq!(bench.attached, []);
    bench.finish();
}
