//! Management datagrams of a port: QP1 and who talks through it (IBA 13.5).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use ipoib_rs::action::AddressVector;
use ipoib_rs::ib::{Lid, Pkey, PkeyIndex, Qkey, Qpn, RateCode, ServiceLevel};
use ipoib_rs::packet::PacketBuf;
use ipoib_rs::wire::GRH_BYTES;
use zerocopy::FromBytes;

use crate::address::AhId;
use crate::cq::{Arrival, CqId, Outcome};
use crate::mad::{MAD_BYTES, METHOD_RESPONSE, MadHeader};
use crate::port::PortId;
use crate::qp::{QpChange, QpConfig, QpId, QpType, ReceiveRequest, SendRequest};
use crate::{CreateError, Fabric};

/// Sends and receives that QP1 may have posted.
const QUEUE_LEN: u32 = 64;
/// Datagrams that wait for an agent to poll them.
const AGENT_QUEUE_LEN: usize = 64;
/// The management datagrams of a port.
#[derive(Debug)]
pub struct Gsi {
    port: PortId,
    qp: QpId,
    send_cq: CqId,
    receive_cq: CqId,
    agents: Vec<Agent>,
    /// The address handles of the sends under way, in the order of posting.
    handles: VecDeque<AhId>,
    counters: GsiCounters,
}

/// Who sends and receives management datagrams: the upper half of the TransactionIDs of its
/// requests.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AgentId(u32);

impl AgentId {
    /// The upper half of the TransactionIDs.
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// What an agent receives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// The responses to its requests.
    Client,
    /// The requests of a management class as well.
    Server {
        /// The class.
        class: u8,
    },
}

#[derive(Debug)]
struct Agent {
    id: AgentId,
    role: Role,
    queue: VecDeque<ReceivedMad>,
}

/// A management datagram that arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReceivedMad {
    /// The datagram.
    pub bytes: [u8; MAD_BYTES],
    /// From where, and the way back.
    pub source: MadAddress,
    /// From which queue pair.
    pub source_qpn: Qpn,
}

/// Where a management datagram goes: QP1 of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MadAddress {
    /// The port.
    pub lid: Lid,
    /// The service level.
    pub sl: ServiceLevel,
    /// The place of the P_Key in the own port's table.
    pub pkey_index: PkeyIndex,
}

/// A management datagram was not sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GsiSendError {
    /// No packet or no memory.
    OutOfMemory,
    /// As many are under way as may be.
    QueueFull,
}

/// What happened to management datagrams.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct GsiCounters {
    /// Sent.
    pub sent: u64,
    /// Received and given to an agent.
    pub received: u64,
    /// Received and not 256 bytes long.
    pub malformed: u64,
    /// Received and nobody's.
    pub unclaimed: u64,
    /// Received while the agent's queue was full.
    pub queues_full: u64,
}

impl Gsi {
    /// Opens QP1 of a port and posts its receives. `context` comes with the notifications of its
    /// completion queues.
    ///
    /// # Errors
    ///
    /// [`CreateError::TooMany`] if it is open already, or as for any queue pair.
    pub fn open(fabric: &mut Fabric, port: PortId, context: u64) -> Result<Self, CreateError> {
        let hca = fabric.query_port(port).ok_or(CreateError::Unknown)?.hca;
        let mut handles = VecDeque::new();
        handles.try_reserve_exact(QUEUE_LEN as usize).map_err(|_| CreateError::OutOfMemory)?;
        let send_cq = fabric.create_cq(hca, QUEUE_LEN, context)?;
        let receive_cq = match fabric.create_cq(hca, QUEUE_LEN, context) {
            Ok(cq) => cq,
            Err(error) => {
                destroy_cqs(fabric, [send_cq]);
                return Err(error);
            }
        };
        let config = QpConfig {
            qp_type: QpType::Gsi,
            send_cq,
            receive_cq,
            sends_max: QUEUE_LEN,
            receives_max: QUEUE_LEN,
        };
        let qp = match fabric.create_qp(port, &config) {
            Ok(qp) => qp,
            Err(error) => {
                destroy_cqs(fabric, [send_cq, receive_cq]);
                return Err(error);
            }
        };
        let gsi = Self {
            port,
            qp,
            send_cq,
            receive_cq,
            agents: Vec::new(),
            handles,
            counters: GsiCounters::default(),
        };
        gsi.start(fabric);
        Ok(gsi)
    }

    fn start(&self, fabric: &mut Fabric) {
        let changes = [
            QpChange::Init { pkey_index: PkeyIndex::default(), qkey: Qkey::GSI },
            QpChange::ReadyToReceive,
            QpChange::ReadyToSend,
        ];
        let results = changes.map(|change| fabric.modify_qp(self.qp, &change));
        debug_assert!(results.iter().all(Result::is_ok), "the way to RTS is legal");
        for _ in 0..QUEUE_LEN {
            self.post_receive(fabric);
        }
        fabric.req_notify(self.send_cq);
        fabric.req_notify(self.receive_cq);
    }

    /// Closes QP1.
    pub fn close(self, fabric: &mut Fabric) {
        let result = fabric.destroy_qp(self.qp);
        debug_assert!(result.is_ok(), "only this value destroys it");
        destroy_cqs(fabric, [self.send_cq, self.receive_cq]);
        for handle in self.handles {
            let result = fabric.destroy_ah(handle);
            debug_assert!(result.is_ok(), "only this value destroys it");
        }
    }

    /// Adds an agent.
    ///
    /// # Errors
    ///
    /// [`CreateError::TooMany`] if another agent serves the class, [`CreateError::OutOfMemory`].
    pub fn register(&mut self, role: Role) -> Result<AgentId, CreateError> {
        let is_taken = match role {
            Role::Client => false,
            Role::Server { .. } => self.agents.iter().any(|agent| agent.role == role),
        };
        if is_taken {
            return Err(CreateError::TooMany);
        }
        let out_of_memory = |_| CreateError::OutOfMemory;
        let mut queue = VecDeque::new();
        queue.try_reserve_exact(AGENT_QUEUE_LEN).map_err(out_of_memory)?;
        self.agents.try_reserve(1).map_err(out_of_memory)?;
        // Agents are never taken away, so this number is nobody else's.
        let id = AgentId(self.agents.len() as u32 + 1);
        self.agents.push(Agent { id, role, queue });
        Ok(id)
    }

    /// The way to QP1 of a port: in the default partition if the own port is in it (IBA 13.5.1),
    /// else in the one at index 0.
    pub fn address(&self, fabric: &Fabric, lid: Lid, sl: ServiceLevel) -> MadAddress {
        let partition = fabric.find_partition(self.port, Pkey::DEFAULT);
        MadAddress {
            lid,
            sl,
            pkey_index: partition.map_or_else(PkeyIndex::default, |partition| partition.index),
        }
    }

    /// Sends a datagram.
    ///
    /// # Errors
    ///
    /// [`GsiSendError`]; nothing was sent.
    pub fn send(
        &mut self,
        fabric: &mut Fabric,
        to: &MadAddress,
        mad: &[u8; MAD_BYTES],
    ) -> Result<(), GsiSendError> {
        self.reap_sends(fabric);
        if self.handles.len() == QUEUE_LEN as usize {
            return Err(GsiSendError::QueueFull);
        }
        let address = AddressVector {
            lid: to.lid.value(),
            sl: to.sl,
            rate: RateCode::new(0).ok_or(GsiSendError::OutOfMemory)?,
            grh: None,
        };
        let ah = fabric.create_ah(self.port, &address).map_err(|_| GsiSendError::OutOfMemory)?;
        let Some(packet) = fabric.pool_mut().allocate_from(mad) else {
            let _ = fabric.destroy_ah(ah);
            return Err(GsiSendError::OutOfMemory);
        };
        let request = SendRequest {
            wr_id: 0,
            ah,
            remote_qpn: Qpn::GSI,
            qkey: Qkey::GSI,
            pkey_index: to.pkey_index,
        };
        if let Err(refused) = fabric.post_send(self.qp, request, packet) {
            fabric.pool_mut().free(refused.packet);
            let _ = fabric.destroy_ah(ah);
            return Err(GsiSendError::QueueFull);
        }
        self.handles.push_back(ah);
        self.counters.sent += 1;
        Ok(())
    }

    /// Takes what arrived to the agents, and what was sent back.
    pub fn poll(&mut self, fabric: &mut Fabric) {
        loop {
            self.reap_sends(fabric);
            while let Some(completion) = fabric.poll_cq(self.receive_cq) {
                match completion.outcome {
                    Outcome::Received(arrival) => {
                        self.dispatch(&arrival);
                        fabric.pool_mut().free(arrival.packet);
                        self.post_receive(fabric);
                    }
                    Outcome::ReceiveFailed(_) => self.post_receive(fabric),
                    Outcome::Sent | Outcome::SendFailed(_) => {}
                }
            }
            // Both are armed before the loop ends.
            let has_sends = fabric.req_notify(self.send_cq);
            let has_receives = fabric.req_notify(self.receive_cq);
            if !has_sends && !has_receives {
                return;
            }
        }
    }

    /// The next datagram for an agent.
    pub fn poll_mad(&mut self, id: AgentId) -> Option<ReceivedMad> {
        let agent = self.agents.iter_mut().find(|agent| agent.id == id)?;
        agent.queue.pop_front()
    }

    /// What happened so far.
    pub const fn counters(&self) -> &GsiCounters {
        &self.counters
    }

    fn reap_sends(&mut self, fabric: &mut Fabric) {
        // Sends complete in the order of posting, whatever became of them.
        while fabric.poll_cq(self.send_cq).is_some() {
            if let Some(handle) = self.handles.pop_front() {
                let _ = fabric.destroy_ah(handle);
            }
        }
    }

    fn post_receive(&self, fabric: &mut Fabric) {
        let request = ReceiveRequest { wr_id: 0, bytes: (GRH_BYTES + MAD_BYTES) as u32 };
        let result = fabric.post_receive(self.qp, request);
        debug_assert!(result.is_ok(), "a receive for every one that completed");
    }

    fn dispatch(&mut self, arrival: &Arrival) {
        let mut bytes = [0; MAD_BYTES];
        if arrival.packet.len() != GRH_BYTES + MAD_BYTES
            || arrival.packet.copy_out(GRH_BYTES, &mut bytes).is_err()
        {
            self.counters.malformed += 1;
            return;
        }
        let Ok((header, _)) = MadHeader::ref_from_prefix(&bytes) else {
            self.counters.malformed += 1;
            return;
        };
        // IBA 13.4.6.4: a response carries the TransactionID of its request.
        let sender = (header.transaction.get() >> 32) as u32;
        let is_response = header.method & METHOD_RESPONSE != 0;
        let class = header.class;
        let agent = self.agents.iter_mut().find(|agent| {
            if is_response {
                agent.id.value() == sender
            } else {
                agent.role == Role::Server { class }
            }
        });
        let Some(agent) = agent else {
            self.counters.unclaimed += 1;
            return;
        };
        if agent.queue.len() == AGENT_QUEUE_LEN {
            self.counters.queues_full += 1;
            return;
        }
        self.counters.received += 1;
        agent.queue.push_back(ReceivedMad {
            bytes,
            source: MadAddress {
                lid: arrival.source_lid,
                sl: arrival.sl,
                pkey_index: arrival.pkey_index,
            },
            source_qpn: arrival.source_qpn,
        });
    }
}

fn destroy_cqs<const N: usize>(fabric: &mut Fabric, cqs: [CqId; N]) {
    for cq in cqs {
        let result = fabric.destroy_cq(cq);
        debug_assert!(result.is_ok(), "no queue pair uses it any more");
    }
}
