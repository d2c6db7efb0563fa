//! ipoib_rs.ko: what the kernel loads.
//!
//! On a host, it is a library like another, which tests load into a fake kernel.

#![cfg_attr(target_os = "none", no_std)]

extern crate alloc;

mod adapters;
mod children;
mod interface;
mod lagg;
mod module;
mod settings;
mod sysctl;

use alloc::boxed::Box;
use core::ffi::c_int;

use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::owned::try_box;

pub use module::Module;

#[cfg(target_os = "none")]
#[global_allocator]
static ALLOCATOR: kpi::memory::KernelAllocator = kpi::memory::KernelAllocator;

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    kpi::log::panic(info)
}

/// MOD_LOAD, see `module.c`.
///
/// # Safety
///
/// `place` is good for writing. What is put there goes to [`ipoib_rs_unload`].
// SAFETY: no other symbol of the kernel has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipoib_rs_load(place: *mut *mut Module) -> c_int {
    // SAFETY: the kernel's linker calls from a thread that holds sleepable locks only.
    let mut may_sleep = unsafe { MaySleep::assume() };
    Errno::code(Module::load(&mut may_sleep).and_then(try_box).map(|module| {
        // SAFETY: see above.
        unsafe { place.write(Box::into_raw(module)) }
    }))
}

/// MOD_QUIESCE, see `module.c`: whether an adapter has something that it did not give back.
// SAFETY: no other symbol of the kernel has this name.
#[unsafe(no_mangle)]
pub extern "C" fn ipoib_rs_is_pinned() -> c_int {
    kpi::verbs::has_kept().into()
}

/// MOD_UNLOAD, see `module.c`.
///
/// # Safety
///
/// `module` is what [`ipoib_rs_load`] gave, and nobody else has it.
// SAFETY: no other symbol of the kernel has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ipoib_rs_unload(module: *mut Module) {
    // SAFETY: see above. As for MOD_LOAD, the thread may sleep.
    drop(unsafe { Box::from_raw(module) });
}
