//! IP multicast groups to MGIDs and back (RFC 4391 4).
//!
//! ```text
//! bits  8      4     4       16          16       80
//!       FF   0001  scope  signature    P_Key   group ID
//! ```

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ib::{Mgid, Pkey};

const GROUP_ID_BITS: u32 = 80;
const PKEY_SHIFT: u32 = GROUP_ID_BITS;
const SIGNATURE_SHIFT: u32 = 96;
const SCOPE_SHIFT: u32 = 112;
const FLAGS_SHIFT: u32 = 116;

/// RFC 4391 4: the flags are `0001`, for a group that is not permanently assigned.
const FLAGS_TRANSIENT: u128 = 0b0001;
const GROUP_ID_MASK: u128 = (1 << GROUP_ID_BITS) - 1;
/// RFC 4391 4: of an IPv4 group only the low 28 bits go into the group ID.
const IPV4_GROUP_MASK: u32 = (1 << 28) - 1;
/// The group ID of the broadcast group (RFC 4391 4).
const BROADCAST_GROUP_ID: u128 = 0xFFFF_FFFF;

/// The broadcast group: its scope and P_Key are those of every group of the interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BroadcastGroup {
    scope: Scope,
    pkey: Pkey,
}

impl BroadcastGroup {
    /// The broadcast group of a partition; the key is taken with full membership (RFC 4391 4).
    pub const fn new(scope: Scope, pkey: Pkey) -> Self {
        Self { scope, pkey: pkey.full() }
    }

    /// The group whose MGID this is; `None` if it is not that of a broadcast group.
    pub fn from_mgid(mgid: Mgid) -> Option<Self> {
        let bits = u128::from_be_bytes(mgid.gid().0);
        // CAST: 4 and 16 bits are taken.
        let scope = Scope::new((bits >> SCOPE_SHIFT) as u8 & 0x0F)?;
        let pkey = Pkey::new((bits >> PKEY_SHIFT) as u16)?;
        let group = Self::new(scope, pkey);
        (group.mgid() == mgid).then_some(group)
    }

    /// `FF1s:401B:<P_Key>::FFFF:FFFF`.
    pub const fn mgid(&self) -> Mgid {
        self.mgid_with(Signature::Ipv4, BROADCAST_GROUP_ID)
    }

    /// The group that carries an IP multicast group; `None` for a unicast address. IPv4 takes the
    /// low 28 bits, 255.255.255.255 the broadcast group itself; IPv6 the low 80 bits.
    pub const fn mgid_of(&self, group: IpAddr) -> Option<Mgid> {
        match group {
            IpAddr::V4(group) if group.is_broadcast() => Some(self.mgid()),
            IpAddr::V4(group) if group.is_multicast() => {
                let id = group.to_bits() & IPV4_GROUP_MASK;
                Some(self.mgid_with(Signature::Ipv4, id as u128))
            }
            IpAddr::V6(group) if group.is_multicast() => {
                Some(self.mgid_with(Signature::Ipv6, group.to_bits()))
            }
            IpAddr::V4(_) | IpAddr::V6(_) => None,
        }
    }

    /// The IP group behind an MGID of this interface. `None` if the scope, P_Key or signature is
    /// another, a reserved bit is set, or it is the broadcast group itself.
    ///
    /// An MGID does not hold the upper 48 bits of an IPv6 group: of all groups that map to it, this
    /// is the permanently assigned one with the scope of the link, `FF0s::/16`.
    pub const fn ip_of(&self, mgid: Mgid) -> Option<IpAddr> {
        let bits = u128::from_be_bytes(mgid.gid().0);
        let group_id = bits & GROUP_ID_MASK;
        let prefix = bits & !GROUP_ID_MASK;
        if prefix == self.prefix(Signature::Ipv4) && group_id <= IPV4_GROUP_MASK as u128 {
            let class_d = Ipv4Addr::new(224, 0, 0, 0).to_bits();
            Some(IpAddr::V4(Ipv4Addr::from_bits(class_d | group_id as u32)))
        } else if prefix == self.prefix(Signature::Ipv6) {
            let scoped = 0xFF << 120 | (self.scope.0 as u128) << SCOPE_SHIFT;
            Some(IpAddr::V6(Ipv6Addr::from_bits(scoped | group_id)))
        } else {
            None
        }
    }

    /// Whether `mgid` may be joined by this interface: signature, scope and P_Key agree, and it is
    /// the broadcast group or that of an IP group.
    pub fn contains(&self, mgid: Mgid) -> bool {
        mgid == self.mgid() || self.ip_of(mgid).is_some()
    }

    /// The scope.
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    /// The P_Key, with full membership.
    pub const fn pkey(&self) -> Pkey {
        self.pkey
    }

    const fn mgid_with(&self, signature: Signature, group_id: u128) -> Mgid {
        Mgid::from_low_bits(self.prefix(signature) | group_id & GROUP_ID_MASK)
    }

    /// Everything before the group ID.
    const fn prefix(&self, signature: Signature) -> u128 {
        0xFF << 120
            | FLAGS_TRANSIENT << FLAGS_SHIFT
            | (self.scope.0 as u128) << SCOPE_SHIFT
            | (signature as u128) << SIGNATURE_SHIFT
            | (self.pkey.value() as u128) << PKEY_SHIFT
    }
}

/// The scope of a multicast group (RFC 4291 2.7), 4 bits, reserved values excluded.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Scope(u8);

impl Scope {
    /// Link-local, the scope that an interface uses unless told otherwise.
    pub const LINK_LOCAL: Self = Self(2);

    /// `None` for the reserved scopes 0 and 15, and above 4 bits. RFC 7346 2 took 3 from the
    /// reserved ones.
    pub const fn new(value: u8) -> Option<Self> {
        if value >= 1 && value <= 14 { Some(Self(value)) } else { None }
    }

    /// The 4 bits.
    pub const fn value(self) -> u8 {
        self.0
    }
}

/// Which protocol a group carries: the 16 bits after the flags and scope (RFC 4391 4).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u16)]
pub enum Signature {
    /// `0x401B`.
    Ipv4 = 0x401B,
    /// `0x601B`.
    Ipv6 = 0x601B,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ib::Gid;
    use crate::wire::testing::{config, ipv4_group, ipv6_group};

    const GROUP: BroadcastGroup = BroadcastGroup::new(Scope::LINK_LOCAL, Pkey::DEFAULT);

    fn mgid(text: &str) -> Mgid {
        let address: Ipv6Addr = text.parse().expect("an IPv6 address");
        Mgid::new(Gid(address.octets())).expect("a multicast GID")
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an IP address")
    }

    #[test]
    fn broadcast_group_holds_scope_and_full_pkey() {
        assert_eq!(GROUP.mgid(), mgid("ff12:401b:ffff::ffff:ffff"));
        let child = Pkey::new(0x0001).expect("a valid key");
        let scope = Scope::new(5).expect("site-local");
        let group = BroadcastGroup::new(scope, child);
        assert_eq!(group.mgid(), mgid("ff15:401b:8001::ffff:ffff"));
        assert_eq!((group.scope(), group.pkey()), (scope, child.full()));
    }

    #[test]
    fn known_groups_map_as_rfc_4391_says() {
        for (group, expected) in [
            ("224.0.0.1", "ff12:401b:ffff::1"),
            ("224.0.0.22", "ff12:401b:ffff::16"),
            ("239.255.255.255", "ff12:401b:ffff::fff:ffff"),
            ("255.255.255.255", "ff12:401b:ffff::ffff:ffff"),
            ("ff02::1", "ff12:601b:ffff::1"),
            ("ff02::1:ff00:1234", "ff12:601b:ffff::1:ff00:1234"),
            ("ff05:1:2:3:4:5:6:7", "ff12:601b:ffff:3:4:5:6:7"),
        ] {
            assert_eq!(GROUP.mgid_of(ip(group)), Some(mgid(expected)), "{group}");
        }
    }

    #[test]
    fn ipv6_group_comes_back_with_the_scope_of_the_link() {
        let group = GROUP.mgid_of(ip("ff15::9")).expect("multicast");
        assert_eq!(GROUP.ip_of(group), Some(ip("ff02::9")));
    }

    #[test]
    fn unicast_addresses_have_no_group() {
        for address in ["0.0.0.0", "10.0.0.1", "223.255.255.255", "240.0.0.1"] {
            assert_eq!(GROUP.mgid_of(ip(address)), None, "{address}");
        }
        for address in ["::", "fe80::1", "feff::1", "::ffff:224.0.0.1"] {
            assert_eq!(GROUP.mgid_of(ip(address)), None, "{address}");
        }
    }

    #[test]
    fn broadcast_group_is_contained_but_is_no_ip_group() {
        assert!(GROUP.contains(GROUP.mgid()));
        assert_eq!(GROUP.ip_of(GROUP.mgid()), None);
    }

    #[test]
    fn every_bit_outside_the_group_id_decides() {
        for signature in [Signature::Ipv4, Signature::Ipv6] {
            let own = GROUP.mgid_with(signature, 1);
            assert!(GROUP.contains(own));
            for bit in GROUP_ID_BITS..120 {
                let other = Mgid::from_low_bits(u128::from_be_bytes(own.gid().0) ^ 1 << bit);
                // One bit tells the two signatures apart.
                let is_other_protocol = bit == SIGNATURE_SHIFT + 13;
                assert_eq!(GROUP.contains(other), is_other_protocol, "bit {bit} of {other}");
            }
        }
    }

    #[test]
    fn reserved_bits_of_an_ipv4_group_id_are_zero() {
        for bit in 28..GROUP_ID_BITS {
            let other = GROUP.mgid_with(Signature::Ipv4, 1 | 1 << bit);
            assert!(!GROUP.contains(other), "bit {bit}");
        }
    }

    #[test]
    fn scopes_are_checked_exhaustively() {
        for value in 0..=u8::MAX {
            let expected = matches!(value, 1..=14).then_some(value);
            assert_eq!(Scope::new(value).map(Scope::value), expected);
        }
    }

    #[test]
    fn every_scope_and_pkey_has_its_own_groups() {
        for scope in (1..=14).filter_map(Scope::new) {
            for key in (0x8001..=0xFFFF).filter_map(Pkey::new) {
                let group = BroadcastGroup::new(scope, key);
                assert!(group.contains(group.mgid()));
                assert_eq!(GROUP.contains(group.mgid()), group == GROUP);
            }
        }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn ipv4_groups_survive_the_round_trip(group in ipv4_group()) {
            let mgid = GROUP.mgid_of(group.into()).expect("multicast");
            prop_assert_eq!(GROUP.ip_of(mgid), Some(group.into()));
        }

        #[test]
        fn ipv6_groups_keep_their_low_80_bits(group in ipv6_group()) {
            let mgid = GROUP.mgid_of(group.into()).expect("multicast");
            let Some(IpAddr::V6(back)) = GROUP.ip_of(mgid) else {
                return Err(TestCaseError::fail("an IPv6 group"));
            };
            prop_assert_eq!(back.to_bits() & GROUP_ID_MASK, group.to_bits() & GROUP_ID_MASK);
            prop_assert_eq!(GROUP.mgid_of(back.into()), Some(mgid));
        }

        #[test]
        fn ip_of_never_names_a_group_that_maps_elsewhere(
            id in any::<u128>(),
            id_bits in 0..=GROUP_ID_BITS,
            is_ipv4 in any::<bool>(),
        ) {
            let signature = if is_ipv4 { Signature::Ipv4 } else { Signature::Ipv6 };
            let mgid = GROUP.mgid_with(signature, id & ((1 << id_bits) - 1));
            if let Some(group) = GROUP.ip_of(mgid) {
                prop_assert_eq!(GROUP.mgid_of(group), Some(mgid));
                prop_assert_eq!(group.is_ipv4(), is_ipv4);
            } else {
                prop_assert!(is_ipv4 && id_bits > 28);
            }
        }
    }
}
