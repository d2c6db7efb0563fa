//! Interfaces that come and go, whatever fails meanwhile.

#![cfg_attr(miri, allow(dead_code, reason = "Miri runs a part of the tests"))]

mod common;

use std::time::Duration;

use common::Machine;
use fake_kernel::{ifnet, kenv, log, memory, sysctl, trace};

#[cfg_attr(not(miri), test)]
fn every_port_of_an_adapter_has_an_interface() {
    let (machine, hca) = Machine::start_with_adapter();
    assert_eq!(ifnet::names(), ["ib0", "ib1"]);
    let state = ifnet::state("ib0").expect("it is there");
    assert_eq!((state.mtu, state.is_link_up), (2044, false));
    let port = sysctl::read_text("net.link.ipoib.ib1.state").expect("it is shown");
    assert_eq!(port, "down");
    hca.remove();
    assert_eq!(ifnet::names(), [""; 0]);
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn adapters_that_were_there_before_have_interfaces_too() {
    let mut machine = Machine::start();
    let hca = machine.add_adapter();
    assert_eq!(machine.load(), 0);
    assert_eq!(ifnet::names(), ["ib0", "ib1"]);
    machine.unload();
    machine.assert_empty();
    assert_eq!(machine.load(), 0);
    let other = machine.add_adapter();
    assert_eq!(ifnet::names(), ["ib0", "ib1", "ib2", "ib3"]);
    hca.remove();
    // Numbers that are free are given again.
    let third = machine.add_adapter();
    assert_eq!(ifnet::names(), ["ib0", "ib1", "ib2", "ib3"]);
    machine.unload();
    machine.assert_empty();
    other.remove();
    third.remove();
    machine.stop();
}

#[test]
fn it_is_refused_beside_the_stock_driver() {
    let mut machine = Machine::start();
    kenv::load_module("ipoib");
    // EEXIST
    assert_eq!(machine.load(), 17);
    assert_eq!(log::take_lines(), ["ipoib_rs: ipoib is loaded: kldunload ipoib"]);
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn ports_of_other_networks_and_adapters_that_are_not_named_have_none() {
    let mut machine = Machine::start();
    kenv::set("hw.ipoib.devices", "other0, fake1");
    assert_eq!(machine.load(), 0);
    let first = machine.add_adapter();
    assert_eq!(ifnet::names(), [""; 0]);
    let second = machine.add_adapter_with(|[first, _], _| first.is_infiniband = false);
    assert_eq!(ifnet::names(), ["ib0"]);
    first.remove();
    second.remove();
    machine.stop();
}

/// From above, from below, the queues, then what is in them, then everything else.
#[test]
fn an_interface_is_taken_down_in_order() {
    let (machine, hca) = Machine::start_up();
    ifnet::transmit("ib0", &common::CONNECTED, common::IPV4, &common::ipv4(100));
    trace::take();
    hca.remove();
    let steps = trace::take();
    let first = |step| steps.iter().position(|other| *other == step).expect(step);
    let last = |step| steps.iter().rposition(|other| *other == step).expect(step);
    // The other interface follows, if there is one.
    let detached = steps.iter().enumerate().filter(|(_, step)| **step == "if_detach");
    let second = detached.map(|(place, _)| place).nth(1);
    let of_first = &steps[..second.unwrap_or(steps.len())];
    assert_eq!(second.is_some(), common::INTERFACES == 2);
    let within = |step| of_first.iter().rposition(|other| *other == step).expect(step);
    let order = [
        "if_detach",
        "fail_qp",
        "leave_group",
        "reset_qp",
        "unwatch_port",
        "worker_stop",
        "destroy_qp",
        "destroy_srq",
        "if_free",
        "dealloc_pd",
    ];
    for pair in order.windows(2) {
        assert!(first(pair[0]) < within(pair[1]), "{} before {}: {steps:?}", pair[0], pair[1]);
    }
    assert!(within("worker_stop") < within("destroy_qp"), "{steps:?}");
    assert!(within("destroy_qp") < within("destroy_cq"), "{steps:?}");
    assert!(last("if_free") <= last("dealloc_pd"), "{steps:?}");
    machine.stop();
}

/// Has everything fail once that is done by `run`, one after the other; Miri takes each of
/// `miri_stride`. What `run` makes of it is looked at by itself.
fn with_each_failure(miri_stride: u32, mut run: impl FnMut(&mut dyn FnMut(u32))) -> u32 {
    for count in 0.. {
        let count = if cfg!(miri) { count * miri_stride } else { count };
        let mut arm = |_| memory::fail_anything_after(count);
        run(&mut arm);
        if !memory::has_failed() {
            return count;
        }
    }
    unreachable!("it ends when nothing fails any more")
}

#[test]
fn loading_undoes_itself_whatever_fails() {
    let failures = with_each_failure(23, |arm| {
        let mut machine = Machine::start();
        arm(0);
        let error = machine.load();
        if error == 0 {
            machine.unload();
        }
        machine.stop();
    });
    assert!(failures > 20, "{failures}");
}

#[test]
fn attaching_undoes_itself_whatever_fails() {
    let failures = with_each_failure(151, |arm| {
        let mut machine = Machine::start();
        assert_eq!(machine.load(), 0);
        log::take_lines();
        arm(0);
        let hca = machine.add_adapter();
        // Nobody is told of a failure twice, and never of none.
        let lines = log::take_lines();
        let is_lost = lines
            .iter()
            .any(|line| line.starts_with("ipoib_rs: fake0") || line.contains("adapter"));
        let is_whole = ifnet::names().len() == common::INTERFACES;
        let is_late = memory::failed() == "nothing";
        assert!(is_whole || is_lost, "{}: {:?}", memory::failed(), ifnet::names());
        assert!(!(is_late && is_lost));
        machine.settle();
        hca.remove();
        machine.stop();
    });
    assert!(failures > 200, "{failures}");
}

#[cfg_attr(not(miri), test)]
fn an_interface_that_lacks_something_is_taken_down_like_another() {
    with_each_failure(1, |arm| {
        let (machine, hca) = Machine::start_with_adapter();
        ifnet::set_up("ib1", true);
        arm(0);
        machine.pass(Duration::from_secs(5));
        hca.remove();
        machine.stop();
    });
}
