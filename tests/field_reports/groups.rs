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
use crate::scene::*;

const FOUR_GROUPS: [&str; 4] = ["224.0.0.1", "224.0.0.22", "ff02::1", "ff02::1:ff00:1"];

fn multicast(group: &str) -> LinkAddress {
    LinkAddress::multicast(mgid(group))
}

/// The times at which `mgid` was asked for.
fn tries(scene: &Scene, mgid: Mgid) -> Vec<Instant> {
    let is_it = |action: &Action| match action {
        Action::JoinGroup { request, .. } => (request.mgid == mgid).then_some(()),
        _ => None,
    };
    scene.logged(is_it).into_iter().map(|(at, ())| at).collect()
}

fn requests(scene: &Scene, mgid: Mgid) -> Vec<JoinRequest> {
    let request = |action: &Action| match action {
        Action::JoinGroup { request, .. } => (request.mgid == mgid).then_some(*request),
        _ => None,
    };
    scene.logged(request).into_iter().map(|(_, request)| request).collect()
}

fn state(scene: &Scene, mgid: Mgid) -> Option<&'static str> {
    scene.interface().groups().find(|row| row.mgid == mgid).map(|row| row.state)
}

/// Joined to the broadcast group and four others.
fn with_four_groups() -> Scene {
    let mut scene = Scene::joined();
    scene.listen_to(&FOUR_GROUPS);
    assert!(FOUR_GROUPS.iter().all(|group| state(&scene, mgid(group)) == Some("joined")));
    scene
}

#[test]
fn b13_traffic_goes_on_while_a_busy_sa_renews_memberships() {
    let mut scene = with_four_groups();
    let recovery = scene.now() + Duration::from_millis(1200);
    scene.answers(move |action, now| match action {
        Action::JoinGroup { .. } if now < recovery => Answer::Sa(SaError::Busy),
        _ => Answer::Usual,
    });
    scene.port_event(PortEvent::ClientReregister, port());
    let arp = LinkAddress::multicast(mgid("255.255.255.255"));
    for _ in 0..12 {
        scene.pass(Duration::from_millis(100));
        scene.send(&arp, EtherType::ARP, vec![0; 56]);
        scene.send(&multicast("224.0.0.22"), EtherType::IPV4, ipv4(40, false));
        scene.send(&peer(1), EtherType::IPV4, ipv4(100, false));
        scene.complete_all();
    }
    assert!(scene.interface().is_link_up());
    assert_eq!(scene.adapter().wire.len(), 36);
    assert!(!scene.events().contains(&Event::LinkDown));

    scene.pass(Duration::from_secs(1));
    for group in FOUR_GROUPS {
        assert_eq!(state(&scene, mgid(group)), Some("joined"), "{group}");
    }
    scene.finish();
}

#[test]
fn b13_the_first_retry_is_short_and_none_is_sooner_than_the_one_before() {
    let mut scene = Scene::joined();
    scene.answers(|action, _| match action {
        Action::JoinGroup { .. } => Answer::Sa(SaError::Busy),
        _ => Answer::Usual,
    });
    scene.listen_to(&["224.0.0.1"]);
    scene.pass(Duration::from_secs(120));
    let tries = tries(&scene, mgid("224.0.0.1"));
    let waits: Vec<Duration> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits[0] <= Duration::from_millis(200), "{waits:?}");
    assert!(waits.is_sorted(), "{waits:?}");
    assert!(waits.iter().all(|&wait| wait <= Duration::from_secs(16)), "{waits:?}");
    assert!(waits.len() > 10, "{waits:?}");
    scene.finish();
}

#[test]
fn b13_another_reregister_during_back_off_asks_at_once() {
    let mut scene = with_four_groups();
    scene.answers(|action, _| match action {
        Action::JoinGroup { .. } => Answer::Sa(SaError::Busy),
        _ => Answer::Usual,
    });
    scene.port_event(PortEvent::ClientReregister, port());
    scene.pass(Duration::from_secs(20));
    scene.answers_as_usual();
    scene.port_event(PortEvent::ClientReregister, port());
    for group in FOUR_GROUPS {
        assert_eq!(tries(&scene, mgid(group)).last(), Some(&scene.now()), "{group}");
        assert_eq!(state(&scene, mgid(group)), Some("joined"), "{group}");
    }
    scene.finish();
}

#[test]
fn b13_another_mlid_is_attached_in_place_of_the_old_one() {
    let mut scene = Scene::joined();
    scene.listen_to(&["224.0.0.1"]);
    let group = mgid("224.0.0.1");
    scene.answers(move |action, _| match action {
        Action::JoinGroup { request, .. } if request.mgid == group => {
            Answer::Group(group_record(group, 0xC0AA))
        }
        _ => Answer::Usual,
    });
    scene.port_event(PortEvent::SmChanged, port());
    scene.pass(Duration::from_secs(1));
    let row = scene.interface().groups().find(|row| row.mgid == group).unwrap();
    assert_eq!(row.mlid.unwrap().value(), 0xC0AA);
    // The bench fails if an attachment is made twice or the old one is left.
    scene.send(&multicast("224.0.0.1"), EtherType::IPV4, ipv4(40, false));
    let handles = scene.logged(|action| match action {
        Action::CreateAddressHandle { handle, address, .. } => Some((*handle, address.lid)),
        _ => None,
    });
    let (send, _) = scene.adapter().wire.last().unwrap();
    let used = handles.iter().rev().find(|(_, (handle, _))| *handle == send.handle);
    assert_eq!(used.map(|(_, (_, lid))| *lid), Some(0xC0AA));
    scene.finish();
}

#[test]
fn b14_a_group_that_is_refused_delays_no_other() {
    let refused = mgid("224.0.0.2");
    let mut scene = Scene::joined();
    scene.answers(move |action, _| match action {
        Action::JoinGroup { request, .. } if request.mgid == refused => {
            Answer::Sa(SaError::Refused(SaRefusal::RequestDenied))
        }
        _ => Answer::Usual,
    });
    let groups = ["224.0.0.1", "224.0.0.2", "224.0.0.3", "224.0.0.4", "224.0.0.5"];
    scene.listen_to(&groups);
    for group in groups {
        let expected = if mgid(group) == refused { "backing-off" } else { "joined" };
        assert_eq!(state(&scene, mgid(group)), Some(expected), "{group}");
    }
    let joins = scene.joins().len();
    scene.pass(Duration::from_secs(10));
    let retries = scene.joins().split_off(joins);
    assert!(retries.len() > 3 && retries.iter().all(|&mgid| mgid == refused));
    scene.finish();
}

#[test]
fn b14_nothing_is_joined_and_nothing_lost_before_the_broadcast_group() {
    let mut scene = Scene::attach();
    scene.answers(|action, _| match action {
        Action::JoinGroup { .. } => Answer::Hold,
        _ => Answer::Usual,
    });
    scene.listen_to(&FOUR_GROUPS);
    scene.admin_up();
    scene.send(&peer(1), EtherType::IPV4, ipv4(100, false));
    scene.send(&multicast("224.0.0.22"), EtherType::IPV4, ipv4(40, false));
    scene.pass(Duration::from_millis(500));
    assert_eq!(scene.joins(), [mgid("255.255.255.255")]);
    assert_eq!(scene.interface().packets_queued(), 2);

    scene.answers_as_usual();
    let join = scene.held.pop().unwrap();
    scene.answer(join, Answer::Usual);
    assert!(scene.interface().is_link_up());
    assert_eq!(scene.joins().len(), 5);
    assert_eq!(scene.adapter().wire.len(), 2);
    scene.finish();
}

#[test]
fn b14_a_send_only_group_is_tried_twice_and_its_next_packet_tries_again() {
    let group = mgid("239.1.2.3");
    let mut scene = Scene::joined();
    scene.answers(|action, _| match action {
        Action::JoinGroup { .. } => Answer::Sa(SaError::Refused(SaRefusal::RequestDenied)),
        _ => Answer::Usual,
    });
    let send = |scene: &mut Scene| {
        scene.send(&multicast("239.1.2.3"), EtherType::IPV4, ipv4(40, false));
    };
    (0..3).for_each(|_| send(&mut scene));
    scene.pass(Duration::from_secs(3));
    assert_eq!(tries(&scene, group).len(), 2);
    assert_eq!(scene.dropped(DropReason::GroupUnjoined), 3);
    assert!(state(&scene, group).is_some(), "the entry stays");

    scene.answers_as_usual();
    send(&mut scene);
    assert_eq!(tries(&scene, group).len(), 3);
    assert_eq!(scene.adapter().wire.len(), 1);
    scene.finish();
}

#[test]
fn b16_a_group_of_another_rate_is_taken_as_it_is() {
    let group = mgid("224.0.0.1");
    let mut scene = Scene::joined();
    scene.answers(move |action, _| match action {
        Action::JoinGroup { request, .. } if request.mgid == group => {
            let mut record = group_record(group, 0xC111);
            record.parameters.rate = RateCode::new(2).unwrap();
            Answer::Group(record)
        }
        _ => Answer::Usual,
    });
    scene.listen_to(&["224.0.0.1"]);
    assert_eq!(state(&scene, group), Some("joined"));
    let rates = scene.logged(|action| match action {
        Action::CreateAddressHandle { address, .. } if address.lid == 0xC111 => {
            Some(address.rate.code())
        }
        _ => None,
    });
    assert_eq!(rates.into_iter().map(|(_, rate)| rate).collect::<Vec<_>>(), [2]);
    // Only what is mandatory was asked for.
    assert!(requests(&scene, group).iter().all(|request| request.create.is_none()));
    scene.finish();
}

#[test]
fn b16_to_a_group_of_a_smaller_mtu_nothing_larger_is_posted() {
    let group = mgid("224.0.0.1");
    let mut scene = Scene::joined();
    scene.answers(move |action, _| match action {
        Action::JoinGroup { request, .. } if request.mgid == group => {
            let mut record = group_record(group, 0xC111);
            record.parameters.mtu = IbMtu::Mtu1024;
            Answer::Group(record)
        }
        _ => Answer::Usual,
    });
    scene.listen_to(&["224.0.0.1"]);
    assert_eq!(state(&scene, group), Some("joined"));
    let to = multicast("224.0.0.1");
    scene.send(&to, EtherType::IPV4, ipv4(1020, true));
    scene.send(&to, EtherType::IPV4, ipv4(1021, true));
    assert_eq!(scene.dropped(DropReason::TooBigSilent), 1);
    // Without DF it goes in pieces, as everywhere.
    scene.send(&to, EtherType::IPV4, ipv4(1021, false));
    let lengths: Vec<usize> = scene.adapter().wire.iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(lengths, [1024, 1024, 25]);
    scene.finish();
}

#[test]
fn b16_a_group_that_is_not_there_is_created_like_the_broadcast_group() {
    let group = mgid("224.0.0.1");
    let mut scene = Scene::joined();
    let like = group_parameters();
    scene.answers(move |action, _| match action {
        Action::JoinGroup { request, .. } if request.create.is_none() => {
            Answer::Sa(SaError::Refused(SaRefusal::InsufficientComponents))
        }
        _ => Answer::Usual,
    });
    scene.listen_to(&["224.0.0.1"]);
    let requests = requests(&scene, group);
    let creates: Vec<_> = requests.iter().map(|request| request.create).collect();
    assert_eq!(creates, [None, Some(like)]);
    assert_eq!(state(&scene, group), Some("joined"));
    scene.finish();
}

#[test]
fn b16_a_hundred_refusals_are_one_line_in_the_log_and_one_on_recovery() {
    let group = mgid("224.0.0.1");
    let mut scene = Scene::joined();
    let refusal = SaError::Refused(SaRefusal::RequestDenied);
    scene.answers(move |action, _| match action {
        Action::JoinGroup { .. } => Answer::Sa(refusal),
        _ => Answer::Usual,
    });
    scene.listen_to(&["224.0.0.1"]);
    while tries(&scene, group).len() < 100 {
        scene.pass(Duration::from_secs(16));
    }
    scene.answers_as_usual();
    scene.pass(Duration::from_secs(32));
    let notices: Vec<_> =
        scene.events().iter().filter(|event| matches!(event, Event::Notice(_))).collect();
    let failing = Event::Notice(Notice::JoinFailing(group, refusal));
    let recovered = Event::Notice(Notice::JoinRecovered(group));
    assert_eq!(notices, [&failing, &recovered]);
    scene.finish();
}

#[test]
fn b17_only_groups_of_this_interface_are_asked_for() {
    let mut scene = Scene::joined();
    let before = scene.joins().len();
    let valid = [group_bytes(mgid("224.0.0.1")), group_bytes(mgid("ff02::1"))];
    let foreign = group_bytes(mgid_in(0x8001, "224.0.0.1"));
    let mut unicast = valid[0].clone();
    unicast[4] = 0xFE;
    let ethernet = [0x01, 0x00, 0x5E, 0x00, 0x00, 0x01];
    let list: [&[u8]; 5] = [&valid[0], &valid[1], &ethernet, &foreign, &unicast];
    scene.listen(&list);
    let mut joins = scene.joins().split_off(before);
    joins.sort_unstable();
    assert_eq!(joins, [mgid("224.0.0.1"), mgid("ff02::1")]);
    assert_eq!(scene.counted(Counter::ForeignGroups), 3);
    let is_notice = |event: &&Event| matches!(event, Event::Notice(_));
    assert_eq!(scene.events().iter().find(is_notice), None);
    scene.finish();
}

#[test]
fn b17_a_packet_to_a_foreign_group_is_dropped_and_counted() {
    let mut scene = Scene::joined();
    let before = scene.joins().len();
    let foreign = LinkAddress::multicast(mgid_in(0x8001, "224.0.0.1"));
    scene.send(&foreign, EtherType::IPV4, ipv4(40, false));
    assert_eq!(scene.dropped(DropReason::InvalidDestination), 1);
    assert_eq!(scene.joins().len(), before);
    scene.finish();
}

#[test]
fn b17_the_broadcast_group_in_the_list_or_not_changes_nothing() {
    let mut scene = Scene::joined();
    let before = scene.log.len();
    scene.listen_to(&["255.255.255.255"]);
    scene.listen_to(&[]);
    scene.pass(Duration::from_secs(5));
    assert_eq!(scene.log.len(), before);
    assert!(scene.interface().is_link_up());
    assert_eq!(scene.interface().groups().next().map(|row| row.role), Some("broadcast"));
    scene.finish();
}
