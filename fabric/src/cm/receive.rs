//! What happens because a message arrives (IBA 12.9.7, 12.9.8).

use ipoib_rs::time::Instant;

use super::connection::{Connection, Link, Remote, Sent, State, Timing};
use super::{
    DisconnectCause, EVENTS_MAX, EVENTS_PER_MAD, Event, Manager, PeerReply, Rejection, RequestId,
};
use crate::gsi::MadAddress;
use crate::mad::cm::{
    self, CmMessage, CommId, CommIds, DisconnectReplyWire, DisconnectRequestWire, Message,
    MessageKind, MraWire, RejectReason, RejectWire, Reply, Request, RequestWire,
};

/// Where a message came from and what its answer must repeat.
#[derive(Clone, Copy, Debug)]
struct Origin {
    from: MadAddress,
    transaction: u64,
}

impl<T: Copy + Ord> Manager<T> {
    /// A message that arrived, and from which QP1. Anything that is not a message, or not one that
    /// fits, is counted and ignored.
    pub fn handle_mad(&mut self, now: Instant, from: MadAddress, bytes: &[u8]) {
        // As if it were lost on the way: the peer repeats what matters.
        if EVENTS_MAX - self.events.len() < EVENTS_PER_MAD {
            self.counters.mads_deferred += 1;
            return;
        }
        self.counters.mads_received += 1;
        let Ok(CmMessage { transaction, message }) = cm::parse(bytes) else {
            self.counters.mads_malformed += 1;
            return;
        };
        let origin = Origin { from, transaction };
        match message {
            Message::Request(wire) => self.handle_request(now, origin, wire),
            Message::Mra(wire) => self.handle_extension(now, wire),
            Message::Reject(wire) => self.handle_reject(now, wire),
            Message::Reply(wire) => self.handle_reply(now, origin, &wire.reply()),
            Message::ReadyToUse(wire) => self.handle_ready_to_use(origin, wire.comm_ids()),
            Message::DisconnectRequest(wire) => self.handle_disconnect(now, origin, wire),
            Message::DisconnectReply(wire) => self.handle_disconnected(now, wire.comm_ids()),
        }
    }

    fn handle_request(&mut self, now: Instant, origin: Origin, wire: &RequestWire) {
        let demand = match wire.request() {
            Ok(demand) => demand,
            Err(reason) => {
                self.counters.requests_invalid += 1;
                self.refuse_request(origin, wire.comm_id(), reason);
                return;
            }
        };
        if self.handle_request_known(now, origin, &demand) {
            return;
        }
        let service = demand.service.0;
        let is_served = self
            .listeners
            .iter()
            .any(|listener| (listener.service.0 ^ service) & listener.mask == 0);
        if !is_served {
            self.counters.requests_unserved += 1;
            self.refuse_request(origin, demand.comm_id, RejectReason::InvalidServiceId);
            return;
        }
        let timing = Timing::new(
            demand.local_response_timeout,
            demand.path.ack_timeout,
            demand.max_cm_retries,
            self.config.wait_max,
        );
        let inserted = self.table.insert(|_| Connection {
            to: origin.from,
            transaction: origin.transaction,
            timing,
            state: State::Requested {
                remote: Remote {
                    comm_id: demand.comm_id,
                    ca_guid: demand.ca_guid,
                    qpn: demand.qpn,
                },
                has_alternate: wire.has_alternate(),
            },
        });
        let Some(comm_id) = inserted else {
            self.counters.requests_table_full += 1;
            self.refuse_request(origin, demand.comm_id, RejectReason::NoResources);
            return;
        };
        self.counters.requests += 1;
        self.push_event(Event::Requested {
            request: RequestId(comm_id),
            from: origin.from,
            demand,
        });
    }

    /// A request that came before, or of a queue pair that is known. Whether it was one.
    fn handle_request_known(&mut self, now: Instant, origin: Origin, demand: &Request) -> bool {
        let mut stale = self.table.find_qpn(demand.ca_guid, demand.qpn);
        let mut same = None;
        for comm_id in self.table.find_remote(demand.ca_guid, demand.comm_id) {
            let Some(connection) = self.table.get(comm_id) else {
                continue;
            };
            let remote = connection.state.remote();
            if connection.transaction == origin.transaction
                && remote.is_some_and(|remote| remote.qpn == demand.qpn)
            {
                same = Some(comm_id);
            } else if connection.state.is_connected() {
                // The peer gave the name to another connection, so it has forgotten this one.
                stale = Some(comm_id);
            }
        }
        if let Some(comm_id) = same {
            self.handle_request_again(origin, comm_id, demand);
            return true;
        }
        let Some(comm_id) = stale else {
            return false;
        };
        // IBA 12.9.8.3.1: the request is rejected and the connection that it contradicts ends.
        self.counters.requests_stale += 1;
        self.refuse_request(origin, demand.comm_id, RejectReason::StaleConnection);
        self.end_stale(now, comm_id);
        true
    }

    fn handle_request_again(&mut self, origin: Origin, comm_id: CommId, demand: &Request) {
        self.counters.requests_duplicate += 1;
        let Some(connection) = self.table.get(comm_id) else {
            return;
        };
        match connection.state {
            // The owner takes its time.
            State::Requested { remote, .. } => {
                self.send_extension(comm_id, remote.comm_id, MessageKind::Request);
            }
            // The REP was lost, or is on its way.
            State::Accepting { .. } => self.send_kept(comm_id),
            // IBA 12.9.8.3.1: a late repetition must not make a second connection.
            State::Disconnecting { .. } | State::TimeWait { .. } => {
                self.refuse_request(origin, demand.comm_id, RejectReason::StaleConnection);
            }
            // The RTU has come, so the peer has the REP.
            State::Established { .. } | State::Replied { .. } | State::Requesting { .. } => {}
        }
    }

    /// Ends a connection that the peer has forgotten.
    fn end_stale(&mut self, now: Instant, comm_id: CommId) {
        let Some(connection) = self.table.get(comm_id) else {
            return;
        };
        match connection.state {
            State::Requested { .. } => self.withdraw(comm_id),
            State::Replied { tag, link }
            | State::Accepting { tag, link, .. }
            | State::Established { tag, link, .. } => {
                self.counters.stale += 1;
                self.enter_disconnecting(now, comm_id, Some(tag), link, true);
                let cause = DisconnectCause::Stale;
                self.push_event(Event::Disconnected { tag, cause });
            }
            State::Requesting { .. } | State::Disconnecting { .. } | State::TimeWait { .. } => {}
        }
    }

    fn withdraw(&mut self, comm_id: CommId) {
        self.table.remove(comm_id);
        self.counters.requests_withdrawn += 1;
        let request = RequestId(comm_id);
        // If the owner has not heard of the request, it need not.
        let before = self.events.len();
        self.events.retain(
            |event| !matches!(event, Event::Requested { request: other, .. } if *other == request),
        );
        if self.events.len() == before {
            self.push_event(Event::Withdrawn { request });
        }
    }

    fn handle_reply(&mut self, now: Instant, origin: Origin, reply: &Reply) {
        let comm_id = reply.remote_comm_id;
        let Some(connection) = self.table.get(comm_id) else {
            self.refuse_reply(origin, reply, RejectReason::InvalidCommId);
            return;
        };
        match connection.state {
            State::Requesting { tag, local_qpn, .. } => {
                let remote =
                    Remote { comm_id: reply.comm_id, ca_guid: reply.ca_guid, qpn: reply.qpn };
                let link = Link { local_qpn, remote };
                self.enter_replied(now, origin, comm_id, tag, link, reply);
            }
            State::Replied { link, .. } if link.remote.comm_id == reply.comm_id => {
                self.counters.replies_duplicate += 1;
                self.send_extension(comm_id, reply.comm_id, MessageKind::Reply);
            }
            State::Established { link, is_active: true, .. }
                if link.remote.comm_id == reply.comm_id =>
            {
                // The RTU was lost, or is on its way.
                self.counters.replies_duplicate += 1;
                self.send_ready_to_use(comm_id, link);
            }
            // The DREQ that is repeated says what a REJ would.
            State::Disconnecting { .. } => self.counters.mads_unexpected += 1,
            State::Replied { .. }
            | State::Established { .. }
            | State::Requested { .. }
            | State::Accepting { .. }
            | State::TimeWait { .. } => {
                self.refuse_reply(origin, reply, RejectReason::InvalidCommId);
            }
        }
    }

    fn enter_replied(
        &mut self,
        now: Instant,
        origin: Origin,
        comm_id: CommId,
        tag: T,
        link: Link,
        reply: &Reply,
    ) {
        let same_name = self.table.find_remote(reply.ca_guid, reply.comm_id).find(|other| {
            let connection = self.table.get(*other);
            connection.is_some_and(|connection| connection.state.is_connected())
        });
        let stale = self.table.find_qpn(reply.ca_guid, reply.qpn).or(same_name);
        if let Some(stale) = stale {
            // IBA 12.9.8.3.1: as for a REQ.
            self.counters.replies_stale += 1;
            self.refuse_reply(origin, reply, RejectReason::StaleConnection);
            self.enter_time_wait(now, comm_id, Some(tag), None);
            let rejection = Rejection::local(RejectReason::StaleConnection);
            self.push_event(Event::Rejected { tag, rejection });
            self.end_stale(now, stale);
            return;
        }
        self.table.replace(comm_id, State::Replied { tag, link });
        self.counters.replies += 1;
        self.push_event(Event::Replied {
            tag,
            reply: PeerReply {
                qpn: reply.qpn,
                starting_psn: reply.starting_psn,
                rnr_retry_count: reply.rnr_retry_count,
                has_shared_receive_queue: reply.has_shared_receive_queue,
                target_ack_delay: reply.target_ack_delay,
                private_data: reply.private_data,
            },
        });
    }

    fn handle_ready_to_use(&mut self, origin: Origin, ids: CommIds) {
        let Some(connection) = self.find(ids) else {
            self.counters.mads_unexpected += 1;
            // The peer takes a connection for established that is not there.
            if self.table.get(ids.remote).is_none() {
                let reason = RejectReason::InvalidCommId;
                self.refuse_message(origin, ids, MessageKind::Other, reason);
            }
            return;
        };
        match connection.state {
            State::Accepting { tag, link, .. } => {
                let is_active = false;
                let state = State::Established { tag, link, is_active };
                self.table.replace(ids.remote, state);
                self.counters.established += 1;
                self.push_event(Event::Established { tag });
            }
            State::Established { .. }
            | State::Requesting { .. }
            | State::Replied { .. }
            | State::Requested { .. }
            | State::Disconnecting { .. }
            | State::TimeWait { .. } => self.counters.mads_unexpected += 1,
        }
    }

    fn handle_extension(&mut self, now: Instant, wire: &MraWire) {
        let ids = wire.comm_ids();
        let wait = wire.service_timeout().duration().min(self.config.wait_max);
        let Some(connection) = self.table.get(ids.remote) else {
            self.counters.mads_unexpected += 1;
            return;
        };
        let extended = |sent: &Sent| {
            let mut sent = *sent;
            sent.repetition.due = now + connection.timing.response + wait;
            sent.repetition.is_extended = true;
            sent
        };
        let state = match (&connection.state, wire.message()) {
            (State::Requesting { tag, local_qpn, sent }, Some(MessageKind::Request))
                if !sent.repetition.is_extended =>
            {
                State::Requesting { tag: *tag, local_qpn: *local_qpn, sent: extended(sent) }
            }
            (State::Accepting { tag, link, sent }, Some(MessageKind::Reply))
                if !sent.repetition.is_extended && link.remote.comm_id == ids.local =>
            {
                State::Accepting { tag: *tag, link: *link, sent: extended(sent) }
            }
            // Of another message or state, or a second one: a peer must not prolong a wait for
            // ever.
            (
                State::Requesting { .. }
                | State::Accepting { .. }
                | State::Replied { .. }
                | State::Requested { .. }
                | State::Established { .. }
                | State::Disconnecting { .. }
                | State::TimeWait { .. },
                Some(MessageKind::Request | MessageKind::Reply | MessageKind::Other) | None,
            ) => {
                self.counters.mads_unexpected += 1;
                return;
            }
        };
        self.counters.waits_extended += 1;
        self.table.replace(ids.remote, state);
    }

    fn handle_reject(&mut self, now: Instant, wire: &RejectWire) {
        let Some(comm_id) = self.find_rejected(wire) else {
            self.counters.mads_unexpected += 1;
            return;
        };
        let Some(connection) = self.table.get(comm_id) else {
            return;
        };
        let rejection = Rejection { code: wire.reason.get(), private_data: wire.private_data };
        self.counters.rejections += 1;
        let remote = connection.state.remote();
        match connection.state {
            State::Requesting { tag, .. }
            | State::Replied { tag, .. }
            | State::Accepting { tag, .. } => {
                if rejection.reason() == Some(RejectReason::StaleConnection) {
                    self.enter_time_wait(now, comm_id, Some(tag), remote);
                } else {
                    self.table.remove(comm_id);
                }
                self.push_event(Event::Rejected { tag, rejection });
            }
            State::Requested { .. } => self.withdraw(comm_id),
            // The peer gave up before the RTU or a packet reached it.
            State::Established { tag, .. } => {
                self.enter_time_wait(now, comm_id, Some(tag), remote);
                let cause = DisconnectCause::Rejected(rejection.code);
                self.push_event(Event::Disconnected { tag, cause });
            }
            State::Disconnecting { tag, is_reported, .. } => {
                self.enter_time_wait(now, comm_id, tag, remote);
                if let Some(tag) = tag.filter(|_| !is_reported) {
                    let cause = DisconnectCause::Rejected(rejection.code);
                    self.push_event(Event::Disconnected { tag, cause });
                }
            }
            State::TimeWait { .. } => {
                self.counters.rejections -= 1;
                self.counters.mads_unexpected += 1;
            }
        }
    }

    /// The connection that a REJ speaks of.
    fn find_rejected(&self, wire: &RejectWire) -> Option<CommId> {
        let ids = wire.comm_ids();
        if let Some(connection) = self.table.get(ids.remote) {
            // A peer that rejects a REQ need not have given a name.
            let is_match = match connection.state.remote() {
                Some(remote) => ids.local == remote.comm_id,
                None => true,
            };
            return is_match.then_some(ids.remote);
        }
        // IBA 12.6.7.2: who gave up waiting for a REP does not know this side's name. Both names in
        // use at the peer tell the connection.
        if wire.reason() != Some(RejectReason::Timeout) {
            return None;
        }
        self.table.find_remote(wire.ca_guid()?, ids.local).find(|comm_id| {
            let connection = self.table.get(*comm_id);
            connection.is_some_and(|connection| match connection.state {
                State::Requested { .. } | State::Accepting { .. } => true,
                State::Requesting { .. }
                | State::Replied { .. }
                | State::Established { .. }
                | State::Disconnecting { .. }
                | State::TimeWait { .. } => false,
            })
        })
    }

    fn handle_disconnect(&mut self, now: Instant, origin: Origin, wire: &DisconnectRequestWire) {
        let ids = wire.comm_ids();
        let Some(connection) = self.find(ids) else {
            // IBA 12.9.8.3.3: the peer is waiting for the answer, whatever it is about.
            self.counters.disconnects_unknown += 1;
            self.confirm_disconnect(origin, ids);
            return;
        };
        let remote = connection.state.remote();
        match connection.state {
            State::Replied { tag, link }
            | State::Accepting { tag, link, .. }
            | State::Established { tag, link, .. } => {
                // IBA 12.6.10: the queue pair tells a DREQ of an earlier connection.
                if wire.remote_qpn() != link.local_qpn {
                    self.counters.mads_unexpected += 1;
                    return;
                }
                self.enter_time_wait(now, ids.remote, Some(tag), remote);
                self.counters.disconnects_by_peer += 1;
                let cause = DisconnectCause::ByPeer;
                self.push_event(Event::Disconnected { tag, cause });
            }
            // Both sides at once.
            State::Disconnecting { tag, is_reported, .. } => {
                self.enter_time_wait(now, ids.remote, tag, remote);
                self.counters.disconnects_crossed += 1;
                if let Some(tag) = tag.filter(|_| !is_reported) {
                    let cause = DisconnectCause::ByPeer;
                    self.push_event(Event::Disconnected { tag, cause });
                }
            }
            // The DREP was lost.
            State::TimeWait { .. } => {}
            // There is nothing to end yet.
            State::Requesting { .. } | State::Requested { .. } => {
                self.counters.mads_unexpected += 1;
            }
        }
        self.confirm_disconnect(origin, ids);
    }

    fn handle_disconnected(&mut self, now: Instant, ids: CommIds) {
        let Some(connection) = self.find(ids) else {
            self.counters.mads_unexpected += 1;
            return;
        };
        let State::Disconnecting { tag, link, is_reported, .. } = connection.state else {
            self.counters.mads_unexpected += 1;
            return;
        };
        self.enter_time_wait(now, ids.remote, tag, Some(link.remote));
        self.counters.disconnects_confirmed += 1;
        if let Some(tag) = tag.filter(|_| !is_reported) {
            let cause = DisconnectCause::Confirmed;
            self.push_event(Event::Disconnected { tag, cause });
        }
    }

    /// The connection with both names of a message, its sender's point of view.
    fn find(&self, ids: CommIds) -> Option<&Connection<T>> {
        let connection = self.table.get(ids.remote)?;
        let remote = connection.state.remote()?;
        (remote.comm_id == ids.local).then_some(connection)
    }

    fn send_extension(&mut self, local: CommId, remote: CommId, message: MessageKind) {
        let ids = CommIds { local, remote };
        let wire = MraWire::new(ids, message, self.config.service_timeout);
        self.counters.extensions_sent += 1;
        self.send(local, &Message::Mra(&wire));
    }

    fn confirm_disconnect(&mut self, origin: Origin, ids: CommIds) {
        let wire = DisconnectReplyWire::new(swapped(ids));
        let bytes = Message::DisconnectReply(&wire).to_bytes(origin.transaction);
        self.push_mad(origin.from, bytes);
    }

    fn refuse_request(&mut self, origin: Origin, comm_id: CommId, reason: RejectReason) {
        let ids = CommIds { local: comm_id, remote: CommId(0) };
        self.refuse_message(origin, ids, MessageKind::Request, reason);
    }

    fn refuse_reply(&mut self, origin: Origin, reply: &Reply, reason: RejectReason) {
        self.counters.mads_unexpected += 1;
        let ids = CommIds { local: reply.comm_id, remote: reply.remote_comm_id };
        self.refuse_message(origin, ids, MessageKind::Reply, reason);
    }

    /// Rejects a message that has no connection here. `ids` are those of the message.
    fn refuse_message(
        &mut self,
        origin: Origin,
        ids: CommIds,
        message: MessageKind,
        reason: RejectReason,
    ) {
        let wire = RejectWire::new(swapped(ids), message, reason);
        self.counters.rejections_sent += 1;
        let bytes = Message::Reject(&wire).to_bytes(origin.transaction);
        self.push_mad(origin.from, bytes);
    }
}

/// The names, as the other side sees them.
const fn swapped(ids: CommIds) -> CommIds {
    CommIds { local: ids.remote, remote: ids.local }
}
