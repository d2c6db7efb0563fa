//! IP multicast groups to MGIDs and back (RFC 4391 4).

use core::net::IpAddr;

use crate::ib::{Mgid, Pkey};

/// The scope of a multicast group (RFC 4291 2.7), 4 bits, reserved values excluded.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Scope(u8);

/// Which protocol a group carries: the 16 bits after the flags and scope (RFC 4391 4).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u16)]
pub enum Signature {
    /// `0x401B`.
    Ipv4 = 0x401B,
    /// `0x601B`.
    Ipv6 = 0x601B,
}

/// The broadcast group: its scope and P_Key are those of every group of the interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BroadcastGroup {
    scope: Scope,
    pkey: Pkey,
}

impl Scope {
    /// Link-local, the scope that an interface uses unless told otherwise.
    pub const LINK_LOCAL: Self = Self(2);

    /// `None` for reserved scopes.
    pub const fn new(_value: u8) -> Option<Self> {
        unimplemented!()
    }

    /// The 4 bits.
    pub const fn value(self) -> u8 {
        self.0
    }
}

impl BroadcastGroup {
    /// The broadcast group of a partition; the key is taken with full membership (RFC 4391 4).
    pub const fn new(scope: Scope, pkey: Pkey) -> Self {
        Self {
            scope,
            pkey: pkey.full(),
        }
    }

    /// `FF1s:401B:<P_Key>::FFFF:FFFF`.
    pub fn mgid(&self) -> Mgid {
        unimplemented!()
    }

    /// The group that carries an IP multicast group; `None` for a unicast address. IPv4 takes the low
    /// 28 bits, 255.255.255.255 the broadcast group itself; IPv6 the low 80 bits.
    pub fn mgid_of(&self, _group: IpAddr) -> Option<Mgid> {
        unimplemented!()
    }

    /// The IP group behind an MGID of this interface. `None` if the scope, P_Key or signature is
    /// another, a reserved bit is set, or it is the broadcast group itself.
    pub fn ip_of(&self, _mgid: Mgid) -> Option<IpAddr> {
        unimplemented!()
    }

    /// Whether `mgid` may be joined by this interface: signature, scope and P_Key agree.
    pub fn contains(&self, _mgid: Mgid) -> bool {
        unimplemented!()
    }
}
