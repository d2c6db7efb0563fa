//! Verbs: making, changing and destroying objects, posting work (IBA 11.2 to 11.4).

use ipoib_rs::action::AddressVector;
use ipoib_rs::ib::{Mgid, Mlid, Qkey, Qpn};

use super::{CreateError, Fabric};
use crate::address::{Ah, AhId};
use crate::connection::{Connection, MESSAGES_MAX, Requester, Responder};
use crate::cq::{Completion, Cq, CqId, Outcome, WorkError};
use crate::hca::{Hca, HcaId};
use crate::outlet::AsyncEvent;
use crate::packet::Packet;
use crate::port::{Attachment, PortId};
use crate::qp::{
    Qp, QpChange, QpConfig, QpId, QpState, QpType, RcReadyToReceive, ReceiveRequest, Send,
    SendRequest,
};
use ipoib_rs::ib::Psn;

/// A queue pair did not change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ModifyError {
    /// The transition is not legal from its state (IBA 10.3.1).
    IllegalTransition,
    /// The address is not that of one port, or the path MTU is above the port's MTU.
    InvalidAttribute,
    /// No such place in the P_Key table.
    InvalidPkeyIndex,
    /// No such queue pair.
    Unknown,
}

/// An object was not destroyed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DestroyError {
    /// Others use it.
    Busy,
    /// No such object.
    Unknown,
}

/// Work was not posted (IBA 11.4.1, immediate errors).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PostError {
    /// Receives of this queue pair are posted to its shared receive queue.
    HasSharedQueue,
    /// As many are posted as may be.
    QueueFull,
    /// No such address handle.
    UnknownHandle,
    /// No such queue pair or shared receive queue.
    UnknownQp,
    /// A datagram for a connected queue pair, or a message for another one.
    WrongService,
    /// The queue pair's state allows no such work.
    WrongState,
}

/// A send that was not posted, and its packet.
#[derive(Debug)]
pub struct RefusedSend {
    /// Why.
    pub error: PostError,
    /// The packet, unchanged.
    pub packet: Packet,
}

/// A queue pair was not attached to a group or detached from it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttachError {
    /// The queue pair is not attached.
    NotAttached,
    /// No memory.
    OutOfMemory,
    /// No such queue pair, or not one for datagrams.
    Unknown,
}

impl Fabric {
    /// Makes a completion queue for `len_max` entries, 1 or more. `context` comes back with
    /// notifications.
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    pub fn create_cq(
        &mut self,
        hca: HcaId,
        len_max: u32,
        context: u64,
    ) -> Result<CqId, CreateError> {
        if len_max == 0 {
            return Err(CreateError::Invalid);
        }
        let cq_count: usize = self.hcas.iter().map(|hca| hca.cqs.len()).sum();
        // A queue is in the list of notifications once at most.
        let notifications = &mut self.outlet.notifications;
        notifications
            .try_reserve(cq_count + 1 - notifications.len().min(cq_count))
            .map_err(|_| CreateError::OutOfMemory)?;
        let table = &mut self.hca_mut(hca).ok_or(CreateError::Unknown)?.cqs;
        let cq = Cq::new(len_max, context).map_err(|_| CreateError::OutOfMemory)?;
        let key = table.insert(|_| cq)?;
        Ok(CqId { hca, key })
    }

    /// Destroys a completion queue; completions that were not polled are gone.
    ///
    /// # Errors
    ///
    /// [`DestroyError::Busy`] while queue pairs complete there.
    pub fn destroy_cq(&mut self, id: CqId) -> Result<(), DestroyError> {
        let hca = self.hca_mut(id.hca).ok_or(DestroyError::Unknown)?;
        let cq = hca.cqs.get(id.key).ok_or(DestroyError::Unknown)?;
        if cq.user_count > 0 {
            return Err(DestroyError::Busy);
        }
        let mut cq = hca.cqs.remove(id.key).ok_or(DestroyError::Unknown)?;
        while let Some(completion) = cq.queue.pop_front() {
            self.outlet.reclaim(completion);
        }
        self.outlet.notifications.retain(|notification| notification.cq != id);
        Ok(())
    }

    /// Makes a queue pair, in RESET.
    ///
    /// # Errors
    ///
    /// [`CreateError::Unknown`] if the port, a completion queue or the shared receive queue does
    /// not exist or is another adapter's, [`CreateError::TooMany`] for a second QP1 on a port,
    /// [`CreateError::Invalid`] for more than 16384 sends on a connected queue pair.
    pub fn create_qp(&mut self, port_id: PortId, config: &QpConfig) -> Result<QpId, CreateError> {
        let port = self.ports.get_mut(port_id.index()).ok_or(CreateError::Unknown)?;
        let hca_id = port.hca;
        if config.qp_type == QpType::Gsi && port.gsi.is_some() {
            return Err(CreateError::TooMany);
        }
        let hca = self.hcas.get_mut(hca_id.0 as usize).ok_or(CreateError::Unknown)?;
        for cq in [config.send_cq, config.receive_cq] {
            if cq.hca != hca_id || hca.cqs.get(cq.key).is_none() {
                return Err(CreateError::Unknown);
            }
        }
        let srq = match config.qp_type {
            QpType::Ud | QpType::Gsi => None,
            QpType::Rc { .. } if config.sends_max > MESSAGES_MAX => {
                return Err(CreateError::Invalid);
            }
            QpType::Rc { srq } => srq,
        };
        if srq.is_some_and(|srq| srq.hca != hca_id || hca.srqs.get(srq.key).is_none()) {
            return Err(CreateError::Unknown);
        }
        let qp = Qp::new(port_id, Qpn::GSI, config).map_err(|_| CreateError::OutOfMemory)?;
        let egress_max = self.egress_max + qp.egress_max();
        self.egress
            .try_reserve(egress_max - self.egress.len())
            .map_err(|_| CreateError::OutOfMemory)?;
        let key = hca.qps.insert(|_| qp)?;
        match (config.qp_type, hca.qps.get_mut(key)) {
            (QpType::Ud | QpType::Rc { .. }, Some(qp)) => {
                // The index is below the limit of the table, so there is a number for it.
                qp.qpn = Hca::qpn(key).ok_or(CreateError::TooMany)?;
            }
            (QpType::Gsi, Some(_)) | (_, None) => {}
        }
        if let Some(srq) = srq.and_then(|srq| hca.srqs.get_mut(srq.key)) {
            srq.user_count += 1;
        }
        for cq in [config.send_cq, config.receive_cq] {
            if let Some(cq) = hca.cqs.get_mut(cq.key) {
                cq.user_count += 1;
            }
        }
        if config.qp_type == QpType::Gsi {
            port.gsi = Some(key);
        }
        self.egress_max = egress_max;
        Ok(QpId { hca: hca_id, key })
    }

    /// Destroys a queue pair: detaches it from its groups, takes its completions out of the queues
    /// and gives every posted packet back.
    ///
    /// # Errors
    ///
    /// [`DestroyError::Unknown`].
    pub fn destroy_qp(&mut self, id: QpId) -> Result<(), DestroyError> {
        self.reset_qp(id);
        let hca = self.hca_mut(id.hca).ok_or(DestroyError::Unknown)?;
        let qp = hca.qps.remove(id.key).ok_or(DestroyError::Unknown)?;
        for cq in [qp.send_cq, qp.receive_cq] {
            if let Some(cq) = hca.cqs.get_mut(cq) {
                cq.user_count -= 1;
            }
        }
        let srq = qp.connection.as_ref().and_then(|connection| connection.srq);
        if let Some(srq) = srq.and_then(|srq| hca.srqs.get_mut(srq)) {
            srq.user_count -= 1;
        }
        self.egress_max -= qp.egress_max();
        if let Some(port) = self.ports.get_mut(qp.port.index()) {
            for attachment in &mut port.attachments {
                attachment.qps.retain(|key| *key != id.key);
            }
            port.attachments.retain(|attachment| !attachment.qps.is_empty());
            if qp.qp_type == QpType::Gsi {
                port.gsi = None;
            }
        }
        Ok(())
    }

    /// Moves a queue pair (IBA 11.2.4.2).
    ///
    /// # Errors
    ///
    /// [`ModifyError`]; the queue pair is as it was.
    pub fn modify_qp(&mut self, id: QpId, change: &QpChange) -> Result<(), ModifyError> {
        let hca = self.hcas.get(id.hca.0 as usize).ok_or(ModifyError::Unknown)?;
        let qp = hca.qps.get(id.key).ok_or(ModifyError::Unknown)?;
        let state = qp.next_state(change).ok_or(ModifyError::IllegalTransition)?;
        let port_id = qp.port;
        let port = self.ports.get(port_id.index()).ok_or(ModifyError::Unknown)?;
        match change {
            QpChange::Init { pkey_index, .. } => {
                if usize::from(pkey_index.0) >= port.pkeys.len() {
                    return Err(ModifyError::InvalidPkeyIndex);
                }
            }
            QpChange::RcReadyToReceive(attributes) => {
                let ah = Ah::new(port_id, &attributes.address);
                let is_port = ah.is_some_and(|ah| ah.is_unicast());
                if !is_port || attributes.path_mtu > port.mtu {
                    return Err(ModifyError::InvalidAttribute);
                }
            }
            QpChange::Reset
            | QpChange::ReadyToReceive
            | QpChange::ReadyToSend
            | QpChange::RcReadyToSend(_)
            | QpChange::SetQkey(_)
            | QpChange::DrainSendQueue
            | QpChange::Error => {}
        }
        self.enter(id, state, change);
        Ok(())
    }

    /// Moves a queue pair in RESET to another port of its adapter: which port it is on is an
    /// attribute of the transition to INIT (IBA 11.2.4.2, table 91).
    ///
    /// # Errors
    ///
    /// [`ModifyError::IllegalTransition`] outside of RESET, [`ModifyError::InvalidAttribute`] for
    /// QP1, which belongs to its port, for a queue pair that is attached to a group, and for a port
    /// of another adapter, [`ModifyError::Unknown`].
    pub fn set_qp_port(&mut self, id: QpId, port_id: PortId) -> Result<(), ModifyError> {
        let qp = self.qp(id).ok_or(ModifyError::Unknown)?;
        if qp.state != QpState::Reset {
            return Err(ModifyError::IllegalTransition);
        }
        let old = self.ports.get(qp.port.index()).ok_or(ModifyError::Unknown)?;
        let port = self.ports.get(port_id.index()).ok_or(ModifyError::Unknown)?;
        let is_attached = old.attachments.iter().any(|group| group.qps.contains(&id.key));
        if qp.qp_type == QpType::Gsi || is_attached || port.hca != id.hca {
            return Err(ModifyError::InvalidAttribute);
        }
        if let Some(qp) = self.qp_mut(id) {
            qp.port = port_id;
        }
        Ok(())
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, id: QpId) -> Option<QpState> {
        Some(self.qp(id)?.state)
    }

    /// The number of a queue pair.
    pub fn qpn(&self, id: QpId) -> Option<Qpn> {
        Some(self.qp(id)?.qpn)
    }

    /// Makes an address handle for a port.
    ///
    /// # Errors
    ///
    /// [`CreateError::Invalid`] if the LID is 0 or the permissive LID, or if it is a multicast LID
    /// and there is no GRH for a group (IBA 10.5.2).
    pub fn create_ah(
        &mut self,
        port_id: PortId,
        address: &AddressVector,
    ) -> Result<AhId, CreateError> {
        let port = self.ports.get(port_id.index()).ok_or(CreateError::Unknown)?;
        let hca_id = port.hca;
        let ah = Ah::new(port_id, address).ok_or(CreateError::Invalid)?;
        let hca = self.hca_mut(hca_id).ok_or(CreateError::Unknown)?;
        let key = hca.ahs.insert(|_| ah)?;
        Ok(AhId { hca: hca_id, key })
    }

    /// Destroys an address handle. A send that still waits for it fails and counts as a violation.
    ///
    /// # Errors
    ///
    /// [`DestroyError::Unknown`].
    pub fn destroy_ah(&mut self, id: AhId) -> Result<(), DestroyError> {
        let hca = self.hca_mut(id.hca).ok_or(DestroyError::Unknown)?;
        hca.ahs.remove(id.key).map(|_| ()).ok_or(DestroyError::Unknown)
    }

    /// The number of queue pairs of an adapter.
    pub fn qp_count(&self, hca: HcaId) -> usize {
        self.hcas.get(hca.0 as usize).map_or(0, |hca| hca.qps.len())
    }

    /// The number of address handles of an adapter.
    pub fn ah_count(&self, hca: HcaId) -> usize {
        self.hcas.get(hca.0 as usize).map_or(0, |hca| hca.ahs.len())
    }

    /// Attaches a queue pair to a group (IBA 11.2.12.3). A second time changes nothing.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    pub fn attach_multicast(
        &mut self,
        id: QpId,
        mgid: Mgid,
        mlid: Mlid,
    ) -> Result<(), AttachError> {
        let qp = self.qp(id).filter(|qp| qp.qp_type == QpType::Ud);
        let port = qp.ok_or(AttachError::Unknown)?.port;
        let port = self.ports.get_mut(port.index()).ok_or(AttachError::Unknown)?;
        let out_of_memory = |_| AttachError::OutOfMemory;
        let group = (mlid, mgid);
        match port.find_attachment(group) {
            Ok(place) => {
                let qps = &mut port.attachments[place].qps;
                if let Err(position) = qps.binary_search(&id.key) {
                    qps.try_reserve(1).map_err(out_of_memory)?;
                    qps.insert(position, id.key);
                }
            }
            Err(place) => {
                let mut qps = alloc::vec::Vec::new();
                qps.try_reserve(1).map_err(out_of_memory)?;
                qps.push(id.key);
                port.attachments.try_reserve(1).map_err(out_of_memory)?;
                port.attachments.insert(place, Attachment { group, qps });
            }
        }
        Ok(())
    }

    /// Detaches a queue pair from a group (IBA 11.2.12.4).
    ///
    /// # Errors
    ///
    /// [`AttachError::NotAttached`], [`AttachError::Unknown`].
    pub fn detach_multicast(
        &mut self,
        id: QpId,
        mgid: Mgid,
        mlid: Mlid,
    ) -> Result<(), AttachError> {
        let port = self.qp(id).ok_or(AttachError::Unknown)?.port;
        let port = self.ports.get_mut(port.index()).ok_or(AttachError::Unknown)?;
        let not_attached = |_| AttachError::NotAttached;
        let place = port.find_attachment((mlid, mgid)).map_err(not_attached)?;
        let qps = &mut port.attachments[place].qps;
        let position = qps.binary_search(&id.key).map_err(not_attached)?;
        qps.remove(position);
        if qps.is_empty() {
            port.attachments.remove(place);
        }
        Ok(())
    }

    /// The number of groups that queue pairs of a port are attached to.
    pub fn attachment_count(&self, port: PortId) -> usize {
        self.ports.get(port.index()).map_or(0, |port| port.attachments.len())
    }

    /// Posts a datagram. The packet is the fabric's from now on: it moves to the receiver, or goes
    /// back to the pool when the send fails.
    ///
    /// # Errors
    ///
    /// [`RefusedSend`] with the packet.
    pub fn post_send(
        &mut self,
        id: QpId,
        request: SendRequest,
        packet: Packet,
    ) -> Result<(), RefusedSend> {
        let refuse = |error, packet| Err(RefusedSend { error, packet });
        let Some(hca) = self.hcas.get_mut(id.hca.0 as usize) else {
            return refuse(PostError::UnknownQp, packet);
        };
        let Some(qp) = hca.qps.get_mut(id.key) else {
            return refuse(PostError::UnknownQp, packet);
        };
        if qp.connection.is_some() {
            return refuse(PostError::WrongService, packet);
        }
        match qp.state {
            QpState::Reset | QpState::Init | QpState::ReadyToReceive => {
                return refuse(PostError::WrongState, packet);
            }
            QpState::ReadyToSend
            | QpState::SendQueueDrained
            | QpState::SendQueueError
            | QpState::Error => {}
        }
        if request.ah.hca != id.hca || hca.ahs.get(request.ah.key).is_none() {
            return refuse(PostError::UnknownHandle, packet);
        }
        if qp.sends.len() == qp.sends_max {
            return refuse(PostError::QueueFull, packet);
        }
        qp.sends.push_back(Send { request, packet });
        match qp.state {
            QpState::ReadyToSend => self.egress.push_back(id),
            // IBA 10.3.1: work posted in these states completes as flushed.
            QpState::SendQueueError | QpState::Error => hca.flush_sends(id, &mut self.outlet),
            QpState::SendQueueDrained
            | QpState::Reset
            | QpState::Init
            | QpState::ReadyToReceive => {}
        }
        Ok(())
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// [`PostError`].
    pub fn post_receive(&mut self, id: QpId, request: ReceiveRequest) -> Result<(), PostError> {
        let hca = self.hcas.get_mut(id.hca.0 as usize).ok_or(PostError::UnknownQp)?;
        let qp = hca.qps.get_mut(id.key).ok_or(PostError::UnknownQp)?;
        if qp.qp_type.has_srq() {
            return Err(PostError::HasSharedQueue);
        }
        match qp.state {
            QpState::Reset => return Err(PostError::WrongState),
            QpState::Error => {
                let completion = Completion {
                    qp: id,
                    qpn: qp.qpn,
                    wr_id: request.wr_id,
                    outcome: Outcome::ReceiveFailed(WorkError::Flushed),
                };
                let cq = qp.receive_cq;
                hca.complete(cq, completion, &mut self.outlet);
            }
            QpState::Init
            | QpState::ReadyToReceive
            | QpState::ReadyToSend
            | QpState::SendQueueDrained
            | QpState::SendQueueError => {
                if qp.receives.len() == qp.receives_max {
                    return Err(PostError::QueueFull);
                }
                qp.receives.push_back(request);
            }
        }
        Ok(())
    }

    pub(super) fn hca_mut(&mut self, id: HcaId) -> Option<&mut Hca> {
        self.hcas.get_mut(id.0 as usize)
    }

    pub(super) fn qp(&self, id: QpId) -> Option<&Qp> {
        self.hcas.get(id.hca.0 as usize)?.qps.get(id.key)
    }

    pub(super) fn qp_mut(&mut self, id: QpId) -> Option<&mut Qp> {
        self.hcas.get_mut(id.hca.0 as usize)?.qps.get_mut(id.key)
    }

    /// Enters a state and does what belongs to it.
    fn enter(&mut self, id: QpId, state: QpState, change: &QpChange) {
        let Some(qp) = self.qp_mut(id) else {
            return;
        };
        let (waiting_count, port) = (qp.sends.len(), qp.port);
        match *change {
            QpChange::Reset => self.reset_qp(id),
            QpChange::Error => self.enter_error(id),
            QpChange::Init { pkey_index, qkey } => {
                qp.state = state;
                qp.pkey_index = pkey_index;
                qp.qkey = match qp.qp_type {
                    QpType::Ud | QpType::Rc { .. } => qkey,
                    QpType::Gsi => Qkey::GSI,
                };
            }
            QpChange::SetQkey(qkey) => {
                qp.state = state;
                qp.qkey = qkey;
            }
            QpChange::ReadyToReceive => qp.state = state,
            QpChange::RcReadyToReceive(RcReadyToReceive {
                address,
                remote_qpn,
                starting_psn,
                path_mtu,
                rnr_timer,
            }) => {
                qp.state = state;
                if let Some(connection) = &mut qp.connection {
                    connection.responder = Ah::new(port, &address).map(|ah| {
                        Responder::new(ah, remote_qpn, path_mtu, rnr_timer, starting_psn)
                    });
                }
            }
            QpChange::RcReadyToSend(attributes) => {
                qp.state = state;
                if let Some(connection) = &mut qp.connection {
                    connection.requester = Some(Requester::new(&attributes));
                }
            }
            QpChange::ReadyToSend => {
                qp.state = state;
                // What was posted in SQD leaves now.
                self.egress.extend(core::iter::repeat_n(id, waiting_count));
                self.schedule(id);
            }
            QpChange::DrainSendQueue => {
                qp.state = state;
                // A connected queue pair keeps its place: what it has begun it ends (IBA 10.3.1).
                if qp.connection.is_none() {
                    self.egress.retain(|entry| *entry != id);
                }
            }
        }
    }

    /// Enters ERR: whatever is posted is flushed.
    pub(super) fn enter_error(&mut self, id: QpId) {
        let Some(hca) = self.hcas.get_mut(id.hca.0 as usize) else {
            return;
        };
        let Some(qp) = hca.qps.get_mut(id.key) else {
            return;
        };
        if qp.state == QpState::Error {
            return;
        }
        qp.state = QpState::Error;
        match &mut qp.connection {
            // A response that was owed still leaves.
            Some(connection) => connection.requester = None,
            None => self.egress.retain(|entry| *entry != id),
        }
        let has_srq = qp.qp_type.has_srq();
        hca.flush(id, &mut self.outlet);
        // IBA 11.6.3.1: what was taken from the shared queue is complete already.
        if has_srq {
            self.outlet.report(AsyncEvent::LastWqeReached(id));
        }
    }

    fn reset_qp(&mut self, id: QpId) {
        let Some(hca) = self.hcas.get_mut(id.hca.0 as usize) else {
            return;
        };
        let Some(qp) = hca.qps.get_mut(id.key) else {
            return;
        };
        qp.state = QpState::Reset;
        while let Some((_, packet)) = qp.take_send() {
            self.outlet.pool.free(packet);
        }
        qp.receives.clear();
        qp.psn = Psn::default();
        let flight = qp.connection.as_mut().and_then(Connection::reset);
        let (send_cq, receive_cq) = (qp.send_cq, qp.receive_cq);
        hca.purge_cq(send_cq, id, &mut self.outlet);
        hca.purge_cq(receive_cq, id, &mut self.outlet);
        self.egress.retain(|entry| *entry != id);
        self.land(flight);
    }
}
