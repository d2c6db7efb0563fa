//! Storage of fixed size: taken at attach, never grown. The only user of an allocator in the core.

mod index;
mod pending;
mod slab;
mod work;

use alloc::boxed::Box;
use alloc::vec::Vec;

pub(crate) use index::Index;
pub(crate) use pending::{Pending, PendingStore, Queue};
pub(crate) use slab::Slab;
pub(crate) use work::WorkQueue;

/// There is no memory for a table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutOfMemory;

/// `len` values on the heap.
///
/// # Errors
///
/// [`OutOfMemory`] if the allocator has none.
pub(crate) fn boxed<T>(len: u32, fill: impl FnMut() -> T) -> Result<Box<[T]>, OutOfMemory> {
    let len = len as usize;
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| OutOfMemory)?;
    values.resize_with(len, fill);
    Ok(values.into_boxed_slice())
}
