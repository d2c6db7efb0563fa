//! Address handles: asked for by a path or group, and given back when no send uses them any more.

use crate::action::{Action, AddressVector, HandleId, OpId, Target, VerbError};
use crate::handle::HandleState;
use crate::packet::{DataPath, PacketBuf, PacketSink};
use crate::time::Instant;

use super::Interface;

impl<B: PacketBuf> Interface<B> {
    pub(super) fn make_handle(&mut self, owner: Target, address: AddressVector) -> Option<u32> {
        let handle = self.handles.create(owner, address)?;
        self.push_work(Target::Handle(handle));
        Some(handle)
    }

    pub(super) fn retire_handle(&mut self, handle: u32) {
        if self.handles.retire(handle) {
            self.push_work(Target::Handle(handle));
        }
    }

    /// A send that used the handle ended.
    pub(super) fn release_handle(&mut self, handle: u32) {
        if self.handles.on_completed(handle) {
            self.push_work(Target::Handle(handle));
        }
    }

    pub(super) fn next_handle_action(&mut self, place: u32) -> Option<Action> {
        let state = self.handles.get_mut(place)?.state;
        let handle = HandleId(place);
        let op = self.begin_operation(Target::Handle(place));
        let (next, action) = match state {
            HandleState::CreateWanted(address) => {
                (HandleState::Creating, Action::CreateAddressHandle { op, handle, address })
            }
            HandleState::DestroyWanted => {
                (HandleState::Destroying, Action::DestroyAddressHandle { op, handle })
            }
            HandleState::Creating
            | HandleState::CreatingUnwanted
            | HandleState::Live { .. }
            | HandleState::Retired { .. }
            | HandleState::Destroying => return None,
        };
        let slot = self.handles.get_mut(place)?;
        slot.operation = op.generation;
        slot.state = next;
        Some(action)
    }

    /// Returns whether the result was waited for.
    pub(super) fn on_handle_verb(
        &mut self,
        now: Instant,
        handle: u32,
        op: OpId,
        result: Result<(), VerbError>,
        datapath: &mut impl DataPath<B>,
    ) -> bool {
        let Some(slot) = self.handles.get_mut(handle) else {
            return false;
        };
        if slot.operation != op.generation {
            return false;
        }
        let owner = slot.owner;
        match (slot.state, result) {
            (HandleState::Creating, Ok(())) => {
                slot.state = HandleState::Live { sends: 0 };
                self.on_handle_created(now, owner, handle, datapath);
            }
            (HandleState::Creating, Err(VerbError)) => {
                self.handles.remove(handle);
                self.on_handle_failed(now, owner, handle, datapath);
            }
            (HandleState::CreatingUnwanted, Ok(())) => {
                slot.state = HandleState::DestroyWanted;
                self.push_work(Target::Handle(handle));
            }
            // A handle that cannot be destroyed is the adapter's to keep; the core lets go.
            (HandleState::CreatingUnwanted, Err(VerbError)) | (HandleState::Destroying, _) => {
                self.handles.remove(handle);
            }
            (
                HandleState::CreateWanted(_)
                | HandleState::Live { .. }
                | HandleState::Retired { .. }
                | HandleState::DestroyWanted,
                _,
            ) => return false,
        }
        true
    }

    fn on_handle_created(
        &mut self,
        now: Instant,
        owner: Target,
        handle: u32,
        datapath: &mut impl DataPath<B>,
    ) {
        match owner {
            Target::Path(place) => self.on_path_addressed(now, place, handle, datapath),
            Target::Group(place) => self.on_group_addressed(now, place, handle, datapath),
            Target::Handle(_) | Target::QueuePair | Target::Sa => {}
        }
    }

    fn on_handle_failed(
        &mut self,
        now: Instant,
        owner: Target,
        handle: u32,
        sink: &mut impl PacketSink<B>,
    ) {
        match owner {
            Target::Path(place) => self.on_path_unaddressed(now, place, handle, sink),
            Target::Group(place) => self.on_group_unaddressed(now, place, handle),
            Target::Handle(_) | Target::QueuePair | Target::Sa => {}
        }
    }
}
