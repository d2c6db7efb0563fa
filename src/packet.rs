//! Packets, and the one way in which the core touches the adapter.
//!
//! Ownership: a packet that is handed in is posted, queued, delivered, answered as too big or
//! dropped with a reason, exactly once. A call that fails gives the packet back.

use core::ops::Range;

use crate::action::{ConnectionId, HandleId};
use crate::counters::DropReason;
use crate::ib::{Qkey, Qpn};
use crate::wire::EtherType;

/// An owned packet: an mbuf chain in the kernel, a pooled buffer elsewhere.
pub trait PacketBuf: Sized {
    /// Its length in bytes.
    fn len(&self) -> usize;

    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `out.len()` bytes from `offset` on; the packet may be scattered.
    ///
    /// # Errors
    ///
    /// [`ShortPacket`] if the packet ends before that; `out` is then unspecified.
    fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), ShortPacket>;

    /// Puts `bytes` in front.
    ///
    /// # Errors
    ///
    /// [`NoHeadroom`] if there is no room and none can be made; the packet is unchanged.
    fn prepend(&mut self, bytes: &[u8]) -> Result<(), NoHeadroom>;

    /// Removes `count` bytes from the front.
    ///
    /// # Errors
    ///
    /// [`ShortPacket`] if there are fewer; the packet is unchanged.
    fn trim_front(&mut self, count: usize) -> Result<(), ShortPacket>;
}

/// The packet ends too early.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ShortPacket;

/// Nothing can be put in front of the packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoHeadroom;

/// Where packets go that do not go to the adapter.
///
/// An implementation only records: it must not call the core, the network stack or the adapter,
/// because it is called with the interface locked. The shell acts on the record after it unlocked.
pub trait PacketSink<B> {
    /// Hands a received packet, without its encapsulation header, to the network stack.
    fn deliver(&mut self, packet: B, delivery: Delivery);

    /// Ends the life of a packet. The core has counted the reason already.
    fn drop_packet(&mut self, packet: B, reason: DropReason);

    /// Ends the life of a packet that goes on as fragments; it is not a drop.
    fn release(&mut self, packet: B);

    /// Ends the life of an IP packet that is larger than `mtu` and must not be fragmented: the
    /// platform answers with one ICMP "fragmentation needed" (RFC 1191) or ICMPv6 "packet too big"
    /// (RFC 4443 3.2) that carries `mtu`, in the interface's network stack. The core has decided
    /// that an answer is due and has counted the drop.
    fn packet_too_big(&mut self, packet: B, mtu: usize);
}

/// The adapter's queues. Given only to inputs that may post work.
///
/// It never sleeps and never calls back.
pub trait DataPath<B>: PacketSink<B> {
    /// Posts a datagram send. The packet belongs to the data path until the completion with
    /// `send.id` was fed back, or until a queue pair reset was reported done.
    ///
    /// # Errors
    ///
    /// The packet, if the adapter refused it.
    fn post_send(&mut self, send: DatagramSend, packet: B) -> Result<(), B>;

    /// Posts a send on a connection. The packet belongs to the data path until the completion with
    /// `send.id` was fed back, or until the connection was reported destroyed.
    ///
    /// # Errors
    ///
    /// The packet, if the adapter refused it.
    fn post_connected_send(&mut self, send: ConnectedSend, packet: B) -> Result<(), B>;

    /// Posts one receive for connections, of the largest message that this interface receives: on
    /// the shared receive queue, or on that of one incoming connection.
    ///
    /// # Errors
    ///
    /// [`PostReceiveError`] if there is no buffer or the adapter refused it.
    fn post_connected_receive(
        &mut self,
        queue: ReceiveQueue,
        bytes: usize,
    ) -> Result<(), PostReceiveError>;

    /// Posts one receive with a buffer of the data path's own, large enough for `bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`PostReceiveError`] if there is no buffer or the adapter refused it.
    fn post_receive(&mut self, bytes: usize) -> Result<(), PostReceiveError>;

    /// A new packet of `header` followed by the bytes `payload` of `packet`: a reference to them
    /// where the platform can share, a copy where it cannot. It needs headroom for
    /// [`crate::wire::ENCAPSULATION_BYTES`].
    fn fragment(&mut self, packet: &B, header: &[u8], payload: Range<usize>) -> Option<B>;
}

/// No receive could be posted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PostReceiveError;

/// A datagram to post.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DatagramSend {
    /// Comes back with the completion.
    pub id: SendId,
    /// The address handle to use.
    pub handle: HandleId,
    /// The destination queue pair.
    pub remote_qpn: Qpn,
    /// The queue key to put into the packet.
    pub qkey: Qkey,
}

/// A message to post on a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectedSend {
    /// Comes back with the completion.
    pub id: SendId,
    /// The connection to use.
    pub connection: ConnectionId,
}

/// Where a receive for connections is posted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReceiveQueue {
    /// On the queue that all incoming connections share.
    Shared,
    /// On the queue of one.
    Of(ConnectionId),
}

/// The identity of a posted send: a slot of the send ring and that slot's generation.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SendId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl SendId {
    /// As a work request id.
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }

    /// The slot: below [`crate::limits::Limits::send_queue_len`], so that a shell can keep its own
    /// table beside it.
    pub const fn index(self) -> usize {
        self.slot as usize
    }

    /// From a work request id. Any value is legal: one that was never posted is stale.
    pub const fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// How a work request ended (IBA 11.6.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompletionStatus {
    /// It did what was asked.
    Success,
    /// It was given back because the queue pair is in the error state.
    Flushed,
    /// Anything else.
    Failed,
}

/// A packet that arrived by UD.
#[derive(Debug)]
pub struct Receive<B> {
    /// The bytes as the adapter wrote them: 40 bytes that hold a GRH if there was one, the
    /// encapsulation header, the payload (IBA 11.4.1.2).
    pub packet: B,
    /// Whether the first 40 bytes are a GRH.
    pub has_grh: bool,
    /// The sender's LID, unchecked.
    pub source_lid: u16,
    /// The sender's queue pair.
    pub source_qpn: Qpn,
}

/// A packet that arrived by a connection.
#[derive(Debug)]
pub struct ConnectedReceive<B> {
    /// The incoming connection.
    pub connection: ConnectionId,
    /// The encapsulation header and the payload: there is no room for a GRH.
    pub packet: B,
}

/// What the network stack needs to know of a received packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Delivery {
    /// The protocol of the payload.
    pub protocol: EtherType,
    /// To whom it was sent.
    pub cast: Cast,
}

/// To whom a packet was sent, by the destination GID of its GRH.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cast {
    /// To this interface.
    Unicast,
    /// To a multicast group.
    Multicast,
    /// To the broadcast group.
    Broadcast,
}
