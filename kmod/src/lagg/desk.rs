//! What an administrator, or an interface that goes, asks of a lagg, and its thread does: one
//! thing at a time, and whoever asks waits. The thread holds nothing meanwhile, and needs nothing
//! that those who ask hold.

use ipoib_rs::lagg::PortId;
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::lagg::Named;

use super::Lagg;

/// Something to do.
#[derive(Debug)]
pub(super) enum Ask {
    /// Take an interface as a port.
    Add(Named),
    /// Give a port back.
    Remove(Named),
    /// The interface of a port goes.
    Depart(PortId),
    /// Another MTU.
    Mtu(usize),
}

#[derive(Debug)]
pub(super) enum Desk {
    /// Nobody asks.
    Free,
    /// Somebody waits.
    Asked(Ask),
    /// It is being done.
    Working,
    /// It is done, and whoever asked has not looked yet.
    Answered(Result<(), Errno>),
    /// Nothing is done any more.
    Closed,
}

impl Lagg {
    /// Has the thread do something, and waits for it.
    pub(super) fn ask(&self, ask: Ask, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        let mut ask = Some(ask);
        let is_taken = self.locked.wait(may_sleep, |locked| match &locked.desk {
            Desk::Free => {
                locked.desk = Desk::Asked(ask.take()?);
                Some(true)
            }
            Desk::Closed => Some(false),
            Desk::Asked(_) | Desk::Working | Desk::Answered(_) => None,
        });
        if !is_taken {
            return Err(Errno::ENXIO);
        }
        self.waker.wake();
        let answer = self.locked.wait(may_sleep, |locked| match locked.desk {
            Desk::Answered(answer) => {
                locked.desk = Desk::Free;
                Some(answer)
            }
            Desk::Free | Desk::Asked(_) | Desk::Working | Desk::Closed => None,
        });
        self.locked.notify();
        answer
    }

    /// Waits until a port is none any more.
    pub(super) fn wait_for_departure(&self, port: PortId, may_sleep: &mut MaySleep) {
        // It may be on its way out already, for another reason.
        let _ = self.ask(Ask::Depart(port), may_sleep);
        self.locked.wait(may_sleep, |locked| locked.ports.get(port).is_none().then_some(()));
    }

    /// Lets nobody ask any more. What was asked is done.
    pub(super) fn close_desk(&self, may_sleep: &mut MaySleep) {
        self.locked.wait(may_sleep, |locked| match locked.desk {
            Desk::Free => {
                locked.desk = Desk::Closed;
                Some(())
            }
            Desk::Closed => Some(()),
            Desk::Asked(_) | Desk::Working | Desk::Answered(_) => None,
        });
        self.locked.notify();
    }

    /// In the thread: what somebody asks.
    pub(super) fn take_ask(&self, may_sleep: &mut MaySleep) -> Option<Ask> {
        self.locked.with(may_sleep, |locked, _| {
            match core::mem::replace(&mut locked.desk, Desk::Working) {
                Desk::Asked(ask) => Some(ask),
                other @ (Desk::Free | Desk::Working | Desk::Answered(_) | Desk::Closed) => {
                    locked.desk = other;
                    None
                }
            }
        })
    }

    /// In the thread: it is done.
    pub(super) fn answer(&self, answer: Result<(), Errno>, may_sleep: &mut MaySleep) {
        self.locked.with(may_sleep, |locked, _| locked.desk = Desk::Answered(answer));
        self.locked.notify();
    }
}
