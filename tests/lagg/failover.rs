//! Which port carries, and what is worn and announced.

use std::time::Duration;

use ipoib_rs::lagg::{
    Action, Config, Counter, DropReason, Event, InactiveInput, PortLink, PortReport, Removal,
};
use ipoib_rs::limits::{LAGG_HOLD_DOWN, LAGG_UPDATE_INTERVAL, LaggLimits};
use ipoib_rs::packet::Cast;

use crate::bench::*;

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn the_first_port_is_the_primary_and_carries() {
    let (bench, ports) = Bench::up(3);
    assert_eq!(bench.lagg.primary(), Some(ports[0]));
    assert_eq!(bench.carrier(), Some(ports[0]));
    assert_eq!(bench.lagg.identity(), Some(&joined(1).identity));
    assert_eq!(bench.lagg.active_count(), 3);
    let states: Vec<_> = bench.lagg.ports().map(|row| row.state).collect();
    assert_eq!(states, ["carrying", "standby", "standby"]);
}

#[test]
fn failover_is_at_once_and_told_and_announced_once() {
    let (mut bench, ports) = Bench::up(2);
    bench.forget();
    bench.report(ports[0], &down(1));
    assert_eq!(bench.carrier(), Some(ports[1]));
    assert_eq!(bench.lagg.handle_transmit(), Ok(ports[1]));
    let told =
        [Event::AddressChanged(Some(joined(2).identity)), Event::CarrierChanged(Some(ports[1]))];
    assert_eq!(bench.events, told, "the link of the lagg stays, so the stack hears no more");
    assert_eq!(bench.actions, [Action::Announce { port: ports[1] }]);
    bench.pass(10 * LAGG_UPDATE_INTERVAL);
    assert_eq!((bench.address_events(), bench.announced.len()), (1, 1));
    assert_eq!(bench.mirror.changes, 1);
}

#[test]
fn the_address_is_told_before_the_link() {
    let mut bench = Bench::new();
    let port = bench.add(&down(1));
    bench.run();
    bench.forget();
    let other = PortReport { identity: identity(1, 0x300), ..joined(1) };
    bench.report(port, &other);
    let told = [
        Event::AddressChanged(Some(other.identity)),
        Event::CarrierChanged(Some(port)),
        Event::LinkUp,
    ];
    assert_eq!(bench.events, told);
}

#[test]
fn the_primary_takes_over_again_after_the_hold_down_and_not_sooner() {
    let (mut bench, ports) = Bench::up(2);
    bench.report(ports[0], &down(1));
    bench.run();
    bench.forget();
    bench.report(ports[0], &joined(1));
    bench.pass(LAGG_HOLD_DOWN - MILLISECOND);
    assert_eq!(bench.carrier(), Some(ports[1]));
    assert_eq!(bench.address_events(), 0);
    bench.pass(MILLISECOND);
    assert_eq!(bench.carrier(), Some(ports[0]));
    assert_eq!(bench.announced, [joined(1).identity.address]);
}

#[test]
fn a_hold_down_that_is_shortened_counts_from_when_the_link_came() {
    let (mut bench, ports) = Bench::up(2);
    bench.report(ports[0], &down(1));
    bench.report(ports[0], &joined(1));
    bench.pass(100 * MILLISECOND);
    assert_eq!(bench.carrier(), Some(ports[1]));
    bench.feed(|lagg, now, face| lagg.handle_hold_down(now, 200 * MILLISECOND, face));
    bench.pass(100 * MILLISECOND);
    assert_eq!(bench.carrier(), Some(ports[0]));
    bench.report(ports[0], &down(1));
    bench.feed(|lagg, now, face| lagg.handle_hold_down(now, Duration::ZERO, face));
    bench.report(ports[0], &joined(1));
    assert_eq!(bench.carrier(), Some(ports[0]), "without a hold-down it is at once");
}

#[test]
fn h11_twenty_flaps_in_a_second_are_two_changes_and_end_on_the_primary() {
    let (mut bench, ports) = Bench::up(2);
    bench.forget();
    for _ in 0..20 {
        bench.report(ports[0], &down(1));
        bench.pass(25 * MILLISECOND);
        bench.report(ports[0], &joined(1));
        bench.pass(25 * MILLISECOND);
    }
    assert_eq!(bench.address_events(), 1);
    bench.pass(LAGG_HOLD_DOWN);
    let addresses = [joined(2).identity.address, joined(1).identity.address];
    assert_eq!(bench.announced, addresses);
    assert_eq!(bench.address_events(), 2);
    assert_eq!(bench.mirror.worn, Some(joined(1).identity));
}

#[test]
fn h11_without_a_hold_down_each_flap_is_two_changes_with_one_announcement_each() {
    let config = Config { hold_down: Duration::ZERO, ..Config::new(1) };
    let mut bench = Bench::with(config);
    bench.feed(|lagg, _, _| lagg.handle_admin_up());
    let ports = [bench.add(&joined(1)), bench.add(&joined(2))];
    bench.run();
    bench.forget();
    for _ in 0..20 {
        bench.report(ports[0], &down(1));
        bench.pass(25 * MILLISECOND);
        bench.report(ports[0], &joined(1));
        bench.pass(25 * MILLISECOND);
    }
    assert_eq!(bench.mirror.changes, 40);
    assert_eq!((bench.address_events(), bench.announced.len()), (40, 40));
    assert_eq!(bench.mirror.worn, Some(joined(1).identity));
}

#[test]
fn changes_that_nobody_polled_for_are_one_event_and_one_announcement() {
    let (mut bench, ports) = Bench::up(2);
    bench.forget();
    for _ in 0..3 {
        bench.lagg.handle_port_reported(bench.now, ports[0], &down(1), &mut bench.mirror);
        let later = bench.now + LAGG_HOLD_DOWN;
        bench.lagg.handle_port_reported(bench.now, ports[0], &joined(1), &mut bench.mirror);
        bench.lagg.handle_timeout(later, &mut bench.mirror);
    }
    bench.report(ports[0], &down(1));
    bench.run();
    assert_eq!(bench.mirror.changes, 7);
    assert_eq!((bench.address_events(), bench.announced.len()), (1, 1));
}

#[test]
fn an_announcement_waits_for_the_broadcast_group_of_the_new_port() {
    let (mut bench, ports) = Bench::up(2);
    let unjoined = PortReport { link: PortLink::Up, ..joined(2) };
    bench.report(ports[1], &unjoined);
    bench.run();
    bench.forget();
    bench.report(ports[0], &down(1));
    bench.run();
    assert_eq!(bench.carrier(), Some(ports[1]), "a port with a carrier is better than none");
    assert_eq!((bench.address_events(), bench.announced.len()), (1, 0));
    bench.report(ports[1], &joined(2));
    bench.run();
    assert_eq!((bench.address_events(), bench.announced.len()), (1, 1));
}

#[test]
fn an_announcement_waits_until_the_lagg_is_up() {
    let mut bench = Bench::new();
    bench.add(&joined(1));
    bench.run();
    assert_eq!((bench.address_events(), bench.announced.len()), (1, 0));
    bench.feed(|lagg, _, _| lagg.handle_admin_up());
    bench.run();
    assert_eq!((bench.address_events(), bench.announced.len()), (1, 1));
}

#[test]
fn an_address_that_changes_without_a_link_is_announced_when_the_link_is_back() {
    let (mut bench, ports) = Bench::up(1);
    bench.forget();
    bench.report(ports[0], &down(1));
    let other = identity(1, 0x300);
    bench.report(ports[0], &PortReport { identity: other, ..down(1) });
    bench.run();
    assert_eq!(bench.mirror.worn, Some(other));
    assert_eq!((bench.address_events(), bench.announced.len()), (1, 0));
    bench.report(ports[0], &PortReport { identity: other, ..joined(1) });
    bench.run();
    assert_eq!((bench.address_events(), bench.announced.len()), (1, 1));
}

#[test]
fn a_link_that_comes_back_is_announced_again_because_the_last_time_may_have_been_lost() {
    let (mut bench, ports) = Bench::up(1);
    bench.forget();
    bench.report(ports[0], &down(1));
    bench.report(ports[0], &joined(1));
    bench.report(ports[0], &joined(1));
    bench.run();
    assert_eq!((bench.address_events(), bench.announced.len()), (0, 1));
}

#[test]
fn a_new_queue_pair_of_the_port_that_carries_is_one_change() {
    let (mut bench, ports) = Bench::up(2);
    bench.forget();
    let other = PortReport { identity: identity(1, 0x300), ..joined(1) };
    bench.report(ports[0], &other);
    bench.report(ports[0], &other);
    bench.run();
    assert_eq!((bench.address_events(), bench.announced.len()), (1, 1));
    assert_eq!(bench.mirror.worn, Some(other.identity));
    bench.report(ports[1], &PortReport { identity: identity(2, 0x300), ..joined(2) });
    bench.run();
    assert_eq!(bench.address_events(), 1, "that of a port that does not carry is not worn");
}

#[test]
fn a_port_that_moved_is_announced_if_it_carries() {
    let (mut bench, ports) = Bench::up(2);
    bench.forget();
    bench.feed(|lagg, _, _| lagg.handle_port_moved(ports[1]));
    bench.run();
    assert_eq!(bench.announced.len(), 0);
    bench.feed(|lagg, _, _| lagg.handle_port_moved(ports[0]));
    bench.run();
    assert_eq!(bench.announced.len(), 1);
}

#[test]
fn a_lost_link_event_is_put_right_within_one_interval() {
    let (mut bench, ports) = Bench::up(2);
    // Nobody says so.
    bench.ports.insert(ports[0], down(1));
    bench.pass(LAGG_UPDATE_INTERVAL);
    assert_eq!(bench.carrier(), Some(ports[1]));
    assert_eq!(bench.mirror.worn, Some(joined(2).identity));
    let other = PortReport { identity: identity(2, 0x300), ..joined(2) };
    bench.ports.insert(ports[1], other);
    bench.pass(LAGG_UPDATE_INTERVAL);
    assert_eq!(bench.mirror.worn, Some(other.identity));
}

#[test]
fn the_interval_can_be_changed_and_switched_off() {
    let (mut bench, _) = Bench::up(1);
    let queries = |bench: &Bench| bench.lagg.counters()[Counter::PortQueries];
    bench.pass(3 * LAGG_UPDATE_INTERVAL);
    assert_eq!(queries(&bench), 3);
    bench.feed(|lagg, now, _| lagg.handle_update_interval(now, 100 * MILLISECOND));
    bench.pass(LAGG_UPDATE_INTERVAL);
    assert_eq!(queries(&bench), 13);
    bench.feed(|lagg, now, _| lagg.handle_update_interval(now, Duration::ZERO));
    assert_eq!(bench.deadline, None);
    bench.pass(10 * LAGG_UPDATE_INTERVAL);
    assert_eq!(queries(&bench), 13);
    bench.feed(|lagg, now, _| lagg.handle_update_interval(now, LAGG_UPDATE_INTERVAL));
    bench.pass(LAGG_UPDATE_INTERVAL);
    assert_eq!(queries(&bench), 14);
}

#[test]
fn without_ports_there_is_no_timer() {
    let (mut bench, ports) = Bench::up(1);
    assert!(bench.deadline.is_some());
    bench.remove(ports[0], Removal::Orderly);
    bench.run();
    assert_eq!(bench.deadline, None);
    bench.add(&joined(1));
    assert_eq!(bench.deadline, Some(bench.now + LAGG_UPDATE_INTERVAL));
}

#[test]
fn when_no_port_has_a_link_the_address_stays_and_packets_are_dropped() {
    let (mut bench, ports) = Bench::up(2);
    bench.report(ports[0], &down(1));
    bench.report(ports[1], &down(2));
    bench.run();
    assert_eq!(bench.mirror.worn, Some(joined(2).identity));
    assert_eq!(bench.events.last(), Some(&Event::LinkDown));
    assert_eq!(bench.lagg.handle_transmit(), Err(DropReason::NoLink));
    bench.forget();
    bench.report(ports[0], &joined(1));
    bench.run();
    assert_eq!(bench.carrier(), Some(ports[0]), "nothing works, so nothing is held down");
    assert_eq!((bench.address_events(), bench.announced.len()), (1, 1));
}

#[test]
fn a_port_that_has_held_its_link_is_better_than_one_that_just_got_it() {
    let (mut bench, ports) = Bench::up(3);
    bench.pass(LAGG_HOLD_DOWN);
    bench.report(ports[0], &down(1));
    bench.report(ports[1], &down(2));
    bench.report(ports[0], &joined(1));
    assert_eq!(bench.carrier(), Some(ports[2]));
    bench.report(ports[1], &joined(2));
    bench.pass(LAGG_HOLD_DOWN);
    assert_eq!(bench.carrier(), Some(ports[0]));
}

#[test]
fn each_drop_reason_has_its_packet() {
    let mut bench = Bench::new();
    assert_eq!(bench.lagg.handle_transmit(), Err(DropReason::LaggDown));
    bench.feed(|lagg, _, _| lagg.handle_admin_up());
    assert_eq!(bench.lagg.handle_transmit(), Err(DropReason::NoPort));
    let port = bench.add(&down(1));
    assert_eq!(bench.lagg.handle_transmit(), Err(DropReason::NoLink));
    let unicast = Cast::Unicast;
    assert_eq!(bench.lagg.handle_receive(port, unicast), Ok(()));
    let multicast = Cast::Multicast;
    let inactive = Err(DropReason::InactivePort);
    assert_eq!(bench.lagg.handle_receive(port, multicast), inactive);
    bench.remove(port, Removal::Vanished);
    assert_eq!(bench.lagg.handle_receive(port, unicast), Err(DropReason::UnknownPort));
    bench.feed(|lagg, _, _| lagg.handle_admin_down());
    let down = Err(DropReason::ReceivedWhileDown);
    assert_eq!(bench.lagg.handle_receive(port, unicast), down);
    for &reason in DropReason::ALL {
        assert_eq!(bench.lagg.counters()[reason], 1, "{}", reason.name());
    }
    assert_eq!(bench.lagg.counters().drops_total(), 6);
}

#[test]
fn what_ports_that_do_not_carry_receive_is_taken_as_the_switch_says() {
    let casts = [Cast::Unicast, Cast::Multicast, Cast::Broadcast];
    for (input, taken) in [
        (InactiveInput::Refused, [false; 3]),
        (InactiveInput::Unicast, [true, false, false]),
        (InactiveInput::All, [true; 3]),
    ] {
        let (mut bench, ports) = Bench::up(2);
        bench.feed(|lagg, _, _| lagg.handle_inactive_input(input));
        let outcome = casts.map(|cast| bench.lagg.handle_receive(ports[1], cast).is_ok());
        assert_eq!(outcome, taken, "{input:?}");
        assert!(casts.iter().all(|&cast| bench.lagg.handle_receive(ports[0], cast).is_ok()));
        let counters = bench.lagg.counters();
        let inactive = taken.iter().filter(|&&taken| taken).count() as u64;
        assert_eq!(counters[Counter::ReceivedInactive], inactive);
        assert_eq!(counters[Counter::PacketsReceived], 3 + inactive);
    }
}

#[test]
fn counters_stay_when_a_port_leaves() {
    let (mut bench, ports) = Bench::up(2);
    for _ in 0..5 {
        bench.lagg.handle_transmit().unwrap();
        bench.lagg.handle_receive(ports[0], Cast::Unicast).unwrap();
    }
    let row = bench.lagg.ports().next().unwrap();
    assert_eq!((row.sent, row.received), (5, 5));
    bench.remove(ports[0], Removal::Orderly);
    bench.run();
    bench.lagg.handle_transmit().unwrap();
    assert_eq!(bench.lagg.counters()[Counter::PacketsSent], 6);
    assert_eq!(bench.lagg.counters()[Counter::PacketsReceived], 5);
}

#[test]
fn the_smallest_and_the_largest_tables_can_be_attached() {
    for (ports_max, groups_max, is_usable) in
        [(0, 1, false), (1, 0, false), (1, 1, true), (8, 256, true), (1 << 13, 1 << 13, false)]
    {
        let limits = LaggLimits { ports_max, groups_max };
        let lagg = ipoib_rs::lagg::Lagg::attach(Config { limits, ..Config::new(1) });
        assert_eq!(lagg.is_ok(), is_usable, "{limits:?}");
    }
}
