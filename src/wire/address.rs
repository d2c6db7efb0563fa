//! The 20-byte link-layer address (RFC 4391 9.1.1).

use core::fmt;

use bitflags::bitflags;
use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ib::{Gid, Mgid, Qpn};

/// The length of a link-layer address.
pub const LINK_ADDRESS_BYTES: usize = 20;

bitflags! {
    /// The first byte of the address. RFC 4391 9.1.1: "Reserved Flags ... MUST be set to zero on
    /// send and ignored on receive unless specified differently in a future document"; RFC 4755
    /// 3.1 did.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct AddressFlags: u8 {
        /// The interface accepts reliable connections.
        const RC = 0x80;
        /// The interface accepts unreliable connections.
        const UC = 0x40;
    }
}

/// Flags, queue pair number and GID, as they stand in ARP and neighbour discovery.
///
/// All 20 bytes are the identity of a neighbour: an address that differs anywhere is another one.
#[derive(
    Clone,
    Copy,
    Eq,
    FromBytes,
    Hash,
    Immutable,
    IntoBytes,
    KnownLayout,
    Ord,
    PartialEq,
    PartialOrd,
    Unaligned,
)]
#[repr(C)]
pub struct LinkAddress {
    flags: u8,
    qpn: [u8; 3],
    gid: Gid,
}

const_assert_eq!(size_of::<LinkAddress>(), LINK_ADDRESS_BYTES);

impl LinkAddress {
    /// The address of an interface.
    pub const fn new(flags: AddressFlags, qpn: Qpn, gid: Gid) -> Self {
        Self { flags: flags.bits(), qpn: qpn.to_bytes(), gid }
    }

    /// The address of a multicast group: the multicast queue pair and the MGID (RFC 4391 9.1.1).
    pub const fn multicast(mgid: Mgid) -> Self {
        Self::new(AddressFlags::empty(), Qpn::MULTICAST, mgid.gid())
    }

    /// From bytes of exactly the right length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok()
    }

    /// The flags that are known; unknown ones are "ignored on receive" but stay part of the
    /// identity.
    pub const fn flags(&self) -> AddressFlags {
        AddressFlags::from_bits_truncate(self.flags)
    }

    /// The queue pair number.
    pub const fn qpn(&self) -> Qpn {
        Qpn::from_bytes(self.qpn)
    }

    /// The GID.
    pub const fn gid(&self) -> Gid {
        self.gid
    }

    /// The MGID if this is the address of a multicast group.
    pub const fn mgid(&self) -> Option<Mgid> {
        Mgid::new(self.gid)
    }
}

impl fmt::Display for LinkAddress {
    /// Colon-separated, as ifconfig and ip print it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, byte) in self.as_bytes().iter().enumerate() {
            if position > 0 {
                f.write_str(":")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkAddress({self})")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;
    use std::string::ToString;

    use super::*;
    use crate::wire::testing::config;

    fn address() -> LinkAddress {
        let qpn = Qpn::new(0x48).expect("24 bits");
        let gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x0002_C903_0001_0203);
        LinkAddress::new(AddressFlags::RC, qpn, gid)
    }

    #[test]
    fn address_prints_as_ifconfig_prints_it() {
        assert_eq!(
            address().to_string(),
            "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:01:02:03"
        );
    }

    #[test]
    fn only_20_bytes_are_an_address() {
        let bytes = [1; 64];
        for length in 0..=bytes.len() {
            let parsed = LinkAddress::from_bytes(&bytes[..length]);
            assert_eq!(parsed.is_some(), length == LINK_ADDRESS_BYTES, "{length}");
        }
    }

    #[test]
    fn reserved_flags_are_zero_on_send_and_ignored_on_receive_but_identify() {
        let mut bytes = [0; LINK_ADDRESS_BYTES];
        for flags in 0..=u8::MAX {
            bytes[0] = flags;
            let parsed = LinkAddress::from_bytes(&bytes).expect("20 bytes");
            assert_eq!(parsed.flags().bits(), flags & 0xC0);
            assert_eq!(parsed.as_bytes(), bytes, "the identity is all 20 bytes");
            let sent = LinkAddress::new(parsed.flags(), parsed.qpn(), parsed.gid());
            assert_eq!(sent == parsed, flags & 0x3F == 0);
        }
    }

    #[test]
    fn multicast_address_is_that_of_the_multicast_queue_pair() {
        let bits = 0x12_401B_FFFF_u128 << 80 | 1;
        let mgid = Mgid::from_low_bits(bits);
        let multicast = LinkAddress::multicast(mgid);
        assert_eq!(multicast.as_bytes()[..4], [0x00, 0xFF, 0xFF, 0xFF]);
        assert_eq!(multicast.mgid(), Some(mgid));
        assert_eq!(address().mgid(), None);
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn bytes_survive_the_round_trip(bytes in any::<[u8; LINK_ADDRESS_BYTES]>()) {
            let parsed = LinkAddress::from_bytes(&bytes).expect("20 bytes");
            prop_assert_eq!(parsed.as_bytes(), bytes);
            let rebuilt = LinkAddress::new(parsed.flags(), parsed.qpn(), parsed.gid());
            prop_assert_eq!(&rebuilt.as_bytes()[1..], &bytes[1..]);
            prop_assert_eq!(parsed.mgid().is_some(), bytes[4] == 0xFF);
        }

        #[test]
        fn a_difference_anywhere_is_another_neighbour(
            byte in 0..LINK_ADDRESS_BYTES,
            bit in 0_u32..8,
        ) {
            let mut other = address();
            other.as_mut_bytes()[byte] ^= 1_u8 << bit;
            prop_assert_ne!(other, address());
        }
    }
}
