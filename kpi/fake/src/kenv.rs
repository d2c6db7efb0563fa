//! The kernel's environment, and other modules.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_int};
use std::sync::Mutex;

use crate::{memory, string};

static ENVIRONMENT: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
static MODULES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Sets a variable.
pub fn set(name: &str, value: &str) {
    ENVIRONMENT.lock().unwrap().insert(name.to_owned(), value.to_owned());
}

/// Forgets all variables and modules.
pub fn reset() {
    ENVIRONMENT.lock().unwrap().clear();
    MODULES.lock().unwrap().clear();
}

/// Has a module be there, of which only the name is known.
pub fn load_module(name: &str) {
    MODULES.lock().unwrap().insert(name.to_owned());
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_kenv_number(name: *const c_char, number: *mut u64) -> bool {
    let _inside = memory::inside();
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
    let _inside = memory::inside();
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
    let _inside = memory::inside();
    // SAFETY: a name.
    MODULES.lock().unwrap().contains(&unsafe { string(name) })
}
