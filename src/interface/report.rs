//! What an admin sees of an interface.

use crate::connection::OutgoingState;
use crate::counters::Counters;
use crate::group::Role;
use crate::ib::{Gid, Lid, Mgid, Mlid, Qpn};
use crate::packet::PacketBuf;
use crate::path::Path;
use crate::wire::LinkAddress;

use super::Interface;
use super::link::Lifecycle;

/// A line of the table of neighbours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NeighborRow {
    /// The link-layer address, queue pair number and GID included.
    pub address: LinkAddress,
    /// The destination LID, once known.
    pub lid: Option<Lid>,
    /// The state.
    pub state: &'static str,
    /// What carries large packets: `datagram`, or the state of the connection.
    pub transport: &'static str,
    /// The largest packet that goes to it whole, in bytes.
    pub mtu: usize,
    /// Packets that wait.
    pub queued: u32,
    /// Packets posted to it.
    pub sent: u64,
    /// Packets to it that were dropped, whatever the reason.
    pub dropped: u64,
}

/// A line of the table of incoming connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IncomingRow {
    /// The port of the peer.
    pub gid: Gid,
    /// Its datagram queue pair.
    pub qpn: Qpn,
    /// The state.
    pub state: &'static str,
}

/// A line of the table of groups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GroupRow {
    /// The group.
    pub mgid: Mgid,
    /// Its LID, once joined.
    pub mlid: Option<Mlid>,
    /// Why it is there: `broadcast`, `listed` or `send-only`.
    pub role: &'static str,
    /// The state.
    pub state: &'static str,
    /// Packets that wait.
    pub queued: u32,
}

impl<B: PacketBuf> Interface<B> {
    /// The state of the interface.
    pub fn state_name(&self) -> &'static str {
        match self.lifecycle {
            Lifecycle::Down => "down",
            Lifecycle::AwaitingPartition => "awaiting-pkey",
            Lifecycle::AwaitingPort => "awaiting-port",
            Lifecycle::Opening => "opening",
            Lifecycle::Joining => "joining",
            Lifecycle::Joined => "joined",
            Lifecycle::Draining => "draining",
            Lifecycle::Detached => "detached",
        }
    }

    /// The broadcast group; `None` before a P_Key was ever seen.
    pub fn broadcast(&self) -> Option<Mgid> {
        self.broadcast.map(|broadcast| broadcast.mgid())
    }

    /// All counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sends that are posted.
    pub fn sends_outstanding(&self) -> u32 {
        self.sends.outstanding()
    }

    /// Packets that wait for a path, a group or room in the ring.
    pub fn packets_queued(&self) -> u32 {
        let paths = self.paths.iter().map(|path| path.queue.packets());
        let groups = self.groups.iter().map(|(_, group)| group.queue.packets());
        let held = self.connections.outgoing.iter().map(|(_, outgoing)| outgoing.queue.packets());
        paths.chain(groups).chain(held).sum()
    }

    /// The neighbours, in the order of their places.
    pub fn neighbors(&self) -> impl Iterator<Item = NeighborRow> + '_ {
        self.paths.iter().map(|path| NeighborRow {
            address: path.address,
            lid: path.state.record().map(|record| record.lid),
            state: path.state.name(),
            transport: self.connection_state(path).map_or("datagram", OutgoingState::name),
            mtu: match self.connection_state(path) {
                Some(OutgoingState::Live { mtu }) => self.mtu_towards(*mtu),
                Some(_) | None => self.mtu_of_path(&path.state),
            },
            queued: path.queue.packets(),
            sent: path.sent,
            dropped: path.dropped,
        })
    }

    fn connection_state(&self, path: &Path) -> Option<&OutgoingState> {
        let outgoing = self.connections.outgoing.get(path.connection?)?;
        Some(&outgoing.state)
    }

    /// The incoming connections: who is at the other end, and the state.
    pub fn incoming(&self) -> impl Iterator<Item = IncomingRow> + '_ {
        self.connections.incoming.iter().map(|(_, incoming)| IncomingRow {
            gid: incoming.peer.gid,
            qpn: incoming.peer.qpn,
            state: incoming.state.name(),
        })
    }

    /// The groups, in the order of their places.
    pub fn groups(&self) -> impl Iterator<Item = GroupRow> + '_ {
        self.groups.iter().map(|(_, group)| GroupRow {
            mgid: group.mgid,
            mlid: group.state.joined().map(|joined| joined.record.mlid),
            role: match group.role {
                Role::Broadcast => "broadcast",
                Role::Listed => "listed",
                Role::SendOnly => "send-only",
            },
            state: group.state.name(),
            queued: group.queue.packets(),
        })
    }
}
