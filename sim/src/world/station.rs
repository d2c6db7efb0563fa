//! A station: a host, an interface of the core, and the shell between interface and adapter.
//!
//! The shell carries out nothing at once: actions, port events and completions become events of
//! the world's agenda, so that their order is explored. It is a shell of its own beside
//! [`fabric`]'s node, because it also watches: it notes every call that the interface makes, can
//! refuse each of them, and compares what goes in with what comes out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fabric::cq::{Completion, Outcome, WorkError};
use fabric::gsi::{AgentId, Gsi, Role};
use fabric::packet::Packet;
use fabric::qp::QpChange;
use fabric::sa::{Answer, Client};
use fabric::{CreateError, Fabric};
use ipoib_rs::action::{Action, OpId, SaError, VerbError};
use ipoib_rs::event::Event;
use ipoib_rs::ib::{Pkey, PortAttributes};
use ipoib_rs::interface::{Config, Interface, Mode, PortEvent, RingFull};
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::{CompletionStatus, Receive, SendId};
use ipoib_rs::pump::{self, PumpingShell, Shell};
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{LinkAddress, Scope};

use super::adapter::{Adapter, Held, Posted, Queues, Records, TooBig, identity};
use super::bond::Inbound;
use super::checker::neighbors::{self, Log};
use super::faults::Faults;
use super::site::Site;
use super::streams::Streams;
use crate::host::{Frame, Host};
use crate::swarm::Planted;

/// Frames that wait for room in the send ring; a stack drops what is more.
const WAITING_FRAMES_MAX: usize = 128;
/// Requests to the SA that may be under way for one interface.
const SA_REQUESTS_MAX: usize = 512;

/// A host and its interface.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) index: usize,
    pub(super) site: usize,
    /// The partition of a child; `None` for the interface of the port itself.
    pub(super) pkey: Option<Pkey>,
    pub(super) host: Host,
    /// The mode that its admin wants.
    pub(super) mode: Mode,
    agent: AgentId,
    client: Client<OpId>,
    /// Counts attachments: what was meant for an earlier one is ignored.
    pub(super) epoch: u32,
    pub(super) attached: Option<Attached>,
    /// What comes in by a port of a lagg; `None` for any other interface.
    pub(super) inbox: Option<VecDeque<Inbound>>,
    /// Frames dropped because too many waited.
    pub(super) frames_overrun: u64,
    /// How often adapters failed by themselves, by the reason.
    pub(super) failures: BTreeMap<&'static str, u64>,
}

/// What exists from attach to detach.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) interface: Interface<Packet>,
    pub(super) adapter: Adapter,
    pub(super) records: Records,
    /// Frames that wait for room in the send ring.
    pub(super) waiting: VecDeque<Frame>,
    /// The port as it was last reported.
    pub(super) port_seen: PortAttributes,
    /// Operations whose answer is still to come.
    pub(super) operations: BTreeSet<OpId>,
    pub(super) deadline: Option<Instant>,
    /// What the interface said about its carrier.
    pub(super) is_link_reported_up: bool,
    pub(super) actions: VecDeque<Action>,
    pub(super) events: VecDeque<Event>,
    pub(super) log: Log,
    /// The packets that the interface holds: counting them takes a look at all of its tables.
    pub(super) queued: usize,
    /// Whether the interface was fed anything since the checkers looked at it.
    pub(super) is_changed: bool,
    /// The length of a shared receive queue.
    shared_receives_wanted: usize,
}

/// What a station works on.
pub(super) struct Ground<'a> {
    pub(super) now: Instant,
    pub(super) fabric: &'a mut Fabric,
    pub(super) faults: &'a mut Faults,
    pub(super) site: &'a mut Site,
    pub(super) streams: &'a mut Streams,
    pub(super) planted: Option<Planted>,
}

impl Station {
    /// A host whose interface is not attached yet.
    pub(super) fn new(
        index: usize,
        site: usize,
        pkey: Option<Pkey>,
        host: Host,
        mode: Mode,
        gsi: &mut Gsi,
    ) -> Result<Self, CreateError> {
        let agent = gsi.register(Role::Client)?;
        let client =
            Client::new(agent.value(), SA_REQUESTS_MAX).map_err(|_| CreateError::OutOfMemory)?;
        Ok(Self {
            index,
            site,
            pkey,
            host,
            mode,
            agent,
            client,
            epoch: 0,
            attached: None,
            inbox: None,
            frames_overrun: 0,
            failures: BTreeMap::from([
                ("adapter_retry_exceeded", 0),
                ("adapter_rnr_retry_exceeded", 0),
            ]),
        })
    }

    /// Attaches the interface, administratively down.
    pub(super) fn attach(
        &mut self,
        ground: &mut Ground<'_>,
        limits: Limits,
        seed: u64,
    ) -> Result<(), CreateError> {
        self.epoch += 1;
        let Ground { fabric, site, .. } = ground;
        let port = fabric.port_attributes(site.port, self.pkey).ok_or(CreateError::Unknown)?;
        let adapter = Adapter::open(fabric, site, &limits, self.index as u64)?;
        let config = Config {
            qpn: adapter.qpn(),
            port,
            scope: Scope::LINK_LOCAL,
            mode: self.mode,
            connected: site.support,
            seed,
            limits,
        };
        let interface = Interface::attach(config).map_err(|_| CreateError::OutOfMemory)?;
        let connected_mtu = site.support.map_or(0, |support| support.mtu_max);
        self.attached = Some(Attached {
            interface,
            adapter,
            records: Records { connected_mtu, ..Records::default() },
            waiting: VecDeque::new(),
            port_seen: port,
            operations: BTreeSet::new(),
            deadline: None,
            is_link_reported_up: false,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            log: Log::default(),
            queued: 0,
            is_changed: true,
            shared_receives_wanted: limits.shared_receive_queue_len as usize,
        });
        self.follow_link(ground);
        Ok(())
    }

    /// Tells the host the interface's address and broadcast group, and the interface the groups
    /// that the host wants. For a port that is its lagg's business.
    pub(super) fn follow_link(&mut self, ground: &mut Ground<'_>) {
        let Some(attached) = self.attached.as_ref().filter(|_| self.inbox.is_none()) else {
            return;
        };
        let address = attached.interface.address();
        let Some(broadcast) = attached.interface.broadcast() else {
            return;
        };
        // The core's broadcast group is one by construction.
        let result = self.host.set_link(address, broadcast);
        debug_assert!(result.is_ok(), "{broadcast:?} is a broadcast group");
        self.follow_groups(ground);
    }

    /// Tells the interface which groups the host wants.
    pub(super) fn follow_groups(&mut self, ground: &mut Ground<'_>) {
        let groups = self.host.joined_groups();
        self.set_groups(ground, &groups);
    }

    /// Tells the interface which groups are wanted.
    pub(super) fn set_groups(&mut self, ground: &mut Ground<'_>, groups: &[LinkAddress]) {
        use zerocopy::IntoBytes;
        let now = ground.now;
        // Report B17: a stack that sits on links of other types lists addresses of theirs as well.
        let foreign: &[u8] = &[0x33, 0x33, 0, 0, 0, 1];
        self.pump(ground, |interface, queues| {
            let list = groups.iter().map(IntoBytes::as_bytes).chain([foreign]);
            interface.handle_multicast_list(now, list, queues);
        });
    }

    /// Feeds an input to the interface, if it is attached.
    pub(super) fn pump<R>(
        &mut self,
        ground: &mut Ground<'_>,
        feed: impl FnOnce(&mut Interface<Packet>, &mut Queues<'_>) -> R,
    ) -> Option<R> {
        let attached = self.attached.as_mut()?;
        let mut shell = Locked {
            attached,
            host: &mut self.host,
            inbox: self.inbox.as_mut(),
            now: ground.now,
            fabric: ground.fabric,
            faults: ground.faults,
            streams: ground.streams,
            planted: ground.planted,
        };
        let result = pump::pump(&mut shell, feed);
        attached.log.forget_gone(&attached.interface);
        attached.queued = attached.interface.packets_queued() as usize;
        attached.is_changed = true;
        Some(result)
    }

    pub(super) fn handle_port_event(&mut self, ground: &mut Ground<'_>, event: PortEvent) {
        // The table is read now, not when the event was raised.
        let Some(port) = ground.fabric.port_attributes(ground.site.port, self.pkey) else {
            return;
        };
        if let Some(attached) = &mut self.attached {
            attached.port_seen = port;
        }
        let now = ground.now;
        self.pump(ground, |interface, queues| {
            interface.handle_port_event(now, event, &port, queues);
        });
    }

    /// Takes up to `count` completions from the adapter; whether there may be more.
    pub(super) fn reap(&mut self, ground: &mut Ground<'_>, count: usize) -> bool {
        for _ in 0..count {
            let Some(attached) = &mut self.attached else {
                return false;
            };
            let mut cqs = attached.adapter.cqs();
            let completion = cqs.find_map(|cq| Some((cq, ground.fabric.poll_cq(cq)?)));
            let Some((cq, completion)) = completion else {
                return attached.adapter.arm(ground.fabric);
            };
            if attached.adapter.is_connected_cq(cq) {
                self.feed_connected(ground, completion);
                continue;
            }
            let is_send = matches!(completion.outcome, Outcome::Sent);
            let wr_id = completion.wr_id;
            self.feed_completion(ground, completion);
            if is_send && ground.planted == Some(Planted::DoubleCompletion) {
                self.feed_send(ground, wr_id, CompletionStatus::Success);
            }
        }
        true
    }

    /// Counts a failure of the adapter's own, so that a swarm shows what it met.
    fn count_failure(&mut self, error: WorkError) {
        let name = match error {
            WorkError::RetryExceeded => "adapter_retry_exceeded",
            WorkError::RnrRetryExceeded => "adapter_rnr_retry_exceeded",
            WorkError::Flushed
            | WorkError::LocalLength
            | WorkError::LocalQpOperation
            | WorkError::RemoteInvalidRequest => return,
        };
        *self.failures.entry(name).or_default() += 1;
    }

    fn feed_completion(&mut self, ground: &mut Ground<'_>, completion: Completion) {
        let Completion { qp, wr_id, outcome, .. } = completion;
        let now = ground.now;
        match outcome {
            Outcome::Sent if ground.faults.fails_completion() => {
                let posted = self.attached.as_ref().and_then(|one| one.adapter.posted.get(&wr_id));
                if let Some(Posted::Message(_)) = posted {
                    // A message that fails takes the queue pair with it (IBA 10.3.1).
                    let _ = ground.fabric.modify_qp(qp, &QpChange::Error);
                }
                self.feed_send(ground, wr_id, CompletionStatus::Failed);
            }
            Outcome::Received(arrival) if ground.faults.fails_completion() => {
                ground.fabric.pool_mut().free(arrival.packet);
                self.pump(ground, |interface, queues| {
                    interface.handle_receive_failed(now, CompletionStatus::Failed, queues);
                });
            }
            Outcome::Sent => self.feed_send(ground, wr_id, CompletionStatus::Success),
            Outcome::SendFailed(error) => {
                self.count_failure(error);
                self.feed_send(ground, wr_id, error.into());
            }
            Outcome::Received(arrival) => {
                let receive = Receive {
                    packet: arrival.packet,
                    has_grh: arrival.has_grh,
                    source_lid: arrival.source_lid.value(),
                    source_qpn: arrival.source_qpn,
                };
                self.pump(ground, |interface, queues| {
                    interface.handle_receive(now, receive, queues);
                });
            }
            Outcome::ReceiveFailed(error) => {
                self.pump(ground, |interface, queues| {
                    interface.handle_receive_failed(now, error.into(), queues);
                });
            }
        }
    }

    fn feed_send(&mut self, ground: &mut Ground<'_>, wr_id: u64, status: CompletionStatus) {
        let now = ground.now;
        if let Some(attached) = &mut self.attached
            && attached.adapter.posted.remove(&wr_id).is_none()
        {
            attached.records.misdeeds.push(format!("send {wr_id:#x} completed and is not posted"));
        }
        self.pump(ground, |interface, queues| {
            interface.handle_send_completion(now, SendId::from_bits(wr_id), status, queues);
        });
    }

    /// The management datagrams that arrived for this station.
    pub(super) fn receive_mads(&mut self, ground: &mut Ground<'_>) {
        while let Some(mad) = ground.site.gsi.poll_mad(self.agent) {
            if let Some((op, answer)) = self.client.handle_mad(&mad.bytes) {
                self.feed_answer(ground, op, answer);
            }
        }
    }

    /// When this station wants [`Self::handle_timeout`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        let interface = self.attached.as_ref().and_then(|attached| attached.deadline);
        [interface, self.client.poll_timeout(), self.host.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn handle_timeout(&mut self, ground: &mut Ground<'_>) {
        let now = ground.now;
        while let Some((op, answer)) = self.client.handle_timeout(now) {
            self.feed_answer(ground, op, answer);
        }
        self.host.handle_timeout(now, ground.fabric.pool_mut());
        self.pump(ground, |interface, queues| {
            interface.handle_timeout(now, queues);
        });
    }

    /// Offers what the host wants to send to the interface. Whether there was anything.
    pub(super) fn transmit(&mut self, ground: &mut Ground<'_>) -> bool {
        let mut is_busy = false;
        while let Some(frame) = self.host.poll_transmit() {
            is_busy = true;
            self.offer(ground, frame);
        }
        is_busy
    }

    /// Offers a frame to the interface, behind those that wait.
    pub(super) fn offer(&mut self, ground: &mut Ground<'_>, frame: Frame) {
        match &mut self.attached {
            None => ground.fabric.pool_mut().free(frame.packet),
            Some(attached) if attached.waiting.is_empty() => {
                self.transmit_frame(ground, frame);
            }
            Some(attached) if attached.waiting.len() < WAITING_FRAMES_MAX => {
                attached.waiting.push_back(frame);
            }
            Some(_) => {
                self.frames_overrun += 1;
                ground.fabric.pool_mut().free(frame.packet);
            }
        }
    }

    pub(super) fn transmit_frame(&mut self, ground: &mut Ground<'_>, frame: Frame) {
        let Frame { to, protocol, packet } = frame;
        let now = ground.now;
        if self.attached.is_none() {
            return ground.fabric.pool_mut().free(packet);
        }
        let identity = identity(&packet);
        let refused = self.pump(ground, |interface, queues| {
            queues.records.held.insert(identity, Held { since: now, to });
            interface.handle_transmit(now, &to, protocol, packet, queues)
        });
        if let (Some(Err(RingFull(packet))), Some(attached)) = (refused, &mut self.attached) {
            attached.records.held.remove(&identity);
            attached.waiting.push_front(Frame { to, protocol, packet });
        }
    }

    fn wake(&mut self, ground: &mut Ground<'_>) {
        let Some(attached) = &mut self.attached else {
            return;
        };
        let mut frames = std::mem::take(&mut attached.waiting);
        while let Some(frame) = frames.pop_front() {
            self.transmit_frame(ground, frame);
            if let Some(attached) = &mut self.attached
                && !attached.waiting.is_empty()
            {
                attached.waiting.append(&mut frames);
            }
        }
    }

    /// The host stops without a word: nobody is told, nothing is waited for.
    pub(super) fn crash(&mut self, ground: &mut Ground<'_>) {
        let now = ground.now;
        // What waits comes out; what follows from that is not carried out.
        self.pump(ground, |interface, queues| interface.handle_detach(now, queues));
        self.host.clear(ground.fabric.pool_mut());
        self.epoch += 1;
        let Some(attached) = self.attached.take() else {
            return;
        };
        for op in attached.operations {
            self.client.cancel(op);
        }
        for frame in attached.waiting {
            ground.fabric.pool_mut().free(frame.packet);
        }
        let is_closed = attached.adapter.close(ground.fabric);
        debug_assert!(is_closed, "nobody else uses what it has");
    }

    /// What is not well with this station, for people.
    pub(super) fn ailments(&self, fabric: &Fabric) -> Vec<String> {
        let index = self.index;
        let Some(attached) = &self.attached else {
            return vec![format!("station {index} is not attached")];
        };
        let interface = &attached.interface;
        let mut ailments = Vec::new();
        if !interface.is_link_up() {
            let state = interface.state_name();
            ailments.push(format!("station {index} has no carrier: it is {state}"));
        }
        if let Some((there, wanted)) = self.shared_receives(fabric).filter(|(a, b)| a < b) {
            let what = format!("station {index} has {there} shared receives and not {wanted}");
            ailments.push(what);
        }
        let queued = attached.queued + attached.waiting.len();
        if queued > 0 {
            ailments.push(format!("{queued} packets wait at station {index}"));
        }
        for wanted in self.host.joined_groups() {
            let is_joined = interface
                .groups()
                .any(|group| Some(group.mgid) == wanted.mgid() && group.mlid.is_some());
            if !is_joined {
                ailments.push(format!("station {index} has not joined {wanted}"));
            }
        }
        ailments
    }

    /// The receives on the shared queue, and how many there should be, while a connection needs
    /// them.
    fn shared_receives(&self, fabric: &Fabric) -> Option<(usize, usize)> {
        let attached = self.attached.as_ref()?;
        let srq = attached.adapter.links.as_ref()?.srq?;
        let is_needed = attached.interface.incoming().any(|row| row.state == "connected");
        let wanted = attached.shared_receives_wanted;
        is_needed.then_some((fabric.srq_len(srq)?, wanted))
    }

    /// Carries out an action.
    pub(super) fn execute(&mut self, ground: &mut Ground<'_>, action: Action) {
        let now = ground.now;
        if self.is_kept_by_bug(ground, &action) {
            return;
        }
        match action {
            Action::AttachGroup { .. }
            | Action::CreateAddressHandle { .. }
            | Action::DestroyAddressHandle { .. }
            | Action::DetachGroup { .. }
            | Action::ModifyQueuePair { .. } => self.execute_verb(ground, action),
            Action::CancelQuery { op } => {
                self.client.cancel(op);
                if let Some(attached) = &mut self.attached {
                    attached.operations.remove(&op);
                }
            }
            Action::JoinGroup { op, request } => {
                let mad = self.client.request_join(now, op, &request).ok();
                self.send_mad(ground, op, mad, Answer::Join(Err(SaError::Unusable)));
            }
            Action::LeaveGroup { op, mgid, port_gid, membership } => {
                let mad = self.client.request_leave(now, op, mgid, port_gid, membership).ok();
                self.send_mad(ground, op, mad, Answer::Leave(Err(SaError::Unusable)));
            }
            Action::QueryPath { op, query } => {
                let mad = self.client.request_path(now, op, &query).ok();
                self.send_mad(ground, op, mad, Answer::Path(Err(SaError::Unusable)));
            }
            Action::QuerySaCapabilities { op } => {
                let mad = self.client.request_capabilities(now, op).ok();
                let failed = Answer::Capabilities(Err(SaError::Unusable));
                self.send_mad(ground, op, mad, failed);
            }
            Action::WakeSendQueue => self.wake(ground),
            Action::AcceptConnection { .. }
            | Action::DestroyConnection { .. }
            | Action::ErrConnection { .. }
            | Action::Listen { .. }
            | Action::OpenConnection { .. }
            | Action::PostDrainMarker { .. }
            | Action::Unlisten { .. } => self.execute_connected(ground, action),
        }
    }

    /// A bug to be found: a connection that failed is not destroyed.
    fn is_kept_by_bug(&self, ground: &Ground<'_>, action: &Action) -> bool {
        let Action::DestroyConnection { connection, .. } = *action else {
            return false;
        };
        let link = self.links().and_then(|links| links.get(connection));
        let has_failed = link.is_some_and(|link| link.erred_at.is_some());
        has_failed && ground.planted == Some(Planted::StuckDrain)
    }

    fn execute_verb(&mut self, ground: &mut Ground<'_>, action: Action) {
        let Some(attached) = &mut self.attached else {
            return;
        };
        let (fabric, faults) = (&mut *ground.fabric, &mut *ground.faults);
        let adapter = &mut attached.adapter;
        let (op, result) = match action {
            Action::AttachGroup { op, mgid, mlid } => {
                let result = if faults.fails_verb() {
                    Err(VerbError)
                } else {
                    adapter.attach(fabric, mgid, mlid)
                };
                (op, result)
            }
            Action::CreateAddressHandle { op, handle, address } => {
                let created = if faults.fails_handle() {
                    Err(VerbError)
                } else {
                    fabric.create_ah(ground.site.port, &address).map_err(|_| VerbError)
                };
                let result = created.map(|ah| {
                    if adapter.handles.insert(handle, ah).is_some() {
                        attached
                            .records
                            .misdeeds
                            .push(format!("made {handle:?} although it exists"));
                    }
                });
                (op, result)
            }
            Action::DestroyAddressHandle { op, handle } => {
                // A send may read its handle until it completes (IBA 11.2.3.4).
                if adapter.posted.values().any(|&used| used == Posted::Datagram(handle)) {
                    let misdeed = format!("destroyed {handle:?} under a posted send");
                    attached.records.misdeeds.push(misdeed);
                }
                let ah = adapter.handles.remove(&handle).ok_or(VerbError);
                (op, ah.and_then(|ah| fabric.destroy_ah(ah).map_err(|_| VerbError)))
            }
            Action::DetachGroup { op, mgid, mlid } => (op, adapter.detach(fabric, mgid, mlid)),
            Action::ModifyQueuePair { op, change } => {
                let result = if faults.fails_verb() {
                    Err(VerbError)
                } else {
                    adapter.modify(fabric, change)
                };
                (op, result)
            }
            Action::AcceptConnection { .. }
            | Action::CancelQuery { .. }
            | Action::DestroyConnection { .. }
            | Action::ErrConnection { .. }
            | Action::JoinGroup { .. }
            | Action::LeaveGroup { .. }
            | Action::Listen { .. }
            | Action::OpenConnection { .. }
            | Action::PostDrainMarker { .. }
            | Action::QueryPath { .. }
            | Action::QuerySaCapabilities { .. }
            | Action::Unlisten { .. }
            | Action::WakeSendQueue => return,
        };
        self.feed_result(ground, op, result);
    }

    pub(super) fn feed_result(
        &mut self,
        ground: &mut Ground<'_>,
        op: OpId,
        result: Result<(), VerbError>,
    ) {
        if let Some(attached) = &mut self.attached {
            attached.operations.remove(&op);
        }
        let now = ground.now;
        self.pump(ground, |interface, queues| {
            interface.handle_verb_result(now, op, result, queues);
        });
    }

    /// Sends a request to the SA; what cannot be sent is answered at once with `failed`.
    fn send_mad(
        &mut self,
        ground: &mut Ground<'_>,
        op: OpId,
        mad: Option<[u8; fabric::mad::MAD_BYTES]>,
        failed: Answer,
    ) {
        let sm = ground.fabric.query_port(ground.site.port).and_then(|port| port.sm);
        let sent = match (mad, sm) {
            (Some(mad), Some(sm)) => {
                let gsi = &mut ground.site.gsi;
                let to = gsi.address(ground.fabric, sm.lid, sm.sl);
                gsi.send(ground.fabric, &to, &mad).is_ok()
            }
            (Some(_), None) | (None, _) => false,
        };
        if !sent {
            self.client.cancel(op);
            self.feed_answer(ground, op, failed);
        }
    }

    fn feed_answer(&mut self, ground: &mut Ground<'_>, op: OpId, answer: Answer) {
        if let Some(attached) = &mut self.attached {
            attached.operations.remove(&op);
        }
        let now = ground.now;
        self.pump(ground, |interface, queues| match answer {
            Answer::Path(answer) => interface.handle_path_answer(now, op, answer, queues),
            Answer::Join(answer) => interface.handle_join_answer(now, op, answer, queues),
            Answer::Leave(answer) => interface.handle_leave_answer(now, op, answer, queues),
            Answer::Capabilities(answer) => interface.handle_sa_capabilities(op, answer),
        });
    }
}

/// The interface while it is locked, as the pump sees it.
struct Locked<'a> {
    attached: &'a mut Attached,
    host: &'a mut Host,
    inbox: Option<&'a mut VecDeque<Inbound>>,
    now: Instant,
    fabric: &'a mut Fabric,
    faults: &'a mut Faults,
    streams: &'a mut Streams,
    planted: Option<Planted>,
}

impl Shell for Locked<'_> {
    type Packet = Packet;
    type DataPath<'a> = Queues<'a>;

    fn with_interface<R>(
        &mut self,
        feed: impl FnOnce(&mut Interface<Packet>, &mut Queues<'_>) -> R,
    ) -> R {
        let mut queues = Queues {
            adapter: &mut self.attached.adapter,
            fabric: self.fabric,
            faults: self.faults,
            records: &mut self.attached.records,
            streams: self.streams,
            planted: self.planted,
        };
        feed(&mut self.attached.interface, &mut queues)
    }

    fn release_packets(&mut self) {
        let Attached { records, interface, .. } = &mut *self.attached;
        while let Some((packet, delivery)) = records.delivered.pop_front() {
            match &mut self.inbox {
                Some(inbox) => inbox.push_back(Inbound::Received(packet, delivery)),
                None => self.host.receive(self.now, packet, delivery, self.fabric.pool_mut()),
            }
        }
        while let Some(TooBig { packet, mtu, to }) = records.too_big.pop_front() {
            if let Some(to) = to
                && let Err(what) = neighbors::check_reported(interface, &to, mtu)
            {
                records.misdeeds.push(what);
            }
            match &mut self.inbox {
                Some(inbox) => inbox.push_back(Inbound::TooBig(packet, mtu)),
                None => self.host.handle_too_big(packet, mtu, self.fabric.pool_mut()),
            }
        }
    }
}

impl PumpingShell for Locked<'_> {
    fn observe(&mut self, event: Event) {
        let again = self.planted == Some(Planted::Repetition);
        for _ in 0..1 + u32::from(again) {
            if let Err(what) = self.attached.log.on_event(&event) {
                self.attached.records.misdeeds.push(what);
            }
        }
        self.attached.events.push_back(event);
    }

    fn execute(&mut self, mut action: Action) {
        if self.planted == Some(Planted::WrongService)
            && let Action::OpenConnection { request, .. } = &mut action
        {
            request.service.0 ^= 1 << 23;
        }
        if self.attached.adapter.is_retired {
            self.attached
                .records
                .misdeeds
                .push(format!("{action:?} after the interface reported that it is detached"));
        }
        if let Err(what) = neighbors::check_action(&self.attached.interface, &action) {
            self.attached.records.misdeeds.push(what);
        }
        let is_answered = !matches!(action, Action::CancelQuery { .. });
        if let Some(op) = action.operation().filter(|_| is_answered)
            && !self.attached.operations.insert(op)
        {
            self.attached.records.misdeeds.push(format!("{op:?} was used twice"));
        }
        self.attached.actions.push_back(action);
    }

    fn schedule(&mut self, deadline: Option<Instant>) {
        self.attached.deadline = match self.planted {
            Some(Planted::LostTimer) if self.faults.is_bug_due() => None,
            Some(_) | None => deadline,
        };
    }
}
