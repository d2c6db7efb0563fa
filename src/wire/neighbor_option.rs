//! The source and target link-layer address options of neighbour discovery (RFC 4861 4.6.1).
//!
//! An option of 20 address bytes is 24 bytes long, so two bytes of it are padding. RFC 4391 9.3, as
//! Linux has it, puts them before the address; FreeBSD's network stack puts them behind it, writing
//! and reading. A driver that stands between that stack and the fabric rewrites the options on the
//! way. All moves are by whole 16-bit words, which leaves the checksum of the message as it is.

use core::ops::Range;

use zerocopy::FromBytes;

use super::{IPV6_HEADER_BYTES, Ipv6Header, LINK_ADDRESS_BYTES, LinkAddress};
use crate::packet::PacketBuf;

/// Where the two bytes of padding stand.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OptionPadding {
    /// Before the address: on the fabric.
    Before,
    /// Behind the address: in the network stack of FreeBSD.
    Behind,
}

impl OptionPadding {
    const fn address(self) -> Range<usize> {
        match self {
            Self::Before => 4..OPTION_BYTES,
            Self::Behind => 2..2 + LINK_ADDRESS_BYTES,
        }
    }

    const fn padding(self) -> Range<usize> {
        match self {
            Self::Before => 2..4,
            Self::Behind => 2 + LINK_ADDRESS_BYTES..OPTION_BYTES,
        }
    }
}

/// The length of an option with a 20-byte address.
pub const OPTION_BYTES: usize = 24;

/// The longest packet that [`rewrite_address_options`] has to see whole: beyond that there are no
/// address options in any message that neighbour discovery sends, only those of a redirected
/// packet.
pub const NEIGHBOR_DISCOVERY_BYTES_MAX: usize = IPV6_HEADER_BYTES + 40 + 2 * OPTION_BYTES;

const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;

/// Whether a packet, which starts with its IPv6 header, is a message of neighbour discovery.
pub fn is_neighbor_discovery(packet: &impl PacketBuf) -> bool {
    let mut front = [0; IPV6_HEADER_BYTES + 1];
    packet.copy_out(0, &mut front).is_ok() && options_at(&front).is_some()
}

/// Brings every link-layer address option of a neighbour discovery message, which starts with its
/// IPv6 header, into the form `to`. Anything else, and an option that can be read in neither form,
/// stays as it is. `subnet_prefix` is that of the own GID; it decides how an ambiguous option is
/// read. Returns how many options were changed.
pub fn rewrite_address_options(packet: &mut [u8], to: OptionPadding, subnet_prefix: u64) -> usize {
    let Some(mut at) = options_at(packet) else { return 0 };
    let mut count = 0;
    while let Some(&[kind, units]) = packet.get(at..at + 2) {
        let end = at + usize::from(units) * 8;
        // RFC 4861 4.6: "Nodes MUST silently discard an ND packet that contains an option with
        // length zero." That is for the stack to do.
        let Some(option) = packet.get_mut(at..end).filter(|option| !option.is_empty()) else {
            return count;
        };
        let holds_address = kind == SOURCE_ADDRESS || kind == TARGET_ADDRESS;
        if holds_address && rewrite(option, to, subnet_prefix) {
            count += 1;
        }
        at = end;
    }
    count
}

/// The address in an option, in either form; `None` if it is another kind of address.
pub fn read_address_option(option: &[u8], subnet_prefix: u64) -> Option<LinkAddress> {
    let form = form_of(option, subnet_prefix)?;
    LinkAddress::from_bytes(option.get(form.address())?)
}

/// Where the options of a neighbour discovery message begin.
fn options_at(packet: &[u8]) -> Option<usize> {
    let (header, message) = Ipv6Header::read_from_prefix(packet).ok()?;
    if !header.carries_icmp() {
        return None;
    }
    let fixed_bytes = match message.first()? {
        // RFC 4861 4.1 to 4.5: solicitation and advertisement of routers and of neighbours, and
        // redirects, each with its fixed part.
        133 => 8,
        134 => 16,
        135 | 136 => 24,
        137 => 40,
        // wildcard: message types, not an enum.
        _ => return None,
    };
    Some(IPV6_HEADER_BYTES + fixed_bytes)
}

fn rewrite(option: &mut [u8], to: OptionPadding, subnet_prefix: u64) -> bool {
    let Some(from) = form_of(option, subnet_prefix).filter(|&from| from != to) else {
        return false;
    };
    option.copy_within(from.address(), to.address().start);
    option[to.padding()].fill(0);
    true
}

/// The form that an option has. Where both are possible, the one whose address is in the own subnet
/// is right.
fn form_of(option: &[u8], subnet_prefix: u64) -> Option<OptionPadding> {
    let forms = [OptionPadding::Before, OptionPadding::Behind];
    let address = |form: OptionPadding| {
        let is_padded = option.get(form.padding())? == [0, 0];
        let address = LinkAddress::from_bytes(option.get(form.address())?)?;
        (option.len() == OPTION_BYTES && is_padded && !address.gid().is_multicast())
            .then_some(address)
    };
    let is_local = |form: &OptionPadding| {
        address(*form).is_some_and(|address| address.gid().subnet_prefix() == subnet_prefix)
    };
    let is_possible = |form: &OptionPadding| address(*form).is_some();
    forms.into_iter().find(is_local).or_else(|| forms.into_iter().find(is_possible))
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use zerocopy::IntoBytes;

    use super::*;
    use crate::ib::{Gid, Qpn};
    use crate::wire::{AddressFlags, internet_checksum};

    const PREFIX: u64 = Gid::SUBNET_PREFIX_DEFAULT;

    fn address(guid: u64) -> LinkAddress {
        LinkAddress::new(AddressFlags::RC, Qpn::new(0x48).unwrap(), Gid::new(PREFIX, guid))
    }

    fn option(kind: u8, address: &LinkAddress, form: OptionPadding) -> Vec<u8> {
        let mut option = vec![0; OPTION_BYTES];
        option[..2].copy_from_slice(&[kind, 3]);
        option[form.address()].copy_from_slice(address.as_bytes());
        option
    }

    fn message(kind: u8, fixed_bytes: usize, options: &[Vec<u8>]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, 58, 255];
        packet.resize(IPV6_HEADER_BYTES, 0x11);
        packet.push(kind);
        packet.resize(IPV6_HEADER_BYTES + fixed_bytes, 0x22);
        packet.extend(options.iter().flatten());
        packet
    }

    const MESSAGES: [(u8, usize); 5] = [(133, 8), (134, 16), (135, 24), (136, 24), (137, 40)];

    #[test]
    fn every_message_is_rewritten_both_ways_and_keeps_its_checksum() {
        let own = address(0x0002_C903_0000_1234);
        for (kind, fixed_bytes) in MESSAGES {
            let with =
                |form| message(kind, fixed_bytes, &[option(1, &own, form), option(2, &own, form)]);
            let (before, behind) = (with(OptionPadding::Before), with(OptionPadding::Behind));
            assert_eq!(internet_checksum(&before), internet_checksum(&behind));
            let mut packet = behind.clone();
            assert_eq!(rewrite_address_options(&mut packet, OptionPadding::Before, PREFIX), 2);
            assert_eq!(packet, before);
            assert_eq!(rewrite_address_options(&mut packet, OptionPadding::Before, PREFIX), 0);
            assert_eq!(rewrite_address_options(&mut packet, OptionPadding::Behind, PREFIX), 2);
            assert_eq!(packet, behind);
            assert!(packet.len() <= NEIGHBOR_DISCOVERY_BYTES_MAX);
        }
    }

    #[test]
    fn other_options_before_and_after_stay_as_they_are() {
        let own = address(0x0002_C903_0000_1234);
        let mtu = vec![5, 1, 0, 0, 0, 0, 5, 0xDC];
        let nonce = vec![14, 1, 1, 2, 3, 4, 5, 6];
        let behind = option(1, &own, OptionPadding::Behind);
        let mut packet = message(134, 16, &[mtu.clone(), behind, nonce.clone()]);
        assert_eq!(rewrite_address_options(&mut packet, OptionPadding::Before, PREFIX), 1);
        assert_eq!(packet, message(134, 16, &[mtu, option(1, &own, OptionPadding::Before), nonce]));
    }

    #[test]
    fn an_address_that_ends_or_begins_with_zeros_is_told_by_its_subnet() {
        for (flags, guid) in [(AddressFlags::empty(), 0x0002_C903_0001_0000), (AddressFlags::RC, 0)]
        {
            let own = LinkAddress::new(flags, Qpn::new(0x48).unwrap(), Gid::new(PREFIX, guid));
            for form in [OptionPadding::Before, OptionPadding::Behind] {
                assert_eq!(read_address_option(&option(1, &own, form), PREFIX), Some(own));
            }
        }
    }

    #[test]
    fn what_is_no_neighbor_discovery_or_cut_short_is_left_alone() {
        let own = address(1 << 40);
        let whole = message(135, 24, &[option(1, &own, OptionPadding::Behind)]);
        for length in 0..whole.len() {
            let mut packet = whole[..length].to_vec();
            assert_eq!(rewrite_address_options(&mut packet, OptionPadding::Before, PREFIX), 0);
            assert_eq!(packet, whole[..length]);
        }
        let no_length = |packet: &mut Vec<u8>| packet[IPV6_HEADER_BYTES + 24 + 1] = 0;
        let echo = |packet: &mut Vec<u8>| packet[IPV6_HEADER_BYTES] = 128;
        let udp = |packet: &mut Vec<u8>| packet[6] = 17;
        let ipv4 = |packet: &mut Vec<u8>| packet[0] = 0x45;
        let other_length = |packet: &mut Vec<u8>| packet[IPV6_HEADER_BYTES + 24 + 1] = 2;
        for spoil in [no_length, echo, udp, ipv4, other_length] {
            let mut packet = whole.clone();
            spoil(&mut packet);
            let before = packet.clone();
            assert_eq!(rewrite_address_options(&mut packet, OptionPadding::Before, PREFIX), 0);
            assert_eq!(packet, before);
        }
    }
}
