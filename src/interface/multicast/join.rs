//! Into a group: the SA is asked, the queue pair attached, the address handle made; and again when
//! the subnet manager may have forgotten.

use crate::action::{
    Action, GroupRecord, JoinRequest, Membership, OpId, SaError, SaRefusal, Target,
};
use crate::counters::{Counter, DropReason};
use crate::event::Notice;
use crate::group::{
    AfterLeft, Claim, GroupState, JoinStates, Joined, Left, Renewal, Role, Try, address_vector,
    back_off,
};
use crate::interface::Interface;
use crate::limits::{REOPEN_AFTER, SEND_ONLY_TRIES_MAX};
use crate::packet::{DataPath, PacketBuf, PacketSink};
use crate::time::Instant;

impl<B: PacketBuf> Interface<B> {
    pub(super) fn first_try(&self, role: Role) -> Try {
        let membership = match role {
            Role::Broadcast | Role::Listed => Membership::Full,
            // Hazard H14: a subnet manager that does not know send-only members is asked for a full
            // one, which is then not attached.
            Role::SendOnly if self.sa.capabilities.send_only_full_member => {
                Membership::SendOnlyFull
            }
            Role::SendOnly => Membership::Full,
        };
        Try { attempt: 0, creates: false, membership }
    }

    pub(super) fn join_action(&mut self, op: OpId, place: u32, attempt: Try) -> Option<Action> {
        let Try { attempt: _, creates, membership } = attempt;
        let pkey = self.port.partition?.pkey.full();
        let port_gid = self.port.gid;
        // Report B16: what is created is like the broadcast group; what exists is taken as it is.
        let like = self.broadcast_state().and_then(GroupState::joined);
        let create = like.filter(|_| creates).map(|joined| joined.record.parameters);
        let group = self.groups.get_mut(place)?;
        let mgid = group.mgid;
        let claimed = group.claim.map_or(JoinStates::empty(), |claim| claim.join_states);
        let join_states = claimed | membership.into();
        group.claim = Some(Claim { mgid, port_gid, join_states });
        group.is_doubtful = false;
        self.counters.count(Counter::Joins);
        let request = JoinRequest { mgid, port_gid, pkey, membership, create };
        Some(Action::JoinGroup { op, request })
    }

    pub(in crate::interface) fn on_join_answer(
        &mut self,
        now: Instant,
        op: OpId,
        answer: Result<GroupRecord, SaError>,
        sink: &mut impl PacketSink<B>,
    ) {
        let Some((place, state)) = self.waiting_group(op) else {
            return;
        };
        match state {
            GroupState::Joining(attempt) => match self.check_record(place, answer) {
                Ok(record) => self.on_joined(now, place, record, attempt),
                Err(error) => self.on_join_failed(now, place, attempt, error, sink),
            },
            GroupState::Ready { renewal: Renewal::Joining(attempt), .. } => {
                match self.check_record(place, answer) {
                    Ok(record) => self.on_renewed(now, place, record, attempt),
                    Err(error) => {
                        let renewal = self.after_refusal(now, place, attempt, error);
                        self.enter_renewal(place, renewal);
                    }
                }
            }
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
            | GroupState::CancelWanted { .. } => self.counters.count(Counter::StaleAnswers),
        }
    }

    /// Whether the SA's record can be used: it is of the group that was asked for, in our
    /// partition, and, if it defines the link, with an MTU that the port can carry (RFC 4391 5).
    pub(super) fn check_record(
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
        if is_ours && fits { Ok(record) } else { Err(SaError::Unusable) }
    }

    pub(super) fn on_joined(
        &mut self,
        now: Instant,
        place: u32,
        record: GroupRecord,
        attempt: Try,
    ) {
        self.notice_join_recovered(place);
        let joined = Joined { record, membership: attempt.membership };
        self.use_membership(now, place, joined, false);
    }

    /// Puts a membership to use: a group that is listened to is attached first, then addressed.
    pub(super) fn use_membership(
        &mut self,
        now: Instant,
        place: u32,
        joined: Joined,
        is_attached: bool,
    ) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        if listens(group.role) && joined.membership == Membership::Full && !is_attached {
            self.enter_group(place, GroupState::AttachWanted(joined));
            return;
        }
        match self.make_handle(Target::Group(place), address_vector(&joined.record)) {
            Some(handle) => {
                self.enter_group(place, GroupState::Addressing { joined, is_attached, handle });
            }
            None => self.enter_unusable(now, place, joined, is_attached),
        }
    }

    pub(super) fn enter_unusable(
        &mut self,
        now: Instant,
        place: u32,
        joined: Joined,
        is_attached: bool,
    ) {
        let retry_at = now + REOPEN_AFTER;
        self.enter_group(place, GroupState::Unusable { joined, is_attached, retry_at });
    }

    pub(super) fn on_join_failed(
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
                self.drop_waiting(Target::Group(place), DropReason::GroupUnjoined, sink);
                self.settle_group(place, sink);
            }
            Renewal::BackingOff { attempt, retry_at } => {
                self.enter_group(place, GroupState::BackingOff { attempt, retry_at });
            }
            Renewal::Current | Renewal::Joining(_) => {}
        }
    }

    /// What follows when the SA did not grant a join.
    pub(super) fn after_refusal(
        &mut self,
        now: Instant,
        place: u32,
        attempt: Try,
        error: SaError,
    ) -> Renewal {
        let Some(group) = self.groups.get(place) else {
            return Renewal::Current;
        };
        // RFC 4391 5: the broadcast group is there before any interface; other groups are created
        // by the first that needs them.
        if group.role != Role::Broadcast && !attempt.creates && means_absent(error) {
            return Renewal::Wanted(Try { creates: true, ..attempt });
        }
        self.counters.count(Counter::JoinsFailed);
        self.notice_join_failing(place, error);
        let retry_at = now + back_off(attempt.attempt, self.seed.draw());
        Renewal::BackingOff { attempt: attempt.attempt.saturating_add(1), retry_at }
    }

    pub(super) fn enter_renewal(&mut self, place: u32, renewal: Renewal) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        if let GroupState::Ready { joined, is_attached, handle, renewal: _ } = group.state {
            self.enter_group(place, GroupState::Ready { joined, is_attached, handle, renewal });
        }
    }

    /// The SA confirmed a membership again, perhaps with other properties (report B13).
    pub(super) fn on_renewed(
        &mut self,
        now: Instant,
        place: u32,
        record: GroupRecord,
        attempt: Try,
    ) {
        self.notice_join_recovered(place);
        let Some(group) = self.groups.get(place) else {
            return;
        };
        let GroupState::Ready { joined: old, is_attached, handle, renewal: _ } = group.state else {
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
            let left = Left { attached, then: AfterLeft::Attach(joined) };
            self.retire_handle(handle);
            self.enter_group(place, GroupState::DetachWanted(left));
        } else if address_vector(&record) != address_vector(&old.record) || listens_at_last {
            self.retire_handle(handle);
            self.use_membership(now, place, joined, is_attached);
        } else {
            let renewal = self.renewal_of(place, is_attached);
            self.enter_group(place, GroupState::Ready { joined, is_attached, handle, renewal });
        }
    }

    pub(in crate::interface) fn on_group_addressed(
        &mut self,
        now: Instant,
        place: u32,
        created: u32,
        datapath: &mut impl DataPath<B>,
    ) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        let GroupState::Addressing { joined, is_attached, handle } = group.state else {
            return;
        };
        if handle != created {
            return;
        }
        let renewal = self.renewal_of(place, is_attached);
        self.enter_group(place, GroupState::Ready { joined, is_attached, handle, renewal });
        self.drain_group(now, place, datapath);
    }

    /// Whether a membership that was just put to use has to be asked for again: the group was
    /// upgraded while it was being joined to send only, or the subnet manager asked for
    /// registration after the join was sent.
    fn renewal_of(&self, place: u32, is_attached: bool) -> Renewal {
        match self.groups.get(place) {
            Some(group) if group.is_doubtful || (listens(group.role) && !is_attached) => {
                Renewal::Wanted(self.first_try(group.role))
            }
            Some(_) | None => Renewal::Current,
        }
    }

    pub(in crate::interface) fn on_group_unaddressed(
        &mut self,
        now: Instant,
        place: u32,
        failed: u32,
    ) {
        let Some(group) = self.groups.get(place) else {
            return;
        };
        if let GroupState::Addressing { joined, is_attached, handle } = group.state
            && handle == failed
        {
            self.enter_unusable(now, place, joined, is_attached);
        }
    }

    /// A light flush: memberships are renewed at once, and every back-off starts anew.
    pub(in crate::interface) fn renew_groups(&mut self) {
        self.query_sa_capabilities();
        for place in 0..self.groups.capacity() {
            let Some(group) = self.groups.get_mut(place) else {
                continue;
            };
            // What is under way may be of the time before: it is renewed when it is done.
            group.is_doubtful = true;
            let (role, state) = (group.role, group.state);
            let first = self.first_try(role);
            match state {
                GroupState::Ready { renewal: Renewal::Joining(_), .. } => {}
                GroupState::Ready { joined, is_attached, handle, renewal: _ } => {
                    let renewal = Renewal::Wanted(first);
                    let state = GroupState::Ready { joined, is_attached, handle, renewal };
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
                | GroupState::CancelWanted { .. } => {}
            }
        }
    }

    pub(super) fn notice_join_failing(&mut self, place: u32, error: SaError) {
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

    pub(super) fn notice_join_recovered(&mut self, place: u32) {
        let Some(group) = self.groups.get_mut(place) else {
            return;
        };
        if core::mem::take(&mut group.is_noticed) {
            let notice = Notice::JoinRecovered(group.mgid);
            self.notice(notice);
        }
    }
}

/// Whether the queue pair is to receive what is sent to a group.
pub(super) fn listens(role: Role) -> bool {
    match role {
        Role::Broadcast | Role::Listed => true,
        Role::SendOnly => false,
    }
}

/// Whether the SA's refusal of a plain join may mean that there is no such group. The codes that
/// subnet managers use for it differ.
pub(super) fn means_absent(error: SaError) -> bool {
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
