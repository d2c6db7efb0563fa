//! Boxes, counted objects and lists whose allocation may fail.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::errno::Errno;

/// A box.
///
/// # Errors
///
/// No memory.
pub fn try_box<T>(value: T) -> Result<Box<T>, Errno> {
    Box::try_new(value).map_err(|_| Errno::ENOMEM)
}

/// A counted object.
///
/// # Errors
///
/// No memory.
pub fn try_arc<T>(value: T) -> Result<Arc<T>, Errno> {
    Arc::try_new(value).map_err(|_| Errno::ENOMEM)
}

/// Adds a value to a list.
///
/// # Errors
///
/// No memory.
pub fn try_push<T>(values: &mut Vec<T>, value: T) -> Result<(), Errno> {
    values.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    // So the compiler knows that there is room: what it would do otherwise could not fail.
    if values.len() == values.capacity() {
        return Err(Errno::ENOMEM);
    }
    values.push(value);
    Ok(())
}
