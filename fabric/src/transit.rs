//! A packet between two ports.

use ipoib_rs::ib::{IbMtu, Lid, Pkey, Qkey, Qpn, ServiceLevel};
use ipoib_rs::packet::PacketBuf;
use ipoib_rs::wire::Grh;

use crate::address::Destination;
use crate::packet::Packet;
use crate::port::PortId;
use crate::qp::{QpId, RnrTimer};
use crate::wire::{Aeth, Bth, Deth};
use ipoib_rs::ib::Psn;

/// A packet that left its port, on its way to one destination port; or all packets of a message of
/// a reliable connection, which travel as one.
///
/// It ends in [`crate::Fabric::deliver`] or [`crate::Fabric::discard`].
#[derive(Debug)]
pub struct Transit {
    pub(crate) header: Header,
    pub(crate) sender: QpId,
    pub(crate) source: PortId,
    pub(crate) destination: PortId,
    pub(crate) packet: Packet,
    pub(crate) flight: Option<Flight>,
}

/// The requester that learns something when a transit ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Flight {
    pub(crate) requester: QpId,
    pub(crate) epoch: u32,
}

/// What stands in the headers of a packet (IBA 7.7, 8.3, 9.2, 9.3).
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
    /// The sender's queue pair. Packets of a connection do not carry it.
    pub source_qpn: Qpn,
    /// The sequence number of the packet, or of the first packet of a message.
    pub psn: Psn,
    /// What the packet is.
    pub transport: Transport,
}

/// What a packet is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    /// A datagram.
    Datagram {
        /// The queue key.
        qkey: Qkey,
    },
    /// A message of a reliable connection.
    Message {
        /// It is cut into packets of this length.
        path_mtu: IbMtu,
    },
    /// A response to a message (IBA 9.3.4).
    Response {
        /// What it says.
        syndrome: Syndrome,
        /// Messages that the responder has completed, 24 bits.
        msn: u32,
    },
}

/// What a response says of the packet whose sequence number it bears (IBA 9.7.5.2, table 43).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Syndrome {
    /// It arrived, and all before it.
    Ack,
    /// There is no receive for its message.
    RnrNak(RnrTimer),
    /// It cannot be received.
    Nak(NakCode),
}

/// Why a packet cannot be received (IBA 9.7.5.2.3, table 46).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum NakCode {
    /// It is the one that is expected, and another one arrived.
    SequenceError = 0,
    /// The message is longer than the receive, or cut otherwise than agreed.
    InvalidRequest = 1,
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

    /// What follows the headers; the whole message if it travels as one.
    pub fn payload(&self) -> &[u8] {
        self.packet.bytes()
    }

    /// The length of the payload in bytes.
    pub fn payload_len(&self) -> usize {
        self.packet.len()
    }

    /// Whether it belongs to a reliable connection. Links keep the packets of a connection in order
    /// (IBA 7.6.9): who lets one overtake another makes an error that retries have to mend.
    pub const fn is_connected(&self) -> bool {
        match self.header.transport {
            Transport::Datagram { .. } => false,
            Transport::Message { .. } | Transport::Response { .. } => true,
        }
    }

    /// How many packets it is on the wire, 1 or more.
    pub fn packet_count(&self) -> u32 {
        self.header.packet_count(self.packet.len())
    }

    /// The payload of one of its packets; `None` if there are fewer.
    pub fn packet_payload(&self, number: u32) -> Option<&[u8]> {
        if number >= self.packet_count() {
            return None;
        }
        let payload = self.payload();
        match self.header.transport {
            Transport::Datagram { .. } | Transport::Response { .. } => Some(payload),
            Transport::Message { path_mtu } => {
                let start = number as usize * path_mtu.bytes();
                let end = payload.len().min(start + path_mtu.bytes());
                payload.get(start..end)
            }
        }
    }
}

impl Header {
    pub(crate) fn packet_count(&self, payload_len: usize) -> u32 {
        self.transport.packet_count(payload_len)
    }

    /// The length of the BTH and of what extends it.
    pub(crate) const fn transport_len(&self) -> usize {
        match self.transport {
            Transport::Datagram { .. } => size_of::<Bth>() + size_of::<Deth>(),
            Transport::Message { .. } => size_of::<Bth>(),
            Transport::Response { .. } => size_of::<Bth>() + size_of::<Aeth>(),
        }
    }

    /// The length of the longest packet's payload.
    pub(crate) fn packet_payload_len(&self, payload_len: usize) -> usize {
        match self.transport {
            Transport::Datagram { .. } | Transport::Response { .. } => payload_len,
            Transport::Message { path_mtu } => payload_len.min(path_mtu.bytes()),
        }
    }
}

impl Transport {
    pub(crate) fn packet_count(&self, payload_len: usize) -> u32 {
        match *self {
            Self::Datagram { .. } | Self::Response { .. } => 1,
            Self::Message { path_mtu } => packet_count(payload_len, path_mtu),
        }
    }
}

/// The packets of a message; one without bytes is a packet, too (IBA 9.7.2).
pub(crate) fn packet_count(message_len: usize, path_mtu: IbMtu) -> u32 {
    // CAST: a message is shorter than 2^32 bytes, and a packet has 256 or more.
    message_len.div_ceil(path_mtu.bytes()).max(1) as u32
}
