//! The 4-byte encapsulation header (RFC 4391 6).

use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The length of the encapsulation header.
pub const ENCAPSULATION_BYTES: usize = 4;

/// A protocol number of the encapsulation header.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// RARP.
    pub const RARP: Self = Self(0x8035);
    /// IPv6.
    pub const IPV6: Self = Self(0x86DD);
}

/// The header in front of every payload.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Encapsulation {
    protocol: U16,
    /// RFC 4391 6: "The 'Reserved' field MUST be set to zero and ignored on reception".
    reserved: U16,
}

const_assert_eq!(size_of::<Encapsulation>(), ENCAPSULATION_BYTES);

impl Encapsulation {
    /// The header for `protocol`.
    pub const fn new(protocol: EtherType) -> Self {
        Self {
            protocol: U16::new(protocol.0),
            reserved: U16::ZERO,
        }
    }

    /// The protocol of the payload.
    pub const fn protocol(&self) -> EtherType {
        EtherType(self.protocol.get())
    }
}
