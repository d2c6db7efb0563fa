//! REP (IBA 12.6.8).

use core::mem::offset_of;

use ipoib_rs::ib::Qpn;
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CM_DATA_BYTES, CommId, Psn, RetryCount, TimeoutCode, pack_24_8, unpack_24_8};

/// The length of the private data.
pub const REPLY_PRIVATE_BYTES: usize = 196;

/// What a REP says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reply {
    /// The sender's name of the connection.
    pub comm_id: CommId,
    /// The receiver's name of it.
    pub remote_comm_id: CommId,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The first PSN that the sender's queue pair sends.
    pub starting_psn: Psn,
    /// How many RDMA reads and atomics the sender takes at a time.
    pub responder_resources: u8,
    /// How many the sender will have under way.
    pub initiator_depth: u8,
    /// How long the sender's adapter may take to acknowledge.
    pub target_ack_delay: TimeoutCode,
    /// Whether an alternate path was asked for and not taken.
    pub is_alternate_refused: bool,
    /// Whether the sender supports end-to-end flow control.
    pub has_flow_control: bool,
    /// How often the receiver's queue pair may send again after a receiver-not-ready.
    pub rnr_retry_count: RetryCount,
    /// Whether the sender's queue pair takes its receives from a shared queue.
    pub has_shared_receive_queue: bool,
    /// The GUID of the sender's adapter.
    pub ca_guid: u64,
    /// What the consumer says.
    pub private_data: [u8; REPLY_PRIVATE_BYTES],
}

/// A REP as it stands in a MAD.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct ReplyWire {
    /// Local Communication ID.
    pub local_comm_id: U32,
    /// Remote Communication ID.
    pub remote_comm_id: U32,
    /// Local Q_Key.
    pub qkey: U32,
    /// Local QPN (24 bits), reserved (8).
    pub qpn: U32,
    /// Local EECN (24 bits), reserved (8).
    pub eecn: U32,
    /// Starting PSN (24 bits), reserved (8).
    pub psn: U32,
    /// Responder Resources.
    pub responder_resources: u8,
    /// Initiator Depth.
    pub initiator_depth: u8,
    /// Target ACK Delay (5 bits), Failover Accepted (2), End-to-End Flow Control (1).
    pub delay_failover: u8,
    /// RNR Retry Count (3 bits), SRQ (1), reserved (4).
    pub rnr_srq: u8,
    /// Local CA GUID.
    pub ca_guid: U64,
    /// PrivateData.
    pub private_data: [u8; REPLY_PRIVATE_BYTES],
}

const_assert_eq!(size_of::<ReplyWire>(), CM_DATA_BYTES);
const_assert_eq!(offset_of!(ReplyWire, remote_comm_id), 4);
const_assert_eq!(offset_of!(ReplyWire, qkey), 8);
const_assert_eq!(offset_of!(ReplyWire, qpn), 12);
const_assert_eq!(offset_of!(ReplyWire, eecn), 16);
const_assert_eq!(offset_of!(ReplyWire, psn), 20);
const_assert_eq!(offset_of!(ReplyWire, responder_resources), 24);
const_assert_eq!(offset_of!(ReplyWire, initiator_depth), 25);
const_assert_eq!(offset_of!(ReplyWire, delay_failover), 26);
const_assert_eq!(offset_of!(ReplyWire, rnr_srq), 27);
const_assert_eq!(offset_of!(ReplyWire, ca_guid), 28);
const_assert_eq!(offset_of!(ReplyWire, private_data), 36);

impl ReplyWire {
    const FLOW_CONTROL: u8 = 1 << 0;
    /// Failover Accepted: "failover is not supported".
    const FAILOVER_UNSUPPORTED: u8 = 1 << 1;
    const FAILOVER: u8 = 0b11 << 1;
    const SHARED_RECEIVE_QUEUE: u8 = 1 << 4;

    /// The reply as bytes.
    pub fn new(reply: &Reply) -> Self {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        Self {
            local_comm_id: U32::new(reply.comm_id.0),
            remote_comm_id: U32::new(reply.remote_comm_id.0),
            qpn: pack_24_8(reply.qpn.value(), 0),
            psn: pack_24_8(reply.starting_psn.value(), 0),
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            delay_failover: reply.target_ack_delay.high_bits()
                | flag(reply.is_alternate_refused, Self::FAILOVER_UNSUPPORTED)
                | flag(reply.has_flow_control, Self::FLOW_CONTROL),
            rnr_srq: reply.rnr_retry_count.high_bits()
                | flag(reply.has_shared_receive_queue, Self::SHARED_RECEIVE_QUEUE),
            ca_guid: U64::new(reply.ca_guid),
            private_data: reply.private_data,
            ..Self::new_zeroed()
        }
    }

    /// What the reply says.
    pub fn reply(&self) -> Reply {
        let [a, b, c, _] = self.qpn.to_bytes();
        let (psn, _) = unpack_24_8(self.psn);
        Reply {
            comm_id: CommId(self.local_comm_id.get()),
            remote_comm_id: CommId(self.remote_comm_id.get()),
            qpn: Qpn::from_bytes([a, b, c]),
            starting_psn: Psn::from_random(psn.into()),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            target_ack_delay: TimeoutCode::from_high_bits(self.delay_failover),
            is_alternate_refused: self.delay_failover & Self::FAILOVER != 0,
            has_flow_control: self.delay_failover & Self::FLOW_CONTROL != 0,
            rnr_retry_count: RetryCount::from_high_bits(self.rnr_srq),
            has_shared_receive_queue: self.rnr_srq & Self::SHARED_RECEIVE_QUEUE != 0,
            ca_guid: self.ca_guid.get(),
            private_data: self.private_data,
        }
    }
}
