//! Interfaces of vlan(4) that become members of a partition.

#![cfg_attr(miri, allow(dead_code, reason = "Miri runs a part of the tests"))]

mod common;

use std::time::Duration;

use common::{IPV4, Machine, NEIGHBOR, ipv4};
use fake_kernel::ofed::kpi_port_event;
use fake_kernel::{ifnet, log, sysctl};

#[test]
fn a_child_is_an_interface_of_its_own_partition() {
    let (machine, hca) = Machine::start_up();
    let child = ifnet::add_child("ib0", 0x123).expect("the port has that key");
    machine.settle();
    let state = ifnet::state(&child).expect("it is there");
    assert!(state.is_link_up);
    assert_eq!(state.broadcast[8..10], [0x81, 0x23]);
    machine.stack.take_sent();
    ifnet::transmit(&child, &NEIGHBOR, IPV4, &ipv4(100));
    machine.settle();
    let sent = machine.stack.take_sent();
    assert_eq!(sent.len(), 1);
    assert_ne!(sent[0].qpn, machine.datagrams(0).qpn);
    assert!(sysctl::read_text("net.link.ipoib.ib0_8123.state").is_ok());
    ifnet::remove_child("ib0", 0x123);
    assert_eq!(ifnet::names().len(), common::INTERFACES);
    assert!(sysctl::names("net.link.ipoib.ib0_8123").is_empty());
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn the_partition_of_the_port_has_no_child() {
    let (machine, hca) = Machine::start_up();
    log::take_lines();
    assert_eq!(ifnet::add_child("ib0", 0x7fff), None);
    let lines = log::take_lines();
    assert!(lines.iter().any(|line| line.contains("is that of the interface itself")), "{lines:?}");
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn the_default_partition_is_found_wherever_it_stands() {
    let (machine, hca) = Machine::start_up();
    let has_link_with = |pkeys: [u16; 3]| {
        hca.change_port(1, |port| port.pkeys = pkeys.to_vec());
        hca.port_event(1, kpi_port_event::KPI_PORT_PKEY_CHANGED);
        machine.pass(Duration::from_secs(2));
        let state = ifnet::state("ib0").expect("it is there");
        state.is_link_up.then(|| state.broadcast[8..10].to_vec())
    };
    assert_eq!(has_link_with([0, 0x8123, 0xffff]), Some(vec![0xff, 0xff]));
    // Nobody asked for that partition.
    assert_eq!(has_link_with([0, 0x8123, 0]), None);
    assert_eq!(has_link_with([0x8123, 0xffff, 0]), Some(vec![0x81, 0x23]));
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn an_interface_is_found_by_its_port_and_partition() {
    let (machine, hca) = Machine::start_up();
    let other = machine.add_adapter();
    ifnet::add_child("ib1", 0x123);
    assert_eq!(hca.find_interface(1, 0xffff).as_deref(), Some("ib0"));
    // Limited members are of the same partition.
    assert_eq!(hca.find_interface(2, 0x7fff).as_deref(), Some("ib1"));
    assert_eq!(hca.find_interface(2, 0x8123).as_deref(), Some("ib1.0123"));
    assert_eq!(hca.find_interface(1, 0x8123), None);
    assert_eq!(other.find_interface(1, 0xffff).as_deref(), Some("ib2"));
    ifnet::remove_child("ib1", 0x123);
    assert_eq!(hca.find_interface(2, 0x8123), None);
    hca.remove();
    other.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn children_go_with_their_port() {
    let (machine, hca) = Machine::start_up();
    ifnet::add_child("ib0", 0x123);
    ifnet::add_child("ib1", 0x123);
    machine.settle();
    assert_eq!(ifnet::names(), ["ib0", "ib0.0123", "ib1", "ib1.0123"]);
    hca.remove();
    assert_eq!(ifnet::names(), [""; 0]);
    machine.stop();
}
