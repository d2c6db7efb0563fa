//! A connection and its state.

use core::time::Duration;

use ipoib_rs::ib::Qpn;
use ipoib_rs::time::Instant;

use crate::gsi::MadAddress;
use crate::mad::MAD_BYTES;
use crate::mad::cm::{CmRetries, CommId, CommIds, TimeoutCode};

/// A connection.
#[derive(Debug)]
pub(super) struct Connection<T> {
    /// The peer's QP1.
    pub(super) to: MadAddress,
    /// TransactionID of the REQ and of all that follows up to the RTU.
    pub(super) transaction: u64,
    pub(super) timing: Timing,
    pub(super) state: State<T>,
}

/// How long the peer may take to answer, and how often it is asked again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    pub(super) response: Duration,
    pub(super) retries: u8,
}

/// The life of a connection (IBA 12.9.5, 12.9.6).
#[derive(Debug)]
pub(super) enum State<T> {
    /// Active: the REQ is out.
    Requesting { tag: T, local_qpn: Qpn, sent: Sent },
    /// Active: the REP has come, the owner decides.
    Replied { tag: T, link: Link },
    /// Passive: the REQ has come, the owner decides.
    Requested { remote: Remote, has_alternate: bool },
    /// Passive: the REP is out.
    Accepting { tag: T, link: Link, sent: Sent },
    /// Both sides agreed.
    Established { tag: T, link: Link, is_active: bool },
    /// The DREQ is out.
    Disconnecting {
        /// `None` once the owner has lost interest.
        tag: Option<T>,
        link: Link,
        /// TransactionID of the DREQ.
        transaction: u64,
        repetition: Repetition,
        /// Whether the owner knows of the end.
        is_reported: bool,
    },
    /// Over; late messages and packets may still be on their way (IBA 12.9.8.4).
    TimeWait {
        /// `None` once the owner has lost interest.
        tag: Option<T>,
        /// `None` if the peer never gave its names.
        remote: Option<Remote>,
        until: Instant,
    },
}

/// What the peer calls the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Remote {
    pub(super) comm_id: CommId,
    pub(super) ca_guid: u64,
    pub(super) qpn: Qpn,
}

/// Two queue pairs that belong together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Link {
    pub(super) local_qpn: Qpn,
    pub(super) remote: Remote,
}

/// A message that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) bytes: [u8; MAD_BYTES],
    pub(super) repetition: Repetition,
}

/// When a message is sent again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repetition {
    pub(super) due: Instant,
    pub(super) left: u8,
    /// Whether a MRA prolonged the wait; that is possible once.
    pub(super) is_extended: bool,
}

impl Timing {
    /// The peer's time to answer and that of a round trip, as the REQ says them, but at most
    /// `wait_max` in all.
    pub(super) fn new(
        response: TimeoutCode,
        round_trip: TimeoutCode,
        retries: CmRetries,
        wait_max: Duration,
    ) -> Self {
        let wait = response.duration() + round_trip.duration();
        Self { response: wait.min(wait_max), retries: retries.value() }
    }
}

impl Repetition {
    /// Of a message that is sent now.
    pub(super) fn new(now: Instant, timing: &Timing) -> Self {
        Self { due: now + timing.response, left: timing.retries, is_extended: false }
    }

    /// After the message was sent again; `None` if that must not be.
    pub(super) fn next(&self, now: Instant, timing: &Timing) -> Option<Self> {
        Some(Self {
            due: now + timing.response,
            left: self.left.checked_sub(1)?,
            is_extended: self.is_extended,
        })
    }
}

impl Link {
    /// The names of the connection, as this side sees them.
    pub(super) const fn comm_ids(&self, local: CommId) -> CommIds {
        CommIds { local, remote: self.remote.comm_id }
    }
}

impl<T: Copy> State<T> {
    /// The owner's name.
    pub(super) fn tag(&self) -> Option<T> {
        match self {
            Self::Requesting { tag, .. }
            | Self::Replied { tag, .. }
            | Self::Accepting { tag, .. }
            | Self::Established { tag, .. } => Some(*tag),
            Self::Disconnecting { tag, .. } | Self::TimeWait { tag, .. } => *tag,
            Self::Requested { .. } => None,
        }
    }

    /// The peer's names.
    pub(super) const fn remote(&self) -> Option<Remote> {
        match self {
            Self::Requesting { .. } => None,
            Self::Requested { remote, .. } => Some(*remote),
            Self::Replied { link, .. }
            | Self::Accepting { link, .. }
            | Self::Established { link, .. }
            | Self::Disconnecting { link, .. } => Some(link.remote),
            Self::TimeWait { remote, .. } => *remote,
        }
    }

    /// Whether the peer's queue pair is taken for connected (IBA 12.9.8.3.1).
    pub(super) const fn is_connected(&self) -> bool {
        match self {
            Self::Replied { .. }
            | Self::Requested { .. }
            | Self::Accepting { .. }
            | Self::Established { .. } => true,
            Self::Requesting { .. } | Self::Disconnecting { .. } | Self::TimeWait { .. } => false,
        }
    }

    /// When something is to be done.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Requesting { sent, .. } | Self::Accepting { sent, .. } => {
                Some(sent.repetition.due)
            }
            Self::Disconnecting { repetition, .. } => Some(repetition.due),
            Self::TimeWait { until, .. } => Some(*until),
            Self::Replied { .. } | Self::Requested { .. } | Self::Established { .. } => None,
        }
    }
}
