//! Memory that can run out.

use std::cell::Cell;

thread_local! {
    /// How many allocations succeed before one fails; `None`: all.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Has the allocation after the next `count` fail, in this thread, once.
pub fn fail_after(count: u32) {
    LEFT.set(Some(count));
}

/// Whether the allocation that was to fail has failed; none is to fail from now on.
pub fn has_failed() -> bool {
    LEFT.take().is_none()
}

/// Asked by everything here that allocates what `kpi` asks for.
pub(crate) fn is_exhausted() -> bool {
    match LEFT.get() {
        Some(0) => {
            LEFT.set(None);
            true
        }
        Some(left) => {
            LEFT.set(Some(left - 1));
            false
        }
        None => false,
    }
}
