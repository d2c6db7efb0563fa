//! What a lagg counts: packets that it did not let pass, and what happened to it. All of it stays
//! when a port leaves.

use crate::counters::{counted, counters};

counted! {
    /// Why a packet did not pass a lagg.
    DropReason {
        /// To send, while the lagg is administratively down.
        LaggDown = "drop_lagg_down",
        /// To send, and there is no port.
        NoPort = "drop_no_port",
        /// To send, and no port has a link.
        NoLink = "drop_no_link",
        /// Received while the lagg is administratively down.
        ReceivedWhileDown = "drop_received_while_down",
        /// Received by a port that does not carry.
        InactivePort = "drop_inactive_port",
        /// Received by a port that has left.
        UnknownPort = "drop_unknown_port",
    }
}

counted! {
    /// What happened, other than a drop.
    Counter {
        /// Packets handed to a port.
        PacketsSent = "tx_packets",
        /// Packets taken from a port.
        PacketsReceived = "rx_packets",
        /// Those of them that came by a port that does not carry.
        ReceivedInactive = "rx_inactive_packets",
        /// Ports that were added.
        PortsAdded = "ports_added",
        /// Ports that left.
        PortsRemoved = "ports_removed",
        /// Times that another port began to carry, or that none does.
        CarrierChanges = "carrier_changes",
        /// Times that the lagg wore another address.
        AddressChanges = "address_changes",
        /// Announcements asked for.
        Announcements = "announcements",
        /// Times that the ports were asked what they are like.
        PortQueries = "port_queries",
        /// Groups joined on ports.
        GroupJoins = "group_joins",
        /// Groups left on ports.
        GroupLeaves = "group_leaves",
        /// Groups that a port did not join.
        GroupJoinsFailed = "group_joins_failed",
        /// Multicast addresses of the stack's list that are none of this lagg's.
        ForeignGroups = "foreign_groups",
        /// Multicast addresses of the stack's list for which the group table has no place.
        GroupsRefused = "groups_refused",
        /// Ports that did not take an MTU.
        MtuRefused = "port_mtu_refused",
        /// Reports on ports that have left.
        StaleReports = "stale_reports",
        /// Answers to operations that were given up, and repeated ones.
        StaleAnswers = "stale_answers",
    }
}

counters! {
    /// All counters of a lagg.
    pub(super)
}
