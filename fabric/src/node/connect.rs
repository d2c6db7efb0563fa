//! Reliable connections: actions become messages and queue pairs, messages become inputs.

use core::time::Duration;

use alloc::collections::TryReserveError;

use ipoib_rs::action::{
    Action, AddressVector, ConnectError, ConnectRequest, ConnectionId, ConnectionParameters,
    GlobalRoute, OpId, PathRecord, RequestId, VerbError,
};
use ipoib_rs::ib::{Gid, Lid, Partition, Psn, ServiceId};
use ipoib_rs::interface::IncomingRequest;
use ipoib_rs::time::Instant;

use super::links::{Link, LinkState, Links, RemoteEnd, Route, connect_qp, create_qp};
use super::outputs::PendingAction;
use super::{Fabric, InterfaceId, Node, NodeConfig, Packet, PortId};
use crate::cm::{self, Acceptance, Event, Manager, ManagerConfig, PeerReply};
use crate::mad::cm as message;
use crate::mad::cm::{CmPath, CmRetries, IpoibPrivateData, RejectReason, TimeoutCode};
use crate::qp::{QpChange, QpId};

/// Services that the interfaces of a port listen for.
const LISTENERS_MAX: u16 = 256;
/// Messages that wait to be sent.
const MADS_MAX: u16 = 128;
/// A message that is not answered within this time is sent again: about 0.54 s.
const RESPONSE_TIMEOUT: TimeoutCode = TimeoutCode::at_least(Duration::from_millis(500));
/// How often. In all it takes as long as the core keeps packets for the answer.
const CM_RETRIES: CmRetries = CmRetries::new(5).unwrap();
/// What a peer's adapter is told to wait for an acknowledgement: about 67 ms.
const ACK_TIMEOUT: TimeoutCode = TimeoutCode::at_least(Duration::from_millis(50));
/// How long the names of a connection that ended stay reserved.
const TIME_WAIT: Duration = Duration::from_millis(500);
/// The longest wait that a peer can impose.
const WAIT_MAX: Duration = Duration::from_secs(4);
const NO_RETRY: message::RetryCount = message::RetryCount::new(0).unwrap();

/// A connection as the communication manager knows it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Tag {
    interface: InterfaceId,
    connection: ConnectionId,
}

/// A REQ that an interface wants to accept.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingRequest {
    request: cm::RequestId,
    route: Route,
    remote: RemoteEnd,
}

impl PendingRequest {
    /// What the core calls it.
    const fn id(&self) -> RequestId {
        RequestId(self.request.0.0 as u64)
    }
}

/// The communication manager of a port.
pub(super) fn manager(
    fabric: &Fabric,
    port: PortId,
    config: &NodeConfig,
) -> Result<Manager<Tag>, TryReserveError> {
    Manager::new(&ManagerConfig {
        // Communication ids are unique within an adapter (IBA 12.7.1). There is a manager for each
        // port, so the port's GUID is what makes them so.
        ca_guid: fabric.query_port(port).map_or(0, |port| port.guid),
        seed: config.seed,
        connections_max: config.connections_max,
        listeners_max: LISTENERS_MAX,
        mads_max: MADS_MAX,
        time_wait: TIME_WAIT,
        wait_max: WAIT_MAX,
        service_timeout: RESPONSE_TIMEOUT,
    })
}

impl Node {
    /// Executes an action that is about connections.
    pub(super) fn execute_connected(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        pending: PendingAction,
    ) {
        let PendingAction { interface, action } = pending;
        let (op, result) = match action {
            Action::Listen { op, service } => (op, self.listen(interface, service)),
            Action::Unlisten { op } => (op, self.unlisten(interface)),
            Action::OpenConnection { op, connection, request } => {
                let names = (interface, op);
                match self.open_connection(now, fabric, names, connection, &request) {
                    Ok(()) => self.drive_cm(now, fabric),
                    Err(VerbError) => self.fail(now, fabric, pending),
                }
                return;
            }
            Action::AcceptConnection { op, connection, request, starting_psn, own } => {
                let names = (interface, connection);
                let reply = (starting_psn, own);
                (op, self.accept_connection(now, fabric, names, request, reply))
            }
            Action::ErrConnection { op, connection } => {
                let erred = self.err_connection(fabric, interface, connection);
                self.feed_result(now, fabric, interface, op, erred.map(|_| ()));
                if erred == Ok(true) {
                    self.feed_last_wqe(fabric, interface, connection);
                }
                return;
            }
            Action::PostDrainMarker { op, connection } => {
                match self.post_drain_marker(fabric, (interface, op), connection) {
                    Ok(()) => return,
                    Err(error) => (op, Err(error)),
                }
            }
            Action::DestroyConnection { op, connection } => {
                self.destroy_connection(now, fabric, interface, connection);
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
        // The receives of an accepted connection are posted before its peer hears of it.
        self.feed_result(now, fabric, interface, op, result);
        self.drive_cm(now, fabric);
    }

    fn listen(&mut self, id: InterfaceId, service: ServiceId) -> Result<(), VerbError> {
        let slot = self.interfaces.get_mut(id.index()).and_then(Option::as_mut);
        let links = slot.and_then(|slot| slot.wiring.links.as_mut()).ok_or(VerbError)?;
        self.cm.listen(service, u64::MAX).map_err(|_| VerbError)?;
        links.service = Some(service);
        Ok(())
    }

    fn unlisten(&mut self, id: InterfaceId) -> Result<(), VerbError> {
        let service = self.links_mut(id).and_then(|links| links.service.take());
        let service = service.ok_or(VerbError)?;
        if self.cm.unlisten(service) { Ok(()) } else { Err(VerbError) }
    }

    /// Makes a queue pair and sends a REQ. The answer comes later.
    ///
    /// # Errors
    ///
    /// Nothing was sent.
    fn open_connection(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        (interface, op): (InterfaceId, OpId),
        connection: ConnectionId,
        request: &ConnectRequest,
    ) -> Result<(), VerbError> {
        let port = self.port;
        let slot = self.slot_mut(interface).ok_or(VerbError)?;
        let send_cq = slot.wiring.send_cq;
        let links = slot.wiring.links.as_mut().ok_or(VerbError)?;
        if !links.is_vacant(connection) {
            return Err(VerbError);
        }
        let pkey_index = fabric.find_partition(port, request.pkey).ok_or(VerbError)?.index;
        let status = fabric.query_port(port).ok_or(VerbError)?;
        let route = Route {
            address: address_of(&request.path),
            path_mtu: request.path.mtu.min(status.mtu),
        };
        let qp = create_qp(fabric, port, &links.outgoing_config(send_cq), pkey_index)?;
        let starting_psn = request.starting_psn;
        links
            .insert(connection, Link { qp, state: LinkState::Opening { op, route, starting_psn } });
        let is_sent = fabric.qpn(qp).zip(status.lid).is_some_and(|(qpn, lid)| {
            let demand = cm::ConnectRequest {
                to: self.gsi.address(fabric, request.path.lid, request.path.sl),
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
            self.cm.connect(now, Tag { interface, connection }, &demand).is_ok()
        });
        if is_sent {
            return Ok(());
        }
        self.destroy_link(fabric, interface, connection);
        Err(VerbError)
    }

    /// Makes a queue pair, ready for what the peer sends, and sends a REP; or a REJ.
    fn accept_connection(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        (interface, connection): (InterfaceId, ConnectionId),
        request: RequestId,
        (starting_psn, own): (Psn, ConnectionParameters),
    ) -> Result<(), VerbError> {
        let pending = self.take_request(request).ok_or(VerbError)?;
        let made = self.make_incoming(fabric, (interface, connection), &pending, starting_psn);
        let Ok((qp, has_shared_receive_queue)) = made else {
            // An error only says that the peer has given up.
            let _ = self.cm.refuse(pending.request, RejectReason::NoResources);
            return Err(VerbError);
        };
        let acceptance = fabric.qpn(qp).map(|qpn| Acceptance {
            qpn,
            starting_psn,
            rnr_retry_count: NO_RETRY,
            has_shared_receive_queue,
            target_ack_delay: TimeoutCode::default(),
            private_data: private_data(&own),
        });
        let tag = Tag { interface, connection };
        let accepted = acceptance.is_some_and(|acceptance| {
            self.cm.accept(now, pending.request, tag, &acceptance).is_ok()
        });
        if accepted {
            return Ok(());
        }
        self.destroy_link(fabric, interface, connection);
        Err(VerbError)
    }

    /// Does not accept a REQ: sends a REJ.
    pub(super) fn refuse_connection(&mut self, request: RequestId) {
        if let Some(pending) = self.take_request(request) {
            // An error only says that the peer has given up.
            let _ = self.cm.refuse(pending.request, RejectReason::NoResources);
        }
    }

    fn make_incoming(
        &mut self,
        fabric: &mut Fabric,
        (interface, connection): (InterfaceId, ConnectionId),
        pending: &PendingRequest,
        starting_psn: Psn,
    ) -> Result<(QpId, bool), VerbError> {
        let port = self.port;
        let partition = self.partition(fabric, interface).ok_or(VerbError)?;
        let links = self.links_mut(interface).ok_or(VerbError)?;
        if !links.is_vacant(connection) {
            return Err(VerbError);
        }
        let qp = create_qp(fabric, port, &links.incoming_config(), partition.index)?;
        let connected = connect_qp(fabric, qp, &pending.route, &pending.remote, starting_psn);
        if connected.is_err() {
            let _ = fabric.destroy_qp(qp);
            return Err(VerbError);
        }
        links.insert(connection, Link { qp, state: LinkState::Incoming { has_last_wqe: false } });
        Ok((qp, links.srq.is_some()))
    }

    /// Moves the queue pair of an incoming connection to ERR. Whether the adapter is known to have
    /// taken its last receive for it already.
    fn err_connection(
        &mut self,
        fabric: &mut Fabric,
        interface: InterfaceId,
        connection: ConnectionId,
    ) -> Result<bool, VerbError> {
        let links = self.links_mut(interface).ok_or(VerbError)?;
        let link = *links.get(connection).ok_or(VerbError)?;
        fabric.modify_qp(link.qp, &QpChange::Error).map_err(|_| VerbError)?;
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
        fabric: &mut Fabric,
        (interface, op): (InterfaceId, OpId),
        connection: ConnectionId,
    ) -> Result<(), VerbError> {
        let links = self.links_mut(interface).ok_or(VerbError)?;
        let qp = links.get(connection).ok_or(VerbError)?.qp;
        // An empty packet has no buffer to give back.
        fabric.post_message(qp, 0, Packet::empty()).map_err(|_| VerbError)?;
        links.set_state(connection, LinkState::Draining { op });
        Ok(())
    }

    /// Ends a connection: its posted work completes as flushed, the peer gets a DREQ.
    fn destroy_connection(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        interface: InterfaceId,
        connection: ConnectionId,
    ) {
        self.cm.cancel(now, Tag { interface, connection });
        let link = self.links_mut(interface).and_then(|links| links.get(connection).copied());
        // One that was never made is gone already.
        let Some(link) = link else {
            return;
        };
        let result = fabric.modify_qp(link.qp, &QpChange::Error);
        debug_assert!(result.is_ok(), "the way to ERR is open from INIT on");
        self.poll_sends(now, fabric, interface);
        self.poll_connected(now, fabric, interface);
        // The completion of a drain marker that was given up will not come.
        let marker = self.links_mut(interface).and_then(|links| links.take_marker(link.qp));
        if let Some(op) = marker {
            self.feed_result(now, fabric, interface, op, Err(VerbError));
        }
        self.destroy_link(fabric, interface, connection);
    }

    fn destroy_link(&mut self, fabric: &mut Fabric, id: InterfaceId, connection: ConnectionId) {
        if let Some(link) = self.links_mut(id).and_then(|links| links.remove(connection)) {
            let result = fabric.destroy_qp(link.qp);
            debug_assert!(result.is_ok(), "only the table's owner destroys it");
        }
    }

    /// The adapter has taken its last receive for a queue pair.
    pub(super) fn handle_last_wqe(&mut self, fabric: &mut Fabric, qp: QpId) {
        for id in self.ids() {
            let Some(links) = self.links_mut(id) else {
                continue;
            };
            let Some((connection, link)) = links.find(qp) else {
                continue;
            };
            if let LinkState::Incoming { .. } = link.state {
                links.set_state(connection, LinkState::Incoming { has_last_wqe: true });
            }
            self.feed_last_wqe(fabric, id, connection);
            return;
        }
    }

    fn feed_last_wqe(&mut self, fabric: &mut Fabric, id: InterfaceId, connection: ConnectionId) {
        self.pump(fabric, id, |interface, _| interface.handle_last_wqe(connection));
    }

    /// Sends what the communication manager has to send, and feeds back what it reports.
    pub(super) fn drive_cm(&mut self, now: Instant, fabric: &mut Fabric) {
        loop {
            while let Some(event) = self.cm.poll_event() {
                self.handle_cm_event(now, fabric, event);
            }
            // The rest waits for the completions of those under way.
            if !self.gsi.has_room(fabric) {
                return;
            }
            let Some(mad) = self.cm.poll_mad() else {
                return;
            };
            // One that is not sent is as good as lost, and what matters is repeated.
            let _ = self.gsi.send(fabric, &mad.to, &mad.bytes);
        }
    }

    fn handle_cm_event(&mut self, now: Instant, fabric: &mut Fabric, event: Event<Tag>) {
        match event {
            Event::Requested { request, from: _, demand } => {
                if let Err(reason) = self.admit(now, fabric, request, &demand) {
                    // An error only says that the peer has given up.
                    let _ = self.cm.refuse(request, reason);
                }
            }
            Event::Replied { tag, reply } => self.finish_open(now, fabric, tag, &reply),
            Event::Rejected { tag, rejection } => {
                self.end_connection(now, fabric, tag, ConnectError::Rejected(rejection.code));
            }
            Event::TimedOut { tag } => {
                self.end_connection(now, fabric, tag, ConnectError::TimedOut);
            }
            Event::Disconnected { tag, cause: _ } => {
                self.end_connection(now, fabric, tag, ConnectError::Unusable);
            }
            // The interface knows from its answer to the REQ; accepting a withdrawn one fails.
            Event::Established { .. } | Event::Withdrawn { .. } => {}
            // The tag was given back before: queue pairs are not used twice.
            Event::TimeWaitExited { .. } => {}
        }
    }

    /// Asks the interface that listens whether it wants a connection.
    fn admit(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        request: cm::RequestId,
        demand: &message::Request,
    ) -> Result<(), RejectReason> {
        let listens = |id: &InterfaceId| {
            let links = self.slot(*id).and_then(|slot| slot.wiring.links.as_ref());
            links.and_then(|links| links.service) == Some(demand.service)
        };
        let id = self.ids().find(listens).ok_or(RejectReason::InvalidServiceId)?;
        let partition = self.partition(fabric, id);
        if !partition.is_some_and(|own| demand.pkey.matches(own.pkey)) {
            return Err(RejectReason::ConsumerReject);
        }
        // IBA 12.7.11: both ends cut messages alike.
        if fabric.query_port(self.port).is_none_or(|port| demand.mtu > port.mtu) {
            return Err(RejectReason::InvalidMtu);
        }
        if self.requests.len() == self.requests.capacity() {
            return Err(RejectReason::NoResources);
        }
        let pending = PendingRequest {
            request,
            route: Route { address: address_back(&demand.path), path_mtu: demand.mtu },
            remote: RemoteEnd { qpn: demand.qpn, starting_psn: demand.starting_psn },
        };
        let incoming = IncomingRequest {
            id: pending.id(),
            gid: demand.path.local_gid,
            peer: parameters(&demand.private_data),
        };
        self.requests.push(pending);
        let answer =
            self.pump(fabric, id, |interface, _| interface.handle_connect_request(now, incoming));
        let refused = match answer {
            Some(Ok(())) => return Ok(()),
            Some(Err(reason)) => RejectReason::from_code(reason as u16),
            None => None,
        };
        self.requests.retain(|pending| pending.request != request);
        Err(refused.unwrap_or(RejectReason::ConsumerReject))
    }

    /// The peer agreed.
    fn finish_open(&mut self, now: Instant, fabric: &mut Fabric, tag: Tag, reply: &PeerReply) {
        let Tag { interface, connection } = tag;
        let link = self.links_mut(interface).and_then(|links| links.get(connection).copied());
        let Some(Link { qp, state: LinkState::Opening { op, route, starting_psn } }) = link else {
            let _ = self.cm.reject(tag, RejectReason::ConsumerReject);
            return;
        };
        let remote = RemoteEnd { qpn: reply.qpn, starting_psn: reply.starting_psn };
        let answer = match connect_qp(fabric, qp, &route, &remote, starting_psn) {
            Ok(()) => self.cm.establish(tag).map(|()| parameters(&reply.private_data)),
            Err(VerbError) => {
                let _ = self.cm.reject(tag, RejectReason::NoResources);
                Err(cm::CommandError::WrongState)
            }
        };
        let answer = answer.map_err(|_| ConnectError::Unusable);
        self.answer_open(now, fabric, tag, op, answer);
    }

    /// A connection is over, or will not be.
    fn end_connection(&mut self, now: Instant, fabric: &mut Fabric, tag: Tag, error: ConnectError) {
        let Tag { interface, connection } = tag;
        let link = self.links_mut(interface).and_then(|links| links.get(connection).copied());
        match link.map(|link| link.state) {
            Some(LinkState::Opening { op, .. }) => {
                self.answer_open(now, fabric, tag, op, Err(error));
            }
            Some(LinkState::Outgoing | LinkState::Incoming { .. } | LinkState::Draining { .. }) => {
                self.pump(fabric, interface, |interface, path| {
                    interface.handle_connection_lost(now, connection, path);
                });
            }
            None => {}
        }
    }

    fn answer_open(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        tag: Tag,
        op: OpId,
        answer: Result<ConnectionParameters, ConnectError>,
    ) {
        if let Some(links) = self.links_mut(tag.interface) {
            links.set_state(tag.connection, LinkState::Outgoing);
        }
        self.feed_connect_answer(now, fabric, (tag.interface, op), answer);
    }

    pub(super) fn feed_connect_answer(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        (interface, op): (InterfaceId, OpId),
        answer: Result<ConnectionParameters, ConnectError>,
    ) {
        self.pump(fabric, interface, |interface, path| {
            interface.handle_connect_answer(now, op, answer, path);
        });
    }

    fn take_request(&mut self, request: RequestId) -> Option<PendingRequest> {
        let place = self.requests.iter().position(|pending| pending.id() == request)?;
        Some(self.requests.remove(place))
    }

    fn links_mut(&mut self, id: InterfaceId) -> Option<&mut Links> {
        self.slot_mut(id)?.wiring.links.as_mut()
    }

    fn partition(&self, fabric: &Fabric, id: InterfaceId) -> Option<Partition> {
        fabric.port_attributes(self.port, self.slot(id)?.pkey)?.partition
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
