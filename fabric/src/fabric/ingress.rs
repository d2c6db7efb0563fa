//! From the wire to a completion: the receiving adapter (IBA 9.6, 9.8.3).

use ipoib_rs::ib::{Pkey, PkeyIndex, Qkey, Qpn};
use ipoib_rs::packet::PacketBuf;
use ipoib_rs::wire::GRH_BYTES;
use zerocopy::IntoBytes;

use super::Fabric;
use crate::address::Destination;
use crate::cq::{Arrival, Completion, Outcome, WorkError};
use crate::hca::Hca;
use crate::outlet::Outlet;
use crate::packet::Packet;
use crate::port::{Port, PortId};
use crate::qp::{Qp, QpId, QpType};
use crate::slab::Key;
use crate::transit::{Header, Transit, Transport};

impl Fabric {
    /// Lets a packet arrive at its port. The port is looked at now, not when the packet left: it
    /// may have gone down or have another LID or P_Key by now. What cannot be received is counted
    /// and goes back to the pool. A message of a connection is answered; if it is not, its sender
    /// is told as by [`Self::discard`].
    pub fn deliver(&mut self, transit: Transit) {
        let Transit { header, sender, destination, packet, flight, source: _ } = transit;
        let packet_count = header.packet_count(packet.len());
        if self.takes_in(destination, &header, packet_count) {
            match header.destination {
                Destination::Unicast(_) => self.receive_unicast(destination, &header, packet),
                Destination::Multicast(..) => {
                    self.receive_multicast(destination, &header, sender, packet);
                }
            }
        } else {
            self.outlet.pool.free(packet);
        }
        self.land(flight);
    }

    /// Whether the port takes the packet in, whoever it is for.
    fn takes_in(&mut self, id: PortId, header: &Header, packet_count: u32) -> bool {
        let Some(port) = self.ports.get_mut(id.index()) else {
            return false;
        };
        let count = u64::from(packet_count);
        if !port.is_active() {
            port.counters.arrivals_while_inactive += count;
            return false;
        }
        let Destination::Unicast(lid) = header.destination else {
            return true;
        };
        // IBA 7.11.1: the link layer takes packets to its LID only.
        if port.lid != Some(lid) {
            port.counters.foreign_lids += count;
            return false;
        }
        // IBA 9.6.1.2: the destination of a GRH is one of the port's GIDs.
        if header.grh.is_some_and(|grh| !port.gids.contains(grh.destination)) {
            port.counters.foreign_gids += count;
            return false;
        }
        true
    }

    fn receive_unicast(&mut self, id: PortId, header: &Header, packet: Packet) {
        let Some(port) = self.ports.get_mut(id.index()) else {
            return self.outlet.pool.free(packet);
        };
        let Some(hca) = self.hcas.get_mut(port.hca.0 as usize) else {
            return self.outlet.pool.free(packet);
        };
        let found = if header.destination_qpn == Qpn::GSI {
            port.gsi.map(|key| (key, false))
        } else {
            let found = hca.qp_by_number(header.destination_qpn);
            found.filter(|(_, qp)| qp.port == id).map(|(key, qp)| (key, qp.connection.is_some()))
        };
        let count = u64::from(header.packet_count(packet.len()));
        let Some((key, is_connected)) = found else {
            port.counters.unknown_qpns += count;
            return self.outlet.pool.free(packet);
        };
        let qp = QpId { hca: hca.id, key };
        match header.transport {
            Transport::Datagram { qkey } if !is_connected => {
                receive(port, hca, key, (header, qkey), packet, &mut self.outlet);
            }
            Transport::Message { path_mtu } if is_connected => {
                self.receive_message(id, qp, (header, path_mtu), packet);
            }
            Transport::Response { syndrome, .. } if is_connected => {
                self.outlet.pool.free(packet);
                self.receive_response(id, qp, header, syndrome);
            }
            // IBA 9.6.1.2: the opcode is not one of the queue pair's service.
            Transport::Datagram { .. } | Transport::Message { .. } | Transport::Response { .. } => {
                port.counters.wrong_services += count;
                self.outlet.pool.free(packet);
            }
        }
    }

    /// One copy for each attached queue pair; the last one takes the packet itself.
    fn receive_multicast(&mut self, id: PortId, header: &Header, sender: QpId, packet: Packet) {
        let Some(port) = self.ports.get_mut(id.index()) else {
            return self.outlet.pool.free(packet);
        };
        let Some(hca) = self.hcas.get_mut(port.hca.0 as usize) else {
            return self.outlet.pool.free(packet);
        };
        let place = match header.destination {
            Destination::Multicast(mlid, mgid) => port.find_attachment((mlid, mgid)),
            Destination::Unicast(_) => Err(0),
        };
        let (Ok(place), Transport::Datagram { qkey }) = (place, header.transport) else {
            port.counters.unattached_groups += 1;
            return self.outlet.pool.free(packet);
        };
        let header = (header, qkey);
        let echo = (!self.config.multicast_loopback && sender.hca == hca.id).then_some(sender.key);
        let mut last = None;
        for position in 0..port.attachments[place].qps.len() {
            let key = port.attachments[place].qps[position];
            if echo == Some(key) {
                continue;
            }
            if let Some(previous) = last.replace(key) {
                match self.outlet.pool.allocate_from(packet.bytes()) {
                    Some(copy) => receive(port, hca, previous, header, copy, &mut self.outlet),
                    None => port.counters.buffers_missing += 1,
                }
            }
        }
        match last {
            Some(key) => receive(port, hca, key, header, packet, &mut self.outlet),
            None => self.outlet.pool.free(packet),
        }
    }
}

/// Puts a packet into the oldest receive of a queue pair, if its keys are right.
fn receive(
    port: &mut Port,
    hca: &mut Hca,
    key: Key,
    (header, qkey): (&Header, Qkey),
    mut packet: Packet,
    outlet: &mut Outlet,
) {
    let id = QpId { hca: hca.id, key };
    let Some(qp) = hca.qps.get_mut(key) else {
        return outlet.pool.free(packet);
    };
    let Some(pkey_index) = accept(port, qp, header, qkey) else {
        return outlet.pool.free(packet);
    };
    let Some(request) = qp.receives.pop_front() else {
        port.counters.receives_missing += 1;
        return outlet.pool.free(packet);
    };
    let receive_cq = qp.receive_cq;
    // IBA 11.4.1.2: the first 40 bytes are for a GRH, whether there is one or not.
    let is_long = GRH_BYTES + packet.len() > request.bytes as usize;
    let grh = header.grh.as_ref().map_or(&[0; GRH_BYTES][..], |grh| grh.as_bytes());
    let outcome = if is_long || packet.prepend(grh).is_err() {
        port.counters.receives_too_short += 1;
        outlet.pool.free(packet);
        Outcome::ReceiveFailed(WorkError::LocalLength)
    } else {
        port.counters.received += 1;
        Outcome::Received(Arrival {
            packet,
            has_grh: header.grh.is_some(),
            pkey_index,
            sl: header.sl,
            source_lid: header.source_lid,
            source_qpn: header.source_qpn,
        })
    };
    let completion = Completion { qp: id, qpn: qp.qpn, wr_id: request.wr_id, outcome };
    hca.complete(receive_cq, completion, outlet);
}

/// Checks the state and the keys of a queue pair; the place of the packet's P_Key.
fn accept(port: &mut Port, qp: &Qp, header: &Header, qkey: Qkey) -> Option<PkeyIndex> {
    if !qp.can_receive() {
        port.counters.unknown_qpns += 1;
        return None;
    }
    let Some(pkey_index) = accept_pkey(port, qp, header.pkey) else {
        port.counters.pkey_violations += 1;
        return None;
    };
    if qkey != qp.qkey {
        port.counters.qkey_violations += 1;
        return None;
    }
    Some(pkey_index)
}

/// The place of the P_Key that lets a packet in to a queue pair.
pub(super) fn accept_pkey(port: &Port, qp: &Qp, pkey: Pkey) -> Option<PkeyIndex> {
    match qp.qp_type {
        QpType::Ud | QpType::Rc { .. } => {
            let own = port.pkey(qp.pkey_index)?;
            pkey.matches(own).then_some(qp.pkey_index)
        }
        // IBA 10.9: QP1 takes the packets of every partition that its port is in.
        QpType::Gsi => port.matching_pkey(pkey),
    }
}
