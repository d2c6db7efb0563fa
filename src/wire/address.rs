//! The 20-byte link-layer address (RFC 4391 9.1.1).

use core::fmt;

use bitflags::bitflags;
use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ib::{Gid, Mgid, Qpn};

/// The length of a link-layer address.
pub const LINK_ADDRESS_BYTES: usize = 20;

bitflags! {
    /// The first byte of the address. RFC 4391 9.1.1: "Reserved Flags ... MUST be set to zero on send
    /// and ignored on receive unless specified differently in a future document"; RFC 4755 3.1 did.
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
        Self {
            flags: flags.bits(),
            qpn: qpn.to_bytes(),
            gid,
        }
    }

    /// The address of a multicast group: the multicast queue pair and the MGID (RFC 4391 9.1.1).
    pub const fn multicast(mgid: Mgid) -> Self {
        Self::new(AddressFlags::empty(), Qpn::MULTICAST, mgid.gid())
    }

    /// From bytes of exactly the right length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok()
    }

    /// The flags that are known; unknown ones are "ignored on receive" but stay part of the identity.
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
