//! What an event in the fabric undoes, as data.
//!
//! The three levels are those of the C driver (`ipoib_ib_dev_flush_light`, `_normal`, `_heavy`),
//! which passes them through one function as a number.

use crate::counters::Counter;
use crate::ib::PortAttributes;
use crate::interface::PortEvent;

/// How much an event undoes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum FlushLevel {
    /// The subnet manager may have forgotten us: memberships are renewed and paths looked up again
    /// at their next use, with what is known in use meanwhile. The carrier stays.
    Light,
    /// The port is gone or is another: paths and memberships are given up, the carrier goes.
    Normal,
    /// The partition is another: as normal, and the queue pair is drained and opened anew.
    Heavy,
}

/// What becomes of the parts of an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FlushEffects {
    pub(crate) groups: GroupEffect,
    pub(crate) paths: PathEffect,
    pub(crate) restarts_queue_pair: bool,
    pub(crate) counter: Counter,
}

/// What becomes of the memberships.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum GroupEffect {
    Renew,
    Leave,
}

/// What becomes of the paths.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PathEffect {
    LookUpAgain,
    Drop,
}

impl FlushLevel {
    pub(crate) const fn effects(self) -> FlushEffects {
        let (groups, paths) = match self {
            Self::Light => (GroupEffect::Renew, PathEffect::LookUpAgain),
            Self::Normal | Self::Heavy => (GroupEffect::Leave, PathEffect::Drop),
        };
        let (restarts_queue_pair, counter) = match self {
            Self::Light => (false, Counter::FlushesLight),
            Self::Normal => (false, Counter::FlushesNormal),
            Self::Heavy => (true, Counter::FlushesHeavy),
        };
        FlushEffects { groups, paths, restarts_queue_pair, counter }
    }

    /// What an event undoes, given the port before and after it. The attributes decide and the
    /// event only adds what they cannot show: events are coalesced, repeated and late, the port is
    /// as it is.
    pub(crate) fn of(
        event: PortEvent,
        before: &PortAttributes,
        after: &PortAttributes,
    ) -> Option<Self> {
        let PortAttributes { is_active, lid, gid, mtu, partition } = *after;
        let usable = is_active && lid.is_some();
        let was_usable = before.is_active && before.lid.is_some();
        if partition != before.partition {
            return Some(Self::Heavy);
        }
        if gid != before.gid || mtu != before.mtu || (was_usable && !usable) {
            return Some(Self::Normal);
        }
        if !usable || !was_usable {
            return None;
        }
        match event {
            // The port was down and came back between two looks at it: it may have lost its
            // memberships, and the route to it may be another.
            PortEvent::PortActive | PortEvent::PortError => Some(Self::Light),
            PortEvent::ClientReregister | PortEvent::LidChanged | PortEvent::SmChanged => {
                Some(Self::Light)
            }
            PortEvent::GidChanged | PortEvent::PkeyChanged => {
                if lid == before.lid {
                    None
                } else {
                    Some(Self::Light)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ib::{Gid, IbMtu, Lid, Partition, Pkey, PkeyIndex};

    const PORT: PortAttributes = PortAttributes {
        is_active: true,
        lid: Lid::new(1),
        gid: Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 1),
        mtu: IbMtu::Mtu2048,
        partition: Some(Partition { pkey: Pkey::DEFAULT, index: PkeyIndex(0) }),
    };

    #[test]
    fn the_attributes_decide_whatever_the_event_is_called() {
        let down = PortAttributes { is_active: false, ..PORT };
        let elsewhere = PortAttributes {
            partition: Some(Partition { pkey: Pkey::DEFAULT, index: PkeyIndex(5) }),
            ..PORT
        };
        let all = [
            PortEvent::ClientReregister,
            PortEvent::GidChanged,
            PortEvent::LidChanged,
            PortEvent::PkeyChanged,
            PortEvent::PortActive,
            PortEvent::PortError,
            PortEvent::SmChanged,
        ];
        for event in all {
            assert_eq!(FlushLevel::of(event, &PORT, &down), Some(FlushLevel::Normal));
            assert_eq!(FlushLevel::of(event, &down, &PORT), None);
            assert_eq!(FlushLevel::of(event, &PORT, &elsewhere), Some(FlushLevel::Heavy));
        }
    }

    #[test]
    fn an_event_without_a_difference_is_light_or_nothing() {
        let of = |event| FlushLevel::of(event, &PORT, &PORT);
        assert_eq!(of(PortEvent::PortActive), Some(FlushLevel::Light));
        assert_eq!(of(PortEvent::ClientReregister), Some(FlushLevel::Light));
        assert_eq!(of(PortEvent::PkeyChanged), None);
        assert_eq!(of(PortEvent::GidChanged), None);
    }

    #[test]
    fn another_lid_is_light_under_any_event() {
        let moved = PortAttributes { lid: Lid::new(2), ..PORT };
        for event in [PortEvent::LidChanged, PortEvent::PkeyChanged, PortEvent::GidChanged] {
            assert_eq!(FlushLevel::of(event, &PORT, &moved), Some(FlushLevel::Light));
        }
    }
}
