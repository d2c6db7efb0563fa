//! Packet sequence numbers (IBA 9.7.1).

/// A packet sequence number: 24 bits, and after the largest comes 0.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Psn(u32);

const MASK: u32 = 0x00FF_FFFF;

impl Psn {
    /// The largest.
    pub const MAX: Self = Self(MASK);

    /// `None` above 24 bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= MASK { Some(Self(value)) } else { None }
    }

    /// The 24 bits of the number.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & MASK)
    }

    /// The number before this one.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1) & MASK)
    }

    /// The packets from `earlier` to this one. What lies before `earlier` comes out as
    /// [`Self::WINDOW`] or more.
    pub const fn distance_from(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & MASK
    }

    /// Half of all numbers: no more packets are unacknowledged, so that old and new can be told
    /// apart (IBA 9.7.1).
    pub const WINDOW: u32 = 1 << 23;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_follows_the_largest_number() {
        assert_eq!(Psn::MAX.plus(1), Psn::default());
        assert_eq!(Psn::default().previous(), Psn::MAX);
        assert_eq!(Psn::new(3).unwrap().distance_from(Psn::MAX), 4);
        assert_eq!(Psn::new(0x0100_0000), None);
    }

    #[test]
    fn what_lies_behind_is_farther_than_the_window() {
        let psn = Psn::new(5).unwrap();
        assert_eq!(psn.previous().distance_from(psn), 0x00FF_FFFF);
        assert!(psn.previous().distance_from(psn) >= Psn::WINDOW);
        assert!(psn.plus(Psn::WINDOW - 1).distance_from(psn) < Psn::WINDOW);
    }
}
