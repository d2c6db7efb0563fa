//! Packets and bytes per second and allocations per packet, in memory, on one core: the fabric
//! alone, and the protocol core, the fabric and the core again, by datagrams and by a connection.
//!
//! `cargo bench -p fabric` prints a table; the numbers of allocations must be 0. A packet moves
//! from the sender to the receiver without being copied, and nobody writes or reads its payload
//! here, so its length matters little.

use std::time::Instant as Clock;

use fabric::cq::{CqId, Outcome};
use fabric::gsi::{AgentId, Gsi, Role};
use fabric::hca::HcaConfig;
use fabric::mad::{self, Attribute, PathRecordWire, SA_CLASS};
use fabric::node::{InterfaceConfig, InterfaceId, Node, NodeConfig};
use fabric::packet::PoolLimits;
use fabric::port::{PortId, PortState};
use fabric::qp::{
    QpChange, QpConfig, QpId, QpType, RcReadyToReceive, RcReadyToSend, ReceiveRequest, RetryCount,
    RnrTimer, SendRequest,
};
use fabric::sm::{SmConfig, SmLimits};
use fabric::srq::SrqId;
use fabric::subnet::Subnet;
use fabric::{Fabric, FabricConfig};
use ipoib_rs::action::{AddressVector, PathRecord};
use ipoib_rs::ib::Psn;
use ipoib_rs::ib::{Gid, IbMtu, Lid, Pkey, PkeyIndex, Qkey, RateCode, ServiceLevel};
use ipoib_rs::interface::{ConnectedSupport, Mode};
use ipoib_rs::limits::Limits;
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{BroadcastGroup, EtherType, LinkAddress, Scope};

/// The largest packet of connected mode.
const LARGE_BYTES: usize = 65_520;
/// Packets that are sent before the others look.
const BATCH_LEN: usize = 64;
/// Batches of one measurement: some milliseconds, and every one of 10,000 neighbours once.
const BATCHES: usize = 160;
/// Measurements of which the best counts: the machine does other things as well.
const ROUNDS: usize = 200;

fn main() {
    println!("{:<38} {:>11} {:>10} {:>7} {:>13}", "", "packets/s", "MB/s", "ns", "alloc/packet");
    for bytes in [64, 2044] {
        let mut pair = Pair::new();
        report(&format!("fabric alone, {bytes} bytes"), bytes, || pair.exchange(bytes));
    }
    for (name, retry_count) in [("connected", 0), ("with retries", 1)] {
        for bytes in [64, 2044, 65_540] {
            let mut link = Link::new(RetryCount::new(retry_count).unwrap());
            let name = format!("fabric, {name}, {bytes} bytes");
            report(&name, bytes, || link.exchange(bytes));
        }
    }
    let [_, datagrams] = [64, 2044].map(|bytes| {
        let mut hosts = Hosts::new(1, Mode::Datagram);
        let name = format!("core + fabric + core, {bytes} bytes");
        report(&name, bytes, || hosts.exchange(bytes))
    });
    let [_, messages] = [2044, LARGE_BYTES].map(|bytes| {
        let mut hosts = Hosts::new(1, Mode::Connected);
        hosts.assert_connected();
        let name = format!("the same by a connection, {bytes} bytes");
        report(&name, bytes, || hosts.exchange(bytes))
    });
    let [few, many] = [10, 10_000].map(|neighbors| {
        let mut hosts = Hosts::new(neighbors, Mode::Datagram);
        report(&format!("the same, 64 bytes, {neighbors} neighbors"), 64, || hosts.exchange(64))
    });
    println!("rate with 10000 neighbors / with 10: {:.2}", many / few);
    let ratio = datagrams * 2044.0 / (messages * LARGE_BYTES as f64);
    println!("cost of a byte by a connection / by 2044-byte datagrams: {ratio:.4}");
}

/// Measures `batch`, which moves [`BATCH_LEN`] packets of `bytes` bytes, and prints a line. Packets
/// per second.
fn report(name: &str, bytes: usize, mut batch: impl FnMut()) -> f64 {
    // Every neighbour's path is in use, every buffer made.
    (0..BATCHES).for_each(|_| batch());
    let allocations = allocation_counter::measure(|| (0..BATCHES).for_each(|_| batch()));
    let best = (0..ROUNDS)
        .map(|_| {
            let start = Clock::now();
            (0..BATCHES).for_each(|_| batch());
            start.elapsed()
        })
        .min()
        .unwrap_or_default();
    let packets = (BATCHES * BATCH_LEN) as f64;
    let rate = packets / best.as_secs_f64();
    let per_packet = allocations.count_total as f64 / packets;
    let megabytes = rate * bytes as f64 / 1e6;
    let nanos = 1e9 / rate;
    println!("{name:<38} {rate:>11.0} {megabytes:>10.0} {nanos:>7.1} {per_packet:>13.6}");
    rate
}

/// Two queue pairs.
struct Pair {
    fabric: Fabric,
    sender: QpId,
    receiver: QpId,
    send_cq: CqId,
    receive_cq: CqId,
    request: SendRequest,
}

const QKEY: Qkey = Qkey(0x0B1B);

impl Pair {
    fn new() -> Self {
        let mut fabric = Fabric::new(FabricConfig::DEFAULT).unwrap();
        let [(sender, send_cq, _), (receiver, _, receive_cq)] = [1, 2].map(|number| {
            let port = plug(&mut fabric, number, 1);
            let hca = fabric.query_port(port).unwrap().hca;
            fabric.set_lid(port, Lid::new(number)).unwrap();
            fabric.set_port_state(port, PortState::Active).unwrap();
            let send_cq = fabric.create_cq(hca, 256, 0).unwrap();
            let receive_cq = fabric.create_cq(hca, 256, 0).unwrap();
            let config = QpConfig {
                qp_type: QpType::Ud,
                send_cq,
                receive_cq,
                sends_max: 128,
                receives_max: 128,
            };
            let qp = fabric.create_qp(port, &config).unwrap();
            let init = QpChange::Init { pkey_index: PkeyIndex(0), qkey: QKEY };
            for change in [init, QpChange::ReadyToReceive, QpChange::ReadyToSend] {
                fabric.modify_qp(qp, &change).unwrap();
            }
            (qp, send_cq, receive_cq)
        });
        let address = AddressVector {
            lid: 2,
            sl: ServiceLevel::default(),
            rate: RateCode::new(3).unwrap(),
            grh: None,
        };
        let port = fabric.ports().next().unwrap();
        let ah = fabric.create_ah(port, &address).unwrap();
        let remote_qpn = fabric.qpn(receiver).unwrap();
        while fabric.poll_event().is_some() {}
        Self {
            fabric,
            sender,
            receiver,
            send_cq,
            receive_cq,
            request: SendRequest { wr_id: 0, ah, remote_qpn, qkey: QKEY, pkey_index: PkeyIndex(0) },
        }
    }

    fn exchange(&mut self, bytes: usize) {
        let fabric = &mut self.fabric;
        for _ in 0..BATCH_LEN {
            let receive = ReceiveRequest { wr_id: 0, bytes: 2088 };
            fabric.post_receive(self.receiver, receive).unwrap();
            let packet = fabric.allocate(bytes).unwrap();
            fabric.post_send(self.sender, self.request, packet).unwrap();
        }
        while let Some(transit) = fabric.poll_transit() {
            fabric.deliver(transit);
        }
        let sent = std::iter::from_fn(|| fabric.poll_cq(self.send_cq)).count();
        let mut received = 0;
        while let Some(completion) = fabric.poll_cq(self.receive_cq) {
            let Outcome::Received(arrival) = completion.outcome else {
                panic!("{completion:?}");
            };
            fabric.pool_mut().free(arrival.packet);
            received += 1;
        }
        assert_eq!((sent, received), (BATCH_LEN, BATCH_LEN));
    }
}

/// Two connected queue pairs, of which the receiver takes its receives from a shared queue.
struct Link {
    fabric: Fabric,
    sender: QpId,
    send_cq: CqId,
    receive_cq: CqId,
    srq: SrqId,
}

impl Link {
    fn new(retry_count: RetryCount) -> Self {
        let mut fabric = Fabric::new(FabricConfig::DEFAULT).unwrap();
        let ends = [1, 2].map(|number| {
            let port = plug(&mut fabric, number, 1);
            let hca = fabric.query_port(port).unwrap().hca;
            fabric.set_lid(port, Lid::new(number)).unwrap();
            fabric.set_port_state(port, PortState::Active).unwrap();
            let [send_cq, receive_cq] = [(); 2].map(|()| fabric.create_cq(hca, 256, 0).unwrap());
            let srq = fabric.create_srq(hca, 128).unwrap();
            let config = QpConfig {
                qp_type: QpType::Rc { srq: Some(srq) },
                send_cq,
                receive_cq,
                sends_max: 128,
                receives_max: 0,
            };
            let qp = fabric.create_qp(port, &config).unwrap();
            (qp, send_cq, receive_cq, srq)
        });
        for (own, peer) in [(0, 1), (1, 0)] {
            let receive = RcReadyToReceive {
                address: AddressVector {
                    lid: peer as u16 + 1,
                    sl: ServiceLevel::default(),
                    rate: RateCode::new(3).unwrap(),
                    grh: None,
                },
                remote_qpn: fabric.qpn(ends[peer].0).unwrap(),
                starting_psn: Psn::MAX,
                path_mtu: IbMtu::Mtu2048,
                rnr_timer: RnrTimer::default(),
            };
            let send = RcReadyToSend {
                starting_psn: Psn::MAX,
                retry_count,
                rnr_retry_count: RetryCount::NONE,
            };
            let init = QpChange::Init { pkey_index: PkeyIndex(0), qkey: QKEY };
            let receive = QpChange::RcReadyToReceive(receive);
            for change in [init, receive, QpChange::RcReadyToSend(send)] {
                fabric.modify_qp(ends[own].0, &change).unwrap();
            }
        }
        let [(sender, send_cq, ..), (_, _, receive_cq, srq)] = ends;
        Self { fabric, sender, send_cq, receive_cq, srq }
    }

    /// In halves, because a sender with retries keeps its packets while their copies travel.
    fn exchange(&mut self, bytes: usize) {
        for _ in 0..2 {
            self.exchange_half(bytes);
        }
    }

    fn exchange_half(&mut self, bytes: usize) {
        let fabric = &mut self.fabric;
        for wr_id in 0..BATCH_LEN as u64 / 2 {
            let receive = ReceiveRequest { wr_id, bytes: 65_540 };
            fabric.post_srq_receive(self.srq, receive).unwrap();
            let packet = fabric.allocate(bytes).unwrap();
            fabric.post_message(self.sender, wr_id, packet).unwrap();
        }
        while let Some(transit) = fabric.poll_transit() {
            fabric.deliver(transit);
        }
        let sent = std::iter::from_fn(|| fabric.poll_cq(self.send_cq)).count();
        let mut received = 0;
        while let Some(completion) = fabric.poll_cq(self.receive_cq) {
            let Outcome::Received(arrival) = completion.outcome else {
                panic!("{completion:?}");
            };
            fabric.pool_mut().free(arrival.packet);
            received += 1;
        }
        assert_eq!((sent, received), (BATCH_LEN / 2, BATCH_LEN / 2));
    }
}

/// Two hosts, of which the receiver has many addresses.
struct Hosts {
    fabric: Fabric,
    nodes: [Node; 2],
    neighbors: Vec<LinkAddress>,
    next: usize,
}

impl Hosts {
    fn new(neighbor_count: u16, mode: Mode) -> Self {
        let pool = PoolLimits { large_max: 2 * BATCH_LEN as u32, ..PoolLimits::DEFAULT };
        let mut fabric = Fabric::new(FabricConfig { pool, ..FabricConfig::DEFAULT }).unwrap();
        let manager = plug(&mut fabric, 1, 1);
        let config = SmConfig::new(SmLimits::DEFAULT);
        let rate = RateCode::new(3).unwrap();
        let mut subnet = Subnet::new(&mut fabric, manager, config, rate, 0).unwrap();
        let mgid = BroadcastGroup::new(Scope::LINK_LOCAL, Pkey::DEFAULT).mgid();
        let group = config.group;
        subnet.manager_mut().create_group(mgid, Pkey::DEFAULT, group).unwrap();
        let nodes = [2, 3].map(|number| {
            let port = plug(&mut fabric, number, neighbor_count + 1);
            subnet.link_up(&mut fabric, port).unwrap();
            host(&mut fabric, port, mode)
        });
        let mut hosts = Self { fabric, nodes, neighbors: Vec::new(), next: 0 };
        hosts.settle(|fabric| subnet.poll(fabric));
        for node in &hosts.nodes {
            assert!(node.interface(InterfaceId::FIRST).unwrap().is_link_up());
        }
        subnet.close(&mut hosts.fabric);
        hosts.meet(manager, neighbor_count);
        hosts
    }

    /// Gives the receiver its addresses and lets the sender find the path to each.
    fn meet(&mut self, manager: PortId, neighbor_count: u16) {
        let receiver = &self.nodes[1];
        let own = receiver.interface(InterfaceId::FIRST).unwrap().address();
        let gid = |number| Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x1000_0000 + u64::from(number));
        let aliases = (0..neighbor_count).map(gid);
        self.fabric.set_gids(receiver.port(), 1, aliases.clone()).unwrap();
        self.neighbors = aliases.map(|gid| LinkAddress::new(own.flags(), own.qpn(), gid)).collect();
        let lid = self.fabric.query_port(receiver.port()).unwrap().lid.unwrap();
        let mut gsi = Gsi::open(&mut self.fabric, manager, 0).unwrap();
        let agent = gsi.register(Role::Server { class: SA_CLASS }).unwrap();
        for _ in 0..usize::from(neighbor_count).div_ceil(BATCH_LEN) {
            self.send_batch(64);
            self.settle(|fabric| answer_paths(fabric, &mut gsi, agent, lid));
            self.take_delivered();
        }
        self.next = 0;
        gsi.close(&mut self.fabric);
    }

    fn assert_connected(&self) {
        let interface = self.nodes[0].interface(InterfaceId::FIRST).unwrap();
        let mut rows = interface.neighbors();
        assert!(rows.all(|row| row.transport == "connected" && row.mtu == LARGE_BYTES));
    }

    fn settle(&mut self, mut manager: impl FnMut(&mut Fabric)) {
        for _ in 0..100 {
            while let Some(event) = self.fabric.poll_event() {
                for node in &mut self.nodes {
                    node.handle_event(Instant::ZERO, &mut self.fabric, event);
                }
            }
            self.carry();
            manager(&mut self.fabric);
            while self.fabric.poll_notification().is_some() {}
        }
    }

    /// Lets packets arrive and the nodes look.
    fn carry(&mut self) {
        while let Some(transit) = self.fabric.poll_transit() {
            self.fabric.deliver(transit);
        }
        for node in &mut self.nodes {
            node.run(Instant::ZERO, &mut self.fabric);
        }
    }

    fn send_batch(&mut self, bytes: usize) -> usize {
        for _ in 0..BATCH_LEN {
            let to = self.neighbors[self.next];
            self.next = (self.next + 1) % self.neighbors.len();
            let mut packet = self.fabric.allocate(bytes).unwrap();
            packet.bytes_mut()[0] = 0x60;
            let sent = self.nodes[0].handle_transmit(
                Instant::ZERO,
                &mut self.fabric,
                InterfaceId::FIRST,
                &to,
                EtherType::IPV6,
                packet,
            );
            assert!(sent.is_ok(), "the send ring is longer than a batch");
        }
        self.carry();
        self.take_delivered()
    }

    fn take_delivered(&mut self) -> usize {
        let mut count = 0;
        while let Some(delivered) = self.nodes[1].poll_delivered() {
            self.fabric.pool_mut().free(delivered.packet);
            count += 1;
        }
        count
    }

    fn exchange(&mut self, bytes: usize) {
        let received = self.send_batch(bytes);
        assert_eq!(received, BATCH_LEN);
        while self.fabric.poll_notification().is_some() {}
    }
}

fn plug(fabric: &mut Fabric, number: u16, gid_table_len: u16) -> PortId {
    let config = HcaConfig { gid_table_len, ..HcaConfig::with_guid(u64::from(number) << 8) };
    let hca = fabric.add_hca(&config).unwrap();
    fabric.hca_ports(hca).next().unwrap()
}

fn host(fabric: &mut Fabric, port: PortId, mode: Mode) -> Node {
    let mut node = Node::new(fabric, port, &NodeConfig::with_context(1)).unwrap();
    let config = InterfaceConfig {
        pkey: None,
        scope: Scope::LINK_LOCAL,
        mode,
        connected: Some(ConnectedSupport { mtu_max: LARGE_BYTES, shares_receives: true }),
        seed: 1,
        limits: Limits { paths_max: 16_384, ..Limits::DEFAULT },
    };
    let id = node.add_interface(fabric, &config).unwrap();
    node.handle_admin_up(Instant::ZERO, fabric, id);
    node
}

/// Answers every query for a path with the one LID.
fn answer_paths(fabric: &mut Fabric, gsi: &mut Gsi, agent: AgentId, lid: Lid) {
    gsi.poll(fabric);
    while let Some(received) = gsi.poll_mad(agent) {
        let Ok(message) = mad::parse(&received.bytes) else {
            continue;
        };
        if message.mad.attribute() != Some(Attribute::PathRecord) {
            continue;
        }
        let query = message.mad.record::<PathRecordWire>();
        let record = PathRecord {
            destination: query.destination,
            lid,
            sl: ServiceLevel::default(),
            mtu: IbMtu::Mtu2048,
            rate: RateCode::new(3).unwrap(),
            global: None,
        };
        let source = (query.source, received.source.lid);
        let answer = PathRecordWire::answer(&record, source, Pkey::DEFAULT, 18);
        let mad = message.mad.answer(Attribute::PathRecord, &answer);
        gsi.send(fabric, &received.source, &mad.to_bytes()).unwrap();
    }
}
