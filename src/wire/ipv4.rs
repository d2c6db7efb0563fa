//! The IPv4 header (RFC 791 3.1), as far as the size rules look into it.

use core::net::Ipv4Addr;

use bitflags::bitflags;
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::internet_checksum;
use crate::packet::PacketBuf;

/// The length of a header without options.
pub const IPV4_HEADER_BYTES_MIN: usize = 20;
/// The length of the longest header: IHL is 4 bits of 4-byte words.
pub const IPV4_HEADER_BYTES_MAX: usize = 60;
/// The room for options.
pub(crate) const IPV4_OPTIONS_BYTES_MAX: usize = IPV4_HEADER_BYTES_MAX - IPV4_HEADER_BYTES_MIN;
/// Fragment offsets count in units of this many bytes (RFC 791 3.1).
pub(crate) const FRAGMENT_UNIT_BYTES: usize = 8;

const VERSION: u8 = 4;
const PROTOCOL_ICMP: u8 = 1;
const OFFSET_MASK: u16 = 0x1FFF;

bitflags! {
    /// The bits in front of the fragment offset. The first one is "reserved, must be zero" (RFC 791
    /// 3.1): whatever it is, it stays as it came.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub(crate) struct Ipv4Flags: u16 {
        const RESERVED = 0x8000;
        const DONT_FRAGMENT = 0x4000;
        const MORE_FRAGMENTS = 0x2000;
    }
}

/// A header with its options. Version, header length, total length and fragment offset are checked.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Ipv4Header {
    version_ihl: u8,
    service: u8,
    total_bytes: U16,
    identification: U16,
    flags_offset: U16,
    time_to_live: u8,
    protocol: u8,
    checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
    /// Zero from the end of the header on.
    options: [u8; IPV4_OPTIONS_BYTES_MAX],
}

const_assert_eq!(size_of::<Ipv4Header>(), IPV4_HEADER_BYTES_MAX);

impl Ipv4Header {
    /// Reads the header in front of `packet`.
    ///
    /// `None` if it is no IPv4 header, if the packet is shorter than it says, if data of the
    /// fragment would lie beyond 65535 bytes, or if a fragment that is not the last one does
    /// not end on a multiple of 8 (RFC 791 3.2). The checksum is not checked: an adapter may
    /// still have to fill it.
    pub fn read(packet: &impl PacketBuf) -> Option<Self> {
        let mut header = Self::new_zeroed();
        let fixed = header.as_mut_bytes().get_mut(..IPV4_HEADER_BYTES_MIN)?;
        packet.copy_out(0, fixed).ok()?;
        let options_bytes = header.header_bytes().checked_sub(IPV4_HEADER_BYTES_MIN)?;
        let options = header.options.get_mut(..options_bytes)?;
        packet.copy_out(IPV4_HEADER_BYTES_MIN, options).ok()?;
        (header.total_bytes() <= packet.len() && header.is_consistent()).then_some(header)
    }

    fn is_consistent(&self) -> bool {
        let Some(payload_bytes) = self.total_bytes().checked_sub(self.header_bytes()) else {
            return false;
        };
        let end = self.offset_bytes().saturating_add(payload_bytes);
        let is_whole_units = payload_bytes.is_multiple_of(FRAGMENT_UNIT_BYTES);
        self.version_ihl >> 4 == VERSION
            && end <= usize::from(u16::MAX)
            && (is_whole_units || !self.has_more_fragments())
    }

    /// The length of the header with its options.
    pub const fn header_bytes(&self) -> usize {
        (self.version_ihl & 0x0F) as usize * 4
    }

    /// The length of the packet.
    pub const fn total_bytes(&self) -> usize {
        self.total_bytes.get() as usize
    }

    /// Where the payload stands in the datagram that this is a fragment of.
    pub const fn offset_bytes(&self) -> usize {
        (self.flags_offset.get() & OFFSET_MASK) as usize * FRAGMENT_UNIT_BYTES
    }

    /// DF: nobody may fragment the packet.
    pub const fn must_not_be_fragmented(&self) -> bool {
        self.flags().contains(Ipv4Flags::DONT_FRAGMENT)
    }

    /// MF: another fragment follows this one.
    pub const fn has_more_fragments(&self) -> bool {
        self.flags().contains(Ipv4Flags::MORE_FRAGMENTS)
    }

    /// Whether the payload is ICMP.
    pub const fn is_icmp(&self) -> bool {
        self.protocol == PROTOCOL_ICMP
    }

    /// The sender.
    pub const fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(self.source)
    }

    /// The destination.
    pub const fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(self.destination)
    }

    /// The bytes of the header as they go to the wire.
    pub fn bytes(&self) -> &[u8] {
        self.as_bytes().get(..self.header_bytes()).unwrap_or_default()
    }

    /// The options, padding included.
    pub(crate) fn options(&self) -> &[u8] {
        self.bytes().get(IPV4_HEADER_BYTES_MIN..).unwrap_or_default()
    }

    pub(crate) const fn flags(&self) -> Ipv4Flags {
        Ipv4Flags::from_bits_truncate(self.flags_offset.get())
    }

    /// The same header with other options: the first `length` bytes of `options`, of which the rest
    /// is zero. `length` is rounded up to whole words; zeros are the end-of-list option that pads
    /// them (RFC 791 3.1).
    pub(crate) fn with_options(self, options: [u8; IPV4_OPTIONS_BYTES_MAX], length: usize) -> Self {
        let words = (IPV4_HEADER_BYTES_MIN / 4).saturating_add(length.div_ceil(4));
        Self {
            // CAST: at most 15, as `length` is at most `IPV4_OPTIONS_BYTES_MAX`.
            version_ihl: VERSION << 4 | (words & 0x0F) as u8,
            options,
            ..self
        }
    }

    /// The header of the piece of this packet that stands at `offset_bytes` of the whole datagram
    /// and holds `payload_bytes`. Everything else stays; the checksum is made anew.
    pub(crate) fn for_piece(
        mut self,
        offset_bytes: usize,
        payload_bytes: usize,
        flags: Ipv4Flags,
    ) -> Self {
        let total_bytes = self.header_bytes().saturating_add(payload_bytes);
        // CAST: the piece lies within the datagram, whose end is at most 65535.
        self.total_bytes = U16::new(total_bytes as u16);
        let offset = (offset_bytes / FRAGMENT_UNIT_BYTES) as u16;
        self.flags_offset = U16::new(flags.bits() | offset & OFFSET_MASK);
        self.checksum = U16::ZERO;
        self.checksum = U16::new(internet_checksum(self.bytes()));
        self
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::wire::testing::{TestPacket, config};

    /// An echo request of 192.0.2.1 to 192.0.2.2 with 64 bytes behind a header of 24.
    fn packet() -> Vec<u8> {
        let mut bytes = vec![
            0x46, 0x00, 0, 88, 0x12, 0x34, 0x40, 0x00, 64, 1, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
        ];
        bytes.extend([0x94, 0x04, 0x00, 0x00]);
        bytes.extend([0x5A; 64]);
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Ipv4Header> {
        Ipv4Header::read(&TestPacket(bytes.to_vec()))
    }

    #[test]
    fn fields_of_a_header_are_read() {
        let header = read(&packet()).expect("a header");
        assert_eq!((header.header_bytes(), header.total_bytes()), (24, 88));
        assert_eq!(header.source(), Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(header.destination(), Ipv4Addr::new(192, 0, 2, 2));
        assert_eq!(header.bytes(), &packet()[..24]);
        assert_eq!(header.options(), &packet()[20..24]);
        assert!(header.must_not_be_fragmented() && header.is_icmp());
        assert!(!header.has_more_fragments());
    }

    #[test]
    fn version_and_header_length_are_checked_exhaustively() {
        for value in 0..=u8::MAX {
            let mut bytes = packet();
            bytes[0] = value;
            let expected = value >> 4 == 4 && value & 0x0F >= 5;
            assert_eq!(read(&bytes).is_some(), expected, "{value:#04x}");
        }
    }

    #[test]
    fn total_length_lies_between_header_and_packet() {
        for total in 0..=u16::MAX {
            let mut bytes = packet();
            bytes[2..4].copy_from_slice(&total.to_be_bytes());
            assert_eq!(read(&bytes).is_some(), (24..=88).contains(&total), "{total}");
        }
    }

    #[test]
    fn a_packet_that_ends_within_its_header_is_none() {
        for length in 0..24 {
            assert_eq!(read(&packet()[..length]), None);
        }
    }

    #[test]
    fn data_beyond_65535_bytes_is_refused() {
        for (offset, expected) in [(0, true), (8183, true), (8184, false), (0x1FFF, false)] {
            let mut bytes = packet();
            bytes[6..8].copy_from_slice(&u16::to_be_bytes(offset));
            assert_eq!(read(&bytes).is_some(), expected, "{offset}");
        }
    }

    #[test]
    fn a_fragment_that_others_follow_ends_on_a_multiple_of_8() {
        for payload in 0..=64 {
            let mut bytes = packet();
            bytes[3] = 24 + payload;
            bytes[6] = 0x20;
            assert_eq!(read(&bytes).is_some(), payload % 8 == 0, "{payload}");
        }
    }

    #[test]
    fn pieces_carry_a_right_checksum() {
        let header = read(&packet()).expect("a header");
        let piece = header.for_piece(16, 24, Ipv4Flags::MORE_FRAGMENTS);
        assert_eq!(internet_checksum(piece.bytes()), 0);
        assert_eq!((piece.total_bytes(), piece.offset_bytes()), (48, 16));
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn any_bytes_are_refused_or_read_consistently(bytes: Vec<u8>, first in 0x44_u8..0x50) {
            let mut bytes = bytes;
            if let Some(byte) = bytes.first_mut() {
                *byte = first;
            }
            if let Some(header) = read(&bytes) {
                prop_assert!(header.header_bytes() >= IPV4_HEADER_BYTES_MIN);
                prop_assert!(header.header_bytes() <= header.total_bytes());
                prop_assert!(header.total_bytes() <= bytes.len());
                prop_assert_eq!(header.bytes(), &bytes[..header.header_bytes()]);
            }
        }
    }
}
