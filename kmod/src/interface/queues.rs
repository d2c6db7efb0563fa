//! What is posted to the adapter, and the data path that posts it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use ipoib_rs::action::{ConnectionId, HandleId, OpId, RequestId};
use ipoib_rs::counters::DropReason;
use ipoib_rs::packet::{
    ConnectedSend, DataPath, DatagramSend, Delivery, PacketSink, PostReceiveError, ReceiveQueue,
    SendId,
};
use ipoib_rs::wire::ENCAPSULATION_BYTES;
use kpi::cm::Connection;
use kpi::dma::{ReceiveSlot, SendSlot};
use kpi::errno::Errno;
use kpi::mbuf::{Packet, PacketList};
use kpi::verbs::{AddressHandle, Completion, Datagram, ProtectionDomain, Quiet};

use super::Hardware;
use super::shell::Records;

/// What belongs to the core's tables, at the same places, and what is posted.
#[derive(Debug)]
pub(super) struct Queues {
    handles: Vec<Option<AddressHandle>>,
    links: Vec<Option<Link>>,
    sends: Vec<SendSlot<Packet>>,
    datagrams: Receives,
    connected: Receives,
    /// Packets with their link header that wait for room in the send ring.
    pub(super) waiting: PacketList,
    pub(super) waiting_max: u32,
    /// The operation that waits until nobody listens.
    pub(super) unlistening: Option<OpId>,
}

/// What stands at the place of a connection, until it is destroyed.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: ConnectionId,
    subject: Subject,
    step: Step,
}

#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// The connection, as the adapter has it.
    Connection(Arc<Connection>),
    /// The REQ that there is no connection for.
    Request(RequestId),
    /// The connection was closed.
    Gone,
}

/// What is being done about it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// Nothing, but to use it.
    Use,
    /// The operation waits for the drain marker.
    Drain(OpId),
    /// The operation waits for its end.
    Close(OpId),
}

impl Link {
    pub(super) const fn new(id: ConnectionId, subject: Subject) -> Self {
        Self { id, subject, step: Step::Use }
    }

    fn connection(&self) -> Option<&Arc<Connection>> {
        match &self.subject {
            Subject::Connection(connection) => Some(connection),
            Subject::Request(_) | Subject::Gone => None,
        }
    }

    /// The operation that waited for the drain marker.
    pub(super) fn take_marker(&mut self) -> Option<OpId> {
        let Step::Drain(op) = self.step else { return None };
        self.step = Step::Use;
        Some(op)
    }
}

/// Something to be closed, see [`super::close`].
#[derive(Debug)]
pub(super) struct Leaver {
    pub(super) id: ConnectionId,
    pub(super) op: OpId,
    pub(super) subject: Subject,
}

impl Queues {
    pub(super) fn new(hardware: &Hardware) -> Result<Self, Errno> {
        let Hardware { limits, domain, shared, .. } = hardware;
        let connected = match shared {
            Some(_) => limits.shared_receive_queue_len,
            None => limits.incoming_unshared_max * limits.connection_receive_queue_len,
        };
        Ok(Self {
            handles: filled(limits.handles_max(), || None)?,
            links: filled(limits.connections_max(), || None)?,
            sends: filled(limits.send_queue_len, || SendSlot::new(domain))?,
            datagrams: Receives::new(DATAGRAM, limits.receive_queue_len, domain)?,
            connected: Receives::new(CONNECTED, connected, domain)?,
            waiting: PacketList::new(),
            waiting_max: limits.send_queue_len,
            unlistening: None,
        })
    }

    pub(super) fn put_handle(&mut self, id: HandleId, handle: AddressHandle) {
        if let Some(place) = self.handles.get_mut(id.index()) {
            *place = Some(handle);
        }
    }

    pub(super) fn take_handle(&mut self, id: HandleId) -> Option<AddressHandle> {
        self.handles.get_mut(id.index())?.take()
    }

    pub(super) fn put_link(&mut self, link: Link) {
        if let Some(place) = self.links.get_mut(link.id.index()) {
            *place = Some(link);
        }
    }

    /// The connection, if it is there.
    pub(super) fn connection(&self, id: ConnectionId) -> Option<&Arc<Connection>> {
        self.links.get(id.index())?.as_ref()?.connection()
    }

    /// Has something closed for an operation. Whether there is something.
    pub(super) fn begin_close(&mut self, id: ConnectionId, op: OpId) -> bool {
        let Some(Some(link)) = self.links.get_mut(id.index()) else { return false };
        link.step = Step::Close(op);
        true
    }

    /// Puts what is to be closed into `leavers`, as far as there is room. The place keeps its
    /// connection, so that completions find it.
    pub(super) fn list_leavers(&self, leavers: &mut [Option<Leaver>]) {
        let mut places = leavers.iter_mut();
        for link in self.links.iter().flatten() {
            let Step::Close(op) = link.step else { continue };
            let Some(place) = places.next() else { return };
            *place = Some(Leaver { id: link.id, op, subject: link.subject.clone() });
        }
    }

    /// Gives the connection of a leaver up, which is its last owner then.
    pub(super) fn let_go(&mut self, leaver: &Leaver) {
        if let (Some(Some(link)), Subject::Connection(_)) =
            (self.links.get_mut(leaver.id.index()), &leaver.subject)
        {
            link.subject = Subject::Gone;
        }
    }

    /// Takes any connection out, whatever is being done about it.
    pub(super) fn take_connection(&mut self) -> Option<Connection> {
        self.links.iter_mut().filter_map(Option::take).find_map(|link| match link.subject {
            Subject::Connection(connection) => Arc::into_inner(connection),
            Subject::Request(_) | Subject::Gone => None,
        })
    }

    /// Makes a place vacant.
    pub(super) fn remove_link(&mut self, id: ConnectionId) {
        if let Some(place) = self.links.get_mut(id.index()) {
            *place = None;
        }
    }

    /// The connection whose queue pair a completion is of.
    pub(super) fn link_of(&mut self, completion: &Completion) -> Option<&mut Link> {
        self.links.get_mut(completion.connection().index())?.as_mut()
    }

    /// The operation waits for the drain marker of a connection.
    pub(super) fn begin_drain(&mut self, id: ConnectionId, op: OpId) {
        if let Some(Some(link)) = self.links.get_mut(id.index()) {
            link.step = Step::Drain(op);
        }
    }

    /// No marker was posted.
    pub(super) fn cancel_drain(&mut self, id: ConnectionId) {
        if let Some(Some(link)) = self.links.get_mut(id.index()) {
            link.take_marker();
        }
    }

    /// The packet of a send that ended.
    pub(super) fn complete_send(&mut self, completion: &Completion) -> Option<Packet> {
        let slot = slot_of(SendId::from_bits(completion.wr_id()));
        self.sends.get_mut(slot)?.complete(completion)
    }

    pub(super) fn complete_datagram(&mut self, completion: &Completion) -> Received {
        self.datagrams.complete(completion)
    }

    pub(super) fn complete_connected(&mut self, completion: &Completion) -> Received {
        self.connected.complete(completion)
    }

    /// The packets of the sends of a queue that is quiet.
    pub(super) fn reclaim_sends(&mut self, quiet: &Quiet, mut end: impl FnMut(Packet)) {
        self.sends.iter_mut().filter_map(|slot| slot.reclaim(quiet)).for_each(&mut end);
    }

    /// Frees the buffers of the datagram queue pair, which is quiet, and what it was sending.
    pub(super) fn reclaim_datagrams(&mut self, quiet: &Quiet) {
        self.datagrams.reclaim(quiet);
        self.reclaim_sends(quiet, drop);
    }

    /// Frees the buffers of a queue for connections that is quiet.
    pub(super) fn reclaim_connected(&mut self, quiet: &Quiet) {
        self.connected.reclaim(quiet);
    }
}

/// A receive that ended.
pub(super) enum Received {
    /// With a packet.
    Packet(Packet),
    /// Without one; its buffer is freed.
    Nothing,
    /// It is none that is posted.
    Stale,
}

/// The numbers of receives: their kind, a count, so that none comes again soon, and their place.
pub(super) const KIND_MASK: u64 = 3 << 62;
pub(super) const DATAGRAM: u64 = 0;
pub(super) const CONNECTED: u64 = 1 << 62;
/// Not a receive, but a drain marker.
pub(super) const MARKER: u64 = 2 << 62;
const PLACE_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << (62 - PLACE_BITS)) - 1;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;

/// Receives of one kind.
#[derive(Debug)]
struct Receives {
    kind: u64,
    places: Vec<Place>,
    /// The first vacant place.
    vacant: Option<u32>,
    count: u64,
}

#[derive(Debug)]
struct Place {
    slot: ReceiveSlot<Packet>,
    state: PlaceState,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PlaceState {
    Vacant {
        next: Option<u32>,
    },
    /// By the number of its work request.
    Posted(u64),
}

impl Receives {
    fn new(kind: u64, len: u32, domain: &ProtectionDomain) -> Result<Self, Errno> {
        let mut position = 0;
        let places = filled(len, || {
            position += 1;
            let next = (position < len).then_some(position);
            Place { slot: ReceiveSlot::new(domain), state: PlaceState::Vacant { next } }
        })?;
        Ok(Self { kind, places, vacant: (len > 0).then_some(0), count: 0 })
    }

    fn post(
        &mut self,
        post: impl FnOnce(u64, &mut ReceiveSlot<Packet>) -> Result<(), Errno>,
    ) -> Result<(), PostReceiveError> {
        let place = self.vacant.ok_or(PostReceiveError)?;
        self.count += 1;
        let wr_id = self.kind | (self.count & COUNT_MASK) << PLACE_BITS | u64::from(place);
        let at = self.places.get_mut(place as usize).ok_or(PostReceiveError)?;
        let PlaceState::Vacant { next } = at.state else { return Err(PostReceiveError) };
        post(wr_id, &mut at.slot).map_err(|_| PostReceiveError)?;
        at.state = PlaceState::Posted(wr_id);
        self.vacant = next;
        Ok(())
    }

    fn complete(&mut self, completion: &Completion) -> Received {
        let place = completion.wr_id() & PLACE_MASK;
        let Some(at) = self.places.get_mut(place as usize) else { return Received::Stale };
        if at.state != PlaceState::Posted(completion.wr_id()) {
            return Received::Stale;
        }
        at.state = PlaceState::Vacant { next: self.vacant };
        // CAST: below the mask.
        self.vacant = Some(place as u32);
        at.slot.complete(completion).map_or(Received::Nothing, Received::Packet)
    }

    fn reclaim(&mut self, quiet: &Quiet) {
        for (place, at) in (0..).zip(&mut self.places) {
            if at.slot.reclaim(quiet) {
                at.state = PlaceState::Vacant { next: self.vacant };
                self.vacant = Some(place);
            }
        }
    }
}

fn filled<T>(len: u32, mut value: impl FnMut() -> T) -> Result<Vec<T>, Errno> {
    let mut values = Vec::new();
    values.try_reserve_exact(len as usize).map_err(|_| Errno::ENOMEM)?;
    // So the compiler knows that what follows takes no more memory: it could not fail.
    if values.capacity() < len as usize {
        return Err(Errno::ENOMEM);
    }
    values.extend((0..len).map(|_| value()));
    Ok(values)
}

fn slot_of(id: SendId) -> usize {
    // CAST: the slot is the low half of the bits.
    id.to_bits() as u32 as usize
}

/// The data path of the core while it is locked.
pub(super) struct Path<'p> {
    pub(super) queues: &'p mut Queues,
    hardware: &'p Hardware,
    pub(super) records: &'p mut Records,
}

impl<'p> Path<'p> {
    pub(super) fn new(
        queues: &'p mut Queues,
        hardware: &'p Hardware,
        records: &'p mut Records,
    ) -> Self {
        Self { queues, hardware, records }
    }
}

impl PacketSink<Packet> for Path<'_> {
    fn deliver(&mut self, packet: Packet, delivery: Delivery) {
        self.records.deliver(packet, delivery);
    }

    fn drop_packet(&mut self, packet: Packet, _reason: DropReason) {
        self.records.end(packet);
    }

    fn release(&mut self, packet: Packet) {
        self.records.end(packet);
    }

    fn packet_too_big(&mut self, packet: Packet, mtu: usize) {
        self.records.too_big(packet, mtu);
    }
}

impl DataPath<Packet> for Path<'_> {
    fn post_send(&mut self, send: DatagramSend, packet: Packet) -> Result<(), Packet> {
        let Queues { handles, sends, .. } = &mut *self.queues;
        let handle = handles.get(send.handle.index()).and_then(Option::as_ref);
        let (Some(handle), Some(slot)) = (handle, sends.get_mut(slot_of(send.id))) else {
            return Err(packet);
        };
        let DatagramSend { id, handle: _, remote_qpn, qkey } = send;
        let wants_checksums = packet.wants_checksums();
        let datagram = Datagram { handle, remote_qpn, qkey, wants_checksums };
        self.hardware.queue_pair.post_send(id.to_bits(), &datagram, packet, slot)
    }

    fn post_connected_send(
        &mut self,
        send: ConnectedSend,
        mut packet: Packet,
    ) -> Result<(), Packet> {
        if packet.wants_checksums() {
            packet.finish_checksums(ENCAPSULATION_BYTES);
        }
        let Queues { links, sends, .. } = &mut *self.queues;
        let link = links.get(send.connection.index()).and_then(Option::as_ref);
        let connection = link.and_then(Link::connection);
        let (Some(connection), Some(slot)) = (connection, sends.get_mut(slot_of(send.id))) else {
            return Err(packet);
        };
        connection.queue_pair().post_send(send.id.to_bits(), packet, slot)
    }

    fn post_connected_receive(
        &mut self,
        queue: ReceiveQueue,
        bytes: usize,
    ) -> Result<(), PostReceiveError> {
        let Queues { links, connected, .. } = &mut *self.queues;
        match queue {
            ReceiveQueue::Shared => {
                let shared = self.hardware.shared.as_ref().ok_or(PostReceiveError)?;
                connected.post(|wr_id, slot| shared.post_receive(wr_id, bytes, slot))
            }
            ReceiveQueue::Of(connection) => {
                let link = links.get(connection.index()).and_then(Option::as_ref);
                let connection = link.and_then(Link::connection).ok_or(PostReceiveError)?;
                let pair = connection.queue_pair();
                connected.post(|wr_id, slot| pair.post_receive(wr_id, bytes, slot))
            }
        }
    }

    fn post_receive(&mut self, bytes: usize) -> Result<(), PostReceiveError> {
        let pair = &self.hardware.queue_pair;
        self.queues.datagrams.post(|wr_id, slot| pair.post_receive(wr_id, bytes, slot))
    }

    fn fragment(
        &mut self,
        packet: &Packet,
        header: &[u8],
        payload: Range<usize>,
    ) -> Option<Packet> {
        packet.fragment(header, payload)
    }
}
