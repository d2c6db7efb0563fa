//! A port of a lagg, and what its shell says of it.

use crate::limits::LaggLimits;
use crate::time::Instant;
use crate::wire::{BroadcastGroup, LinkAddress};

/// A port: its place, and the generation that tells it from an earlier one in the same place.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortId {
    pub(super) place: u32,
    pub(super) generation: u32,
}

impl PortId {
    /// The place: below [`LaggLimits::ports_max`], so that a shell can keep its own table beside
    /// it.
    pub const fn index(self) -> usize {
        self.place as usize
    }

    /// As one number, for example for a cookie.
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.place as u64
    }

    /// From such a number. Any value is legal: one that is no port is stale.
    pub const fn from_bits(bits: u64) -> Self {
        // CAST: the two halves.
        Self { place: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// A port as it is now, all of it at once. Read it under the lock under which it is fed, so that
/// an older report cannot come after a newer one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortReport {
    /// What it is called on the link.
    pub identity: Identity,
    /// Its link.
    pub link: PortLink,
    /// Its MTU, without the encapsulation header.
    pub mtu: usize,
    /// The largest MTU that it could be given as it is now.
    pub mtu_max: usize,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// The link-layer address and the broadcast address of an interface: one value, because whoever
/// uses one of them uses the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Identity {
    /// The link-layer address.
    pub address: LinkAddress,
    /// The address of the broadcast group, which holds scope and P_Key.
    pub broadcast: LinkAddress,
}

impl Identity {
    /// The broadcast group behind the broadcast address, if it is one of IPoIB.
    pub(super) fn broadcast_group(&self) -> Option<BroadcastGroup> {
        BroadcastGroup::from_mgid(self.broadcast.mgid()?)
    }
}

/// The link of a port.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum PortLink {
    /// No carrier.
    Down,
    /// Carrier; the broadcast group is not joined yet, so nothing can be announced.
    Up,
    /// Carrier, and the broadcast group is joined. An [`crate::interface::Interface`] has a carrier
    /// only then.
    Joined,
}

/// What a port can do, as masks that mean something to the shell alone; a lagg can do what all of
/// its ports can.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Capabilities {
    /// What it could do.
    pub supported: u64,
    /// What of that is switched on.
    pub enabled: u64,
    /// What it takes over from the network stack (checksums).
    pub assist: u64,
}

impl Capabilities {
    const ALL: Self = Self { supported: u64::MAX, enabled: u64::MAX, assist: u64::MAX };

    const fn intersection(self, other: Self) -> Self {
        Self {
            supported: self.supported & other.supported,
            enabled: self.enabled & other.enabled,
            assist: self.assist & other.assist,
        }
    }

    /// What all of them can do; nothing if there is none.
    pub(super) fn common(all: impl Iterator<Item = Self>) -> Self {
        all.fold(None, |common: Option<Self>, one| {
            Some(common.unwrap_or(Self::ALL).intersection(one))
        })
        .unwrap_or_default()
    }
}

/// Why a port leaves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Removal {
    /// The administrator takes it out: it gets back what it had before, groups and MTU, and is
    /// released then.
    Orderly,
    /// Its interface is gone. Nothing can be given back, and the port is forgotten at once.
    Vanished,
}

/// A port was refused; nothing is changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AddPortError {
    /// A port has that address already: it is the same interface.
    AddressInUse,
    /// The lagg is being detached.
    Detaching,
    /// Every place is taken: [`LaggLimits::ports_max`].
    TableFull,
}

/// Which of the packets that come in by a port that does not carry are taken.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum InactiveInput {
    /// None.
    Refused,
    /// Those to the port itself: they are not there twice, and a peer that missed an announcement
    /// goes on to be heard. Multicast is not taken, since it comes in by the port that carries as
    /// well.
    #[default]
    Unicast,
    /// All, including the lagg's own multicast, which comes back to the other ports.
    All,
}

/// A port of a lagg.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) generation: u32,
    /// Ports are preferred in the order in which they came.
    pub(super) sequence: u64,
    pub(super) state: PortState,
    /// As it was last reported.
    pub(super) report: PortReport,
    /// Since when its link has been [`PortLink::Joined`]; `None` if it is not.
    pub(super) joined_since: Option<Instant>,
    /// The MTU that it had before it came, or took by itself since.
    pub(super) own_mtu: usize,
    pub(super) mtu: PortMtu,
    pub(super) admin: PortAdmin,
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// How far a port is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PortState {
    /// It takes part.
    Member,
    /// It gives back what it got.
    Leaving,
    /// It has, and the shell lets it go.
    Releasing,
}

/// Whether a port has the MTU that the lagg wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PortMtu {
    /// It is told if it has another.
    Settled,
    /// It has been told.
    Setting { generation: u32, mtu: usize },
    /// It did not take this one.
    Refused { mtu: usize },
}

/// What a port was last told of the administrator's wish.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PortAdmin {
    Untouched,
    Raised,
    Lowered,
}

impl Port {
    pub(super) fn is_member(&self) -> bool {
        self.state == PortState::Member
    }

    pub(super) fn has_link(&self) -> bool {
        self.report.link != PortLink::Down
    }

    /// Takes a report in. Whether the groups may have to be looked at again.
    pub(super) fn take_report(&mut self, now: Instant, report: &PortReport) -> bool {
        let before = core::mem::replace(&mut self.report, *report);
        self.joined_since = match report.link {
            PortLink::Joined => self.joined_since.or(Some(now)),
            PortLink::Up | PortLink::Down => None,
        };
        match self.mtu {
            // What it has while it is being set is for the answer to say.
            PortMtu::Setting { .. } => {}
            PortMtu::Settled | PortMtu::Refused { .. } => {
                if report.mtu != before.mtu {
                    self.own_mtu = report.mtu;
                }
                if report.mtu_max != before.mtu_max {
                    self.mtu = PortMtu::Settled;
                }
            }
        }
        let has_joined = report.link == PortLink::Joined && before.link != PortLink::Joined;
        has_joined || report.identity.broadcast != before.identity.broadcast
    }
}

impl LaggLimits {
    /// Whether there is a place for a port and a group, and all together can be numbered.
    pub(super) fn are_usable(&self) -> bool {
        let Self { ports_max, groups_max } = *self;
        let all = [ports_max, groups_max];
        all.into_iter().all(|limit| (1..=crate::limits::LIMIT_MAX).contains(&limit))
            && ports_max.checked_mul(groups_max).is_some_and(|all| all <= crate::limits::LIMIT_MAX)
    }
}
