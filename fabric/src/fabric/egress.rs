//! From a posted send to packets on the wire: the sending adapter and the switch.

use ipoib_rs::action::GlobalRoute;
use ipoib_rs::ib::{Gid, PkeyIndex, Qpn};
use ipoib_rs::packet::PacketBuf;
use ipoib_rs::wire::Grh;
use zerocopy::byteorder::network_endian::{U16, U32};

use super::Fabric;
use crate::address::{Ah, Destination};
use crate::cq::{Completion, Outcome, WorkError};
use crate::packet::Packet;
use crate::port::{PortId, PortState};
use crate::qp::{QpId, QpState, QpType, Send};
use crate::transit::{Header, Transit, Transport};
use crate::wire;
use ipoib_rs::ib::Psn;

/// Bit 31 of a work request's Q_Key: take the queue pair's (IBA 10.2.5).
const QKEY_OF_QP: u32 = 1 << 31;

/// What goes into the headers of a packet.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) sender: QpId,
    pub(super) source_qpn: Qpn,
    pub(super) ah: Ah,
    pub(super) pkey_index: PkeyIndex,
    pub(super) destination_qpn: Qpn,
    pub(super) psn: Psn,
    pub(super) transport: Transport,
}

impl Fabric {
    /// The next packet that left a port, once for each port it goes to; all packets of a message of
    /// a connection as one. Datagrams leave in the order in which they were posted and are complete
    /// thereby; connected queue pairs take turns.
    pub fn poll_transit(&mut self) -> Option<Transit> {
        loop {
            if let Some(transit) = self.ready.pop_front() {
                return Some(transit);
            }
            let id = self.egress.pop_front()?;
            let transit = self.start_send(id);
            if transit.is_some() {
                return transit;
            }
        }
    }

    /// A second one of the same packet; `None` if the pool is empty.
    pub fn duplicate(&mut self, transit: &Transit) -> Option<Transit> {
        let payload = transit.payload();
        let packet = if payload.is_empty() {
            Packet::empty()
        } else {
            self.outlet.pool.allocate_from(payload)?
        };
        if let Some(requester) = transit.flight.and_then(|flight| self.requester_of(flight)) {
            requester.in_flight += 1;
        }
        Some(Transit {
            header: transit.header,
            sender: transit.sender,
            source: transit.source,
            destination: transit.destination,
            packet,
            flight: transit.flight,
        })
    }

    /// Loses a packet. If nothing is left under way that could tell the sender of a message what
    /// became of it, it repeats what is not acknowledged, or, when it has no retries left, fails.
    pub fn discard(&mut self, transit: Transit) {
        self.outlet.pool.free(transit.packet);
        self.land(transit.flight);
    }

    /// Takes the oldest send of a queue pair through the sending adapter.
    fn start_send(&mut self, id: QpId) -> Option<Transit> {
        let hca = self.hcas.get_mut(id.hca.0 as usize)?;
        let qp = hca.qps.get_mut(id.key)?;
        if qp.connection.is_some() {
            return self.serve(id);
        }
        let Send { request, packet } = qp.sends.pop_front()?;
        let port_id = qp.port;
        let port = self.ports.get_mut(port_id.index())?;
        let Some(&ah) = hca.ahs.get(request.ah.key) else {
            self.violations.missing_handles += 1;
            self.fail_send(id, request.wr_id, WorkError::LocalQpOperation, packet);
            return None;
        };
        // IBA 9.8.3: a datagram is one packet, so it cannot be longer than the MTU.
        if packet.len() > port.mtu.bytes() {
            self.violations.oversize_ud += 1;
            self.fail_send(id, request.wr_id, WorkError::LocalLength, packet);
            return None;
        }
        if qp.qp_type == QpType::Ud && port.datagrams_to_fail > 0 {
            port.datagrams_to_fail -= 1;
            self.fail_send(id, request.wr_id, WorkError::LocalQpOperation, packet);
            return None;
        }
        let pkey_index = match qp.qp_type {
            QpType::Ud | QpType::Rc { .. } => qp.pkey_index,
            QpType::Gsi => request.pkey_index,
        };
        let qkey = if request.qkey.0 & QKEY_OF_QP == 0 { request.qkey } else { qp.qkey };
        let completion =
            Completion { qp: id, qpn: qp.qpn, wr_id: request.wr_id, outcome: Outcome::Sent };
        let send_cq = qp.send_cq;
        let launch = Launch {
            sender: id,
            source_qpn: qp.qpn,
            ah,
            pkey_index,
            destination_qpn: request.remote_qpn,
            psn: qp.take_psn(),
            transport: Transport::Datagram { qkey },
        };
        hca.complete(send_cq, completion, &mut self.outlet);
        // A datagram that the port cannot send is lost like any other (IBA 9.8.3): the send is
        // complete.
        self.launch(&launch, packet)
    }

    /// Takes a packet, or all packets of a message, from a queue pair to the switch.
    #[inline]
    pub(super) fn launch(&mut self, launch: &Launch, packet: Packet) -> Option<Transit> {
        let &Launch { sender, source_qpn, ah, pkey_index, destination_qpn, psn, transport } =
            launch;
        let port = self.ports.get_mut(ah.port.index())?;
        let count = u64::from(transport.packet_count(packet.len()));
        let Some(source_lid) = port.lid.filter(|_| port.is_active()) else {
            port.counters.sends_while_inactive += count;
            self.outlet.pool.free(packet);
            return None;
        };
        let Some(pkey) = port.pkey(pkey_index) else {
            port.counters.sends_without_pkey += count;
            self.outlet.pool.free(packet);
            return None;
        };
        let mut header = Header {
            destination: ah.destination,
            source_lid,
            sl: ah.sl,
            grh: None,
            pkey,
            destination_qpn,
            source_qpn,
            psn,
            transport,
        };
        let payload_len = header.packet_payload_len(packet.len());
        let payload_bytes = wire::grh_payload_bytes(header.transport_len(), payload_len);
        header.grh = ah.grh.map(|route| grh(port.gids.first(), &route, payload_bytes));
        port.counters.sent += count;
        self.forward(&ah, header, sender, packet)
    }

    /// Completes a send in error: the queue pair goes to SQE and what is behind it is flushed
    /// (IBA 10.3.1).
    fn fail_send(&mut self, id: QpId, wr_id: u64, error: WorkError, packet: Packet) {
        self.outlet.pool.free(packet);
        let Some(hca) = self.hcas.get_mut(id.hca.0 as usize) else {
            return;
        };
        let Some(qp) = hca.qps.get_mut(id.key) else {
            return;
        };
        qp.state = QpState::SendQueueError;
        let completion =
            Completion { qp: id, qpn: qp.qpn, wr_id, outcome: Outcome::SendFailed(error) };
        let send_cq = qp.send_cq;
        hca.complete(send_cq, completion, &mut self.outlet);
        hca.flush_sends(id, &mut self.outlet);
        self.egress.retain(|entry| *entry != id);
    }

    /// Takes a packet through the switch.
    fn forward(
        &mut self,
        ah: &Ah,
        header: Header,
        sender: QpId,
        packet: Packet,
    ) -> Option<Transit> {
        match header.destination {
            Destination::Unicast(lid) => {
                // A packet to the own LID does not reach the link.
                let is_own = header.source_lid == lid;
                let found = if is_own { Some(ah.port) } else { self.switch.port(lid) };
                let Some(destination) = found else {
                    let count = header.packet_count(packet.len());
                    self.switch.counters.unroutable += u64::from(count);
                    self.outlet.pool.free(packet);
                    return None;
                };
                if !is_own && !self.can_leave_by(destination, &header, packet.len()) {
                    self.outlet.pool.free(packet);
                    return None;
                }
                Some(Transit { header, sender, source: ah.port, destination, packet, flight: None })
            }
            Destination::Multicast(..) => {
                self.fan_out(ah.port, header, sender, packet);
                self.ready.pop_front()
            }
        }
    }

    /// Makes the copies of a multicast packet: for the members behind the switch, in the order of
    /// their ports, and for the sending port itself, whose adapter loops it back (IBA 10.5.2).
    fn fan_out(&mut self, source: PortId, header: Header, sender: QpId, packet: Packet) {
        let Destination::Multicast(mlid, mgid) = header.destination else {
            self.outlet.pool.free(packet);
            return;
        };
        let is_attached = self
            .ports
            .get(source.index())
            .is_some_and(|port| port.attachment((mlid, mgid)).is_some());
        let mut last = is_attached.then_some(source);
        for position in 0..self.switch.members(mlid).len() {
            let Some(&member) = self.switch.members(mlid).get(position) else {
                break;
            };
            if member == source || !self.can_leave_by(member, &header, packet.len()) {
                continue;
            }
            // One of them gets the packet itself.
            if last.is_none() {
                last = Some(member);
                continue;
            }
            match self.outlet.pool.allocate_from(packet.bytes()) {
                Some(packet) => self.ready.push_back(Transit {
                    header,
                    sender,
                    source,
                    destination: member,
                    packet,
                    flight: None,
                }),
                None => self.switch.counters.buffers_missing += 1,
            }
        }
        match last {
            Some(destination) => self.ready.push_back(Transit {
                header,
                sender,
                source,
                destination,
                packet,
                flight: None,
            }),
            None => self.outlet.pool.free(packet),
        }
    }

    /// Whether the switch lets a packet out by the link to a port (IBA 18.2.4).
    fn can_leave_by(&mut self, destination: PortId, header: &Header, len: usize) -> bool {
        let Some(port) = self.ports.get(destination.index()) else {
            return false;
        };
        let counters = &mut self.switch.counters;
        let count = u64::from(header.packet_count(len));
        if port.state == PortState::Down {
            counters.links_down += count;
            return false;
        }
        if self.config.partition_enforcement && port.matching_pkey(header.pkey).is_none() {
            counters.partition_violations += count;
            return false;
        }
        if header.packet_payload_len(len) > port.mtu.bytes() {
            counters.too_long += count;
            match header.transport {
                Transport::Datagram { .. } => self.violations.oversize_ud += 1,
                Transport::Message { .. } | Transport::Response { .. } => {}
            }
            return false;
        }
        true
    }
}

/// The global route header of a packet (IBA 8.3).
fn grh(source: Gid, (destination, route): &(Gid, GlobalRoute), payload_bytes: u16) -> Grh {
    let GlobalRoute { flow_label, hop_limit, traffic_class } = *route;
    let version_class_flow =
        wire::GRH_VERSION << 28 | u32::from(traffic_class) << 20 | flow_label.value();
    Grh {
        version_class_flow: U32::new(version_class_flow),
        payload_bytes: U16::new(payload_bytes),
        next_header: wire::GRH_NEXT_HEADER_IBA,
        hop_limit,
        source,
        destination: *destination,
    }
}
