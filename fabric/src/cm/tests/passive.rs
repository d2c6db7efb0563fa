//! The side that is asked.

use super::*;

#[test]
fn a_service_that_nobody_listens_for_is_rejected() {
    let mut pair = Pair::new();
    assert!(pair.b.unlisten(service()));
    assert!(!pair.b.unlisten(service()));
    let now = pair.now;
    pair.a.connect(now, "out", &connect_request(0x101)).unwrap();
    pair.a_to_b();
    let answer = pair.lose_b();
    assert_eq!(rejected_with(&answer), Some(RejectReason::InvalidServiceId));
    pair.give_a(&answer);
    let events = events(&mut pair.a);
    assert!(matches!(events[..], [Event::Rejected { tag: "out", .. }]));
    assert_eq!(pair.b.counters().requests_unserved, 1);
    pair.assert_empty();
}

#[test]
fn a_mask_leaves_bits_of_the_service_open() {
    let mut pair = Pair::new();
    pair.b.unlisten(service());
    let mask = !0xFF_FFFF;
    pair.b.listen(ServiceId::of_interface(qpn(0)), mask).unwrap();
    assert_eq!(pair.b.listen(service(), u64::MAX), Err(ListenError::Taken));
    let now = pair.now;
    pair.a.connect(now, "out", &connect_request(0x101)).unwrap();
    pair.a_to_b();
    pair.take_request();
}

#[test]
fn a_request_that_cannot_be_granted_is_rejected_with_its_reason() {
    let pair = &mut Pair::requesting();
    let sent = pair.lose_a();
    let cases: [(usize, &[u8], RejectReason); 4] = [
        (43, &[0x82], RejectReason::InvalidTransport),
        (50, &[0x00], RejectReason::InvalidMtu),
        (48, &[0x80, 0x00], RejectReason::UnsupportedRequest),
        (52, &[0xFF, 0xFF], RejectReason::InvalidLid),
    ];
    for (place, value, reason) in cases {
        pair.give_b(&altered(&sent[0], place, value));
        assert_eq!(rejected_with(&pair.lose_b()), Some(reason));
    }
    assert_eq!(pair.b.counters().requests_invalid, 4);
    assert_eq!(pair.b.connections_len(), 0);
}

#[test]
fn a_request_with_an_alternate_path_gets_none() {
    let mut pair = Pair::requesting();
    let sent = pair.lose_a();
    pair.give_b(&altered(&sent[0], 96, &[0, 9]));
    let request = pair.take_request();
    let now = pair.now;
    pair.b.accept(now, request, "in", &acceptance(0x201)).unwrap();
    let sent = pair.lose_b();
    let Message::Reply(wire) = parse(&sent[0]).unwrap().message else {
        panic!("a REP is sent");
    };
    assert!(wire.reply().is_alternate_refused);
}

#[test]
fn a_request_that_comes_again_is_reported_once() {
    let mut pair = Pair::requesting();
    let sent = pair.lose_a();
    pair.give_b(&sent);
    pair.give_b(&sent);
    let request = pair.take_request();
    assert_eq!(kinds(&pair.lose_b()), [CmAttribute::Mra]);
    let now = pair.now;
    pair.b.accept(now, request, "in", &acceptance(0x201)).unwrap();
    let reply = pair.lose_b();
    pair.give_b(&sent);
    assert_eq!(pair.lose_b(), reply, "the REP was lost");
    assert_eq!(pair.b.counters().requests_duplicate, 2);
    assert_eq!(pair.b.counters().requests, 1);
}

#[test]
fn a_late_repetition_does_not_disturb_an_established_connection() {
    let mut pair = Pair::requesting();
    let sent = pair.lose_a();
    pair.give_b(&sent);
    let request = pair.take_request();
    let now = pair.now;
    pair.b.accept(now, request, "in", &acceptance(0x201)).unwrap();
    pair.b_to_a();
    pair.a.establish("out").unwrap();
    pair.a_to_b();
    events(&mut pair.b);
    pair.give_b(&sent);
    assert_eq!((pair.lose_b(), events(&mut pair.b)), (vec![], vec![]));

    pair.b.disconnect(now, "in").unwrap();
    pair.lose_b();
    pair.give_b(&sent);
    let answer = pair.lose_b();
    assert_eq!(rejected_with(&answer), Some(RejectReason::StaleConnection));
    assert_eq!(pair.b.counters().requests_duplicate, 2);
}

#[test]
fn a_lost_reply_is_sent_again_and_given_up_in_the_end() {
    let mut pair = Pair::accepting();
    let first = pair.lose_b();
    for _ in 0..RETRIES {
        pair.pass(RESPONSE);
        assert_eq!(pair.lose_b(), first);
    }
    pair.pass(RESPONSE);
    let last = pair.lose_b();
    assert_eq!(rejected_with(&last), Some(RejectReason::Timeout));
    assert_eq!(events(&mut pair.b), [Event::TimedOut { tag: "in" }]);
    pair.pass(TIME_WAIT);
    assert_eq!(events(&mut pair.b), [Event::TimeWaitExited { tag: "in" }]);
    assert_eq!(pair.b.connections_len(), 0);
}

#[test]
fn a_side_that_confirmed_learns_that_it_was_too_late() {
    let mut pair = Pair::replied();
    pair.a.establish("out").unwrap();
    pair.lose_a();
    for _ in 0..=RETRIES {
        pair.lose_b();
        pair.pass(RESPONSE);
    }
    assert_eq!(pair.b_to_a(), [CmAttribute::Reject]);
    let cause = DisconnectCause::Rejected(RejectReason::Timeout.code());
    let expected = [Event::Disconnected { tag: "out", cause }];
    assert_eq!(events(&mut pair.a), expected);
}

#[test]
fn an_owner_that_takes_its_time_is_waited_for() {
    let mut pair = Pair::replied();
    pair.pass(RESPONSE);
    assert_eq!(pair.b_to_a(), [CmAttribute::Reply]);
    assert_eq!(pair.a_to_b(), [CmAttribute::Mra]);
    assert_eq!(pair.b.counters().waits_extended, 1);
    let due = pair.now + RESPONSE + SERVICE_TIMEOUT;
    assert_eq!(pair.b.poll_timeout(), Some(due));
}

#[test]
fn an_rtu_for_nothing_is_rejected() {
    let mut pair = Pair::replied();
    pair.a.establish("out").unwrap();
    let sent = pair.lose_a();
    let mut other = Manager::<&str>::new(&config(3)).unwrap();
    other.handle_mad(pair.now, address(1), &sent[0]);
    let answer = drained(&mut other, 1);
    assert_eq!(rejected_with(&answer), Some(RejectReason::InvalidCommId));
    pair.give_a(&answer);
    let cause = DisconnectCause::Rejected(RejectReason::InvalidCommId.code());
    let expected = [Event::Disconnected { tag: "out", cause }];
    assert_eq!(events(&mut pair.a), expected);
}

#[test]
fn a_new_request_of_a_connected_queue_pair_ends_the_old_connection() {
    let mut pair = Pair::established();
    // The peer restarts and makes the same queue pair again.
    let again = ManagerConfig { seed: 77, ..config(1) };
    pair.a = Manager::new(&again).unwrap();
    let now = pair.now;
    pair.a.connect(now, "new", &connect_request(0x101)).unwrap();
    pair.a_to_b();
    let cause = DisconnectCause::Stale;
    let expected = [Event::Disconnected { tag: "in", cause }];
    assert_eq!(events(&mut pair.b), expected);
    assert_eq!(pair.b_to_a(), [CmAttribute::Reject, CmAttribute::DisconnectRequest]);
    let rejected = events(&mut pair.a);
    let [Event::Rejected { tag: "new", rejection }] = rejected[..] else {
        panic!("{rejected:?}");
    };
    assert_eq!(rejection.reason(), Some(RejectReason::StaleConnection));
    assert_eq!(pair.a_to_b(), [CmAttribute::DisconnectReply], "unknown");
    assert_eq!(events(&mut pair.b), [], "the end was reported before");
    assert_eq!(pair.b.counters().requests_stale, 1);
    // The second attempt works.
    let second = connect_request(0x102);
    pair.a.connect(now, "second", &second).unwrap();
    pair.a_to_b();
    pair.take_request();
}

#[test]
fn a_peer_that_uses_a_name_twice_has_forgotten_the_first_connection() {
    let mut pair = Pair::requesting();
    let sent = pair.lose_a();
    pair.give_b(&sent);
    let request = pair.take_request();
    let now = pair.now;
    pair.b.accept(now, request, "in", &acceptance(0x201)).unwrap();
    pair.lose_b();
    pair.give_b(&altered(&sent[0], 32, &[0, 1, 9]));
    let cause = DisconnectCause::Stale;
    let expected = [Event::Disconnected { tag: "in", cause }];
    assert_eq!(events(&mut pair.b), expected);
}

#[test]
fn another_transaction_with_the_same_names_is_another_connection() {
    let mut pair = Pair::requesting();
    let sent = pair.lose_a();
    pair.give_b(&sent);
    let request = pair.take_request();
    let mut again = sent[0];
    again[8] ^= 1;
    pair.give_b(&vec![again]);
    let answer = pair.lose_b();
    assert_eq!(rejected_with(&answer), Some(RejectReason::StaleConnection));
    assert_eq!(events(&mut pair.b), [Event::Withdrawn { request }]);
}

#[test]
fn a_request_of_a_queue_pair_that_asked_before_withdraws_the_first() {
    let (mut pair, request) = Pair::requested();
    let again = ManagerConfig { seed: 77, ..config(1) };
    pair.a = Manager::new(&again).unwrap();
    let now = pair.now;
    pair.a.connect(now, "new", &connect_request(0x101)).unwrap();
    pair.a_to_b();
    assert_eq!(events(&mut pair.b), [Event::Withdrawn { request }]);
    let answer = pair.lose_b();
    assert_eq!(rejected_with(&answer), Some(RejectReason::StaleConnection));
    assert_eq!(pair.b.connections_len(), 0);
}

#[test]
fn a_request_is_not_reported_when_it_is_over_already() {
    let mut pair = Pair::requesting();
    pair.a.cancel(pair.now, "out");
    pair.a_to_b();
    assert_eq!(events(&mut pair.b), []);
    assert_eq!(pair.b.counters().requests_withdrawn, 1);
    pair.assert_empty();
}

#[test]
fn a_connection_that_the_peer_cancels_is_rejected() {
    let mut pair = Pair::accepting();
    pair.lose_b();
    pair.a.cancel(pair.now, "out");
    pair.a_to_b();
    let events = events(&mut pair.b);
    let [Event::Rejected { tag: "in", rejection }] = events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(rejection.reason(), Some(RejectReason::Timeout));
    pair.assert_empty();
}
