//! The end of a connection.

use super::*;

#[test]
fn a_lost_dreq_is_sent_again_and_given_up_in_the_end() {
    let mut pair = Pair::established();
    pair.a.disconnect(pair.now, "out").unwrap();
    let first = pair.lose_a();
    for _ in 0..RETRIES {
        pair.pass(RESPONSE);
        assert_eq!(pair.lose_a(), first);
        assert_eq!(events(&mut pair.a), []);
    }
    pair.pass(RESPONSE);
    assert_eq!(pair.lose_a(), Mads::new());
    let cause = DisconnectCause::Unanswered;
    let expected = [Event::Disconnected { tag: "out", cause }];
    assert_eq!(events(&mut pair.a), expected);
    pair.pass(TIME_WAIT);
    assert_eq!(events(&mut pair.a), [Event::TimeWaitExited { tag: "out" }]);
    assert_eq!(pair.a.connections_len(), 0);
    assert_eq!(pair.a.counters().disconnects_unanswered, 1);
}

#[test]
fn a_lost_drep_is_sent_again_in_time_wait_and_after_it() {
    for wait in [Duration::ZERO, TIME_WAIT] {
        let mut pair = Pair::established();
        pair.a.disconnect(pair.now, "out").unwrap();
        let sent = pair.lose_a();
        pair.give_b(&sent);
        let first = pair.lose_b();
        pair.now = pair.now + wait;
        let now = pair.now;
        pair.b.handle_timeout(now);
        pair.give_b(&sent);
        assert_eq!(pair.lose_b(), first);
        assert_eq!(pair.b.connections_len(), usize::from(wait.is_zero()));
        pair.give_a(&first);
        let cause = DisconnectCause::Confirmed;
        let expected = [Event::Disconnected { tag: "out", cause }];
        assert_eq!(events(&mut pair.a), expected);
    }
}

#[test]
fn crossed_dreqs_end_a_connection_once_on_each_side() {
    let mut pair = Pair::established();
    pair.a.disconnect(pair.now, "out").unwrap();
    pair.b.disconnect(pair.now, "in").unwrap();
    let (from_a, from_b) = (pair.lose_a(), pair.lose_b());
    pair.give_a(&from_b);
    pair.give_b(&from_a);
    let cause = DisconnectCause::ByPeer;
    let expected = [Event::Disconnected { tag: "out", cause }];
    assert_eq!(events(&mut pair.a), expected);
    let expected = [Event::Disconnected { tag: "in", cause }];
    assert_eq!(events(&mut pair.b), expected);
    assert_eq!(pair.a_to_b(), [CmAttribute::DisconnectReply]);
    assert_eq!(pair.b_to_a(), [CmAttribute::DisconnectReply]);
    assert_eq!((events(&mut pair.a), events(&mut pair.b)), (vec![], vec![]));
    pair.pass(TIME_WAIT);
    assert_eq!(events(&mut pair.a), [Event::TimeWaitExited { tag: "out" }]);
    assert_eq!(events(&mut pair.b), [Event::TimeWaitExited { tag: "in" }]);
    pair.assert_empty();
}

#[test]
fn a_dreq_with_another_queue_pair_is_not_for_this_connection() {
    let mut pair = Pair::established();
    pair.a.disconnect(pair.now, "out").unwrap();
    let sent = pair.lose_a();
    pair.give_b(&altered(&sent[0], 8, &[0, 9, 9]));
    assert_eq!((pair.lose_b(), events(&mut pair.b)), (vec![], vec![]));
    assert_eq!(pair.b.counters().mads_unexpected, 1);
    pair.give_b(&altered(&sent[0], 0, &[9, 9, 9, 9]));
    assert_eq!(kinds(&pair.lose_b()), [CmAttribute::DisconnectReply]);
    assert_eq!(events(&mut pair.b), [], "a connection of another name");
    assert_eq!(pair.b.counters().disconnects_unknown, 1);
}

#[test]
fn an_accepted_connection_can_end_before_it_is_confirmed() {
    let mut pair = Pair::accepting();
    assert_eq!(pair.b_to_a(), [CmAttribute::Reply]);
    pair.b.disconnect(pair.now, "in").unwrap();
    events(&mut pair.a);
    assert_eq!(pair.b_to_a(), [CmAttribute::DisconnectRequest]);
    let cause = DisconnectCause::ByPeer;
    let expected = [Event::Disconnected { tag: "out", cause }];
    assert_eq!(events(&mut pair.a), expected);
    assert_eq!(pair.a.establish("out"), Err(CommandError::WrongState));
    assert_eq!(pair.a_to_b(), [CmAttribute::DisconnectReply]);
    let cause = DisconnectCause::Confirmed;
    let expected = [Event::Disconnected { tag: "in", cause }];
    assert_eq!(events(&mut pair.b), expected);
}

#[test]
fn a_dreq_before_the_reply_is_confirmed_and_changes_nothing() {
    let mut pair = Pair::accepting();
    pair.lose_b();
    pair.b.disconnect(pair.now, "in").unwrap();
    assert_eq!(pair.b_to_a(), [CmAttribute::DisconnectRequest]);
    assert_eq!(pair.a_to_b(), [CmAttribute::DisconnectReply]);
    assert_eq!(events(&mut pair.a), []);
    // The REQ that is sent again finds the time-wait.
    pair.pass(RESPONSE);
    assert_eq!(pair.a_to_b(), [CmAttribute::Request]);
    assert_eq!(pair.b_to_a(), [CmAttribute::Reject]);
    let events = events(&mut pair.a);
    assert!(matches!(events[..], [Event::Rejected { tag: "out", .. }]));
}

#[test]
fn a_cancelled_connection_ends_without_a_word_to_the_owner() {
    let mut pair = Pair::established();
    pair.b.cancel(pair.now, "in");
    assert_eq!(pair.b_to_a(), [CmAttribute::DisconnectRequest]);
    assert_eq!(events(&mut pair.a).len(), 1, "disconnected");
    assert_eq!(pair.a_to_b(), [CmAttribute::DisconnectReply]);
    pair.a.cancel(pair.now, "out");
    pair.pass(TIME_WAIT);
    assert_eq!((events(&mut pair.a), events(&mut pair.b)), (vec![], vec![]));
    pair.assert_empty();
}

#[test]
fn a_connection_can_be_cancelled_while_it_is_disconnected() {
    let mut pair = Pair::established();
    pair.a.disconnect(pair.now, "out").unwrap();
    pair.a.cancel(pair.now, "out");
    let now = pair.now;
    pair.a.connect(now, "out", &connect_request(0x102)).unwrap();
    assert_eq!(pair.a_to_b(), [CmAttribute::DisconnectRequest, CmAttribute::Request]);
    assert_eq!(pair.b_to_a(), [CmAttribute::DisconnectReply], "the new connection has the tag");
    assert_eq!(events(&mut pair.a), []);
    assert_eq!(pair.a.connections_len(), 2);
}

#[test]
fn cancelling_takes_back_what_was_not_polled() {
    let mut pair = Pair::accepting();
    pair.b_to_a();
    pair.a.cancel(pair.now, "out");
    assert_eq!(events(&mut pair.a), []);
    let (mut pair, request) = Pair::requested();
    pair.b.refuse(request, RejectReason::NoResources).unwrap();
    pair.b_to_a();
    pair.a.cancel(pair.now, "out");
    assert_eq!(events(&mut pair.a), [], "the tag was free already");
}

#[test]
fn an_answer_that_comes_late_or_twice_is_ignored() {
    let mut pair = Pair::established();
    pair.a.disconnect(pair.now, "out").unwrap();
    pair.a_to_b();
    let answer = pair.lose_b();
    pair.give_a(&answer);
    events(&mut pair.a);
    pair.give_a(&answer);
    pair.pass(TIME_WAIT);
    events(&mut pair.a);
    pair.give_a(&answer);
    assert_eq!((pair.lose_a(), events(&mut pair.a)), (vec![], vec![]));
    assert_eq!(pair.a.counters().mads_unexpected, 2);
}

#[test]
fn a_rejection_of_an_established_connection_ends_it() {
    let mut pair = Pair::replied();
    pair.a.establish("out").unwrap();
    pair.lose_a();
    let wire = |pair: &Pair| {
        let ids = CommIds {
            local: pair.b.table.find_tag("in").unwrap(),
            remote: pair.a.table.find_tag("out").unwrap(),
        };
        let reason = RejectReason::InvalidCommInstance;
        RejectWire::new(ids, MessageKind::Other, reason)
    };
    let mad = Message::Reject(&wire(&pair)).to_bytes(1);
    let stranger = altered(&mad, 0, &[1, 2, 3, 4]);
    pair.give_a(&stranger);
    assert_eq!(events(&mut pair.a), [], "of another connection");
    pair.give_a(&vec![mad, mad]);
    let code = RejectReason::InvalidCommInstance.code();
    let cause = DisconnectCause::Rejected(code);
    let expected = [Event::Disconnected { tag: "out", cause }];
    assert_eq!(events(&mut pair.a), expected);
    assert_eq!(pair.a.counters().mads_unexpected, 2);
    assert_eq!(pair.a.counters().rejections, 1);
}
