//! Laggs over interfaces of this module: what is asked of them, who carries, and what is left.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{IPV4, Machine, NEIGHBOR, datagram, ipv4};
use fake_kernel::lagg::{self, PortRow};
use fake_kernel::ofed::{Hca, kpi_port_event};
use fake_kernel::{ifnet, log, memory, sysctl, time};

const ETHERNET: u32 = 1;
const INFINIBAND: u32 = 2;
const FAILOVER: u32 = 2;
const OUT_PACKETS: u32 = 6;

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const ENXIO: i32 = 6;
const EFAULT: i32 = 14;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EPROTONOSUPPORT: i32 = 43;
const ENETDOWN: i32 = 50;

/// With a lagg over both ports of an adapter, up.
fn start() -> (Machine, Hca) {
    let (machine, hca) = Machine::start_with_adapter();
    assert_eq!(lagg::create(INFINIBAND).as_deref(), Ok("lagg0"));
    for port in ["ib0", "ib1"] {
        assert_eq!(lagg::add_port("lagg0", port), 0);
    }
    ifnet::set_up("lagg0", true);
    machine.pass(Duration::from_secs(2));
    assert_eq!(carrier(), Some("ib0".to_owned()));
    machine.stack.take_sent();
    (machine, hca)
}

fn end(machine: Machine, hca: Hca) {
    hca.remove();
    machine.stop();
}

fn carrier() -> Option<String> {
    let ports = lagg::ports("lagg0").expect("it is there");
    ports.into_iter().find(|port| port.is_carrier).map(|port| port.name)
}

fn send() -> i32 {
    ifnet::transmit("lagg0", &NEIGHBOR, IPV4, &ipv4(100))
}

/// The cable of a port is out, or in again.
fn set_link(machine: &Machine, hca: &Hca, port: u8, is_up: bool) {
    hca.change_port(port, |port| port.is_active = is_up);
    let event = match is_up {
        true => kpi_port_event::KPI_PORT_ACTIVE,
        false => kpi_port_event::KPI_PORT_ERROR,
    };
    hca.port_event(port, event);
    machine.settle();
}

#[test]
fn what_cannot_be_is_refused_with_its_number() {
    let (machine, hca) = start();
    assert_eq!(lagg::create(ETHERNET), Err(EPROTONOSUPPORT));
    assert_eq!(lagg::create(INFINIBAND).as_deref(), Ok("lagg1"));
    ifnet::add_ethernet("em0");
    assert_eq!(lagg::add_port("lagg1", "em0"), EPROTONOSUPPORT);
    ifnet::remove_ethernet("em0");
    for (lagg, port, error) in [
        ("lagg0", "ib0", EEXIST),
        ("lagg1", "ib0", EBUSY),
        ("lagg1", "lagg0", EINVAL),
        ("lagg1", "lagg1", EINVAL),
        ("lagg1", "ib7", EINVAL),
        ("lagg7", "ib0", ENXIO),
    ] {
        assert_eq!(lagg::add_port(lagg, port), error, "{port} of {lagg}");
    }
    assert_eq!(lagg::remove_port("lagg1", "ib0"), ENOENT);
    assert_eq!(lagg::port("lagg1", "ib0"), Err(ENOENT));
    for protocol in 0..8 {
        let error = if protocol == FAILOVER { 0 } else { EPROTONOSUPPORT };
        assert_eq!(lagg::set_protocol("lagg0", protocol), error, "{protocol}");
    }
    // The MTU of a port is for the lagg to say, and that of the lagg in a range.
    assert_eq!(ifnet::set_mtu("ib0", 1500), EINVAL);
    assert_eq!(ifnet::set_mtu("lagg0", 65521), EINVAL);
    end(machine, hca);
}

#[test]
fn who_has_no_privileges_looks_and_changes_nothing() {
    let (machine, hca) = start();
    lagg::be_unprivileged(true);
    assert_eq!(lagg::remove_port("lagg0", "ib0"), EPERM);
    assert_eq!(lagg::add_port("lagg0", "ib1"), EPERM);
    assert_eq!(lagg::set_protocol("lagg0", FAILOVER), EPERM);
    assert_eq!(lagg::ports("lagg0").map(|ports| ports.len()), Ok(2));
    let row = PortRow { name: "ib1".to_owned(), is_primary: false, is_carrier: false };
    assert_eq!(lagg::port("lagg0", "ib1"), Ok(row));
    lagg::be_unprivileged(false);
    end(machine, hca);
}

#[test]
fn the_list_of_ports_fits_the_room_for_it() {
    let (machine, hca) = start();
    let all = lagg::ports("lagg0").expect("there is room");
    assert_eq!(all.len(), 2);
    assert!(all[0].is_primary && all[0].is_carrier && !all[1].is_primary);
    let row = size_of::<fake_kernel::lagg::RawPort>();
    for (room, rows) in [(0, 0), (1, 0), (row - 1, 0), (row, 1), (2 * row - 1, 1), (2 * row, 2)] {
        assert_eq!(lagg::ports_into("lagg0", Some(room)), Ok(all[..rows].to_vec()), "{room}");
    }
    assert_eq!(lagg::ports_into("lagg0", None), Err(EFAULT));
    end(machine, hca);
}

#[test]
fn the_port_that_carries_sends_and_is_what_the_lagg_looks_like() {
    let (machine, hca) = start();
    let [lagg, port] = ["lagg0", "ib0"].map(|name| ifnet::state(name).expect("it is there"));
    assert_eq!((lagg.address, lagg.broadcast), (port.address, port.broadcast));
    assert!(lagg.is_link_up);
    assert_eq!(send(), 0);
    machine.settle();
    let sent = machine.stack.take_sent();
    assert_eq!((sent.len(), sent[0].qpn), (1, machine.datagrams(0).qpn));
    end(machine, hca);
}

#[test]
fn a_link_that_is_lost_moves_everything_at_once_and_back_after_the_hold_down() {
    let (machine, hca) = start();
    let announced = || ifnet::state("lagg0").expect("it is there").announcements;
    let before = announced();
    set_link(&machine, &hca, 1, false);
    assert_eq!(carrier(), Some("ib1".to_owned()));
    let [lagg, port] = ["lagg0", "ib1"].map(|name| ifnet::state(name).expect("it is there"));
    assert_eq!((lagg.address, lagg.broadcast), (port.address, port.broadcast));
    assert_eq!(announced(), before + 1);
    assert_eq!(send(), 0);
    machine.settle();
    assert!(machine.stack.take_sent().iter().all(|sent| sent.qpn == machine.datagrams(1).qpn));
    // Both are gone: nobody carries.
    set_link(&machine, &hca, 2, false);
    assert_eq!(carrier(), None);
    assert_eq!(send(), ENETDOWN);
    assert!(!ifnet::state("lagg0").is_some_and(|state| state.is_link_up));
    set_link(&machine, &hca, 2, true);
    machine.pass(Duration::from_secs(2));
    assert_eq!(carrier(), Some("ib1".to_owned()));
    // The preferred one is back.
    set_link(&machine, &hca, 1, true);
    machine.pass(Duration::from_secs(3));
    assert_eq!(carrier(), Some("ib0".to_owned()));
    end(machine, hca);
}

#[test]
fn what_arrives_is_the_laggs_from_a_port_that_does_not_carry_as_it_is_set() {
    let (machine, hca) = start();
    let received = |port: usize| {
        machine.stack.receive(machine.datagrams(port).qpn, &datagram(IPV4, &ipv4(200)));
        machine.settle();
        assert_eq!(ifnet::take_received(["ib0", "ib1"][port]), []);
        ifnet::take_received("lagg0").len()
    };
    assert_eq!((received(0), received(1)), (1, 1));
    sysctl::write_text("net.link.ipoib.lagg.inactive_input", "none").expect("it is known");
    machine.settle();
    assert_eq!((received(0), received(1)), (1, 0));
    // A port that has left is itself again.
    assert_eq!(lagg::remove_port("lagg0", "ib1"), 0);
    machine.settle();
    ifnet::set_up("ib1", true);
    machine.pass(Duration::from_secs(1));
    machine.stack.receive(machine.datagrams(1).qpn, &datagram(IPV4, &ipv4(200)));
    machine.settle();
    assert_eq!(ifnet::take_received("ib1").len(), 1);
    end(machine, hca);
}

#[test]
fn counters_of_ports_stay_when_they_leave() {
    let (machine, hca) = start();
    let counted = || ifnet::counter("lagg0", OUT_PACKETS).expect("it is there");
    let before = counted();
    for _ in 0..3 {
        assert_eq!(send(), 0);
        machine.settle();
    }
    assert_eq!(counted(), before + 3);
    assert_eq!(lagg::remove_port("lagg0", "ib0"), 0);
    assert_eq!(counted(), before + 3);
    // What it counted before is not counted again.
    assert_eq!(lagg::add_port("lagg0", "ib0"), 0);
    assert_eq!(counted(), before + 3);
    end(machine, hca);
}

#[test]
fn the_adapter_goes_with_a_lagg_above_it() {
    let (mut machine, hca) = start();
    hca.remove();
    machine.settle();
    assert_eq!(ifnet::names(), ["lagg0"]);
    assert_eq!(lagg::ports("lagg0"), Ok(vec![]));
    assert_eq!(send(), ENXIO);
    // Another one comes, and the module goes with its ports in the lagg.
    let hca = machine.add_adapter();
    assert_eq!(lagg::add_port("lagg0", "ib0"), 0);
    machine.pass(Duration::from_secs(2));
    assert_eq!(carrier(), Some("ib0".to_owned()));
    machine.unload();
    machine.assert_empty();
    hca.remove();
    machine.stop();
}

/// What is done to a lagg, whatever fails.
fn exercise(machine: &Machine) {
    let Ok(name) = lagg::create(INFINIBAND) else { return };
    for port in ["ib0", "ib1"] {
        let _ = lagg::add_port(&name, port);
    }
    ifnet::set_up(&name, true);
    machine.settle();
    ifnet::set_groups(
        &name,
        &[NEIGHBOR].map(|mut group| {
            group[4] = 0xff;
            group
        }),
    );
    machine.settle();
    let _ = ifnet::set_mtu(&name, 1800);
    let _ = lagg::ports(&name);
    let _ = ifnet::transmit(&name, &NEIGHBOR, IPV4, &ipv4(100));
    machine.settle();
    let _ = lagg::remove_port(&name, "ib1");
    assert!(lagg::destroy(&name));
}

#[test]
fn nothing_is_left_whatever_fails() {
    let mut failures = 0;
    loop {
        let (machine, hca) = Machine::start_with_adapter();
        memory::fail_anything_after(failures);
        exercise(&machine);
        let has_failed = memory::has_failed();
        // It comes about in the end, by the same names.
        assert_eq!(lagg::create(INFINIBAND).as_deref(), Ok("lagg0"), "{}", memory::failed());
        assert_eq!(lagg::add_port("lagg0", "ib0"), 0, "{}", memory::failed());
        ifnet::set_up("lagg0", true);
        machine.pass(Duration::from_secs(120));
        assert_eq!(carrier(), Some("ib0".to_owned()), "after {}", memory::failed());
        log::take_lines();
        end(machine, hca);
        if !has_failed {
            break;
        }
        failures += 1;
    }
    assert!(failures > 50, "{failures}");
}

#[test]
fn threads_against_each_other() {
    let (machine, hca) = start();
    // Patience is for those who wait with time standing still.
    time::be_patient();
    let is_over = AtomicBool::new(false);
    let go_on = || !is_over.load(Ordering::Relaxed);
    thread::scope(|scope| {
        scope.spawn(|| {
            while go_on() {
                let _ = send();
            }
        });
        scope.spawn(|| {
            while go_on() {
                let _ = lagg::ports("lagg0");
                let _ = ifnet::counter("lagg0", OUT_PACKETS);
            }
        });
        for round in 0..100 {
            let port = ["ib0", "ib1"][round % 2];
            assert_eq!(lagg::remove_port("lagg0", port), 0);
            machine.settle();
            assert_eq!(lagg::add_port("lagg0", port), 0);
            machine.settle();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    machine.pass(Duration::from_secs(5));
    assert!(carrier().is_some());
    end(machine, hca);
}
