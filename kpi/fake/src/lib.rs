//! As much of a kernel as `kpi` calls, in user space: for tests, under sanitizers.
//!
//! It is stricter than a kernel. What may not be called in a context panics: sleeping with a mutex
//! held or in an epoch, locking twice, locking in an order whose opposite was seen. What is taken
//! and not given back is found by LeakSanitizer, what is used after that by AddressSanitizer: every
//! object here is an allocation of its own.
//!
//! Functions for tests are safe and have plain names; what `kpi` calls has the names of `kpi/c`.

#![allow(clippy::missing_safety_doc, reason = "kpi/c says what each function wants")]

pub mod dma;
pub mod kenv;
pub mod log;
pub mod mbuf;
pub mod memory;
pub mod ofed;
pub mod sync;
pub mod sysctl;
pub mod worker;

use std::ffi::CStr;
use std::ffi::c_char;

/// # Safety
///
/// `text` is a string of C.
unsafe fn string(text: *const c_char) -> String {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
