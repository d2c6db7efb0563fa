//! What a manager reports.

use ipoib_rs::ib::Qpn;

use crate::gsi::MadAddress;
use crate::mad::cm::{
    CommId, Psn, REJECT_PRIVATE_BYTES, REPLY_PRIVATE_BYTES, RejectReason, Request, RetryCount,
    TimeoutCode,
};

/// The name of a request until it is accepted or refused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RequestId(pub CommId);

/// What happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event<T> {
    /// A peer asks for a connection. Answer with `accept` or `refuse`.
    Requested {
        /// The name of the request.
        request: RequestId,
        /// From which QP1.
        from: MadAddress,
        /// What it says.
        demand: Request,
    },
    /// A request is not worth an answer any more: the peer gave it up.
    Withdrawn {
        /// The name that the request had.
        request: RequestId,
    },
    /// The peer agrees. Answer with `establish` or `reject`.
    Replied {
        /// The connection.
        tag: T,
        /// What the peer says.
        reply: PeerReply,
    },
    /// The peer confirmed an accepted connection.
    Established {
        /// The connection.
        tag: T,
    },
    /// The peer, or the way to it, does not agree. The tag is free, except after
    /// [`RejectReason::StaleConnection`]: then it is after [`Event::TimeWaitExited`], because the
    /// peer took the queue pair for connected (IBA 12.9.8.3.1).
    Rejected {
        /// The connection.
        tag: T,
        /// Why.
        rejection: Rejection,
    },
    /// The peer did not answer. The tag is free if the connection was asked for, and in time-wait
    /// if it was accepted.
    TimedOut {
        /// The connection.
        tag: T,
    },
    /// An established or accepted connection is over. The tag and the queue pair are in time-wait.
    Disconnected {
        /// The connection.
        tag: T,
        /// Why.
        cause: DisconnectCause,
    },
    /// The time-wait is over: the tag is free, the queue pair may be used again.
    TimeWaitExited {
        /// The connection.
        tag: T,
    },
}

/// What a peer says that agrees to a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerReply {
    /// Its queue pair.
    pub qpn: Qpn,
    /// The first PSN that it sends.
    pub starting_psn: Psn,
    /// How often the own queue pair may send again after a receiver-not-ready.
    pub rnr_retry_count: RetryCount,
    /// Whether its queue pair takes its receives from a shared queue.
    pub has_shared_receive_queue: bool,
    /// How long its adapter may take to acknowledge.
    pub target_ack_delay: TimeoutCode,
    /// What its owner says.
    pub private_data: [u8; REPLY_PRIVATE_BYTES],
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rejection {
    /// The code of the reason, reserved or not (IBA 12.6.7.2).
    pub code: u16,
    /// What the peer's owner says; zero if this side found the reason.
    pub private_data: [u8; REJECT_PRIVATE_BYTES],
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DisconnectCause {
    /// This side ended it and the peer confirmed that.
    Confirmed,
    /// This side ended it and the peer did not answer.
    Unanswered,
    /// The peer ended it.
    ByPeer,
    /// The peer rejected it after the fact, with the code of the reason.
    Rejected(u16),
    /// The peer has forgotten it: it uses its queue pair for a new one (IBA 12.9.8.3.1).
    Stale,
}

impl<T: Copy> Event<T> {
    /// The connection that the event names.
    pub const fn tag(&self) -> Option<T> {
        match self {
            Self::Requested { .. } | Self::Withdrawn { .. } => None,
            Self::Replied { tag, .. }
            | Self::Established { tag }
            | Self::Rejected { tag, .. }
            | Self::TimedOut { tag }
            | Self::Disconnected { tag, .. }
            | Self::TimeWaitExited { tag } => Some(*tag),
        }
    }
}

impl Rejection {
    /// The reason; `None` for a reserved code.
    pub const fn reason(&self) -> Option<RejectReason> {
        RejectReason::from_code(self.code)
    }

    /// A reason that this side found.
    pub(super) const fn local(reason: RejectReason) -> Self {
        Self { code: reason.code(), private_data: [0; REJECT_PRIVATE_BYTES] }
    }
}
