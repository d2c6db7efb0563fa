//! Receives that are posted: what the fabric knows by a small number, with the memory it fills.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use crate::memory::{self, Segment};

/// The receives of a queue pair or of a shared receive queue.
#[derive(Debug)]
pub struct Receives {
    slots: Vec<Slot>,
    /// `segments_max` for each slot.
    segments: Vec<Segment>,
    segments_max: usize,
    vacant: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    wr_id: u64,
    segment_count: usize,
    is_posted: bool,
}

/// A receive was not taken in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// As many are posted as may be.
    Full,
    /// More segments than agreed.
    TooManySegments,
}

impl Receives {
    /// Room for so many receives of so many segments.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(receives_max: u32, segments_max: u32) -> Result<Self, TryReserveError> {
        let (slots_len, segments_max) = (receives_max as usize, segments_max as usize);
        let (mut slots, mut segments, mut vacant) = (Vec::new(), Vec::new(), Vec::new());
        slots.try_reserve_exact(slots_len)?;
        segments.try_reserve_exact(slots_len.saturating_mul(segments_max))?;
        vacant.try_reserve_exact(slots_len)?;
        slots.resize(slots_len, Slot { wr_id: 0, segment_count: 0, is_posted: false });
        segments.resize(slots_len * segments_max, Segment::EMPTY);
        let mut receives = Self { slots, segments, segments_max, vacant };
        receives.clear();
        Ok(receives)
    }

    /// Takes a receive in; the number by which the fabric knows it.
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn insert(&mut self, wr_id: u64, segments: &[Segment]) -> Result<u64, Refusal> {
        if segments.len() > self.segments_max {
            return Err(Refusal::TooManySegments);
        }
        let number = self.vacant.pop().ok_or(Refusal::Full)?;
        let first = number as usize * self.segments_max;
        self.slots[number as usize] =
            Slot { wr_id, segment_count: segments.len(), is_posted: true };
        self.segments[first..first + segments.len()].copy_from_slice(segments);
        Ok(u64::from(number))
    }

    /// Ends a receive: what its poster called it. `bytes` go into its memory.
    pub fn complete(&mut self, number: u64, bytes: &[u8]) -> Option<u64> {
        let place = usize::try_from(number).ok()?;
        let slot = self.slots.get_mut(place).filter(|slot| slot.is_posted)?;
        slot.is_posted = false;
        let first = place * self.segments_max;
        memory::scatter(bytes, &self.segments[first..first + slot.segment_count]);
        // CAST: a place of the table.
        self.vacant.push(place as u32);
        Some(slot.wr_id)
    }

    /// Forgets them all: no completion will come of any.
    pub fn clear(&mut self) {
        self.vacant.clear();
        // From the back, so that the first slots are used first.
        for place in (0..self.slots.len()).rev() {
            self.slots[place].is_posted = false;
            // CAST: the length came as 32 bits.
            self.vacant.push(place as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_ends_once() {
        let mut receives = Receives::new(2, 1).unwrap();
        let number = receives.insert(77, &[]).unwrap();
        assert_eq!(receives.complete(number, &[]), Some(77));
        assert_eq!(receives.complete(number, &[]), None);
        assert_eq!(receives.complete(u64::MAX, &[]), None);
    }

    #[test]
    fn no_more_are_taken_in_than_agreed() {
        let mut receives = Receives::new(1, 1).unwrap();
        let two = [Segment::EMPTY; 2];
        assert_eq!(receives.insert(1, &two), Err(Refusal::TooManySegments));
        let first = receives.insert(1, &two[..1]).unwrap();
        assert_eq!(receives.insert(2, &[]), Err(Refusal::Full));
        receives.complete(first, &[]).unwrap();
        assert!(receives.insert(2, &[]).is_ok());
        receives.clear();
        assert!(receives.insert(3, &[]).is_ok());
    }
}
