//! The global route header (IBA 8.3).

use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ib::Gid;

/// The length of a GRH, and of the room that a UD receive keeps for one.
pub const GRH_BYTES: usize = 40;

/// A global route header.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Grh {
    /// IPVer (6), TClass, FlowLabel.
    pub version_class_flow: U32,
    /// From the end of the GRH up to and including the ICRC's predecessor.
    pub payload_bytes: U16,
    /// `0x1B`: an IBA transport header follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// The sender's port.
    pub source: Gid,
    /// The destination port or group.
    pub destination: Gid,
}

const_assert_eq!(size_of::<Grh>(), GRH_BYTES);
