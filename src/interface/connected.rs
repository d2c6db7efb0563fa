//! Connected mode (RFC 4755): the mode of the interface, and what carries a packet to a neighbour.

mod incoming;
mod listener;
mod outgoing;

use crate::action::ConnectionId;
use crate::connection::OutgoingState;
use crate::counters::Counter;
use crate::event::Event;
use crate::ib::ServiceId;
use crate::limits::{CONNECTED_MTU_MAX, MTU_MIN};
use crate::packet::{DataPath, PacketBuf};
use crate::path::PathState;
use crate::time::Instant;
use crate::wire::{AddressFlags, ENCAPSULATION_BYTES, LinkAddress};

use super::Interface;
use super::transmit::Route;

pub use incoming::IncomingRequest;
pub(super) use listener::Listener;

/// The mode of an interface.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// Datagrams only.
    #[default]
    Datagram,
    /// Connections to neighbours that accept them, datagrams to the others and to groups.
    Connected,
}

/// What the adapter can do for connected mode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectedSupport {
    /// The largest message that it can receive, without the encapsulation header, in bytes.
    pub mtu_max: usize,
    /// Whether connections can share a receive queue.
    pub shares_receives: bool,
}

/// The mode was not changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ModeError {
    /// The adapter has no reliable connections.
    Unsupported,
}

/// The MTU was not changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MtuOutOfRange {
    /// The smallest that is accepted, in bytes.
    pub min: usize,
    /// The largest.
    pub max: usize,
}

/// What carries a packet to a neighbour now.
#[derive(Clone, Copy, Debug)]
pub(super) enum Transport {
    /// Datagrams only.
    Datagram { route: Route, mtu: usize },
    /// Datagrams for what fits; whether there is a connection for more is being decided.
    Deciding { route: Route, mtu: usize, connection: u32 },
    /// The connection.
    Connected { route: Route, mtu: usize },
}

impl Transport {
    pub(super) fn mtu(&self) -> usize {
        match *self {
            Self::Datagram { mtu, .. }
            | Self::Deciding { mtu, .. }
            | Self::Connected { mtu, .. } => mtu,
        }
    }

    pub(super) fn route(&self) -> Route {
        match *self {
            Self::Datagram { route, .. }
            | Self::Deciding { route, .. }
            | Self::Connected { route, .. } => route,
        }
    }
}

impl<B: PacketBuf> Interface<B> {
    /// What carries a packet to a neighbour now; asks for a connection if there should be one.
    /// `None` while the path is not ready.
    pub(super) fn transport_of(&mut self, now: Instant, place: u32) -> Option<Transport> {
        let path = self.paths.get(place)?;
        let PathState::Ready { handle, .. } = path.state else { return None };
        let mtu = self.mtu_of_path(&path.state);
        let route = Route::Datagram { handle, qpn: path.address.qpn(), is_multicast: false };
        if !self.may_connect(&path.address) {
            return Some(Transport::Datagram { route, mtu });
        }
        let Some(connection) = self.connection_of(now, place) else {
            return Some(Transport::Datagram { route, mtu });
        };
        let state = self.connections.outgoing.get(connection)?.state;
        Some(match state {
            OutgoingState::Live { mtu } => {
                let mtu = self.mtu_towards(mtu);
                Transport::Connected { route: Route::Connected { connection, mtu }, mtu }
            }
            OutgoingState::OpenWanted { .. } | OutgoingState::Opening { .. } => {
                Transport::Deciding { route, mtu, connection }
            }
            OutgoingState::OpeningUnwanted
            | OutgoingState::Draining { .. }
            | OutgoingState::BackingOff { .. }
            | OutgoingState::CloseWanted(_)
            | OutgoingState::Closing(_) => Transport::Datagram { route, mtu },
        })
    }

    /// Whether a neighbour may be reached by a connection.
    pub(super) fn may_connect(&self, address: &LinkAddress) -> bool {
        self.mode == Mode::Connected && address.flags().contains(AddressFlags::RC)
    }

    pub(super) fn on_mode(
        &mut self,
        now: Instant,
        mode: Mode,
        datapath: &mut impl DataPath<B>,
    ) -> Result<(), ModeError> {
        if self.mode == mode {
            return Ok(());
        }
        if mode == Mode::Connected && self.connected.is_none() {
            return Err(ModeError::Unsupported);
        }
        self.mode = mode;
        self.counters.count(Counter::ModeChanges);
        self.push_event(Event::ModeChanged(mode));
        // The flag is part of the address, so peers must hear of it before they use it.
        self.push_event(Event::AddressChanged(self.address()));
        self.push_event(Event::MtuChanged(self.mtu()));
        if self.is_link_up() {
            self.push_event(Event::AnnounceAddress);
        }
        self.reconcile_listener(now);
        match mode {
            Mode::Datagram => self.give_up_connections(now, datapath),
            Mode::Connected => self.resume_incoming(),
        }
        Ok(())
    }

    pub(super) fn on_mtu(&mut self, mtu: usize) -> Result<(), MtuOutOfRange> {
        let max = self.connected_mtu_max();
        if !(MTU_MIN..=max).contains(&mtu) {
            return Err(MtuOutOfRange { min: MTU_MIN, max });
        }
        let before = self.mtu();
        self.connected_mtu = mtu;
        if self.mtu() != before {
            self.push_event(Event::MtuChanged(self.mtu()));
        }
        Ok(())
    }

    /// Gives up every connection without losing what is on it: what waited for one goes by
    /// datagrams, what is posted on one goes out, and what peers send on theirs until they hear of
    /// the other address comes in.
    fn give_up_connections(&mut self, now: Instant, datapath: &mut impl DataPath<B>) {
        for place in 0..self.paths.capacity() {
            self.disconnect_path(now, place, datapath);
        }
        for place in 0..self.connections.incoming.capacity() {
            self.let_linger(now, place);
        }
    }

    /// The link is gone, and with it every connection.
    pub(super) fn close_connections(&mut self) {
        self.close_draining();
        self.close_all_incoming();
    }

    fn close_all_incoming(&mut self) {
        for place in 0..self.connections.incoming.capacity() {
            self.close_incoming(place);
        }
    }

    /// The largest MTU that connected mode can have here.
    pub(super) fn connected_mtu_max(&self) -> usize {
        self.connected.map_or(0, |support| support.mtu_max.min(CONNECTED_MTU_MAX))
    }

    /// The largest message that this interface receives, encapsulation header included.
    pub(super) fn connected_receive_bytes(&self) -> usize {
        self.connected_mtu_max() + ENCAPSULATION_BYTES
    }

    pub(super) fn service(&self) -> ServiceId {
        ServiceId::of_interface(self.qpn)
    }

    /// The place of an outgoing connection as a shell sees it.
    pub(super) fn outgoing_id(&self, place: u32) -> ConnectionId {
        ConnectionId(place)
    }

    /// The place of an incoming connection as a shell sees it.
    pub(super) fn incoming_id(&self, place: u32) -> ConnectionId {
        ConnectionId(self.limits.outgoing_max + place)
    }

    /// The mode of the interface.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The MTU that the interface has, or would have, in connected mode.
    pub fn connected_mtu(&self) -> usize {
        self.connected_mtu
    }
}
