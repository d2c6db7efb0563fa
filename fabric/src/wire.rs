//! Headers on the wire (IBA 7.7, 9.2, 9.3.3).

use ipoib_rs::wire::GRH_BYTES;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// IPVer of a GRH (IBA 8.3).
pub(crate) const GRH_VERSION: u32 = 6;
/// NxtHdr of a GRH before a base transport header (IBA 8.3).
pub(crate) const GRH_NEXT_HEADER_IBA: u8 = 0x1B;
/// The length of an ICRC.
pub(crate) const ICRC_BYTES: usize = 4;
/// The length of a VCRC.
pub(crate) const VCRC_BYTES: usize = 2;

/// UD SEND only (IBA 9.2.1, table 38).
pub(crate) const OPCODE_UD_SEND_ONLY: u8 = 0x64;
/// RC SEND first.
pub(crate) const OPCODE_RC_SEND_FIRST: u8 = 0x00;
/// RC SEND middle.
pub(crate) const OPCODE_RC_SEND_MIDDLE: u8 = 0x01;
/// RC SEND last.
pub(crate) const OPCODE_RC_SEND_LAST: u8 = 0x02;
/// RC SEND only.
pub(crate) const OPCODE_RC_SEND_ONLY: u8 = 0x04;
/// RC acknowledge.
pub(crate) const OPCODE_RC_ACKNOWLEDGE: u8 = 0x11;

/// The acknowledge request bit of a BTH.
pub(crate) const ACKNOWLEDGE_REQUEST: u8 = 1 << 7;
/// An acknowledgement whose credit count means nothing (IBA 9.7.7.2.4).
pub(crate) const AETH_ACK: u8 = 0x1F;
/// An RNR NAK; its low bits are a timer.
pub(crate) const AETH_RNR_NAK: u8 = 0b001 << 5;
/// A NAK; its low bits are a code.
pub(crate) const AETH_NAK: u8 = 0b011 << 5;

/// A local route header (IBA 7.7).
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Lrh {
    /// Virtual lane (4 bits), link version (4 bits, 0).
    pub vl_version: u8,
    /// Service level (4 bits), reserved (2 bits), link next header (2 bits).
    pub sl_next_header: u8,
    /// Destination LID.
    pub destination_lid: U16,
    /// Reserved (5 bits), packet length in words of 4 bytes from here to the VCRC (11 bits).
    pub length_words: U16,
    /// Source LID.
    pub source_lid: U16,
}

/// Link next header: an IBA transport header without GRH.
pub(crate) const LNH_LOCAL: u8 = 0b10;
/// Link next header: a GRH.
pub(crate) const LNH_GLOBAL: u8 = 0b11;

/// A base transport header (IBA 9.2).
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Bth {
    /// What the packet is.
    pub opcode: u8,
    /// Solicited event (1 bit), migration state (1 bit), pad bytes (2 bits), version (4 bits, 0).
    pub flags_pad_version: u8,
    /// The partition.
    pub pkey: U16,
    /// Reserved, and out of the ICRC: switches and routers may write it.
    pub reserved: u8,
    /// The destination queue pair.
    pub destination_qpn: [u8; 3],
    /// Acknowledge request (1 bit), reserved (7 bits).
    pub acknowledge: u8,
    /// The packet sequence number.
    pub psn: [u8; 3],
}

/// A datagram extended transport header (IBA 9.3.3).
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Deth {
    /// The queue key.
    pub qkey: U32,
    /// Reserved.
    pub reserved: u8,
    /// The sender's queue pair.
    pub source_qpn: [u8; 3],
}

/// An acknowledge extended transport header (IBA 9.3.5).
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Aeth {
    /// What it says.
    pub syndrome: u8,
    /// The message sequence number.
    pub msn: [u8; 3],
}

pub(crate) const LRH_BYTES: usize = size_of::<Lrh>();

const _: () = assert!(size_of::<Lrh>() == 8);
const _: () = assert!(size_of::<Bth>() == 12);
const _: () = assert!(size_of::<Deth>() == 8);
const _: () = assert!(size_of::<Aeth>() == 4);

/// Bytes after a payload to the next multiple of 4 (IBA 9.2.3, PadCnt).
pub(crate) const fn pad_bytes(payload_len: usize) -> usize {
    payload_len.wrapping_neg() % 4
}

/// PayLen of a GRH: from behind the GRH to the VCRC (IBA 8.3). `transport_len` is that of the BTH
/// and what extends it.
pub(crate) const fn grh_payload_bytes(transport_len: usize, payload_len: usize) -> u16 {
    (transport_len + payload_len + pad_bytes(payload_len) + ICRC_BYTES) as u16
}

/// The length of a whole packet, CRCs included.
pub(crate) const fn packet_bytes(has_grh: bool, transport_len: usize, payload_len: usize) -> usize {
    let grh = if has_grh { GRH_BYTES } else { 0 };
    LRH_BYTES + grh + grh_payload_bytes(transport_len, payload_len) as usize + VCRC_BYTES
}
