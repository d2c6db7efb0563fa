//! What an interface tells its shell: state deltas, in order. Nobody answers to them.

use crate::action::SaError;
use crate::ib::Mgid;
use crate::wire::LinkAddress;

/// Something changed that an admin or the network stack should know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// The port's GID changed and with it the link-layer address.
    AddressChanged(LinkAddress),
    /// The port moved to another LID: the stack should announce its address (gratuitous ARP,
    /// unsolicited neighbour advertisement), so that peers look their path up again.
    AnnounceAddress,
    /// The broadcast group is another one, because the P_Key is.
    BroadcastChanged(Mgid),
    /// Carrier: the port is ACTIVE, the P_Key present and the broadcast group joined.
    LinkUp,
    /// No carrier.
    LinkDown,
    /// The MTU of datagram mode, without the encapsulation header.
    MtuChanged(usize),
    /// A line for the log, at most one per object and cause until that object recovers.
    Notice(Notice),
    /// Everything is given back; the interface may be freed.
    Detached,
}

/// A line for the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Notice {
    /// A group cannot be joined; it is being retried.
    JoinFailing(Mgid, SaError),
    /// A group that could not be joined now is.
    JoinRecovered(Mgid),
    /// Packets to a neighbour are larger than its MTU.
    TooBig(LinkAddress, usize),
    /// A neighbour cannot be resolved.
    PathFailing(LinkAddress, SaError),
    /// The broadcast group's P_Key, Q_Key or MTU cannot be used.
    BroadcastUnusable(Mgid),
    /// A drain ended by force: completions did not come.
    DrainForced,
    /// The adapter would not reset the queue pair: its buffers stay lost until it does.
    ResetFailed,
}
