//! What the protocol core costs by itself: nothing is copied and no fabric is there.
//!
//! `cargo bench --bench core` prints the CPU time of a packet, sent and received, by datagrams of
//! 2044 bytes and by messages of 65520, how many connections per second can be set up, and the
//! memory of a neighbour and of a connection; and what a lagg and the hash of a flow cost a packet.
//! It fails if a byte costs more than an eighth by a connection of what it costs by datagrams, if a
//! connection takes more than 4 KiB without its buffers, or if a packet causes an allocation.

#[allow(dead_code, unreachable_pub, reason = "shared with the tests, which use all of it")]
#[path = "../tests/common/fixtures.rs"]
mod fixtures;

use std::hint::black_box;
use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant as Clock};

use fixtures::{OWN_QPN, connected_peer, path_to, port, record_of};
use ipoib_rs::action::{Action, ConnectionId, ConnectionParameters, RequestId, SaCapabilities};
use ipoib_rs::counters::Counter;
use ipoib_rs::event::Event;
use ipoib_rs::ib::{Gid, Qpn};
use ipoib_rs::interface::{Config, ConnectedSupport, IncomingRequest, Interface, Mode};
use ipoib_rs::lagg::hash::{Depth, Framing, flow_hash};
use ipoib_rs::lagg::{self, Capabilities, Face, Identity, Lagg, PortLink, PortReport};
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::{
    CompletionStatus, ConnectedReceive, ConnectedSend, DataPath, DatagramSend, Delivery,
    NoHeadroom, PacketBuf, PacketSink, PostReceiveError, Receive, ReceiveQueue, SendId,
    ShortPacket,
};
use ipoib_rs::pump::{PumpingShell, Shell, pump};
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{AddressFlags, EtherType, GRH_BYTES, LinkAddress, Scope};

/// What fits a datagram on a 2K fabric, and a message.
const DATAGRAM_BYTES: usize = 2044;
const MESSAGE_BYTES: usize = 65_520;
/// Packets that are sent before their completions come.
const BATCH_LEN: usize = 64;
const BATCHES: usize = 200;
/// Measurements of which the best counts: the machine does other things as well.
const ROUNDS: usize = 50;
const NOW: Instant = Instant::ZERO;

fn main() -> ExitCode {
    let mut is_within_limits = true;
    let mut demand = |holds: bool, what: &str| {
        is_within_limits &= holds;
        if !holds {
            println!("TOO MUCH: {what}");
        }
    };
    let datagram = cost("datagrams", Mode::Datagram, DATAGRAM_BYTES);
    let message = cost("messages", Mode::Connected, MESSAGE_BYTES);
    let ratio = message.nanos_per_byte / datagram.nanos_per_byte;
    println!("cost of a byte by messages / by datagrams: {ratio:.4} (at most 0.125)");
    demand(ratio <= 0.125, "time per byte of a connection");
    let allocations = datagram.allocations + message.allocations;
    println!("allocations: {allocations} (at most 0)");
    demand(allocations == 0, "allocations on the data path");

    println!("flow hash of an IPv4 packet of TCP: {:.1} ns", hash_cost(EtherType::IPV4));
    println!("flow hash of an IPv6 packet of TCP: {:.1} ns", hash_cost(EtherType::IPV6));
    println!("packet by a lagg: {:.1} ns to choose the port", lagg_cost());
    println!("connections set up per second: {:.0} to send on", outgoing_rate());
    println!("connections set up per second: {:.0} to receive from", incoming_rate());
    let neighbor = bytes_per(|limits, count| limits.paths_max += count);
    let outgoing = bytes_per(|limits, count| limits.outgoing_max += count);
    let incoming = bytes_per(|limits, count| limits.incoming_max += count);
    println!("bytes of memory per idle neighbour: {neighbor}");
    println!("bytes of memory per connection to send on: {outgoing} (at most 4096)");
    println!("bytes of memory per connection to receive from: {incoming} (at most 4096)");
    demand(outgoing <= 4096 && incoming <= 4096, "memory of a connection");
    if is_within_limits { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Cost {
    nanos_per_byte: f64,
    allocations: u64,
}

/// What it costs to send packets of `bytes` bytes, and to receive as many.
fn cost(name: &str, mode: Mode, bytes: usize) -> Cost {
    let mut world = World::joined(mode, Limits::DEFAULT);
    let to = connected_peer(1);
    world.send_batch(&to, 100);
    world.request(&to);
    assert_eq!(world.connections, if mode == Mode::Connected { 2 } else { 0 });
    let sent = best(|| world.send_batch(&to, bytes));
    let received = best(|| world.receive_batch(mode, bytes));
    let allocations = allocation_counter::measure(|| {
        world.send_batch(&to, bytes);
        world.receive_batch(mode, bytes);
    });
    // Everything went the way that is being measured.
    let counters = world.interface.counters();
    let by_connection = match mode {
        Mode::Datagram => 0,
        Mode::Connected => counters[Counter::PacketsReceived],
    };
    assert_eq!(counters[Counter::ConnectedReceived], by_connection);
    assert_eq!(counters.drops_total(), 0);
    let nanos_per_byte = (sent + received) / bytes as f64;
    println!(
        "{name} of {bytes} bytes: {sent:.1} ns to send, {received:.1} ns to receive, \
         {nanos_per_byte:.5} ns per byte"
    );
    Cost { nanos_per_byte, allocations: allocations.count_total }
}

/// The shortest time of one packet, in nanoseconds.
fn best(mut batch: impl FnMut()) -> f64 {
    let round = |_| {
        let start = Clock::now();
        (0..BATCHES).for_each(|_| batch());
        start.elapsed()
    };
    let best: Duration = (0..ROUNDS).map(round).min().unwrap_or_default();
    best.as_nanos() as f64 / (BATCHES * BATCH_LEN) as f64
}

/// The hash of a flow, ports included.
fn hash_cost(protocol: EtherType) -> f64 {
    const TCP: u8 = 6;
    let mut packet = Virtual::new(DATAGRAM_BYTES);
    let header = &mut packet.front[HEADROOM_BYTES..];
    if protocol == EtherType::IPV4 {
        (header[0], header[9]) = (0x45, TCP);
    } else {
        (header[0], header[6]) = (0x60, TCP);
    }
    let without = flow_hash(Framing::Bare(protocol), Depth::Addresses, &packet);
    packet.front[HEADROOM_BYTES + 19] = 1;
    assert_ne!(without, flow_hash(Framing::Bare(protocol), Depth::Ports, &packet));
    best(|| {
        for _ in 0..BATCH_LEN {
            black_box(flow_hash(Framing::Bare(protocol), Depth::Ports, black_box(&packet)));
        }
    })
}

/// What a lagg adds to a packet.
fn lagg_cost() -> f64 {
    struct Nobody;
    impl Face for Nobody {
        fn wear(&mut self, _: Option<&Identity>) {}
    }
    let mut lagg = Lagg::attach(lagg::Config::new(1)).expect("there is memory");
    lagg.handle_admin_up();
    for number in 0..2 {
        let identity = Identity { address: neighbor(number), broadcast: neighbor(number) };
        let (mtu, link) = (DATAGRAM_BYTES, PortLink::Joined);
        let capabilities = Capabilities::default();
        let report = PortReport { identity, link, mtu, mtu_max: mtu, capabilities };
        let added = lagg.handle_port_added(NOW, &report, &mut Nobody);
        assert!(added.is_ok());
    }
    best(|| {
        for _ in 0..BATCH_LEN {
            assert!(black_box(&mut lagg).handle_transmit().is_ok());
        }
    })
}

/// First packet to a new neighbour, path query, address handle, REQ, REP: per second.
fn outgoing_rate() -> f64 {
    let count = 2000;
    let limits = Limits { paths_max: count, outgoing_max: count, ..Limits::DEFAULT };
    let mut world = World::joined(Mode::Connected, limits);
    let start = Clock::now();
    for number in 0..count {
        world.send(&neighbor(number), 9000);
        world.complete_all();
    }
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    assert_eq!(world.interface.counters()[Counter::Connected], u64::from(count));
    assert_eq!(world.interface.counters()[Counter::ConnectedSent], u64::from(count));
    rate
}

/// REQ to REP, per second.
fn incoming_rate() -> f64 {
    let count = 2000;
    let mut world =
        World::joined(Mode::Connected, Limits { incoming_max: count, ..Limits::DEFAULT });
    let start = Clock::now();
    (0..count).for_each(|number| world.request(&neighbor(number)));
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    assert_eq!(world.interface.counters()[Counter::Accepts], u64::from(count));
    rate
}

/// What an interface takes at attach, per unit of a limit: it never takes more later.
fn bytes_per(raise: impl Fn(&mut Limits, u32)) -> u64 {
    let count = 1000;
    let mut more = Limits::DEFAULT;
    raise(&mut more, count);
    let taken = |limits: Limits| {
        let mut interface = None;
        let memory =
            allocation_counter::measure(|| interface = Some(attach(Mode::Connected, limits)));
        drop(interface);
        memory.bytes_total
    };
    (taken(more) - taken(Limits::DEFAULT)) / u64::from(count)
}

fn neighbor(number: u32) -> LinkAddress {
    let gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x5000_0100 + u64::from(number));
    let qpn = Qpn::new(0x1000 + number).expect("within 24 bits");
    LinkAddress::new(AddressFlags::RC, qpn, gid)
}

fn attach(mode: Mode, limits: Limits) -> Interface<Virtual> {
    let connected = Some(ConnectedSupport { mtu_max: MESSAGE_BYTES, shares_receives: true });
    let scope = Scope::LINK_LOCAL;
    let config = Config { qpn: OWN_QPN, port: port(), scope, mode, connected, seed: 1, limits };
    Interface::attach(config).expect("there is memory")
}

/// A packet of which only the headers exist.
struct Virtual {
    front: [u8; FRONT_BYTES],
    /// Where it begins in `front`.
    start: usize,
    len: usize,
}

const FRONT_BYTES: usize = 64;
const HEADROOM_BYTES: usize = 8;

impl Virtual {
    fn new(len: usize) -> Self {
        Self { front: [0; FRONT_BYTES], start: HEADROOM_BYTES, len }
    }
}

impl PacketBuf for Virtual {
    fn len(&self) -> usize {
        self.len
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), ShortPacket> {
        if offset + out.len() > self.len {
            return Err(ShortPacket);
        }
        let from = self.start + offset;
        out.copy_from_slice(self.front.get(from..from + out.len()).ok_or(ShortPacket)?);
        Ok(())
    }

    fn prepend(&mut self, bytes: &[u8]) -> Result<(), NoHeadroom> {
        let start = self.start.checked_sub(bytes.len()).ok_or(NoHeadroom)?;
        self.front[start..self.start].copy_from_slice(bytes);
        (self.start, self.len) = (start, self.len + bytes.len());
        Ok(())
    }

    fn trim_front(&mut self, count: usize) -> Result<(), ShortPacket> {
        if count > self.len {
            return Err(ShortPacket);
        }
        (self.start, self.len) = (self.start + count, self.len - count);
        Ok(())
    }
}

/// An adapter that takes everything, and a stack that wants nothing.
#[derive(Default)]
struct Adapter {
    posted: Vec<SendId>,
    delivered: u64,
}

impl PacketSink<Virtual> for &mut Adapter {
    fn deliver(&mut self, _: Virtual, _: Delivery) {
        self.delivered += 1;
    }

    fn drop_packet(&mut self, _: Virtual, _: ipoib_rs::counters::DropReason) {}

    fn release(&mut self, _: Virtual) {}

    fn packet_too_big(&mut self, _: Virtual, _: usize) {}
}

impl DataPath<Virtual> for &mut Adapter {
    fn post_send(&mut self, send: DatagramSend, _: Virtual) -> Result<(), Virtual> {
        self.posted.push(send.id);
        Ok(())
    }

    fn post_connected_send(&mut self, send: ConnectedSend, _: Virtual) -> Result<(), Virtual> {
        self.posted.push(send.id);
        Ok(())
    }

    fn post_connected_receive(
        &mut self,
        _: ReceiveQueue,
        _: usize,
    ) -> Result<(), PostReceiveError> {
        Ok(())
    }

    fn post_receive(&mut self, _: usize) -> Result<(), PostReceiveError> {
        Ok(())
    }

    fn fragment(&mut self, _: &Virtual, _: &[u8], _: Range<usize>) -> Option<Virtual> {
        None
    }
}

struct World {
    interface: Interface<Virtual>,
    adapter: Adapter,
    actions: Vec<Action>,
    connections: usize,
    accepted: Option<ConnectionId>,
}

impl Shell for World {
    type Packet = Virtual;
    type DataPath<'a> = &'a mut Adapter;

    fn with_interface<R>(
        &mut self,
        feed: impl FnOnce(&mut Interface<Virtual>, &mut Self::DataPath<'_>) -> R,
    ) -> R {
        let mut adapter = &mut self.adapter;
        feed(&mut self.interface, &mut adapter)
    }

    fn release_packets(&mut self) {}
}

impl PumpingShell for World {
    fn observe(&mut self, _: Event) {}

    fn execute(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn schedule(&mut self, _: Option<Instant>) {}
}

impl World {
    fn joined(mode: Mode, limits: Limits) -> Self {
        let (interface, adapter) = (attach(mode, limits), Adapter::default());
        let mut world =
            Self { interface, adapter, actions: Vec::new(), connections: 0, accepted: None };
        pump(&mut world, |interface, adapter| interface.handle_admin_up(NOW, adapter));
        world.answer_all();
        assert!(world.interface.is_link_up());
        world
    }

    fn answer_all(&mut self) {
        while let Some(action) = self.actions.pop() {
            self.answer(action);
        }
    }

    fn answer(&mut self, action: Action) {
        match (action.operation(), action) {
            (Some(op), Action::JoinGroup { request, .. }) => pump(self, |interface, adapter| {
                interface.handle_join_answer(NOW, op, Ok(record_of(&request)), adapter);
            }),
            (Some(op), Action::QueryPath { query, .. }) => pump(self, |interface, adapter| {
                interface.handle_path_answer(NOW, op, Ok(path_to(&query)), adapter);
            }),
            (Some(op), Action::QuerySaCapabilities { .. }) => pump(self, |interface, _| {
                interface.handle_sa_capabilities(op, Ok(SaCapabilities::default()));
            }),
            (Some(op), Action::OpenConnection { .. }) => {
                self.connections += 1;
                let peer = ConnectionParameters { qpn: OWN_QPN, receive_mtu: 65_524 };
                pump(self, |interface, adapter| {
                    interface.handle_connect_answer(NOW, op, Ok(peer), adapter);
                });
            }
            (Some(op), action) => {
                if let Action::AcceptConnection { connection, .. } = action {
                    self.connections += 1;
                    self.accepted = Some(connection);
                }
                pump(self, |interface, adapter| {
                    interface.handle_verb_result(NOW, op, Ok(()), adapter);
                });
            }
            (None, _) => {}
        }
    }

    /// A peer asks for a connection.
    fn request(&mut self, from: &LinkAddress) {
        let peer = ConnectionParameters { qpn: from.qpn(), receive_mtu: 65_524 };
        let request = IncomingRequest { id: RequestId(1), gid: from.gid(), peer };
        let _refused_in_datagram_mode =
            pump(self, |interface, _| interface.handle_connect_request(NOW, request));
        self.answer_all();
    }

    fn send(&mut self, to: &LinkAddress, bytes: usize) {
        let packet = Virtual::new(bytes);
        let sent = pump(self, |interface, adapter| {
            interface.handle_transmit(NOW, to, EtherType::IPV6, packet, adapter)
        });
        assert!(sent.is_ok(), "the ring is longer than a batch");
        self.answer_all();
    }

    fn send_batch(&mut self, to: &LinkAddress, bytes: usize) {
        for _ in 0..BATCH_LEN {
            self.send(to, bytes);
        }
        self.complete_all();
    }

    fn complete_all(&mut self) {
        while let Some(id) = self.adapter.posted.pop() {
            pump(self, |interface, adapter| {
                interface.handle_send_completion(NOW, id, CompletionStatus::Success, adapter);
            });
        }
    }

    fn receive_batch(&mut self, mode: Mode, bytes: usize) {
        let before = self.adapter.delivered;
        for _ in 0..BATCH_LEN {
            match mode {
                Mode::Datagram => {
                    let packet = Virtual { start: 0, ..Virtual::new(GRH_BYTES + 4 + bytes) };
                    let source_qpn = connected_peer(1).qpn();
                    let receive = Receive { packet, has_grh: false, source_lid: 7, source_qpn };
                    pump(self, |interface, adapter| {
                        interface.handle_receive(NOW, receive, adapter);
                    });
                }
                Mode::Connected => {
                    let connection = self.accepted.expect("a connection was accepted");
                    let receive = ConnectedReceive { connection, packet: Virtual::new(4 + bytes) };
                    pump(self, |interface, adapter| {
                        interface.handle_connected_receive(NOW, receive, adapter);
                    });
                }
            }
        }
        assert_eq!(self.adapter.delivered - before, BATCH_LEN as u64);
    }
}
