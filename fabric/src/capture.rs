//! A packet in transit as the bytes that would be on the wire: LRH, GRH, BTH and what extends it,
//! payload, padding, ICRC, VCRC (IBA 5.2); and as a record of a capture file.
//!
//! Capture files have a link-layer header type for packets that begin with an LRH, 247, but
//! Wireshark up to 4.0 cannot read it. What it reads is the Extensible Record Format, which puts 16
//! bytes in front of the packet.

use ipoib_rs::ib::{IbMtu, Qkey};
use ipoib_rs::time::Instant;
use ipoib_rs::wire::Grh;
use zerocopy::byteorder::little_endian;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::crc;
use crate::transit::{Header, Syndrome, Transit, Transport};
use crate::wire::{
    ACKNOWLEDGE_REQUEST, AETH_ACK, AETH_NAK, AETH_RNR_NAK, Aeth, Bth, Deth, ICRC_BYTES, LNH_GLOBAL,
    LNH_LOCAL, Lrh, OPCODE_RC_ACKNOWLEDGE, OPCODE_RC_SEND_FIRST, OPCODE_RC_SEND_LAST,
    OPCODE_RC_SEND_MIDDLE, OPCODE_RC_SEND_ONLY, OPCODE_UD_SEND_ONLY, VCRC_BYTES, grh_payload_bytes,
    packet_bytes, pad_bytes,
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

/// Writes one of a transit's packets as a record of a capture file to the front of `out`: packet
/// `number`, from 0, of [`Transit::packet_count`]. Its length, or `None` if there is no such packet
/// or `out` is shorter than that; [`RECORD_BYTES_MAX`] bytes are always enough. The epoch of `now`
/// is taken to be that of Unix.
pub fn encode_record(
    transit: &Transit,
    number: u32,
    now: Instant,
    out: &mut [u8],
) -> Option<usize> {
    let (header, packet) = out.split_at_mut_checked(size_of::<ErfHeader>())?;
    let packet_len = encode(transit, number, packet)?;
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

/// Writes one of a transit's packets to the front of `out`: packet `number`, from 0, of
/// [`Transit::packet_count`]. Its length, or `None` if there is no such packet or `out` is shorter
/// than that; [`PACKET_BYTES_MAX`] bytes are always enough.
pub fn encode(transit: &Transit, number: u32, out: &mut [u8]) -> Option<usize> {
    let Transit { header, .. } = transit;
    let payload = transit.packet_payload(number)?;
    let transport_len = header.transport_len();
    let len = packet_bytes(header.grh.is_some(), transport_len, payload.len());
    let packet = out.get_mut(..len)?;
    let mut rest = &mut *packet;
    put(&mut rest, lrh(header, len).as_bytes());
    if let Some(grh) = header.grh {
        let grh =
            Grh { payload_bytes: U16::new(grh_payload_bytes(transport_len, payload.len())), ..grh };
        put(&mut rest, grh.as_bytes());
    }
    put(&mut rest, bth(transit, number, payload.len()).as_bytes());
    match header.transport {
        Transport::Datagram { qkey } => put(&mut rest, deth(header, qkey).as_bytes()),
        Transport::Message { .. } => {}
        Transport::Response { syndrome, msn } => put(&mut rest, aeth(syndrome, msn).as_bytes()),
    }
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

fn bth(transit: &Transit, number: u32, payload_len: usize) -> Bth {
    let header = &transit.header;
    let last = transit.packet_count() - 1;
    let (opcode, acknowledge) = match header.transport {
        Transport::Datagram { .. } => (OPCODE_UD_SEND_ONLY, 0),
        Transport::Response { .. } => (OPCODE_RC_ACKNOWLEDGE, 0),
        Transport::Message { .. } if last == 0 => (OPCODE_RC_SEND_ONLY, ACKNOWLEDGE_REQUEST),
        Transport::Message { .. } if number == 0 => (OPCODE_RC_SEND_FIRST, 0),
        // One acknowledgement is enough for a message (IBA 9.7.5.1).
        Transport::Message { .. } if number == last => (OPCODE_RC_SEND_LAST, ACKNOWLEDGE_REQUEST),
        Transport::Message { .. } => (OPCODE_RC_SEND_MIDDLE, 0),
    };
    let [_, psn @ ..] = header.psn.plus(number).value().to_be_bytes();
    Bth {
        opcode,
        flags_pad_version: (pad_bytes(payload_len) as u8) << 4,
        pkey: U16::new(header.pkey.value()),
        reserved: 0,
        destination_qpn: header.destination_qpn.to_bytes(),
        acknowledge,
        psn,
    }
}

fn deth(header: &Header, qkey: Qkey) -> Deth {
    Deth { qkey: U32::new(qkey.0), reserved: 0, source_qpn: header.source_qpn.to_bytes() }
}

fn aeth(syndrome: Syndrome, msn: u32) -> Aeth {
    let [_, msn @ ..] = msn.to_be_bytes();
    let syndrome = match syndrome {
        Syndrome::Ack => AETH_ACK,
        Syndrome::RnrNak(timer) => AETH_RNR_NAK | timer.code(),
        Syndrome::Nak(code) => AETH_NAK | code as u8,
    };
    Aeth { syndrome, msn }
}

const _: () = assert!(
    PACKET_BYTES_MAX
        >= packet_bytes(true, size_of::<Bth>() + size_of::<Deth>(), IbMtu::Mtu4096.bytes())
);
