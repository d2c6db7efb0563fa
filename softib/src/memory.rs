//! Memory of the kernel that work requests name.

use core::ptr;

/// A piece of memory: the layout of `struct softib_segment`.
///
/// # Invariants
///
/// From the time a work request is posted until its completion is polled or its queue pair is
/// reset, the memory is there and nobody else touches it. That is the contract of the verbs (IBA
/// 10.7.3): the poster gives a buffer away with the request and gets it back with the completion.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Segment {
    address: u64,
    length: u32,
    local_key: u32,
}

impl Segment {
    /// No memory.
    pub const EMPTY: Self = Self { address: 0, length: 0, local_key: 0 };

    /// Memory of our own, which only the fabric uses from now on.
    #[cfg(test)]
    pub fn of(memory: &'static mut [u8]) -> Self {
        let length = memory.len().try_into().expect("a short buffer");
        Self { address: memory.as_mut_ptr().expose_provenance() as u64, length, local_key: 0 }
    }
}

/// The length of all segments together.
pub fn total(segments: &[Segment]) -> usize {
    let lengths = segments.iter().map(|segment| segment.length as usize);
    lengths.fold(0, usize::saturating_add)
}

/// Fills `out` with what the segments of a send hold, one after the other.
pub fn gather(segments: &[Segment], mut out: &mut [u8]) {
    for segment in segments {
        let length = out.len().min(segment.length as usize);
        let (part, rest) = out.split_at_mut(length);
        // SAFETY: the segment's invariant: `length` bytes at the address can be read, by us alone.
        // `part` is memory of the fabric's pool, so that the two do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(segment.address as *const u8, part.as_mut_ptr(), length);
        }
        out = rest;
    }
}

/// Puts `bytes` into the segments of a receive, one after the other; what has no room is left.
pub fn scatter(mut bytes: &[u8], segments: &[Segment]) {
    for segment in segments {
        let length = bytes.len().min(segment.length as usize);
        let (part, rest) = bytes.split_at(length);
        // SAFETY: the segment's invariant: `length` bytes at the address can be written, by us
        // alone. `part` is memory of the fabric's pool, so that the two do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(part.as_ptr(), segment.address as *mut u8, length);
        }
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;

    fn segment(bytes: &[u8]) -> Segment {
        Segment::of(Box::leak(Box::from(bytes)))
    }

    #[test]
    fn what_is_gathered_is_what_was_scattered() {
        let segments = [segment(&[0; 3]), Segment::EMPTY, segment(&[0; 5])];
        assert_eq!(total(&segments), 8);
        scatter(b"abcdefg", &segments);
        let mut out = [0; 7];
        gather(&segments, &mut out);
        assert_eq!(&out, b"abcdefg");
    }

    #[test]
    fn nothing_is_written_behind_the_last_segment() {
        let memory: &'static mut [u8] = Box::leak(Box::new([0; 4]));
        let (front, back) = memory.split_at_mut(2);
        scatter(b"abcd", &[Segment::of(front)]);
        assert_eq!(back, [0, 0]);
    }
}
