//! Reliable connections of a station: actions become queue pairs and messages, messages become
//! inputs.

use fabric::cm::{self, Acceptance, PeerReply};
use fabric::cq::{Completion, Outcome};
use fabric::mad::cm as message;
use fabric::mad::cm::{CmPath, CmRetries, IpoibPrivateData, RejectReason, TimeoutCode};
use fabric::packet::Packet;
use fabric::qp::{QpChange, QpId};
use ipoib_rs::action::{
    Action, AddressVector, ConnectError, ConnectRequest, ConnectionId, ConnectionParameters,
    GlobalRoute, OpId, PathRecord, RequestId, VerbError,
};
use ipoib_rs::ib::{Gid, Lid, Partition, Psn, ServiceId};
use ipoib_rs::interface::{IncomingRequest, Mode};
use ipoib_rs::packet::{CompletionStatus, ConnectedReceive};
use ipoib_rs::time::Instant;
use std::time::Duration;

use super::adapter::Posted;
use super::links::{Link, LinkState, Links, RemoteEnd, Route, connect_qp, create_qp};
use super::site::{PendingRequest, RESPONSE_TIMEOUT, Tag};
use super::station::{Ground, Station};
use crate::swarm::Planted;

/// How often a message is sent again. In all it takes as long as the core keeps packets for the
/// answer.
const CM_RETRIES: CmRetries = CmRetries::new(5).unwrap();
/// What a peer's adapter is told to wait for an acknowledgement: about 67 ms.
const ACK_TIMEOUT: TimeoutCode = TimeoutCode::at_least(Duration::from_millis(50));
const NO_RETRY: message::RetryCount = message::RetryCount::new(0).unwrap();
/// Completions that are taken in one go before a queue pair is destroyed.
const REAP_LEN: usize = 16;

impl Station {
    /// Carries out an action that is about connections.
    pub(super) fn execute_connected(&mut self, ground: &mut Ground<'_>, action: Action) {
        let (op, result) = match action {
            Action::Listen { op, service } => (op, self.listen(ground, service)),
            Action::Unlisten { op } => (op, self.unlisten(ground)),
            Action::OpenConnection { op, connection, request } => {
                if self.open_connection(ground, (op, connection), &request).is_err() {
                    self.feed_connect_answer(ground, op, Err(ConnectError::Unusable));
                }
                return;
            }
            Action::AcceptConnection { op, connection, request, starting_psn, own } => {
                let reply = (starting_psn, own);
                (op, self.accept_connection(ground, connection, request, reply))
            }
            Action::ErrConnection { op, connection } => {
                let erred = self.err_connection(ground, connection);
                self.feed_result(ground, op, erred.map(|_| ()));
                // The adapter may have said it before it was asked.
                if erred == Ok(true) {
                    self.feed_last_wqe(ground, connection);
                }
                return;
            }
            Action::PostDrainMarker { op, connection } => {
                match self.post_drain_marker(ground, op, connection) {
                    Ok(()) => return,
                    Err(error) => (op, Err(error)),
                }
            }
            Action::DestroyConnection { op, connection } => {
                self.destroy_connection(ground, connection);
                (op, Ok(()))
            }
            Action::AttachGroup { .. }
            | Action::CancelQuery { .. }
            | Action::CreateAddressHandle { .. }
            | Action::DestroyAddressHandle { .. }
            | Action::DetachGroup { .. }
            | Action::JoinGroup { .. }
            | Action::LeaveGroup { .. }
            | Action::ModifyQueuePair { .. }
            | Action::QueryPath { .. }
            | Action::QuerySaCapabilities { .. }
            | Action::WakeSendQueue => return,
        };
        self.feed_result(ground, op, result);
    }

    fn listen(&mut self, ground: &mut Ground<'_>, service: ServiceId) -> Result<(), VerbError> {
        if ground.faults.fails_verb() {
            return Err(VerbError);
        }
        let links = self.links_mut().ok_or(VerbError)?;
        ground.site.cm.listen(service, u64::MAX).map_err(|_| VerbError)?;
        links.service = Some(service);
        Ok(())
    }

    fn unlisten(&mut self, ground: &mut Ground<'_>) -> Result<(), VerbError> {
        let service = self.links_mut().and_then(|links| links.service.take()).ok_or(VerbError)?;
        if ground.site.cm.unlisten(service) { Ok(()) } else { Err(VerbError) }
    }

    /// Makes a queue pair and sends a REQ. The answer comes later.
    fn open_connection(
        &mut self,
        ground: &mut Ground<'_>,
        (op, connection): (OpId, ConnectionId),
        request: &ConnectRequest,
    ) -> Result<(), VerbError> {
        if ground.faults.fails_verb() {
            return Err(VerbError);
        }
        let tag = self.tag(connection);
        let attached = self.attached.as_mut().ok_or(VerbError)?;
        let send_cq = attached.adapter.send_cq();
        let links = attached.adapter.links.as_mut().ok_or(VerbError)?;
        let port = ground.site.port;
        let partition = ground.fabric.find_partition(port, request.pkey).ok_or(VerbError)?;
        let status = ground.fabric.query_port(port).ok_or(VerbError)?;
        let lid = status.lid.ok_or(VerbError)?;
        let route = Route {
            address: address_of(&request.path),
            path_mtu: request.path.mtu.min(status.mtu),
            remote_gid: request.path.destination,
        };
        let config = links.outgoing_config(send_cq);
        let qp = create_qp(ground.fabric, port, &config, partition.index)?;
        let qpn = ground.fabric.qpn(qp).ok_or(VerbError)?;
        let starting_psn = request.starting_psn;
        let state = LinkState::Opening { op, route, starting_psn };
        let is_new = links.insert(connection, Link { qp, state, remote: None, erred_at: None });
        if !is_new {
            attached.records.misdeeds.push(format!("opened {connection:?}, which exists"));
        }
        let demand = cm::ConnectRequest {
            to: ground.site.gsi.address(ground.fabric, request.path.lid, request.path.sl),
            path: cm_path(&request.path, (lid, status.gid)),
            service: request.service,
            qpn,
            starting_psn,
            pkey: request.pkey,
            mtu: route.path_mtu,
            retry_count: NO_RETRY,
            rnr_retry_count: NO_RETRY,
            // The queue pair receives nothing.
            has_shared_receive_queue: false,
            remote_response_timeout: RESPONSE_TIMEOUT,
            local_response_timeout: RESPONSE_TIMEOUT,
            max_cm_retries: CM_RETRIES,
            private_data: private_data(&request.own),
        };
        if ground.site.cm.connect(ground.now, tag, &demand).is_ok() {
            ground.streams.open((ground.site.gid, qpn));
            return Ok(());
        }
        self.destroy_link(ground, connection);
        Err(VerbError)
    }

    /// Makes a queue pair, ready for what the peer sends, and sends a REP; or a REJ.
    fn accept_connection(
        &mut self,
        ground: &mut Ground<'_>,
        connection: ConnectionId,
        request: RequestId,
        (starting_psn, own): (Psn, ConnectionParameters),
    ) -> Result<(), VerbError> {
        let pending = ground.site.requests.remove(&request).ok_or(VerbError)?;
        let made = self.make_incoming(ground, connection, &pending, starting_psn);
        let Ok((qp, has_shared_receive_queue)) = made else {
            // An error only says that the peer has given up.
            let _ = ground.site.cm.refuse(pending.request, RejectReason::NoResources);
            return Err(VerbError);
        };
        let acceptance = Acceptance {
            qpn: ground.fabric.qpn(qp).ok_or(VerbError)?,
            starting_psn,
            rnr_retry_count: NO_RETRY,
            has_shared_receive_queue,
            target_ack_delay: TimeoutCode::default(),
            private_data: private_data(&own),
        };
        let tag = self.tag(connection);
        if ground.site.cm.accept(ground.now, pending.request, tag, &acceptance).is_ok() {
            return Ok(());
        }
        self.destroy_link(ground, connection);
        Err(VerbError)
    }

    fn make_incoming(
        &mut self,
        ground: &mut Ground<'_>,
        connection: ConnectionId,
        pending: &PendingRequest,
        starting_psn: Psn,
    ) -> Result<(QpId, bool), VerbError> {
        if ground.faults.fails_verb() {
            return Err(VerbError);
        }
        let port = ground.site.port;
        let partition = self.partition(ground).ok_or(VerbError)?;
        let attached = self.attached.as_mut().ok_or(VerbError)?;
        let links = attached.adapter.links.as_mut().ok_or(VerbError)?;
        let qp = create_qp(ground.fabric, port, &links.incoming_config(), partition.index)?;
        let PendingRequest { route, remote, .. } = pending;
        if connect_qp(ground.fabric, qp, route, remote, starting_psn).is_err() {
            let _ = ground.fabric.destroy_qp(qp);
            return Err(VerbError);
        }
        let state = LinkState::Incoming { has_last_wqe: false };
        let link = Link { qp, state, remote: Some(*remote), erred_at: None };
        if !links.insert(connection, link) {
            attached.records.misdeeds.push(format!("accepted as {connection:?}, which exists"));
        }
        Ok((qp, links.srq.is_some()))
    }

    /// Moves the queue pair of an incoming connection to ERR. Whether the adapter has said that it
    /// took its last receive for it.
    fn err_connection(
        &mut self,
        ground: &mut Ground<'_>,
        connection: ConnectionId,
    ) -> Result<bool, VerbError> {
        let now = ground.now;
        let link = self.links_mut().and_then(|links| links.get_mut(connection));
        let link = link.ok_or(VerbError)?;
        link.erred_at = link.erred_at.or(Some(now));
        if ground.faults.fails_verb() {
            return Err(VerbError);
        }
        ground.fabric.modify_qp(link.qp, &QpChange::Error).map_err(|_| VerbError)?;
        match link.state {
            LinkState::Incoming { has_last_wqe } => Ok(has_last_wqe),
            LinkState::Opening { .. } | LinkState::Outgoing | LinkState::Draining { .. } => {
                Ok(false)
            }
        }
    }

    /// Posts a drain marker. Its completion is the answer.
    fn post_drain_marker(
        &mut self,
        ground: &mut Ground<'_>,
        op: OpId,
        connection: ConnectionId,
    ) -> Result<(), VerbError> {
        let link = self.links_mut().and_then(|links| links.get_mut(connection));
        let link = link.ok_or(VerbError)?;
        if ground.faults.refuses_send() {
            return Err(VerbError);
        }
        // An empty packet has no buffer to give back.
        ground.fabric.post_message(link.qp, 0, Packet::empty()).map_err(|_| VerbError)?;
        link.state = LinkState::Draining { op };
        Ok(())
    }

    /// Ends a connection: its posted work completes as flushed, the peer gets a DREQ.
    fn destroy_connection(&mut self, ground: &mut Ground<'_>, connection: ConnectionId) {
        if ground.planted != Some(Planted::ForgottenName) {
            let tag = self.tag(connection);
            ground.site.cm.cancel(ground.now, tag);
        }
        // One that was never made is gone already.
        let Some(link) = self.links_mut().and_then(|links| links.get(connection).copied()) else {
            return;
        };
        let result = ground.fabric.modify_qp(link.qp, &QpChange::Error);
        debug_assert!(result.is_ok(), "the way to ERR is open from INIT on");
        match ground.planted {
            Some(Planted::LostQueuePair) => return,
            Some(Planted::EarlyDestroy) => {}
            Some(_) | None => while self.reap(ground, REAP_LEN) {},
        }
        // The completion of a drain marker that was given up will not come.
        if let Some(op) = self.links_mut().and_then(|links| links.take_marker(connection)) {
            self.feed_result(ground, op, Err(VerbError));
        }
        self.destroy_link(ground, connection);
    }

    /// Whether an action has to wait for completions that the adapter withholds: what a connection
    /// took from the shared queue is to be told before it goes, or the account of that queue would
    /// be wrong for ever.
    pub(super) fn waits_for_adapter(&mut self, now: Instant, action: &Action) -> bool {
        let Action::DestroyConnection { connection, .. } = *action else {
            return false;
        };
        let links = self.links_mut();
        let Some(link) = links.and_then(|links| links.get_mut(connection)) else {
            return false;
        };
        match link.state {
            LinkState::Opening { .. } | LinkState::Outgoing => false,
            LinkState::Incoming { .. } | LinkState::Draining { .. } => {
                // The core has done its part.
                link.erred_at = link.erred_at.map(|_| now);
                true
            }
        }
    }

    fn destroy_link(&mut self, ground: &mut Ground<'_>, connection: ConnectionId) {
        let Some(attached) = &mut self.attached else {
            return;
        };
        let links = attached.adapter.links.as_mut();
        if let Some(link) = links.and_then(|links| links.remove(connection)) {
            let result = ground.fabric.destroy_qp(link.qp);
            debug_assert!(result.is_ok(), "only the table's owner destroys it");
        }
        // No completion of before will come.
        if ground.planted != Some(Planted::EarlyDestroy) {
            attached.adapter.posted.retain(|_, posted| *posted != Posted::Message(connection));
        }
    }

    /// The adapter has taken its last receive for a queue pair.
    pub(super) fn handle_last_wqe(&mut self, ground: &mut Ground<'_>, qp: QpId) {
        let Some(connection) = self.links_mut().and_then(|links| links.find(qp)) else {
            return;
        };
        if let Some(link) = self.links_mut().and_then(|links| links.get_mut(connection))
            && let LinkState::Incoming { has_last_wqe } = &mut link.state
        {
            *has_last_wqe = true;
        }
        self.feed_last_wqe(ground, connection);
    }

    /// The adapter reported an error of a queue pair.
    pub(super) fn handle_queue_pair_failed(&mut self, ground: &mut Ground<'_>, qp: QpId) {
        if let Some(connection) = self.links_mut().and_then(|links| links.find(qp)) {
            self.feed_lost(ground, connection);
        }
    }

    /// Feeds what completed on the queue of connections to receive from.
    pub(super) fn feed_connected(&mut self, ground: &mut Ground<'_>, completion: Completion) {
        let Completion { qp, outcome, .. } = completion;
        let Some(connection) = self.links_mut().and_then(|links| links.find(qp)) else {
            // A queue pair takes its completions with it.
            if let Outcome::Received(arrival) = outcome {
                ground.fabric.pool_mut().free(arrival.packet);
            }
            return self.note_misdeed(format!("a completion of {qp:?}, which is gone"));
        };
        match outcome {
            Outcome::Received(arrival) => {
                self.feed_message(ground, (qp, connection), arrival.packet);
            }
            Outcome::ReceiveFailed(error) => {
                self.feed_receive_failed(ground, connection, error.into());
            }
            // The drain marker is all that is sent on these queue pairs.
            Outcome::Sent | Outcome::SendFailed(_) => {
                let marker = self.links_mut().and_then(|links| links.take_marker(connection));
                if let Some(op) = marker {
                    self.feed_result(ground, op, Ok(()));
                }
            }
        }
    }

    fn feed_message(
        &mut self,
        ground: &mut Ground<'_>,
        (qp, connection): (QpId, ConnectionId),
        packet: Packet,
    ) {
        if let Some(Planted::LostMessage) = ground.planted
            && ground.faults.is_bug_due()
        {
            return ground.fabric.pool_mut().free(packet);
        }
        let remote = self.links_mut().and_then(|links| links.get(connection)?.remote);
        if let Some(remote) = remote {
            let sender = (remote.gid, remote.qpn);
            if let Err(what) = ground.streams.on_arrived(sender, packet.bytes()) {
                self.note_misdeed(what);
            }
        }
        if ground.faults.fails_completion() {
            // A receive that fails takes the queue pair with it (IBA 10.3.1).
            let _ = ground.fabric.modify_qp(qp, &QpChange::Error);
            ground.fabric.pool_mut().free(packet);
            return self.feed_receive_failed(ground, connection, CompletionStatus::Failed);
        }
        let now = ground.now;
        self.pump(ground, |interface, queues| {
            let receive = ConnectedReceive { connection, packet };
            interface.handle_connected_receive(now, receive, queues);
        });
    }

    fn feed_receive_failed(
        &mut self,
        ground: &mut Ground<'_>,
        connection: ConnectionId,
        status: CompletionStatus,
    ) {
        let now = ground.now;
        if let Some(link) = self.links_mut().and_then(|links| links.get_mut(connection)) {
            link.erred_at = link.erred_at.or(Some(now));
        }
        self.pump(ground, |interface, queues| {
            interface.handle_connected_receive_failed(now, connection, status, queues);
        });
    }

    fn feed_last_wqe(&mut self, ground: &mut Ground<'_>, connection: ConnectionId) {
        self.pump(ground, |interface, _| interface.handle_last_wqe(connection));
    }

    fn feed_lost(&mut self, ground: &mut Ground<'_>, connection: ConnectionId) {
        let now = ground.now;
        self.pump(ground, |interface, queues| {
            interface.handle_connection_lost(now, connection, queues);
        });
    }

    fn feed_connect_answer(
        &mut self,
        ground: &mut Ground<'_>,
        op: OpId,
        answer: Result<ConnectionParameters, ConnectError>,
    ) {
        if let Some(attached) = &mut self.attached {
            attached.operations.remove(&op);
        }
        let now = ground.now;
        self.pump(ground, |interface, queues| {
            interface.handle_connect_answer(now, op, answer, queues);
        });
    }

    /// Asks the interface whether it wants a connection.
    pub(super) fn admit(
        &mut self,
        ground: &mut Ground<'_>,
        request: cm::RequestId,
        demand: &message::Request,
    ) -> Result<(), RejectReason> {
        let partition = self.partition(ground);
        if !partition.is_some_and(|own| demand.pkey.matches(own.pkey)) {
            return Err(RejectReason::ConsumerReject);
        }
        let port = ground.site.port;
        // IBA 12.7.11: both ends cut messages alike.
        if ground.fabric.query_port(port).is_none_or(|port| demand.mtu > port.mtu) {
            return Err(RejectReason::InvalidMtu);
        }
        let peer = parameters(&demand.private_data);
        let id = RequestId(u64::from(request.0.0));
        let gid = demand.path.local_gid;
        let pending = PendingRequest {
            request,
            route: Route {
                address: address_back(&demand.path),
                path_mtu: demand.mtu,
                remote_gid: gid,
            },
            remote: RemoteEnd {
                gid,
                qpn: demand.qpn,
                starting_psn: demand.starting_psn,
                receive_mtu: peer.receive_mtu,
            },
        };
        ground.site.requests.insert(id, pending);
        let now = ground.now;
        let answer = self.pump(ground, |interface, _| {
            interface.handle_connect_request(now, IncomingRequest { id, gid, peer })
        });
        let refused = match answer {
            Some(Ok(())) => return Ok(()),
            Some(Err(reason)) => RejectReason::from_code(reason as u16),
            None => None,
        };
        ground.site.requests.remove(&id);
        Err(refused.unwrap_or(RejectReason::ConsumerReject))
    }

    /// The peer agreed.
    pub(super) fn finish_open(
        &mut self,
        ground: &mut Ground<'_>,
        connection: ConnectionId,
        reply: &PeerReply,
    ) {
        let tag = self.tag(connection);
        let link = self.links_mut().and_then(|links| links.get(connection).copied());
        let Some(Link { qp, state: LinkState::Opening { op, route, starting_psn }, .. }) = link
        else {
            let _ = ground.site.cm.reject(tag, RejectReason::ConsumerReject);
            return;
        };
        let mut peer = parameters(&reply.private_data);
        let remote = RemoteEnd {
            gid: route.remote_gid,
            qpn: reply.qpn,
            starting_psn: reply.starting_psn,
            receive_mtu: peer.receive_mtu,
        };
        let refusal = ground.faults.refusal();
        let connected = match refusal {
            Some(_) => Err(VerbError),
            None => connect_qp(ground.fabric, qp, &route, &remote, starting_psn),
        };
        let answer = match connected {
            Ok(()) => ground.site.cm.establish(tag).map_err(|_| ConnectError::Unusable),
            Err(VerbError) => {
                let reason = refusal.unwrap_or(RejectReason::NoResources);
                let _ = ground.site.cm.reject(tag, reason);
                Err(ConnectError::Unusable)
            }
        };
        if let Some(link) = self.links_mut().and_then(|links| links.get_mut(connection)) {
            link.state = LinkState::Outgoing;
            link.remote = Some(remote);
        }
        if ground.planted == Some(Planted::Promise) {
            peer.receive_mtu = u32::MAX;
        }
        if ground.planted != Some(Planted::LostAnswer) || !ground.faults.is_bug_due() {
            self.feed_connect_answer(ground, op, answer.map(|()| peer));
        }
    }

    /// A connection is over, or will not be.
    pub(super) fn end_connection(
        &mut self,
        ground: &mut Ground<'_>,
        connection: ConnectionId,
        error: ConnectError,
    ) {
        let link = self.links_mut().and_then(|links| links.get_mut(connection));
        match link.map(|link| (link.state, &mut link.state)) {
            Some((LinkState::Opening { op, .. }, state)) => {
                *state = LinkState::Outgoing;
                self.feed_connect_answer(ground, op, Err(error));
            }
            Some((
                LinkState::Outgoing | LinkState::Incoming { .. } | LinkState::Draining { .. },
                _,
            )) => self.feed_lost(ground, connection),
            None => {}
        }
    }

    /// Another mode, by the admin. False if the adapter cannot do it.
    pub(super) fn set_mode(&mut self, ground: &mut Ground<'_>, mode: Mode) -> bool {
        let now = ground.now;
        let outcome =
            self.pump(ground, |interface, queues| interface.handle_mode(now, mode, queues));
        let is_set = outcome == Some(Ok(()));
        if is_set {
            self.mode = mode;
        }
        is_set
    }

    /// Another MTU for connected mode, by the admin.
    pub(super) fn set_connected_mtu(&mut self, ground: &mut Ground<'_>, mtu: usize) {
        let is_told = ground.planted != Some(Planted::StaleMtu);
        let outcome = self.pump(ground, |interface, queues| {
            let outcome = if is_told { interface.handle_connected_mtu(mtu) } else { Ok(()) };
            if outcome.is_ok() {
                queues.records.connected_mtu = mtu;
            }
            outcome
        });
        if let Some(Err(error)) = outcome {
            self.note_misdeed(format!("an MTU of {mtu} was refused: {error:?}"));
        }
    }

    pub(super) fn links(&self) -> Option<&Links> {
        self.attached.as_ref()?.adapter.links.as_ref()
    }

    fn links_mut(&mut self) -> Option<&mut Links> {
        self.attached.as_mut()?.adapter.links.as_mut()
    }

    fn tag(&self, connection: ConnectionId) -> Tag {
        Tag { station: self.index, epoch: self.epoch, connection }
    }

    fn partition(&self, ground: &Ground<'_>) -> Option<Partition> {
        ground.fabric.port_attributes(ground.site.port, self.pkey)?.partition
    }

    fn note_misdeed(&mut self, what: String) {
        if let Some(attached) = &mut self.attached {
            attached.records.misdeeds.push(what);
        }
    }
}

/// The way to the destination of a path.
fn address_of(path: &PathRecord) -> AddressVector {
    AddressVector {
        lid: path.lid.value(),
        sl: path.sl,
        rate: path.rate,
        grh: path.global.map(|route| (path.destination, route)),
    }
}

/// The way back along a path, to the sender of a REQ.
fn address_back(path: &CmPath) -> AddressVector {
    let CmPath { flow_label, hop_limit, traffic_class, .. } = *path;
    let route = GlobalRoute { flow_label, hop_limit, traffic_class };
    AddressVector {
        lid: path.local_lid.value(),
        sl: path.sl,
        rate: path.rate,
        grh: (!path.is_subnet_local).then_some((path.local_gid, route)),
    }
}

fn cm_path(path: &PathRecord, (local_lid, local_gid): (Lid, Gid)) -> CmPath {
    let GlobalRoute { flow_label, hop_limit, traffic_class } = path.global.unwrap_or_default();
    CmPath {
        local_lid,
        remote_lid: path.lid,
        local_gid,
        remote_gid: path.destination,
        flow_label,
        rate: path.rate,
        traffic_class,
        hop_limit,
        sl: path.sl,
        is_subnet_local: path.global.is_none(),
        ack_timeout: ACK_TIMEOUT,
    }
}

fn private_data<const LEN: usize>(own: &ConnectionParameters) -> [u8; LEN] {
    let ConnectionParameters { qpn, receive_mtu } = *own;
    IpoibPrivateData { qpn, receive_mtu }.to_private_data()
}

fn parameters<const LEN: usize>(private_data: &[u8; LEN]) -> ConnectionParameters {
    let IpoibPrivateData { qpn, receive_mtu } = IpoibPrivateData::from_private_data(private_data);
    ConnectionParameters { qpn, receive_mtu }
}
