//! malloc(9) as the allocator of Rust.

use core::alloc::{GlobalAlloc, Layout};

use sys_bindings as sys;

/// The kernel's allocator, with a malloc type that carries the name of the module.
///
/// It never sleeps, because Rust does not say where it may. So every allocation may fail: what is
/// called after attach allocates nothing, and attach uses fallible calls (`try_reserve_exact`).
#[derive(Debug)]
pub struct KernelAllocator;

// SAFETY: `rust_helper_malloc` returns NULL or memory with size and alignment of the layout, which
// stays valid until it is freed. Neither sleeps, so both are legal wherever Rust code runs: in
// threads, with mutexes held, in epochs. Interrupt filters run no code of ours.
unsafe impl GlobalAlloc for KernelAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: see above; the call has no other condition.
        unsafe { sys::rust_helper_malloc(layout.size(), layout.align()) }.cast()
    }

    unsafe fn dealloc(&self, memory: *mut u8, _layout: Layout) {
        // SAFETY: the caller says that `memory` comes from `alloc` and is not used any more.
        unsafe { sys::rust_helper_free(memory.cast()) }
    }
}
