//! Taking completions and datagrams from the adapter.

use ipoib_rs::interface::Interface;
use ipoib_rs::packet::{CompletionStatus, ConnectedReceive, Receive};
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
            self.poll_connected(now, fabric, id);
        }
        self.gsi.poll(fabric);
        while let Some(mad) = self.gsi.poll_mad(self.agent) {
            if let Some((query, answer)) = self.sa.handle_mad(&mad.bytes) {
                self.feed_answer(now, fabric, query, answer);
            }
        }
        while let Some(mad) = self.gsi.poll_mad(self.cm_agent) {
            self.cm.handle_mad(now, mad.source, &mad.bytes);
            self.drive_cm(now, fabric);
        }
        // What found no room on QP1 before.
        self.drive_cm(now, fabric);
    }

    pub(super) fn poll_sends(&mut self, now: Instant, fabric: &mut Fabric, id: InterfaceId) {
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

    /// Takes what completed on connections to receive from.
    pub(super) fn poll_connected(&mut self, now: Instant, fabric: &mut Fabric, id: InterfaceId) {
        let links = self.slot(id).and_then(|slot| slot.wiring.links.as_ref());
        let Some(cq) = links.map(|links| links.cq) else {
            return;
        };
        while has_completions(fabric, cq) {
            self.pump(fabric, id, |interface, path| {
                for _ in 0..BATCH_LEN {
                    let Some(completion) = path.fabric.poll_cq(cq) else {
                        break;
                    };
                    feed_connected(now, interface, path, completion);
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

fn feed_connected(
    now: Instant,
    interface: &mut Interface<Packet>,
    path: &mut NodePath<'_>,
    completion: Completion,
) {
    let Completion { qp, qpn: _, wr_id: _, outcome } = completion;
    let links = path.wiring.links.as_mut();
    match outcome {
        Outcome::Received(arrival) => {
            // A queue pair takes its completions with it, so this one has its connection.
            match links.and_then(|links| links.find(qp)) {
                Some((connection, _)) => {
                    let receive = ConnectedReceive { connection, packet: arrival.packet };
                    interface.handle_connected_receive(now, receive, path);
                }
                None => path.fabric.pool_mut().free(arrival.packet),
            }
        }
        Outcome::ReceiveFailed(error) => {
            if let Some((connection, _)) = links.and_then(|links| links.find(qp)) {
                let status = error.into();
                interface.handle_connected_receive_failed(now, connection, status, path);
            }
        }
        // The drain marker is all that is sent on these queue pairs.
        Outcome::Sent | Outcome::SendFailed(_) => {
            if let Some(op) = links.and_then(|links| links.take_marker(qp)) {
                interface.handle_verb_result(now, op, Ok(()), path);
            }
        }
    }
}
