//! Host channel adapters.

use ipoib_rs::ib::{IbMtu, Qpn};

use crate::address::Ah;
use crate::cq::{Completion, Cq, CqId, Notice, Notification, Outcome, WorkError};
use crate::outlet::Outlet;
use crate::qp::{Qp, QpId};
use crate::slab::{Key, Slab};
use crate::srq::Srq;

/// An adapter.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct HcaId(pub(crate) u32);

/// What an adapter is made of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HcaConfig {
    /// Its node GUID; the ports have the GUIDs that follow it.
    pub guid: u64,
    /// Ports, 1 or more.
    pub port_count: u8,
    /// The MTU of its ports.
    pub mtu: IbMtu,
    /// Places in the P_Key table of a port, 1 or more.
    pub pkey_table_len: u16,
    /// Places in the GID table of a port, 1 or more.
    pub gid_table_len: u16,
}

impl HcaConfig {
    /// An adapter with one port.
    pub const fn with_guid(guid: u64) -> Self {
        Self { guid, port_count: 1, mtu: IbMtu::Mtu2048, pkey_table_len: 16, gid_table_len: 16 }
    }
}

/// Queue pairs of an adapter: their index is the low part of their number.
const QPS_MAX: u32 = (1 << QPN_INDEX_BITS) - 1;
const QPN_INDEX_BITS: u32 = 14;
const QPN_GENERATIONS: u32 = (1 << (24 - QPN_INDEX_BITS)) - 1;
const CQS_MAX: u32 = 2 * QPS_MAX;
const AHS_MAX: u32 = 1 << 20;
const SRQS_MAX: u32 = 1 << 10;

#[derive(Debug)]
pub(crate) struct Hca {
    pub(crate) id: HcaId,
    pub(crate) qps: Slab<Qp>,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) ahs: Slab<Ah>,
    pub(crate) srqs: Slab<Srq>,
    pub(crate) is_wedged: bool,
}

impl Hca {
    pub(crate) const fn new(id: HcaId) -> Self {
        Self {
            id,
            qps: Slab::new(QPS_MAX),
            cqs: Slab::new(CQS_MAX),
            ahs: Slab::new(AHS_MAX),
            srqs: Slab::new(SRQS_MAX),
            is_wedged: false,
        }
    }

    /// The number of a queue pair: it is found by its low bits, and the high bits make it another
    /// than that of the queue pair which had the place before. Neither 0, 1 (QP0 and QP1) nor
    /// `0xFFFFFF` can come out: the high part is not 0, the low part not all ones.
    pub(crate) const fn qpn(key: Key) -> Option<Qpn> {
        Qpn::new((key.generation % QPN_GENERATIONS + 1) << QPN_INDEX_BITS | key.index)
    }

    pub(crate) fn qp_by_number(&self, qpn: Qpn) -> Option<(Key, &Qp)> {
        let index = qpn.value() & ((1 << QPN_INDEX_BITS) - 1);
        self.qps.at(index).filter(|(_, qp)| qp.qpn == qpn)
    }

    /// Puts a completion into a queue and raises a notification if it is armed.
    pub(crate) fn complete(&mut self, cq: Key, completion: Completion, outlet: &mut Outlet) {
        let id = CqId { hca: self.id, key: cq };
        let is_wedged = self.is_wedged;
        let Some(queue) = self.cqs.get_mut(cq) else {
            outlet.reclaim(completion);
            return;
        };
        // IBA 11.6.3.1, CQ error: on an overrun completions are lost and the owner is told once.
        if queue.queue.len() == queue.len_max {
            outlet.reclaim(completion);
            if !queue.has_overrun {
                queue.has_overrun = true;
                outlet.report_overrun(id);
            }
            return;
        }
        queue.queue.push_back(completion);
        if !is_wedged {
            Self::notify(id, queue, outlet);
        }
    }

    /// Ends the wedge: what was withheld is announced.
    pub(crate) fn unwedge(&mut self, outlet: &mut Outlet) {
        self.is_wedged = false;
        let hca = self.id;
        for (key, queue) in self.cqs.iter_mut() {
            if !queue.queue.is_empty() {
                Self::notify(CqId { hca, key }, queue, outlet);
            }
        }
    }

    fn notify(cq: CqId, queue: &mut Cq, outlet: &mut Outlet) {
        queue.notice = match queue.notice {
            Notice::Armed => {
                outlet.notifications.push_back(Notification { cq, context: queue.context });
                Notice::Raised
            }
            // One that is on its way will make the owner look.
            Notice::RaisedAndArmed => Notice::Raised,
            Notice::Unarmed | Notice::Raised => queue.notice,
        };
    }

    /// Takes the completions of a queue pair out of a queue; their packets go back to the pool.
    pub(crate) fn purge_cq(&mut self, cq: Key, qp: QpId, outlet: &mut Outlet) {
        let Some(queue) = self.cqs.get_mut(cq) else {
            return;
        };
        for _ in 0..queue.queue.len() {
            let Some(completion) = queue.queue.pop_front() else {
                break;
            };
            if completion.qp == qp {
                outlet.reclaim(completion);
            } else {
                queue.queue.push_back(completion);
            }
        }
    }

    /// Completes everything that is posted as flushed: receives, then sends, each in order.
    pub(crate) fn flush(&mut self, qp: QpId, outlet: &mut Outlet) {
        while let Some((cq, qpn, wr_id)) = self.qps.get_mut(qp.key).and_then(|queue_pair| {
            let receive = queue_pair.receives.pop_front()?;
            Some((queue_pair.receive_cq, queue_pair.qpn, receive.wr_id))
        }) {
            let completion =
                Completion { qp, qpn, wr_id, outcome: Outcome::ReceiveFailed(WorkError::Flushed) };
            self.complete(cq, completion, outlet);
        }
        self.flush_sends(qp, outlet);
    }

    /// Completes the sends that are posted as flushed, in order.
    pub(crate) fn flush_sends(&mut self, qp: QpId, outlet: &mut Outlet) {
        let failure = || Outcome::SendFailed(WorkError::Flushed);
        while self.complete_send(qp, failure, outlet) {}
    }

    /// Completes the oldest send of a queue pair; whether there was one. Its packet goes back to
    /// the pool.
    pub(crate) fn complete_send(
        &mut self,
        qp: QpId,
        outcome: impl FnOnce() -> Outcome,
        outlet: &mut Outlet,
    ) -> bool {
        let Some(queue_pair) = self.qps.get_mut(qp.key) else {
            return false;
        };
        let Some((wr_id, packet)) = queue_pair.take_send() else {
            return false;
        };
        outlet.pool.free(packet);
        let completion = Completion { qp, qpn: queue_pair.qpn, wr_id, outcome: outcome() };
        let cq = queue_pair.send_cq;
        self.complete(cq, completion, outlet);
        true
    }
}
