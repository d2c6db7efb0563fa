//! Packets that wait: for a path, for a group, for a connection, or for room in the send ring.

use crate::action::Target;
use crate::counters::DropReason;
use crate::limits::PENDING_MAX;
use crate::packet::{PacketBuf, PacketSink};
use crate::storage::{Pending, Queue};
use crate::time::Instant;
use crate::wire::EtherType;

use super::Interface;

impl<B: PacketBuf> Interface<B> {
    /// Appends a packet to what waits for an object, as far as its limits allow.
    pub(super) fn enqueue(
        &mut self,
        now: Instant,
        target: Target,
        protocol: EtherType,
        packet: B,
        sink: &mut impl PacketSink<B>,
    ) {
        let limits = &self.limits;
        let (packets_max, bytes_max, reason) = match target {
            Target::Path(_) => (
                limits.path_queue_packets_max,
                limits.path_queue_bytes_max,
                DropReason::PathQueueFull,
            ),
            Target::Group(_) => (
                limits.group_queue_packets_max,
                limits.group_queue_bytes_max,
                DropReason::GroupQueueFull,
            ),
            Target::Outgoing(_) => {
                (limits.held_packets_max, limits.held_bytes_max, DropReason::ConnectionQueueFull)
            }
            Target::Handle(_)
            | Target::Incoming(_)
            | Target::Listener
            | Target::QueuePair
            | Target::Reaper
            | Target::Sa => (0, 0, DropReason::InvalidDestination),
        };
        let bytes = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        let queue = self.queue_mut(target);
        let Some(mut queue) =
            queue.map(|queue| *queue).filter(|queue| queue.has_room(bytes, packets_max, bytes_max))
        else {
            self.drop_for(target, packet, reason, sink);
            return;
        };
        let pending = Pending { protocol, packet, bytes };
        match self.pending.push(&mut queue, pending, now + PENDING_MAX) {
            Ok(()) => {
                self.set_queue(target, queue);
                self.arm(target);
            }
            Err(pending) => {
                self.drop_for(target, pending.packet, DropReason::PendingStoreFull, sink);
            }
        }
    }

    /// Keeps a packet that found the send ring full, at the end of what waits for its object.
    pub(super) fn wait_for_room(
        &mut self,
        now: Instant,
        target: Target,
        protocol: EtherType,
        packet: B,
        sink: &mut impl PacketSink<B>,
    ) {
        self.enqueue(now, target, protocol, packet, sink);
        self.push_backlog(target);
    }

    /// Takes the first packet that waits for an object.
    pub(super) fn take_waiting(&mut self, target: Target) -> Option<Pending<B>> {
        let mut queue = *self.queue_mut(target)?;
        let pending = self.pending.pop(&mut queue)?;
        self.set_queue(target, queue);
        if queue.is_empty() {
            self.arm(target);
        }
        Some(pending)
    }

    /// The length of the first packet that waits for an object.
    pub(super) fn first_waiting_bytes(&mut self, target: Target) -> Option<u32> {
        let queue = *self.queue_mut(target)?;
        self.pending.first_bytes(&queue)
    }

    /// Drops what waits for an object.
    pub(super) fn drop_waiting(
        &mut self,
        target: Target,
        reason: DropReason,
        sink: &mut impl PacketSink<B>,
    ) {
        while let Some(pending) = self.take_waiting(target) {
            self.drop_for(target, pending.packet, reason, sink);
        }
    }

    /// Drops a packet that was to wait for an object. Those for a path or for its connection count
    /// as drops towards the neighbour.
    fn drop_for(
        &mut self,
        target: Target,
        packet: B,
        reason: DropReason,
        sink: &mut impl PacketSink<B>,
    ) {
        let path = match target {
            Target::Path(place) => Some(place),
            Target::Outgoing(place) => {
                self.connections.outgoing.get(place).and_then(|outgoing| outgoing.path)
            }
            Target::Group(_)
            | Target::Handle(_)
            | Target::Incoming(_)
            | Target::Listener
            | Target::QueuePair
            | Target::Reaper
            | Target::Sa => None,
        };
        match path {
            Some(place) => self.drop_towards(place, packet, reason, sink),
            None => self.drop_packet(packet, reason, sink),
        }
    }

    /// Moves what waits for one object behind what waits for another.
    pub(super) fn move_waiting(&mut self, to: Target, from: Target) {
        let Some(mut source) = self.queue_mut(from).map(|queue| *queue) else { return };
        let Some(mut sink) = self.queue_mut(to).map(|queue| *queue) else { return };
        self.pending.append(&mut sink, &mut source);
        self.set_queue(from, source);
        self.set_queue(to, sink);
        self.arm(from);
        self.arm(to);
    }

    /// Sets the timer of an object: when its state ends, or when its packets must go.
    pub(super) fn arm(&mut self, target: Target) {
        let (expires_at, ends_at) = match target {
            Target::Path(place) => match self.paths.get(place) {
                Some(path) => (path.queue.expires_at(), path.state.ends_at()),
                None => return,
            },
            Target::Group(place) => match self.groups.get(place) {
                Some(group) => (group.queue.expires_at(), group.state.ends_at()),
                None => return,
            },
            Target::Outgoing(place) => match self.connections.outgoing.get(place) {
                Some(outgoing) => (outgoing.queue.expires_at(), outgoing.state.ends_at()),
                None => return,
            },
            Target::Handle(_)
            | Target::Incoming(_)
            | Target::Listener
            | Target::QueuePair
            | Target::Reaper
            | Target::Sa => return,
        };
        self.set_timer(target, [expires_at, ends_at].into_iter().flatten().min());
    }

    fn queue_mut(&mut self, target: Target) -> Option<&mut Queue> {
        match target {
            Target::Path(place) => self.paths.get_mut(place).map(|path| &mut path.queue),
            Target::Group(place) => self.groups.get_mut(place).map(|group| &mut group.queue),
            Target::Outgoing(place) => {
                self.connections.outgoing.get_mut(place).map(|outgoing| &mut outgoing.queue)
            }
            Target::Handle(_)
            | Target::Incoming(_)
            | Target::Listener
            | Target::QueuePair
            | Target::Reaper
            | Target::Sa => None,
        }
    }

    fn set_queue(&mut self, target: Target, value: Queue) {
        if let Some(queue) = self.queue_mut(target) {
            *queue = value;
        }
    }
}
