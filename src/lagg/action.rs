//! What a lagg asks its shell to do, and what it tells it.

use crate::wire::LinkAddress;

use super::port::{Capabilities, Identity, PortId};

/// An operation whose answer is awaited. An answer to one that was given up is counted and changes
/// nothing.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct OpId {
    /// What it is about: a place in the table of memberships, or a port.
    pub(super) place: u32,
    pub(super) generation: u32,
}

/// Something to do with no lock held: each of them may sleep.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Send, for every IP address of the lagg, a gratuitous ARP request or an unsolicited neighbour
    /// advertisement with the address that the lagg wears now. The port is the one that carries,
    /// and its broadcast group is joined. If another one carries by now, leave it: that one's
    /// announcement is to come. No answer.
    Announce {
        /// The port that carries.
        port: PortId,
    },
    /// Join a group on a port. Answer: [`super::Lagg::handle_group_answer`].
    JoinGroup {
        /// The operation.
        op: OpId,
        /// The port.
        port: PortId,
        /// The group, with the scope and P_Key of that port.
        group: LinkAddress,
    },
    /// Leave a group on a port. Answer: [`super::Lagg::handle_group_answer`].
    LeaveGroup {
        /// The operation.
        op: OpId,
        /// The port.
        port: PortId,
        /// The group, as it was joined.
        group: LinkAddress,
    },
    /// Mark a port down, because the lagg is. No answer.
    LowerPort {
        /// The port.
        port: PortId,
    },
    /// Look at every port and feed [`super::Lagg::handle_port_reported`] for each, then feed
    /// [`super::Lagg::handle_multicast_list`]: an event may have been lost.
    QueryPorts,
    /// Mark a port up, because the lagg is. No answer.
    RaisePort {
        /// The port.
        port: PortId,
    },
    /// Let a port go: it has given back what it got. Its place is free, and its id not valid any
    /// more, after the answer: [`super::Lagg::handle_port_released`].
    ReleasePort {
        /// The port.
        port: PortId,
    },
    /// Give a port another MTU. Answer: [`super::Lagg::handle_mtu_answer`].
    SetPortMtu {
        /// The operation.
        op: OpId,
        /// The port.
        port: PortId,
        /// The MTU, without the encapsulation header.
        mtu: usize,
    },
}

/// Something changed that the network stack should know; the latest value, however many there were
/// since the last one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// The lagg wears another address or broadcast address, which [`super::Face::wear`] was told at
    /// once. It is due exactly one notice to the stack. If the broadcast address is another, the
    /// multicast list should be fed again in its terms.
    AddressChanged(Option<Identity>),
    /// What all ports can do.
    CapabilitiesChanged(Capabilities),
    /// Another port carries, or none.
    CarrierChanged(Option<PortId>),
    /// Every port is released; the lagg may be freed.
    Detached,
    /// No port has a link.
    LinkDown,
    /// A port carries.
    LinkUp,
    /// The MTU of the lagg, without the encapsulation header.
    MtuChanged(usize),
}

/// A port did not do what it was asked; the shell logs the errno.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortError;
