//! What the control thread is to do: actions of the core, in order, and signals.

use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU64, Ordering};

use ipoib_rs::action::Action;
use ipoib_rs::limits::Limits;
use ipoib_rs::time::Instant;
use kpi::errno::Errno;
use kpi::sync::{Before, Level, Mutex};
use kpi::worker::Waker;

use super::Interface;

/// The state of the core changed in a way that the network stack should know.
pub(super) const STATE_CHANGED: u32 = 1 << 0;
/// Peers should hear of the address.
pub(super) const ANNOUNCE: u32 = 1 << 1;
/// The list of multicast groups, or their form, changed.
pub(super) const GROUPS_CHANGED: u32 = 1 << 2;
/// The port changed, in a way that no event says.
pub(super) const PORT_CHANGED: u32 = 1 << 3;
/// The send ring has room again.
pub(super) const ROOM_TO_SEND: u32 = 1 << 4;
/// The first of one bit for each event of a port, in the order of [`super::hub::PORT_EVENTS`].
pub(super) const PORT_EVENT_FIRST: u32 = 1 << 8;

/// The mutex of the actions.
#[derive(Debug)]
pub(crate) struct TodoLevel;

impl Level for TodoLevel {
    const NAME: &core::ffi::CStr = c"ipoib todo";
}

/// Actions, and the deadline that the control thread will be woken at.
#[derive(Debug)]
pub(super) struct Todo {
    queue: Mutex<TodoLevel, Queue>,
    /// A copy of what is in the queue, to look at without its mutex.
    deadline: AtomicU64,
}

#[derive(Debug)]
struct Queue {
    actions: VecDeque<Action>,
    deadline: u64,
}

const NEVER: u64 = u64::MAX;

impl Todo {
    pub(super) fn new(limits: &Limits) -> Result<Self, Errno> {
        let mut actions = VecDeque::new();
        actions.try_reserve_exact(actions_max(limits)).map_err(|_| Errno::ENOMEM)?;
        let queue = Mutex::new(Queue { actions, deadline: NEVER })?;
        Ok(Self { queue, deadline: AtomicU64::new(NEVER) })
    }

    /// Whether there was room, which there is: see [`actions_max`].
    pub(super) fn push(&self, action: Action, context: &mut impl Before<TodoLevel>) -> bool {
        self.queue.with(context, |queue, _| {
            let has_room = queue.actions.len() < queue.actions.capacity();
            if has_room {
                queue.actions.push_back(action);
            }
            has_room
        })
    }

    pub(super) fn pop(&self, context: &mut impl Before<TodoLevel>) -> Option<Action> {
        self.queue.with(context, |queue, _| queue.actions.pop_front())
    }

    /// Has the control thread woken at a deadline, or before it. Deadlines of several threads may
    /// come here in any order: the earliest stays until the thread has run.
    pub(super) fn wake_at(
        &self,
        at: Instant,
        control: &Waker,
        context: &mut impl Before<TodoLevel>,
    ) {
        if at.as_nanos() >= self.deadline.load(Ordering::Relaxed) {
            return;
        }
        self.queue.with(context, |queue, _| {
            if at.as_nanos() < queue.deadline {
                queue.deadline = at.as_nanos();
                self.deadline.store(queue.deadline, Ordering::Relaxed);
                control.wake_at(at);
            }
        });
    }

    /// The control thread runs: the next deadline counts, whenever it is.
    pub(super) fn forget_deadline(&self, context: &mut impl Before<TodoLevel>) {
        self.queue.with(context, |queue, _| {
            queue.deadline = NEVER;
            self.deadline.store(NEVER, Ordering::Relaxed);
        });
    }
}

impl Interface {
    /// Has the control thread look at something.
    pub(super) fn signal(&self, signals: u32) {
        self.signals.fetch_or(signals, Ordering::Release);
        self.control.wake();
    }

    /// What was signalled since the last call.
    pub(super) fn take_signals(&self) -> u32 {
        self.signals.swap(0, Ordering::Acquire)
    }
}

/// Every path, group, handle and connection, the queue pair, the listener and the SA have one
/// operation under way; a query may be given up and another one asked before either is executed.
const fn actions_max(limits: &Limits) -> usize {
    let objects =
        limits.paths_max + limits.groups_max + limits.handles_max() + limits.connections_max() + 3;
    3 * objects as usize + 1
}
