//! The checksum of the Internet protocols (RFC 1071).

/// The one's complement of the one's complement sum of the 16-bit words of `bytes`; a last odd byte
/// is padded with a zero.
///
/// Over bytes that contain a right checksum the result is 0.
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<2>();
    let odd = rest.first().map_or(0, |&byte| u64::from(byte) << 8);
    let sum =
        words.iter().fold(odd, |sum, &word| sum.wrapping_add(u64::from(u16::from_be_bytes(word))));
    !fold(sum)
}

/// Adds the carries back in until none is left.
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
    let sum = (sum & 0xFFFF) + (sum >> 16 & 0xFFFF) + (sum >> 32);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    // CAST: no carry is left above 16 bits.
    sum as u16
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::wire::testing::config;

    #[test]
    fn example_of_rfc_1071_comes_out() {
        let words = [0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7];
        assert_eq!(internet_checksum(&words), !0xDDF2);
    }

    #[test]
    fn an_odd_byte_is_the_high_half_of_a_word() {
        assert_eq!(internet_checksum(&[0x12]), !0x1200);
        assert_eq!(internet_checksum(&[]), 0xFFFF);
    }

    #[test]
    fn no_carry_is_lost_in_the_longest_packet() {
        assert_eq!(internet_checksum(&vec![0xFF; 65536]), 0);
        assert_eq!(fold(u64::MAX), 0xFFFF);
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn words_with_their_checksum_sum_to_zero(mut bytes: Vec<u8>) {
            if bytes.len() % 2 == 1 {
                bytes.push(0);
            }
            bytes.extend(internet_checksum(&bytes).to_be_bytes());
            prop_assert_eq!(internet_checksum(&bytes), 0);
        }
    }
}
