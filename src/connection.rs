//! Reliable connections: outgoing ones to send on, incoming ones to receive from. Each direction
//! has its own (RFC 4755 3), so two hosts that connect to each other at the same time do not
//! collide.
//!
//! Replaces `struct ipoib_cm_tx` and `struct ipoib_cm_rx` of the C driver, whose states are spread
//! over an enum, flag words and membership in five lists.

use crate::action::{OpId, RequestId, Target};
use crate::ib::{Gid, Qpn};
use crate::limits::INCOMING_YIELD_AFTER;
use crate::storage::{OutOfMemory, Queue, Slab};
use crate::time::Instant;

/// A connection to send on.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The path that it belongs to, as long as that wants it.
    pub(crate) path: Option<u32>,
    pub(crate) state: OutgoingState,
    /// The generation of the operation under way.
    pub(crate) operation: u32,
    /// Sends that are posted on it.
    pub(crate) posted: u32,
    /// Packets that are too large for UD and wait for the connection.
    pub(crate) queue: Queue,
}

/// The life of an outgoing connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum OutgoingState {
    /// A queue pair is to be made and a REQ sent.
    OpenWanted { attempt: u8 },
    /// The peer is being asked.
    Opening { attempt: u8 },
    /// Given up while the peer was being asked.
    OpeningUnwanted,
    /// Packets go out. The peer receives up to `mtu` bytes, without the encapsulation header.
    Live { mtu: usize },
    /// Not wanted any more. What is posted goes out first, at the latest until a time.
    Draining { deadline: Instant },
    /// The peer refused or did not answer, or the connection broke; it is asked again at a time,
    /// when there is something to send.
    BackingOff { attempt: u8, retry_at: Instant },
    /// To be disconnected and destroyed.
    CloseWanted(AfterClose),
    /// Being disconnected and destroyed.
    Closing(AfterClose),
}

/// What follows when an outgoing connection is destroyed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AfterClose {
    /// It is opened again after a while.
    BackOff { attempt: u8, retry_at: Instant },
    /// It is forgotten.
    Forget,
}

/// A connection to receive from.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) peer: Peer,
    pub(crate) state: IncomingState,
    /// The generation of the operation under way.
    pub(crate) operation: u32,
    /// Receives that are posted on its own queue; none with a shared one.
    pub(crate) receives_posted: u32,
    /// When something last came from it.
    pub(crate) used_at: Instant,
}

/// Who is at the other end: the port, and the datagram queue pair that the private data names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Peer {
    pub(crate) gid: Gid,
    pub(crate) qpn: Qpn,
}

/// The life of an incoming connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum IncomingState {
    /// A queue pair is to be made and a REP sent.
    AcceptWanted(RequestId),
    /// The peer is being answered.
    Accepting,
    /// Lost while the peer was being answered.
    AcceptingUnwanted,
    /// Packets come in.
    Live,
    /// The peer is to give it up, since it was told another address or has another connection.
    /// What it sends until then still comes in, at the latest until a time.
    Lingering { deadline: Instant },
    /// The queue pair is to go to the error state.
    ErrorWanted,
    /// It is going to the error state.
    Erring,
    /// It is in the error state; the adapter is to say that it has taken its last receive
    /// (IBA 11.6.3.1, last WQE reached), at the latest at a time.
    AwaitingLastWqe { deadline: Instant },
    /// A marker is to be posted, whose completion comes after all others of the queue pair.
    MarkerWanted { deadline: Instant },
    /// The marker is on its way through the completion queue, at the latest until a time.
    Marking { deadline: Instant },
    /// To be destroyed.
    DestroyWanted,
    /// Being destroyed.
    Destroying,
}

impl OutgoingState {
    pub(crate) fn wants_action(&self) -> bool {
        match self {
            Self::OpenWanted { .. } | Self::CloseWanted(_) => true,
            Self::Opening { .. }
            | Self::OpeningUnwanted
            | Self::Live { .. }
            | Self::Draining { .. }
            | Self::BackingOff { .. }
            | Self::Closing(_) => false,
        }
    }

    /// When the state ends by itself.
    pub(crate) fn ends_at(&self) -> Option<Instant> {
        match self {
            Self::Draining { deadline } => Some(*deadline),
            Self::OpenWanted { .. }
            | Self::Opening { .. }
            | Self::OpeningUnwanted
            | Self::Live { .. }
            | Self::BackingOff { .. }
            | Self::CloseWanted(_)
            | Self::Closing(_) => None,
        }
    }

    /// For the table of neighbours.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::OpenWanted { .. } | Self::Opening { .. } => "connecting",
            Self::Live { .. } => "connected",
            Self::BackingOff { .. } => "refused",
            Self::OpeningUnwanted
            | Self::Draining { .. }
            | Self::CloseWanted(_)
            | Self::Closing(_) => "closing",
        }
    }
}

impl IncomingState {
    pub(crate) fn wants_action(&self) -> bool {
        match self {
            Self::AcceptWanted(_)
            | Self::ErrorWanted
            | Self::MarkerWanted { .. }
            | Self::DestroyWanted => true,
            Self::Accepting
            | Self::AcceptingUnwanted
            | Self::Live
            | Self::Lingering { .. }
            | Self::Erring
            | Self::AwaitingLastWqe { .. }
            | Self::Marking { .. }
            | Self::Destroying => false,
        }
    }

    /// For the table of connections.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::AcceptWanted(_) | Self::Accepting => "accepting",
            Self::Live => "connected",
            Self::Lingering { .. } => "lingering",
            Self::ErrorWanted
            | Self::Erring
            | Self::AwaitingLastWqe { .. }
            | Self::MarkerWanted { .. }
            | Self::Marking { .. } => "draining",
            Self::AcceptingUnwanted | Self::DestroyWanted | Self::Destroying => "closing",
        }
    }

    pub(crate) fn ends_at(&self) -> Option<Instant> {
        match self {
            Self::Lingering { deadline }
            | Self::AwaitingLastWqe { deadline }
            | Self::MarkerWanted { deadline }
            | Self::Marking { deadline } => Some(*deadline),
            Self::AcceptWanted(_)
            | Self::Accepting
            | Self::AcceptingUnwanted
            | Self::Live
            | Self::ErrorWanted
            | Self::Erring
            | Self::DestroyWanted
            | Self::Destroying => None,
        }
    }
}

/// The tables of connections.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) outgoing: Slab<Outgoing>,
    pub(crate) incoming: Slab<Incoming>,
    /// Receives that are posted on the shared queue.
    pub(crate) shared_receives_posted: u32,
}

impl Connections {
    pub(crate) fn new(outgoing_max: u32, incoming_max: u32) -> Result<Self, OutOfMemory> {
        Ok(Self {
            outgoing: Slab::new(outgoing_max)?,
            incoming: Slab::new(incoming_max)?,
            shared_receives_posted: 0,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.outgoing.is_empty() && self.incoming.is_empty()
    }

    /// The outgoing connection that waits for the answer to `op`.
    pub(crate) fn outgoing_of(&self, op: OpId) -> Option<(u32, OutgoingState)> {
        let Target::Outgoing(place) = op.target else { return None };
        let connection = self.outgoing.get(place)?;
        (connection.operation == op.generation).then_some((place, connection.state))
    }

    /// The incoming connection that waits for the answer to `op`.
    pub(crate) fn incoming_of(&self, op: OpId) -> Option<(u32, IncomingState)> {
        let Target::Incoming(place) = op.target else { return None };
        let connection = self.incoming.get(place)?;
        (connection.operation == op.generation).then_some((place, connection.state))
    }

    /// The incoming connection that makes room for one of a port: that which is silent longest of
    /// those that nobody seems to need. Its port is the one that asks or has a newer connection,
    /// or it is silent for a while.
    pub(crate) fn dispensable_for(&self, gid: Gid, now: Instant) -> Option<u32> {
        let in_use = || self.incoming.iter().filter(|(_, one)| one.state.is_in_use());
        let has_newer = |old: &Incoming| {
            in_use().any(|(_, one)| one.peer.gid == old.peer.gid && one.used_at > old.used_at)
        };
        let dispensable = in_use().filter(|&(_, one)| {
            let is_silent = now.saturating_since(one.used_at) >= INCOMING_YIELD_AFTER;
            one.peer.gid == gid || is_silent || has_newer(one)
        });
        dispensable.min_by_key(|(_, one)| one.used_at).map(|(place, _)| place)
    }

    /// The incoming connection of a peer that is in use.
    pub(crate) fn live_from(&self, peer: Peer) -> Option<u32> {
        let mut connections = self.incoming.iter();
        let found = connections.find(|(_, one)| one.peer == peer && one.state.is_in_use());
        found.map(|(place, _)| place)
    }
}

impl IncomingState {
    /// Whether the connection has not been given up.
    pub(crate) fn is_in_use(&self) -> bool {
        match self {
            Self::AcceptWanted(_) | Self::Accepting | Self::Live => true,
            Self::AcceptingUnwanted
            | Self::Lingering { .. }
            | Self::ErrorWanted
            | Self::Erring
            | Self::AwaitingLastWqe { .. }
            | Self::MarkerWanted { .. }
            | Self::Marking { .. }
            | Self::DestroyWanted
            | Self::Destroying => false,
        }
    }

    /// Whether packets may come in.
    pub(crate) fn receives(&self) -> bool {
        match self {
            Self::Live | Self::Lingering { .. } => true,
            Self::AcceptWanted(_)
            | Self::Accepting
            | Self::AcceptingUnwanted
            | Self::ErrorWanted
            | Self::Erring
            | Self::AwaitingLastWqe { .. }
            | Self::MarkerWanted { .. }
            | Self::Marking { .. }
            | Self::DestroyWanted
            | Self::Destroying => false,
        }
    }
}
