//! Faults on order, for tests of those who ask.

use alloc::vec::Vec;

use ipoib_rs::action::SaRefusal;
use ipoib_rs::ib::Mgid;

use super::SmError;
use crate::mad::Status;

/// How requests fail.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// They get no answer.
    Silent,
    /// They get this status, [`Status::BUSY`] for instance.
    Status(Status),
}

/// How many requests fail.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FaultExtent {
    /// The next so many.
    Next(u32),
    /// All until the fault is cleared.
    UntilCleared,
}

/// The faults in force.
#[derive(Debug)]
pub(super) struct Faults {
    state: FaultState,
    /// Sorted by group.
    refusals: Vec<(Mgid, SaRefusal)>,
    refusals_max: usize,
}

#[derive(Clone, Copy, Debug)]
enum FaultState {
    None,
    Limited { fault: Fault, remaining: u32 },
    Unlimited { fault: Fault },
}

impl Faults {
    pub(super) fn new(refusals_max: usize) -> Result<Self, SmError> {
        let mut refusals = Vec::new();
        refusals.try_reserve_exact(refusals_max)?;
        Ok(Self { state: FaultState::None, refusals, refusals_max })
    }

    pub(super) fn set(&mut self, fault: Fault, extent: FaultExtent) {
        self.state = match extent {
            FaultExtent::Next(0) => FaultState::None,
            FaultExtent::Next(remaining) => FaultState::Limited { fault, remaining },
            FaultExtent::UntilCleared => FaultState::Unlimited { fault },
        };
    }

    pub(super) fn clear(&mut self) {
        self.state = FaultState::None;
    }

    /// How the request at hand fails.
    pub(super) fn take(&mut self) -> Option<Fault> {
        match self.state {
            FaultState::None => None,
            FaultState::Unlimited { fault } => Some(fault),
            FaultState::Limited { fault, remaining } => {
                self.set(fault, FaultExtent::Next(remaining - 1));
                Some(fault)
            }
        }
    }

    pub(super) fn refuse_group(&mut self, mgid: Mgid, refusal: SaRefusal) -> Result<(), SmError> {
        match self.place(mgid) {
            Ok(place) => self.refusals[place].1 = refusal,
            Err(_) if self.refusals.len() == self.refusals_max => return Err(SmError::TableFull),
            Err(place) => self.refusals.insert(place, (mgid, refusal)),
        }
        Ok(())
    }

    pub(super) fn admit_group(&mut self, mgid: Mgid) {
        if let Ok(place) = self.place(mgid) {
            self.refusals.remove(place);
        }
    }

    /// How joins of this group fail.
    pub(super) fn group_refusal(&self, mgid: Mgid) -> Option<SaRefusal> {
        Some(self.refusals[self.place(mgid).ok()?].1)
    }

    fn place(&self, mgid: Mgid) -> Result<usize, usize> {
        self.refusals.binary_search_by_key(&mgid, |&(mgid, _)| mgid)
    }
}
