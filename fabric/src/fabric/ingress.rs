//! From the wire to a completion: the receiving adapter (IBA 9.6, 9.8.3).

use ipoib_rs::ib::{Pkey, PkeyIndex, Qpn};
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
use crate::transit::{Header, Transit};

impl Fabric {
    /// Lets a packet arrive at its port. The port is looked at now, not when the packet left: it
    /// may have gone down or have another LID or P_Key by now. What cannot be received is counted
    /// and goes back to the pool.
    pub fn deliver(&mut self, transit: Transit) {
        let Transit { header, sender, destination, packet, source: _ } = transit;
        if !self.takes_in(destination, &header) {
            self.outlet.pool.free(packet);
            return;
        }
        match header.destination {
            Destination::Unicast(_) => self.receive_unicast(destination, &header, packet),
            Destination::Multicast(..) => {
                self.receive_multicast(destination, &header, sender, packet);
            }
        }
    }

    /// Whether the port takes the packet in, whoever it is for.
    fn takes_in(&mut self, id: PortId, header: &Header) -> bool {
        let Some(port) = self.ports.get_mut(id.index()) else {
            return false;
        };
        if !port.is_active() {
            port.counters.arrivals_while_inactive += 1;
            return false;
        }
        let Destination::Unicast(lid) = header.destination else {
            return true;
        };
        // IBA 7.11.1: the link layer takes packets to its LID only.
        if port.lid != Some(lid) {
            port.counters.foreign_lids += 1;
            return false;
        }
        // IBA 9.6.1.2: the destination of a GRH is one of the port's GIDs.
        if header.grh.is_some_and(|grh| !port.gids.contains(grh.destination)) {
            port.counters.foreign_gids += 1;
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
        let key = if header.destination_qpn == Qpn::GSI {
            port.gsi
        } else {
            let found = hca.qp_by_number(header.destination_qpn);
            found.filter(|(_, qp)| qp.port == id).map(|(key, _)| key)
        };
        match key {
            Some(key) => receive(port, hca, key, header, packet, &mut self.outlet),
            None => {
                port.counters.unknown_qpns += 1;
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
        let Ok(place) = place else {
            port.counters.unattached_groups += 1;
            return self.outlet.pool.free(packet);
        };
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
    header: &Header,
    mut packet: Packet,
    outlet: &mut Outlet,
) {
    let id = QpId { hca: hca.id, key };
    let Some(qp) = hca.qps.get_mut(key) else {
        return outlet.pool.free(packet);
    };
    let Some(pkey_index) = accept(port, qp, header) else {
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
    let completion = Completion { qp: id, wr_id: request.wr_id, outcome };
    hca.complete(receive_cq, completion, outlet);
}

/// Checks the state and the keys of a queue pair; the place of the packet's P_Key.
fn accept(port: &mut Port, qp: &Qp, header: &Header) -> Option<PkeyIndex> {
    if !qp.can_receive() {
        port.counters.unknown_qpns += 1;
        return None;
    }
    let Some(pkey_index) = accept_pkey(port, qp, header.pkey) else {
        port.counters.pkey_violations += 1;
        return None;
    };
    if header.qkey != qp.qkey {
        port.counters.qkey_violations += 1;
        return None;
    }
    Some(pkey_index)
}

fn accept_pkey(port: &Port, qp: &Qp, pkey: Pkey) -> Option<PkeyIndex> {
    match qp.qp_type {
        QpType::Ud => {
            let own = port.pkey(qp.pkey_index)?;
            pkey.matches(own).then_some(qp.pkey_index)
        }
        // IBA 10.9: QP1 takes the packets of every partition that its port is in.
        QpType::Gsi => port.matching_pkey(pkey),
    }
}
