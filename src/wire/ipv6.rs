//! The IPv6 header (RFC 8200 3), as far as the size rules look into it.

use core::net::Ipv6Addr;

use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::packet::PacketBuf;

/// The length of the fixed header.
pub const IPV6_HEADER_BYTES: usize = 40;

/// Extension headers that are followed; each kind but one occurs once at most (RFC 8200 4.1).
const EXTENSIONS_MAX: usize = 8;
const VERSION: u32 = 6;
const FRAGMENT_HEADER_BYTES: usize = 8;
/// Offset bits of a fragment header; the three low bits are reserved bits and the M flag.
const FRAGMENT_OFFSET_MASK: u16 = 0xFFF8;

/// A fixed header. Version and payload length are checked.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Ipv6Header {
    version_class_flow: U32,
    payload_bytes: U16,
    next_header: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

const_assert_eq!(size_of::<Ipv6Header>(), IPV6_HEADER_BYTES);

/// What stands behind the fixed header and its extensions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ipv6Payload {
    /// ICMPv6 with this type.
    Icmp(u8),
    /// A fragment other than the first one.
    LaterFragment,
    /// Another protocol, or a header that is not known here.
    Other,
}

impl Ipv6Header {
    /// Reads the header in front of `packet`; `None` if it is no IPv6 header or the packet is
    /// shorter than it says.
    pub fn read(packet: &impl PacketBuf) -> Option<Self> {
        let mut header = Self::new_zeroed();
        packet.copy_out(0, header.as_mut_bytes()).ok()?;
        let is_valid = header.version_class_flow.get() >> 28 == VERSION
            && header.total_bytes() <= packet.len();
        is_valid.then_some(header)
    }

    /// Whether it is version 6, with ICMPv6 right behind it.
    pub(super) fn carries_icmp(&self) -> bool {
        let is_version_6 = self.version_class_flow.get() >> 28 == VERSION;
        is_version_6 && NextHeader(self.next_header) == NextHeader::ICMP
    }

    /// The length of the packet.
    pub const fn total_bytes(&self) -> usize {
        IPV6_HEADER_BYTES.saturating_add(self.payload_bytes.get() as usize)
    }

    /// The sender.
    pub const fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.source)
    }

    /// The destination.
    pub const fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.destination)
    }

    /// What the packet carries behind its extension headers. `None` if they run beyond the packet,
    /// or there are more of them than a sane sender puts in.
    pub fn payload(&self, packet: &impl PacketBuf) -> Option<Ipv6Payload> {
        let mut kind = NextHeader(self.next_header);
        let mut offset = IPV6_HEADER_BYTES;
        for _ in 0..EXTENSIONS_MAX {
            let [next, length] = self.pair_at(packet, offset)?;
            let length = usize::from(length);
            let extension_bytes = match kind {
                // RFC 4302 2.2: an authentication header counts 4-byte words, minus 2.
                NextHeader::AUTHENTICATION => length.saturating_add(2).saturating_mul(4),
                NextHeader::DESTINATION_OPTIONS
                | NextHeader::HOP_BY_HOP_OPTIONS
                | NextHeader::ROUTING => length.saturating_add(1).saturating_mul(8),
                NextHeader::FRAGMENT => {
                    let place = self.pair_at(packet, offset.saturating_add(2))?;
                    if u16::from_be_bytes(place) & FRAGMENT_OFFSET_MASK != 0 {
                        return Some(Ipv6Payload::LaterFragment);
                    }
                    FRAGMENT_HEADER_BYTES
                }
                // The first byte of ICMPv6 is the type.
                NextHeader::ICMP => return Some(Ipv6Payload::Icmp(next)),
                // wildcard: protocol numbers, not an enum.
                _ => return Some(Ipv6Payload::Other),
            };
            kind = NextHeader(next);
            offset = offset.saturating_add(extension_bytes);
        }
        None
    }

    /// Two bytes that lie within the packet.
    fn pair_at(&self, packet: &impl PacketBuf, offset: usize) -> Option<[u8; 2]> {
        let mut pair = [0; 2];
        let is_within = offset.saturating_add(pair.len()) <= self.total_bytes();
        (is_within && packet.copy_out(offset, &mut pair).is_ok()).then_some(pair)
    }
}

/// A protocol number, as next headers carry them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct NextHeader(u8);

impl NextHeader {
    const HOP_BY_HOP_OPTIONS: Self = Self(0);
    const ROUTING: Self = Self(43);
    const FRAGMENT: Self = Self(44);
    const AUTHENTICATION: Self = Self(51);
    const ICMP: Self = Self(58);
    const DESTINATION_OPTIONS: Self = Self(60);
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;
    use crate::wire::testing::{TestPacket, config};

    /// A packet of 2001:db8::1 to 2001:db8::2 whose next header is `kind`.
    fn packet(kind: u8, payload: &[u8]) -> TestPacket {
        let mut bytes = std::vec![0x60, 0, 0, 0];
        bytes.extend(u16::try_from(payload.len()).expect("fits").to_be_bytes());
        bytes.extend([kind, 64]);
        for last in [1, 2] {
            bytes.extend([0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        bytes.extend(payload);
        TestPacket(bytes)
    }

    fn payload(kind: u8, payload: &[u8]) -> Option<Ipv6Payload> {
        let packet = packet(kind, payload);
        Ipv6Header::read(&packet).expect("a header").payload(&packet)
    }

    #[test]
    fn fields_of_a_header_are_read() {
        let header = Ipv6Header::read(&packet(17, &[0; 8])).expect("a header");
        assert_eq!(header.total_bytes(), 48);
        assert_eq!(header.source().segments(), [0x2001, 0xDB8, 0, 0, 0, 0, 0, 1]);
        assert_eq!(header.destination().segments(), [0x2001, 0xDB8, 0, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn version_is_checked_exhaustively() {
        for value in 0..=u8::MAX {
            let mut packet = packet(17, &[0; 8]);
            packet.0[0] = value;
            assert_eq!(Ipv6Header::read(&packet).is_some(), value >> 4 == 6);
        }
    }

    #[test]
    fn a_packet_shorter_than_it_says_is_none() {
        let TestPacket(bytes) = packet(17, &[0; 8]);
        for length in 0..bytes.len() {
            let short = TestPacket(bytes[..length].to_vec());
            assert_eq!(Ipv6Header::read(&short), None, "{length}");
        }
    }

    #[test]
    fn icmp_is_found_behind_every_extension() {
        let icmp = [1, 0, 0, 0];
        assert_eq!(payload(58, &icmp), Some(Ipv6Payload::Icmp(1)));
        for kind in [0, 43, 60] {
            let mut bytes = std::vec![58, 1];
            bytes.extend([0; 14]);
            bytes.extend(icmp);
            assert_eq!(payload(kind, &bytes), Some(Ipv6Payload::Icmp(1)), "{kind}");
        }
        let authentication = [58, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128, 0, 0, 0];
        assert_eq!(payload(51, &authentication), Some(Ipv6Payload::Icmp(128)));
        let first_fragment = [58, 0, 0, 1, 0, 0, 0, 0, 3, 0, 0, 0];
        assert_eq!(payload(44, &first_fragment), Some(Ipv6Payload::Icmp(3)));
    }

    #[test]
    fn a_later_fragment_is_told_from_a_first_one() {
        for bit in 0..16 {
            let [high, low] = u16::to_be_bytes(1 << bit);
            let bytes = [17, 0, high, low, 0, 0, 0, 0, 0, 0];
            let expected = if bit < 3 { Ipv6Payload::Other } else { Ipv6Payload::LaterFragment };
            assert_eq!(payload(44, &bytes), Some(expected), "bit {bit}");
        }
    }

    #[test]
    fn extensions_beyond_the_packet_or_without_end_are_none() {
        assert_eq!(payload(0, &[58, 200, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(payload(58, &[1]), None);
        assert_eq!(payload(60, &[60; 2048]), None);
        let endless = [60, 0, 0, 0, 0, 0, 0, 0].repeat(EXTENSIONS_MAX + 1);
        assert_eq!(payload(60, &endless), None);
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn any_extension_bytes_end_in_an_answer(kind: u8, bytes: Vec<u8>) {
            let found = payload(kind, &bytes);
            if matches!(found, Some(Ipv6Payload::Icmp(_))) {
                prop_assert!(kind == 58 || bytes.contains(&58));
            }
        }
    }
}
