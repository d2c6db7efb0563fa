//! Out of a group, from whatever it is doing: the handle retired, the queue pair detached, the SA
//! told.

use crate::action::{OpId, SaError, Target};
use crate::counters::{Counter, DropReason};
use crate::group::{AfterLeft, GroupState, Joined, Left, Renewal, back_off};
use crate::interface::Interface;
use crate::limits::LEAVE_TRIES_MAX;
use crate::packet::{PacketBuf, PacketSink};
use crate::time::Instant;

impl<B: PacketBuf> Interface<B> {
    /// Lets go of a group, from whatever it is doing.
    pub(in crate::interface) fn give_up_group(
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
        let unattached = Left { attached: None, then };
        match group.state {
            GroupState::Joining(_) | GroupState::Leaving { .. } if forgets => {
                self.enter_group(place, GroupState::CancelWanted { attached: None });
            }
            GroupState::JoinAbandoned(left) if forgets => {
                let attached = left.attached;
                self.enter_group(place, GroupState::CancelWanted { attached });
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
                let left = Left { attached: Some((joined.record.mgid, joined.record.mlid)), then };
                self.enter_group(place, GroupState::AttachAbandoned(left));
            }
            GroupState::Addressing { joined, is_attached, handle } => {
                self.retire_handle(handle);
                self.detach_or_leave(place, left_of(&joined, is_attached, then), sink);
            }
            GroupState::Unusable { joined, is_attached, .. } => {
                self.detach_or_leave(place, left_of(&joined, is_attached, then), sink);
            }
            GroupState::Ready { joined, is_attached, handle, renewal } => {
                self.retire_handle(handle);
                let left = left_of(&joined, is_attached, then);
                match renewal {
                    Renewal::Joining(_) if forgets => {
                        let attached = left.attached;
                        self.enter_group(place, GroupState::CancelWanted { attached });
                    }
                    Renewal::Joining(_) => {
                        self.enter_group(place, GroupState::JoinAbandoned(left));
                    }
                    Renewal::Current | Renewal::Wanted(_) | Renewal::BackingOff { .. } => {
                        self.detach_or_leave(place, left, sink);
                    }
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
            | GroupState::CancelWanted { .. } => {}
        }
    }

    pub(super) fn detach_or_leave(
        &mut self,
        place: u32,
        left: Left,
        sink: &mut impl PacketSink<B>,
    ) {
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
    pub(super) fn leave_or_settle(&mut self, place: u32, tries: u8, sink: &mut impl PacketSink<B>) {
        let claim = self.groups.get(place).and_then(|group| group.claim);
        if claim.and_then(|claim| claim.join_states.next_to_leave()).is_some() {
            self.enter_group(place, GroupState::LeaveWanted { tries });
        } else {
            self.settle_group(place, sink);
        }
    }

    pub(in crate::interface) fn on_leave_answer(
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
            let state = GroupState::LeaveBackingOff { tries: tries + 1, retry_at };
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

    /// Nothing is joined or attached any more: a group that is wanted starts again, another one
    /// goes.
    pub(super) fn settle_group(&mut self, place: u32, sink: &mut impl PacketSink<B>) {
        if self.groups.get(place).is_some_and(|group| !group.is_wanted) {
            self.drop_group_queue(place, DropReason::GroupUnjoined, sink);
        }
        self.forget_group(place);
    }

    /// A cancelled query is over; nothing waits, since the link is down.
    pub(super) fn forget_group(&mut self, place: u32) {
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
}

pub(super) fn left_of(joined: &Joined, is_attached: bool, then: AfterLeft) -> Left {
    let attached = is_attached.then_some((joined.record.mgid, joined.record.mlid));
    Left { attached, then }
}
