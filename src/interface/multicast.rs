//! Multicast: the broadcast group first, then all others beside each other, each with its own pace.

use crate::action::{
    Action, GroupRecord, JoinRequest, Membership, OpId, SaError, SaRefusal, Target, VerbError,
};
use crate::counters::{Counter, DropReason};
use crate::event::Notice;
use crate::group::{
    AfterLeft, Claim, Group, GroupState, JoinStates, Joined, Left, Renewal, Role, Try,
    address_vector, back_off,
};
use crate::ib::{Mgid, Qpn};
use crate::limits::{LEAVE_TRIES_MAX, PENDING_MAX, REOPEN_AFTER, SEND_ONLY_TRIES_MAX};
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
        if !self
            .broadcast
            .is_some_and(|broadcast| broadcast.contains(mgid))
        {
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
            self.send_oversize(
                &to,
                mtu,
                protocol,
                packet,
                datapath,
                |this, piece, datapath| {
                    if let Err(RingFull(piece)) =
                        this.send_to_group(now, place, protocol, piece, datapath)
                    {
                        this.queue_on_group(now, place, protocol, piece, datapath);
                        this.push_backlog(Target::Group(place));
                    }
                },
            );
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
            let route = Route {
                handle,
                qpn: Qpn::MULTICAST,
                is_multicast: true,
            };
            return match self.post(route, protocol, packet, datapath) {
                Posting::Posted | Posting::Dropped => Ok(()),
                Posting::RingFull(packet) => Err(RingFull(packet)),
            };
        }
        self.queue_on_group(now, place, protocol, packet, datapath);
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
        if self.groups.is_full() {
            // Leaving takes a while: this time there may be no place, but a later packet finds one.
            let victim = self.groups.choose_victim()?;
            self.remove_group(victim, sink);
        }
        self.groups.insert(mgid, role)
    }

    fn remove_group(&mut self, place: u32, sink: &mut impl PacketSink<B>) {
        if let Some(group) = self.groups.get_mut(place) {
            group.is_wanted = false;
        }
        self.drop_group_queue(place, DropReason::GroupUnjoined, sink);
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

    /// The network stack wants to receive a group. One that was sent to before is upgraded in place.
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
        if let GroupState::Ready {
            joined,
            is_attached,
            handle,
            ..
        } = group.state
            && was_send_only
        {
            let renewal = Renewal::Wanted(self.first_try(Role::Listed));
            self.enter_group(
                place,
                GroupState::Ready {
                    joined,
                    is_attached,
                    handle,
                    renewal,
                },
            );
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

    fn first_try(&self, role: Role) -> Try {
        let membership = match role {
            Role::Broadcast | Role::Listed => Membership::Full,
            // Hazard H14: a subnet manager that does not know send-only members is asked for a full
            // one, which is then not attached.
            Role::SendOnly if self.sa.capabilities.send_only_full_member => {
                Membership::SendOnlyFull
            }
            Role::SendOnly => Membership::Full,
        };
        Try {
            attempt: 0,
            creates: false,
            membership,
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
        self.arm_group(place);
    }

    fn arm_group(&mut self, place: u32) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        let at = [group.hold_until, group.state.ends_at()]
            .into_iter()
            .flatten()
            .min();
        self.set_timer(Target::Group(place), at);
    }

    /// A light flush: memberships are renewed at once, and every back-off starts anew.
    pub(super) fn renew_groups(&mut self) {
        self.query_sa_capabilities();
        for place in 0..self.groups.capacity() {
            let Some(group) = self.groups.get(place) else {
                continue;
            };
            let first = self.first_try(group.role);
            match group.state {
                GroupState::Ready {
                    renewal: Renewal::Joining(_),
                    ..
                } => {}
                GroupState::Ready {
                    joined,
                    is_attached,
                    handle,
                    renewal: _,
                } => {
                    let renewal = Renewal::Wanted(first);
                    let state = GroupState::Ready {
                        joined,
                        is_attached,
                        handle,
                        renewal,
                    };
                    self.enter_group(place, state);
                }
                GroupState::BackingOff { .. } => {
                    self.enter_group(place, GroupState::JoinWanted(first));
                }
                GroupState::Idle
                | GroupState::JoinWanted(_)
                | GroupState::Joining(_)
                | GroupState::AttachWanted(_)
                | GroupState::Attaching(_)
                | GroupState::Addressing { .. }
                | GroupState::Unusable { .. }
                | GroupState::JoinAbandoned(_)
                | GroupState::AttachAbandoned(_)
                | GroupState::DetachWanted(_)
                | GroupState::Detaching(_)
                | GroupState::LeaveWanted { .. }
                | GroupState::Leaving { .. }
                | GroupState::LeaveBackingOff { .. }
                | GroupState::CancelWanted => {}
            }
        }
    }

    pub(super) fn next_group_action(&mut self, place: u32) -> Option<Action> {
        let group = self.groups.get(place)?;
        let Group {
            mgid,
            state,
            claim,
            operation: generation,
            ..
        } = *group;
        if state == GroupState::CancelWanted {
            self.forget_group(place);
            return Some(Action::CancelQuery {
                op: OpId {
                    target: Target::Group(place),
                    generation,
                },
            });
        }
        if !state.wants_action() {
            return None;
        }
        let op = self.begin_operation(Target::Group(place));
        self.groups.get_mut(place)?.operation = op.generation;
        let (next, action) = match state {
            GroupState::JoinWanted(attempt) => (
                GroupState::Joining(attempt),
                self.join_action(op, place, attempt)?,
            ),
            GroupState::Ready {
                joined,
                is_attached,
                handle,
                renewal: Renewal::Wanted(attempt),
            } => {
                let renewal = Renewal::Joining(attempt);
                let next = GroupState::Ready {
                    joined,
                    is_attached,
                    handle,
                    renewal,
                };
                (next, self.join_action(op, place, attempt)?)
            }
            GroupState::AttachWanted(joined) => {
                let mlid = joined.record.mlid;
                (
                    GroupState::Attaching(joined),
                    Action::AttachGroup { op, mgid, mlid },
                )
            }
            GroupState::DetachWanted(left) => {
                let (mgid, mlid) = left.attached?;
                (
                    GroupState::Detaching(left),
                    Action::DetachGroup { op, mgid, mlid },
                )
            }
            GroupState::LeaveWanted { tries } => {
                let Claim {
                    mgid,
                    port_gid,
                    join_states,
                } = claim?;
                let membership = join_states.next_to_leave()?;
                self.counters.count(Counter::Leaves);
                let action = Action::LeaveGroup {
                    op,
                    mgid,
                    port_gid,
                    membership,
                };
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
            | GroupState::CancelWanted => return None,
        };
        self.enter_group(place, next);
        Some(action)
    }

    fn join_action(&mut self, op: OpId, place: u32, attempt: Try) -> Option<Action> {
        let Try {
            attempt: _,
            creates,
            membership,
        } = attempt;
        let pkey = self.port.partition?.pkey.full();
        let port_gid = self.port.gid;
        // Report B16: what is created is like the broadcast group; what exists is taken as it is.
        let like = self.broadcast_state().and_then(GroupState::joined);
        let create = like
            .filter(|_| creates)
            .map(|joined| joined.record.parameters);
        let group = self.groups.get_mut(place)?;
        let mgid = group.mgid;
        let claimed = group
            .claim
            .map_or(JoinStates::empty(), |claim| claim.join_states);
        let join_states = claimed | membership.into();
        group.claim = Some(Claim {
            mgid,
            port_gid,
            join_states,
        });
        self.counters.count(Counter::Joins);
        let request = JoinRequest {
            mgid,
            port_gid,
            pkey,
            membership,
            create,
        };
        Some(Action::JoinGroup { op, request })
    }

    pub(super) fn on_join_answer(
        &mut self,
        now: Instant,
        op: OpId,
        answer: Result<GroupRecord, SaError>,
        sink: &mut impl PacketSink<B>,
    ) {
        let Some((place, state)) = self.waiting_group(op) else {
            return;
        };
        if answer.is_err() {
            self.counters.count(Counter::JoinsFailed);
        }
        match state {
            GroupState::Joining(attempt) => match self.check_record(place, answer) {
                Ok(record) => self.on_joined(now, place, record, attempt),
                Err(error) => self.on_join_failed(now, place, attempt, error, sink),
            },
            GroupState::Ready {
                renewal: Renewal::Joining(attempt),
                ..
            } => match self.check_record(place, answer) {
                Ok(record) => self.on_renewed(now, place, record, attempt),
                Err(error) => {
                    let renewal = self.after_refusal(now, place, attempt, error);
                    self.enter_renewal(place, renewal);
                }
            },
            // Whatever the answer is: that a join was asked for is reason enough to leave.
            GroupState::JoinAbandoned(left) => self.detach_or_leave(place, left, sink),
            GroupState::Idle
            | GroupState::JoinWanted(_)
            | GroupState::BackingOff { .. }
            | GroupState::AttachWanted(_)
            | GroupState::Attaching(_)
            | GroupState::Addressing { .. }
            | GroupState::Unusable { .. }
            | GroupState::Ready { .. }
            | GroupState::AttachAbandoned(_)
            | GroupState::DetachWanted(_)
            | GroupState::Detaching(_)
            | GroupState::LeaveWanted { .. }
            | GroupState::Leaving { .. }
            | GroupState::LeaveBackingOff { .. }
            | GroupState::CancelWanted => self.counters.count(Counter::StaleAnswers),
        }
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

    /// Whether the SA's record can be used: it is of the group that was asked for, in our partition,
    /// and, if it defines the link, with an MTU that the port can carry (RFC 4391 5).
    fn check_record(
        &mut self,
        place: u32,
        answer: Result<GroupRecord, SaError>,
    ) -> Result<GroupRecord, SaError> {
        let record = answer?;
        let group = self.groups.get(place).ok_or(SaError::Unusable)?;
        let own = self.port.partition.map(|partition| partition.pkey.full());
        let is_ours = record.mgid == group.mgid && Some(record.pkey.full()) == own;
        let fits = match group.role {
            Role::Broadcast => record.parameters.mtu <= self.port.mtu,
            Role::Listed | Role::SendOnly => true,
        };
        if is_ours && fits {
            Ok(record)
        } else {
            Err(SaError::Unusable)
        }
    }

    fn on_joined(&mut self, now: Instant, place: u32, record: GroupRecord, attempt: Try) {
        self.notice_join_recovered(place);
        let joined = Joined {
            record,
            membership: attempt.membership,
        };
        self.use_membership(now, place, joined, false);
    }

    /// Puts a membership to use: a group that is listened to is attached first, then addressed.
    fn use_membership(&mut self, now: Instant, place: u32, joined: Joined, is_attached: bool) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        if listens(group.role) && joined.membership == Membership::Full && !is_attached {
            self.enter_group(place, GroupState::AttachWanted(joined));
            return;
        }
        match self.make_handle(Target::Group(place), address_vector(&joined.record)) {
            Some(handle) => {
                self.enter_group(
                    place,
                    GroupState::Addressing {
                        joined,
                        is_attached,
                        handle,
                    },
                );
            }
            None => self.enter_unusable(now, place, joined, is_attached),
        }
    }

    fn enter_unusable(&mut self, now: Instant, place: u32, joined: Joined, is_attached: bool) {
        let retry_at = now + REOPEN_AFTER;
        self.enter_group(
            place,
            GroupState::Unusable {
                joined,
                is_attached,
                retry_at,
            },
        );
    }

    fn on_join_failed(
        &mut self,
        now: Instant,
        place: u32,
        attempt: Try,
        error: SaError,
        sink: &mut impl PacketSink<B>,
    ) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        let is_send_only = group.role == Role::SendOnly;
        match self.after_refusal(now, place, attempt, error) {
            Renewal::Wanted(next) => self.enter_group(place, GroupState::JoinWanted(next)),
            // Report B14: its packets go, the entry stays, and the next packet tries again.
            Renewal::BackingOff { attempt, .. }
                if is_send_only && attempt >= SEND_ONLY_TRIES_MAX =>
            {
                self.drop_group_queue(place, DropReason::GroupUnjoined, sink);
                self.settle_group(place, sink);
            }
            Renewal::BackingOff { attempt, retry_at } => {
                self.enter_group(place, GroupState::BackingOff { attempt, retry_at });
            }
            Renewal::Current | Renewal::Joining(_) => {}
        }
    }

    /// What follows when the SA did not grant a join.
    fn after_refusal(&mut self, now: Instant, place: u32, attempt: Try, error: SaError) -> Renewal {
        let Some(group) = self.groups.get(place) else {
            return Renewal::Current;
        };
        // RFC 4391 5: the broadcast group is there before any interface; other groups are created by
        // the first that needs them.
        if group.role != Role::Broadcast && !attempt.creates && means_absent(error) {
            return Renewal::Wanted(Try {
                creates: true,
                ..attempt
            });
        }
        self.notice_join_failing(place, error);
        let retry_at = now + back_off(attempt.attempt, self.seed.draw());
        Renewal::BackingOff {
            attempt: attempt.attempt.saturating_add(1),
            retry_at,
        }
    }

    fn enter_renewal(&mut self, place: u32, renewal: Renewal) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        if let GroupState::Ready {
            joined,
            is_attached,
            handle,
            renewal: _,
        } = group.state
        {
            self.enter_group(
                place,
                GroupState::Ready {
                    joined,
                    is_attached,
                    handle,
                    renewal,
                },
            );
        }
    }

    /// The SA confirmed a membership again, perhaps with other properties (report B13).
    fn on_renewed(&mut self, now: Instant, place: u32, record: GroupRecord, attempt: Try) {
        self.notice_join_recovered(place);
        let Some(group) = self.groups.get(place) else {
            return;
        };
        let GroupState::Ready {
            joined: old,
            is_attached,
            handle,
            renewal: _,
        } = group.state
        else {
            return;
        };
        let membership = match old.membership {
            Membership::Full => Membership::Full,
            Membership::SendOnlyFull => attempt.membership,
        };
        let joined = Joined { record, membership };
        let listens_at_last = listens(group.role) && membership == Membership::Full && !is_attached;
        if record.mlid != old.record.mlid && is_attached {
            let attached = Some((old.record.mgid, old.record.mlid));
            let left = Left {
                attached,
                then: AfterLeft::Attach(joined),
            };
            self.retire_handle(handle);
            self.enter_group(place, GroupState::DetachWanted(left));
        } else if address_vector(&record) != address_vector(&old.record) || listens_at_last {
            self.retire_handle(handle);
            self.use_membership(now, place, joined, is_attached);
        } else {
            let renewal = Renewal::Current;
            self.enter_group(
                place,
                GroupState::Ready {
                    joined,
                    is_attached,
                    handle,
                    renewal,
                },
            );
        }
    }

    /// Lets go of a group, from whatever it is doing.
    pub(super) fn give_up_group(
        &mut self,
        place: u32,
        then: AfterLeft,
        sink: &mut impl PacketSink<B>,
    ) {
        let Some(group) = self.groups.get_mut(place) else {
            return;
        };
        let forgets = then == AfterLeft::Forget;
        if forgets {
            group.claim = None;
        }
        let unattached = Left {
            attached: None,
            then,
        };
        match group.state {
            GroupState::Joining(_) | GroupState::JoinAbandoned(_) | GroupState::Leaving { .. }
                if forgets =>
            {
                self.enter_group(place, GroupState::CancelWanted);
            }
            GroupState::Joining(_) => {
                self.enter_group(place, GroupState::JoinAbandoned(unattached));
            }
            GroupState::Idle
            | GroupState::JoinWanted(_)
            | GroupState::BackingOff { .. }
            | GroupState::AttachWanted(_)
            | GroupState::LeaveWanted { .. }
            | GroupState::LeaveBackingOff { .. } => self.detach_or_leave(place, unattached, sink),
            GroupState::Attaching(joined) => {
                let left = Left {
                    attached: Some((joined.record.mgid, joined.record.mlid)),
                    then,
                };
                self.enter_group(place, GroupState::AttachAbandoned(left));
            }
            GroupState::Addressing {
                joined,
                is_attached,
                handle,
            } => {
                self.retire_handle(handle);
                self.detach_or_leave(place, left_of(&joined, is_attached, then), sink);
            }
            GroupState::Unusable {
                joined,
                is_attached,
                ..
            } => {
                self.detach_or_leave(place, left_of(&joined, is_attached, then), sink);
            }
            GroupState::Ready {
                joined,
                is_attached,
                handle,
                renewal,
            } => {
                self.retire_handle(handle);
                let left = left_of(&joined, is_attached, then);
                match renewal {
                    Renewal::Joining(_) if !forgets => {
                        self.enter_group(place, GroupState::JoinAbandoned(left));
                    }
                    Renewal::Current
                    | Renewal::Wanted(_)
                    | Renewal::Joining(_)
                    | Renewal::BackingOff { .. } => self.detach_or_leave(place, left, sink),
                }
            }
            GroupState::AttachAbandoned(left) => {
                self.enter_group(place, GroupState::AttachAbandoned(Left { then, ..left }));
            }
            GroupState::DetachWanted(left) => {
                self.enter_group(place, GroupState::DetachWanted(Left { then, ..left }));
            }
            GroupState::Detaching(left) => {
                self.enter_group(place, GroupState::Detaching(Left { then, ..left }));
            }
            GroupState::JoinAbandoned(_)
            | GroupState::Leaving { .. }
            | GroupState::CancelWanted => {}
        }
    }

    fn detach_or_leave(&mut self, place: u32, left: Left, sink: &mut impl PacketSink<B>) {
        if left.attached.is_some() {
            self.enter_group(place, GroupState::DetachWanted(left));
            return;
        }
        match left.then {
            AfterLeft::Attach(joined) => self.enter_group(place, GroupState::AttachWanted(joined)),
            AfterLeft::Leave => self.leave_or_settle(place, 0, sink),
            AfterLeft::Forget => self.settle_group(place, sink),
        }
    }

    /// Tells the SA of every membership that it may have of us.
    fn leave_or_settle(&mut self, place: u32, tries: u8, sink: &mut impl PacketSink<B>) {
        let claim = self.groups.get(place).and_then(|group| group.claim);
        if claim
            .and_then(|claim| claim.join_states.next_to_leave())
            .is_some()
        {
            self.enter_group(place, GroupState::LeaveWanted { tries });
        } else {
            self.settle_group(place, sink);
        }
    }

    pub(super) fn on_leave_answer(
        &mut self,
        now: Instant,
        op: OpId,
        answer: Result<(), SaError>,
        sink: &mut impl PacketSink<B>,
    ) {
        let Some((place, state)) = self.waiting_group(op) else {
            return;
        };
        let GroupState::Leaving { tries } = state else {
            self.counters.count(Counter::StaleAnswers);
            return;
        };
        let was_heard = match answer {
            // Refused: the SA does not have us as a member.
            Ok(()) | Err(SaError::Refused(_)) => true,
            Err(SaError::Busy | SaError::TimedOut | SaError::Unusable) => {
                tries + 1 >= LEAVE_TRIES_MAX
            }
        };
        if !was_heard {
            let retry_at = now + back_off(tries, self.seed.draw());
            let state = GroupState::LeaveBackingOff {
                tries: tries + 1,
                retry_at,
            };
            self.enter_group(place, state);
            return;
        }
        if let Some(group) = self.groups.get_mut(place)
            && let Some(claim) = &mut group.claim
            && let Some(membership) = claim.join_states.next_to_leave()
        {
            claim.join_states.remove(membership.into());
        }
        self.leave_or_settle(place, 0, sink);
    }

    /// A cancelled query is over; nothing waits, since the link is down.
    fn forget_group(&mut self, place: u32) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        if group.is_wanted {
            self.enter_group(place, GroupState::Idle);
            self.start_group(place);
        } else {
            self.set_timer(Target::Group(place), None);
            self.groups.remove(place);
        }
    }

    /// Nothing is joined or attached any more: a group that is wanted starts again, another one goes.
    fn settle_group(&mut self, place: u32, sink: &mut impl PacketSink<B>) {
        if self.groups.get(place).is_some_and(|group| !group.is_wanted) {
            self.drop_group_queue(place, DropReason::GroupUnjoined, sink);
        }
        self.forget_group(place);
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
                self.detach_or_leave(
                    place,
                    Left {
                        attached: None,
                        ..left
                    },
                    sink,
                );
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
                | GroupState::CancelWanted,
                _,
            ) => return false,
        }
        true
    }

    pub(super) fn on_group_addressed(
        &mut self,
        now: Instant,
        place: u32,
        created: u32,
        datapath: &mut impl DataPath<B>,
    ) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        let role = group.role;
        let GroupState::Addressing {
            joined,
            is_attached,
            handle,
        } = group.state
        else {
            return;
        };
        if handle != created {
            return;
        }
        // It may have been upgraded while it was being joined to send only.
        let renewal = if listens(role) && !is_attached {
            Renewal::Wanted(self.first_try(role))
        } else {
            Renewal::Current
        };
        self.enter_group(
            place,
            GroupState::Ready {
                joined,
                is_attached,
                handle,
                renewal,
            },
        );
        self.drain_group(now, place, datapath);
    }

    pub(super) fn on_group_unaddressed(&mut self, now: Instant, place: u32, failed: u32) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        if let GroupState::Addressing {
            joined,
            is_attached,
            handle,
        } = group.state
            && handle == failed
        {
            self.enter_unusable(now, place, joined, is_attached);
        }
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
        if group.hold_until.is_some_and(|until| until <= now) {
            self.drop_group_queue(place, DropReason::PendingExpired, sink);
        }
        let Some(group) = self.groups.get(place) else {
            return;
        };
        if group.state.ends_at().is_none_or(|at| at > now) {
            self.arm_group(place);
            return;
        }
        let first = self.first_try(group.role);
        match group.state {
            GroupState::BackingOff { attempt, .. } => {
                self.enter_group(place, GroupState::JoinWanted(Try { attempt, ..first }));
            }
            GroupState::Ready {
                renewal: Renewal::BackingOff { attempt, .. },
                ..
            } => {
                self.enter_renewal(place, Renewal::Wanted(Try { attempt, ..first }));
            }
            GroupState::Unusable {
                joined,
                is_attached,
                ..
            } => {
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
            | GroupState::CancelWanted => {}
        }
    }

    fn queue_on_group(
        &mut self,
        now: Instant,
        place: u32,
        protocol: EtherType,
        packet: B,
        sink: &mut impl PacketSink<B>,
    ) {
        let Some(group) = self.groups.get_mut(place) else {
            self.drop_packet(packet, DropReason::GroupUnjoined, sink);
            return;
        };
        let pending = Self::pending(protocol, packet);
        let limits = &self.limits;
        let (packets_max, bytes_max) =
            (limits.group_queue_packets_max, limits.group_queue_bytes_max);
        if !group.queue.has_room(pending.bytes, packets_max, bytes_max) {
            self.drop_packet(pending.packet, DropReason::GroupQueueFull, sink);
            return;
        }
        match self.pending.push(&mut group.queue, pending) {
            Ok(()) => {
                group.hold_until = group.hold_until.or(Some(now + PENDING_MAX));
                self.arm_group(place);
            }
            Err(pending) => self.drop_packet(pending.packet, DropReason::PendingStoreFull, sink),
        }
    }

    pub(super) fn drop_group_queue(
        &mut self,
        place: u32,
        reason: DropReason,
        sink: &mut impl PacketSink<B>,
    ) {
        while let Some(group) = self.groups.get_mut(place) {
            group.hold_until = None;
            let Some(pending) = self.pending.pop(&mut group.queue) else {
                break;
            };
            self.drop_packet(pending.packet, reason, sink);
        }
        self.arm_group(place);
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
            let first = self.pending.first_bytes(&group.queue);
            if first.is_some_and(|bytes| self.sends.vacant() < self.sends_needed(bytes, mtu)) {
                self.push_backlog(Target::Group(place));
                return;
            }
            let Some(group) = self.groups.get_mut(place) else {
                return;
            };
            let Some(Pending {
                protocol,
                packet,
                bytes: _,
            }) = self.pending.pop(&mut group.queue)
            else {
                group.hold_until = None;
                self.arm_group(place);
                return;
            };
            let route = Route {
                handle,
                qpn: Qpn::MULTICAST,
                is_multicast: true,
            };
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
            self.queue_on_group(now, place, protocol, packet, datapath);
            self.push_backlog(Target::Group(place));
        }
    }

    fn notice_join_failing(&mut self, place: u32, error: SaError) {
        let Some(group) = self.groups.get_mut(place) else {
            return;
        };
        if !core::mem::replace(&mut group.is_noticed, true) {
            let mgid = group.mgid;
            let is_unusable = group.role == Role::Broadcast && error == SaError::Unusable;
            self.notice(if is_unusable {
                Notice::BroadcastUnusable(mgid)
            } else {
                Notice::JoinFailing(mgid, error)
            });
        }
    }

    fn notice_join_recovered(&mut self, place: u32) {
        let Some(group) = self.groups.get_mut(place) else {
            return;
        };
        if core::mem::take(&mut group.is_noticed) {
            let notice = Notice::JoinRecovered(group.mgid);
            self.notice(notice);
        }
    }

    /// The MTU of a group: it may be narrower than the link (report B16).
    fn mtu_of_group(&self, place: u32) -> usize {
        let joined = self
            .groups
            .get(place)
            .and_then(|group| group.state.joined());
        joined.map_or(self.datagram_mtu, |joined| {
            self.mtu_within(joined.record.parameters.mtu)
        })
    }
}

/// Whether the queue pair is to receive what is sent to a group.
fn listens(role: Role) -> bool {
    match role {
        Role::Broadcast | Role::Listed => true,
        Role::SendOnly => false,
    }
}

/// Whether the SA's refusal of a plain join may mean that there is no such group. The codes that
/// subnet managers use for it differ.
fn means_absent(error: SaError) -> bool {
    match error {
        SaError::Refused(
            SaRefusal::InsufficientComponents
            | SaRefusal::NoRecords
            | SaRefusal::RequestInvalid
            | SaRefusal::RequestInvalidGid,
        ) => true,
        SaError::Refused(
            SaRefusal::NoResources | SaRefusal::TooManyRecords | SaRefusal::RequestDenied,
        )
        | SaError::Busy
        | SaError::TimedOut
        | SaError::Unusable => false,
    }
}

fn left_of(joined: &Joined, is_attached: bool, then: AfterLeft) -> Left {
    let attached = is_attached.then_some((joined.record.mgid, joined.record.mlid));
    Left { attached, then }
}
