//! What comes when nobody waits for it any more: answers, events, completions, timers, packets.

#![cfg_attr(miri, allow(dead_code, reason = "Miri runs a part of the tests"))]

mod common;

use std::time::Duration;

use common::{CONNECTED, IPV4, Machine, NEIGHBOR, datagram, ipv4, message};
use fake_kernel::ofed::{Message, kpi_cm_event_type, kpi_port_event, kpi_qp_event, kpi_status};
use fake_kernel::{ifnet, sysctl, time, worker};

const ETIMEDOUT: i32 = 60;
const EINTR: i32 = 4;

#[test]
fn an_answer_of_the_subnet_administrator_after_the_interface_went_down() {
    let (machine, hca) = Machine::start_up();
    machine.stack.be_automatic(false);
    let before = machine.stack.questions();
    ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100));
    machine.settle();
    assert_eq!(machine.stack.questions(), before + 1);
    ifnet::set_up("ib0", false);
    machine.settle();
    assert!(machine.stack.is_cancelled(before));
    machine.stack.answer_path(before, 0);
    machine.stack.answer_path(before, EINTR);
    machine.settle();
    assert_eq!(machine.stack.take_sent(), []);
    assert_eq!(sysctl::read_text("net.link.ipoib.ib0.state").as_deref(), Ok("down"));
    hca.remove();
    machine.stop();
}

#[test]
fn answers_after_the_adapter_went() {
    let (machine, hca) = Machine::start_with_adapter();
    machine.stack.be_automatic(false);
    ifnet::set_up("ib0", true);
    machine.settle();
    let questions = machine.stack.questions();
    assert!(questions > 0);
    hca.remove();
    for question in 0..questions {
        machine.stack.answer_capabilities(question, 0, 0);
        machine.stack.answer_capabilities(question, ETIMEDOUT, 0);
    }
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn an_answer_to_a_join_that_is_not_wanted_any_more() {
    let (machine, hca) = Machine::start_with_adapter();
    machine.stack.be_automatic(false);
    ifnet::set_up("ib0", true);
    machine.settle();
    assert!(machine.stack.is_member(0));
    ifnet::set_up("ib0", false);
    machine.settle();
    if machine.stack.is_member(0) {
        machine.stack.answer_join(0, 0);
    }
    machine.settle();
    assert!(!machine.stack.is_member(0));
    assert_eq!(machine.datagrams(0).groups, 0);
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn a_membership_that_the_stack_ends() {
    let (machine, hca) = Machine::start_up();
    // ENETRESET: the subnet manager started anew.
    machine.stack.answer_join(0, 52);
    hca.port_event(1, kpi_port_event::KPI_PORT_CLIENT_REREGISTER);
    machine.pass(Duration::from_secs(1));
    assert!(machine.stack.joins() > 1);
    assert!(ifnet::state("ib0").is_some_and(|state| state.is_link_up));
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn events_of_a_connection_in_any_order_and_twice() {
    let kinds = [
        kpi_cm_event_type::KPI_CM_REPLIED,
        kpi_cm_event_type::KPI_CM_ESTABLISHED,
        kpi_cm_event_type::KPI_CM_REJECTED,
        kpi_cm_event_type::KPI_CM_TIMED_OUT,
        kpi_cm_event_type::KPI_CM_UNSENT,
        kpi_cm_event_type::KPI_CM_DISCONNECT_REQUESTED,
        kpi_cm_event_type::KPI_CM_DISCONNECTED,
        kpi_cm_event_type::KPI_CM_TIMEWAIT_EXITED,
    ];
    for first in kinds {
        for second in kinds {
            let (machine, hca) = Machine::start_connected();
            ifnet::transmit("ib0", &CONNECTED, IPV4, &ipv4(8000));
            worker::run_all_due();
            // The path is known, the connection is asked for, and the peer is slow.
            machine.stack.answer_path(machine.stack.questions() - 1, 0);
            worker::run_all_due();
            let number = machine.stack.ids() - 1;
            assert_eq!(machine.stack.last_message(number), Message::Request);
            for kind in [first, second] {
                if machine.stack.id_exists(number) {
                    machine.stack.connection_event(number, kind, 28);
                    worker::run_all_due();
                }
            }
            machine.pass(Duration::from_secs(2));
            ifnet::transmit("ib0", &CONNECTED, IPV4, &ipv4(80));
            machine.settle();
            hca.remove();
            machine.stop();
        }
    }
}

#[test]
fn an_event_of_a_connection_while_the_interface_goes_down() {
    let (machine, hca) = Machine::start_connected();
    ifnet::transmit("ib0", &CONNECTED, IPV4, &ipv4(8000));
    machine.settle();
    machine.pass(Duration::from_millis(10));
    let number = machine.stack.ids() - 1;
    let pair = machine.connections()[0].clone();
    ifnet::set_up("ib0", false);
    machine.stack.connection_event(number, kpi_cm_event_type::KPI_CM_DISCONNECT_REQUESTED, 0);
    machine.stack.queue_pair_event(pair.qpn, kpi_qp_event::KPI_QP_FAILED);
    machine.stack.queue_pair_event(pair.qpn, kpi_qp_event::KPI_QP_LAST_WQE);
    machine.pass(Duration::from_secs(10));
    assert_eq!(machine.connections(), []);
    assert!(!machine.stack.id_exists(number));
    hca.remove();
    machine.stop();
}

#[test]
fn completions_that_nobody_has_taken_out_when_the_adapter_goes() {
    let (machine, hca) = Machine::start_connected();
    ifnet::transmit("ib0", &CONNECTED, IPV4, &ipv4(8000));
    let service = machine.stack.services()[0];
    machine.stack.request(service, 4);
    machine.settle();
    machine.stack.be_automatic(false);
    let datagrams = machine.datagrams(0).qpn;
    for _ in 0..5 {
        ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100));
        ifnet::transmit("ib0", &CONNECTED, IPV4, &ipv4(9000));
        machine.stack.receive(datagrams, &datagram(IPV4, &ipv4(200)));
    }
    for pair in machine.connections() {
        if pair.sends > 0 {
            machine.stack.complete_send(pair.qpn, kpi_status::KPI_STATUS_SUCCESS);
        }
        machine.stack.receive_if_posted(pair.qpn, &message(IPV4, &ipv4(4000)));
    }
    // No worker has run since.
    hca.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn a_timer_that_expires_when_the_adapter_is_gone() {
    let (machine, hca) = Machine::start_up();
    ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100));
    hca.remove();
    time::advance(Duration::from_secs(3600));
    assert!(!worker::run_due());
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn events_of_ports_and_packets_when_the_interface_is_gone() {
    let (machine, hca) = Machine::start_up();
    let other = machine.add_adapter();
    ifnet::set_up("ib2", true);
    machine.settle();
    // All at once: what of it comes first is not said.
    for event in 1..=7 {
        hca.port_event(1, event);
        other.port_event(1, event);
    }
    hca.remove();
    // ENXIO
    assert_eq!(ifnet::transmit("ib0", &NEIGHBOR, IPV4, &ipv4(100)), 6);
    machine.settle();
    assert!(ifnet::state("ib2").is_some_and(|state| state.is_link_up));
    other.remove();
    machine.stop();
}

#[cfg_attr(not(miri), test)]
fn an_interface_follows_what_its_port_becomes() {
    let (machine, hca) = Machine::start_up();
    hca.change_port(1, |port| port.is_active = false);
    hca.port_event(1, kpi_port_event::KPI_PORT_ERROR);
    machine.settle();
    assert!(ifnet::state("ib0").is_some_and(|state| !state.is_link_up));
    hca.change_port(1, |port| {
        (port.is_active, port.lid) = (true, 33);
        port.gid[8] = 0x42;
    });
    hca.port_event(1, kpi_port_event::KPI_PORT_ACTIVE);
    hca.port_event(1, kpi_port_event::KPI_PORT_GID_CHANGED);
    machine.pass(Duration::from_secs(1));
    let state = ifnet::state("ib0").expect("it is there");
    assert!(state.is_link_up);
    assert_eq!(state.address[12], 0x42);
    hca.remove();
    machine.stop();
}
