//! Every limit, with its unit. Sizes are fixed at attach.

use core::time::Duration;

/// The sizes of an interface's tables and rings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Sends posted at the same time.
    pub send_queue_len: u32,
    /// Receives posted at the same time.
    pub receive_queue_len: u32,
    /// Neighbours.
    pub paths_max: u32,
    /// Multicast groups, the broadcast group included.
    pub groups_max: u32,
    /// Packets that wait for a path, per path.
    pub path_queue_packets_max: u32,
    /// Bytes of the packets that wait for a path, per path.
    pub path_queue_bytes_max: u32,
    /// Packets that wait for a group, per group.
    pub group_queue_packets_max: u32,
    /// Bytes of the packets that wait for a group, per group.
    pub group_queue_bytes_max: u32,
    /// Packets that wait for anything, per interface.
    pub pending_packets_max: u32,
    /// Packets that wait for a connection, per connection.
    pub held_packets_max: u32,
    /// Bytes of the packets that wait for a connection, per connection.
    pub held_bytes_max: u32,
    /// Connections to send on.
    pub outgoing_max: u32,
    /// Connections to receive from, with a shared receive queue.
    pub incoming_max: u32,
    /// Connections to receive from without one, each with receives of its own.
    pub incoming_unshared_max: u32,
    /// Receives posted on the shared receive queue.
    pub shared_receive_queue_len: u32,
    /// Receives posted per connection without a shared receive queue.
    pub connection_receive_queue_len: u32,
}

impl Limits {
    /// What an interface of a host gets.
    pub const DEFAULT: Self = Self {
        send_queue_len: 256,
        receive_queue_len: 512,
        paths_max: 1024,
        groups_max: 256,
        path_queue_packets_max: 64,
        path_queue_bytes_max: 1024 * 1024,
        group_queue_packets_max: 16,
        group_queue_bytes_max: 64 * 1024,
        pending_packets_max: 1024,
        held_packets_max: 64,
        held_bytes_max: 1024 * 1024,
        outgoing_max: 512,
        incoming_max: 512,
        incoming_unshared_max: 16,
        shared_receive_queue_len: 256,
        connection_receive_queue_len: 32,
    };

    /// Small enough that a test fills every queue.
    pub const SMALL: Self = Self {
        send_queue_len: 8,
        receive_queue_len: 8,
        paths_max: 4,
        groups_max: 8,
        path_queue_packets_max: 36,
        path_queue_bytes_max: 72 * 1024,
        group_queue_packets_max: 3,
        group_queue_bytes_max: 8 * 1024,
        pending_packets_max: 64,
        held_packets_max: 4,
        held_bytes_max: 128 * 1024,
        outgoing_max: 3,
        incoming_max: 3,
        incoming_unshared_max: 2,
        shared_receive_queue_len: 8,
        connection_receive_queue_len: 4,
    };

    /// Whether every table has a place, and all together can be numbered.
    pub(crate) fn are_usable(&self) -> bool {
        let Self {
            send_queue_len,
            receive_queue_len,
            paths_max,
            groups_max,
            path_queue_packets_max,
            path_queue_bytes_max,
            group_queue_packets_max,
            group_queue_bytes_max,
            pending_packets_max,
            held_packets_max,
            held_bytes_max,
            outgoing_max,
            incoming_max,
            incoming_unshared_max,
            shared_receive_queue_len,
            connection_receive_queue_len,
        } = *self;
        let all = [
            send_queue_len,
            receive_queue_len,
            paths_max,
            groups_max,
            path_queue_packets_max,
            path_queue_bytes_max,
            group_queue_packets_max,
            group_queue_bytes_max,
            pending_packets_max,
            held_packets_max,
            held_bytes_max,
            outgoing_max,
            incoming_max,
            incoming_unshared_max,
            shared_receive_queue_len,
            connection_receive_queue_len,
        ];
        all.into_iter().all(|limit| (1..=LIMIT_MAX).contains(&limit))
    }

    /// Connections, outgoing and incoming.
    pub const fn connections_max(&self) -> u32 {
        self.outgoing_max + self.incoming_max
    }

    /// Address handles: one per path and group, as many again that are being replaced.
    pub const fn handles_max(&self) -> u32 {
        2 * (self.paths_max + self.groups_max)
    }
}

/// The sizes of a lagg's tables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LaggLimits {
    /// Ports.
    pub ports_max: u32,
    /// Multicast groups, the broadcast group not included.
    pub groups_max: u32,
}

impl LaggLimits {
    /// What a lagg of a host gets.
    pub const DEFAULT: Self = Self { ports_max: 8, groups_max: 256 };

    /// Small enough that a test fills every table.
    pub const SMALL: Self = Self { ports_max: 3, groups_max: 4 };
}

/// The largest value of a limit: sums and products of a few of them stay within 32 bits.
pub const LIMIT_MAX: u32 = 1 << 24;
/// The largest MTU in connected mode: 64 KiB less 16 bytes, so that it fits an IP packet's length
/// with room for the encapsulation header.
pub const CONNECTED_MTU_MAX: usize = 65520;
/// The smallest MTU of an interface: what IPv6 needs (RFC 8200 5).
pub const MTU_MIN: usize = 1280;
/// The first wait before a neighbour that refused a connection is asked again; doubled up to
/// [`CONNECT_RETRY_MAX`].
pub const CONNECT_RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest such wait.
pub const CONNECT_RETRY_MAX: Duration = Duration::from_secs(64);
/// How long an incoming connection may be silent before it is given up.
pub const INCOMING_IDLE_MAX: Duration = Duration::from_secs(600);
/// How long a peer may go on sending on a connection that it is to give up.
pub const LINGER_MAX: Duration = Duration::from_secs(5);
/// How long an incoming connection may be silent before it makes room for another peer's, when the
/// table is full.
pub const INCOMING_YIELD_AFTER: Duration = Duration::from_secs(30);
/// The first wait after the SA refused or was busy; doubled up to [`RETRY_MAX`].
pub const RETRY_FIRST: Duration = Duration::from_millis(100);
/// The longest wait between two tries to join a group.
pub const RETRY_MAX: Duration = Duration::from_secs(16);
/// The wait before a path that could not be resolved is asked for again; doubled up to
/// [`PATH_RETRY_MAX`].
pub const PATH_RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest such wait.
pub const PATH_RETRY_MAX: Duration = Duration::from_secs(8);
/// How long a packet may wait for a path or a group.
pub const PENDING_MAX: Duration = Duration::from_secs(4);
/// How long completions may take to come after the queue pair went to the error state.
pub const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How long a queue pair that could not be opened or reset is left alone.
pub const REOPEN_AFTER: Duration = Duration::from_secs(1);
/// Tries to tell the SA that a group is left; the subnet manager finds out by itself after that.
pub const LEAVE_TRIES_MAX: u8 = 4;
/// How often a receive that could not be posted is tried again.
pub const RECEIVE_REFILL: Duration = Duration::from_millis(20);
/// Tries at a send-only group before its packets are dropped.
pub const SEND_ONLY_TRIES_MAX: u8 = 2;
/// How long a port has to have its link before a port that carries makes way for it, unless the
/// administrator says otherwise.
pub const LAGG_HOLD_DOWN: Duration = Duration::from_millis(500);
/// How often a lagg looks at its ports, unless the administrator says otherwise.
pub const LAGG_UPDATE_INTERVAL: Duration = Duration::from_secs(1);
/// The MTU of a lagg without ports, as of any new interface of FreeBSD.
pub const LAGG_MTU_IDLE: usize = 1500;

// A datagram of 65507 bytes, in fragments for the smallest fabric that IPoIB is used on, waits
// whole.
const _: () = assert!(Limits::DEFAULT.path_queue_packets_max >= 33);
const _: () = assert!(Limits::DEFAULT.path_queue_bytes_max >= 33 * 2048);
const _: () = assert!(Limits::SMALL.path_queue_packets_max >= 33);
const _: () = assert!(Limits::SMALL.path_queue_bytes_max >= 33 * 2048);
