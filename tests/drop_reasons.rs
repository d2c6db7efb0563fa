//! Every drop reason has a way to happen, and every limit is hit: one recipe for each reason, and a
//! check that none is missing.

mod common;

use std::time::Duration;

use common::{Adapter, Bench, Packet, broadcast, connected_peer, group, ipv4, path_to, peer, port};
use ipoib_rs::action::{Action, SaError, SaRefusal, VerbError};
use ipoib_rs::counters::DropReason;
use ipoib_rs::ib::{Gid, IbMtu, Qpn};
use ipoib_rs::interface::{Mode, PortEvent};
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::{CompletionStatus, Receive};
use ipoib_rs::pump::pump;
use ipoib_rs::wire::{AddressFlags, EtherType, LinkAddress};

/// Makes packets end for `reason`, and returns how many should have.
fn provoke(bench: &mut Bench, reason: DropReason) -> u64 {
    match reason {
        DropReason::InterfaceDown => {
            bench.admin_down();
            send(bench, 1)
        }
        DropReason::LinkDown => {
            bench.port_event(PortEvent::PortError, |port| port.is_active = false);
            send(bench, 1)
        }
        DropReason::InvalidDestination => invalid_destinations(bench),
        DropReason::PathQueueFull => {
            send(bench, 1 + Limits::SMALL.path_queue_packets_max as usize);
            1
        }
        DropReason::PathTableFull => {
            for n in 1..=5 {
                bench.send(&peer(n), EtherType::IPV4, ipv4(100, false)).unwrap();
            }
            1
        }
        DropReason::PathUnresolved => {
            send(bench, 3);
            let (op, _) = bench.take_query();
            bench.path_answer(op, Err(SaError::Refused(SaRefusal::NoRecords)));
            3 + send(bench, 1)
        }
        DropReason::GroupQueueFull => {
            for _ in 0..5 {
                multicast(bench, "224.1.1.1");
            }
            2
        }
        DropReason::GroupTableFull => {
            // The broadcast group has the eighth place, and groups with packets are not evicted.
            for n in 1..=8 {
                multicast(bench, &format!("224.1.1.{n}"));
            }
            1
        }
        DropReason::GroupUnjoined => refuse_group(bench),
        DropReason::PendingExpired => {
            let waiting = send(bench, 2);
            bench.pass(Duration::from_secs(4));
            waiting
        }
        DropReason::PendingStoreFull => {
            for at in 0..65 {
                bench.send(&peer(1 + at / 30), EtherType::IPV4, ipv4(100, false)).unwrap();
            }
            1
        }
        DropReason::ConnectionQueueFull => {
            bench.mode(Mode::Connected).unwrap();
            bench.answer_all();
            bench.send(&connected_peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
            bench.answer_where(|action| !matches!(action, Action::OpenConnection { .. }));
            for _ in 0..5 {
                bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
            }
            1
        }
        DropReason::HandleFailed => {
            let waiting = send(bench, 2);
            let (op, query) = bench.take_query();
            bench.path_answer(op, Ok(path_to(&query)));
            match bench.actions.pop_back() {
                Some(Action::CreateAddressHandle { op, .. }) => bench.verb(op, Err(VerbError)),
                other => panic!("{other:?}"),
            }
            waiting
        }
        DropReason::PostFailed => {
            ready(bench);
            bench.adapter.refuses_sends = true;
            send(bench, 2)
        }
        DropReason::NoHeadroom => {
            ready(bench);
            transmit(bench, Packet::without_headroom(ipv4(100, false)));
            1
        }
        DropReason::TooBigReported => {
            bench.send(&peer(1), EtherType::IPV4, ipv4(2045, true)).unwrap();
            1
        }
        DropReason::TooBigSilent => {
            bench.send(&peer(1), EtherType::ARP, vec![0; 3000]).unwrap();
            bench.send(&broadcast(), EtherType::IPV4, ipv4(3000, true)).unwrap();
            2
        }
        DropReason::FragmentFailed => {
            bench.adapter.refuses_fragments = true;
            bench.send(&peer(1), EtherType::IPV4, ipv4(3000, false)).unwrap();
            1
        }
        DropReason::FrameTooShort => {
            for len in 0..44 {
                receive(bench, vec![0; len], false, 9, peer(1).qpn());
            }
            44
        }
        DropReason::OwnMulticast => {
            let mut frame = vec![0; 60];
            frame[24..40].copy_from_slice(&broadcast().gid().0);
            receive(bench, frame, true, 1, common::OWN_QPN);
            1
        }
        DropReason::ReceivedWhileDown => {
            bench.admin_down();
            receive(bench, vec![0; 100], false, 9, peer(1).qpn());
            1
        }
    }
}

/// How many of the packets that end for `reason` count for a neighbour. The others are for a group,
/// were received, or have no neighbour: their interface has no link, or their address no place.
fn towards_neighbors(reason: DropReason, expected: u64) -> u64 {
    match reason {
        DropReason::PathQueueFull
        | DropReason::PathUnresolved
        | DropReason::PendingExpired
        | DropReason::PendingStoreFull
        | DropReason::ConnectionQueueFull
        | DropReason::HandleFailed
        | DropReason::PostFailed
        | DropReason::NoHeadroom
        | DropReason::TooBigReported
        | DropReason::FragmentFailed => expected,
        // The other one is for everybody.
        DropReason::TooBigSilent => expected - 1,
        DropReason::InterfaceDown
        | DropReason::LinkDown
        | DropReason::InvalidDestination
        | DropReason::PathTableFull
        | DropReason::GroupQueueFull
        | DropReason::GroupTableFull
        | DropReason::GroupUnjoined
        | DropReason::FrameTooShort
        | DropReason::OwnMulticast
        | DropReason::ReceivedWhileDown => 0,
    }
}

/// What the table of neighbours says was dropped.
fn dropped_of_neighbors(bench: &Bench) -> u64 {
    bench.interface.neighbors().map(|row| row.dropped).sum()
}

#[test]
fn every_reason_happens_and_is_counted_under_its_name() {
    for &reason in DropReason::ALL {
        let mut bench = Bench::joined_with(Limits::SMALL);
        let expected = provoke(&mut bench, reason);
        assert_eq!(bench.drops(reason), expected, "{}", reason.name());
        let of_neighbors = towards_neighbors(reason, expected);
        assert_eq!(dropped_of_neighbors(&bench), of_neighbors, "{}", reason.name());
        let total = bench.interface.counters().drops_total();
        assert_eq!(total, expected, "{}: other reasons were counted too", reason.name());
        bench.adapter.refuses_sends = false;
        bench.answer_all();
        bench.complete_all();
        bench.finish();
    }
}

#[test]
fn drops_count_for_the_neighbor_wherever_a_packet_had_got_to() {
    let mut bench = Bench::joined_with(Limits::SMALL);
    // It waited for the path, and then the adapter refuses it.
    send(&mut bench, 2);
    bench.adapter.refuses_sends = true;
    bench.answer_all();
    assert_eq!(dropped_of_neighbors(&bench), 2);
    // Its path is there: the first fragment is refused, and so is the second.
    bench.send(&peer(1), EtherType::IPV4, ipv4(3000, false)).unwrap();
    assert_eq!(dropped_of_neighbors(&bench), 4);
    bench.send(&peer(1), EtherType::IPV4, ipv4(2045, true)).unwrap();
    assert_eq!(dropped_of_neighbors(&bench), 5);
    bench.adapter.refuses_sends = false;
    send(&mut bench, 1);
    assert_eq!(dropped_of_neighbors(&bench), 5);
    assert_eq!(bench.interface.counters().drops_total(), 5);
    bench.complete_all();
    bench.finish();
}

#[test]
fn names_of_counters_are_unique() {
    let bench = Bench::joined();
    let mut names: Vec<&str> = bench.interface.counters().iter().map(|(name, _)| name).collect();
    let before = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), before);
}

#[test]
fn limits_of_zero_and_beyond_numbering_are_refused() {
    use ipoib_rs::interface::{AttachError, Config, Interface, Mode};
    for limits in [
        Limits { paths_max: 0, ..Limits::SMALL },
        Limits { send_queue_len: 0, ..Limits::SMALL },
        Limits { groups_max: u32::MAX, ..Limits::SMALL },
        Limits { pending_packets_max: u32::MAX, ..Limits::SMALL },
    ] {
        let scope = ipoib_rs::wire::Scope::LINK_LOCAL;
        let (mode, connected) = (Mode::Datagram, None);
        let config =
            Config { qpn: common::OWN_QPN, port: port(), scope, mode, connected, seed: 0, limits };
        let attached: Result<Interface<Packet>, _> = Interface::attach(config);
        assert_eq!(attached.err(), Some(AttachError::LimitInvalid));
    }
}

fn invalid_destinations(bench: &mut Bench) -> u64 {
    let flags = AddressFlags::empty();
    let gid = peer(1).gid();
    let foreign_group = LinkAddress::new(flags, Qpn::MULTICAST, Gid([0xFF; 16]));
    let destinations = [
        LinkAddress::new(flags, Qpn::new(0).unwrap(), gid),
        LinkAddress::new(flags, Qpn::GSI, gid),
        LinkAddress::new(flags, Qpn::MULTICAST, gid),
        foreign_group,
    ];
    for to in &destinations {
        bench.send(to, EtherType::IPV4, ipv4(100, false)).unwrap();
    }
    destinations.len() as u64
}

/// Two refusals end the packets that wait for a send-only group.
fn refuse_group(bench: &mut Bench) -> u64 {
    multicast(bench, "224.1.1.1");
    multicast(bench, "224.1.1.1");
    for _ in 0..2 {
        let (op, _) = bench.take_join();
        bench.join_answer(op, Err(SaError::Refused(SaRefusal::RequestDenied)));
        bench.pass(Duration::from_secs(1));
    }
    2
}

fn ready(bench: &mut Bench) {
    bench.send(&peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    bench.answer_all();
    bench.complete(CompletionStatus::Success);
}

fn send(bench: &mut Bench, count: usize) -> u64 {
    for _ in 0..count {
        bench.send(&peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
    }
    count as u64
}

fn multicast(bench: &mut Bench, address: &str) {
    let to = LinkAddress::multicast(group(address));
    bench.send(&to, EtherType::IPV4, ipv4(100, false)).unwrap();
}

fn transmit(bench: &mut Bench, packet: Packet) {
    let now = bench.now;
    let outcome = pump(bench, |interface, adapter: &mut &mut Adapter| {
        interface.handle_transmit(now, &peer(1), EtherType::IPV4, packet, adapter)
    });
    assert!(outcome.is_ok());
}

fn receive(bench: &mut Bench, frame: Vec<u8>, has_grh: bool, source_lid: u16, source_qpn: Qpn) {
    let packet = Packet::new(frame);
    bench.receive(Receive { packet, has_grh, source_lid, source_qpn });
}

#[test]
fn a_narrow_path_gets_fragments_of_its_own_size() {
    let mut bench = Bench::joined_with(Limits::SMALL);
    bench.send(&peer(1), EtherType::IPV4, ipv4(2044, false)).unwrap();
    bench.send(&peer(1), EtherType::IPV4, ipv4(2044, true)).unwrap();
    let (op, query) = bench.take_query();
    let mut record = path_to(&query);
    record.mtu = IbMtu::Mtu512;
    bench.path_answer(op, Ok(record));
    bench.answer_all();
    bench.complete_all();
    let sizes: Vec<usize> = bench.adapter.wire.iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(sizes, [512, 512, 512, 512, 4 + 20 + 2024 - 4 * 488]);
    assert_eq!((bench.adapter.too_big.as_slice(), bench.adapter.released), (&[508][..], 1));
    bench.complete_all();
    bench.finish();
}
