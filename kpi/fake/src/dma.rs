//! Packets that the adapter reads and writes. Its addresses are those of the bytes.

use std::ffi::c_int;
use std::sync::Mutex;

use sys_bindings as sys;

use crate::mbuf::{moved, packet, packet_of};
use crate::{check, memory, ofed};

/// Bytes of a segment: a page.
const SEGMENT_BYTES: usize = 4096;

/// A packet that is mapped, by the address of its first byte.
struct Mapping {
    address: u64,
    chain: *mut sys::mbuf,
}

// SAFETY: the packet is looked at with the mutex of the table held.
unsafe impl Send for Mapping {}

static MAPPINGS: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());

/// How many packets are mapped.
pub fn mapped() -> usize {
    MAPPINGS.lock().unwrap().len()
}

/// Frees what is mapped and was lost by its owner.
pub fn free_lost() {
    for Mapping { chain, .. } in MAPPINGS.lock().unwrap().drain(..) {
        // SAFETY: nobody has it any more.
        unsafe {
            packet_of(chain).is_mapped = false;
            sys::rust_helper_mbuf_free(chain);
        }
    }
}

/// # Safety
///
/// `chain` is a packet, `segments` has room for `max`.
unsafe fn map(
    lkey: u32,
    chain: *mut sys::mbuf,
    segment_bytes: usize,
    segments: *mut sys::kpi_segment,
    max: u32,
    count: *mut u32,
) -> c_int {
    let _inside = memory::inside();
    // SAFETY: as the caller says.
    let packet = unsafe { packet_of(chain) };
    let pieces = packet.bytes.len().div_ceil(segment_bytes);
    if memory::is_exhausted() || pieces > max as usize {
        return sys::ENOMEM.cast_signed();
    }
    check!(!packet.is_mapped, "a packet is mapped twice");
    packet.is_mapped = true;
    // The adapter reads and writes there.
    let address = packet.bytes.as_mut_ptr().expose_provenance() as u64;
    for (place, piece) in packet.bytes.chunks(segment_bytes).enumerate() {
        let segment = sys::kpi_segment {
            address: address + (place * segment_bytes) as u64,
            bytes: u32::try_from(piece.len()).expect("a short segment"),
            lkey,
        };
        // SAFETY: below `max`.
        unsafe { segments.add(place).write(segment) };
    }
    MAPPINGS.lock().unwrap().push(Mapping { address, chain });
    // SAFETY: as kpi/c says.
    unsafe { *count = u32::try_from(pieces).expect("at most max") };
    0
}

/// # Safety
///
/// `segments` are those of a packet that is mapped.
unsafe fn unmap(segments: *const sys::kpi_segment, count: u32) {
    check!(count > 0, "nothing is mapped");
    // SAFETY: as the caller says.
    let address = unsafe { (*segments).address };
    check!(!ofed::is_posted(address), "a packet is unmapped that the adapter may use");
    let _inside = memory::inside();
    let mut mappings = MAPPINGS.lock().unwrap();
    let place = mappings.iter().position(|mapping| mapping.address == address);
    check!(place.is_some(), "a packet is unmapped that is not mapped");
    let mapping = mappings.swap_remove(place.unwrap_or_default());
    // SAFETY: mapped, so not freed.
    unsafe { packet_of(mapping.chain) }.is_mapped = false;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_dma_map_send(
    _device: *mut sys::ib_device,
    lkey: u32,
    chain: *mut *mut sys::mbuf,
    segments: *mut sys::kpi_segment,
    max: u32,
    count: *mut u32,
) -> c_int {
    // SAFETY: as kpi/c says. The packet may be another one afterwards.
    unsafe {
        *chain = moved(*chain);
        // A chain of too many pieces is made one of fewer.
        let least = packet_of(*chain).bytes.len().div_ceil(max as usize);
        map(lkey, *chain, least.max(SEGMENT_BYTES), segments, max, count)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_dma_unmap_send(
    _device: *mut sys::ib_device,
    segments: *const sys::kpi_segment,
    count: u32,
) {
    // SAFETY: as kpi/c says.
    unsafe { unmap(segments, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_dma_map_receive(
    _device: *mut sys::ib_device,
    lkey: u32,
    bytes: u32,
    chain: *mut *mut sys::mbuf,
    segments: *mut sys::kpi_segment,
    max: u32,
    count: *mut u32,
) -> c_int {
    if memory::is_exhausted() {
        return sys::ENOMEM.cast_signed();
    }
    let _inside = memory::inside();
    // Not 0: nobody may take it for something.
    let made = packet(&vec![0xa5; bytes as usize]);
    // SAFETY: as kpi/c says; the packet is new.
    unsafe {
        let error = map(lkey, made, SEGMENT_BYTES, segments, max, count);
        if error == 0 {
            *chain = made;
        } else {
            sys::rust_helper_mbuf_free(made);
        }
        error
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_dma_unmap_receive(
    _device: *mut sys::ib_device,
    segments: *const sys::kpi_segment,
    count: u32,
) {
    // SAFETY: as kpi/c says.
    unsafe { unmap(segments, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_dma_cut_chain(chain: *mut sys::mbuf, bytes: u32) {
    // SAFETY: as kpi/c says.
    let packet = unsafe { packet_of(chain) };
    check!(!packet.is_mapped, "a packet is cut that the adapter may use");
    packet.bytes.truncate(bytes as usize);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_dma_free_chain(chain: *mut sys::mbuf) {
    // SAFETY: as kpi/c says.
    unsafe { sys::rust_helper_mbuf_free(chain) }
}
