//! Multicast: every port is a member of every group, and each change is a difference.

use core::net::IpAddr;

use crate::limits::LaggLimits;
use crate::storage::{Fixed, OutOfMemory, Slab, WorkQueue};
use crate::wire::{BroadcastGroup, LinkAddress};

use super::Lagg;
use super::action::{Action, OpId, PortError};
use super::counters::{Counter, Counters};
use super::port::PortId;

/// The groups of a lagg, and how far each port is with each.
#[derive(Debug)]
pub(super) struct Groups {
    slots: Slab<Group>,
    /// One row of ports for each group.
    memberships: Fixed<Membership>,
    /// Memberships to look at.
    work: WorkQueue,
    ports_max: u32,
}

/// A group. It is held as that of the network layer, since its link-layer address depends on the
/// scope and the P_Key of the port.
#[derive(Clone, Copy, Debug)]
struct Group {
    ip: IpAddr,
    /// Whether it is on the list.
    is_listed: bool,
    /// Whether it is on the list that is being read.
    is_on_next: bool,
}

/// How far a port is with a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Membership {
    Apart,
    Joining {
        generation: u32,
        group: LinkAddress,
    },
    Joined {
        group: LinkAddress,
    },
    Leaving {
        generation: u32,
    },
    /// The port did not join it. It is asked again when it changes, and whenever ports are looked
    /// at.
    Refused,
}

impl Groups {
    pub(super) fn new(limits: &LaggLimits) -> Result<Self, OutOfMemory> {
        let LaggLimits { ports_max, groups_max } = *limits;
        let len = ports_max.saturating_mul(groups_max);
        Ok(Self {
            slots: Slab::new(groups_max)?,
            memberships: Fixed::new(len, || Membership::Apart)?,
            work: WorkQueue::new(len)?,
            ports_max,
        })
    }

    /// Reads the list that the stack wants now. Without a broadcast group nothing on it is known.
    pub(super) fn set_list<'a>(
        &mut self,
        broadcast: Option<BroadcastGroup>,
        list: impl Iterator<Item = &'a [u8]>,
        counters: &mut Counters,
    ) {
        self.slots.iter_mut().for_each(|(_, group)| group.is_on_next = false);
        for address in list {
            match classify(broadcast, address) {
                Listed::Broadcast => {}
                Listed::Foreign => counters.count(Counter::ForeignGroups),
                Listed::Group(ip) => {
                    if !self.put_on_next(ip) {
                        counters.count(Counter::GroupsRefused);
                    }
                }
            }
        }
        for place in 0..self.slots.capacity() {
            let Some(group) = self.slots.get_mut(place) else {
                continue;
            };
            if group.is_listed != group.is_on_next {
                group.is_listed = group.is_on_next;
                self.review_group(place);
            }
        }
    }

    pub(super) fn on_answer(
        &mut self,
        op: OpId,
        answer: Result<(), PortError>,
        counters: &mut Counters,
    ) {
        let membership = self.memberships.get_mut(op.place as usize);
        let outcome = match (membership.as_deref(), answer) {
            (Some(&Membership::Joining { generation, group }), Ok(())) => {
                Some((generation, Membership::Joined { group }))
            }
            (Some(&Membership::Joining { generation, .. }), Err(PortError)) => {
                Some((generation, Membership::Refused))
            }
            // A group that could not be left is not there.
            (Some(&Membership::Leaving { generation }), Ok(()) | Err(PortError)) => {
                Some((generation, Membership::Apart))
            }
            (Some(Membership::Apart | Membership::Joined { .. } | Membership::Refused), _)
            | (None, _) => None,
        };
        match (membership, outcome) {
            (Some(membership), Some((generation, after))) if generation == op.generation => {
                *membership = after;
                if after == Membership::Refused {
                    counters.count(Counter::GroupJoinsFailed);
                }
                self.work.push(op.place);
            }
            (Some(_) | None, _) => counters.count(Counter::StaleAnswers),
        }
    }

    /// Everything about a port may have changed.
    pub(super) fn review_port(&mut self, port: u32) {
        for group in 0..self.slots.capacity() {
            self.review(group, port);
        }
    }

    /// A port is gone, and its memberships with it.
    pub(super) fn forget_port(&mut self, port: u32) {
        for group in 0..self.slots.capacity() {
            self.set(group, port, Membership::Apart);
        }
    }

    /// Has every port try again what it did not join.
    pub(super) fn retry(&mut self) {
        for (number, membership) in (0..).zip(self.memberships.iter_mut()) {
            if *membership == Membership::Refused {
                *membership = Membership::Apart;
                self.work.push(number);
            }
        }
    }

    /// Whether a port has anything to give back.
    pub(super) fn has_any(&self, port: u32) -> bool {
        (0..self.slots.capacity()).any(|group| match self.membership(group, port) {
            Membership::Apart | Membership::Refused => false,
            Membership::Joining { .. } | Membership::Joined { .. } | Membership::Leaving { .. } => {
                true
            }
        })
    }

    /// The groups: as the network layer calls them, and how many ports have joined each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, bool, u32)> {
        self.slots.iter().map(|(place, group)| {
            let joined = (0..self.ports_max)
                .filter(|&port| self.joined(place, port).is_some())
                .fold(0, |count, _| count + 1);
            (group.ip, group.is_listed, joined)
        })
    }

    /// How many groups a port has joined.
    pub(super) fn joined_by(&self, port: u32) -> u32 {
        let groups = 0..self.slots.capacity();
        groups.filter(|&group| self.joined(group, port).is_some()).fold(0, |count, _| count + 1)
    }

    fn joined(&self, group: u32, port: u32) -> Option<LinkAddress> {
        match self.membership(group, port) {
            Membership::Joined { group } => Some(group),
            Membership::Apart
            | Membership::Joining { .. }
            | Membership::Leaving { .. }
            | Membership::Refused => None,
        }
    }

    /// Notes that a group is on the list. Whether there is a place for it.
    fn put_on_next(&mut self, ip: IpAddr) -> bool {
        if let Some((_, group)) = self.slots.iter_mut().find(|(_, group)| group.ip == ip) {
            group.is_on_next = true;
            return true;
        }
        let group = Group { ip, is_listed: false, is_on_next: true };
        self.slots.insert(group).is_ok()
    }

    fn review_group(&mut self, group: u32) {
        for port in 0..self.ports_max {
            self.review(group, port);
        }
    }

    fn review(&mut self, group: u32, port: u32) {
        if self.membership(group, port) == Membership::Refused {
            self.set(group, port, Membership::Apart);
        }
        self.work.push(self.number(group, port));
    }

    /// Frees the place of a group that nobody has any more.
    fn prune(&mut self, group: u32) {
        let is_listed = self.slots.get(group).is_none_or(|group| group.is_listed);
        let is_apart = |port: u32| matches!(self.membership(group, port), Membership::Apart);
        if !is_listed && (0..self.ports_max).all(is_apart) {
            self.slots.remove(group);
        }
    }

    fn membership(&self, group: u32, port: u32) -> Membership {
        let number = self.number(group, port) as usize;
        self.memberships.get(number).copied().unwrap_or(Membership::Apart)
    }

    fn set(&mut self, group: u32, port: u32, membership: Membership) {
        let number = self.number(group, port) as usize;
        if let Some(place) = self.memberships.get_mut(number) {
            *place = membership;
        }
    }

    /// The number of a membership. It fits: [`LaggLimits`] were checked.
    const fn number(&self, group: u32, port: u32) -> u32 {
        group.saturating_mul(self.ports_max).saturating_add(port)
    }

    /// The group and the port of a membership.
    fn pair(&self, number: u32) -> Option<(u32, u32)> {
        Some((number.checked_div(self.ports_max)?, number.checked_rem(self.ports_max)?))
    }
}

impl Lagg {
    /// Whether a port takes part in a group, by the link-layer address that it would have there.
    fn wanted(&self, group: u32, port: u32) -> Option<LinkAddress> {
        let group = self.groups.slots.get(group).filter(|group| group.is_listed)?;
        let port = self.ports.get(port).filter(|port| port.is_member())?;
        let mgid = port.report.identity.broadcast_group()?.mgid_of(group.ip)?;
        Some(LinkAddress::multicast(mgid))
    }

    pub(super) fn poll_groups(&mut self) -> Option<Action> {
        while let Some(number) = self.groups.work.pop() {
            let Some((group, port)) = self.groups.pair(number) else {
                continue;
            };
            let action = self.poll_membership(group, port);
            self.groups.prune(group);
            if action.is_some() {
                return action;
            }
        }
        None
    }

    fn poll_membership(&mut self, group: u32, port: u32) -> Option<Action> {
        let wanted = self.wanted(group, port);
        let place = self.groups.number(group, port);
        let id = self.ports.get(port).map(|one| PortId { place: port, generation: one.generation });
        match (self.groups.membership(group, port), wanted) {
            (Membership::Apart, Some(address)) => {
                let generation = self.next_generation();
                let joining = Membership::Joining { generation, group: address };
                self.groups.set(group, port, joining);
                self.counters.count(Counter::GroupJoins);
                let op = OpId { place, generation };
                Some(Action::JoinGroup { op, port: id?, group: address })
            }
            // With another P_Key or scope it is another group to the port.
            (Membership::Joined { group: address }, wanted) if wanted != Some(address) => {
                let generation = self.next_generation();
                self.groups.set(group, port, Membership::Leaving { generation });
                self.counters.count(Counter::GroupLeaves);
                let op = OpId { place, generation };
                Some(Action::LeaveGroup { op, port: id?, group: address })
            }
            (Membership::Refused, None) => {
                self.groups.set(group, port, Membership::Apart);
                None
            }
            (Membership::Apart, None)
            | (Membership::Refused, Some(_))
            | (
                Membership::Joined { .. } | Membership::Joining { .. } | Membership::Leaving { .. },
                _,
            ) => None,
        }
    }
}

/// What an entry of the stack's list is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Listed {
    /// The broadcast group, which every port joins by itself.
    Broadcast,
    /// A group.
    Group(IpAddr),
    /// Nothing of this lagg's: it has another length, as an entry of an Ethernet interface has, or
    /// another signature, scope or P_Key.
    Foreign,
}

fn classify(broadcast: Option<BroadcastGroup>, address: &[u8]) -> Listed {
    let mgid = LinkAddress::from_bytes(address).and_then(|address| address.mgid());
    match (broadcast, mgid) {
        (Some(broadcast), Some(mgid)) if broadcast.mgid() == mgid => Listed::Broadcast,
        (Some(broadcast), Some(mgid)) => {
            broadcast.ip_of(mgid).map_or(Listed::Foreign, Listed::Group)
        }
        (Some(_) | None, _) => Listed::Foreign,
    }
}
