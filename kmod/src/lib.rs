//! ipoib_rs.ko: what the kernel loads.

#![no_std]

extern crate alloc;

mod adapters;
mod children;
mod interface;
mod module;
mod settings;
mod sysctl;

use alloc::boxed::Box;
use core::ffi::c_int;
use core::panic::PanicInfo;

use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::log;
use kpi::memory::KernelAllocator;
use kpi::owned::try_box;

pub use module::Module;

#[global_allocator]
static ALLOCATOR: KernelAllocator = KernelAllocator;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    log::panic(info)
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
