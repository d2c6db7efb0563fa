//! Adapters that do not destroy what they are told to.

mod common;

use std::time::Duration;

use common::{CONNECTED, IPV4, Machine, NEIGHBOR, ipv4, message};
use fake_kernel::ofed::{Hca, Stuck, kpi_status};
use fake_kernel::{dma, ifnet, log, sysctl};

/// With `ib0` up, an outgoing and an incoming connection, and a send posted on the former.
fn busy() -> (Machine, Hca) {
    let (machine, hca) = Machine::start_connected();
    ifnet::transmit("ib0", &CONNECTED, IPV4, &ipv4(100));
    machine.settle();
    machine.pass(Duration::from_millis(100));
    for service in machine.stack.services() {
        machine.stack.request(service, 4);
    }
    machine.settle();
    assert_eq!(machine.connections().len(), 2);
    assert_eq!(machine.stack.shared_receives(), 8);
    machine.stack.be_automatic(false);
    ifnet::transmit("ib0", &CONNECTED, IPV4, &ipv4(5000));
    log::take_lines();
    (machine, hca)
}

fn said(lines: &[String], what: &str) -> usize {
    lines.iter().filter(|line| line.contains(what)).count()
}

/// The module goes. That the queue pairs of both interfaces and of both connections go is refused
/// once, and of two of them again. What the log says.
fn unload(machine: &mut Machine, stuck: Stuck) -> Vec<String> {
    machine.stack.be_stuck(stuck, 6);
    machine.unload();
    let lines = log::take_lines();
    assert_eq!(said(&lines, "cannot be destroyed"), 4, "{lines:?}");
    assert_eq!(said(&lines, "is destroyed at last"), 4, "{lines:?}");
    assert_eq!(machine.stack.queue_pairs(), []);
    lines
}

#[test]
fn what_an_adapter_may_still_write_to_is_lost() {
    let (mut machine, hca) = busy();
    let posted = dma::mapped();
    assert_eq!(posted, 16 + 8 + 1);
    let lines = unload(&mut machine, Stuck::Resetting);
    assert_eq!(said(&lines, "a packet is lost"), dma::mapped());
    assert_eq!(dma::mapped(), posted);
    dma::free_lost();
    machine.assert_empty();
    hca.remove();
    machine.stop();
}

#[test]
fn a_queue_pair_that_was_reset_gives_its_buffers_back() {
    let (mut machine, hca) = busy();
    let lines = unload(&mut machine, Stuck::Destroying);
    // The shared queue is in use as long as a connection is, and cannot be reset.
    assert_eq!(said(&lines, "a packet is lost"), 8);
    assert_eq!(dma::mapped(), 8);
    dma::free_lost();
    machine.assert_empty();
    hca.remove();
    machine.stop();
}

#[test]
fn a_connection_that_is_kept_is_counted_and_disturbs_nobody() {
    let (mut machine, hca) = busy();
    let qpn = machine.connections()[0].qpn;
    assert_eq!(machine.connections()[0].sends, 1);
    let failed = || sysctl::read_number("net.link.ipoib.ib0.stats.verbs_failed");
    let before = failed().expect("it is there");
    machine.stack.be_stuck(Stuck::Resetting, 1);
    sysctl::write_text("net.link.ipoib.ib0.mode", "datagram").expect("it is known");
    machine.pass(Duration::from_secs(2));
    assert_eq!(failed(), Ok(before + 1));
    assert_eq!(said(&log::take_lines(), "cannot be destroyed"), 1);
    assert_eq!(kmod::ipoib_rs_is_pinned(), 1);
    // It is read where it is, after all that time.
    machine.stack.take_sent();
    machine.stack.complete_send(qpn, kpi_status::KPI_STATUS_SUCCESS);
    machine.settle();
    assert_eq!(machine.stack.take_sent()[0].bytes, message(IPV4, &ipv4(5000)));
    // Others go on.
    machine.stack.be_automatic(true);
    ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100));
    machine.settle();
    assert_eq!(machine.stack.take_sent().len(), 1);
    machine.unload();
    let lines = log::take_lines();
    assert_eq!(said(&lines, "is destroyed at last"), 1);
    assert_eq!(kmod::ipoib_rs_is_pinned(), 0);
    // It went after the interface, and until then the shared queue was in use.
    assert_eq!(said(&lines, "a packet is lost"), 8);
    dma::free_lost();
    machine.assert_empty();
    hca.remove();
    machine.stop();
}
