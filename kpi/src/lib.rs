//! Safe wrappers of the FreeBSD kernel programming interface.
//!
//! The only user of `sys_bindings`. The C files of `kpi/c` turn macros and inline functions into
//! functions, and differences between FreeBSD 14 and 15 end there.
//!
//! What holds in every module:
//!
//! * A value that exists is initialised; its destructor does the teardown.
//! * Who owns what stands in the types: a packet that is handed to the kernel is moved.
//! * The context in which a call is legal is an argument, see [`context`].

#![no_std]
// Allocation that may fail, of boxes and counted objects.
#![feature(allocator_api)]

extern crate alloc;

mod abi;
pub mod client;
pub mod cloner;
pub mod cm;
pub mod context;
pub mod dma;
pub mod errno;
pub mod ifnet;
pub mod lagg;
pub mod late;
pub mod log;
pub mod mbuf;
pub mod memory;
pub mod module;
pub mod owned;
mod registry;
pub mod sa;
pub mod sync;
pub mod sysctl;
pub mod time;
pub mod tunable;
pub mod verbs;
pub mod worker;
