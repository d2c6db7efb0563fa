//! The subnet manager and administrator.
//!
//! Sans-IO: it is told which ports there are and which have a link, it answers the MADs that arrive
//! at its port, and it says in [`Command`]s what adapters and the switch must carry out. It reads
//! no clock. The calling order is: any input, then [`SubnetManager::poll_command`] until it yields
//! nothing. Commands are in the order in which they must be carried out: a state is changed before
//! the event that announces it.
//!
//! `P` is how the owner calls a port. All tables are reserved when the manager is made and when a
//! partition is added; a table that is full refuses.
//!
//! Simplified against a real manager: one subnet, one path between two ports, no SMPs (it sets
//! ports by command), no trusted requests (SM_Key 0), no proxy joins, no traps.

mod counters;
mod fault;
mod groups;
mod pkeys;
mod ports;
mod request;

pub use counters::SmCounters;
pub use fault::{Fault, FaultExtent};
pub use groups::GroupView;
pub use pkeys::{PKEYS_PER_PORT, PkeyTable};
pub use ports::{LinkState, PortConfig, PortView};

use alloc::collections::{TryReserveError, VecDeque};
use alloc::vec::Vec;
use core::fmt;

use ipoib_rs::action::{GlobalRoute, GroupParameters, GroupRecord, SaCapabilities, SaRefusal};
use ipoib_rs::ib::{IbMtu, Lid, Mgid, Mlid, Pkey, Qkey, RateCode, ServiceLevel};
use ipoib_rs::interface::PortEvent;
use ipoib_rs::wire::{BroadcastGroup, Scope};

use crate::mad::JoinState;
use fault::Faults;
use groups::{Groups, Removal};
use ports::Ports;

/// The subnet manager.
#[derive(Debug)]
pub struct SubnetManager<P> {
    /// The port that the manager lives on.
    own: P,
    config: SmConfig,
    ports: Ports<P>,
    groups: Groups<P>,
    /// Every configured partition, with full membership, sorted.
    partitions: Vec<Pkey>,
    faults: Faults,
    commands: VecDeque<Command<P>>,
    counters: SmCounters,
}

/// What a subnet manager is made of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SmConfig {
    /// What ClassPortInfo says, and what joins are let in.
    pub capabilities: SaCapabilities,
    /// The hop limit of every path: 0 says that no GRH is needed, above 1 that one is (and the
    /// addressee takes packets with a GRH in any case).
    pub hop_limit: u8,
    /// The service level of every path.
    pub sl: ServiceLevel,
    /// The packet life time of every path, a code of 6 bits.
    pub packet_life_time: u8,
    /// RespTimeValue, an exponent of 5 bits: 4.096 µs times two to its power.
    pub response_time: u8,
    /// The key that a port has from the start, at index 0.
    pub pkey_first: Pkey,
    /// What a group gets that is created without saying it.
    pub group: GroupParameters,
    /// Sizes.
    pub limits: SmLimits,
}

/// The sizes of the tables of a subnet manager.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SmLimits {
    /// Ports.
    pub ports_max: usize,
    /// Groups. Each takes a multicast LID, of which there are 16383.
    pub groups_max: usize,
    /// Memberships: pairs of a group and a port.
    pub members_max: usize,
    /// Groups that are refused by order.
    pub refusals_max: usize,
}

/// Something that an adapter or the switch must do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command<P> {
    /// Configure the port for use: it leaves INIT for ACTIVE (IBA 7.2.7).
    ActivatePort {
        /// The port.
        port: P,
    },
    /// Deliver the packets of a multicast LID to this port, too.
    AddMember {
        /// The multicast LID.
        mlid: Mlid,
        /// The port.
        port: P,
    },
    /// Raise an asynchronous event at the port's adapter.
    Notify {
        /// The port.
        port: P,
        /// The event.
        event: PortEvent,
    },
    /// Deliver the packets of a multicast LID to this port no more.
    RemoveMember {
        /// The multicast LID.
        mlid: Mlid,
        /// The port.
        port: P,
    },
    /// Give the port this LID, and let the switch send the LID's packets to it.
    SetLid {
        /// The port.
        port: P,
        /// The LID.
        lid: Lid,
    },
    /// Replace the port's P_Key table.
    SetPkeyTable {
        /// The port.
        port: P,
        /// The table.
        table: PkeyTable,
    },
    /// Tell the port where the subnet manager is.
    SetSmLid {
        /// The port.
        port: P,
        /// The LID of the subnet manager.
        sm_lid: Lid,
    },
}

/// A setting was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SmError {
    /// Another port has this GUID.
    DuplicateGuid,
    /// Another port has this GID.
    DuplicateGid,
    /// A GID of a port is a unicast one.
    MulticastGid,
    /// Another port has this LID.
    LidInUse,
    /// No LID is left.
    LidsExhausted,
    /// The table is full.
    TableFull,
    /// No such port was configured.
    UnknownPort,
    /// No such partition was added.
    UnknownPartition,
    /// There is such a group or partition already.
    Exists,
    /// No memory.
    OutOfMemory,
}

impl fmt::Display for SmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DuplicateGuid => "another port has this GUID",
            Self::DuplicateGid => "another port has this GID",
            Self::MulticastGid => "a port needs a unicast GID",
            Self::LidInUse => "another port has this LID",
            Self::LidsExhausted => "no LID is left",
            Self::TableFull => "the table is full",
            Self::UnknownPort => "no such port",
            Self::UnknownPartition => "no such partition",
            Self::Exists => "it exists already",
            Self::OutOfMemory => "no memory",
        })
    }
}

impl core::error::Error for SmError {}

impl From<TryReserveError> for SmError {
    fn from(_: TryReserveError) -> Self {
        Self::OutOfMemory
    }
}

impl SmLimits {
    /// What a laboratory or a simulated world needs.
    pub const DEFAULT: Self =
        Self { ports_max: 1024, groups_max: 4096, members_max: 16 * 1024, refusals_max: 64 };
}

impl SmConfig {
    /// A fabric as most are: 2048 bytes, 10 Gb/s, the Q_Key and rate that OpenSM gives to IPoIB.
    pub fn new(limits: SmLimits) -> Self {
        Self {
            capabilities: SaCapabilities { send_only_full_member: true },
            hop_limit: 0,
            sl: ServiceLevel::default(),
            // 4.096 µs times 2 to the 18th: about a second.
            packet_life_time: 18,
            // About a quarter of a second.
            response_time: 16,
            pkey_first: Pkey::DEFAULT,
            group: GroupParameters {
                qkey: Qkey(0x0B1B),
                mtu: IbMtu::Mtu2048,
                rate: RATE_10_GBPS,
                sl: ServiceLevel::default(),
                packet_life_time: 18,
                global: GlobalRoute::default(),
            },
            limits,
        }
    }
}

/// The code of 10 Gb/s.
const RATE_10_GBPS: RateCode = match RateCode::new(3) {
    Some(rate) => rate,
    None => panic!("a code of 6 bits"),
};

impl<P: Copy + Ord> SubnetManager<P> {
    /// Makes a manager that lives on a port of its own, which has a link from the start. The
    /// partition of `config.pkey_first` is there, too, without a group.
    // Not inlined, so that its frame fits a kernel stack beside the caller's.
    #[inline(never)]
    pub fn new(config: SmConfig, own: P, own_config: PortConfig) -> Result<Self, SmError> {
        let mut manager = Self {
            own,
            config,
            ports: Ports::new(config.limits.ports_max)?,
            groups: Groups::new(config.limits.groups_max, config.limits.members_max)?,
            partitions: Vec::new(),
            faults: Faults::new(config.limits.refusals_max)?,
            commands: VecDeque::new(),
            counters: SmCounters::default(),
        };
        manager.add_partition(config.pkey_first)?;
        manager.configure_port(own, own_config)?;
        manager.handle_link_up(own)?;
        Ok(manager)
    }

    /// Where requests go to.
    pub fn sm_lid(&self) -> Lid {
        // The port exists as long as the manager does, and a port has a LID as long as it exists.
        self.ports.find(self.own).map_or(Lid::MAX, |own| own.lid)
    }

    /// Makes a port known, without a link, or changes what is known of one. Yields its LID, which
    /// stays the same until it is moved. A port whose GID changes is no member of any group any
    /// more.
    pub fn configure_port(&mut self, port: P, config: PortConfig) -> Result<Lid, SmError> {
        if config.gid.is_multicast() {
            return Err(SmError::MulticastGid);
        }
        let old_gid = self.ports.find(port).map(|known| known.config.gid);
        let lid = self.ports.configure(port, config, self.config.pkey_first)?;
        if old_gid.is_some_and(|old_gid| old_gid != config.gid) {
            self.remove_memberships(port, |_| true);
        }
        Ok(lid)
    }

    /// A port got a link: it is given its LID and keys and becomes ACTIVE.
    pub fn handle_link_up(&mut self, port: P) -> Result<(), SmError> {
        let sm_lid = self.sm_lid();
        let known = self.ports.find_mut(port).ok_or(SmError::UnknownPort)?;
        known.link = LinkState::Active;
        let (lid, table) = (known.lid, known.pkeys);
        self.command(Command::SetLid { port, lid });
        self.command(Command::SetSmLid { port, sm_lid });
        self.command(Command::SetPkeyTable { port, table });
        self.command(Command::ActivatePort { port });
        let event = PortEvent::PortActive;
        self.command(Command::Notify { port, event });
        Ok(())
    }

    /// A port lost its link: it leaves every group. It keeps its LID and keys.
    pub fn handle_link_down(&mut self, port: P) -> Result<(), SmError> {
        let known = self.ports.find_mut(port).ok_or(SmError::UnknownPort)?;
        known.link = LinkState::Down;
        self.remove_memberships(port, |_| true);
        Ok(())
    }

    /// Gives a port the next LID that nobody has. The freed one may be next in line for another
    /// port, as on a real fabric.
    pub fn move_lid(&mut self, port: P) -> Result<Lid, SmError> {
        let lid = self.ports.free_lid().ok_or(SmError::LidsExhausted)?;
        self.assign_lid(port, lid)?;
        Ok(lid)
    }

    /// Gives a port a LID of the caller's choice. If it is the manager's own port, every port
    /// learns where the manager is now.
    pub fn assign_lid(&mut self, port: P, lid: Lid) -> Result<(), SmError> {
        let link = self.ports.assign_lid(port, lid)?;
        if link == LinkState::Active {
            self.command(Command::SetLid { port, lid });
        }
        if port == self.own {
            for index in 0..self.ports.len() {
                if let Some(other) = self.ports.active_at(index) {
                    let sm_lid = lid;
                    self.command(Command::SetSmLid { port: other, sm_lid });
                    let event = PortEvent::SmChanged;
                    self.command(Command::Notify { port: other, event });
                }
            }
        }
        if link == LinkState::Active {
            let event = PortEvent::LidChanged;
            self.command(Command::Notify { port, event });
        }
        Ok(())
    }

    /// Makes a partition known. Ports are let in by [`Self::grant_pkey`].
    pub fn add_partition(&mut self, pkey: Pkey) -> Result<(), SmError> {
        match self.partitions.binary_search(&pkey.full()) {
            Ok(_) => Err(SmError::Exists),
            Err(place) => {
                self.partitions.try_reserve(1)?;
                self.partitions.insert(place, pkey.full());
                Ok(())
            }
        }
    }

    /// Lets a port into a partition, as a full or limited member as the key says. A key of the same
    /// partition is replaced where it stands; a new one takes the first free place.
    pub fn grant_pkey(&mut self, port: P, pkey: Pkey) -> Result<(), SmError> {
        if self.partitions.binary_search(&pkey.full()).is_err() {
            return Err(SmError::UnknownPartition);
        }
        let known = self.ports.find_mut(port).ok_or(SmError::UnknownPort)?;
        if !known.pkeys.grant(pkey)? {
            return Ok(());
        }
        self.publish_pkeys(port);
        Ok(())
    }

    /// Takes a port out of a partition: it leaves the partition's groups. The other keys stay where
    /// they are.
    pub fn revoke_pkey(&mut self, port: P, pkey: Pkey) -> Result<(), SmError> {
        let known = self.ports.find_mut(port).ok_or(SmError::UnknownPort)?;
        if !known.pkeys.revoke(pkey) {
            return Err(SmError::UnknownPartition);
        }
        self.remove_memberships(port, |record| record.pkey.full() == pkey.full());
        self.publish_pkeys(port);
        Ok(())
    }

    fn publish_pkeys(&mut self, port: P) {
        let Some(known) = self.ports.find(port) else {
            return;
        };
        if known.link == LinkState::Active {
            let table = known.pkeys;
            self.command(Command::SetPkeyTable { port, table });
            let event = PortEvent::PkeyChanged;
            self.command(Command::Notify { port, event });
        }
    }

    /// Makes the broadcast group of a partition (RFC 4391 5): with it the partition carries IPoIB.
    pub fn create_broadcast_group(
        &mut self,
        scope: Scope,
        pkey: Pkey,
        parameters: GroupParameters,
    ) -> Result<Mlid, SmError> {
        let mgid = BroadcastGroup::new(scope, pkey).mgid();
        self.create_group(mgid, pkey, parameters)
    }

    /// Makes a group that stays without members, as an admin would configure it in advance.
    pub fn create_group(
        &mut self,
        mgid: Mgid,
        pkey: Pkey,
        parameters: GroupParameters,
    ) -> Result<Mlid, SmError> {
        if self.partitions.binary_search(&pkey.full()).is_err() {
            return Err(SmError::UnknownPartition);
        }
        if self.groups.find(mgid).is_some() {
            return Err(SmError::Exists);
        }
        let created = self.groups.create(mgid, pkey.full(), parameters, true);
        let record = created.ok_or(SmError::TableFull)?;
        self.counters.groups_created += 1;
        Ok(record.mlid)
    }

    /// Another manager takes over that knows the configuration but no members: groups vanish,
    /// except those that were configured, and every port is asked to register again.
    pub fn restart(&mut self) {
        let sm_lid = self.sm_lid();
        while let Some((mgid, port)) = self.groups.last_member() {
            self.end_membership(mgid, port, JoinState::all());
        }
        for index in 0..self.ports.len() {
            if let Some(port) = self.ports.active_at(index) {
                self.command(Command::SetSmLid { port, sm_lid });
                for event in [PortEvent::SmChanged, PortEvent::ClientReregister] {
                    self.command(Command::Notify { port, event });
                }
            }
        }
    }

    /// Asks every port to register again, although nothing was forgotten (IBA 14.4.11).
    pub fn request_reregistration(&mut self) {
        for index in 0..self.ports.len() {
            if let Some(port) = self.ports.active_at(index) {
                let event = PortEvent::ClientReregister;
                self.command(Command::Notify { port, event });
            }
        }
    }

    /// Changes what ClassPortInfo says and what joins are let in.
    pub fn set_capabilities(&mut self, capabilities: SaCapabilities) {
        self.config.capabilities = capabilities;
    }

    /// Changes the hop limit of every path from now on.
    pub fn set_hop_limit(&mut self, hop_limit: u8) {
        self.config.hop_limit = hop_limit;
    }

    /// Lets requests fail. It replaces the fault before.
    pub fn set_fault(&mut self, fault: Fault, extent: FaultExtent) {
        self.faults.set(fault, extent);
    }

    /// Lets requests succeed again. Refused groups stay refused.
    pub fn clear_fault(&mut self) {
        self.faults.clear();
    }

    /// Refuses every join of a group from now on.
    pub fn refuse_group(&mut self, mgid: Mgid, refusal: SaRefusal) -> Result<(), SmError> {
        self.faults.refuse_group(mgid, refusal)
    }

    /// Lets a refused group be joined again.
    pub fn admit_group(&mut self, mgid: Mgid) {
        self.faults.admit_group(mgid);
    }

    /// The next thing to do.
    pub fn poll_command(&mut self) -> Option<Command<P>> {
        self.commands.pop_front()
    }

    /// What the manager did so far.
    pub const fn counters(&self) -> &SmCounters {
        &self.counters
    }

    /// The ports, in their order.
    pub fn ports(&self) -> impl Iterator<Item = PortView<P>> + '_ {
        self.ports.iter()
    }

    /// The groups, in the order of their MGIDs.
    pub fn groups(&self) -> impl Iterator<Item = GroupView> + '_ {
        self.groups.iter()
    }

    /// The members of a group, in the order of ports.
    pub fn members(&self, mgid: Mgid) -> impl Iterator<Item = (P, JoinState)> + '_ {
        self.groups.members(mgid)
    }

    /// Ends the memberships of a port in the groups that `which` picks.
    fn remove_memberships(&mut self, port: P, which: impl Fn(&GroupRecord) -> bool) {
        let mut after = None;
        while let Some(mgid) = self.groups.next_membership(port, after, &which) {
            after = Some(mgid);
            self.end_membership(mgid, port, JoinState::all());
        }
    }

    /// Ends ways in which a port takes part in a group, and the group if nobody keeps it alive any
    /// more. Yields the ways that are left; `None` if the port is not a member.
    fn end_membership(&mut self, mgid: Mgid, port: P, join_state: JoinState) -> Option<JoinState> {
        let removal = self.groups.leave(mgid, port, join_state)?;
        self.carry_out(port, &removal);
        while let Some(orphan) = self.groups.orphan(mgid) {
            let removal = self.groups.leave(mgid, orphan, JoinState::all())?;
            self.carry_out(orphan, &removal);
        }
        Some(removal.join_state)
    }

    /// Makes the switch follow the end of a membership.
    fn carry_out(&mut self, port: P, removal: &Removal) {
        if removal.stopped_receiving {
            let mlid = removal.mlid;
            self.command(Command::RemoveMember { mlid, port });
        }
        if removal.deleted_group {
            self.counters.groups_deleted += 1;
        }
    }

    /// Queues a command. A command that finds no memory is lost and counted: the fabric then lacks
    /// what the manager believes, which the counter says.
    fn command(&mut self, command: Command<P>) {
        match self.commands.try_reserve(1) {
            Ok(()) => self.commands.push_back(command),
            Err(_) => self.counters.commands_lost += 1,
        }
    }
}

#[cfg(test)]
mod tests;
