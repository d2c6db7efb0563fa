//! The kernel's clock and its random numbers.

use ipoib_rs::time::Instant;
use sys_bindings as sys;

use crate::context::MaySleep;

/// Time since the machine was booted. Monotonic.
pub fn now() -> Instant {
    // SAFETY: it reads the timecounter; legal everywhere.
    Instant::from_nanos(nanos(unsafe { sys::rust_helper_sbinuptime() }))
}

/// Lets time pass.
pub fn pause_ms(span: u32, _may_sleep: &MaySleep) {
    // SAFETY: may sleep, as the argument proves.
    unsafe { sys::rust_helper_pause_ms(span) }
}

/// A number that nobody can foretell (arc4random(9)).
pub fn random_seed() -> u64 {
    // SAFETY: it may take a spin lock of its own; legal in threads.
    unsafe { sys::rust_helper_random() }
}

/// Nanoseconds of a time in the kernel's format, which has seconds in the upper 32 bits and a
/// binary fraction of one in the lower.
const fn nanos(time: i64) -> u64 {
    // CAST: the time since boot is not negative, and the halves are taken apart.
    let seconds = (time as u64) >> 32;
    let fraction = time as u64 & 0xffff_ffff;
    seconds * NANOS_PER_SECOND + ((fraction * NANOS_PER_SECOND) >> 32)
}

/// An instant in the kernel's format, rounded up: a deadline is not early.
pub(crate) const fn kernel_time(at: Instant) -> i64 {
    let seconds = at.as_nanos() / NANOS_PER_SECOND;
    let rest = at.as_nanos() % NANOS_PER_SECOND;
    if seconds > i32::MAX as u64 {
        return i64::MAX;
    }
    let fraction = (rest << 32).div_ceil(NANOS_PER_SECOND);
    // CAST: the seconds have 31 bits.
    ((seconds << 32) + fraction) as i64
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_second_is_half_of_the_binary_fraction() {
        assert_eq!(nanos(7 << 32 | 1 << 31), 7_500_000_000);
        assert_eq!(kernel_time(Instant::from_millis(7_500)), 7 << 32 | 1 << 31);
    }

    #[test]
    fn a_deadline_is_not_before_its_instant() {
        for nanos_at in [1, 999_999_999, 1_000_000_001, 123_456_789_123] {
            let at = kernel_time(Instant::from_nanos(nanos_at));
            assert!(nanos(at) >= nanos_at, "{nanos_at}");
            assert!(nanos(at) <= nanos_at + 1, "{nanos_at}");
        }
    }

    #[test]
    fn an_instant_that_never_comes_is_one_for_the_kernel_too() {
        assert_eq!(kernel_time(Instant::from_nanos(u64::MAX)), i64::MAX);
    }
}
