//! Other modules of the kernel (module(9)).

use core::ffi::CStr;

use sys_bindings as sys;

use crate::context::MaySleep;
use crate::errno::Errno;

/// Whether a module is loaded, or part of the kernel.
pub fn is_loaded(name: &CStr, _may_sleep: &MaySleep) -> bool {
    // SAFETY: may sleep, as the argument proves: it takes the lock of the list of modules, which is
    // not held while a module is told to load.
    unsafe { sys::rust_helper_module_is_loaded(name.as_ptr()) }
}

/// Takes the names of other modules for our file: whoever looks for them finds us, and they cannot
/// be loaded beside us. They are ours until the file is unloaded, so it is the last thing of
/// loading that can fail.
///
/// # Errors
///
/// One of them is taken. None is then.
pub fn claim(names: &[&CStr], _may_sleep: &MaySleep) -> Result<(), Errno> {
    for (position, name) in names.iter().enumerate() {
        // SAFETY: may sleep, as the argument proves; the name is copied.
        let claimed = Errno::result(unsafe { sys::rust_helper_module_claim(name.as_ptr()) });
        if claimed.is_err() {
            for name in names.iter().take(position) {
                // SAFETY: as above; it was claimed just now, and is given back once.
                unsafe { sys::rust_helper_module_unclaim(name.as_ptr()) };
            }
            return claimed;
        }
    }
    Ok(())
}
