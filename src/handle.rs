//! Address handles: made for one path or group, kept until the last send that uses them completed.

use crate::action::{AddressVector, Target};
use crate::storage::{OutOfMemory, Slab};

/// The address handles of an interface.
#[derive(Debug)]
pub(crate) struct Handles {
    slots: Slab<Handle>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle {
    /// The path or group that it was made for.
    pub(crate) owner: Target,
    /// The generation of the operation under way.
    pub(crate) operation: u32,
    pub(crate) state: HandleState,
}

/// The life of an address handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HandleState {
    /// To be created.
    CreateWanted(AddressVector),
    /// Being created.
    Creating,
    /// Being created, and to be destroyed when it is.
    CreatingUnwanted,
    /// In use, by so many posted sends.
    Live { sends: u32 },
    /// Given up by its owner; so many posted sends still refer to it.
    Retired { sends: u32 },
    /// To be destroyed.
    DestroyWanted,
    /// Being destroyed.
    Destroying,
}

impl Handles {
    pub(crate) fn new(len: u32) -> Result<Self, OutOfMemory> {
        Ok(Self { slots: Slab::new(len)? })
    }

    /// Takes a place; `None` if all are taken.
    pub(crate) fn create(&mut self, owner: Target, address: AddressVector) -> Option<u32> {
        let state = HandleState::CreateWanted(address);
        self.slots.insert(Handle { owner, operation: 0, state }).ok()
    }

    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut Handle> {
        self.slots.get_mut(handle)
    }

    pub(crate) fn remove(&mut self, handle: u32) {
        self.slots.remove(handle);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The owner lets go. Returns whether there is something to do for this handle now.
    pub(crate) fn retire(&mut self, handle: u32) -> bool {
        let Some(slot) = self.slots.get_mut(handle) else {
            return false;
        };
        match slot.state {
            HandleState::CreateWanted(_) => {
                self.slots.remove(handle);
                false
            }
            HandleState::Creating => {
                slot.state = HandleState::CreatingUnwanted;
                false
            }
            HandleState::Live { sends: 0 } => {
                slot.state = HandleState::DestroyWanted;
                true
            }
            HandleState::Live { sends } => {
                slot.state = HandleState::Retired { sends };
                false
            }
            HandleState::CreatingUnwanted
            | HandleState::Retired { .. }
            | HandleState::DestroyWanted
            | HandleState::Destroying => false,
        }
    }

    /// A send that uses the handle was posted.
    pub(crate) fn on_posted(&mut self, handle: u32) {
        if let Some(Handle { state: HandleState::Live { sends }, .. }) = self.slots.get_mut(handle)
        {
            *sends += 1;
        }
    }

    /// A send that used the handle ended. Returns whether there is something to do for it now.
    pub(crate) fn on_completed(&mut self, handle: u32) -> bool {
        let Some(slot) = self.slots.get_mut(handle) else {
            return false;
        };
        match &mut slot.state {
            HandleState::Live { sends } => {
                *sends = sends.saturating_sub(1);
                false
            }
            HandleState::Retired { sends } => {
                *sends = sends.saturating_sub(1);
                let is_last = *sends == 0;
                if is_last {
                    slot.state = HandleState::DestroyWanted;
                }
                is_last
            }
            HandleState::CreateWanted(_)
            | HandleState::Creating
            | HandleState::CreatingUnwanted
            | HandleState::DestroyWanted
            | HandleState::Destroying => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ib::{RateCode, ServiceLevel};

    fn live(handles: &mut Handles) -> u32 {
        let address = AddressVector {
            lid: 7,
            sl: ServiceLevel::default(),
            rate: RateCode::new(3).unwrap(),
            grh: None,
        };
        let handle = handles.create(Target::Path(0), address).unwrap();
        handles.get_mut(handle).unwrap().state = HandleState::Live { sends: 0 };
        handle
    }

    #[test]
    fn a_retired_handle_lives_until_its_last_send_completed() {
        let mut handles = Handles::new(2).unwrap();
        let handle = live(&mut handles);
        for _ in 0..4 {
            handles.on_posted(handle);
        }
        assert!(!handles.retire(handle));
        let done: [bool; 4] = core::array::from_fn(|_| handles.on_completed(handle));
        assert_eq!(done, [false, false, false, true]);
        assert_eq!(handles.get_mut(handle).unwrap().state, HandleState::DestroyWanted);
        assert!(!handles.on_completed(handle) && !handles.retire(handle));
    }

    #[test]
    fn a_handle_that_nobody_asked_the_adapter_for_is_just_forgotten() {
        let mut handles = Handles::new(1).unwrap();
        let handle = live(&mut handles);
        handles.get_mut(handle).unwrap().state = HandleState::Creating;
        assert!(!handles.retire(handle));
        assert_eq!(handles.get_mut(handle).unwrap().state, HandleState::CreatingUnwanted);
        handles.remove(handle);
        assert!(handles.is_empty());
    }
}
