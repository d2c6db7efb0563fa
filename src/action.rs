//! What an interface asks of its shell outside the lock.
//!
//! Every action may sleep. Its result comes back as an input with the same [`OpId`], exactly once:
//! a verb that fails says so, a query that nobody answers ends with [`SaError::TimedOut`]. Only a
//! query that was cancelled need not be answered. A second answer, or one for a request that was
//! given up meanwhile, is a counted no-op. An object has at most one operation under way, except
//! that [`Action::DestroyConnection`] may follow a drain marker that did not complete; so actions
//! of different objects may be executed in any order.

use crate::ib::{
    FlowLabel, Gid, IbMtu, Lid, Mgid, Mlid, Pkey, PkeyIndex, Psn, Qkey, Qpn, RateCode, ServiceId,
    ServiceLevel,
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
    Incoming(u32),
    Listener,
    Outgoing(u32),
    Path(u32),
    QueuePair,
    Reaper,
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

/// A reliable connection, by its place in the interface's tables: outgoing ones first, below
/// [`crate::limits::Limits::connections_max`] in all, so that a shell can keep its own table beside
/// it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnectionId(pub(crate) u32);

impl ConnectionId {
    /// The connection at a place, as the completion of a queue pair names it. Any place is legal:
    /// what is said of a connection that is not there is ignored.
    pub const fn from_index(index: u32) -> Self {
        Self(index)
    }

    /// The place in the tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A REQ that was received, as the shell numbers it. Opaque to the core.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RequestId(pub u64);

/// Something to do. In the imperative, executed without any lock of the core.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Make a queue pair for a connection that a peer asked for, bring it to RTS, post receives as
    /// they are asked for, and send a REP with this interface's private data (IBA 12.6.8). Answer:
    /// `handle_verb_result` when the REP is sent. Messages may come before the RTU does.
    AcceptConnection {
        /// The operation.
        op: OpId,
        /// The connection, whose number the core has chosen.
        connection: ConnectionId,
        /// The REQ to answer.
        request: RequestId,
        /// The first PSN to expect acknowledgements for.
        starting_psn: Psn,
        /// What the REP says of this interface.
        own: ConnectionParameters,
    },
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
    /// Disconnect (IBA 12.6.10) and destroy the queue pair of a connection. What is still posted on
    /// it completes as flushed first, and every receive that it took from a shared queue is fed:
    /// one that is not is missing in the account of that queue for ever. Answer:
    /// `handle_verb_result`.
    DestroyConnection {
        /// The operation.
        op: OpId,
        /// The connection.
        connection: ConnectionId,
    },
    /// Destroy an address handle. No send uses it any more. Answer: `handle_verb_result`.
    DestroyAddressHandle {
        /// The operation.
        op: OpId,
        /// The handle, whose number the core has chosen.
        handle: HandleId,
    },
    /// Move the queue pair of an incoming connection to the error state. Answer:
    /// `handle_verb_result`. With a shared receive queue, `handle_last_wqe` follows (IBA 11.6.3.1).
    ErrConnection {
        /// The operation.
        op: OpId,
        /// The connection.
        connection: ConnectionId,
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
    /// Listen for REQs to a service. Answer: `handle_verb_result`.
    Listen {
        /// The operation.
        op: OpId,
        /// The service.
        service: ServiceId,
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
    /// Make a queue pair and ask a peer for a connection with it (REQ, IBA 12.6.5); when it agrees,
    /// bring the queue pair to RTS and send an RTU. Answer: `handle_connect_answer`.
    OpenConnection {
        /// The operation.
        op: OpId,
        /// The connection, whose number the core has chosen.
        connection: ConnectionId,
        /// What to ask for.
        request: ConnectRequest,
    },
    /// Post a send without data on the queue pair of an incoming connection, which is in the error
    /// state. Answer: `handle_verb_result`, with its completion, or with an error if it could not
    /// be posted.
    PostDrainMarker {
        /// The operation.
        op: OpId,
        /// The connection.
        connection: ConnectionId,
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
    /// Stop listening. Answer: `handle_verb_result`.
    Unlisten {
        /// The operation.
        op: OpId,
    },
    /// The send ring has room again: offer packets that were refused. No answer.
    WakeSendQueue,
}

impl Action {
    /// The operation that is to be answered, or, for [`Self::CancelQuery`], the one that is over.
    pub const fn operation(&self) -> Option<OpId> {
        match *self {
            Self::AcceptConnection { op, .. }
            | Self::AttachGroup { op, .. }
            | Self::CancelQuery { op }
            | Self::CreateAddressHandle { op, .. }
            | Self::DestroyAddressHandle { op, .. }
            | Self::DestroyConnection { op, .. }
            | Self::DetachGroup { op, .. }
            | Self::ErrConnection { op, .. }
            | Self::JoinGroup { op, .. }
            | Self::LeaveGroup { op, .. }
            | Self::Listen { op, .. }
            | Self::ModifyQueuePair { op, .. }
            | Self::OpenConnection { op, .. }
            | Self::PostDrainMarker { op, .. }
            | Self::QueryPath { op, .. }
            | Self::QuerySaCapabilities { op }
            | Self::Unlisten { op } => Some(op),
            Self::WakeSendQueue => None,
        }
    }
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

/// What a peer is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectRequest {
    /// The way to the peer.
    pub path: PathRecord,
    /// The partition.
    pub pkey: Pkey,
    /// The service of the peer's interface.
    pub service: ServiceId,
    /// The first PSN that is sent.
    pub starting_psn: Psn,
    /// What the REQ says of this interface.
    pub own: ConnectionParameters,
}

/// The private data of REQ and REP (RFC 4755 6).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectionParameters {
    /// The datagram queue pair of the interface.
    pub qpn: Qpn,
    /// The largest message that it receives, encapsulation header included, in bytes.
    pub receive_mtu: u32,
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectError {
    /// A REJ, with its reason code (IBA 12.6.7.2).
    Rejected(u16),
    /// No answer in time.
    TimedOut,
    /// The REQ could not be sent, or the REP could not be used.
    Unusable,
}

/// Why a REQ is refused (IBA 12.6.7.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u16)]
pub enum RejectReason {
    /// "No resources".
    NoResources = 3,
    /// "Invalid service ID": nobody listens.
    InvalidServiceId = 8,
    /// "Consumer reject": the private data cannot be used.
    ConsumerReject = 28,
}

/// A verb failed; the core needs no more detail, the shell logs the errno.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct VerbError;
