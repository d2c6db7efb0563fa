//! Multicast: the broadcast group first, then all others beside each other, each with its own pace.

mod join;
mod leave;

use crate::action::{Action, OpId, Target, VerbError};
use crate::counters::{Counter, DropReason};
use crate::group::{AfterLeft, Claim, Group, GroupState, Left, Renewal, Role, Try};
use crate::ib::{Mgid, Qpn};
use crate::packet::{DataPath, PacketBuf, PacketSink};
use crate::storage::Pending;
use crate::time::Instant;
use crate::wire::{EtherType, LinkAddress};

use super::link::{Admin, Lifecycle};
use super::transmit::{Posting, Route};
use super::{Interface, RingFull};

impl<B: PacketBuf> Interface<B> {
    pub(super) fn transmit_multicast(
        &mut self,
        now: Instant,
        mgid: Mgid,
        protocol: EtherType,
        packet: B,
        datapath: &mut impl DataPath<B>,
    ) -> Result<(), RingFull<B>> {
        if !self.broadcast.is_some_and(|broadcast| broadcast.contains(mgid)) {
            self.drop_packet(packet, DropReason::InvalidDestination, datapath);
            return Ok(());
        }
        let found = self.groups.find(mgid);
        let Some(place) = found.or_else(|| self.insert_group(mgid, Role::SendOnly, datapath))
        else {
            self.drop_packet(packet, DropReason::GroupTableFull, datapath);
            return Ok(());
        };
        let Some(group) = self.groups.get_mut(place) else {
            return Ok(());
        };
        group.is_used = true;
        if !group.is_wanted {
            // It is being left; a packet wants it back.
            group.is_wanted = true;
            group.role = Role::SendOnly;
        }
        let mtu = self.mtu_of_group(place);
        if packet.len() > mtu {
            let to = LinkAddress::multicast(mgid);
            self.send_oversize(&to, mtu, protocol, packet, datapath, |this, piece, datapath| {
                if let Err(RingFull(piece)) =
                    this.send_to_group(now, place, protocol, piece, datapath)
                {
                    this.wait_for_room(now, Target::Group(place), protocol, piece, datapath);
                }
            });
            return Ok(());
        }
        self.send_to_group(now, place, protocol, packet, datapath)
    }

    /// Sends a packet that fits, or queues it if the group is not ready.
    fn send_to_group(
        &mut self,
        now: Instant,
        place: u32,
        protocol: EtherType,
        packet: B,
        datapath: &mut impl DataPath<B>,
    ) -> Result<(), RingFull<B>> {
        if let Some(group) = self.groups.get(place)
            && let GroupState::Ready { handle, .. } = group.state
            && group.queue.is_empty()
        {
            let route = Route::Datagram { handle, qpn: Qpn::MULTICAST, is_multicast: true };
            return match self.post(route, protocol, packet, datapath) {
                Posting::Posted | Posting::Dropped => Ok(()),
                Posting::RingFull(packet) => Err(RingFull(packet)),
            };
        }
        self.enqueue(now, Target::Group(place), protocol, packet, datapath);
        self.start_group(place);
        Ok(())
    }

    /// Takes a place for a group, if need be that of a send-only group that is not in use.
    fn insert_group(
        &mut self,
        mgid: Mgid,
        role: Role,
        sink: &mut impl PacketSink<B>,
    ) -> Option<u32> {
        // A place is kept for the broadcast group, without which there is no link.
        let has_broadcast =
            self.broadcast.is_some_and(|broadcast| self.groups.find(broadcast.mgid()).is_some());
        let reserved = if has_broadcast { 0 } else { 1 };
        if self.groups.vacant() <= reserved {
            // Leaving takes a while: this time there may be no place, but a later packet finds one.
            let victim = self.groups.choose_victim()?;
            self.remove_group(victim, sink);
            if self.groups.vacant() <= reserved {
                return None;
            }
        }
        self.groups.insert(mgid, role)
    }

    fn remove_group(&mut self, place: u32, sink: &mut impl PacketSink<B>) {
        if let Some(group) = self.groups.get_mut(place) {
            group.is_wanted = false;
        }
        self.drop_waiting(Target::Group(place), DropReason::GroupUnjoined, sink);
        self.give_up_group(place, AfterLeft::Leave, sink);
    }

    pub(super) fn on_multicast_list<'a>(
        &mut self,
        list: impl Iterator<Item = &'a [u8]> + Clone,
        sink: &mut impl PacketSink<B>,
    ) {
        let Some(broadcast) = self.broadcast else {
            return;
        };
        // Report B17: 6-byte addresses of another link type, other partitions, unicast.
        let mgid_of = move |bytes: &[u8]| {
            let mgid = LinkAddress::from_bytes(bytes)?.mgid()?;
            broadcast.contains(mgid).then_some(mgid)
        };
        for place in 0..self.groups.capacity() {
            let Some(group) = self.groups.get(place) else {
                continue;
            };
            let is_listed = list.clone().any(|bytes| mgid_of(bytes) == Some(group.mgid));
            if group.role == Role::Listed && !is_listed {
                self.remove_group(place, sink);
            }
        }
        for bytes in list {
            match mgid_of(bytes) {
                Some(mgid) if mgid == broadcast.mgid() => {}
                Some(mgid) => self.listen(mgid, sink),
                None => self.counters.count(Counter::ForeignGroups),
            }
        }
    }

    /// The network stack wants to receive a group. One that was sent to before is upgraded in
    /// place.
    fn listen(&mut self, mgid: Mgid, sink: &mut impl PacketSink<B>) {
        if self.admin == Admin::Detaching {
            return;
        }
        let found = self.groups.find(mgid);
        let Some(place) = found.or_else(|| self.insert_group(mgid, Role::Listed, sink)) else {
            self.counters.count(Counter::GroupsRefused);
            return;
        };
        let Some(group) = self.groups.get_mut(place) else {
            return;
        };
        let was_send_only = group.role == Role::SendOnly;
        group.role = Role::Listed;
        group.is_wanted = true;
        // A renewal under way is waited for: its answer shows whether a full membership is missing.
        if let GroupState::Ready { joined, is_attached, handle, renewal } = group.state
            && was_send_only
            && !matches!(renewal, Renewal::Joining(_))
        {
            let renewal = Renewal::Wanted(self.first_try(Role::Listed));
            self.enter_group(place, GroupState::Ready { joined, is_attached, handle, renewal });
        }
        self.start_group(place);
    }

    /// Begins to join a group that is idle, if the link allows it.
    pub(super) fn start_group(&mut self, place: u32) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        let may_join = match (self.lifecycle, group.role) {
            (Lifecycle::Joining, Role::Broadcast) => true,
            (Lifecycle::Joined, Role::Broadcast | Role::Listed) => true,
            // A send-only group is joined for a packet.
            (Lifecycle::Joined, Role::SendOnly) => !group.queue.is_empty(),
            (
                Lifecycle::Down
                | Lifecycle::AwaitingPartition
                | Lifecycle::AwaitingPort
                | Lifecycle::Opening
                | Lifecycle::Joining
                | Lifecycle::Draining
                | Lifecycle::Detached,
                _,
            ) => false,
        };
        if may_join && group.state == GroupState::Idle {
            let first = self.first_try(group.role);
            self.enter_group(place, GroupState::JoinWanted(first));
        }
    }

    /// The only way to change the state of a group.
    fn enter_group(&mut self, place: u32, state: GroupState) {
        let Some(group) = self.groups.get_mut(place) else {
            return;
        };
        group.state = state;
        if state.wants_action() {
            self.push_work(Target::Group(place));
        }
        self.arm(Target::Group(place));
    }

    pub(super) fn next_group_action(&mut self, place: u32) -> Option<Action> {
        let group = self.groups.get(place)?;
        let Group { mgid, state, claim, operation: generation, .. } = *group;
        if let GroupState::CancelWanted { attached } = state {
            if attached.is_some() {
                let then = AfterLeft::Forget;
                self.enter_group(place, GroupState::DetachWanted(Left { attached, then }));
            } else {
                self.forget_group(place);
            }
            return Some(Action::CancelQuery {
                op: OpId { target: Target::Group(place), generation },
            });
        }
        if !state.wants_action() {
            return None;
        }
        let op = self.begin_operation(Target::Group(place));
        self.groups.get_mut(place)?.operation = op.generation;
        let (next, action) = match state {
            GroupState::JoinWanted(attempt) => {
                (GroupState::Joining(attempt), self.join_action(op, place, attempt)?)
            }
            GroupState::Ready {
                joined,
                is_attached,
                handle,
                renewal: Renewal::Wanted(attempt),
            } => {
                let renewal = Renewal::Joining(attempt);
                let next = GroupState::Ready { joined, is_attached, handle, renewal };
                (next, self.join_action(op, place, attempt)?)
            }
            GroupState::AttachWanted(joined) => {
                let mlid = joined.record.mlid;
                (GroupState::Attaching(joined), Action::AttachGroup { op, mgid, mlid })
            }
            GroupState::DetachWanted(left) => {
                let (mgid, mlid) = left.attached?;
                (GroupState::Detaching(left), Action::DetachGroup { op, mgid, mlid })
            }
            GroupState::LeaveWanted { tries } => {
                let Claim { mgid, port_gid, join_states } = claim?;
                let membership = join_states.next_to_leave()?;
                self.counters.count(Counter::Leaves);
                let action = Action::LeaveGroup { op, mgid, port_gid, membership };
                (GroupState::Leaving { tries }, action)
            }
            GroupState::Idle
            | GroupState::Joining(_)
            | GroupState::BackingOff { .. }
            | GroupState::Attaching(_)
            | GroupState::Addressing { .. }
            | GroupState::Unusable { .. }
            | GroupState::Ready { .. }
            | GroupState::JoinAbandoned(_)
            | GroupState::AttachAbandoned(_)
            | GroupState::Detaching(_)
            | GroupState::Leaving { .. }
            | GroupState::LeaveBackingOff { .. }
            | GroupState::CancelWanted { .. } => return None,
        };
        self.enter_group(place, next);
        Some(action)
    }

    /// The group that waits for the answer to `op`, or a stale answer is counted.
    fn waiting_group(&mut self, op: OpId) -> Option<(u32, GroupState)> {
        let place = self.groups.of_operation(op);
        let waiting = place.and_then(|place| Some((place, self.groups.get(place)?.state)));
        if waiting.is_none() {
            self.counters.count(Counter::StaleAnswers);
        }
        waiting
    }

    /// Returns whether the result was waited for.
    pub(super) fn on_group_verb(
        &mut self,
        now: Instant,
        op: OpId,
        result: Result<(), VerbError>,
        sink: &mut impl PacketSink<B>,
    ) -> bool {
        let waiting = self.groups.of_operation(op);
        let state = waiting.and_then(|place| Some((place, self.groups.get(place)?.state)));
        let Some((place, state)) = state else {
            return false;
        };
        match (state, result) {
            (GroupState::Attaching(joined), Ok(())) => {
                self.use_membership(now, place, joined, true);
            }
            (GroupState::Attaching(joined), Err(VerbError)) => {
                self.enter_unusable(now, place, joined, false);
            }
            (GroupState::AttachAbandoned(left), Ok(())) => {
                self.enter_group(place, GroupState::DetachWanted(left));
            }
            // A group that cannot be detached is the adapter's to keep; the core lets go.
            (GroupState::AttachAbandoned(left), Err(VerbError))
            | (GroupState::Detaching(left), _) => {
                self.detach_or_leave(place, Left { attached: None, ..left }, sink);
            }
            (
                GroupState::Idle
                | GroupState::JoinWanted(_)
                | GroupState::Joining(_)
                | GroupState::BackingOff { .. }
                | GroupState::AttachWanted(_)
                | GroupState::Addressing { .. }
                | GroupState::Unusable { .. }
                | GroupState::Ready { .. }
                | GroupState::JoinAbandoned(_)
                | GroupState::DetachWanted(_)
                | GroupState::LeaveWanted { .. }
                | GroupState::Leaving { .. }
                | GroupState::LeaveBackingOff { .. }
                | GroupState::CancelWanted { .. },
                _,
            ) => return false,
        }
        true
    }

    pub(super) fn on_group_timeout(
        &mut self,
        now: Instant,
        place: u32,
        sink: &mut impl PacketSink<B>,
    ) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        if group.queue.expires_at().is_some_and(|at| at <= now) {
            self.drop_waiting(Target::Group(place), DropReason::PendingExpired, sink);
        }
        let Some(group) = self.groups.get(place) else {
            return;
        };
        if group.state.ends_at().is_none_or(|at| at > now) {
            self.arm(Target::Group(place));
            return;
        }
        let first = self.first_try(group.role);
        match group.state {
            GroupState::BackingOff { attempt, .. } => {
                self.enter_group(place, GroupState::JoinWanted(Try { attempt, ..first }));
            }
            GroupState::Ready { renewal: Renewal::BackingOff { attempt, .. }, .. } => {
                self.enter_renewal(place, Renewal::Wanted(Try { attempt, ..first }));
            }
            GroupState::Unusable { joined, is_attached, .. } => {
                self.use_membership(now, place, joined, is_attached);
            }
            GroupState::LeaveBackingOff { tries, .. } => self.leave_or_settle(place, tries, sink),
            GroupState::Idle
            | GroupState::JoinWanted(_)
            | GroupState::Joining(_)
            | GroupState::AttachWanted(_)
            | GroupState::Attaching(_)
            | GroupState::Addressing { .. }
            | GroupState::Ready { .. }
            | GroupState::JoinAbandoned(_)
            | GroupState::AttachAbandoned(_)
            | GroupState::DetachWanted(_)
            | GroupState::Detaching(_)
            | GroupState::LeaveWanted { .. }
            | GroupState::Leaving { .. }
            | GroupState::CancelWanted { .. } => {}
        }
    }

    /// Sends what waits for a group that is ready, as far as the ring has room.
    pub(super) fn drain_group(
        &mut self,
        now: Instant,
        place: u32,
        datapath: &mut impl DataPath<B>,
    ) {
        let mtu = self.mtu_of_group(place);
        while let Some(group) = self.groups.get_mut(place) {
            let GroupState::Ready { handle, .. } = group.state else {
                return;
            };
            let mgid = group.mgid;
            let first = self.first_waiting_bytes(Target::Group(place));
            if first.is_some_and(|bytes| self.sends.vacant() < self.sends_needed(bytes, mtu)) {
                self.push_backlog(Target::Group(place));
                return;
            }
            let Some(pending) = self.take_waiting(Target::Group(place)) else { return };
            let Pending { protocol, packet, bytes: _ } = pending;
            let route = Route::Datagram { handle, qpn: Qpn::MULTICAST, is_multicast: true };
            if packet.len() > mtu {
                // The group turned out narrower than the link.
                let to = LinkAddress::multicast(mgid);
                self.send_oversize(&to, mtu, protocol, packet, datapath, |this, piece, dp| {
                    this.post_to_group(now, place, route, protocol, piece, dp);
                });
            } else {
                self.post_to_group(now, place, route, protocol, packet, datapath);
            }
        }
    }

    /// Posts a packet; if the ring is full after all, it waits at the end of the queue.
    fn post_to_group(
        &mut self,
        now: Instant,
        place: u32,
        route: Route,
        protocol: EtherType,
        packet: B,
        datapath: &mut impl DataPath<B>,
    ) {
        if let Posting::RingFull(packet) = self.post(route, protocol, packet, datapath) {
            self.wait_for_room(now, Target::Group(place), protocol, packet, datapath);
        }
    }

    /// The MTU of a group: it may be narrower than the link (report B16).
    fn mtu_of_group(&self, place: u32) -> usize {
        let joined = self.groups.get(place).and_then(|group| group.state.joined());
        joined.map_or(self.datagram_mtu, |joined| self.mtu_within(joined.record.parameters.mtu))
    }
}
