//! Faults, and the way out of them.

use std::time::Duration;

use fabric::mad::Status;
use fabric::sm::{Fault, FaultExtent};
use ipoib_rs::action::Action;
use ipoib_rs::event::Event;
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::Cast;

use crate::world::{PARENT, World};

/// Host 0 reaches host 1.
fn assert_reachable(world: &mut World) {
    let to = world.address(1);
    world.received(1);
    world.send(0, &to, b"are you there").unwrap();
    world.pass(Duration::from_secs(1));
    let expected = [(b"are you there".to_vec(), Cast::Unicast)];
    assert_eq!(world.received(1), expected);
}

#[test]
fn a_port_that_goes_down_takes_the_link_with_it_and_brings_it_back() {
    let mut world = World::new(2, Limits::DEFAULT);
    assert_reachable(&mut world);
    let port = world.hosts[1].port;
    world.subnet.link_down(&mut world.fabric, port).unwrap();
    world.settle();
    assert!(!world.is_link_up(1));
    assert!(world.hosts[1].has_seen(Event::LinkDown));
    world.subnet.link_up(&mut world.fabric, port).unwrap();
    world.pass(Duration::from_secs(20));
    assert!(world.is_link_up(1));
    assert_reachable(&mut world);
}

#[test]
fn a_restarted_subnet_manager_gets_its_members_back() {
    let mut world = World::new(2, Limits::DEFAULT);
    world.subnet.manager_mut().restart();
    world.subnet.poll(&mut world.fabric);
    world.pass(Duration::from_secs(5));
    let groups = world.subnet.manager().groups().collect::<Vec<_>>();
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0].members_len, 2);
    let to = world.broadcast();
    world.send(0, &to, b"hello").unwrap();
    world.settle();
    assert_eq!(world.received(1), [(b"hello".to_vec(), Cast::Broadcast)]);
}

#[test]
fn a_silent_subnet_administrator_delays_and_does_not_break() {
    let mut world = World::new(2, Limits::DEFAULT);
    let to = world.address(1);
    let manager = world.subnet.manager_mut();
    manager.set_fault(Fault::Silent, FaultExtent::UntilCleared);
    world.send(0, &to, b"lost in time").unwrap();
    world.pass(Duration::from_secs(10));
    assert_eq!(world.received(1), []);
    assert_eq!(world.fabric.pool().outstanding(), 0, "the packet was dropped");
    assert!(world.drops(0) > 0);
    world.subnet.manager_mut().clear_fault();
    world.pass(Duration::from_secs(20));
    assert_reachable(&mut world);
}

#[test]
fn a_busy_subnet_administrator_is_asked_again() {
    let mut world = World::new(2, Limits::DEFAULT);
    let port = world.hosts[0].port;
    world.subnet.link_down(&mut world.fabric, port).unwrap();
    world.settle();
    let busy = Fault::Status(Status::BUSY);
    world.subnet.manager_mut().set_fault(busy, FaultExtent::Next(3));
    world.subnet.link_up(&mut world.fabric, port).unwrap();
    world.pass(Duration::from_secs(20));
    assert!(world.is_link_up(0));
    assert_reachable(&mut world);
}

#[test]
fn a_neighbor_that_moved_to_another_lid_is_found_again() {
    let mut world = World::new(2, Limits::DEFAULT);
    assert_reachable(&mut world);
    let port = world.hosts[1].port;
    world.subnet.manager_mut().move_lid(port).unwrap();
    world.subnet.poll(&mut world.fabric);
    world.pass(Duration::from_secs(5));
    assert!(world.hosts[1].has_seen(Event::AnnounceAddress));
    // The announcement, as the stack would make it.
    let to = world.broadcast();
    world.send(1, &to, b"I am here now").unwrap();
    world.pass(Duration::from_secs(1));
    assert_reachable(&mut world);
}

#[test]
fn an_adapter_that_refuses_posts_loses_packets_and_nothing_else() {
    let mut world = World::new(2, Limits::DEFAULT);
    assert_reachable(&mut world);
    let to = world.address(1);
    world.hosts[0].node.refuse_posts(PARENT, 2);
    for _ in 0..2 {
        world.send(0, &to, b"refused").unwrap();
    }
    world.settle();
    assert_eq!(world.received(1), []);
    assert_eq!(world.drops(0), 2);
    assert_eq!(world.fabric.pool().outstanding(), 0);
    assert_reachable(&mut world);
}

#[test]
fn an_action_that_fails_is_tried_again() {
    let mut world = World::new(2, Limits::DEFAULT);
    let to = world.address(1);
    world.send(0, &to, b"hello").unwrap();
    let pending = world.hosts[0].node.poll_action().unwrap();
    assert!(matches!(pending.action, Action::QueryPath { .. }));
    let (now, fabric) = (world.now, &mut world.fabric);
    world.hosts[0].node.fail(now, fabric, pending);
    world.pass(Duration::from_secs(20));
    assert_reachable(&mut world);
}
