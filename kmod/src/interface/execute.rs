//! Actions of the core, one call each, in the control thread.

use ipoib_rs::action::{
    Action, AddressVector, HandleId, OpId, QueuePairChange, SaError, VerbError,
};
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::time;
use kpi::verbs::AddressHandle;

use super::Interface;

impl Interface {
    /// Executes an action. Its result is fed back, now or by an answer that comes later.
    pub(super) fn execute(&self, action: Action, may_sleep: &mut MaySleep) {
        let pair = &self.hardware.queue_pair;
        match action {
            Action::AttachGroup { op, mgid, mlid } => {
                let result = pair.attach(mgid, mlid, may_sleep);
                self.feed_result(op, result, may_sleep);
            }
            Action::DetachGroup { op, mgid, mlid } => {
                let result = pair.detach(mgid, mlid, may_sleep);
                self.feed_result(op, result, may_sleep);
            }
            Action::CreateAddressHandle { op, handle, address } => {
                self.create_handle(op, handle, &address, may_sleep);
            }
            Action::DestroyAddressHandle { op, handle } => {
                let taken =
                    self.core.with(may_sleep, |locked, _| locked.queues.take_handle(handle));
                drop(taken);
                self.feed_result(op, Ok(()), may_sleep);
            }
            Action::ModifyQueuePair { op, change } => self.modify(op, change, may_sleep),
            Action::QueryPath { op, query } => {
                let asked = self.hardware.administrator.query_path(op, &query, may_sleep);
                self.unless_asked(asked, may_sleep, |core, path, error| {
                    core.handle_path_answer(time::now(), op, Err(error), path);
                });
            }
            Action::JoinGroup { op, request } => {
                let asked = self.hardware.administrator.join(op, &request, may_sleep);
                self.unless_asked(asked, may_sleep, |core, path, error| {
                    core.handle_join_answer(time::now(), op, Err(error), path);
                });
            }
            Action::LeaveGroup { op, mgid, .. } => {
                // The stack counts the members of a port, and tells the SA of the last one.
                self.hardware.administrator.leave(mgid, may_sleep);
                let now = time::now();
                self.feed(may_sleep, |core, path| core.handle_leave_answer(now, op, Ok(()), path));
            }
            Action::QuerySaCapabilities { op } => {
                let asked = self.hardware.administrator.query_capabilities(op, may_sleep);
                self.unless_asked(asked, may_sleep, |core, _, error| {
                    core.handle_sa_capabilities(op, Err(error));
                });
            }
            Action::CancelQuery { op } => self.hardware.administrator.cancel(op, may_sleep),
            Action::Listen { op, service } => {
                let result = self.hardware.manager.listen(service, may_sleep);
                self.feed_result(op, result, may_sleep);
            }
            Action::Unlisten { op } => self.begin_unlisten(op, may_sleep),
            action @ (Action::OpenConnection { .. }
            | Action::AcceptConnection { .. }
            | Action::ErrConnection { .. }
            | Action::PostDrainMarker { .. }
            | Action::DestroyConnection { .. }) => self.execute_connected(action, may_sleep),
            Action::WakeSendQueue => self.send_waiting(may_sleep),
        }
    }

    pub(super) fn feed_result(
        &self,
        op: OpId,
        result: Result<(), Errno>,
        may_sleep: &mut MaySleep,
    ) {
        let result = result.map_err(|_| VerbError);
        let now = time::now();
        self.feed(may_sleep, |core, path| core.handle_verb_result(now, op, result, path));
    }

    /// A question that was not asked has no answer but this one.
    fn unless_asked(
        &self,
        asked: Result<(), SaError>,
        may_sleep: &mut MaySleep,
        answer: impl FnOnce(
            &mut ipoib_rs::interface::Interface<kpi::mbuf::Packet>,
            &mut super::queues::Path<'_>,
            SaError,
        ),
    ) {
        if let Err(error) = asked {
            self.feed(may_sleep, |core, path| answer(core, path, error));
        }
    }

    fn create_handle(
        &self,
        op: OpId,
        id: HandleId,
        address: &AddressVector,
        may_sleep: &mut MaySleep,
    ) {
        let hardware = &self.hardware;
        let made = AddressHandle::new(&hardware.domain, &hardware.port, address, may_sleep);
        let result = made.map(|handle| {
            self.core.with(may_sleep, |locked, _| locked.queues.put_handle(id, handle));
        });
        self.feed_result(op, result, may_sleep);
    }

    fn modify(&self, op: OpId, change: QueuePairChange, may_sleep: &mut MaySleep) {
        let pair = &self.hardware.queue_pair;
        let result = match change {
            QueuePairChange::Error => pair.fail(may_sleep),
            QueuePairChange::ReadyToSend { pkey_index, qkey } => {
                pair.ready_to_send(pkey_index, qkey, may_sleep)
            }
            QueuePairChange::SetQkey { qkey } => pair.set_qkey(qkey, may_sleep),
            QueuePairChange::Reset => pair.reset(may_sleep).map(|quiet| {
                self.core.with(may_sleep, |locked, _| locked.queues.reclaim_datagrams(&quiet));
            }),
        };
        self.feed_result(op, result, may_sleep);
    }
}
