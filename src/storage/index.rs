//! From a key to a place: an open-addressed hash table of fixed size.

use super::{Fixed, OutOfMemory};

/// Maps hashes to places. It holds no keys: the caller compares, so that a probe that misses
/// touches this table alone.
///
/// The table has at least twice as many cells as places, so probes are short and a search ends.
#[derive(Debug)]
pub(crate) struct Index {
    cells: Fixed<Option<Cell>>,
    mask: usize,
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    hash: u32,
    place: u32,
}

impl Index {
    /// An index over `places` places. The seed keeps peers from choosing addresses that collide.
    pub(crate) fn new(places: u32, seed: u64) -> Result<Self, OutOfMemory> {
        let len = places.saturating_mul(2).max(2).checked_next_power_of_two().ok_or(OutOfMemory)?;
        Ok(Self { cells: Fixed::new(len, || None)?, mask: len as usize - 1, seed })
    }

    /// The place under `key` for which `is_it` says so.
    pub(crate) fn find(&self, key: &[u8], mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let hash = self.hash(key);
        let mut at = hash as usize & self.mask;
        // The table is never full, so a search meets an empty cell.
        while let Some(cell) = self.cells.get(at).copied().flatten() {
            if cell.hash == hash && is_it(cell.place) {
                return Some(cell.place);
            }
            at = (at + 1) & self.mask;
        }
        None
    }

    /// Enters a place. The caller has as many places as it asked for and enters each at most once.
    pub(crate) fn insert(&mut self, key: &[u8], place: u32) {
        let hash = self.hash(key);
        let mut at = hash as usize & self.mask;
        while let Some(cell) = self.cells.get_mut(at) {
            if cell.is_none() {
                *cell = Some(Cell { hash, place });
                return;
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Removes a place and moves up what was displaced by it.
    pub(crate) fn remove(&mut self, key: &[u8], place: u32) {
        let mut hole = self.hash(key) as usize & self.mask;
        loop {
            match self.cells.get(hole).copied().flatten() {
                Some(cell) if cell.place == place => break,
                Some(_) => hole = (hole + 1) & self.mask,
                None => return,
            }
        }
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let Some(cell) = self.cells.get(at).copied().flatten() else {
                break;
            };
            let home = cell.hash as usize & self.mask;
            // A cell may move up to the hole unless its home lies behind the hole.
            let is_reachable =
                at.wrapping_sub(home) & self.mask >= at.wrapping_sub(hole) & self.mask;
            if is_reachable {
                self.set(hole, Some(cell));
                hole = at;
            }
        }
        self.set(hole, None);
    }

    fn set(&mut self, at: usize, value: Option<Cell>) {
        if let Some(cell) = self.cells.get_mut(at) {
            *cell = value;
        }
    }

    /// A multiply-and-fold hash over 8 bytes at a time.
    fn hash(&self, key: &[u8]) -> u32 {
        const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut state = self.seed;
        for chunk in key.chunks(8) {
            let word = chunk.iter().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
            let product = u128::from(state ^ word).wrapping_mul(u128::from(MULTIPLIER));
            // CAST: the two halves of the product.
            state = (product as u64) ^ ((product >> 64) as u64);
        }
        // CAST: the upper half, which depends on every bit.
        (state.wrapping_mul(MULTIPLIER) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_index_agrees_with_a_list(
            seed: u64,
            steps in proptest::collection::vec((any::<bool>(), 0u8..24), 0..200),
        ) {
            let mut index = Index::new(16, seed).unwrap();
            let mut list: Vec<u8> = Vec::new();
            for (is_insert, key) in steps {
                let held = list.contains(&key);
                if is_insert && !held && list.len() < 16 {
                    index.insert(&[key; 20], u32::from(key));
                    list.push(key);
                } else if !is_insert && held {
                    index.remove(&[key; 20], u32::from(key));
                    list.retain(|&other| other != key);
                }
                for key in 0..24u8 {
                    let found = index.find(&[key; 20], |place| place == u32::from(key));
                    prop_assert_eq!(found.is_some(), list.contains(&key));
                }
            }
        }
    }
}
