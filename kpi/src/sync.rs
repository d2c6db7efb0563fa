//! Mutexes that WITNESS knows (mutex(9)), with their order in types.
//!
//! A [`Level`] is a place in the lock order. A module declares its levels, and which may be locked
//! while which is held:
//!
//! ```
//! # use kpi::context::MaySleep;
//! # use kpi::sync::{After, Level, Mutex};
//! struct Outer;
//! impl Level for Outer {
//!     const NAME: &core::ffi::CStr = c"outer";
//! }
//! struct Inner;
//! impl Level for Inner {
//!     const NAME: &core::ffi::CStr = c"inner";
//! }
//! impl After<Outer> for Inner {}
//!
//! fn in_order(outer: &Mutex<Outer, u8>, inner: &Mutex<Inner, u8>, may_sleep: &mut MaySleep) {
//!     outer.with(may_sleep, |a, held| inner.with(held, |b, _| *b = *a));
//! }
//! ```
//!
//! Any other order does not compile, and neither does locking twice:
//!
//! ```compile_fail
//! # use kpi::context::MaySleep;
//! # use kpi::sync::{Level, Mutex};
//! fn twice<L: Level>(mutex: &Mutex<L, u8>, may_sleep: &mut MaySleep) {
//!     mutex.with(may_sleep, |_, held| mutex.with(held, |_, _| ()));
//! }
//! ```

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

use sys_bindings as sys;

use crate::context::{InNetEpoch, MaySleep, Unlocked};
use crate::errno::Errno;

/// A place in the lock order.
pub trait Level {
    /// What WITNESS calls it.
    const NAME: &CStr;
}

/// A level that may be locked while a mutex of level `L` is held.
pub trait After<L: Level>: Level {}

/// A mutex of level `L` is held, and no other was locked since.
#[derive(Debug)]
pub struct Held<L> {
    _thread: PhantomData<*mut L>,
}

/// A context in which a mutex of level `L` may be locked.
pub trait Before<L: Level> {}

impl<L: Level> Before<L> for MaySleep {}
impl<L: Level> Before<L> for InNetEpoch {}
impl<L: Level> Before<L> for Unlocked {}
impl<O: Level, L: After<O>> Before<L> for Held<O> {}

/// A value and the mutex that protects it.
///
/// # Invariants
///
/// `mutex` is initialised, and nobody else has it. `value` is reached with it held only.
pub struct Mutex<L, T> {
    mutex: NonNull<sys::mtx>,
    value: UnsafeCell<T>,
    _level: PhantomData<fn() -> L>,
}

// SAFETY: the mutex may be used from every thread, and goes with the value.
unsafe impl<L, T: Send> Send for Mutex<L, T> {}
// SAFETY: `with` gives the value to one thread at a time, as `get_mut` does.
unsafe impl<L, T: Send> Sync for Mutex<L, T> {}

impl<L: Level, T> Mutex<L, T> {
    /// A mutex around a value.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(value: T) -> Result<Self, Errno> {
        // SAFETY: it does not sleep, and takes no lock but those of the allocator and of WITNESS;
        // the name is static.
        let mutex = unsafe { sys::rust_helper_mtx_create(L::NAME.as_ptr()) };
        let mutex = NonNull::new(mutex).ok_or(Errno::ENOMEM)?;
        // INVARIANT: created just now.
        Ok(Self { mutex, value: UnsafeCell::new(value), _level: PhantomData })
    }

    /// Runs `f` with the mutex held. It may lock what comes after, and must not sleep.
    pub fn with<R>(
        &self,
        _before: &mut impl Before<L>,
        f: impl FnOnce(&mut T, &mut Held<L>) -> R,
    ) -> R {
        // SAFETY: initialised, by the invariant. This thread does not hold it: the context says
        // that no mutex of this level or after it is held. So it is neither locked twice nor out of
        // order.
        unsafe { sys::rust_helper_mtx_lock(self.mutex.as_ptr()) };
        // SAFETY: the mutex is held, so this is the only reference to the value.
        let value = unsafe { &mut *self.value.get() };
        let result = f(value, &mut Held { _thread: PhantomData });
        // SAFETY: locked above, by this thread.
        unsafe { sys::rust_helper_mtx_unlock(self.mutex.as_ptr()) };
        result
    }

    /// Runs `f` with the mutex held until it has a result: at once, and again each time that
    /// somebody notifies. It sleeps in between, with the mutex free.
    pub fn wait<R>(&self, _may_sleep: &mut MaySleep, mut f: impl FnMut(&mut T) -> Option<R>) -> R {
        // SAFETY: as in `with`.
        unsafe { sys::rust_helper_mtx_lock(self.mutex.as_ptr()) };
        let result = loop {
            // SAFETY: the mutex is held, so this is the only reference to the value.
            if let Some(result) = f(unsafe { &mut *self.value.get() }) {
                break result;
            }
            // SAFETY: the thread may sleep, as the argument proves, and holds this mutex, with
            // which it comes back.
            unsafe { sys::rust_helper_mtx_wait(self.mutex.as_ptr()) };
        };
        // SAFETY: locked above, by this thread.
        unsafe { sys::rust_helper_mtx_unlock(self.mutex.as_ptr()) };
        result
    }

    /// Has all who wait look again. It may be held, or not.
    pub fn notify(&self) {
        // SAFETY: initialised, by the invariant; it takes a lock of its own.
        unsafe { sys::rust_helper_mtx_notify(self.mutex.as_ptr()) }
    }

    /// The value, of a mutex that is not needed any more.
    pub fn into_inner(self) -> T {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: initialised, by the invariant, and not held: `with` borrows. It is not dropped.
        unsafe { sys::rust_helper_mtx_destroy(this.mutex.as_ptr()) };
        // SAFETY: the value is owned, and read once: it is not dropped either.
        unsafe { core::ptr::read(this.value.get()) }
    }

    /// The value, of a mutex that nobody else can lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<L, T> Drop for Mutex<L, T> {
    fn drop(&mut self) {
        // SAFETY: initialised, by the invariant, and not held: `with` borrows.
        unsafe { sys::rust_helper_mtx_destroy(self.mutex.as_ptr()) }
    }
}

impl<L: Level, T> fmt::Debug for Mutex<L, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").field("level", &L::NAME).finish_non_exhaustive()
    }
}
