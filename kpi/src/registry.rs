//! What callbacks of the InfiniBand stack are about, by number.
//!
//! An answer may come after the question was given up, twice, or never. So what the stack is given
//! to hand back is no pointer but a number with a generation, which is looked up here, and finds
//! nothing when it is stale.

use alloc::vec::Vec;
use core::cell::UnsafeCell;

use sys_bindings as sys;

use crate::errno::Errno;
use crate::owned::try_push;

/// The number of an entry: its place, and a generation that no other entry has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Id(pub(crate) u64);

impl Id {
    const fn new(place: u32, generation: u32) -> Self {
        Self((generation as u64) << 32 | place as u64)
    }

    /// Of two entries, that of the older one is smaller, as long as there were fewer than 2^32.
    pub(crate) const fn generation(self) -> u64 {
        self.0 >> 32
    }

    const fn place(self) -> usize {
        // CAST: the low half.
        self.0 as u32 as usize
    }
}

/// Entries behind the mutex of the InfiniBand wrappers, for a static.
pub(crate) struct Registry<T> {
    entries: UnsafeCell<Entries<T>>,
}

// SAFETY: the entries are reached through `with` only, which holds the mutex meanwhile.
unsafe impl<T: Send> Sync for Registry<T> {}

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: UnsafeCell::new(Entries::new()) }
    }

    /// Runs `f` with the mutex held: `f` does not sleep, and calls nothing that takes a lock under
    /// which this registry is used.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Entries<T>) -> R) -> R {
        /// Unlocks even if `f` panics, as it may on a host.
        struct Guard;

        impl Drop for Guard {
            fn drop(&mut self) {
                // SAFETY: `with` locked it, and hands it to nobody.
                unsafe { sys::rust_helper_ofed_unlock() }
            }
        }

        // SAFETY: a mutex of its own that is not recursive: legal in threads that do not hold it,
        // and `f` does not come back here (above). It does not sleep.
        unsafe { sys::rust_helper_ofed_lock() };
        let guard = Guard;
        // SAFETY: with the mutex held, this is the only reference.
        let result = f(unsafe { &mut *self.entries.get() });
        drop(guard);
        result
    }
}

/// Entries by number.
pub(crate) struct Entries<T> {
    slots: Vec<Slot<T>>,
    /// The generation of the latest entry. It is not reset: an answer may outlive a registration.
    generation: u32,
    occupied: usize,
}

enum Slot<T> {
    Vacant,
    Occupied { generation: u32, value: T },
}

impl<T> Entries<T> {
    const fn new() -> Self {
        Self { slots: Vec::new(), generation: 0, occupied: 0 }
    }

    /// Adds an entry.
    pub(crate) fn insert(&mut self, value: T) -> Result<Id, Errno> {
        let place = if self.occupied < self.slots.len() {
            let vacant = self.slots.iter().position(|slot| matches!(slot, Slot::Vacant));
            vacant.ok_or(Errno::ENOMEM)?
        } else {
            try_push(&mut self.slots, Slot::Vacant)?;
            self.slots.len() - 1
        };
        // 0 is the generation of no entry, so that the number 0 is none.
        self.generation = self.generation.wrapping_add(1).max(1);
        let generation = self.generation;
        let slot = self.slots.get_mut(place).ok_or(Errno::ENOMEM)?;
        *slot = Slot::Occupied { generation, value };
        self.occupied += 1;
        // CAST: there are far fewer than 2^32 operations under way.
        Ok(Id::new(place as u32, generation))
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        match self.slots.get_mut(id.place())? {
            Slot::Occupied { generation, value } if Id::new(id.0 as u32, *generation) == id => {
                Some(value)
            }
            Slot::Occupied { .. } | Slot::Vacant => None,
        }
    }

    pub(crate) fn remove(&mut self, id: Id) -> Option<T> {
        self.get_mut(id)?;
        let slot = self.slots.get_mut(id.place())?;
        self.occupied -= 1;
        match core::mem::replace(slot, Slot::Vacant) {
            Slot::Occupied { value, .. } => Some(value),
            Slot::Vacant => None,
        }
    }

    /// The first entry for which `is_it` says so.
    pub(crate) fn find(&self, is_it: impl Fn(&T) -> bool) -> Option<Id> {
        self.iter().find(|(_, value)| is_it(value)).map(|(id, _)| id)
    }

    /// All entries, in the order of their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        (0..).zip(&self.slots).filter_map(|(place, slot)| match slot {
            Slot::Occupied { generation, value } => Some((Id::new(place, *generation), value)),
            Slot::Vacant => None,
        })
    }

    /// Gives the memory back if nothing is registered.
    pub(crate) fn trim(&mut self) {
        if self.occupied == 0 {
            self.slots = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_finds_its_entry_and_no_later_one() {
        let mut entries = Entries::new();
        let first = entries.insert('a').unwrap();
        assert_eq!(entries.get_mut(first).copied(), Some('a'));
        assert_eq!(entries.remove(first), Some('a'));
        let second = entries.insert('b').unwrap();
        assert_eq!(first.place(), second.place());
        assert_eq!(entries.get_mut(first), None);
        assert_eq!(entries.remove(first), None);
        assert_eq!(entries.remove(second), Some('b'));
    }

    #[test]
    fn numbers_are_not_repeated_after_the_memory_was_given_back() {
        let mut entries = Entries::new();
        let first = entries.insert('a').unwrap();
        entries.trim();
        assert_eq!(entries.get_mut(first).copied(), Some('a'));
        entries.remove(first);
        entries.trim();
        assert_eq!(entries.slots.capacity(), 0);
        let second = entries.insert('b').unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn entries_are_found_by_what_they_are() {
        let mut entries = Entries::new();
        let ids: Vec<Id> = "abc".chars().map(|name| entries.insert(name).unwrap()).collect();
        assert_eq!(entries.find(|name| *name == 'c'), Some(ids[2]));
        entries.remove(ids[1]);
        let left: Vec<char> = entries.iter().map(|(_, name)| *name).collect();
        assert_eq!(left, ['a', 'c']);
        assert_eq!(entries.find(|name| *name == 'b'), None);
    }
}
