//! How a run ends.

use std::fmt;

use ipoib_rs::time::Instant;

/// What is wrong.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum FailureKind {
    /// Something happened that must never happen.
    Safety,
    /// Something did not happen in time although nothing hinders it.
    Liveness,
    /// Something was not given back.
    Leak,
    /// Two runs of one seed differ.
    NonDeterminism,
    /// The code under test panicked.
    Crash,
}

impl FailureKind {
    /// The exit code of a process that found it. A panic has that of a Rust process.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Safety => 2,
            Self::Liveness => 3,
            Self::Leak => 4,
            Self::NonDeterminism => 5,
            Self::Crash => 101,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Safety => "safety",
            Self::Liveness => "liveness",
            Self::Leak => "leak",
            Self::NonDeterminism => "non-determinism",
            Self::Crash => "crash",
        }
    }
}

/// Why a run failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    /// What is wrong.
    pub kind: FailureKind,
    /// When it was noticed.
    pub at: Instant,
    /// What was found, for people.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, at, what } = self;
        let millis = at.as_nanos() / 1_000_000;
        write!(f, "{} at {millis} ms: {what}", kind.name())
    }
}
