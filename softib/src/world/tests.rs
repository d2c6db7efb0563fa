//! The adapters as ibcore uses them.

use std::boxed::Box;
use std::string::String;
use std::vec::Vec;

use fabric::qp::QpState;
use ipoib_rs::wire::BroadcastGroup;

use super::*;
use crate::layout::{Address, Change, Completion, PairConfig, Send};
use crate::memory::Segment;

const CONFIG: Config = Config {
    device_count: 2,
    receive_segments_max: 16,
    small_packets_max: 64,
    large_packets_max: 8,
    seed: 1,
};
const QKEY: u32 = 0x0B1B;
const UD: u32 = 2;
const RC: u32 = 3;
const FLUSHED: u32 = 1;
const RETRY_EXCEEDED: u32 = 5;
/// What C would call its device.
const DEVICE: Context = 0xDE;
const NO_COMPLETION: Completion = Completion {
    wr_id: 0,
    pair: 0,
    status: 0,
    byte_count: 0,
    source_qpn: 0,
    source_lid: 0,
    pkey_index: 0,
    sl: 0,
    is_receive: 0,
    has_grh: 0,
    has_right_checksums: 0,
    reserved: [0; 4],
};

/// A queue pair with its queue, which has the same context.
#[derive(Clone, Copy)]
struct Host {
    queue: Handle,
    pair: Handle,
    qpn: u32,
    device: u32,
    port: u8,
    context: Context,
}

fn world() -> World {
    let mut world = World::new(&CONFIG).unwrap();
    assert_eq!(calls(&mut world), [], "nobody is registered yet");
    world
}

/// Whom C would call until there is nothing to do.
fn calls(world: &mut World) -> Vec<Call> {
    let mut calls = Vec::new();
    loop {
        match world.step() {
            Step::Idle => return calls,
            Step::GoOn => {}
            Step::Call(call) => calls.push(call),
        }
    }
}

/// Of a queue pair of which nothing is special.
fn config(queue: Handle, service: u32) -> PairConfig {
    PairConfig {
        context: 1,
        send_queue: queue.0,
        receive_queue: queue.0,
        shared_queue: 0,
        service,
        sends_max: 8,
        receives_max: 8,
        receive_segments_max: 2,
        port: 0,
        signals_all: 1,
        reserved: [0; 2],
    }
}

fn host(world: &mut World, service: u32, (device, port): (u32, u8), shared: u32) -> Host {
    let context = u64::from(device) << 8 | u64::from(port);
    let queue = world.create_queue(device, 32, context).unwrap();
    let config = PairConfig { context, shared_queue: shared, ..config(queue, service) };
    let (pair, qpn) = world.create_pair(device, &config).unwrap();
    Host { queue, pair, qpn, device, port, context }
}

fn address(world: &World, to: &Host) -> Address {
    let lid = world.query_port(to.device, to.port).unwrap().lid;
    Address { lid, ..Address::default() }
}

fn initialise(world: &mut World, host: &Host) {
    let change = Change {
        state: 1,
        qkey: QKEY,
        has_qkey: 1,
        has_pkey_index: 1,
        port: host.port,
        ..Change::default()
    };
    world.modify_pair(host.pair, &change).unwrap();
}

/// Takes a queue pair that needs no peer to RTS.
fn make_ready(world: &mut World, host: &Host) {
    initialise(world, host);
    for state in [2, 3] {
        world.modify_pair(host.pair, &Change { state, ..Change::default() }).unwrap();
    }
}

/// Two datagram queue pairs in RTS, on different adapters.
fn datagram_hosts(world: &mut World) -> [Host; 2] {
    [(0, 1), (1, 2)].map(|place| {
        let host = host(world, UD, place, 0);
        make_ready(world, &host);
        host
    })
}

/// Two connected queue pairs in RTS.
fn connected_hosts(world: &mut World, shared: u32) -> [Host; 2] {
    let hosts =
        [((0, 1), 0), ((1, 2), shared)].map(|(place, shared)| host(world, RC, place, shared));
    for (host, peer) in [(hosts[0], hosts[1]), (hosts[1], hosts[0])] {
        initialise(world, &host);
        let change = Change {
            address: address(world, &peer),
            state: 2,
            remote_qpn: peer.qpn,
            receive_psn: 7,
            path_mtu_code: 4,
            ..Change::default()
        };
        world.modify_pair(host.pair, &change).unwrap();
        let change = Change { state: 3, send_psn: 7, ..Change::default() };
        world.modify_pair(host.pair, &change).unwrap();
    }
    hosts
}

fn memory(bytes: &[u8]) -> Segment {
    Segment::of(Box::leak(Box::from(bytes)))
}

/// What stands where a receive was posted.
fn read(segment: Segment) -> Vec<u8> {
    let mut out = std::vec![0; crate::memory::total(&[segment])];
    crate::memory::gather(&[segment], &mut out);
    out
}

fn send_request(wr_id: u64, to: &Host, address_handle: u32) -> Send {
    Send {
        wr_id,
        segments: std::ptr::null(),
        segment_count: 0,
        address_handle,
        remote_qpn: to.qpn,
        qkey: QKEY,
        pkey_index: 0,
        is_signalled: 1,
        wants_checksums: 0,
        reserved: [0; 4],
    }
}

fn send(world: &mut World, from: &Host, to: &Host, wr_id: u64, bytes: &[u8]) {
    let address = address(world, to);
    let handle = world.create_address(from.device, from.port, &address).unwrap();
    let request = send_request(wr_id, to, handle.0);
    world.post_send(from.pair, &request, &[memory(bytes)]).unwrap();
}

fn poll(world: &mut World, host: &Host) -> Vec<Completion> {
    let mut all = Vec::new();
    loop {
        let mut batch = [NO_COMPLETION; 3];
        let count = world.poll_queue(host.queue, &mut batch);
        all.extend_from_slice(&batch[..count]);
        if count < batch.len() {
            return all;
        }
    }
}

#[test]
fn all_ports_are_active_and_different() {
    let world = world();
    let places = [(0, 1), (0, 2), (1, 1), (1, 2)];
    let ports = places.map(|(device, port)| world.query_port(device, port).unwrap());
    for (number, port) in ports.iter().enumerate() {
        assert_eq!((port.is_active, port.mtu_code, port.sm_lid), (1, 4, 1));
        assert!(ports[..number].iter().all(|other| other.lid != port.lid && other.gid != port.gid));
    }
    assert_eq!(world.query_pkey(0, 1, 0), 0xFFFF);
    assert_eq!(world.query_pkey(0, 1, 1), 0);
    assert_eq!(world.query_port(2, 1), Err(Error::Invalid));
    assert_eq!(world.query_port(0, 3), Err(Error::Invalid));
    assert_eq!(world.query_port(0, 0), Err(Error::Invalid));
}

#[test]
fn adapters_out_of_range_are_refused() {
    for device_count in [0, DEVICES_MAX as u32 + 1] {
        let result = World::new(&Config { device_count, ..CONFIG });
        assert_eq!(result.err(), Some(Error::Invalid));
    }
}

#[test]
fn a_datagram_fills_the_segments_of_a_receive() {
    let mut world = world();
    let [a, b] = datagram_hosts(&mut world);
    let (head, tail) = (memory(&[0xEE; 42]), memory(&[0xEE; 10]));
    world.post_receive(b.pair, 77, &[head, tail]).unwrap();
    assert!(!world.arm_queue(b.queue));
    send(&mut world, &a, &b, 33, b"hello");
    assert_eq!(calls(&mut world), [Call::Complete { queue: b.context }]);

    let sent = Completion { wr_id: 33, pair: a.context, ..NO_COMPLETION };
    assert_eq!(poll(&mut world, &a), [sent]);
    let received = Completion {
        wr_id: 77,
        pair: b.context,
        byte_count: 45,
        source_qpn: a.qpn,
        source_lid: world.query_port(0, 1).unwrap().lid,
        is_receive: 1,
        ..NO_COMPLETION
    };
    assert_eq!(poll(&mut world, &b), [received]);
    assert_eq!(read(head), [&[0; 40][..], b"he"].concat());
    assert_eq!(read(tail), b"llo\xEE\xEE\xEE\xEE\xEE\xEE\xEE");
    assert_eq!(world.totals().packets, 0);
}

#[test]
fn a_datagram_that_its_port_drops_is_announced_as_sent() {
    let mut world = world();
    let [a, b] = datagram_hosts(&mut world);
    world.set_link(a.device, a.port, false).unwrap();
    calls(&mut world);
    assert!(!world.arm_queue(a.queue));
    send(&mut world, &a, &b, 33, b"lost");
    assert_eq!(calls(&mut world), [Call::Complete { queue: a.context }]);
    let sent = Completion { wr_id: 33, pair: a.context, ..NO_COMPLETION };
    assert_eq!(poll(&mut world, &a), [sent]);
    assert_eq!(world.port_counters(a.device, a.port).sends_while_inactive, 1);
}

#[test]
fn a_send_that_fails_stops_its_queue_until_that_is_started_again() {
    const LOCAL_QP_OPERATION: u32 = 3;
    const SEND_QUEUE_ERROR: u32 = 5;

    let mut world = world();
    let [a, b] = datagram_hosts(&mut world);
    world.fail_sends(a.device, a.port, 1).unwrap();
    for wr_id in [1, 2] {
        send(&mut world, &a, &b, wr_id, b"lost");
    }
    calls(&mut world);
    let statuses = |sends: &[Completion]| {
        sends.iter().map(|send| (send.wr_id, send.status)).collect::<Vec<_>>()
    };
    assert_eq!(statuses(&poll(&mut world, &a)), [(1, LOCAL_QP_OPERATION), (2, FLUSHED)]);
    assert_eq!(state_code(world.pair_state(a.pair)), SEND_QUEUE_ERROR);
    assert_eq!(world.sends_to_fail(a.device, a.port), 0);

    world.modify_pair(a.pair, &Change { state: 3, ..Change::default() }).unwrap();
    send(&mut world, &a, &b, 3, b"sent");
    calls(&mut world);
    assert_eq!(statuses(&poll(&mut world, &a)), [(3, 0)]);
}

#[test]
fn the_thread_is_woken_once_for_all_that_is_posted_before_it_runs() {
    let mut world = world();
    let [a, b] = datagram_hosts(&mut world);
    assert!(world.take_wake());
    send(&mut world, &a, &b, 1, b"x");
    assert!(!world.take_wake(), "it was woken and has not run");
    calls(&mut world);
    send(&mut world, &a, &b, 2, b"x");
    assert!(world.take_wake());
    assert!(!world.take_wake());
    calls(&mut world);
}

#[test]
fn an_object_is_kept_while_somebody_is_told_of_it() {
    let mut world = world();
    let [a, b] = datagram_hosts(&mut world);
    world.post_receive(b.pair, 1, &[memory(&[0; 64])]).unwrap();
    world.arm_queue(b.queue);
    send(&mut world, &a, &b, 1, b"x");
    while !matches!(world.step(), Step::Call(_)) {}
    assert!(world.is_calling(b.context));
    assert!(!world.is_calling(a.context));
    world.step();
    assert!(!world.is_calling(b.context));
}

#[test]
fn a_destroyed_queue_is_not_announced() {
    let mut world = world();
    let [a, b] = datagram_hosts(&mut world);
    world.post_receive(b.pair, 1, &[memory(&[0; 64])]).unwrap();
    world.arm_queue(b.queue);
    send(&mut world, &a, &b, 1, b"x");
    assert_eq!(world.step(), Step::GoOn);
    assert_eq!(world.destroy_queue(b.queue), Err(Error::Busy));
    world.destroy_pair(b.pair).unwrap();
    world.destroy_queue(b.queue).unwrap();
    assert_eq!(calls(&mut world), []);
    assert_eq!(world.totals().packets, 0);
}

#[test]
fn a_message_longer_than_its_receive_breaks_the_connection() {
    let mut world = world();
    let [a, b] = connected_hosts(&mut world, 0);
    world.post_receive(b.pair, 1, &[memory(&[0; 4])]).unwrap();
    world.post_send(a.pair, &send_request(2, &b, 0), &[memory(b"12345")]).unwrap();
    calls(&mut world);
    assert_eq!(poll(&mut world, &b)[0].status, 2, "local length");
    assert_eq!(poll(&mut world, &a)[0].status, 4, "remote invalid request");
    assert_eq!(world.pair_state(a.pair), QpState::Error);
}

#[test]
fn an_error_flushes_and_the_last_receive_of_a_shared_queue_is_announced() {
    let mut world = world();
    let shared = world.create_shared(1, 4, 2, 0x55).unwrap();
    let [a, b] = connected_hosts(&mut world, shared.0);
    let segment = memory(&[0; 8]);
    world.post_shared(shared, 5, &[segment]).unwrap();
    assert_eq!(world.post_receive(b.pair, 6, &[]), Err(Error::Invalid));
    world.post_send(a.pair, &send_request(2, &b, 0), &[memory(b"message")]).unwrap();
    calls(&mut world);
    assert_eq!(poll(&mut world, &a), [Completion { wr_id: 2, pair: a.context, ..NO_COMPLETION }]);
    let received = poll(&mut world, &b)[0];
    assert_eq!((received.wr_id, received.byte_count, received.source_qpn), (5, 7, a.qpn));
    assert_eq!(read(segment), b"message\0");

    world.modify_pair(b.pair, &Change { state: 6, ..Change::default() }).unwrap();
    assert_eq!(calls(&mut world), [Call::LastWqeReached { pair: b.context }]);
    // The marker that drains the queue pair: a send of no bytes.
    world.post_send(b.pair, &send_request(9, &a, 0), &[]).unwrap();
    let flushed = Completion { wr_id: 9, pair: b.context, status: FLUSHED, ..NO_COMPLETION };
    assert_eq!(poll(&mut world, &b), [flushed]);
}

#[test]
fn receives_of_a_shared_queue_come_back_with_a_queue_pair_that_goes() {
    let mut world = world();
    let shared = world.create_shared(1, 2, 1, 0x55).unwrap();
    let [a, b] = connected_hosts(&mut world, shared.0);
    for wr_id in 0..2 {
        world.post_shared(shared, wr_id, &[memory(&[0; 8])]).unwrap();
        world.post_send(a.pair, &send_request(wr_id, &b, 0), &[memory(b"x")]).unwrap();
    }
    assert_eq!(world.post_shared(shared, 2, &[]), Err(Error::NoMemory));
    calls(&mut world);
    assert_eq!(world.destroy_shared(shared), Err(Error::Busy));
    world.destroy_pair(b.pair).unwrap();
    assert!(poll(&mut world, &b).is_empty());
    for wr_id in 0..2 {
        world.post_shared(shared, wr_id, &[]).unwrap();
    }
    world.destroy_shared(shared).unwrap();
    assert_eq!(world.totals().packets, 0);
}

#[test]
fn a_send_to_a_port_that_is_down_fails_its_connection() {
    let mut world = world();
    let [a, b] = connected_hosts(&mut world, 0);
    world.set_link(1, 2, false).unwrap();
    world.post_send(a.pair, &send_request(2, &b, 0), &[memory(b"x")]).unwrap();
    calls(&mut world);
    assert_eq!(poll(&mut world, &a)[0].status, RETRY_EXCEEDED);
}

#[test]
fn sends_that_are_not_signalled_complete_in_silence() {
    let mut world = world();
    let peer = host(&mut world, UD, (1, 2), 0);
    let queue = world.create_queue(0, 4, 1).unwrap();
    let config = PairConfig {
        sends_max: 4,
        receives_max: 1,
        receive_segments_max: 1,
        signals_all: 0,
        ..config(queue, UD)
    };
    let (pair, qpn) = world.create_pair(0, &config).unwrap();
    let host = Host { queue, pair, qpn, device: 0, port: 1, context: 1 };
    make_ready(&mut world, &host);
    let to = address(&world, &peer);
    let handle = world.create_address(0, 1, &to).unwrap();
    for wr_id in 0..20 {
        let is_signalled = u8::from(wr_id % 10 == 9);
        let request = Send { is_signalled, ..send_request(wr_id, &peer, handle.0) };
        world.post_send(pair, &request, &[memory(b"x")]).unwrap();
        calls(&mut world);
    }
    let wr_ids: Vec<u64> = poll(&mut world, &host).iter().map(|line| line.wr_id).collect();
    assert_eq!(wr_ids, [9, 19]);
}

#[test]
fn a_port_tells_its_adapter_while_that_is_registered() {
    let mut world = world();
    world.set_link(0, 2, false).unwrap();
    assert_eq!(calls(&mut world), []);
    world.set_context(0, Some(DEVICE));
    world.set_link(0, 2, true).unwrap();
    let heard = calls(&mut world);
    let active = PortEvent::PortActive;
    assert!(heard.contains(&Call::Port { device: DEVICE, number: 2, event: active }), "{heard:?}");
    world.raise_event(0, 1, "sm_change").unwrap();
    let event = PortEvent::SmChanged;
    assert_eq!(calls(&mut world), [Call::Port { device: DEVICE, number: 1, event }]);
    assert_eq!(world.raise_event(0, 1, "earthquake"), Err(Error::Invalid));
    world.set_context(0, None);
    world.set_link(0, 1, false).unwrap();
    assert_eq!(calls(&mut world), []);
}

#[test]
fn a_port_moves_to_another_lid() {
    let mut world = world();
    let old = world.query_port(0, 1).unwrap().lid;
    let taken = world.query_port(0, 2).unwrap().lid;
    assert_eq!(world.set_lid(0, 1, taken), Err(Error::Invalid));
    world.set_lid(0, 1, 99).unwrap();
    assert_eq!(world.query_port(0, 1).unwrap().lid, 99);
    world.set_lid(0, 1, 0).unwrap();
    assert!(![old, 99].contains(&world.query_port(0, 1).unwrap().lid));
}

#[test]
fn a_table_of_keys_is_written_as_it_is_read() {
    let mut world = world();
    let show = |world: &World| {
        let mut text = String::new();
        world.show_pkeys(0, 1, &mut text).unwrap();
        text
    };
    assert_eq!(show(&world), "0xffff");
    world.set_pkeys(0, 1, "0xffff 0x8001 2").unwrap();
    assert_eq!(show(&world), "0xffff 0x8001 0x0002");
    world.set_pkeys(0, 1, "0x0002 0x8003").unwrap();
    assert_eq!(show(&world), "0x8003 0x0000 0x0002");
    for bad in ["0x10000", "0", "x", "0xffff,0x8001"] {
        assert_eq!(world.set_pkeys(0, 1, bad), Err(Error::Invalid), "{bad}");
    }
    let pkey = Pkey::new(0x8003).unwrap();
    let broadcast = BroadcastGroup::new(Scope::LINK_LOCAL, pkey).mgid();
    let mut groups = world.subnet.manager().groups();
    assert!(groups.any(|group| group.record.mgid == broadcast));
}

#[test]
fn a_link_loses_all_or_nothing_as_it_is_told() {
    let mut world = world();
    let [a, b] = datagram_hosts(&mut world);
    for wr_id in 0..2 {
        world.post_receive(b.pair, wr_id, &[memory(&[0; 64])]).unwrap();
    }
    world.set_loss(1, 2, 1_000_000).unwrap();
    assert_eq!(world.set_loss(1, 2, 1_000_001), Err(Error::Invalid));
    send(&mut world, &a, &b, 1, b"x");
    calls(&mut world);
    assert!(poll(&mut world, &b).is_empty());
    assert_eq!((world.totals().lost, world.totals().packets), (1, 0));
    world.set_loss(1, 2, 0).unwrap();
    send(&mut world, &a, &b, 2, b"x");
    calls(&mut world);
    assert_eq!(poll(&mut world, &b).len(), 1);
}

#[test]
fn the_flag_of_connections_can_be_hidden_in_arp() {
    let mut world = world();
    let [a, b] = datagram_hosts(&mut world);
    let mut arp = [0x80; 64];
    arp[..4].copy_from_slice(&[0x08, 0x06, 0, 0]);
    let mut places = Vec::new();
    for (wr_id, hides) in [(0, false), (1, true)] {
        let segment = memory(&[0; 104]);
        world.post_receive(b.pair, wr_id, &[segment]).unwrap();
        places.push(segment);
        world.set_hides_rc(0, 1, hides).unwrap();
        assert_eq!(world.hides_rc(0, 1), hides);
        send(&mut world, &a, &b, wr_id, &arp);
    }
    calls(&mut world);
    assert_eq!(poll(&mut world, &b).len(), 2);
    assert_eq!(read(places[0])[40..], arp);
    let mut hidden = arp;
    hidden[12] = 0;
    assert_eq!(read(places[1])[40..], hidden);
}

#[test]
fn requests_for_connections_can_be_refused_when_they_are_posted() {
    const GSI: u32 = 1;
    let mut world = world();
    let queue = world.create_queue(0, 32, 1).unwrap();
    let config = PairConfig { port: 1, ..config(queue, GSI) };
    let (pair, qpn) = world.create_pair(0, &config).unwrap();
    let host = Host { queue, pair, qpn, device: 0, port: 1, context: 1 };
    make_ready(&mut world, &host);
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    let address = address(&world, &host);
    let handle = world.create_address(0, 1, &address).unwrap();
    let mut post = |world: &mut World, attribute| {
        mad[16..18].copy_from_slice(&u16::to_be_bytes(attribute));
        world.post_send(pair, &send_request(1, &host, handle.0), &[memory(&mad)])
    };
    for (refuses, result) in [(true, Err(Error::NoMemory)), (false, Ok(()))] {
        world.set_refuses_requests(refuses);
        assert_eq!(world.refuses_requests(), refuses);
        assert_eq!(post(&mut world, 0x0010), result, "a request");
        assert_eq!(post(&mut world, 0x0014), Ok(()), "ready to use");
        calls(&mut world);
        assert_eq!(world.totals().packets, 0);
    }
}

#[test]
fn a_datagram_above_the_mtu_is_counted() {
    let mut world = world();
    let [a, b] = datagram_hosts(&mut world);
    send(&mut world, &a, &b, 1, &[0; 2049]);
    calls(&mut world);
    assert_eq!(world.totals().violations.oversize_ud, 1);
    assert_eq!(poll(&mut world, &a)[0].status, 2, "local length");
}

#[test]
fn the_next_of_a_million_settings_is_the_same_for_the_same_seed() {
    let draw = |seed| {
        let mut world = World::new(&Config { seed, ..CONFIG }).unwrap();
        let [a, b] = datagram_hosts(&mut world);
        world.set_loss(0, 1, 500_000).unwrap();
        let mut lost = Vec::new();
        for wr_id in 0..32 {
            send(&mut world, &a, &b, wr_id, b"x");
            calls(&mut world);
            poll(&mut world, &a);
            lost.push(world.totals().lost);
        }
        lost
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}
