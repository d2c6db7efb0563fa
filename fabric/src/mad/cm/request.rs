//! REQ (IBA 12.6.5).

use core::mem::offset_of;

use ipoib_rs::ib::{IbMtu, Pkey, Qpn};
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    CM_DATA_BYTES, CmPath, CmPathWire, CmRetries, CommId, Psn, RejectReason, RetryCount, ServiceId,
    TimeoutCode, pack_24_8, unpack_24_8,
};

/// The length of the private data.
pub const REQUEST_PRIVATE_BYTES: usize = 92;

/// What a REQ says, as far as it concerns a reliable connection without an alternate path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// The sender's name of the connection.
    pub comm_id: CommId,
    /// The service that is asked for.
    pub service: ServiceId,
    /// The GUID of the sender's adapter.
    pub ca_guid: u64,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// How many RDMA reads and atomics the sender takes at a time.
    pub responder_resources: u8,
    /// How many the sender will have under way.
    pub initiator_depth: u8,
    /// How long the receiver may take to answer.
    pub remote_response_timeout: TimeoutCode,
    /// How long the sender takes to answer.
    pub local_response_timeout: TimeoutCode,
    /// Whether the sender supports end-to-end flow control.
    pub has_flow_control: bool,
    /// The first PSN that the sender's queue pair sends.
    pub starting_psn: Psn,
    /// How often the receiver's queue pair may send again without an acknowledgement.
    pub retry_count: RetryCount,
    /// How often the receiver's queue pair may send again after a receiver-not-ready.
    pub rnr_retry_count: RetryCount,
    /// The partition.
    pub pkey: Pkey,
    /// The path MTU.
    pub mtu: IbMtu,
    /// How often either side sends a message again without an answer.
    pub max_cm_retries: CmRetries,
    /// Whether the sender's queue pair takes its receives from a shared queue.
    pub has_shared_receive_queue: bool,
    /// The path.
    pub path: CmPath,
    /// What the consumer says.
    pub private_data: [u8; REQUEST_PRIVATE_BYTES],
}

/// A REQ as it stands in a MAD.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct RequestWire {
    /// Local Communication ID.
    pub local_comm_id: U32,
    /// Reserved.
    pub reserved: U32,
    /// ServiceID.
    pub service: U64,
    /// Local CA GUID.
    pub ca_guid: U64,
    /// Reserved.
    pub reserved_2: U32,
    /// Local Q_Key.
    pub qkey: U32,
    /// Local QPN (24 bits), Responder Resources (8).
    pub qpn_resources: U32,
    /// Local EECN (24 bits), Initiator Depth (8).
    pub eecn_depth: U32,
    /// Remote EECN (24 bits), Remote CM Response Timeout (5), Transport Service Type (2),
    /// End-to-End Flow Control (1).
    pub eecn_timeout_transport: U32,
    /// Starting PSN (24 bits), Local CM Response Timeout (5), Retry Count (3).
    pub psn_timeout_retries: U32,
    /// Partition Key.
    pub pkey: U16,
    /// Path Packet Payload MTU (4 bits), RDC Exists (1), RNR Retry Count (3).
    pub mtu_rnr: u8,
    /// Max CM Retries (4 bits), SRQ (1), Extended Transport Type (3).
    pub retries_srq: u8,
    /// The primary path.
    pub primary: CmPathWire,
    /// The alternate path; all zero if there is none.
    pub alternate: CmPathWire,
    /// PrivateData.
    pub private_data: [u8; REQUEST_PRIVATE_BYTES],
}

const_assert_eq!(size_of::<RequestWire>(), CM_DATA_BYTES);
const_assert_eq!(offset_of!(RequestWire, service), 8);
const_assert_eq!(offset_of!(RequestWire, ca_guid), 16);
const_assert_eq!(offset_of!(RequestWire, qkey), 28);
const_assert_eq!(offset_of!(RequestWire, qpn_resources), 32);
const_assert_eq!(offset_of!(RequestWire, eecn_depth), 36);
const_assert_eq!(offset_of!(RequestWire, eecn_timeout_transport), 40);
const_assert_eq!(offset_of!(RequestWire, psn_timeout_retries), 44);
const_assert_eq!(offset_of!(RequestWire, pkey), 48);
const_assert_eq!(offset_of!(RequestWire, mtu_rnr), 50);
const_assert_eq!(offset_of!(RequestWire, retries_srq), 51);
const_assert_eq!(offset_of!(RequestWire, primary), 52);
const_assert_eq!(offset_of!(RequestWire, alternate), 96);
const_assert_eq!(offset_of!(RequestWire, private_data), 140);

impl RequestWire {
    /// Transport Service Type: reliable connection.
    const TRANSPORT_RC: u8 = 0;
    const FLOW_CONTROL: u8 = 1 << 0;
    const SHARED_RECEIVE_QUEUE: u8 = 1 << 3;

    /// The request as bytes.
    pub fn new(request: &Request) -> Self {
        let flow_control = if request.has_flow_control { Self::FLOW_CONTROL } else { 0 };
        let shared = if request.has_shared_receive_queue { Self::SHARED_RECEIVE_QUEUE } else { 0 };
        let transport = Self::TRANSPORT_RC << 1 | flow_control;
        Self {
            local_comm_id: U32::new(request.comm_id.0),
            service: U64::new(request.service.0),
            ca_guid: U64::new(request.ca_guid),
            qpn_resources: pack_24_8(request.qpn.value(), request.responder_resources),
            eecn_depth: pack_24_8(0, request.initiator_depth),
            eecn_timeout_transport: pack_24_8(
                0,
                request.remote_response_timeout.high_bits() | transport,
            ),
            psn_timeout_retries: pack_24_8(
                request.starting_psn.value(),
                request.local_response_timeout.high_bits() | request.retry_count.value(),
            ),
            pkey: U16::new(request.pkey.value()),
            mtu_rnr: request.mtu.code() << 4 | request.rnr_retry_count.value(),
            retries_srq: request.max_cm_retries.high_bits() | shared,
            primary: CmPathWire::new(&request.path),
            private_data: request.private_data,
            ..Self::new_zeroed()
        }
    }

    /// What the request says.
    ///
    /// # Errors
    ///
    /// The reason to reject it with.
    pub fn request(&self) -> Result<Request, RejectReason> {
        let (_, timeout_transport) = unpack_24_8(self.eecn_timeout_transport);
        if (timeout_transport >> 1) & 0b11 != Self::TRANSPORT_RC {
            return Err(RejectReason::InvalidTransport);
        }
        let (_, responder_resources) = unpack_24_8(self.qpn_resources);
        let (_, initiator_depth) = unpack_24_8(self.eecn_depth);
        let (psn, timeout_retries) = unpack_24_8(self.psn_timeout_retries);
        Ok(Request {
            comm_id: self.comm_id(),
            service: ServiceId(self.service.get()),
            ca_guid: self.ca_guid.get(),
            qpn: self.qpn(),
            responder_resources,
            initiator_depth,
            remote_response_timeout: TimeoutCode::from_high_bits(timeout_transport),
            local_response_timeout: TimeoutCode::from_high_bits(timeout_retries),
            has_flow_control: timeout_transport & Self::FLOW_CONTROL != 0,
            starting_psn: Psn::from_random(psn.into()),
            retry_count: RetryCount::from_low_bits(timeout_retries),
            rnr_retry_count: RetryCount::from_low_bits(self.mtu_rnr),
            // No reason speaks of the P_Key.
            pkey: Pkey::new(self.pkey.get()).ok_or(RejectReason::UnsupportedRequest)?,
            mtu: IbMtu::from_code(self.mtu_rnr >> 4).ok_or(RejectReason::InvalidMtu)?,
            max_cm_retries: CmRetries::from_high_bits(self.retries_srq),
            has_shared_receive_queue: self.retries_srq & Self::SHARED_RECEIVE_QUEUE != 0,
            path: self.primary.path()?,
            private_data: self.private_data,
        })
    }

    /// Local Communication ID.
    pub const fn comm_id(&self) -> CommId {
        CommId(self.local_comm_id.get())
    }

    /// Local QPN.
    pub const fn qpn(&self) -> Qpn {
        let [a, b, c, _] = self.qpn_resources.to_bytes();
        Qpn::from_bytes([a, b, c])
    }

    /// Whether the sender asks for an alternate path (IBA 12.7.21: its LID is zero if not).
    pub const fn has_alternate(&self) -> bool {
        self.alternate.local_lid.get() != 0
    }
}
