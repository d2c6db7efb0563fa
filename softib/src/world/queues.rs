//! Completion queues and shared receive queues.

use alloc::collections::VecDeque;

use fabric::cq::{self, Arrival, CqId, Outcome, WorkError};
use fabric::srq::SrqId;
use ipoib_rs::packet::PacketBuf;
use ipoib_rs::wire::GRH_BYTES;

use super::{Service, World};
use crate::checksum;
use crate::error::Error;
use crate::layout::{Completion, Context};
use crate::receives::Receives;
use crate::table::Handle;

/// A completion queue.
///
/// What the fabric completed is pulled into `ready` before anybody looks at it: on the way the
/// packet goes into the memory of its receive.
#[derive(Debug)]
pub(super) struct Queue {
    /// None while it is being made.
    id: Option<CqId>,
    pub(super) context: Context,
    ready: VecDeque<Completion>,
    len_max: usize,
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) id: SrqId,
    pub(super) context: Context,
    pub(super) receives: Receives,
}

impl Queue {
    pub(super) fn is(&self, id: CqId) -> bool {
        self.id == Some(id)
    }
}

impl World {
    /// Makes a completion queue.
    pub fn create_queue(
        &mut self,
        device: u32,
        len_max: u32,
        context: Context,
    ) -> Result<Handle, Error> {
        let hca = self.device(device)?.hca;
        let mut ready = VecDeque::new();
        ready.try_reserve_exact(len_max as usize)?;
        let queue = Queue { id: None, context, ready, len_max: len_max as usize };
        let handle = self.queues.insert(queue)?;
        match self.fabric.create_cq(hca, len_max, u64::from(handle.0)) {
            Ok(id) => {
                if let Some(queue) = self.queues.find_mut(handle) {
                    queue.id = Some(id);
                }
                Ok(handle)
            }
            Err(error) => {
                self.queues.remove(handle);
                Err(error.into())
            }
        }
    }

    /// Destroys a completion queue.
    pub fn destroy_queue(&mut self, handle: Handle) -> Result<(), Error> {
        self.fabric.destroy_cq(self.cq(handle)?)?;
        self.queues.remove(handle);
        Ok(())
    }

    /// Asks to be told of the next completion. Whether the queue holds some already.
    pub fn arm_queue(&mut self, handle: Handle) -> bool {
        let Ok(id) = self.cq(handle) else {
            return false;
        };
        let holds_ready = self.queues.find(handle).is_some_and(|queue| !queue.ready.is_empty());
        self.fabric.req_notify(id) || holds_ready
    }

    /// Takes completions out of a queue: how many there were.
    pub fn poll_queue(&mut self, handle: Handle, out: &mut [Completion]) -> usize {
        for (count, place) in out.iter_mut().enumerate() {
            if self.queues.find(handle).is_some_and(|queue| queue.ready.is_empty()) {
                self.pull(handle);
            }
            let ready = self.queues.find_mut(handle).and_then(|queue| queue.ready.pop_front());
            match ready {
                Some(completion) => *place = completion,
                None => return count,
            }
        }
        out.len()
    }

    /// The queue of a notification, if it is still there.
    pub(super) fn notified_queue(&mut self, notified: u64) -> Option<Context> {
        let handle = Handle(u32::try_from(notified).ok()?);
        self.pull(handle);
        Some(self.queues.find(handle)?.context)
    }

    pub(super) fn cq(&self, handle: Handle) -> Result<CqId, Error> {
        self.queues.find(handle).and_then(|queue| queue.id).ok_or(Error::Invalid)
    }

    /// Takes everything of a queue pair out of a queue.
    pub(super) fn purge(&mut self, handle: Handle, pair: Context) {
        // What was taken from a shared receive queue is given back that way.
        self.pull(handle);
        if let Some(queue) = self.queues.find_mut(handle) {
            queue.ready.retain(|completion| completion.pair != pair);
        }
    }

    /// Moves what the fabric completed into the queue that is polled, as far as there is room.
    pub(super) fn pull(&mut self, handle: Handle) {
        let Ok(id) = self.cq(handle) else {
            return;
        };
        let has_room = |queue: &Queue| queue.ready.len() < queue.len_max;
        while self.queues.find(handle).is_some_and(has_room)
            && let Some(completion) = self.fabric.poll_cq(id)
        {
            let completion = self.complete(completion);
            let queue = self.queues.find_mut(handle);
            if let (Some(queue), Some(completion)) = (queue, completion) {
                queue.ready.push_back(completion);
            }
        }
    }

    /// Puts a packet into its receive. None for a send whose poster wants no completion.
    fn complete(&mut self, completion: cq::Completion) -> Option<Completion> {
        let cq::Completion { qp, qpn: _, wr_id, outcome } = completion;
        let handle = self.pair_handle(qp);
        let pair = handle.and_then(|handle| self.pairs.find_mut(handle));
        let Some(pair) = pair else {
            // The fabric forgets completions with their queue pair, so there is no such case.
            if let Outcome::Received(arrival) = outcome {
                self.fabric.pool_mut().free(arrival.packet);
            }
            return None;
        };
        let mut line = Completion {
            wr_id,
            pair: pair.context,
            status: status_code(None),
            byte_count: 0,
            source_qpn: 0,
            source_lid: 0,
            pkey_index: 0,
            sl: 0,
            is_receive: 0,
            has_grh: 0,
            has_right_checksums: 0,
            reserved: [0; 4],
        };
        let is_datagram = pair.service == Service::Ud;
        let receives = match pair.shared {
            Some(shared) => self.shared.find_mut(shared).map(|shared| &mut shared.receives),
            None => Some(&mut pair.receives),
        };
        match outcome {
            Outcome::Sent => return pair.end_send().then_some(line),
            Outcome::SendFailed(error) => {
                pair.end_send();
                line.status = status_code(Some(error));
            }
            Outcome::ReceiveFailed(error) => {
                line.is_receive = 1;
                line.status = status_code(Some(error));
                line.wr_id = receives?.complete(wr_id, &[])?;
            }
            Outcome::Received(arrival) => {
                let wr_id = receives.and_then(|own| own.complete(wr_id, arrival.packet.bytes()));
                line.set_arrival(&arrival);
                if self.makes_checksums && is_datagram {
                    let datagram = arrival.packet.bytes().get(GRH_BYTES..).unwrap_or_default();
                    line.has_right_checksums = checksum::is_right(datagram).into();
                }
                self.fabric.pool_mut().free(arrival.packet);
                line.wr_id = wr_id?;
            }
        }
        Some(line)
    }

    /// Makes a shared receive queue.
    pub fn create_shared(
        &mut self,
        device: u32,
        receives_max: u32,
        segments_max: u32,
        context: Context,
    ) -> Result<Handle, Error> {
        let hca = self.device(device)?.hca;
        let receives = Receives::new(receives_max, segments_max)?;
        self.shared.reserve()?;
        let id = self.fabric.create_srq(hca, receives_max)?;
        Ok(self.shared.insert(Shared { id, context, receives })?)
    }

    /// Destroys a shared receive queue.
    pub fn destroy_shared(&mut self, handle: Handle) -> Result<(), Error> {
        let shared = self.shared.find(handle).ok_or(Error::Invalid)?;
        self.fabric.destroy_srq(shared.id)?;
        self.shared.remove(handle);
        Ok(())
    }

    /// Asks to be told when a shared receive queue holds fewer than `limit` receives.
    pub fn limit_shared(&mut self, handle: Handle, limit: u32) -> Result<(), Error> {
        let shared = self.shared.find(handle).ok_or(Error::Invalid)?;
        if self.fabric.set_srq_limit(shared.id, limit) { Ok(()) } else { Err(Error::Invalid) }
    }
}

impl Completion {
    fn set_arrival(&mut self, arrival: &Arrival) {
        // CAST: packets are shorter than 2^32 bytes.
        self.byte_count = arrival.packet.len() as u32;
        self.source_qpn = arrival.source_qpn.value();
        self.source_lid = arrival.source_lid.value();
        self.pkey_index = arrival.pkey_index.0;
        self.sl = arrival.sl.value();
        self.is_receive = 1;
        self.has_grh = u8::from(arrival.has_grh);
    }
}

/// `enum softib_status`.
const fn status_code(error: Option<WorkError>) -> u32 {
    match error {
        None => 0,
        Some(WorkError::Flushed) => 1,
        Some(WorkError::LocalLength) => 2,
        Some(WorkError::LocalQpOperation) => 3,
        Some(WorkError::RemoteInvalidRequest) => 4,
        Some(WorkError::RetryExceeded) => 5,
        Some(WorkError::RnrRetryExceeded) => 6,
    }
}
