//! Counters: one per drop reason, one per event, the same name in code, sysctl and log.

/// Declares an enum whose variants are counted, with the name that admins see.
macro_rules! counted {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $label:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// Every variant, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in sysctl and log.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }
        }
    };
}

/// Declares `Counters`: one for each variant of the `DropReason` and the `Counter` beside it. The
/// visibility says who may count.
macro_rules! counters {
    ($(#[$meta:meta])* $visibility:vis) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Eq, PartialEq)]
        pub struct Counters {
            drops: [u64; DropReason::ALL.len()],
            events: [u64; Counter::ALL.len()],
        }

        impl Default for Counters {
            fn default() -> Self {
                Self { drops: [0; DropReason::ALL.len()], events: [0; Counter::ALL.len()] }
            }
        }

        impl Counters {
            $visibility fn count(&mut self, counter: Counter) {
                if let Some(value) = self.events.get_mut(counter as usize) {
                    *value = value.wrapping_add(1);
                }
            }

            $visibility fn count_drop(&mut self, reason: DropReason) {
                if let Some(value) = self.drops.get_mut(reason as usize) {
                    *value = value.wrapping_add(1);
                }
            }

            /// Every counter with its name, drops first.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let drops = DropReason::ALL.iter().map(|&reason| (reason.name(), self[reason]));
                let events = Counter::ALL.iter().map(|&counter| (counter.name(), self[counter]));
                drops.chain(events)
            }

            /// All drops together.
            pub fn drops_total(&self) -> u64 {
                self.drops.iter().sum()
            }
        }

        impl core::ops::Index<DropReason> for Counters {
            type Output = u64;

            fn index(&self, reason: DropReason) -> &u64 {
                &self.drops[reason as usize]
            }
        }

        impl core::ops::Index<Counter> for Counters {
            type Output = u64;

            fn index(&self, counter: Counter) -> &u64 {
                &self.events[counter as usize]
            }
        }
    };
}

pub(crate) use {counted, counters};

counted! {
    /// Why a packet ended without being sent or delivered.
    DropReason {
        /// The interface is down, draining or detached.
        InterfaceDown = "drop_interface_down",
        /// The interface is up but has no carrier: port, P_Key or broadcast group are missing.
        LinkDown = "drop_link_down",
        /// The destination is neither a unicast address nor a group of this interface.
        InvalidDestination = "drop_invalid_destination",
        /// The path's pending queue holds as many packets or bytes as it may.
        PathQueueFull = "drop_path_queue_full",
        /// Every place in the path table is taken by a path that is in use.
        PathTableFull = "drop_path_table_full",
        /// The SA has no path, or did not say in time.
        PathUnresolved = "drop_path_unresolved",
        /// The group's pending queue holds as many packets or bytes as it may.
        GroupQueueFull = "drop_group_queue_full",
        /// Every place in the group table is taken by a group that is in use.
        GroupTableFull = "drop_group_table_full",
        /// The group could not be joined.
        GroupUnjoined = "drop_group_unjoined",
        /// The packet waited for a path or group as long as it may.
        PendingExpired = "drop_pending_expired",
        /// Every place in the interface's packet store is taken.
        PendingStoreFull = "drop_pending_store_full",
        /// As many packets or bytes wait for the connection as may.
        ConnectionQueueFull = "drop_connection_queue_full",
        /// No address handle could be made.
        HandleFailed = "drop_handle_failed",
        /// The adapter refused the send.
        PostFailed = "drop_post_failed",
        /// No room for the encapsulation header.
        NoHeadroom = "drop_no_headroom",
        /// Larger than the neighbour's MTU; the sender was told by ICMP.
        TooBigReported = "drop_too_big_reported",
        /// Larger than the neighbour's or group's MTU, and no answer is allowed: multicast, an ICMP
        /// error, a later fragment, no IP.
        TooBigSilent = "drop_too_big_silent",
        /// Larger than the neighbour's MTU, and a fragment could not be made.
        FragmentFailed = "drop_fragment_failed",
        /// Received: shorter than a GRH and the encapsulation header.
        FrameTooShort = "drop_frame_too_short",
        /// Received: the interface's own multicast, come back.
        OwnMulticast = "drop_own_multicast",
        /// Received while the interface was not up.
        ReceivedWhileDown = "drop_received_while_down",
    }
}

counted! {
    /// What happened, other than a drop.
    Counter {
        /// Packets that the adapter reported as sent.
        PacketsSent = "tx_packets",
        /// Their bytes, encapsulation header included.
        BytesSent = "tx_bytes",
        /// Sent to a group, of the above.
        MulticastSent = "tx_multicast_packets",
        /// Sends that the adapter reported as failed.
        SendFailed = "tx_failed",
        /// Sends that came back because the queue pair was in error.
        SendFlushed = "tx_flushed",
        /// IPv4 packets that were fragmented to a neighbour's MTU.
        Fragmented = "tx_fragmented_packets",
        /// Packets given back because the send ring was full.
        SendRefused = "tx_ring_full",
        /// Packets delivered to the network stack.
        PacketsReceived = "rx_packets",
        /// Their bytes, encapsulation header included.
        BytesReceived = "rx_bytes",
        /// Received from a group, of the above.
        MulticastReceived = "rx_multicast_packets",
        /// Receives that the adapter reported as failed.
        ReceiveFailed = "rx_failed",
        /// Receives that could not be posted.
        ReceivePostFailed = "rx_post_failed",
        /// Path queries sent.
        PathQueries = "path_queries",
        /// Path queries that the SA refused, or did not answer in time.
        PathQueriesFailed = "path_queries_failed",
        /// Paths whose address handle was replaced because the record changed.
        PathsReplaced = "paths_replaced",
        /// Paths found old because a frame came from another LID.
        PathsMoved = "paths_moved",
        /// Paths that made room for others.
        PathsEvicted = "paths_evicted",
        /// Packets sent by connections, of the packets sent.
        ConnectedSent = "tx_connected_packets",
        /// Packets received by connections, of the packets received.
        ConnectedReceived = "rx_connected_packets",
        /// Connections asked for.
        Connects = "connects",
        /// Connections that were refused, or not answered in time.
        ConnectsFailed = "connects_failed",
        /// Outgoing connections that came to be.
        Connected = "connected",
        /// Outgoing connections that broke or that the peer ended.
        ConnectionsLost = "connections_lost",
        /// Outgoing connections given up because the neighbour's address is another.
        ConnectionsRetired = "connections_retired",
        /// Connections that peers asked for and got.
        Accepts = "accepts",
        /// Connections that peers asked for and did not get.
        AcceptsRefused = "accepts_refused",
        /// Incoming connections that a newer one of the same peer replaced.
        AcceptsSuperseded = "accepts_superseded",
        /// Incoming connections given up because they were silent.
        IncomingReaped = "incoming_reaped",
        /// Incoming connections that had to be destroyed without the adapter's last word.
        IncomingForced = "incoming_forced",
        /// Neighbours that cannot get a connection because the table is full.
        OutgoingTableFull = "outgoing_table_full",
        /// Changes of mode.
        ModeChanges = "mode_changes",
        /// Joins sent.
        Joins = "group_joins",
        /// Joins that the SA refused, or did not answer in time; not those that found no group and
        /// then created it.
        JoinsFailed = "group_joins_failed",
        /// Leaves sent.
        Leaves = "group_leaves",
        /// Verbs that failed.
        VerbsFailed = "verbs_failed",
        /// Answers to operations that were given up, and repeated ones.
        StaleAnswers = "stale_answers",
        /// Completions that belong to no posted send.
        StaleCompletions = "stale_completions",
        /// Multicast addresses of the stack's list that are none of this interface's.
        ForeignGroups = "foreign_groups",
        /// Multicast addresses of the stack's list for which the group table has no place.
        GroupsRefused = "groups_refused",
        /// Light flushes.
        FlushesLight = "flushes_light",
        /// Normal flushes.
        FlushesNormal = "flushes_normal",
        /// Heavy flushes.
        FlushesHeavy = "flushes_heavy",
        /// Events that were lost because nobody polled.
        EventsLost = "events_lost",
        /// Drains in which completions failed to come.
        DrainsTimedOut = "drains_timed_out",
    }
}

counters! {
    /// All counters of an interface.
    pub(crate)
}

impl Counters {
    pub(crate) fn add(&mut self, counter: Counter, amount: u64) {
        if let Some(value) = self.events.get_mut(counter as usize) {
            *value = value.wrapping_add(amount);
        }
    }
}
