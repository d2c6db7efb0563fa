//! Packets: fixed-size buffers from a pool.
//!
//! A [`Packet`] owns its buffer; nothing is shared. It moves from the sender through the fabric to
//! the receiver, and whoever holds it last gives it back with [`Pool::free`]. The pool counts the
//! packets that are out: when a world is taken apart, [`Pool::outstanding`] must be 0.

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use core::fmt;
use core::mem;

use ipoib_rs::packet::{NoHeadroom, PacketBuf, ShortPacket};

/// The room in front of a fresh packet, in bytes: a GRH (40), the encapsulation header (4) and some
/// to spare.
pub const HEADROOM_BYTES: usize = 64;
/// The longest packet that a small buffer holds: a datagram of the largest MTU behind its GRH.
pub const SMALL_BYTES_MAX: usize = 4096 + 40 + 4;
/// The longest packet that a large buffer holds: the largest IP packet behind the same headers.
pub const LARGE_BYTES_MAX: usize = 65_536 + 40 + 4;

/// How many packets there may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PoolLimits {
    /// Packets of up to [`SMALL_BYTES_MAX`] bytes.
    pub small_max: u32,
    /// Packets of up to [`LARGE_BYTES_MAX`] bytes.
    pub large_max: u32,
}

impl PoolLimits {
    /// Enough for a few busy hosts.
    pub const DEFAULT: Self = Self { small_max: 16_384, large_max: 64 };
}

/// Where packets come from and go back to.
#[derive(Debug)]
pub struct Pool {
    small: Class,
    large: Class,
}

impl Pool {
    /// An empty pool; buffers are made on demand, up to the limits, and never given back to the
    /// allocator.
    ///
    /// # Errors
    ///
    /// No memory for the free lists.
    pub fn new(limits: PoolLimits) -> Result<Self, TryReserveError> {
        Ok(Self {
            small: Class::new(SMALL_BYTES_MAX, limits.small_max)?,
            large: Class::new(LARGE_BYTES_MAX, limits.large_max)?,
        })
    }

    /// Makes `count` small buffers in advance, fewer if that is above the limit.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn preallocate(&mut self, count: u32) -> Result<(), TryReserveError> {
        while self.small.made < count.min(self.small.max) {
            let buffer = self.small.make()?;
            self.small.free.push(buffer);
        }
        Ok(())
    }

    /// A packet of `len` bytes with [`HEADROOM_BYTES`] in front of it. The bytes are what the last
    /// user left in them. `None` if the limit is reached, there is no memory, or `len` is above
    /// [`LARGE_BYTES_MAX`].
    pub fn allocate(&mut self, len: usize) -> Option<Packet> {
        let class = if len <= SMALL_BYTES_MAX {
            &mut self.small
        } else if len <= LARGE_BYTES_MAX {
            &mut self.large
        } else {
            return None;
        };
        Some(Packet { buffer: class.take()?, start: HEADROOM_BYTES as u32, len: len as u32 })
    }

    /// A packet that holds `bytes`; `None` as for [`Self::allocate`].
    pub fn allocate_from(&mut self, bytes: &[u8]) -> Option<Packet> {
        let mut packet = self.allocate(bytes.len())?;
        packet.bytes_mut().copy_from_slice(bytes);
        Some(packet)
    }

    /// Ends the life of a packet.
    pub fn free(&mut self, mut packet: Packet) {
        let buffer = mem::take(&mut packet.buffer);
        if buffer.is_empty() {
            return;
        }
        if buffer.len() == self.small.buffer_bytes() {
            self.small.put(buffer);
        } else {
            self.large.put(buffer);
        }
    }

    /// The number of packets that were allocated and not yet freed. A packet that was dropped stays
    /// in this number for ever.
    pub fn outstanding(&self) -> usize {
        self.small.outstanding() + self.large.outstanding()
    }
}

/// Buffers of one size.
#[derive(Debug)]
struct Class {
    free: Vec<Box<[u8]>>,
    packet_bytes_max: usize,
    made: u32,
    max: u32,
}

impl Class {
    fn new(packet_bytes_max: usize, max: u32) -> Result<Self, TryReserveError> {
        let mut free = Vec::new();
        free.try_reserve_exact(max as usize)?;
        Ok(Self { free, packet_bytes_max, made: 0, max })
    }

    const fn buffer_bytes(&self) -> usize {
        HEADROOM_BYTES + self.packet_bytes_max
    }

    fn take(&mut self) -> Option<Box<[u8]>> {
        match self.free.pop() {
            Some(buffer) => Some(buffer),
            None if self.made < self.max => self.make().ok(),
            None => None,
        }
    }

    fn make(&mut self) -> Result<Box<[u8]>, TryReserveError> {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(self.buffer_bytes())?;
        buffer.resize(self.buffer_bytes(), 0);
        self.made += 1;
        Ok(buffer.into_boxed_slice())
    }

    fn put(&mut self, buffer: Box<[u8]>) {
        // A buffer of another pool would make the list grow past what was reserved for it.
        debug_assert!(self.free.len() < self.made as usize, "a packet of another pool");
        if self.free.len() < self.made as usize {
            self.free.push(buffer);
        }
    }

    fn outstanding(&self) -> usize {
        self.made as usize - self.free.len()
    }
}

/// An owned packet.
///
/// It must end in [`Pool::free`]. Where the `std` feature is on, in builds with debug assertions,
/// dropping one panics; elsewhere its buffer is lost to the pool, which
/// [`Pool::outstanding`] shows.
pub struct Packet {
    buffer: Box<[u8]>,
    start: u32,
    len: u32,
}

impl Packet {
    /// A packet of no bytes, without a buffer: it comes from no pool and may be dropped.
    pub fn empty() -> Self {
        Self { buffer: Box::default(), start: 0, len: 0 }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        let start = self.start as usize;
        &self.buffer[start..start + self.len as usize]
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.start as usize;
        &mut self.buffer[start..start + self.len as usize]
    }

    /// Makes the packet `len` bytes long by cutting its end off or by adding bytes of unspecified
    /// value there. A length beyond [`Self::capacity`] becomes the capacity.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity()) as u32;
    }

    /// The longest that this packet can become at its end.
    pub fn capacity(&self) -> usize {
        self.buffer.len() - self.start as usize
    }

    /// The room in front, in bytes.
    pub fn headroom(&self) -> usize {
        self.start as usize
    }

    /// Moves the bytes so that `count` bytes fit in front of them.
    fn make_headroom(&mut self, count: usize) -> Result<(), NoHeadroom> {
        let (start, len) = (self.start as usize, self.len as usize);
        if count <= start {
            return Ok(());
        }
        if count + len > self.buffer.len() {
            return Err(NoHeadroom);
        }
        self.buffer.copy_within(start..start + len, count);
        self.start = count as u32;
        Ok(())
    }
}

impl PacketBuf for Packet {
    fn len(&self) -> usize {
        self.len as usize
    }

    fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), ShortPacket> {
        let end = offset.checked_add(out.len()).ok_or(ShortPacket)?;
        let bytes = self.bytes().get(offset..end).ok_or(ShortPacket)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn prepend(&mut self, bytes: &[u8]) -> Result<(), NoHeadroom> {
        self.make_headroom(bytes.len())?;
        self.start -= bytes.len() as u32;
        self.len += bytes.len() as u32;
        self.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn trim_front(&mut self, count: usize) -> Result<(), ShortPacket> {
        if count > self.len as usize {
            return Err(ShortPacket);
        }
        self.start += count as u32;
        self.len -= count as u32;
        Ok(())
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} bytes)", self.len)
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        #[cfg(all(debug_assertions, any(test, feature = "std")))]
        if !self.buffer.is_empty() && !std::thread::panicking() {
            panic!("a packet of {} bytes was dropped without Pool::free", self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(small_max: u32, large_max: u32) -> Pool {
        Pool::new(PoolLimits { small_max, large_max }).unwrap()
    }

    #[test]
    fn packets_out_are_counted_until_they_come_back() {
        let mut pool = pool(3, 1);
        let small = pool.allocate(SMALL_BYTES_MAX).unwrap();
        let large = pool.allocate(SMALL_BYTES_MAX + 1).unwrap();
        assert_eq!(pool.outstanding(), 2);
        pool.free(large);
        assert_eq!(pool.outstanding(), 1);
        pool.free(small);
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn the_limit_of_each_size_is_kept() {
        let mut pool = pool(2, 1);
        let first = pool.allocate(1).unwrap();
        let second = pool.allocate(1).unwrap();
        assert!(pool.allocate(1).is_none());
        let large = pool.allocate(LARGE_BYTES_MAX).unwrap();
        assert!(pool.allocate(LARGE_BYTES_MAX).is_none());
        pool.free(first);
        let again = pool.allocate(1).unwrap();
        for packet in [second, large, again] {
            pool.free(packet);
        }
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn a_packet_longer_than_any_buffer_is_refused() {
        let mut pool = pool(1, 1);
        assert!(pool.allocate(LARGE_BYTES_MAX + 1).is_none());
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn preallocated_buffers_are_not_out() {
        let mut pool = pool(4, 0);
        pool.preallocate(9).unwrap();
        assert_eq!(pool.outstanding(), 0);
        assert_eq!(pool.small.free.len(), 4);
    }

    #[test]
    fn headers_go_in_front_and_come_off_again() {
        let mut pool = pool(1, 0);
        let mut packet = pool.allocate_from(b"payload").unwrap();
        packet.prepend(b"head").unwrap();
        assert_eq!(packet.bytes(), b"headpayload");
        packet.trim_front(6).unwrap();
        assert_eq!(packet.bytes(), b"yload");
        assert_eq!(packet.trim_front(6), Err(ShortPacket));
        assert_eq!(packet.bytes(), b"yload");
        pool.free(packet);
    }

    #[test]
    fn a_header_longer_than_the_headroom_moves_the_payload() {
        let mut pool = pool(1, 0);
        let mut packet = pool.allocate_from(b"payload").unwrap();
        let header = [7; HEADROOM_BYTES + 1];
        packet.prepend(&header).unwrap();
        assert_eq!(&packet.bytes()[..header.len()], &header);
        assert_eq!(&packet.bytes()[header.len()..], b"payload");
        pool.free(packet);
    }

    #[test]
    fn a_header_that_fits_nowhere_leaves_the_packet_as_it_was() {
        let mut pool = pool(1, 0);
        let mut packet = pool.allocate(SMALL_BYTES_MAX).unwrap();
        assert_eq!(packet.prepend(&[0; HEADROOM_BYTES + 1]), Err(NoHeadroom));
        assert_eq!(packet.len(), SMALL_BYTES_MAX);
        assert_eq!(packet.headroom(), HEADROOM_BYTES);
        pool.free(packet);
    }

    #[test]
    fn bytes_beyond_the_end_cannot_be_read() {
        let mut pool = pool(1, 0);
        let packet = pool.allocate_from(b"abcd").unwrap();
        let mut two = [0; 2];
        packet.copy_out(2, &mut two).unwrap();
        assert_eq!(&two, b"cd");
        assert_eq!(packet.copy_out(3, &mut two), Err(ShortPacket));
        assert_eq!(packet.copy_out(usize::MAX, &mut two), Err(ShortPacket));
        pool.free(packet);
    }

    #[test]
    fn a_length_beyond_the_buffer_becomes_the_capacity() {
        let mut pool = pool(1, 0);
        let mut packet = pool.allocate(1).unwrap();
        packet.set_len(usize::MAX);
        assert_eq!(packet.len(), SMALL_BYTES_MAX);
        pool.free(packet);
    }

    #[test]
    fn an_empty_packet_needs_no_pool() {
        let mut pool = pool(0, 0);
        let mut packet = Packet::empty();
        assert!(packet.is_empty());
        assert_eq!(packet.prepend(b"x"), Err(NoHeadroom));
        pool.free(packet);
        assert_eq!(pool.outstanding(), 0);
        drop(Packet::empty());
    }

    #[test]
    #[should_panic(expected = "dropped without Pool::free")]
    fn a_dropped_packet_is_found() {
        let mut pool = pool(1, 0);
        drop(pool.allocate(8));
    }
}
