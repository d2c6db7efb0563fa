//! ipoib_rs.ko: what the kernel loads.

#![no_std]

use core::ffi::c_int;
use core::panic::PanicInfo;

use kpi::alloc::KernelAllocator;
use kpi::errno::Errno;
use kpi::log::{self, Level};

#[global_allocator]
static ALLOCATOR: KernelAllocator = KernelAllocator;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    log::panic(info)
}

/// MOD_LOAD, see `module.c`.
// SAFETY: no other symbol of the kernel has this name.
#[unsafe(no_mangle)]
pub extern "C" fn ipoib_rs_load() -> c_int {
    Errno::code(load())
}

/// MOD_UNLOAD, see `module.c`.
// SAFETY: no other symbol of the kernel has this name.
#[unsafe(no_mangle)]
pub extern "C" fn ipoib_rs_unload() -> c_int {
    Errno::code(unload())
}

fn load() -> Result<(), Errno> {
    log::line(Level::Info, format_args!("ipoib_rs {}: loaded", env!("CARGO_PKG_VERSION")));
    Ok(())
}

fn unload() -> Result<(), Errno> {
    Ok(())
}
