//! Executing actions: verbs at once, questions to the SA as datagrams.

use ipoib_rs::action::{Action, AddressVector, HandleId, OpId, QueuePairChange, VerbError};
use ipoib_rs::time::Instant;

use super::outputs::{HostEvent, PendingAction};
use super::{Answer, Fabric, InterfaceId, Node, Query, SaError};
use crate::mad::MAD_BYTES;
use crate::qp::QpChange;
use crate::sa::TableFull;

impl Node {
    /// Executes an action and feeds its result back, unless that is the SA's to give.
    pub fn execute(&mut self, now: Instant, fabric: &mut Fabric, pending: PendingAction) {
        let PendingAction { interface, action } = pending;
        match action {
            Action::AttachGroup { op, mgid, mlid } => {
                let result = self.qp(interface).and_then(|qp| {
                    let attached = fabric.attach_multicast(qp, mgid, mlid);
                    attached.map_err(|_| VerbError)
                });
                self.feed_result(now, fabric, interface, op, result);
            }
            Action::DetachGroup { op, mgid, mlid } => {
                let result = self.qp(interface).and_then(|qp| {
                    let detached = fabric.detach_multicast(qp, mgid, mlid);
                    detached.map_err(|_| VerbError)
                });
                self.feed_result(now, fabric, interface, op, result);
            }
            Action::CreateAddressHandle { op, handle, address } => {
                let result = self.create_handle(fabric, interface, handle, &address);
                self.feed_result(now, fabric, interface, op, result);
            }
            Action::DestroyAddressHandle { op, handle } => {
                let result = self.destroy_handle(fabric, interface, handle);
                self.feed_result(now, fabric, interface, op, result);
            }
            Action::ModifyQueuePair { op, change } => {
                let result = self.modify_queue_pair(fabric, interface, change);
                self.feed_result(now, fabric, interface, op, result);
            }
            Action::QueryPath { op, query } => {
                let tag = Query { interface, op };
                let request = self.sa.request_path(now, tag, &query);
                self.ask(now, fabric, pending, tag, request);
            }
            Action::JoinGroup { op, request } => {
                let tag = Query { interface, op };
                let request = self.sa.request_join(now, tag, &request);
                self.ask(now, fabric, pending, tag, request);
            }
            Action::LeaveGroup { op, mgid, port_gid, membership } => {
                let tag = Query { interface, op };
                let request = self.sa.request_leave(now, tag, mgid, port_gid, membership);
                self.ask(now, fabric, pending, tag, request);
            }
            Action::QuerySaCapabilities { op } => {
                let tag = Query { interface, op };
                let request = self.sa.request_capabilities(now, tag);
                self.ask(now, fabric, pending, tag, request);
            }
            Action::CancelQuery { op } => self.sa.cancel(Query { interface, op }),
            Action::WakeSendQueue => {
                self.outputs.push_event(interface, HostEvent::SendQueueWoken);
            }
        }
    }

    /// Does not execute an action and feeds back that it failed: the adapter refused, or the
    /// question could not be sent. What cannot fail is executed.
    pub fn fail(&mut self, now: Instant, fabric: &mut Fabric, pending: PendingAction) {
        let PendingAction { interface, action } = pending;
        let error = SaError::Unusable;
        let (op, answer) = match action {
            Action::AttachGroup { op, .. }
            | Action::DetachGroup { op, .. }
            | Action::CreateAddressHandle { op, .. }
            | Action::DestroyAddressHandle { op, .. }
            | Action::ModifyQueuePair { op, .. } => {
                return self.feed_result(now, fabric, interface, op, Err(VerbError));
            }
            Action::QueryPath { op, .. } => (op, Answer::Path(Err(error))),
            Action::JoinGroup { op, .. } => (op, Answer::Join(Err(error))),
            Action::LeaveGroup { op, .. } => (op, Answer::Leave(Err(error))),
            Action::QuerySaCapabilities { op } => (op, Answer::Capabilities(Err(error))),
            Action::CancelQuery { .. } | Action::WakeSendQueue => {
                return self.execute(now, fabric, pending);
            }
        };
        self.feed_answer(now, fabric, Query { interface, op }, answer);
    }

    /// Sends a request to the subnet manager.
    fn ask(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        pending: PendingAction,
        tag: Query,
        request: Result<[u8; MAD_BYTES], TableFull>,
    ) {
        let sm = fabric.query_port(self.port).and_then(|port| port.sm);
        let is_sent = match (request, sm) {
            (Ok(mad), Some(sm)) => {
                let to = self.gsi.address(fabric, sm.lid, sm.sl);
                self.gsi.send(fabric, &to, &mad).is_ok()
            }
            (Err(TableFull), _) | (Ok(_), None) => false,
        };
        if !is_sent {
            self.sa.cancel(tag);
            self.fail(now, fabric, pending);
        }
    }

    fn feed_result(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        interface: InterfaceId,
        op: OpId,
        result: Result<(), VerbError>,
    ) {
        self.pump(fabric, interface, |interface, path| {
            interface.handle_verb_result(now, op, result, path);
        });
    }

    fn qp(&self, interface: InterfaceId) -> Result<crate::qp::QpId, VerbError> {
        self.slot(interface).map(|slot| slot.wiring.qp).ok_or(VerbError)
    }

    fn create_handle(
        &mut self,
        fabric: &mut Fabric,
        interface: InterfaceId,
        handle: HandleId,
        address: &AddressVector,
    ) -> Result<(), VerbError> {
        let port = self.port;
        let slot = self.slot_mut(interface).ok_or(VerbError)?;
        let place = slot.wiring.handles.get_mut(handle.index());
        let place = place.filter(|place| place.is_none()).ok_or(VerbError)?;
        let ah = fabric.create_ah(port, address).map_err(|_| VerbError)?;
        *place = Some(ah);
        Ok(())
    }

    fn destroy_handle(
        &mut self,
        fabric: &mut Fabric,
        interface: InterfaceId,
        handle: HandleId,
    ) -> Result<(), VerbError> {
        let slot = self.slot_mut(interface).ok_or(VerbError)?;
        let place = slot.wiring.handles.get_mut(handle.index());
        let ah = place.and_then(Option::take).ok_or(VerbError)?;
        fabric.destroy_ah(ah).map_err(|_| VerbError)
    }

    fn modify_queue_pair(
        &mut self,
        fabric: &mut Fabric,
        interface: InterfaceId,
        change: QueuePairChange,
    ) -> Result<(), VerbError> {
        let qp = self.qp(interface)?;
        let mut modify = |change| fabric.modify_qp(qp, &change).map_err(|_| VerbError);
        match change {
            QueuePairChange::Error => modify(QpChange::Error),
            QueuePairChange::Reset => modify(QpChange::Reset),
            QueuePairChange::SetQkey { qkey } => modify(QpChange::SetQkey(qkey)),
            QueuePairChange::ReadyToSend { pkey_index, qkey } => {
                modify(QpChange::Init { pkey_index, qkey })?;
                modify(QpChange::ReadyToReceive)?;
                modify(QpChange::ReadyToSend)
            }
        }
    }
}
