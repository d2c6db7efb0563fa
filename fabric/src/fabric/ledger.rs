//! Who holds packets.

use super::Fabric;
use crate::cq::Outcome;
use crate::qp::Qp;

impl Fabric {
    /// Whether [`Self::poll_transit`] has work to do: sends are posted that did not leave.
    pub fn has_egress(&self) -> bool {
        !self.egress.is_empty() || !self.ready.is_empty()
    }

    /// The packets that the fabric holds: sends that were posted and did not leave, copies that
    /// were not polled, and what was received and not polled. With those of its users that is
    /// [`crate::packet::Pool::outstanding`].
    pub fn packets_held(&self) -> usize {
        let hcas = self.hcas.iter().map(|hca| {
            let sends: usize = hca.qps.iter().map(Qp::packets_held).sum();
            let is_packet = |outcome: &Outcome| match outcome {
                Outcome::Received(_) => true,
                Outcome::Sent | Outcome::SendFailed(_) | Outcome::ReceiveFailed(_) => false,
            };
            let received = hca
                .cqs
                .iter()
                .flat_map(|cq| &cq.queue)
                .filter(|completion| is_packet(&completion.outcome))
                .count();
            sends + received
        });
        hcas.sum::<usize>() + self.ready.len()
    }
}
