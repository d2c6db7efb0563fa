//! Completion queues (IBA 10.2.6).

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::c_void;
use core::fmt;
use core::ptr::{NonNull, null_mut};

use ipoib_rs::action::ConnectionId;
use ipoib_rs::ib::Qpn;
use ipoib_rs::packet::CompletionStatus;
use sys_bindings as sys;

use super::created;
use crate::client::Device;
use crate::context::{MaySleep, Unlocked};
use crate::errno::Errno;
use crate::owned::{try_arc, try_box};

/// What wants to know of completions.
pub trait CompletionHandler: Send + Sync {
    /// Completions arrived in a queue that was armed. Called by the interrupt of the HCA, or by a
    /// thread of its driver, possibly inside the net epoch.
    fn completions_arrived(&self, unlocked: &mut Unlocked);
}

/// A completion queue. Clones are the same one.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Arc<Inner>,
}

/// # Invariants
///
/// `queue` is created with `handler`, which came from a box.
#[derive(Debug)]
struct Inner {
    queue: NonNull<sys::kpi_cq>,
    handler: NonNull<Arc<dyn CompletionHandler>>,
    _device: Device,
}

// SAFETY: verbs may be called from any thread; the handler is `Send` and `Sync`.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Whether a queue that was armed has to be polled again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Armed {
    /// The next completion calls the handler.
    Waits,
    /// Completions came while it was being armed: they may call no handler.
    HasMissed,
}

impl CompletionQueue {
    /// Creates one with room for `entries` completions, not armed.
    ///
    /// # Errors
    ///
    /// What the adapter says.
    pub fn new(
        device: &Device,
        entries: u32,
        handler: Arc<dyn CompletionHandler>,
        _may_sleep: &MaySleep,
    ) -> Result<Self, Errno> {
        let handler = NonNull::from(Box::leak(try_box(handler)?));
        let mut queue = null_mut();
        // SAFETY: may sleep, as the argument proves; the device exists by its invariant. The
        // handler stays where it is until the queue is destroyed.
        let error = unsafe {
            sys::rust_helper_ib_create_cq(
                device.raw().as_ptr(),
                entries,
                handler.as_ptr().cast(),
                &raw mut queue,
            )
        };
        let queue = created(error, queue).inspect_err(|_| {
            // SAFETY: it came from a box, and an error says that nobody else has it.
            drop(unsafe { Box::from_raw(handler.as_ptr()) });
        })?;
        // INVARIANT: just created with this handler. Without memory it goes again.
        let inner = try_arc(Inner { queue, handler, _device: device.clone() })?;
        Ok(Self { inner })
    }

    /// Takes completions out, oldest first. Fewer than [`BATCH_LEN`] say that the queue was empty
    /// then. It does not sleep.
    ///
    /// # Errors
    ///
    /// The adapter is broken.
    pub fn poll<'a>(&self, batch: &'a mut Batch) -> Result<&'a [Completion], Errno> {
        // SAFETY: the queue exists by its invariant, the batch has that many places. It takes the
        // queue's poll mutex and locks of the adapter, and does not sleep.
        let count = unsafe {
            sys::rust_helper_ib_poll_cq(
                self.raw(),
                // CAST: a completion is one of the C half.
                batch.completions.as_mut_ptr().cast(),
                BATCH_LEN as u32,
            )
        };
        match usize::try_from(count) {
            Ok(count) => batch.completions.get(..count).ok_or(Errno::EINVAL),
            Err(_) => Err(Errno::result(count).err().unwrap_or(Errno::EINVAL)),
        }
    }

    /// Has the handler called at the next completion. It does not sleep.
    ///
    /// # Errors
    ///
    /// The adapter is broken.
    pub fn arm(&self) -> Result<Armed, Errno> {
        // SAFETY: the queue exists by its invariant. It takes locks of the adapter only.
        match unsafe { sys::rust_helper_ib_arm_cq(self.raw()) } {
            0 => Ok(Armed::Waits),
            1.. => Ok(Armed::HasMissed),
            error => Err(Errno::result(error).err().unwrap_or(Errno::EINVAL)),
        }
    }

    pub(super) fn raw(&self) -> *mut sys::kpi_cq {
        self.inner.queue.as_ptr()
    }
}

/// Where it may sleep. No handler may be waiting for it.
impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: created by the invariant, and its queue pairs held it, so are gone. The verb
        // returns when no handler runs or is to come (as drivers of adapters synchronize with
        // their interrupt).
        unsafe { sys::rust_helper_ib_destroy_cq(self.queue.as_ptr()) };
        // SAFETY: from a box by the invariant, and nobody else knows it any more.
        drop(unsafe { Box::from_raw(self.handler.as_ptr()) });
    }
}

/// Completions that are taken out at once.
pub const BATCH_LEN: usize = 16;

/// Room for the completions that a poll takes out.
#[derive(Debug)]
pub struct Batch {
    completions: [Completion; BATCH_LEN],
}

impl Batch {
    /// Empty.
    pub const fn new() -> Self {
        Self { completions: [const { Completion(NO_COMPLETION) }; BATCH_LEN] }
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

const NO_COMPLETION: sys::kpi_completion = sys::kpi_completion {
    wr_id: 0,
    status: sys::kpi_status::KPI_STATUS_FAILED,
    vendor_error: 0,
    bytes: 0,
    source_qpn: 0,
    qp_number: 0,
    source_lid: 0,
    flags: 0,
    raw_status: 0,
};

/// A work request that ended. There is no way to make one but to poll for it.
#[repr(transparent)]
pub struct Completion(sys::kpi_completion);

impl Completion {
    /// What the work request was posted with.
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// How it ended.
    pub fn status(&self) -> CompletionStatus {
        match self.0.status {
            sys::kpi_status::KPI_STATUS_SUCCESS => CompletionStatus::Success,
            sys::kpi_status::KPI_STATUS_FLUSHED => CompletionStatus::Flushed,
            _ => CompletionStatus::Failed,
        }
    }

    /// How many bytes arrived, the 40 bytes in front of a datagram included. If it succeeded.
    pub fn bytes(&self) -> usize {
        self.0.bytes as usize
    }

    /// The queue pair that a datagram came from.
    pub fn source_qpn(&self) -> Qpn {
        // The mask leaves 24 bits.
        Qpn::new(self.0.source_qpn & Qpn::MULTICAST.value()).unwrap_or(Qpn::MULTICAST)
    }

    /// The LID that a datagram came from, unchecked.
    pub fn source_lid(&self) -> u16 {
        self.0.source_lid
    }

    /// Whether the first 40 bytes of a datagram are a GRH.
    pub fn has_grh(&self) -> bool {
        self.has(sys::KPI_COMPLETION_HAS_GRH)
    }

    /// Whether the adapter found the checksums of a datagram right.
    pub fn is_checksum_ok(&self) -> bool {
        self.has(sys::KPI_COMPLETION_CSUM_OK)
    }

    /// The connection whose queue pair it was; of a datagram queue pair, it says nothing.
    pub fn connection(&self) -> ConnectionId {
        ConnectionId::from_index(self.0.qp_number)
    }

    fn has(&self, flag: u32) -> bool {
        u32::from(self.0.flags) & flag != 0
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("wr_id", &self.0.wr_id)
            .field("status", &self.0.raw_status)
            .field("vendor_error", &self.0.vendor_error)
            .field("bytes", &self.0.bytes)
            .finish_non_exhaustive()
    }
}

/// # Safety
///
/// `context` is that of a completion queue that is not destroyed.
pub(super) unsafe fn completed(context: *mut c_void) {
    // SAFETY: a handler stays where it is until its queue is destroyed.
    let handler = unsafe { &*context.cast::<Arc<dyn CompletionHandler>>() };
    // SAFETY: the driver calls from a thread of its own. Posting, polling and arming, which might
    // call it too, are done with mutexes of ours held: drivers do not.
    handler.completions_arrived(&mut unsafe { Unlocked::assume() });
}
