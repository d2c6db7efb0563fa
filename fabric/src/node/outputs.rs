//! What comes out of a node: actions, events, packets.

use alloc::collections::{TryReserveError, VecDeque};

use ipoib_rs::action::Action;
use ipoib_rs::event::Event;
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::Delivery;

use super::{InterfaceId, NodeConfig};
use crate::Fabric;
use crate::packet::Packet;

/// An action of an interface that was not executed yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PendingAction {
    /// The interface.
    pub interface: InterfaceId,
    /// The action.
    pub action: Action,
}

/// Something that the host should know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NodeEvent {
    /// The interface.
    pub interface: InterfaceId,
    /// What happened.
    pub event: HostEvent,
}

/// What happened at an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HostEvent {
    /// The send ring has room again: packets that were refused may be offered.
    SendQueueWoken,
    /// The interface changed.
    State(Event),
}

/// A packet for the network stack.
#[derive(Debug)]
pub struct Delivered {
    /// The interface that received it.
    pub interface: InterfaceId,
    /// The packet, without its encapsulation header.
    pub packet: Packet,
    /// What it is.
    pub delivery: Delivery,
}

/// A packet that is larger than its receiver's MTU and must not be fragmented.
#[derive(Debug)]
pub struct TooBig {
    /// The interface that should have sent it.
    pub interface: InterfaceId,
    /// The packet.
    pub packet: Packet,
    /// The MTU to report.
    pub mtu: usize,
}

/// What was lost.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NodeCounters {
    /// Packets that were not delivered because the stack did not take those before.
    pub deliveries_lost: u64,
    /// Packets whose sender was not told that they are too big, for the same reason.
    pub too_big_lost: u64,
    /// Events that nobody polled.
    pub events_lost: u64,
    /// Actions for which there was no room. The core has one operation under way for each object,
    /// so this is a bug.
    pub actions_lost: u64,
    /// Times that a send queue went to the SQE state and was brought back.
    pub send_queues_recovered: u64,
}

/// Packets too big that wait to be answered.
const TOO_BIG_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Outputs {
    pub(super) actions: VecDeque<PendingAction>,
    actions_max: usize,
    pub(super) events: VecDeque<NodeEvent>,
    events_max: usize,
    pub(super) delivered: VecDeque<Delivered>,
    delivered_max: usize,
    pub(super) too_big: VecDeque<TooBig>,
    pub(super) counters: NodeCounters,
}

impl Outputs {
    pub(super) fn new(config: &NodeConfig) -> Result<Self, TryReserveError> {
        let (events_max, delivered_max) =
            (config.events_max as usize, config.delivered_max as usize);
        let mut outputs = Self {
            actions: VecDeque::new(),
            actions_max: 0,
            events: VecDeque::new(),
            events_max,
            delivered: VecDeque::new(),
            delivered_max,
            too_big: VecDeque::new(),
            counters: NodeCounters::default(),
        };
        outputs.events.try_reserve_exact(events_max)?;
        outputs.delivered.try_reserve_exact(delivered_max)?;
        outputs.too_big.try_reserve_exact(TOO_BIG_MAX)?;
        Ok(outputs)
    }

    /// Makes room for the actions of one more interface.
    pub(super) fn reserve_actions(&mut self, limits: &Limits) -> Result<(), TryReserveError> {
        let actions_max = self.actions_max + actions_max(limits);
        self.actions.try_reserve(actions_max - self.actions.len())?;
        self.actions_max = actions_max;
        Ok(())
    }

    /// Drops the actions of an interface that is no more, and their room.
    pub(super) fn forget_actions(&mut self, id: InterfaceId, limits: &Limits) {
        self.actions.retain(|action| action.interface != id);
        self.actions_max -= actions_max(limits);
    }

    pub(super) fn push_action(&mut self, interface: InterfaceId, action: Action) {
        if self.actions.len() < self.actions_max {
            self.actions.push_back(PendingAction { interface, action });
        } else {
            self.counters.actions_lost += 1;
        }
    }

    pub(super) fn push_event(&mut self, interface: InterfaceId, event: HostEvent) {
        if self.events.len() < self.events_max {
            self.events.push_back(NodeEvent { interface, event });
        } else {
            self.counters.events_lost += 1;
        }
    }

    /// Gives the packet back if the queue is full.
    pub(super) fn push_delivered(&mut self, delivered: Delivered) -> Result<(), Packet> {
        if self.delivered.len() < self.delivered_max {
            self.delivered.push_back(delivered);
            Ok(())
        } else {
            self.counters.deliveries_lost += 1;
            Err(delivered.packet)
        }
    }

    /// Gives the packet back if the queue is full.
    pub(super) fn push_too_big(&mut self, too_big: TooBig) -> Result<(), Packet> {
        if self.too_big.len() < TOO_BIG_MAX {
            self.too_big.push_back(too_big);
            Ok(())
        } else {
            self.counters.too_big_lost += 1;
            Err(too_big.packet)
        }
    }

    /// Ends the packets that nobody took.
    pub(super) fn reclaim(self, fabric: &mut Fabric) {
        let delivered = self.delivered.into_iter().map(|delivered| delivered.packet);
        let too_big = self.too_big.into_iter().map(|too_big| too_big.packet);
        for packet in delivered.chain(too_big) {
            fabric.pool_mut().free(packet);
        }
    }
}

/// Every path, group, handle and connection, the queue pair, the listener and the SA have one
/// operation under way; a query may be given up and another one asked before either is executed.
const fn actions_max(limits: &Limits) -> usize {
    let objects =
        limits.paths_max + limits.groups_max + limits.handles_max() + limits.connections_max() + 3;
    3 * objects as usize + 1
}
