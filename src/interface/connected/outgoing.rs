//! Outgoing connections: asked for when a neighbour accepts them, given up at the first trouble.

use crate::action::{
    Action, ConnectError, ConnectRequest, ConnectionParameters, OpId, Target, VerbError,
};
use crate::connection::{AfterClose, Outgoing, OutgoingState};
use crate::counters::{Counter, DropReason};
use crate::event::Notice;
use crate::ib::{Psn, ServiceId};
use crate::interface::Interface;
use crate::interface::transmit::Route;
use crate::limits::{CONNECT_RETRY_FIRST, CONNECT_RETRY_MAX, DRAIN_MAX};
use crate::packet::{CompletionStatus, DataPath, PacketBuf};
use crate::path::PathState;
use crate::send_ring::Via;
use crate::storage::{Pending, Queue};
use crate::time::Instant;
use crate::wire::ENCAPSULATION_BYTES;

use super::Transport;

impl<B: PacketBuf> Interface<B> {
    /// The outgoing connection of a path, which is asked for if it is time to. `None` if the table
    /// is full.
    pub(super) fn connection_of(&mut self, now: Instant, path: u32) -> Option<u32> {
        let existing = self.paths.get(path)?.connection;
        let Some(place) = existing else { return self.insert_outgoing(now, path) };
        let state = self.connections.outgoing.get(place)?.state;
        if let OutgoingState::BackingOff { attempt, retry_at } = state
            && retry_at <= now
        {
            self.enter_outgoing(place, OutgoingState::OpenWanted { attempt });
        }
        Some(place)
    }

    fn insert_outgoing(&mut self, now: Instant, path: u32) -> Option<u32> {
        if self.connections.outgoing.is_full() {
            self.forget_unused_outgoing(now);
        }
        let outgoing = Outgoing {
            path: Some(path),
            state: OutgoingState::OpenWanted { attempt: 0 },
            operation: 0,
            posted: 0,
            queue: Queue::default(),
        };
        let Ok(place) = self.connections.outgoing.insert(outgoing) else {
            self.counters.count(Counter::OutgoingTableFull);
            return None;
        };
        self.paths.get_mut(path)?.connection = Some(place);
        self.push_work(Target::Outgoing(place));
        Some(place)
    }

    /// Makes room in the table: a neighbour that refused a connection, and that nobody has sent
    /// anything to since it could have been asked again, needs none.
    fn forget_unused_outgoing(&mut self, now: Instant) {
        let unused = self.connections.outgoing.iter().filter_map(|(place, outgoing)| {
            let OutgoingState::BackingOff { retry_at, .. } = outgoing.state else { return None };
            (retry_at <= now && outgoing.queue.is_empty()).then_some((retry_at, place))
        });
        let Some((_, place)) = unused.min() else { return };
        let path = self.connections.outgoing.get(place).and_then(|outgoing| outgoing.path);
        if let Some(path) = path.and_then(|path| self.paths.get_mut(path)) {
            path.connection = None;
        }
        self.forget_outgoing(place);
    }

    /// The only way to change the state of an outgoing connection.
    fn enter_outgoing(&mut self, place: u32, state: OutgoingState) {
        let Some(outgoing) = self.connections.outgoing.get_mut(place) else { return };
        outgoing.state = state;
        if state.wants_action() {
            self.push_work(Target::Outgoing(place));
        }
        self.arm(Target::Outgoing(place));
    }

    pub(in crate::interface) fn next_outgoing_action(&mut self, place: u32) -> Option<Action> {
        let outgoing = self.connections.outgoing.get(place)?;
        let (state, path) = (outgoing.state, outgoing.path);
        let connection = self.outgoing_id(place);
        match state {
            OutgoingState::OpenWanted { attempt } => {
                let path = self.paths.get(path?)?;
                let PathState::Ready { record, .. } = path.state else { return None };
                let request = ConnectRequest {
                    path: record,
                    pkey: self.port.partition?.pkey,
                    service: ServiceId::of_interface(path.address.qpn()),
                    // Hazard H9: the C driver starts at 0, so that late packets of an old
                    // connection pass for those of a new one.
                    starting_psn: Psn::from_random(self.seed.draw()),
                    own: self.own_parameters(),
                };
                let op = self.begin_outgoing(place, OutgoingState::Opening { attempt })?;
                self.counters.count(Counter::Connects);
                Some(Action::OpenConnection { op, connection, request })
            }
            OutgoingState::CloseWanted(then) => {
                let op = self.begin_outgoing(place, OutgoingState::Closing(then))?;
                Some(Action::DestroyConnection { op, connection })
            }
            OutgoingState::Opening { .. }
            | OutgoingState::OpeningUnwanted
            | OutgoingState::Live { .. }
            | OutgoingState::Draining { .. }
            | OutgoingState::BackingOff { .. }
            | OutgoingState::Closing(_) => None,
        }
    }

    fn begin_outgoing(&mut self, place: u32, next: OutgoingState) -> Option<OpId> {
        let op = self.begin_operation(Target::Outgoing(place));
        self.connections.outgoing.get_mut(place)?.operation = op.generation;
        self.enter_outgoing(place, next);
        Some(op)
    }

    /// What REQ and REP say of this interface. The receive MTU counts the encapsulation header,
    /// which is what Linux and FreeBSD compare with (report A6).
    pub(super) fn own_parameters(&self) -> ConnectionParameters {
        // CAST: at most CONNECTED_MTU_MAX and the header.
        let receive_mtu = self.connected_receive_bytes() as u32;
        ConnectionParameters { qpn: self.qpn, receive_mtu }
    }

    pub(in crate::interface) fn on_connect_answer(
        &mut self,
        now: Instant,
        op: OpId,
        answer: Result<ConnectionParameters, ConnectError>,
        datapath: &mut impl DataPath<B>,
    ) {
        let Some((place, state)) = self.connections.outgoing_of(op) else {
            self.counters.count(Counter::StaleAnswers);
            return;
        };
        match (state, answer.and_then(|peer| self.mtu_of_peer(peer))) {
            (OutgoingState::Opening { .. }, Ok(mtu)) => {
                self.counters.count(Counter::Connected);
                self.enter_outgoing(place, OutgoingState::Live { mtu });
                self.send_held(now, place, datapath);
            }
            (OutgoingState::Opening { attempt }, Err(error)) => {
                self.counters.count(Counter::ConnectsFailed);
                self.notice_unconnected(place, error);
                self.close_outgoing(now, place, attempt, datapath);
            }
            // The queue pair is there either way, and goes.
            (OutgoingState::OpeningUnwanted, _) => {
                self.enter_outgoing(place, OutgoingState::CloseWanted(AfterClose::Forget));
            }
            (
                OutgoingState::OpenWanted { .. }
                | OutgoingState::Live { .. }
                | OutgoingState::Draining { .. }
                | OutgoingState::BackingOff { .. }
                | OutgoingState::CloseWanted(_)
                | OutgoingState::Closing(_),
                _,
            ) => self.counters.count(Counter::StaleAnswers),
        }
    }

    /// What a peer receives. A connection that carries less than a datagram does would lose what
    /// could be sent.
    fn mtu_of_peer(&self, peer: ConnectionParameters) -> Result<usize, ConnectError> {
        let mtu = (peer.receive_mtu as usize).saturating_sub(ENCAPSULATION_BYTES);
        if mtu < self.datagram_mtu.min(self.connected_mtu) {
            Err(ConnectError::Unusable)
        } else {
            Ok(mtu)
        }
    }

    /// What may be sent to a peer that receives `mtu` bytes: never more than it says, never more
    /// than this interface's own limit, which can change while the connection is there.
    pub(in crate::interface) fn mtu_towards(&self, mtu: usize) -> usize {
        mtu.min(self.connected_mtu)
    }

    /// The connection broke, or the peer ended it.
    pub(in crate::interface) fn on_outgoing_lost(
        &mut self,
        now: Instant,
        place: u32,
        datapath: &mut impl DataPath<B>,
    ) {
        let Some(outgoing) = self.connections.outgoing.get(place) else { return };
        match outgoing.state {
            OutgoingState::Live { .. } => {
                self.counters.count(Counter::ConnectionsLost);
                self.close_outgoing(now, place, 0, datapath);
            }
            OutgoingState::Draining { .. } => {
                self.counters.count(Counter::ConnectionsLost);
                self.enter_outgoing(place, OutgoingState::CloseWanted(AfterClose::Forget));
            }
            OutgoingState::OpenWanted { .. }
            | OutgoingState::Opening { .. }
            | OutgoingState::OpeningUnwanted
            | OutgoingState::BackingOff { .. }
            | OutgoingState::CloseWanted(_)
            | OutgoingState::Closing(_) => {}
        }
    }

    pub(in crate::interface) fn on_connected_posted(&mut self, place: u32) {
        if let Some(outgoing) = self.connections.outgoing.get_mut(place) {
            outgoing.posted += 1;
        }
    }

    /// A send came back from the adapter.
    pub(in crate::interface) fn on_connected_sent(
        &mut self,
        now: Instant,
        place: u32,
        status: CompletionStatus,
        datapath: &mut impl DataPath<B>,
    ) {
        let Some(outgoing) = self.connections.outgoing.get_mut(place) else { return };
        outgoing.posted = outgoing.posted.saturating_sub(1);
        let is_drained = outgoing.posted == 0 && outgoing.state.ends_at().is_some();
        match status {
            CompletionStatus::Success if is_drained => {
                self.enter_outgoing(place, OutgoingState::CloseWanted(AfterClose::Forget));
            }
            CompletionStatus::Success => {}
            // An error of one send takes the queue pair to the error state (IBA 10.3.1).
            CompletionStatus::Flushed | CompletionStatus::Failed => {
                self.on_outgoing_lost(now, place, datapath);
            }
        }
    }

    /// Gives a connection up for now. Design rule: it is dropped at once, small packets go on by
    /// UD, and it is tried again with a back-off (report C2).
    fn close_outgoing(
        &mut self,
        now: Instant,
        place: u32,
        attempt: u8,
        datapath: &mut impl DataPath<B>,
    ) {
        let factor = 1u32.checked_shl(attempt.into()).unwrap_or(u32::MAX);
        let wait = CONNECT_RETRY_FIRST.saturating_mul(factor).min(CONNECT_RETRY_MAX);
        let attempt = attempt.saturating_add(1);
        let then = AfterClose::BackOff { attempt, retry_at: now + wait };
        self.enter_outgoing(place, OutgoingState::CloseWanted(then));
        self.send_held(now, place, datapath);
    }

    /// The path does not want its connection any more. What waited for it waits for the path again;
    /// what is posted on it goes out first, since nothing speaks against its arrival.
    pub(in crate::interface) fn retire_connection_of(&mut self, now: Instant, path: u32) {
        self.part_from_connection(path, |posted| match posted {
            0 => OutgoingState::CloseWanted(AfterClose::Forget),
            1.. => OutgoingState::Draining { deadline: now + DRAIN_MAX },
        });
    }

    /// The link is gone, and with it the connection of a path.
    pub(in crate::interface) fn close_connection_of(&mut self, path: u32) {
        self.part_from_connection(path, |_| OutgoingState::CloseWanted(AfterClose::Forget));
    }

    /// The link is gone: what is being drained will not go out.
    pub(in crate::interface) fn close_draining(&mut self) {
        for place in 0..self.connections.outgoing.capacity() {
            let Some(outgoing) = self.connections.outgoing.get(place) else { continue };
            if let OutgoingState::Draining { .. } = outgoing.state {
                self.enter_outgoing(place, OutgoingState::CloseWanted(AfterClose::Forget));
            }
        }
    }

    fn part_from_connection(&mut self, path: u32, live_becomes: impl Fn(u32) -> OutgoingState) {
        let Some(place) = self.paths.get(path).and_then(|path| path.connection) else { return };
        self.move_waiting(Target::Path(path), Target::Outgoing(place));
        if let Some(path) = self.paths.get_mut(path) {
            path.connection = None;
        }
        let Some(outgoing) = self.connections.outgoing.get_mut(place) else { return };
        outgoing.path = None;
        let next = match outgoing.state {
            OutgoingState::OpenWanted { .. } | OutgoingState::BackingOff { .. } => {
                self.forget_outgoing(place);
                return;
            }
            OutgoingState::Opening { .. } => OutgoingState::OpeningUnwanted,
            OutgoingState::Live { .. } => live_becomes(outgoing.posted),
            OutgoingState::CloseWanted(_) => OutgoingState::CloseWanted(AfterClose::Forget),
            OutgoingState::Closing(_) => OutgoingState::Closing(AfterClose::Forget),
            OutgoingState::OpeningUnwanted | OutgoingState::Draining { .. } => return,
        };
        self.enter_outgoing(place, next);
    }

    /// The path is to do without its connection: what waited for that goes by datagrams.
    pub(super) fn disconnect_path(
        &mut self,
        now: Instant,
        path: u32,
        datapath: &mut impl DataPath<B>,
    ) {
        self.retire_connection_of(now, path);
        self.drain_path(now, path, datapath);
    }

    fn forget_outgoing(&mut self, place: u32) {
        self.set_timer(Target::Outgoing(place), None);
        self.connections.outgoing.remove(place);
    }

    /// Returns whether the result was waited for.
    pub(in crate::interface) fn on_outgoing_verb(
        &mut self,
        now: Instant,
        op: OpId,
        _result: Result<(), VerbError>,
        datapath: &mut impl DataPath<B>,
    ) -> bool {
        let Some((place, OutgoingState::Closing(then))) = self.connections.outgoing_of(op) else {
            return false;
        };
        // Destroyed: no completion will come for what was still posted.
        while let Some(_posted) = self.sends.reclaim(|via| via == Via::Connection(place)) {
            self.counters.count(Counter::SendFlushed);
        }
        if let Some(outgoing) = self.connections.outgoing.get_mut(place) {
            outgoing.posted = 0;
        }
        match then {
            AfterClose::BackOff { attempt, retry_at } => {
                self.enter_outgoing(place, OutgoingState::BackingOff { attempt, retry_at });
            }
            AfterClose::Forget => self.forget_outgoing(place),
        }
        self.drain_backlog(now, datapath);
        self.wake_send_queue();
        true
    }

    /// The connection is decided: what waited for it goes the way that is open now, behind what
    /// waits for room in the ring.
    fn send_held(&mut self, now: Instant, place: u32, datapath: &mut impl DataPath<B>) {
        let Some(path) = self.connections.outgoing.get(place).and_then(|one| one.path) else {
            return;
        };
        self.move_waiting(Target::Path(path), Target::Outgoing(place));
        self.drain_path(now, path, datapath);
    }

    /// What is held was held long enough: it is dealt with as if there were no connection. An
    /// adapter that does not finish what is posted must not keep the connection.
    pub(in crate::interface) fn on_outgoing_timeout(
        &mut self,
        now: Instant,
        place: u32,
        datapath: &mut impl DataPath<B>,
    ) {
        let Some(outgoing) = self.connections.outgoing.get(place) else { return };
        if outgoing.state.ends_at().is_some_and(|deadline| deadline <= now) {
            self.counters.count(Counter::DrainsTimedOut);
            self.enter_outgoing(place, OutgoingState::CloseWanted(AfterClose::Forget));
            return;
        }
        if outgoing.queue.expires_at().is_none_or(|at| at > now) {
            self.arm(Target::Outgoing(place));
            return;
        }
        let Some(path) = outgoing.path else { return };
        while let Some(pending) = self.take_waiting(Target::Outgoing(place)) {
            let Pending { protocol, packet, bytes: _ } = pending;
            let Some((route, mtu)) = self.datagram_route(path) else {
                self.drop_towards(path, packet, DropReason::PendingExpired, datapath);
                continue;
            };
            let transport = Transport::Datagram { route, mtu };
            self.send_above_mtu(now, path, transport, (protocol, packet), datapath);
        }
    }

    fn datagram_route(&self, path: u32) -> Option<(Route, usize)> {
        let path = self.paths.get(path)?;
        let PathState::Ready { handle, .. } = path.state else { return None };
        let route = Route::Datagram { handle, qpn: path.address.qpn(), is_multicast: false };
        Some((route, self.mtu_of_path(&path.state)))
    }

    fn notice_unconnected(&mut self, place: u32, error: ConnectError) {
        let path = self.connections.outgoing.get(place).and_then(|outgoing| outgoing.path);
        let Some(path) = path.and_then(|path| self.paths.get_mut(path)) else { return };
        if !core::mem::replace(&mut path.noticed.unconnected, true) {
            let notice = Notice::ConnectFailing(path.address, error);
            self.notice(notice);
        }
    }
}
