//! What `kmod/c/module.c` calls.

use std::ptr::null_mut;

use fake_kernel::memory;
use kmod::Module;

/// The module, from loading to unloading.
#[derive(Debug)]
pub(crate) struct Loaded(*mut Module);

/// MOD_LOAD.
pub(crate) fn load() -> Result<Loaded, i32> {
    let mut module = null_mut();
    let place = &raw mut module;
    // SAFETY: good for writing.
    match memory::kernel(|| unsafe { kmod::ipoib_rs_load(place) }) {
        0 => Ok(Loaded(module)),
        error => Err(error),
    }
}

/// MOD_UNLOAD.
pub(crate) fn unload(Loaded(module): Loaded) {
    // SAFETY: what `load` got, and nobody else has it.
    memory::kernel(|| unsafe { kmod::ipoib_rs_unload(module) });
}
