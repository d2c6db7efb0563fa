//! The table of ports.

use alloc::vec::Vec;

use ipoib_rs::ib::{Gid, IbMtu, Lid, Pkey, RateCode};

use super::SmError;
use super::pkeys::PkeyTable;

/// What the manager must know of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortConfig {
    /// Its GUID.
    pub guid: u64,
    /// Its GID at index 0.
    pub gid: Gid,
    /// The largest MTU that it can carry.
    pub mtu: IbMtu,
    /// The rate of its link.
    pub rate: RateCode,
}

/// Whether a port takes part.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkState {
    /// No link.
    Down,
    /// Configured and in use.
    Active,
}

/// A line of the table of ports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortView<P> {
    /// The port.
    pub port: P,
    /// What it is.
    pub config: PortConfig,
    /// Its LID.
    pub lid: Lid,
    /// Its P_Key table.
    pub pkeys: PkeyTable,
    /// Whether it takes part.
    pub link: LinkState,
}

/// All ports, sorted three ways because every request names one by LID and two by GID.
#[derive(Debug)]
pub(super) struct Ports<P> {
    rows: Vec<PortView<P>>,
    by_lid: Vec<(Lid, P)>,
    by_gid: Vec<(Gid, P)>,
    ports_max: usize,
    /// The LID that was given out last.
    lid_last: u16,
}

impl<P: Copy + Ord> Ports<P> {
    pub(super) fn new(ports_max: usize) -> Result<Self, SmError> {
        let (mut rows, mut by_lid, mut by_gid) = (Vec::new(), Vec::new(), Vec::new());
        rows.try_reserve_exact(ports_max)?;
        by_lid.try_reserve_exact(ports_max)?;
        by_gid.try_reserve_exact(ports_max)?;
        Ok(Self { rows, by_lid, by_gid, ports_max, lid_last: 0 })
    }

    /// Adds a port or changes one.
    pub(super) fn configure(
        &mut self,
        port: P,
        config: PortConfig,
        pkey_first: Pkey,
    ) -> Result<Lid, SmError> {
        if self.find_gid(config.gid).is_some_and(|other| other.port != port) {
            return Err(SmError::DuplicateGid);
        }
        let same_guid = |row: &PortView<P>| row.config.guid == config.guid && row.port != port;
        if self.rows.iter().any(same_guid) {
            return Err(SmError::DuplicateGuid);
        }
        match self.place(port) {
            Ok(place) => {
                let old_gid = self.rows[place].config.gid;
                self.rows[place].config = config;
                self.by_gid.retain(|&(gid, _)| gid != old_gid);
                self.insert_gid(config.gid, port);
                Ok(self.rows[place].lid)
            }
            Err(place) => {
                if self.rows.len() == self.ports_max {
                    return Err(SmError::TableFull);
                }
                let lid = self.free_lid().ok_or(SmError::LidsExhausted)?;
                self.lid_last = lid.value();
                let row = PortView {
                    port,
                    config,
                    lid,
                    pkeys: PkeyTable::new(pkey_first),
                    link: LinkState::Down,
                };
                self.rows.insert(place, row);
                self.insert_lid(lid, port);
                self.insert_gid(config.gid, port);
                Ok(lid)
            }
        }
    }

    /// Moves a port to another LID. Yields whether the port takes part.
    pub(super) fn assign_lid(&mut self, port: P, lid: Lid) -> Result<LinkState, SmError> {
        if self.find_lid(lid).is_some_and(|other| other.port != port) {
            return Err(SmError::LidInUse);
        }
        let row = self.find_mut(port).ok_or(SmError::UnknownPort)?;
        row.lid = lid;
        let link = row.link;
        self.by_lid.retain(|&(_, other)| other != port);
        self.insert_lid(lid, port);
        self.lid_last = lid.value();
        Ok(link)
    }

    /// The next LID after the last one given out that nobody has, from the start again at the end.
    pub(super) fn free_lid(&self) -> Option<Lid> {
        let after = self.lid_last.saturating_add(1)..=Lid::MAX.value();
        let before = 1..=self.lid_last;
        after.chain(before).filter_map(Lid::new).find(|lid| self.find_lid(*lid).is_none())
    }

    pub(super) fn find(&self, port: P) -> Option<&PortView<P>> {
        self.place(port).ok().map(|place| &self.rows[place])
    }

    pub(super) fn find_mut(&mut self, port: P) -> Option<&mut PortView<P>> {
        let place = self.place(port).ok()?;
        self.rows.get_mut(place)
    }

    pub(super) fn find_lid(&self, lid: Lid) -> Option<&PortView<P>> {
        let place = self.by_lid.binary_search_by_key(&lid, |&(lid, _)| lid);
        self.find(self.by_lid[place.ok()?].1)
    }

    pub(super) fn find_gid(&self, gid: Gid) -> Option<&PortView<P>> {
        let place = self.by_gid.binary_search_by_key(&gid, |&(gid, _)| gid);
        self.find(self.by_gid[place.ok()?].1)
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The port at a place of the table, if it takes part.
    pub(super) fn active_at(&self, place: usize) -> Option<P> {
        let row = self.rows.get(place)?;
        (row.link == LinkState::Active).then_some(row.port)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = PortView<P>> + '_ {
        self.rows.iter().copied()
    }

    fn place(&self, port: P) -> Result<usize, usize> {
        self.rows.binary_search_by_key(&port, |row| row.port)
    }

    fn insert_lid(&mut self, lid: Lid, port: P) {
        let place = self.by_lid.partition_point(|&(other, _)| other < lid);
        self.by_lid.insert(place, (lid, port));
    }

    fn insert_gid(&mut self, gid: Gid, port: P) {
        let place = self.by_gid.partition_point(|&(other, _)| other < gid);
        self.by_gid.insert(place, (gid, port));
    }
}
