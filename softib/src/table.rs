//! A table of objects that C knows by numbers.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

/// The number of an object, 1 or more: 0 is that of none.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(transparent)]
pub struct Handle(pub(crate) u32);

/// The table. A number that is free is given out again: C uses it as long as it has the object.
#[derive(Debug)]
pub struct Table<T> {
    places: Vec<Option<T>>,
    vacant: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { places: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Makes room for one more, so that the next [`Self::insert`] needs no memory.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn reserve(&mut self) -> Result<(), TryReserveError> {
        if self.vacant.is_empty() {
            self.places.try_reserve(1)?;
            // As many as there are places, so that removing never allocates.
            self.vacant.try_reserve(self.places.len() + 1)?;
        }
        Ok(())
    }

    /// Adds an object.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn insert(&mut self, value: T) -> Result<Handle, TryReserveError> {
        self.reserve()?;
        let place = match self.vacant.pop() {
            Some(place) => {
                self.places[place as usize] = Some(value);
                place
            }
            None => {
                self.places.push(Some(value));
                // CAST: memory ends before 2^32 objects.
                self.places.len() as u32 - 1
            }
        };
        Ok(Handle(place + 1))
    }

    /// Takes an object out.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        let place = handle.0.checked_sub(1)?;
        let value = self.places.get_mut(place as usize)?.take()?;
        self.vacant.push(place);
        Some(value)
    }

    /// The object of a number.
    pub fn find(&self, handle: Handle) -> Option<&T> {
        self.places.get(handle.0.checked_sub(1)? as usize)?.as_ref()
    }

    /// The object of a number.
    pub fn find_mut(&mut self, handle: Handle) -> Option<&mut T> {
        self.places.get_mut(handle.0.checked_sub(1)? as usize)?.as_mut()
    }

    /// All objects, in the order of their numbers.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_leads_to_its_object_until_that_is_gone() {
        let mut table = Table::default();
        let a = table.insert('a').unwrap();
        let b = table.insert('b').unwrap();
        assert_eq!((a, b), (Handle(1), Handle(2)));
        assert_eq!(table.find(a), Some(&'a'));
        assert_eq!(table.remove(a), Some('a'));
        assert_eq!(table.remove(a), None);
        assert_eq!(table.find(a), None);
        assert_eq!(table.insert('c').unwrap(), a);
        assert_eq!(table.values().copied().collect::<Vec<_>>(), ['c', 'b']);
    }

    #[test]
    fn the_number_of_no_object_finds_nothing() {
        let mut table = Table::default();
        table.insert(1).unwrap();
        assert_eq!(table.find(Handle(0)), None);
        assert_eq!(table.find_mut(Handle(2)), None);
        assert_eq!(table.remove(Handle(0)), None);
    }
}
