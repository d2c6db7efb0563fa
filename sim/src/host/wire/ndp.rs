//! Neighbour discovery for IPv6 over InfiniBand (RFC 4861, RFC 4391 9.3).

use std::net::{IpAddr, Ipv6Addr};

use ipoib_rs::wire::{ADDRESS_OPTION_BYTES as OPTION_BYTES, LinkAddress, read_address_option};
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Checksum, IPV6_HEADER_BYTES, IpHeader, Ipv6Header, Protocol};

/// The length of a solicitation or advertisement with its IPv6 header and one address option.
pub const NDP_BYTES: usize = IPV6_HEADER_BYTES + HEAD_BYTES + OPTION_BYTES;

const HEAD_BYTES: usize = 24;
/// RFC 4861 7.1.1: anything else was forwarded by a router and is none of this link's.
const HOP_LIMIT: u8 = 255;
const KIND_SOLICITATION: u8 = 135;
const KIND_ADVERTISEMENT: u8 = 136;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
const FLAG_SOLICITED: u8 = 0x40;
const FLAG_OVERRIDE: u8 = 0x20;

/// A message of neighbour discovery that a host reacts to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ndp {
    /// Who has the target?
    Solicitation(Solicitation),
    /// The target is here.
    Advertisement(Advertisement),
}

/// A neighbour solicitation (RFC 4861 4.3).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Solicitation {
    /// Who asks; unspecified during duplicate address detection.
    pub source: Ipv6Addr,
    /// Whose address is wanted.
    pub target: Ipv6Addr,
    /// The link-layer address of who asks.
    pub link_address: Option<LinkAddress>,
}

/// A neighbour advertisement (RFC 4861 4.4).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Advertisement {
    /// Who is advertised.
    pub target: Ipv6Addr,
    /// Its link-layer address.
    pub link_address: Option<LinkAddress>,
    /// Whether it answers a solicitation.
    pub is_solicited: bool,
    /// Whether it replaces an address known before.
    pub is_override: bool,
}

/// The solicited-node multicast group of an address (RFC 4291 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, a, b, c])
}

impl Ndp {
    /// `None` if the packet of `header` is neither of the two or fails the checks of RFC 4861 7.1.
    ///
    /// `subnet_prefix` is that of the own GID; it decides how an ambiguous option is read.
    pub fn parse(header: &IpHeader, bytes: &[u8], subnet_prefix: u64) -> Option<Self> {
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (header.source, header.destination)
        else {
            return None;
        };
        if header.protocol != Protocol::ICMPV6 || header.hops != HOP_LIMIT {
            return None;
        }
        let message = bytes.get(header.header_bytes..header.total_bytes)?;
        let sum = Checksum::pseudo_ipv6(source, destination, Protocol::ICMPV6, message.len());
        let (head, options) = Head::read_from_prefix(message).ok()?;
        let target = Ipv6Addr::from(head.target);
        if !sum.with(message).is_intact() || head.code != 0 || target.is_multicast() {
            return None;
        }
        match head.kind {
            KIND_SOLICITATION => {
                let link_address = find_address(options, OPTION_SOURCE, subnet_prefix)?;
                // RFC 4861 7.1.1: a probe for duplicates goes to the solicited-node group and
                // carries no source link-layer address.
                let is_probe = source.is_unspecified();
                let is_valid_probe =
                    destination == solicited_node(target) && link_address.is_none();
                (!is_probe || is_valid_probe).then_some(Self::Solicitation(Solicitation {
                    source,
                    target,
                    link_address,
                }))
            }
            KIND_ADVERTISEMENT => {
                let is_solicited = head.flags & FLAG_SOLICITED != 0;
                // RFC 4861 7.1.2.
                let is_valid = !(destination.is_multicast() && is_solicited);
                let link_address = find_address(options, OPTION_TARGET, subnet_prefix)?;
                is_valid.then_some(Self::Advertisement(Advertisement {
                    target,
                    link_address,
                    is_solicited,
                    is_override: head.flags & FLAG_OVERRIDE != 0,
                }))
            }
            _ => None,
        }
    }

    /// Whether the packet of `header` claims to be one of the two, valid or not.
    pub fn is_solicitation_or_advertisement(header: &IpHeader, bytes: &[u8]) -> bool {
        let kind = bytes.get(header.header_bytes);
        header.protocol == Protocol::ICMPV6
            && matches!(kind, Some(&(KIND_SOLICITATION | KIND_ADVERTISEMENT)))
    }
}

/// The packet of a solicitation by `own` for `target`.
pub fn solicitation_packet(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    target: Ipv6Addr,
    own: LinkAddress,
) -> [u8; NDP_BYTES] {
    let head = Head::new(KIND_SOLICITATION, 0, target);
    emit(source, destination, head, AddressOption::new(OPTION_SOURCE, own))
}

/// The packet of an advertisement of `target`, an own address at `own`.
///
/// Sent with the override flag: the host is the only owner of its address (RFC 4861 7.2.4).
pub fn advertisement_packet(
    target: Ipv6Addr,
    destination: Ipv6Addr,
    is_solicited: bool,
    own: LinkAddress,
) -> [u8; NDP_BYTES] {
    let solicited = if is_solicited { FLAG_SOLICITED } else { 0 };
    let head = Head::new(KIND_ADVERTISEMENT, solicited | FLAG_OVERRIDE, target);
    let option = AddressOption::new(OPTION_TARGET, own);
    emit(target, destination, head, option)
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    kind: u8,
    code: u8,
    checksum: U16,
    flags: u8,
    reserved: [u8; 3],
    target: [u8; 16],
}

const_assert_eq!(size_of::<Head>(), HEAD_BYTES);

impl Head {
    fn new(kind: u8, flags: u8, target: Ipv6Addr) -> Self {
        Self {
            kind,
            code: 0,
            checksum: U16::ZERO,
            flags,
            reserved: [0; 3],
            target: target.octets(),
        }
    }
}

/// The source or target link-layer address option, two zero bytes before the address.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct AddressOption {
    kind: u8,
    length: u8,
    padding: [u8; 2],
    address: LinkAddress,
}

const_assert_eq!(size_of::<AddressOption>(), OPTION_BYTES);

impl AddressOption {
    fn new(kind: u8, address: LinkAddress) -> Self {
        Self { kind, length: (OPTION_BYTES / 8) as u8, padding: [0; 2], address }
    }
}

fn emit(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    mut head: Head,
    option: AddressOption,
) -> [u8; NDP_BYTES] {
    let message_bytes = HEAD_BYTES + OPTION_BYTES;
    let sum = Checksum::pseudo_ipv6(source, destination, Protocol::ICMPV6, message_bytes)
        .with(head.as_bytes())
        .with(option.as_bytes());
    head.checksum = U16::new(sum.finish());
    let mut bytes = [0; NDP_BYTES];
    let (ip_bytes, message) = bytes.split_at_mut(IPV6_HEADER_BYTES);
    if let Some(ip) = Ipv6Header::new(source, destination, Protocol::ICMPV6, message_bytes) {
        ip_bytes.copy_from_slice(ip.with_hop_limit(HOP_LIMIT).as_bytes());
    }
    let (head_bytes, option_bytes) = message.split_at_mut(HEAD_BYTES);
    head_bytes.copy_from_slice(head.as_bytes());
    option_bytes.copy_from_slice(option.as_bytes());
    bytes
}

/// The address in the option `kind`: `None` if the options are malformed (RFC 4861 7.1: "All
/// included options have a length that is greater than zero"), `Some(None)` without such an option.
fn find_address(mut options: &[u8], kind: u8, subnet_prefix: u64) -> Option<Option<LinkAddress>> {
    let mut found = None;
    while !options.is_empty() {
        let bytes = usize::from(*options.get(1)?) * 8;
        let (option, rest) = options.split_at_checked(bytes)?;
        if option.is_empty() {
            return None;
        }
        if option[0] == kind && option.len() == OPTION_BYTES && found.is_none() {
            found = read_address_option(option, subnet_prefix);
        }
        options = rest;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use ipoib_rs::ib::{Gid, Qpn};
    use ipoib_rs::wire::AddressFlags;

    use super::*;

    const PREFIX: u64 = Gid::SUBNET_PREFIX_DEFAULT;
    const SOURCE: Ipv6Addr = Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 1);
    const TARGET: Ipv6Addr = Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0x12, 0x3456);

    fn own() -> LinkAddress {
        let qpn = Qpn::new(0x48).unwrap();
        LinkAddress::new(AddressFlags::RC, qpn, Gid::new(PREFIX, 0x0002_C903_0000_1000))
    }

    fn parse(bytes: &[u8]) -> Option<Ndp> {
        Ndp::parse(&IpHeader::parse(bytes)?, bytes, PREFIX)
    }

    /// Moves the two zero bytes of the option behind the address: whole words move, so the
    /// checksum stays right.
    fn pad_after(mut bytes: [u8; NDP_BYTES]) -> [u8; NDP_BYTES] {
        bytes[NDP_BYTES - 22..].rotate_left(2);
        bytes
    }

    #[test]
    fn solicitation_has_the_bytes_of_the_rfcs_and_reads_back() {
        let bytes = solicitation_packet(SOURCE, solicited_node(TARGET), TARGET, own());
        assert_eq!(bytes[7], 255);
        assert_eq!(bytes[24..40], solicited_node(TARGET).octets());
        assert_eq!(bytes[40..42], [135, 0]);
        assert_eq!(bytes[64..68], [1, 3, 0, 0]);
        assert_eq!(bytes[68..88], *own().as_bytes());
        let expected = Solicitation { source: SOURCE, target: TARGET, link_address: Some(own()) };
        assert_eq!(parse(&bytes), Some(Ndp::Solicitation(expected)));
    }

    #[test]
    fn advertisement_reads_back() {
        for is_solicited in [false, true] {
            let bytes = advertisement_packet(TARGET, SOURCE, is_solicited, own());
            let expected = Advertisement {
                target: TARGET,
                link_address: Some(own()),
                is_solicited,
                is_override: true,
            };
            assert_eq!(parse(&bytes), Some(Ndp::Advertisement(expected)));
        }
    }

    #[test]
    fn option_is_read_with_padding_before_and_after() {
        // The last two bytes of this GID are zero and the flags and the first byte of the QPN as
        // well: both readings are possible in both forms.
        let ambiguous = LinkAddress::new(
            AddressFlags::empty(),
            Qpn::new(0x48).unwrap(),
            Gid::new(PREFIX, 0x0002_C903_0001_0000),
        );
        for address in [own(), ambiguous] {
            let before = advertisement_packet(TARGET, SOURCE, true, address);
            let after = pad_after(before);
            assert_ne!(before, after);
            for bytes in [before, after] {
                let Some(Ndp::Advertisement(advertisement)) = parse(&bytes) else {
                    panic!("not read: {bytes:?}");
                };
                assert_eq!(advertisement.link_address, Some(address));
            }
        }
    }

    #[test]
    fn every_flipped_bit_of_the_message_is_noticed() {
        let good = solicitation_packet(SOURCE, solicited_node(TARGET), TARGET, own());
        for bit in IPV6_HEADER_BYTES * 8..NDP_BYTES * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&bytes), None, "bit {bit}");
        }
    }

    #[test]
    fn forwarded_messages_and_solicited_multicasts_are_refused() {
        let mut forwarded = solicitation_packet(SOURCE, solicited_node(TARGET), TARGET, own());
        forwarded[7] = 254;
        assert_eq!(parse(&forwarded), None);
        let all_nodes = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);
        let multicast = advertisement_packet(TARGET, all_nodes, true, own());
        assert_eq!(parse(&multicast), None);
        let probe =
            solicitation_packet(Ipv6Addr::UNSPECIFIED, solicited_node(TARGET), TARGET, own());
        assert_eq!(parse(&probe), None, "a probe carries no address");
    }

    #[test]
    fn solicited_node_keeps_the_last_three_bytes() {
        let expected: Ipv6Addr = "ff02::1:ff12:3456".parse().unwrap();
        assert_eq!(solicited_node("fd00::4412:3456".parse().unwrap()), expected);
    }
}
