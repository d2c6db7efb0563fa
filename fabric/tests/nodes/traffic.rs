//! Packets from interface to interface.

use std::time::Duration;

use fabric::node::InterfaceConfig;
use ipoib_rs::event::Event;
use ipoib_rs::ib::Pkey;
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::Cast;
use ipoib_rs::wire::{EtherType, LinkAddress, Scope};
use zerocopy::IntoBytes;

use crate::world::{PARENT, World};

#[test]
fn interfaces_come_up_when_the_broadcast_group_is_joined() {
    let world = World::new(2, Limits::DEFAULT);
    for host in &world.hosts {
        assert!(host.has_seen(Event::LinkUp));
        let interface = host.node.interface(PARENT).unwrap();
        assert!(interface.is_link_up());
        assert_eq!(interface.mtu(), 2044);
    }
}

#[test]
fn a_unicast_packet_arrives_after_the_path_was_found() {
    let mut world = World::new(2, Limits::DEFAULT);
    let to = world.address(1);
    world.send(0, &to, b"one").unwrap();
    world.send(0, &to, b"two").unwrap();
    world.settle();
    let unicast = Cast::Unicast;
    let expected = [(b"one".to_vec(), unicast), (b"two".to_vec(), unicast)];
    assert_eq!(world.received(1), expected);
    assert_eq!(world.received(0), []);
    let interface = world.hosts[0].node.interface(PARENT).unwrap();
    let neighbor = interface.neighbors().next().unwrap();
    let port = world.fabric.query_port(world.hosts[1].port).unwrap();
    assert_eq!((neighbor.address, neighbor.lid), (to, port.lid));
    assert_eq!(world.drops(0) + world.drops(1), 0);
}

#[test]
fn a_broadcast_reaches_everybody_but_its_sender() {
    let mut world = World::new(3, Limits::DEFAULT);
    let to = world.broadcast();
    world.send(0, &to, b"hello").unwrap();
    world.settle();
    for host in [1, 2] {
        assert_eq!(world.received(host), [(b"hello".to_vec(), Cast::Broadcast)]);
    }
    assert_eq!(world.received(0), []);
}

#[test]
fn a_group_reaches_those_who_listed_it() {
    let mut world = World::new(3, Limits::DEFAULT);
    let group = world.group("224.0.0.251".parse().unwrap());
    let address = LinkAddress::multicast(group);
    let list = [address.as_bytes()].into_iter();
    let (now, fabric) = (world.now, &mut world.fabric);
    world.hosts[1].node.handle_multicast_list(now, fabric, PARENT, list);
    world.settle();
    world.send(0, &address, b"hello").unwrap();
    world.pass(Duration::from_secs(1));
    assert_eq!(world.received(1), [(b"hello".to_vec(), Cast::Multicast)]);
    assert_eq!(world.received(2), []);
}

#[test]
fn the_longest_packet_fills_the_mtu_of_the_fabric() {
    let mut world = World::new(2, Limits::DEFAULT);
    let to = world.address(1);
    world.send(0, &to, &[7; 2044]).unwrap();
    world.settle();
    assert_eq!(world.received(1), [(vec![7; 2044], Cast::Unicast)]);
    assert_eq!(world.fabric.violations().oversize_ud, 0);
}

#[test]
fn a_long_ipv4_packet_arrives_in_fragments_and_a_long_ipv6_packet_is_answered() {
    let mut world = World::new(2, Limits::DEFAULT);
    let to = world.address(1);
    let mut ipv4 = vec![0x45, 0, 0x17, 0x70, 0, 1, 0, 0, 64, 17, 0, 0];
    ipv4.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    ipv4.resize(6000, 9);
    let packet = world.fabric.pool_mut().allocate_from(&ipv4).unwrap();
    let (now, fabric) = (world.now, &mut world.fabric);
    let node = &mut world.hosts[0].node;
    node.handle_transmit(now, fabric, PARENT, &to, EtherType::IPV4, packet).unwrap();
    world.settle();
    let fragments = world.received(1);
    assert_eq!(fragments.len(), 3, "{fragments:?}");
    assert!(fragments.iter().all(|(bytes, _)| bytes.len() <= 2044));
    let payload: usize = fragments.iter().map(|(bytes, _)| bytes.len() - 20).sum();
    assert_eq!(payload, 5980);

    let mut ipv6 = vec![0x60, 0, 0, 0, 0x17, 0x48, 17, 64];
    ipv6.resize(6000, 0xFD);
    world.send(0, &to, &ipv6).unwrap();
    world.settle();
    assert_eq!(world.received(1), []);
    assert_eq!(world.hosts[0].too_big, [(6000, 2044)]);
    assert_eq!(world.fabric.violations().oversize_ud, 0);
}

#[test]
fn a_flood_is_refused_when_the_ring_is_full_and_nothing_is_lost() {
    let mut world = World::new(2, Limits::SMALL);
    let to = world.address(1);
    world.send(0, &to, b"first").unwrap();
    world.settle();
    let mut sent = 1;
    let mut refused = 0;
    for _ in 0..100 {
        match world.send(0, &to, b"more") {
            Ok(()) => sent += 1,
            Err(full) => {
                refused += 1;
                world.fabric.pool_mut().free(full.0);
                world.settle();
            }
        }
    }
    world.settle();
    assert!(refused > 0, "the ring has 8 places");
    let arrived = world.received(1).len();
    let missing = world.fabric.port_counters(world.hosts[1].port).unwrap().receives_missing;
    assert_eq!(arrived as u64 + missing, sent);
    assert_eq!(missing, 0);
}

#[test]
fn a_child_is_a_partition_of_its_own() {
    let mut world = World::new(3, Limits::DEFAULT);
    let pkey = Pkey::new(0x8001).unwrap();
    world.subnet.manager_mut().add_partition(pkey).unwrap();
    world.create_broadcast_group(pkey);
    for host in [0, 1] {
        let port = world.hosts[host].port;
        world.subnet.manager_mut().grant_pkey(port, pkey).unwrap();
    }
    world.subnet.poll(&mut world.fabric);
    let mut children = Vec::new();
    for host in &mut world.hosts {
        let config = InterfaceConfig {
            pkey: Some(pkey),
            scope: Scope::LINK_LOCAL,
            seed: 99,
            limits: Limits::DEFAULT,
        };
        let child = host.node.add_interface(&mut world.fabric, &config).unwrap();
        host.node.handle_admin_up(world.now, &mut world.fabric, child);
        children.push(child);
    }
    world.settle();
    let is_up = |world: &World, host: usize| {
        let interface = world.hosts[host].node.interface(children[host]).unwrap();
        (interface.is_link_up(), interface.state_name())
    };
    assert_eq!(is_up(&world, 0), (true, "joined"));
    assert_eq!(is_up(&world, 2), (false, "awaiting-pkey"));

    let interface = world.hosts[0].node.interface(children[0]).unwrap();
    let to = LinkAddress::multicast(interface.broadcast().unwrap());
    let packet = world.fabric.pool_mut().allocate_from(b"child").unwrap();
    let (now, fabric) = (world.now, &mut world.fabric);
    let node = &mut world.hosts[0].node;
    node.handle_transmit(now, fabric, children[0], &to, EtherType::IPV6, packet).unwrap();
    world.settle();
    let received = std::mem::take(&mut world.hosts[1].received);
    assert_eq!(received, [(children[1], b"child".to_vec(), Cast::Broadcast)]);
    assert_eq!(world.received(2), []);
}
