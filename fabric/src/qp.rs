//! Queue pairs (IBA 10.2.3, 10.3).

use alloc::collections::{TryReserveError, VecDeque};

use ipoib_rs::action::AddressVector;
use ipoib_rs::ib::{IbMtu, PkeyIndex, Qkey, Qpn};

use crate::address::AhId;
use crate::connection::Connection;
use crate::cq::CqId;
use crate::hca::HcaId;
use crate::packet::Packet;
use crate::port::PortId;
use crate::slab::Key;
use crate::srq::SrqId;
use ipoib_rs::ib::Psn;

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
    /// Reliable connection.
    Rc {
        /// Where receives come from, if not from the queue pair's own queue.
        srq: Option<SrqId>,
    },
}

impl QpType {
    pub(crate) const fn has_srq(self) -> bool {
        match self {
            Self::Ud | Self::Gsi | Self::Rc { srq: None } => false,
            Self::Rc { srq: Some(_) } => true,
        }
    }
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
    /// SQE: a send failed, those behind it are flushed; receives go on. A connected queue pair goes
    /// to ERR instead.
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
    /// port's table, and its Q_Key is fixed (IBA 10.2.5, 10.9). A connected queue pair has no
    /// Q_Key.
    Init {
        /// Where the queue pair's P_Key stands in the port's table.
        pkey_index: PkeyIndex,
        /// The key that packets must carry.
        qkey: Qkey,
    },
    /// From INIT to RTR; not for a connected queue pair.
    ReadyToReceive,
    /// From RTR, SQD or SQE to RTS; for a connected queue pair from SQD only.
    ReadyToSend,
    /// A connected queue pair from INIT to RTR.
    RcReadyToReceive(RcReadyToReceive),
    /// A connected queue pair from RTR to RTS.
    RcReadyToSend(RcReadyToSend),
    /// From RTS to RTS or from SQD to SQD, with another Q_Key; not for a connected queue pair.
    SetQkey(Qkey),
    /// From RTS to SQD.
    DrainSendQueue,
    /// From anywhere but RESET to ERR.
    Error,
}

/// What a connected queue pair needs to receive (IBA 11.2.4.2, table 91).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RcReadyToReceive {
    /// Where the peer is: a unicast LID.
    pub address: AddressVector,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The sequence number that the peer starts with.
    pub starting_psn: Psn,
    /// Messages are cut into packets of this length, at most the port's MTU; the same at both ends.
    pub path_mtu: IbMtu,
    /// What a peer is told to wait when there is no receive for its message.
    pub rnr_timer: RnrTimer,
}

/// What a connected queue pair needs to send (IBA 11.2.4.2, table 91).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RcReadyToSend {
    /// The sequence number of the first packet.
    pub starting_psn: Psn,
    /// How often a message is repeated that is not acknowledged.
    ///
    /// If this and the next are 0, as RFC 4755 7.1 advises, the packet of a send moves to the
    /// receiver; otherwise the sender keeps it and a copy travels.
    pub retry_count: RetryCount,
    /// How often a message is repeated for which there was no receive. Each time happens at once,
    /// because there is no clock here.
    pub rnr_retry_count: RetryCount,
}

/// A number of retries, 0 to 6.
///
/// IBA 9.7.5.2.8 has one more RNR retry count, 7 for endless. Without a clock it would never let
/// anything else happen, so it does not exist here.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RetryCount(u8);

impl RetryCount {
    /// No retry: the first loss breaks the connection.
    pub const NONE: Self = Self(0);

    /// `None` above 6.
    pub const fn new(count: u8) -> Option<Self> {
        if count <= 6 { Some(Self(count)) } else { None }
    }

    /// The number.
    pub const fn value(self) -> u8 {
        self.0
    }
}

/// The code of a time to wait, 5 bits (IBA 9.7.5.2.8, table 45).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// `None` above 5 bits.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }
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
    /// Receives that may be posted at the same time; of no meaning with a shared receive queue.
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
/// A datagram comes behind 40 bytes for a GRH, a message of a connection by itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReceiveRequest {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// The length of the buffer, the room for a datagram's GRH included.
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
    /// The sequence number of the next datagram.
    pub(crate) psn: Psn,
    pub(crate) send_cq: Key,
    pub(crate) receive_cq: Key,
    pub(crate) sends: VecDeque<Send>,
    pub(crate) sends_max: usize,
    pub(crate) receives: VecDeque<ReceiveRequest>,
    pub(crate) receives_max: usize,
    /// Of a connected queue pair.
    pub(crate) connection: Option<Connection>,
}

/// A send that was posted and has not left.
#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) request: SendRequest,
    pub(crate) packet: Packet,
}

impl Qp {
    pub(crate) fn new(port: PortId, qpn: Qpn, config: &QpConfig) -> Result<Self, TryReserveError> {
        let (sends_max, receives_max) = (config.sends_max as usize, config.receives_max as usize);
        let mut sends = VecDeque::new();
        let mut receives = VecDeque::new();
        let connection = match config.qp_type {
            QpType::Ud | QpType::Gsi => {
                sends.try_reserve_exact(sends_max)?;
                None
            }
            QpType::Rc { srq } => {
                let srq = srq.map(|srq| srq.key);
                Some(Connection::new(srq, config.sends_max)?)
            }
        };
        if !config.qp_type.has_srq() {
            receives.try_reserve_exact(receives_max)?;
        }
        Ok(Self {
            port,
            qpn,
            qp_type: config.qp_type,
            state: QpState::Reset,
            pkey_index: PkeyIndex::default(),
            qkey: Qkey(0),
            psn: Psn::default(),
            send_cq: config.send_cq.key,
            receive_cq: config.receive_cq.key,
            sends,
            sends_max,
            receives,
            receives_max,
            connection,
        })
    }

    /// The state after `change`, if it is legal (IBA 10.3.1).
    pub(crate) fn next_state(&self, change: &QpChange) -> Option<QpState> {
        use QpState::{
            Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError,
        };
        let is_connected = self.connection.is_some();
        let (from, to): (&[QpState], QpState) = match change {
            QpChange::ReadyToReceive | QpChange::SetQkey(_) if is_connected => return None,
            QpChange::RcReadyToReceive(_) | QpChange::RcReadyToSend(_) if !is_connected => {
                return None;
            }
            QpChange::Reset => return Some(Reset),
            QpChange::Init { .. } => (&[Reset, Init], Init),
            QpChange::ReadyToReceive | QpChange::RcReadyToReceive(_) => (&[Init], ReadyToReceive),
            QpChange::RcReadyToSend(_) => (&[ReadyToReceive], ReadyToSend),
            // IBA 10.3.1: SQE is not for connected queue pairs, and RTR needs more than this.
            QpChange::ReadyToSend if is_connected => (&[SendQueueDrained], ReadyToSend),
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

    /// Takes the oldest send that is not complete out: what it was called, and its packet.
    pub(crate) fn take_send(&mut self) -> Option<(u64, Packet)> {
        match &mut self.connection {
            Some(connection) => connection.take_message(),
            None => {
                let send = self.sends.pop_front()?;
                Some((send.request.wr_id, send.packet))
            }
        }
    }

    /// The packets of sends that have not left, or may have to leave again.
    pub(crate) fn packets_held(&self) -> usize {
        let connection = self.connection.as_ref();
        self.sends.len() + connection.map_or(0, Connection::packets_held)
    }

    /// Places in the list of queue pairs that have something to send: one for each datagram, or one
    /// for a connected queue pair.
    pub(crate) const fn egress_max(&self) -> usize {
        match self.connection {
            Some(_) => 1,
            None => self.sends_max,
        }
    }

    pub(crate) fn take_psn(&mut self) -> Psn {
        let psn = self.psn;
        self.psn = psn.plus(1);
        psn
    }
}
