//! The way from what the kernel calls to what it is about, which comes later and goes earlier.
//!
//! An object hands itself to the kernel while it is being made, and is called until it has taken
//! itself back; so whom the kernel calls cannot be the object. It is something that has one of
//! these.

use alloc::sync::Arc;
use core::fmt;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::context::MaySleep;
use crate::time;

/// A reference to an object that is there from [`Late::connect`] to [`Late::disconnect`].
///
/// # Invariants
///
/// `target` is NULL or came from [`Arc::into_raw`], and that reference is owned by this. It is not
/// given up while `users` is not 0.
pub struct Late<T> {
    target: AtomicPtr<T>,
    /// Calls of [`Late::with`] under way.
    users: AtomicU32,
}

impl<T> Late<T> {
    /// Without an object.
    pub const fn new() -> Self {
        Self { target: AtomicPtr::new(null_mut()), users: AtomicU32::new(0) }
    }

    /// From now on there is an object; the one before, if there was one, is given back.
    pub fn connect(&self, target: Arc<T>, may_sleep: &mut MaySleep) -> Option<Arc<T>> {
        self.exchange(Arc::into_raw(target).cast_mut(), may_sleep)
    }

    /// From now on there is none. No call of [`Late::with`] uses it any more when it is given back:
    /// not to be called by one.
    pub fn disconnect(&self, may_sleep: &mut MaySleep) -> Option<Arc<T>> {
        self.exchange(null_mut(), may_sleep)
    }

    /// Runs `f` with the object, if there is one.
    pub fn with<R>(&self, f: impl FnOnce(&T) -> R) -> Option<R> {
        // In one order for all threads: either the exchange sees this user, or this user sees the
        // exchange.
        self.users.fetch_add(1, Ordering::SeqCst);
        let target = self.target.load(Ordering::SeqCst);
        // SAFETY: NULL, or by the invariant an object that is not given up meanwhile.
        let result = unsafe { target.as_ref() }.map(f);
        self.users.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn exchange(&self, next: *mut T, may_sleep: &mut MaySleep) -> Option<Arc<T>> {
        let before = self.target.swap(next, Ordering::SeqCst);
        while self.users.load(Ordering::SeqCst) != 0 {
            time::pause_ms(1, may_sleep);
        }
        // SAFETY: by the invariant an owned reference; it was taken out above, and every user that
        // may have seen it is gone.
        (!before.is_null()).then(|| unsafe { Arc::from_raw(before) })
    }
}

impl<T> Default for Late<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Late<T> {
    fn drop(&mut self) {
        let target = *self.target.get_mut();
        if !target.is_null() {
            // SAFETY: by the invariant an owned reference, and nobody uses this any more.
            drop(unsafe { Arc::from_raw(target) });
        }
    }
}

impl<T> fmt::Debug for Late<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late").finish_non_exhaustive()
    }
}
