//! Proofs of the context that a call needs, as arguments of no size.
//!
//! A trampoline, which the kernel calls in a context that is known, makes one of the three below
//! and says why it holds. Whoever sleeps asks for `&MaySleep`, whoever hands packets to the network
//! stack for `&InNetEpoch`. To lock a mutex takes one of them by `&mut` (see [`crate::sync`]), so
//! that none is at hand while the mutex is held:
//!
//! ```compile_fail
//! # use kpi::context::MaySleep;
//! # use kpi::sync::{Level, Mutex};
//! # fn sleep(_: &MaySleep) {}
//! fn both<L: Level>(mutex: &Mutex<L, u8>, may_sleep: &mut MaySleep) {
//!     mutex.with(may_sleep, |_, _| sleep(may_sleep));
//! }
//! ```

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use sys_bindings as sys;

/// Keeps a proof in the thread that has it.
type OfOneThread = PhantomData<*mut ()>;

/// The thread may sleep: it holds no mutex and is in no epoch.
#[derive(Debug)]
pub struct MaySleep {
    _thread: OfOneThread,
}

/// The thread is in the net epoch, and holds no mutex of ours. It must not sleep.
#[derive(Debug)]
pub struct InNetEpoch {
    _thread: OfOneThread,
}

/// The thread holds no mutex of ours. It may be in an epoch, or hold mutexes of its caller; it must
/// not sleep.
#[derive(Debug)]
pub struct Unlocked {
    _thread: OfOneThread,
}

impl MaySleep {
    /// # Safety
    ///
    /// The thread holds no mutex and is in no epoch while the proof exists.
    pub unsafe fn assume() -> Self {
        Self { _thread: PhantomData }
    }
}

impl InNetEpoch {
    /// # Safety
    ///
    /// The thread is in the net epoch and holds no mutex of ours while the proof exists.
    pub unsafe fn assume() -> Self {
        Self { _thread: PhantomData }
    }
}

impl Unlocked {
    /// # Safety
    ///
    /// The thread holds no mutex of ours while the proof exists.
    pub unsafe fn assume() -> Self {
        Self { _thread: PhantomData }
    }
}

/// A context in which no mutex of ours is held.
pub trait Free {}

impl Free for MaySleep {}
impl Free for InNetEpoch {}
impl Free for Unlocked {}

/// Runs `f` in the net epoch (epoch(9)). It may be entered more than once.
pub fn with_net_epoch<R>(_free: &mut impl Free, f: impl FnOnce(&mut InNetEpoch) -> R) -> R {
    let mut tracker = MaybeUninit::<sys::epoch_tracker>::uninit();
    // SAFETY: legal in every thread; the tracker stays where it is until the epoch is left.
    unsafe { sys::rust_helper_net_epoch_enter(tracker.as_mut_ptr()) };
    // SAFETY: entered just now, and left after the proof is gone; no mutex is held, since what
    // would hold one has taken the argument.
    let result = f(&mut unsafe { InNetEpoch::assume() });
    // SAFETY: entered above, with this tracker, by this thread.
    unsafe { sys::rust_helper_net_epoch_exit(tracker.as_mut_ptr()) };
    result
}
