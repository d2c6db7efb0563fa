//! A packet between two ports.

use ipoib_rs::ib::{Lid, Pkey, Qkey, Qpn, ServiceLevel};
use ipoib_rs::packet::PacketBuf;
use ipoib_rs::wire::Grh;

use crate::address::Destination;
use crate::packet::Packet;
use crate::port::PortId;
use crate::qp::QpId;

/// A packet that left its port, on its way to one destination port.
///
/// It ends in [`crate::Fabric::deliver`] or [`crate::Fabric::discard`].
#[derive(Debug)]
pub struct Transit {
    pub(crate) header: Header,
    pub(crate) sender: QpId,
    pub(crate) source: PortId,
    pub(crate) destination: PortId,
    pub(crate) packet: Packet,
}

/// What stands in the headers of a packet (IBA 7.7, 8.3, 9.2, 9.3.3).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// Where to.
    pub destination: Destination,
    /// The sender's LID.
    pub source_lid: Lid,
    /// The service level.
    pub sl: ServiceLevel,
    /// The global route header, if there is one.
    pub grh: Option<Grh>,
    /// The partition.
    pub pkey: Pkey,
    /// The destination queue pair.
    pub destination_qpn: Qpn,
    /// The sender's queue pair.
    pub source_qpn: Qpn,
    /// The queue key.
    pub qkey: Qkey,
    /// The packet sequence number, 24 bits.
    pub psn: u32,
}

impl Transit {
    /// The headers.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The port that sent it.
    pub const fn source(&self) -> PortId {
        self.source
    }

    /// The port that it goes to; the source itself for a loopback.
    pub const fn destination(&self) -> PortId {
        self.destination
    }

    /// What follows the headers.
    pub fn payload(&self) -> &[u8] {
        self.packet.bytes()
    }

    /// The length of the payload in bytes.
    pub fn payload_len(&self) -> usize {
        self.packet.len()
    }
}
