//! Packets of the network stack (mbuf(9)).

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Range;
use core::ptr::NonNull;

use ipoib_rs::packet::{NoHeadroom, PacketBuf, ShortPacket};
use sys_bindings as sys;

use crate::dma::Chain;

/// A packet: an owned chain of mbufs that begins with a packet header.
///
/// # Invariants
///
/// `chain` is the only reference to such a chain, which is not linked to a next packet.
pub struct Packet {
    chain: NonNull<sys::mbuf>,
}

// SAFETY: an mbuf belongs to no thread.
unsafe impl Send for Packet {}
// SAFETY: nothing is changed through a shared reference.
unsafe impl Sync for Packet {}

impl Packet {
    /// Takes a chain over.
    ///
    /// # Safety
    ///
    /// The caller gives away the only reference to a chain that begins with a packet header and is
    /// not linked to a next packet.
    pub(crate) unsafe fn from_raw(chain: NonNull<sys::mbuf>) -> Self {
        // INVARIANT: as the caller says.
        Self { chain }
    }

    /// Gives the chain away.
    pub(crate) fn into_raw(self) -> NonNull<sys::mbuf> {
        ManuallyDrop::new(self).chain
    }

    pub(crate) fn raw(&self) -> *mut sys::mbuf {
        self.chain.as_ptr()
    }

    fn set_note(&self, note: u64) {
        // SAFETY: a chain with a packet header by the invariant. The stack uses the field within
        // one of its layers only.
        unsafe { sys::rust_helper_mbuf_set_note(self.raw(), note) }
    }

    /// A packet of `header` and the bytes `payload` of this one, which are shared and not copied.
    /// `None` if there are fewer, or without memory. It does not sleep.
    pub fn fragment(&self, header: &[u8], payload: Range<usize>) -> Option<Self> {
        if payload.start > payload.end || payload.end > self.len() {
            return None;
        }
        // SAFETY: the chain is a whole one by the invariant, and the range lies within it. The
        // header is copied. It takes locks of the allocator only.
        // CAST: a packet is shorter than 2^32 bytes, and the C half checks the header.
        let chain = unsafe {
            sys::rust_helper_mbuf_fragment(
                self.raw(),
                header.as_ptr(),
                header.len() as u32,
                payload.start as u32,
                (payload.end - payload.start) as u32,
            )
        };
        // INVARIANT: just made.
        NonNull::new(chain).map(|chain| Self { chain })
    }

    /// Whether the stack left checksums of this packet to the adapter.
    pub fn wants_checksums(&self) -> bool {
        // SAFETY: a chain with a packet header by the invariant.
        unsafe { sys::rust_helper_mbuf_wants_checksums(self.raw()) }
    }

    /// Makes the checksums that were left to the adapter. The IPv4 header begins `offset` bytes
    /// behind the start. It does not sleep.
    pub fn finish_checksums(&mut self, offset: usize) {
        // SAFETY: a whole chain by the invariant; it stays within it, and writes where the stack
        // itself would have written.
        // CAST: the length of a header.
        unsafe { sys::rust_helper_mbuf_finish_checksums(self.raw(), offset as u32) }
    }

    /// The adapter found the checksums of this packet, which was received, right.
    pub fn set_verified(&mut self) {
        // SAFETY: a chain with a packet header by the invariant.
        unsafe { sys::rust_helper_mbuf_set_verified(self.raw()) }
    }

    /// The first `count` bytes, to be changed. `None` if there are fewer, or without memory. It
    /// does not sleep.
    pub fn writable_front(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.len() {
            return None;
        }
        let mut chain = self.raw();
        // SAFETY: a whole chain by the invariant, with that many bytes. It may put another mbuf in
        // front.
        // CAST: a packet is shorter than 2^32 bytes.
        let front = unsafe { sys::rust_helper_mbuf_writable_front(&raw mut chain, count as u32) };
        // INVARIANT: the same chain, with perhaps another first mbuf.
        self.chain = NonNull::new(chain).unwrap_or(self.chain);
        let front = NonNull::new(front)?;
        // SAFETY: that many contiguous bytes of the chain, which nobody else has and which live as
        // long as it.
        Some(unsafe { core::slice::from_raw_parts_mut(front.as_ptr(), count) })
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        // SAFETY: the only reference, by the invariant. It does not sleep.
        unsafe { sys::rust_helper_mbuf_free(self.raw()) }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} bytes)", self.len())
    }
}

impl PacketBuf for Packet {
    fn len(&self) -> usize {
        // SAFETY: a chain with a packet header by the invariant.
        unsafe { sys::rust_helper_mbuf_length(self.raw()) as usize }
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), ShortPacket> {
        let end = offset.checked_add(out.len()).ok_or(ShortPacket)?;
        if end > self.len() {
            return Err(ShortPacket);
        }
        // SAFETY: the chain has that many bytes, and so has `out`.
        // CAST: within the packet, which is shorter than 2^32 bytes.
        unsafe {
            sys::rust_helper_mbuf_copy_out(
                self.raw(),
                offset as u32,
                out.len() as u32,
                out.as_mut_ptr(),
            );
        }
        Ok(())
    }

    fn prepend(&mut self, bytes: &[u8]) -> Result<(), NoHeadroom> {
        let length = u32::try_from(bytes.len()).map_err(|_| NoHeadroom)?;
        let mut chain = self.raw();
        // SAFETY: a whole chain by the invariant. The bytes are copied. It takes locks of the
        // allocator only.
        let error =
            unsafe { sys::rust_helper_mbuf_prepend(&raw mut chain, bytes.as_ptr(), length) };
        // INVARIANT: the same chain, with perhaps another first mbuf.
        self.chain = NonNull::new(chain).unwrap_or(self.chain);
        if error == 0 { Ok(()) } else { Err(NoHeadroom) }
    }

    fn trim_front(&mut self, count: usize) -> Result<(), ShortPacket> {
        if count > self.len() {
            return Err(ShortPacket);
        }
        // SAFETY: the chain has that many bytes.
        // CAST: within the packet, which is shorter than 2^32 bytes.
        unsafe { sys::rust_helper_mbuf_trim_front(self.raw(), count as u32) };
        Ok(())
    }
}

// SAFETY: `into_raw` gives the only reference away, and `from_raw` takes it.
unsafe impl Chain for Packet {
    fn into_chain(self) -> NonNull<sys::mbuf> {
        self.into_raw()
    }

    unsafe fn from_chain(chain: NonNull<sys::mbuf>) -> Self {
        // SAFETY: as the caller says.
        unsafe { Self::from_raw(chain) }
    }
}

/// Packets in the order in which they came, each with a note, linked through themselves: nothing is
/// allocated.
#[derive(Debug, Default)]
pub struct PacketList {
    head: Option<Packet>,
    /// The last packet of the list, which owns nothing.
    tail: Option<NonNull<sys::mbuf>>,
    count: u32,
}

// SAFETY: an mbuf belongs to no thread.
unsafe impl Send for PacketList {}

impl PacketList {
    /// An empty one.
    pub const fn new() -> Self {
        Self { head: None, tail: None, count: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Puts a packet behind the others.
    pub fn push(&mut self, packet: Packet, note: u64) {
        packet.set_note(note);
        let tail = packet.chain;
        match self.tail {
            // SAFETY: the last packet is owned by this list, and nothing is linked to it.
            Some(last) => unsafe {
                sys::rust_helper_mbuf_set_next(last.as_ptr(), packet.into_raw().as_ptr());
            },
            None => self.head = Some(packet),
        }
        self.tail = Some(tail);
        self.count += 1;
    }

    /// Puts a packet before the others.
    pub fn push_front(&mut self, packet: Packet, note: u64) {
        packet.set_note(note);
        match self.head.take() {
            // SAFETY: both are owned by this list, and nothing is linked to the new one.
            Some(head) => unsafe {
                sys::rust_helper_mbuf_set_next(packet.raw(), head.into_raw().as_ptr());
            },
            None => self.tail = Some(packet.chain),
        }
        self.head = Some(packet);
        self.count += 1;
    }

    /// Takes the first packet out, and its note.
    pub fn pop(&mut self) -> Option<(Packet, u64)> {
        let head = self.head.take()?;
        // SAFETY: owned by this list.
        let next = NonNull::new(unsafe { sys::rust_helper_mbuf_next(head.raw()) });
        // SAFETY: as above.
        unsafe { sys::rust_helper_mbuf_set_next(head.raw(), core::ptr::null_mut()) };
        // INVARIANT: what was linked to it is owned by this list, and is its head now. It is
        // unlinked when it is taken out.
        self.head = next.map(|chain| Packet { chain });
        if self.head.is_none() {
            self.tail = None;
        }
        self.count -= 1;
        // SAFETY: owned by this list until here.
        let note = unsafe { sys::rust_helper_mbuf_note(head.raw()) };
        Some((head, note))
    }
}

impl Drop for PacketList {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
