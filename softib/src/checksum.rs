//! What an adapter does for checksums of IPv4, TCP and UDP in datagrams of IPoIB, as far as it says
//! that it does.

use core::ops::Range;

use ipoib_rs::wire::internet_checksum;

const ENCAPSULATION_BYTES: usize = 4;
const IPV4: [u8; 2] = [0x08, 0x00];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Of its header.
const IP_CHECKSUM: Range<usize> = 10..12;

/// Where the parts of a datagram stand.
struct Parts {
    header: Range<usize>,
    /// What TCP or UDP add up, and where they put the sum.
    transport: Option<(Range<usize>, Range<usize>)>,
}

/// Computes the checksums of a datagram that begins with its encapsulation header. That of the
/// pseudo header stands in the place of TCP's or UDP's. What is not IPv4 stays as it is.
pub(crate) fn fill(datagram: &mut [u8]) {
    let Some(Parts { header, transport }) = parts(datagram) else { return };
    if let Some((segment, place)) = transport {
        let sum = match internet_checksum(datagram.get(segment).unwrap_or_default()) {
            // RFC 768: all zeros say that there is none.
            0 => 0xFFFF,
            sum => sum,
        };
        put(datagram, place, sum);
    }
    let place = header.start + IP_CHECKSUM.start..header.start + IP_CHECKSUM.end;
    put(datagram, place.clone(), 0);
    let sum = internet_checksum(datagram.get(header).unwrap_or_default());
    put(datagram, place, sum);
}

fn put(datagram: &mut [u8], place: Range<usize>, sum: u16) {
    let place = datagram.get_mut(place).unwrap_or_default();
    for (to, from) in place.iter_mut().zip(sum.to_be_bytes()) {
        *to = from;
    }
}

/// Whether a datagram that begins with its encapsulation header is IPv4 with TCP or UDP, and the
/// checksums of both are right.
pub(crate) fn is_right(datagram: &[u8]) -> bool {
    let Some(Parts { header, transport: Some((segment, _)) }) = parts(datagram) else {
        return false;
    };
    let (Some(header), Some(segment)) = (datagram.get(header), datagram.get(segment)) else {
        return false;
    };
    internet_checksum(header) == 0 && sum_with_pseudo_header(header, segment) == Some(0)
}

fn parts(datagram: &[u8]) -> Option<Parts> {
    let packet = datagram.get(ENCAPSULATION_BYTES..)?;
    let &[version_and_length, ..] = packet else { return None };
    let header_bytes = usize::from(version_and_length & 0x0F) * 4;
    let header = packet.get(..header_bytes)?.first_chunk::<20>()?;
    if !datagram.starts_with(&IPV4) || version_and_length >> 4 != 4 {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    packet.get(header_bytes..length)?;
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3FFF != 0;
    let from = ENCAPSULATION_BYTES + header_bytes;
    let place = match header[9] {
        TCP => Some(from + 16..from + 18),
        UDP => Some(from + 6..from + 8),
        // wildcard: numbers of protocols, not an enum.
        _ => None,
    };
    let segment = from..ENCAPSULATION_BYTES + length;
    let transport = place
        .filter(|place| !is_fragment && place.end <= segment.end)
        .map(|place| (segment, place));
    Some(Parts { header: ENCAPSULATION_BYTES..from, transport })
}

/// RFC 793 3.1, RFC 768: source, destination, protocol and length come first.
fn sum_with_pseudo_header(header: &[u8], segment: &[u8]) -> Option<u16> {
    let header = header.first_chunk::<20>()?;
    let mut pseudo = [0; 12];
    pseudo[..8].copy_from_slice(&header[12..20]);
    pseudo[9] = header[9];
    // CAST: within a packet of at most 65535 bytes.
    pseudo[10..].copy_from_slice(&(segment.len() as u16).to_be_bytes());
    let sums = [!internet_checksum(&pseudo), !internet_checksum(segment)];
    let sum = sums.iter().map(|&sum| u32::from(sum)).sum::<u32>();
    // CAST: the carry is added once, and there is no other.
    Some(!((sum & 0xFFFF) + (sum >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the sum of the pseudo header in the place of UDP's.
    fn datagram(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let header_bytes = if protocol == TCP { 20 } else { 8 };
        let length = 20 + header_bytes + payload.len();
        let mut bytes = vec![0x08, 0, 0, 0, 0x45, 0];
        bytes.extend(u16::try_from(length).unwrap().to_be_bytes());
        bytes.extend([0, 1, 0, 0, 64, protocol, 0xAA, 0xAA, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.resize(bytes.len() + header_bytes, 0x11);
        bytes.extend(payload);
        let Some(Parts { header, transport: Some((segment, place)) }) = parts(&bytes) else {
            panic!("{bytes:?}");
        };
        bytes[place.clone()].fill(0);
        let empty = vec![0; segment.len()];
        let sum = !sum_with_pseudo_header(&bytes[header], &empty).unwrap();
        bytes[place].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    #[test]
    fn what_was_filled_in_is_right() {
        for protocol in [TCP, UDP] {
            for payload in [&b""[..], b"x", b"hello, world"] {
                let mut bytes = datagram(protocol, payload);
                assert!(!is_right(&bytes));
                fill(&mut bytes);
                assert!(is_right(&bytes), "{protocol} {payload:?}");
                for at in ENCAPSULATION_BYTES..bytes.len() {
                    bytes[at] ^= 0x40;
                    assert!(!is_right(&bytes), "{protocol} {payload:?} {at}");
                    bytes[at] ^= 0x40;
                }
            }
        }
    }

    #[test]
    fn what_is_no_ipv4_stays_as_it_is() {
        for bytes in [&[0x08, 0x06, 0, 0, 0x45, 0][..], &[0x08, 0, 0, 0, 0x45], b"", &[0x08]] {
            let mut filled = bytes.to_vec();
            fill(&mut filled);
            assert_eq!(filled, bytes);
            assert!(!is_right(bytes));
        }
        let mut longer_than_it_is = datagram(UDP, b"12");
        longer_than_it_is[6] = 1;
        let before = longer_than_it_is.clone();
        fill(&mut longer_than_it_is);
        assert_eq!(longer_than_it_is, before);
    }

    #[test]
    fn of_a_fragment_only_the_header_is_filled_in() {
        let mut bytes = datagram(UDP, b"12345678");
        bytes[ENCAPSULATION_BYTES + 6] = 0x20;
        let before = bytes.clone();
        fill(&mut bytes);
        assert_eq!(internet_checksum(&bytes[4..24]), 0);
        assert_eq!(bytes[24..], before[24..]);
        assert!(!is_right(&bytes));
    }
}
