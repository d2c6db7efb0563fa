//! A path in a REQ (IBA 12.6.5).

use core::mem::offset_of;

use ipoib_rs::ib::{FlowLabel, Gid, Lid, RateCode, ServiceLevel};
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{RejectReason, TimeoutCode};

/// The length of a path.
pub const CM_PATH_BYTES: usize = 44;

/// A path between two ports, as the sender of the REQ sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CmPath {
    /// The LID of the sender's port.
    pub local_lid: Lid,
    /// The LID of the receiver's port.
    pub remote_lid: Lid,
    /// The GID of the sender's port.
    pub local_gid: Gid,
    /// The GID of the receiver's port.
    pub remote_gid: Gid,
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Packet rate.
    pub rate: RateCode,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: ServiceLevel,
    /// Whether both ports are in one subnet.
    pub is_subnet_local: bool,
    /// How long the sender's queue pair waits for an acknowledgement.
    pub ack_timeout: TimeoutCode,
}

/// A path as it stands in a REQ.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct CmPathWire {
    /// Local Port LID.
    pub local_lid: U16,
    /// Remote Port LID.
    pub remote_lid: U16,
    /// Local Port GID.
    pub local_gid: Gid,
    /// Remote Port GID.
    pub remote_gid: Gid,
    /// Flow Label (20 bits), reserved (6), Packet Rate (6).
    pub flow_rate: U32,
    /// Traffic Class.
    pub traffic_class: u8,
    /// Hop Limit.
    pub hop_limit: u8,
    /// SL (4 bits), Subnet Local (1), reserved (3).
    pub level_local: u8,
    /// Local ACK Timeout (5 bits), reserved (3).
    pub ack_timeout: u8,
}

const_assert_eq!(size_of::<CmPathWire>(), CM_PATH_BYTES);
const_assert_eq!(offset_of!(CmPathWire, remote_lid), 2);
const_assert_eq!(offset_of!(CmPathWire, local_gid), 4);
const_assert_eq!(offset_of!(CmPathWire, remote_gid), 20);
const_assert_eq!(offset_of!(CmPathWire, flow_rate), 36);
const_assert_eq!(offset_of!(CmPathWire, traffic_class), 40);
const_assert_eq!(offset_of!(CmPathWire, hop_limit), 41);
const_assert_eq!(offset_of!(CmPathWire, level_local), 42);
const_assert_eq!(offset_of!(CmPathWire, ack_timeout), 43);

impl CmPathWire {
    const SUBNET_LOCAL: u8 = 1 << 3;

    /// The path as bytes.
    pub const fn new(path: &CmPath) -> Self {
        let local = if path.is_subnet_local { Self::SUBNET_LOCAL } else { 0 };
        Self {
            local_lid: U16::new(path.local_lid.value()),
            remote_lid: U16::new(path.remote_lid.value()),
            local_gid: path.local_gid,
            remote_gid: path.remote_gid,
            flow_rate: U32::new(path.flow_label.value() << 12 | path.rate.code() as u32),
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            level_local: path.sl.value() << 4 | local,
            ack_timeout: path.ack_timeout.high_bits(),
        }
    }

    /// The path.
    ///
    /// # Errors
    ///
    /// The reason to reject the REQ with.
    pub fn path(&self) -> Result<CmPath, RejectReason> {
        let [.., rate] = self.flow_rate.to_bytes();
        Ok(CmPath {
            local_lid: Lid::new(self.local_lid.get()).ok_or(RejectReason::InvalidLid)?,
            remote_lid: Lid::new(self.remote_lid.get()).ok_or(RejectReason::InvalidLid)?,
            local_gid: self.local_gid,
            remote_gid: self.remote_gid,
            flow_label: FlowLabel::new(self.flow_rate.get() >> 12)
                .ok_or(RejectReason::InvalidFlowLabel)?,
            rate: RateCode::new(rate & 0x3F).ok_or(RejectReason::InvalidPacketRate)?,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: ServiceLevel::new(self.level_local >> 4)
                .ok_or(RejectReason::InvalidServiceLevel)?,
            is_subnet_local: self.level_local & Self::SUBNET_LOCAL != 0,
            ack_timeout: TimeoutCode::from_high_bits(self.ack_timeout),
        })
    }
}
