//! Memory that runs out, and everything else that fails once in a while.
//!
//! What can fail asks [`is_exhausted`] first. A test has the n-th of these fail, for one n after
//! the other. With [`fail_anything_after`] also the allocations of Rust are among them, those that
//! are made inside of [`kernel`], which is what this crate calls driver code through.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// How often something succeeds before it fails once; `None`: always.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    /// Whether that is anything, or only what this crate allocates.
    static IS_ANYTHING: Cell<bool> = const { Cell::new(false) };
    static IS_IN_DRIVER: Cell<bool> = const { Cell::new(false) };
    static FAILED: Cell<&'static str> = const { Cell::new("nothing") };
}

/// Has the allocation of a kernel's object after the next `count` fail, in this thread, once.
pub fn fail_after(count: u32) {
    IS_ANYTHING.set(false);
    LEFT.set(Some(count));
}

/// As [`fail_after`], but of everything that may fail: allocations of Rust in driver code, verbs,
/// questions to the subnet administrator, messages.
pub fn fail_anything_after(count: u32) {
    IS_ANYTHING.set(true);
    LEFT.set(Some(count));
    FAILED.set("nothing");
}

/// Whether what was to fail has failed; nothing is to fail from now on.
pub fn has_failed() -> bool {
    LEFT.take().is_none()
}

/// What failed last.
pub fn failed() -> &'static str {
    FAILED.get()
}

/// Runs code of a driver: what it allocates may fail.
pub fn kernel<R>(driver: impl FnOnce() -> R) -> R {
    let _place = Place::enter(true);
    driver()
}

/// Asked by everything here that allocates what `kpi` asks for.
pub(crate) fn is_exhausted() -> bool {
    is_next("an object of the kernel")
}

/// Asked by everything else that may fail.
pub(crate) fn fails(what: &'static str) -> bool {
    IS_ANYTHING.get() && is_next(what)
}

/// While it exists, this is not code of a driver, but of this crate.
pub(crate) fn inside() -> Place {
    Place::enter(false)
}

fn is_next(what: &'static str) -> bool {
    match LEFT.get() {
        Some(0) => {
            LEFT.set(None);
            FAILED.set(what);
            true
        }
        Some(left) => {
            LEFT.set(Some(left - 1));
            false
        }
        None => false,
    }
}

/// Goes back to where it was when it is dropped.
pub(crate) struct Place {
    was_in_driver: bool,
}

impl Place {
    fn enter(is_in_driver: bool) -> Self {
        Self { was_in_driver: IS_IN_DRIVER.replace(is_in_driver) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        IS_IN_DRIVER.set(self.was_in_driver);
    }
}

/// The allocator of Rust, in tests.
struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn is_out_of_memory() -> bool {
    IS_IN_DRIVER.get() && fails("an allocation of Rust")
}

// SAFETY: the allocator of the system, or NULL.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_out_of_memory() {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if is_out_of_memory() {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller says.
        unsafe { System.realloc(memory, layout, size) }
    }
}
