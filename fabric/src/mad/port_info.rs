//! ClassPortInfo (IBA 13.4.8.1) with the capability bits of the SA (IBA 15.2.4).

use core::mem::offset_of;

use bitflags::bitflags;
use ipoib_rs::action::SaCapabilities;
use ipoib_rs::ib::Gid;
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BASE_VERSION, SA_CLASS_VERSION};

/// The length of a ClassPortInfo.
pub const CLASS_PORT_INFO_BYTES: usize = 72;

bitflags! {
    /// CapabilityMask of the SA. Bits that are not named may be set, too.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct SaCapabilityMask: u16 {
        /// IsUDMulticastSupported.
        const UD_MULTICAST = 1 << 9;
        const _ = !0;
    }
}

bitflags! {
    /// CapabilityMask2 of the SA, 27 bits. Bits that are not named may be set, too.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct SaCapabilityMask2: u32 {
        /// IsSendOnlyFullMemberSupported.
        const SEND_ONLY_FULL_MEMBER = 1 << 12;
        const _ = (1 << 27) - 1;
    }
}

/// A ClassPortInfo as it stands in a MAD.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct ClassPortInfo {
    /// BaseVersion.
    pub base_version: u8,
    /// ClassVersion.
    pub class_version: u8,
    /// CapabilityMask.
    pub capability_mask: U16,
    /// CapabilityMask2 (27 bits), RespTimeValue (5).
    pub mask2_response_time: U32,
    /// RedirectGID.
    pub redirect_gid: Gid,
    /// RedirectTC (8 bits), RedirectSL (4), RedirectFL (20).
    pub redirect_class_level_flow: U32,
    /// RedirectLID.
    pub redirect_lid: U16,
    /// RedirectP_Key.
    pub redirect_pkey: U16,
    /// Reserved (8 bits), RedirectQP (24).
    pub redirect_qpn: U32,
    /// RedirectQ_Key.
    pub redirect_qkey: U32,
    /// TrapGID.
    pub trap_gid: Gid,
    /// TrapTC (8 bits), TrapSL (4), TrapFL (20).
    pub trap_class_level_flow: U32,
    /// TrapLID.
    pub trap_lid: U16,
    /// TrapP_Key.
    pub trap_pkey: U16,
    /// TrapHL (8 bits), TrapQP (24).
    pub trap_hop_qpn: U32,
    /// TrapQ_Key.
    pub trap_qkey: U32,
}

const_assert_eq!(size_of::<ClassPortInfo>(), CLASS_PORT_INFO_BYTES);
const_assert_eq!(offset_of!(ClassPortInfo, capability_mask), 2);
const_assert_eq!(offset_of!(ClassPortInfo, mask2_response_time), 4);
const_assert_eq!(offset_of!(ClassPortInfo, redirect_gid), 8);
const_assert_eq!(offset_of!(ClassPortInfo, redirect_class_level_flow), 24);
const_assert_eq!(offset_of!(ClassPortInfo, redirect_lid), 28);
const_assert_eq!(offset_of!(ClassPortInfo, redirect_pkey), 30);
const_assert_eq!(offset_of!(ClassPortInfo, redirect_qpn), 32);
const_assert_eq!(offset_of!(ClassPortInfo, redirect_qkey), 36);
const_assert_eq!(offset_of!(ClassPortInfo, trap_gid), 40);
const_assert_eq!(offset_of!(ClassPortInfo, trap_class_level_flow), 56);
const_assert_eq!(offset_of!(ClassPortInfo, trap_lid), 60);
const_assert_eq!(offset_of!(ClassPortInfo, trap_pkey), 62);
const_assert_eq!(offset_of!(ClassPortInfo, trap_hop_qpn), 64);
const_assert_eq!(offset_of!(ClassPortInfo, trap_qkey), 68);

impl ClassPortInfo {
    /// What an SA of these capabilities says of itself. `response_time` is the exponent of
    /// RespTimeValue, 5 bits: 4.096 µs times two to its power.
    pub fn answer(capabilities: SaCapabilities, response_time: u8) -> Self {
        let mask2 = if capabilities.send_only_full_member {
            SaCapabilityMask2::SEND_ONLY_FULL_MEMBER
        } else {
            SaCapabilityMask2::empty()
        };
        Self {
            base_version: BASE_VERSION,
            class_version: SA_CLASS_VERSION,
            capability_mask: U16::new(SaCapabilityMask::UD_MULTICAST.bits()),
            mask2_response_time: U32::new((mask2.bits() << 5) | u32::from(response_time & 0x1F)),
            ..Self::new_zeroed()
        }
    }

    /// What the core needs of an answer.
    pub fn capabilities(&self) -> SaCapabilities {
        let mask2 = SaCapabilityMask2::from_bits_truncate(self.mask2_response_time.get() >> 5);
        SaCapabilities {
            send_only_full_member: mask2.contains(SaCapabilityMask2::SEND_ONLY_FULL_MEMBER),
        }
    }
}
