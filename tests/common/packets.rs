//! Packets that the tests send and receive.

use ipoib_rs::ib::{Gid, Mgid};
use ipoib_rs::wire::{EtherType, LinkAddress};
use zerocopy::IntoBytes;

/// The flag "don't fragment" in the byte where it stands.
pub const DF: u8 = 0x40;

/// A UDP packet of `len` bytes from 192.0.2.1 to 192.0.2.2.
pub fn ipv4(len: u16, flags: u8) -> Vec<u8> {
    ipv4_to([192, 0, 2, 2], len, flags)
}

/// A UDP packet of `len` bytes from 192.0.2.1.
pub fn ipv4_to(destination: [u8; 4], len: u16, flags: u8) -> Vec<u8> {
    let [high, low] = len.to_be_bytes();
    let mut bytes = vec![0x45, 0, high, low, 0xBE, 0xEF, flags, 0, 64, 17, 0, 0, 192, 0, 2, 1];
    bytes.extend(destination);
    bytes.resize(len.into(), 0x5A);
    bytes
}

/// A UDP packet of `len` bytes from 2001:db8::1 to 2001:db8::2.
pub fn ipv6(len: u16) -> Vec<u8> {
    let [high, low] = (len - 40).to_be_bytes();
    let mut bytes = vec![0x60, 0, 0, 0, high, low, 17, 64];
    for last in [1, 2] {
        bytes.extend([0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    bytes.resize(len.into(), 0x5A);
    bytes
}

/// A received frame: 40 bytes with a GRH to `destination`, or zeros; encapsulation; payload.
pub fn frame(destination: Option<Gid>, protocol: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 40];
    if let Some(destination) = destination {
        bytes[0] = 0x60;
        bytes[6] = 0x1B;
        bytes[8..24].copy_from_slice(&super::gid(1).0);
        bytes[24..40].copy_from_slice(&destination.0);
    }
    bytes.extend(protocol.0.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

/// The link-layer address of a group, as it stands in the stack's list.
pub fn group_bytes(mgid: Mgid) -> Vec<u8> {
    LinkAddress::multicast(mgid).as_bytes().to_vec()
}
