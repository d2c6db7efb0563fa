//! Actions that are about connections.

use alloc::sync::Arc;

use ipoib_rs::action::{
    Action, ConnectError, ConnectRequest, ConnectionId, ConnectionParameters, OpId, RequestId,
};
use ipoib_rs::ib::Psn;
use kpi::cm::Connection;
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::owned::try_arc;
use kpi::time;
use kpi::verbs::{ConnectedConfig, ConnectedQueuePair};

use crate::settings::RECEIVE_SEGMENTS_MAX;

use super::Interface;
use super::queues::{Link, MARKER, Subject};
use super::shell::Context;

impl Interface {
    #[inline(never)]
    pub(super) fn execute_connected(&self, action: Action, may_sleep: &mut MaySleep) {
        match action {
            Action::OpenConnection { op, connection, request } => {
                if self.open(op, connection, &request, may_sleep).is_err() {
                    let now = time::now();
                    self.feed(may_sleep, |core, path| {
                        let answer = Err(ConnectError::Unusable);
                        core.handle_connect_answer(now, op, answer, path);
                    });
                }
            }
            Action::AcceptConnection { op, connection, request, starting_psn, own } => {
                self.accept(op, connection, (request, starting_psn, &own), may_sleep);
            }
            Action::ErrConnection { op, connection } => {
                let found = self.connection(connection, may_sleep);
                let result = found.and_then(|found| found.queue_pair().fail(may_sleep));
                self.feed_result(op, result, may_sleep);
            }
            Action::PostDrainMarker { op, connection } => {
                self.post_marker(op, connection, may_sleep);
            }
            Action::DestroyConnection { op, connection } => {
                self.begin_close(op, connection, may_sleep);
            }
            Action::AttachGroup { .. }
            | Action::CancelQuery { .. }
            | Action::CreateAddressHandle { .. }
            | Action::DestroyAddressHandle { .. }
            | Action::DetachGroup { .. }
            | Action::JoinGroup { .. }
            | Action::Listen { .. }
            | Action::LeaveGroup { .. }
            | Action::ModifyQueuePair { .. }
            | Action::QueryPath { .. }
            | Action::QuerySaCapabilities { .. }
            | Action::Unlisten { .. }
            | Action::WakeSendQueue => {}
        }
    }

    /// A connection is over: the peer ended it, or its queue pair failed.
    pub(super) fn lose_connection(&self, connection: ConnectionId, context: &mut impl Context) {
        let now = time::now();
        self.feed(context, |core, path| core.handle_connection_lost(now, connection, path));
    }

    /// Sends a REQ. Its answer comes later.
    fn open(
        &self,
        op: OpId,
        id: ConnectionId,
        request: &ConnectRequest,
        may_sleep: &mut MaySleep,
    ) -> Result<(), Errno> {
        let pair = self.make_pair(id, Direction::Outgoing, may_sleep)?;
        let connection = Connection::open(&self.hardware.manager, pair, may_sleep)?;
        let connection = self.keep(id, connection, may_sleep)?;
        connection.request(op, request, may_sleep)
    }

    fn accept(
        &self,
        op: OpId,
        id: ConnectionId,
        (request, psn, own): (RequestId, Psn, &ConnectionParameters),
        may_sleep: &mut MaySleep,
    ) {
        match self.prepare(id, request, psn, may_sleep) {
            Ok(connection) => {
                // Receives are posted with the result: before the peer hears that it may send.
                self.feed_result(op, Ok(()), may_sleep);
                if connection.reply(psn, own, may_sleep).is_err() {
                    self.lose_connection(id, may_sleep);
                }
            }
            // What there is stays at its place until that is given up.
            Err(error) => self.feed_result(op, Err(error), may_sleep),
        }
    }

    fn prepare(
        &self,
        id: ConnectionId,
        request: RequestId,
        psn: Psn,
        may_sleep: &mut MaySleep,
    ) -> Result<Arc<Connection>, Errno> {
        self.put(id, Subject::Request(request), may_sleep);
        let pair = self.make_pair(id, Direction::Incoming, may_sleep)?;
        let connection = Connection::accept(&self.hardware.manager, pair, request)?;
        let connection = self.keep(id, connection, may_sleep)?;
        connection.prepare(psn, may_sleep).map(|()| connection)
    }

    fn make_pair(
        &self,
        connection: ConnectionId,
        direction: Direction,
        may_sleep: &mut MaySleep,
    ) -> Result<ConnectedQueuePair, Errno> {
        let hardware = &self.hardware;
        let limits = &hardware.limits;
        let config = match direction {
            Direction::Outgoing => ConnectedConfig {
                domain: &hardware.domain,
                port: &hardware.port,
                send_queue: &hardware.send_queue,
                receive_queue: &hardware.receive_queue,
                shared_receives: hardware.shared.as_ref(),
                sends_max: limits.send_queue_len,
                receives_max: 1,
                send_segments_max: hardware.segments_max,
                receive_segments_max: 1,
                connection,
            },
            Direction::Incoming => ConnectedConfig {
                domain: &hardware.domain,
                port: &hardware.port,
                // The drain marker is to complete behind all receives.
                send_queue: &hardware.receive_queue,
                receive_queue: &hardware.receive_queue,
                shared_receives: hardware.shared.as_ref(),
                sends_max: 1,
                receives_max: limits.connection_receive_queue_len,
                send_segments_max: 1,
                receive_segments_max: hardware.segments_max.min(RECEIVE_SEGMENTS_MAX),
                connection,
            },
        };
        ConnectedQueuePair::new(&config, self.hub.clone(), may_sleep)
    }

    /// Puts a connection where the data path finds it.
    fn keep(
        &self,
        id: ConnectionId,
        connection: Connection,
        may_sleep: &mut MaySleep,
    ) -> Result<Arc<Connection>, Errno> {
        let connection = try_arc(connection)?;
        self.put(id, Subject::Connection(Arc::clone(&connection)), may_sleep);
        Ok(connection)
    }

    fn put(&self, id: ConnectionId, subject: Subject, may_sleep: &mut MaySleep) {
        self.core.with(may_sleep, |locked, _| locked.queues.put_link(Link::new(id, subject)));
    }

    fn connection(
        &self,
        id: ConnectionId,
        may_sleep: &mut MaySleep,
    ) -> Result<Arc<Connection>, Errno> {
        let found = self.core.with(may_sleep, |locked, _| locked.queues.connection(id).cloned());
        found.ok_or(Errno::EINVAL)
    }

    /// The result follows with the completion of the marker.
    fn post_marker(&self, op: OpId, id: ConnectionId, may_sleep: &mut MaySleep) {
        self.core.with(may_sleep, |locked, _| locked.queues.begin_drain(id, op));
        let found = self.connection(id, may_sleep);
        // CAST: a place in a table.
        let marker = MARKER | id.index() as u64;
        let posted = found.and_then(|found| found.queue_pair().post_marker(marker));
        if posted.is_err() {
            self.core.with(may_sleep, |locked, _| locked.queues.cancel_drain(id));
            self.feed_result(op, posted, may_sleep);
        }
    }
}

/// Which way the packets of a connection go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Direction {
    Outgoing,
    Incoming,
}
