//! As much of a kernel as `kpi` calls, in user space: for tests, under sanitizers and Miri.
//!
//! It is stricter than a kernel. What may not be called in a context ends the process: sleeping
//! with a mutex held or in an epoch, locking twice, locking in an order whose opposite was seen;
//! and so does what is used after it is gone, taken down twice or before what was made of it, or
//! waited for by its own callback. What is taken and not given back is found by LeakSanitizer, what
//! is used after that by AddressSanitizer.
//!
//! Functions for tests are safe and have plain names; what `kpi` calls has the names of `kpi/c`. A
//! function of `kpi/c` that is missing here is a symbol that the linker of a test does not find.

#![allow(clippy::missing_safety_doc, reason = "kpi/c says what each function wants")]

pub mod dma;
pub mod ifnet;
pub mod kenv;
pub mod lagg;
pub mod log;
pub mod mbuf;
pub mod memory;
pub mod ofed;
pub mod sync;
pub mod sysctl;
pub mod time;
pub mod trace;
pub mod worker;

use std::backtrace::Backtrace;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::io::{self, Write};

/// # Safety
///
/// `text` is a string of C.
unsafe fn string(text: *const c_char) -> String {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_str().expect("a text").to_owned()
}

/// Ends the process, as a kernel that finds itself broken would.
#[cold]
fn panic(what: fmt::Arguments<'_>) -> ! {
    let _inside = memory::inside();
    // Not `eprintln`, which a test keeps to itself.
    let _ = writeln!(io::stderr(), "fake kernel: {what}");
    if !cfg!(miri) {
        let _ = writeln!(io::stderr(), "{}", Backtrace::force_capture());
    }
    std::process::abort()
}

/// Ends the process unless a condition holds.
macro_rules! check {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            crate::panic(format_args!($($what)+))
        }
    };
}
pub(crate) use check;
