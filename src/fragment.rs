//! Fragmentation of IPv4 packets (RFC 791 3.2).
//!
//! A packet that fits the interface may not fit a neighbour. Whoever may fragment it on the way is
//! the interface itself: no loss, no message to the sender.

use core::ops::Range;

use crate::wire::{FRAGMENT_UNIT_BYTES, IPV4_OPTIONS_BYTES_MAX, Ipv4Flags, Ipv4Header};

/// End of the option list (RFC 791 3.1).
const OPTION_END: u8 = 0;
/// An option of one byte that does nothing.
const OPTION_NOP: u8 = 1;
/// Set in the type of an option that goes into every fragment.
const OPTION_COPIED: u8 = 0x80;

/// The fragments of a packet, first to last. An iterator, so that each is posted before the next is
/// made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fragments {
    /// The header of the first piece, with all options.
    first: Ipv4Header,
    /// The header of the others, with the copied options only.
    later: Ipv4Header,
    /// What is left of the payload, as bytes of the original packet.
    rest: Range<usize>,
    mtu: usize,
}

/// A piece of a packet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fragment {
    header: Ipv4Header,
    payload: Range<usize>,
}

impl Fragment {
    /// The header, checksum included: at most [`crate::wire::IPV4_HEADER_BYTES_MAX`] bytes.
    pub fn header(&self) -> &[u8] {
        self.header.bytes()
    }

    /// The bytes of the original packet that follow the header.
    pub fn payload(&self) -> Range<usize> {
        self.payload.clone()
    }
}

impl Fragments {
    /// The fragments of the packet behind `header`, none above `mtu` bytes; DF is not looked at.
    ///
    /// `None` if `mtu` leaves no room for 8 bytes behind the header, or if an option runs beyond
    /// the options.
    pub fn new(header: &Ipv4Header, mtu: usize) -> Option<Self> {
        let (options, length) = copied_options(header)?;
        let fits = header.header_bytes().saturating_add(FRAGMENT_UNIT_BYTES) <= mtu;
        fits.then(|| Self {
            first: *header,
            later: header.with_options(options, length),
            rest: header.header_bytes()..header.total_bytes(),
            mtu,
        })
    }

    /// Whether the next piece is the first one.
    fn is_at_start(&self) -> bool {
        self.rest.start == self.first.header_bytes()
    }
}

impl Iterator for Fragments {
    type Item = Fragment;

    fn next(&mut self) -> Option<Fragment> {
        if self.rest.is_empty() {
            return None;
        }
        let header = if self.is_at_start() { self.first } else { self.later };
        let room = self.mtu.saturating_sub(header.header_bytes());
        let rest_bytes = self.rest.len();
        // RFC 791 3.2: the last piece takes what is left and the MF flag of the whole; the others
        // hold whole units of 8 bytes and set it.
        let (payload_bytes, flags) = if rest_bytes <= room {
            (rest_bytes, header.flags())
        } else {
            let whole_units = room & !(FRAGMENT_UNIT_BYTES - 1);
            (whole_units, header.flags() | Ipv4Flags::MORE_FRAGMENTS)
        };
        let start = self.rest.start;
        self.rest.start = start.saturating_add(payload_bytes);
        // "The fragment offset ... relative to the beginning of the original unfragmented
        // datagram": a fragment of a fragment adds to the offset that is there.
        let within = start.saturating_sub(self.first.header_bytes());
        let offset_bytes = header.offset_bytes().saturating_add(within);
        Some(Fragment {
            header: header.for_piece(offset_bytes, payload_bytes, flags),
            payload: start..self.rest.start,
        })
    }
}

/// The options that go into every fragment, and how many bytes they are.
fn copied_options(header: &Ipv4Header) -> Option<([u8; IPV4_OPTIONS_BYTES_MAX], usize)> {
    let mut copied = [0; IPV4_OPTIONS_BYTES_MAX];
    let mut length = 0;
    let mut rest = header.options();
    while let Some((&kind, behind)) = rest.split_first() {
        rest = match kind {
            OPTION_END => break,
            OPTION_NOP => behind,
            // wildcard: option types, not an enum.
            _ => {
                // The length counts type and length as well.
                let bytes = behind.first().copied().filter(|&bytes| bytes >= 2)?;
                let (option, after) = rest.split_at_checked(bytes.into())?;
                if kind & OPTION_COPIED != 0 {
                    let room = copied.get_mut(length..)?;
                    room.iter_mut().zip(option).for_each(|(to, from)| *to = *from);
                    length = length.saturating_add(option.len());
                }
                after
            }
        };
    }
    Some((copied, length))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;
    use crate::wire::internet_checksum;
    use crate::wire::testing::{TestPacket, config};

    /// A packet with the given flags and offset, options and payload.
    fn packet(flags_offset: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let header_bytes = 20 + options.len();
        let total = u16::try_from(header_bytes + payload.len()).expect("fits");
        let mut bytes = std::vec![0x40 | u8::try_from(header_bytes / 4).expect("fits"), 0xB8];
        bytes.extend(total.to_be_bytes());
        bytes.extend([0xBE, 0xEF]);
        bytes.extend(flags_offset.to_be_bytes());
        bytes.extend([63, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2]);
        bytes.extend(options);
        let checksum = internet_checksum(&bytes);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn header(bytes: &[u8]) -> Ipv4Header {
        Ipv4Header::read(&TestPacket(bytes.to_vec())).expect("a header")
    }

    fn fragments(bytes: &[u8], mtu: usize) -> Vec<Vec<u8>> {
        Fragments::new(&header(bytes), mtu)
            .expect("the MTU is large enough")
            .map(|piece| [piece.header(), &bytes[piece.payload()]].concat())
            .collect()
    }

    /// What a receiver makes of `pieces`, which are in order: the payload, and whether more
    /// follows.
    fn reassembled(pieces: &[Vec<u8>]) -> (Vec<u8>, bool) {
        let start = header(&pieces[0]).offset_bytes();
        let mut payload = Vec::new();
        let mut has_more = true;
        for piece in pieces {
            let header = header(piece);
            assert!(has_more, "nothing follows the last fragment");
            assert_eq!(header.offset_bytes(), start + payload.len());
            payload.extend(&piece[header.header_bytes()..]);
            has_more = header.has_more_fragments();
        }
        (payload, has_more)
    }

    #[test]
    fn packet_of_12380_bytes_becomes_7_fragments_of_a_2k_fabric() {
        let payload: Vec<u8> = (0..12360_u32).map(|byte| byte.to_le_bytes()[0]).collect();
        let pieces = fragments(&packet(0, &[], &payload), 2044);
        let lengths: Vec<usize> = pieces.iter().map(|piece| piece.len() - 20).collect();
        assert_eq!(lengths, [2024, 2024, 2024, 2024, 2024, 2024, 216]);
        let offsets: Vec<usize> =
            pieces.iter().map(|piece| header(piece).offset_bytes() / 8).collect();
        assert_eq!(offsets, [0, 253, 506, 759, 1012, 1265, 1518]);
        assert!(pieces.iter().all(|piece| piece[4..6] == [0xBE, 0xEF]));
        assert_eq!(reassembled(&pieces), (payload, false));
    }

    #[test]
    fn largest_datagram_fits_the_pending_queue_of_a_path() {
        let pieces = fragments(&packet(0, &[], &[0; 65515]), 2044);
        assert_eq!(pieces.len(), 33);
    }

    #[test]
    fn only_copied_options_go_into_later_fragments() {
        // Record route (7, not copied), NOP, stream id (136, copied), router alert (148, copied),
        // end of list.
        let options = [7, 3, 4, 1, 136, 4, 0xAA, 0xBB, 148, 4, 0, 0, 1, 130, 3, 9, 0, 0, 0, 0];
        let pieces = fragments(&packet(0, &options, &[0; 100]), 80);
        assert_eq!(header(&pieces[0]).bytes()[20..], options);
        let copied = [136, 4, 0xAA, 0xBB, 148, 4, 0, 0, 130, 3, 9, 0];
        for piece in &pieces[1..] {
            assert_eq!(header(piece).bytes()[20..], copied);
        }
        // 40 bytes of payload behind 40 of header, then 48 behind 32, then the rest.
        let lengths: Vec<usize> = pieces.iter().map(Vec::len).collect();
        assert_eq!(lengths, [80, 80, 44]);
    }

    #[test]
    fn options_that_run_beyond_the_header_are_refused() {
        for options in [[0x94, 5, 0, 0], [0x94, 1, 0, 0], [1, 1, 1, 0x94], [7, 0, 0, 0]] {
            let bytes = packet(0, &options, &[0; 64]);
            assert_eq!(Fragments::new(&header(&bytes), 48), None, "{options:?}");
        }
    }

    #[test]
    fn mtu_without_room_for_8_bytes_is_refused() {
        let bytes = packet(0, &[1; 40], &[0; 64]);
        assert_eq!(Fragments::new(&header(&bytes), 67), None);
        assert_eq!(fragments(&bytes, 68).len(), 3);
    }

    #[test]
    fn packet_that_fits_is_its_own_only_fragment() {
        let bytes = packet(0, &[], &[7; 100]);
        assert_eq!(fragments(&bytes, 120), [bytes]);
    }

    /// Well-formed options of any kind, padded to whole words.
    fn options() -> impl Strategy<Value = Vec<u8>> {
        let option = prop_oneof![
            Just(std::vec![OPTION_NOP]),
            (2_u8..=255, vec(any::<u8>(), 0..10)).prop_map(|(kind, data)| {
                let length = u8::try_from(data.len() + 2).expect("short");
                [std::vec![kind, length], data].concat()
            }),
        ];
        vec(option, 0..6).prop_map(|options| {
            let mut bytes = Vec::new();
            for option in options {
                if bytes.len() + option.len() <= IPV4_OPTIONS_BYTES_MAX {
                    bytes.extend(option);
                }
            }
            bytes.resize(bytes.len().next_multiple_of(4), OPTION_END);
            bytes
        })
    }

    fn any_packet() -> impl Strategy<Value = Vec<u8>> {
        let flags = prop::sample::select(std::vec![0, 0x2000, 0x8000]);
        let offset = prop_oneof![Just(0), 0_u16..6000];
        (flags, offset, options(), vec(any::<u8>(), 8..9000)).prop_map(
            |(flags, offset, options, mut payload)| {
                if flags & 0x2000 != 0 {
                    payload.truncate(payload.len() / 8 * 8);
                }
                packet(flags | offset, &options, &payload)
            },
        )
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn fragments_reassemble_to_the_original(bytes in any_packet(), mtu in 68_usize..3000) {
            let original = header(&bytes);
            let pieces = fragments(&bytes, mtu);
            let payload = &bytes[original.header_bytes()..];
            let expected = (payload.to_vec(), original.has_more_fragments());
            prop_assert_eq!(reassembled(&pieces), expected);
            let first = header(&pieces[0]);
            prop_assert_eq!(first.offset_bytes(), original.offset_bytes());
            prop_assert_eq!(first.options(), original.options());
            for piece in &pieces {
                let header = header(piece);
                prop_assert!(piece.len() <= mtu);
                prop_assert_eq!(header.total_bytes(), piece.len());
                prop_assert_eq!(internet_checksum(header.bytes()), 0);
                prop_assert_eq!(header.bytes()[6] & 0x80, bytes[6] & 0x80);
                // Service, identification, time to live, protocol and addresses stay.
                for kept in [1..2, 4..6, 8..10, 12..20] {
                    prop_assert_eq!(&piece[kept.clone()], &bytes[kept]);
                }
            }
        }

        #[test]
        fn fragments_of_fragments_reassemble_too(
            bytes in any_packet(),
            mtu in 1000_usize..3000,
            smaller_mtu in 68_usize..1000,
        ) {
            let pieces: Vec<Vec<u8>> = fragments(&bytes, mtu)
                .iter()
                .flat_map(|piece| fragments(piece, smaller_mtu))
                .collect();
            let original = header(&bytes);
            let payload = bytes[original.header_bytes()..].to_vec();
            prop_assert_eq!(reassembled(&pieces), (payload, original.has_more_fragments()));
            prop_assert!(pieces.iter().all(|piece| piece.len() <= smaller_mtu));
        }

        #[test]
        fn any_options_are_refused_or_fragmented(
            options in prop::array::uniform12(any::<u8>()),
            mtu in 40_usize..200,
        ) {
            let bytes = packet(0, &options, &[0x11; 300]);
            if let Some(pieces) = Fragments::new(&header(&bytes), mtu) {
                let payload_bytes: usize = pieces.map(|piece| piece.payload().len()).sum();
                prop_assert_eq!(payload_bytes, 300);
            }
        }
    }
}
