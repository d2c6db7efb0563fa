//! A packet in transit as the bytes that would be on the wire: LRH, GRH, BTH, DETH, payload,
//! padding, ICRC, VCRC (IBA 5.2); and as a record of a capture file.
//!
//! Capture files have a link-layer header type for packets that begin with an LRH, 247, but
//! Wireshark up to 4.0 cannot read it. What it reads is the Extensible Record Format, which puts 16
//! bytes in front of the packet.

use ipoib_rs::time::Instant;
use ipoib_rs::wire::GRH_BYTES;
use zerocopy::byteorder::little_endian;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::crc;
use crate::transit::{Header, Transit};
use crate::wire::{
    Bth, Deth, ICRC_BYTES, LNH_GLOBAL, LNH_LOCAL, LRH_BYTES, Lrh, OPCODE_UD_SEND_ONLY,
    TRANSPORT_BYTES, VCRC_BYTES, packet_bytes, pad_bytes,
};

/// The link-layer header type of a capture file made of records.
pub const LINKTYPE_ERF: u32 = 197;
/// The longest packet: the largest MTU and all headers (IBA 7.7.8).
pub const PACKET_BYTES_MAX: usize = 4096 + 128;
/// The longest record.
pub const RECORD_BYTES_MAX: usize = size_of::<ErfHeader>() + PACKET_BYTES_MAX;

/// The header of a record in the Extensible Record Format.
#[derive(Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct ErfHeader {
    /// Seconds (32 bits) and their fraction (32 bits), unlike all else with the low byte first.
    timestamp: little_endian::U64,
    record_type: u8,
    flags: u8,
    /// With this header.
    record_bytes: U16,
    loss_count: U16,
    /// Without it.
    wire_bytes: U16,
}

const _: () = assert!(size_of::<ErfHeader>() == 16);

const ERF_INFINIBAND: u8 = 21;
const ERF_FLAG_VARYING_LENGTH: u8 = 1 << 2;

/// Writes a packet as a record of a capture file to the front of `out`. Its length, or `None` if
/// `out` is shorter than that; [`RECORD_BYTES_MAX`] bytes are always enough. The epoch of `now` is
/// taken to be that of Unix.
pub fn encode_record(transit: &Transit, now: Instant, out: &mut [u8]) -> Option<usize> {
    let (header, packet) = out.split_at_mut_checked(size_of::<ErfHeader>())?;
    let packet_len = encode(transit, packet)?;
    let record_len = size_of::<ErfHeader>() + packet_len;
    let erf = ErfHeader {
        timestamp: little_endian::U64::new(erf_timestamp(now)),
        record_type: ERF_INFINIBAND,
        flags: ERF_FLAG_VARYING_LENGTH,
        record_bytes: U16::new(record_len as u16),
        loss_count: U16::ZERO,
        wire_bytes: U16::new(packet_len as u16),
    };
    header.copy_from_slice(erf.as_bytes());
    Some(record_len)
}

fn erf_timestamp(now: Instant) -> u64 {
    const NANOS_PER_SECOND: u64 = 1_000_000_000;
    let (seconds, nanos) = (now.as_nanos() / NANOS_PER_SECOND, now.as_nanos() % NANOS_PER_SECOND);
    // Rounded up, so that the nanoseconds come back when a reader rounds down.
    let fraction = (nanos << 32).div_ceil(NANOS_PER_SECOND);
    (seconds << 32) + fraction
}

/// Writes a packet to the front of `out`. Its length, or `None` if `out` is shorter than that;
/// [`PACKET_BYTES_MAX`] bytes are always enough.
pub fn encode(transit: &Transit, out: &mut [u8]) -> Option<usize> {
    let Transit { header, .. } = transit;
    let payload = transit.payload();
    let len = packet_bytes(header.grh.is_some(), payload.len());
    let packet = out.get_mut(..len)?;
    let mut rest = &mut *packet;
    put(&mut rest, lrh(header, len).as_bytes());
    if let Some(grh) = &header.grh {
        put(&mut rest, grh.as_bytes());
    }
    put(&mut rest, bth(header, payload.len()).as_bytes());
    put(&mut rest, deth(header).as_bytes());
    put(&mut rest, payload);
    put(&mut rest, &[0; 3][..pad_bytes(payload.len())]);
    let (checked, icrc) = packet.split_at_mut(len - VCRC_BYTES - ICRC_BYTES);
    icrc[..ICRC_BYTES].copy_from_slice(&crc::icrc(checked));
    let (checked, vcrc) = packet.split_at_mut(len - VCRC_BYTES);
    vcrc.copy_from_slice(&crc::vcrc(checked));
    Some(len)
}

fn put(rest: &mut &mut [u8], bytes: &[u8]) {
    let (place, behind) = core::mem::take(rest).split_at_mut(bytes.len());
    place.copy_from_slice(bytes);
    *rest = behind;
}

fn lrh(header: &Header, packet_len: usize) -> Lrh {
    let next_header = if header.grh.is_some() { LNH_GLOBAL } else { LNH_LOCAL };
    Lrh {
        // Every service level is mapped to VL 0, the one data lane that all ports have (IBA 7.6).
        vl_version: 0,
        sl_next_header: header.sl.value() << 4 | next_header,
        destination_lid: U16::new(header.destination.lid()),
        length_words: U16::new(((packet_len - VCRC_BYTES) / 4) as u16),
        source_lid: U16::new(header.source_lid.value()),
    }
}

fn bth(header: &Header, payload_len: usize) -> Bth {
    let [_, psn @ ..] = header.psn.to_be_bytes();
    Bth {
        opcode: OPCODE_UD_SEND_ONLY,
        flags_pad_version: (pad_bytes(payload_len) as u8) << 4,
        pkey: U16::new(header.pkey.value()),
        reserved: 0,
        destination_qpn: header.destination_qpn.to_bytes(),
        acknowledge: 0,
        psn,
    }
}

fn deth(header: &Header) -> Deth {
    Deth { qkey: U32::new(header.qkey.0), reserved: 0, source_qpn: header.source_qpn.to_bytes() }
}

const _: () = assert!(
    PACKET_BYTES_MAX >= LRH_BYTES + GRH_BYTES + TRANSPORT_BYTES + 4096 + ICRC_BYTES + VCRC_BYTES
);
