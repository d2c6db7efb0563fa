//! Packets that hosts send.

use std::net::{IpAddr, Ipv4Addr};

use fabric::packet::{Packet, Pool};
use zerocopy::IntoBytes;

use crate::host::wire::{
    Echo, EchoKind, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, Ipv4Fields, Ipv4Header, Ipv6Header,
    Protocol,
};

/// An echo request of `bytes` bytes altogether, or as long as its headers if that is more. `None`
/// if the pool is empty or the packet cannot be.
pub fn ping(
    pool: &mut Pool,
    (source, destination): (IpAddr, IpAddr),
    bytes: usize,
    (identifier, sequence): (u16, u16),
) -> Option<Packet> {
    let mut packet = pool.allocate(bytes.max(Echo::header_bytes(source)))?;
    packet.bytes_mut().fill(sequence as u8);
    let echo = Echo { kind: EchoKind::Request, identifier, sequence };
    if echo.write(source, destination, packet.bytes_mut()) {
        Some(packet)
    } else {
        pool.free(packet);
        None
    }
}

/// A UDP datagram of `bytes` bytes altogether, whatever the MTU is. DF is set if
/// `dont_fragment`; IPv6 has no such bit.
pub fn datagram(
    pool: &mut Pool,
    (source, destination): (IpAddr, IpAddr),
    bytes: usize,
    dont_fragment: bool,
) -> Option<Packet> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let fields = Ipv4Fields {
                dont_fragment,
                ..Ipv4Fields::whole(source, destination, Protocol::UDP)
            };
            let header = Ipv4Header::new(fields, bytes.checked_sub(IPV4_HEADER_BYTES)?)?;
            packet(pool, header.as_bytes(), bytes)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let payload_bytes = bytes.checked_sub(IPV6_HEADER_BYTES)?;
            let header = Ipv6Header::new(source, destination, Protocol::UDP, payload_bytes)?;
            packet(pool, header.as_bytes(), bytes)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}

/// Fragment number `index` of a datagram with `datagram_bytes` bytes of payload, cut as a host cuts
/// it for `mtu`; `None` behind the last, or if the pool is empty.
pub fn fragment(
    pool: &mut Pool,
    (source, destination): (Ipv4Addr, Ipv4Addr),
    identification: u16,
    datagram_bytes: usize,
    (index, mtu): (usize, usize),
) -> Option<Packet> {
    // RFC 791 3.2: fragments but the last carry a multiple of 8 bytes.
    let slice_bytes = mtu.checked_sub(IPV4_HEADER_BYTES)? / 8 * 8;
    let offset_bytes = index * slice_bytes;
    let rest_bytes = datagram_bytes.checked_sub(offset_bytes)?;
    if rest_bytes == 0 {
        return None;
    }
    let payload_bytes = rest_bytes.min(slice_bytes);
    let fields = Ipv4Fields {
        identification,
        more_fragments: payload_bytes < rest_bytes,
        offset_bytes: u16::try_from(offset_bytes).ok()?,
        ..Ipv4Fields::whole(source, destination, Protocol::UDP)
    };
    let header = Ipv4Header::new(fields, payload_bytes)?;
    packet(pool, header.as_bytes(), IPV4_HEADER_BYTES + payload_bytes)
}

fn packet(pool: &mut Pool, header: &[u8], bytes: usize) -> Option<Packet> {
    let mut packet = pool.allocate(bytes)?;
    let (head, payload) = packet.bytes_mut().split_at_mut(header.len());
    head.copy_from_slice(header);
    payload.fill(0xA5);
    Some(packet)
}

#[cfg(test)]
mod tests {
    use fabric::packet::PoolLimits;
    use ipoib_rs::packet::PacketBuf;

    use super::*;
    use crate::host::wire::IpHeader;

    fn pool() -> Pool {
        Pool::new(PoolLimits::DEFAULT).unwrap()
    }

    #[test]
    fn largest_datagram_is_cut_into_33_fragments() {
        let mut pool = pool();
        let pair = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut sizes = Vec::new();
        while let Some(packet) = fragment(&mut pool, pair, 7, 65_515, (sizes.len(), 2044)) {
            assert!(IpHeader::parse(packet.bytes()).unwrap().is_fragment);
            sizes.push(packet.len());
            pool.free(packet);
        }
        assert_eq!(sizes.len(), 33);
        assert!(sizes.iter().all(|&bytes| bytes <= 2044));
        assert_eq!(sizes.iter().sum::<usize>() - 33 * 20, 65_515);
    }

    #[test]
    fn datagrams_of_both_versions_have_the_length_that_was_asked_for() {
        let mut pool = pool();
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let pair = (source.parse().unwrap(), destination.parse().unwrap());
            let packet = datagram(&mut pool, pair, 3_000, true).unwrap();
            assert_eq!(IpHeader::parse(packet.bytes()).unwrap().total_bytes, 3_000);
            pool.free(packet);
        }
        assert_eq!(pool.outstanding(), 0);
    }
}
