//! What leaves an adapter towards its host: buffers, notifications and asynchronous events.

use alloc::collections::VecDeque;

use ipoib_rs::interface::PortEvent;

use crate::cq::{Completion, CqId, Notification, Outcome};
use crate::packet::Pool;
use crate::port::PortId;
use crate::qp::QpId;
use crate::srq::SrqId;

/// An asynchronous event (IBA 11.6.3).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AsyncEvent {
    /// A message arrived on a queue pair that was in RTR: the peer is ready, whatever became of its
    /// word that it is.
    CommunicationEstablished(QpId),
    /// A completion queue is full and has lost completions; it is reported once for each queue.
    CqOverrun(CqId),
    /// A queue pair with a shared receive queue is in ERR and takes no more receives; those it took
    /// are complete.
    LastWqeReached(QpId),
    /// Something changed at a port.
    Port(PortId, PortEvent),
    /// A shared receive queue holds fewer receives than the limit that was set.
    SrqLimitReached(SrqId),
}

#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) pool: Pool,
    pub(crate) notifications: VecDeque<Notification>,
    pub(crate) events: VecDeque<AsyncEvent>,
    pub(crate) events_max: usize,
    pub(crate) events_lost: u64,
}

impl Outlet {
    pub(crate) fn report(&mut self, event: AsyncEvent) {
        if self.events.len() < self.events_max {
            self.events.push_back(event);
        } else {
            self.events_lost += 1;
        }
    }

    pub(crate) fn report_overrun(&mut self, cq: CqId) {
        self.report(AsyncEvent::CqOverrun(cq));
    }

    /// Ends a completion that nobody will poll.
    pub(crate) fn reclaim(&mut self, completion: Completion) {
        match completion.outcome {
            Outcome::Received(arrival) => self.pool.free(arrival.packet),
            Outcome::Sent | Outcome::SendFailed(_) | Outcome::ReceiveFailed(_) => {}
        }
    }
}
