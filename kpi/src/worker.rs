//! A thread of one's own (taskqueue(9)), which runs when it is woken and at a deadline.
//!
//! Every interface has one: what waits for one adapter delays nobody else.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::{CStr, c_void};
use core::fmt;
use core::ptr::NonNull;

use ipoib_rs::time::Instant;
use sys_bindings as sys;

use crate::context::MaySleep;
use crate::errno::Errno;
use crate::owned::{try_arc, try_box};
use crate::time::kernel_time;

/// What a worker does each time that it runs. It is never run by two threads at once.
pub trait Work: Send + Sync {
    /// Does it.
    fn run(&self, may_sleep: &mut MaySleep);
}

/// Owns a thread. When it goes, the thread has ended, and what it did is dropped.
pub struct Worker {
    thread: Arc<Thread>,
    /// The thread has a pointer to it.
    work: NonNull<Arc<dyn Work>>,
}

/// Wakes a worker; does nothing when that is gone. Clones wake the same one.
#[derive(Clone)]
pub struct Waker {
    thread: Arc<Thread>,
}

/// # Invariants
///
/// `worker` is initialised; nobody else frees it.
struct Thread {
    worker: NonNull<sys::kpi_worker>,
}

// SAFETY: a worker has a mutex of its own, and may be woken and stopped from every thread.
unsafe impl Send for Thread {}
// SAFETY: as above.
unsafe impl Sync for Thread {}
// SAFETY: `work` may be dropped by every thread, since it is `Send`.
unsafe impl Send for Worker {}
// SAFETY: a shared reference to a worker gives wakers only.
unsafe impl Sync for Worker {}

impl Waker {
    /// A waker of nobody yet, and the place of the worker to be.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: it does not sleep, and takes no lock but those of the allocator and of WITNESS.
        let worker = unsafe { sys::rust_helper_worker_create() };
        let worker = NonNull::new(worker).ok_or(Errno::ENOMEM)?;
        // INVARIANT: created just now.
        Ok(Self { thread: try_arc(Thread { worker })? })
    }

    /// Has the worker run soon. Waking one that has been woken and has not begun to run changes
    /// nothing. It does not sleep, and may be called with any mutex held.
    pub fn wake(&self) {
        // SAFETY: the worker exists by the invariant. It takes the worker's mutex and that of its
        // taskqueue, under which nothing of ours runs.
        unsafe { sys::rust_helper_worker_wake(self.thread.worker.as_ptr()) }
    }

    /// Has the worker run at a deadline, in the place of an earlier one.
    pub fn wake_at(&self, deadline: Instant) {
        let at = kernel_time(deadline);
        // SAFETY: as for `wake`; the mutex of the callout comes in addition.
        unsafe { sys::rust_helper_worker_wake_at(self.thread.worker.as_ptr(), at) }
    }
}

impl Worker {
    /// Starts the thread that `waker` wakes.
    ///
    /// # Errors
    ///
    /// No memory, or the waker has a worker.
    pub fn start(
        waker: &Waker,
        name: &CStr,
        work: Arc<dyn Work>,
        _may_sleep: &mut MaySleep,
    ) -> Result<Self, Errno> {
        let thread = Arc::clone(&waker.thread);
        let work = NonNull::from(Box::leak(try_box(work)?));
        // INVARIANT: dropping it frees `work`, whether the thread was started or not.
        let worker = Self { thread, work };
        // SAFETY: may sleep, as the argument proves; the name is copied. `run` is called with
        // `work`, which stays until the thread has ended.
        let error = unsafe {
            sys::rust_helper_worker_start(
                worker.thread.worker.as_ptr(),
                name.as_ptr(),
                Some(run),
                work.as_ptr().cast(),
            )
        };
        Errno::result(error).map(|()| worker)
    }

    /// Ends the thread and waits for it. It must not be the thread itself that asks.
    pub fn stop(self, _may_sleep: &mut MaySleep) {
        drop(self);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: the worker exists by the invariant. Those who own one drop it where they may
        // sleep, and never in its own thread. Stopping one that was not started does nothing.
        unsafe {
            sys::rust_helper_worker_stop(self.thread.worker.as_ptr(), self.work.as_ptr().cast())
        };
        // SAFETY: leaked by `start`, and the thread that had it has ended.
        drop(unsafe { Box::from_raw(self.work.as_ptr()) });
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more, and its thread has ended: a worker holds this.
        unsafe { sys::rust_helper_worker_free(self.worker.as_ptr()) }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker").finish_non_exhaustive()
    }
}

/// What the thread calls.
///
/// # Safety
///
/// `work` is what [`Worker::start`] gave, and the worker was not dropped yet.
unsafe extern "C" fn run(work: *mut c_void) {
    // SAFETY: see above.
    let work = unsafe { &*work.cast::<Arc<dyn Work>>() };
    // SAFETY: a thread of a taskqueue calls with no mutex held, and in no epoch: the task is not
    // marked as one of the network.
    work.run(&mut unsafe { MaySleep::assume() });
}
