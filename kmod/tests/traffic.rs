//! Packets, up and down, and what becomes of them whatever fails.

#![cfg_attr(miri, allow(dead_code, reason = "Miri runs a part of the tests"))]

mod common;

use std::time::Duration;

use common::{CONNECTED, IPV4, Machine, NEIGHBOR, datagram, ipv4, message};
use fake_kernel::ofed::{Fault, Message, kpi_qp_event, kpi_status};
use fake_kernel::{ifnet, log, memory, sysctl};

const ENOBUFS: i32 = 55;

/// What a packet is on the wire.
fn encapsulated(packet: &[u8]) -> Vec<u8> {
    message(IPV4, packet)
}

#[cfg_attr(not(miri), test)]
fn an_interface_that_is_up_joins_its_broadcast_group_and_has_a_carrier() {
    let (machine, hca) = Machine::start_with_adapter();
    ifnet::set_up("ib0", true);
    assert!(!ifnet::state("ib0").is_some_and(|state| state.is_link_up));
    machine.settle();
    assert!(ifnet::state("ib0").is_some_and(|state| state.is_link_up));
    let pair = machine.datagrams(0);
    assert_eq!((pair.receives, pair.groups), (16, 1));
    ifnet::set_up("ib0", false);
    machine.settle();
    assert!(!ifnet::state("ib0").is_some_and(|state| state.is_link_up));
    let pair = machine.datagrams(0);
    assert_eq!((pair.receives, pair.groups), (0, 0));
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn an_interface_that_is_brought_up_before_its_driver_is_ready_comes_up() {
    let mut machine = Machine::start();
    assert_eq!(machine.load(), 0);
    ifnet::be_up_at_once(true);
    let hca = machine.add_adapter();
    ifnet::be_up_at_once(false);
    machine.settle();
    for name in ["ib0", "ib1"] {
        assert!(ifnet::state(name).is_some_and(|state| state.is_link_up), "{name}");
    }
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn a_packet_goes_where_its_path_leads() {
    let (machine, hca) = Machine::start_up();
    machine.stack.take_sent();
    assert_eq!(ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100)), 0);
    machine.settle();
    let sent = machine.stack.take_sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].to, &sent[0].bytes), (Some((9, 0x77)), &encapsulated(&ipv4(100))));
    assert_eq!(ifnet::counter("ib0", 6), Some(1));
    hca.remove();
    machine.stop();
}

#[test]
fn a_packet_that_arrives_is_handed_to_the_stack() {
    let (machine, hca) = Machine::start_up();
    let qpn = machine.datagrams(0).qpn;
    machine.stack.receive(qpn, &datagram(IPV4, &ipv4(200)));
    // Too short, and as long as the buffer has no room for.
    machine.stack.receive(qpn, &datagram(IPV4, &[])[..42]);
    machine.stack.receive(qpn, &[0; 5000]);
    machine.settle();
    let received = ifnet::take_received("ib0");
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].protocol, &received[0].bytes), (IPV4, &ipv4(200)));
    // All are posted again.
    assert_eq!(machine.datagrams(0).receives, 16);
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn a_packet_that_is_too_big_is_told_of_once() {
    let (machine, hca) = Machine::start_up();
    machine.stack.take_sent();
    ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(3000));
    machine.settle();
    assert_eq!(ifnet::take_too_big("ib0"), [(ipv4(3000), 2044)]);
    assert_eq!(machine.stack.take_sent(), []);
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn the_table_of_neighbors_says_what_was_sent_and_what_was_dropped() {
    let (machine, hca) = Machine::start_up();
    ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100));
    machine.settle();
    ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100));
    for _ in 0..3 {
        ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(3000));
    }
    machine.settle();
    let table = sysctl::read_text("net.link.ipoib.ib0.neighbors").expect("it is there");
    let mut rows = table.trim().lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let titles = rows.next().expect("there are titles");
    let names = ["address", "lid", "qpn", "transport", "state", "mtu", "queued", "tx", "drops"];
    assert_eq!(titles, names);
    let row = rows.next().expect("there is a neighbour");
    assert_eq!(row[1..], ["9", "0x000077", "datagram", "ready", "2044", "0", "2", "3"]);
    assert_eq!(rows.next(), None);
    ifnet::take_too_big("ib0");
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn what_finds_the_ring_full_waits_as_far_as_the_queue_goes() {
    let (machine, hca) = Machine::start_up();
    ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100));
    machine.settle();
    machine.stack.take_sent();
    let results: Vec<i32> =
        (0..200).map(|_| ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100))).collect();
    let accepted = results.iter().filter(|error| **error == 0).count();
    assert!((17..200).contains(&accepted), "{accepted}");
    assert!(results.ends_with(&[ENOBUFS]));
    machine.settle();
    assert_eq!(machine.stack.take_sent().len(), accepted);
    // Those that wait go with the queue.
    for _ in 0..30 {
        let _ = ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100));
    }
    ifnet::flush_queue("ib0");
    machine.settle();
    assert_eq!(machine.stack.take_sent().len(), 16);
    for _ in 0..30 {
        let _ = ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100));
    }
    hca.remove();
    machine.stop();
}

/// `ib0`, up and in connected mode, with a connection to [`CONNECTED`].
fn connected() -> (Machine, fake_kernel::ofed::Hca) {
    let (machine, hca) = Machine::start_connected();
    ifnet::transmit("ib0", &CONNECTED, IPV4, &ipv4(100));
    machine.settle();
    machine.pass(Duration::from_millis(100));
    machine.stack.take_sent();
    (machine, hca)
}

#[cfg_attr(not(miri), test)]
fn a_large_packet_goes_whole_on_a_connection() {
    let (machine, hca) = connected();
    assert_eq!(machine.connections().len(), 1);
    ifnet::transmit("ib0", &CONNECTED, IPV4, &ipv4(60_000));
    machine.settle();
    let sent = machine.stack.take_sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].to, &sent[0].bytes), (None, &encapsulated(&ipv4(60_000))));
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn a_peer_is_accepted_its_packets_arrive_and_it_goes() {
    let (machine, hca) = Machine::start_connected();
    let services = machine.stack.services();
    let number = machine.stack.request(services[0], 4).expect("it is wanted");
    machine.settle();
    assert_eq!(machine.stack.last_message(number), Message::Reply);
    let pair = machine.connections()[0].clone();
    assert!(machine.stack.shared_receives() > 0);
    machine.stack.receive(pair.qpn, &message(IPV4, &ipv4(4000)));
    machine.settle();
    let received = ifnet::take_received("ib0");
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].bytes, ipv4(4000));
    machine.stack.connection_event(
        number,
        fake_kernel::ofed::kpi_cm_event_type::KPI_CM_DISCONNECT_REQUESTED,
        0,
    );
    machine.pass(Duration::from_secs(10));
    assert_eq!(machine.connections(), []);
    assert!(!machine.stack.id_exists(number));
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn an_adapter_without_shared_receives_has_connections_too() {
    let mut machine = Machine::start();
    assert_eq!(machine.load(), 0);
    let hca = machine.add_adapter_with(|_, shared_receives| *shared_receives = 0);
    ifnet::set_up("ib0", true);
    machine.be_connected();
    let service = machine.stack.services()[0];
    let number = machine.stack.request(service, 4).expect("it is wanted");
    machine.settle();
    let pair = machine.connections()[0].clone();
    assert!(!pair.shares_receives && pair.receives > 0);
    machine.stack.receive(pair.qpn, &message(IPV4, &ipv4(1500)));
    machine.settle();
    assert_eq!(ifnet::take_received("ib0").len(), 1);
    assert!(machine.stack.id_exists(number));
    hca.remove();
    machine.stop();
}

#[test]
fn a_connection_that_fails_takes_its_packets_with_it() {
    let (machine, hca) = connected();
    machine.stack.be_automatic(false);
    let pair = machine.connections()[0].clone();
    for _ in 0..5 {
        let _ = ifnet::transmit("ib0", &CONNECTED, IPV4, &ipv4(9000));
    }
    machine.stack.complete_send(pair.qpn, kpi_status::KPI_STATUS_FAILED);
    machine.stack.queue_pair_event(pair.qpn, kpi_qp_event::KPI_QP_FAILED);
    machine.stack.be_automatic(true);
    machine.pass(Duration::from_secs(3));
    // Small packets went on, and there is a connection again.
    ifnet::transmit("ib0", &CONNECTED, IPV4, &ipv4(9000));
    machine.pass(Duration::from_secs(3));
    assert!(machine.connections().iter().all(|other| other.qpn != pair.qpn));
    hca.remove();
    machine.stop();
}

#[test]
fn a_packet_that_cannot_be_posted_is_dropped_and_counted() {
    let (machine, hca) = Machine::start_up();
    ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100));
    machine.settle();
    machine.stack.take_sent();
    machine.stack.fail_next(Fault::Post);
    ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(101));
    ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(102));
    machine.settle();
    let lengths: Vec<usize> =
        machine.stack.take_sent().iter().map(|sent| sent.bytes.len()).collect();
    assert_eq!(lengths, [106]);
    assert_eq!(sysctl::read_number("net.link.ipoib.ib0.stats.drop_post_failed"), Ok(1));
    hca.remove();
    machine.stop();
}

/// Something may be failing.
fn set_mode(mode: &str) {
    let _ = sysctl::write_text("net.link.ipoib.ib0.mode", mode);
}

#[cfg_attr(not(miri), test)]
fn a_datagram_that_cannot_be_sent_stops_the_others_for_a_moment_only() {
    let (machine, hca) = Machine::start_up();
    ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100));
    machine.settle();
    machine.stack.take_sent();
    machine.stack.be_automatic(false);
    for _ in 0..4 {
        ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100));
    }
    let qpn = machine.datagrams(0).qpn;
    machine.stack.complete_send(qpn, kpi_status::KPI_STATUS_FAILED);
    machine.stack.be_automatic(true);
    machine.settle();
    machine.stack.take_sent();
    ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(101));
    machine.settle();
    let lengths: Vec<usize> =
        machine.stack.take_sent().iter().map(|sent| sent.bytes.len()).collect();
    assert_eq!(lengths, [105]);
    hca.remove();
    machine.stop();
}

/// All that an interface does, in short.
const SCRIPT: &[fn(&Machine)] = &[
    |_| ifnet::set_up("ib0", true),
    |machine| machine.settle(),
    |_| {
        let _ = ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(1000));
    },
    |machine| machine.settle(),
    |machine| machine.stack.receive_if_posted(0, &datagram(IPV4, &ipv4(200))),
    |_| {
        let _ = ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(3000));
    },
    |_| {
        // All hosts, as the stack maps it.
        let group = ifnet::map_group("ib0", [224, 0, 0, 1]).expect("it is a group");
        ifnet::set_groups("ib0", &[group]);
        let _ = ifnet::transmit("ib0", &group, IPV4, &ipv4(64));
    },
    |machine| machine.settle(),
    |_| set_mode("connected"),
    |machine| machine.settle(),
    |_| {
        let _ = ifnet::transmit("ib0", &CONNECTED, IPV4, &ipv4(8000));
    },
    |machine| machine.settle(),
    |machine| machine.pass(Duration::from_millis(200)),
    |machine| {
        for service in machine.stack.services() {
            machine.stack.request(service, 4);
        }
    },
    |machine| machine.settle(),
    |machine| {
        for pair in machine.connections().iter().filter(|pair| pair.shares_receives) {
            machine.stack.receive_if_posted(pair.qpn, &message(IPV4, &ipv4(5000)));
        }
    },
    |_| drop(sysctl::read_text("net.link.ipoib.ib0.neighbors")),
    |machine| machine.settle(),
    |_| {
        ifnet::add_child("ib0", 0x123);
    },
    |machine| machine.settle(),
    |_| set_mode("datagram"),
    |machine| machine.pass(Duration::from_secs(1)),
    |_| ifnet::set_up("ib0", false),
    |machine| machine.settle(),
    |_| ifnet::remove_child("ib0", 0x123),
    |_| ifnet::set_up("ib0", true),
    |machine| machine.pass(Duration::from_secs(1)),
];

#[test]
fn nothing_is_lost_or_freed_twice_whatever_fails() {
    // What fails after so many that did not: each of them, or two for Miri.
    let places = if cfg!(miri) { (100..500).step_by(300) } else { (0..u32::MAX).step_by(1) };
    let mut failures = 0;
    for place in places {
        let (machine, hca) = Machine::start_with_adapter();
        memory::fail_anything_after(place);
        for step in SCRIPT {
            step(&machine);
        }
        let has_failed = memory::has_failed();
        // What did not come about, comes about.
        machine.pass(Duration::from_secs(120));
        let state = ifnet::state("ib0").expect("it is there");
        assert!(state.is_link_up, "after {}: {:?}", memory::failed(), log::take_lines());
        hca.remove();
        machine.stop();
        if !has_failed {
            break;
        }
        failures = place;
    }
    assert!(failures > 50, "{failures}");
}

#[cfg_attr(not(miri), test)]
fn the_adapter_may_go_at_any_time() {
    for steps in 0..=SCRIPT.len() {
        let (machine, hca) = Machine::start_with_adapter();
        for step in &SCRIPT[..steps] {
            step(&machine);
        }
        hca.remove();
        assert_eq!(ifnet::names(), [""; 0]);
        machine.stop();
    }
}

#[cfg_attr(not(miri), test)]
fn the_adapter_may_go_while_nobody_answers() {
    for silent_from in 0..SCRIPT.len() {
        let (machine, hca) = Machine::start_with_adapter();
        for (place, step) in SCRIPT.iter().enumerate() {
            machine.stack.be_automatic(place < silent_from);
            step(&machine);
        }
        hca.remove();
        machine.stop();
    }
}

#[cfg_attr(not(miri), test)]
fn the_module_may_go_at_any_time() {
    for steps in 0..=SCRIPT.len() {
        let (mut machine, hca) = Machine::start_with_adapter();
        for step in &SCRIPT[..steps] {
            step(&machine);
        }
        machine.unload();
        machine.assert_empty();
        hca.remove();
        machine.stop();
    }
}
