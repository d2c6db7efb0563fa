//! Unicast: from a link-layer address through a path record and an address handle to the neighbour.

use core::time::Duration;

use crate::action::{Action, OpId, PathQuery, PathRecord, SaError, SaRefusal, Target};
use crate::counters::{Counter, DropReason};
use crate::event::Notice;
use crate::group::back_off;
use crate::ib::Qpn;
use crate::limits::{PATH_RETRY_FIRST, PATH_RETRY_MAX};
use crate::packet::{DataPath, PacketBuf, PacketSink};
use crate::path::{Freshness, PathState, address_vector, fresh_query, still_stale};
use crate::storage::Pending;
use crate::time::Instant;
use crate::wire::{EtherType, LinkAddress};

use super::connected::Transport;
use super::link::Lifecycle;
use super::transmit::{Posting, Route};
use super::{Interface, RingFull};

impl<B: PacketBuf> Interface<B> {
    pub(super) fn transmit_unicast(
        &mut self,
        now: Instant,
        to: &LinkAddress,
        protocol: EtherType,
        packet: B,
        datapath: &mut impl DataPath<B>,
    ) -> Result<(), RingFull<B>> {
        // QP0 and QP1 belong to management (IBA 3.9.1), the multicast number to groups.
        if to.qpn() <= Qpn::GSI || to.qpn() == Qpn::MULTICAST {
            self.drop_packet(packet, DropReason::InvalidDestination, datapath);
            return Ok(());
        }
        let found = self.paths.find(to);
        let Some(place) = found.or_else(|| self.insert_path(now, to, datapath)) else {
            self.drop_packet(packet, DropReason::PathTableFull, datapath);
            return Ok(());
        };
        if let Some(path) = self.paths.get_mut(place) {
            path.is_used = true;
            if core::mem::take(&mut path.is_superseded) {
                self.return_to_path(now, place, datapath);
            }
        }
        self.send_to_path(now, place, protocol, packet, datapath)
    }

    /// Sends a packet, or queues it if the path is not ready.
    pub(super) fn send_to_path(
        &mut self,
        now: Instant,
        place: u32,
        protocol: EtherType,
        packet: B,
        datapath: &mut impl DataPath<B>,
    ) -> Result<(), RingFull<B>> {
        let Some(path) = self.paths.get(place) else {
            self.drop_packet(packet, DropReason::PathUnresolved, datapath);
            return Ok(());
        };
        match path.state {
            PathState::Ready { freshness, .. } => {
                if let Freshness::Stale { since } = freshness
                    && since <= now
                {
                    self.refresh_path(place);
                }
                self.send_to_ready_path(now, place, protocol, packet, datapath)
            }
            PathState::Unreachable { attempt, retry_at } if retry_at <= now => {
                let attempt = attempt.saturating_add(1);
                self.enter_path(place, PathState::QueryWanted { attempt });
                self.queue_within_link(now, place, protocol, packet, datapath);
                Ok(())
            }
            PathState::Unreachable { .. } => {
                self.drop_towards(place, packet, DropReason::PathUnresolved, datapath);
                Ok(())
            }
            PathState::Blocked
            | PathState::QueryWanted { .. }
            | PathState::Querying { .. }
            | PathState::BackingOff { .. }
            | PathState::Addressing { .. } => {
                self.queue_within_link(now, place, protocol, packet, datapath);
                Ok(())
            }
            PathState::CancelWanted => {
                self.drop_towards(place, packet, DropReason::LinkDown, datapath);
                Ok(())
            }
        }
    }

    fn send_to_ready_path(
        &mut self,
        now: Instant,
        place: u32,
        protocol: EtherType,
        packet: B,
        datapath: &mut impl DataPath<B>,
    ) -> Result<(), RingFull<B>> {
        let is_backlogged = self.paths.get(place).is_some_and(|path| !path.queue.is_empty());
        if is_backlogged {
            // Packets wait for room in the ring already: this one goes behind them.
            self.enqueue(now, Target::Path(place), protocol, packet, datapath);
            return Ok(());
        }
        let Some(transport) = self.transport_of(now, place) else {
            self.drop_towards(place, packet, DropReason::PathUnresolved, datapath);
            return Ok(());
        };
        if packet.len() <= transport.mtu() {
            return match self.post(transport.route(), protocol, packet, datapath) {
                Posting::Posted => {
                    self.count_sent(place);
                    Ok(())
                }
                Posting::Dropped => {
                    self.count_dropped(place);
                    Ok(())
                }
                Posting::RingFull(packet) => Err(RingFull(packet)),
            };
        }
        self.send_above_mtu(now, place, transport, (protocol, packet), datapath);
        Ok(())
    }

    /// The rules of size for a packet that is larger than what its neighbour takes now.
    pub(super) fn send_above_mtu(
        &mut self,
        now: Instant,
        place: u32,
        transport: Transport,
        (protocol, packet): (EtherType, B),
        datapath: &mut impl DataPath<B>,
    ) {
        if let Transport::Deciding { connection, .. } = transport {
            // Report B02: while a connection is being decided, nothing is too large for the
            // neighbour yet. It waits, and never goes by UD.
            self.enqueue(now, Target::Outgoing(connection), protocol, packet, datapath);
            return;
        }
        let Some(address) = self.paths.get(place).map(|path| path.address) else {
            self.drop_packet(packet, DropReason::PathUnresolved, datapath);
            return;
        };
        let mtu = transport.mtu();
        self.notice_too_big(place, mtu);
        let send = |this: &mut Self, piece, datapath: &mut _| {
            this.post_to_path(now, place, transport.route(), protocol, piece, datapath);
        };
        if self.send_oversize(&address, mtu, protocol, packet, datapath, send) {
            self.count_dropped(place);
        }
    }

    /// Queues a packet for a path that is not ready. What it may carry is not known yet; what no
    /// neighbour on this link could take is dealt with at once.
    fn queue_within_link(
        &mut self,
        now: Instant,
        place: u32,
        protocol: EtherType,
        packet: B,
        datapath: &mut impl DataPath<B>,
    ) {
        let Some(address) = self.paths.get(place).map(|path| path.address) else {
            self.drop_packet(packet, DropReason::PathUnresolved, datapath);
            return;
        };
        let mtu = if self.may_connect(&address) { self.connected_mtu } else { self.datagram_mtu };
        if packet.len() <= mtu {
            self.enqueue(now, Target::Path(place), protocol, packet, datapath);
            return;
        }
        self.notice_too_big(place, mtu);
        let send = |this: &mut Self, piece, datapath: &mut _| {
            this.enqueue(now, Target::Path(place), protocol, piece, datapath);
        };
        if self.send_oversize(&address, mtu, protocol, packet, datapath, send) {
            self.count_dropped(place);
        }
    }

    fn insert_path(
        &mut self,
        now: Instant,
        to: &LinkAddress,
        datapath: &mut impl DataPath<B>,
    ) -> Option<u32> {
        let old = self.paths.find_gid(to.gid());
        if self.paths.is_full() {
            if let Some(old) = old {
                return self.readdress_path(now, old, to);
            }
            let victim = self.paths.choose_victim()?;
            self.counters.count(Counter::PathsEvicted);
            self.drop_path_queue(victim, DropReason::PathTableFull, datapath);
            self.retire_connection_of(now, victim);
            self.remove_path(victim);
        }
        let place = self.paths.insert(*to, PathState::Blocked)?;
        if self.lifecycle == Lifecycle::Joined {
            self.enter_path(place, fresh_query());
        }
        if let Some(old) = old.filter(|&old| self.paths.get(old).is_some()) {
            self.supersede_path(now, old, place, datapath);
        }
        Some(place)
    }

    /// Report C1, B08: the same port with another queue pair or other flags is another neighbour.
    /// What waits for the old one goes to the new one, and the old one's connection goes.
    fn supersede_path(
        &mut self,
        now: Instant,
        old: u32,
        new: u32,
        datapath: &mut impl DataPath<B>,
    ) {
        self.outdate_connection_of(now, old);
        let qpn = self.paths.get(new).map(|path| path.address.qpn());
        if let Some(path) = self.paths.get_mut(old) {
            // Queue pairs may share a port, and then both addresses are in use.
            path.is_superseded = Some(path.address.qpn()) == qpn;
        }
        while let Some(pending) = self.take_waiting(Target::Path(old)) {
            let Pending { protocol, packet, bytes: _ } = pending;
            // The new one may be ready already, or known to be out of reach.
            let outcome = self.send_to_path(now, new, protocol, packet, datapath);
            if let Err(RingFull(packet)) = outcome {
                self.wait_for_room(now, Target::Path(new), protocol, packet, datapath);
            }
        }
    }

    /// Report B08: the neighbour has an address again that it had before, as one does whose mode is
    /// changed and changed back. The address that it had meanwhile is the old one now.
    fn return_to_path(&mut self, now: Instant, place: u32, datapath: &mut impl DataPath<B>) {
        let Some(old) = self.paths.find_successor(place) else { return };
        self.supersede_path(now, old, place, datapath);
        self.drain_path(now, place, datapath);
    }

    /// The neighbour of a path has another address, and there is no place for another path. Record
    /// and handle are those of the port, so they serve the new address as they are, and what waits
    /// goes on waiting. `None` if the path is on its way out.
    fn readdress_path(&mut self, now: Instant, place: u32, to: &LinkAddress) -> Option<u32> {
        if self.paths.get(place)?.state == PathState::CancelWanted {
            return None;
        }
        self.outdate_connection_of(now, place);
        self.paths.readdress(place, *to);
        Some(place)
    }

    fn outdate_connection_of(&mut self, now: Instant, place: u32) {
        if self.paths.get(place).is_some_and(|path| path.connection.is_some()) {
            self.counters.count(Counter::ConnectionsRetired);
        }
        self.retire_connection_of(now, place);
    }

    /// The only way to change the state of a path.
    fn enter_path(&mut self, place: u32, state: PathState) {
        let Some(path) = self.paths.get_mut(place) else {
            return;
        };
        path.state = state;
        if state.wants_action() {
            self.push_work(Target::Path(place));
        }
        self.arm(Target::Path(place));
    }

    /// Gives back all that a path has, and its place. No packet waits for it.
    fn remove_path(&mut self, place: u32) {
        self.close_connection_of(place);
        let Some(path) = self.paths.get(place) else {
            return;
        };
        match path.state {
            PathState::Ready {
                handle,
                freshness: Freshness::Replacing { handle: new, .. },
                ..
            } => {
                self.retire_handle(handle);
                self.retire_handle(new);
            }
            PathState::Ready { handle, .. } | PathState::Addressing { handle, .. } => {
                self.retire_handle(handle);
            }
            PathState::Blocked
            | PathState::QueryWanted { .. }
            | PathState::Querying { .. }
            | PathState::BackingOff { .. }
            | PathState::Unreachable { .. }
            | PathState::CancelWanted => {}
        }
        self.set_timer(Target::Path(place), None);
        self.paths.remove(place);
    }

    /// Gives up every path and the packets that wait for it.
    pub(super) fn drop_paths(&mut self, reason: DropReason, sink: &mut impl PacketSink<B>) {
        for place in 0..self.paths.capacity() {
            let Some(path) = self.paths.get(place) else {
                continue;
            };
            let is_asking = match path.state {
                PathState::Querying { .. }
                | PathState::CancelWanted
                | PathState::Ready { freshness: Freshness::Querying, .. } => true,
                PathState::Blocked
                | PathState::QueryWanted { .. }
                | PathState::BackingOff { .. }
                | PathState::Addressing { .. }
                | PathState::Ready { .. }
                | PathState::Unreachable { .. } => false,
            };
            let ready = path.state;
            self.drop_path_queue(place, reason, sink);
            if is_asking {
                if let PathState::Ready { handle, .. } = ready {
                    self.retire_handle(handle);
                }
                self.close_connection_of(place);
                self.enter_path(place, PathState::CancelWanted);
            } else {
                self.remove_path(place);
            }
        }
    }

    /// The link came up.
    pub(super) fn unblock_path(&mut self, place: u32) {
        if self.paths.get(place).is_some_and(|path| path.state == PathState::Blocked) {
            self.enter_path(place, fresh_query());
        }
    }

    /// A light flush: what is known stays in use and is looked up again, what failed is tried anew.
    pub(super) fn mark_paths_stale(&mut self, now: Instant) {
        for place in 0..self.paths.capacity() {
            let Some(path) = self.paths.get(place) else {
                continue;
            };
            match path.state {
                PathState::Ready { record, handle, freshness: Freshness::Fresh } => {
                    let freshness = Freshness::Stale { since: now };
                    self.enter_path(place, PathState::Ready { record, handle, freshness });
                }
                PathState::BackingOff { .. } => self.enter_path(place, fresh_query()),
                PathState::Unreachable { .. } => self.remove_path(place),
                PathState::Blocked
                | PathState::QueryWanted { .. }
                | PathState::Querying { .. }
                | PathState::Addressing { .. }
                | PathState::Ready { .. }
                | PathState::CancelWanted => {}
            }
        }
    }

    fn refresh_path(&mut self, place: u32) {
        let Some(path) = self.paths.get(place) else {
            return;
        };
        if let PathState::Ready { record, handle, freshness: Freshness::Stale { .. } } = path.state
        {
            let freshness = Freshness::QueryWanted;
            self.enter_path(place, PathState::Ready { record, handle, freshness });
        }
    }

    /// The record is proven wrong: nothing more is sent with it, packets wait for the new one.
    pub(super) fn on_path_moved(&mut self, place: u32) {
        let Some(path) = self.paths.get(place) else {
            return;
        };
        let PathState::Ready { handle, freshness, .. } = path.state else {
            return;
        };
        self.counters.count(Counter::PathsMoved);
        self.close_connection_of(place);
        self.retire_handle(handle);
        match freshness {
            Freshness::Replacing { handle, .. } => self.retire_handle(handle),
            Freshness::Fresh
            | Freshness::Stale { .. }
            | Freshness::QueryWanted
            | Freshness::Querying => {}
        }
        self.enter_path(place, fresh_query());
    }

    pub(super) fn next_path_action(&mut self, place: u32) -> Option<Action> {
        let path = self.paths.get(place)?;
        let generation = path.operation;
        let destination = path.address.gid();
        let next = match path.state {
            PathState::QueryWanted { attempt } => PathState::Querying { attempt },
            PathState::Ready { record, handle, freshness: Freshness::QueryWanted } => {
                PathState::Ready { record, handle, freshness: Freshness::Querying }
            }
            PathState::CancelWanted => {
                self.remove_path(place);
                return Some(Action::CancelQuery {
                    op: OpId { target: Target::Path(place), generation },
                });
            }
            PathState::Blocked
            | PathState::Querying { .. }
            | PathState::BackingOff { .. }
            | PathState::Addressing { .. }
            | PathState::Ready { .. }
            | PathState::Unreachable { .. } => return None,
        };
        let pkey = self.port.partition?.pkey;
        let op = self.begin_operation(Target::Path(place));
        self.paths.get_mut(place)?.operation = op.generation;
        self.enter_path(place, next);
        self.counters.count(Counter::PathQueries);
        let query = PathQuery { destination, source: self.port.gid, pkey };
        Some(Action::QueryPath { op, query })
    }

    pub(super) fn on_path_answer(
        &mut self,
        now: Instant,
        op: OpId,
        answer: Result<PathRecord, SaError>,
        sink: &mut impl PacketSink<B>,
    ) {
        let waiting = self.paths.of_operation(op).and_then(|place| {
            let path = self.paths.get(place)?;
            Some((place, path.state, path.address.gid()))
        });
        let Some((place, state, gid)) = waiting else {
            self.counters.count(Counter::StaleAnswers);
            return;
        };
        let answer = answer.and_then(|record| {
            if record.destination == gid { Ok(record) } else { Err(SaError::Unusable) }
        });
        if answer.is_err() {
            self.counters.count(Counter::PathQueriesFailed);
        }
        match (state, answer) {
            (PathState::Querying { attempt }, Ok(record)) => {
                match self.make_handle(Target::Path(place), address_vector(&record)) {
                    Some(handle) => {
                        self.enter_path(place, PathState::Addressing { record, handle });
                    }
                    None => self.fail_path(now, place, attempt, DropReason::HandleFailed, sink),
                }
            }
            (PathState::Querying { attempt }, Err(SaError::Busy)) => {
                let retry_at = now + back_off(attempt, self.seed.draw());
                let attempt = attempt.saturating_add(1);
                self.enter_path(place, PathState::BackingOff { attempt, retry_at });
            }
            (PathState::Querying { attempt }, Err(error)) => {
                self.notice_unresolved(place, error);
                self.fail_path(now, place, attempt, DropReason::PathUnresolved, sink);
            }
            (PathState::Ready { record, handle, freshness: Freshness::Querying }, answer) => {
                self.on_path_refreshed(now, place, (record, handle), answer, sink);
            }
            (
                PathState::Blocked
                | PathState::QueryWanted { .. }
                | PathState::BackingOff { .. }
                | PathState::Addressing { .. }
                | PathState::Ready { .. }
                | PathState::Unreachable { .. }
                | PathState::CancelWanted,
                _,
            ) => self.counters.count(Counter::StaleAnswers),
        }
    }

    fn on_path_refreshed(
        &mut self,
        now: Instant,
        place: u32,
        (old, handle): (PathRecord, u32),
        answer: Result<PathRecord, SaError>,
        sink: &mut impl PacketSink<B>,
    ) {
        let (record, freshness) = match answer {
            Ok(new) if address_vector(&new) == address_vector(&old) => (new, Freshness::Fresh),
            Ok(new) => match self.make_handle(Target::Path(place), address_vector(&new)) {
                Some(handle) => (old, Freshness::Replacing { record: new, handle }),
                None => (old, still_stale(now)),
            },
            Err(error @ SaError::Refused(SaRefusal::NoRecords)) => {
                self.retire_handle(handle);
                self.notice_unresolved(place, error);
                self.fail_path(now, place, 0, DropReason::PathUnresolved, sink);
                return;
            }
            Err(SaError::Busy | SaError::Refused(_) | SaError::TimedOut | SaError::Unusable) => {
                (old, still_stale(now))
            }
        };
        self.enter_path(place, PathState::Ready { record, handle, freshness });
    }

    /// A path has no way to its neighbour: what waits is dropped at once, and the SA is left alone
    /// for a while (reports B26 and C4, hazard H3).
    fn fail_path(
        &mut self,
        now: Instant,
        place: u32,
        attempt: u8,
        reason: DropReason,
        sink: &mut impl PacketSink<B>,
    ) {
        let factor = 1u32.checked_shl(attempt.into()).unwrap_or(u32::MAX);
        let wait: Duration = PATH_RETRY_FIRST.saturating_mul(factor).min(PATH_RETRY_MAX);
        self.drop_path_queue(place, reason, sink);
        self.retire_connection_of(now, place);
        self.enter_path(place, PathState::Unreachable { attempt, retry_at: now + wait });
    }

    pub(super) fn on_path_addressed(
        &mut self,
        now: Instant,
        place: u32,
        created: u32,
        datapath: &mut impl DataPath<B>,
    ) {
        let Some(path) = self.paths.get_mut(place) else {
            return;
        };
        let freshness = Freshness::Fresh;
        match path.state {
            PathState::Addressing { record, handle } if handle == created => {
                path.noticed.unresolved = false;
                self.enter_path(place, PathState::Ready { record, handle, freshness });
            }
            PathState::Ready {
                handle: old,
                freshness: Freshness::Replacing { record, handle },
                ..
            } if handle == created => {
                self.counters.count(Counter::PathsReplaced);
                self.retire_handle(old);
                self.retire_connection_of(now, place);
                self.enter_path(place, PathState::Ready { record, handle, freshness });
            }
            PathState::Blocked
            | PathState::QueryWanted { .. }
            | PathState::Querying { .. }
            | PathState::BackingOff { .. }
            | PathState::Addressing { .. }
            | PathState::Ready { .. }
            | PathState::Unreachable { .. }
            | PathState::CancelWanted => return,
        }
        self.drain_path(now, place, datapath);
    }

    pub(super) fn on_path_unaddressed(
        &mut self,
        now: Instant,
        place: u32,
        failed: u32,
        sink: &mut impl PacketSink<B>,
    ) {
        let Some(path) = self.paths.get(place) else {
            return;
        };
        match path.state {
            PathState::Addressing { handle, .. } if handle == failed => {
                self.fail_path(now, place, 0, DropReason::HandleFailed, sink);
            }
            PathState::Ready {
                record,
                handle,
                freshness: Freshness::Replacing { handle: new, .. },
            } if new == failed => {
                let freshness = still_stale(now);
                self.enter_path(place, PathState::Ready { record, handle, freshness });
            }
            PathState::Blocked
            | PathState::QueryWanted { .. }
            | PathState::Querying { .. }
            | PathState::BackingOff { .. }
            | PathState::Addressing { .. }
            | PathState::Ready { .. }
            | PathState::Unreachable { .. }
            | PathState::CancelWanted => {}
        }
    }

    /// Drops what waits for a path and for its connection.
    fn drop_path_queue(&mut self, place: u32, reason: DropReason, sink: &mut impl PacketSink<B>) {
        self.drop_waiting(Target::Path(place), reason, sink);
        if let Some(connection) = self.paths.get(place).and_then(|path| path.connection) {
            self.drop_waiting(Target::Outgoing(connection), reason, sink);
        }
    }

    /// Sends what waits for a path that is ready, as far as the ring has room.
    pub(super) fn drain_path(&mut self, now: Instant, place: u32, datapath: &mut impl DataPath<B>) {
        while let Some(transport) = self.transport_of(now, place) {
            let first = self.first_waiting_bytes(Target::Path(place));
            let needed = first.map(|bytes| self.sends_needed(bytes, transport.mtu()));
            if needed.is_some_and(|needed| self.sends.vacant() < needed) {
                self.push_backlog(Target::Path(place));
                return;
            }
            let Some(pending) = self.take_waiting(Target::Path(place)) else { return };
            let Pending { protocol, packet, bytes: _ } = pending;
            if packet.len() > transport.mtu() {
                self.send_above_mtu(now, place, transport, (protocol, packet), datapath);
            } else {
                let route = transport.route();
                self.post_to_path(now, place, route, protocol, packet, datapath);
            }
        }
    }

    /// Posts a packet; if the ring is full after all, it waits at the end of the queue.
    pub(super) fn post_to_path(
        &mut self,
        now: Instant,
        place: u32,
        route: Route,
        protocol: EtherType,
        packet: B,
        datapath: &mut impl DataPath<B>,
    ) {
        match self.post(route, protocol, packet, datapath) {
            Posting::Posted => self.count_sent(place),
            Posting::Dropped => self.count_dropped(place),
            Posting::RingFull(packet) => {
                self.wait_for_room(now, Target::Path(place), protocol, packet, datapath);
            }
        }
    }

    /// How many sends a packet takes, so that it is not begun when the ring cannot take it whole. A
    /// packet of more fragments than the ring has places is begun when the ring is empty.
    pub(super) fn sends_needed(&self, bytes: u32, mtu: usize) -> u32 {
        let bytes = bytes as usize;
        let fragment_payload_min = mtu.saturating_sub(68).max(8);
        let sends = if bytes > mtu { bytes.div_ceil(fragment_payload_min) } else { 1 };
        u32::try_from(sends).unwrap_or(u32::MAX).min(self.sends.capacity())
    }

    pub(super) fn on_path_timeout(
        &mut self,
        now: Instant,
        place: u32,
        sink: &mut impl PacketSink<B>,
    ) {
        let Some(path) = self.paths.get(place) else {
            return;
        };
        if path.queue.expires_at().is_some_and(|at| at <= now) {
            self.drop_path_queue(place, DropReason::PendingExpired, sink);
        }
        let Some(path) = self.paths.get(place) else {
            return;
        };
        match path.state {
            PathState::BackingOff { attempt, retry_at } if retry_at <= now => {
                if path.queue.is_empty() {
                    // Nobody waits for it any more; the next packet starts afresh.
                    self.remove_path(place);
                } else {
                    self.enter_path(place, PathState::QueryWanted { attempt });
                }
            }
            PathState::Blocked
            | PathState::QueryWanted { .. }
            | PathState::Querying { .. }
            | PathState::BackingOff { .. }
            | PathState::Addressing { .. }
            | PathState::Ready { .. }
            | PathState::Unreachable { .. }
            | PathState::CancelWanted => self.arm(Target::Path(place)),
        }
    }

    fn count_sent(&mut self, place: u32) {
        if let Some(path) = self.paths.get_mut(place) {
            path.sent += 1;
        }
    }

    fn count_dropped(&mut self, place: u32) {
        if let Some(path) = self.paths.get_mut(place) {
            path.dropped += 1;
        }
    }

    /// Drops a packet to a neighbour that is known.
    pub(super) fn drop_towards(
        &mut self,
        place: u32,
        packet: B,
        reason: DropReason,
        sink: &mut impl PacketSink<B>,
    ) {
        self.count_dropped(place);
        self.drop_packet(packet, reason, sink);
    }

    fn notice_unresolved(&mut self, place: u32, error: SaError) {
        let Some(path) = self.paths.get_mut(place) else {
            return;
        };
        if !core::mem::replace(&mut path.noticed.unresolved, true) {
            let notice = Notice::PathFailing(path.address, error);
            self.notice(notice);
        }
    }

    fn notice_too_big(&mut self, place: u32, mtu: usize) {
        let Some(path) = self.paths.get_mut(place) else {
            return;
        };
        if !core::mem::replace(&mut path.noticed.too_big, true) {
            let notice = Notice::TooBig(path.address, mtu);
            self.notice(notice);
        }
    }

    /// The MTU of a neighbour: its path may be narrower than the link.
    pub(super) fn mtu_of_path(&self, state: &PathState) -> usize {
        state.record().map_or(self.datagram_mtu, |record| self.mtu_within(record.mtu))
    }
}
