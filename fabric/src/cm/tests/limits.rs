//! Every table when it is full, and bytes that are no messages.

use proptest::prelude::*;

use super::*;

#[test]
fn a_full_table_refuses_the_owner_and_the_peer() {
    let mut pair = Pair::new();
    let now = pair.now;
    let tags = ["1", "2", "3", "4"];
    for (number, tag) in (0x101..).zip(tags) {
        pair.a.connect(now, tag, &connect_request(number)).unwrap();
    }
    let fifth = connect_request(0x105);
    assert_eq!(pair.a.connect(now, "5", &fifth), Err(CommandError::TableFull));
    assert_eq!(pair.a.counters().connects_table_full, 1);
    pair.a_to_b();
    assert_eq!(pair.b.connections_len(), 4);
    let mut other = Manager::<&str>::new(&config(3)).unwrap();
    other.connect(now, "5", &fifth).unwrap();
    let sent = drained(&mut other, 2);
    pair.give_b(&sent);
    assert_eq!(rejected_with(&pair.lose_b()), Some(RejectReason::NoResources));
    assert_eq!(pair.b.counters().requests_table_full, 1);
    // A place that becomes free can be used again.
    pair.a.cancel(now, "1");
    pair.a.connect(now, "5", &fifth).unwrap();
}

#[test]
fn a_name_is_not_given_again_soon() {
    // One place alone has 65536 names; its turn comes after all others.
    const ROUNDS: usize = 70_000;
    let mut pair = Pair::new();
    let mut names = Vec::new();
    for _ in 0..ROUNDS {
        let now = pair.now;
        pair.a.connect(now, "out", &connect_request(0x101)).unwrap();
        names.push(pair.a.table.find_tag("out").unwrap());
        pair.a.cancel(now, "out");
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), ROUNDS);
    assert!(!names.contains(&CommId(0)));
}

#[test]
fn no_more_services_than_can_be_are_listened_for() {
    let mut pair = Pair::new();
    assert_eq!(pair.b.listen(service(), u64::MAX), Err(ListenError::Taken));
    pair.b.listen(ServiceId(1), u64::MAX).unwrap();
    let third = ServiceId(2);
    assert_eq!(pair.b.listen(third, u64::MAX), Err(ListenError::TableFull));
    assert_eq!(pair.b.counters().listens_table_full, 1);
    pair.b.unlisten(ServiceId(1));
    pair.b.listen(third, u64::MAX).unwrap();
}

#[test]
fn messages_that_nobody_polls_are_lost_and_repeated_later() {
    let small = ManagerConfig { mads_max: 1, ..config(1) };
    let mut pair = Pair::new();
    pair.a = Manager::new(&small).unwrap();
    let now = pair.now;
    pair.a.connect(now, "1", &connect_request(0x101)).unwrap();
    pair.a.connect(now, "2", &connect_request(0x102)).unwrap();
    assert_eq!(pair.a.counters().mads_unsent, 1);
    assert_eq!(pair.lose_a().len(), 1);
    pair.a.cancel(now, "1");
    pair.lose_a();
    pair.pass(RESPONSE);
    assert_eq!(pair.a_to_b(), [CmAttribute::Request]);
    pair.take_request();
}

#[test]
fn messages_are_not_taken_in_while_events_wait() {
    let large = ManagerConfig { connections_max: 100, mads_max: 100, ..config(1) };
    let mut pair = Pair::new();
    pair.a = Manager::new(&large).unwrap();
    pair.b = Manager::new(&ManagerConfig { ca_guid: 2, ..large }).unwrap();
    pair.b.listen(service(), u64::MAX).unwrap();
    let now = pair.now;
    for number in 0..100 {
        let tag = &*format!("{number}").leak();
        let request = connect_request(0x100 + number);
        pair.a.connect(now, tag, &request).unwrap();
    }
    pair.a_to_b();
    let reported = events(&mut pair.b).len();
    assert_eq!(reported, EVENTS_MAX - EVENTS_PER_MAD + 1);
    assert_eq!(pair.b.counters().mads_deferred, 100 - reported as u64);
    // What was not taken in comes again.
    pair.pass(RESPONSE);
    pair.a_to_b();
    assert_eq!(events(&mut pair.b).len(), 100 - reported);
}

#[test]
fn times_that_come_while_events_wait_are_not_lost() {
    let large = ManagerConfig { connections_max: 100, mads_max: 1000, ..config(1) };
    let mut pair = Pair::new();
    pair.a = Manager::new(&large).unwrap();
    let now = pair.now;
    for number in 0..100 {
        let tag = &*format!("{number}").leak();
        let request = connect_request(0x100 + number);
        pair.a.connect(now, tag, &request).unwrap();
    }
    for _ in 0..=RETRIES {
        pair.pass(RESPONSE);
    }
    let mut given_up = events(&mut pair.a).len();
    assert_eq!(given_up, EVENTS_MAX);
    assert!(pair.a.poll_timeout().is_some_and(|due| due <= pair.now));
    pair.pass(Duration::ZERO);
    given_up += events(&mut pair.a).len();
    assert_eq!(given_up, 100);
    assert_eq!(pair.a.poll_timeout(), None);
}

proptest! {
    #[test]
    fn bytes_that_are_no_message_do_nothing(
        bytes in proptest::collection::vec(any::<u8>(), 0..=300),
    ) {
        let mut pair = Pair::established();
        pair.b.handle_mad(pair.now, address(1), &bytes);
        prop_assert_eq!(pair.b.counters().mads_malformed, 1);
        prop_assert_eq!(pair.lose_b(), Mads::new());
    }

    #[test]
    fn a_message_with_any_data_changes_no_table_beyond_its_limit(
        attribute in 0x10u8..=0x16,
        data in proptest::collection::vec(any::<u8>(), 232),
        ids in 0u8..4,
        state in 0usize..5,
    ) {
        let mut pair = [
            Pair::requesting,
            || Pair::requested().0,
            Pair::accepting,
            Pair::replied,
            Pair::established,
        ][state]();
        let mut bytes = Message::ReadyToUse(&ReadyToUseWire::new(CommIds {
            local: CommId(1),
            remote: CommId(2),
        }))
        .to_bytes(7);
        bytes[17] = attribute;
        bytes[24..].copy_from_slice(&data);
        let name = |manager: &Manager<&'static str>, tag| {
            manager.table.find_tag(tag).map_or(0, |id| id.0).to_be_bytes()
        };
        // Half of the messages hit the connection.
        if ids & 1 != 0 {
            bytes[28..32].copy_from_slice(&name(&pair.a, "out"));
        }
        if ids & 2 != 0 {
            bytes[24..28].copy_from_slice(&name(&pair.b, "in"));
        }
        let now = pair.now;
        for _ in 0..2 {
            pair.a.handle_mad(now, address(2), &bytes);
            pair.b.handle_mad(now, address(1), &bytes);
            prop_assert!(pair.a.connections_len() <= 2 && pair.b.connections_len() <= 2);
        }
        while let Some(due) = pair.a.poll_timeout() {
            pair.now = pair.now.max(due);
            pair.a.handle_timeout(pair.now);
            pair.lose_a();
            events(&mut pair.a);
        }
    }
}
