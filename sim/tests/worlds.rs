//! Small worlds in which one thing happens, told as a story.

use std::time::Duration;

use ipoib_rs::interface::Mode;
use sim::rules::{ConnectedRules, LaggRules, Rules};
use sim::world::{Lane, Version, World, WorldBuilder};

const SECOND: Duration = Duration::from_secs(1);
const THERE: Lane = Lane { from: 0, to: 1, version: Version::V4 };
const BACK: Lane = Lane { from: 1, to: 0, version: Version::V6 };

/// Two hosts whose links are up.
fn pair() -> World {
    let mut world = WorldBuilder::new(1).build();
    assert!(world.run_until(SECOND, |world| world.is_link_up(0) && world.is_link_up(1)));
    world
}

/// Two adapters; the first has a second interface, station 2, in another partition.
fn pair_with_child() -> World {
    let rules = Rules { has_children: true, ..Rules::calm() };
    let mut world = WorldBuilder::new(1).rules(rules).build();
    assert!(world.run_until(SECOND, |world| (0..3).all(|station| world.is_link_up(station))));
    world
}

/// Three adapters; the first host has a lagg over the first two. Its peer is station 2.
fn lagg(rules: LaggRules) -> World {
    let rules = Rules { station_count: 3, lagg: Some(rules), ..Rules::calm() };
    let mut world = WorldBuilder::new(1).rules(rules).build();
    assert!(world.run_until(SECOND, |world| (0..3).all(|station| world.is_link_up(station))));
    world.run_for(SECOND);
    world
}

const TO_LAGG: Lane = Lane { from: 2, to: 0, version: Version::V4 };
const FROM_LAGG: Lane = Lane { from: 0, to: 2, version: Version::V6 };

/// Two hosts in connected mode whose links are up.
fn connected_pair() -> World {
    let rules = Rules { connected: Some(ConnectedRules::CALM), ..Rules::calm() };
    let mut world = WorldBuilder::new(1).rules(rules).build();
    assert!(world.run_until(SECOND, |world| world.is_link_up(0) && world.is_link_up(1)));
    world
}

/// Pings with the largest packets until there is an answer, once a second.
fn large_answers(world: &mut World, lane: Lane, tries_max: u32) -> bool {
    let before = world.answers(lane);
    (0..tries_max).any(|_| {
        world.ping(lane, 65_520);
        world.run_until(SECOND, |world| world.answers(lane) > before)
    })
}

/// Pings and waits for the answer.
fn answers(world: &mut World, lane: Lane) -> bool {
    let before = world.answers(lane);
    world.ping(lane, 84);
    world.run_until(SECOND, |world| world.answers(lane) > before)
}

/// Ends a story: nothing went wrong, and nothing is left.
fn end(mut world: World) {
    world.demand_closed(10 * SECOND);
    assert_eq!(world.failure(), None);
}

#[test]
fn two_hosts_ping_each_other() {
    let mut world = pair();
    for lane in world.lanes() {
        assert!(answers(&mut world, lane), "{lane:?}");
    }
    end(world);
}

#[test]
fn the_largest_packet_fits_and_a_larger_one_is_fragmented() {
    let mut world = pair();
    for bytes in [2044, 2045, 9000] {
        let before = world.answers(THERE);
        world.ping(THERE, bytes);
        let is_whole = bytes <= 2044;
        // The minimal host does not put fragments together, so it cannot answer them.
        assert_eq!(
            world.run_until(SECOND, |world| world.answers(THERE) > before),
            is_whole,
            "{bytes} bytes"
        );
    }
    assert_eq!(world.counter(0, "tx_fragmented_packets"), 2);
    end(world);
}

#[test]
fn pings_go_on_while_the_subnet_manager_restarts() {
    let mut world = pair();
    assert!(answers(&mut world, THERE));
    world.restart_sm();
    for _ in 0..20 {
        assert!(answers(&mut world, THERE));
        assert!(world.is_link_up(0), "a restart is no reason to drop the carrier");
    }
    assert!(world.run_until(SECOND, World::is_registered));
    end(world);
}

#[test]
fn a_port_flap_takes_the_carrier_and_gives_it_back() {
    let mut world = pair();
    assert!(answers(&mut world, THERE));
    world.take_port_down(1);
    assert!(world.run_until(SECOND, |world| !world.is_link_up(1)));
    assert!(!answers(&mut world, THERE));
    world.bring_port_up(1);
    assert!(world.run_until(2 * SECOND, |world| world.is_link_up(1)));
    assert!(answers(&mut world, THERE));
    assert!(answers(&mut world, BACK));
    end(world);
}

#[test]
fn a_host_that_moved_to_another_lid_is_found_again() {
    let mut world = pair();
    assert!(answers(&mut world, THERE));
    world.move_lid(1);
    let mut tries = 0;
    while !answers(&mut world, THERE) {
        tries += 1;
        assert!(tries < 3, "the announcement makes the path old at once");
    }
    end(world);
}

#[test]
fn an_interface_without_its_pkey_has_no_carrier() {
    let mut world = pair_with_child();
    world.revoke_pkey(0, 0x8001);
    assert!(world.run_until(SECOND, |world| !world.is_link_up(2)));
    assert!(world.is_link_up(0), "the other partition of the port is untouched");
    world.grant_pkey(0, 0x8001);
    assert!(world.run_until(2 * SECOND, |world| world.is_link_up(2)));
    end(world);
}

#[test]
fn the_port_follows_the_key_at_index_0_to_another_partition() {
    let mut world = pair();
    for site in 0..2 {
        world.revoke_pkey(site, 0xFFFF);
        world.grant_pkey(site, 0x8002);
    }
    let has_moved = |world: &World| (0..2).all(|station| world.partition(station) == Some(0x8002));
    assert!(world.run_until(5 * SECOND, |world| has_moved(world) && world.is_link_up(0)));
    assert!(world.run_until(5 * SECOND, |world| world.is_link_up(1)));
    assert!(answers(&mut world, THERE));
    end(world);
}

#[test]
fn down_and_up_again_leaves_nothing_behind() {
    let mut world = pair();
    assert!(answers(&mut world, THERE));
    world.admin_down(0);
    assert!(world.run_until(SECOND, |world| !world.is_link_up(0)));
    world.admin_up(0);
    assert!(world.run_until(2 * SECOND, |world| world.is_link_up(0)));
    assert!(answers(&mut world, THERE));
    end(world);
}

#[test]
fn an_interface_can_be_detached_at_once_after_attach() {
    let world = WorldBuilder::new(1).build();
    end(world);
}

#[test]
fn the_largest_packet_is_whole_when_it_is_the_first_that_a_neighbor_gets() {
    let mut world = connected_pair();
    for lane in world.lanes() {
        assert!(large_answers(&mut world, lane, 1), "{lane:?}");
    }
    assert_eq!(world.counter(0, "tx_fragmented_packets"), 0);
    assert_eq!((world.counter(0, "connected"), world.counter(0, "accepts")), (1, 1));
    end(world);
}

#[test]
fn a_host_that_crashed_is_reached_by_a_connection_again() {
    let mut world = connected_pair();
    assert!(large_answers(&mut world, THERE, 1));
    for _ in 0..5 {
        world.crash_host(1);
        assert!(!large_answers(&mut world, THERE, 1), "it starts after a while");
        assert!(world.run_until(6 * SECOND, |world| world.is_link_up(1)));
        assert!(large_answers(&mut world, THERE, 8));
        assert!(large_answers(&mut world, BACK, 8));
    }
    end(world);
}

#[test]
fn a_host_that_goes_to_datagram_mode_gets_datagrams_and_is_asked_again_later() {
    let mut world = connected_pair();
    assert!(large_answers(&mut world, BACK, 1));
    assert!(world.set_mode(1, Mode::Datagram));
    assert!(answers(&mut world, THERE) && answers(&mut world, BACK));
    assert!(!large_answers(&mut world, BACK, 2), "nobody puts fragments together");
    assert!(world.set_mode(1, Mode::Connected));
    assert!(large_answers(&mut world, THERE, 8));
    assert!(large_answers(&mut world, BACK, 8));
    end(world);
}

#[test]
fn a_lower_mtu_is_kept_on_a_connection_that_is_there() {
    let mut world = connected_pair();
    assert!(large_answers(&mut world, THERE, 1));
    world.set_connected_mtu(0, 9_000);
    world.ping(THERE, 65_520);
    world.run_for(SECOND);
    assert_eq!(world.counter(0, "tx_fragmented_packets"), 1);
    assert_eq!(world.failure(), None);
    end(world);
}

#[test]
fn a_lagg_goes_on_when_the_port_that_carries_loses_its_link() {
    let mut world = lagg(LaggRules::CALM);
    assert!(answers(&mut world, TO_LAGG));
    assert!(answers(&mut world, FROM_LAGG));
    world.take_port_down(0);
    world.run_for(SECOND / 100);
    let sent = world.counter(0, "tx_packets");
    assert!(answers(&mut world, TO_LAGG), "by the second port");
    assert!(answers(&mut world, FROM_LAGG), "by the second port");
    assert_eq!(world.counter(0, "tx_packets"), sent);
    world.bring_port_up(0);
    world.run_for(SECOND);
    let other = world.counter(1, "tx_packets");
    assert!(answers(&mut world, FROM_LAGG), "by the first port again");
    assert_eq!(world.counter(1, "tx_packets"), other);
    assert_eq!(world.lanes().len(), 4, "two hosts, two versions of IP");
    end(world);
}

#[test]
fn a_lagg_that_hears_of_nothing_looks_by_itself() {
    let rules = LaggRules { event_loss: 1000, ..LaggRules::CALM };
    let mut world = lagg(rules);
    world.run_for(rules.update_interval);
    assert!(answers(&mut world, TO_LAGG));
    world.take_port_down(0);
    world.run_for(2 * rules.update_interval);
    assert!(answers(&mut world, TO_LAGG));
    end(world);
}

#[test]
fn a_lagg_outlives_its_primary() {
    let mut world = lagg(LaggRules::CALM);
    world.detach(0);
    world.run_for(SECOND / 10);
    assert!(answers(&mut world, TO_LAGG));
    assert!(answers(&mut world, FROM_LAGG));
    end(world);
}
