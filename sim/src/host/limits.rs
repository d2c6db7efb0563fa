//! Every limit of a host, with its unit.

use std::time::Duration;

/// The sizes of a host's tables and queues.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HostLimits {
    /// Neighbours, IPv4 and IPv6 together.
    pub neighbors_max: usize,
    /// Packets that wait for an unresolved neighbour.
    pub queue_packets_max: usize,
    /// Bytes of the packets that wait for an unresolved neighbour.
    pub queue_bytes_max: usize,
}

impl HostLimits {
    /// What a host gets: a datagram of 65507 bytes in fragments of 2044 bytes waits whole, twice.
    pub const DEFAULT: Self =
        Self { neighbors_max: 16 * 1024, queue_packets_max: 80, queue_bytes_max: 160 * 1024 };

    /// Small enough that a test fills everything.
    pub const SMALL: Self =
        Self { neighbors_max: 6, queue_packets_max: 34, queue_bytes_max: 72 * 1024 };
}

/// The wait between two solicitations (RFC 4861 10, RETRANS_TIMER).
pub const SOLICIT_RETRY: Duration = Duration::from_secs(1);
/// Solicitations before a neighbour is given up (RFC 4861 10, MAX_MULTICAST_SOLICIT and
/// MAX_UNICAST_SOLICIT).
pub const SOLICIT_TRIES_MAX: u8 = 3;
/// How long a confirmed address is used without a doubt (RFC 4861 10, REACHABLE_TIME).
pub const REACHABLE: Duration = Duration::from_secs(30);
