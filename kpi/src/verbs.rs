//! Queues of an HCA and what is posted to them (rdma/ib_verbs.h).
//!
//! | object | is made of | goes |
//! | --- | --- | --- |
//! | [`ProtectionDomain`] | [`Device`] | after all that was made of it |
//! | [`CompletionQueue`] | [`Device`] | after its queue pairs |
//! | [`SharedReceiveQueue`] | [`ProtectionDomain`] | after its queue pairs |
//! | [`DatagramQueuePair`], [`ConnectedQueuePair`] | all of the above | whenever |
//! | [`AddressHandle`] | [`ProtectionDomain`] | after the sends that use it |
//!
//! The first three are counted, and what is made of them holds them; so this order comes by itself.
//! A queue that an adapter refuses to destroy is [`Kept`], with all that it is made of.
//! A post takes a slot (see [`crate::dma`]), which the adapter has until the completion came or
//! the queue is known to be quiet.

mod completion;
mod queue_pair;

use alloc::sync::Arc;
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ipoib_rs::action::AddressVector;
use sys_bindings as sys;

use crate::client::{Device, Port};
use crate::context::MaySleep;
use crate::dma::{Chain, ReceiveSlot, Work};
use crate::errno::Errno;
use crate::log::{self, Level};
use crate::owned::try_arc;

pub use completion::{Armed, BATCH_LEN, Batch, Completion, CompletionHandler, CompletionQueue};
pub(crate) use queue_pair::destroy_again;
pub use queue_pair::{
    ConnectedConfig, ConnectedQueuePair, Datagram, DatagramConfig, DatagramQueuePair,
    QueuePairHandler,
};

/// The most segments of a work request, whatever the adapter could take.
pub const SEGMENTS_MAX: usize = sys::KPI_SEGMENTS_MAX as usize;

/// A protection domain (IBA 10.2.3). Clones are the same one.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    inner: Arc<Domain>,
}

/// # Invariants
///
/// `domain` is allocated.
#[derive(Debug)]
struct Domain {
    domain: NonNull<sys::ib_pd>,
    local_key: u32,
    device: Device,
}

// SAFETY: verbs may be called from any thread, and the rest is constant.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl ProtectionDomain {
    /// Allocates one.
    ///
    /// # Errors
    ///
    /// What the adapter says.
    pub fn new(device: &Device, _may_sleep: &MaySleep) -> Result<Self, Errno> {
        let mut domain = null_mut();
        // SAFETY: may sleep, as the argument proves; the device exists by its invariant.
        let error = unsafe { sys::rust_helper_ib_alloc_pd(device.raw().as_ptr(), &raw mut domain) };
        let domain = created(error, domain)?;
        // SAFETY: just allocated.
        let local_key = unsafe { sys::rust_helper_ib_local_dma_lkey(domain.as_ptr()) };
        // INVARIANT: just allocated. Without memory it goes again.
        let inner = try_arc(Domain { domain, local_key, device: device.clone() })?;
        Ok(Self { inner })
    }

    /// The HCA.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn local_key(&self) -> u32 {
        self.inner.local_key
    }

    fn raw(&self) -> *mut sys::ib_pd {
        self.inner.domain.as_ptr()
    }
}

/// Where it may sleep.
impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: allocated by the invariant, and what was made of it held it, so is gone.
        unsafe { sys::rust_helper_ib_dealloc_pd(self.domain.as_ptr()) }
    }
}

/// A receive queue that connections share (IBA 10.2.9). Clones are the same one.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    inner: Arc<Shared>,
}

/// # Invariants
///
/// `queue` is created, until `is_ended`.
#[derive(Debug)]
struct Shared {
    queue: NonNull<sys::ib_srq>,
    id: QueueId,
    domain: ProtectionDomain,
    is_ended: bool,
}

// SAFETY: verbs may be called from any thread, and the rest is constant.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl SharedReceiveQueue {
    /// Creates one for `receives_max` receives of `segments_max` segments.
    ///
    /// # Errors
    ///
    /// What the adapter says; it may not know shared receive queues.
    pub fn new(
        domain: &ProtectionDomain,
        receives_max: u32,
        segments_max: usize,
        _may_sleep: &MaySleep,
    ) -> Result<Self, Errno> {
        let mut queue = null_mut();
        // SAFETY: may sleep, as the argument proves; the domain exists by its invariant.
        let error = unsafe {
            sys::rust_helper_ib_create_srq(
                domain.raw(),
                receives_max,
                // CAST: the C half takes at most SEGMENTS_MAX.
                segments_max as u32,
                &raw mut queue,
            )
        };
        let queue = created(error, queue)?;
        // INVARIANT: just created. Without memory it goes again.
        let (id, domain) = (QueueId::draw(), domain.clone());
        let inner = try_arc(Shared { queue, id, domain, is_ended: false })?;
        Ok(Self { inner })
    }

    /// Posts a receive of `bytes` bytes, with a buffer of its own.
    ///
    /// # Errors
    ///
    /// No memory, the slot is in use, or the adapter refused.
    pub fn post_receive<P: Chain>(
        &self,
        wr_id: u64,
        bytes: usize,
        slot: &mut ReceiveSlot<P>,
    ) -> Result<(), Errno> {
        let Shared { id, ref domain, .. } = *self.inner;
        slot.post(&Work { wr_id, queue: id, domain }, bytes, |segments| {
            // SAFETY: the queue exists by its invariant. It does not sleep, and takes locks of the
            // adapter only. The segments are mapped, and stay so until the slot is told that the
            // adapter is done.
            unsafe {
                sys::rust_helper_ib_post_srq_receive(
                    self.inner.queue.as_ptr(),
                    wr_id,
                    segments.as_ptr(),
                    // CAST: at most SEGMENTS_MAX.
                    segments.len() as u32,
                )
            }
        })
    }

    /// Destroys it. What was posted and did not complete can be taken back with the proof.
    ///
    /// # Errors
    ///
    /// Queue pairs still use it, and it goes with them, or the adapter keeps it.
    pub fn close(self, _may_sleep: &MaySleep) -> Result<Quiet, Kept> {
        let mut shared = Arc::try_unwrap(self.inner).map_err(|_| Kept { quiet: None })?;
        shared.end()
    }

    fn raw(&self) -> *mut sys::ib_srq {
        self.inner.queue.as_ptr()
    }
}

impl Shared {
    /// The caller may sleep.
    fn end(&mut self) -> Result<Quiet, Kept> {
        // SAFETY: created by the invariant, and the queue pairs that use it held it, so are gone.
        let error = unsafe { sys::rust_helper_ib_destroy_srq(self.queue.as_ptr()) };
        self.is_ended = true;
        Errno::result(error).map(|()| Quiet(self.id)).map_err(|error| {
            keep(&self.domain, format_args!("a shared receive queue"), error);
            // The adapter has its domain for ever, and nobody asks it again.
            core::mem::forget(self.domain.clone());
            Kept { quiet: None }
        })
    }
}

/// Where it may sleep.
impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_ended {
            // Who wants to know calls `close`; the log says it.
            let _ = self.end();
        }
    }
}

/// An address handle (IBA 11.2.2.1).
///
/// # Invariants
///
/// `handle` is created.
#[derive(Debug)]
pub struct AddressHandle {
    handle: NonNull<sys::ib_ah>,
    _domain: ProtectionDomain,
}

// SAFETY: verbs may be called from any thread, and the rest is constant.
unsafe impl Send for AddressHandle {}
// SAFETY: as above.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    /// Creates one.
    ///
    /// # Errors
    ///
    /// What the adapter says.
    pub fn new(
        domain: &ProtectionDomain,
        port: &Port,
        address: &AddressVector,
        _may_sleep: &MaySleep,
    ) -> Result<Self, Errno> {
        let (gid, route) = address.grh.unzip();
        let route = route.unwrap_or_default();
        let raw = sys::kpi_address {
            gid: gid.map_or([0; 16], |gid| gid.0),
            flow_label: route.flow_label.value(),
            lid: address.lid,
            sl: address.sl.value(),
            rate: address.rate.code(),
            has_grh: gid.is_some().into(),
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
            port: port.number(),
        };
        let mut handle = null_mut();
        // SAFETY: may sleep, as the argument proves; the domain exists by its invariant.
        let error =
            unsafe { sys::rust_helper_ib_create_ah(domain.raw(), &raw const raw, &raw mut handle) };
        // INVARIANT: just created.
        created(error, handle).map(|handle| Self { handle, _domain: domain.clone() })
    }

    fn raw(&self) -> *mut sys::ib_ah {
        self.handle.as_ptr()
    }
}

/// It does not sleep. No send that uses the handle may be posted any more.
impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: created by the invariant.
        unsafe { sys::rust_helper_ib_destroy_ah(self.handle.as_ptr()) }
    }
}

/// The adapter does not touch what was posted to a queue: the queue pair was reset, or the queue
/// destroyed. With it, slots of that queue give back what they hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quiet(pub(crate) QueueId);

/// The adapter did not destroy a queue. It may go on to use what the queue is made of: the context
/// of its events, its completion queues, its domain. So all of that stays, and the device with it:
/// who waits for the device has the adapter destroy the queue pair again and again. What was posted
/// is given back if the queue was reset, or else never.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Kept {
    /// It was reset at least: what was posted can be taken back.
    pub quiet: Option<Quiet>,
}

/// How many there are.
static KEPT: AtomicU32 = AtomicU32::new(0);

/// Whether an adapter has a queue that it was to destroy.
pub fn has_kept() -> bool {
    KEPT.load(Ordering::Relaxed) != 0
}

/// An adapter keeps something: the log says so.
fn keep(domain: &ProtectionDomain, what: core::fmt::Arguments<'_>, error: Errno) {
    KEPT.fetch_add(1, Ordering::Relaxed);
    let name = domain.device().name();
    log::line(
        Level::Error,
        format_args!("{name}: {what} cannot be destroyed ({error:?}): it is kept"),
    );
}

/// It has given something back.
fn give_back(domain: &ProtectionDomain, what: core::fmt::Arguments<'_>) {
    KEPT.fetch_sub(1, Ordering::Relaxed);
    let name = domain.device().name();
    log::line(Level::Warning, format_args!("{name}: {what} is destroyed at last"));
}

/// One life of a queue, from its creation or reset to the next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueueId(u64);

impl QueueId {
    fn draw() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a function created, or its error.
fn created<T>(error: core::ffi::c_int, object: *mut T) -> Result<NonNull<T>, Errno> {
    Errno::result(error)?;
    NonNull::new(object).ok_or(Errno::ENOMEM)
}

/// # Safety
///
/// `context` is that of a completion queue that is not destroyed.
pub(crate) unsafe extern "C" fn completed(context: *mut c_void) {
    // SAFETY: as the caller says.
    unsafe { completion::completed(context) }
}

/// # Safety
///
/// `context` is that of a queue pair that is not destroyed.
pub(crate) unsafe extern "C" fn qp_event(context: *mut sys::kpi_qp_context, event: u32) {
    // SAFETY: as the caller says.
    unsafe { queue_pair::event(context, event) }
}
