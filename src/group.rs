//! Multicast groups: joined at the SA, attached to the queue pair, addressed by a handle.
//!
//! Replaces `struct ipoib_mcast`, its four flags and its one list walked by one task. Here each
//! group is a machine with a back-off of its own, so that one that is refused delays no other.

use core::time::Duration;

use bitflags::bitflags;
use zerocopy::IntoBytes;

use crate::action::{AddressVector, GroupParameters, GroupRecord, Membership, OpId, Target};
use crate::ib::{Gid, Mgid, Mlid};
use crate::limits::{RETRY_FIRST, RETRY_MAX};
use crate::storage::{Index, OutOfMemory, Queue, Slab};
use crate::time::Instant;

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) mgid: Mgid,
    pub(crate) role: Role,
    /// What the SA may have of us.
    pub(crate) claim: Option<Claim>,
    /// Whether it is to be kept; a group that is not goes as soon as it was left.
    pub(crate) is_wanted: bool,
    pub(crate) state: GroupState,
    /// The generation of the operation under way.
    pub(crate) operation: u32,
    /// Packets that wait, in order.
    pub(crate) queue: Queue,
    /// Whether the subnet manager may have forgotten us since the latest join was sent.
    pub(crate) is_doubtful: bool,
    /// Whether the log was told that it cannot be joined.
    pub(crate) is_noticed: bool,
    /// Set by each use, cleared by the search for a group to evict.
    pub(crate) is_used: bool,
}

/// Why a group is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    /// It defines the link; never created by us, and joined before any other.
    Broadcast,
    /// The network stack listens to it.
    Listed,
    /// Something was sent to it.
    SendOnly,
}

/// The life of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum GroupState {
    /// Not joined and nothing under way: the link is not up, or a send-only group gave up and waits
    /// for the next packet.
    Idle,
    /// The SA is to be asked.
    JoinWanted(Try),
    /// The SA is being asked.
    Joining(Try),
    /// The SA refused or did not answer; it is asked again at a time.
    BackingOff { attempt: u8, retry_at: Instant },
    /// The queue pair is to be attached.
    AttachWanted(Joined),
    /// The queue pair is being attached.
    Attaching(Joined),
    /// The address handle is being made.
    Addressing { joined: Joined, is_attached: bool, handle: u32 },
    /// The adapter could not attach or address it; it is asked again at a time.
    Unusable { joined: Joined, is_attached: bool, retry_at: Instant },
    /// Packets go out, and come in if attached.
    Ready { joined: Joined, is_attached: bool, handle: u32, renewal: Renewal },
    /// Given up while the SA was being asked. What is left follows its answer.
    JoinAbandoned(Left),
    /// Given up while the queue pair was being attached.
    AttachAbandoned(Left),
    /// The queue pair is to be detached.
    DetachWanted(Left),
    /// The queue pair is being detached.
    Detaching(Left),
    /// The SA is to be told, for the so manieth time.
    LeaveWanted { tries: u8 },
    /// The SA is being told.
    Leaving { tries: u8 },
    /// The SA did not hear; it is told again at a time.
    LeaveBackingOff { tries: u8, retry_at: Instant },
    /// Given up with a query under way whose answer makes no difference; to be cancelled. The queue
    /// pair may still be attached.
    CancelWanted { attached: Option<(Mgid, Mlid)> },
}

/// A try to join.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Try {
    /// Tries that failed before.
    pub(crate) attempt: u8,
    /// Whether the group is to be created if it is not there.
    pub(crate) creates: bool,
    pub(crate) membership: Membership,
}

/// A membership that the SA has confirmed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Joined {
    pub(crate) record: GroupRecord,
    pub(crate) membership: Membership,
}

/// The renewal of a membership, after the subnet manager may have forgotten it. Packets go on with
/// what is known meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Renewal {
    /// There is nothing to renew.
    Current,
    /// The SA is to be asked.
    Wanted(Try),
    /// The SA is being asked.
    Joining(Try),
    /// The SA refused or did not answer; it is asked again at a time.
    BackingOff { attempt: u8, retry_at: Instant },
}

/// What is being given back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Left {
    /// Where the queue pair is attached.
    pub(crate) attached: Option<(Mgid, Mlid)>,
    pub(crate) then: AfterLeft,
}

/// What follows when the queue pair is detached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AfterLeft {
    /// The SA is told.
    Leave,
    /// Nothing: the port is down, and the subnet manager forgets its members by itself.
    Forget,
    /// The queue pair is attached anew: the SA moved the group.
    Attach(Joined),
}

/// The memberships that the SA may have of us: every one that was asked for and not left since. The
/// answer to a join can be lost, so this is wider than what was confirmed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Claim {
    /// The name by which the SA knows the group.
    pub(crate) mgid: Mgid,
    /// The port that joined.
    pub(crate) port_gid: Gid,
    pub(crate) join_states: JoinStates,
}

bitflags! {
    /// JoinState bits (IBA 15.2.5.17.2).
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub(crate) struct JoinStates: u8 {
        const FULL = Membership::Full.join_state();
        const SEND_ONLY_FULL = Membership::SendOnlyFull.join_state();
    }
}

impl JoinStates {
    /// The next membership to leave.
    pub(crate) fn next_to_leave(self) -> Option<Membership> {
        if self.contains(Self::FULL) {
            Some(Membership::Full)
        } else if self.contains(Self::SEND_ONLY_FULL) {
            Some(Membership::SendOnlyFull)
        } else {
            None
        }
    }
}

impl From<Membership> for JoinStates {
    fn from(membership: Membership) -> Self {
        match membership {
            Membership::Full => Self::FULL,
            Membership::SendOnlyFull => Self::SEND_ONLY_FULL,
        }
    }
}

impl GroupState {
    /// Whether an action is to be taken for the group.
    pub(crate) fn wants_action(&self) -> bool {
        match self {
            Self::JoinWanted(_)
            | Self::AttachWanted(_)
            | Self::DetachWanted(_)
            | Self::LeaveWanted { .. }
            | Self::CancelWanted { .. }
            | Self::Ready { renewal: Renewal::Wanted(_), .. } => true,
            Self::Idle
            | Self::Joining(_)
            | Self::BackingOff { .. }
            | Self::Attaching(_)
            | Self::Addressing { .. }
            | Self::Unusable { .. }
            | Self::Ready { .. }
            | Self::JoinAbandoned(_)
            | Self::AttachAbandoned(_)
            | Self::Detaching(_)
            | Self::Leaving { .. }
            | Self::LeaveBackingOff { .. } => false,
        }
    }

    /// When the state ends by itself.
    pub(crate) fn ends_at(&self) -> Option<Instant> {
        match self {
            Self::BackingOff { retry_at, .. }
            | Self::Unusable { retry_at, .. }
            | Self::LeaveBackingOff { retry_at, .. }
            | Self::Ready { renewal: Renewal::BackingOff { retry_at, .. }, .. } => Some(*retry_at),
            Self::Idle
            | Self::JoinWanted(_)
            | Self::Joining(_)
            | Self::AttachWanted(_)
            | Self::Attaching(_)
            | Self::Addressing { .. }
            | Self::Ready { .. }
            | Self::JoinAbandoned(_)
            | Self::AttachAbandoned(_)
            | Self::DetachWanted(_)
            | Self::Detaching(_)
            | Self::LeaveWanted { .. }
            | Self::Leaving { .. }
            | Self::CancelWanted { .. } => None,
        }
    }

    /// The membership, once there is one that is in use.
    pub(crate) fn joined(&self) -> Option<&Joined> {
        match self {
            Self::AttachWanted(joined)
            | Self::Attaching(joined)
            | Self::Addressing { joined, .. }
            | Self::Unusable { joined, .. }
            | Self::Ready { joined, .. }
            | Self::DetachWanted(Left { then: AfterLeft::Attach(joined), .. })
            | Self::Detaching(Left { then: AfterLeft::Attach(joined), .. }) => Some(joined),
            Self::Idle
            | Self::JoinWanted(_)
            | Self::Joining(_)
            | Self::BackingOff { .. }
            | Self::JoinAbandoned(_)
            | Self::AttachAbandoned(_)
            | Self::DetachWanted(_)
            | Self::Detaching(_)
            | Self::LeaveWanted { .. }
            | Self::Leaving { .. }
            | Self::LeaveBackingOff { .. }
            | Self::CancelWanted { .. } => None,
        }
    }

    /// For the table of groups.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::JoinWanted(_) | Self::Joining(_) => "joining",
            Self::BackingOff { .. } => "backing-off",
            Self::AttachWanted(_) | Self::Attaching(_) => "attaching",
            Self::Addressing { .. } => "addressing",
            Self::Unusable { .. } => "unusable",
            Self::Ready { renewal: Renewal::Current, .. } => "joined",
            Self::Ready { .. } => "renewing",
            Self::JoinAbandoned(_)
            | Self::AttachAbandoned(_)
            | Self::DetachWanted(_)
            | Self::Detaching(_)
            | Self::LeaveWanted { .. }
            | Self::Leaving { .. }
            | Self::LeaveBackingOff { .. }
            | Self::CancelWanted { .. } => "leaving",
        }
    }
}

/// Where packets to a group go. Multicast packets always carry a GRH (IBA 9.6.1.5.1).
pub(crate) fn address_vector(record: &GroupRecord) -> AddressVector {
    let GroupParameters { rate, sl, global, qkey: _, mtu: _, packet_life_time: _ } =
        record.parameters;
    AddressVector { lid: record.mlid.value(), sl, rate, grh: Some((record.mgid.gid(), global)) }
}

/// How long to wait after try number `attempt` failed: doubled each time up to [`RETRY_MAX`], plus
/// up to a quarter of `jitter` so that the hosts of a fabric do not ask in step. The spans of a
/// sequence of tries never get shorter.
pub(crate) fn back_off(attempt: u8, jitter: u64) -> Duration {
    let doubled = RETRY_FIRST.saturating_mul(1u32.checked_shl(attempt.into()).unwrap_or(u32::MAX));
    let quarter = doubled.as_nanos() as u64 / 4;
    let jitter = jitter.checked_rem(quarter.saturating_add(1)).unwrap_or(0);
    doubled.saturating_add(Duration::from_nanos(jitter)).min(RETRY_MAX)
}

/// All groups of an interface.
#[derive(Debug)]
pub(crate) struct Groups {
    slots: Slab<Group>,
    index: Index,
}

impl Groups {
    pub(crate) fn new(len: u32, seed: u64) -> Result<Self, OutOfMemory> {
        Ok(Self { slots: Slab::new(len)?, index: Index::new(len, seed)? })
    }

    pub(crate) fn find(&self, mgid: Mgid) -> Option<u32> {
        let slots = &self.slots;
        self.index.find(mgid.gid().as_bytes(), |place| {
            slots.get(place).is_some_and(|group| group.mgid == mgid)
        })
    }

    /// Takes a place; `None` if all are taken.
    pub(crate) fn insert(&mut self, mgid: Mgid, role: Role) -> Option<u32> {
        let group = Group {
            mgid,
            role,
            claim: None,
            is_wanted: true,
            state: GroupState::Idle,
            operation: 0,
            queue: Queue::default(),
            is_doubtful: false,
            is_noticed: false,
            is_used: true,
        };
        let place = self.slots.insert(group).ok()?;
        self.index.insert(mgid.gid().as_bytes(), place);
        Some(place)
    }

    pub(crate) fn remove(&mut self, place: u32) {
        if let Some(group) = self.slots.remove(place) {
            self.index.remove(group.mgid.gid().as_bytes(), place);
        }
    }

    /// Gives a group another MGID, because the P_Key that is part of it changed.
    pub(crate) fn rename(&mut self, place: u32, mgid: Mgid) {
        if let Some(group) = self.slots.get_mut(place) {
            self.index.remove(group.mgid.gid().as_bytes(), place);
            group.mgid = mgid;
            self.index.insert(mgid.gid().as_bytes(), place);
        }
    }

    pub(crate) fn get(&self, place: u32) -> Option<&Group> {
        self.slots.get(place)
    }

    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut Group> {
        self.slots.get_mut(place)
    }

    /// The group that waits for the answer to `op`.
    pub(crate) fn of_operation(&self, op: OpId) -> Option<u32> {
        let Target::Group(place) = op.target else {
            return None;
        };
        self.get(place).filter(|group| group.operation == op.generation).map(|_| place)
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.slots.capacity()
    }

    /// Places that are free.
    pub(crate) fn vacant(&self) -> usize {
        self.slots.capacity() as usize - self.slots.iter().count()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Group)> {
        self.slots.iter()
    }

    /// A send-only group that nothing waits for, to make room: one that was not used since the last
    /// search, else any.
    pub(crate) fn choose_victim(&mut self) -> Option<u32> {
        let mut second_choice = None;
        for place in 0..self.capacity() {
            let Some(group) = self.slots.get_mut(place) else {
                continue;
            };
            let is_evictable = group.role == Role::SendOnly && group.is_wanted;
            if !is_evictable || !group.queue.is_empty() {
                continue;
            }
            if !core::mem::replace(&mut group.is_used, false) {
                return Some(place);
            }
            second_choice = second_choice.or(Some(place));
        }
        second_choice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_retry_is_short_and_no_wait_exceeds_the_maximum() {
        assert!(back_off(0, u64::MAX) < Duration::from_millis(130));
        for jitter in [0, 1, u64::MAX / 3, u64::MAX] {
            assert!((0..=u8::MAX).all(|attempt| back_off(attempt, jitter) <= RETRY_MAX));
        }
        assert_eq!(back_off(20, 0), RETRY_MAX);
    }

    #[test]
    fn waits_never_get_shorter_whatever_the_jitter() {
        for (low, high) in [(0, u64::MAX), (u64::MAX, 0), (12345, 54321)] {
            for attempt in 0..40 {
                assert!(back_off(attempt, low) <= back_off(attempt + 1, high));
            }
        }
    }

    #[test]
    fn every_membership_that_the_sa_has_is_left() {
        let mut states = JoinStates::all();
        let mut left = 0;
        while let Some(membership) = states.next_to_leave() {
            states.remove(membership.into());
            left += 1;
        }
        assert_eq!(left, 2);
    }
}
