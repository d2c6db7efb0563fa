//! The clock, pauses, and random numbers.
//!
//! Time is that of the host, unless workers are run by hand ([`crate::worker::by_hand`]): then it
//! stands still but for pauses and [`advance`].

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sys_bindings as sys;

use crate::{check, log, memory, ofed, sync, worker};

static BOOT: LazyLock<Instant> = LazyLock::new(Instant::now);
static BY_HAND: AtomicI64 = AtomicI64::new(1 << 32);
static RANDOM: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
/// Pauses since the last [`be_patient`].
static PAUSES: AtomicU64 = AtomicU64::new(0);

/// More pauses than anything takes that is waited for.
const PAUSES_MAX: u64 = 20_000;

/// Lets time pass, of workers that are run by hand.
pub fn advance(span: Duration) {
    BY_HAND.fetch_add(kernel_span(span), Ordering::SeqCst);
}

/// What is waited for from now on has time again.
pub fn be_patient() {
    PAUSES.store(0, Ordering::Relaxed);
}

/// Time since boot, in the kernel's format.
pub(crate) fn uptime() -> i64 {
    if worker::are_by_hand() {
        return BY_HAND.load(Ordering::SeqCst);
    }
    kernel_span(BOOT.elapsed())
}

/// A thread sleeps; others run meanwhile.
pub(crate) fn pause(span: Duration) {
    let _inside = memory::inside();
    let pauses = PAUSES.fetch_add(1, Ordering::Relaxed);
    let is_forever = pauses >= PAUSES_MAX;
    check!(!is_forever, "something is waited for that does not come: {:?}", log::take_lines());
    if worker::are_by_hand() {
        advance(span);
        ofed::step();
        worker::run_due();
    } else {
        thread::sleep(span);
    }
}

fn kernel_span(span: Duration) -> i64 {
    let fraction = (u64::from(span.subsec_nanos()) << 32) / 1_000_000_000;
    i64::try_from((span.as_secs() << 32) + fraction).expect("a short test")
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_sbinuptime() -> sys::sbintime_t {
    uptime()
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_pause_ms(span: u32) {
    sync::assert_may_sleep("pause");
    pause(Duration::from_millis(span.into()));
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_random() -> u64 {
    // Not random, so that a test that fails fails again.
    RANDOM.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
}
