//! The end of connections, in a thread of their own.
//!
//! Whoever destroys an id of the communication manager waits until its last message has left the
//! adapter, and whoever destroys a queue pair waits for the adapter as well. An adapter that is
//! stuck makes that long, and meanwhile the control thread joins groups and tells the stack of the
//! link.
//!
//! A connection is closed in this order, which the account of the receives needs: what the queue
//! pair took of a shared queue comes back with a completion, or not at all.
//!
//! 1. The queue pair goes to the error state: what is posted completes.
//! 2. The [`super::reap`] thread feeds these completions.
//! 3. The id and the queue pair are destroyed. No completion of it leaves the adapter any more.
//! 4. Those that left it before are fed.
//! 5. What did not complete is taken back, and the core hears that its place is vacant.
//!
//! An adapter that refuses to destroy a queue pair keeps it. If it could not reset it either, what
//! is posted there is lost: it is not taken back, and its slots stay taken.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use ipoib_rs::action::{ConnectionId, OpId, VerbError};
use kpi::cm::RejectReason;
use kpi::context::MaySleep;
use kpi::time;
use kpi::verbs::{Kept, Quiet};
use kpi::worker::Work;

use super::Interface;
use super::queues::{Leaver, Path, Subject};

#[derive(Debug)]
pub(super) struct Closer {
    interface: Arc<Interface>,
}

/// What became of a connection that was closed.
#[derive(Debug)]
struct Ended {
    result: Result<(), VerbError>,
    /// What did not complete can be taken back.
    quiet: Option<Quiet>,
}

impl From<Result<Quiet, Kept>> for Ended {
    fn from(closed: Result<Quiet, Kept>) -> Self {
        Self { result: closed.map(drop).map_err(|_| VerbError), quiet: super::quiet_of(closed) }
    }
}

/// Connections that are closed together. They are on the stack, which has no room for many more.
const LEAVERS_MAX: usize = 12;

impl Closer {
    pub(super) fn new(interface: Arc<Interface>) -> Self {
        Self { interface }
    }
}

impl Work for Closer {
    fn run(&self, may_sleep: &mut MaySleep) {
        let interface = &self.interface;
        loop {
            let mut leavers = [const { None }; LEAVERS_MAX];
            let unlistening = interface.core.with(may_sleep, |locked, _| {
                locked.queues.list_leavers(&mut leavers);
                locked.queues.unlistening.take()
            });
            if let Some(op) = unlistening {
                interface.hardware.manager.unlisten(may_sleep);
                interface.feed_result(op, Ok(()), may_sleep);
            }
            if leavers.iter().flatten().next().is_some() {
                interface.close_all(&mut leavers, may_sleep);
            } else if unlistening.is_none() {
                return;
            }
        }
    }
}

impl Interface {
    /// Closes a connection later.
    pub(super) fn begin_close(&self, op: OpId, id: ConnectionId, may_sleep: &mut MaySleep) {
        if self.core.with(may_sleep, |locked, _| locked.queues.begin_close(id, op)) {
            self.closer.wake();
        } else {
            // There is no more of it than its place.
            self.feed_result(op, Ok(()), may_sleep);
        }
    }

    /// Listens no longer, later.
    pub(super) fn begin_unlisten(&self, op: OpId, may_sleep: &mut MaySleep) {
        self.core.with(may_sleep, |locked, _| locked.queues.unlistening = Some(op));
        self.closer.wake();
    }

    fn close_all(&self, leavers: &mut [Option<Leaver>; LEAVERS_MAX], may_sleep: &mut MaySleep) {
        for leaver in leavers.iter().flatten() {
            if let Subject::Connection(connection) = &leaver.subject {
                // What does not go there cannot have anything posted.
                let _ = connection.queue_pair().fail(may_sleep);
            }
        }
        self.settle(may_sleep);
        let mut closed = [const { None }; LEAVERS_MAX];
        for (leaver, closed) in leavers.iter_mut().map_while(Option::take).zip(&mut closed) {
            self.core.with(may_sleep, |locked, _| locked.queues.let_go(&leaver));
            *closed = Some(self.close(leaver, may_sleep));
        }
        self.settle(may_sleep);
        for (id, op, ended) in closed.into_iter().flatten() {
            let now = time::now();
            self.feed(may_sleep, |core, path| {
                if let Some(quiet) = ended.quiet {
                    let Path { queues, records, .. } = path;
                    queues.reclaim_connected(&quiet);
                    queues.reclaim_sends(&quiet, |packet| records.end(packet));
                }
                path.queues.remove_link(id);
                core.handle_verb_result(now, op, ended.result, path);
            });
        }
    }

    fn close(
        &self,
        Leaver { id, op, subject }: Leaver,
        may_sleep: &mut MaySleep,
    ) -> (ConnectionId, OpId, Ended) {
        let nothing = Ended { result: Ok(()), quiet: None };
        match subject {
            Subject::Connection(connection) => {
                // Only the control thread has a second reference, while it executes an action of
                // this connection, and there is none any more.
                let connection = Arc::into_inner(connection);
                let closed = connection.map(|connection| connection.close(may_sleep));
                (id, op, closed.map_or(nothing, Ended::from))
            }
            Subject::Request(request) => {
                self.hardware.manager.refuse(request, RejectReason::NoResources, may_sleep);
                (id, op, nothing)
            }
            Subject::Gone => (id, op, nothing),
        }
    }

    /// Returns when all that had completed when it was called was fed.
    fn settle(&self, may_sleep: &mut MaySleep) {
        const POLL_MS: u32 = 1;

        let pass = self.passes.next();
        self.reaper.wake();
        while !self.passes.has_ended(pass) {
            time::pause_ms(POLL_MS, may_sleep);
        }
    }
}

/// How often the queues were polled until they were empty. The thread that does so counts.
#[derive(Debug, Default)]
pub(super) struct Passes {
    begun: AtomicU32,
    ended: AtomicU32,
}

impl Passes {
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end(&self) {
        self.ended.store(self.begun.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// The first that will begin later.
    fn next(&self) -> u32 {
        self.begun.load(Ordering::SeqCst).wrapping_add(1)
    }

    fn has_ended(&self, pass: u32) -> bool {
        // The difference is small, and below 0 as long as it has not.
        self.ended.load(Ordering::SeqCst).wrapping_sub(pass).cast_signed() >= 0
    }
}
