//! Values with a selector: MTU, rate and packet life time in SA records (IBA 15.2.5.16).

use ipoib_rs::ib::RateCode;

/// How a value in a request is meant: the two bits in front of MTU, rate and packet life time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Selector {
    /// Greater than the value.
    Greater = 0,
    /// Less than the value.
    Less = 1,
    /// Exactly the value. Answers carry this one.
    Exactly = 2,
    /// The largest that is available (for a packet life time the smallest); the value is ignored.
    Largest = 3,
}

impl Selector {
    /// The byte that carries the selector and a value of 6 bits.
    pub const fn pack(self, value: u8) -> u8 {
        ((self as u8) << 6) | (value & 0x3F)
    }

    /// The selector and the value of 6 bits.
    pub const fn unpack(byte: u8) -> (Self, u8) {
        let selector = match byte >> 6 {
            0 => Self::Greater,
            1 => Self::Less,
            2 => Self::Exactly,
            _ => Self::Largest,
        };
        (selector, byte & 0x3F)
    }

    /// Whether `offered` is what a request for `wanted` asks for.
    pub fn accepts<V: Ord>(self, offered: V, wanted: V) -> bool {
        match self {
            Self::Greater => offered > wanted,
            Self::Less => offered < wanted,
            Self::Exactly => offered == wanted,
            Self::Largest => true,
        }
    }
}

/// A rate in Mb/s; `None` for a reserved code (IBA 15.2.5.16). The codes are in the order in which
/// they were invented, so that rates must be compared by their speed.
pub const fn rate_mbps(rate: RateCode) -> Option<u32> {
    match rate.code() {
        2 => Some(2_500),
        3 => Some(10_000),
        4 => Some(30_000),
        5 => Some(5_000),
        6 => Some(20_000),
        7 => Some(40_000),
        8 => Some(60_000),
        9 => Some(80_000),
        10 => Some(120_000),
        11 => Some(14_000),
        12 => Some(56_000),
        13 => Some(112_000),
        14 => Some(168_000),
        15 => Some(25_000),
        16 => Some(100_000),
        17 => Some(200_000),
        18 => Some(300_000),
        19 => Some(28_000),
        20 => Some(50_000),
        21 => Some(400_000),
        22 => Some(600_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_unpacks_and_packs_to_itself() {
        for byte in 0..=u8::MAX {
            let (selector, value) = Selector::unpack(byte);
            assert_eq!(selector.pack(value), byte);
        }
    }

    #[test]
    fn selectors_compare_as_their_names_say() {
        assert!(Selector::Greater.accepts(5, 4) && !Selector::Greater.accepts(4, 4));
        assert!(Selector::Less.accepts(3, 4) && !Selector::Less.accepts(4, 4));
        assert!(Selector::Exactly.accepts(4, 4) && !Selector::Exactly.accepts(5, 4));
        assert!(Selector::Largest.accepts(0, 4));
    }

    #[test]
    fn rates_are_compared_by_speed_not_by_code() {
        let mbps = |code| rate_mbps(RateCode::new(code).unwrap());
        assert!(mbps(5) < mbps(3), "5 Gb/s has the larger code but is slower than 10 Gb/s");
        assert_eq!(mbps(0), None);
        assert_eq!(mbps(1), None);
        assert_eq!(mbps(23), None);
        let known = (0..64).filter(|&code| mbps(code).is_some()).count();
        assert_eq!(known, 21);
    }
}
