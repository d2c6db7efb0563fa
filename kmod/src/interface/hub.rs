//! What the network stack and the InfiniBand stack call: it finds the interface, if there still is
//! one, and tells it.
//!
//! The stacks hold a hub, and it holds the interface until that is detached: a call that comes late
//! finds nothing.

use alloc::sync::Arc;

use ipoib_rs::action::{
    ConnectError, ConnectionId, ConnectionParameters, GroupRecord, OpId, PathRecord, RejectReason,
    SaCapabilities, SaError,
};
use ipoib_rs::ib::Pkey;
use ipoib_rs::interface::{IncomingRequest, PortEvent};
use kpi::client::PortWatcher;
use kpi::context::{InNetEpoch, MaySleep, Unlocked};
use kpi::errno::Errno;
use kpi::ifnet::{Driver, InterfaceCounter, LinkHeader, Vlan, VlanTag};
use kpi::late::Late;
use kpi::mbuf::Packet;
use kpi::time;
use kpi::verbs::{CompletionHandler, QueuePairHandler};
use kpi::{cm, sa};

use super::{Interface, signals};
use crate::children::Children;

/// The events of a port, in the order of their signals.
pub(super) const PORT_EVENTS: [PortEvent; 7] = [
    PortEvent::ClientReregister,
    PortEvent::GidChanged,
    PortEvent::LidChanged,
    PortEvent::PkeyChanged,
    PortEvent::PortActive,
    PortEvent::PortError,
    PortEvent::SmChanged,
];

#[derive(Debug)]
pub(super) struct Hub {
    interface: Late<Interface>,
    /// Of the interface of a port. They are not the interface's: they can go while it is used.
    children: Option<Children>,
}

impl Hub {
    /// Connected to nothing: what is called before is as if it came too late.
    pub(super) const fn new(children: Option<Children>) -> Self {
        Self { interface: Late::new(), children }
    }

    pub(super) const fn children(&self) -> Option<&Children> {
        self.children.as_ref()
    }

    pub(super) fn connect(&self, interface: &Arc<Interface>, may_sleep: &mut MaySleep) {
        // There was none before.
        drop(self.interface.connect(Arc::clone(interface), may_sleep));
    }

    pub(super) fn disconnect(&self, may_sleep: &mut MaySleep) {
        drop(self.interface.disconnect(may_sleep));
    }
}

impl Driver for Hub {
    fn transmit(
        &self,
        header: LinkHeader,
        packet: Packet,
        epoch: &mut InNetEpoch,
    ) -> Result<(), Errno> {
        self.interface
            .with(|interface| interface.transmit(header, packet, epoch))
            .unwrap_or(Err(Errno::ENXIO))
    }

    fn flush_queue(&self, unlocked: &mut Unlocked) {
        self.interface.with(|interface| {
            interface.flush_queue(unlocked);
        });
    }

    fn set_up(&self, is_up: bool, may_sleep: &mut MaySleep) {
        self.interface.with(|interface| {
            interface.set_up(is_up, may_sleep);
        });
    }

    fn set_mtu(&self, mtu: usize, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        self.interface
            .with(|interface| interface.set_mtu(mtu, may_sleep))
            .unwrap_or(Err(Errno::ENXIO))
    }

    fn groups_changed(&self) {
        self.interface.with(|interface| {
            interface.signal(signals::GROUPS_CHANGED);
        });
    }

    fn mtu_max(&self, unlocked: &mut Unlocked) -> usize {
        self.interface.with(|interface| interface.mtu_max(unlocked)).unwrap_or_default()
    }

    fn counter(&self, counter: InterfaceCounter, unlocked: &mut Unlocked) -> u64 {
        self.interface.with(|interface| interface.counter(counter, unlocked)).unwrap_or(0)
    }

    fn child_configured(&self, vlan: &Vlan, may_sleep: &mut MaySleep) {
        if let Some(children) = &self.children {
            children.add(vlan, may_sleep);
        }
    }

    fn child_unconfigured(&self, tag: VlanTag, may_sleep: &mut MaySleep) {
        if let Some(children) = &self.children {
            children.remove(tag, may_sleep);
        }
    }
}

impl PortWatcher for Hub {
    fn port_changed(&self, event: PortEvent, _unlocked: &mut Unlocked) {
        // What the port is now decides, so events of a kind may be taken together.
        let position = PORT_EVENTS.iter().position(|&one| one == event).unwrap_or_default();
        self.interface.with(|interface| interface.signal(signals::PORT_EVENT_FIRST << position));
    }
}

impl CompletionHandler for Hub {
    fn completions_arrived(&self, _unlocked: &mut Unlocked) {
        self.interface.with(|interface| {
            interface.reaper.wake();
        });
    }
}

impl QueuePairHandler for Hub {
    fn last_wqe_reached(&self, connection: ConnectionId, unlocked: &mut Unlocked) {
        self.interface.with(|interface| {
            interface.feed(unlocked, |core, _| core.handle_last_wqe(connection));
        });
    }

    fn queue_pair_failed(&self, connection: ConnectionId, unlocked: &mut Unlocked) {
        self.interface.with(|interface| {
            interface.lose_connection(connection, unlocked);
        });
    }
}

impl sa::Handler for Hub {
    fn path_answered(
        &self,
        op: OpId,
        answer: Result<PathRecord, SaError>,
        unlocked: &mut Unlocked,
    ) {
        self.interface.with(|interface| {
            let now = time::now();
            interface.feed(unlocked, |core, path| core.handle_path_answer(now, op, answer, path));
        });
    }

    fn join_answered(
        &self,
        op: OpId,
        answer: Result<GroupRecord, SaError>,
        unlocked: &mut Unlocked,
    ) {
        self.interface.with(|interface| {
            let now = time::now();
            interface.feed(unlocked, |core, path| core.handle_join_answer(now, op, answer, path));
        });
    }

    fn capabilities_answered(
        &self,
        op: OpId,
        answer: Result<SaCapabilities, SaError>,
        unlocked: &mut Unlocked,
    ) {
        self.interface.with(|interface| {
            interface.feed(unlocked, |core, _| core.handle_sa_capabilities(op, answer));
        });
    }
}

impl cm::Handler for Hub {
    fn connect_requested(
        &self,
        request: IncomingRequest,
        _pkey: Pkey,
        unlocked: &mut Unlocked,
    ) -> Result<(), RejectReason> {
        let now = time::now();
        self.interface
            .with(|interface| {
                interface.feed(unlocked, |core, _| core.handle_connect_request(now, request))
            })
            .unwrap_or(Err(RejectReason::InvalidServiceId))
    }

    fn connect_answered(
        &self,
        op: OpId,
        answer: Result<ConnectionParameters, ConnectError>,
        unlocked: &mut Unlocked,
    ) {
        self.interface.with(|interface| {
            let now = time::now();
            interface
                .feed(unlocked, |core, path| core.handle_connect_answer(now, op, answer, path));
        });
    }

    fn connection_lost(&self, connection: ConnectionId, unlocked: &mut Unlocked) {
        self.interface.with(|interface| {
            interface.lose_connection(connection, unlocked);
        });
    }
}
