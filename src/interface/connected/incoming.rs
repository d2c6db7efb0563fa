//! Incoming connections: accepted as far as there is room, drained in the order that IBA
//! prescribes, reaped when they are silent.

use crate::action::{
    Action, ConnectionId, ConnectionParameters, OpId, RejectReason, RequestId, Target, VerbError,
};
use crate::connection::{Incoming, IncomingState, Peer};
use crate::counters::{Counter, DropReason};
use crate::ib::{Gid, Psn};
use crate::interface::Interface;
use crate::interface::link::Lifecycle;
use crate::limits::{DRAIN_MAX, INCOMING_IDLE_MAX, LINGER_MAX, RECEIVE_REFILL};
use crate::packet::{
    Cast, CompletionStatus, ConnectedReceive, DataPath, Delivery, PacketBuf, ReceiveQueue,
};
use crate::time::Instant;
use crate::wire::{ENCAPSULATION_BYTES, Encapsulation};

use super::Mode;
use zerocopy::FromBytes;

/// A REQ that arrived for this interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IncomingRequest {
    /// What the shell calls it.
    pub id: RequestId,
    /// The port of the peer.
    pub gid: Gid,
    /// Its private data.
    pub peer: ConnectionParameters,
}

impl<B: PacketBuf> Interface<B> {
    pub(in crate::interface) fn on_connect_request(
        &mut self,
        now: Instant,
        request: IncomingRequest,
    ) -> Result<(), RejectReason> {
        let IncomingRequest { id, gid, peer } = request;
        if self.mode != Mode::Connected || self.lifecycle != Lifecycle::Joined {
            return self.refuse(RejectReason::InvalidServiceId);
        }
        if peer.receive_mtu as usize <= ENCAPSULATION_BYTES {
            return self.refuse(RejectReason::ConsumerReject);
        }
        let peer = Peer { gid, qpn: peer.qpn };
        let in_use = self.connections.incoming.iter().filter(|(_, one)| one.state.is_in_use());
        // Report C7: without a shared queue every connection needs receives of its own.
        let is_full = in_use.count() as u32 >= self.incoming_max();
        let mut superseded = self.connections.live_from(peer);
        if superseded.is_none() && is_full {
            // A host that starts anew has another queue pair, and ends nothing that it had before:
            // that would fill the table until the reaper comes.
            superseded = self.connections.dispensable_for(gid, now);
            if superseded.is_none() {
                return self.refuse(RejectReason::NoResources);
            }
        }
        // A peer that asks again and again, as one that restarts does, holds at most two.
        self.close_lingering(|lingering| lingering == peer);
        let state = IncomingState::AcceptWanted(id);
        let incoming = Incoming { peer, state, operation: 0, receives_posted: 0, used_at: now };
        let Ok(place) = self.connections.incoming.insert(incoming) else {
            // The peer that asks comes before those that were told to go, and before what it has
            // forgotten.
            self.close_lingering(|_| true);
            if let Some(old) = superseded {
                self.counters.count(Counter::AcceptsSuperseded);
                self.close_incoming(old);
            }
            return self.refuse(RejectReason::NoResources);
        };
        if let Some(old) = superseded {
            self.counters.count(Counter::AcceptsSuperseded);
            self.let_linger(now, old);
        }
        self.push_work(Target::Incoming(place));
        self.arm_reaper();
        Ok(())
    }

    fn refuse(&mut self, reason: RejectReason) -> Result<(), RejectReason> {
        self.counters.count(Counter::AcceptsRefused);
        Err(reason)
    }

    fn incoming_max(&self) -> u32 {
        if self.shares_receives() {
            self.limits.incoming_max
        } else {
            self.limits.incoming_unshared_max.min(self.limits.incoming_max)
        }
    }

    fn shares_receives(&self) -> bool {
        self.connected.is_some_and(|support| support.shares_receives)
    }

    /// The only way to change the state of an incoming connection.
    fn enter_incoming(&mut self, place: u32, state: IncomingState) {
        let Some(incoming) = self.connections.incoming.get_mut(place) else { return };
        incoming.state = state;
        if state.wants_action() {
            self.push_work(Target::Incoming(place));
        }
        self.set_timer(Target::Incoming(place), state.ends_at());
    }

    pub(in crate::interface) fn next_incoming_action(&mut self, place: u32) -> Option<Action> {
        let state = self.connections.incoming.get(place)?.state;
        let connection = self.incoming_id(place);
        match state {
            IncomingState::AcceptWanted(request) => {
                let op = self.begin_incoming(place, IncomingState::Accepting)?;
                let starting_psn = Psn::from_random(self.seed.draw());
                let own = self.own_parameters();
                Some(Action::AcceptConnection { op, connection, request, starting_psn, own })
            }
            IncomingState::ErrorWanted => {
                let op = self.begin_incoming(place, IncomingState::Erring)?;
                Some(Action::ErrConnection { op, connection })
            }
            IncomingState::MarkerWanted { deadline } => {
                let op = self.begin_incoming(place, IncomingState::Marking { deadline })?;
                Some(Action::PostDrainMarker { op, connection })
            }
            IncomingState::DestroyWanted => {
                let op = self.begin_incoming(place, IncomingState::Destroying)?;
                Some(Action::DestroyConnection { op, connection })
            }
            IncomingState::Accepting
            | IncomingState::AcceptingUnwanted
            | IncomingState::Live
            | IncomingState::Lingering { .. }
            | IncomingState::Erring
            | IncomingState::AwaitingLastWqe { .. }
            | IncomingState::Marking { .. }
            | IncomingState::Destroying => None,
        }
    }

    fn begin_incoming(&mut self, place: u32, next: IncomingState) -> Option<OpId> {
        let op = self.begin_operation(Target::Incoming(place));
        self.connections.incoming.get_mut(place)?.operation = op.generation;
        self.enter_incoming(place, next);
        Some(op)
    }

    /// Returns whether the result was waited for.
    pub(in crate::interface) fn on_incoming_verb(
        &mut self,
        now: Instant,
        op: OpId,
        result: Result<(), VerbError>,
        datapath: &mut impl DataPath<B>,
    ) -> bool {
        let Some((place, state)) = self.connections.incoming_of(op) else { return false };
        match (state, result) {
            (IncomingState::Accepting, Ok(())) => {
                self.counters.count(Counter::Accepts);
                self.enter_incoming(place, IncomingState::Live);
                self.refill_connected(now, place, datapath);
            }
            (IncomingState::Accepting, Err(VerbError)) => {
                self.enter_incoming(place, IncomingState::DestroyWanted);
            }
            (IncomingState::AcceptingUnwanted, _) => {
                self.enter_incoming(place, IncomingState::ErrorWanted);
            }
            (IncomingState::Erring, Ok(())) => {
                let deadline = now + DRAIN_MAX;
                self.enter_incoming(place, IncomingState::AwaitingLastWqe { deadline });
                self.finish_unshared_drain(place);
            }
            // What cannot be drained in order can still be destroyed: the adapter stops first.
            (IncomingState::Erring | IncomingState::Marking { .. }, Err(VerbError)) => {
                self.counters.count(Counter::IncomingForced);
                self.enter_incoming(place, IncomingState::DestroyWanted);
            }
            (IncomingState::Marking { .. }, Ok(())) => {
                self.enter_incoming(place, IncomingState::DestroyWanted);
            }
            (IncomingState::Destroying, _) => {
                self.set_timer(Target::Incoming(place), None);
                self.connections.incoming.remove(place);
                self.arm_reaper();
            }
            (
                IncomingState::AcceptWanted(_)
                | IncomingState::Live
                | IncomingState::Lingering { .. }
                | IncomingState::ErrorWanted
                | IncomingState::AwaitingLastWqe { .. }
                | IncomingState::MarkerWanted { .. }
                | IncomingState::DestroyWanted,
                _,
            ) => return false,
        }
        true
    }

    /// Gives an incoming connection up, from whatever it is doing.
    pub(in crate::interface) fn close_incoming(&mut self, place: u32) {
        let Some(incoming) = self.connections.incoming.get(place) else { return };
        let next = match incoming.state {
            // Not accepted yet: the shell is told nothing, and the REQ runs out.
            IncomingState::AcceptWanted(_) => {
                self.connections.incoming.remove(place);
                self.arm_reaper();
                return;
            }
            IncomingState::Accepting => IncomingState::AcceptingUnwanted,
            IncomingState::Live | IncomingState::Lingering { .. } => IncomingState::ErrorWanted,
            IncomingState::AcceptingUnwanted
            | IncomingState::ErrorWanted
            | IncomingState::Erring
            | IncomingState::AwaitingLastWqe { .. }
            | IncomingState::MarkerWanted { .. }
            | IncomingState::Marking { .. }
            | IncomingState::DestroyWanted
            | IncomingState::Destroying => return,
        };
        self.enter_incoming(place, next);
    }

    /// Gives an incoming connection up without losing what its peer still sends: the peer is told
    /// of another address, or made another connection, and ends this one.
    pub(super) fn let_linger(&mut self, now: Instant, place: u32) {
        let Some(incoming) = self.connections.incoming.get(place) else { return };
        if incoming.state == IncomingState::Live {
            self.enter_incoming(place, IncomingState::Lingering { deadline: now + LINGER_MAX });
            self.arm_reaper();
        } else {
            self.close_incoming(place);
        }
    }

    fn close_lingering(&mut self, is_it: impl Fn(Peer) -> bool) {
        for place in 0..self.connections.incoming.capacity() {
            let Some(incoming) = self.connections.incoming.get(place) else { continue };
            if let IncomingState::Lingering { .. } = incoming.state
                && is_it(incoming.peer)
            {
                self.close_incoming(place);
            }
        }
    }

    /// Connections are wanted again: those that their peers still hold stay.
    pub(super) fn resume_incoming(&mut self) {
        for place in 0..self.connections.incoming.capacity() {
            let Some(incoming) = self.connections.incoming.get(place) else { continue };
            if let IncomingState::Lingering { .. } = incoming.state
                && self.connections.live_from(incoming.peer).is_none()
            {
                self.enter_incoming(place, IncomingState::Live);
            }
        }
        self.arm_reaper();
    }

    /// The adapter has taken its last receive for the connection: IBA 10.3.1 has the consumer then
    /// post one more work request, behind which no completion of the queue pair can stand.
    pub(in crate::interface) fn on_last_wqe(&mut self, connection: ConnectionId) {
        let Some(place) = self.incoming_place(connection) else { return };
        let Some(incoming) = self.connections.incoming.get(place) else { return };
        if let IncomingState::AwaitingLastWqe { deadline } = incoming.state {
            self.enter_incoming(place, IncomingState::MarkerWanted { deadline });
        }
    }

    /// Without a shared queue there is no such event: the connection's own receives come back.
    fn finish_unshared_drain(&mut self, place: u32) {
        let shares = self.shares_receives();
        let Some(incoming) = self.connections.incoming.get(place) else { return };
        if let IncomingState::AwaitingLastWqe { .. } = incoming.state
            && !shares
            && incoming.receives_posted == 0
        {
            self.enter_incoming(place, IncomingState::DestroyWanted);
        }
    }

    pub(in crate::interface) fn on_incoming_timeout(&mut self, now: Instant, place: u32) {
        let Some(incoming) = self.connections.incoming.get(place) else { return };
        if incoming.state.ends_at().is_none_or(|deadline| deadline > now) {
            return;
        }
        if let IncomingState::Lingering { .. } = incoming.state {
            self.close_incoming(place);
            return;
        }
        // An adapter that says nothing must not keep the interface. The answer to a marker that is
        // given up is stale.
        self.counters.count(Counter::IncomingForced);
        self.enter_incoming(place, IncomingState::DestroyWanted);
    }

    /// Gives up incoming connections that have been silent for too long.
    pub(in crate::interface) fn reap_incoming(&mut self, now: Instant) {
        for place in 0..self.connections.incoming.capacity() {
            let Some(incoming) = self.connections.incoming.get(place) else { continue };
            let is_silent = now.saturating_since(incoming.used_at) >= INCOMING_IDLE_MAX;
            if is_silent && incoming.state == IncomingState::Live {
                self.counters.count(Counter::IncomingReaped);
                self.close_incoming(place);
            }
        }
        self.arm_reaper();
    }

    /// The reaper comes when the longest silent connection is due.
    fn arm_reaper(&mut self) {
        let live = self.connections.incoming.iter().filter(|(_, one)| one.state.is_in_use());
        let oldest = live.map(|(_, incoming)| incoming.used_at).min();
        self.set_timer(Target::Reaper, oldest.map(|at| at + INCOMING_IDLE_MAX));
    }

    pub(in crate::interface) fn incoming_place(&self, connection: ConnectionId) -> Option<u32> {
        connection.0.checked_sub(self.limits.outgoing_max)
    }

    pub(in crate::interface) fn on_connected_receive(
        &mut self,
        now: Instant,
        receive: ConnectedReceive<B>,
        datapath: &mut impl DataPath<B>,
    ) {
        let ConnectedReceive { connection, mut packet } = receive;
        self.after_connected_receive(now, connection, datapath);
        if let Some(place) = self.incoming_place(connection)
            && let Some(incoming) = self.connections.incoming.get_mut(place)
        {
            incoming.used_at = now;
        }
        if self.lifecycle != Lifecycle::Joined {
            self.drop_packet(packet, DropReason::ReceivedWhileDown, datapath);
            return;
        }
        let mut front = [0; ENCAPSULATION_BYTES];
        let bytes = packet.len();
        let is_whole = packet.copy_out(0, &mut front).is_ok();
        let front = Encapsulation::read_from_bytes(&front).ok().filter(|_| is_whole);
        let (Some(front), Ok(())) = (front, packet.trim_front(ENCAPSULATION_BYTES)) else {
            self.drop_packet(packet, DropReason::FrameTooShort, datapath);
            return;
        };
        self.counters.count(Counter::PacketsReceived);
        self.counters.count(Counter::ConnectedReceived);
        self.counters.add(Counter::BytesReceived, bytes as u64);
        // Report B29: messages of a connection carry no GRH and are never multicast.
        let delivery = Delivery { protocol: front.protocol(), cast: Cast::Unicast };
        datapath.deliver(packet, delivery);
    }

    pub(in crate::interface) fn on_connected_receive_failed(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        status: CompletionStatus,
        datapath: &mut impl DataPath<B>,
    ) {
        match status {
            CompletionStatus::Flushed => {}
            CompletionStatus::Success | CompletionStatus::Failed => {
                self.counters.count(Counter::ReceiveFailed);
            }
        }
        self.after_connected_receive(now, connection, datapath);
        if let Some(place) = self.incoming_place(connection) {
            self.close_incoming(place);
            self.finish_unshared_drain(place);
        }
    }

    fn after_connected_receive(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        datapath: &mut impl DataPath<B>,
    ) {
        let place = self.incoming_place(connection);
        if self.shares_receives() {
            let posted = &mut self.connections.shared_receives_posted;
            *posted = posted.saturating_sub(1);
        } else if let Some(place) = place
            && let Some(incoming) = self.connections.incoming.get_mut(place)
        {
            incoming.receives_posted = incoming.receives_posted.saturating_sub(1);
        }
        if let Some(place) = place {
            self.refill_connected(now, place, datapath);
        }
    }

    /// Posts receives for connections up to the limit, on the queue that the adapter has for them.
    fn refill_connected(&mut self, now: Instant, place: u32, datapath: &mut impl DataPath<B>) {
        let bytes = self.connected_receive_bytes();
        let connection = self.incoming_id(place);
        let (queue, len_max) = if self.shares_receives() {
            (ReceiveQueue::Shared, self.limits.shared_receive_queue_len)
        } else {
            (ReceiveQueue::Of(connection), self.limits.connection_receive_queue_len)
        };
        loop {
            let posted = match queue {
                ReceiveQueue::Shared => &mut self.connections.shared_receives_posted,
                ReceiveQueue::Of(_) => match self.connections.incoming.get_mut(place) {
                    Some(incoming) if incoming.state.receives() => &mut incoming.receives_posted,
                    Some(_) | None => return,
                },
            };
            if *posted >= len_max {
                return;
            }
            if datapath.post_connected_receive(queue, bytes).is_err() {
                self.counters.count(Counter::ReceivePostFailed);
                self.set_timer(Target::QueuePair, Some(now + RECEIVE_REFILL));
                return;
            }
            *posted += 1;
        }
    }

    /// Refills every queue for connections, after receives could not be posted.
    pub(in crate::interface) fn refill_all_connected(
        &mut self,
        now: Instant,
        datapath: &mut impl DataPath<B>,
    ) {
        for place in 0..self.connections.incoming.capacity() {
            let receives = |incoming: &Incoming| incoming.state.receives();
            if self.connections.incoming.get(place).is_some_and(receives) {
                self.refill_connected(now, place, datapath);
            }
        }
    }
}
