//! What the loader was told (kenv(2)).

use core::ffi::{CStr, c_int};

use sys_bindings as sys;

/// A number, if there is one of that name and it is not negative.
pub fn number(name: &CStr) -> Option<u64> {
    let mut number = 0;
    // SAFETY: both pointers are good for the call. Legal in threads; it may sleep for a lock of the
    // environment, which is held shortly, and modules read their tunables while they are loaded.
    unsafe { sys::rust_helper_kenv_number(name.as_ptr(), &raw mut number) }.then_some(number)
}

/// A text, if there is one of that name and it fits.
pub fn text<'a>(name: &CStr, buffer: &'a mut [u8; TEXT_BYTES]) -> Option<&'a str> {
    // SAFETY: as for `number`; the text ends with a 0 within the buffer.
    let is_found = unsafe {
        sys::rust_helper_kenv_text(name.as_ptr(), buffer.as_mut_ptr().cast(), TEXT_BYTES as c_int)
    };
    let text = CStr::from_bytes_until_nul(buffer).ok()?;
    if is_found { text.to_str().ok() } else { None }
}

/// Longer than any text of a tunable (KENV_MVALLEN).
pub const TEXT_BYTES: usize = 129;
