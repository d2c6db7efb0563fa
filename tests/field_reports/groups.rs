//! Reports B13, B14, B16 and B17: multicast groups.

use std::time::Duration;

use ipoib_rs::action::{Action, JoinRequest, SaError, SaRefusal};
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::event::{Event, Notice};
use ipoib_rs::ib::{IbMtu, Mgid, RateCode};
use ipoib_rs::interface::PortEvent;
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{EtherType, LinkAddress};

use crate::common::*;

const FOUR_GROUPS: [&str; 4] = ["224.0.0.1", "224.0.0.22", "ff02::1", "ff02::1:ff00:1"];

fn multicast(group: &str) -> LinkAddress {
    LinkAddress::multicast(mgid(group))
}

/// The times at which `mgid` was asked for.
fn tries(bench: &Bench, mgid: Mgid) -> Vec<Instant> {
    let is_it = |action: &Action| match action {
        Action::JoinGroup { request, .. } => (request.mgid == mgid).then_some(()),
        _ => None,
    };
    bench.logged(is_it).into_iter().map(|(at, ())| at).collect()
}

fn requests(bench: &Bench, mgid: Mgid) -> Vec<JoinRequest> {
    let request = |action: &Action| match action {
        Action::JoinGroup { request, .. } => (request.mgid == mgid).then_some(*request),
        _ => None,
    };
    bench.logged(request).into_iter().map(|(_, request)| request).collect()
}

fn state(bench: &Bench, mgid: Mgid) -> Option<&'static str> {
    bench.interface().groups().find(|row| row.mgid == mgid).map(|row| row.state)
}

/// Joined to the broadcast group and four others.
fn with_four_groups() -> Bench {
    let mut bench = Bench::joined();
    bench.listen_to(&FOUR_GROUPS);
    assert!(FOUR_GROUPS.iter().all(|group| state(&bench, mgid(group)) == Some("joined")));
    bench
}

#[test]
fn b13_traffic_goes_on_while_a_busy_sa_renews_memberships() {
    let mut bench = with_four_groups();
    let recovery = bench.now + Duration::from_millis(1200);
    bench.answers(move |action, now| match action {
        Action::JoinGroup { .. } if now < recovery => Answer::Sa(SaError::Busy),
        _ => Answer::Usual,
    });
    bench.port_event(PortEvent::ClientReregister, port());
    let arp = LinkAddress::multicast(broadcast_mgid());
    for _ in 0..12 {
        bench.run(Duration::from_millis(100));
        bench.transmit(&arp, EtherType::ARP, &[0; 56]).unwrap();
        bench.transmit(&multicast("224.0.0.22"), EtherType::IPV4, &ipv4(40, 0)).unwrap();
        bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, 0)).unwrap();
        bench.complete_all();
    }
    assert!(bench.interface().is_link_up());
    assert_eq!(bench.adapter().sent.len(), 36);
    assert!(!bench.events().contains(&Event::LinkDown));

    bench.run(Duration::from_secs(1));
    for group in FOUR_GROUPS {
        assert_eq!(state(&bench, mgid(group)), Some("joined"), "{group}");
    }
    bench.detach();
}

#[test]
fn b13_the_first_retry_is_short_and_none_is_sooner_than_the_one_before() {
    let mut bench = Bench::joined();
    bench.answers(|action, _| match action {
        Action::JoinGroup { .. } => Answer::Sa(SaError::Busy),
        _ => Answer::Usual,
    });
    bench.listen_to(&["224.0.0.1"]);
    bench.run(Duration::from_secs(120));
    let tries = tries(&bench, mgid("224.0.0.1"));
    let waits: Vec<Duration> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits[0] <= Duration::from_millis(200), "{waits:?}");
    assert!(waits.is_sorted(), "{waits:?}");
    assert!(waits.iter().all(|&wait| wait <= Duration::from_secs(16)), "{waits:?}");
    assert!(waits.len() > 10, "{waits:?}");
    bench.detach();
}

#[test]
fn b13_another_reregister_during_back_off_asks_at_once() {
    let mut bench = with_four_groups();
    bench.answers(|action, _| match action {
        Action::JoinGroup { .. } => Answer::Sa(SaError::Busy),
        _ => Answer::Usual,
    });
    bench.port_event(PortEvent::ClientReregister, port());
    bench.run(Duration::from_secs(20));
    bench.answers_as_usual();
    bench.port_event(PortEvent::ClientReregister, port());
    for group in FOUR_GROUPS {
        assert_eq!(tries(&bench, mgid(group)).last(), Some(&bench.now), "{group}");
        assert_eq!(state(&bench, mgid(group)), Some("joined"), "{group}");
    }
    bench.detach();
}

#[test]
fn b13_another_mlid_is_attached_in_place_of_the_old_one() {
    let mut bench = Bench::joined();
    bench.listen_to(&["224.0.0.1"]);
    let group = mgid("224.0.0.1");
    bench.answers(move |action, _| match action {
        Action::JoinGroup { request, .. } if request.mgid == group => {
            Answer::Group(group_record(group, 0xC0AA))
        }
        _ => Answer::Usual,
    });
    bench.port_event(PortEvent::SmChanged, port());
    bench.run(Duration::from_secs(1));
    let row = bench.interface().groups().find(|row| row.mgid == group).unwrap();
    assert_eq!(row.mlid.unwrap().value(), 0xC0AA);
    // The bench fails if an attachment is made twice or the old one is left.
    bench.transmit(&multicast("224.0.0.1"), EtherType::IPV4, &ipv4(40, 0)).unwrap();
    let handles = bench.logged(|action| match action {
        Action::CreateAddressHandle { handle, address, .. } => Some((*handle, address.lid)),
        _ => None,
    });
    let (send, _) = bench.adapter().sent.last().unwrap();
    let used = handles.iter().rev().find(|(_, (handle, _))| *handle == send.handle);
    assert_eq!(used.map(|(_, (_, lid))| *lid), Some(0xC0AA));
    bench.detach();
}

#[test]
fn b14_a_group_that_is_refused_delays_no_other() {
    let refused = mgid("224.0.0.2");
    let mut bench = Bench::joined();
    bench.answers(move |action, _| match action {
        Action::JoinGroup { request, .. } if request.mgid == refused => {
            Answer::Sa(SaError::Refused(SaRefusal::RequestDenied))
        }
        _ => Answer::Usual,
    });
    let groups = ["224.0.0.1", "224.0.0.2", "224.0.0.3", "224.0.0.4", "224.0.0.5"];
    bench.listen_to(&groups);
    for group in groups {
        let expected = if mgid(group) == refused { "backing-off" } else { "joined" };
        assert_eq!(state(&bench, mgid(group)), Some(expected), "{group}");
    }
    let joins = bench.joins().len();
    bench.run(Duration::from_secs(10));
    let retries = bench.joins().split_off(joins);
    assert!(retries.len() > 3 && retries.iter().all(|&mgid| mgid == refused));
    bench.detach();
}

#[test]
fn b14_nothing_is_joined_and_nothing_lost_before_the_broadcast_group() {
    let mut bench = Bench::attach();
    bench.answers(|action, _| match action {
        Action::JoinGroup { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    bench.listen_to(&FOUR_GROUPS);
    bench.admin_up();
    bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, 0)).unwrap();
    bench.transmit(&multicast("224.0.0.22"), EtherType::IPV4, &ipv4(40, 0)).unwrap();
    bench.run(Duration::from_millis(500));
    assert_eq!(bench.joins(), [broadcast_mgid()]);
    assert_eq!(bench.interface().packets_queued(), 2);

    bench.answers_as_usual();
    let join = bench.held.pop().unwrap();
    bench.answer(join, Answer::Usual);
    assert!(bench.interface().is_link_up());
    assert_eq!(bench.joins().len(), 5);
    assert_eq!(bench.adapter().sent.len(), 2);
    bench.detach();
}

#[test]
fn b14_a_send_only_group_is_tried_twice_and_its_next_packet_tries_again() {
    let group = mgid("239.1.2.3");
    let mut bench = Bench::joined();
    bench.answers(|action, _| match action {
        Action::JoinGroup { .. } => Answer::Sa(SaError::Refused(SaRefusal::RequestDenied)),
        _ => Answer::Usual,
    });
    let send = |bench: &mut Bench| {
        bench.transmit(&multicast("239.1.2.3"), EtherType::IPV4, &ipv4(40, 0)).unwrap();
    };
    (0..3).for_each(|_| send(&mut bench));
    bench.run(Duration::from_secs(3));
    assert_eq!(tries(&bench, group).len(), 2);
    assert_eq!(bench.dropped(DropReason::GroupUnjoined), 3);
    assert!(state(&bench, group).is_some(), "the entry stays");

    bench.answers_as_usual();
    send(&mut bench);
    assert_eq!(tries(&bench, group).len(), 3);
    assert_eq!(bench.adapter().sent.len(), 1);
    bench.detach();
}

#[test]
fn b16_a_group_of_another_rate_is_taken_as_it_is() {
    let group = mgid("224.0.0.1");
    let mut bench = Bench::joined();
    bench.answers(move |action, _| match action {
        Action::JoinGroup { request, .. } if request.mgid == group => {
            let mut record = group_record(group, 0xC111);
            record.parameters.rate = RateCode::new(2).unwrap();
            Answer::Group(record)
        }
        _ => Answer::Usual,
    });
    bench.listen_to(&["224.0.0.1"]);
    assert_eq!(state(&bench, group), Some("joined"));
    let rates = bench.logged(|action| match action {
        Action::CreateAddressHandle { address, .. } if address.lid == 0xC111 => {
            Some(address.rate.code())
        }
        _ => None,
    });
    assert_eq!(rates.into_iter().map(|(_, rate)| rate).collect::<Vec<_>>(), [2]);
    // Only what is mandatory was asked for.
    assert!(requests(&bench, group).iter().all(|request| request.create.is_none()));
    bench.detach();
}

#[test]
fn b16_to_a_group_of_a_smaller_mtu_nothing_larger_is_posted() {
    let group = mgid("224.0.0.1");
    let mut bench = Bench::joined();
    bench.answers(move |action, _| match action {
        Action::JoinGroup { request, .. } if request.mgid == group => {
            let mut record = group_record(group, 0xC111);
            record.parameters.mtu = IbMtu::Mtu1024;
            Answer::Group(record)
        }
        _ => Answer::Usual,
    });
    bench.listen_to(&["224.0.0.1"]);
    assert_eq!(state(&bench, group), Some("joined"));
    let to = multicast("224.0.0.1");
    bench.transmit(&to, EtherType::IPV4, &ipv4_to([224, 0, 0, 1], 1020, DF)).unwrap();
    bench.transmit(&to, EtherType::IPV4, &ipv4_to([224, 0, 0, 1], 1021, DF)).unwrap();
    assert_eq!(bench.dropped(DropReason::TooBigSilent), 1);
    // Without DF it goes in pieces, as everywhere.
    bench.transmit(&to, EtherType::IPV4, &ipv4_to([224, 0, 0, 1], 1021, 0)).unwrap();
    let lengths: Vec<usize> = bench.adapter().sent.iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(lengths, [1024, 1020, 29]);
    bench.detach();
}

#[test]
fn b16_a_group_that_is_not_there_is_created_like_the_broadcast_group() {
    let group = mgid("224.0.0.1");
    let mut bench = Bench::joined();
    let like = bench.group_record(broadcast_mgid()).parameters;
    bench.answers(move |action, _| match action {
        Action::JoinGroup { request, .. } if request.create.is_none() => {
            Answer::Sa(SaError::Refused(SaRefusal::InsufficientComponents))
        }
        _ => Answer::Usual,
    });
    bench.listen_to(&["224.0.0.1"]);
    let requests = requests(&bench, group);
    let creates: Vec<_> = requests.iter().map(|request| request.create).collect();
    assert_eq!(creates, [None, Some(like)]);
    assert_eq!(state(&bench, group), Some("joined"));
    bench.detach();
}

#[test]
fn b16_a_hundred_refusals_are_one_line_in_the_log_and_one_on_recovery() {
    let group = mgid("224.0.0.1");
    let mut bench = Bench::joined();
    let refusal = SaError::Refused(SaRefusal::RequestDenied);
    bench.answers(move |action, _| match action {
        Action::JoinGroup { .. } => Answer::Sa(refusal),
        _ => Answer::Usual,
    });
    bench.listen_to(&["224.0.0.1"]);
    while tries(&bench, group).len() < 100 {
        bench.run(Duration::from_secs(16));
    }
    bench.answers_as_usual();
    bench.run(Duration::from_secs(32));
    let notices: Vec<_> =
        bench.events().iter().filter(|event| matches!(event, Event::Notice(_))).collect();
    let failing = Event::Notice(Notice::JoinFailing(group, refusal));
    let recovered = Event::Notice(Notice::JoinRecovered(group));
    assert_eq!(notices, [&failing, &recovered]);
    bench.detach();
}

#[test]
fn b17_only_groups_of_this_interface_are_asked_for() {
    let mut bench = Bench::joined();
    let before = bench.joins().len();
    let valid = [group_bytes(mgid("224.0.0.1")), group_bytes(mgid("ff02::1"))];
    let foreign = group_bytes(mgid_in(0x8001, "224.0.0.1"));
    let mut unicast = valid[0].clone();
    unicast[4] = 0xFE;
    let ethernet = [0x01, 0x00, 0x5E, 0x00, 0x00, 0x01];
    let list: [&[u8]; 5] = [&valid[0], &valid[1], &ethernet, &foreign, &unicast];
    bench.listen(&list);
    let mut joins = bench.joins().split_off(before);
    joins.sort_unstable();
    assert_eq!(joins, [mgid("224.0.0.1"), mgid("ff02::1")]);
    assert_eq!(bench.counted(Counter::ForeignGroups), 3);
    let is_notice = |event: &&Event| matches!(event, Event::Notice(_));
    assert_eq!(bench.events().iter().find(is_notice), None);
    bench.detach();
}

#[test]
fn b17_a_packet_to_a_foreign_group_is_dropped_and_counted() {
    let mut bench = Bench::joined();
    let before = bench.joins().len();
    let foreign = LinkAddress::multicast(mgid_in(0x8001, "224.0.0.1"));
    bench.transmit(&foreign, EtherType::IPV4, &ipv4(40, 0)).unwrap();
    assert_eq!(bench.dropped(DropReason::InvalidDestination), 1);
    assert_eq!(bench.joins().len(), before);
    bench.detach();
}
