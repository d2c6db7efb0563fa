//! Everything is given back.

use std::time::Duration;

use fabric::node::RemoveError;
use ipoib_rs::event::Event;
use ipoib_rs::limits::Limits;
use ipoib_rs::wire::LinkAddress;
use zerocopy::IntoBytes;

use crate::world::{PARENT, World};

fn detach_all(world: &mut World) {
    for host in &mut world.hosts {
        host.node.handle_detach(world.now, &mut world.fabric, PARENT);
    }
    world.pass(Duration::from_secs(30));
}

/// Nothing of the adapter is in use any more by the hosts' interfaces.
fn assert_given_back(world: &World) {
    for host in &world.hosts {
        assert_eq!(world.fabric.ah_count(host.hca), 0);
        assert_eq!(world.fabric.attachment_count(host.port), 0);
        assert_eq!(host.node.counters().actions_lost, 0);
    }
    assert_eq!(world.fabric.pool().outstanding(), 0);
}

#[test]
fn a_detached_interface_leaves_nothing_behind() {
    let mut world = World::new(3, Limits::DEFAULT);
    let to = world.address(1);
    let broadcast = world.broadcast();
    let group = LinkAddress::multicast(world.group("ff02::1".parse().unwrap()));
    let list = [group.as_bytes()].into_iter();
    let (now, fabric) = (world.now, &mut world.fabric);
    world.hosts[1].node.handle_multicast_list(now, fabric, PARENT, list);
    for address in [to, broadcast, group] {
        world.send(0, &address, b"hello").unwrap();
    }
    world.settle();
    detach_all(&mut world);
    for host in &world.hosts {
        assert!(host.has_seen(Event::Detached));
    }
    assert_given_back(&world);
    let groups = world.subnet.manager().groups();
    assert!(groups.into_iter().all(|group| group.members_len == 0));
    for mut host in std::mem::take(&mut world.hosts) {
        host.node.remove_interface(&mut world.fabric, PARENT).unwrap();
        let again = host.node.remove_interface(&mut world.fabric, PARENT);
        assert_eq!(again, Err(RemoveError::Unknown));
        host.node.close(&mut world.fabric);
    }
    world.subnet.close(&mut world.fabric);
    assert_eq!(world.fabric.pool().outstanding(), 0);
}

#[test]
fn packets_that_wait_for_a_path_are_given_back() {
    let mut world = World::new(2, Limits::DEFAULT);
    let to = world.address(1);
    world.send(0, &to, b"waits").unwrap();
    assert_eq!(world.fabric.pool().outstanding(), 1);
    world.hosts[0].node.handle_detach(world.now, &mut world.fabric, PARENT);
    world.pass(Duration::from_secs(30));
    assert!(world.hosts[0].has_seen(Event::Detached));
    assert_eq!(world.fabric.pool().outstanding(), 0);
}

#[test]
fn an_interface_in_use_is_not_removed() {
    let mut world = World::new(1, Limits::DEFAULT);
    let result = world.hosts[0].node.remove_interface(&mut world.fabric, PARENT);
    assert_eq!(result, Err(RemoveError::NotDetached));
}

#[test]
fn a_wedged_adapter_does_not_keep_an_interface() {
    let mut world = World::new(2, Limits::DEFAULT);
    let to = world.address(1);
    world.send(0, &to, b"hello").unwrap();
    world.settle();
    let hca = world.hosts[0].hca;
    world.fabric.set_wedged(hca, true).unwrap();
    world.send(0, &to, b"never completed").unwrap();
    detach_all(&mut world);
    assert!(world.hosts[0].has_seen(Event::Detached));
    world.fabric.set_wedged(hca, false).unwrap();
    world.settle();
    assert_given_back(&world);
}
