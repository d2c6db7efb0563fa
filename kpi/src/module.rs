//! Other modules of the kernel (module(9)).

use core::ffi::CStr;

use sys_bindings as sys;

use crate::context::MaySleep;

/// Whether a module is loaded, or part of the kernel.
pub fn is_loaded(name: &CStr, _may_sleep: &MaySleep) -> bool {
    // SAFETY: may sleep, as the argument proves: it takes the lock of the list of modules, which is
    // not held while a module is told to load.
    unsafe { sys::rust_helper_module_is_loaded(name.as_ptr()) }
}
