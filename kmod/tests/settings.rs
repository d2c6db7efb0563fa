//! What the loader is told, and what becomes of it.

mod common;

use common::{Address, IPV4, Machine, ipv4};
use fake_kernel::{ifnet, kenv, log, sysctl};

/// Tunables that are numbers, and what they are by default.
const NUMBERS: [(&str, u64); 8] = [
    ("send_queue_size", 256),
    ("recv_queue_size", 512),
    ("max_connections", 512),
    ("max_neighbors", 1024),
    ("max_groups", 256),
    ("max_pending", 1024),
    ("connected_mtu", 65520),
    ("normalize_nd", 1),
];

fn shown(name: &str) -> Result<u64, i32> {
    sysctl::read_number(&format!("hw.ipoib.{name}"))
}

#[test]
fn tunables_are_shown_as_they_are_in_force() {
    let mut machine = Machine::start();
    kenv::reset();
    assert_eq!(machine.load(), 0);
    for (name, default) in NUMBERS {
        assert_eq!(shown(name), Ok(default), "{name}");
    }
    machine.unload();
    for (place, (name, default)) in NUMBERS.into_iter().enumerate() {
        kenv::set(&format!("hw.ipoib.{name}"), &(default - place as u64 % 2).to_string());
    }
    assert_eq!(machine.load(), 0);
    for (place, (name, default)) in NUMBERS.into_iter().enumerate() {
        assert_eq!(shown(name), Ok(default - place as u64 % 2), "{name}");
    }
    assert!(!log::take_lines().iter().any(|line| line.contains("is not between")));
    machine.stop();
}

#[test]
fn what_is_out_of_its_range_is_told_and_ignored() {
    let mut machine = Machine::start();
    for value in [0, (1 << 24) + 1] {
        for (name, _) in &NUMBERS[..6] {
            kenv::reset();
            kenv::set(&format!("hw.ipoib.{name}"), &value.to_string());
            assert_eq!(machine.load(), 0);
            let line = format!("ipoib_rs: hw.ipoib.{name}: {value} is not between 1 and 16777216");
            assert_eq!(log::take_lines().first(), Some(&line));
            assert_eq!(NUMBERS.map(|(name, _)| shown(name)), NUMBERS.map(|(_, or)| Ok(or)));
            machine.unload();
        }
    }
    machine.stop();
}

/// `ib0`, up, with something else than tests have by default.
fn start_with(name: &str, value: &str) -> (Machine, fake_kernel::ofed::Hca) {
    let mut machine = Machine::start();
    kenv::set(&format!("hw.ipoib.{name}"), value);
    assert_eq!(machine.load(), 0);
    let hca = machine.add_adapter();
    ifnet::set_up("ib0", true);
    machine.settle();
    (machine, hca)
}

/// The rows of a table of `ib0`.
fn rows(table: &str) -> usize {
    let text = sysctl::read_text(&format!("net.link.ipoib.ib0.{table}")).expect("it is there");
    // An empty line, and one of titles.
    text.lines().count() - 2
}

/// One after [`common::NEIGHBOR`].
fn neighbor(number: u8) -> Address {
    let mut address = common::NEIGHBOR;
    (address[3], address[19]) = (address[3] + number, address[19] + number);
    address
}

#[test]
fn an_interface_has_no_more_neighbors_than_it_may() {
    let (machine, hca) = start_with("max_neighbors", "2");
    for number in 1..=5 {
        machine.stack.take_sent();
        ifnet::transmit("ib0", &neighbor(number), IPV4, &ipv4(100));
        machine.settle();
        // One of those before makes room for it.
        assert_eq!(machine.stack.take_sent().len(), 1, "{number}");
        assert_eq!(rows("neighbors"), usize::from(number.min(2)));
    }
    hca.remove();
    machine.stop();
}

#[test]
fn an_interface_has_no_more_groups_than_it_may() {
    let (machine, hca) = start_with("max_groups", "3");
    let groups =
        [1, 2, 3].map(|last| ifnet::map_group("ib0", [224, 0, 0, last]).expect("it is a group"));
    ifnet::set_groups("ib0", &groups);
    machine.settle();
    // The broadcast group is one of them.
    assert_eq!((rows("groups"), machine.datagrams(0).groups), (3, 3));
    hca.remove();
    machine.stop();
}

#[test]
fn no_more_packets_wait_than_may() {
    let (machine, hca) = start_with("max_pending", "3");
    machine.stack.take_sent();
    for number in 1..=5 {
        ifnet::transmit("ib0", &neighbor(number), IPV4, &ipv4(100));
    }
    machine.settle();
    assert_eq!(machine.stack.take_sent().len(), 3);
    hca.remove();
    machine.stop();
}
