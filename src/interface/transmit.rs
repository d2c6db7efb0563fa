//! From the network stack to the adapter, and the rules of size on the way.

use zerocopy::IntoBytes;

use crate::action::{HandleId, Target};
use crate::counters::{Counter, DropReason};
use crate::ib::{IbMtu, Qpn};
use crate::packet::{CompletionStatus, ConnectedSend, DataPath, DatagramSend, PacketBuf, SendId};
use crate::send_ring::{Posted, Via};
use crate::size::Oversize;
use crate::time::Instant;
use crate::wire::{ENCAPSULATION_BYTES, Encapsulation, EtherType, LinkAddress};

use super::link::{Admin, Lifecycle};
use super::{Interface, Mode, RingFull, SendQueue};

/// Where a packet is posted to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route {
    /// To a neighbour or group, as a datagram.
    Datagram { handle: u32, qpn: Qpn, is_multicast: bool },
    /// To a neighbour, by its connection.
    Connected { connection: u32, mtu: usize },
}

/// What became of a packet that was to be posted.
pub(super) enum Posting<B> {
    /// It was posted.
    Posted,
    /// It was dropped, and counted.
    Dropped,
    /// There is no room in the ring.
    RingFull(B),
}

impl<B: PacketBuf> Interface<B> {
    pub(super) fn on_transmit(
        &mut self,
        now: Instant,
        to: &LinkAddress,
        protocol: EtherType,
        packet: B,
        datapath: &mut impl DataPath<B>,
    ) -> Result<(), RingFull<B>> {
        let refusal = match self.lifecycle {
            // While the link is coming up, packets are held in the queues of paths and groups.
            Lifecycle::Opening | Lifecycle::Joining | Lifecycle::Joined => None,
            Lifecycle::AwaitingPartition | Lifecycle::AwaitingPort => Some(DropReason::LinkDown),
            Lifecycle::Draining if self.admin == Admin::Up => Some(DropReason::LinkDown),
            Lifecycle::Down | Lifecycle::Draining | Lifecycle::Detached => {
                Some(DropReason::InterfaceDown)
            }
        };
        if let Some(reason) = refusal {
            self.drop_packet(packet, reason, datapath);
            return Ok(());
        }
        let outcome = match to.mgid() {
            Some(mgid) => self.transmit_multicast(now, mgid, protocol, packet, datapath),
            None => self.transmit_unicast(now, to, protocol, packet, datapath),
        };
        if outcome.is_err() {
            self.counters.count(Counter::SendRefused);
            self.send_queue = SendQueue::Stopped;
        }
        outcome
    }

    /// Posts a packet, behind its encapsulation header. The one place where a send is posted, so
    /// the one place where the rule can be broken that no datagram exceeds the MTU of the link.
    pub(super) fn post(
        &mut self,
        route: Route,
        protocol: EtherType,
        mut packet: B,
        datapath: &mut impl DataPath<B>,
    ) -> Posting<B> {
        let (via, mtu, is_multicast) = match route {
            Route::Datagram { handle, is_multicast, .. } => {
                (Via::Handle(handle), self.datagram_mtu, is_multicast)
            }
            Route::Connected { connection, mtu } => (Via::Connection(connection), mtu, false),
        };
        if self.sends.vacant() == 0 {
            return Posting::RingFull(packet);
        }
        if packet.len() > mtu {
            self.drop_packet(packet, DropReason::TooBigSilent, datapath);
            return Posting::Dropped;
        }
        if packet.prepend(Encapsulation::new(protocol).as_bytes()).is_err() {
            self.drop_packet(packet, DropReason::NoHeadroom, datapath);
            return Posting::Dropped;
        }
        // CAST: at most the MTU.
        let posted = Posted { via, bytes: packet.len() as u32, is_multicast };
        let Some(id) = self.sends.take(posted) else { return Posting::RingFull(packet) };
        let outcome = match route {
            Route::Datagram { handle, qpn, .. } => {
                let (handle, qkey) = (HandleId(handle), self.qkey);
                datapath.post_send(DatagramSend { id, handle, remote_qpn: qpn, qkey }, packet)
            }
            Route::Connected { connection, .. } => {
                let connection = self.outgoing_id(connection);
                datapath.post_connected_send(ConnectedSend { id, connection }, packet)
            }
        };
        match outcome {
            Ok(()) => {
                match via {
                    Via::Handle(handle) => self.handles.on_posted(handle),
                    Via::Connection(place) => self.on_connected_posted(place),
                }
                Posting::Posted
            }
            Err(packet) => {
                self.sends.complete(id);
                self.drop_packet(packet, DropReason::PostFailed, datapath);
                Posting::Dropped
            }
        }
    }

    /// Deals with a packet larger than the MTU of its destination: design rule "size", items 2 to
    /// 4. `send` is given each fragment. Returns whether the packet itself ended as a drop.
    pub(super) fn send_oversize<D: DataPath<B>>(
        &mut self,
        to: &LinkAddress,
        mtu: usize,
        protocol: EtherType,
        packet: B,
        datapath: &mut D,
        mut send: impl FnMut(&mut Self, B, &mut D),
    ) -> bool {
        match Oversize::decide(&packet, protocol, to, mtu) {
            Oversize::Fragment(fragments) => {
                self.counters.count(Counter::Fragmented);
                for fragment in fragments {
                    match datapath.fragment(&packet, fragment.header(), fragment.payload()) {
                        Some(piece) => send(self, piece, datapath),
                        None => {
                            // A receiver can do nothing with the rest.
                            self.drop_packet(packet, DropReason::FragmentFailed, datapath);
                            return true;
                        }
                    }
                }
                datapath.release(packet);
                false
            }
            Oversize::Report => {
                self.counters.count_drop(DropReason::TooBigReported);
                datapath.packet_too_big(packet, mtu);
                true
            }
            Oversize::Drop => {
                self.drop_packet(packet, DropReason::TooBigSilent, datapath);
                true
            }
        }
    }

    pub(super) fn on_send_completion(
        &mut self,
        now: Instant,
        id: SendId,
        status: CompletionStatus,
        datapath: &mut impl DataPath<B>,
    ) {
        let Some(Posted { via, bytes, is_multicast }) = self.sends.complete(id) else {
            self.counters.count(Counter::StaleCompletions);
            return;
        };
        match status {
            CompletionStatus::Success => {
                self.counters.count(Counter::PacketsSent);
                self.counters.add(Counter::BytesSent, u64::from(bytes));
                if is_multicast {
                    self.counters.count(Counter::MulticastSent);
                }
                if let Via::Connection(_) = via {
                    self.counters.count(Counter::ConnectedSent);
                }
            }
            CompletionStatus::Flushed => self.counters.count(Counter::SendFlushed),
            CompletionStatus::Failed => self.counters.count(Counter::SendFailed),
        }
        match via {
            Via::Handle(handle) => self.release_handle(handle),
            Via::Connection(place) => self.on_connected_sent(now, place, status, datapath),
        }
        self.drain_backlog(now, datapath);
        self.wake_send_queue();
    }

    /// After a completion: a queue pair that is being drained may be done, and that may be the last
    /// thing the interface waits for.
    pub(super) fn after_completion(&mut self, now: Instant, datapath: &mut impl DataPath<B>) {
        match self.lifecycle {
            Lifecycle::Draining => {
                self.finish_queue_pair_drain();
                self.reconcile(now, datapath);
            }
            Lifecycle::Down
            | Lifecycle::AwaitingPartition
            | Lifecycle::AwaitingPort
            | Lifecycle::Opening
            | Lifecycle::Joining
            | Lifecycle::Joined
            | Lifecycle::Detached => {}
        }
    }

    /// Sends packets that waited for room in the ring, before the network stack is asked for more.
    /// Each object has one turn: one that needs more room than there is goes to the end again.
    pub(super) fn drain_backlog(&mut self, now: Instant, datapath: &mut impl DataPath<B>) {
        for _ in 0..self.backlog.len() {
            if self.sends.vacant() == 0 {
                return;
            }
            let Some(number) = self.backlog.pop() else {
                return;
            };
            match self.objects.target(number) {
                Target::Path(place) => self.drain_path(now, place, datapath),
                Target::Group(place) => self.drain_group(now, place, datapath),
                Target::Handle(_)
                | Target::Incoming(_)
                | Target::Listener
                | Target::Outgoing(_)
                | Target::QueuePair
                | Target::Reaper
                | Target::Sa => {}
            }
        }
    }

    pub(super) fn push_backlog(&mut self, target: Target) {
        self.backlog.push(self.objects.number(target));
    }

    /// The MTU of the interface, without the encapsulation header: in connected mode it is larger
    /// than what a neighbour without a connection takes.
    pub fn mtu(&self) -> usize {
        match self.mode {
            Mode::Datagram => self.datagram_mtu,
            Mode::Connected => self.connected_mtu,
        }
    }

    /// What a datagram may carry on this link, without the encapsulation header.
    pub fn datagram_mtu(&self) -> usize {
        self.datagram_mtu
    }

    /// The MTU of a path or group whose own is `mtu`.
    pub(super) fn mtu_within(&self, mtu: IbMtu) -> usize {
        self.datagram_mtu.min(mtu.bytes() - ENCAPSULATION_BYTES)
    }
}
