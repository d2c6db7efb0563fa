//! From a posted send to packets on the wire: the sending adapter and the switch.

use ipoib_rs::action::GlobalRoute;
use ipoib_rs::ib::{Gid, Pkey};
use ipoib_rs::packet::PacketBuf;
use ipoib_rs::wire::Grh;
use zerocopy::byteorder::network_endian::{U16, U32};

use super::Fabric;
use crate::address::{Ah, Destination};
use crate::cq::{Completion, Outcome, WorkError};
use crate::packet::Packet;
use crate::port::{PortId, PortState};
use crate::qp::{QpId, QpState, QpType, Send};
use crate::transit::{Header, Transit};
use crate::wire;

/// Bit 31 of a work request's Q_Key: take the queue pair's (IBA 10.2.5).
const QKEY_OF_QP: u32 = 1 << 31;

impl Fabric {
    /// The next packet that left a port, once for each port it goes to, in the order in which the
    /// sends were posted. The send that it came from is complete.
    pub fn poll_transit(&mut self) -> Option<Transit> {
        loop {
            if let Some(transit) = self.ready.pop_front() {
                return Some(transit);
            }
            let qp = self.egress.pop_front()?;
            if let Some(transit) = self.start_send(qp) {
                return Some(transit);
            }
        }
    }

    /// A second one of the same packet; `None` if the pool is empty.
    pub fn duplicate(&mut self, transit: &Transit) -> Option<Transit> {
        let packet = self.outlet.pool.allocate_from(transit.payload())?;
        Some(Transit {
            header: transit.header,
            sender: transit.sender,
            source: transit.source,
            destination: transit.destination,
            packet,
        })
    }

    /// Loses a packet.
    pub fn discard(&mut self, transit: Transit) {
        self.outlet.pool.free(transit.packet);
    }

    /// Takes the oldest send of a queue pair through the sending adapter.
    fn start_send(&mut self, id: QpId) -> Option<Transit> {
        let hca = self.hcas.get_mut(id.hca.0 as usize)?;
        let qp = hca.qps.get_mut(id.key)?;
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
        let pkey_index = match qp.qp_type {
            QpType::Ud => qp.pkey_index,
            QpType::Gsi => request.pkey_index,
        };
        let qkey = if request.qkey.0 & QKEY_OF_QP == 0 { request.qkey } else { qp.qkey };
        let completion = Completion { qp: id, wr_id: request.wr_id, outcome: Outcome::Sent };
        let send_cq = qp.send_cq;
        let psn = qp.take_psn();
        let source_qpn = qp.qpn;
        hca.complete(send_cq, completion, &mut self.outlet);

        // A datagram that the port cannot send is lost like any other (IBA 9.8.3): the send is
        // complete.
        let (Some(source_lid), true) = (port.lid, port.is_active()) else {
            port.counters.sends_while_inactive += 1;
            self.outlet.pool.free(packet);
            return None;
        };
        let Some(pkey) = port.pkey(pkey_index) else {
            port.counters.sends_without_pkey += 1;
            self.outlet.pool.free(packet);
            return None;
        };
        port.counters.sent += 1;
        let header = Header {
            destination: ah.destination,
            source_lid,
            sl: ah.sl,
            grh: ah.grh.map(|route| grh(port.gids.first(), &route, packet.len())),
            pkey,
            destination_qpn: request.remote_qpn,
            source_qpn,
            qkey,
            psn,
        };
        self.forward(&ah, header, id, packet)
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
        let completion = Completion { qp: id, wr_id, outcome: Outcome::SendFailed(error) };
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
                    self.switch.counters.unroutable += 1;
                    self.outlet.pool.free(packet);
                    return None;
                };
                if !is_own && !self.can_leave_by(destination, header.pkey, packet.len()) {
                    self.outlet.pool.free(packet);
                    return None;
                }
                Some(Transit { header, sender, source: ah.port, destination, packet })
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
            if member == source || !self.can_leave_by(member, header.pkey, packet.len()) {
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
                }),
                None => self.switch.counters.buffers_missing += 1,
            }
        }
        match last {
            Some(destination) => {
                self.ready.push_back(Transit { header, sender, source, destination, packet })
            }
            None => self.outlet.pool.free(packet),
        }
    }

    /// Whether the switch lets a packet out by the link to a port (IBA 18.2.4).
    fn can_leave_by(&mut self, destination: PortId, pkey: Pkey, len: usize) -> bool {
        let Some(port) = self.ports.get(destination.index()) else {
            return false;
        };
        let counters = &mut self.switch.counters;
        if port.state == PortState::Down {
            counters.links_down += 1;
            return false;
        }
        if self.config.partition_enforcement && port.matching_pkey(pkey).is_none() {
            counters.partition_violations += 1;
            return false;
        }
        if len > port.mtu.bytes() {
            counters.too_long += 1;
            self.violations.oversize_ud += 1;
            return false;
        }
        true
    }
}

/// The global route header of a packet (IBA 8.3).
fn grh(source: Gid, (destination, route): &(Gid, GlobalRoute), payload_len: usize) -> Grh {
    let GlobalRoute { flow_label, hop_limit, traffic_class } = *route;
    let version_class_flow =
        wire::GRH_VERSION << 28 | u32::from(traffic_class) << 20 | flow_label.value();
    Grh {
        version_class_flow: U32::new(version_class_flow),
        payload_bytes: U16::new(wire::grh_payload_bytes(payload_len)),
        next_header: wire::GRH_NEXT_HEADER_IBA,
        hop_limit,
        source,
        destination: *destination,
    }
}
