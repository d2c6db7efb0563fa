//! Mutexes and epochs, with what WITNESS would say.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ffi::c_char;
use std::sync::{Condvar, Mutex, PoisonError};

use sys_bindings as sys;

use crate::{memory, string};

struct FakeMutex {
    name: String,
    is_held: Mutex<bool>,
    released: Condvar,
}

thread_local! {
    /// The names of the mutexes that this thread holds, in the order in which it locked them.
    static HELD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static EPOCHS: Cell<u32> = const { Cell::new(0) };
}

/// Orders that were seen: the second was locked while the first was held.
static ORDERS: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());

/// Whether this thread holds a mutex.
pub fn holds_mutex() -> bool {
    HELD.with_borrow(|held| !held.is_empty())
}

/// Whether this thread is in the net epoch.
pub fn is_in_epoch() -> bool {
    EPOCHS.get() > 0
}

/// To be called by everything that may sleep.
pub(crate) fn assert_may_sleep(what: &str) {
    HELD.with_borrow(|held| assert!(held.is_empty(), "{what} sleeps with {held:?} held"));
    assert!(!is_in_epoch(), "{what} sleeps in an epoch");
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mtx_create(name: *const c_char) -> *mut sys::mtx {
    if memory::is_exhausted() {
        return std::ptr::null_mut();
    }
    let mutex = FakeMutex {
        // SAFETY: a name.
        name: unsafe { string(name) },
        is_held: Mutex::new(false),
        released: Condvar::new(),
    };
    Box::into_raw(Box::new(mutex)).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mtx_destroy(mutex: *mut sys::mtx) {
    // SAFETY: from `rust_helper_mtx_create`, and not used any more.
    let mutex = unsafe { Box::from_raw(mutex.cast::<FakeMutex>()) };
    assert!(!*mutex.is_held.lock().unwrap(), "{} is destroyed while it is held", mutex.name);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mtx_lock(mutex: *mut sys::mtx) {
    // SAFETY: from `rust_helper_mtx_create`, and not destroyed.
    let mutex = unsafe { &*mutex.cast::<FakeMutex>() };
    HELD.with_borrow(|held| witness(held, &mutex.name));
    let mut is_held = mutex.is_held.lock().unwrap();
    while *is_held {
        is_held = mutex.released.wait(is_held).unwrap();
    }
    *is_held = true;
    HELD.with_borrow_mut(|held| held.push(mutex.name.clone()));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mtx_unlock(mutex: *mut sys::mtx) {
    // SAFETY: from `rust_helper_mtx_create`, and not destroyed.
    let mutex = unsafe { &*mutex.cast::<FakeMutex>() };
    HELD.with_borrow_mut(|held| {
        let place = held.iter().rposition(|name| *name == mutex.name);
        held.remove(place.expect("the thread holds it"));
    });
    *mutex.is_held.lock().unwrap() = false;
    mutex.released.notify_one();
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_net_epoch_enter(_tracker: *mut sys::epoch_tracker) {
    EPOCHS.set(EPOCHS.get() + 1);
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_net_epoch_exit(_tracker: *mut sys::epoch_tracker) {
    EPOCHS.set(EPOCHS.get().checked_sub(1).expect("the thread is in an epoch"));
}

/// Mutexes of one name are one place in the order, as they are for WITNESS.
fn witness(held: &[String], name: &String) {
    assert!(!held.contains(name), "{name} is locked twice");
    let mut orders = ORDERS.lock().unwrap_or_else(PoisonError::into_inner);
    for outer in held {
        let opposite = (name.clone(), outer.clone());
        assert!(!orders.contains(&opposite), "{name} is locked after {outer}, and before it");
        orders.insert((outer.clone(), name.clone()));
    }
}
