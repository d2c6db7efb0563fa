//! An interface with nothing around it: every action is seen, every answer is given by the test.
//!
//! [`Bench`] plays the shell through the same [`pump`] as the real ones. Its packets panic when
//! they are dropped silently, so that every test is a test of ownership as well.

#![allow(dead_code, unreachable_pub, reason = "each test file is a crate and uses a part of it")]

mod fixtures;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

pub use fixtures::*;
use ipoib_rs::action::{
    Action, AddressVector, ConnectError, ConnectRequest, ConnectionId, ConnectionParameters,
    GroupRecord, HandleId, JoinRequest, OpId, PathQuery, PathRecord, QueuePairChange, RejectReason,
    RequestId, SaCapabilities, SaError, VerbError,
};
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::event::Event;
use ipoib_rs::ib::{Mgid, Mlid, PortAttributes, Qpn, ServiceId};
use ipoib_rs::interface::{
    Config, ConnectedSupport, IncomingRequest, Interface, Mode, ModeError, PortEvent, RingFull,
};
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::{
    CompletionStatus, ConnectedReceive, ConnectedSend, DataPath, DatagramSend, Delivery,
    NoHeadroom, PacketBuf, PacketSink, PostReceiveError, Receive, ReceiveQueue, SendId,
    ShortPacket,
};
use ipoib_rs::pump::{PumpingShell, Shell, pump};
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{EtherType, LinkAddress, Scope};

/// A packet whose silent end is a failure.
#[derive(Debug)]
pub struct Packet {
    bytes: Vec<u8>,
    has_headroom: bool,
    is_ended: bool,
}

impl Packet {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), has_headroom: true, is_ended: false }
    }

    pub fn without_headroom(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), has_headroom: false, is_ended: false }
    }

    /// The end that somebody is responsible for.
    pub fn end(mut self) -> Vec<u8> {
        self.is_ended = true;
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        assert!(self.is_ended || std::thread::panicking(), "a packet was dropped silently");
    }
}

impl PacketBuf for Packet {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), ShortPacket> {
        let range = offset..offset + out.len();
        out.copy_from_slice(self.bytes.get(range).ok_or(ShortPacket)?);
        Ok(())
    }

    fn prepend(&mut self, bytes: &[u8]) -> Result<(), NoHeadroom> {
        if !self.has_headroom {
            return Err(NoHeadroom);
        }
        self.bytes.splice(0..0, bytes.iter().copied());
        Ok(())
    }

    fn trim_front(&mut self, count: usize) -> Result<(), ShortPacket> {
        if count > self.bytes.len() {
            return Err(ShortPacket);
        }
        self.bytes.drain(..count);
        Ok(())
    }
}

/// An adapter that has a shared receive queue and takes everything.
const SHARING: ConnectedSupport = ConnectedSupport { mtu_max: 65520, shares_receives: true };

/// What became of packets.
#[derive(Debug, Default)]
pub struct Adapter {
    pub posted: VecDeque<(DatagramSend, Packet)>,
    /// Everything that was ever posted: to which handle and queue pair, and the bytes.
    pub wire: Vec<(DatagramSend, Vec<u8>)>,
    pub receives_posted: u32,
    pub delivered: Vec<(Vec<u8>, Delivery)>,
    pub dropped: Vec<DropReason>,
    pub too_big: Vec<usize>,
    pub released: u32,
    pub refuses_sends: bool,
    pub refuses_receives: bool,
    pub refuses_fragments: bool,
    pub posted_connected: VecDeque<(ConnectedSend, Packet)>,
    /// Everything that was ever posted on a connection.
    pub connected_wire: Vec<(ConnectedSend, Vec<u8>)>,
    pub shared_receives_posted: u32,
    /// Receives on queues of their own, by connection.
    pub own_receives_posted: BTreeMap<usize, u32>,
    pub refuses_connected_sends: bool,
}

impl PacketSink<Packet> for Adapter {
    fn deliver(&mut self, packet: Packet, delivery: Delivery) {
        self.delivered.push((packet.end(), delivery));
    }

    fn drop_packet(&mut self, packet: Packet, reason: DropReason) {
        packet.end();
        self.dropped.push(reason);
    }

    fn release(&mut self, packet: Packet) {
        packet.end();
        self.released += 1;
    }

    fn packet_too_big(&mut self, packet: Packet, mtu: usize) {
        packet.end();
        self.too_big.push(mtu);
    }
}

impl DataPath<Packet> for &mut Adapter {
    fn post_send(&mut self, send: DatagramSend, packet: Packet) -> Result<(), Packet> {
        if self.refuses_sends {
            return Err(packet);
        }
        self.wire.push((send, packet.bytes.clone()));
        self.posted.push_back((send, packet));
        Ok(())
    }

    fn post_connected_send(&mut self, send: ConnectedSend, packet: Packet) -> Result<(), Packet> {
        if self.refuses_connected_sends {
            return Err(packet);
        }
        self.connected_wire.push((send, packet.bytes.clone()));
        self.posted_connected.push_back((send, packet));
        Ok(())
    }

    fn post_connected_receive(
        &mut self,
        queue: ReceiveQueue,
        bytes: usize,
    ) -> Result<(), PostReceiveError> {
        assert!(bytes <= 65524);
        if self.refuses_receives {
            return Err(PostReceiveError);
        }
        match queue {
            ReceiveQueue::Shared => self.shared_receives_posted += 1,
            ReceiveQueue::Of(connection) => {
                *self.own_receives_posted.entry(connection.index()).or_default() += 1;
            }
        }
        Ok(())
    }

    fn post_receive(&mut self, bytes: usize) -> Result<(), PostReceiveError> {
        assert!(bytes >= 40 + 2048);
        if self.refuses_receives {
            return Err(PostReceiveError);
        }
        self.receives_posted += 1;
        Ok(())
    }

    fn fragment(
        &mut self,
        packet: &Packet,
        header: &[u8],
        payload: Range<usize>,
    ) -> Option<Packet> {
        if self.refuses_fragments {
            return None;
        }
        Some(Packet::new([header, &packet.bytes[payload]].concat()))
    }
}

impl PacketSink<Packet> for &mut Adapter {
    fn deliver(&mut self, packet: Packet, delivery: Delivery) {
        (**self).deliver(packet, delivery);
    }

    fn drop_packet(&mut self, packet: Packet, reason: DropReason) {
        (**self).drop_packet(packet, reason);
    }

    fn release(&mut self, packet: Packet) {
        (**self).release(packet);
    }

    fn packet_too_big(&mut self, packet: Packet, mtu: usize) {
        (**self).packet_too_big(packet, mtu);
    }
}

/// An interface and the test that plays everything else.
pub struct Bench {
    pub interface: Interface<Packet>,
    pub adapter: Adapter,
    pub now: Instant,
    pub port: PortAttributes,
    /// Actions that were not answered yet.
    pub actions: VecDeque<Action>,
    pub events: Vec<Event>,
    pub deadline: Option<Instant>,
    /// Address handles that exist.
    pub handles: Vec<(HandleId, AddressVector)>,
    /// Groups that the queue pair is attached to.
    pub attached: Vec<(Mgid, Mlid)>,
    /// Memberships at the SA, by group and JoinState bit.
    pub members: Vec<(Mgid, u8)>,
    pub wakes: u32,
    /// Connections that exist at the adapter.
    pub connections: Vec<ConnectionId>,
    pub is_listening: bool,
    pub shares_receives: bool,
}

impl Shell for Bench {
    type Packet = Packet;
    type DataPath<'a> = &'a mut Adapter;

    fn with_interface<R>(
        &mut self,
        feed: impl FnOnce(&mut Interface<Packet>, &mut Self::DataPath<'_>) -> R,
    ) -> R {
        let mut adapter = &mut self.adapter;
        feed(&mut self.interface, &mut adapter)
    }

    fn release_packets(&mut self) {}
}

impl PumpingShell for Bench {
    fn observe(&mut self, event: Event) {
        self.events.push(event);
    }

    fn execute(&mut self, action: Action) {
        match action {
            Action::WakeSendQueue => self.wakes += 1,
            action => self.actions.push_back(action),
        }
    }

    fn schedule(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }
}

impl Bench {
    /// Attached, administratively down, in datagram mode.
    pub fn new(port: PortAttributes, limits: Limits) -> Self {
        Self::new_with(port, limits, Mode::Datagram, SHARING)
    }

    /// Attached, administratively down.
    pub fn new_with(
        port: PortAttributes,
        limits: Limits,
        mode: Mode,
        support: ConnectedSupport,
    ) -> Self {
        let (scope, connected) = (Scope::LINK_LOCAL, Some(support));
        let config = Config { qpn: OWN_QPN, port, scope, mode, connected, seed: 1, limits };
        Self {
            interface: Interface::attach(config).unwrap(),
            adapter: Adapter::default(),
            now: Instant::from_millis(1),
            port,
            actions: VecDeque::new(),
            events: Vec::new(),
            deadline: None,
            handles: Vec::new(),
            attached: Vec::new(),
            members: Vec::new(),
            wakes: 0,
            connections: Vec::new(),
            is_listening: false,
            shares_receives: support.shares_receives,
        }
    }

    /// Up, with carrier, with the default limits.
    pub fn joined() -> Self {
        Self::joined_with(Limits::DEFAULT)
    }

    pub fn joined_with(limits: Limits) -> Self {
        let mut bench = Self::new(port(), limits);
        bench.admin_up();
        bench.answer_all();
        assert!(bench.interface.is_link_up(), "{}", bench.interface.state_name());
        bench
    }

    /// Up, with carrier, in connected mode.
    pub fn connected() -> Self {
        Self::connected_with(Limits::DEFAULT, true)
    }

    pub fn connected_with(limits: Limits, shares_receives: bool) -> Self {
        Self::connected_on(limits, ConnectedSupport { shares_receives, ..SHARING })
    }

    pub fn connected_on(limits: Limits, support: ConnectedSupport) -> Self {
        let mut bench = Self::new_with(port(), limits, Mode::Connected, support);
        bench.admin_up();
        bench.answer_all();
        assert!(bench.interface.is_link_up() && bench.is_listening);
        bench
    }

    /// Connected, with a path to peer 1 whose REQ waits to be answered.
    pub fn asking() -> Self {
        let mut bench = Self::connected();
        bench.send(&connected_peer(1), EtherType::IPV4, ipv4(100, false)).unwrap();
        bench.answer_where(|action| !matches!(action, Action::OpenConnection { .. }));
        assert_eq!((bench.adapter.wire.len(), bench.opens_waiting()), (1, 1));
        bench.complete_all();
        bench
    }

    pub fn admin_up(&mut self) {
        let now = self.now;
        pump(self, |interface, adapter| interface.handle_admin_up(now, adapter));
    }

    pub fn admin_down(&mut self) {
        let now = self.now;
        pump(self, |interface, adapter| interface.handle_admin_down(now, adapter));
    }

    pub fn detach(&mut self) {
        let now = self.now;
        pump(self, |interface, adapter| interface.handle_detach(now, adapter));
    }

    /// Changes the port and reports it.
    pub fn port_event(&mut self, event: PortEvent, change: impl FnOnce(&mut PortAttributes)) {
        change(&mut self.port);
        if !self.port.is_active {
            // The subnet manager drops the members of a port that is down.
            self.members.clear();
        }
        let (now, port) = (self.now, self.port);
        pump(self, |interface, adapter| interface.handle_port_event(now, event, &port, adapter));
    }

    pub fn listen(&mut self, list: &[&[u8]]) {
        let now = self.now;
        let list: Vec<&[u8]> = list.to_vec();
        pump(self, |interface, adapter| {
            interface.handle_multicast_list(now, list.iter().copied(), adapter);
        });
    }

    /// Sends; returns the packet's bytes if the ring was full.
    pub fn send(
        &mut self,
        to: &LinkAddress,
        protocol: EtherType,
        bytes: impl Into<Vec<u8>>,
    ) -> Result<(), Vec<u8>> {
        let (now, packet) = (self.now, Packet::new(bytes));
        let outcome = pump(self, |interface, adapter| {
            interface.handle_transmit(now, to, protocol, packet, adapter)
        });
        outcome.map_err(|RingFull(packet)| packet.end())
    }

    /// Completes the oldest posted send.
    pub fn complete(&mut self, status: CompletionStatus) {
        let (send, packet) = self.adapter.posted.pop_front().expect("something is posted");
        packet.end();
        self.complete_id(send.id, status);
    }

    pub fn complete_id(&mut self, id: SendId, status: CompletionStatus) {
        let now = self.now;
        pump(self, |interface, adapter| {
            interface.handle_send_completion(now, id, status, adapter);
        });
    }

    pub fn complete_all(&mut self) {
        while !self.adapter.posted.is_empty() {
            self.complete(CompletionStatus::Success);
        }
    }

    pub fn receive(&mut self, receive: Receive<Packet>) {
        let now = self.now;
        self.adapter.receives_posted -= 1;
        pump(self, |interface, adapter| interface.handle_receive(now, receive, adapter));
    }

    pub fn receive_failed(&mut self, status: CompletionStatus) {
        let now = self.now;
        self.adapter.receives_posted -= 1;
        pump(self, |interface, adapter| interface.handle_receive_failed(now, status, adapter));
    }

    /// Lets time pass, with every deadline on the way.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(deadline) = self.deadline.filter(|&at| at <= end) {
            self.now = self.now.max(deadline);
            let now = self.now;
            pump(self, |interface, adapter| interface.handle_timeout(now, adapter));
            assert!(self.deadline.is_none_or(|next| next > now), "a timer that fires for ever");
        }
        self.now = end;
    }

    /// Answers everything, for as long as answers lead to actions, as a fabric in order does.
    pub fn answer_all(&mut self) {
        for _ in 0..10_000 {
            let Some(action) = self.actions.pop_front() else {
                return;
            };
            self.answer(action);
        }
        panic!("actions never end");
    }

    /// Answers the actions for which `is_it` says so, and leaves the others.
    pub fn answer_where(&mut self, is_it: impl Fn(&Action) -> bool) {
        while let Some(at) = self.actions.iter().position(&is_it) {
            let action = self.actions.remove(at).unwrap();
            self.answer(action);
        }
    }

    /// Answers one action with success.
    pub fn answer(&mut self, action: Action) {
        match action {
            Action::AttachGroup { op, mgid, mlid } => {
                assert!(!self.attached.contains(&(mgid, mlid)), "attached twice");
                self.attached.push((mgid, mlid));
                self.verb(op, Ok(()));
            }
            Action::DetachGroup { op, mgid, mlid } => {
                let before = self.attached.len();
                self.attached.retain(|&one| one != (mgid, mlid));
                assert_eq!(self.attached.len() + 1, before, "detached what was not attached");
                self.verb(op, Ok(()));
            }
            Action::CreateAddressHandle { op, handle, address } => {
                assert!(self.handles.iter().all(|(one, _)| *one != handle), "created twice");
                self.handles.push((handle, address));
                self.verb(op, Ok(()));
            }
            Action::DestroyAddressHandle { op, handle } => {
                let is_used = self.adapter.posted.iter().any(|(send, _)| send.handle == handle);
                assert!(!is_used, "destroyed under a posted send");
                self.handles.retain(|(one, _)| *one != handle);
                self.verb(op, Ok(()));
            }
            Action::ModifyQueuePair { op, change } => self.modify(op, change),
            action @ (Action::AcceptConnection { .. }
            | Action::DestroyConnection { .. }
            | Action::ErrConnection { .. }
            | Action::Listen { .. }
            | Action::OpenConnection { .. }
            | Action::PostDrainMarker { .. }
            | Action::Unlisten { .. }) => self.answer_connection(action),
            Action::JoinGroup { op, request } => {
                self.join_answer(op, Ok(record_of(&request)));
                self.members.push((request.mgid, request.membership.join_state()));
            }
            Action::LeaveGroup { op, mgid, membership, .. } => {
                self.members.retain(|&one| one != (mgid, membership.join_state()));
                self.leave_answer(op, Ok(()));
            }
            Action::QueryPath { op, query } => self.path_answer(op, Ok(path_to(&query))),
            Action::QuerySaCapabilities { op } => {
                self.capabilities(op, SaCapabilities { send_only_full_member: true });
            }
            Action::CancelQuery { .. } | Action::WakeSendQueue => {}
        }
    }

    /// Answers an action that concerns a connection.
    fn answer_connection(&mut self, action: Action) {
        match action {
            Action::Listen { op, service } => {
                assert_eq!(service, ServiceId::of_interface(OWN_QPN));
                self.is_listening = true;
                self.verb(op, Ok(()));
            }
            Action::Unlisten { op } => {
                self.is_listening = false;
                self.verb(op, Ok(()));
            }
            Action::OpenConnection { op, connection, request } => {
                let qpn = Qpn::new((request.service.0 & 0xFF_FFFF) as u32).unwrap();
                self.open(connection);
                self.connect_answer(op, Ok(ConnectionParameters { qpn, receive_mtu: 65524 }));
            }
            Action::AcceptConnection { op, connection, .. } => {
                self.open(connection);
                self.verb(op, Ok(()));
            }
            Action::ErrConnection { op, connection } => {
                self.verb(op, Ok(()));
                self.flush_receives(connection);
            }
            Action::PostDrainMarker { op, .. } => self.verb(op, Ok(())),
            Action::DestroyConnection { op, connection } => {
                while let Some(at) = self.posted_on(connection) {
                    let (send, packet) = self.adapter.posted_connected.remove(at).unwrap();
                    packet.end();
                    self.complete_id(send.id, CompletionStatus::Flushed);
                }
                self.connections.retain(|&one| one != connection);
                self.verb(op, Ok(()));
            }
            other => panic!("{other:?} concerns no connection"),
        }
    }

    fn modify(&mut self, op: OpId, change: QueuePairChange) {
        self.verb(op, Ok(()));
        match change {
            QueuePairChange::Error => {
                while !self.adapter.posted.is_empty() {
                    self.complete(CompletionStatus::Flushed);
                }
                while self.adapter.receives_posted > 0 {
                    self.receive_failed(CompletionStatus::Flushed);
                }
            }
            QueuePairChange::Reset
            | QueuePairChange::ReadyToSend { .. }
            | QueuePairChange::SetQkey { .. } => {}
        }
    }

    pub fn open(&mut self, connection: ConnectionId) {
        assert!(!self.connections.contains(&connection), "opened twice");
        self.connections.push(connection);
    }

    fn posted_on(&self, connection: ConnectionId) -> Option<usize> {
        let posted = &self.adapter.posted_connected;
        posted.iter().position(|(send, _)| send.connection == connection)
    }

    /// What an adapter does with the receives of a queue pair that went to the error state.
    fn flush_receives(&mut self, connection: ConnectionId) {
        if self.shares_receives {
            pump(self, |interface, _| interface.handle_last_wqe(connection));
            return;
        }
        let now = self.now;
        while let Some(posted) = self.adapter.own_receives_posted.get_mut(&connection.index()) {
            if *posted == 0 {
                break;
            }
            *posted -= 1;
            let status = CompletionStatus::Flushed;
            pump(self, |interface, adapter| {
                interface.handle_connected_receive_failed(now, connection, status, adapter);
            });
        }
    }

    /// Completes the oldest send that is posted on a connection.
    pub fn complete_connected(&mut self, status: CompletionStatus) {
        let posted = self.adapter.posted_connected.pop_front();
        let (send, packet) = posted.expect("something is posted on a connection");
        packet.end();
        self.complete_id(send.id, status);
    }

    pub fn connect_answer(&mut self, op: OpId, answer: Result<ConnectionParameters, ConnectError>) {
        let now = self.now;
        pump(self, |interface, adapter| {
            interface.handle_connect_answer(now, op, answer, adapter);
        });
    }

    pub fn connection_lost(&mut self, connection: ConnectionId) {
        let now = self.now;
        pump(self, |interface, adapter| {
            interface.handle_connection_lost(now, connection, adapter);
        });
    }

    /// A peer asks for a connection.
    pub fn request(&mut self, from: &LinkAddress, receive_mtu: u32) -> Result<(), RejectReason> {
        let now = self.now;
        let peer = ConnectionParameters { qpn: from.qpn(), receive_mtu };
        let request = IncomingRequest { id: RequestId(7), gid: from.gid(), peer };
        pump(self, |interface, _| interface.handle_connect_request(now, request))
    }

    pub fn receive_connected(&mut self, connection: ConnectionId, bytes: impl Into<Vec<u8>>) {
        let (now, packet) = (self.now, Packet::new(bytes));
        if self.shares_receives {
            self.adapter.shared_receives_posted -= 1;
        } else if let Some(posted) = self.adapter.own_receives_posted.get_mut(&connection.index()) {
            *posted -= 1;
        }
        pump(self, |interface, adapter| {
            let receive = ConnectedReceive { connection, packet };
            interface.handle_connected_receive(now, receive, adapter);
        });
    }

    pub fn mode(&mut self, mode: Mode) -> Result<(), ModeError> {
        let now = self.now;
        pump(self, |interface, adapter| interface.handle_mode(now, mode, adapter))
    }

    /// Takes the one connection request that waits.
    pub fn take_open(&mut self) -> (OpId, ConnectionId, ConnectRequest) {
        let is_open = |action: &Action| matches!(action, Action::OpenConnection { .. });
        let at = self.actions.iter().position(is_open);
        match self.actions.remove(at.expect("a connection is asked for")) {
            Some(Action::OpenConnection { op, connection, request }) => {
                self.open(connection);
                (op, connection, request)
            }
            _ => unreachable!(),
        }
    }

    pub fn opens_waiting(&self) -> usize {
        let is_open = |action: &&Action| matches!(action, Action::OpenConnection { .. });
        self.actions.iter().filter(is_open).count()
    }

    pub fn verb(&mut self, op: OpId, result: Result<(), VerbError>) {
        let now = self.now;
        pump(self, |interface, adapter| interface.handle_verb_result(now, op, result, adapter));
    }

    pub fn join_answer(&mut self, op: OpId, answer: Result<GroupRecord, SaError>) {
        let now = self.now;
        pump(self, |interface, adapter| interface.handle_join_answer(now, op, answer, adapter));
    }

    pub fn leave_answer(&mut self, op: OpId, answer: Result<(), SaError>) {
        let now = self.now;
        pump(self, |interface, adapter| interface.handle_leave_answer(now, op, answer, adapter));
    }

    pub fn path_answer(&mut self, op: OpId, answer: Result<PathRecord, SaError>) {
        let now = self.now;
        pump(self, |interface, adapter| interface.handle_path_answer(now, op, answer, adapter));
    }

    pub fn capabilities(&mut self, op: OpId, capabilities: SaCapabilities) {
        pump(self, |interface, _| interface.handle_sa_capabilities(op, Ok(capabilities)));
    }

    /// Takes the one action that waits, which must be a path query.
    pub fn take_query(&mut self) -> (OpId, PathQuery) {
        let at = self.actions.iter().position(|action| matches!(action, Action::QueryPath { .. }));
        match self.actions.remove(at.expect("a path query is waiting")) {
            Some(Action::QueryPath { op, query }) => (op, query),
            _ => unreachable!(),
        }
    }

    /// Takes the first join that waits.
    pub fn take_join(&mut self) -> (OpId, JoinRequest) {
        let at = self.actions.iter().position(|action| matches!(action, Action::JoinGroup { .. }));
        match self.actions.remove(at.expect("a join is waiting")) {
            Some(Action::JoinGroup { op, request }) => (op, request),
            _ => unreachable!(),
        }
    }

    pub fn joins_waiting(&self) -> usize {
        self.actions.iter().filter(|action| matches!(action, Action::JoinGroup { .. })).count()
    }

    pub fn queries_waiting(&self) -> usize {
        self.actions.iter().filter(|action| matches!(action, Action::QueryPath { .. })).count()
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.interface.counters()[counter]
    }

    pub fn drops(&self, reason: DropReason) -> u64 {
        let counted = self.interface.counters()[reason];
        let seen = self.adapter.dropped.iter().filter(|&&one| one == reason).count() as u64;
        // A packet that was reported as too big ends with the report.
        let reported = match reason {
            DropReason::TooBigReported => self.adapter.too_big.len() as u64,
            _ => 0,
        };
        assert_eq!(counted, seen + reported, "{}", reason.name());
        counted
    }

    /// Detaches, answers everything, and asserts that nothing is left anywhere.
    pub fn finish(mut self) {
        self.detach();
        self.answer_all();
        self.pass(Duration::from_secs(60));
        self.answer_all();
        assert_eq!(self.interface.state_name(), "detached");
        assert_eq!(self.events.last(), Some(&Event::Detached));
        assert_eq!((self.handles, self.attached, self.members), (vec![], vec![], vec![]));
        assert!(self.adapter.posted.is_empty() && self.deadline.is_none());
        assert!(self.adapter.posted_connected.is_empty() && !self.is_listening);
        assert_eq!(self.connections, []);
        assert_eq!(self.interface.packets_queued(), 0);
    }
}
