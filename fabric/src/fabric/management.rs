//! What a subnet manager does to ports and switch, and what tests do to adapters.

use ipoib_rs::ib::{Gid, IbMtu, Lid, Mlid, Partition, Pkey, PkeyIndex, PortAttributes};
use ipoib_rs::interface::PortEvent;

use super::Fabric;
use crate::hca::HcaId;
use crate::outlet::AsyncEvent;
use crate::port::{PortId, PortState, PortStatus, SmAddress};

/// A setting was refused; nothing changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ManagementError {
    /// Another port has the LID.
    LidInUse,
    /// No memory.
    OutOfMemory,
    /// More entries than the table has, or an index beyond it.
    TableTooSmall,
    /// No such port or adapter.
    Unknown,
}

impl From<crate::switch::OutOfMemory> for ManagementError {
    fn from(_: crate::switch::OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl Fabric {
    /// What a port is now.
    pub fn query_port(&self, id: PortId) -> Option<PortStatus> {
        let port = self.ports.get(id.index())?;
        Some(PortStatus {
            hca: port.hca,
            number: port.number,
            guid: port.guid,
            state: port.state,
            lid: port.lid,
            gid: port.gids.first(),
            mtu: port.mtu,
            sm: port.sm,
            pkey_table_len: port.pkeys.len() as u16,
            gid_table_len: port.gids.len() as u16,
        })
    }

    /// A place of a port's P_Key table; `None` if it is empty or does not exist.
    pub fn query_pkey(&self, id: PortId, index: PkeyIndex) -> Option<Pkey> {
        self.ports.get(id.index())?.pkey(index)
    }

    /// A place of a port's GID table; `None` if it is empty or does not exist.
    pub fn query_gid(&self, id: PortId, index: u16) -> Option<Gid> {
        self.ports.get(id.index())?.gids.get(index)
    }

    /// Where a port's table holds a key of a partition; full membership goes first.
    pub fn find_partition(&self, id: PortId, pkey: Pkey) -> Option<Partition> {
        self.ports.get(id.index())?.partition(pkey)
    }

    /// A port as the interface of a partition sees it; `None` for `pkey` is the port's own
    /// interface, which follows index 0.
    pub fn port_attributes(&self, id: PortId, pkey: Option<Pkey>) -> Option<PortAttributes> {
        let port = self.ports.get(id.index())?;
        let index = PkeyIndex::default();
        let partition = match pkey {
            Some(pkey) => port.partition(pkey),
            None => port.pkey(index).map(|pkey| Partition { pkey, index }),
        };
        Some(PortAttributes {
            is_active: port.is_active(),
            lid: port.lid,
            gid: port.gids.first(),
            mtu: port.mtu,
            partition,
        })
    }

    /// Assigns a LID, or takes it away, and routes it. Reports [`PortEvent::LidChanged`] if it is
    /// another.
    ///
    /// # Errors
    ///
    /// [`ManagementError`].
    pub fn set_lid(&mut self, id: PortId, lid: Option<Lid>) -> Result<(), ManagementError> {
        let port = self.ports.get_mut(id.index()).ok_or(ManagementError::Unknown)?;
        if port.lid == lid {
            return Ok(());
        }
        if let Some(lid) = lid {
            if self.switch.port(lid).is_some() {
                return Err(ManagementError::LidInUse);
            }
            self.switch.set_port(lid, Some(id))?;
        }
        if let Some(old) = port.lid {
            self.switch.set_port(old, None)?;
        }
        port.lid = lid;
        self.outlet.report(AsyncEvent::Port(id, PortEvent::LidChanged));
        Ok(())
    }

    /// Moves a port to a state. Reports [`PortEvent::PortActive`] when it becomes ACTIVE and
    /// [`PortEvent::PortError`] when it leaves that state.
    ///
    /// # Errors
    ///
    /// [`ManagementError::Unknown`].
    pub fn set_port_state(&mut self, id: PortId, state: PortState) -> Result<(), ManagementError> {
        let port = self.ports.get_mut(id.index()).ok_or(ManagementError::Unknown)?;
        let was_active = port.is_active();
        port.state = state;
        match (was_active, port.is_active()) {
            (false, true) => self.outlet.report(AsyncEvent::Port(id, PortEvent::PortActive)),
            (true, false) => self.outlet.report(AsyncEvent::Port(id, PortEvent::PortError)),
            (true, true) | (false, false) => {}
        }
        Ok(())
    }

    /// Replaces a port's P_Key table; places that are not given become empty. Reports
    /// [`PortEvent::PkeyChanged`].
    ///
    /// # Errors
    ///
    /// [`ManagementError`].
    pub fn set_pkey_table(
        &mut self,
        id: PortId,
        pkeys: &[Option<Pkey>],
    ) -> Result<(), ManagementError> {
        let port = self.ports.get_mut(id.index()).ok_or(ManagementError::Unknown)?;
        if pkeys.len() > port.pkeys.len() {
            return Err(ManagementError::TableTooSmall);
        }
        let (given, rest) = port.pkeys.split_at_mut(pkeys.len());
        given.copy_from_slice(pkeys);
        rest.fill(None);
        self.outlet.report(AsyncEvent::Port(id, PortEvent::PkeyChanged));
        Ok(())
    }

    /// Sets a place of a port's GID table. Reports [`PortEvent::GidChanged`].
    ///
    /// # Errors
    ///
    /// [`ManagementError`].
    pub fn set_gid(
        &mut self,
        id: PortId,
        index: u16,
        gid: Option<Gid>,
    ) -> Result<(), ManagementError> {
        let port = self.ports.get_mut(id.index()).ok_or(ManagementError::Unknown)?;
        if !port.gids.set(index, gid) {
            return Err(ManagementError::TableTooSmall);
        }
        self.outlet.report(AsyncEvent::Port(id, PortEvent::GidChanged));
        Ok(())
    }

    /// Sets the places of a port's GID table from `first` on, in one step. Reports
    /// [`PortEvent::GidChanged`].
    ///
    /// # Errors
    ///
    /// [`ManagementError::TableTooSmall`]: those that fit are set.
    pub fn set_gids(
        &mut self,
        id: PortId,
        first: u16,
        gids: impl Iterator<Item = Gid>,
    ) -> Result<(), ManagementError> {
        let port = self.ports.get_mut(id.index()).ok_or(ManagementError::Unknown)?;
        let fits = port.gids.set_range(first, gids);
        self.outlet.report(AsyncEvent::Port(id, PortEvent::GidChanged));
        if fits { Ok(()) } else { Err(ManagementError::TableTooSmall) }
    }

    /// Sets the MTU in use on a port. No event: it changes only while the port is not ACTIVE.
    ///
    /// # Errors
    ///
    /// [`ManagementError::Unknown`].
    pub fn set_mtu(&mut self, id: PortId, mtu: IbMtu) -> Result<(), ManagementError> {
        let port = self.ports.get_mut(id.index()).ok_or(ManagementError::Unknown)?;
        port.mtu = mtu;
        Ok(())
    }

    /// Tells a port where the subnet manager is. No event: another manager on the same port is news
    /// as well, so whoever knows dispatches [`PortEvent::SmChanged`].
    ///
    /// # Errors
    ///
    /// [`ManagementError::Unknown`].
    pub fn set_sm(&mut self, id: PortId, sm: Option<SmAddress>) -> Result<(), ManagementError> {
        let port = self.ports.get_mut(id.index()).ok_or(ManagementError::Unknown)?;
        port.sm = sm;
        Ok(())
    }

    /// Puts a port into the switch's table for a multicast LID, or takes it out. Packets reach a
    /// queue pair if its port is in the table and the queue pair is attached to the group.
    ///
    /// # Errors
    ///
    /// [`ManagementError`].
    pub fn set_multicast_member(
        &mut self,
        mlid: Mlid,
        id: PortId,
        is_member: bool,
    ) -> Result<(), ManagementError> {
        if self.ports.get(id.index()).is_none() {
            return Err(ManagementError::Unknown);
        }
        self.switch.set_member(mlid, id, is_member)?;
        Ok(())
    }

    /// The ports in the switch's table for a multicast LID.
    pub fn multicast_members(&self, mlid: Mlid) -> &[PortId] {
        self.switch.members(mlid)
    }

    /// Reports an event, whether or not something changed.
    pub fn dispatch_event(&mut self, id: PortId, event: PortEvent) {
        self.outlet.report(AsyncEvent::Port(id, event));
    }

    /// Has the next datagrams that a port sends from queue pairs of type UD fail, as if the adapter
    /// could not do it: the queue pair goes to SQE (IBA 10.3.1).
    ///
    /// # Errors
    ///
    /// [`ManagementError::Unknown`].
    pub fn fail_datagrams(&mut self, id: PortId, count: u32) -> Result<(), ManagementError> {
        let port = self.ports.get_mut(id.index()).ok_or(ManagementError::Unknown)?;
        port.datagrams_to_fail = count;
        Ok(())
    }

    /// How many datagrams are still to fail.
    pub fn datagrams_to_fail(&self, id: PortId) -> u32 {
        self.ports.get(id.index()).map_or(0, |port| port.datagrams_to_fail)
    }

    /// Makes an adapter withhold its completions, or ends that.
    ///
    /// # Errors
    ///
    /// [`ManagementError::Unknown`].
    pub fn set_wedged(&mut self, id: HcaId, is_wedged: bool) -> Result<(), ManagementError> {
        let hca = self.hcas.get_mut(id.0 as usize).ok_or(ManagementError::Unknown)?;
        if is_wedged {
            hca.is_wedged = true;
        } else {
            hca.unwedge(&mut self.outlet);
        }
        Ok(())
    }
}
