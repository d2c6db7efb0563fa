//! Reliable connections: from a posted message to its acknowledgement (IBA 9.7).

use ipoib_rs::ib::{IbMtu, Qpn};
use ipoib_rs::packet::PacketBuf;

use super::Fabric;
use super::egress::Launch;
use super::ingress::accept_pkey;
use super::verbs::{PostError, RefusedSend};
use crate::address::{Ah, Destination};
use crate::connection::{Requester, Responder, Response, Sequence, Verdict};
use crate::cq::{Arrival, Completion, Outcome, WorkError};
use crate::hca::Hca;
use crate::outlet::{AsyncEvent, Outlet};
use crate::packet::Packet;
use crate::port::{Port, PortId};
use crate::qp::{Qp, QpId, QpState, ReceiveRequest};
use crate::srq::SrqId;
use crate::transit::{Flight, Header, Syndrome, Transit, Transport};
use ipoib_rs::ib::Psn;

impl Fabric {
    /// Posts a message on a connected queue pair; [`Packet::empty`] is one as well. The packet is
    /// the fabric's from now on, and goes back to the pool or to the receiver. The send completes
    /// when the peer has acknowledged it, or in error.
    ///
    /// # Errors
    ///
    /// [`RefusedSend`] with the packet.
    pub fn post_message(
        &mut self,
        id: QpId,
        wr_id: u64,
        packet: Packet,
    ) -> Result<(), RefusedSend> {
        let refuse = |error, packet| Err(RefusedSend { error, packet });
        let Some(qp) = self.qp_mut(id) else {
            return refuse(PostError::UnknownQp, packet);
        };
        let (state, sends_max) = (qp.state, qp.sends_max);
        let Some(connection) = &mut qp.connection else {
            return refuse(PostError::WrongService, packet);
        };
        match state {
            QpState::Reset | QpState::Init | QpState::ReadyToReceive => {
                return refuse(PostError::WrongState, packet);
            }
            QpState::ReadyToSend
            | QpState::SendQueueDrained
            | QpState::SendQueueError
            | QpState::Error => {}
        }
        if connection.messages.len() == sends_max {
            return refuse(PostError::QueueFull, packet);
        }
        connection.post(wr_id, packet);
        match state {
            QpState::ReadyToSend => self.schedule(id),
            // IBA 10.3.1: work posted in these states completes as flushed.
            QpState::SendQueueError | QpState::Error => {
                if let Some(hca) = self.hcas.get_mut(id.hca.0 as usize) {
                    hca.flush_sends(id, &mut self.outlet);
                }
            }
            QpState::SendQueueDrained
            | QpState::Reset
            | QpState::Init
            | QpState::ReadyToReceive => {}
        }
        Ok(())
    }

    /// Takes the next packet of a connected queue pair through its adapter: a response, or a
    /// message.
    pub(super) fn serve(&mut self, id: QpId) -> Option<Transit> {
        let qp = self.qp_mut(id)?;
        let (state, port, qpn, pkey_index) = (qp.state, qp.port, qp.qpn, qp.pkey_index);
        let connection = qp.connection.as_mut()?;
        connection.is_scheduled = false;
        let responder = connection.responder.as_mut()?;
        let (ah, destination_qpn) = (responder.ah, responder.remote_qpn);
        let path_mtu = responder.path_mtu;
        let (transport, psn, packet, flight) = if let Some(response) = responder.response.take() {
            let Response { syndrome, msn, .. } = response;
            let transport = Transport::Response { syndrome, msn };
            (transport, response.psn, Some(Packet::empty()), response.flight)
        } else {
            let (epoch, transport) = (connection.epoch, Transport::Message { path_mtu });
            let (psn, packet) = self.start_message(id, state)?;
            let flight = Flight { requester: id, epoch };
            (transport, psn, packet, Some(flight))
        };
        self.schedule(id);
        let launch =
            Launch { sender: id, source_qpn: qpn, ah, pkey_index, destination_qpn, psn, transport };
        let transit = match packet {
            Some(packet) => self.launch(&launch, packet),
            None => {
                if let Some(port) = self.ports.get_mut(port.index()) {
                    port.counters.buffers_missing += 1;
                }
                None
            }
        };
        match transit {
            Some(transit) => Some(Transit { flight, ..transit }),
            None => {
                self.land(flight);
                None
            }
        }
    }

    fn start_message(&mut self, id: QpId, state: QpState) -> Option<(Psn, Option<Packet>)> {
        let hca = self.hcas.get_mut(id.hca.0 as usize)?;
        let connection = hca.qps.get_mut(id.key)?.connection.as_mut()?;
        if !connection.can_send(state) {
            return None;
        }
        let started = connection.start(&mut self.outlet.pool)?;
        connection.requester.as_mut()?.in_flight += 1;
        Some(started)
    }

    /// Puts a connected queue pair into the list of those that have something to send, once, if it
    /// has.
    pub(super) fn schedule(&mut self, id: QpId) {
        let Some(hca) = self.hcas.get_mut(id.hca.0 as usize) else {
            return;
        };
        let Some(qp) = hca.qps.get_mut(id.key) else {
            return;
        };
        let state = qp.state;
        let Some(connection) = &mut qp.connection else {
            return;
        };
        let responder = connection.responder.as_ref();
        let has_response = responder.is_some_and(|responder| responder.response.is_some());
        if !connection.is_scheduled && (has_response || connection.can_send(state)) {
            connection.is_scheduled = true;
            self.egress.push_back(id);
        }
    }

    /// A transit has ended: its requester may have nothing left that could bring what it waits for.
    pub(super) fn land(&mut self, flight: Option<Flight>) {
        let Some(flight) = flight else {
            return;
        };
        if let Some(requester) = self.requester_of(flight) {
            let verdict = requester.land();
            self.carry_out(flight.requester, verdict);
        }
    }

    /// The requester that something under way belongs to, if its connection still exists.
    pub(super) fn requester_of(&mut self, flight: Flight) -> Option<&mut Requester> {
        let qp = self.qp_mut(flight.requester)?;
        qp.connection.as_mut()?.requester_of(flight)
    }

    fn carry_out(&mut self, id: QpId, verdict: Verdict) {
        match verdict {
            Verdict::GoOn => {}
            Verdict::Repeat => self.schedule(id),
            Verdict::Fail(error) => {
                let Some(hca) = self.hcas.get_mut(id.hca.0 as usize) else {
                    return;
                };
                hca.complete_send(id, || Outcome::SendFailed(error), &mut self.outlet);
                self.enter_error(id);
            }
        }
    }

    /// A message at its destination.
    pub(super) fn receive_message(
        &mut self,
        port_id: PortId,
        id: QpId,
        (header, path_mtu): (&Header, IbMtu),
        packet: Packet,
    ) {
        let packet_count = header.packet_count(packet.len());
        let Some((port, hca)) = self.accept(port_id, id, header, packet_count) else {
            return self.outlet.pool.free(packet);
        };
        let qp = hca.qps.get_mut(id.key);
        let Some(responder) = qp.and_then(|qp| qp.connection.as_mut()?.responder.as_mut()) else {
            return self.outlet.pool.free(packet);
        };
        match responder.sequence(header.psn) {
            Sequence::Expected => self.receive_expected(port_id, id, (header, path_mtu), packet),
            Sequence::Duplicate => {
                port.counters.duplicates += u64::from(packet_count);
                responder.accept_again();
                self.outlet.pool.free(packet);
            }
            Sequence::Early => {
                port.counters.sequence_errors += u64::from(packet_count);
                responder.refuse_early();
                self.outlet.pool.free(packet);
            }
        }
        self.answer(id);
    }

    /// Puts the message that is next into a receive.
    fn receive_expected(
        &mut self,
        port_id: PortId,
        id: QpId,
        (header, path_mtu): (&Header, IbMtu),
        packet: Packet,
    ) {
        let (Some(port), Some(hca)) =
            (self.ports.get_mut(port_id.index()), self.hcas.get_mut(id.hca.0 as usize))
        else {
            return self.outlet.pool.free(packet);
        };
        let request = take_receive(hca, id, &mut self.outlet);
        let Some(qp) = hca.qps.get_mut(id.key) else {
            return self.outlet.pool.free(packet);
        };
        let Some(responder) = qp.connection.as_mut().and_then(|own| own.responder.as_mut()) else {
            return self.outlet.pool.free(packet);
        };
        let packet_count = header.packet_count(packet.len());
        let Some(request) = request else {
            port.counters.receives_missing += u64::from(packet_count);
            responder.refuse_unready();
            return self.outlet.pool.free(packet);
        };
        // IBA 9.7.4.1.6: every packet but the last is as long as the path MTU, and none is longer.
        let is_cut_wrong = path_mtu != responder.path_mtu
            && (packet_count > 1 || packet.len() > responder.path_mtu.bytes());
        let is_received = !is_cut_wrong && packet.len() <= request.bytes as usize;
        let outcome = if is_received {
            port.counters.received += u64::from(packet_count);
            if responder.accept(packet_count) && qp.state == QpState::ReadyToReceive {
                self.outlet.report(AsyncEvent::CommunicationEstablished(id));
            }
            Outcome::Received(Arrival {
                packet,
                has_grh: false,
                pkey_index: qp.pkey_index,
                sl: header.sl,
                source_lid: header.source_lid,
                source_qpn: responder.remote_qpn,
            })
        } else {
            port.counters.receives_too_short += u64::from(packet_count);
            responder.refuse_invalid();
            self.outlet.pool.free(packet);
            Outcome::ReceiveFailed(WorkError::LocalLength)
        };
        let completion = Completion { qp: id, qpn: qp.qpn, wr_id: request.wr_id, outcome };
        let cq = qp.receive_cq;
        hca.complete(cq, completion, &mut self.outlet);
        if !is_received {
            self.enter_error(id);
        }
    }

    /// A response at its destination.
    pub(super) fn receive_response(
        &mut self,
        port_id: PortId,
        id: QpId,
        header: &Header,
        syndrome: Syndrome,
    ) {
        let Some((port, hca)) = self.accept(port_id, id, header, 1) else {
            return;
        };
        let connection = hca.qps.get_mut(id.key).and_then(|qp| qp.connection.as_mut());
        let progress = connection.and_then(|own| own.read_response(syndrome, header.psn));
        let Some((completed, verdict)) = progress else {
            port.counters.stale_responses += 1;
            return;
        };
        port.counters.received += 1;
        if let Some(hca) = self.hcas.get_mut(id.hca.0 as usize) {
            for _ in 0..completed {
                hca.complete_send(id, || Outcome::Sent, &mut self.outlet);
            }
        }
        self.carry_out(id, verdict);
    }

    /// Checks the state of a queue pair and the keys and the source of a packet for it (IBA 9.6.1).
    fn accept(
        &mut self,
        port_id: PortId,
        id: QpId,
        header: &Header,
        packet_count: u32,
    ) -> Option<(&mut Port, &mut Hca)> {
        let port = self.ports.get_mut(port_id.index())?;
        let hca = self.hcas.get_mut(id.hca.0 as usize)?;
        let qp = hca.qps.get(id.key)?;
        let count = match fault(port, qp, header) {
            None => return Some((port, hca)),
            Some(Fault::State) => &mut port.counters.unknown_qpns,
            Some(Fault::Pkey) => &mut port.counters.pkey_violations,
            Some(Fault::Source) => &mut port.counters.foreign_sources,
        };
        *count += u64::from(packet_count);
        None
    }

    /// Sees to it that a response leaves, and that its receiver knows that one is under way.
    fn answer(&mut self, id: QpId) {
        let Some(responder) = self.responder(id) else {
            return;
        };
        let Some(response) = responder.response else {
            return;
        };
        let flight = self.flight_to(&responder.ah, responder.remote_qpn);
        if flight != response.flight {
            if let Some(requester) = flight.and_then(|flight| self.requester_of(flight)) {
                requester.in_flight += 1;
            }
            let qp = self.qp_mut(id).and_then(|qp| qp.connection.as_mut());
            if let Some(responder) = qp.and_then(|own| own.responder.as_mut()) {
                responder.response = Some(Response { flight, ..response });
            }
            self.land(response.flight);
        }
        self.schedule(id);
    }

    fn responder(&self, id: QpId) -> Option<&Responder> {
        self.qp(id)?.connection.as_ref()?.responder.as_ref()
    }

    /// The requester that gets what is sent to an address.
    fn flight_to(&self, ah: &Ah, qpn: Qpn) -> Option<Flight> {
        let Destination::Unicast(lid) = ah.destination else {
            return None;
        };
        let own = self.ports.get(ah.port.index())?;
        let port = if own.lid == Some(lid) {
            own
        } else {
            self.ports.get(self.switch.port(lid)?.index())?
        };
        let (key, qp) = self.hcas.get(port.hca.0 as usize)?.qp_by_number(qpn)?;
        let connection = qp.connection.as_ref()?;
        connection.requester.as_ref()?;
        Some(Flight { requester: QpId { hca: port.hca, key }, epoch: connection.epoch })
    }
}

/// Why a queue pair does not take a packet.
enum Fault {
    State,
    Pkey,
    Source,
}

fn fault(port: &Port, qp: &Qp, header: &Header) -> Option<Fault> {
    let responder = qp.connection.as_ref().and_then(|own| own.responder.as_ref());
    let Some(responder) = responder.filter(|_| qp.can_receive()) else {
        return Some(Fault::State);
    };
    if accept_pkey(port, qp, header.pkey).is_none() {
        return Some(Fault::Pkey);
    }
    let is_peer = responder.ah.destination == Destination::Unicast(header.source_lid);
    (!is_peer).then_some(Fault::Source)
}

/// The oldest receive of a connected queue pair, or of the queue that it shares.
fn take_receive(hca: &mut Hca, id: QpId, outlet: &mut Outlet) -> Option<ReceiveRequest> {
    let qp = hca.qps.get_mut(id.key)?;
    let Some(key) = qp.connection.as_ref()?.srq else {
        return qp.receives.pop_front();
    };
    let (receive, is_low) = hca.srqs.get_mut(key)?.take()?;
    if is_low {
        outlet.report(AsyncEvent::SrqLimitReached(SrqId { hca: hca.id, key }));
    }
    Some(receive)
}
