//! Workers: a thread for each, with the states of `kpi/c/worker.c`; or, with [`by_hand`], none, and
//! a test says when they run.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sys_bindings as sys;

use crate::time::uptime;
use crate::{check, memory, string, sync, trace};

type Run = unsafe extern "C" fn(work: *mut c_void);

struct FakeWorker {
    shared: Arc<Shared>,
    thread: Mutex<Option<(Work, Thread)>>,
}

enum Thread {
    OfTheHost(JoinHandle<()>),
    ByHand,
}

/// A worker that is run by hand.
#[derive(Clone)]
struct Hand {
    shared: Arc<Shared>,
    name: Arc<str>,
    run: Run,
    work: Work,
}

static ARE_BY_HAND: AtomicBool = AtomicBool::new(false);
/// In the order in which they were started.
static HANDS: Mutex<Vec<Hand>> = Mutex::new(Vec::new());

/// Workers that are started from now on are run by hand. Time stands still then.
pub fn by_hand() {
    ARE_BY_HAND.store(true, Ordering::SeqCst);
}

pub(crate) fn are_by_hand() -> bool {
    ARE_BY_HAND.load(Ordering::SeqCst)
}

/// Runs every worker that is woken or whose deadline came, once, but for those that wait for this.
/// Whether there was one.
pub fn run_due() -> bool {
    let hands = lock_hands().clone();
    let mut has_run = false;
    for hand in hands {
        // An earlier one may have stopped it.
        let is_there = lock_hands().iter().any(|other| Arc::ptr_eq(&other.shared, &hand.shared));
        if is_there && hand.shared.begin() {
            has_run = true;
            // SAFETY: the work stays until the worker is stopped.
            sync::call(|| unsafe { (hand.run)(hand.work.0) });
            hand.shared.lock().is_running = false;
        }
    }
    has_run
}

/// Runs workers until none is woken and no deadline is in the past.
pub fn run_all_due() {
    for _ in 0..ROUNDS_MAX {
        if !run_due() {
            return;
        }
    }
    crate::panic(format_args!("workers do not come to rest"));
}

/// More rounds than anything takes.
const ROUNDS_MAX: u32 = 10_000;

/// The names of the workers that are run by hand.
pub fn names() -> Vec<String> {
    lock_hands().iter().map(|hand| hand.name.to_string()).collect()
}

fn lock_hands() -> MutexGuard<'static, Vec<Hand>> {
    HANDS.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// It is run by hand, just now.
    is_running: bool,
}

impl State {
    /// Whether it is to run now; that is then done.
    fn take_due(&mut self) -> bool {
        let is_due = self.deadline.is_some_and(|deadline| deadline <= uptime());
        if is_due {
            self.deadline = None;
        }
        let is_wanted = std::mem::take(&mut self.is_wanted);
        is_due || is_wanted
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is to be run by hand, which begins then.
    fn begin(&self) -> bool {
        let mut state = self.lock();
        let begins = state.is_awake && !state.is_running && state.take_due();
        state.is_running |= begins;
        begins
    }

    /// Waits until the thread is to run. Whether it is, or to end.
    fn wait(&self) -> bool {
        let mut state = self.lock();
        loop {
            if !state.is_awake {
                return false;
            }
            if state.take_due() {
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
    let _inside = memory::inside();
    let worker = FakeWorker { shared: Arc::default(), thread: Mutex::new(None) };
    Box::into_raw(Box::new(worker)).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_worker_free(worker: *mut sys::kpi_worker) {
    // SAFETY: from `rust_helper_worker_create`, and not used any more.
    let worker = unsafe { Box::from_raw(worker.cast::<FakeWorker>()) };
    check!(worker.thread.lock().unwrap().is_none(), "a worker is freed before it was stopped");
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_worker_start(
    worker: *mut sys::kpi_worker,
    name: *const c_char,
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
    let _inside = memory::inside();
    let shared = Arc::clone(&worker.shared);
    let run = run.expect("a function");
    let work = Work(work);
    shared.lock().is_awake = true;
    let thread = if are_by_hand() {
        // SAFETY: a name.
        let name = unsafe { string(name) }.into();
        lock_hands().push(Hand { shared, name, run, work });
        Thread::ByHand
    } else {
        Thread::OfTheHost(thread::spawn(move || {
            let work = work;
            while shared.wait() {
                // SAFETY: the work stays until the worker is stopped, which waits for this thread.
                sync::call(|| unsafe { run(work.0) });
            }
        }))
    };
    *slot = Some((work, thread));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_worker_stop(worker: *mut sys::kpi_worker, work: *mut c_void) {
    sync::assert_may_sleep("worker_stop");
    let _inside = memory::inside();
    // SAFETY: as kpi/c says.
    let worker = unsafe { worker_of(worker) };
    let mut slot = worker.thread.lock().unwrap();
    if slot.as_ref().is_none_or(|(other, _)| other.0.addr() != work.addr()) {
        return;
    }
    trace::note("worker_stop");
    let mut state = worker.shared.lock();
    check!(!state.is_running, "a worker is waited for by itself");
    *state = State::default();
    drop(state);
    worker.shared.changed.notify_all();
    match slot.take() {
        Some((_, Thread::OfTheHost(thread))) => thread.join().expect("the worker does not panic"),
        Some((_, Thread::ByHand)) => {
            lock_hands().retain(|hand| !Arc::ptr_eq(&hand.shared, &worker.shared));
        }
        None => {}
    }
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
#[derive(Clone, Copy)]
struct Work(*mut c_void);

// SAFETY: the caller of `rust_helper_worker_start` gives it to the thread.
unsafe impl Send for Work {}
