//! Address handles (IBA 11.2.3).

use ipoib_rs::action::{AddressVector, GlobalRoute};
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

impl Ah {
    /// `None` if the LID is 0 or the permissive LID, or if it is a multicast LID and there is no
    /// GRH for a group (IBA 10.5.2), or the other way round.
    pub(crate) fn new(port: PortId, address: &AddressVector) -> Option<Self> {
        let group = address.grh.and_then(|(gid, _)| Mgid::new(gid));
        let destination = match (Lid::new(address.lid), Mlid::new(address.lid), group) {
            (Some(lid), _, None) => Destination::Unicast(lid),
            (None, Some(mlid), Some(mgid)) => Destination::Multicast(mlid, mgid),
            (Some(_), _, Some(_)) | (None, Some(_), None) | (None, None, _) => return None,
        };
        Some(Self { port, destination, sl: address.sl, grh: address.grh })
    }

    pub(crate) const fn is_unicast(&self) -> bool {
        match self.destination {
            Destination::Unicast(_) => true,
            Destination::Multicast(..) => false,
        }
    }
}
