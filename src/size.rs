//! What becomes of a packet that is larger than its neighbour's MTU.
//!
//! A datagram above the MTU of the link is never posted. What happens instead depends on whether
//! the sender allowed fragmentation, and on whether it may be told.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::fragment::Fragments;
use crate::packet::PacketBuf;
use crate::wire::{EtherType, Ipv4Header, Ipv6Header, Ipv6Payload, LinkAddress};

/// What to do with a packet above the MTU.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Oversize {
    /// Send these pieces of it.
    Fragment(Fragments),
    /// Drop it and tell the sender, once: ICMP "fragmentation needed" or ICMPv6 "packet too big".
    Report,
    /// Drop it; nobody may be told.
    Drop,
}

impl Oversize {
    /// Decides about `packet`, larger than the `mtu` of `to`. It starts with the header of
    /// `protocol`.
    pub fn decide(
        packet: &impl PacketBuf,
        protocol: EtherType,
        to: &LinkAddress,
        mtu: usize,
    ) -> Self {
        match protocol {
            EtherType::IPV4 => Self::decide_ipv4(packet, to, mtu),
            EtherType::IPV6 => Self::decide_ipv6(packet, to, mtu),
            // wildcard: protocol numbers, not an enum.
            _ => Self::Drop,
        }
    }

    fn decide_ipv4(packet: &impl PacketBuf, to: &LinkAddress, mtu: usize) -> Self {
        // Bytes behind the end of the IP packet are none that somebody could be told about.
        let Some(header) = Ipv4Header::read(packet).filter(|header| header.total_bytes() > mtu)
        else {
            return Self::Drop;
        };
        if header.must_not_be_fragmented() {
            if may_report_ipv4(packet, &header, to) { Self::Report } else { Self::Drop }
        } else {
            Fragments::new(&header, mtu).map_or(Self::Drop, Self::Fragment)
        }
    }

    fn decide_ipv6(packet: &impl PacketBuf, to: &LinkAddress, mtu: usize) -> Self {
        // RFC 8200 4.5: "fragmentation in IPv6 is performed only by source nodes".
        match Ipv6Header::read(packet).filter(|header| header.total_bytes() > mtu) {
            Some(header) if may_report_ipv6(packet, &header, to) => Self::Report,
            Some(_) | None => Self::Drop,
        }
    }
}

/// RFC 1122 3.2.2 lists what an ICMP error must not answer: an ICMP error, a datagram to an IP
/// multicast or broadcast address, one sent as a link-layer broadcast, a fragment other than the
/// first, and one whose source is not a single host.
fn may_report_ipv4(packet: &impl PacketBuf, header: &Ipv4Header, to: &LinkAddress) -> bool {
    let destination = header.destination();
    let is_to_many =
        to.mgid().is_some() || destination.is_multicast() || destination.is_broadcast();
    !is_to_many
        && header.offset_bytes() == 0
        && is_single_ipv4_host(header.source())
        && !is_icmp_error(packet, header)
}

/// Not "a zero address, a loopback address, a broadcast address, a multicast address, or a Class E
/// address" (RFC 1122 3.2.2). The directed broadcast addresses of the host's subnets are not known
/// here.
fn is_single_ipv4_host(source: Ipv4Addr) -> bool {
    let [class, ..] = source.octets();
    !source.is_unspecified() && !source.is_loopback() && class < 224
}

/// The error messages among the types of ICMP (RFC 1122 3.2.2): destination unreachable, source
/// quench, redirect, time exceeded, parameter problem. One that ends before its type counts as
/// well: nobody could use the answer.
fn is_icmp_error(packet: &impl PacketBuf, header: &Ipv4Header) -> bool {
    let mut kind = [0];
    header.is_icmp()
        && (header.total_bytes() == header.header_bytes()
            || packet.copy_out(header.header_bytes(), &mut kind).is_err()
            || matches!(kind, [3 | 4 | 5 | 11 | 12]))
}

/// RFC 4443 2.4(e) lists what an ICMPv6 error must not answer: an ICMPv6 error or redirect, a
/// packet to a multicast address or sent as link-layer multicast, and one whose source is not a
/// single node.
///
/// It allows "packet too big" as an answer to multicast, for path MTU discovery of groups. This
/// interface does not make use of that: the sender and the group are on the same link, whose MTU
/// the sender has as its own, and the answer would be one per packet of a stream.
fn may_report_ipv6(packet: &impl PacketBuf, header: &Ipv6Header, to: &LinkAddress) -> bool {
    if to.mgid().is_some() || header.destination().is_multicast() {
        return false;
    }
    is_single_ipv6_host(header.source())
        && match header.payload(packet) {
            Some(Ipv6Payload::Icmp(kind)) => !is_icmpv6_error_or_redirect(kind),
            Some(Ipv6Payload::Other) => true,
            // Extension headers that cannot be followed may hide an error message.
            Some(Ipv6Payload::LaterFragment) | None => false,
        }
}

fn is_single_ipv6_host(source: Ipv6Addr) -> bool {
    !source.is_unspecified() && !source.is_multicast()
}

/// RFC 4443 2.1: errors have the high bit of the type clear. RFC 4861 4.5: redirect is 137.
fn is_icmpv6_error_or_redirect(kind: u8) -> bool {
    const REDIRECT: u8 = 137;
    kind < 128 || kind == REDIRECT
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;
    use crate::ib::{Gid, Pkey, Qpn};
    use crate::wire::testing::{TestPacket, config};
    use crate::wire::{AddressFlags, BroadcastGroup, Scope};

    const MTU: usize = 2044;
    const DF: u8 = 0x40;

    fn neighbour() -> LinkAddress {
        let qpn = Qpn::new(0x48).expect("24 bits");
        LinkAddress::new(AddressFlags::empty(), qpn, Gid::new(1, 2))
    }

    fn group() -> LinkAddress {
        LinkAddress::multicast(BroadcastGroup::new(Scope::LINK_LOCAL, Pkey::DEFAULT).mgid())
    }

    /// A UDP packet of 12380 bytes.
    fn ipv4(flags: u8) -> TestPacket {
        let mut bytes = std::vec![
            0x45, 0, 0x30, 0x5C, 0, 1, flags, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
        ];
        bytes.resize(12380, 0);
        TestPacket(bytes)
    }

    /// A UDP packet of 12380 bytes.
    fn ipv6() -> TestPacket {
        let mut bytes = std::vec![0x60, 0, 0, 0, 0x30, 0x34, 17, 64];
        for last in [1, 2] {
            bytes.extend([0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        bytes.resize(12380, 0);
        TestPacket(bytes)
    }

    fn decide(packet: &TestPacket, protocol: EtherType) -> Oversize {
        Oversize::decide(packet, protocol, &neighbour(), MTU)
    }

    /// The decision about an IPv4 packet with DF, `change` made.
    fn decide_ipv4(change: impl FnOnce(&mut [u8])) -> Oversize {
        let mut packet = ipv4(DF);
        change(&mut packet.0);
        decide(&packet, EtherType::IPV4)
    }

    /// The decision about an IPv6 packet, `change` made.
    fn decide_ipv6(change: impl FnOnce(&mut [u8])) -> Oversize {
        let mut packet = ipv6();
        change(&mut packet.0);
        decide(&packet, EtherType::IPV6)
    }

    #[test]
    fn ipv4_without_df_is_fragmented() {
        let Oversize::Fragment(fragments) = decide(&ipv4(0), EtherType::IPV4) else {
            panic!("not fragmented");
        };
        assert_eq!(fragments.count(), 7);
    }

    #[test]
    fn ipv4_with_df_is_reported() {
        assert_eq!(decide(&ipv4(DF), EtherType::IPV4), Oversize::Report);
    }

    #[test]
    fn ipv6_is_reported() {
        assert_eq!(decide(&ipv6(), EtherType::IPV6), Oversize::Report);
    }

    #[test]
    fn other_protocols_are_dropped() {
        let packet = TestPacket(std::vec![0x45; 3000]);
        for protocol in [EtherType::ARP, EtherType::RARP, EtherType(0x88CC)] {
            assert_eq!(decide(&packet, protocol), Oversize::Drop);
        }
    }

    #[test]
    fn link_multicast_is_fragmented_but_never_reported() {
        let decide =
            |packet: TestPacket, protocol| Oversize::decide(&packet, protocol, &group(), MTU);
        assert_eq!(decide(ipv4(DF), EtherType::IPV4), Oversize::Drop);
        assert_eq!(decide(ipv6(), EtherType::IPV6), Oversize::Drop);
        let fragmented = decide(ipv4(0), EtherType::IPV4);
        assert!(matches!(fragmented, Oversize::Fragment(_)));
    }

    #[test]
    fn ip_multicast_and_broadcast_to_a_unicast_neighbour_are_not_reported() {
        for destination in [[224, 0, 0, 1], [239, 1, 2, 3], [255; 4]] {
            let decision = decide_ipv4(|bytes| bytes[16..20].copy_from_slice(&destination));
            assert_eq!(decision, Oversize::Drop, "{destination:?}");
        }
        assert_eq!(decide_ipv6(|bytes| bytes[24] = 0xFF), Oversize::Drop);
    }

    #[test]
    fn senders_that_are_no_single_host_are_not_told() {
        for source in [[0; 4], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4]] {
            let decision = decide_ipv4(|bytes| bytes[12..16].copy_from_slice(&source));
            assert_eq!(decision, Oversize::Drop, "{source:?}");
        }
        assert_eq!(decide_ipv6(|bytes| bytes[8..24].fill(0)), Oversize::Drop);
        assert_eq!(decide_ipv6(|bytes| bytes[8] = 0xFF), Oversize::Drop);
    }

    #[test]
    fn icmp_errors_are_not_reported_but_other_icmp_is() {
        for kind in 0..=u8::MAX {
            let decision = decide_ipv4(|bytes| {
                bytes[9] = 1;
                bytes[20] = kind;
            });
            let is_error = [3, 4, 5, 11, 12].contains(&kind);
            assert_eq!(decision == Oversize::Drop, is_error, "{kind}");
            assert_eq!(decision == Oversize::Report, !is_error, "{kind}");
        }
    }

    #[test]
    fn icmpv6_errors_and_redirects_are_not_reported_but_other_icmpv6_is() {
        for kind in 0..=u8::MAX {
            let decision = decide_ipv6(|bytes| {
                bytes[6] = 58;
                bytes[40] = kind;
            });
            let is_silent = kind < 128 || kind == 137;
            assert_eq!(decision == Oversize::Drop, is_silent, "{kind}");
            assert_eq!(decision == Oversize::Report, !is_silent, "{kind}");
        }
    }

    #[test]
    fn later_fragments_are_not_reported() {
        assert_eq!(decide_ipv4(|bytes| bytes[7] = 1), Oversize::Drop);
        let decision = decide_ipv6(|bytes| {
            bytes[6] = 44;
            bytes[40..44].copy_from_slice(&[17, 0, 0, 8]);
        });
        assert_eq!(decision, Oversize::Drop);
    }

    #[test]
    fn first_fragments_are_reported() {
        let decision = decide_ipv4(|bytes| bytes[6] = DF | 0x20);
        assert_eq!(decision, Oversize::Report);
        let decision = decide_ipv6(|bytes| {
            bytes[6] = 44;
            bytes[40..44].copy_from_slice(&[17, 0, 0, 1]);
        });
        assert_eq!(decision, Oversize::Report);
    }

    #[test]
    fn headers_that_lie_are_dropped() {
        assert_eq!(decide_ipv4(|bytes| bytes[0] = 0x65), Oversize::Drop);
        assert_eq!(decide_ipv4(|bytes| bytes[0] = 0x44), Oversize::Drop);
        assert_eq!(decide_ipv4(|bytes| bytes[2] = 0xFF), Oversize::Drop);
        assert_eq!(decide_ipv6(|bytes| bytes[0] = 0x45), Oversize::Drop);
        assert_eq!(decide_ipv6(|bytes| bytes[4] = 0xFF), Oversize::Drop);
    }

    #[test]
    fn trailing_bytes_behind_a_packet_that_fits_are_dropped() {
        assert_eq!(decide_ipv4(|bytes| bytes[2..4].copy_from_slice(&[0, 64])), Oversize::Drop);
        assert_eq!(decide_ipv6(|bytes| bytes[4..6].copy_from_slice(&[0, 64])), Oversize::Drop);
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn any_bytes_end_in_a_decision_and_no_piece_is_above_the_mtu(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            version in prop::sample::select(std::vec![0x45_u8, 0x4F, 0x60, 0x00]),
            mtu in 0_usize..300,
        ) {
            let mut packet = TestPacket(bytes);
            let length = u16::try_from(packet.0.len()).expect("short").to_be_bytes();
            if let Some(first) = packet.0.get_mut(..4) {
                first.copy_from_slice(&[version, 0, length[0], length[1]]);
            }
            for protocol in [EtherType::IPV4, EtherType::IPV6] {
                match Oversize::decide(&packet, protocol, &neighbour(), mtu) {
                    Oversize::Fragment(fragments) => {
                        let pieces: Vec<_> = fragments.collect();
                        prop_assert!(pieces.len() > 1);
                        for piece in pieces {
                            prop_assert!(piece.header().len() + piece.payload().len() <= mtu);
                            prop_assert!(piece.payload().end <= packet.0.len());
                        }
                    }
                    Oversize::Report => prop_assert!(packet.0.len() > mtu),
                    Oversize::Drop => {}
                }
            }
        }
    }
}
