//! The log, and the end of the kernel.

use std::ffi::{c_char, c_int};
use std::sync::{Mutex, PoisonError};

use crate::memory;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The lines since the last call.
pub fn take_lines() -> Vec<String> {
    std::mem::take(&mut *LINES.lock().unwrap_or_else(PoisonError::into_inner))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_log(_level: c_int, text: *const c_char, length: c_int) {
    let _inside = memory::inside();
    // SAFETY: the text has that length.
    let line = unsafe { text_of(text, length) };
    LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_panic(text: *const c_char, length: c_int) -> ! {
    // SAFETY: the text has that length.
    let text = unsafe { text_of(text, length) };
    crate::panic(format_args!("panic: {text}"))
}

unsafe fn text_of(text: *const c_char, length: c_int) -> String {
    let length = usize::try_from(length).expect("a length");
    // SAFETY: as the caller says.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    String::from_utf8_lossy(bytes).into_owned()
}
