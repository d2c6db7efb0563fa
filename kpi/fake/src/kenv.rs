//! The kernel's environment, the clock, and other modules.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_int};
use std::sync::{LazyLock, Mutex};
use std::time::Instant;

use sys_bindings as sys;

use crate::string;

static ENVIRONMENT: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
static MODULES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static BOOT: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Sets a variable.
pub fn set(name: &str, value: &str) {
    ENVIRONMENT.lock().unwrap().insert(name.to_owned(), value.to_owned());
}

/// Has a module be there, of which only the name is known.
pub fn load_module(name: &str) {
    MODULES.lock().unwrap().insert(name.to_owned());
}

/// Time since boot, in the kernel's format.
pub(crate) fn uptime() -> i64 {
    let elapsed = BOOT.elapsed();
    let fraction = (u64::from(elapsed.subsec_nanos()) << 32) / 1_000_000_000;
    i64::try_from((elapsed.as_secs() << 32) + fraction).expect("a short test")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_kenv_number(name: *const c_char, number: *mut u64) -> bool {
    // SAFETY: a name, and a place for a number.
    let (name, number) = unsafe { (string(name), &mut *number) };
    match ENVIRONMENT.lock().unwrap().get(&name).and_then(|value| value.parse().ok()) {
        Some(value) => {
            *number = value;
            true
        }
        None => false,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_kenv_text(
    name: *const c_char,
    text: *mut c_char,
    size: c_int,
) -> bool {
    // SAFETY: a name.
    let name = unsafe { string(name) };
    let size = usize::try_from(size).expect("a size");
    // SAFETY: the text has room for that many bytes.
    let text = unsafe { std::slice::from_raw_parts_mut(text.cast::<u8>(), size) };
    let environment = ENVIRONMENT.lock().unwrap();
    let Some(value) = environment.get(&name).filter(|value| value.len() < size) else {
        return false;
    };
    text[..value.len()].copy_from_slice(value.as_bytes());
    text[value.len()] = 0;
    true
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_module_is_loaded(name: *const c_char) -> bool {
    // SAFETY: a name.
    MODULES.lock().unwrap().contains(&unsafe { string(name) })
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_sbinuptime() -> sys::sbintime_t {
    uptime()
}
