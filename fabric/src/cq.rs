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
    /// The queue pair it was posted to.
    pub qp: QpId,
    /// What its poster called it.
    pub wr_id: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a work request ended.
#[derive(Debug)]
pub enum Outcome {
    /// A send whose packet left.
    Sent,
    /// A send whose packet did not leave and went back to the pool.
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
    /// The message is longer than the port's MTU or than the posted receive.
    LocalLength,
    /// The queue pair cannot do it: its address handle is gone.
    LocalQpOperation,
}

impl From<WorkError> for CompletionStatus {
    fn from(error: WorkError) -> Self {
        match error {
            WorkError::Flushed => Self::Flushed,
            WorkError::LocalLength | WorkError::LocalQpOperation => Self::Failed,
        }
    }
}

/// A datagram that arrived (IBA 11.4.2.1).
#[derive(Debug)]
pub struct Arrival {
    /// 40 bytes that hold the GRH, or zeros if there was none, then the payload.
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
