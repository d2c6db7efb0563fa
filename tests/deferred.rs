//! Inputs that are fed where nothing may sleep, as interrupts and the network stack do in a kernel.

mod common;

use std::time::Duration;

use ipoib_rs::action::Action;
use ipoib_rs::limits::{Limits, PENDING_MAX};
use ipoib_rs::pump::{DeferringShell, feed, pump};
use ipoib_rs::wire::EtherType;

use common::*;

impl DeferringShell for Bench {
    fn wake(&mut self) {
        self.wakes += 1;
    }
}

#[test]
fn what_follows_from_a_fed_input_waits_for_the_thread_that_pumps() {
    let mut bench = Bench::new(port(), Limits::DEFAULT);
    let now = bench.now;
    feed(&mut bench, |interface, adapter| interface.handle_admin_up(now, adapter));
    assert_eq!((bench.wakes, bench.actions.len()), (1, 0));
    pump(&mut bench, |_, _| ());
    let is_open = |action: &Action| matches!(action, Action::ModifyQueuePair { .. });
    assert!(bench.actions.iter().any(is_open), "{:?}", bench.actions);
    bench.answer_all();
    assert!(bench.interface.is_link_up());
    bench.finish();
}

#[test]
fn an_input_from_which_nothing_follows_wakes_nobody() {
    let mut bench = Bench::joined();
    let now = bench.now;
    feed(&mut bench, |interface, adapter| interface.handle_timeout(now, adapter));
    assert_eq!(bench.wakes, 0);
    bench.finish();
}

#[test]
fn a_deadline_before_the_one_that_is_set_wakes_the_thread() {
    let mut bench = Bench::joined();
    let now = bench.now;
    assert!(bench.deadline.is_none_or(|deadline| deadline > now + PENDING_MAX));
    let send = |bench: &mut Bench| {
        let packet = Packet::new(ipv4(100, false));
        feed(bench, |interface, adapter| {
            interface.handle_transmit(now, &peer(1), EtherType::IPV4, packet, adapter).unwrap();
        });
    };
    send(&mut bench);
    assert_eq!(bench.wakes, 1);
    pump(&mut bench, |_, _| ());
    let known = bench.deadline.unwrap();
    assert!(known <= now + PENDING_MAX);
    send(&mut bench);
    assert_eq!(bench.wakes, 1, "the second packet waits no longer than the first");
    bench.pass(PENDING_MAX + Duration::from_secs(1));
    bench.finish();
}
