//! Random numbers from a seed: the same seed, the same numbers, on every machine.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A generator: SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// 2014).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The step between states: 2^64 divided by the golden ratio, odd.
    const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

    /// A generator that yields the numbers of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator whose numbers are independent of those of this one.
    pub fn split(&mut self) -> Self {
        Self::new(self.word())
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(Self::GAMMA);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in the range; its start if the range is empty.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let width = range.end().saturating_sub(*range.start());
        range.start() + self.below(width.saturating_add(1))
    }

    /// A span in the range, in whole microseconds.
    pub fn span(&mut self, range: RangeInclusive<Duration>) -> Duration {
        let micros = |span: &Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.within(micros(range.start())..=micros(range.end())))
    }

    /// True in `permille` of 1000 cases.
    pub fn chance(&mut self, permille: u16) -> bool {
        self.below(1000) < u64::from(permille)
    }

    /// One of the items; `None` if there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_seed_are_those_of_the_reference() {
        // The first outputs of the published C code for the seed 1234567.
        let mut random = Random::new(1_234_567);
        let expected =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([(); 3].map(|()| random.word()), expected);
    }

    #[test]
    fn ranges_are_reached_to_both_ends_and_not_left() {
        let mut random = Random::new(7);
        let mut seen = [false; 4];
        for _ in 0..200 {
            seen[(random.within(10..=13) - 10) as usize] = true;
        }
        assert_eq!(seen, [true; 4]);
        assert_eq!(random.below(0), 0);
        assert_eq!(random.within(5..=5), 5);
    }

    #[test]
    fn chance_keeps_its_odds() {
        let mut random = Random::new(7);
        let hits = (0..10_000).filter(|_| random.chance(250)).count();
        assert!((2300..2700).contains(&hits), "{hits}");
        assert!(!random.chance(0));
        assert!(random.chance(1000));
    }
}
