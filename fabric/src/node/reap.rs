//! Taking completions and datagrams from the adapter.

use ipoib_rs::interface::Interface;
use ipoib_rs::packet::{CompletionStatus, Receive};
use ipoib_rs::time::Instant;

use super::datapath::NodePath;
use super::{Fabric, InterfaceId, Node, Packet};
use crate::cq::{Completion, Outcome, WorkError};
use crate::qp::{QpChange, QpState};

/// Completions that are fed with the interface locked once.
const BATCH_LEN: usize = 16;

impl Node {
    /// Takes what the adapter has: completions of all interfaces and management datagrams. Every
    /// queue is armed when this returns, so a notification tells when to call it again.
    pub fn poll(&mut self, now: Instant, fabric: &mut Fabric) {
        for id in self.ids() {
            self.poll_sends(now, fabric, id);
            self.poll_receives(now, fabric, id);
        }
        self.gsi.poll(fabric);
        while let Some(mad) = self.gsi.poll_mad(self.agent) {
            if let Some((query, answer)) = self.sa.handle_mad(&mad.bytes) {
                self.feed_answer(now, fabric, query, answer);
            }
        }
    }

    fn poll_sends(&mut self, now: Instant, fabric: &mut Fabric, id: InterfaceId) {
        let Some(cq) = self.slot(id).map(|slot| slot.wiring.send_cq) else {
            return;
        };
        while has_completions(fabric, cq) {
            let has_failed = self.pump(fabric, id, |interface, path| {
                let mut has_failed = false;
                for _ in 0..BATCH_LEN {
                    let Some(completion) = path.fabric.poll_cq(cq) else {
                        break;
                    };
                    has_failed |= feed_send(now, interface, path, &completion);
                }
                has_failed
            });
            if has_failed == Some(true) {
                self.recover_send_queue(fabric, id);
            }
        }
    }

    fn poll_receives(&mut self, now: Instant, fabric: &mut Fabric, id: InterfaceId) {
        let Some(cq) = self.slot(id).map(|slot| slot.wiring.receive_cq) else {
            return;
        };
        while has_completions(fabric, cq) {
            self.pump(fabric, id, |interface, path| {
                for _ in 0..BATCH_LEN {
                    let Some(completion) = path.fabric.poll_cq(cq) else {
                        break;
                    };
                    feed_receive(now, interface, path, completion);
                }
            });
        }
    }

    /// A send that fails stops the send queue (IBA 10.3.1, SQE); the verbs consumer starts it
    /// again.
    fn recover_send_queue(&mut self, fabric: &mut Fabric, id: InterfaceId) {
        let Some(qp) = self.slot(id).map(|slot| slot.wiring.qp) else {
            return;
        };
        if fabric.qp_state(qp) == Some(QpState::SendQueueError)
            && fabric.modify_qp(qp, &QpChange::ReadyToSend).is_ok()
        {
            self.outputs.counters.send_queues_recovered += 1;
        }
    }
}

/// Whether a queue holds something. If it does not it is armed, and looked at again, because what
/// came before the arming raised no notification (IBA 11.4.2.2).
fn has_completions(fabric: &mut Fabric, cq: crate::cq::CqId) -> bool {
    fabric.req_notify(cq)
}

/// Whether the send failed for a reason of its own.
fn feed_send(
    now: Instant,
    interface: &mut Interface<Packet>,
    path: &mut NodePath<'_>,
    completion: &Completion,
) -> bool {
    let (status, has_failed) = match completion.outcome {
        Outcome::Sent => (CompletionStatus::Success, false),
        Outcome::SendFailed(error) => (error.into(), error != WorkError::Flushed),
        // The two queues are apart: no receive completes here.
        Outcome::Received(_) | Outcome::ReceiveFailed(_) => return false,
    };
    let id = ipoib_rs::packet::SendId::from_bits(completion.wr_id);
    interface.handle_send_completion(now, id, status, path);
    has_failed
}

fn feed_receive(
    now: Instant,
    interface: &mut Interface<Packet>,
    path: &mut NodePath<'_>,
    completion: Completion,
) {
    match completion.outcome {
        Outcome::Received(arrival) => {
            let receive = Receive {
                packet: arrival.packet,
                has_grh: arrival.has_grh,
                source_lid: arrival.source_lid.value(),
                source_qpn: arrival.source_qpn,
            };
            interface.handle_receive(now, receive, path);
        }
        Outcome::ReceiveFailed(error) => interface.handle_receive_failed(now, error.into(), path),
        // The two queues are apart: no send completes here.
        Outcome::Sent | Outcome::SendFailed(_) => {}
    }
}
