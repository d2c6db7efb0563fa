//! Queue pairs (IBA 10.2.3, 10.3).

use alloc::collections::{TryReserveError, VecDeque};

use ipoib_rs::ib::{PkeyIndex, Qkey, Qpn};

use crate::address::AhId;
use crate::cq::CqId;
use crate::hca::HcaId;
use crate::packet::Packet;
use crate::port::PortId;
use crate::slab::Key;

/// A queue pair.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct QpId {
    pub(crate) hca: HcaId,
    pub(crate) key: Key,
}

/// The service of a queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QpType {
    /// Unreliable datagram.
    Ud,
    /// The general services interface, QP1: one per port (IBA 13.5.1).
    Gsi,
}

/// The state of a queue pair (IBA 10.3.1).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum QpState {
    /// RESET.
    Reset,
    /// INIT.
    Init,
    /// RTR.
    ReadyToReceive,
    /// RTS.
    ReadyToSend,
    /// SQD: sends that are posted wait.
    SendQueueDrained,
    /// SQE: a send failed, those behind it are flushed; receives go on.
    SendQueueError,
    /// ERR: everything is flushed.
    Error,
}

/// A transition of a queue pair (IBA 11.2.4.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QpChange {
    /// From anywhere to RESET. Nothing of the past remains: the completions that were not polled
    /// are gone as well.
    Reset,
    /// From RESET or INIT to INIT. QP1 ignores both values: it takes packets of every P_Key in the
    /// port's table, and its Q_Key is fixed (IBA 10.2.5, 10.9).
    Init {
        /// Where the queue pair's P_Key stands in the port's table.
        pkey_index: PkeyIndex,
        /// The key that packets must carry.
        qkey: Qkey,
    },
    /// From INIT to RTR.
    ReadyToReceive,
    /// From RTR, SQD or SQE to RTS.
    ReadyToSend,
    /// From RTS to RTS or from SQD to SQD, with another Q_Key.
    SetQkey(Qkey),
    /// From RTS to SQD.
    DrainSendQueue,
    /// From anywhere but RESET to ERR.
    Error,
}

/// What a queue pair is made of.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its service.
    pub qp_type: QpType,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub receive_cq: CqId,
    /// Sends that may be posted at the same time.
    pub sends_max: u32,
    /// Receives that may be posted at the same time.
    pub receives_max: u32,
}

/// A datagram to send (IBA 11.4.1.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SendRequest {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// Where to.
    pub ah: AhId,
    /// The destination queue pair.
    pub remote_qpn: Qpn,
    /// The key to put into the packet. Bit 31 set: the sending queue pair's own (IBA 10.2.5).
    pub qkey: Qkey,
    /// Which P_Key of the port's table to put into the packet; read on QP1 only.
    pub pkey_index: PkeyIndex,
}

/// A receive to post (IBA 11.4.1.2). It is a permission: the buffer comes with the packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReceiveRequest {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// The length of the buffer, the room for a GRH included.
    pub bytes: u32,
}

#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) port: PortId,
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) state: QpState,
    pub(crate) pkey_index: PkeyIndex,
    pub(crate) qkey: Qkey,
    /// The sequence number of the next packet, 24 bits.
    pub(crate) psn: u32,
    pub(crate) send_cq: Key,
    pub(crate) receive_cq: Key,
    pub(crate) sends: VecDeque<Send>,
    pub(crate) sends_max: usize,
    pub(crate) receives: VecDeque<ReceiveRequest>,
    pub(crate) receives_max: usize,
}

/// A send that was posted and has not left.
#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) request: SendRequest,
    pub(crate) packet: Packet,
}

impl Qp {
    pub(crate) fn new(port: PortId, qpn: Qpn, config: &QpConfig) -> Result<Self, TryReserveError> {
        let mut sends = VecDeque::new();
        sends.try_reserve_exact(config.sends_max as usize)?;
        let mut receives = VecDeque::new();
        receives.try_reserve_exact(config.receives_max as usize)?;
        Ok(Self {
            port,
            qpn,
            qp_type: config.qp_type,
            state: QpState::Reset,
            pkey_index: PkeyIndex::default(),
            qkey: Qkey(0),
            psn: 0,
            send_cq: config.send_cq.key,
            receive_cq: config.receive_cq.key,
            sends,
            sends_max: config.sends_max as usize,
            receives,
            receives_max: config.receives_max as usize,
        })
    }

    /// The state after `change`, if it is legal (IBA 10.3.1).
    pub(crate) fn next_state(&self, change: &QpChange) -> Option<QpState> {
        use QpState::{
            Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError,
        };
        let (from, to): (&[QpState], QpState) = match change {
            QpChange::Reset => return Some(Reset),
            QpChange::Init { .. } => (&[Reset, Init], Init),
            QpChange::ReadyToReceive => (&[Init], ReadyToReceive),
            QpChange::ReadyToSend => {
                (&[ReadyToReceive, SendQueueDrained, SendQueueError], ReadyToSend)
            }
            QpChange::SetQkey(_) => (&[ReadyToSend, SendQueueDrained], self.state),
            QpChange::DrainSendQueue => (&[ReadyToSend], SendQueueDrained),
            QpChange::Error if self.state == Reset => return None,
            QpChange::Error => return Some(Error),
        };
        from.contains(&self.state).then_some(to)
    }

    /// Whether packets are taken in (IBA 10.3.1: from RTR on).
    pub(crate) const fn can_receive(&self) -> bool {
        match self.state {
            QpState::Reset | QpState::Init | QpState::Error => false,
            QpState::ReadyToReceive
            | QpState::ReadyToSend
            | QpState::SendQueueDrained
            | QpState::SendQueueError => true,
        }
    }

    pub(crate) fn take_psn(&mut self) -> u32 {
        let psn = self.psn;
        self.psn = (psn + 1) & 0x00FF_FFFF;
        psn
    }
}
