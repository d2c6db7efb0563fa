//! What a host counts.

/// Why a host ended the life of a packet without sending or delivering it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum HostDrop {
    /// Not a whole IP packet.
    Malformed,
    /// The host has no link-layer address yet.
    LinkUnset,
    /// The destination is on no subnet of the host.
    NoRoute,
    /// Nobody answered for the destination.
    NeighborUnresolved,
    /// The queue of an unresolved neighbour holds as many packets or bytes as it may.
    NeighborQueueFull,
    /// Every place in the neighbour table is taken by an unresolved neighbour.
    NeighborTableFull,
}

impl HostDrop {
    /// Every reason.
    pub const ALL: [Self; 6] = [
        Self::Malformed,
        Self::LinkUnset,
        Self::NoRoute,
        Self::NeighborUnresolved,
        Self::NeighborQueueFull,
        Self::NeighborTableFull,
    ];

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "host_drop_malformed",
            Self::LinkUnset => "host_drop_link_unset",
            Self::NoRoute => "host_drop_no_route",
            Self::NeighborUnresolved => "host_drop_neighbor_unresolved",
            Self::NeighborQueueFull => "host_drop_neighbor_queue_full",
            Self::NeighborTableFull => "host_drop_neighbor_table_full",
        }
    }
}

/// The counters of a host.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostCounters {
    /// ARP requests and neighbour solicitations sent.
    pub solicits_sent: u64,
    /// ARP replies and solicited advertisements sent.
    pub answers_sent: u64,
    /// Gratuitous ARP requests and unsolicited advertisements sent.
    pub announcements_sent: u64,
    /// Received ARP packets and neighbour discovery messages that fail a check.
    pub malformed_received: u64,
    /// Received claims of an own address by somebody else.
    pub conflicts_received: u64,
    /// Echo requests answered.
    pub echoes_answered: u64,
    /// Packets reported as too big to the stack above.
    pub too_big_reported: u64,
    /// Packets that the host could not make because the pool is empty.
    pub pool_exhausted: u64,
    /// Neighbours that made room for others.
    pub neighbors_evicted: u64,
    /// Neighbours that no longer answer.
    pub neighbors_lost: u64,
    drops: [u64; HostDrop::ALL.len()],
}

impl HostCounters {
    /// The packets dropped for `reason`.
    pub fn drops(&self, reason: HostDrop) -> u64 {
        self.drops[reason as usize]
    }

    /// Every counter with its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self {
            solicits_sent,
            answers_sent,
            announcements_sent,
            malformed_received,
            conflicts_received,
            echoes_answered,
            too_big_reported,
            pool_exhausted,
            neighbors_evicted,
            neighbors_lost,
            drops: _,
        } = *self;
        let events = [
            ("host_solicits_sent", solicits_sent),
            ("host_answers_sent", answers_sent),
            ("host_announcements_sent", announcements_sent),
            ("host_malformed_received", malformed_received),
            ("host_conflicts_received", conflicts_received),
            ("host_echoes_answered", echoes_answered),
            ("host_too_big_reported", too_big_reported),
            ("host_pool_exhausted", pool_exhausted),
            ("host_neighbors_evicted", neighbors_evicted),
            ("host_neighbors_lost", neighbors_lost),
        ];
        let drops = HostDrop::ALL.map(|reason| (reason.name(), self.drops(reason)));
        events.into_iter().chain(drops)
    }

    pub(super) fn count_drop(&mut self, reason: HostDrop) {
        self.drops[reason as usize] += 1;
    }
}
