//! What ports are asked to do: groups, MTU, up and down; and how they come and go.

use std::time::Duration;

use ipoib_rs::lagg::{
    Action, AddPortError, Capabilities, Counter, Event, Lagg, MtuOutOfRange, PortId, PortLink,
    PortReport, Removal,
};
use ipoib_rs::limits::{LAGG_MTU_IDLE, LAGG_UPDATE_INTERVAL};
use ipoib_rs::packet::Cast;

use crate::bench::*;

const GROUPS: [&str; 3] = ["224.0.0.1", "ff02::1", "ff02::1:ff00:1"];

fn connected(n: u8) -> PortReport {
    PortReport { mtu: 65520, mtu_max: 65520, ..joined(n) }
}

fn announce(port: PortId) -> Action {
    Action::Announce { port }
}

fn mtu_of(bench: &Bench, port: PortId) -> usize {
    bench.ports[&port].mtu
}

#[test]
fn a_group_that_is_new_is_one_join_on_each_port_and_no_leave() {
    let (mut bench, _) = Bench::up(2);
    bench.list(&GROUPS[..2]);
    bench.run();
    assert_eq!((bench.joins, bench.leaves), (4, 0));
    bench.list(&GROUPS);
    bench.run();
    assert_eq!((bench.joins, bench.leaves), (6, 0));
    bench.list(&GROUPS);
    bench.run();
    assert_eq!((bench.joins, bench.leaves), (6, 0));
    bench.list(&GROUPS[1..]);
    bench.run();
    assert_eq!((bench.joins, bench.leaves), (6, 2));
}

#[test]
fn failover_joins_and_leaves_nothing() {
    let (mut bench, ports) = Bench::up(2);
    bench.list(&GROUPS);
    bench.run();
    bench.forget();
    bench.report(ports[0], &down(1));
    bench.pass(Duration::from_secs(5));
    bench.report(ports[0], &joined(1));
    bench.pass(Duration::from_secs(5));
    assert_eq!(bench.carrier(), Some(ports[0]));
    assert_eq!((bench.joins, bench.leaves), (0, 0));
}

#[test]
fn a_port_that_comes_joins_what_is_listed_and_one_that_leaves_gives_it_back() {
    let (mut bench, ports) = Bench::up(1);
    bench.list(&GROUPS);
    let second = bench.add(&joined(2));
    bench.run();
    assert_eq!(bench.groups[&second].len(), 3);
    bench.remove(ports[0], Removal::Orderly);
    bench.run();
    assert_eq!(bench.released, [ports[0]]);
    assert_eq!((bench.joins, bench.leaves), (6, 3));
    assert_eq!(bench.lagg.groups().map(|group| group.joined).collect::<Vec<_>>(), [1, 1, 1]);
}

#[test]
fn a_join_that_is_under_way_when_the_port_leaves_is_undone_before_it_is_released() {
    let (mut bench, ports) = Bench::up(1);
    bench.list(&GROUPS[..1]);
    let join = bench.actions.pop_front().unwrap();
    bench.remove(ports[0], Removal::Orderly);
    bench.run();
    assert_eq!(bench.released, []);
    bench.actions.push_back(join);
    bench.run();
    assert_eq!((bench.joins, bench.leaves), (1, 1));
    assert_eq!(bench.released, ports);
}

#[test]
fn the_place_of_a_port_is_free_when_the_shell_has_let_it_go() {
    let (mut bench, ports) = Bench::up(3);
    bench.remove(ports[0], Removal::Orderly);
    assert_eq!(bench.actions, [announce(ports[1]), Action::ReleasePort { port: ports[0] }]);
    let fourth =
        |lagg: &mut Lagg, now, face: &mut Mirror| lagg.handle_port_added(now, &joined(4), face);
    assert_eq!(bench.feed(fourth), Err(AddPortError::TableFull));
    bench.run();
    assert_eq!(bench.feed(fourth).map(PortId::index), Ok(ports[0].index()));
    bench.feed(|lagg, _, _| lagg.handle_port_released(ports[0]));
    bench.feed(|lagg, _, _| lagg.handle_port_released(ports[1]));
    assert_eq!(bench.lagg.counters()[Counter::StaleAnswers], 2);
    assert_eq!(bench.lagg.port_count(), 3);
}

#[test]
fn a_port_that_vanished_is_asked_for_nothing_and_its_answers_are_stale() {
    let (mut bench, ports) = Bench::up(2);
    bench.list(&GROUPS[..1]);
    let join = bench
        .actions
        .iter()
        .position(|action| matches!(action, Action::JoinGroup { port, .. } if *port == ports[0]));
    let Some(Action::JoinGroup { op, .. }) = bench.actions.remove(join.unwrap()) else {
        panic!("a join");
    };
    bench.remove(ports[0], Removal::Vanished);
    bench.run();
    assert_eq!(bench.carrier(), Some(ports[1]));
    assert_eq!(bench.leaves, 0);
    let third = bench.add(&joined(3));
    assert_eq!(third.index(), ports[0].index(), "in the same place");
    bench.feed(|lagg, _, _| lagg.handle_group_answer(op, Ok(())));
    bench.report(ports[0], &joined(1));
    assert_eq!(bench.lagg.counters()[Counter::StaleAnswers], 1);
    assert_eq!(bench.lagg.counters()[Counter::StaleReports], 1);
    assert!(bench.lagg.handle_receive(ports[0], Cast::Unicast).is_err());
    bench.ports.remove(&ports[0]);
    bench.run();
    assert_eq!(bench.groups[&third].len(), 1);
}

#[test]
fn a_group_that_a_port_refused_is_tried_again_with_every_look_at_the_ports() {
    let (mut bench, ports) = Bench::up(1);
    bench.refuses = true;
    bench.list(&GROUPS[..1]);
    bench.run();
    assert_eq!((bench.joins, bench.lagg.counters()[Counter::GroupJoinsFailed]), (1, 1));
    bench.pass(LAGG_UPDATE_INTERVAL);
    assert_eq!(bench.joins, 2);
    bench.refuses = false;
    bench.pass(LAGG_UPDATE_INTERVAL);
    assert_eq!(bench.groups[&ports[0]].len(), 1);
    bench.pass(3 * LAGG_UPDATE_INTERVAL);
    assert_eq!(bench.joins, 3);
}

#[test]
fn groups_follow_the_pkey_of_each_port() {
    let (mut bench, ports) = Bench::up(2);
    bench.list(&GROUPS[..2]);
    bench.run();
    bench.forget();
    let other = ipoib_rs::wire::BroadcastGroup::new(
        ipoib_rs::wire::Scope::LINK_LOCAL,
        ipoib_rs::ib::Pkey::new(0x8002).unwrap(),
    );
    let broadcast = ipoib_rs::wire::LinkAddress::multicast(other.mgid());
    let mut moved = joined(2);
    moved.identity.broadcast = broadcast;
    bench.report(ports[1], &moved);
    bench.run();
    assert_eq!((bench.joins, bench.leaves), (2, 2));
    for group in &bench.groups[&ports[1]] {
        assert!(other.contains(group.mgid().unwrap()));
    }
    for group in &bench.groups[&ports[0]] {
        assert!(BROADCAST.contains(group.mgid().unwrap()));
    }
    bench.report(ports[0], &down(1));
    assert_eq!(bench.mirror.worn.unwrap().broadcast, broadcast);
    bench.list(&GROUPS[..2]);
    bench.run();
    assert_eq!((bench.joins, bench.leaves), (2, 2), "the list in the new terms is the same list");
}

#[test]
fn a_group_table_that_is_full_refuses_and_takes_the_list_of_the_next_time() {
    let (mut bench, _) = Bench::up(1);
    let five = ["224.0.0.1", "224.0.0.2", "224.0.0.3", "224.0.0.4", "224.0.0.5"];
    bench.list(&five);
    bench.run();
    assert_eq!((bench.joins, bench.lagg.counters()[Counter::GroupsRefused]), (4, 1));
    bench.list(&five[1..]);
    bench.run();
    bench.list(&five[1..]);
    bench.run();
    assert_eq!((bench.joins, bench.leaves), (5, 1));
}

#[test]
fn the_mtu_is_what_every_port_has_and_a_port_gets_its_own_back() {
    let mut bench = Bench::new();
    assert_eq!(bench.lagg.mtu(), LAGG_MTU_IDLE);
    let first = bench.add(&connected(1));
    bench.run();
    assert_eq!(bench.lagg.mtu(), 65520);
    let second = bench.add(&joined(2));
    bench.run();
    assert_eq!(bench.lagg.mtu(), 2044);
    assert_eq!(mtu_of(&bench, first), 2044, "the MTU of a port follows");
    bench.remove(second, Removal::Orderly);
    bench.run();
    assert_eq!((bench.lagg.mtu(), mtu_of(&bench, first)), (65520, 65520));
    let mtus: Vec<_> = bench
        .events
        .iter()
        .filter_map(|event| match event {
            Event::MtuChanged(mtu) => Some(*mtu),
            _ => None,
        })
        .collect();
    assert_eq!(mtus, [65520, 2044, 65520]);
}

#[test]
fn the_mtu_that_is_wanted_reaches_the_ports_before_the_stack_when_it_grows() {
    let mut bench = Bench::new();
    let ports = [bench.add(&connected(1)), bench.add(&connected(2))];
    bench.feed(|lagg, _, _| lagg.handle_mtu(Some(4092))).unwrap();
    assert_eq!(bench.lagg.mtu(), 4092, "it shrinks at once");
    bench.run();
    bench.forget();
    bench.feed(|lagg, _, _| lagg.handle_mtu(Some(9000))).unwrap();
    assert_eq!((bench.lagg.mtu(), bench.actions.len()), (4092, 2));
    bench.execute_next();
    assert_eq!((bench.lagg.mtu(), bench.events.len()), (4092, 0));
    bench.execute_next();
    assert_eq!(bench.events, [Event::MtuChanged(9000)]);
    bench.remove(ports[0], Removal::Orderly);
    bench.run();
    assert_eq!(bench.released, [ports[0]]);
    bench.feed(|lagg, _, _| lagg.handle_mtu(None)).unwrap();
    bench.run();
    assert_eq!(mtu_of(&bench, ports[1]), 65520);
}

#[test]
fn an_mtu_that_a_port_cannot_have_is_refused() {
    let mut bench = Bench::new();
    bench.add(&connected(1));
    bench.add(&joined(2));
    bench.run();
    for mtu in [0, 1279, 2045, 65520, usize::MAX] {
        let outcome = bench.feed(|lagg, _, _| lagg.handle_mtu(Some(mtu)));
        assert_eq!(outcome, Err(MtuOutOfRange), "{mtu}");
    }
    assert_eq!(bench.lagg.mtu(), 2044);
    assert_eq!(bench.feed(|lagg, _, _| lagg.handle_mtu(Some(1280))), Ok(()));
    assert_eq!(bench.lagg.mtu(), 1280);
}

#[test]
fn a_port_that_does_not_take_the_mtu_limits_the_lagg_and_is_not_asked_twice() {
    let mut bench = Bench::new();
    let port = bench.add(&PortReport { mtu: 2044, ..connected(1) });
    bench.run();
    bench.refuses = true;
    bench.feed(|lagg, _, _| lagg.handle_mtu(Some(9000))).unwrap();
    bench.run();
    assert_eq!(bench.lagg.mtu(), 2044);
    bench.report(port, &bench.ports[&port].clone());
    assert_eq!(bench.actions.len(), 0);
    assert_eq!(bench.lagg.counters()[Counter::MtuRefused], 1);
    bench.refuses = false;
    bench.feed(|lagg, _, _| lagg.handle_mtu(Some(8000))).unwrap();
    bench.run();
    assert_eq!(bench.lagg.mtu(), 8000, "another one is another question");
}

#[test]
fn ports_that_change_their_mode_take_the_mtu_of_the_lagg_along() {
    let (mut bench, ports) = Bench::up(2);
    bench.report(ports[0], &connected(1));
    bench.run();
    assert_eq!(bench.lagg.mtu(), 2044);
    bench.report(ports[1], &connected(2));
    bench.run();
    assert_eq!(bench.lagg.mtu(), 65520);
    bench.report(ports[0], &joined(1));
    bench.run();
    assert_eq!(bench.lagg.mtu(), 2044);
}

#[test]
fn what_all_ports_can_do_is_what_the_lagg_can() {
    let (mut bench, _) = Bench::up(1);
    let less = Capabilities { supported: 0b101, enabled: 0b100, assist: 0b01 };
    let second = bench.add(&PortReport { capabilities: less, ..joined(2) });
    assert_eq!(bench.events.last(), Some(&Event::CapabilitiesChanged(less)));
    bench.remove(second, Removal::Orderly);
    let all = joined(1).capabilities;
    assert_eq!(bench.events.last(), Some(&Event::CapabilitiesChanged(all)));
}

#[test]
fn a_port_is_added_once_and_only_where_there_is_a_place() {
    let (mut bench, _) = Bench::up(3);
    let add = |bench: &mut Bench, n| {
        bench.feed(|lagg, now, face| lagg.handle_port_added(now, &joined(n), face))
    };
    assert_eq!(add(&mut bench, 1), Err(AddPortError::AddressInUse));
    assert_eq!(add(&mut bench, 4), Err(AddPortError::TableFull));
    assert_eq!(bench.lagg.port_count(), 3);
    bench.feed(|lagg, now, face| lagg.handle_detach(now, face));
    assert_eq!(add(&mut bench, 4), Err(AddPortError::Detaching));
}

#[test]
fn ports_follow_the_lagg_up_and_down() {
    let mut bench = Bench::new();
    let first = bench.add(&joined(1));
    assert_eq!(bench.actions, [], "a lagg that was never up says nothing");
    bench.feed(|lagg, _, _| lagg.handle_admin_up());
    let second = bench.add(&joined(2));
    assert!(bench.actions.contains(&Action::RaisePort { port: first }));
    assert!(bench.actions.contains(&Action::RaisePort { port: second }));
    bench.run();
    bench.feed(|lagg, _, _| lagg.handle_admin_down());
    let lowered = [Action::LowerPort { port: first }, Action::LowerPort { port: second }];
    assert_eq!(bench.actions, lowered);
    bench.feed(|lagg, _, _| lagg.handle_admin_down());
    assert_eq!(bench.actions.len(), 2);
}

#[test]
fn whatever_the_order_in_which_ports_leave_the_next_one_carries() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for removal in [Removal::Orderly, Removal::Vanished] {
            let (mut bench, ports) = Bench::up(3);
            bench.list(&GROUPS);
            bench.run();
            let mut left: Vec<usize> = vec![0, 1, 2];
            for leaving in order {
                bench.forget();
                let was_carrier = left[0] == leaving;
                bench.remove(ports[leaving], removal);
                bench.run();
                left.retain(|&port| port != leaving);
                let expected = left.first().map(|&port| joined(port as u8 + 1).identity);
                assert_eq!(bench.mirror.worn, expected, "{order:?}");
                assert_eq!(bench.address_events(), usize::from(was_carrier), "{order:?}");
                let announced = was_carrier && !left.is_empty();
                assert_eq!(bench.announced.len(), usize::from(announced), "{order:?}");
            }
            assert_eq!(bench.lagg.mtu(), LAGG_MTU_IDLE);
            assert_eq!(bench.events.last(), Some(&Event::LinkDown));
        }
    }
}

#[test]
fn detach_gives_everything_back_and_says_so_once() {
    let (mut bench, ports) = Bench::up(2);
    bench.list(&GROUPS);
    bench.feed(|lagg, _, _| lagg.handle_mtu(Some(1500))).unwrap();
    bench.run();
    bench.feed(|lagg, now, face| lagg.handle_detach(now, face));
    bench.feed(|lagg, now, face| lagg.handle_detach(now, face));
    bench.run();
    bench.feed(|lagg, now, face| lagg.handle_timeout(now, face));
    assert_eq!(bench.released, ports);
    assert_eq!(bench.leaves, 6);
    let detached = bench.events.iter().filter(|event| **event == Event::Detached).count();
    assert_eq!(detached, 1);
    assert_eq!((bench.mirror.worn, bench.deadline), (None, None));
    assert_eq!(bench.lagg.groups().count(), 0);
}

#[test]
fn a_port_that_only_has_a_carrier_gives_way_to_one_that_can_announce() {
    let mut bench = Bench::new();
    let unjoined = bench.add(&PortReport { link: PortLink::Up, ..joined(1) });
    assert_eq!(bench.carrier(), Some(unjoined));
    let second = bench.add(&joined(2));
    assert_eq!(bench.carrier(), Some(second));
}
