//! Races, exhaustively: every order in which inputs of several origins can come.
//!
//! A shell feeds an interface under its lock, so a race between threads is an order of inputs. Each
//! test gives the inputs of each origin in their own order, and [`every_order`] tries all ways to
//! merge them. Report B10 (packets stranded while the REP is processed) and hazard H1 (flush, REJ
//! and reaping at once) are such races in the C drivers.

mod common;

use std::time::Duration;

use common::{Bench, connected_peer, ipv4};
use ipoib_rs::action::{Action, ConnectError, ConnectionParameters};
use ipoib_rs::ib::Qpn;
use ipoib_rs::interface::{Mode, PortEvent};
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::CompletionStatus;
use ipoib_rs::wire::EtherType;

const REP: ConnectionParameters =
    ConnectionParameters { qpn: Qpn::new(0x101).unwrap(), receive_mtu: 65524 };

/// Calls `run` with every merge of `lens.len()` sequences of the given lengths: a list of which
/// sequence moves next. Returns how many there were.
fn every_order(lens: &[usize], run: &mut impl FnMut(&[usize])) -> usize {
    fn extend(
        rest: &mut Vec<usize>,
        order: &mut Vec<usize>,
        run: &mut impl FnMut(&[usize]),
    ) -> usize {
        if rest.iter().all(|&left| left == 0) {
            run(order);
            return 1;
        }
        let mut count = 0;
        for origin in 0..rest.len() {
            if rest[origin] > 0 {
                rest[origin] -= 1;
                order.push(origin);
                count += extend(rest, order, run);
                order.pop();
                rest[origin] += 1;
            }
        }
        count
    }
    extend(&mut lens.to_vec(), &mut Vec::new(), run)
}

/// The lengths by which packets of a sender are told apart; all above the MTU of a datagram.
fn length(sender: usize, number: usize) -> usize {
    9000 + 100 * sender + number
}

#[test]
fn b10_send_against_mark_up_and_drain_strands_no_packet_and_keeps_each_senders_order() {
    let mut run = |order: &[usize]| {
        let mut bench =
            Bench::connected_with(Limits { held_packets_max: 8, ..Limits::SMALL }, true);
        let mut sent = [0; 2];
        for &origin in order {
            if origin < 2 {
                let packet = ipv4(length(origin, sent[origin]), false);
                bench.send(&connected_peer(1), EtherType::IPV4, packet).unwrap();
                sent[origin] += 1;
                continue;
            }
            // The shell's thread: one action after the other, the first packet may come before it.
            if let Some(action) = bench.actions.pop_front() {
                bench.answer(action);
            }
        }
        bench.answer_all();
        bench.complete_all();
        let posted: Vec<usize> =
            bench.adapter.connected_wire.iter().map(|(_, bytes)| bytes.len() - 4).collect();
        assert_eq!(posted.len(), 6, "{order:?}");
        for sender in 0..2 {
            let own = posted.iter().filter(|&&len| (len - 9000) / 100 == sender);
            assert!(own.eq(&[length(sender, 0), length(sender, 1), length(sender, 2)]));
        }
        assert_eq!(bench.interface.packets_queued(), 0, "{order:?}");
        assert!(bench.adapter.wire.is_empty() && bench.adapter.dropped.is_empty());
        while !bench.adapter.posted_connected.is_empty() {
            bench.complete_connected(CompletionStatus::Success);
        }
        bench.finish();
    };
    // Two senders of three packets; path answer, handle, REP.
    assert_eq!(every_order(&[3, 3, 3], &mut run), 1680);
}

#[test]
fn h1_flush_against_rej_and_reaping_gives_everything_back_once() {
    for answer in [Err(ConnectError::Rejected(10)), Err(ConnectError::TimedOut), Ok(REP)] {
        let mut run = |order: &[usize]| {
            let mut bench = Bench::connected_with(Limits::SMALL, true);
            bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
            bench.answer_where(|action| !matches!(action, Action::OpenConnection { .. }));
            let mut at = [0; 4];
            for &origin in order {
                let step = at[origin];
                at[origin] += 1;
                match (origin, step) {
                    // The port goes and comes back.
                    (0, 0) => bench.port_event(PortEvent::PortError, |port| port.is_active = false),
                    (0, _) => bench.port_event(PortEvent::PortActive, |port| port.is_active = true),
                    // The peer answers, if it was asked.
                    (1, _) => {
                        if bench.opens_waiting() > 0 {
                            let (op, ..) = bench.take_open();
                            bench.connect_answer(op, answer);
                        }
                    }
                    // The shell's thread gets on, and the reaper with it.
                    (2, _) => {
                        bench.answer_where(|action| {
                            !matches!(action, Action::OpenConnection { .. })
                        });
                    }
                    // Another packet.
                    _ => {
                        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9100, false)).unwrap();
                    }
                }
            }
            bench.answer_all();
            bench.complete_all();
            assert!(bench.adapter.wire.iter().all(|(_, bytes)| bytes.len() <= 2048), "{order:?}");
            bench.pass(Duration::from_secs(5));
            bench.answer_all();
            assert_eq!(bench.interface.packets_queued(), 0, "{order:?}");
            bench.finish();
        };
        assert_eq!(every_order(&[2, 2, 3, 2], &mut run), 7560);
    }
}

#[test]
fn h2_loss_against_reaping_and_completions_destroys_each_connection_once() {
    let mut run = |order: &[usize]| {
        let mut bench = Bench::connected_with(Limits::SMALL, true);
        for len in [9000, 9001, 9002] {
            bench.send(&connected_peer(1), EtherType::IPV4, ipv4(len, false)).unwrap();
        }
        bench.answer_all();
        let connection = bench.connections[0];
        for &origin in order {
            match origin {
                0 => bench.connection_lost(connection),
                1 => {
                    if !bench.adapter.posted_connected.is_empty() {
                        bench.complete_connected(CompletionStatus::Failed);
                    }
                }
                // The mode is switched, and back.
                2 => {
                    let is_connected = bench.interface.mode() == Mode::Connected;
                    let mode = if is_connected { Mode::Datagram } else { Mode::Connected };
                    bench.mode(mode).unwrap();
                }
                _ => {
                    if let Some(action) = bench.actions.pop_front() {
                        bench.answer(action);
                    }
                }
            }
        }
        bench.answer_all();
        bench.complete_all();
        bench.finish();
    };
    assert_eq!(every_order(&[1, 3, 2, 3], &mut run), 5040);
}
