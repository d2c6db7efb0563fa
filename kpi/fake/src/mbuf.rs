//! Packets: one allocation each, so that sanitizers see who has them.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use sys_bindings as sys;

use crate::{check, memory};

#[derive(Default)]
pub(crate) struct FakePacket {
    pub(crate) bytes: Vec<u8>,
    next: Option<*mut sys::mbuf>,
    note: u64,
    /// The adapter may read or write it.
    pub(crate) is_mapped: bool,
}

/// Packets that exist.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How many packets there are, whoever has them.
pub fn count() -> usize {
    COUNT.load(Ordering::SeqCst)
}

/// A packet with these bytes, which the caller owns.
pub fn packet(bytes: &[u8]) -> *mut sys::mbuf {
    let _inside = memory::inside();
    COUNT.fetch_add(1, Ordering::SeqCst);
    raw(FakePacket { bytes: bytes.to_vec(), ..FakePacket::default() })
}

/// The bytes of a packet, which is freed.
pub(crate) unsafe fn take(chain: *mut sys::mbuf) -> Vec<u8> {
    let _inside = memory::inside();
    // SAFETY: as the caller says: the only reference to a packet.
    unsafe {
        let bytes = packet_of(chain).bytes.clone();
        rust_helper_mbuf_free(chain);
        bytes
    }
}

fn raw(packet: FakePacket) -> *mut sys::mbuf {
    Box::into_raw(Box::new(packet)).cast()
}

/// # Safety
///
/// `chain` is a packet that is not freed, and nobody else uses it meanwhile.
pub(crate) unsafe fn packet_of<'a>(chain: *const sys::mbuf) -> &'a mut FakePacket {
    // SAFETY: as the caller says.
    unsafe { &mut *chain.cast_mut().cast() }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rust_helper_mbuf_free(chain: *mut sys::mbuf) {
    // SAFETY: the only reference to a packet.
    let packet = unsafe { Box::from_raw(chain.cast::<FakePacket>()) };
    COUNT.fetch_sub(1, Ordering::SeqCst);
    check!(packet.next.is_none(), "a packet is freed with the next one");
    check!(!packet.is_mapped, "a packet is freed that the adapter may use");
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_length(chain: *const sys::mbuf) -> u32 {
    // SAFETY: as kpi/c says, here and below.
    u32::try_from(unsafe { packet_of(chain) }.bytes.len()).expect("a length")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_copy_out(
    chain: *const sys::mbuf,
    offset: u32,
    length: u32,
    out: *mut u8,
) {
    // SAFETY: see above; there is room for that many bytes.
    let (packet, out) =
        unsafe { (packet_of(chain), std::slice::from_raw_parts_mut(out, length as usize)) };
    out.copy_from_slice(&packet.bytes[offset as usize..][..length as usize]);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_prepend(
    chain: *mut *mut sys::mbuf,
    bytes: *const u8,
    length: u32,
) -> c_int {
    if memory::is_exhausted() {
        return sys::ENOMEM.cast_signed();
    }
    let _inside = memory::inside();
    // SAFETY: see above; there are that many bytes.
    unsafe {
        let front = std::slice::from_raw_parts(bytes, length as usize);
        packet_of(*chain).bytes.splice(..0, front.iter().copied());
        *chain = moved(*chain);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_trim_front(chain: *mut sys::mbuf, length: u32) {
    // SAFETY: see above.
    unsafe { packet_of(chain) }.bytes.drain(..length as usize);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_fragment(
    chain: *const sys::mbuf,
    header: *const u8,
    header_length: u32,
    offset: u32,
    length: u32,
) -> *mut sys::mbuf {
    if memory::is_exhausted() {
        return null_mut();
    }
    // SAFETY: see above; there are that many bytes of header.
    let (packet, header) =
        unsafe { (packet_of(chain), std::slice::from_raw_parts(header, header_length as usize)) };
    let _inside = memory::inside();
    let payload = &packet.bytes[offset as usize..][..length as usize];
    self::packet(&[header, payload].concat())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_writable_front(
    chain: *mut *mut sys::mbuf,
    length: u32,
) -> *mut u8 {
    if memory::is_exhausted() {
        return null_mut();
    }
    // SAFETY: see above.
    unsafe {
        *chain = moved(*chain);
        packet_of(*chain).bytes[..length as usize].as_mut_ptr()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_next(chain: *mut sys::mbuf) -> *mut sys::mbuf {
    // SAFETY: see above.
    unsafe { packet_of(chain) }.next.unwrap_or(null_mut())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_set_next(chain: *mut sys::mbuf, next: *mut sys::mbuf) {
    // SAFETY: see above.
    unsafe { packet_of(chain) }.next = (!next.is_null()).then_some(next);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_note(chain: *const sys::mbuf) -> u64 {
    // SAFETY: see above.
    unsafe { packet_of(chain) }.note
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_set_note(chain: *mut sys::mbuf, note: u64) {
    // SAFETY: see above.
    unsafe { packet_of(chain) }.note = note;
}

/// The packet at another place, as it may be after every call that is given its place: who uses the
/// old one is found out.
pub(crate) unsafe fn moved(chain: *mut sys::mbuf) -> *mut sys::mbuf {
    let _inside = memory::inside();
    // SAFETY: as the caller says.
    raw(*unsafe { Box::from_raw(chain.cast::<FakePacket>()) })
}

/// No stack here leaves checksums to an adapter.
#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_wants_checksums(_chain: *const sys::mbuf) -> bool {
    false
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_finish_checksums(_chain: *mut sys::mbuf, _offset: u32) {
    unreachable!("checksums that nobody left to the adapter");
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_mbuf_set_verified(_chain: *mut sys::mbuf) {
    unreachable!("no adapter here looks at checksums");
}
