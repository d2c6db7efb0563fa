//! Completion queues (IBA 11.4.2).

use alloc::collections::{TryReserveError, VecDeque};

use ipoib_rs::ib::{Lid, PkeyIndex, Qpn, ServiceLevel};
use ipoib_rs::packet::CompletionStatus;

use crate::hca::HcaId;
use crate::packet::Packet;
use crate::qp::QpId;
use crate::slab::Key;

/// A completion queue.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CqId {
    pub(crate) hca: HcaId,
    pub(crate) key: Key,
}

/// A work request that ended.
#[derive(Debug)]
pub struct Completion {
    /// The queue pair it was posted to, or that took it from a shared receive queue.
    pub qp: QpId,
    /// That queue pair's number.
    pub qpn: Qpn,
    /// What its poster called it.
    pub wr_id: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a work request ended.
#[derive(Debug)]
pub enum Outcome {
    /// A datagram that left, or a message that the peer acknowledged.
    Sent,
    /// A datagram that did not leave, or a message that was not acknowledged: nobody knows whether
    /// it arrived.
    SendFailed(WorkError),
    /// A receive that holds a packet.
    Received(Arrival),
    /// A receive that brought nothing.
    ReceiveFailed(WorkError),
}

/// Why a work request failed (IBA 11.6.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WorkError {
    /// The queue pair is in an error state.
    Flushed,
    /// A datagram is longer than the port's MTU, or a message than the posted receive.
    LocalLength,
    /// The queue pair cannot do it: its address handle is gone.
    LocalQpOperation,
    /// The peer cannot receive a message of this kind or length.
    RemoteInvalidRequest,
    /// No acknowledgement came, however often the message was repeated.
    RetryExceeded,
    /// The peer had no receive, however often the message was repeated.
    RnrRetryExceeded,
}

impl From<WorkError> for CompletionStatus {
    fn from(error: WorkError) -> Self {
        match error {
            WorkError::Flushed => Self::Flushed,
            WorkError::LocalLength
            | WorkError::LocalQpOperation
            | WorkError::RemoteInvalidRequest
            | WorkError::RetryExceeded
            | WorkError::RnrRetryExceeded => Self::Failed,
        }
    }
}

/// A datagram or a message that arrived (IBA 11.4.2.1).
#[derive(Debug)]
pub struct Arrival {
    /// Of a datagram: 40 bytes that hold the GRH, or zeros if there was none, then the payload. Of
    /// a connection: the message.
    pub packet: Packet,
    /// Whether the first 40 bytes are a GRH.
    pub has_grh: bool,
    /// The place of the packet's P_Key in the port's table; of interest to QP1 only.
    pub pkey_index: PkeyIndex,
    /// The service level.
    pub sl: ServiceLevel,
    /// The sender's LID.
    pub source_lid: Lid,
    /// The sender's queue pair.
    pub source_qpn: Qpn,
}

/// A completion queue that was armed holds something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Notification {
    /// The queue.
    pub cq: CqId,
    /// What the queue was created with.
    pub context: u64,
}

#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) context: u64,
    pub(crate) queue: VecDeque<Completion>,
    pub(crate) len_max: usize,
    pub(crate) notice: Notice,
    pub(crate) has_overrun: bool,
    /// Queue pairs that complete here, counted once for each of their two queues.
    pub(crate) user_count: u32,
}

/// What becomes of the next completion.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Notice {
    /// Nobody asked.
    Unarmed,
    /// It raises a notification.
    Armed,
    /// The notification was raised and not polled yet.
    Raised,
    /// As before, and the queue was armed again meanwhile.
    RaisedAndArmed,
}

impl Cq {
    pub(crate) fn new(len_max: u32, context: u64) -> Result<Self, TryReserveError> {
        let mut queue = VecDeque::new();
        queue.try_reserve_exact(len_max as usize)?;
        Ok(Self {
            context,
            queue,
            len_max: len_max as usize,
            notice: Notice::Unarmed,
            has_overrun: false,
            user_count: 0,
        })
    }
}
