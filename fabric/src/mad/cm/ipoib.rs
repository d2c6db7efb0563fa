//! What two interfaces tell each other in the private data of REQ and REP (RFC 4755 6).

use ipoib_rs::ib::Qpn;
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The length of the private data that means something.
pub const IPOIB_PRIVATE_BYTES: usize = 8;

/// The private data of an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IpoibPrivateData {
    /// The datagram queue pair.
    pub qpn: Qpn,
    /// The largest message that the interface receives on the connection, encapsulation header
    /// included, in bytes.
    pub receive_mtu: u32,
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Wire {
    /// Reserved (8 bits), QPN (24).
    qpn: U32,
    receive_mtu: U32,
}

const_assert_eq!(size_of::<Wire>(), IPOIB_PRIVATE_BYTES);

impl IpoibPrivateData {
    /// The private data of a message, zero after the two fields.
    pub fn to_private_data<const LEN: usize>(self) -> [u8; LEN] {
        const { assert!(LEN >= IPOIB_PRIVATE_BYTES) };
        let wire =
            Wire { qpn: U32::new(self.qpn.value()), receive_mtu: U32::new(self.receive_mtu) };
        let mut bytes = [0; LEN];
        bytes[..IPOIB_PRIVATE_BYTES].copy_from_slice(wire.as_bytes());
        bytes
    }

    /// From the private data of a message. RFC 4755 6 reserves the 8 bits in front of the QPN: they
    /// are not looked at.
    pub fn from_private_data<const LEN: usize>(bytes: &[u8; LEN]) -> Self {
        const { assert!(LEN >= IPOIB_PRIVATE_BYTES) };
        let [_, a, b, c, mtu @ ..] = bytes.first_chunk().copied().unwrap_or([0; 8]);
        Self { qpn: Qpn::from_bytes([a, b, c]), receive_mtu: u32::from_be_bytes(mtu) }
    }
}
