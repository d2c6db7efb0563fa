//! softib.ko: a software InfiniBand adapter that registers with FreeBSD's ibcore.
//!
//! Its insides are the [`fabric`]: adapters, a switch and a subnet manager without an environment.
//! This crate gives them one: memory of the kernel for packets, one lock, one thread. The C half
//! (`softib/c`) knows the structures of ibcore and speaks plain values with this one
//! (`softib/c/softib.h`).
//!
//! Reading order: [`world`] (the objects, and what happens to them under the lock), `abi` (what C
//! calls), `admin` (sysctls), [`memory`] (whose bytes are copied when).
//!
//! Without a kernel around it, everything but `abi` and `admin` is built, and tested.

#![cfg_attr(target_os = "none", no_std)]

extern crate alloc;

#[cfg(target_os = "none")]
mod abi;
#[cfg(target_os = "none")]
mod admin;
mod checksum;
pub mod error;
pub mod hide;
pub mod layout;
pub mod memory;
pub mod receives;
pub mod table;
pub mod world;

#[cfg(target_os = "none")]
#[global_allocator]
static ALLOCATOR: kpi::memory::KernelAllocator = kpi::memory::KernelAllocator;

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    kpi::log::panic(info)
}
