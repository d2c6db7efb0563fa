//! One IPoIB interface: the contract between the core and its shell.
//!
//! [`Interface`] is the root of all state. Its methods come in two families. **Inputs** are called
//! `handle_*` and tell a fact, with the time. **Outputs** are called `poll_*` and are asked after
//! every input, in this order: [`Interface::poll_action`] until it is empty,
//! [`Interface::poll_timeout`], [`Interface::poll_event`] until it is empty. [`crate::pump`] does
//! that.
//!
//! Only inputs that may post work are given the [`DataPath`]; the others get at most a
//! [`PacketSink`], to return packets that can no longer be sent.
//!
//! Spurious inputs are legal: a timeout before its time, an answer to a question that was given up,
//! an event after detach. They change nothing and are counted where they may mean something.

mod connected;
mod handles;
mod link;
mod multicast;
mod receive;
mod report;
mod transmit;
mod unicast;
mod waiting;

use crate::action::{
    Action, ConnectError, ConnectionId, ConnectionParameters, GroupRecord, OpId, PathRecord,
    RejectReason, SaCapabilities, SaError, Target, VerbError,
};
use crate::connection::Connections;
use crate::counters::{Counter, Counters, DropReason};
use crate::event::{Event, Events, Notice};
use crate::group::{GroupState, Groups};
use crate::handle::Handles;
use crate::ib::{PortAttributes, Qkey, Qpn};
use crate::limits::{CONNECTED_MTU_MAX, Limits};
use crate::packet::{
    CompletionStatus, ConnectedReceive, DataPath, PacketBuf, PacketSink, Receive, SendId,
};
use crate::path::Paths;
use crate::queue_pair::{QueuePair, QueuePairState};
use crate::seed::Seed;
use crate::send_ring::SendRing;
use crate::storage::{OutOfMemory, PendingStore, WorkQueue};
use crate::time::Instant;
use crate::timer::Timers;
use crate::wire::{BroadcastGroup, ENCAPSULATION_BYTES, EtherType, LinkAddress, Scope};

use connected::Listener;
pub use connected::{ConnectedSupport, IncomingRequest, Mode, ModeError, MtuOutOfRange};
use link::{Admin, Lifecycle, SaKnowledge};
pub use report::{GroupRow, IncomingRow, NeighborRow};

/// An interface: one partition of one port.
#[derive(Debug)]
pub struct Interface<B> {
    qpn: Qpn,
    scope: Scope,
    limits: Limits,
    /// The port as it was last seen.
    port: PortAttributes,
    /// What the administrator wants.
    admin: Admin,
    /// How far that has come.
    lifecycle: Lifecycle,
    queue_pair: QueuePair,
    mode: Mode,
    /// What the adapter can do for connected mode; `None` if it has no reliable connections.
    connected: Option<ConnectedSupport>,
    /// The MTU that the administrator wants in connected mode.
    connected_mtu: usize,
    listener: Listener,
    connections: Connections,
    sa: SaKnowledge,
    /// The scope and P_Key of all groups; `None` before a P_Key was ever seen.
    broadcast: Option<BroadcastGroup>,
    /// The queue key of the broadcast group, for every datagram.
    qkey: Qkey,
    /// What a datagram may carry, without the encapsulation header.
    datagram_mtu: usize,
    paths: Paths,
    groups: Groups,
    handles: Handles,
    sends: SendRing,
    send_queue: SendQueue,
    pending: PendingStore<B>,
    /// Objects that want an action.
    work: WorkQueue,
    /// Paths and groups that are ready and whose packets wait for room in the send ring.
    backlog: WorkQueue,
    timers: Timers,
    /// The deadline that the shell knows.
    told_deadline: Option<Instant>,
    events: Events,
    counters: Counters,
    seed: Seed,
    /// The generation of the latest operation.
    generation: u32,
    objects: Objects,
}

/// What an interface is made of.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The number of its queue pair.
    pub qpn: Qpn,
    /// The port as it is now.
    pub port: PortAttributes,
    /// The scope of its groups.
    pub scope: Scope,
    /// The mode to begin with.
    pub mode: Mode,
    /// What the adapter can do for connected mode; `None` if it has no reliable connections.
    pub connected: Option<ConnectedSupport>,
    /// Source of everything that must differ between interfaces and runs.
    pub seed: u64,
    /// The sizes of its tables.
    pub limits: Limits,
}

/// Attaching failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttachError {
    /// A limit is zero or above [`crate::limits::LIMIT_MAX`].
    LimitInvalid,
    /// Connected mode, and the adapter has no reliable connections.
    ModeUnsupported,
    /// No memory for the tables.
    OutOfMemory,
}

impl From<OutOfMemory> for AttachError {
    fn from(OutOfMemory: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

/// Which asynchronous event made the shell look at the port (IBA 11.6.3).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PortEvent {
    /// The subnet manager asks every client to register again.
    ClientReregister,
    /// The GID table changed.
    GidChanged,
    /// The LID changed.
    LidChanged,
    /// The P_Key table changed.
    PkeyChanged,
    /// The port became ACTIVE.
    PortActive,
    /// The port left ACTIVE.
    PortError,
    /// Another subnet manager took over.
    SmChanged,
}

/// A packet that was refused because the send ring is full. Keep it and offer it again after
/// [`Action::WakeSendQueue`].
#[derive(Debug)]
pub struct RingFull<B>(pub B);

/// Whether the shell offers packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SendQueue {
    /// It does.
    Open,
    /// One was refused, so it waits to be woken.
    Stopped,
    /// It is to be woken.
    WakeWanted,
}

/// The numbering of all objects of an interface, for queues and timers.
#[derive(Clone, Copy, Debug)]
struct Objects {
    groups_from: u32,
    handles_from: u32,
    outgoing_from: u32,
    incoming_from: u32,
    queue_pair: u32,
}

impl Objects {
    const fn new(limits: &Limits) -> Self {
        let groups_from = limits.paths_max;
        let handles_from = groups_from + limits.groups_max;
        let outgoing_from = handles_from + limits.handles_max();
        let incoming_from = outgoing_from + limits.outgoing_max;
        let queue_pair = incoming_from + limits.incoming_max;
        Self { groups_from, handles_from, outgoing_from, incoming_from, queue_pair }
    }

    const fn count(&self) -> u32 {
        self.queue_pair + 4
    }

    const fn number(&self, target: Target) -> u32 {
        match target {
            Target::Path(place) => place,
            Target::Group(place) => self.groups_from + place,
            Target::Handle(place) => self.handles_from + place,
            Target::Outgoing(place) => self.outgoing_from + place,
            Target::Incoming(place) => self.incoming_from + place,
            Target::QueuePair => self.queue_pair,
            Target::Sa => self.queue_pair + 1,
            Target::Listener => self.queue_pair + 2,
            Target::Reaper => self.queue_pair + 3,
        }
    }

    const fn target(&self, number: u32) -> Target {
        if number < self.groups_from {
            Target::Path(number)
        } else if number < self.handles_from {
            Target::Group(number - self.groups_from)
        } else if number < self.outgoing_from {
            Target::Handle(number - self.handles_from)
        } else if number < self.incoming_from {
            Target::Outgoing(number - self.outgoing_from)
        } else if number < self.queue_pair {
            Target::Incoming(number - self.incoming_from)
        } else if number == self.queue_pair {
            Target::QueuePair
        } else if number == self.queue_pair + 1 {
            Target::Sa
        } else if number == self.queue_pair + 2 {
            Target::Listener
        } else {
            Target::Reaper
        }
    }
}

impl<B: PacketBuf> Interface<B> {
    /// Makes an interface, administratively down, with all memory that it will ever have.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    pub fn attach(config: Config) -> Result<Self, AttachError> {
        let Config { qpn, port, scope, mode, connected, seed, limits } = config;
        if mode == Mode::Connected && connected.is_none() {
            return Err(AttachError::ModeUnsupported);
        }
        if !limits.are_usable() {
            return Err(AttachError::LimitInvalid);
        }
        let objects = Objects::new(&limits);
        let mut seed = Seed::new(seed);
        Ok(Self {
            qpn,
            scope,
            limits,
            port,
            admin: Admin::Down,
            lifecycle: Lifecycle::Down,
            queue_pair: QueuePair {
                state: QueuePairState::Reset,
                operation: 0,
                receives_posted: 0,
                reopen_at: None,
            },
            mode,
            connected,
            connected_mtu: connected.map_or(0, |support| support.mtu_max.min(CONNECTED_MTU_MAX)),
            listener: Listener::default(),
            connections: Connections::new(limits.outgoing_max, limits.incoming_max)?,
            sa: SaKnowledge::default(),
            broadcast: port.partition.map(|own| BroadcastGroup::new(scope, own.pkey)),
            qkey: Qkey(0),
            datagram_mtu: port.mtu.bytes() - ENCAPSULATION_BYTES,
            paths: Paths::new(limits.paths_max, seed.draw())?,
            groups: Groups::new(limits.groups_max, seed.draw())?,
            handles: Handles::new(limits.handles_max())?,
            sends: SendRing::new(limits.send_queue_len)?,
            send_queue: SendQueue::Open,
            pending: PendingStore::new(limits.pending_packets_max)?,
            work: WorkQueue::new(objects.count())?,
            backlog: WorkQueue::new(objects.count())?,
            timers: Timers::new(objects.count())?,
            told_deadline: None,
            events: Events::new()?,
            counters: Counters::default(),
            // Drawn late in attach, so that operation ids of two attachments differ as well.
            generation: seed.draw() as u32,
            seed,
            objects,
        })
    }

    /// The administrator marks the interface up.
    pub fn handle_admin_up(&mut self, now: Instant, sink: &mut impl PacketSink<B>) {
        if self.admin == Admin::Down {
            self.admin = Admin::Up;
            self.reconcile(now, sink);
        }
    }

    /// The administrator marks the interface down: groups are left, the queue pair is drained and
    /// reset, packets that wait are dropped.
    pub fn handle_admin_down(&mut self, now: Instant, sink: &mut impl PacketSink<B>) {
        if self.admin == Admin::Up {
            self.admin = Admin::Down;
            self.reconcile(now, sink);
        }
    }

    /// The interface goes for good. [`Event::Detached`] says when everything is given back.
    pub fn handle_detach(&mut self, now: Instant, sink: &mut impl PacketSink<B>) {
        self.admin = Admin::Detaching;
        self.reconcile(now, sink);
    }

    /// The port reported `event`, and was then seen to be like `port`.
    pub fn handle_port_event(
        &mut self,
        now: Instant,
        event: PortEvent,
        port: &PortAttributes,
        sink: &mut impl PacketSink<B>,
    ) {
        self.on_port_changed(now, event, port, sink);
        self.reconcile(now, sink);
    }

    /// The link-layer multicast addresses that the network stack wants to receive, all of them.
    /// Those that are no group of this interface are counted and otherwise ignored.
    pub fn handle_multicast_list<'a>(
        &mut self,
        now: Instant,
        list: impl Iterator<Item = &'a [u8]> + Clone,
        sink: &mut impl PacketSink<B>,
    ) {
        self.on_multicast_list(list, sink);
        self.reconcile(now, sink);
    }

    /// A packet to send. It starts with its network header; the encapsulation header is put in
    /// front.
    ///
    /// # Errors
    ///
    /// The packet, if the send ring is full: keep it until [`Action::WakeSendQueue`].
    pub fn handle_transmit(
        &mut self,
        now: Instant,
        to: &LinkAddress,
        protocol: EtherType,
        packet: B,
        datapath: &mut impl DataPath<B>,
    ) -> Result<(), RingFull<B>> {
        self.on_transmit(now, to, protocol, packet, datapath)
    }

    /// A posted send ended. The data path has ended the life of its packet.
    pub fn handle_send_completion(
        &mut self,
        now: Instant,
        id: SendId,
        status: CompletionStatus,
        datapath: &mut impl DataPath<B>,
    ) {
        self.on_send_completion(now, id, status, datapath);
        self.after_completion(now, datapath);
    }

    /// A packet arrived.
    pub fn handle_receive(
        &mut self,
        now: Instant,
        receive: Receive<B>,
        datapath: &mut impl DataPath<B>,
    ) {
        self.on_receive(receive, datapath);
        self.after_receive(now, datapath);
    }

    /// A posted receive ended without a packet; the data path has its buffer back.
    pub fn handle_receive_failed(
        &mut self,
        now: Instant,
        status: CompletionStatus,
        datapath: &mut impl DataPath<B>,
    ) {
        match status {
            CompletionStatus::Flushed => {}
            CompletionStatus::Success | CompletionStatus::Failed => {
                self.counters.count(Counter::ReceiveFailed);
            }
        }
        self.after_receive(now, datapath);
    }

    /// The administrator wants another mode. Connections are closed or come to be as packets need
    /// them; what waits goes the way that is open then.
    ///
    /// # Errors
    ///
    /// [`ModeError`]; nothing is changed.
    pub fn handle_mode(
        &mut self,
        now: Instant,
        mode: Mode,
        datapath: &mut impl DataPath<B>,
    ) -> Result<(), ModeError> {
        let outcome = self.on_mode(now, mode, datapath);
        self.reconcile(now, datapath);
        outcome
    }

    /// The administrator wants another MTU for connected mode, in bytes without the encapsulation
    /// header.
    ///
    /// # Errors
    ///
    /// [`MtuOutOfRange`]; nothing is changed.
    pub fn handle_connected_mtu(&mut self, mtu: usize) -> Result<(), MtuOutOfRange> {
        self.on_mtu(mtu)
    }

    /// The peer's answer to [`Action::OpenConnection`].
    pub fn handle_connect_answer(
        &mut self,
        now: Instant,
        op: OpId,
        answer: Result<ConnectionParameters, ConnectError>,
        datapath: &mut impl DataPath<B>,
    ) {
        self.on_connect_answer(now, op, answer, datapath);
        self.reconcile(now, datapath);
    }

    /// A peer asks for a connection.
    ///
    /// # Errors
    ///
    /// The reason with which to refuse it.
    pub fn handle_connect_request(
        &mut self,
        now: Instant,
        request: IncomingRequest,
    ) -> Result<(), RejectReason> {
        self.on_connect_request(now, request)
    }

    /// A connection is over: the peer ended it (DREQ), the adapter reported an error of its queue
    /// pair, or it turned out stale.
    pub fn handle_connection_lost(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        datapath: &mut impl DataPath<B>,
    ) {
        match self.incoming_place(connection) {
            Some(place) => self.close_incoming(place),
            None => self.on_outgoing_lost(now, connection.0, datapath),
        }
        self.reconcile(now, datapath);
    }

    /// The adapter has taken the last receive for the queue pair of an incoming connection
    /// (IBA 11.6.3.1).
    pub fn handle_last_wqe(&mut self, connection: ConnectionId) {
        self.on_last_wqe(connection);
    }

    /// A message arrived by a connection.
    pub fn handle_connected_receive(
        &mut self,
        now: Instant,
        receive: ConnectedReceive<B>,
        datapath: &mut impl DataPath<B>,
    ) {
        self.on_connected_receive(now, receive, datapath);
    }

    /// A receive for a connection ended without a message; the data path has its buffer back.
    pub fn handle_connected_receive_failed(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        status: CompletionStatus,
        datapath: &mut impl DataPath<B>,
    ) {
        self.on_connected_receive_failed(now, connection, status, datapath);
        self.reconcile(now, datapath);
    }

    /// The SA's answer to [`Action::QueryPath`].
    pub fn handle_path_answer(
        &mut self,
        now: Instant,
        op: OpId,
        answer: Result<PathRecord, SaError>,
        sink: &mut impl PacketSink<B>,
    ) {
        self.on_path_answer(now, op, answer, sink);
        self.reconcile(now, sink);
    }

    /// The SA's answer to [`Action::JoinGroup`].
    pub fn handle_join_answer(
        &mut self,
        now: Instant,
        op: OpId,
        answer: Result<GroupRecord, SaError>,
        sink: &mut impl PacketSink<B>,
    ) {
        self.on_join_answer(now, op, answer, sink);
        self.reconcile(now, sink);
    }

    /// The SA's answer to [`Action::LeaveGroup`].
    pub fn handle_leave_answer(
        &mut self,
        now: Instant,
        op: OpId,
        answer: Result<(), SaError>,
        sink: &mut impl PacketSink<B>,
    ) {
        self.on_leave_answer(now, op, answer, sink);
        self.reconcile(now, sink);
    }

    /// The SA's answer to [`Action::QuerySaCapabilities`].
    pub fn handle_sa_capabilities(&mut self, op: OpId, answer: Result<SaCapabilities, SaError>) {
        self.on_sa_capabilities(op, answer);
    }

    /// How a verb ended: the answer to every action that names no SA and no timer.
    pub fn handle_verb_result(
        &mut self,
        now: Instant,
        op: OpId,
        result: Result<(), VerbError>,
        datapath: &mut impl DataPath<B>,
    ) {
        if result.is_err() {
            self.counters.count(Counter::VerbsFailed);
        }
        let is_expected = match op.target {
            Target::Group(_) => self.on_group_verb(now, op, result, datapath),
            Target::Handle(place) => self.on_handle_verb(now, place, op, result, datapath),
            Target::QueuePair => self.on_queue_pair_verb(now, op, result, datapath),
            Target::Outgoing(_) => self.on_outgoing_verb(now, op, result, datapath),
            Target::Incoming(_) => self.on_incoming_verb(now, op, result, datapath),
            Target::Listener => self.on_listener_verb(now, op, result),
            Target::Path(_) | Target::Reaper | Target::Sa => false,
        };
        if !is_expected {
            self.counters.count(Counter::StaleAnswers);
        }
        self.reconcile(now, datapath);
    }

    /// Time has passed. To be called at [`Interface::poll_timeout`]; any other time is legal as
    /// well.
    pub fn handle_timeout(&mut self, now: Instant, datapath: &mut impl DataPath<B>) {
        while let Some(number) = self.timers.pop_due(now) {
            match self.objects.target(number) {
                Target::Path(place) => self.on_path_timeout(now, place, datapath),
                Target::Group(place) => self.on_group_timeout(now, place, datapath),
                Target::QueuePair => self.on_queue_pair_timeout(now, datapath),
                Target::Outgoing(place) => self.on_outgoing_timeout(now, place, datapath),
                Target::Incoming(place) => self.on_incoming_timeout(now, place),
                Target::Listener => self.reconcile_listener(now),
                Target::Reaper => self.reap_incoming(now),
                Target::Handle(_) | Target::Sa => {}
            }
        }
        self.reconcile(now, datapath);
    }

    /// The next thing to do, or `None` if there is nothing for now.
    pub fn poll_action(&mut self) -> Option<Action> {
        match self.send_queue {
            SendQueue::WakeWanted => {
                self.send_queue = SendQueue::Open;
                return Some(Action::WakeSendQueue);
            }
            SendQueue::Open | SendQueue::Stopped => {}
        }
        while let Some(number) = self.work.pop() {
            let action = match self.objects.target(number) {
                Target::Path(place) => self.next_path_action(place),
                Target::Group(place) => self.next_group_action(place),
                Target::Handle(place) => self.next_handle_action(place),
                Target::Outgoing(place) => self.next_outgoing_action(place),
                Target::Incoming(place) => self.next_incoming_action(place),
                Target::Listener => self.next_listener_action(),
                Target::QueuePair => self.next_queue_pair_action(),
                Target::Sa => self.next_sa_action(),
                Target::Reaper => None,
            };
            if action.is_some() {
                return action;
            }
        }
        None
    }

    /// When to call [`Interface::handle_timeout`]; `None` if nothing waits for time.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.told_deadline = self.timers.next();
        self.told_deadline
    }

    /// Whether there may be something to poll for: an action, an event, or a deadline before the
    /// one that was polled last.
    pub fn has_output(&self) -> bool {
        let has_earlier_deadline = match (self.timers.next(), self.told_deadline) {
            (Some(next), Some(told)) => next < told,
            (Some(_), None) => true,
            (None, _) => false,
        };
        has_earlier_deadline
            || !self.work.is_empty()
            || !self.events.is_empty()
            || self.send_queue == SendQueue::WakeWanted
    }

    /// The next state delta.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Ends the life of a packet and says why.
    fn drop_packet(&mut self, packet: B, reason: DropReason, sink: &mut impl PacketSink<B>) {
        self.counters.count_drop(reason);
        sink.drop_packet(packet, reason);
    }

    fn push_event(&mut self, event: Event) {
        if self.events.push(event).is_err() {
            self.counters.count(Counter::EventsLost);
        }
    }

    fn notice(&mut self, notice: Notice) {
        self.push_event(Event::Notice(notice));
    }

    /// A new operation for an object; the answer to any earlier one is stale from now on.
    fn begin_operation(&mut self, target: Target) -> OpId {
        self.generation = self.generation.wrapping_add(1);
        OpId { target, generation: self.generation }
    }

    fn push_work(&mut self, target: Target) {
        self.work.push(self.objects.number(target));
    }

    fn set_timer(&mut self, target: Target, at: Option<Instant>) {
        self.timers.set(self.objects.number(target), at);
    }

    /// Whether everything is given back to the adapter and the SA.
    fn is_drained(&self) -> bool {
        self.paths.is_empty()
            && self.handles.is_empty()
            && self.connections.is_empty()
            && self.listener.is_closed()
            && self.pending.is_empty()
            && self.sends.outstanding() == 0
            && self.queue_pair.state == QueuePairState::Reset
            && self.groups.iter().all(|(_, group)| group.state == GroupState::Idle)
    }
}
