//! The numbers of InfiniBand as types.
//!
//! Names and ranges are those of the InfiniBand Architecture Specification, volume 1 (below: IBA).
//! A value that exists is valid: constructors return an option, nothing is truncated silently.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A unicast local identifier, `0x0001..=0xBFFF` (IBA 4.1.3).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Lid(u16);

impl Lid {
    /// The largest unicast LID.
    pub const MAX: Self = Self(0xBFFF);

    /// `None` for the reserved LID 0 and for multicast and permissive LIDs.
    pub const fn new(value: u16) -> Option<Self> {
        if value >= 1 && value <= Self::MAX.0 { Some(Self(value)) } else { None }
    }

    /// The 16 bits of the identifier.
    pub const fn value(self) -> u16 {
        self.0
    }
}

/// A multicast local identifier, `0xC000..=0xFFFE` (IBA 4.1.3).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Mlid(u16);

impl Mlid {
    /// The smallest multicast LID.
    pub const MIN: Self = Self(0xC000);
    /// The largest multicast LID; `0xFFFF` is the permissive LID.
    pub const MAX: Self = Self(0xFFFE);

    /// `None` for anything outside the multicast range.
    pub const fn new(value: u16) -> Option<Self> {
        if value >= Self::MIN.0 && value <= Self::MAX.0 { Some(Self(value)) } else { None }
    }

    /// The 16 bits of the identifier.
    pub const fn value(self) -> u16 {
        self.0
    }
}

/// A queue pair number: 24 bits (IBA 3.5.10).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services interface, QP1.
    pub const GSI: Self = Self(1);
    /// The destination of every multicast packet (IBA 10.5.1).
    pub const MULTICAST: Self = Self(0x00FF_FFFF);

    /// `None` above 24 bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= Self::MULTICAST.0 { Some(Self(value)) } else { None }
    }

    /// From three bytes, big endian.
    pub const fn from_bytes(bytes: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }

    /// To three bytes, big endian.
    pub const fn to_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }

    /// The 24 bits of the number.
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// A packet sequence number (IBA 9.7.1): 24 bits, and after the largest comes 0.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Psn(u32);

impl Psn {
    /// The largest.
    pub const MAX: Self = Self(0x00FF_FFFF);
    /// Half of all numbers: no more packets are unacknowledged, so that old and new can be told
    /// apart.
    pub const WINDOW: u32 = 1 << 23;

    /// `None` above 24 bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= Self::MAX.0 { Some(Self(value)) } else { None }
    }

    /// The low 24 bits of `bits`, which may be anything: for drawing one at random.
    pub const fn from_random(bits: u64) -> Self {
        // CAST: the mask leaves 24 bits.
        Self(bits as u32 & Self::MAX.0)
    }

    /// The 24 bits of the number.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & Self::MAX.0)
    }

    /// The number before this one.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1) & Self::MAX.0)
    }

    /// The packets from `earlier` to this one. What lies before `earlier` comes out as
    /// [`Self::WINDOW`] or more.
    pub const fn distance_from(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MAX.0
    }
}

/// A service id (IBA 12.7.3).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service of the interface with a datagram queue pair (RFC 4755 3.5): the IETF's prefix
    /// and the number of the queue pair, without the flags that stand beside it in a link-layer
    /// address.
    pub const fn of_interface(qpn: Qpn) -> Self {
        Self(0x1000_0000_0000_0000 | qpn.0 as u64)
    }
}

/// A partition key (IBA 10.9.1): 15 bits of partition and the membership bit.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Pkey(u16);

impl Pkey {
    /// Full membership of the default partition.
    pub const DEFAULT: Self = Self(0xFFFF);
    const MEMBERSHIP: u16 = 0x8000;

    /// `None` for the invalid key, whose low 15 bits are zero (IBA 10.9.2).
    pub const fn new(value: u16) -> Option<Self> {
        if value & !Self::MEMBERSHIP == 0 { None } else { Some(Self(value)) }
    }

    /// The 16 bits of the key.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Whether the membership bit is set.
    pub const fn is_full_member(self) -> bool {
        self.0 & Self::MEMBERSHIP != 0
    }

    /// The same partition with full membership, the form that IPoIB addresses carry (RFC 4391 4).
    pub const fn full(self) -> Self {
        Self(self.0 | Self::MEMBERSHIP)
    }

    /// Whether a packet with key `self` is accepted by a port that holds `other`: same partition
    /// and at least one of the two a full member (IBA 10.9.3).
    pub const fn matches(self, other: Self) -> bool {
        self.full().0 == other.full().0 && (self.is_full_member() || other.is_full_member())
    }
}

impl fmt::Debug for Pkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pkey({:#06x})", self.0)
    }
}

/// An index into a port's P_Key table.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PkeyIndex(pub u16);

/// A queue key (IBA 10.2.5).
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Qkey(pub u32);

impl Qkey {
    /// The key of QP1 (IBA 10.2.5).
    pub const GSI: Self = Self(0x8001_0000);
}

impl fmt::Debug for Qkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qkey({:#010x})", self.0)
    }
}

/// A global identifier: 64 bits of subnet prefix, 64 bits of port GUID (IBA 4.1.1).
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
#[repr(transparent)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The prefix of a subnet that nobody configured (IBA 4.1.1, link-local scope).
    pub const SUBNET_PREFIX_DEFAULT: u64 = 0xFE80_0000_0000_0000;

    /// From the two halves.
    pub const fn new(subnet_prefix: u64, guid: u64) -> Self {
        Self((((subnet_prefix as u128) << 64) | guid as u128).to_be_bytes())
    }

    /// The low 64 bits.
    pub const fn guid(self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }

    /// The high 64 bits.
    pub const fn subnet_prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// Whether this is a multicast GID: first byte `0xFF` (IBA 4.1.1).
    pub const fn is_multicast(self) -> bool {
        self.0[0] == 0xFF
    }
}

/// As RFC 5952 4 has addresses of IPv6. That of the library pads, and could panic for it.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FIELDS: u32 = 8;
        let bits = u128::from_be_bytes(self.0);
        // CAST: the low 16 bits.
        let field = |at: u32| (bits >> (16 * (FIELDS - 1 - at))) as u16;
        // RFC 5952 4.2: the longest run of fields that are 0 is left out, the first of several; a
        // single one is not.
        let (mut run, mut left_out) = (0, 1);
        let mut first = FIELDS;
        for at in 0..FIELDS {
            run = if field(at) == 0 { run + 1 } else { 0 };
            if run > left_out {
                (left_out, first) = (run, at + 1 - run);
            }
        }
        let mut at = 0;
        while at < FIELDS {
            if at == first {
                f.write_str("::")?;
                at += left_out;
                continue;
            }
            if at > 0 && at != first + left_out {
                f.write_str(":")?;
            }
            write!(f, "{:x}", field(at))?;
            at += 1;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// A multicast GID.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Mgid(Gid);

impl Mgid {
    /// `None` for a unicast GID.
    pub const fn new(gid: Gid) -> Option<Self> {
        if gid.is_multicast() { Some(Self(gid)) } else { None }
    }

    /// From the 120 bits after the first byte; the first byte is `0xFF` whatever it is in `bits`.
    pub(crate) const fn from_low_bits(bits: u128) -> Self {
        Self(Gid((bits | 0xFF << 120).to_be_bytes()))
    }

    /// The GID.
    pub const fn gid(self) -> Gid {
        self.0
    }
}

impl fmt::Display for Mgid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A maximum transfer unit of the link layer: the payload that one packet may carry (IBA 14.2.5.6).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum IbMtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl IbMtu {
    /// From the code that management datagrams carry; `None` for a reserved one.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Mtu256),
            2 => Some(Self::Mtu512),
            3 => Some(Self::Mtu1024),
            4 => Some(Self::Mtu2048),
            5 => Some(Self::Mtu4096),
            _ => None,
        }
    }

    /// The code that management datagrams carry.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The unit in bytes.
    pub const fn bytes(self) -> usize {
        128 << self as usize
    }
}

/// A rate code (IBA 15.2.5.16), 6 bits. The core carries it and does not read it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RateCode(u8);

impl RateCode {
    /// `None` above 6 bits.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 64 { Some(Self(code)) } else { None }
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// A service level (IBA 7.6.5), 4 bits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ServiceLevel(u8);

impl ServiceLevel {
    /// `None` above 4 bits.
    pub const fn new(value: u8) -> Option<Self> {
        if value < 16 { Some(Self(value)) } else { None }
    }

    /// The level.
    pub const fn value(self) -> u8 {
        self.0
    }
}

/// A flow label (IBA 8.2.3), 20 bits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FlowLabel(u32);

impl FlowLabel {
    /// `None` above 20 bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value < 1 << 20 { Some(Self(value)) } else { None }
    }

    /// The label.
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// What a port is and can do now, as read from the adapter when it reported a change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortAttributes {
    /// Whether the port is in the state ACTIVE (IBA 7.2.7).
    pub is_active: bool,
    /// The port's base LID; `None` until the subnet manager assigned one.
    pub lid: Option<Lid>,
    /// The port's GID at index 0.
    pub gid: Gid,
    /// The largest MTU that the port can carry.
    pub mtu: IbMtu,
    /// The interface's P_Key and where it stands in the port's table *now*; `None` while it is
    /// absent.
    ///
    /// For the interface of the port itself this is the valid key at index 0, for a child the entry
    /// that holds its partition. The shell reads the table afresh for every report, so that a key
    /// that was taken away and put back is seen for what it is.
    pub partition: Option<Partition>,
}

/// A P_Key and its place in the port's table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Partition {
    /// The key as the table holds it.
    pub pkey: Pkey,
    /// Its index.
    pub index: PkeyIndex,
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::net::Ipv6Addr;
    use std::string::ToString;

    use super::*;

    /// But for those that are IPv4 addresses in IPv6 form, which are written as such there.
    #[test]
    fn a_gid_is_written_like_an_address_of_ipv6() {
        // Every pattern of fields that are 0.
        for pattern in 0..=u8::MAX {
            let mut gid = Gid([0; 16]);
            for at in (0..8).filter(|at| pattern & 1 << at != 0) {
                gid.0[2 * at] = pattern.wrapping_mul(37);
                gid.0[2 * at + 1] = 1 + at as u8;
            }
            assert_eq!(gid.to_string(), Ipv6Addr::from(gid.0).to_string());
        }
    }

    #[test]
    fn zero_follows_the_largest_number() {
        assert_eq!(Psn::MAX.plus(1), Psn::default());
        assert_eq!(Psn::default().previous(), Psn::MAX);
        assert_eq!(Psn::new(3).unwrap().distance_from(Psn::MAX), 4);
        assert_eq!(Psn::new(0x0100_0000), None);
    }

    #[test]
    fn what_lies_behind_is_farther_than_the_window() {
        let psn = Psn::new(5).unwrap();
        assert_eq!(psn.previous().distance_from(psn), 0x00FF_FFFF);
        assert!(psn.previous().distance_from(psn) >= Psn::WINDOW);
        assert!(psn.plus(Psn::WINDOW - 1).distance_from(psn) < Psn::WINDOW);
    }
}
