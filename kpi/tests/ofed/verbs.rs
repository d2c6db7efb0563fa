//! Queues and packets: everything goes once and in order, whatever the owner does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::bench::{Bench, Log};
use crate::common::{may_sleep, packet};
use fake_kernel::ofed::{Fault, kpi_port_event, kpi_qp_event, kpi_qp_state, kpi_status};
use fake_kernel::{dma, memory};
use ipoib_rs::action::{AddressVector, ConnectionId};
use ipoib_rs::ib::{Gid, Mgid, Mlid, PkeyIndex, Qkey, Qpn, RateCode, ServiceLevel};
use ipoib_rs::interface::PortEvent;
use ipoib_rs::packet::{CompletionStatus, PacketBuf};
use kpi::client::PortWatcher;
use kpi::context::Unlocked;
use kpi::dma::{ReceiveSlot, SendSlot};
use kpi::errno::Errno;
use kpi::mbuf::Packet;
use kpi::verbs::{
    AddressHandle, Armed, Batch, CompletionHandler, CompletionQueue, ConnectedConfig,
    ConnectedQueuePair, Datagram, DatagramConfig, DatagramQueuePair, ProtectionDomain,
    QueuePairHandler, SharedReceiveQueue,
};

#[derive(Debug, Default)]
struct Calls(AtomicU32);

impl CompletionHandler for Calls {
    fn completions_arrived(&self, _unlocked: &mut Unlocked) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug, PartialEq)]
enum Told {
    LastWqe(ConnectionId),
    Failed(ConnectionId),
    Port(PortEvent),
}

impl QueuePairHandler for Log<Told> {
    fn last_wqe_reached(&self, connection: ConnectionId, _unlocked: &mut Unlocked) {
        self.push(Told::LastWqe(connection));
    }

    fn queue_pair_failed(&self, connection: ConnectionId, _unlocked: &mut Unlocked) {
        self.push(Told::Failed(connection));
    }
}

impl PortWatcher for Log<Told> {
    fn port_changed(&self, event: PortEvent, _unlocked: &mut Unlocked) {
        self.push(Told::Port(event));
    }
}

/// A datagram queue pair in RTS, with what it is made of.
struct Queues {
    domain: ProtectionDomain,
    completions: CompletionQueue,
    calls: Arc<Calls>,
    handle: AddressHandle,
    queue_pair: DatagramQueuePair,
}

impl Queues {
    fn open(bench: &Bench) -> Self {
        let may_sleep = may_sleep();
        let domain = ProtectionDomain::new(bench.port.device(), &may_sleep).unwrap();
        let calls = Arc::new(Calls::default());
        let handler = Arc::clone(&calls) as Arc<dyn CompletionHandler>;
        let device = bench.port.device();
        let completions = CompletionQueue::new(device, 64, handler, &may_sleep).unwrap();
        let config = DatagramConfig {
            domain: &domain,
            port: &bench.port,
            send_queue: &completions,
            receive_queue: &completions,
            sends_max: 8,
            receives_max: 8,
            send_segments_max: 4,
            receive_segments_max: 2,
        };
        let queue_pair = DatagramQueuePair::new(&config, &may_sleep).unwrap();
        queue_pair.ready_to_send(PkeyIndex(0), Qkey(1), &may_sleep).unwrap();
        let address = AddressVector {
            lid: 2,
            sl: ServiceLevel::default(),
            rate: RateCode::new(3).unwrap(),
            grh: None,
        };
        let handle = AddressHandle::new(&domain, &bench.port, &address, &may_sleep).unwrap();
        Self { domain, completions, calls, handle, queue_pair }
    }

    fn send(&self, wr_id: u64, packet: Packet, slot: &mut SendSlot<Packet>) -> Result<(), Packet> {
        let datagram = Datagram {
            handle: &self.handle,
            remote_qpn: Qpn::new(9).unwrap(),
            qkey: Qkey(1),
            wants_checksums: false,
        };
        self.queue_pair.post_send(wr_id, &datagram, packet, slot)
    }
}

fn connected(
    bench: &Bench,
    queues: &Queues,
    shared: Option<&SharedReceiveQueue>,
    log: &Arc<Log<Told>>,
) -> ConnectedQueuePair {
    let config = ConnectedConfig {
        domain: &queues.domain,
        port: &bench.port,
        send_queue: &queues.completions,
        receive_queue: &queues.completions,
        shared_receives: shared,
        sends_max: 8,
        receives_max: 8,
        send_segments_max: 4,
        receive_segments_max: 16,
        connection: ConnectionId::from_index(5),
    };
    let handler = Arc::clone(log) as Arc<dyn QueuePairHandler>;
    ConnectedQueuePair::new(&config, handler, &may_sleep()).unwrap()
}

#[test]
fn objects_go_after_what_was_made_of_them() {
    let bench = Bench::start();
    let log = Arc::new(Log::default());
    let queues = Queues::open(&bench);
    let may_sleep = may_sleep();
    let shared = SharedReceiveQueue::new(&queues.domain, 8, 16, &may_sleep).unwrap();
    let connected = connected(&bench, &queues, Some(&shared), &log);
    let Queues { domain, completions, calls: _, handle, queue_pair } = queues;
    // What a queue pair is made of is dropped first, and goes last.
    drop((domain, completions));
    assert!(shared.close(&may_sleep).is_err(), "the connection uses it");
    drop((queue_pair, connected));
    drop(handle);
    bench.stop();
}

#[test]
fn what_cannot_be_created_leaves_nothing() {
    let bench = Bench::start();
    let may_sleep = may_sleep();
    let before = bench.stack.objects();
    bench.stack.fail_next(Fault::Create);
    assert!(ProtectionDomain::new(bench.port.device(), &may_sleep).is_err());
    let handler: Arc<dyn CompletionHandler> = Arc::new(Calls::default());
    bench.stack.fail_next(Fault::Create);
    assert!(CompletionQueue::new(bench.port.device(), 1, handler, &may_sleep).is_err());
    let watcher: Arc<dyn PortWatcher> = Arc::new(Log::<Told>::default());
    bench.stack.fail_next(Fault::Create);
    assert!(bench.port.watch(watcher, &may_sleep).is_err());
    assert_eq!(bench.stack.objects(), before);
    bench.stop();
}

#[test]
fn a_sent_packet_comes_back_for_its_completion_only() {
    let bench = Bench::start();
    let queues = Queues::open(&bench);
    let mut slot = SendSlot::new(&queues.domain);
    let mut other = SendSlot::new(&queues.domain);
    assert_eq!(queues.completions.arm(), Ok(Armed::Waits));
    queues.send(1, packet(&[0; 100]), &mut slot).unwrap();
    queues.send(2, packet(&[0; 200]), &mut other).unwrap();
    assert!(!slot.is_vacant());
    bench.stack.complete_send(queues.queue_pair.qpn().value(), kpi_status::KPI_STATUS_SUCCESS);
    assert_eq!(queues.calls.0.load(Ordering::Relaxed), 1);
    assert_eq!(queues.completions.arm(), Ok(Armed::HasMissed));
    let mut batch = Batch::new();
    let [completion] = queues.completions.poll(&mut batch).unwrap() else {
        panic!("one work request ended")
    };
    assert_eq!((completion.wr_id(), completion.status()), (1, CompletionStatus::Success));
    assert!(other.complete(completion).is_none());
    assert_eq!(slot.complete(completion).map(|packet| packet.len()), Some(100));
    assert!(slot.complete(completion).is_none() && slot.is_vacant());
    bench.stack.complete_send(queues.queue_pair.qpn().value(), kpi_status::KPI_STATUS_FAILED);
    let [completion] = queues.completions.poll(&mut batch).unwrap() else {
        panic!("one work request ended")
    };
    assert_eq!(completion.status(), CompletionStatus::Failed);
    // IBA 10.3.1: it has stopped the queue, which is started once.
    assert_eq!(queues.queue_pair.restart_sends(&may_sleep()), Ok(()));
    assert_eq!(queues.queue_pair.restart_sends(&may_sleep()), Err(Errno::EBUSY));
    assert_eq!(other.complete(completion).map(|packet| packet.len()), Some(200));
    drop((slot, other, queues));
    bench.stop();
}

#[test]
fn a_packet_that_is_not_posted_comes_back_at_once() {
    let bench = Bench::start();
    let queues = Queues::open(&bench);
    let mut slot = SendSlot::new(&queues.domain);
    memory::fail_after(0);
    let unmapped = queues.send(1, packet(&[0; 64]), &mut slot);
    assert!(memory::has_failed());
    assert_eq!(unmapped.map_err(|packet| packet.len()), Err(64));
    bench.stack.fail_next(Fault::Post);
    let refused = queues.send(1, packet(&[0; 64]), &mut slot);
    assert_eq!(refused.map_err(|packet| packet.len()), Err(64));
    assert!(slot.is_vacant());
    // A slot that is in use does not take another.
    queues.send(1, packet(&[0; 64]), &mut slot).unwrap();
    assert!(queues.send(2, packet(&[0; 65]), &mut slot).is_err());
    let quiet = queues.queue_pair.reset(&may_sleep()).unwrap();
    assert_eq!(slot.reclaim(&quiet).map(|packet| packet.len()), Some(64));
    drop((slot, queues));
    bench.stop();
}

#[test]
fn a_packet_of_too_many_pieces_is_sent_in_fewer() {
    let bench = Bench::start();
    let queues = Queues::open(&bench);
    let mut slot = SendSlot::new(&queues.domain);
    queues.send(1, packet(&[0; 20_000]), &mut slot).unwrap();
    let quiet = queues.queue_pair.reset(&may_sleep()).unwrap();
    assert_eq!(slot.reclaim(&quiet).map(|packet| packet.len()), Some(20_000));
    drop((slot, queues));
    bench.stop();
}

#[test]
fn a_reset_gives_back_what_was_posted_before_it() {
    let bench = Bench::start();
    let queues = Queues::open(&bench);
    let may_sleep = may_sleep();
    let mut before = SendSlot::new(&queues.domain);
    let mut after = SendSlot::new(&queues.domain);
    let mut receive = ReceiveSlot::<Packet>::new(&queues.domain);
    queues.send(1, packet(&[0; 1]), &mut before).unwrap();
    queues.queue_pair.post_receive(2, 2088, &mut receive).unwrap();
    let quiet = queues.queue_pair.reset(&may_sleep).unwrap();
    queues.queue_pair.ready_to_send(PkeyIndex(0), Qkey(1), &may_sleep).unwrap();
    queues.send(3, packet(&[0; 2]), &mut after).unwrap();
    assert!(before.reclaim(&quiet).is_some());
    assert!(receive.reclaim(&quiet));
    assert!(after.reclaim(&quiet).is_none(), "the adapter may be reading it");
    let qpn = queues.queue_pair.qpn();
    assert_eq!(bench.stack.queue_pair_state(qpn.value()), kpi_qp_state::KPI_QPS_RTS);
    let Queues { domain, completions, calls: _, handle, queue_pair } = queues;
    let gone = queue_pair.close(&may_sleep).expect("it is destroyed");
    assert!(after.reclaim(&gone).is_some());
    drop((before, after, receive, handle, completions, domain));
    bench.stop();
}

#[test]
fn a_received_packet_is_as_long_as_what_arrived() {
    let bench = Bench::start();
    let queues = Queues::open(&bench);
    let qpn = queues.queue_pair.qpn();
    let mut slots = [0, 1].map(|_| ReceiveSlot::<Packet>::new(&queues.domain));
    for (slot, wr_id) in slots.iter_mut().zip(0..) {
        queues.queue_pair.post_receive(wr_id, 4140, slot).unwrap();
    }
    bench.stack.complete_receive(qpn.value(), kpi_status::KPI_STATUS_SUCCESS, 144);
    bench.stack.complete_receive(qpn.value(), kpi_status::KPI_STATUS_FLUSHED, 0);
    let mut batch = Batch::new();
    let [arrived, flushed] = queues.completions.poll(&mut batch).unwrap() else {
        panic!("two work requests ended")
    };
    assert_eq!((arrived.source_qpn().value(), arrived.source_lid()), (0x42, 7));
    assert_eq!(slots[0].complete(arrived).map(|packet| packet.len()), Some(144));
    assert!(slots[1].complete(flushed).is_none());
    assert!(slots.iter().all(ReceiveSlot::is_vacant));
    bench.stack.fail_next(Fault::Post);
    assert!(queues.queue_pair.post_receive(9, 4140, &mut slots[0]).is_err());
    drop((slots, queues));
    bench.stop();
}

#[test]
fn a_message_on_the_shared_queue_names_its_connection() {
    let bench = Bench::start();
    let log = Arc::new(Log::default());
    let queues = Queues::open(&bench);
    let may_sleep = may_sleep();
    let shared = SharedReceiveQueue::new(&queues.domain, 8, 16, &may_sleep).unwrap();
    let pair = connected(&bench, &queues, Some(&shared), &log);
    let mut slots = [0, 1].map(|_| ReceiveSlot::<Packet>::new(&queues.domain));
    for (slot, wr_id) in slots.iter_mut().zip(0..) {
        shared.post_receive(wr_id, 65524, slot).unwrap();
    }
    bench.stack.complete_receive(pair.qpn().value(), kpi_status::KPI_STATUS_SUCCESS, 65524);
    let mut batch = Batch::new();
    let [completion] = queues.completions.poll(&mut batch).unwrap() else {
        panic!("one work request ended")
    };
    assert_eq!(completion.connection(), ConnectionId::from_index(5));
    assert_eq!(slots[0].complete(completion).map(|packet| packet.len()), Some(65524));
    // The connection goes; the receive is that of the shared queue.
    let gone = pair.close(&may_sleep).expect("it is destroyed");
    assert!(!slots[1].reclaim(&gone));
    let quiet = shared.close(&may_sleep).expect("nobody uses it");
    assert!(slots[1].reclaim(&quiet));
    drop((slots, queues));
    bench.stop();
}

#[test]
fn the_drain_of_a_connection_is_told_and_marked() {
    let bench = Bench::start();
    let log = Arc::new(Log::default());
    let queues = Queues::open(&bench);
    let may_sleep = may_sleep();
    let pair = connected(&bench, &queues, None, &log);
    pair.fail(&may_sleep).unwrap();
    bench.stack.queue_pair_event(pair.qpn().value(), kpi_qp_event::KPI_QP_LAST_WQE);
    bench.stack.queue_pair_event(pair.qpn().value(), kpi_qp_event::KPI_QP_FAILED);
    let connection = ConnectionId::from_index(5);
    assert_eq!(log.take(), [Told::LastWqe(connection), Told::Failed(connection)]);
    pair.post_marker(u64::MAX).unwrap();
    let mut batch = Batch::new();
    let [marker] = queues.completions.poll(&mut batch).unwrap() else {
        panic!("the marker is flushed at once")
    };
    assert_eq!((marker.wr_id(), marker.status()), (u64::MAX, CompletionStatus::Flushed));
    drop((pair, queues));
    bench.stop();
}

#[test]
fn a_slot_that_goes_too_early_leaks_its_packet() {
    let bench = Bench::start();
    let queues = Queues::open(&bench);
    let before = bench.stack.objects();
    let mut slot = SendSlot::new(&queues.domain);
    queues.send(1, packet(&[0; 1]), &mut slot).unwrap();
    drop(slot);
    assert_eq!(bench.stack.objects(), before + 1);
    // Not leaked for good, so that nothing is left over here.
    dma::free_lost();
    drop(queues);
    bench.stop();
}

#[test]
fn slots_are_for_queues_of_their_domain() {
    let bench = Bench::start();
    let queues = Queues::open(&bench);
    let may_sleep = may_sleep();
    let domain = ProtectionDomain::new(bench.port.device(), &may_sleep).unwrap();
    let mut slot = SendSlot::new(&domain);
    assert!(queues.send(1, packet(&[0; 1]), &mut slot).is_err());
    drop((slot, domain, queues));
    bench.stop();
}

#[test]
fn groups_are_attached_and_detached() {
    let bench = Bench::start();
    let queues = Queues::open(&bench);
    let may_sleep = may_sleep();
    let mgid = Mgid::new(Gid::new(0xff12_401b_ffff_0000, 1)).unwrap();
    queues.queue_pair.attach(mgid, Mlid::MIN, &may_sleep).unwrap();
    queues.queue_pair.detach(mgid, Mlid::MIN, &may_sleep).unwrap();
    drop(queues);
    bench.stop();
}

#[test]
fn events_of_a_port_are_told_while_it_is_watched() {
    let bench = Bench::start();
    let log = Arc::new(Log::default());
    let handler = Arc::clone(&log) as Arc<dyn PortWatcher>;
    let watch = bench.port.watch(handler, &may_sleep()).unwrap();
    bench.hca().port_event(1, kpi_port_event::KPI_PORT_ACTIVE);
    bench.hca().port_event(2, kpi_port_event::KPI_PORT_ERROR);
    bench.hca().port_event(1, kpi_port_event::KPI_PORT_SM_CHANGED);
    let told = [Told::Port(PortEvent::PortActive), Told::Port(PortEvent::SmChanged)];
    assert_eq!(log.take(), told);
    drop(watch);
    bench.hca().port_event(1, kpi_port_event::KPI_PORT_ACTIVE);
    assert_eq!(log.take(), []);
    bench.stop();
}

#[test]
fn an_adapter_does_not_go_before_what_was_made_of_it() {
    let bench = Bench::start();
    let queues = Queues::open(&bench);
    let others = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(queues);
    });
    // The adapter is freed when this returns: the fake stack would find the queues in use.
    bench.stop();
    others.join().unwrap();
}
