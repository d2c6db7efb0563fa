//! Reports and hazards about lagg, by name.

use std::time::Duration;

use ipoib_rs::lagg::{AddPortError, Counter, Event, PortReport, Removal};
use ipoib_rs::packet::Cast;

use crate::bench::*;

#[test]
fn a4_the_ports_of_a_lagg_keep_their_own_addresses() {
    let (bench, ports) = Bench::up(2);
    let rows: Vec<_> = bench.lagg.ports().collect();
    assert_eq!(rows[0].identity, joined(1).identity);
    assert_eq!(rows[1].identity, joined(2).identity);
    assert_eq!(bench.lagg.identity(), Some(&rows[0].identity));
    assert_eq!(bench.carrier(), Some(ports[0]));
}

#[test]
fn a5_the_stack_hears_of_a_failover_although_the_lagg_stays_up() {
    let (mut bench, ports) = Bench::up(2);
    bench.forget();
    bench.report(ports[0], &down(1));
    bench.run();
    assert_eq!(bench.events.first(), Some(&Event::AddressChanged(Some(joined(2).identity))));
    assert!(bench.lagg.is_link_up());
    assert!(!bench.events.iter().any(|event| matches!(event, Event::LinkDown | Event::LinkUp)));
    assert_eq!(bench.announced.len(), 1);
}

#[test]
fn a5_one_group_more_is_no_leave() {
    let (mut bench, _) = Bench::up(2);
    bench.list(&["224.0.0.1"]);
    bench.run();
    bench.forget();
    bench.list(&["224.0.0.1", "224.0.0.251"]);
    bench.run();
    assert_eq!((bench.joins, bench.leaves), (2, 0));
}

#[test]
fn b04_active_moves_and_primary_stays() {
    let (mut bench, ports) = Bench::up(2);
    bench.report(ports[1], &down(2));
    assert_eq!(bench.lagg.active_count(), 1);
    let rows: Vec<_> = bench.lagg.ports().map(|row| (row.is_primary, row.is_carrier)).collect();
    assert_eq!(rows, [(true, true), (false, false)]);
    assert!(bench.lagg.is_link_up());
    bench.report(ports[0], &down(1));
    bench.report(ports[1], &joined(2));
    let rows: Vec<_> = bench.lagg.ports().map(|row| (row.is_primary, row.is_carrier)).collect();
    assert_eq!(rows, [(true, false), (false, true)]);
}

#[test]
fn b04_the_same_port_twice_is_refused_and_changes_nothing() {
    let (mut bench, ports) = Bench::up(2);
    bench.forget();
    let again = bench.feed(|lagg, now, face| lagg.handle_port_added(now, &joined(2), face));
    assert_eq!(again, Err(AddPortError::AddressInUse));
    assert_eq!((bench.events.len(), bench.actions.len()), (0, 0));
    assert_eq!(bench.lagg.ports().map(|row| row.port).collect::<Vec<_>>(), ports);
}

#[test]
fn b05_a_frame_of_a_port_that_left_is_dropped_and_counted() {
    let (mut bench, ports) = Bench::up(2);
    for removal in [Removal::Orderly, Removal::Vanished] {
        let port = if removal == Removal::Orderly { ports[0] } else { ports[1] };
        bench.remove(port, removal);
        assert!(bench.lagg.handle_receive(port, Cast::Unicast).is_err());
        bench.run();
        assert!(bench.lagg.handle_receive(port, Cast::Unicast).is_err());
    }
    bench.feed(|lagg, now, face| lagg.handle_detach(now, face));
    assert!(bench.lagg.handle_receive(ports[0], Cast::Unicast).is_err());
    assert_eq!(bench.lagg.counters().drops_total(), 5);
}

#[test]
fn b07_a_port_that_leaves_has_what_it_had_before() {
    let (mut bench, _) = Bench::up(1);
    bench.list(&["224.0.0.1", "ff02::1"]);
    let own = PortReport { mtu: 9000, mtu_max: 65520, ..joined(2) };
    let port = bench.add(&own);
    bench.run();
    assert_eq!(bench.ports[&port].mtu, 2044);
    bench.remove(port, Removal::Orderly);
    while !bench
        .actions
        .iter()
        .any(|action| matches!(action, ipoib_rs::lagg::Action::ReleasePort { .. }))
    {
        assert!(bench.execute_next());
    }
    assert_eq!(bench.ports[&port], own);
    assert!(bench.groups[&port].is_empty());
    bench.run();
    assert_eq!(bench.released, [port]);
}

#[test]
fn b17_entries_of_an_ethernet_interface_never_reach_a_port() {
    let mut bench = Bench::new();
    let ethernet = vec![0x01, 0x00, 0x5e, 0x00, 0x00, 0x01];
    // Before the first port says what a lagg is, nothing on the list is one of its groups.
    bench.raw_list(std::slice::from_ref(&ethernet));
    let port = bench.add(&joined(1));
    let good = |group: &str| {
        let mgid = BROADCAST.mgid_of(group.parse().unwrap()).unwrap();
        zerocopy_bytes(&ipoib_rs::wire::LinkAddress::multicast(mgid))
    };
    let mut wrong_key = good("224.0.0.1");
    wrong_key[9] ^= 1;
    let mut unicast = good("224.0.0.1");
    unicast[4] = 0xFE;
    let list = [good("224.0.0.1"), good("ff02::1"), ethernet, wrong_key, unicast];
    bench.raw_list(&list);
    bench.run();
    assert_eq!((bench.joins, bench.groups[&port].len()), (2, 2));
    assert_eq!(bench.lagg.counters()[Counter::ForeignGroups], 4);
}

#[test]
fn b17_the_broadcast_group_on_the_list_is_neither_foreign_nor_joined() {
    let (mut bench, _) = Bench::up(1);
    bench.list(&["255.255.255.255"]);
    bench.run();
    assert_eq!((bench.joins, bench.lagg.counters()[Counter::ForeignGroups]), (0, 0));
}

#[test]
fn b20_the_broadcast_address_of_the_lagg_is_that_of_the_port_that_carries() {
    let (mut bench, ports) = Bench::up(2);
    for pkey in [0x8001, 0x8002] {
        let pkey = ipoib_rs::ib::Pkey::new(pkey).unwrap();
        let group = ipoib_rs::wire::BroadcastGroup::new(ipoib_rs::wire::Scope::LINK_LOCAL, pkey);
        let mut report = joined(1);
        report.identity.broadcast = ipoib_rs::wire::LinkAddress::multicast(group.mgid());
        bench.forget();
        bench.report(ports[0], &report);
        bench.run();
        assert_eq!(bench.mirror.worn, Some(report.identity));
        assert_eq!((bench.address_events(), bench.announced.len()), (1, 1));
    }
}

#[test]
fn c8_when_the_primary_leaves_the_address_is_that_which_the_next_port_has_now() {
    for removal in [Removal::Orderly, Removal::Vanished] {
        let (mut bench, ports) = Bench::up(2);
        let renewed = PortReport { identity: identity(2, 0x300), ..joined(2) };
        bench.report(ports[1], &renewed);
        bench.forget();
        bench.remove(ports[0], removal);
        bench.run();
        assert_eq!(bench.mirror.worn, Some(renewed.identity));
        assert_eq!(bench.lagg.primary(), Some(ports[1]));
        assert_eq!(bench.announced, [renewed.identity.address]);
    }
}

#[test]
fn h10_no_input_leaves_a_port_carrying_whose_address_is_not_worn() {
    // The bench compares after every input; here every input changes who carries.
    let (mut bench, ports) = Bench::up(2);
    for round in 0..10 {
        bench.report(ports[0], &down(1));
        assert_eq!(bench.mirror.worn, Some(joined(2).identity), "{round}");
        assert_eq!(bench.lagg.handle_transmit(), Ok(ports[1]));
        bench.report(ports[0], &joined(1));
        bench.pass(Duration::from_secs(1));
        assert_eq!(bench.mirror.worn, Some(joined(1).identity), "{round}");
        assert_eq!(bench.lagg.handle_transmit(), Ok(ports[0]));
    }
}
