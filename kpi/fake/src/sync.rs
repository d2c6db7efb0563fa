//! Mutexes and epochs, with what WITNESS would say.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ffi::c_char;
use std::sync::{Condvar, Mutex, PoisonError};

use sys_bindings as sys;

use crate::{check, memory, string};

pub(crate) struct FakeMutex {
    name: Cow<'static, str>,
    is_held: Mutex<bool>,
    released: Condvar,
}

impl FakeMutex {
    pub(crate) const fn new(name: Cow<'static, str>) -> Self {
        Self { name, is_held: Mutex::new(false), released: Condvar::new() }
    }

    pub(crate) fn lock(&self) {
        let _inside = memory::inside();
        HELD.with_borrow(|held| witness(held, &self.name));
        let mut is_held = self.is_held.lock().unwrap();
        while *is_held {
            is_held = self.released.wait(is_held).unwrap();
        }
        *is_held = true;
        HELD.with_borrow_mut(|held| held.push(self.name.clone()));
    }

    pub(crate) fn unlock(&self) {
        HELD.with_borrow_mut(|held| {
            let place = held.iter().rposition(|name| *name == self.name);
            check!(place.is_some(), "{} is unlocked by a thread that does not hold it", self.name);
            held.remove(place.unwrap_or_default());
        });
        *self.is_held.lock().unwrap() = false;
        self.released.notify_one();
    }
}

thread_local! {
    /// The names of the mutexes that this thread holds, in the order in which it locked them.
    static HELD: RefCell<Vec<Cow<'static, str>>> = const { RefCell::new(Vec::new()) };
    static EPOCHS: Cell<u32> = const { Cell::new(0) };
    /// Callbacks in which nobody may sleep.
    static ATOMIC: Cell<u32> = const { Cell::new(0) };
}

type Order = (String, String);

/// Orders that were seen: the second was locked while the first was held.
static ORDERS: Mutex<BTreeSet<Order>> = Mutex::new(BTreeSet::new());

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
    HELD.with_borrow(|held| check!(held.is_empty(), "{what} sleeps with {held:?} held"));
    check!(!is_in_epoch(), "{what} sleeps in an epoch");
    check!(ATOMIC.get() == 0, "{what} sleeps in a callback that must not");
}

/// Runs code of a driver in which it may sleep.
pub(crate) fn call<R>(driver: impl FnOnce() -> R) -> R {
    let result = memory::kernel(driver);
    HELD.with_borrow(|held| check!(held.is_empty(), "a callback returns with {held:?} held"));
    result
}

/// Runs code of a driver that must not sleep.
pub(crate) fn call_atomic<R>(driver: impl FnOnce() -> R) -> R {
    ATOMIC.set(ATOMIC.get() + 1);
    let result = call(driver);
    ATOMIC.set(ATOMIC.get() - 1);
    result
}

/// Runs code of a driver in the net epoch.
pub(crate) fn call_in_epoch<R>(driver: impl FnOnce() -> R) -> R {
    EPOCHS.set(EPOCHS.get() + 1);
    let result = call(driver);
    EPOCHS.set(EPOCHS.get() - 1);
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mtx_create(name: *const c_char) -> *mut sys::mtx {
    if memory::is_exhausted() {
        return std::ptr::null_mut();
    }
    let _inside = memory::inside();
    // SAFETY: a name.
    let mutex = FakeMutex::new(Cow::Owned(unsafe { string(name) }));
    Box::into_raw(Box::new(mutex)).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mtx_destroy(mutex: *mut sys::mtx) {
    // SAFETY: from `rust_helper_mtx_create`, and not used any more.
    let mutex = unsafe { Box::from_raw(mutex.cast::<FakeMutex>()) };
    check!(!*mutex.is_held.lock().unwrap(), "{} is destroyed while it is held", mutex.name);
}

/// It wakes by itself after a while, as a thread that sleeps may.
#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mtx_wait(mutex: *mut sys::mtx) {
    // SAFETY: from `rust_helper_mtx_create`, and not destroyed.
    let mutex = unsafe { &*mutex.cast::<FakeMutex>() };
    mutex.unlock();
    assert_may_sleep("mtx_wait");
    let _inside = memory::inside();
    // What is waited for, a worker does.
    if !crate::worker::are_by_hand() || !crate::worker::run_due() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    mutex.lock();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mtx_notify(_mutex: *mut sys::mtx) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mtx_lock(mutex: *mut sys::mtx) {
    // SAFETY: from `rust_helper_mtx_create`, and not destroyed.
    let mutex = unsafe { &*mutex.cast::<FakeMutex>() };
    mutex.lock();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mtx_unlock(mutex: *mut sys::mtx) {
    // SAFETY: from `rust_helper_mtx_create`, and not destroyed.
    let mutex = unsafe { &*mutex.cast::<FakeMutex>() };
    mutex.unlock();
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
fn witness(held: &[Cow<'static, str>], name: &str) {
    check!(held.iter().all(|other| other != name), "{name} is locked twice");
    let mut orders = ORDERS.lock().unwrap_or_else(PoisonError::into_inner);
    for outer in held {
        let opposite = (name.to_owned(), outer.to_string());
        check!(!orders.contains(&opposite), "{name} is locked after {outer}, and before it");
        orders.insert((outer.to_string(), name.to_owned()));
    }
}
