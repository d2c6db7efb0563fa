//! The tables of groups and of their members (IBA 15.2.5.17).

use alloc::vec::Vec;

use ipoib_rs::action::{GroupParameters, GroupRecord};
use ipoib_rs::ib::{Gid, Mgid, Mlid, Pkey};

use super::SmError;
use crate::mad::JoinState;

/// A line of the table of groups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GroupView {
    /// The group.
    pub record: GroupRecord,
    /// Whether it stays without members, because it was configured.
    pub is_configured: bool,
    /// How many ports are members of any kind.
    pub members_len: usize,
}

/// What a join did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Addition {
    /// All ways in which the port takes part now.
    pub(super) join_state: JoinState,
    /// Whether packets must be delivered to the port from now on.
    pub(super) started_receiving: bool,
}

/// What a leave did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Removal {
    pub(super) mlid: Mlid,
    /// All ways in which the port still takes part.
    pub(super) join_state: JoinState,
    /// Whether packets must be delivered to the port no more.
    pub(super) stopped_receiving: bool,
    /// Whether that was the last member of a group that was not configured.
    pub(super) deleted_group: bool,
}

/// All groups and members.
#[derive(Debug)]
pub(super) struct Groups<P> {
    /// Sorted by MGID.
    groups: Vec<Group>,
    /// Sorted by group and port.
    members: Vec<Member<P>>,
    /// Which multicast LIDs are taken, from the smallest on.
    mlids_taken: Vec<bool>,
    members_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    record: GroupRecord,
    is_configured: bool,
}

#[derive(Clone, Copy, Debug)]
struct Member<P> {
    mgid: Mgid,
    port: P,
    /// Never empty.
    join_state: JoinState,
}

/// How many multicast LIDs there are.
const MLIDS_MAX: usize = (Mlid::MAX.value() - Mlid::MIN.value()) as usize + 1;

impl<P: Copy + Ord> Groups<P> {
    pub(super) fn new(groups_max: usize, members_max: usize) -> Result<Self, SmError> {
        let groups_max = groups_max.min(MLIDS_MAX);
        let (mut groups, mut members, mut mlids_taken) = (Vec::new(), Vec::new(), Vec::new());
        groups.try_reserve_exact(groups_max)?;
        members.try_reserve_exact(members_max)?;
        mlids_taken.try_reserve_exact(groups_max)?;
        mlids_taken.resize(groups_max, false);
        Ok(Self { groups, members, mlids_taken, members_max })
    }

    pub(super) fn find(&self, mgid: Mgid) -> Option<&GroupRecord> {
        let place = self.place(mgid).ok()?;
        Some(&self.groups[place].record)
    }

    /// Creates a group that does not exist; `None` if no multicast LID is left.
    pub(super) fn create(
        &mut self,
        mgid: Mgid,
        pkey: Pkey,
        parameters: GroupParameters,
        is_configured: bool,
    ) -> Option<GroupRecord> {
        let place = self.place(mgid).err()?;
        let (offset, taken) = (0..).zip(&mut self.mlids_taken).find(|(_, taken)| !**taken)?;
        let mlid = Mlid::new(Mlid::MIN.value() + offset)?;
        *taken = true;
        let record = GroupRecord { mgid, mlid, pkey, parameters };
        let group = Group { record, is_configured };
        self.groups.insert(place, group);
        Some(record)
    }

    /// Whether one more membership fits, if the port has none in this group yet.
    pub(super) fn has_room(&self, mgid: Mgid, port: P) -> bool {
        self.members.len() < self.members_max || self.member_place(mgid, port).is_ok()
    }

    /// Adds ways of taking part; the caller looked for room.
    pub(super) fn join(&mut self, mgid: Mgid, port: P, join_state: JoinState) -> Addition {
        let place = match self.member_place(mgid, port) {
            Ok(place) => place,
            Err(place) => {
                let member = Member { mgid, port, join_state: JoinState::empty() };
                self.members.insert(place, member);
                place
            }
        };
        let member = &mut self.members[place];
        let before = member.join_state;
        member.join_state |= join_state;
        Addition {
            join_state: member.join_state,
            started_receiving: member.join_state.receives() && !before.receives(),
        }
    }

    /// How a port takes part in a group.
    pub(super) fn membership(&self, mgid: Mgid, port: P) -> JoinState {
        match self.member_place(mgid, port) {
            Ok(place) => self.members[place].join_state,
            Err(_) => JoinState::empty(),
        }
    }

    /// Removes ways of taking part, and the group with its last member. `None` if the port is not a
    /// member.
    pub(super) fn leave(&mut self, mgid: Mgid, port: P, join_state: JoinState) -> Option<Removal> {
        let group_place = self.place(mgid).ok()?;
        let mlid = self.groups[group_place].record.mlid;
        let place = self.member_place(mgid, port).ok()?;
        let before = self.members[place].join_state;
        let after = before.difference(join_state);
        self.members[place].join_state = after;
        if after.is_empty() {
            self.members.remove(place);
        }
        let mut removal = Removal {
            mlid,
            join_state: after,
            stopped_receiving: before.receives() && !after.receives(),
            deleted_group: false,
        };
        let range = self.member_range(mgid);
        if range.is_empty() && !self.groups[group_place].is_configured {
            self.delete(group_place);
            removal.deleted_group = true;
        }
        Some(removal)
    }

    /// A member of a group that nobody keeps alive. IBA 15.2.5.17: the group goes with the last
    /// member that keeps it alive, so that this one has to go, too.
    pub(super) fn orphan(&self, mgid: Mgid) -> Option<P> {
        let place = self.place(mgid).ok()?;
        let members = &self.members[self.member_range(mgid)];
        if self.groups[place].is_configured
            || members.iter().any(|member| member.join_state.keeps_alive())
        {
            return None;
        }
        members.first().map(|member| member.port)
    }

    /// The last membership of the table.
    pub(super) fn last_member(&self) -> Option<(Mgid, P)> {
        self.members.last().map(|last| (last.mgid, last.port))
    }

    /// The next group after `after` that a port is a member of and `which` picks.
    pub(super) fn next_membership(
        &self,
        port: P,
        after: Option<Mgid>,
        which: impl Fn(&GroupRecord) -> bool,
    ) -> Option<Mgid> {
        let start = after
            .map_or(0, |after| self.groups.partition_point(|group| group.record.mgid <= after));
        self.groups[start..]
            .iter()
            .map(|group| &group.record)
            .find(|record| which(record) && self.member_place(record.mgid, port).is_ok())
            .map(|record| record.mgid)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = GroupView> + '_ {
        self.groups.iter().map(|group| GroupView {
            record: group.record,
            is_configured: group.is_configured,
            members_len: self.member_range(group.record.mgid).len(),
        })
    }

    pub(super) fn members(&self, mgid: Mgid) -> impl Iterator<Item = (P, JoinState)> + '_ {
        let members = &self.members[self.member_range(mgid)];
        members.iter().map(|member| (member.port, member.join_state))
    }

    fn delete(&mut self, place: usize) {
        let mlid = self.groups.remove(place).record.mlid;
        let offset = usize::from(mlid.value() - Mlid::MIN.value());
        self.mlids_taken[offset] = false;
    }

    fn place(&self, mgid: Mgid) -> Result<usize, usize> {
        self.groups.binary_search_by_key(&mgid, |group| group.record.mgid)
    }

    fn member_place(&self, mgid: Mgid, port: P) -> Result<usize, usize> {
        self.members.binary_search_by_key(&(mgid, port), |member| (member.mgid, member.port))
    }

    fn member_range(&self, mgid: Mgid) -> core::ops::Range<usize> {
        let start = self.members.partition_point(|member| member.mgid < mgid);
        let end = self.members.partition_point(|member| member.mgid <= mgid);
        start..end
    }
}

/// Whether an MGID may be that of a group (IBA 4.1.1 and o15-0.1.5): three flags are reserved, so
/// are two scopes, and with the SA's own signature and link-local scope only the SA makes up MGIDs.
pub(super) fn is_valid_mgid(mgid: Mgid) -> bool {
    const SA_SIGNATURE: [u8; 2] = [0xA0, 0x1B];
    const SCOPE_LINK_LOCAL: u8 = 2;
    let Gid(bytes) = mgid.gid();
    let (flags, scope) = (bytes[1] >> 4, bytes[1] & 0x0F);
    let is_made_by_sa = bytes[2..4] == SA_SIGNATURE && scope == SCOPE_LINK_LOCAL;
    flags & 0b1110 == 0 && scope != 0 && scope != 0x0F && !is_made_by_sa
}
