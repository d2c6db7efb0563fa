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
        Self { protocol: U16::new(protocol.0), reserved: U16::ZERO }
    }

    /// From bytes of exactly the right length, whatever the reserved field holds.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok()
    }

    /// The protocol of the payload.
    pub const fn protocol(&self) -> EtherType {
        EtherType(self.protocol.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_4_bytes_are_a_header() {
        let bytes = [0x08, 0x00, 0, 0, 0x45];
        for length in 0..=bytes.len() {
            let parsed = Encapsulation::from_bytes(&bytes[..length]);
            assert_eq!(parsed.is_some(), length == ENCAPSULATION_BYTES, "{length}");
        }
    }

    #[test]
    fn every_protocol_survives_the_round_trip_with_reserved_bits_zero() {
        for protocol in 0..=u16::MAX {
            let header = Encapsulation::new(EtherType(protocol));
            let [high, low] = protocol.to_be_bytes();
            assert_eq!(header.as_bytes(), [high, low, 0, 0]);
            assert_eq!(Encapsulation::from_bytes(header.as_bytes()), Some(header));
            assert_eq!(header.protocol(), EtherType(protocol));
        }
    }

    #[test]
    fn reserved_field_is_ignored_on_reception() {
        for reserved in 0..=u16::MAX {
            let [high, low] = reserved.to_be_bytes();
            let parsed = Encapsulation::from_bytes(&[0x86, 0xDD, high, low]).expect("4 bytes");
            assert_eq!(parsed.protocol(), EtherType::IPV6);
        }
    }
}
