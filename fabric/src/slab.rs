//! A table whose places carry a generation, so that an old key never finds a new value.

use alloc::vec::Vec;
use core::mem;

/// The identity of a value.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The table: at most `len_max` values.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    vacant: Vec<u32>,
    len_max: u32,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

/// No value can be added.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SlabError {
    Full,
    OutOfMemory,
}

impl<T> Slab<T> {
    pub(crate) const fn new(len_max: u32) -> Self {
        Self { places: Vec::new(), vacant: Vec::new(), len_max }
    }

    /// Adds the value that `make` makes of its key.
    pub(crate) fn insert(&mut self, make: impl FnOnce(Key) -> T) -> Result<Key, SlabError> {
        if self.vacant.is_empty() {
            self.grow()?;
        }
        let index = self.vacant.pop().ok_or(SlabError::Full)?;
        let place = &mut self.places[index as usize];
        let key = Key { index, generation: place.generation };
        place.value = Some(make(key));
        Ok(key)
    }

    fn grow(&mut self) -> Result<(), SlabError> {
        let index = self.places.len() as u32;
        if index == self.len_max {
            return Err(SlabError::Full);
        }
        // Both lists have room for every place, so that removing never allocates.
        let out_of_memory = |_| SlabError::OutOfMemory;
        self.places.try_reserve(1).map_err(out_of_memory)?;
        self.vacant.try_reserve(self.places.len() + 1).map_err(out_of_memory)?;
        self.places.push(Place { generation: 0, value: None });
        self.vacant.push(index);
        Ok(())
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let value = mem::take(&mut place.value)?;
        place.generation = place.generation.wrapping_add(1);
        self.vacant.push(key.index);
        Some(value)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        place.value.as_ref().filter(|_| place.generation == key.generation)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        let is_current = place.generation == key.generation;
        place.value.as_mut().filter(|_| is_current)
    }

    /// The value at `index`, whatever its generation is, and its key.
    pub(crate) fn at(&self, index: u32) -> Option<(Key, &T)> {
        let place = self.places.get(index as usize)?;
        let generation = place.generation;
        let value = place.value.as_ref()?;
        Some((Key { index, generation }, value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        (0..).zip(&mut self.places).filter_map(|(index, place)| {
            let generation = place.generation;
            let value = place.value.as_mut()?;
            Some((Key { index, generation }, value))
        })
    }

    /// The values, in the order of their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.value.as_ref())
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_does_not_find_the_value_that_took_its_place() {
        let mut slab = Slab::new(1);
        let old = slab.insert(|_| 'a').unwrap();
        assert_eq!(slab.remove(old), Some('a'));
        let new = slab.insert(|_| 'b').unwrap();
        assert_eq!(new.index, old.index);
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.get_mut(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!(slab.get(new), Some(&'b'));
    }

    #[test]
    fn the_table_does_not_grow_past_its_limit() {
        let mut slab = Slab::new(2);
        let first = slab.insert(|_| 1).unwrap();
        slab.insert(|_| 2).unwrap();
        assert_eq!(slab.insert(|_| 3), Err(SlabError::Full));
        slab.remove(first);
        assert_eq!(slab.len(), 1);
        assert!(slab.insert(|_| 3).is_ok());
    }
}
