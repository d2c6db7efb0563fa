//! Places for a fixed number of values.

use super::{Fixed, OutOfMemory};

/// A table of places, each vacant or taken. A place keeps its number as long as it is taken.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Fixed<Place<T>>,
    vacant: Option<u32>,
    taken: u32,
}

#[derive(Debug)]
enum Place<T> {
    Taken(T),
    Vacant { next: Option<u32> },
}

impl<T> Slab<T> {
    pub(crate) fn new(len: u32) -> Result<Self, OutOfMemory> {
        let mut position = 0;
        let places = Fixed::new(len, || {
            position += 1;
            Place::Vacant { next: (position < len).then_some(position) }
        })?;
        Ok(Self { places, vacant: (len > 0).then_some(0), taken: 0 })
    }

    /// Takes a place for `value`, or gives it back if every place is taken.
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, T> {
        let Some(position) = self.vacant else {
            return Err(value);
        };
        match self.places.get_mut(position as usize) {
            Some(place @ Place::Vacant { .. }) => {
                if let Place::Vacant { next } = *place {
                    self.vacant = next;
                }
                *place = Place::Taken(value);
                self.taken += 1;
                Ok(position)
            }
            Some(Place::Taken(_)) | None => Err(value),
        }
    }

    pub(crate) fn remove(&mut self, position: u32) -> Option<T> {
        let place = self.places.get_mut(position as usize)?;
        match core::mem::replace(place, Place::Vacant { next: self.vacant }) {
            Place::Taken(value) => {
                self.vacant = Some(position);
                self.taken -= 1;
                Some(value)
            }
            Place::Vacant { next } => {
                *place = Place::Vacant { next };
                None
            }
        }
    }

    pub(crate) fn get(&self, position: u32) -> Option<&T> {
        match self.places.get(position as usize)? {
            Place::Taken(value) => Some(value),
            Place::Vacant { .. } => None,
        }
    }

    pub(crate) fn get_mut(&mut self, position: u32) -> Option<&mut T> {
        match self.places.get_mut(position as usize)? {
            Place::Taken(value) => Some(value),
            Place::Vacant { .. } => None,
        }
    }

    /// How many places there are.
    pub(crate) fn capacity(&self) -> u32 {
        // CAST: made from a u32 length.
        self.places.len() as u32
    }

    pub(crate) fn is_full(&self) -> bool {
        self.vacant.is_none()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// The taken places, in order, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0u32..).zip(self.places.iter_mut()).filter_map(|(position, place)| match place {
            Place::Taken(value) => Some((position, value)),
            Place::Vacant { .. } => None,
        })
    }

    /// The taken places, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(self.places.iter()).filter_map(|(position, place)| match place {
            Place::Taken(value) => Some((position, value)),
            Place::Vacant { .. } => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_can_be_taken_once() {
        let mut slab = Slab::new(3).unwrap();
        let places: [u32; 3] = core::array::from_fn(|value| slab.insert(value).unwrap());
        assert_eq!(places, [0, 1, 2]);
        assert_eq!(slab.insert(9), Err(9));
        assert!(slab.is_full());
        assert_eq!(slab.remove(1), Some(1));
        assert_eq!(slab.remove(1), None);
        assert_eq!(slab.insert(7), Ok(1));
        assert_eq!(slab.iter().map(|(_, &value)| value).sum::<usize>(), 9);
    }

    #[test]
    fn a_vacant_place_that_is_removed_again_keeps_the_free_list_whole() {
        let mut slab = Slab::new(3).unwrap();
        slab.insert(0).unwrap();
        assert_eq!(slab.remove(2), None);
        assert_eq!(slab.remove(0), Some(0));
        assert!(slab.is_empty());
        let taken: [_; 3] = core::array::from_fn(|value| slab.insert(value));
        assert!(taken.iter().all(Result::is_ok));
    }
}
