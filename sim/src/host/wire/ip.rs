//! IPv4 and IPv6 headers (RFC 791, RFC 8200).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipoib_rs::wire::EtherType;
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Checksum;

/// The length of an IPv4 header without options.
pub const IPV4_HEADER_BYTES: usize = 20;
/// The length of an IPv6 header.
pub const IPV6_HEADER_BYTES: usize = 40;

/// The hop count that packets of a host start with.
const HOPS_INITIAL: u8 = 64;
const IPV4_DONT_FRAGMENT: u16 = 0x4000;
const IPV4_MORE_FRAGMENTS: u16 = 0x2000;
const IPV4_OFFSET: u16 = 0x1FFF;

/// An upper protocol number of IP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP for IPv4.
    pub const ICMPV4: Self = Self(1);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// ICMP for IPv6.
    pub const ICMPV6: Self = Self(58);
}

/// What a host reads of any IP packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IpHeader {
    /// The sender.
    pub source: IpAddr,
    /// The receiver.
    pub destination: IpAddr,
    /// The protocol of the payload; for IPv6 the next header.
    pub protocol: Protocol,
    /// TTL or hop limit.
    pub hops: u8,
    /// Where the payload starts, in bytes.
    pub header_bytes: usize,
    /// Where the payload ends, in bytes; never beyond the packet.
    pub total_bytes: usize,
    /// Whether it is a part of a fragmented IPv4 packet.
    pub is_fragment: bool,
}

impl IpHeader {
    /// `None` if the bytes are no whole IP packet.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => {
                Ipv4Header::parse(bytes).map(|(header, header_bytes)| header.summary(header_bytes))
            }
            6 => Ipv6Header::parse(bytes).map(|header| header.summary()),
            _ => None,
        }
    }

    /// The protocol number that goes into the encapsulation header.
    pub fn ether_type(&self) -> EtherType {
        match self.destination {
            IpAddr::V4(_) => EtherType::IPV4,
            IpAddr::V6(_) => EtherType::IPV6,
        }
    }
}

/// An IPv4 header without its options.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Ipv4Header {
    version_length: u8,
    type_of_service: u8,
    total_bytes: U16,
    identification: U16,
    flags_offset: U16,
    time_to_live: u8,
    protocol: u8,
    checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

const_assert_eq!(size_of::<Ipv4Header>(), IPV4_HEADER_BYTES);

/// What a sender chooses in an IPv4 header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ipv4Fields {
    /// The sender.
    pub source: Ipv4Addr,
    /// The receiver.
    pub destination: Ipv4Addr,
    /// The protocol of the payload.
    pub protocol: Protocol,
    /// Names the packet that a fragment is of.
    pub identification: u16,
    /// DF.
    pub dont_fragment: bool,
    /// MF.
    pub more_fragments: bool,
    /// Where the payload stood in the unfragmented packet, in bytes; a multiple of 8.
    pub offset_bytes: u16,
}

impl Ipv4Fields {
    /// A packet that is not fragmented and may be.
    pub fn whole(source: Ipv4Addr, destination: Ipv4Addr, protocol: Protocol) -> Self {
        Self {
            source,
            destination,
            protocol,
            identification: 0,
            dont_fragment: false,
            more_fragments: false,
            offset_bytes: 0,
        }
    }
}

impl Ipv4Header {
    /// A header without options in front of `payload_bytes` bytes, checksum included; `None` if
    /// that is more than IPv4 can say.
    pub fn new(fields: Ipv4Fields, payload_bytes: usize) -> Option<Self> {
        let flag = |set, bit| if set { bit } else { 0 };
        let flags_offset = flag(fields.dont_fragment, IPV4_DONT_FRAGMENT)
            | flag(fields.more_fragments, IPV4_MORE_FRAGMENTS)
            | (fields.offset_bytes / 8);
        let mut header = Self {
            version_length: 0x45,
            type_of_service: 0,
            total_bytes: U16::new(u16::try_from(IPV4_HEADER_BYTES + payload_bytes).ok()?),
            identification: U16::new(fields.identification),
            flags_offset: U16::new(flags_offset),
            time_to_live: HOPS_INITIAL,
            protocol: fields.protocol.0,
            checksum: U16::ZERO,
            source: fields.source.octets(),
            destination: fields.destination.octets(),
        };
        header.checksum = U16::new(Checksum::default().with(header.as_bytes()).finish());
        Some(header)
    }

    /// The header and its length with options; `None` if version, lengths or checksum are wrong.
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let (header, _) = Self::read_from_prefix(bytes).ok()?;
        let header_bytes = usize::from(header.version_length & 0x0F) * 4;
        let total_bytes = usize::from(header.total_bytes.get());
        let is_valid = header.version_length >> 4 == 4
            && header_bytes >= IPV4_HEADER_BYTES
            && total_bytes >= header_bytes
            && total_bytes <= bytes.len()
            && Checksum::default().with(bytes.get(..header_bytes)?).is_intact();
        is_valid.then_some((header, header_bytes))
    }

    /// Whether DF is set.
    pub fn is_dont_fragment(&self) -> bool {
        self.flags_offset.get() & IPV4_DONT_FRAGMENT != 0
    }

    fn summary(&self, header_bytes: usize) -> IpHeader {
        let fragment = IPV4_MORE_FRAGMENTS | IPV4_OFFSET;
        IpHeader {
            source: Ipv4Addr::from(self.source).into(),
            destination: Ipv4Addr::from(self.destination).into(),
            protocol: Protocol(self.protocol),
            hops: self.time_to_live,
            header_bytes,
            total_bytes: usize::from(self.total_bytes.get()),
            is_fragment: self.flags_offset.get() & fragment != 0,
        }
    }
}

/// An IPv6 header.
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

impl Ipv6Header {
    /// A header in front of `payload_bytes` bytes; `None` if that is more than IPv6 can say.
    pub fn new(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        protocol: Protocol,
        payload_bytes: usize,
    ) -> Option<Self> {
        Some(Self {
            version_class_flow: U32::new(6 << 28),
            payload_bytes: U16::new(u16::try_from(payload_bytes).ok()?),
            next_header: protocol.0,
            hop_limit: HOPS_INITIAL,
            source: source.octets(),
            destination: destination.octets(),
        })
    }

    /// The same header with another hop limit.
    #[must_use]
    pub fn with_hop_limit(self, hop_limit: u8) -> Self {
        Self { hop_limit, ..self }
    }

    /// `None` if version or length are wrong.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, payload) = Self::read_from_prefix(bytes).ok()?;
        let is_valid = header.version_class_flow.get() >> 28 == 6
            && usize::from(header.payload_bytes.get()) <= payload.len();
        is_valid.then_some(header)
    }

    fn summary(&self) -> IpHeader {
        IpHeader {
            source: Ipv6Addr::from(self.source).into(),
            destination: Ipv6Addr::from(self.destination).into(),
            protocol: Protocol(self.next_header),
            hops: self.hop_limit,
            header_bytes: IPV6_HEADER_BYTES,
            total_bytes: IPV6_HEADER_BYTES + usize::from(self.payload_bytes.get()),
            is_fragment: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_ipv4() -> Vec<u8> {
        let fields = Ipv4Fields {
            dont_fragment: true,
            ..Ipv4Fields::whole([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::UDP)
        };
        let mut bytes = Ipv4Header::new(fields, 8).unwrap().as_bytes().to_vec();
        bytes.extend([0; 8]);
        bytes
    }

    #[test]
    fn ipv4_header_reads_back() {
        let bytes = sample_ipv4();
        let header = IpHeader::parse(&bytes).unwrap();
        assert_eq!(header.source, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(header.destination, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(header.protocol, Protocol::UDP);
        assert_eq!((header.header_bytes, header.total_bytes), (20, 28));
        assert!(!header.is_fragment);
        assert_eq!(header.ether_type(), EtherType::IPV4);
        assert!(Ipv4Header::parse(&bytes).unwrap().0.is_dont_fragment());
    }

    #[test]
    fn any_flipped_bit_of_an_ipv4_header_is_noticed() {
        for bit in 0..IPV4_HEADER_BYTES * 8 {
            let mut bytes = sample_ipv4();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(IpHeader::parse(&bytes), None, "bit {bit}");
        }
    }

    #[test]
    fn cut_packets_are_refused() {
        let ipv4 = sample_ipv4();
        for length in 0..ipv4.len() {
            assert_eq!(IpHeader::parse(&ipv4[..length]), None);
        }
        let header = Ipv6Header::new(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, Protocol::UDP, 4);
        let mut ipv6 = header.unwrap().as_bytes().to_vec();
        ipv6.extend([0; 4]);
        for length in 0..ipv6.len() {
            assert_eq!(IpHeader::parse(&ipv6[..length]), None);
        }
        assert_eq!(IpHeader::parse(&ipv6).unwrap().total_bytes, 44);
    }

    #[test]
    fn fragments_are_known_by_flag_or_offset() {
        let whole = Ipv4Fields::whole([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::UDP);
        let first = Ipv4Fields { more_fragments: true, ..whole };
        let last = Ipv4Fields { offset_bytes: 8, ..whole };
        for (fields, is_fragment) in [(whole, false), (first, true), (last, true)] {
            let header = Ipv4Header::new(fields, 0).unwrap();
            let parsed = IpHeader::parse(header.as_bytes()).unwrap();
            assert_eq!(parsed.is_fragment, is_fragment);
        }
    }

    #[test]
    fn payload_that_no_header_can_describe_is_refused() {
        let fields = Ipv4Fields::whole([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::UDP);
        assert_eq!(Ipv4Header::new(fields, 65516), None);
        assert!(Ipv4Header::new(fields, 65515).is_some());
    }
}
