//! Boxes and counted objects whose allocation may fail.

use alloc::boxed::Box;
use alloc::sync::Arc;

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
