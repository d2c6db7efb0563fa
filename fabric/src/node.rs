//! A port as a host uses it: its datagrams for management, and its IPoIB interfaces.
//!
//! A [`Node`] is what the kernel module is around the protocol core, over software queues: it runs
//! the shared [`ipoib_rs::pump`], executes actions as verbs and management datagrams, makes and
//! ends reliable connections, reaps completions and feeds the results back. Actions wait in a queue
//! until [`Node::execute`], so that a simulator can delay, reorder or fail them; [`Node::run`]
//! executes them at once.
//!
//! Inputs are `handle_*`; [`Node::poll`] looks at the adapter. After any of them come the outputs:
//! [`Node::poll_action`], [`Node::poll_timeout`], [`Node::poll_event`], [`Node::poll_delivered`],
//! [`Node::poll_too_big`].

mod connect;
mod datapath;
mod execute;
mod links;
mod outputs;
mod reap;

use alloc::vec::Vec;

use ipoib_rs::action::{OpId, SaError};
use ipoib_rs::ib::Pkey;
use ipoib_rs::interface::{
    AttachError, Config, ConnectedSupport, Interface, Mode, ModeError, MtuOutOfRange, PortEvent,
    RingFull,
};
use ipoib_rs::limits::Limits;
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{EtherType, LinkAddress, Scope};

use crate::cm::{Manager, ManagerCounters};
use crate::cq::CqId;
use crate::gsi::{AgentId, Gsi, Role};
use crate::mad::cm::CM_CLASS;
use crate::packet::Packet;
use crate::port::PortId;
use crate::qp::{QpConfig, QpId, QpType};
use crate::sa::{Answer, Client};
use crate::{AsyncEvent, CreateError, Fabric};

use connect::{PendingRequest, Tag};
use datapath::{NodeShell, Wiring};
use outputs::Outputs;
pub use outputs::{Delivered, HostEvent, NodeCounters, NodeEvent, PendingAction, TooBig};

/// A port of a host.
#[derive(Debug)]
pub struct Node {
    port: PortId,
    context: u64,
    gsi: Gsi,
    agent: AgentId,
    sa: Client<Query>,
    cm_agent: AgentId,
    cm: Manager<Tag>,
    /// REQs that interfaces are about to accept.
    requests: Vec<PendingRequest>,
    interfaces: Vec<Option<Slot>>,
    outputs: Outputs,
}

/// What a node is made of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NodeConfig {
    /// Comes with the notifications of the node's completion queues.
    pub context: u64,
    /// Queries to the SA that may be under way.
    pub sa_requests_max: u32,
    /// Reliable connections of all interfaces, those included that ended a moment ago.
    pub connections_max: u16,
    /// Where the names of connections begin. It should differ between nodes and between runs.
    pub seed: u64,
    /// Packets that wait to be taken by the network stack.
    pub delivered_max: u32,
    /// Events that wait to be polled.
    pub events_max: u32,
}

impl NodeConfig {
    /// What a host needs.
    pub const fn with_context(context: u64) -> Self {
        Self {
            context,
            sa_requests_max: 1024,
            connections_max: 1024,
            seed: context,
            delivered_max: 1024,
            events_max: 256,
        }
    }
}

/// An interface of a node, in the order in which they were added.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct InterfaceId(u32);

impl InterfaceId {
    /// The first interface that is added to a node.
    pub const FIRST: Self = Self(0);

    /// Its number, from 0; the number of an interface that was removed is used again.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What an interface is made of.
#[derive(Clone, Copy, Debug)]
pub struct InterfaceConfig {
    /// The partition of a child; `None` is the interface of the port itself, which follows the
    /// P_Key at index 0.
    pub pkey: Option<Pkey>,
    /// The scope of its groups.
    pub scope: Scope,
    /// The mode to begin with.
    pub mode: Mode,
    /// What the adapter can do for connected mode; `None` for no reliable connections.
    pub connected: Option<ConnectedSupport>,
    /// Source of everything that must differ between interfaces and runs.
    pub seed: u64,
    /// The sizes of its tables and queues.
    pub limits: Limits,
}

/// A node or interface was not made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NodeError {
    /// The core refused.
    Attach(AttachError),
    /// The adapter refused.
    Verb(CreateError),
}

impl From<CreateError> for NodeError {
    fn from(error: CreateError) -> Self {
        Self::Verb(error)
    }
}

/// An interface was not removed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RemoveError {
    /// It has not reported [`ipoib_rs::event::Event::Detached`].
    NotDetached,
    /// No such interface.
    Unknown,
}

/// Who asked the SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Query {
    interface: InterfaceId,
    op: OpId,
}

/// An interface and what belongs to it.
#[derive(Debug)]
struct Slot {
    interface: Interface<Packet>,
    pkey: Option<Pkey>,
    wiring: Wiring,
    deadline: Option<Instant>,
    is_detached: bool,
}

impl Node {
    /// Takes a port into use: opens its QP1.
    ///
    /// # Errors
    ///
    /// [`NodeError::Verb`].
    pub fn new(fabric: &mut Fabric, port: PortId, config: &NodeConfig) -> Result<Self, NodeError> {
        let out_of_memory = |_| NodeError::Verb(CreateError::OutOfMemory);
        let outputs = Outputs::new(config).map_err(out_of_memory)?;
        let mut gsi = Gsi::open(fabric, port, config.context)?;
        match Parts::new(fabric, &mut gsi, port, config) {
            Ok(Parts { agent, sa, cm_agent, cm, requests }) => Ok(Self {
                port,
                context: config.context,
                gsi,
                agent,
                sa,
                cm_agent,
                cm,
                requests,
                interfaces: Vec::new(),
                outputs,
            }),
            Err(error) => {
                gsi.close(fabric);
                Err(error.into())
            }
        }
    }

    /// Gives the port back. Interfaces that were not removed lose their queue pairs; packets that
    /// they still hold are lost, which [`crate::packet::Pool::outstanding`] shows.
    pub fn close(mut self, fabric: &mut Fabric) {
        for slot in self.interfaces.iter_mut().filter_map(Option::take) {
            slot.wiring.close(fabric);
        }
        self.outputs.reclaim(fabric);
        self.gsi.close(fabric);
    }

    /// Makes an interface, administratively down.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub fn add_interface(
        &mut self,
        fabric: &mut Fabric,
        config: &InterfaceConfig,
    ) -> Result<InterfaceId, NodeError> {
        let limits = &config.limits;
        let out_of_memory = |_| NodeError::Verb(CreateError::OutOfMemory);
        self.interfaces.try_reserve(1).map_err(out_of_memory)?;
        self.outputs.reserve_actions(limits).map_err(out_of_memory)?;
        let port = fabric.port_attributes(self.port, config.pkey).ok_or(CreateError::Unknown)?;
        let wiring = Wiring::open(fabric, self.port, self.context, config)?;
        let attached = Interface::attach(Config {
            qpn: wiring.qpn,
            port,
            scope: config.scope,
            mode: config.mode,
            connected: config.connected,
            seed: config.seed,
            limits: *limits,
        });
        let interface = match attached {
            Ok(interface) => interface,
            Err(error) => {
                wiring.close(fabric);
                return Err(NodeError::Attach(error));
            }
        };
        let slot =
            Some(Slot { interface, pkey: config.pkey, wiring, deadline: None, is_detached: false });
        let vacant = self.interfaces.iter().position(Option::is_none);
        let index = vacant.unwrap_or(self.interfaces.len());
        match self.interfaces.get_mut(index) {
            Some(place) => *place = slot,
            None => self.interfaces.push(slot),
        }
        Ok(InterfaceId(index as u32))
    }

    /// Frees an interface that is detached.
    ///
    /// # Errors
    ///
    /// [`RemoveError`].
    pub fn remove_interface(
        &mut self,
        fabric: &mut Fabric,
        id: InterfaceId,
    ) -> Result<(), RemoveError> {
        let place = self.interfaces.get_mut(id.index());
        let place = place.ok_or(RemoveError::Unknown)?;
        let slot = place.as_ref().ok_or(RemoveError::Unknown)?;
        if !slot.is_detached {
            return Err(RemoveError::NotDetached);
        }
        if let Some(slot) = place.take() {
            self.outputs.forget_actions(id, &slot.wiring.limits);
            slot.wiring.close(fabric);
        }
        Ok(())
    }

    /// The administrator wants the interface up.
    pub fn handle_admin_up(&mut self, now: Instant, fabric: &mut Fabric, id: InterfaceId) {
        self.pump(fabric, id, |interface, path| {
            interface.handle_admin_up(now, path);
        });
    }

    /// The administrator wants the interface down.
    pub fn handle_admin_down(&mut self, now: Instant, fabric: &mut Fabric, id: InterfaceId) {
        self.pump(fabric, id, |interface, path| {
            interface.handle_admin_down(now, path);
        });
    }

    /// The interface is to give everything back; [`ipoib_rs::event::Event::Detached`] says when
    /// that is done.
    pub fn handle_detach(&mut self, now: Instant, fabric: &mut Fabric, id: InterfaceId) {
        self.pump(fabric, id, |interface, path| {
            interface.handle_detach(now, path);
        });
    }

    /// The administrator wants another mode.
    ///
    /// # Errors
    ///
    /// [`ModeError`]; an interface that was removed has no reliable connections either.
    pub fn set_mode(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        id: InterfaceId,
        mode: Mode,
    ) -> Result<(), ModeError> {
        let outcome =
            self.pump(fabric, id, |interface, path| interface.handle_mode(now, mode, path));
        outcome.unwrap_or(Err(ModeError::Unsupported))
    }

    /// The administrator wants another MTU for connected mode, in bytes without the encapsulation
    /// header.
    ///
    /// # Errors
    ///
    /// [`MtuOutOfRange`]; an interface that was removed accepts none.
    pub fn set_connected_mtu(
        &mut self,
        fabric: &mut Fabric,
        id: InterfaceId,
        mtu: usize,
    ) -> Result<(), MtuOutOfRange> {
        let outcome = self.pump(fabric, id, |interface, _| interface.handle_connected_mtu(mtu));
        outcome.unwrap_or(Err(MtuOutOfRange { min: 0, max: 0 }))
    }

    /// The network stack wants to receive these link-layer multicast addresses, all of them.
    pub fn handle_multicast_list<'a>(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        id: InterfaceId,
        list: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        self.pump(fabric, id, |interface, path| {
            interface.handle_multicast_list(now, list, path);
        });
    }

    /// The network stack sends a packet that starts with its network header.
    ///
    /// # Errors
    ///
    /// [`RingFull`] with the packet: it is to be offered again after [`HostEvent::SendQueueWoken`].
    pub fn handle_transmit(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        id: InterfaceId,
        to: &LinkAddress,
        protocol: EtherType,
        packet: Packet,
    ) -> Result<(), RingFull<Packet>> {
        if self.slot(id).is_none() {
            fabric.pool_mut().free(packet);
            return Ok(());
        }
        self.pump(fabric, id, |interface, path| {
            interface.handle_transmit(now, to, protocol, packet, path)
        })
        .unwrap_or(Ok(()))
    }

    /// The adapter reported an asynchronous event. One that is not about this port or a queue pair
    /// of it is ignored.
    pub fn handle_event(&mut self, now: Instant, fabric: &mut Fabric, event: AsyncEvent) {
        match event {
            AsyncEvent::Port(port, event) if port == self.port => {
                self.handle_port_event(now, fabric, event);
            }
            AsyncEvent::LastWqeReached(qp) => self.handle_last_wqe(fabric, qp),
            // A queue pair is never in RTR between two verbs, a completion queue has room for all
            // that is posted, and nobody asks for a limit of a shared receive queue.
            AsyncEvent::Port(..)
            | AsyncEvent::CommunicationEstablished(_)
            | AsyncEvent::CqOverrun(_)
            | AsyncEvent::SrqLimitReached(_) => {}
        }
    }

    /// Something happened at the port. Every interface looks at the port as it is now.
    pub fn handle_port_event(&mut self, now: Instant, fabric: &mut Fabric, event: PortEvent) {
        for id in self.ids() {
            let Some(slot) = self.slot(id) else {
                continue;
            };
            let Some(port) = fabric.port_attributes(self.port, slot.pkey) else {
                continue;
            };
            self.pump(fabric, id, |interface, path| {
                interface.handle_port_event(now, event, &port, path);
            });
        }
    }

    /// When to call [`Self::handle_timeout`]; `None` if nothing waits for time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let interfaces = self.interfaces.iter().flatten();
        let deadlines = interfaces.filter_map(|slot| slot.deadline);
        deadlines.chain(self.sa.poll_timeout()).chain(self.cm.poll_timeout()).min()
    }

    /// Time has passed. Calls at any other time do nothing.
    pub fn handle_timeout(&mut self, now: Instant, fabric: &mut Fabric) {
        while let Some((query, answer)) = self.sa.handle_timeout(now) {
            self.feed_answer(now, fabric, query, answer);
        }
        self.cm.handle_timeout(now);
        self.drive_cm(now, fabric);
        for id in self.ids() {
            let deadline = self.slot(id).and_then(|slot| slot.deadline);
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.pump(fabric, id, |interface, path| {
                    interface.handle_timeout(now, path);
                });
            }
        }
    }

    /// Looks at the adapter and executes all actions, until there is nothing more to do.
    pub fn run(&mut self, now: Instant, fabric: &mut Fabric) {
        loop {
            self.poll(now, fabric);
            let Some(action) = self.poll_action() else {
                return;
            };
            self.execute(now, fabric, action);
            while let Some(action) = self.poll_action() {
                self.execute(now, fabric, action);
            }
        }
    }

    /// The next thing to execute: the oldest action.
    pub fn poll_action(&mut self) -> Option<PendingAction> {
        self.outputs.actions.pop_front()
    }

    /// The next thing that the host should know.
    pub fn poll_event(&mut self) -> Option<NodeEvent> {
        self.outputs.events.pop_front()
    }

    /// The next packet for the network stack.
    pub fn poll_delivered(&mut self) -> Option<Delivered> {
        self.outputs.delivered.pop_front()
    }

    /// The next packet that its sender must be told of by ICMP.
    pub fn poll_too_big(&mut self) -> Option<TooBig> {
        self.outputs.too_big.pop_front()
    }

    /// The port.
    pub const fn port(&self) -> PortId {
        self.port
    }

    /// An interface, to be looked at.
    pub fn interface(&self, id: InterfaceId) -> Option<&Interface<Packet>> {
        Some(&self.slot(id)?.interface)
    }

    /// The interfaces, in the order of their numbers.
    pub fn interfaces(&self) -> impl Iterator<Item = (InterfaceId, &Interface<Packet>)> {
        let slots = (0..).zip(&self.interfaces);
        slots.filter_map(|(index, slot)| Some((InterfaceId(index), &slot.as_ref()?.interface)))
    }

    /// What was lost because nobody polled, and the like.
    pub const fn counters(&self) -> &NodeCounters {
        &self.outputs.counters
    }

    /// The management datagrams of the port.
    pub const fn gsi(&self) -> &Gsi {
        &self.gsi
    }

    /// The client of the SA: [`Client::outstanding_len`] and counters.
    pub fn sa_counters(&self) -> &crate::sa::ClientCounters {
        self.sa.counters()
    }

    /// What the communication manager saw.
    pub const fn cm_counters(&self) -> &ManagerCounters {
        self.cm.counters()
    }

    /// Connections that the communication manager knows, those included that ended a moment ago.
    pub fn cm_connections_len(&self) -> usize {
        self.cm.connections_len()
    }

    /// Makes the adapter refuse the next posts of an interface, sends and receives alike.
    pub fn refuse_posts(&mut self, id: InterfaceId, count: u32) {
        if let Some(slot) = self.slot_mut(id) {
            slot.wiring.posts_to_refuse = count;
        }
    }

    fn ids(&self) -> impl Iterator<Item = InterfaceId> + use<> {
        (0..self.interfaces.len() as u32).map(InterfaceId)
    }

    fn slot(&self, id: InterfaceId) -> Option<&Slot> {
        self.interfaces.get(id.index())?.as_ref()
    }

    fn slot_mut(&mut self, id: InterfaceId) -> Option<&mut Slot> {
        self.interfaces.get_mut(id.index())?.as_mut()
    }

    fn shell<'a>(&'a mut self, fabric: &'a mut Fabric, id: InterfaceId) -> Option<NodeShell<'a>> {
        let slot = self.interfaces.get_mut(id.index())?.as_mut()?;
        Some(NodeShell { id, slot, outputs: &mut self.outputs, fabric })
    }

    fn feed_answer(&mut self, now: Instant, fabric: &mut Fabric, query: Query, answer: Answer) {
        let Query { interface, op } = query;
        self.pump(fabric, interface, |interface, path| match answer {
            Answer::Path(answer) => interface.handle_path_answer(now, op, answer, path),
            Answer::Join(answer) => interface.handle_join_answer(now, op, answer, path),
            Answer::Leave(answer) => interface.handle_leave_answer(now, op, answer, path),
            Answer::Capabilities(answer) => interface.handle_sa_capabilities(op, answer),
        });
    }
}

/// What talks through QP1.
struct Parts {
    agent: AgentId,
    sa: Client<Query>,
    cm_agent: AgentId,
    cm: Manager<Tag>,
    requests: Vec<PendingRequest>,
}

impl Parts {
    fn new(
        fabric: &Fabric,
        gsi: &mut Gsi,
        port: PortId,
        config: &NodeConfig,
    ) -> Result<Self, CreateError> {
        let out_of_memory = |_| CreateError::OutOfMemory;
        let agent = gsi.register(Role::Client)?;
        let sa = Client::new(agent.value(), config.sa_requests_max as usize);
        let cm_agent = gsi.register(Role::Server { class: CM_CLASS })?;
        let cm = connect::manager(fabric, port, config).map_err(out_of_memory)?;
        let mut requests = Vec::new();
        requests.try_reserve_exact(config.connections_max.into()).map_err(out_of_memory)?;
        Ok(Self { agent, sa: sa.map_err(out_of_memory)?, cm_agent, cm, requests })
    }
}
