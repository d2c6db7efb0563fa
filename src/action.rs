//! What an interface asks of its shell outside the lock.
//!
//! Every action may sleep. Its result comes back as an input with the same [`OpId`], exactly once:
//! a verb that fails says so, a query that nobody answers ends with [`SaError::TimedOut`]. Only a
//! query that was cancelled need not be answered. A second answer, or one for a request that was
//! given up meanwhile, is a counted no-op. An object has at most one operation under way, so
//! actions of different objects may be executed in any order.

use crate::ib::{
    FlowLabel, Gid, IbMtu, Lid, Mgid, Mlid, Pkey, PkeyIndex, Qkey, RateCode, ServiceLevel,
};

/// The identity of an operation under way.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct OpId {
    pub(crate) target: Target,
    pub(crate) generation: u32,
}

/// The object that an operation is for.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) enum Target {
    Group(u32),
    Handle(u32),
    Path(u32),
    QueuePair,
    Sa,
}

/// An address handle, by its place in the interface's table: below
/// [`crate::limits::Limits::handles_max`], so that a shell can keep its own table beside it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct HandleId(pub(crate) u32);

impl HandleId {
    /// The place in the table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Something to do. In the imperative, executed without any lock of the core.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Attach the queue pair to a multicast group (IBA 11.2.12.3). Answer: `handle_verb_result`.
    AttachGroup {
        /// The operation.
        op: OpId,
        /// The group.
        mgid: Mgid,
        /// The group's LID.
        mlid: Mlid,
    },
    /// Give up a query. No answer; one that is on its way may still come.
    CancelQuery {
        /// The operation.
        op: OpId,
    },
    /// Create an address handle (IBA 11.2.3.1). Answer: `handle_verb_result`.
    CreateAddressHandle {
        /// The operation.
        op: OpId,
        /// The handle, whose number the core has chosen.
        handle: HandleId,
        /// Where it sends to.
        address: AddressVector,
    },
    /// Destroy an address handle. No send uses it any more. Answer: `handle_verb_result`.
    DestroyAddressHandle {
        /// The operation.
        op: OpId,
        /// The handle, whose number the core has chosen.
        handle: HandleId,
    },
    /// Detach the queue pair from a multicast group. Answer: `handle_verb_result`.
    DetachGroup {
        /// The operation.
        op: OpId,
        /// The group.
        mgid: Mgid,
        /// The group's LID.
        mlid: Mlid,
    },
    /// SubnAdmSet(MCMemberRecord) (IBA 15.2.5.17). Answer: `handle_join_answer`.
    JoinGroup {
        /// The operation.
        op: OpId,
        /// The request.
        request: JoinRequest,
    },
    /// SubnAdmDelete(MCMemberRecord). Answer: `handle_leave_answer`.
    LeaveGroup {
        /// The operation.
        op: OpId,
        /// The group.
        mgid: Mgid,
        /// The port that joined.
        port_gid: Gid,
        /// The membership to end.
        membership: Membership,
    },
    /// Move the queue pair (IBA 10.3.1). Answer: `handle_verb_result`.
    ModifyQueuePair {
        /// The operation.
        op: OpId,
        /// The transition.
        change: QueuePairChange,
    },
    /// SubnAdmGet(PathRecord) (IBA 15.2.5.16). Answer: `handle_path_answer`.
    QueryPath {
        /// The operation.
        op: OpId,
        /// The components of the query.
        query: PathQuery,
    },
    /// SubnAdmGet(ClassPortInfo) (IBA 13.4.8.1). Answer: `handle_sa_capabilities`.
    QuerySaCapabilities {
        /// The operation.
        op: OpId,
    },
    /// The send ring has room again: offer packets that were refused. No answer.
    WakeSendQueue,
}

/// A transition of the queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QueuePairChange {
    /// To the error state: everything posted completes as flushed.
    Error,
    /// Through INIT and RTR to RTS, on a P_Key index.
    ReadyToSend {
        /// The index to work on.
        pkey_index: PkeyIndex,
        /// The queue key.
        qkey: Qkey,
    },
    /// To RESET. When it is reported done, the adapter touches no posted buffer any more: the data
    /// path has taken all of them back and no completion of before will be fed.
    Reset,
    /// RTS to RTS with another queue key.
    SetQkey {
        /// The queue key.
        qkey: Qkey,
    },
}

/// What a PathRecord is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PathQuery {
    /// The destination.
    pub destination: Gid,
    /// The own port.
    pub source: Gid,
    /// The partition.
    pub pkey: Pkey,
}

/// The part of a PathRecord that a datagram needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PathRecord {
    /// The destination of the record.
    pub destination: Gid,
    /// The destination LID.
    pub lid: Lid,
    /// The service level.
    pub sl: ServiceLevel,
    /// The MTU of the path.
    pub mtu: IbMtu,
    /// The static rate of the path.
    pub rate: RateCode,
    /// Set if packets need a GRH: the destination is beyond a router (hop limit above 1).
    pub global: Option<GlobalRoute>,
}

/// The part of a GRH that a path or group prescribes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct GlobalRoute {
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// How an interface takes part in a group (IBA 15.2.5.17.2, JoinState).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Membership {
    /// Receives and sends.
    Full,
    /// Sends only and keeps the group alive; where the SA says that it knows this kind.
    SendOnlyFull,
}

impl Membership {
    /// The JoinState bit.
    pub const fn join_state(self) -> u8 {
        match self {
            Self::Full => 1 << 0,
            Self::SendOnlyFull => 1 << 3,
        }
    }
}

/// A request to join a group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct JoinRequest {
    /// The group.
    pub mgid: Mgid,
    /// The joining port.
    pub port_gid: Gid,
    /// The partition.
    pub pkey: Pkey,
    /// The kind of membership.
    pub membership: Membership,
    /// Set to create the group if it does not exist; without, only an existing group is joined and
    /// the request carries the mandatory components alone.
    pub create: Option<GroupParameters>,
}

/// The properties of a group (IBA 15.2.5.17).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GroupParameters {
    /// The queue key of the group.
    pub qkey: Qkey,
    /// The MTU of the group.
    pub mtu: IbMtu,
    /// The rate of the group.
    pub rate: RateCode,
    /// The service level.
    pub sl: ServiceLevel,
    /// The packet life time code, 6 bits.
    pub packet_life_time: u8,
    /// Flow label, hop limit and traffic class.
    pub global: GlobalRoute,
}

/// The SA's answer to a join.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GroupRecord {
    /// The group.
    pub mgid: Mgid,
    /// Its LID.
    pub mlid: Mlid,
    /// The partition of the group.
    pub pkey: Pkey,
    /// Its properties.
    pub parameters: GroupParameters,
}

/// What the SA can do beyond the base (ClassPortInfo, IBA 15.2.5.1).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SaCapabilities {
    /// IsSendOnlyFullMemberSupported, CapabilityMask2 bit 12.
    pub send_only_full_member: bool,
}

/// Where an address handle sends to (IBA 11.2.3.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressVector {
    /// Destination LID: unicast or multicast.
    pub lid: u16,
    /// Service level.
    pub sl: ServiceLevel,
    /// Static rate.
    pub rate: RateCode,
    /// Set if packets carry a GRH; the source is the port's GID at index 0.
    pub grh: Option<(Gid, GlobalRoute)>,
}

/// Why the SA gave no answer that helps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SaError {
    /// MAD status BUSY (IBA 13.4.7): ask again.
    Busy,
    /// A class specific status (IBA 15.2.7).
    Refused(SaRefusal),
    /// No answer in time.
    TimedOut,
    /// The request could not be sent, or the answer could not be read.
    Unusable,
}

/// The class specific status codes of the SA (IBA 15.2.7, table 188).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum SaRefusal {
    /// ERR_NO_RESOURCES.
    NoResources = 1,
    /// ERR_REQ_INVALID.
    RequestInvalid = 2,
    /// ERR_NO_RECORDS.
    NoRecords = 3,
    /// ERR_TOO_MANY_RECORDS.
    TooManyRecords = 4,
    /// ERR_REQ_INVALID_GID.
    RequestInvalidGid = 5,
    /// ERR_REQ_INSUFFICIENT_COMPONENTS.
    InsufficientComponents = 6,
    /// ERR_REQ_DENIED.
    RequestDenied = 7,
}

impl SaRefusal {
    /// From the code; `None` for a reserved one.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::NoResources),
            2 => Some(Self::RequestInvalid),
            3 => Some(Self::NoRecords),
            4 => Some(Self::TooManyRecords),
            5 => Some(Self::RequestInvalidGid),
            6 => Some(Self::InsufficientComponents),
            7 => Some(Self::RequestDenied),
            _ => None,
        }
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// A verb failed; the core needs no more detail, the shell logs the errno.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct VerbError;
