//! What the network stack and the InfiniBand stack call: it finds the interface, if there still is
//! one, and tells it.
//!
//! The stacks hold a hub weakly, and it holds the interface weakly: a call that comes late finds
//! nothing.

use alloc::sync::{Arc, Weak};

use ipoib_rs::action::{
    ConnectError, ConnectionId, ConnectionParameters, GroupRecord, OpId, PathRecord, RejectReason,
    SaCapabilities, SaError,
};
use ipoib_rs::ib::Pkey;
use ipoib_rs::interface::{IncomingRequest, PortEvent};
use kpi::client::PortWatcher;
use kpi::context::{InNetEpoch, MaySleep, Unlocked};
use kpi::errno::Errno;
use kpi::ifnet::{Driver, InterfaceCounter, LinkHeader};
use kpi::mbuf::Packet;
use kpi::time;
use kpi::verbs::{CompletionHandler, QueuePairHandler};
use kpi::{cm, sa};
use spin::Once;

use super::{Interface, signals};

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
    interface: Once<Weak<Interface>>,
}

impl Hub {
    /// Connected to nothing: what is called before is as if it came too late.
    pub(super) const fn new() -> Self {
        Self { interface: Once::new() }
    }

    pub(super) fn connect(&self, interface: &Arc<Interface>) {
        self.interface.call_once(|| Arc::downgrade(interface));
    }

    fn interface(&self) -> Option<Arc<Interface>> {
        self.interface.get()?.upgrade()
    }
}

impl Driver for Hub {
    fn transmit(
        &self,
        header: LinkHeader,
        packet: Packet,
        epoch: &mut InNetEpoch,
    ) -> Result<(), Errno> {
        self.interface().ok_or(Errno::ENXIO)?.transmit(header, packet, epoch)
    }

    fn flush_queue(&self, unlocked: &mut Unlocked) {
        if let Some(interface) = self.interface() {
            interface.flush_queue(unlocked);
        }
    }

    fn set_up(&self, is_up: bool, may_sleep: &mut MaySleep) {
        if let Some(interface) = self.interface() {
            interface.set_up(is_up, may_sleep);
        }
    }

    fn set_mtu(&self, mtu: usize, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        self.interface().ok_or(Errno::ENXIO)?.set_mtu(mtu, may_sleep)
    }

    fn groups_changed(&self) {
        if let Some(interface) = self.interface() {
            interface.signal(signals::GROUPS_CHANGED);
        }
    }

    fn counter(&self, counter: InterfaceCounter, unlocked: &mut Unlocked) -> u64 {
        self.interface().map_or(0, |interface| interface.counter(counter, unlocked))
    }
}

impl PortWatcher for Hub {
    fn port_changed(&self, event: PortEvent, _unlocked: &mut Unlocked) {
        let Some(interface) = self.interface() else { return };
        // What the port is now decides, so events of a kind may be taken together.
        let position = PORT_EVENTS.iter().position(|&one| one == event).unwrap_or_default();
        interface.signal(signals::PORT_EVENT_FIRST << position);
    }
}

impl CompletionHandler for Hub {
    fn completions_arrived(&self, _unlocked: &mut Unlocked) {
        if let Some(interface) = self.interface() {
            interface.reaper.wake();
        }
    }
}

impl QueuePairHandler for Hub {
    fn last_wqe_reached(&self, connection: ConnectionId, unlocked: &mut Unlocked) {
        if let Some(interface) = self.interface() {
            interface.feed(unlocked, |core, _| core.handle_last_wqe(connection));
        }
    }

    fn queue_pair_failed(&self, connection: ConnectionId, unlocked: &mut Unlocked) {
        if let Some(interface) = self.interface() {
            interface.lose_connection(connection, unlocked);
        }
    }
}

impl sa::Handler for Hub {
    fn path_answered(
        &self,
        op: OpId,
        answer: Result<PathRecord, SaError>,
        unlocked: &mut Unlocked,
    ) {
        if let Some(interface) = self.interface() {
            let now = time::now();
            interface.feed(unlocked, |core, path| core.handle_path_answer(now, op, answer, path));
        }
    }

    fn join_answered(
        &self,
        op: OpId,
        answer: Result<GroupRecord, SaError>,
        unlocked: &mut Unlocked,
    ) {
        if let Some(interface) = self.interface() {
            let now = time::now();
            interface.feed(unlocked, |core, path| core.handle_join_answer(now, op, answer, path));
        }
    }

    fn capabilities_answered(
        &self,
        op: OpId,
        answer: Result<SaCapabilities, SaError>,
        unlocked: &mut Unlocked,
    ) {
        if let Some(interface) = self.interface() {
            interface.feed(unlocked, |core, _| core.handle_sa_capabilities(op, answer));
        }
    }
}

impl cm::Handler for Hub {
    fn connect_requested(
        &self,
        request: IncomingRequest,
        _pkey: Pkey,
        unlocked: &mut Unlocked,
    ) -> Result<(), RejectReason> {
        let interface = self.interface().ok_or(RejectReason::InvalidServiceId)?;
        interface.feed(unlocked, |core, _| core.handle_connect_request(time::now(), request))
    }

    fn connect_answered(
        &self,
        op: OpId,
        answer: Result<ConnectionParameters, ConnectError>,
        unlocked: &mut Unlocked,
    ) {
        if let Some(interface) = self.interface() {
            let now = time::now();
            interface
                .feed(unlocked, |core, path| core.handle_connect_answer(now, op, answer, path));
        }
    }

    fn connection_lost(&self, connection: ConnectionId, unlocked: &mut Unlocked) {
        if let Some(interface) = self.interface() {
            interface.lose_connection(connection, unlocked);
        }
    }
}
