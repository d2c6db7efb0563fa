//! Shared receive queues (IBA 10.2.9).

use alloc::collections::{TryReserveError, VecDeque};

use crate::hca::HcaId;
use crate::qp::ReceiveRequest;
use crate::slab::Key;

/// A shared receive queue.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SrqId {
    pub(crate) hca: HcaId,
    pub(crate) key: Key,
}

#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) receives: VecDeque<ReceiveRequest>,
    pub(crate) receives_max: usize,
    /// Fewer receives than this raise an event, once; 0 while none is asked for.
    pub(crate) limit: usize,
    /// Queue pairs that take their receives from here.
    pub(crate) user_count: u32,
}

impl Srq {
    pub(crate) fn new(receives_max: u32) -> Result<Self, TryReserveError> {
        let mut receives = VecDeque::new();
        receives.try_reserve_exact(receives_max as usize)?;
        Ok(Self { receives, receives_max: receives_max as usize, limit: 0, user_count: 0 })
    }

    /// The oldest receive, and whether the limit is passed with it (IBA 10.2.9.2).
    pub(crate) fn take(&mut self) -> Option<(ReceiveRequest, bool)> {
        let receive = self.receives.pop_front()?;
        let is_low = self.receives.len() < self.limit;
        if is_low {
            self.limit = 0;
        }
        Some((receive, is_low))
    }
}
