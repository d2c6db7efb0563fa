//! The side that asks.

use super::*;

#[test]
fn a_lost_request_is_sent_again() {
    let mut pair = Pair::requesting();
    let first = pair.lose_a();
    pair.pass(RESPONSE - Duration::from_nanos(1));
    assert_eq!(pair.lose_a(), Mads::new());
    pair.pass(Duration::from_nanos(1));
    assert_eq!(pair.lose_a(), first, "byte for byte the same");
    assert_eq!(pair.a.counters().mads_repeated, 1);
}

#[test]
fn a_request_without_an_answer_is_given_up() {
    let mut pair = Pair::requesting();
    pair.lose_a();
    for _ in 0..RETRIES {
        pair.pass(RESPONSE);
        assert_eq!(kinds(&pair.lose_a()), [CmAttribute::Request]);
        assert_eq!(events(&mut pair.a), []);
    }
    pair.pass(RESPONSE);
    let last = pair.lose_a();
    assert_eq!(rejected_with(&last), Some(RejectReason::Timeout));
    assert_eq!(events(&mut pair.a), [Event::TimedOut { tag: "out" }]);
    assert_eq!(pair.a.counters().timed_out, 1);
    pair.assert_empty();
}

#[test]
fn a_request_that_was_given_up_is_withdrawn_at_the_peer() {
    let (mut pair, request) = Pair::requested();
    for _ in 0..=RETRIES {
        pair.lose_a();
        pair.pass(RESPONSE);
    }
    let last = pair.lose_a();
    pair.give_b(&last);
    assert_eq!(events(&mut pair.b), [Event::Withdrawn { request }]);
    let now = pair.now;
    assert_eq!(pair.b.accept(now, request, "in", &acceptance(0x201)), Err(CommandError::Unknown));
    assert_eq!(pair.b.refuse(request, RejectReason::NoResources), Err(CommandError::Unknown));
    assert_eq!(events(&mut pair.a), [Event::TimedOut { tag: "out" }]);
    pair.assert_empty();
}

#[test]
fn every_reason_of_a_rejection_reaches_the_owner() {
    let codes = RejectReason::ALL.iter().map(|reason| reason.code());
    for code in codes.chain([0, 34, 0xFFFF]) {
        let (mut pair, request) = Pair::requested();
        pair.b.refuse(request, RejectReason::NoResources).unwrap();
        let sent = pair.lose_b();
        let mads = altered(&sent[0], 10, &code.to_be_bytes());
        pair.give_a(&mads);
        let rejection = Rejection { code, private_data: [0; 148] };
        let expected = [Event::Rejected { tag: "out", rejection }];
        assert_eq!(events(&mut pair.a), expected);
        assert_eq!(rejection.reason(), RejectReason::from_code(code));
        // IBA 12.9.8.3.1: only a stale queue pair has to wait.
        if rejection.reason() == Some(RejectReason::StaleConnection) {
            pair.pass(TIME_WAIT);
            assert_eq!(events(&mut pair.a), [Event::TimeWaitExited { tag: "out" }]);
        }
        pair.assert_empty();
    }
}

#[test]
fn a_peer_may_ask_for_more_time_once() {
    let (mut pair, request) = Pair::requested();
    pair.pass(RESPONSE);
    assert_eq!(pair.a_to_b(), [CmAttribute::Request]);
    assert_eq!(pair.b_to_a(), [CmAttribute::Mra]);
    assert_eq!(pair.a.counters().waits_extended, 1);
    pair.pass(RESPONSE + SERVICE_TIMEOUT - Duration::from_nanos(1));
    assert_eq!(pair.lose_a(), Mads::new(), "no repetition meanwhile");
    pair.pass(Duration::from_nanos(1));
    assert_eq!(pair.a_to_b(), [CmAttribute::Request]);
    assert_eq!(pair.b_to_a(), [CmAttribute::Mra]);
    assert_eq!(pair.a.counters().waits_extended, 1, "not twice");
    let now = pair.now;
    pair.b.accept(now, request, "in", &acceptance(0x201)).unwrap();
    assert_eq!(pair.b_to_a(), [CmAttribute::Reply]);
    assert_eq!(pair.a.counters().replies, 1);
}

#[test]
fn a_peer_cannot_impose_a_wait_of_hours() {
    let (mut pair, _) = Pair::requested();
    pair.pass(RESPONSE);
    pair.a_to_b();
    let mads = pair.lose_b();
    let mads = altered(&mads[0], 9, &[0xF8]);
    pair.give_a(&mads);
    assert_eq!(pair.a.poll_timeout(), Some(pair.now + RESPONSE + config(1).wait_max));
}

#[test]
fn a_reply_that_comes_again_makes_the_rtu_come_again() {
    let mut pair = Pair::replied();
    pair.pass(RESPONSE);
    assert_eq!(pair.b_to_a(), [CmAttribute::Reply]);
    assert_eq!(pair.lose_a().len(), 1, "MRA: the owner has not decided");
    pair.a.establish("out").unwrap();
    assert_eq!(kinds(&pair.lose_a()), [CmAttribute::ReadyToUse]);
    pair.pass(RESPONSE);
    assert_eq!(pair.b_to_a(), [CmAttribute::Reply]);
    assert_eq!(pair.a_to_b(), [CmAttribute::ReadyToUse]);
    assert_eq!(events(&mut pair.b), [Event::Established { tag: "in" }]);
    assert_eq!(events(&mut pair.a), []);
    assert_eq!(pair.a.counters().replies_duplicate, 2);
}

#[test]
fn a_reply_can_be_rejected() {
    let mut pair = Pair::replied();
    let reason = RejectReason::ConsumerReject;
    pair.a.reject("out", reason).unwrap();
    assert_eq!(pair.a_to_b(), [CmAttribute::Reject]);
    let events = events(&mut pair.b);
    let [Event::Rejected { tag: "in", rejection }] = events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(rejection.reason(), Some(reason));
    pair.assert_empty();
}

#[test]
fn a_reply_to_nothing_is_rejected() {
    let mut pair = Pair::accepting();
    pair.a.cancel(pair.now, "out");
    assert_eq!(rejected_with(&pair.lose_a()), Some(RejectReason::Timeout));
    pair.b_to_a();
    let answer = pair.lose_a();
    assert_eq!(rejected_with(&answer), Some(RejectReason::InvalidCommId));
    pair.give_b(&answer);
    assert_eq!(events(&mut pair.b).len(), 1, "rejected");
    assert_eq!(events(&mut pair.a), [], "nobody is interested");
    pair.assert_empty();
}

#[test]
fn a_reply_from_a_queue_pair_that_is_connected_is_stale() {
    let mut pair = Pair::established();
    let now = pair.now;
    let second = connect_request(0x102);
    pair.a.connect(now, "second", &second).unwrap();
    pair.a_to_b();
    let request = pair.take_request();
    // The peer has forgotten that its queue pair is in use.
    let acceptance = acceptance(0x201);
    pair.b.accept(now, request, "other", &acceptance).unwrap();
    pair.b_to_a();
    let events = events(&mut pair.a);
    let rejection = Rejection::local(RejectReason::StaleConnection);
    let cause = DisconnectCause::Stale;
    let expected =
        [Event::Rejected { tag: "second", rejection }, Event::Disconnected { tag: "out", cause }];
    assert_eq!(events, expected);
    let sent = pair.lose_a();
    assert_eq!(kinds(&sent), [CmAttribute::Reject, CmAttribute::DisconnectRequest]);
    assert_eq!(pair.a.counters().replies_stale, 1);
}

#[test]
fn a_request_can_be_cancelled_at_any_time() {
    let mut pair = Pair::requesting();
    pair.a.cancel(pair.now, "out");
    let mads = pair.lose_a();
    assert_eq!(kinds(&mads), [CmAttribute::Request, CmAttribute::Reject]);
    pair.assert_empty();
    pair.a.cancel(pair.now, "out");
    assert_eq!(pair.a.counters().cancels, 1);

    let mut pair = Pair::replied();
    pair.a.cancel(pair.now, "out");
    assert_eq!(pair.a.establish("out"), Err(CommandError::Unknown));
    assert_eq!(pair.a_to_b(), [CmAttribute::Reject]);
    assert_eq!(events(&mut pair.b).len(), 1, "rejected");
    pair.assert_empty();
}

#[test]
fn commands_that_a_state_does_not_allow_change_nothing() {
    let mut pair = Pair::requesting();
    pair.lose_a();
    let now = pair.now;
    assert_eq!(pair.a.establish("out"), Err(CommandError::WrongState));
    assert_eq!(pair.a.disconnect(now, "out"), Err(CommandError::WrongState));
    let reason = RejectReason::ConsumerReject;
    assert_eq!(pair.a.reject("out", reason), Err(CommandError::WrongState));
    assert_eq!(pair.a.reject("none", reason), Err(CommandError::Unknown));
    assert_eq!(pair.a.establish("none"), Err(CommandError::Unknown));
    assert_eq!(pair.a.disconnect(now, "none"), Err(CommandError::Unknown));
    assert_eq!(pair.lose_a(), Mads::new());
    assert_eq!(pair.a.poll_timeout(), Some(now + RESPONSE));
}
