//! Ports (IBA 7.2.7, 14.2.5).

use alloc::vec::Vec;

use ipoib_rs::ib::{Gid, IbMtu, Lid, Mgid, Mlid, Partition, Pkey, PkeyIndex, ServiceLevel};

use crate::hca::HcaId;
use crate::slab::Key;

/// A port of an HCA. Ports are numbered in the order in which they were added to the fabric.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortId(pub(crate) u32);

impl PortId {
    /// Its number in the fabric, from 0.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The state of a port (IBA 7.2.7).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum PortState {
    /// No link.
    Down,
    /// A link, not configured.
    Init,
    /// Configured, no data packets yet.
    Armed,
    /// In use.
    Active,
}

/// What a port is now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortStatus {
    /// The adapter.
    pub hca: HcaId,
    /// Its number on the adapter, from 1.
    pub number: u8,
    /// Its GUID.
    pub guid: u64,
    /// Its state.
    pub state: PortState,
    /// Its LID. The LID mask control is 0: it has no other.
    pub lid: Option<Lid>,
    /// Its GID at index 0.
    pub gid: Gid,
    /// The MTU in use.
    pub mtu: IbMtu,
    /// Where the subnet manager is.
    pub sm: Option<SmAddress>,
    /// Places in the P_Key table.
    pub pkey_table_len: u16,
    /// Places in the GID table.
    pub gid_table_len: u16,
}

/// Where the subnet manager is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SmAddress {
    /// Its LID.
    pub lid: Lid,
    /// The service level to reach it.
    pub sl: ServiceLevel,
}

/// What a port dropped, and how much passed through.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PortCounters {
    /// Packets sent.
    pub sent: u64,
    /// Packets put into a receive, and responses that a requester waited for.
    pub received: u64,
    /// Not sent: the port is not ACTIVE or has no LID.
    pub sends_while_inactive: u64,
    /// Not sent: the place in the P_Key table is empty.
    pub sends_without_pkey: u64,
    /// Not received: the port is not ACTIVE.
    pub arrivals_while_inactive: u64,
    /// Not received: the LID is another by now.
    pub foreign_lids: u64,
    /// Not received: the GRH's destination is none of the port's GIDs.
    pub foreign_gids: u64,
    /// Not received: no queue pair of this number takes packets.
    pub unknown_qpns: u64,
    /// Not received: no queue pair is attached to the group.
    pub unattached_groups: u64,
    /// Not received: the P_Key is not the queue pair's (IBA 10.9.4).
    pub pkey_violations: u64,
    /// Not received: the Q_Key is not the queue pair's (IBA 10.2.5).
    pub qkey_violations: u64,
    /// Not received: no receive was posted.
    pub receives_missing: u64,
    /// Not received: longer than the posted receive, or cut at another path MTU than agreed.
    pub receives_too_short: u64,
    /// Not received: no buffer for the copy of a multicast packet. Not sent: none for a message
    /// that the sender has to keep.
    pub buffers_missing: u64,
    /// Not received: a datagram for a connected queue pair, or the other way round.
    pub wrong_services: u64,
    /// Not received: the source LID is not that of the connected peer.
    pub foreign_sources: u64,
    /// Not received: a message's sequence number lies behind. It was received before, or belongs to
    /// an earlier connection.
    pub duplicates: u64,
    /// Not received: a message's sequence number lies ahead.
    pub sequence_errors: u64,
    /// Not received: a response that no requester waits for.
    pub stale_responses: u64,
}

#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) hca: HcaId,
    pub(crate) number: u8,
    pub(crate) guid: u64,
    pub(crate) state: PortState,
    pub(crate) lid: Option<Lid>,
    pub(crate) mtu: IbMtu,
    pub(crate) sm: Option<SmAddress>,
    pub(crate) pkeys: Vec<Option<Pkey>>,
    pub(crate) gids: Gids,
    pub(crate) gsi: Option<Key>,
    /// Sorted by group; every list has a queue pair.
    pub(crate) attachments: Vec<Attachment>,
    pub(crate) counters: PortCounters,
    /// So many of the datagrams that are sent next fail.
    pub(crate) datagrams_to_fail: u32,
}

/// The queue pairs that are attached to a group.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) group: (Mlid, Mgid),
    pub(crate) qps: Vec<Key>,
}

impl Port {
    pub(crate) fn is_active(&self) -> bool {
        self.state == PortState::Active
    }

    pub(crate) fn pkey(&self, index: PkeyIndex) -> Option<Pkey> {
        self.pkeys.get(usize::from(index.0)).copied().flatten()
    }

    /// The first place whose key lets `pkey` in (IBA 10.9.3).
    pub(crate) fn matching_pkey(&self, pkey: Pkey) -> Option<PkeyIndex> {
        let matches = |entry: &Option<Pkey>| entry.is_some_and(|own| pkey.matches(own));
        let index = self.pkeys.iter().position(matches)?;
        Some(PkeyIndex(index as u16))
    }

    /// The place that holds a key of the partition, one with full membership if there is one.
    pub(crate) fn partition(&self, pkey: Pkey) -> Option<Partition> {
        let entries = || {
            (0..).zip(&self.pkeys).filter_map(move |(index, entry)| {
                let own = (*entry)?;
                (own.full() == pkey.full())
                    .then_some(Partition { pkey: own, index: PkeyIndex(index) })
            })
        };
        entries().find(|partition| partition.pkey.is_full_member()).or_else(|| entries().next())
    }

    pub(crate) fn attachment(&self, group: (Mlid, Mgid)) -> Option<&Attachment> {
        let place = self.find_attachment(group).ok()?;
        self.attachments.get(place)
    }

    /// Where the group is in the list, or where it would be.
    pub(crate) fn find_attachment(&self, group: (Mlid, Mgid)) -> Result<usize, usize> {
        self.attachments.binary_search_by_key(&group, |attachment| attachment.group)
    }
}

/// A table of GIDs, and the same sorted, because every packet with a GRH is checked against it.
#[derive(Debug)]
pub(crate) struct Gids {
    table: Vec<Option<Gid>>,
    sorted: Vec<Gid>,
}

impl Gids {
    /// Takes a table with a GID at index 0 and a list with room for the whole table.
    pub(crate) fn new(table: Vec<Option<Gid>>, sorted: Vec<Gid>) -> Self {
        let mut gids = Self { table, sorted };
        gids.sort();
        gids
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The GID at index 0, which every port has (IBA 4.1.1).
    pub(crate) fn first(&self) -> Gid {
        self.get(0).unwrap_or(Gid([0; 16]))
    }

    pub(crate) fn get(&self, index: u16) -> Option<Gid> {
        self.table.get(usize::from(index)).copied().flatten()
    }

    pub(crate) fn contains(&self, gid: Gid) -> bool {
        self.sorted.binary_search(&gid).is_ok()
    }

    /// Whether there is such a place.
    pub(crate) fn set(&mut self, index: u16, gid: Option<Gid>) -> bool {
        let Some(entry) = self.table.get_mut(usize::from(index)) else {
            return false;
        };
        *entry = gid;
        self.sort();
        true
    }

    /// Sets the places from `first` on.
    pub(crate) fn set_range(&mut self, first: u16, gids: impl Iterator<Item = Gid>) -> bool {
        let mut places = self.table.iter_mut().skip(usize::from(first));
        let mut fits = true;
        for gid in gids {
            match places.next() {
                Some(place) => *place = Some(gid),
                None => fits = false,
            }
        }
        self.sort();
        fits
    }

    fn sort(&mut self) {
        self.sorted.clear();
        self.sorted.extend(self.table.iter().flatten());
        self.sorted.sort_unstable();
    }
}
