//! Packets that say of their sender that it takes no connections, whether or not it does.
//!
//! The RC flag of a link-layer address (RFC 4755 2) is cleared where a neighbour learns of it: in
//! ARP packets, and in the address options of neighbour discovery.

/// What is in front of every packet of IPoIB (RFC 4391 6).
const ENCAPSULATION_BYTES: usize = 4;
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xDD];
/// The flag, in the first byte of an address.
const RC: u8 = 0x80;

/// Clears the RC flag of the sender's address.
pub fn hide_rc(packet: &mut [u8]) {
    let Some((header, payload)) = packet.split_at_mut_checked(ENCAPSULATION_BYTES) else {
        return;
    };
    if header.starts_with(&ARP) {
        hide_in_arp(payload);
    } else if header.starts_with(&IPV6) {
        hide_in_neighbor_discovery(payload);
    }
}

/// RFC 4391 9.1.1.
fn hide_in_arp(packet: &mut [u8]) {
    /// Behind what is said of the kinds of addresses.
    const SENDER: usize = 8;
    if let Some(flags) = packet.get_mut(SENDER) {
        *flags &= !RC;
    }
}

/// RFC 4861 4, RFC 4391 9.3.
fn hide_in_neighbor_discovery(packet: &mut [u8]) {
    const NEXT_HEADER: usize = 6;
    const ICMPV6: u8 = 58;
    const MESSAGE: usize = 40;
    if packet.get(NEXT_HEADER) != Some(&ICMPV6) {
        return;
    }
    let Some(message) = packet.get_mut(MESSAGE..) else { return };
    let mut at = match message.first() {
        // Solicitation and advertisement, of routers and of neighbours, and redirects (RFC 4861 4.1
        // to 4.5): their options are behind parts of fixed lengths.
        Some(133) => 8,
        Some(134) => 16,
        Some(135 | 136) => 24,
        Some(137) => 40,
        // wildcard: message types, not an enum.
        _ => return,
    };
    while let Some(&[kind, units]) = message.get(at..at + 2) {
        const SOURCE_ADDRESS: u8 = 1;
        const TARGET_ADDRESS: u8 = 2;
        /// In units of 8 bytes: 2, an address of 20, and 2 of padding.
        const UNITS: u8 = 3;
        if units == 0 {
            return;
        }
        if matches!(kind, SOURCE_ADDRESS | TARGET_ADDRESS) && units == UNITS {
            hide_in_option(message, at);
        }
        at += usize::from(units) * 8;
    }
}

/// The padding is before the address, or, as the network stack of FreeBSD has it, behind.
fn hide_in_option(message: &mut [u8], option: usize) {
    const CHECKSUM: usize = 2;
    let words = [option + 2, option + 4].map(|at| (at, message.get(at..at + 2)));
    let at = match words {
        [(at, Some([RC, _])), _] => at,
        [(_, Some([0, 0])), (at, Some([RC, _]))] => at,
        _ => return,
    };
    if let Some(flags) = message.get_mut(at) {
        *flags &= !RC;
    }
    // RFC 1624 3: the checksum changes by what the word did, which is 0x8000 less.
    if let Some([high, low]) = message.get_mut(CHECKSUM..CHECKSUM + 2) {
        let checksum = u16::from_be_bytes([*high, *low]);
        let (sum, is_carried) = checksum.overflowing_add(u16::from(RC) << 8);
        [*high, *low] = sum.wrapping_add(u16::from(is_carried)).to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use ipoib_rs::wire::internet_checksum;

    use super::*;

    /// The address of a neighbour that takes connections.
    const ADDRESS: [u8; 20] =
        [0x80, 0, 0, 0x48, 0xFE, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1];

    /// A neighbour solicitation with its source address, and its checksum over all but the
    /// addresses of IPv6, which do not change.
    fn solicitation(padding: [&[u8]; 2], flags: u8) -> Vec<u8> {
        let mut address = ADDRESS;
        address[0] = flags;
        let mut message = vec![135, 0, 0, 0];
        message.resize(24, 0x33);
        message.extend([14, 1, 0x80, 0, 0, 0, 0, 0]);
        message.extend([1, 3]);
        message.extend([padding[0], &address, padding[1]].concat());
        let checksum = internet_checksum(&message);
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        let mut packet = vec![0x86, 0xDD, 0, 0, 0x60, 0, 0, 0, 0, 56, 58, 255];
        packet.resize(44, 0x11);
        packet.extend(message);
        packet
    }

    #[test]
    fn the_flag_is_hidden_in_arp() {
        let mut packet = vec![0x80; 60];
        packet[..4].copy_from_slice(&[8, 6, 0, 0]);
        let mut hidden = packet.clone();
        hidden[12] = 0;
        hide_rc(&mut packet);
        assert_eq!(packet, hidden);
    }

    #[test]
    fn the_flag_is_hidden_in_both_forms_of_neighbour_discovery_and_the_checksum_holds() {
        for padding in [[&[][..], &[0, 0]], [&[0, 0], &[]]] {
            let mut packet = solicitation(padding, 0x80);
            hide_rc(&mut packet);
            assert_eq!(packet, solicitation(padding, 0));
            let before = packet.clone();
            hide_rc(&mut packet);
            assert_eq!(packet, before, "it is hidden already");
        }
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        let mut echo = solicitation([&[], &[0, 0]], 0x80);
        echo[44] = 128;
        let mut udp = solicitation([&[], &[0, 0]], 0x80);
        udp[10] = 17;
        let mut endless = solicitation([&[], &[0, 0]], 0x80);
        endless[69] = 0;
        let ipv4 = vec![0x08, 0, 0, 0, 0x45, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80];
        for packet in [echo, udp, endless, ipv4] {
            let mut hidden = packet.clone();
            hide_rc(&mut hidden);
            assert_eq!(hidden, packet);
        }
    }

    #[test]
    fn a_packet_that_ends_anywhere_is_no_fault() {
        let whole = solicitation([&[], &[0, 0]], 0x80);
        for length in 0..whole.len() {
            hide_rc(&mut whole[..length].to_vec());
        }
        hide_rc(&mut [8, 6, 0, 0, 0]);
    }
}
