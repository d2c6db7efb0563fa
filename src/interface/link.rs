//! The life of an interface and of its queue pair: what the administrator wants and the port allows
//! decides the state, and one function takes it there.

use crate::action::{Action, OpId, SaCapabilities, SaError, Target, VerbError};
use crate::counters::{Counter, DropReason};
use crate::event::{Event, Notice};
use crate::flush::{FlushLevel, GroupEffect, PathEffect};
use crate::group::{AfterLeft, GroupState, Role};
use crate::ib::{PkeyIndex, PortAttributes};
use crate::limits::{DRAIN_MAX, REOPEN_AFTER};
use crate::packet::{DataPath, PacketBuf, PacketSink};
use crate::queue_pair::QueuePairState;
use crate::send_ring::Via;
use crate::time::Instant;
use crate::wire::{AddressFlags, BroadcastGroup, ENCAPSULATION_BYTES, LinkAddress};

use super::{Interface, Mode, PortEvent, SendQueue};

/// What the administrator wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Admin {
    Down,
    Up,
    Detaching,
}

/// How far the interface has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Lifecycle {
    /// Nothing is posted, nothing joined.
    Down,
    /// Up, but the P_Key is in no table.
    AwaitingPartition,
    /// Up, but the port is not ACTIVE or has no LID.
    AwaitingPort,
    /// The queue pair is being opened.
    Opening,
    /// The broadcast group is being joined.
    Joining,
    /// Carrier.
    Joined,
    /// Everything is being given back; what follows is up to the administrator.
    Draining,
    /// The end.
    Detached,
}

/// What is known of the SA.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SaKnowledge {
    pub(super) capabilities: SaCapabilities,
    query: SaQuery,
}

/// The question what the SA can do.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum SaQuery {
    /// It is not under way.
    #[default]
    Idle,
    /// The SA is to be asked.
    Wanted,
    /// The SA is being asked; the generation of the operation.
    Asking(u32),
    /// The answer would be too old, or nobody needs it any more: to be cancelled.
    CancelWanted { generation: u32, asks_again: bool },
}

impl<B: PacketBuf> Interface<B> {
    /// Takes the interface to where it should be. Called after every input that can change that.
    pub(super) fn reconcile(&mut self, now: Instant, sink: &mut impl PacketSink<B>) {
        loop {
            self.adopt_broadcast_record();
            let next = self.next_lifecycle();
            if next == self.lifecycle {
                self.reconcile_listener(now);
                return;
            }
            self.enter(now, next, sink);
        }
    }

    fn next_lifecycle(&self) -> Lifecycle {
        match self.lifecycle {
            Lifecycle::Detached => Lifecycle::Detached,
            Lifecycle::Draining if !self.is_drained() => Lifecycle::Draining,
            Lifecycle::Down | Lifecycle::Draining => match self.admin {
                Admin::Up => self.next_link_state(),
                Admin::Down => Lifecycle::Down,
                Admin::Detaching if self.is_drained() => Lifecycle::Detached,
                Admin::Detaching => Lifecycle::Draining,
            },
            Lifecycle::AwaitingPartition
            | Lifecycle::AwaitingPort
            | Lifecycle::Opening
            | Lifecycle::Joining
            | Lifecycle::Joined => match self.admin {
                Admin::Up => self.next_link_state(),
                Admin::Down | Admin::Detaching => Lifecycle::Draining,
            },
        }
    }

    /// RFC 4391 5: the link is there when the port is ACTIVE, the P_Key is in its table and the
    /// broadcast group is joined.
    fn next_link_state(&self) -> Lifecycle {
        if self.port.partition.is_none() {
            return Lifecycle::AwaitingPartition;
        }
        if !is_usable(&self.port) {
            return Lifecycle::AwaitingPort;
        }
        if self.queue_pair.state.open_index().is_none() {
            return Lifecycle::Opening;
        }
        let Some(broadcast) = self.broadcast_state() else {
            return Lifecycle::Joining;
        };
        let Some(joined) = broadcast.joined() else {
            return Lifecycle::Joining;
        };
        let is_ready = matches!(broadcast, GroupState::Ready { .. });
        let has_qkey = self.queue_pair.state.qkey() == Some(joined.record.parameters.qkey);
        // A link that is up stays up while its group is moved to another MLID or queue key.
        if self.lifecycle == Lifecycle::Joined || (is_ready && has_qkey) {
            Lifecycle::Joined
        } else {
            Lifecycle::Joining
        }
    }

    /// The only way to change the state of the interface.
    fn enter(&mut self, now: Instant, next: Lifecycle, sink: &mut impl PacketSink<B>) {
        let was_up = self.lifecycle == Lifecycle::Joined;
        self.lifecycle = next;
        if was_up {
            self.push_event(Event::LinkDown);
            self.close_connections();
        }
        match next {
            Lifecycle::Down | Lifecycle::AwaitingPartition | Lifecycle::AwaitingPort => {}
            Lifecycle::Opening => self.enter_opening(now),
            Lifecycle::Joining => self.enter_joining(),
            Lifecycle::Joined => self.enter_joined(),
            Lifecycle::Draining => self.enter_draining(sink),
            Lifecycle::Detached => self.push_event(Event::Detached),
        }
    }

    fn enter_opening(&mut self, now: Instant) {
        self.adopt_partition();
        self.open_queue_pair(now);
    }

    fn enter_joining(&mut self) {
        let Some(broadcast) = self.broadcast else {
            return;
        };
        let place = match self.groups.find(broadcast.mgid()) {
            Some(place) => Some(place),
            None => self.groups.insert(broadcast.mgid(), Role::Broadcast),
        };
        let Some(place) = place else { return };
        if let Some(group) = self.groups.get_mut(place) {
            group.role = Role::Broadcast;
            group.is_wanted = true;
        }
        self.query_sa_capabilities();
        self.start_group(place);
    }

    fn enter_joined(&mut self) {
        self.push_event(Event::LinkUp);
        for place in 0..self.paths.capacity() {
            self.unblock_path(place);
        }
        for place in 0..self.groups.capacity() {
            self.start_group(place);
        }
    }

    fn enter_draining(&mut self, sink: &mut impl PacketSink<B>) {
        let reason = match self.admin {
            Admin::Up => DropReason::LinkDown,
            Admin::Down | Admin::Detaching => DropReason::InterfaceDown,
        };
        self.end_sa_query(false);
        self.drop_paths(reason, sink);
        self.give_up_groups(reason, sink);
        self.close_queue_pair();
    }

    /// Takes over a change of the port.
    pub(super) fn on_port_changed(
        &mut self,
        now: Instant,
        event: PortEvent,
        port: &PortAttributes,
        sink: &mut impl PacketSink<B>,
    ) {
        let before = core::mem::replace(&mut self.port, *port);
        if port.gid != before.gid {
            self.push_event(Event::AddressChanged(self.address()));
        }
        match self.lifecycle {
            Lifecycle::Down => self.adopt_partition(),
            Lifecycle::Draining | Lifecycle::Detached => {}
            Lifecycle::AwaitingPartition
            | Lifecycle::AwaitingPort
            | Lifecycle::Opening
            | Lifecycle::Joining
            | Lifecycle::Joined => {
                if let Some(level) = FlushLevel::of(event, &before, port) {
                    self.flush(now, level, sink);
                }
                if port.lid != before.lid && is_usable(port) {
                    self.push_event(Event::AnnounceAddress);
                }
            }
        }
    }

    fn flush(&mut self, now: Instant, level: FlushLevel, sink: &mut impl PacketSink<B>) {
        let effects = level.effects();
        self.counters.count(effects.counter);
        if effects.restarts_queue_pair {
            // Draining gives up paths and groups as well.
            self.enter(now, Lifecycle::Draining, sink);
            return;
        }
        match effects.groups {
            GroupEffect::Renew => self.renew_groups(),
            GroupEffect::Leave => {
                // The carrier goes first, so that nothing that is given up starts again at once.
                self.enter(now, Lifecycle::AwaitingPort, sink);
                self.give_up_groups(DropReason::LinkDown, sink);
            }
        }
        match effects.paths {
            PathEffect::LookUpAgain => self.mark_paths_stale(now),
            PathEffect::Drop => self.drop_paths(DropReason::LinkDown, sink),
        }
    }

    /// Gives up every group, in the way that the port allows.
    fn give_up_groups(&mut self, reason: DropReason, sink: &mut impl PacketSink<B>) {
        // A port that is not ACTIVE sends no MADs, and the subnet manager forgets its members.
        let then = if is_usable(&self.port) { AfterLeft::Leave } else { AfterLeft::Forget };
        for place in 0..self.groups.capacity() {
            let Some(group) = self.groups.get_mut(place) else {
                continue;
            };
            let keeps_role = match group.role {
                Role::Broadcast | Role::Listed => self.admin != Admin::Detaching,
                Role::SendOnly => false,
            };
            group.is_wanted &= keeps_role;
            self.drop_waiting(Target::Group(place), reason, sink);
            self.give_up_group(place, then, sink);
        }
    }

    /// The broadcast group follows the P_Key, and every other group follows it: scope and P_Key are
    /// part of their MGIDs (RFC 4391 4). Called only while no group is joined.
    fn adopt_partition(&mut self) {
        let Some(partition) = self.port.partition else {
            return;
        };
        let new = BroadcastGroup::new(self.scope, partition.pkey);
        let old = self.broadcast.replace(new);
        if old == Some(new) {
            return;
        }
        for place in 0..self.groups.capacity() {
            let Some(group) = self.groups.get(place) else {
                continue;
            };
            let mgid = match group.role {
                Role::Broadcast => Some(new.mgid()),
                Role::Listed | Role::SendOnly => {
                    let address = old.and_then(|old| old.ip_of(group.mgid));
                    address.and_then(|address| new.mgid_of(address))
                }
            };
            if let Some(mgid) = mgid {
                self.groups.rename(place, mgid);
            }
        }
        self.push_event(Event::BroadcastChanged(new.mgid()));
    }

    pub(super) fn broadcast_state(&self) -> Option<&GroupState> {
        let place = self.groups.find(self.broadcast?.mgid())?;
        self.groups.get(place).map(|group| &group.state)
    }

    /// The link's MTU and queue key are those of the broadcast group.
    fn adopt_broadcast_record(&mut self) {
        let Some(joined) = self.broadcast_state().and_then(GroupState::joined) else {
            return;
        };
        let parameters = joined.record.parameters;
        let mtu = self.port.mtu.min(parameters.mtu).bytes() - ENCAPSULATION_BYTES;
        let before = self.mtu();
        self.datagram_mtu = mtu;
        if self.mtu() != before {
            self.push_event(Event::MtuChanged(self.mtu()));
        }
        self.qkey = parameters.qkey;
        match self.queue_pair.state {
            QueuePairState::Open { index, qkey } if qkey != Some(self.qkey) => {
                self.enter_queue_pair(QueuePairState::QkeyWanted { index, qkey: self.qkey });
            }
            QueuePairState::QkeyWanted { index, .. } => {
                self.queue_pair.state = QueuePairState::QkeyWanted { index, qkey: self.qkey };
            }
            QueuePairState::Open { .. }
            | QueuePairState::Reset
            | QueuePairState::OpenWanted(_)
            | QueuePairState::Opening(_)
            | QueuePairState::SettingQkey { .. }
            | QueuePairState::CloseWaiting
            | QueuePairState::ErrorWanted
            | QueuePairState::Erring
            | QueuePairState::Draining { .. }
            | QueuePairState::ResetWanted
            | QueuePairState::Resetting
            | QueuePairState::ResetFailed { .. } => {}
        }
    }

    /// The only way to change the state of the queue pair.
    fn enter_queue_pair(&mut self, state: QueuePairState) {
        self.queue_pair.state = state;
        let reopen_at = self.queue_pair.reopen_at.filter(|_| state == QueuePairState::Reset);
        self.set_timer(Target::QueuePair, state.ends_at().or(reopen_at));
        if state.wanted().is_some() {
            self.push_work(Target::QueuePair);
        }
    }

    fn open_queue_pair(&mut self, now: Instant) {
        let Some(partition) = self.port.partition else {
            return;
        };
        let may_open = self.queue_pair.reopen_at.is_none_or(|at| at <= now);
        if self.queue_pair.state == QueuePairState::Reset && may_open {
            self.queue_pair.reopen_at = None;
            self.enter_queue_pair(QueuePairState::OpenWanted(partition.index));
        }
    }

    fn close_queue_pair(&mut self) {
        let next = match self.queue_pair.state {
            QueuePairState::OpenWanted(_) => QueuePairState::Reset,
            QueuePairState::Opening(_) | QueuePairState::SettingQkey { .. } => {
                QueuePairState::CloseWaiting
            }
            QueuePairState::Open { .. } | QueuePairState::QkeyWanted { .. } => {
                QueuePairState::ErrorWanted
            }
            QueuePairState::Reset
            | QueuePairState::CloseWaiting
            | QueuePairState::ErrorWanted
            | QueuePairState::Erring
            | QueuePairState::Draining { .. }
            | QueuePairState::ResetWanted
            | QueuePairState::Resetting
            | QueuePairState::ResetFailed { .. } => return,
        };
        self.enter_queue_pair(next);
    }

    pub(super) fn next_queue_pair_action(&mut self) -> Option<Action> {
        let change = self.queue_pair.state.wanted()?;
        let op = self.begin_operation(Target::QueuePair);
        self.queue_pair.operation = op.generation;
        let next = match self.queue_pair.state {
            QueuePairState::OpenWanted(index) => QueuePairState::Opening(index),
            QueuePairState::QkeyWanted { index, qkey } => {
                QueuePairState::SettingQkey { index, qkey }
            }
            QueuePairState::ErrorWanted => QueuePairState::Erring,
            QueuePairState::ResetWanted => QueuePairState::Resetting,
            unchanged @ (QueuePairState::Reset
            | QueuePairState::Opening(_)
            | QueuePairState::Open { .. }
            | QueuePairState::SettingQkey { .. }
            | QueuePairState::CloseWaiting
            | QueuePairState::Erring
            | QueuePairState::Draining { .. }
            | QueuePairState::Resetting
            | QueuePairState::ResetFailed { .. }) => unchanged,
        };
        self.enter_queue_pair(next);
        Some(Action::ModifyQueuePair { op, change })
    }

    /// Returns whether the result was waited for.
    pub(super) fn on_queue_pair_verb(
        &mut self,
        now: Instant,
        op: OpId,
        result: Result<(), VerbError>,
        datapath: &mut impl DataPath<B>,
    ) -> bool {
        if op.generation != self.queue_pair.operation {
            return false;
        }
        match (self.queue_pair.state, result) {
            (QueuePairState::Opening(index), Ok(())) => self.enter_open(now, index, datapath),
            (QueuePairState::SettingQkey { index, qkey }, Ok(())) => {
                self.enter_queue_pair(QueuePairState::Open { index, qkey: Some(qkey) });
                self.refill_receives(now, datapath);
            }
            (QueuePairState::Opening(_) | QueuePairState::SettingQkey { .. }, Err(VerbError)) => {
                self.queue_pair.reopen_at = Some(now + REOPEN_AFTER);
                self.enter_queue_pair(QueuePairState::ErrorWanted);
                self.enter(now, Lifecycle::Draining, datapath);
            }
            (QueuePairState::CloseWaiting, _) => self.enter_queue_pair(QueuePairState::ErrorWanted),
            (QueuePairState::Erring, Ok(())) => {
                self.enter_queue_pair(QueuePairState::Draining { deadline: now + DRAIN_MAX });
                self.finish_queue_pair_drain();
            }
            // A queue pair that cannot go to the error state can still be reset.
            (QueuePairState::Erring, Err(VerbError)) => {
                self.enter_queue_pair(QueuePairState::ResetWanted);
            }
            (QueuePairState::Resetting, Ok(())) => self.on_queue_pair_reset(now, datapath),
            (QueuePairState::Resetting, Err(VerbError)) => {
                self.notice(Notice::ResetFailed);
                let retry_at = now + REOPEN_AFTER;
                self.enter_queue_pair(QueuePairState::ResetFailed { retry_at });
            }
            (
                QueuePairState::Reset
                | QueuePairState::OpenWanted(_)
                | QueuePairState::Open { .. }
                | QueuePairState::QkeyWanted { .. }
                | QueuePairState::ErrorWanted
                | QueuePairState::Draining { .. }
                | QueuePairState::ResetWanted
                | QueuePairState::ResetFailed { .. },
                _,
            ) => return false,
        }
        true
    }

    fn enter_open(&mut self, now: Instant, index: PkeyIndex, datapath: &mut impl DataPath<B>) {
        self.enter_queue_pair(QueuePairState::Open { index, qkey: None });
        self.refill_receives(now, datapath);
    }

    /// The adapter touches no buffer any more, and the data path has all of them back: no
    /// completion will come for what was posted.
    fn on_queue_pair_reset(&mut self, now: Instant, datapath: &mut impl DataPath<B>) {
        while let Some(posted) = self.sends.reclaim(|via| matches!(via, Via::Handle(_))) {
            self.counters.count(Counter::SendFlushed);
            if let Via::Handle(handle) = posted.via {
                self.release_handle(handle);
            }
        }
        self.queue_pair.receives_posted = 0;
        self.enter_queue_pair(QueuePairState::Reset);
        // What waited for room was dropped. As long as its objects are in line nobody is woken, and
        // no completion will come to take them out.
        self.drain_backlog(now, datapath);
        self.wake_send_queue();
    }

    /// When nothing is posted any more, the queue pair is reset.
    pub(super) fn finish_queue_pair_drain(&mut self) {
        let is_empty = self.sends.outstanding() == 0 && self.queue_pair.receives_posted == 0;
        if is_empty && matches!(self.queue_pair.state, QueuePairState::Draining { .. }) {
            self.enter_queue_pair(QueuePairState::ResetWanted);
        }
    }

    pub(super) fn on_queue_pair_timeout(&mut self, now: Instant, datapath: &mut impl DataPath<B>) {
        match self.queue_pair.state {
            QueuePairState::Reset => {
                if self.lifecycle == Lifecycle::Opening {
                    self.open_queue_pair(now);
                }
            }
            QueuePairState::Draining { deadline } if deadline <= now => {
                // Hazard: buffers that are freed while the adapter may still write to them. They
                // stay posted until the adapter confirms the reset.
                self.counters.count(Counter::DrainsTimedOut);
                self.notice(Notice::DrainForced);
                self.enter_queue_pair(QueuePairState::ResetWanted);
            }
            QueuePairState::ResetFailed { retry_at } if retry_at <= now => {
                self.enter_queue_pair(QueuePairState::ResetWanted);
            }
            QueuePairState::Open { .. }
            | QueuePairState::QkeyWanted { .. }
            | QueuePairState::SettingQkey { .. } => {
                self.refill_receives(now, datapath);
                self.refill_all_connected(now, datapath);
            }
            QueuePairState::OpenWanted(_)
            | QueuePairState::Opening(_)
            | QueuePairState::CloseWaiting
            | QueuePairState::ErrorWanted
            | QueuePairState::Erring
            | QueuePairState::Draining { .. }
            | QueuePairState::ResetWanted
            | QueuePairState::Resetting
            | QueuePairState::ResetFailed { .. } => {}
        }
    }

    /// If the send queue was stopped and half of the ring is free, the shell is woken. Tested
    /// against a mark and not for equality with it, so that a batch cannot step over it.
    pub(super) fn wake_send_queue(&mut self) {
        let is_half_free = self.sends.outstanding() <= self.sends.capacity() / 2;
        if self.send_queue == SendQueue::Stopped && is_half_free && self.backlog.is_empty() {
            self.send_queue = SendQueue::WakeWanted;
        }
    }

    pub(super) fn query_sa_capabilities(&mut self) {
        self.end_sa_query(true);
        self.push_work(Target::Sa);
    }

    /// Gives up the question that is under way, if there is one, and asks it anew if `asks_again`.
    fn end_sa_query(&mut self, asks_again: bool) {
        self.sa.query = match self.sa.query {
            SaQuery::Idle | SaQuery::Wanted if asks_again => SaQuery::Wanted,
            SaQuery::Idle | SaQuery::Wanted => SaQuery::Idle,
            SaQuery::Asking(generation) | SaQuery::CancelWanted { generation, .. } => {
                self.push_work(Target::Sa);
                SaQuery::CancelWanted { generation, asks_again }
            }
        };
    }

    pub(super) fn next_sa_action(&mut self) -> Option<Action> {
        match self.sa.query {
            SaQuery::Idle | SaQuery::Asking(_) => None,
            SaQuery::Wanted => {
                let op = self.begin_operation(Target::Sa);
                self.sa.query = SaQuery::Asking(op.generation);
                Some(Action::QuerySaCapabilities { op })
            }
            SaQuery::CancelWanted { generation, asks_again } => {
                self.sa.query = SaQuery::Idle;
                if asks_again {
                    self.query_sa_capabilities();
                }
                let target = Target::Sa;
                Some(Action::CancelQuery { op: OpId { target, generation } })
            }
        }
    }

    /// An SA that does not answer is taken to have no capabilities; it is asked again when the link
    /// comes up or another one takes over.
    pub(super) fn on_sa_capabilities(&mut self, op: OpId, answer: Result<SaCapabilities, SaError>) {
        if op.target != Target::Sa || self.sa.query != SaQuery::Asking(op.generation) {
            self.counters.count(Counter::StaleAnswers);
            return;
        }
        self.sa.query = SaQuery::Idle;
        self.sa.capabilities = answer.unwrap_or_default();
    }

    /// The link-layer address.
    pub fn address(&self) -> LinkAddress {
        let flags = match self.mode {
            Mode::Datagram => AddressFlags::empty(),
            Mode::Connected => AddressFlags::RC,
        };
        LinkAddress::new(flags, self.qpn, self.port.gid)
    }

    /// Returns whether the interface has a carrier.
    pub fn is_link_up(&self) -> bool {
        self.lifecycle == Lifecycle::Joined
    }
}

/// Whether a port carries traffic: ACTIVE and with a LID.
fn is_usable(port: &PortAttributes) -> bool {
    port.is_active && port.lid.is_some()
}
