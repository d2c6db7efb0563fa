//! What the control thread of an interface is to look at.

use core::sync::atomic::Ordering;

use super::Interface;

/// Peers should hear of the address.
pub(super) const ANNOUNCE: u32 = 1 << 0;
/// The list of multicast groups, or their form, changed.
pub(super) const GROUPS_CHANGED: u32 = 1 << 1;
/// The port changed, in a way that no event says.
pub(super) const PORT_CHANGED: u32 = 1 << 2;
/// A send did not succeed: the send queue may have stopped.
pub(super) const SEND_FAILED: u32 = 1 << 3;
/// The first of one bit for each event of a port, in the order of [`super::hub::PORT_EVENTS`].
pub(super) const PORT_EVENT_FIRST: u32 = 1 << 4;

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

    /// Whether something was signalled since.
    pub(super) fn has_signals(&self) -> bool {
        self.signals.load(Ordering::Relaxed) != 0
    }
}
