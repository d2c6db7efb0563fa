//! The Internet checksum (RFC 1071).

use std::net::Ipv6Addr;

use super::Protocol;

/// A running ones' complement sum.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum(u64);

impl Checksum {
    /// The sum of the pseudo-header of IPv6 (RFC 8200 8.1) for `bytes` bytes of `protocol`.
    pub fn pseudo_ipv6(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        protocol: Protocol,
        bytes: usize,
    ) -> Self {
        Self::default()
            .with(&source.octets())
            .with(&destination.octets())
            .with_word(bytes as u64)
            .with_word(u64::from(protocol.0))
    }

    /// Adds bytes; an odd last byte counts as if a zero followed (RFC 1071 4.1).
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        let words = bytes.chunks(2).map(|pair| match *pair {
            [high, low] => u64::from(u16::from_be_bytes([high, low])),
            [high] => u64::from(u16::from_be_bytes([high, 0])),
            _ => 0,
        });
        Self(self.0 + words.sum::<u64>())
    }

    /// The complement of the sum, as it stands in a header.
    pub fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xFFFF {
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        !(sum as u16)
    }

    /// Whether the bytes added so far, a checksum among them, are intact.
    pub fn is_intact(self) -> bool {
        self.finish() == 0
    }

    fn with_word(self, word: u64) -> Self {
        Self(self.0 + word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_the_rfc_example_is_right() {
        // RFC 1071 3: the sum of these bytes is DDF2.
        let bytes = [0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7];
        assert_eq!(Checksum::default().with(&bytes).finish(), !0xDDF2);
    }

    #[test]
    fn odd_last_byte_counts_as_high_byte() {
        assert_eq!(Checksum::default().with(&[0x12]).finish(), !0x1200);
    }

    #[test]
    fn bytes_with_their_own_checksum_are_intact() {
        let bytes = [0x45, 0x00, 0x12, 0x34];
        let sum = Checksum::default().with(&bytes).finish();
        let whole = Checksum::default().with(&bytes).with(&sum.to_be_bytes());
        assert!(whole.is_intact());
        assert!(!whole.with(&[0x00, 0x01]).is_intact());
    }
}
