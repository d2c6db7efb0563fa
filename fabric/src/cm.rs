//! The host side of communication management: makes and ends reliable connections (IBA 12.9).
//!
//! Sans-IO: a message is 256 bytes to send from QP1 to QP1 of a port, or 256 bytes that came from
//! one. After every call: [`Manager::poll_mad`] until empty, [`Manager::poll_event`] until empty,
//! [`Manager::poll_timeout`]; when that instant has come, [`Manager::handle_timeout`].
//!
//! The owner names a connection by a tag of its own. A tag is in use from [`Manager::connect`] or
//! [`Manager::accept`] until the event that says that it is free again, or until
//! [`Manager::cancel`]; queue pairs are the owner's business. What arrives for a connection that is
//! gone is counted and, where the specification says so, answered.
//!
//! ```text
//! active:   connect -> Requesting --REP--> Replied -- establish, RTU --> Established
//! passive:  --REQ--> Requested -- accept, REP --> Accepting --RTU--> Established
//! either:   Established -- disconnect, DREQ --> Disconnecting --DREP--> TimeWait -> (gone)
//!           Established --DREQ, DREP--> TimeWait -> (gone)
//! ```

mod connection;
mod counters;
mod event;
mod expire;
mod index;
mod receive;
mod table;

pub use counters::ManagerCounters;
pub use event::{DisconnectCause, Event, PeerReply, Rejection, RequestId};

use alloc::collections::{TryReserveError, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use ipoib_rs::ib::{IbMtu, Pkey, Qpn};
use ipoib_rs::time::Instant;

use crate::gsi::MadAddress;
use crate::mad::MAD_BYTES;
use crate::mad::cm::{
    CmPath, CmRetries, CommId, CommIds, DisconnectRequestWire, Message, MessageKind, Psn,
    REPLY_PRIVATE_BYTES, REQUEST_PRIVATE_BYTES, ReadyToUseWire, RejectReason, RejectWire, Reply,
    ReplyWire, Request, RequestWire, RetryCount, ServiceId, TimeoutCode,
};
use connection::{Connection, Link, Repetition, Sent, State, Timing};
use table::Table;

/// Events that wait to be polled. What would make more is not taken in.
const EVENTS_MAX: usize = 64;
/// The most events that one message makes.
const EVENTS_PER_MAD: usize = 2;

/// What a manager is made with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ManagerConfig {
    /// The GUID of the adapter.
    pub ca_guid: u64,
    /// Where communication ids and transaction ids begin. It should differ from run to run, so that
    /// late messages of an earlier run find nothing.
    pub seed: u64,
    /// Connections in any state, time-wait included.
    pub connections_max: u16,
    /// Services that are listened for.
    pub listeners_max: u16,
    /// Messages that wait to be polled; more are dropped and counted.
    pub mads_max: u16,
    /// How long the names of a connection and the owner's queue pair stay reserved after its end
    /// (IBA 12.9.8.4).
    pub time_wait: Duration,
    /// The longest wait that a peer can impose, whatever its messages say: the codes reach to
    /// hours.
    pub wait_max: Duration,
    /// How much time a MRA asks for while the owner decides.
    pub service_timeout: TimeoutCode,
}

/// The communication manager of a port. `T` names a connection to its owner.
#[derive(Debug)]
pub struct Manager<T> {
    config: ManagerConfig,
    table: Table<T>,
    listeners: Vec<Listener>,
    mads: VecDeque<OutgoingMad>,
    events: VecDeque<Event<T>>,
    transaction_next: u64,
    counters: ManagerCounters,
}

/// A service and the bits of it that count.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Listener {
    service: ServiceId,
    mask: u64,
}

/// A message to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutgoingMad {
    /// Where to.
    pub to: MadAddress,
    /// The message.
    pub bytes: [u8; MAD_BYTES],
}

/// A connection to ask for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectRequest {
    /// The peer's QP1.
    pub to: MadAddress,
    /// The path of the connection.
    pub path: CmPath,
    /// The service to ask for.
    pub service: ServiceId,
    /// The own queue pair.
    pub qpn: Qpn,
    /// The first PSN that it sends.
    pub starting_psn: Psn,
    /// The partition.
    pub pkey: Pkey,
    /// The path MTU.
    pub mtu: IbMtu,
    /// How often the peer's queue pair may send again without an acknowledgement; 0 over IP
    /// (RFC 4755 7.1).
    pub retry_count: RetryCount,
    /// How often it may send again after a receiver-not-ready; 0 over IP (RFC 4755 7.1).
    pub rnr_retry_count: RetryCount,
    /// Whether the own queue pair takes its receives from a shared queue.
    pub has_shared_receive_queue: bool,
    /// How long the peer may take to answer.
    pub remote_response_timeout: TimeoutCode,
    /// How long this side takes to answer.
    pub local_response_timeout: TimeoutCode,
    /// How often either side sends a message again without an answer.
    pub max_cm_retries: CmRetries,
    /// What to tell the peer.
    pub private_data: [u8; REQUEST_PRIVATE_BYTES],
}

/// The consent to a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Acceptance {
    /// The own queue pair.
    pub qpn: Qpn,
    /// The first PSN that it sends.
    pub starting_psn: Psn,
    /// How often the peer's queue pair may send again after a receiver-not-ready.
    pub rnr_retry_count: RetryCount,
    /// Whether the own queue pair takes its receives from a shared queue.
    pub has_shared_receive_queue: bool,
    /// How long the own adapter may take to acknowledge.
    pub target_ack_delay: TimeoutCode,
    /// What to tell the peer.
    pub private_data: [u8; REPLY_PRIVATE_BYTES],
}

/// A service cannot be listened for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListenError {
    /// As many as can be are listened for.
    TableFull,
    /// It is listened for already, in part or whole.
    Taken,
}

/// Something cannot be done with a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommandError {
    /// There are as many connections as there can be.
    TableFull,
    /// The tag is in use.
    TagInUse,
    /// The connection is gone, or never was.
    Unknown,
    /// Its state does not allow it.
    WrongState,
}

impl<T: Copy + Ord> Manager<T> {
    /// Makes a manager. Fails if there is no memory for its tables; later it allocates nothing.
    ///
    /// # Errors
    ///
    /// If there is not enough memory.
    pub fn new(config: &ManagerConfig) -> Result<Self, TryReserveError> {
        let mut seed = config.seed;
        let table = Table::new(config.connections_max, draw(&mut seed) as u32)?;
        let mut listeners = Vec::new();
        listeners.try_reserve_exact(config.listeners_max.into())?;
        let mut mads = VecDeque::new();
        mads.try_reserve_exact(config.mads_max.into())?;
        let mut events = VecDeque::new();
        events.try_reserve_exact(EVENTS_MAX)?;
        Ok(Self {
            config: *config,
            table,
            listeners,
            mads,
            events,
            transaction_next: draw(&mut seed),
            counters: ManagerCounters::default(),
        })
    }

    /// Reports REQs for a service, with a mask for those whose other bits are anything (IBA
    /// 12.9.6).
    ///
    /// # Errors
    ///
    /// [`ListenError`]; nothing is listened for then.
    pub fn listen(&mut self, service: ServiceId, mask: u64) -> Result<(), ListenError> {
        let overlaps = |other: &Listener| (other.service.0 ^ service.0) & other.mask & mask == 0;
        if self.listeners.iter().any(overlaps) {
            return Err(ListenError::Taken);
        }
        if self.listeners.len() == usize::from(self.config.listeners_max) {
            self.counters.listens_table_full += 1;
            return Err(ListenError::TableFull);
        }
        self.listeners.push(Listener { service, mask });
        Ok(())
    }

    /// Stops reporting REQs for a service. Those that were reported can still be accepted. Whether
    /// it was listened for.
    pub fn unlisten(&mut self, service: ServiceId) -> bool {
        let before = self.listeners.len();
        self.listeners.retain(|listener| listener.service != service);
        self.listeners.len() < before
    }

    /// Asks a peer for a connection: sends a REQ. The event is [`Event::Replied`],
    /// [`Event::Rejected`] or [`Event::TimedOut`].
    ///
    /// # Errors
    ///
    /// [`CommandError::TableFull`] or [`CommandError::TagInUse`]; nothing was sent.
    pub fn connect(
        &mut self,
        now: Instant,
        tag: T,
        request: &ConnectRequest,
    ) -> Result<(), CommandError> {
        if self.table.find_tag(tag).is_some() {
            return Err(CommandError::TagInUse);
        }
        let transaction = self.draw_transaction();
        let timing = Timing::new(
            request.remote_response_timeout,
            request.path.ack_timeout,
            request.max_cm_retries,
            self.config.wait_max,
        );
        let ca_guid = self.config.ca_guid;
        let inserted = self.table.insert(|comm_id| {
            let wire = RequestWire::new(&request.to_request(comm_id, ca_guid));
            let sent = Sent {
                bytes: Message::Request(&wire).to_bytes(transaction),
                repetition: Repetition::new(now, &timing),
            };
            Connection {
                to: request.to,
                transaction,
                timing,
                state: State::Requesting { tag, local_qpn: request.qpn, sent },
            }
        });
        let Some(comm_id) = inserted else {
            self.counters.connects_table_full += 1;
            return Err(CommandError::TableFull);
        };
        self.counters.connects += 1;
        self.send_kept(comm_id);
        Ok(())
    }

    /// Agrees to a reply: the own queue pair is ready to send. Sends a RTU; the connection is
    /// established.
    ///
    /// # Errors
    ///
    /// [`CommandError::Unknown`] or [`CommandError::WrongState`].
    pub fn establish(&mut self, tag: T) -> Result<(), CommandError> {
        let comm_id = self.table.find_tag(tag).ok_or(CommandError::Unknown)?;
        let state = self.table.get(comm_id).map(|connection| &connection.state);
        let Some(&State::Replied { link, .. }) = state else {
            return Err(CommandError::WrongState);
        };
        let is_active = true;
        self.table.replace(comm_id, State::Established { tag, link, is_active });
        self.counters.established += 1;
        self.send_ready_to_use(comm_id, link);
        Ok(())
    }

    /// Does not agree to a reply: sends a REJ. The tag is free.
    ///
    /// # Errors
    ///
    /// [`CommandError::Unknown`] or [`CommandError::WrongState`].
    pub fn reject(&mut self, tag: T, reason: RejectReason) -> Result<(), CommandError> {
        let comm_id = self.table.find_tag(tag).ok_or(CommandError::Unknown)?;
        let state = self.table.get(comm_id).map(|connection| &connection.state);
        let Some(&State::Replied { link, .. }) = state else {
            return Err(CommandError::WrongState);
        };
        self.send_reject(comm_id, link.remote.comm_id, MessageKind::Reply, reason);
        self.table.remove(comm_id);
        Ok(())
    }

    /// Agrees to a request: the own queue pair is ready to receive. Sends a REP; the event is
    /// [`Event::Established`], [`Event::Rejected`], [`Event::TimedOut`] or [`Event::Disconnected`].
    ///
    /// # Errors
    ///
    /// [`CommandError::TagInUse`], or [`CommandError::Unknown`] if the request was withdrawn.
    pub fn accept(
        &mut self,
        now: Instant,
        request: RequestId,
        tag: T,
        acceptance: &Acceptance,
    ) -> Result<(), CommandError> {
        if self.table.find_tag(tag).is_some() {
            return Err(CommandError::TagInUse);
        }
        let connection = self.table.get(request.0).ok_or(CommandError::Unknown)?;
        let State::Requested { remote, has_alternate } = connection.state else {
            return Err(CommandError::Unknown);
        };
        let ids = CommIds { local: request.0, remote: remote.comm_id };
        let reply = acceptance.to_reply(ids, self.config.ca_guid, has_alternate);
        let sent = Sent {
            bytes: Message::Reply(&ReplyWire::new(&reply)).to_bytes(connection.transaction),
            repetition: Repetition::new(now, &connection.timing),
        };
        let link = Link { local_qpn: acceptance.qpn, remote };
        self.table.replace(request.0, State::Accepting { tag, link, sent });
        self.counters.accepts += 1;
        self.send_kept(request.0);
        Ok(())
    }

    /// Does not agree to a request: sends a REJ.
    ///
    /// # Errors
    ///
    /// [`CommandError::Unknown`] if the request was withdrawn.
    pub fn refuse(&mut self, request: RequestId, reason: RejectReason) -> Result<(), CommandError> {
        let connection = self.table.get(request.0).ok_or(CommandError::Unknown)?;
        let State::Requested { remote, .. } = connection.state else {
            return Err(CommandError::Unknown);
        };
        self.send_reject(request.0, remote.comm_id, MessageKind::Request, reason);
        self.table.remove(request.0);
        Ok(())
    }

    /// Ends a connection, for instance because its queue pair failed: sends a DREQ. The events are
    /// [`Event::Disconnected`] and then [`Event::TimeWaitExited`].
    ///
    /// # Errors
    ///
    /// [`CommandError::Unknown`], or [`CommandError::WrongState`] if it is not established or
    /// accepted.
    pub fn disconnect(&mut self, now: Instant, tag: T) -> Result<(), CommandError> {
        let comm_id = self.table.find_tag(tag).ok_or(CommandError::Unknown)?;
        let state = self.table.get(comm_id).map(|connection| &connection.state);
        match state {
            Some(State::Established { link, .. } | State::Accepting { link, .. }) => {
                let link = *link;
                self.enter_disconnecting(now, comm_id, Some(tag), link, false);
                Ok(())
            }
            Some(
                State::Requesting { .. }
                | State::Replied { .. }
                | State::Requested { .. }
                | State::Disconnecting { .. }
                | State::TimeWait { .. },
            )
            | None => Err(CommandError::WrongState),
        }
    }

    /// Forgets a tag in any state: it is free, and no event will name it. The peer is told; what
    /// has to be repeated for that, and the time-wait, go on without the tag. Nothing happens if
    /// the tag is not in use.
    pub fn cancel(&mut self, now: Instant, tag: T) {
        self.events.retain(|event| event.tag() != Some(tag));
        let Some(comm_id) = self.table.find_tag(tag) else {
            return;
        };
        self.counters.cancels += 1;
        let Some(connection) = self.table.get(comm_id) else {
            return;
        };
        match connection.state {
            State::Requesting { .. } => {
                self.send_reject_timeout(comm_id, CommId(0), MessageKind::Request);
                self.table.remove(comm_id);
            }
            State::Replied { link, .. } => {
                let reason = RejectReason::ConsumerReject;
                self.send_reject(comm_id, link.remote.comm_id, MessageKind::Reply, reason);
                self.table.remove(comm_id);
            }
            // A REJ is sent only once: if it were lost, the peer would keep a connection without
            // this end. A DREQ is repeated.
            State::Accepting { link, .. } | State::Established { link, .. } => {
                self.enter_disconnecting(now, comm_id, None, link, true);
            }
            State::Disconnecting { link, transaction, repetition, .. } => self.table.replace(
                comm_id,
                State::Disconnecting {
                    tag: None,
                    link,
                    transaction,
                    repetition,
                    is_reported: true,
                },
            ),
            State::TimeWait { remote, until, .. } => {
                let tag = None;
                self.table.replace(comm_id, State::TimeWait { tag, remote, until });
            }
            // A request has no tag before it is accepted.
            State::Requested { .. } => {}
        }
    }

    /// When [`Self::handle_timeout`] has something to do; `None` while nothing waits for a time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.table.deadline_first().map(|(deadline, _)| deadline)
    }

    /// The next message to send.
    pub fn poll_mad(&mut self) -> Option<OutgoingMad> {
        self.mads.pop_front()
    }

    /// What happened next.
    pub fn poll_event(&mut self) -> Option<Event<T>> {
        self.events.pop_front()
    }

    /// How many connections there are, in any state.
    pub fn connections_len(&self) -> usize {
        self.table.len()
    }

    /// What happened so far.
    pub const fn counters(&self) -> &ManagerCounters {
        &self.counters
    }

    fn enter_disconnecting(
        &mut self,
        now: Instant,
        comm_id: CommId,
        tag: Option<T>,
        link: Link,
        is_reported: bool,
    ) {
        let Some(connection) = self.table.get(comm_id) else {
            return;
        };
        let repetition = Repetition::new(now, &connection.timing);
        let transaction = self.draw_transaction();
        let state = State::Disconnecting { tag, link, transaction, repetition, is_reported };
        self.table.replace(comm_id, state);
        self.send_disconnect_request(comm_id, link, transaction);
    }

    fn enter_time_wait(
        &mut self,
        now: Instant,
        comm_id: CommId,
        tag: Option<T>,
        remote: Option<connection::Remote>,
    ) {
        let until = now + self.config.time_wait;
        self.table.replace(comm_id, State::TimeWait { tag, remote, until });
    }

    /// The message that is repeated until it is answered.
    fn send_kept(&mut self, comm_id: CommId) {
        let Some(connection) = self.table.get(comm_id) else {
            return;
        };
        if let State::Requesting { sent, .. } | State::Accepting { sent, .. } = &connection.state {
            let (to, bytes) = (connection.to, sent.bytes);
            self.push_mad(to, bytes);
        }
    }

    fn send_ready_to_use(&mut self, comm_id: CommId, link: Link) {
        let wire = ReadyToUseWire::new(link.comm_ids(comm_id));
        self.send(comm_id, &Message::ReadyToUse(&wire));
    }

    fn send_disconnect_request(&mut self, comm_id: CommId, link: Link, transaction: u64) {
        let wire = DisconnectRequestWire::new(link.comm_ids(comm_id), link.remote.qpn);
        if let Some(connection) = self.table.get(comm_id) {
            let to = connection.to;
            self.push_mad(to, Message::DisconnectRequest(&wire).to_bytes(transaction));
        }
    }

    fn send_reject(
        &mut self,
        local: CommId,
        remote: CommId,
        message: MessageKind,
        reason: RejectReason,
    ) {
        let wire = RejectWire::new(CommIds { local, remote }, message, reason);
        self.counters.rejections_sent += 1;
        self.send(local, &Message::Reject(&wire));
    }

    fn send_reject_timeout(&mut self, local: CommId, remote: CommId, message: MessageKind) {
        let ids = CommIds { local, remote };
        let wire =
            RejectWire::new(ids, message, RejectReason::Timeout).with_ca_guid(self.config.ca_guid);
        self.counters.rejections_sent += 1;
        self.send(local, &Message::Reject(&wire));
    }

    /// Sends a message of a connection in the transaction of its REQ.
    fn send(&mut self, comm_id: CommId, message: &Message<'_>) {
        if let Some(connection) = self.table.get(comm_id) {
            let (to, transaction) = (connection.to, connection.transaction);
            self.push_mad(to, message.to_bytes(transaction));
        }
    }

    fn push_mad(&mut self, to: MadAddress, bytes: [u8; MAD_BYTES]) {
        // As if it were lost on the way: what matters is repeated.
        if self.mads.len() == usize::from(self.config.mads_max) {
            self.counters.mads_unsent += 1;
            return;
        }
        self.counters.mads_sent += 1;
        self.mads.push_back(OutgoingMad { to, bytes });
    }

    /// Callers see to it that there is room.
    fn push_event(&mut self, event: Event<T>) {
        debug_assert!(self.events.len() < EVENTS_MAX, "there is room");
        self.events.push_back(event);
    }

    fn draw_transaction(&mut self) -> u64 {
        let transaction = self.transaction_next;
        self.transaction_next = transaction.wrapping_add(1);
        transaction
    }
}

impl ConnectRequest {
    fn to_request(self, comm_id: CommId, ca_guid: u64) -> Request {
        Request {
            comm_id,
            service: self.service,
            ca_guid,
            qpn: self.qpn,
            // IP uses sends only.
            responder_resources: 0,
            initiator_depth: 0,
            remote_response_timeout: self.remote_response_timeout,
            local_response_timeout: self.local_response_timeout,
            has_flow_control: false,
            starting_psn: self.starting_psn,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            pkey: self.pkey,
            mtu: self.mtu,
            max_cm_retries: self.max_cm_retries,
            has_shared_receive_queue: self.has_shared_receive_queue,
            path: self.path,
            private_data: self.private_data,
        }
    }
}

impl Acceptance {
    fn to_reply(self, ids: CommIds, ca_guid: u64, has_alternate: bool) -> Reply {
        Reply {
            comm_id: ids.local,
            remote_comm_id: ids.remote,
            qpn: self.qpn,
            starting_psn: self.starting_psn,
            responder_resources: 0,
            initiator_depth: 0,
            target_ack_delay: self.target_ack_delay,
            is_alternate_refused: has_alternate,
            has_flow_control: false,
            rnr_retry_count: self.rnr_retry_count,
            has_shared_receive_queue: self.has_shared_receive_queue,
            ca_guid,
            private_data: self.private_data,
        }
    }
}

/// A step of the splitmix64 sequence (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators).
const fn draw(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
