//! What the manager counts.

use crate::mad::{Attribute, Method};

/// What a subnet manager did. A request is counted once as what it asked for and once as what
/// became of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SmCounters {
    /// SubnAdmGet(ClassPortInfo) from known ports.
    pub class_port_info_gets: u64,
    /// SubnAdmGet(PathRecord) from known ports.
    pub path_record_gets: u64,
    /// SubnAdmGet(MCMemberRecord) from known ports.
    pub member_record_gets: u64,
    /// SubnAdmSet(MCMemberRecord) from known ports: joins.
    pub member_record_sets: u64,
    /// SubnAdmDelete(MCMemberRecord) from known ports: leaves.
    pub member_record_deletes: u64,
    /// Other methods and attributes from known ports.
    pub others: u64,
    /// Answered with a record.
    pub answered: u64,
    /// Answered with a status.
    pub refused: u64,
    /// Answered with a status because of a fault that was set.
    pub refused_by_fault: u64,
    /// Not answered because of a fault that was set.
    pub dropped_by_fault: u64,
    /// Not answered: not a MAD, or one of another base version, or a segment of a longer message.
    pub dropped_malformed: u64,
    /// Not answered: a response, or a method that has none.
    pub dropped_unanswerable: u64,
    /// Not answered: no port that takes part has the LID that it came from.
    pub dropped_unknown_source: u64,
    /// Not answered: an SM_Key that is not the manager's.
    pub dropped_sm_key: u64,
    /// Groups created.
    pub groups_created: u64,
    /// Groups deleted.
    pub groups_deleted: u64,
    /// Commands for which there was no memory.
    pub commands_lost: u64,
}

impl SmCounters {
    /// How many requests of this kind came from known ports. Kinds that the SA does not support are
    /// counted together.
    pub const fn requests(&self, method: Method, attribute: Attribute) -> u64 {
        match (method, attribute) {
            (Method::Get, Attribute::ClassPortInfo) => self.class_port_info_gets,
            (Method::Get, Attribute::PathRecord) => self.path_record_gets,
            (Method::Get, Attribute::MemberRecord) => self.member_record_gets,
            (Method::Set, Attribute::MemberRecord) => self.member_record_sets,
            (Method::Delete, Attribute::MemberRecord) => self.member_record_deletes,
            (Method::Set | Method::Delete, Attribute::ClassPortInfo | Attribute::PathRecord)
            | (
                Method::GetResponse | Method::DeleteResponse,
                Attribute::ClassPortInfo | Attribute::PathRecord | Attribute::MemberRecord,
            ) => self.others,
        }
    }
}
