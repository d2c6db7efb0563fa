//! MRA, REJ, RTU, DREQ and DREP (IBA 12.6.6, 12.6.7, 12.6.9 to 12.6.11).

use core::mem::offset_of;

use ipoib_rs::ib::Qpn;
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CM_DATA_BYTES, CommId, MessageKind, RejectReason, TimeoutCode, pack_24_8};

/// The length of the additional rejection information of a REJ.
pub const ADDITIONAL_BYTES: usize = 72;
/// The length of the private data of a REJ.
pub const REJECT_PRIVATE_BYTES: usize = 148;

/// The names of a connection, as the sender of a message sees them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CommIds {
    /// The sender's.
    pub local: CommId,
    /// The receiver's.
    pub remote: CommId,
}

/// A MRA as it stands in a MAD.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct MraWire {
    /// Local Communication ID.
    pub local_comm_id: U32,
    /// Remote Communication ID.
    pub remote_comm_id: U32,
    /// Message MRAed (2 bits), reserved (6).
    pub message: u8,
    /// Service Timeout (5 bits), reserved (3).
    pub service_timeout: u8,
    /// PrivateData.
    pub private_data: [u8; 222],
}

const_assert_eq!(size_of::<MraWire>(), CM_DATA_BYTES);
const_assert_eq!(offset_of!(MraWire, message), 8);
const_assert_eq!(offset_of!(MraWire, service_timeout), 9);
const_assert_eq!(offset_of!(MraWire, private_data), 10);

impl MraWire {
    /// Asks for more time to answer a message.
    pub fn new(ids: CommIds, message: MessageKind, service_timeout: TimeoutCode) -> Self {
        Self {
            local_comm_id: U32::new(ids.local.0),
            remote_comm_id: U32::new(ids.remote.0),
            message: message.high_bits(),
            service_timeout: service_timeout.high_bits(),
            ..Self::new_zeroed()
        }
    }

    /// The names of the connection.
    pub const fn comm_ids(&self) -> CommIds {
        comm_ids(self.local_comm_id, self.remote_comm_id)
    }

    /// Which message is going to be answered later; `None` for the reserved value.
    pub const fn message(&self) -> Option<MessageKind> {
        MessageKind::from_high_bits(self.message)
    }

    /// How much time that will take.
    pub const fn service_timeout(&self) -> TimeoutCode {
        TimeoutCode::from_high_bits(self.service_timeout)
    }
}

/// A REJ as it stands in a MAD.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct RejectWire {
    /// Local Communication ID; zero if the rejected message got none.
    pub local_comm_id: U32,
    /// Remote Communication ID; zero if the rejecter does not know it.
    pub remote_comm_id: U32,
    /// Message REJected (2 bits), reserved (6).
    pub message: u8,
    /// Reject Info Length (7 bits), reserved (1).
    pub info_len: u8,
    /// Reason.
    pub reason: U16,
    /// Additional Reject Information.
    pub info: [u8; ADDITIONAL_BYTES],
    /// PrivateData.
    pub private_data: [u8; REJECT_PRIVATE_BYTES],
}

const_assert_eq!(size_of::<RejectWire>(), CM_DATA_BYTES);
const_assert_eq!(offset_of!(RejectWire, message), 8);
const_assert_eq!(offset_of!(RejectWire, info_len), 9);
const_assert_eq!(offset_of!(RejectWire, reason), 10);
const_assert_eq!(offset_of!(RejectWire, info), 12);
const_assert_eq!(offset_of!(RejectWire, private_data), 84);

impl RejectWire {
    /// A rejection without additional information.
    pub fn new(ids: CommIds, message: MessageKind, reason: RejectReason) -> Self {
        Self {
            local_comm_id: U32::new(ids.local.0),
            remote_comm_id: U32::new(ids.remote.0),
            message: message.high_bits(),
            reason: U16::new(reason.code()),
            ..Self::new_zeroed()
        }
    }

    /// With the GUID of the sender's adapter as additional information: what IBA 12.6.7.2 demands
    /// with [`RejectReason::Timeout`], because the receiver may know the connection by nothing
    /// else.
    pub fn with_ca_guid(mut self, ca_guid: u64) -> Self {
        let guid = ca_guid.to_be_bytes();
        // CAST: 8 bytes.
        self.info_len = (guid.len() as u8) << 1;
        self.info[..guid.len()].copy_from_slice(&guid);
        self
    }

    /// The names of the connection.
    pub const fn comm_ids(&self) -> CommIds {
        comm_ids(self.local_comm_id, self.remote_comm_id)
    }

    /// Which message was rejected; `None` for the reserved value.
    pub const fn message(&self) -> Option<MessageKind> {
        MessageKind::from_high_bits(self.message)
    }

    /// The reason; `None` for a reserved code.
    pub const fn reason(&self) -> Option<RejectReason> {
        RejectReason::from_code(self.reason.get())
    }

    /// The additional information, as much of it as is said to be there and can be.
    pub fn info(&self) -> &[u8] {
        let len = usize::from(self.info_len >> 1).min(ADDITIONAL_BYTES);
        self.info.get(..len).unwrap_or_default()
    }

    /// The GUID of the sender's adapter, if the additional information holds one.
    pub fn ca_guid(&self) -> Option<u64> {
        self.info().first_chunk().map(|guid| u64::from_be_bytes(*guid))
    }
}

/// A RTU as it stands in a MAD.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct ReadyToUseWire {
    /// Local Communication ID.
    pub local_comm_id: U32,
    /// Remote Communication ID.
    pub remote_comm_id: U32,
    /// PrivateData.
    pub private_data: [u8; 224],
}

const_assert_eq!(size_of::<ReadyToUseWire>(), CM_DATA_BYTES);
const_assert_eq!(offset_of!(ReadyToUseWire, private_data), 8);

impl ReadyToUseWire {
    /// Without private data.
    pub fn new(ids: CommIds) -> Self {
        Self {
            local_comm_id: U32::new(ids.local.0),
            remote_comm_id: U32::new(ids.remote.0),
            ..Self::new_zeroed()
        }
    }

    /// The names of the connection.
    pub const fn comm_ids(&self) -> CommIds {
        comm_ids(self.local_comm_id, self.remote_comm_id)
    }
}

/// A DREQ as it stands in a MAD.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct DisconnectRequestWire {
    /// Local Communication ID.
    pub local_comm_id: U32,
    /// Remote Communication ID.
    pub remote_comm_id: U32,
    /// Remote QPN/EECN (24 bits), reserved (8).
    pub remote_qpn: U32,
    /// PrivateData.
    pub private_data: [u8; 220],
}

const_assert_eq!(size_of::<DisconnectRequestWire>(), CM_DATA_BYTES);
const_assert_eq!(offset_of!(DisconnectRequestWire, remote_qpn), 8);
const_assert_eq!(offset_of!(DisconnectRequestWire, private_data), 12);

impl DisconnectRequestWire {
    /// Without private data. `remote_qpn` is the queue pair of the receiver.
    pub fn new(ids: CommIds, remote_qpn: Qpn) -> Self {
        Self {
            local_comm_id: U32::new(ids.local.0),
            remote_comm_id: U32::new(ids.remote.0),
            remote_qpn: pack_24_8(remote_qpn.value(), 0),
            ..Self::new_zeroed()
        }
    }

    /// The names of the connection.
    pub const fn comm_ids(&self) -> CommIds {
        comm_ids(self.local_comm_id, self.remote_comm_id)
    }

    /// The queue pair of the receiver.
    pub const fn remote_qpn(&self) -> Qpn {
        let [a, b, c, _] = self.remote_qpn.to_bytes();
        Qpn::from_bytes([a, b, c])
    }
}

/// A DREP as it stands in a MAD.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct DisconnectReplyWire {
    /// Local Communication ID.
    pub local_comm_id: U32,
    /// Remote Communication ID.
    pub remote_comm_id: U32,
    /// PrivateData.
    pub private_data: [u8; 224],
}

const_assert_eq!(size_of::<DisconnectReplyWire>(), CM_DATA_BYTES);
const_assert_eq!(offset_of!(DisconnectReplyWire, private_data), 8);

impl DisconnectReplyWire {
    /// Without private data.
    pub fn new(ids: CommIds) -> Self {
        Self {
            local_comm_id: U32::new(ids.local.0),
            remote_comm_id: U32::new(ids.remote.0),
            ..Self::new_zeroed()
        }
    }

    /// The names of the connection.
    pub const fn comm_ids(&self) -> CommIds {
        comm_ids(self.local_comm_id, self.remote_comm_id)
    }
}

const fn comm_ids(local: U32, remote: U32) -> CommIds {
    CommIds { local: CommId(local.get()), remote: CommId(remote.get()) }
}
