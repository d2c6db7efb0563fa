//! Defects of the stock drivers that were measured on real kernels, as tests of this core.
//!
//! `docs/field-reports.md` says what each of them is about; the tests are named after them.

mod common;

use common::{Bench, connected_peer, ipv4, peer};
use ipoib_rs::action::{Action, ConnectError};
use ipoib_rs::counters::Counter;
use ipoib_rs::interface::ConnectedSupport;
use ipoib_rs::limits::{CONNECTED_MTU_MAX, Limits};
use ipoib_rs::packet::CompletionStatus;
use ipoib_rs::wire::EtherType;

#[test]
fn d1_the_first_packet_is_a_large_datagram_and_arrives_whole_by_the_connection() {
    let mut bench = Bench::connected();
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(8000, false)).unwrap();
    bench.answer_all();
    assert!(bench.adapter.wire.is_empty(), "nothing goes by UD");
    assert_eq!(bench.adapter.connected_wire[0].1.len(), 8004);
    bench.complete_connected(CompletionStatus::Success);
    assert_eq!(bench.count(Counter::ConnectedSent), 1);
    bench.finish();
}

#[test]
fn d1_towards_a_neighbor_without_the_flag_a_first_large_datagram_arrives_in_fragments() {
    let mut bench = Bench::connected();
    bench.send(&peer(1), EtherType::IPV4, ipv4(8000, false)).unwrap();
    bench.answer_all();
    let sizes: Vec<usize> = bench.adapter.wire.iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(sizes, [2048, 2048, 2048, 1932]);
    assert!(bench.adapter.connected_wire.is_empty());
    bench.complete_all();
    bench.finish();
}

#[test]
fn d2_two_hundred_times_down_and_up_with_connections_frees_everything_once() {
    let mut bench = Bench::connected();
    for round in 0..200u32 {
        for n in 1..=3 {
            bench.send(&connected_peer(n), EtherType::IPV4, ipv4(9000, false)).unwrap();
        }
        // In turn: everything answered, only the paths, nothing.
        match round % 3 {
            0 => bench.answer_all(),
            1 => bench.answer_where(|action| !matches!(action, Action::OpenConnection { .. })),
            _ => {}
        }
        bench.admin_down();
        bench.answer_all();
        assert_eq!((bench.connections.len(), bench.interface.sends_outstanding()), (0, 0));
        bench.admin_up();
        bench.answer_all();
        bench.complete_all();
        assert!(bench.interface.is_link_up(), "round {round}");
    }
    bench.finish();
}

#[test]
fn d4_a_req_that_cannot_be_sent_costs_neither_the_path_nor_the_packets() {
    let mut bench = Bench::connected();
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
    bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, true)).unwrap();
    bench.answer_where(|action| !matches!(action, Action::OpenConnection { .. }));
    let (op, ..) = bench.take_open();
    bench.connect_answer(op, Err(ConnectError::Unusable));
    bench.answer_all();
    assert_eq!((bench.adapter.wire.len(), bench.adapter.too_big.as_slice()), (5, &[2044][..]));
    assert_eq!(bench.count(Counter::PathQueries), 1);
    bench.complete_all();
    bench.finish();
}

#[test]
fn d6_an_adapter_that_could_take_more_than_64_kib_does_not_raise_the_mtu() {
    for mtu_max in [CONNECTED_MTU_MAX, 69616, usize::MAX] {
        let mut bench = Bench::connected_on(
            Limits::DEFAULT,
            ConnectedSupport { mtu_max, shares_receives: true },
        );
        assert_eq!(bench.interface.mtu(), 65520);
        assert!(bench.interface.handle_connected_mtu(65521).is_err());
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(65520, true)).unwrap();
        bench.answer_all();
        assert_eq!(bench.adapter.connected_wire[0].1.len(), 65524);
        bench.finish();
    }
}

#[test]
fn d7_sixteen_unreaped_sends_delay_nothing_but_their_own_connection() {
    let mut bench = Bench::asking();
    bench.answer_all();
    for _ in 0..16 {
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(9000, false)).unwrap();
    }
    let connection = bench.connections[0];
    bench.connection_lost(connection);
    // While that connection waits for the adapter, another neighbour gets everything it wants.
    bench.send(&connected_peer(2), EtherType::IPV4, ipv4(9000, false)).unwrap();
    bench.answer_where(|action| !matches!(action, Action::DestroyConnection { .. }));
    assert_eq!(bench.adapter.connected_wire.len(), 17);
    assert_ne!(bench.adapter.connected_wire[16].0.connection, connection);
    bench.answer_all();
    bench.finish();
}
