//! Workers: a thread for each, with the states of `kpi/c/worker.c`.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sys_bindings as sys;

use crate::kenv::uptime;
use crate::{memory, sync};

type Run = unsafe extern "C" fn(work: *mut c_void);

struct FakeWorker {
    shared: Arc<Shared>,
    thread: Mutex<Option<(usize, JoinHandle<()>)>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// There is a thread, which may be woken.
    is_awake: bool,
    is_wanted: bool,
    deadline: Option<i64>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the thread is to run. Whether it is, or to end.
    fn wait(&self) -> bool {
        let mut state = self.lock();
        loop {
            if !state.is_awake {
                return false;
            }
            let is_due = state.deadline.is_some_and(|deadline| deadline <= uptime());
            if is_due {
                state.deadline = None;
            }
            if is_due || state.is_wanted {
                state.is_wanted = false;
                return true;
            }
            let pause = state.deadline.map_or(Duration::MAX, |deadline| {
                let left = u64::try_from(deadline - uptime()).unwrap_or_default();
                Duration::from_nanos(((u128::from(left) * 1_000_000_000) >> 32) as u64)
            });
            // Deadlines that never come overflow the clock of the host.
            let pause = pause.min(Duration::from_secs(60));
            state = self.changed.wait_timeout(state, pause).unwrap().0;
        }
    }
}

/// # Safety
///
/// `worker` is from `rust_helper_worker_create`, and not freed.
unsafe fn worker_of<'a>(worker: *mut sys::kpi_worker) -> &'a FakeWorker {
    // SAFETY: as the caller says.
    unsafe { &*worker.cast::<FakeWorker>() }
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_worker_create() -> *mut sys::kpi_worker {
    if memory::is_exhausted() {
        return std::ptr::null_mut();
    }
    let worker = FakeWorker { shared: Arc::default(), thread: Mutex::new(None) };
    Box::into_raw(Box::new(worker)).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_worker_free(worker: *mut sys::kpi_worker) {
    // SAFETY: from `rust_helper_worker_create`, and not used any more.
    let worker = unsafe { Box::from_raw(worker.cast::<FakeWorker>()) };
    assert!(worker.thread.lock().unwrap().is_none(), "a worker is freed before it was stopped");
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_worker_start(
    worker: *mut sys::kpi_worker,
    _name: *const c_char,
    run: Option<Run>,
    work: *mut c_void,
) -> c_int {
    sync::assert_may_sleep("worker_start");
    // SAFETY: as kpi/c says.
    let worker = unsafe { worker_of(worker) };
    let mut slot = worker.thread.lock().unwrap();
    if slot.is_some() {
        return sys::EEXIST.cast_signed();
    }
    if memory::is_exhausted() {
        return sys::ENOMEM.cast_signed();
    }
    let shared = Arc::clone(&worker.shared);
    let run = run.expect("a function");
    let address = work.addr();
    let work = Work(work);
    shared.lock().is_awake = true;
    let thread = thread::spawn(move || {
        let work = work;
        while shared.wait() {
            // SAFETY: the work stays until the worker is stopped, which waits for this thread.
            unsafe { run(work.0) }
        }
    });
    *slot = Some((address, thread));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_worker_stop(worker: *mut sys::kpi_worker, work: *mut c_void) {
    sync::assert_may_sleep("worker_stop");
    // SAFETY: as kpi/c says.
    let worker = unsafe { worker_of(worker) };
    let mut slot = worker.thread.lock().unwrap();
    if slot.as_ref().is_none_or(|(address, _)| *address != work.addr()) {
        return;
    }
    worker.shared.lock().is_awake = false;
    worker.shared.changed.notify_all();
    let (_, thread) = slot.take().expect("looked at above");
    thread.join().expect("the worker does not panic");
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_worker_wake(worker: *mut sys::kpi_worker) {
    // SAFETY: as kpi/c says.
    let shared = &unsafe { worker_of(worker) }.shared;
    shared.lock().is_wanted = true;
    shared.changed.notify_all();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_worker_wake_at(
    worker: *mut sys::kpi_worker,
    deadline: sys::sbintime_t,
) {
    // SAFETY: as kpi/c says.
    let shared = &unsafe { worker_of(worker) }.shared;
    shared.lock().deadline = Some(deadline);
    shared.changed.notify_all();
}

/// What a thread works on.
struct Work(*mut c_void);

// SAFETY: the caller of `rust_helper_worker_start` gives it to the thread.
unsafe impl Send for Work {}
