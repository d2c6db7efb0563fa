//! The numbers of communication management as types.

use core::time::Duration;

/// A communication id: the name that one side gave to a connection (IBA 12.6.5, 12.7.1).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CommId(pub u32);

/// Defines a number of a few bits.
macro_rules! small_number {
    ($(#[$doc:meta])* $name:ident, $bits:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name(u8);

        impl $name {
            /// The largest value.
            pub const MAX: Self = Self((1 << $bits) - 1);

            /// `None` for a value that needs more bits.
            pub const fn new(value: u8) -> Option<Self> {
                if value <= Self::MAX.0 { Some(Self(value)) } else { None }
            }

            /// From the highest bits of a byte.
            pub(crate) const fn from_high_bits(byte: u8) -> Self {
                Self(byte >> (8 - $bits))
            }

            /// In the highest bits of a byte.
            pub(crate) const fn high_bits(self) -> u8 {
                self.0 << (8 - $bits)
            }

            /// The value.
            pub const fn value(self) -> u8 {
                self.0
            }
        }
    };
}

small_number! {
    /// How often a queue pair tries again (IBA 12.7.38, 12.7.39), 3 bits; as RNR retry count, 7
    /// means for ever.
    RetryCount, 3
}

small_number! {
    /// How often a message is sent again without an answer (Max CM Retries, IBA 12.7.27), 4 bits.
    CmRetries, 4
}

small_number! {
    /// A time as an exponent: 4.096 us times 2 to the power of the code (IBA 12.7.4), 5 bits.
    TimeoutCode, 5
}

impl RetryCount {
    /// From the lowest bits of a byte.
    pub(crate) const fn from_low_bits(byte: u8) -> Self {
        Self(byte & Self::MAX.0)
    }
}

impl TimeoutCode {
    const UNIT_NANOS: u64 = 4096;

    /// The time.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(Self::UNIT_NANOS << self.0)
    }

    /// The shortest time that is not below `span`, or the longest there is.
    pub const fn at_least(span: Duration) -> Self {
        let mut code = Self(0);
        while code.0 < Self::MAX.0 && code.duration().as_nanos() < span.as_nanos() {
            code = Self(code.0 + 1);
        }
        code
    }
}

/// Which message a MRA or a REJ speaks of (IBA 12.6.6, 12.6.7), 2 bits.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum MessageKind {
    /// REQ.
    Request = 0,
    /// REP.
    Reply = 1,
    /// Another one: LAP in a MRA, none in particular in a REJ.
    Other = 2,
}

impl MessageKind {
    /// From the two highest bits of a byte; `None` for the reserved value.
    pub(crate) const fn from_high_bits(byte: u8) -> Option<Self> {
        match byte >> 6 {
            0 => Some(Self::Request),
            1 => Some(Self::Reply),
            2 => Some(Self::Other),
            _ => None,
        }
    }

    /// In the two highest bits of a byte.
    pub(crate) const fn high_bits(self) -> u8 {
        (self as u8) << 6
    }
}
