//! The sends that are posted: a fixed number of slots, each with a generation.

use crate::packet::SendId;
use crate::storage::{Fixed, OutOfMemory};

/// Accounts for every posted send. A completion is believed once, and only for the send it names.
#[derive(Debug)]
pub(crate) struct SendRing {
    slots: Fixed<Slot>,
    vacant: Option<u32>,
    outstanding: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    state: SlotState,
}

#[derive(Clone, Copy, Debug)]
enum SlotState {
    Posted(Posted),
    Vacant { next: Option<u32> },
}

/// What is known of a posted send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) via: Via,
    /// Its length, encapsulation header included.
    pub(crate) bytes: u32,
    pub(crate) is_multicast: bool,
}

/// What a posted send keeps alive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Via {
    /// A datagram: its address handle.
    Handle(u32),
    /// A message: its outgoing connection.
    Connection(u32),
}

impl SendRing {
    pub(crate) fn new(len: u32) -> Result<Self, OutOfMemory> {
        let mut position = 0;
        let slots = Fixed::new(len, || {
            position += 1;
            let next = (position < len).then_some(position);
            Slot { generation: 0, state: SlotState::Vacant { next } }
        })?;
        Ok(Self { slots, vacant: (len > 0).then_some(0), outstanding: 0 })
    }

    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    pub(crate) fn capacity(&self) -> u32 {
        // CAST: made from a u32 length.
        self.slots.len() as u32
    }

    pub(crate) fn vacant(&self) -> u32 {
        self.capacity() - self.outstanding
    }

    /// Takes a slot; `None` if the ring is full.
    pub(crate) fn take(&mut self, posted: Posted) -> Option<SendId> {
        let position = self.vacant?;
        let slot = self.slots.get_mut(position as usize)?;
        let SlotState::Vacant { next } = slot.state else {
            return None;
        };
        slot.state = SlotState::Posted(posted);
        slot.generation = slot.generation.wrapping_add(1);
        self.vacant = next;
        self.outstanding += 1;
        Some(SendId { slot: position, generation: slot.generation })
    }

    /// Gives a slot back; `None` if `id` names no send that is posted.
    pub(crate) fn complete(&mut self, id: SendId) -> Option<Posted> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        match slot.state {
            SlotState::Posted(posted) if slot.generation == id.generation => {
                slot.state = SlotState::Vacant { next: self.vacant };
                self.vacant = Some(id.slot);
                self.outstanding -= 1;
                Some(posted)
            }
            SlotState::Posted(_) | SlotState::Vacant { .. } => None,
        }
    }

    /// Gives back a send that is still posted and of which `is_it` is true, for after a reset.
    pub(crate) fn reclaim(&mut self, is_it: impl Fn(Via) -> bool) -> Option<Posted> {
        let id = (0u32..).zip(self.slots.iter()).find_map(|(position, slot)| match slot.state {
            SlotState::Posted(posted) if is_it(posted.via) => {
                Some(SendId { slot: position, generation: slot.generation })
            }
            SlotState::Posted(_) | SlotState::Vacant { .. } => None,
        })?;
        self.complete(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POSTED: Posted = Posted { via: Via::Handle(0), bytes: 100, is_multicast: false };

    #[test]
    fn a_completion_is_believed_once() {
        let mut ring = SendRing::new(2).unwrap();
        let first = ring.take(POSTED).unwrap();
        let second = ring.take(POSTED).unwrap();
        assert!(ring.take(POSTED).is_none());
        assert!(ring.complete(first).is_some());
        assert!(ring.complete(first).is_none());
        let third = ring.take(POSTED).unwrap();
        assert_eq!(third.slot, first.slot);
        assert!(ring.complete(first).is_none(), "an old generation names nothing");
        assert!(ring.complete(second).is_some() && ring.complete(third).is_some());
        assert_eq!(ring.outstanding(), 0);
    }

    #[test]
    fn any_work_request_id_is_legal() {
        let mut ring = SendRing::new(1).unwrap();
        for bits in [0, 1, u64::MAX, 1 << 32, 5] {
            assert!(ring.complete(SendId::from_bits(bits)).is_none());
        }
        let id = ring.take(POSTED).unwrap();
        assert_eq!(SendId::from_bits(id.to_bits()), id);
    }

    #[test]
    fn the_generation_wraps() {
        let mut ring = SendRing::new(1).unwrap();
        ring.slots[0].generation = u32::MAX;
        let id = ring.take(POSTED).unwrap();
        assert_eq!(id.generation, 0);
        assert!(ring.complete(id).is_some());
    }

    #[test]
    fn after_a_reset_everything_is_reclaimed_and_late_completions_are_stale() {
        let mut ring = SendRing::new(3).unwrap();
        let id = ring.take(POSTED).unwrap();
        ring.take(POSTED).unwrap();
        assert!(ring.reclaim(|_| true).is_some() && ring.reclaim(|_| true).is_some());
        assert!(ring.reclaim(|_| true).is_none());
        assert!(ring.complete(id).is_none());
        assert_eq!(ring.vacant(), 3);
    }
}
