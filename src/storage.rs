//! Storage of fixed size: taken at attach, never grown. The only user of an allocator in the core.

mod index;
mod pending;
mod slab;
mod work;

use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

pub(crate) use index::Index;
pub(crate) use pending::{Pending, PendingStore, Queue};
pub(crate) use slab::Slab;
pub(crate) use work::WorkQueue;

/// There is no memory for a table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutOfMemory;

/// Values on the heap, whose number does not change.
#[derive(Debug)]
pub(crate) struct Fixed<T>(Vec<T>);

impl<T> Fixed<T> {
    /// `len` values.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if the allocator has none.
    pub(crate) fn new(len: u32, fill: impl FnMut() -> T) -> Result<Self, OutOfMemory> {
        let len = len as usize;
        let mut values = Vec::new();
        values.try_reserve_exact(len).map_err(|_| OutOfMemory)?;
        // So the compiler knows that what follows takes no more memory: it could not fail.
        if values.capacity() < len {
            return Err(OutOfMemory);
        }
        values.resize_with(len, fill);
        Ok(Self(values))
    }
}

impl<T> Deref for Fixed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Fixed<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}
