//! Shared receive queues.

use fabric::cq::WorkError;
use fabric::qp::{QpChange, QpConfig, QpState, QpType};
use fabric::srq::SrqId;
use fabric::{AsyncEvent, CreateError, DestroyError, Fabric, PostError};

use crate::ends::{
    Agreement, End, another, completions, connect, counters, ends, events, numbers, queue_pair,
    room, run, send, send_marker, sends, states,
};

const PLAIN: Agreement = Agreement::DEFAULT;

/// Two pairs of ends; the second ends of both are on one adapter and share a queue for four.
fn sharing() -> (Fabric, SrqId, [[End; 2]; 2]) {
    let (mut fabric, [a, b]) = ends();
    let srq = fabric.create_srq(b.hca, 4).unwrap();
    let pairs = [(); 2].map(|()| {
        [(a, None), (b, Some(srq))].map(|(end, srq)| {
            let cqs = [end.send_cq, end.receive_cq];
            let qp = queue_pair(&mut fabric, end.port, cqs, srq);
            another(&fabric, &end, qp)
        })
    });
    for pair in &pairs {
        connect(&mut fabric, pair, &PLAIN);
    }
    events(&mut fabric);
    (fabric, srq, pairs)
}

fn post(fabric: &mut Fabric, srq: SrqId, wr_ids: std::ops::Range<u64>) {
    for wr_id in wr_ids {
        fabric.post_srq_receive(srq, room(wr_id)).unwrap();
    }
}

#[test]
fn queue_pairs_take_receives_in_the_order_in_which_messages_arrive() {
    let (mut fabric, srq, pairs) = sharing();
    post(&mut fabric, srq, 0..4);
    send(&mut fabric, &pairs[1][0], 10..12);
    send(&mut fabric, &pairs[0][0], 20..21);
    run(&mut fabric);
    assert_eq!(fabric.srq_len(srq), Some(1));
    let arrived: Vec<_> = completions(&mut fabric, pairs[0][1].receive_cq)
        .into_iter()
        .map(|completion| {
            let fabric::cq::Outcome::Received(arrival) = completion.outcome else {
                panic!("a failure");
            };
            let number = arrival.packet.bytes()[7];
            fabric.pool_mut().free(arrival.packet);
            (completion.wr_id, completion.qpn, number)
        })
        .collect();
    let [first, second] = [0, 1].map(|pair: usize| pairs[pair][1].qpn);
    assert_eq!(arrived, [(0, second, 10), (1, first, 20), (2, second, 11)]);
}

#[test]
fn an_empty_queue_breaks_the_connection_that_needs_it() {
    let (mut fabric, srq, pairs) = sharing();
    post(&mut fabric, srq, 0..1);
    send(&mut fabric, &pairs[0][0], 0..2);
    run(&mut fabric);
    let expected = [(0, Ok(())), (1, Err(WorkError::RnrRetryExceeded))];
    assert_eq!(sends(&mut fabric, &pairs[0][0]), expected);
    assert_eq!(numbers(&mut fabric, &pairs[0][1]), [0]);
    assert_eq!(counters(&fabric, &pairs[0][1]).receives_missing, 1);
    // The other one finds what is posted later.
    post(&mut fabric, srq, 1..2);
    send(&mut fabric, &pairs[1][0], 7..8);
    run(&mut fabric);
    assert_eq!(numbers(&mut fabric, &pairs[1][1]), [7]);
    assert_eq!(states(&fabric, &pairs[1]), [QpState::ReadyToSend; 2]);
}

#[test]
fn an_error_ends_with_the_last_receive_and_leaves_the_queue_to_others() {
    let (mut fabric, srq, pairs) = sharing();
    let own = pairs[0][1];
    post(&mut fabric, srq, 0..3);
    send(&mut fabric, &pairs[0][0], 0..1);
    run(&mut fabric);
    fabric.modify_qp(own.qp, &QpChange::Error).unwrap();
    assert_eq!(events(&mut fabric), [AsyncEvent::LastWqeReached(own.qp)]);
    // What it had taken is complete, what is in the queue stays there.
    assert_eq!(numbers(&mut fabric, &own), [0]);
    assert_eq!(fabric.srq_len(srq), Some(2));
    send_marker(&mut fabric, &own, 42);
    let marker = [(42, Err(WorkError::Flushed))];
    assert_eq!(sends(&mut fabric, &own), marker);
    fabric.modify_qp(own.qp, &QpChange::Error).unwrap();
    assert!(events(&mut fabric).is_empty(), "once");
    send(&mut fabric, &pairs[1][0], 1..2);
    run(&mut fabric);
    assert_eq!(numbers(&mut fabric, &pairs[1][1]), [1]);
}

#[test]
fn the_last_receive_is_also_reached_when_the_connection_breaks_by_itself() {
    let (mut fabric, srq, pairs) = sharing();
    let [_, own] = pairs[0];
    send(&mut fabric, &own, 0..1);
    run(&mut fabric);
    let failure = WorkError::RnrRetryExceeded;
    assert_eq!(sends(&mut fabric, &own), [(0, Err(failure))]);
    assert_eq!(events(&mut fabric), [AsyncEvent::LastWqeReached(own.qp)]);
    // And again in the next life.
    fabric.modify_qp(own.qp, &QpChange::Reset).unwrap();
    fabric.modify_qp(own.qp, &crate::ends::INIT).unwrap();
    fabric.modify_qp(own.qp, &QpChange::Error).unwrap();
    assert_eq!(events(&mut fabric), [AsyncEvent::LastWqeReached(own.qp)]);
    assert_eq!(fabric.srq_len(srq), Some(0));
}

#[test]
fn a_limit_is_reported_once() {
    let (mut fabric, srq, pairs) = sharing();
    post(&mut fabric, srq, 0..4);
    assert!(fabric.set_srq_limit(srq, 3));
    for number in 0..4 {
        send(&mut fabric, &pairs[0][0], number..number + 1);
        run(&mut fabric);
        let expected = match number {
            1 => vec![AsyncEvent::SrqLimitReached(srq)],
            0 | 2.. => vec![],
        };
        assert_eq!(events(&mut fabric), expected, "message {number}");
    }
    assert_eq!(numbers(&mut fabric, &pairs[0][1]), [0, 1, 2, 3]);
}

#[test]
fn a_full_queue_and_receives_of_its_queue_pairs_are_refused() {
    let (mut fabric, srq, pairs) = sharing();
    post(&mut fabric, srq, 0..4);
    let result = fabric.post_srq_receive(srq, room(4));
    assert_eq!(result, Err(PostError::QueueFull));
    let result = fabric.post_receive(pairs[0][1].qp, room(4));
    assert_eq!(result, Err(PostError::HasSharedQueue));
}

#[test]
fn a_queue_in_use_is_not_destroyed() {
    let (mut fabric, srq, pairs) = sharing();
    post(&mut fabric, srq, 0..2);
    for pair in &pairs {
        assert_eq!(fabric.destroy_srq(srq), Err(DestroyError::Busy));
        fabric.destroy_qp(pair[1].qp).unwrap();
    }
    let hca = pairs[0][1].hca;
    assert_eq!(fabric.srq_count(hca), 1);
    fabric.destroy_srq(srq).unwrap();
    assert_eq!(fabric.srq_count(hca), 0);
    assert_eq!(fabric.destroy_srq(srq), Err(DestroyError::Unknown));
    let result = fabric.post_srq_receive(srq, room(0));
    assert_eq!(result, Err(PostError::UnknownQp));
    assert_eq!(fabric.srq_len(srq), None);
    assert!(!fabric.set_srq_limit(srq, 1));
}

#[test]
fn a_queue_of_another_adapter_or_without_places_is_refused() {
    let (mut fabric, [a, b]) = ends();
    assert_eq!(fabric.create_srq(b.hca, 0), Err(CreateError::Invalid));
    let srq = fabric.create_srq(b.hca, 1).unwrap();
    let config = QpConfig {
        qp_type: QpType::Rc { srq: Some(srq) },
        send_cq: a.send_cq,
        receive_cq: a.receive_cq,
        sends_max: 1,
        receives_max: 1,
    };
    let refused = fabric.create_qp(a.port, &config);
    assert_eq!(refused, Err(CreateError::Unknown));
}
