//! Many deadlines, one timer: a binary heap with one place per object.

use crate::storage::{Fixed, OutOfMemory};
use crate::time::Instant;

/// The deadlines of all objects of an interface. Equal deadlines fire in the order in which they
/// were set, so that a run can be repeated.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: Fixed<Entry>,
    len: usize,
    /// Where an object stands in the heap.
    place_of: Fixed<Option<u32>>,
    sequence: u64,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Entry {
    at: Instant,
    sequence: u64,
    object: u32,
}

impl Timers {
    /// For the objects below `objects`.
    pub(crate) fn new(objects: u32) -> Result<Self, OutOfMemory> {
        let unused = Entry { at: Instant::ZERO, sequence: 0, object: 0 };
        Ok(Self {
            heap: Fixed::new(objects, || unused)?,
            len: 0,
            place_of: Fixed::new(objects, || None)?,
            sequence: 0,
        })
    }

    /// Sets, moves or (with `None`) stops the timer of an object.
    pub(crate) fn set(&mut self, object: u32, at: Option<Instant>) {
        let Some(&place) = self.place_of.get(object as usize) else {
            return;
        };
        match (place, at) {
            (None, None) => {}
            (Some(place), None) => self.remove(place as usize),
            (Some(place), Some(at)) => {
                if self.entry(place as usize).is_some_and(|entry| entry.at == at) {
                    return;
                }
                self.remove(place as usize);
                self.insert(object, at);
            }
            (None, Some(at)) => self.insert(object, at),
        }
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.entry(0).map(|entry| entry.at)
    }

    /// Takes out the earliest timer that is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let entry = self.entry(0).filter(|entry| entry.at <= now)?;
        self.remove(0);
        Some(entry.object)
    }

    fn entry(&self, place: usize) -> Option<Entry> {
        if place < self.len { self.heap.get(place).copied() } else { None }
    }

    fn insert(&mut self, object: u32, at: Instant) {
        self.sequence += 1;
        let place = self.len;
        self.len += 1;
        self.put(place, Entry { at, sequence: self.sequence, object });
        self.sift_up(place);
    }

    fn remove(&mut self, place: usize) {
        let (Some(removed), Some(last)) = (self.entry(place), self.entry(self.len.wrapping_sub(1)))
        else {
            return;
        };
        self.len -= 1;
        if let Some(slot) = self.place_of.get_mut(removed.object as usize) {
            *slot = None;
        }
        if removed != last {
            self.put(place, last);
            self.sift_down(place);
            self.sift_up(place);
        }
    }

    fn put(&mut self, place: usize, entry: Entry) {
        if let (Some(cell), Some(slot)) =
            (self.heap.get_mut(place), self.place_of.get_mut(entry.object as usize))
        {
            *cell = entry;
            // CAST: a place is below the number of objects, a u32.
            *slot = Some(place as u32);
        }
    }

    fn sift_up(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            let (Some(entry), Some(above)) = (self.entry(place), self.entry(parent)) else {
                return;
            };
            if above <= entry {
                return;
            }
            self.put(parent, entry);
            self.put(place, above);
            place = parent;
        }
    }

    fn sift_down(&mut self, mut place: usize) {
        while let Some(entry) = self.entry(place) {
            let children = [2 * place + 1, 2 * place + 2];
            let smallest = children
                .into_iter()
                .filter_map(|child| self.entry(child).map(|entry| (entry, child)))
                .min();
            let Some((below, child)) = smallest.filter(|&(below, _)| below < entry) else {
                return;
            };
            self.put(child, entry);
            self.put(place, below);
            place = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_deadlines_fire_in_the_order_in_which_they_were_set() {
        let mut timers = Timers::new(4).unwrap();
        let at = Instant::from_millis(5);
        for object in [3, 1, 2] {
            timers.set(object, Some(at));
        }
        assert_eq!(timers.pop_due(Instant::from_millis(4)), None);
        let order: [_; 4] = core::array::from_fn(|_| timers.pop_due(at));
        assert_eq!(order, [Some(3), Some(1), Some(2), None]);
    }

    proptest! {
        #[test]
        fn timers_agree_with_a_sorted_map(
            steps in proptest::collection::vec((0u32..12, proptest::option::of(0u64..50)), 0..200),
        ) {
            let mut timers = Timers::new(12).unwrap();
            let mut map: BTreeMap<u32, u64> = BTreeMap::new();
            for (object, at) in steps {
                timers.set(object, at.map(Instant::from_millis));
                match at {
                    Some(at) => map.insert(object, at),
                    None => map.remove(&object),
                };
                let earliest = map.values().min().copied().map(Instant::from_millis);
                prop_assert_eq!(timers.next(), earliest);
            }
            let mut fired: Vec<u64> = Vec::new();
            while let Some(object) = timers.pop_due(Instant::from_millis(100)) {
                fired.push(map.remove(&object).unwrap());
            }
            prop_assert!(map.is_empty());
            prop_assert!(fired.is_sorted());
        }
    }
}
