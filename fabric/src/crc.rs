//! The two checksums of a packet (IBA 7.8).

use ipoib_rs::wire::GRH_BYTES;

use crate::wire::{ICRC_BYTES, LNH_GLOBAL, LRH_BYTES};

/// The ICRC is the CRC-32 of Ethernet, polynomial `0x04C11DB7`, with the bits of a byte reversed
/// (IBA 7.8.1).
const ICRC_TABLE: [u32; 256] = icrc_table();
/// The VCRC is a CRC-16, polynomial `0x100B`, with the bits of a byte reversed (IBA 7.8.2).
const VCRC_TABLE: [u16; 256] = vcrc_table();

const ICRC_POLYNOMIAL_REVERSED: u32 = 0x04C1_1DB7u32.reverse_bits();
const VCRC_POLYNOMIAL_REVERSED: u16 = 0x100Bu16.reverse_bits();

/// The ICRC of a packet, from its LRH to its padding. What a switch or router may change on the way
/// counts as ones (IBA 7.8.1).
pub(crate) fn icrc(packet: &[u8]) -> [u8; ICRC_BYTES] {
    let is_global = packet.get(1).is_some_and(|byte| byte & 0b11 == LNH_GLOBAL);
    let bth = LRH_BYTES + if is_global { GRH_BYTES } else { 0 };
    let mut crc = !0;
    for (position, byte) in packet.iter().enumerate() {
        let masked = byte | variant_bits(position, is_global, bth);
        crc = (crc >> 8) ^ ICRC_TABLE[usize::from(crc as u8 ^ masked)];
    }
    (!crc).to_le_bytes()
}

/// The bits of a byte that may change on the way.
fn variant_bits(position: usize, is_global: bool, bth: usize) -> u8 {
    const TRAFFIC_CLASS_HIGH: usize = LRH_BYTES;
    const FLOW_LABEL_LAST: usize = LRH_BYTES + 3;
    const HOP_LIMIT: usize = LRH_BYTES + 7;
    match position {
        // A router writes another LRH.
        0..LRH_BYTES if is_global => 0xFF,
        // The virtual lane.
        0 => 0xF0,
        TRAFFIC_CLASS_HIGH if is_global => 0x0F,
        TRAFFIC_CLASS_HIGH..=FLOW_LABEL_LAST | HOP_LIMIT if is_global => 0xFF,
        // Reserved, in the BTH.
        _ if position == bth + 4 => 0xFF,
        _ => 0,
    }
}

/// The VCRC of a packet, from its LRH to its ICRC.
pub(crate) fn vcrc(packet: &[u8]) -> [u8; 2] {
    let mut crc: u16 = !0;
    for byte in packet {
        crc = (crc >> 8) ^ VCRC_TABLE[usize::from(crc as u8 ^ byte)];
    }
    (!crc).to_le_bytes()
}

const fn icrc_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < table.len() {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            let carry = crc & 1;
            crc = (crc >> 1) ^ (carry * ICRC_POLYNOMIAL_REVERSED);
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

const fn vcrc_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < table.len() {
        let mut crc = index as u16;
        let mut bit = 0;
        while bit < 8 {
            let carry = crc & 1;
            crc = (crc >> 1) ^ (carry * VCRC_POLYNOMIAL_REVERSED);
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// The local sample packet of IBA 7.8.4, up to its ICRC.
    const LOCAL: [u8; 52] = [
        0x70, 0x12, 0x37, 0x5C, 0x00, 0x0E, 0x17, 0xD2, 0x0A, 0x20, 0x24, 0x87, 0x00, 0x87, 0xB1,
        0xB3, 0x00, 0x0D, 0xEC, 0x2A, 0x01, 0x71, 0x0A, 0x1C, 0x01, 0x5D, 0x40, 0x02, 0x38, 0xF2,
        0x7A, 0x05, 0x00, 0x00, 0x00, 0x0E, 0xBB, 0x88, 0x4D, 0x85, 0xFD, 0x5C, 0xFB, 0xA4, 0x72,
        0x8B, 0xC0, 0x69, 0x0E, 0xD4, 0x00, 0x00,
    ];

    /// The same packet with a GRH, which the specification shows as well.
    const GLOBAL: [u8; 92] = {
        let mut packet = [0; 92];
        let grh = [
            0x60, 0x00, 0x00, 0x00, 0x00, 0x32, 0x00, 0x10, 0, 0, 0, 0, 0, 0, 0x01, 0x25, 0, 0, 0,
            0, 0, 0, 0, 0x26, 0, 0, 0, 0, 0, 0, 0x01, 0x17, 0, 0, 0, 0, 0, 0, 0, 0x96,
        ];
        let mut position = 0;
        while position < packet.len() {
            packet[position] = match position {
                0..8 => LOCAL[position],
                8..48 => grh[position - 8],
                _ => LOCAL[position - 40],
            };
            position += 1;
        }
        packet[1] = 0x13;
        packet[5] = 0x18;
        packet
    };

    /// The division bit by bit, the highest power first, as the specification draws it.
    fn vcrc_by_division(packet: &[u8]) -> u16 {
        let mut remainder: u16 = !0;
        for byte in packet {
            for bit in 0..8 {
                let is_one = (byte >> bit & 1) ^ (remainder >> 15) as u8 != 0;
                remainder = remainder << 1 ^ if is_one { 0x100B } else { 0 };
            }
        }
        !remainder
    }

    #[test]
    fn the_sample_packet_has_the_icrc_of_the_specification() {
        assert_eq!(icrc(&LOCAL), [0x96, 0x25, 0xB7, 0x5A]);
    }

    #[test]
    fn the_vcrc_by_table_is_that_of_the_division() {
        for packet in [&LOCAL[..], &GLOBAL, &[0; 7], &[0xFF; 3], &[]] {
            let [first, second] = vcrc(packet).map(u8::reverse_bits);
            assert_eq!(u16::from_be_bytes([first, second]), vcrc_by_division(packet));
        }
        assert_eq!(VCRC_TABLE[252..], [0x2583, 0x3E22, 0x12C1, 0x0960]);
    }

    #[test]
    fn what_may_change_on_the_way_is_not_in_the_icrc() {
        let variant = |packet: &[u8]| {
            let original = icrc(packet);
            (0..packet.len() * 8)
                .filter(|bit| {
                    let mut changed = packet.to_vec();
                    changed[bit / 8] ^= 0x80 >> (bit % 8);
                    icrc(&changed) == original
                })
                .collect::<Vec<_>>()
        };
        // The virtual lane and the reserved byte of the BTH.
        let expected = (0..4).chain(8 * 12..8 * 13).collect::<Vec<_>>();
        assert_eq!(variant(&LOCAL), expected);
        // The LRH but for its next header, which says where the BTH is; traffic class, flow label,
        // hop limit; the reserved byte.
        let is_next_header = |bit: &usize| (14..16).contains(bit);
        let expected = (0..64)
            .filter(|bit| !is_next_header(bit))
            .chain(8 * 8 + 4..8 * 12)
            .chain(8 * 15..8 * 16)
            .chain(8 * 52..8 * 53)
            .collect::<Vec<_>>();
        assert_eq!(variant(&GLOBAL), expected);
    }
}
