//! Posting work. What a send names is copied before the call returns.

use fabric::PostError;
use fabric::packet::Packet;
use fabric::qp::{QpState, ReceiveRequest, SendRequest};
use ipoib_rs::ib::{PkeyIndex, Qkey, Qpn};

use super::chance::is_request;
use super::{Service, World};
use crate::checksum;
use crate::error::Error;
use crate::hide::hide_rc;
use crate::layout::Send;
use crate::memory::{self, Segment};
use crate::receives::{Receives, Refusal};
use crate::table::Handle;

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full => Self::NoMemory,
            Refusal::TooManySegments => Self::Invalid,
        }
    }
}

impl World {
    /// Posts a send: a datagram, or a message of a connection.
    pub fn post_send(
        &mut self,
        handle: Handle,
        send: &Send,
        segments: &[Segment],
    ) -> Result<(), Error> {
        let pair = self.pair(handle)?;
        let (id, service, device, port) = (pair.id, pair.service, pair.device, pair.port);
        let request = match service {
            // Nobody would answer.
            Service::Smi => return Err(Error::Invalid),
            Service::Rc => None,
            Service::Gsi | Service::Ud => Some(SendRequest {
                wr_id: send.wr_id,
                ah: *self.addresses.find(Handle(send.address_handle)).ok_or(Error::Invalid)?,
                remote_qpn: Qpn::new(send.remote_qpn).ok_or(Error::Invalid)?,
                qkey: Qkey(send.qkey),
                pkey_index: PkeyIndex(send.pkey_index),
            }),
        };
        if let Some(queue) = pair.reaped_queue() {
            self.pull(queue);
        }
        let length = memory::total(segments);
        let mut packet = match length {
            0 => Packet::empty(),
            _ => self.fabric.allocate(length).ok_or(Error::NoMemory)?,
        };
        memory::gather(segments, packet.bytes_mut());
        if self.refuses_requests && service == Service::Gsi && is_request(packet.bytes()) {
            self.fabric.pool_mut().free(packet);
            return Err(Error::NoMemory);
        }
        if service == Service::Ud && send.wants_checksums != 0 {
            self.makes_checksums = true;
            checksum::fill(packet.bytes_mut());
        }
        if service == Service::Ud && self.hides_rc(device, port) {
            hide_rc(packet.bytes_mut());
        }
        // Before the post: in ERR a send completes within it.
        let pair = self.pairs.find_mut(handle).ok_or(Error::Invalid);
        if !pair.is_ok_and(|pair| pair.begin_send(send.is_signalled != 0)) {
            self.fabric.pool_mut().free(packet);
            return Err(Error::NoMemory);
        }
        let posted = match request {
            Some(request) => self.fabric.post_send(id, request, packet),
            None => self.fabric.post_message(id, send.wr_id, packet),
        };
        if let Err(refused) = posted {
            if let Some(pair) = self.pairs.find_mut(handle) {
                pair.take_back_send();
            }
            self.fabric.pool_mut().free(refused.packet);
            return Err(refused.error.into());
        }
        self.schedule();
        Ok(())
    }

    /// Posts a receive.
    pub fn post_receive(
        &mut self,
        handle: Handle,
        wr_id: u64,
        segments: &[Segment],
    ) -> Result<(), Error> {
        let pair = self.pairs.find_mut(handle).ok_or(Error::Invalid)?;
        if pair.shared.is_some() {
            return Err(Error::Invalid);
        }
        let id = pair.id;
        let fabric = &mut self.fabric;
        post(&mut pair.receives, wr_id, segments, |request| fabric.post_receive(id, request))?;
        // There it completes at once.
        if self.fabric.qp_state(id) == Some(QpState::Error) {
            self.schedule();
        }
        Ok(())
    }

    /// Posts a receive to a shared receive queue.
    pub fn post_shared(
        &mut self,
        handle: Handle,
        wr_id: u64,
        segments: &[Segment],
    ) -> Result<(), Error> {
        let shared = self.shared.find_mut(handle).ok_or(Error::Invalid)?;
        let id = shared.id;
        let fabric = &mut self.fabric;
        post(&mut shared.receives, wr_id, segments, |request| fabric.post_srq_receive(id, request))
    }
}

/// Posts a receive under its number.
fn post(
    receives: &mut Receives,
    wr_id: u64,
    segments: &[Segment],
    post: impl FnOnce(ReceiveRequest) -> Result<(), PostError>,
) -> Result<(), Error> {
    let number = receives.insert(wr_id, segments)?;
    let bytes = u32::try_from(memory::total(segments)).unwrap_or(u32::MAX);
    post(ReceiveRequest { wr_id: number, bytes }).map_err(|error| {
        receives.complete(number, &[]);
        error.into()
    })
}
