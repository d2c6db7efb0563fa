//! The UD queue pair as the interface sees it.

use crate::action::QueuePairChange;
use crate::ib::{PkeyIndex, Qkey};
use crate::time::Instant;

/// The queue pair of an interface.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) state: QueuePairState,
    /// The generation of the operation under way.
    pub(crate) operation: u32,
    /// Receives that are posted.
    pub(crate) receives_posted: u32,
    /// Not to be opened before, because it failed.
    pub(crate) reopen_at: Option<Instant>,
}

/// The life of the queue pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum QueuePairState {
    /// Nothing is posted.
    Reset,
    /// It is to be opened.
    OpenWanted(PkeyIndex),
    /// It is being opened.
    Opening(PkeyIndex),
    /// It sends and receives. There is no queue key before the broadcast group is joined.
    Open { index: PkeyIndex, qkey: Option<Qkey> },
    /// It sends and receives and is to get another queue key.
    QkeyWanted { index: PkeyIndex, qkey: Qkey },
    /// It sends and receives and is getting another queue key.
    SettingQkey { index: PkeyIndex, qkey: Qkey },
    /// It is being opened or set, and to be closed when that is done.
    CloseWaiting,
    /// It is to go to the error state.
    ErrorWanted,
    /// It is going to the error state.
    Erring,
    /// It is in the error state, and what was posted comes back until a deadline.
    Draining { deadline: Instant },
    /// It is to be reset.
    ResetWanted,
    /// It is being reset.
    Resetting,
    /// The adapter would not reset it, so its buffers are the adapter's still. Tried again.
    ResetFailed { retry_at: Instant },
}

impl QueuePairState {
    /// The change to ask for.
    pub(crate) fn wanted(&self) -> Option<QueuePairChange> {
        match *self {
            Self::OpenWanted(pkey_index) => {
                // The queue key is set when the broadcast group has told it.
                Some(QueuePairChange::ReadyToSend { pkey_index, qkey: Qkey(0) })
            }
            Self::QkeyWanted { qkey, .. } => Some(QueuePairChange::SetQkey { qkey }),
            Self::ErrorWanted => Some(QueuePairChange::Error),
            Self::ResetWanted => Some(QueuePairChange::Reset),
            Self::Reset
            | Self::Opening(_)
            | Self::Open { .. }
            | Self::SettingQkey { .. }
            | Self::CloseWaiting
            | Self::Erring
            | Self::Draining { .. }
            | Self::Resetting
            | Self::ResetFailed { .. } => None,
        }
    }

    /// When the state ends by itself.
    pub(crate) fn ends_at(&self) -> Option<Instant> {
        match *self {
            Self::Draining { deadline } => Some(deadline),
            Self::ResetFailed { retry_at } => Some(retry_at),
            Self::Reset
            | Self::OpenWanted(_)
            | Self::Opening(_)
            | Self::Open { .. }
            | Self::QkeyWanted { .. }
            | Self::SettingQkey { .. }
            | Self::CloseWaiting
            | Self::ErrorWanted
            | Self::Erring
            | Self::ResetWanted
            | Self::Resetting => None,
        }
    }

    /// The P_Key index, while the queue pair sends and receives.
    pub(crate) fn open_index(&self) -> Option<PkeyIndex> {
        match *self {
            Self::Open { index, .. }
            | Self::QkeyWanted { index, .. }
            | Self::SettingQkey { index, .. } => Some(index),
            Self::Reset
            | Self::OpenWanted(_)
            | Self::Opening(_)
            | Self::CloseWaiting
            | Self::ErrorWanted
            | Self::Erring
            | Self::Draining { .. }
            | Self::ResetWanted
            | Self::Resetting
            | Self::ResetFailed { .. } => None,
        }
    }

    /// The queue key, once the adapter has it.
    pub(crate) fn qkey(&self) -> Option<Qkey> {
        match *self {
            Self::Open { qkey, .. } => qkey,
            Self::Reset
            | Self::OpenWanted(_)
            | Self::Opening(_)
            | Self::QkeyWanted { .. }
            | Self::SettingQkey { .. }
            | Self::CloseWaiting
            | Self::ErrorWanted
            | Self::Erring
            | Self::Draining { .. }
            | Self::ResetWanted
            | Self::Resetting
            | Self::ResetFailed { .. } => None,
        }
    }
}
