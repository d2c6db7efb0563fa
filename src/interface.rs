//! One IPoIB interface: the contract between the core and its shell.

use core::marker::PhantomData;

use crate::action::{Action, GroupRecord, OpId, PathRecord, SaCapabilities, SaError, VerbError};
use crate::counters::Counters;
use crate::event::Event;
use crate::ib::{Gid, Mgid, PortAttributes, Qpn};
use crate::limits::Limits;
use crate::packet::{CompletionStatus, DataPath, PacketBuf, PacketSink, Receive, SendId};
use crate::time::Instant;
use crate::wire::{EtherType, LinkAddress, Scope};

/// An interface.
#[derive(Debug)]
pub struct Interface<B> {
    _b: PhantomData<B>,
}

/// What an interface is made of.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The number of its queue pair.
    pub qpn: Qpn,
    /// The port as it is now.
    pub port: PortAttributes,
    /// The scope of the groups.
    pub scope: Scope,
    /// Source of everything that must differ between interfaces and runs.
    pub seed: u64,
    /// Sizes.
    pub limits: Limits,
}

/// Attaching failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttachError {
    /// No memory for the tables.
    OutOfMemory,
}

/// Which asynchronous event made the shell look at the port (IBA 11.6.3).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PortEvent {
    /// The subnet manager asks every client to register again.
    ClientReregister,
    /// The GID table changed.
    GidChanged,
    /// The LID changed.
    LidChanged,
    /// The P_Key table changed.
    PkeyChanged,
    /// The port became ACTIVE.
    PortActive,
    /// The port left ACTIVE.
    PortError,
    /// Another subnet manager took over.
    SmChanged,
}

/// A packet that was refused because the send ring is full. Keep it and offer it again after
/// [`Action::WakeSendQueue`].
#[derive(Debug)]
pub struct RingFull<B>(pub B);

impl<B: PacketBuf> Interface<B> {
    /// Makes an interface, administratively down.
    pub fn attach(_config: Config) -> Result<Self, AttachError> {
        unimplemented!()
    }
    pub fn handle_admin_up(&mut self, _now: Instant) {
        unimplemented!()
    }
    pub fn handle_admin_down(&mut self, _now: Instant, _sink: &mut impl PacketSink<B>) {
        unimplemented!()
    }
    /// Gives everything back; [`Event::Detached`] says when that is done.
    pub fn handle_detach(&mut self, _now: Instant, _sink: &mut impl PacketSink<B>) {
        unimplemented!()
    }
    pub fn handle_port_event(
        &mut self,
        _now: Instant,
        _event: PortEvent,
        _port: &PortAttributes,
        _sink: &mut impl PacketSink<B>,
    ) {
        unimplemented!()
    }
    /// The link-layer multicast addresses that the stack wants to receive, all of them.
    pub fn handle_multicast_list<'a>(
        &mut self,
        _now: Instant,
        _list: impl Iterator<Item = &'a [u8]>,
        _sink: &mut impl PacketSink<B>,
    ) {
        unimplemented!()
    }
    /// `packet` starts with the network header.
    pub fn handle_transmit(
        &mut self,
        _now: Instant,
        _to: &LinkAddress,
        _protocol: EtherType,
        _packet: B,
        _datapath: &mut impl DataPath<B>,
    ) -> Result<(), RingFull<B>> {
        unimplemented!()
    }
    pub fn handle_send_completion(
        &mut self,
        _now: Instant,
        _id: SendId,
        _status: CompletionStatus,
        _datapath: &mut impl DataPath<B>,
    ) {
        unimplemented!()
    }
    pub fn handle_receive(
        &mut self,
        _now: Instant,
        _receive: Receive<B>,
        _datapath: &mut impl DataPath<B>,
    ) {
        unimplemented!()
    }
    /// A receive that brought nothing; the data path has its buffer back.
    pub fn handle_receive_failed(
        &mut self,
        _now: Instant,
        _status: CompletionStatus,
        _datapath: &mut impl DataPath<B>,
    ) {
        unimplemented!()
    }
    pub fn handle_path_answer(
        &mut self,
        _now: Instant,
        _op: OpId,
        _answer: Result<PathRecord, SaError>,
        _sink: &mut impl PacketSink<B>,
    ) {
        unimplemented!()
    }
    pub fn handle_join_answer(
        &mut self,
        _now: Instant,
        _op: OpId,
        _answer: Result<GroupRecord, SaError>,
        _sink: &mut impl PacketSink<B>,
    ) {
        unimplemented!()
    }
    pub fn handle_leave_answer(&mut self, _now: Instant, _op: OpId, _answer: Result<(), SaError>) {
        unimplemented!()
    }
    pub fn handle_sa_capabilities(
        &mut self,
        _now: Instant,
        _op: OpId,
        _answer: Result<SaCapabilities, SaError>,
    ) {
        unimplemented!()
    }
    pub fn handle_verb_result(
        &mut self,
        _now: Instant,
        _op: OpId,
        _result: Result<(), VerbError>,
        _datapath: &mut impl DataPath<B>,
    ) {
        unimplemented!()
    }
    pub fn handle_timeout(&mut self, _now: Instant, _datapath: &mut impl DataPath<B>) {
        unimplemented!()
    }
    pub fn poll_action(&mut self) -> Option<Action> {
        unimplemented!()
    }
    pub fn poll_timeout(&self) -> Option<Instant> {
        unimplemented!()
    }
    pub fn poll_event(&mut self) -> Option<Event> {
        unimplemented!()
    }
    pub fn counters(&self) -> &Counters {
        unimplemented!()
    }
    pub fn address(&self) -> LinkAddress {
        unimplemented!()
    }
    pub fn broadcast(&self) -> Option<Mgid> {
        unimplemented!()
    }
    pub fn is_link_up(&self) -> bool {
        unimplemented!()
    }
    /// Without the encapsulation header.
    pub fn mtu(&self) -> usize {
        unimplemented!()
    }
    pub fn state_name(&self) -> &'static str {
        unimplemented!()
    }
    /// For tables: address, LID, state name, MTU, queued packets.
    pub fn neighbors(&self) -> impl Iterator<Item = NeighborRow> + '_ {
        core::iter::empty()
    }
    pub fn groups(&self) -> impl Iterator<Item = GroupRow> + '_ {
        core::iter::empty()
    }
}

/// A line of the table of neighbours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NeighborRow {
    /// The link-layer address.
    pub address: LinkAddress,
    /// The destination LID, once known.
    pub lid: Option<crate::ib::Lid>,
    /// The state.
    pub state: &'static str,
    /// The neighbour's MTU.
    pub mtu: usize,
    /// Packets that wait.
    pub queued: u32,
    /// Packets posted to it.
    pub sent: u64,
}

/// A line of the table of groups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GroupRow {
    /// The group.
    pub mgid: Mgid,
    /// Its LID, once joined.
    pub mlid: Option<crate::ib::Mlid>,
    /// The state.
    pub state: &'static str,
    /// Packets that wait.
    pub queued: u32,
}

#[allow(unused)]
fn _unused(_: Gid) {}
