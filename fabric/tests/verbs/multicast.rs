//! Multicast.

use crate::hosts::{
    Host, QKEY, global, group, hosts, join, payloads, queue_pair, receive, receives, run, send,
};
use fabric::address::AhId;
use fabric::packet::PoolLimits;
use fabric::port::PortState;
use fabric::{AttachError, Fabric, FabricConfig};
use ipoib_rs::ib::{Mgid, Mlid, Pkey, Qpn};

const CONFIG: FabricConfig = FabricConfig::DEFAULT;

fn group_handle(fabric: &mut Fabric, host: &Host, (mgid, mlid): (Mgid, Mlid)) -> AhId {
    let address = global(mlid.value(), mgid.gid());
    fabric.create_ah(host.port, &address).unwrap()
}

fn send_to_group(fabric: &mut Fabric, host: &Host, ah: AhId, payload: &[u8]) {
    send(fabric, host.qp, 0, (ah, Qpn::MULTICAST), payload).unwrap();
    run(fabric);
}

#[test]
fn every_member_gets_one_copy_and_so_does_the_sender() {
    let (mut fabric, all @ [a, b, c, outsider]) = hosts(CONFIG);
    for host in [a, b, c] {
        join(&mut fabric, &host, group(1));
    }
    for host in all {
        receive(&mut fabric, host.qp, 0..4);
    }
    let ah = group_handle(&mut fabric, &a, group(1));
    send_to_group(&mut fabric, &a, ah, b"to all");
    for host in [a, b, c] {
        assert_eq!(payloads(&mut fabric, host.receive_cq), [b"to all"]);
    }
    assert!(receives(&mut fabric, outsider.receive_cq).is_empty());
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn the_grh_of_a_multicast_packet_names_the_group() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    join(&mut fabric, &b, group(1));
    receive(&mut fabric, b.qp, 0..1);
    let ah = group_handle(&mut fabric, &a, group(1));
    send_to_group(&mut fabric, &a, ah, b"x");
    let (_, arrival) = crate::hosts::arrival(&mut fabric, b.receive_cq);
    assert!(arrival.has_grh);
    assert_eq!(arrival.packet.bytes()[24..40], group(1).0.gid().0);
    fabric.pool_mut().free(arrival.packet);
}

#[test]
fn without_loopback_only_the_sender_misses_its_own_packet() {
    let config = FabricConfig { multicast_loopback: false, ..CONFIG };
    let (mut fabric, [a, b]) = hosts(config);
    let neighbor = queue_pair(&mut fabric, a.port, a.send_cq, a.receive_cq);
    let (mgid, mlid) = group(1);
    join(&mut fabric, &a, group(1));
    join(&mut fabric, &b, group(1));
    fabric.attach_multicast(neighbor, mgid, mlid).unwrap();
    for qp in [a.qp, b.qp, neighbor] {
        receive(&mut fabric, qp, 0..1);
    }
    let ah = group_handle(&mut fabric, &a, group(1));
    send_to_group(&mut fabric, &a, ah, b"x");
    let own = receives(&mut fabric, a.receive_cq);
    assert_eq!(own.len(), 1, "one queue pair of two: {own:?}");
    for (_, arrival) in own {
        fabric.pool_mut().free(arrival.unwrap().packet);
    }
    // The sender's receive is still there.
    let ah = group_handle(&mut fabric, &b, group(1));
    send_to_group(&mut fabric, &b, ah, b"y");
    assert_eq!(payloads(&mut fabric, a.receive_cq), [b"y"]);
    assert_eq!(payloads(&mut fabric, b.receive_cq), [b"x"]);
    assert_eq!(fabric.port_counters(a.port).unwrap().receives_missing, 1);
}

#[test]
fn groups_that_share_a_mlid_are_told_apart_by_their_mgid() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let (_, mlid) = group(1);
    let (other, _) = group(2);
    join(&mut fabric, &b, group(1));
    receive(&mut fabric, b.qp, 0..2);
    let ah = group_handle(&mut fabric, &a, (other, mlid));
    send_to_group(&mut fabric, &a, ah, b"other");
    assert!(receives(&mut fabric, b.receive_cq).is_empty());
    assert_eq!(fabric.port_counters(b.port).unwrap().unattached_groups, 1);
    join(&mut fabric, &b, (other, mlid));
    send_to_group(&mut fabric, &a, ah, b"other");
    assert_eq!(payloads(&mut fabric, b.receive_cq), [b"other"]);
}

#[test]
fn a_group_that_the_switch_does_not_route_does_not_leave_the_port() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let (mgid, mlid) = group(1);
    join(&mut fabric, &b, group(1));
    receive(&mut fabric, b.qp, 0..1);
    fabric.set_multicast_member(mlid, b.port, false).unwrap();
    assert!(fabric.multicast_members(mlid).is_empty());
    let ah = group_handle(&mut fabric, &a, (mgid, mlid));
    send_to_group(&mut fabric, &a, ah, b"x");
    assert!(receives(&mut fabric, b.receive_cq).is_empty());
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn members_behind_dead_links_and_in_other_partitions_get_nothing() {
    let (mut fabric, [a, down, foreign, well]) = hosts(CONFIG);
    for host in [down, foreign, well] {
        join(&mut fabric, &host, group(1));
        receive(&mut fabric, host.qp, 0..1);
    }
    fabric.set_port_state(down.port, PortState::Down).unwrap();
    fabric.set_pkey_table(foreign.port, &[Pkey::new(0x8002)]).unwrap();
    let ah = group_handle(&mut fabric, &a, group(1));
    send_to_group(&mut fabric, &a, ah, b"x");
    assert!(receives(&mut fabric, down.receive_cq).is_empty());
    assert!(receives(&mut fabric, foreign.receive_cq).is_empty());
    assert_eq!(payloads(&mut fabric, well.receive_cq), [b"x"]);
    assert_eq!(fabric.switch_counters().links_down, 1);
    assert_eq!(fabric.switch_counters().partition_violations, 1);
}

#[test]
fn when_the_pool_is_empty_copies_are_lost_and_counted() {
    let config = FabricConfig { pool: PoolLimits { small_max: 2, large_max: 0 }, ..CONFIG };
    let (mut fabric, [a, b, c, d]) = hosts(config);
    for host in [b, c, d] {
        join(&mut fabric, &host, group(1));
        receive(&mut fabric, host.qp, 0..1);
    }
    let ah = group_handle(&mut fabric, &a, group(1));
    send_to_group(&mut fabric, &a, ah, b"x");
    let arrived: usize =
        [b, c, d].map(|host| payloads(&mut fabric, host.receive_cq).len()).iter().sum();
    assert_eq!(arrived, 2);
    assert_eq!(fabric.switch_counters().buffers_missing, 1);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn attaching_twice_is_once_and_detaching_twice_is_an_error() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let (mgid, mlid) = group(1);
    join(&mut fabric, &b, group(1));
    join(&mut fabric, &b, group(1));
    receive(&mut fabric, b.qp, 0..2);
    let ah = group_handle(&mut fabric, &a, group(1));
    send_to_group(&mut fabric, &a, ah, b"x");
    assert_eq!(payloads(&mut fabric, b.receive_cq).len(), 1);
    fabric.detach_multicast(b.qp, mgid, mlid).unwrap();
    assert_eq!(fabric.detach_multicast(b.qp, mgid, mlid), Err(AttachError::NotAttached));
    assert_eq!(fabric.attachment_count(b.port), 0);
    send_to_group(&mut fabric, &a, ah, b"x");
    assert!(receives(&mut fabric, b.receive_cq).is_empty());
}

#[test]
fn a_destroyed_queue_pair_is_detached() {
    let (mut fabric, [b]) = hosts(CONFIG);
    join(&mut fabric, &b, group(1));
    join(&mut fabric, &b, group(2));
    assert_eq!(fabric.attachment_count(b.port), 2);
    fabric.destroy_qp(b.qp).unwrap();
    assert_eq!(fabric.attachment_count(b.port), 0);
}

#[test]
fn the_qkey_of_a_multicast_packet_is_checked_too() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    join(&mut fabric, &b, group(1));
    receive(&mut fabric, b.qp, 0..1);
    let change = fabric::qp::QpChange::SetQkey(ipoib_rs::ib::Qkey(QKEY.0 + 1));
    fabric.modify_qp(b.qp, &change).unwrap();
    let ah = group_handle(&mut fabric, &a, group(1));
    send_to_group(&mut fabric, &a, ah, b"x");
    assert!(receives(&mut fabric, b.receive_cq).is_empty());
    assert_eq!(fabric.port_counters(b.port).unwrap().qkey_violations, 1);
}
