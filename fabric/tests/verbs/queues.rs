//! Completion queues, notifications and asynchronous events.

use crate::hosts::{
    CQ_LEN, failures, group, hosts, local, payloads, queue_pair, receive, receives, run, send,
    sends, to_ready,
};
use fabric::cq::WorkError;
use fabric::hca::HcaConfig;
use fabric::port::{PortState, SmAddress};
use fabric::qp::{QpChange, QpConfig, QpType};
use fabric::{AsyncEvent, DestroyError, Fabric, FabricConfig, ManagementError, ModifyError};
use ipoib_rs::ib::{Gid, Lid, Pkey, PkeyIndex, ServiceLevel};
use ipoib_rs::interface::PortEvent;

const CONFIG: FabricConfig = FabricConfig::DEFAULT;

#[test]
fn an_armed_queue_notifies_once() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..3);
    assert!(!fabric.req_notify(b.receive_cq));
    for wr_id in 0..2 {
        send(&mut fabric, a.qp, wr_id, (ah, b.qpn), b"x").unwrap();
    }
    run(&mut fabric);
    let notification = fabric.poll_notification().unwrap();
    assert_eq!(notification.cq, b.receive_cq);
    assert_eq!(notification.context, u64::from(b.lid.value()));
    assert_eq!(fabric.poll_notification(), None);
    assert_eq!(payloads(&mut fabric, b.receive_cq).len(), 2);

    // Not armed again: silence.
    send(&mut fabric, a.qp, 2, (ah, b.qpn), b"x").unwrap();
    run(&mut fabric);
    assert_eq!(fabric.poll_notification(), None);
    assert_eq!(payloads(&mut fabric, b.receive_cq).len(), 1);
}

#[test]
fn arming_a_queue_that_holds_something_says_so() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..1);
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"x").unwrap();
    run(&mut fabric);
    assert!(fabric.req_notify(b.receive_cq), "the entry was missed");
    assert_eq!(payloads(&mut fabric, b.receive_cq).len(), 1);
    assert!(!fabric.req_notify(b.receive_cq));
}

#[test]
fn arming_while_a_notification_is_under_way_loses_nothing() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..2);
    assert!(!fabric.req_notify(b.receive_cq));
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"1").unwrap();
    run(&mut fabric);
    assert_eq!(payloads(&mut fabric, b.receive_cq).len(), 1);
    assert!(!fabric.req_notify(b.receive_cq));
    assert!(fabric.poll_notification().is_some(), "of the first packet");
    send(&mut fabric, a.qp, 1, (ah, b.qpn), b"2").unwrap();
    run(&mut fabric);
    assert!(fabric.poll_notification().is_some(), "of the second packet");
    assert_eq!(payloads(&mut fabric, b.receive_cq), [b"2"]);
}

#[test]
fn a_notification_under_way_stands_for_what_came_after_it() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..3);
    for wr_id in 0..2 {
        assert!(!fabric.req_notify(b.receive_cq));
        send(&mut fabric, a.qp, wr_id, (ah, b.qpn), b"x").unwrap();
        run(&mut fabric);
        assert_eq!(payloads(&mut fabric, b.receive_cq).len(), 1);
    }
    assert!(fabric.poll_notification().is_some(), "of both packets");
    assert_eq!(fabric.poll_notification(), None);
    send(&mut fabric, a.qp, 2, (ah, b.qpn), b"x").unwrap();
    run(&mut fabric);
    assert_eq!(fabric.poll_notification(), None, "nobody armed it again");
    assert_eq!(payloads(&mut fabric, b.receive_cq).len(), 1);
}

#[test]
fn a_full_queue_reports_its_overrun_once_and_gives_packets_back() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    while fabric.poll_event().is_some() {}
    for number in 0..u64::from(CQ_LEN) + 2 {
        receive(&mut fabric, b.qp, number..number + 1);
        send(&mut fabric, a.qp, number, (ah, b.qpn), b"x").unwrap();
        run(&mut fabric);
        assert_eq!(sends(&mut fabric, a.send_cq).len(), 1);
    }
    assert_eq!(fabric.poll_event(), Some(AsyncEvent::CqOverrun(b.receive_cq)));
    assert_eq!(fabric.poll_event(), None);
    assert_eq!(payloads(&mut fabric, b.receive_cq).len(), CQ_LEN as usize);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn a_wedged_adapter_withholds_completions_until_it_is_well() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    receive(&mut fabric, b.qp, 0..2);
    assert!(!fabric.req_notify(b.receive_cq));
    fabric.set_wedged(b.hca, true).unwrap();
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"late").unwrap();
    run(&mut fabric);
    assert_eq!(fabric.poll_notification(), None);
    assert!(receives(&mut fabric, b.receive_cq).is_empty());
    assert!(!fabric.req_notify(b.receive_cq));
    fabric.modify_qp(b.qp, &QpChange::Error).unwrap();
    assert!(receives(&mut fabric, b.receive_cq).is_empty());

    fabric.set_wedged(b.hca, false).unwrap();
    assert_eq!(fabric.poll_notification().unwrap().cq, b.receive_cq);
    let mut late = receives(&mut fabric, b.receive_cq);
    assert_eq!(late.remove(1).1.unwrap_err(), WorkError::Flushed);
    let packet = late.remove(0).1.unwrap().packet;
    fabric.pool_mut().free(packet);
}

#[test]
fn a_queue_in_use_is_not_destroyed() {
    let (mut fabric, [a]) = hosts(CONFIG);
    receive(&mut fabric, a.qp, 0..1);
    assert_eq!(fabric.destroy_cq(a.receive_cq), Err(DestroyError::Busy));
    assert!(!fabric.req_notify(a.receive_cq));
    fabric.modify_qp(a.qp, &QpChange::Error).unwrap();
    fabric.destroy_qp(a.qp).unwrap();
    fabric.destroy_cq(a.receive_cq).unwrap();
    assert_eq!(fabric.poll_notification(), None);
    assert_eq!(fabric.destroy_cq(a.receive_cq), Err(DestroyError::Unknown));
    assert!(fabric.poll_cq(a.receive_cq).is_none());
}

#[test]
fn completions_of_two_queue_pairs_share_a_queue_in_order() {
    let (mut fabric, [a]) = hosts(CONFIG);
    let second = queue_pair(&mut fabric, a.port, a.send_cq, a.receive_cq);
    receive(&mut fabric, second, 5..6);
    receive(&mut fabric, a.qp, 0..1);
    fabric.modify_qp(second, &QpChange::Error).unwrap();
    fabric.modify_qp(a.qp, &QpChange::Error).unwrap();
    let flushed = WorkError::Flushed;
    assert_eq!(failures(&mut fabric, a.receive_cq), [(5, flushed), (0, flushed)]);
}

#[test]
fn changes_of_a_port_are_reported_in_order_and_only_when_something_changed() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    while fabric.poll_event().is_some() {}
    let sm = SmAddress { lid: b.lid, sl: ServiceLevel::default() };
    fabric.set_port_state(a.port, PortState::Active).unwrap();
    fabric.set_lid(a.port, Some(a.lid)).unwrap();
    assert_eq!(fabric.poll_event(), None, "nothing changed");
    fabric.set_port_state(a.port, PortState::Down).unwrap();
    fabric.set_port_state(a.port, PortState::Init).unwrap();
    fabric.set_lid(a.port, Lid::new(9)).unwrap();
    fabric.set_pkey_table(a.port, &[Pkey::new(0x8001)]).unwrap();
    fabric.set_gid(a.port, 0, Some(Gid::new(1, 2))).unwrap();
    fabric.set_sm(a.port, Some(sm)).unwrap();
    fabric.set_port_state(a.port, PortState::Active).unwrap();
    fabric.dispatch_event(a.port, PortEvent::ClientReregister);
    let expected = [
        PortEvent::PortError,
        PortEvent::LidChanged,
        PortEvent::PkeyChanged,
        PortEvent::GidChanged,
        PortEvent::PortActive,
        PortEvent::ClientReregister,
    ];
    for event in expected {
        let expected = AsyncEvent::Port(a.port, event);
        assert_eq!(fabric.poll_event(), Some(expected));
    }
    assert_eq!(fabric.poll_event(), None);

    assert_eq!(fabric.query_port(a.port).unwrap().sm, Some(sm));
    let attributes = fabric.port_attributes(a.port, None).unwrap();
    assert_eq!(attributes.lid, Lid::new(9));
    assert_eq!(attributes.gid, Gid::new(1, 2));
    assert_eq!(attributes.partition.unwrap().pkey, Pkey::new(0x8001).unwrap());
}

#[test]
fn events_beyond_the_limit_are_counted() {
    let config = FabricConfig { events_max: 3, ..CONFIG };
    let (mut fabric, [a]) = hosts(config);
    for _ in 0..3 {
        fabric.dispatch_event(a.port, PortEvent::GidChanged);
    }
    // The LID and the state that the host was given are events as well.
    assert_eq!(std::iter::from_fn(|| fabric.poll_event()).count(), 3);
    assert_eq!(fabric.events_lost(), 2);
}

#[test]
fn two_ports_cannot_have_one_lid() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let result = fabric.set_lid(a.port, Some(b.lid));
    assert_eq!(result, Err(ManagementError::LidInUse));
    assert_eq!(fabric.query_port(a.port).unwrap().lid, Some(a.lid));
}

#[test]
fn a_partition_is_found_wherever_it_stands_and_full_membership_goes_first() {
    let (mut fabric, [a]) = hosts(CONFIG);
    let limited = Pkey::new(0x0001);
    let full = Pkey::new(0x8001);
    fabric.set_pkey_table(a.port, &[None, limited, None, full]).unwrap();
    let found = fabric.find_partition(a.port, full.unwrap()).unwrap();
    assert_eq!((found.pkey, found.index), (full.unwrap(), PkeyIndex(3)));
    fabric.set_pkey_table(a.port, &[None, limited]).unwrap();
    let found = fabric.find_partition(a.port, full.unwrap()).unwrap();
    assert_eq!((found.pkey, found.index), (limited.unwrap(), PkeyIndex(1)));
    assert_eq!(fabric.port_attributes(a.port, None).unwrap().partition, None);
    let too_many = [full; 17];
    assert_eq!(fabric.set_pkey_table(a.port, &too_many), Err(ManagementError::TableTooSmall));
}

#[test]
fn a_queue_pair_in_reset_moves_to_another_port_with_its_number() {
    let mut fabric = Fabric::new(CONFIG).unwrap();
    let config = HcaConfig { port_count: 2, ..HcaConfig::with_guid(0x0002_C903_0000_0100) };
    let hca = fabric.add_hca(&config).unwrap();
    let ports: Vec<_> = fabric.hca_ports(hca).collect();
    for (port, lid) in ports.iter().zip(1..) {
        fabric.set_lid(*port, Lid::new(lid)).unwrap();
        fabric.set_port_state(*port, PortState::Active).unwrap();
    }
    let cq = fabric.create_cq(hca, CQ_LEN, 0).unwrap();
    let sender = queue_pair(&mut fabric, ports[0], cq, cq);
    let qp = queue_pair(&mut fabric, ports[0], cq, cq);
    let qpn = fabric.qpn(qp).unwrap();
    assert_eq!(fabric.set_qp_port(qp, ports[1]), Err(ModifyError::IllegalTransition));
    fabric.modify_qp(qp, &QpChange::Reset).unwrap();
    fabric.set_qp_port(qp, ports[1]).unwrap();
    for change in to_ready(PkeyIndex(0)) {
        fabric.modify_qp(qp, &change).unwrap();
    }
    assert_eq!(fabric.qpn(qp), Some(qpn));

    receive(&mut fabric, qp, 0..1);
    let ah = fabric.create_ah(ports[0], &local(Lid::new(2).unwrap())).unwrap();
    send(&mut fabric, sender, 1, (ah, qpn), b"x").unwrap();
    run(&mut fabric);
    assert_eq!(fabric.port_counters(ports[1]).unwrap().received, 1);
    fabric.destroy_qp(qp).unwrap();
}

#[test]
fn a_queue_pair_that_is_bound_to_its_port_does_not_move() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let (mgid, mlid) = group(1);
    fabric.modify_qp(a.qp, &QpChange::Reset).unwrap();
    assert_eq!(fabric.set_qp_port(a.qp, b.port), Err(ModifyError::InvalidAttribute));
    fabric.attach_multicast(a.qp, mgid, mlid).unwrap();
    assert_eq!(fabric.set_qp_port(a.qp, a.port), Err(ModifyError::InvalidAttribute));
    fabric.detach_multicast(a.qp, mgid, mlid).unwrap();
    fabric.set_qp_port(a.qp, a.port).unwrap();

    let config = QpConfig {
        qp_type: QpType::Gsi,
        send_cq: a.send_cq,
        receive_cq: a.receive_cq,
        sends_max: 1,
        receives_max: 1,
    };
    let gsi = fabric.create_qp(a.port, &config).unwrap();
    assert_eq!(fabric.set_qp_port(gsi, a.port), Err(ModifyError::InvalidAttribute));
}
