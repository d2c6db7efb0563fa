//! Verbs of shared receive queues (IBA 11.2.3, 11.4.1.2).

use super::verbs::{DestroyError, PostError};
use super::{CreateError, Fabric};
use crate::hca::HcaId;
use crate::qp::ReceiveRequest;
use crate::srq::{Srq, SrqId};

impl Fabric {
    /// Makes a shared receive queue for `receives_max` receives, 1 or more.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    pub fn create_srq(&mut self, hca: HcaId, receives_max: u32) -> Result<SrqId, CreateError> {
        if receives_max == 0 {
            return Err(CreateError::Invalid);
        }
        let table = &mut self.hca_mut(hca).ok_or(CreateError::Unknown)?.srqs;
        let srq = Srq::new(receives_max).map_err(|_| CreateError::OutOfMemory)?;
        let key = table.insert(|_| srq)?;
        Ok(SrqId { hca, key })
    }

    /// Destroys a shared receive queue, and the receives that are posted there without a
    /// completion.
    ///
    /// # Errors
    ///
    /// [`DestroyError::Busy`] while queue pairs take their receives there.
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<(), DestroyError> {
        let hca = self.hca_mut(id.hca).ok_or(DestroyError::Unknown)?;
        let srq = hca.srqs.get(id.key).ok_or(DestroyError::Unknown)?;
        if srq.user_count > 0 {
            return Err(DestroyError::Busy);
        }
        hca.srqs.remove(id.key).ok_or(DestroyError::Unknown)?;
        Ok(())
    }

    /// Posts a receive for any of the queue pairs that share the queue.
    ///
    /// # Errors
    ///
    /// [`PostError`].
    pub fn post_srq_receive(
        &mut self,
        id: SrqId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        let srq = self.srq_mut(id).ok_or(PostError::UnknownQp)?;
        if srq.receives.len() == srq.receives_max {
            return Err(PostError::QueueFull);
        }
        srq.receives.push_back(request);
        Ok(())
    }

    /// Asks for [`crate::AsyncEvent::SrqLimitReached`] when the queue next holds fewer than `limit`
    /// receives because a message took one (IBA 10.2.9.2); 0 takes the request back. Whether there
    /// is such a queue.
    pub fn set_srq_limit(&mut self, id: SrqId, limit: u32) -> bool {
        let Some(srq) = self.srq_mut(id) else {
            return false;
        };
        srq.limit = limit as usize;
        true
    }

    /// The receives that a shared receive queue holds.
    pub fn srq_len(&self, id: SrqId) -> Option<usize> {
        let hca = self.hcas.get(id.hca.0 as usize)?;
        Some(hca.srqs.get(id.key)?.receives.len())
    }

    /// The number of shared receive queues of an adapter.
    pub fn srq_count(&self, hca: HcaId) -> usize {
        let hca = self.hcas.get(hca.0 as usize);
        hca.map_or(0, |hca| hca.srqs.len())
    }

    fn srq_mut(&mut self, id: SrqId) -> Option<&mut Srq> {
        self.hcas.get_mut(id.hca.0 as usize)?.srqs.get_mut(id.key)
    }
}
