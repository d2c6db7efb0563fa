//! From a key to the connections that have it.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

/// Pairs in order. Room for all of them is reserved at construction, so that nothing is allocated
/// later.
#[derive(Debug)]
pub(super) struct Index<K> {
    pairs: Vec<(K, u16)>,
}

impl<K: Copy + Ord> Index<K> {
    pub(super) fn new(len_max: u16) -> Result<Self, TryReserveError> {
        let mut pairs = Vec::new();
        pairs.try_reserve_exact(len_max.into())?;
        Ok(Self { pairs })
    }

    pub(super) fn insert(&mut self, key: K, place: u16) {
        if let Err(at) = self.pairs.binary_search(&(key, place)) {
            self.pairs.insert(at, (key, place));
        }
    }

    pub(super) fn remove(&mut self, key: K, place: u16) {
        if let Ok(at) = self.pairs.binary_search(&(key, place)) {
            self.pairs.remove(at);
        }
    }

    pub(super) fn first(&self) -> Option<(K, u16)> {
        self.pairs.first().copied()
    }

    /// The places with a key.
    pub(super) fn places(&self, key: K) -> impl Iterator<Item = u16> {
        let start = self.pairs.partition_point(|(other, _)| *other < key);
        let pairs = self.pairs.get(start..).unwrap_or_default();
        pairs.iter().take_while(move |(other, _)| *other == key).map(|(_, place)| *place)
    }
}
