//! Connections: every event finds its queue pair or nothing, and an end is told once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bench::{Bench, Log, operations};
use crate::common::may_sleep;
use fake_kernel::ofed::{Fault, Message, kpi_cm_event_type as event, kpi_qp_state};
use ipoib_rs::action::{
    ConnectError, ConnectRequest, ConnectionId, ConnectionParameters, OpId, PathRecord, RequestId,
};
use ipoib_rs::ib::{Gid, IbMtu, Lid, Pkey, Psn, Qpn, RateCode, ServiceId, ServiceLevel};
use ipoib_rs::interface::IncomingRequest;
use kpi::cm::{Connection, Handler, Manager, RejectReason};
use kpi::context::Unlocked;
use kpi::errno::Errno;
use kpi::verbs::{
    CompletionHandler, CompletionQueue, ConnectedConfig, ConnectedQueuePair, ProtectionDomain,
    QueuePairHandler,
};

const MTU_2048: u8 = 4;
const MTU_4096: u8 = 5;
const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_0007);

#[derive(Debug, PartialEq)]
enum Told {
    Requested(RequestId, ConnectionParameters),
    Answered(OpId, Result<ConnectionParameters, ConnectError>),
    Lost(ConnectionId),
}

#[derive(Default)]
struct Interface {
    log: Log<Told>,
    refuses: AtomicBool,
}

impl Handler for Interface {
    fn connect_requested(
        &self,
        request: IncomingRequest,
        pkey: Pkey,
        _unlocked: &mut Unlocked,
    ) -> Result<(), RejectReason> {
        assert_eq!(pkey, Pkey::DEFAULT);
        if self.refuses.load(Ordering::Relaxed) {
            return Err(RejectReason::NoResources);
        }
        self.log.push(Told::Requested(request.id, request.peer));
        Ok(())
    }

    fn connect_answered(
        &self,
        op: OpId,
        answer: Result<ConnectionParameters, ConnectError>,
        _unlocked: &mut Unlocked,
    ) {
        self.log.push(Told::Answered(op, answer));
    }

    fn connection_lost(&self, connection: ConnectionId, _unlocked: &mut Unlocked) {
        self.log.push(Told::Lost(connection));
    }
}

struct Nobody;

impl CompletionHandler for Nobody {
    fn completions_arrived(&self, _unlocked: &mut Unlocked) {}
}

impl QueuePairHandler for Nobody {
    fn last_wqe_reached(&self, _connection: ConnectionId, _unlocked: &mut Unlocked) {}

    fn queue_pair_failed(&self, _connection: ConnectionId, _unlocked: &mut Unlocked) {}
}

struct Fixture {
    manager: Manager,
    interface: Arc<Interface>,
    domain: ProtectionDomain,
    completions: CompletionQueue,
    bench: Bench,
}

impl Fixture {
    fn start() -> Self {
        let bench = Bench::start();
        let may_sleep = may_sleep();
        let interface = Arc::new(Interface::default());
        let handler = Arc::clone(&interface) as Arc<dyn Handler>;
        let manager = Manager::new(&bench.port, handler).unwrap();
        let domain = ProtectionDomain::new(bench.port.device(), &may_sleep).unwrap();
        let nobody: Arc<dyn CompletionHandler> = Arc::new(Nobody);
        let device = bench.port.device();
        let completions = CompletionQueue::new(device, 64, nobody, &may_sleep).unwrap();
        Self { manager, interface, domain, completions, bench }
    }

    fn stop(self) {
        let Self { manager, interface: _, domain, completions, bench } = self;
        drop((manager, domain, completions));
        bench.stop();
    }

    fn queue_pair(&self, index: u32) -> ConnectedQueuePair {
        let config = ConnectedConfig {
            domain: &self.domain,
            port: &self.bench.port,
            send_queue: &self.completions,
            receive_queue: &self.completions,
            shared_receives: None,
            sends_max: 8,
            receives_max: 8,
            send_segments_max: 4,
            receive_segments_max: 16,
            connection: ConnectionId::from_index(index),
        };
        let nobody: Arc<dyn QueuePairHandler> = Arc::new(Nobody);
        ConnectedQueuePair::new(&config, nobody, &may_sleep()).unwrap()
    }

    /// A connection that was asked for; its id is the first.
    fn requesting(&self, op: OpId) -> Connection {
        let may_sleep = may_sleep();
        let pair = self.queue_pair(3);
        let connection = Connection::open(&self.manager, pair, &may_sleep).unwrap();
        connection.request(op, &request(), &may_sleep).unwrap();
        assert_eq!(self.bench.stack.last_message(0), Message::Request);
        connection
    }

    /// A REQ that arrived and is wanted; its id is the second, after that of the listener.
    fn requested(&self) -> (RequestId, u32) {
        self.manager.listen(SERVICE, &may_sleep()).unwrap();
        let number = self.bench.stack.request(SERVICE.0, MTU_2048).expect("it is kept");
        match self.interface.log.take().as_slice() {
            [Told::Requested(request, _)] => (*request, number),
            told => panic!("{told:?}"),
        }
    }
}

fn own() -> ConnectionParameters {
    ConnectionParameters { qpn: Qpn::new(7).unwrap(), receive_mtu: 65524 }
}

/// What the fake peer says in a REP.
fn peer() -> ConnectionParameters {
    ConnectionParameters { qpn: Qpn::new(0x56).unwrap(), receive_mtu: 65524 }
}

fn request() -> ConnectRequest {
    ConnectRequest {
        path: PathRecord {
            destination: Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x77),
            lid: Lid::new(9).unwrap(),
            sl: ServiceLevel::default(),
            mtu: IbMtu::Mtu4096,
            rate: RateCode::new(3).unwrap(),
            global: None,
        },
        pkey: Pkey::DEFAULT,
        service: SERVICE,
        starting_psn: Psn::default(),
        own: own(),
    }
}

#[test]
fn a_connection_that_the_peer_accepts_is_ready_when_it_is_told() {
    let fixture = Fixture::start();
    let [op] = operations();
    let connection = fixture.requesting(op);
    let stack = &fixture.bench.stack;
    stack.connection_event(0, event::KPI_CM_REPLIED, 0);
    assert_eq!(fixture.interface.log.take(), [Told::Answered(op, Ok(peer()))]);
    assert_eq!(stack.last_message(0), Message::ReadyToUse);
    let state = stack.queue_pair_state(connection.queue_pair().qpn().value());
    assert_eq!(state, kpi_qp_state::KPI_QPS_RTS);
    // The peer ends it: told once, whatever follows.
    stack.connection_event(0, event::KPI_CM_DISCONNECT_REQUESTED, 0);
    assert_eq!(stack.last_message(0), Message::DisconnectReply);
    stack.connection_event(0, event::KPI_CM_TIMEWAIT_EXITED, 0);
    assert_eq!(fixture.interface.log.take(), [Told::Lost(ConnectionId::from_index(3))]);
    assert!(connection.close(&may_sleep()).is_ok());
    assert!(!stack.id_exists(0));
    fixture.stop();
}

#[test]
fn a_request_ends_with_one_answer() {
    let ends = [
        (event::KPI_CM_REJECTED, ConnectError::Rejected(28)),
        (event::KPI_CM_TIMED_OUT, ConnectError::TimedOut),
        (event::KPI_CM_UNSENT, ConnectError::Unusable),
    ];
    for (kind, error) in ends {
        let fixture = Fixture::start();
        let [op] = operations();
        let connection = fixture.requesting(op);
        let stack = &fixture.bench.stack;
        stack.connection_event(0, kind, 28);
        stack.connection_event(0, event::KPI_CM_REPLIED, 0);
        stack.connection_event(0, event::KPI_CM_TIMEWAIT_EXITED, 0);
        assert_eq!(fixture.interface.log.take(), [Told::Answered(op, Err(error))]);
        drop(connection);
        fixture.stop();
    }
}

#[test]
fn a_request_that_cannot_be_sent_has_no_answer() {
    let fixture = Fixture::start();
    let [op] = operations();
    let stack = &fixture.bench.stack;
    let may_sleep = may_sleep();
    let pair = fixture.queue_pair(3);
    let connection = Connection::open(&fixture.manager, pair, &may_sleep).unwrap();
    stack.fail_next(Fault::Send);
    assert_eq!(connection.request(op, &request(), &may_sleep), Err(Errno::EINVAL));
    stack.connection_event(0, event::KPI_CM_TIMED_OUT, 0);
    assert_eq!(fixture.interface.log.take(), []);
    drop(connection);
    fixture.stop();
}

#[test]
fn a_reply_that_cannot_be_acknowledged_is_rejected() {
    let fixture = Fixture::start();
    let [op] = operations();
    let connection = fixture.requesting(op);
    let stack = &fixture.bench.stack;
    stack.fail_next(Fault::Send);
    stack.connection_event(0, event::KPI_CM_REPLIED, 0);
    assert_eq!(stack.last_message(0), Message::Reject);
    let unusable = Err(ConnectError::Unusable);
    assert_eq!(fixture.interface.log.take(), [Told::Answered(op, unusable)]);
    drop(connection);
    fixture.stop();
}

#[test]
fn what_cannot_be_opened_leaves_nothing() {
    let fixture = Fixture::start();
    let stack = &fixture.bench.stack;
    let before = stack.objects();
    let pair = fixture.queue_pair(3);
    stack.fail_next(Fault::Create);
    assert!(Connection::open(&fixture.manager, pair, &may_sleep()).is_err());
    stack.fail_next(Fault::Create);
    assert!(fixture.manager.listen(SERVICE, &may_sleep()).is_err());
    assert_eq!(stack.objects(), before);
    fixture.stop();
}

#[test]
fn an_accepted_request_is_ready_before_the_reply() {
    let fixture = Fixture::start();
    let (request, number) = fixture.requested();
    let stack = &fixture.bench.stack;
    let may_sleep = may_sleep();
    let pair = fixture.queue_pair(4);
    let qpn = pair.qpn();
    let psn = Psn::new(77).unwrap();
    let connection = Connection::accept(&fixture.manager, pair, request).unwrap();
    connection.prepare(psn, &may_sleep).unwrap();
    assert_eq!(stack.queue_pair_state(qpn.value()), kpi_qp_state::KPI_QPS_RTS);
    assert_eq!(stack.last_message(number), Message::None);
    connection.reply(psn, &own(), &may_sleep).unwrap();
    assert_eq!(stack.last_message(number), Message::Reply);
    stack.connection_event(number, event::KPI_CM_ESTABLISHED, 0);
    assert_eq!(fixture.interface.log.take(), []);
    stack.connection_event(number, event::KPI_CM_REJECTED, 10);
    assert_eq!(fixture.interface.log.take(), [Told::Lost(ConnectionId::from_index(4))]);
    assert!(connection.close(&may_sleep).is_ok());
    assert!(!stack.id_exists(number));
    fixture.stop();
}

#[test]
fn a_request_is_taken_once() {
    let fixture = Fixture::start();
    let (request, number) = fixture.requested();
    let may_sleep = may_sleep();
    let first = fixture.queue_pair(4);
    let connection = Connection::accept(&fixture.manager, first, request).unwrap();
    let second = fixture.queue_pair(5);
    let again = Connection::accept(&fixture.manager, second, request);
    assert_eq!(again.map(|_| ()), Err(Errno::EINVAL));
    fixture.manager.refuse(request, RejectReason::NoResources, &may_sleep);
    assert!(fixture.bench.stack.id_exists(number));
    drop(connection);
    fixture.stop();
}

#[test]
fn refused_requests_are_rejected_with_the_reason() {
    let fixture = Fixture::start();
    let (request, number) = fixture.requested();
    let stack = &fixture.bench.stack;
    fixture.manager.refuse(request, RejectReason::ConsumerReject, &may_sleep());
    assert!(!stack.id_exists(number));
    // A message that is cut at another size than ours would be lost.
    assert_eq!(stack.request(SERVICE.0, MTU_4096), None);
    fixture.interface.refuses.store(true, Ordering::Relaxed);
    assert_eq!(stack.request(SERVICE.0, MTU_2048), None);
    assert_eq!(stack.request(1, MTU_2048), None);
    assert_eq!(fixture.interface.log.take(), []);
    fixture.stop();
}

#[test]
fn unlistening_refuses_what_was_not_accepted() {
    let fixture = Fixture::start();
    let (request, number) = fixture.requested();
    let stack = &fixture.bench.stack;
    let may_sleep = may_sleep();
    fixture.manager.unlisten(&may_sleep);
    assert!(!stack.id_exists(0) && !stack.id_exists(number));
    let pair = fixture.queue_pair(4);
    let late = Connection::accept(&fixture.manager, pair, request);
    assert!(late.is_err());
    // The service is free again.
    fixture.manager.listen(SERVICE, &may_sleep).unwrap();
    fixture.stop();
}

#[test]
fn requests_that_nobody_accepts_do_not_pile_up() {
    let fixture = Fixture::start();
    let (_request, oldest) = fixture.requested();
    let stack = &fixture.bench.stack;
    let before = stack.objects();
    for _ in 0..70 {
        assert!(stack.request(SERVICE.0, MTU_2048).is_some());
    }
    assert!(!stack.id_exists(oldest));
    assert_eq!(stack.objects() - before, 63);
    fixture.stop();
}

#[test]
fn nothing_is_told_of_a_connection_that_was_closed() {
    let fixture = Fixture::start();
    let [op] = operations();
    let connection = fixture.requesting(op);
    let may_sleep = may_sleep();
    assert!(connection.close(&may_sleep).is_ok());
    assert!(!fixture.bench.stack.id_exists(0));
    assert_eq!(fixture.interface.log.take(), []);
    fixture.stop();
}
