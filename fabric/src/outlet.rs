//! What leaves an adapter towards its host: buffers, notifications and asynchronous events.

use alloc::collections::VecDeque;

use ipoib_rs::interface::PortEvent;

use crate::cq::{Completion, CqId, Notification, Outcome};
use crate::packet::Pool;
use crate::port::PortId;

/// An asynchronous event (IBA 11.6.3).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AsyncEvent {
    /// A completion queue is full and has lost completions; it is reported once for each queue.
    CqOverrun(CqId),
    /// Something changed at a port.
    Port(PortId, PortEvent),
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
