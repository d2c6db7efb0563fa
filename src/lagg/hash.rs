//! A hash of the flow that a packet belongs to, from the network header on, so that it is the same
//! for one flow over Ethernet and over InfiniBand.
//!
//! The hash is that of receive side scaling (Toeplitz, with the key of its verification suite), so
//! that it is also the same whether an adapter or this function computes it. All packets of a flow
//! have the same value, and all fragments of a datagram have, since only the first of them holds
//! ports.

use crate::packet::PacketBuf;
use crate::wire::{ENCAPSULATION_BYTES, EtherType, LINK_ADDRESS_BYTES};

/// What stands in front of the network header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Framing {
    /// Nothing; the protocol is known.
    Bare(EtherType),
    /// The encapsulation header (RFC 4391 6), as on the link.
    Encapsulation,
    /// A link-layer address and the encapsulation header, as FreeBSD hands a packet to an
    /// interface.
    Addressed,
    /// An Ethernet header, with VLAN tags or without.
    Ethernet,
}

/// How far to look.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Depth {
    /// At the addresses of the network layer.
    Addresses,
    /// At the ports of TCP, UDP and SCTP as well.
    Ports,
}

/// The hash of the flow of a packet. `None` if it is neither IPv4 nor IPv6, or ends within the
/// header.
pub fn flow_hash(framing: Framing, depth: Depth, packet: &impl PacketBuf) -> Option<u32> {
    let (protocol, at) = network_header(framing, packet)?;
    let mut hash = Toeplitz::new();
    let transport = match protocol {
        EtherType::IPV4 => feed_ipv4(&mut hash, packet, at)?,
        EtherType::IPV6 => feed_ipv6(&mut hash, packet, at)?,
        // wildcard: protocol numbers.
        _ => return None,
    };
    if depth == Depth::Ports
        && let Some(at) = transport
        && let Some(ports) = bytes_at::<4>(packet, at)
    {
        hash.feed(&ports);
    }
    Some(hash.value)
}

const ETHERNET_ADDRESSES_BYTES: usize = 12;
const ETHER_TYPE_BYTES: usize = 2;
/// Priority and number of a VLAN, which follow its EtherType.
const VLAN_TAG_BYTES: usize = 2;
/// One of the customer, one of the provider (IEEE 802.1Q).
const VLAN_TAGS_MAX: usize = 2;
const VLAN: EtherType = EtherType(0x8100);
const PROVIDER_VLAN: EtherType = EtherType(0x88A8);

/// The protocol, and where its header begins.
fn network_header(framing: Framing, packet: &impl PacketBuf) -> Option<(EtherType, usize)> {
    match framing {
        Framing::Bare(protocol) => Some((protocol, 0)),
        Framing::Encapsulation => Some((ether_type(packet, 0)?, ENCAPSULATION_BYTES)),
        Framing::Addressed => {
            let protocol = ether_type(packet, LINK_ADDRESS_BYTES)?;
            Some((protocol, LINK_ADDRESS_BYTES + ENCAPSULATION_BYTES))
        }
        Framing::Ethernet => {
            let mut at = ETHERNET_ADDRESSES_BYTES;
            for _ in 0..VLAN_TAGS_MAX {
                if !matches!(ether_type(packet, at)?, VLAN | PROVIDER_VLAN) {
                    break;
                }
                at += ETHER_TYPE_BYTES + VLAN_TAG_BYTES;
            }
            Some((ether_type(packet, at)?, at + ETHER_TYPE_BYTES))
        }
    }
}

const IPV4_HEADER_BYTES: usize = 20;
/// More fragments, and the fragment offset (RFC 791 3.1).
const IPV4_FRAGMENT_MASK: u16 = 0x3FFF;

/// Takes in the addresses. Where the ports are, if there are any.
fn feed_ipv4(hash: &mut Toeplitz, packet: &impl PacketBuf, at: usize) -> Option<Option<usize>> {
    let header: [u8; IPV4_HEADER_BYTES] = bytes_at(packet, at)?;
    let [version_length, _, _, _, _, _, flags, offset, _, protocol, _, _, addresses @ ..] = header;
    let header_bytes = usize::from(version_length & 0x0F) * 4;
    if version_length >> 4 != 4 || header_bytes < IPV4_HEADER_BYTES {
        return None;
    }
    hash.feed(&addresses);
    let is_fragment = u16::from_be_bytes([flags, offset]) & IPV4_FRAGMENT_MASK != 0;
    Some((has_ports(protocol) && !is_fragment).then_some(at.saturating_add(header_bytes)))
}

const IPV6_HEADER_BYTES: usize = 40;
/// Extension headers that are followed; each kind but one occurs once at most (RFC 8200 4.1).
const EXTENSIONS_MAX: usize = 8;
const HOP_BY_HOP_OPTIONS: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const FRAGMENT_HEADER_BYTES: usize = 8;
/// The offset and the M flag of a fragment header; two bits between them are reserved.
const IPV6_FRAGMENT_MASK: u16 = 0xFFF9;

/// Takes in the addresses. Where the ports are, if there are any.
fn feed_ipv6(hash: &mut Toeplitz, packet: &impl PacketBuf, at: usize) -> Option<Option<usize>> {
    let header: [u8; IPV6_HEADER_BYTES] = bytes_at(packet, at)?;
    let [version, _, _, _, _, _, next_header, _, addresses @ ..] = header;
    if version >> 4 != 6 {
        return None;
    }
    hash.feed(&addresses);
    Some(ipv6_ports(packet, next_header, at.saturating_add(IPV6_HEADER_BYTES)))
}

/// Where the ports are, behind the extension headers.
fn ipv6_ports(packet: &impl PacketBuf, first: u8, mut at: usize) -> Option<usize> {
    let mut kind = first;
    for _ in 0..EXTENSIONS_MAX {
        if has_ports(kind) {
            return Some(at);
        }
        let [next, length, high, low] = bytes_at(packet, at)?;
        let extension_bytes = match kind {
            // RFC 6946: a fragment that is the whole packet is none.
            FRAGMENT if u16::from_be_bytes([high, low]) & IPV6_FRAGMENT_MASK == 0 => {
                FRAGMENT_HEADER_BYTES
            }
            // RFC 4302 2.2: an authentication header counts 4-byte words, minus 2.
            AUTHENTICATION => (usize::from(length) + 2) * 4,
            DESTINATION_OPTIONS | HOP_BY_HOP_OPTIONS | ROUTING => (usize::from(length) + 1) * 8,
            // wildcard: numbers of protocols without ports, and fragments.
            _ => return None,
        };
        at = at.saturating_add(extension_bytes);
        kind = next;
    }
    None
}

/// Whether a protocol begins with two ports of two bytes.
const fn has_ports(protocol: u8) -> bool {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    const SCTP: u8 = 132;
    matches!(protocol, TCP | UDP | SCTP)
}

fn ether_type(packet: &impl PacketBuf, at: usize) -> Option<EtherType> {
    Some(EtherType(u16::from_be_bytes(bytes_at(packet, at)?)))
}

fn bytes_at<const N: usize>(packet: &impl PacketBuf, at: usize) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    packet.copy_out(at, &mut bytes).ok()?;
    Some(bytes)
}

const KEY_BYTES: usize = 40;
/// The longest input: two IPv6 addresses and two ports.
const INPUT_BYTES_MAX: usize = 36;
const HALVES: usize = 2 * INPUT_BYTES_MAX;

/// The key of the verification suite of receive side scaling.
const KEY: [u8; KEY_BYTES] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// What each value of each half byte of the input adds to the hash.
static TABLE: [[u32; 16]; HALVES] = table();

const fn table() -> [[u32; 16]; HALVES] {
    let mut table = [[0; 16]; HALVES];
    let mut half = 0;
    while half < HALVES {
        let mut value = 0;
        while value < 16 {
            let mut bit = 0;
            while bit < 4 {
                if value & (0b1000 >> bit) != 0 {
                    table[half][value] ^= key_window(4 * half + bit);
                }
                bit += 1;
            }
            value += 1;
        }
        half += 1;
    }
    table
}

/// The 32 bits of the key from bit `from` on.
const fn key_window(from: usize) -> u32 {
    let mut window = 0;
    let mut bit = from;
    while bit < from + 32 {
        window = window << 1 | (KEY[bit / 8] >> (7 - bit % 8) & 1) as u32;
        bit += 1;
    }
    window
}

/// A hash of the bytes that were fed so far; more than [`INPUT_BYTES_MAX`] are not taken in.
struct Toeplitz {
    value: u32,
    rest: core::slice::Iter<'static, [u32; 16]>,
}

impl Toeplitz {
    fn new() -> Self {
        Self { value: 0, rest: TABLE.iter() }
    }

    fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let (Some(high), Some(low)) = (self.rest.next(), self.rest.next()) else {
                return;
            };
            self.value ^= high[usize::from(byte >> 4)] ^ low[usize::from(byte & 0x0F)];
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::net::{Ipv4Addr, Ipv6Addr};
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::testing::{TestPacket, config};

    /// The verification suite of receive side scaling: source, destination, the hash of the
    /// addresses, that of addresses and ports.
    const IPV4_SUITE: [(&str, u16, &str, u16, u32, u32); 5] = [
        ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
        ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
    ];
    const IPV6_SUITE: [(&str, u16, &str, u16, u32, u32); 3] = [
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
        (
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            "fe80::200:f8ff:fe21:67cf",
            38024,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    fn ports(source: u16, destination: u16) -> [u8; 4] {
        let mut bytes = [0; 4];
        bytes[..2].copy_from_slice(&source.to_be_bytes());
        bytes[2..].copy_from_slice(&destination.to_be_bytes());
        bytes
    }

    fn ipv4(protocol: u8, options: usize, fragment: u16, suite: usize) -> Vec<u8> {
        let (source, source_port, destination, destination_port, ..) = IPV4_SUITE[suite];
        let mut bytes = std::vec![0; 20 + options];
        bytes[0] = 0x40 | (bytes.len() / 4) as u8;
        bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
        bytes[9] = protocol;
        let octets = |address: &str| address.parse::<Ipv4Addr>().unwrap().octets();
        bytes[12..16].copy_from_slice(&octets(source));
        bytes[16..20].copy_from_slice(&octets(destination));
        bytes.extend(ports(source_port, destination_port));
        bytes.extend([0xEE; 16]);
        bytes
    }

    fn ipv6(next: u8, extensions: &[u8], suite: usize) -> Vec<u8> {
        let (source, source_port, destination, destination_port, ..) = IPV6_SUITE[suite];
        let mut bytes = std::vec![0; 8];
        bytes[0] = 0x60;
        bytes[6] = next;
        bytes.extend(source.parse::<Ipv6Addr>().unwrap().octets());
        bytes.extend(destination.parse::<Ipv6Addr>().unwrap().octets());
        bytes.extend(extensions);
        bytes.extend(ports(source_port, destination_port));
        bytes.extend([0xEE; 16]);
        bytes
    }

    fn hash(protocol: EtherType, depth: Depth, bytes: &[u8]) -> Option<u32> {
        flow_hash(Framing::Bare(protocol), depth, &TestPacket(bytes.to_vec()))
    }

    #[test]
    fn the_verification_suite_of_receive_side_scaling_is_met() {
        for (number, &(.., addresses, all)) in IPV4_SUITE.iter().enumerate() {
            let packet = ipv4(6, 0, 0, number);
            assert_eq!(hash(EtherType::IPV4, Depth::Addresses, &packet), Some(addresses));
            assert_eq!(hash(EtherType::IPV4, Depth::Ports, &packet), Some(all));
        }
        for (number, &(.., addresses, all)) in IPV6_SUITE.iter().enumerate() {
            let packet = ipv6(6, &[], number);
            assert_eq!(hash(EtherType::IPV6, Depth::Addresses, &packet), Some(addresses));
            assert_eq!(hash(EtherType::IPV6, Depth::Ports, &packet), Some(all));
        }
    }

    #[test]
    fn a_flow_has_one_hash_whatever_carries_it() {
        for (protocol, packet, all) in [
            (EtherType::IPV4, ipv4(17, 0, 0, 0), IPV4_SUITE[0].5),
            (EtherType::IPV6, ipv6(17, &[], 0), IPV6_SUITE[0].5),
        ] {
            let kind = protocol.0.to_be_bytes();
            let addresses = [0x11; 12];
            let vlan = [0x81, 0x00, 0x20, 0x07];
            let provider = [0x88, 0xA8, 0x00, 0x09];
            let encapsulation = [kind[0], kind[1], 0, 0];
            let link_address = [0xFF; 20];
            let fronts: [(Framing, &[&[u8]]); 6] = [
                (Framing::Bare(protocol), &[]),
                (Framing::Encapsulation, &[&encapsulation]),
                (Framing::Addressed, &[&link_address, &encapsulation]),
                (Framing::Ethernet, &[&addresses, &kind]),
                (Framing::Ethernet, &[&addresses, &vlan, &kind]),
                (Framing::Ethernet, &[&addresses, &provider, &vlan, &kind]),
            ];
            for (framing, front) in fronts {
                let frame = [front.concat(), packet.clone()].concat();
                let value = flow_hash(framing, Depth::Ports, &TestPacket(frame));
                assert_eq!(value, Some(all), "{framing:?}");
            }
        }
    }

    #[test]
    fn ports_stand_behind_options_and_extension_headers() {
        let all = Some(IPV4_SUITE[1].5);
        assert_eq!(hash(EtherType::IPV4, Depth::Ports, &ipv4(6, 40, 0, 1)), all);
        // DF is no fragment.
        assert_eq!(hash(EtherType::IPV4, Depth::Ports, &ipv4(6, 0, 0x4000, 1)), all);
        let all = Some(IPV6_SUITE[1].5);
        let hop_by_hop = [43, 0, 0, 0, 0, 0, 0, 0];
        let routing = [51, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let authentication = [60, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let destination = [44, 0, 0, 0, 0, 0, 0, 0];
        let atomic_fragment = [132, 0, 0, 0x06, 1, 2, 3, 4];
        let extensions = [
            &hop_by_hop[..],
            &routing[..],
            &authentication[..],
            &destination[..],
            &atomic_fragment[..],
        ]
        .concat();
        assert_eq!(hash(EtherType::IPV6, Depth::Ports, &ipv6(0, &extensions, 1)), all);
    }

    #[test]
    fn all_fragments_of_a_datagram_have_the_hash_of_its_addresses() {
        let addresses = Some(IPV4_SUITE[2].4);
        for fragment in [0x2000, 0x2001, 0x0001, 0x1FFF] {
            let packet = ipv4(17, 0, fragment, 2);
            assert_eq!(hash(EtherType::IPV4, Depth::Ports, &packet), addresses, "{fragment:x}");
        }
        let addresses = Some(IPV6_SUITE[2].4);
        for place in [[0x00, 0x01], [0x00, 0x08], [0x00, 0x09], [0xFF, 0xF8]] {
            let header = [17, 0, place[0], place[1], 0, 0, 0, 1];
            let packet = ipv6(44, &header, 2);
            assert_eq!(hash(EtherType::IPV6, Depth::Ports, &packet), addresses, "{place:?}");
        }
    }

    #[test]
    fn without_ports_the_addresses_decide() {
        let icmp = ipv4(1, 0, 0, 3);
        assert_eq!(hash(EtherType::IPV4, Depth::Ports, &icmp), Some(IPV4_SUITE[3].4));
        let icmp = ipv6(58, &[], 0);
        assert_eq!(hash(EtherType::IPV6, Depth::Ports, &icmp), Some(IPV6_SUITE[0].4));
        let endless = [0, 0, 0, 0, 0, 0, 0, 0].repeat(EXTENSIONS_MAX + 1);
        let packet = ipv6(0, &endless, 0);
        assert_eq!(hash(EtherType::IPV6, Depth::Ports, &packet), Some(IPV6_SUITE[0].4));
    }

    #[test]
    fn a_header_that_is_cut_has_as_much_of_a_hash_as_is_there() {
        let packet = ipv4(6, 0, 0, 4);
        for length in 0..28 {
            let value = hash(EtherType::IPV4, Depth::Ports, &packet[..length]);
            let expected = match length {
                0..20 => None,
                20..24 => Some(IPV4_SUITE[4].4),
                _ => Some(IPV4_SUITE[4].5),
            };
            assert_eq!(value, expected, "{length}");
        }
        let packet = ipv6(6, &[], 0);
        for length in 0..48 {
            let value = hash(EtherType::IPV6, Depth::Ports, &packet[..length]);
            let expected = match length {
                0..40 => None,
                40..44 => Some(IPV6_SUITE[0].4),
                _ => Some(IPV6_SUITE[0].5),
            };
            assert_eq!(value, expected, "{length}");
        }
    }

    #[test]
    fn what_is_no_ip_has_no_hash() {
        assert_eq!(hash(EtherType::ARP, Depth::Ports, &ipv4(6, 0, 0, 0)), None);
        assert_eq!(hash(EtherType::IPV6, Depth::Ports, &ipv4(6, 0, 0, 0)), None);
        assert_eq!(hash(EtherType::IPV4, Depth::Ports, &ipv6(6, &[], 0)), None);
        let mut short_header = ipv4(6, 0, 0, 0);
        short_header[0] = 0x44;
        assert_eq!(hash(EtherType::IPV4, Depth::Ports, &short_header), None);
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn whatever_the_bytes_are_there_is_an_answer_and_payload_does_not_matter(
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
            version in 0..3,
            tail in any::<u8>(),
        ) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = match version {
                    0 => 0x40 | *first & 0x0F,
                    1 => 0x60,
                    _ => *first,
                };
            }
            for protocol in [EtherType::IPV4, EtherType::IPV6] {
                let addresses = hash(protocol, Depth::Addresses, &bytes);
                let ports = hash(protocol, Depth::Ports, &bytes);
                prop_assert_eq!(addresses.is_some(), ports.is_some());
                let longer = [&bytes[..], &[tail; 3]].concat();
                if ports != addresses {
                    prop_assert_eq!(hash(protocol, Depth::Ports, &longer), ports);
                }
            }
            for framing in [Framing::Encapsulation, Framing::Addressed, Framing::Ethernet] {
                let _ = flow_hash(framing, Depth::Ports, &TestPacket(bytes.clone()));
            }
        }
    }
}
