//! Whether the interface listens for connections.

use crate::action::{Action, OpId, Target, VerbError};
use crate::interface::Interface;
use crate::interface::connected::Mode;
use crate::interface::link::Lifecycle;
use crate::limits::REOPEN_AFTER;
use crate::packet::PacketBuf;
use crate::time::Instant;

/// The listener of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::interface) struct Listener {
    pub(super) state: ListenerState,
    operation: u32,
}

/// The life of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum ListenerState {
    #[default]
    Closed,
    OpenWanted,
    Opening,
    Open,
    CloseWanted,
    Closing,
    /// It could not be opened, and is again at a time.
    BackingOff {
        retry_at: Instant,
    },
}

impl Listener {
    pub(in crate::interface) fn is_closed(&self) -> bool {
        self.state == ListenerState::Closed
    }
}

impl<B: PacketBuf> Interface<B> {
    /// The interface listens while it has a carrier and is in connected mode.
    pub(in crate::interface) fn reconcile_listener(&mut self, now: Instant) {
        let is_wanted = self.mode == Mode::Connected && self.lifecycle == Lifecycle::Joined;
        let next = match self.listener.state {
            ListenerState::Closed if is_wanted => ListenerState::OpenWanted,
            ListenerState::BackingOff { retry_at } if is_wanted && retry_at <= now => {
                ListenerState::OpenWanted
            }
            ListenerState::OpenWanted | ListenerState::BackingOff { .. } if !is_wanted => {
                ListenerState::Closed
            }
            ListenerState::Open if !is_wanted => ListenerState::CloseWanted,
            ListenerState::CloseWanted if is_wanted => ListenerState::Open,
            ListenerState::Closed
            | ListenerState::OpenWanted
            | ListenerState::Opening
            | ListenerState::Open
            | ListenerState::CloseWanted
            | ListenerState::Closing
            | ListenerState::BackingOff { .. } => return,
        };
        self.enter_listener(next);
    }

    fn enter_listener(&mut self, state: ListenerState) {
        self.listener.state = state;
        let retry_at = match state {
            ListenerState::BackingOff { retry_at } => Some(retry_at),
            ListenerState::OpenWanted | ListenerState::CloseWanted => {
                self.push_work(Target::Listener);
                None
            }
            ListenerState::Closed
            | ListenerState::Opening
            | ListenerState::Open
            | ListenerState::Closing => None,
        };
        self.set_timer(Target::Listener, retry_at);
    }

    pub(in crate::interface) fn next_listener_action(&mut self) -> Option<Action> {
        let next = match self.listener.state {
            ListenerState::OpenWanted => ListenerState::Opening,
            ListenerState::CloseWanted => ListenerState::Closing,
            ListenerState::Closed
            | ListenerState::Opening
            | ListenerState::Open
            | ListenerState::Closing
            | ListenerState::BackingOff { .. } => return None,
        };
        let op = self.begin_operation(Target::Listener);
        self.listener.operation = op.generation;
        self.enter_listener(next);
        Some(match next {
            ListenerState::Opening => Action::Listen { op, service: self.service() },
            ListenerState::Closed
            | ListenerState::OpenWanted
            | ListenerState::Open
            | ListenerState::CloseWanted
            | ListenerState::Closing
            | ListenerState::BackingOff { .. } => Action::Unlisten { op },
        })
    }

    /// Returns whether the result was waited for.
    pub(in crate::interface) fn on_listener_verb(
        &mut self,
        now: Instant,
        op: OpId,
        result: Result<(), VerbError>,
    ) -> bool {
        if op.generation != self.listener.operation {
            return false;
        }
        let next = match (self.listener.state, result) {
            (ListenerState::Opening, Ok(())) => ListenerState::Open,
            (ListenerState::Opening, Err(VerbError)) => {
                ListenerState::BackingOff { retry_at: now + REOPEN_AFTER }
            }
            (ListenerState::Closing, _) => ListenerState::Closed,
            (
                ListenerState::Closed
                | ListenerState::OpenWanted
                | ListenerState::Open
                | ListenerState::CloseWanted
                | ListenerState::BackingOff { .. },
                _,
            ) => return false,
        };
        self.enter_listener(next);
        self.reconcile_listener(now);
        true
    }
}
