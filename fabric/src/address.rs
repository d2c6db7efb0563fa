//! Address handles (IBA 11.2.3).

use ipoib_rs::action::GlobalRoute;
use ipoib_rs::ib::{Gid, Lid, Mgid, Mlid, ServiceLevel};

use crate::hca::HcaId;
use crate::port::PortId;
use crate::slab::Key;

/// An address handle.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AhId {
    pub(crate) hca: HcaId,
    pub(crate) key: Key,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Destination {
    /// To one port.
    Unicast(Lid),
    /// To the members of a group. IBA 10.5.2: such a packet always has a GRH.
    Multicast(Mlid, Mgid),
}

impl Destination {
    /// The destination LID.
    pub const fn lid(self) -> u16 {
        match self {
            Self::Unicast(lid) => lid.value(),
            Self::Multicast(mlid, _) => mlid.value(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ah {
    pub(crate) port: PortId,
    pub(crate) destination: Destination,
    pub(crate) sl: ServiceLevel,
    pub(crate) grh: Option<(Gid, GlobalRoute)>,
}
