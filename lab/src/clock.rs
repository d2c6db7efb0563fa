//! The monotonic clock as instants of the core.

use std::time;

use ipoib_rs::time::Instant;

/// Real time since the lab started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: time::Instant,
}

impl Clock {
    /// Starts at zero.
    pub(crate) fn start() -> Self {
        Self { start: time::Instant::now() }
    }

    /// Now.
    pub(crate) fn now(&self) -> Instant {
        // 2^64 nanoseconds are 584 years.
        Instant::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
