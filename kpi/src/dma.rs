//! Packets that the adapter reads and writes.
//!
//! A slot has what was posted: the chain of mbufs and where it is mapped. It gives the packet back
//! for the completion of that work request, or for the proof that its queue is [`Quiet`]; there is
//! no other way. A slot that goes while the adapter may still use its packet leaks it, and says so:
//! memory that is written to later would be somebody else's.
//!
//! Nothing here sleeps.

use core::ffi::c_int;
use core::marker::PhantomData;
use core::ptr::{NonNull, null_mut};

use ipoib_rs::packet::CompletionStatus;
use sys_bindings as sys;

use crate::errno::Errno;
use crate::log::{self, Level};
use crate::verbs::{Completion, ProtectionDomain, QueueId, Quiet, SEGMENTS_MAX};

/// An owned chain of mbufs that begins with a packet header.
///
/// # Safety
///
/// `into_chain` gives away the only reference to a whole chain, and `from_chain` takes it.
pub unsafe trait Chain: Sized {
    /// The chain, whose owner is the caller from now on.
    fn into_chain(self) -> NonNull<sys::mbuf>;

    /// Takes a chain.
    ///
    /// # Safety
    ///
    /// Nobody else has the chain, which begins with a packet header.
    unsafe fn from_chain(chain: NonNull<sys::mbuf>) -> Self;
}

/// A place for one send.
#[derive(Debug)]
pub struct SendSlot<P: Chain> {
    mapped: Mapped,
    _packet: PhantomData<P>,
}

/// A place for one receive.
#[derive(Debug)]
pub struct ReceiveSlot<P: Chain> {
    mapped: Mapped,
    _packet: PhantomData<P>,
}

impl<P: Chain> SendSlot<P> {
    /// An empty one, for queues of a domain.
    pub fn new(domain: &ProtectionDomain) -> Self {
        Self { mapped: Mapped::new(domain, Direction::ToAdapter), _packet: PhantomData }
    }

    /// Whether nothing is posted from here.
    pub fn is_vacant(&self) -> bool {
        self.mapped.posted.is_none()
    }

    /// The packet whose send ended. `None` if it is not that of this slot.
    pub fn complete(&mut self, completion: &Completion) -> Option<P> {
        self.mapped.complete(completion).map(own)
    }

    /// The packet, if it was posted to a queue that is quiet now.
    pub fn reclaim(&mut self, quiet: &Quiet) -> Option<P> {
        self.mapped.reclaim(quiet).map(own)
    }

    /// Maps a packet to at most `segments_max` segments and posts it.
    pub(crate) fn post(
        &mut self,
        work: &Work<'_>,
        segments_max: usize,
        packet: P,
        post: impl FnOnce(&[sys::kpi_segment]) -> c_int,
    ) -> Result<(), P> {
        if !self.mapped.is_ready_for(work) {
            return Err(packet);
        }
        let whole = packet.into_chain();
        let mut chain = whole.as_ptr();
        let domain = &self.mapped.domain;
        // SAFETY: the device exists by its invariant, and this is the owner of the chain. It takes
        // no lock but those of busdma, and does not sleep. It may replace the chain by another with
        // fewer mbufs; what it leaves in `chain`, which is never NULL, is what there is.
        let error = unsafe {
            sys::rust_helper_dma_map_send(
                domain.device().raw().as_ptr(),
                domain.local_key(),
                &raw mut chain,
                self.mapped.segments.as_mut_ptr(),
                // CAST: a small constant.
                segments_max.min(SEGMENTS_MAX) as u32,
                &raw mut self.mapped.count,
            )
        };
        let chain = NonNull::new(chain).unwrap_or(whole);
        match Errno::result(error) {
            Ok(()) => self.mapped.post(work, chain, post).map_err(own),
            Err(_) => Err(own(chain)),
        }
    }
}

impl<P: Chain> ReceiveSlot<P> {
    /// An empty one, for queues of a domain.
    pub fn new(domain: &ProtectionDomain) -> Self {
        Self { mapped: Mapped::new(domain, Direction::FromAdapter), _packet: PhantomData }
    }

    /// Whether nothing is posted from here.
    pub fn is_vacant(&self) -> bool {
        self.mapped.posted.is_none()
    }

    /// What a receive that ended brought: the packet, as long as the completion says, or `None` if
    /// there is none: the receive failed, and its buffer is freed, or it is not of this slot.
    pub fn complete(&mut self, completion: &Completion) -> Option<P> {
        let chain = self.mapped.complete(completion)?;
        match completion.status() {
            CompletionStatus::Success => {
                // SAFETY: the slot was the owner of the chain, and the adapter is done with it.
                // CAST: at most what the buffer holds, which is asked for with 32 bits.
                unsafe {
                    sys::rust_helper_dma_cut_chain(chain.as_ptr(), completion.bytes() as u32);
                }
                Some(own(chain))
            }
            CompletionStatus::Flushed | CompletionStatus::Failed => {
                free(chain);
                None
            }
        }
    }

    /// Frees the buffer, if it was posted to a queue that is quiet now. Whether it was.
    pub fn reclaim(&mut self, quiet: &Quiet) -> bool {
        self.mapped.reclaim(quiet).map(free).is_some()
    }

    /// Makes a buffer of `bytes` bytes, maps it and posts it.
    pub(crate) fn post(
        &mut self,
        work: &Work<'_>,
        bytes: usize,
        post: impl FnOnce(&[sys::kpi_segment]) -> c_int,
    ) -> Result<(), Errno> {
        if !self.mapped.is_ready_for(work) {
            return Err(Errno::EINVAL);
        }
        let bytes = u32::try_from(bytes).map_err(|_| Errno::EINVAL)?;
        let mut chain = null_mut();
        let domain = &self.mapped.domain;
        // SAFETY: the device exists by its invariant. It takes locks of the allocator and of busdma
        // only, and does not sleep.
        let error = unsafe {
            sys::rust_helper_dma_map_receive(
                domain.device().raw().as_ptr(),
                domain.local_key(),
                bytes,
                &raw mut chain,
                self.mapped.segments.as_mut_ptr(),
                // CAST: a small constant.
                SEGMENTS_MAX as u32,
                &raw mut self.mapped.count,
            )
        };
        Errno::result(error)?;
        let chain = NonNull::new(chain).ok_or(Errno::ENOMEM)?;
        self.mapped.post(work, chain, post).map_err(|chain| {
            free(chain);
            Errno::EINVAL
        })
    }
}

/// A work request: its number, and the queue that it is for.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    pub(crate) wr_id: u64,
    pub(crate) queue: QueueId,
    pub(crate) domain: &'a ProtectionDomain,
}

/// Who writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Direction {
    ToAdapter,
    FromAdapter,
}

/// A chain that is mapped, or room for one.
///
/// # Invariants
///
/// While `posted` is set, its chain is owned by this and mapped for the device of the domain at the
/// first `count` segments.
#[derive(Debug)]
struct Mapped {
    domain: ProtectionDomain,
    direction: Direction,
    posted: Option<Posted>,
    count: u32,
    segments: [sys::kpi_segment; SEGMENTS_MAX],
}

#[derive(Debug)]
struct Posted {
    wr_id: u64,
    queue: QueueId,
    chain: NonNull<sys::mbuf>,
}

// SAFETY: an mbuf belongs to no thread, and the rest is `Send`.
unsafe impl Send for Mapped {}
// SAFETY: nothing is reached through a shared reference.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(domain: &ProtectionDomain, direction: Direction) -> Self {
        const NONE: sys::kpi_segment = sys::kpi_segment { address: 0, bytes: 0, lkey: 0 };
        let segments = [NONE; SEGMENTS_MAX];
        Self { domain: domain.clone(), direction, posted: None, count: 0, segments }
    }

    /// Whether it is empty, and of the domain of the queue: another adapter would be given
    /// addresses that are not its own.
    fn is_ready_for(&self, work: &Work<'_>) -> bool {
        self.posted.is_none() && self.domain.is(work.domain)
    }

    /// Posts what was mapped, and holds it if that went well.
    fn post(
        &mut self,
        work: &Work<'_>,
        chain: NonNull<sys::mbuf>,
        post: impl FnOnce(&[sys::kpi_segment]) -> c_int,
    ) -> Result<(), NonNull<sys::mbuf>> {
        // INVARIANT: mapped just now, and owned.
        self.posted = Some(Posted { wr_id: work.wr_id, queue: work.queue, chain });
        let segments = self.segments.get(..self.count as usize).unwrap_or_default();
        match Errno::result(post(segments)) {
            Ok(()) => Ok(()),
            // The adapter has not taken it.
            Err(_) => Err(self.unmap().unwrap_or(chain)),
        }
    }

    fn complete(&mut self, completion: &Completion) -> Option<NonNull<sys::mbuf>> {
        let posted = self.posted.as_ref()?;
        if posted.wr_id == completion.wr_id() { self.unmap() } else { None }
    }

    fn reclaim(&mut self, quiet: &Quiet) -> Option<NonNull<sys::mbuf>> {
        let posted = self.posted.as_ref()?;
        if posted.queue == quiet.0 { self.unmap() } else { None }
    }

    /// The adapter does not use the chain: it is given back.
    fn unmap(&mut self) -> Option<NonNull<sys::mbuf>> {
        let Posted { chain, .. } = self.posted.take()?;
        let device = self.domain.device();
        let unmap = match self.direction {
            Direction::ToAdapter => sys::rust_helper_dma_unmap_send,
            Direction::FromAdapter => sys::rust_helper_dma_unmap_receive,
        };
        // SAFETY: mapped for this device at these segments, by the invariant. It does not sleep.
        unsafe { unmap(device.raw().as_ptr(), self.segments.as_ptr(), self.count) };
        Some(chain)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.posted.is_some() {
            let name = self.domain.device().name();
            log::line(
                Level::Error,
                format_args!("{name}: a packet is lost, the adapter may still use it"),
            );
        }
    }
}

fn own<P: Chain>(chain: NonNull<sys::mbuf>) -> P {
    // SAFETY: the slot was the only owner of the chain, and has given it away.
    unsafe { P::from_chain(chain) }
}

fn free(chain: NonNull<sys::mbuf>) {
    // SAFETY: the slot was the only owner of the chain, and has given it away. It does not sleep.
    unsafe { sys::rust_helper_dma_free_chain(chain.as_ptr()) }
}
