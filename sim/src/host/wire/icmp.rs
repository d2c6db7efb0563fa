//! ICMP and ICMPv6: echo, and the answers to packets that are too big (RFC 792, 1191, 4443).

use std::net::IpAddr;

use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    Checksum, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, IpHeader, Ipv4Fields, Ipv4Header, Ipv6Header,
    Protocol,
};

/// The length of the ICMP header of an echo.
pub const ECHO_HEADER_BYTES: usize = 8;

/// The longest answer to a packet that is too big. RFC 4443 2.4 (c): the message must not exceed
/// the minimum IPv6 MTU.
pub const TOO_BIG_BYTES_MAX: usize = 1280;

/// RFC 792: the message carries the header of the original packet and 64 bits of its payload.
const IPV4_QUOTED_PAYLOAD_BYTES: usize = 8;
/// RFC 792: destination unreachable; code 4 is "fragmentation needed and DF set".
const IPV4_UNREACHABLE: (u8, u8) = (3, 4);
/// RFC 4443 3.2: packet too big.
const IPV6_TOO_BIG: (u8, u8) = (2, 0);

/// Which half of an echo.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EchoKind {
    /// To be answered.
    Request,
    /// The answer.
    Reply,
}

/// An echo, as both versions of IP know it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Echo {
    /// Request or reply.
    pub kind: EchoKind,
    /// Names the sequence.
    pub identifier: u16,
    /// The place in the sequence.
    pub sequence: u16,
}

/// An answer to a packet that was too big.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TooBig {
    /// Who sent the packet.
    pub original_source: IpAddr,
    /// To whom.
    pub original_destination: IpAddr,
    /// What would have fitted, in bytes.
    pub mtu: usize,
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct IcmpHeader {
    kind: u8,
    code: u8,
    checksum: U16,
    rest: U32,
}

const_assert_eq!(size_of::<IcmpHeader>(), ECHO_HEADER_BYTES);

impl Echo {
    /// `None` if the packet of `header` is no echo, is a fragment or is damaged.
    pub fn parse(header: &IpHeader, bytes: &[u8]) -> Option<Self> {
        let icmp = parse_icmp(header, bytes)?;
        let kind = match (header.protocol, icmp.kind, icmp.code) {
            (Protocol::ICMPV4, 8, 0) | (Protocol::ICMPV6, 128, 0) => EchoKind::Request,
            (Protocol::ICMPV4, 0, 0) | (Protocol::ICMPV6, 129, 0) => EchoKind::Reply,
            _ => return None,
        };
        let rest = icmp.rest.get();
        Some(Self { kind, identifier: (rest >> 16) as u16, sequence: rest as u16 })
    }

    /// Writes the echo with its IP header in front of a payload that is in place: `bytes` is the
    /// whole packet to be, its payload behind the headers. False, and `bytes` unspecified, if the
    /// addresses are of two versions of IP or the lengths are impossible.
    pub fn write(self, source: IpAddr, destination: IpAddr, bytes: &mut [u8]) -> bool {
        write_around(source, destination, self.icmp_header(source), bytes).is_some()
    }

    /// The length of the headers in front of the payload.
    pub fn header_bytes(source: IpAddr) -> usize {
        ip_header_bytes(source) + ECHO_HEADER_BYTES
    }

    fn icmp_header(self, source: IpAddr) -> IcmpHeader {
        let kind = match (self.kind, source) {
            (EchoKind::Request, IpAddr::V4(_)) => 8,
            (EchoKind::Reply, IpAddr::V4(_)) => 0,
            (EchoKind::Request, IpAddr::V6(_)) => 128,
            (EchoKind::Reply, IpAddr::V6(_)) => 129,
        };
        let rest = u32::from(self.identifier) << 16 | u32::from(self.sequence);
        IcmpHeader { kind, code: 0, checksum: U16::ZERO, rest: U32::new(rest) }
    }
}

/// Turns an echo request into the reply of `own`, in place. False, and `bytes` unchanged, if it is
/// no request that can be answered so: damaged, a fragment, or with IP options.
pub fn answer_echo(header: &IpHeader, own: IpAddr, bytes: &mut [u8]) -> bool {
    let Some(echo) = Echo::parse(header, bytes) else {
        return false;
    };
    let has_options = header.header_bytes != ip_header_bytes(own);
    if echo.kind != EchoKind::Request || has_options || header.total_bytes != bytes.len() {
        return false;
    }
    let reply = Echo { kind: EchoKind::Reply, ..echo };
    reply.write(own, header.source, bytes)
}

/// Writes the answer to `original`, which is larger than `mtu`, and returns its length: ICMP
/// "fragmentation needed" with the MTU (RFC 1191 4) or ICMPv6 "packet too big" (RFC 4443 3.2).
///
/// It comes from the destination of the packet, on whose behalf it is made: a host that hears its
/// own address from the link drops that. `None` if `original` is no IP packet.
pub fn write_too_big(
    original: &[u8],
    mtu: usize,
    out: &mut [u8; TOO_BIG_BYTES_MAX],
) -> Option<usize> {
    let header = IpHeader::parse(original)?;
    let headers_bytes = ip_header_bytes(header.source) + ECHO_HEADER_BYTES;
    let quoted_bytes_max = match header.source {
        IpAddr::V4(_) => header.header_bytes + IPV4_QUOTED_PAYLOAD_BYTES,
        IpAddr::V6(_) => TOO_BIG_BYTES_MAX - headers_bytes,
    };
    let quoted = original.get(..header.total_bytes.min(quoted_bytes_max))?;
    let ((kind, code), rest) = match header.source {
        IpAddr::V4(_) => (IPV4_UNREACHABLE, u32::from(u16::try_from(mtu).ok()?)),
        IpAddr::V6(_) => (IPV6_TOO_BIG, u32::try_from(mtu).ok()?),
    };
    let icmp = IcmpHeader { kind, code, checksum: U16::ZERO, rest: U32::new(rest) };
    let total_bytes = headers_bytes + quoted.len();
    let bytes = out.get_mut(..total_bytes)?;
    bytes.get_mut(headers_bytes..)?.copy_from_slice(quoted);
    write_around(header.destination, header.source, icmp, bytes)?;
    Some(total_bytes)
}

impl TooBig {
    /// `None` if the packet of `header` is no such answer.
    pub fn parse(header: &IpHeader, bytes: &[u8]) -> Option<Self> {
        let icmp = parse_icmp(header, bytes)?;
        let mtu = match (header.protocol, (icmp.kind, icmp.code)) {
            (Protocol::ICMPV4, IPV4_UNREACHABLE) => icmp.rest.get() & 0xFFFF,
            (Protocol::ICMPV6, IPV6_TOO_BIG) => icmp.rest.get(),
            _ => return None,
        };
        // The quotation is cut, so its own lengths cannot be checked: only the addresses are read.
        let quoted = bytes.get(header.header_bytes + ECHO_HEADER_BYTES..header.total_bytes)?;
        let (original_source, original_destination) = quoted_addresses(header, quoted)?;
        Some(Self { original_source, original_destination, mtu: mtu as usize })
    }
}

fn quoted_addresses(header: &IpHeader, quoted: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match header.source {
        IpAddr::V4(_) => {
            let source = <[u8; 4]>::try_from(quoted.get(12..16)?).ok()?;
            let destination = <[u8; 4]>::try_from(quoted.get(16..20)?).ok()?;
            Some((source.into(), destination.into()))
        }
        IpAddr::V6(_) => {
            let source = <[u8; 16]>::try_from(quoted.get(8..24)?).ok()?;
            let destination = <[u8; 16]>::try_from(quoted.get(24..40)?).ok()?;
            Some((source.into(), destination.into()))
        }
    }
}

fn ip_header_bytes(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => IPV4_HEADER_BYTES,
        IpAddr::V6(_) => IPV6_HEADER_BYTES,
    }
}

/// The ICMP header of an intact, unfragmented packet.
fn parse_icmp(header: &IpHeader, bytes: &[u8]) -> Option<IcmpHeader> {
    if header.is_fragment {
        return None;
    }
    let message = bytes.get(header.header_bytes..header.total_bytes)?;
    let sum = match (header.source, header.destination, header.protocol) {
        (IpAddr::V4(_), IpAddr::V4(_), Protocol::ICMPV4) => Checksum::default(),
        (IpAddr::V6(source), IpAddr::V6(destination), Protocol::ICMPV6) => {
            Checksum::pseudo_ipv6(source, destination, Protocol::ICMPV6, message.len())
        }
        _ => return None,
    };
    let (icmp, _) = IcmpHeader::read_from_prefix(message).ok()?;
    sum.with(message).is_intact().then_some(icmp)
}

/// Writes IP and ICMP headers in front of the payload at the end of `bytes`.
fn write_around(
    source: IpAddr,
    destination: IpAddr,
    icmp: IcmpHeader,
    bytes: &mut [u8],
) -> Option<()> {
    let ip_bytes = ip_header_bytes(source);
    let message = bytes.get_mut(ip_bytes..)?;
    let message_bytes = message.len();
    icmp.write_to_prefix(message).ok()?;
    let sum = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let fields = Ipv4Fields::whole(source, destination, Protocol::ICMPV4);
            let ip = Ipv4Header::new(fields, message_bytes)?;
            ip.write_to_prefix(bytes).ok()?;
            Checksum::default()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let ip = Ipv6Header::new(source, destination, Protocol::ICMPV6, message_bytes)?;
            ip.write_to_prefix(bytes).ok()?;
            Checksum::pseudo_ipv6(source, destination, Protocol::ICMPV6, message_bytes)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    };
    let message = bytes.get_mut(ip_bytes..)?;
    let checksum = sum.with(message).finish().to_be_bytes();
    message.get_mut(2..4)?.copy_from_slice(&checksum);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIRS: [(&str, &str); 2] = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];
    const REQUEST: Echo = Echo { kind: EchoKind::Request, identifier: 0x1234, sequence: 7 };

    fn request(source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let mut bytes = vec![0xA5; Echo::header_bytes(source) + 11];
        assert!(REQUEST.write(source, destination, &mut bytes));
        bytes
    }

    #[test]
    fn request_becomes_a_reply_with_the_same_payload() {
        for (source, destination) in PAIRS {
            let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
            let mut bytes = request(source, destination);
            let header = IpHeader::parse(&bytes).unwrap();
            assert_eq!(Echo::parse(&header, &bytes), Some(REQUEST));
            assert!(answer_echo(&header, destination, &mut bytes));
            let header = IpHeader::parse(&bytes).unwrap();
            assert_eq!((header.source, header.destination), (destination, source));
            let reply = Echo::parse(&header, &bytes).unwrap();
            assert_eq!((reply.kind, reply.sequence), (EchoKind::Reply, 7));
            assert!(bytes.ends_with(&[0xA5; 11]));
            assert!(!answer_echo(&header, source, &mut bytes), "no reply to a reply");
        }
    }

    #[test]
    fn damaged_payload_is_no_echo() {
        for (source, destination) in PAIRS {
            let mut bytes = request(source.parse().unwrap(), destination.parse().unwrap());
            *bytes.last_mut().unwrap() ^= 1;
            let header = IpHeader::parse(&bytes).unwrap();
            assert_eq!(Echo::parse(&header, &bytes), None);
        }
    }

    #[test]
    fn answer_to_a_big_packet_names_the_mtu_and_quotes_the_packet() {
        for ((source, destination), answer_bytes) in PAIRS.into_iter().zip([56, 1280]) {
            let source: IpAddr = source.parse().unwrap();
            let destination = destination.parse().unwrap();
            let mut original = vec![0; 3000];
            assert!(REQUEST.write(source, destination, &mut original));
            let mut out = [0; TOO_BIG_BYTES_MAX];
            let length = write_too_big(&original, 2044, &mut out).unwrap();
            assert_eq!(length, answer_bytes);
            let header = IpHeader::parse(&out[..length]).unwrap();
            assert_eq!((header.source, header.destination), (destination, source));
            let expected =
                TooBig { original_source: source, original_destination: destination, mtu: 2044 };
            assert_eq!(TooBig::parse(&header, &out[..length]), Some(expected));
        }
    }
}
