//! Completions, in a thread of their own: what sleeps in the control thread does not delay them.

use alloc::sync::Arc;

use ipoib_rs::interface::Interface as Core;
use ipoib_rs::packet::{CompletionStatus, ConnectedReceive, Receive, SendId};
use ipoib_rs::time::Instant;
use kpi::context::MaySleep;
use kpi::mbuf::Packet;
use kpi::time;
use kpi::verbs::{Armed, BATCH_LEN, Batch, Completion, CompletionQueue};
use kpi::worker::Work;

use super::Interface;
use super::queues::{CONNECTED, DATAGRAM, KIND_MASK, Link, Path, Received};

#[derive(Debug)]
pub(super) struct Reaper {
    interface: Arc<Interface>,
}

impl Reaper {
    pub(super) fn new(interface: Arc<Interface>) -> Self {
        Self { interface }
    }
}

impl Work for Reaper {
    fn run(&self, may_sleep: &mut MaySleep) {
        let interface = &self.interface;
        let hardware = &interface.hardware;
        let limits = &hardware.limits;
        loop {
            interface.passes.begin();
            let sends = limits.send_queue_len;
            interface.reap(&hardware.send_queue, sends, feed_send, may_sleep);
            let receives = super::receive_completions(limits);
            interface.reap(&hardware.receive_queue, receives, feed_receive, may_sleep);
            interface.passes.end();
            // IBA 11.4.2.2: what came before a queue was armed raises no event.
            if !interface.arm_queues() {
                return;
            }
        }
    }
}

impl Interface {
    /// Whether completions came meanwhile, which are to be polled for. A queue of an adapter that
    /// is broken is left alone: the adapter is about to be removed.
    pub(super) fn arm_queues(&self) -> bool {
        let Self { hardware, .. } = self;
        let queues = [&hardware.send_queue, &hardware.receive_queue];
        queues.map(|queue| queue.arm() == Ok(Armed::HasMissed)).contains(&true)
    }

    /// Takes completions out in batches, each with the core locked once: all that are there, and of
    /// those that come meanwhile not so many that others have to wait.
    fn reap(
        &self,
        queue: &CompletionQueue,
        len: u32,
        feed: impl Fn(Instant, &mut Core<Packet>, &mut Path<'_>, &Completion),
        may_sleep: &mut MaySleep,
    ) {
        let mut batch = Batch::new();
        // CAST: a batch has less than 2^32 completions.
        for _ in 0..=len / BATCH_LEN as u32 {
            let Ok(completions) = queue.poll(&mut batch) else { return };
            if completions.is_empty() {
                return;
            }
            let now = time::now();
            self.feed(may_sleep, |core, path| {
                for completion in completions {
                    feed(now, core, path, completion);
                }
            });
        }
    }
}

fn feed_send(now: Instant, core: &mut Core<Packet>, path: &mut Path<'_>, completion: &Completion) {
    path.records.has_failed_send |= completion.status() != CompletionStatus::Success;
    if let Some(packet) = path.queues.complete_send(completion) {
        path.records.end(packet);
    }
    let id = SendId::from_bits(completion.wr_id());
    core.handle_send_completion(now, id, completion.status(), path);
}

fn feed_receive(
    now: Instant,
    core: &mut Core<Packet>,
    path: &mut Path<'_>,
    completion: &Completion,
) {
    match completion.wr_id() & KIND_MASK {
        DATAGRAM => feed_datagram(now, core, path, completion),
        CONNECTED => feed_connected(now, core, path, completion),
        // wildcard: numbers of work requests, not an enum. What is left is a drain marker.
        _ => {
            let link = path.queues.link_of(completion);
            if let Some(op) = link.and_then(Link::take_marker) {
                core.handle_verb_result(now, op, Ok(()), path);
            }
        }
    }
}

fn feed_datagram(
    now: Instant,
    core: &mut Core<Packet>,
    path: &mut Path<'_>,
    completion: &Completion,
) {
    match path.queues.complete_datagram(completion) {
        Received::Packet(mut packet) => {
            if completion.is_checksum_ok() {
                packet.set_verified();
            }
            let receive = Receive {
                packet,
                has_grh: completion.has_grh(),
                source_lid: completion.source_lid(),
                source_qpn: completion.source_qpn(),
            };
            core.handle_receive(now, receive, path);
        }
        Received::Nothing => core.handle_receive_failed(now, completion.status(), path),
        Received::Stale => {}
    }
}

fn feed_connected(
    now: Instant,
    core: &mut Core<Packet>,
    path: &mut Path<'_>,
    completion: &Completion,
) {
    let received = path.queues.complete_connected(completion);
    let connection = path.queues.link_of(completion).map(|link| link.id);
    match (received, connection) {
        (Received::Packet(packet), Some(connection)) => {
            let receive = ConnectedReceive { connection, packet };
            core.handle_connected_receive(now, receive, path);
        }
        (Received::Nothing, Some(connection)) => {
            core.handle_connected_receive_failed(now, connection, completion.status(), path);
        }
        // A queue pair takes its completions with it, so a connection that is gone has none.
        (Received::Packet(packet), None) => path.records.end(packet),
        (Received::Nothing, None) | (Received::Stale, _) => {}
    }
}
