//! The adapter's side of an interface: its queue pair, its address handles, its data path.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use fabric::address::AhId;
use fabric::cq::CqId;
use fabric::packet::Packet;
use fabric::qp::{QpChange, QpConfig, QpId, QpType, ReceiveRequest, SendRequest};
use fabric::{CreateError, Fabric, PostError, RefusedSend};
use ipoib_rs::action::{ConnectionId, HandleId, QueuePairChange, VerbError};
use ipoib_rs::counters::DropReason;
use ipoib_rs::ib::{Gid, Mgid, Mlid, PkeyIndex, Qkey, Qpn};
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::{
    ConnectedSend, DataPath, DatagramSend, Delivery, PacketBuf, PacketSink, PostReceiveError,
    ReceiveQueue, SendId,
};
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{ENCAPSULATION_BYTES, LinkAddress};

use super::checker::size::{self, Due};
use super::faults::Faults;
use super::links::{Link, LinkState, Links};
use super::site::Site;
use super::streams::Streams;
use crate::swarm::Planted;

/// What an interface owns on its adapter.
#[derive(Debug)]
pub(super) struct Adapter {
    qp: QpId,
    qpn: Qpn,
    send_cq: CqId,
    receive_cq: CqId,
    gid: Gid,
    pub(super) handles: BTreeMap<HandleId, AhId>,
    /// The groups that the queue pair is attached to.
    pub(super) groups: BTreeSet<(Mgid, Mlid)>,
    /// Sends that were posted and have not completed.
    pub(super) posted: BTreeMap<u64, Posted>,
    /// `None` without reliable connections.
    pub(super) links: Option<Links>,
    /// What the interface may post no more: it reported that it is detached.
    pub(super) is_retired: bool,
}

/// What a send was posted on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Posted {
    /// A datagram, with its address handle.
    Datagram(HandleId),
    /// A message of a connection.
    Message(ConnectionId),
}

/// A packet that the interface took and has neither posted nor ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) since: Instant,
    pub(super) to: LinkAddress,
}

/// A packet that the interface will not send because it is larger than `mtu`.
#[derive(Debug)]
pub(super) struct TooBig {
    pub(super) packet: Packet,
    pub(super) mtu: usize,
    /// To whom it was to go.
    pub(super) to: Option<LinkAddress>,
}

/// What the data path was told while the interface was locked.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) delivered: VecDeque<(Packet, Delivery)>,
    pub(super) too_big: VecDeque<TooBig>,
    /// Since the interface was attached.
    pub(super) drops: BTreeMap<DropReason, u64>,
    pub(super) delivered_count: u64,
    pub(super) too_big_count: u64,
    /// By the place of their last byte. The place never decides over an order.
    pub(super) held: BTreeMap<usize, Held>,
    /// What the administrator asked for.
    pub(super) connected_mtu: usize,
    /// What a correct interface never does.
    pub(super) misdeeds: Vec<String>,
}

impl Adapter {
    /// Makes a queue pair on a port; `context` comes with its notifications.
    pub(super) fn open(
        fabric: &mut Fabric,
        site: &Site,
        limits: &Limits,
        context: u64,
    ) -> Result<Self, CreateError> {
        let &Site { hca, port, gid, .. } = site;
        let send_cq = fabric.create_cq(hca, limits.send_queue_len, context)?;
        let receive_cq = fabric.create_cq(hca, limits.receive_queue_len, context)?;
        let config = QpConfig {
            qp_type: QpType::Ud,
            send_cq,
            receive_cq,
            sends_max: limits.send_queue_len,
            receives_max: limits.receive_queue_len,
        };
        let qp = fabric.create_qp(port, &config)?;
        let qpn = fabric.qpn(qp).ok_or(CreateError::Unknown)?;
        let links = match &site.support {
            Some(support) => Some(Links::open(fabric, hca, context, limits, support)?),
            None => None,
        };
        let adapter = Self {
            qp,
            qpn,
            send_cq,
            receive_cq,
            handles: BTreeMap::new(),
            groups: BTreeSet::new(),
            posted: BTreeMap::new(),
            links,
            gid,
            is_retired: false,
        };
        adapter.arm(fabric);
        Ok(adapter)
    }

    /// Destroys everything. False if something refused.
    pub(super) fn close(self, fabric: &mut Fabric) -> bool {
        // Connections complete in the other queues as well.
        self.links.is_none_or(|links| links.close(fabric))
            && self.handles.into_values().all(|handle| fabric.destroy_ah(handle).is_ok())
            && fabric.destroy_qp(self.qp).is_ok()
            && fabric.destroy_cq(self.send_cq).is_ok()
            && fabric.destroy_cq(self.receive_cq).is_ok()
    }

    pub(super) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(super) const fn send_cq(&self) -> CqId {
        self.send_cq
    }

    pub(super) fn cqs(&self) -> impl Iterator<Item = CqId> + use<> {
        let links = self.links.as_ref().map(|links| links.cq);
        [Some(self.send_cq), Some(self.receive_cq), links].into_iter().flatten()
    }

    pub(super) fn is_connected_cq(&self, cq: CqId) -> bool {
        self.links.as_ref().is_some_and(|links| links.cq == cq)
    }

    /// Asks for notifications. Whether there is something to poll already.
    pub(super) fn arm(&self, fabric: &mut Fabric) -> bool {
        let mut has_some = false;
        for cq in self.cqs() {
            has_some |= fabric.req_notify(cq);
        }
        has_some
    }

    pub(super) fn attach(
        &mut self,
        fabric: &mut Fabric,
        mgid: Mgid,
        mlid: Mlid,
    ) -> Result<(), VerbError> {
        let attached = fabric.attach_multicast(self.qp, mgid, mlid);
        attached.map_err(|_| VerbError)?;
        self.groups.insert((mgid, mlid));
        Ok(())
    }

    pub(super) fn detach(
        &mut self,
        fabric: &mut Fabric,
        mgid: Mgid,
        mlid: Mlid,
    ) -> Result<(), VerbError> {
        let detached = fabric.detach_multicast(self.qp, mgid, mlid);
        detached.map_err(|_| VerbError)?;
        self.groups.remove(&(mgid, mlid));
        Ok(())
    }

    pub(super) fn modify(
        &mut self,
        fabric: &mut Fabric,
        change: QueuePairChange,
    ) -> Result<(), VerbError> {
        let mut modify = |change| fabric.modify_qp(self.qp, &change).map_err(|_| VerbError);
        match change {
            QueuePairChange::Error => modify(QpChange::Error),
            QueuePairChange::ReadyToSend { pkey_index, qkey } => {
                modify(QpChange::Init { pkey_index, qkey })?;
                modify(QpChange::ReadyToReceive)?;
                modify(QpChange::ReadyToSend)
            }
            QueuePairChange::Reset => {
                modify(QpChange::Reset)?;
                // No completion of before will come.
                self.posted.retain(|_, posted| matches!(posted, Posted::Message(_)));
                Ok(())
            }
            QueuePairChange::SetQkey { qkey } => modify(QpChange::SetQkey(qkey)),
        }
    }
}

/// What tells a packet from every other that exists: where its buffer ends. The start moves when a
/// header is put in front.
pub(super) fn identity(packet: &Packet) -> usize {
    packet.bytes().as_ptr_range().end.addr()
}

/// The queues of the adapter, while the interface is locked.
pub(super) struct Queues<'a> {
    pub(super) adapter: &'a mut Adapter,
    pub(super) fabric: &'a mut Fabric,
    pub(super) faults: &'a mut Faults,
    pub(super) records: &'a mut Records,
    pub(super) streams: &'a mut Streams,
    pub(super) planted: Option<Planted>,
}

impl Queues<'_> {
    /// The interface holds the packet no more.
    fn let_go(&mut self, packet: &Packet) -> Option<Held> {
        self.records.held.remove(&identity(packet))
    }

    fn note(&mut self, misdeed: String) {
        self.records.misdeeds.push(misdeed);
    }

    /// A bug to be found: a message of a connection leaves as a datagram, whatever its length is.
    fn post_as_datagram(&mut self, id: SendId, packet: Packet) -> Result<(), RefusedSend> {
        let Some(&ah) = self.adapter.handles.values().next() else {
            return Err(RefusedSend { error: PostError::UnknownHandle, packet });
        };
        let request = SendRequest {
            wr_id: id.to_bits(),
            ah,
            remote_qpn: self.adapter.qpn,
            qkey: Qkey(0),
            pkey_index: PkeyIndex::default(),
        };
        self.fabric.post_send(self.adapter.qp, request, packet)
    }

    fn check_retired(&mut self, what: &str) {
        if self.adapter.is_retired {
            self.records
                .misdeeds
                .push(format!("{what} after the interface reported that it is detached"));
        }
    }
}

impl PacketSink<Packet> for Queues<'_> {
    fn deliver(&mut self, packet: Packet, delivery: Delivery) {
        self.check_retired("delivered a packet");
        self.records.delivered_count += 1;
        self.records.delivered.push_back((packet, delivery));
    }

    fn drop_packet(&mut self, packet: Packet, reason: DropReason) {
        let held = self.let_go(&packet);
        if reason == DropReason::TooBigSilent
            && let Some(held) = held
            && let Some(due) = size::due(&packet, &held.to)
        {
            self.note(format!("a packet of {} bytes was dropped: {due:?} is due", packet.len()));
        }
        *self.records.drops.entry(reason).or_default() += 1;
        self.fabric.pool_mut().free(packet);
    }

    fn packet_too_big(&mut self, packet: Packet, mtu: usize) {
        if self.planted == Some(Planted::Silence) {
            return self.drop_packet(packet, DropReason::TooBigSilent);
        }
        if packet.len() <= mtu {
            self.note(format!("a packet of {} bytes is no larger than {mtu}", packet.len()));
        }
        let to = self.let_go(&packet).map(|held| held.to);
        if to.is_some_and(|to| size::due(&packet, &to) != Some(Due::Report)) {
            self.note(format!("a packet of {} bytes was reported as too big", packet.len()));
        }
        let mtu = if self.planted == Some(Planted::WrongMtu) { mtu - 4 } else { mtu };
        self.records.too_big_count += 1;
        self.records.too_big.push_back(TooBig { packet, mtu, to });
    }

    fn release(&mut self, packet: Packet) {
        self.let_go(&packet);
        self.fabric.pool_mut().free(packet);
    }
}

impl DataPath<Packet> for Queues<'_> {
    fn post_send(&mut self, send: DatagramSend, packet: Packet) -> Result<(), Packet> {
        self.check_retired("posted a send");
        let Some(&ah) = self.adapter.handles.get(&send.handle) else {
            self.records
                .misdeeds
                .push(format!("posted a send with {:?}, which does not exist", send.handle));
            return Err(packet);
        };
        if self.faults.refuses_send() {
            return Err(packet);
        }
        let request = SendRequest {
            wr_id: send.id.to_bits(),
            ah,
            remote_qpn: send.remote_qpn,
            qkey: send.qkey,
            pkey_index: PkeyIndex::default(),
        };
        let identity = identity(&packet);
        match self.fabric.post_send(self.adapter.qp, request, packet) {
            Ok(()) => {
                self.records.held.remove(&identity);
                let posted = Posted::Datagram(send.handle);
                if self.adapter.posted.insert(send.id.to_bits(), posted).is_some() {
                    self.records.misdeeds.push(format!("posted {:?} twice", send.id));
                }
                Ok(())
            }
            Err(refused) => Err(refused.packet),
        }
    }

    fn post_connected_send(&mut self, send: ConnectedSend, packet: Packet) -> Result<(), Packet> {
        self.check_retired("posted a message");
        let ConnectedSend { id, connection } = send;
        let link = self.adapter.links.as_ref().and_then(|links| links.get(connection).copied());
        let Some(Link { qp, state: LinkState::Outgoing, remote: Some(remote), .. }) = link else {
            self.note(format!("posted {send:?} on what is no connection"));
            return Err(packet);
        };
        let bytes = packet.len();
        if bytes > remote.receive_mtu as usize {
            self.note(format!("{bytes} bytes to a peer that receives {}", remote.receive_mtu));
        }
        if bytes > self.records.connected_mtu + ENCAPSULATION_BYTES {
            let mtu = self.records.connected_mtu;
            self.note(format!("{bytes} bytes with an MTU of {mtu}"));
        }
        if self.faults.refuses_send() {
            return Err(packet);
        }
        let identity = identity(&packet);
        let sender = self.fabric.qpn(qp).map(|qpn| (self.adapter.gid, qpn));
        let print = Streams::print(packet.bytes());
        let posted = match self.planted {
            Some(Planted::WrongQueue) => self.post_as_datagram(id, packet),
            Some(_) | None => self.fabric.post_message(qp, id.to_bits(), packet),
        };
        match posted {
            Ok(()) => {
                self.records.held.remove(&identity);
                if let Some(sender) = sender {
                    self.streams.on_posted(sender, print);
                }
                let posted = Posted::Message(connection);
                if self.adapter.posted.insert(id.to_bits(), posted).is_some() {
                    self.note(format!("posted {id:?} twice"));
                }
                Ok(())
            }
            Err(refused) => Err(refused.packet),
        }
    }

    fn post_connected_receive(
        &mut self,
        queue: ReceiveQueue,
        bytes: usize,
    ) -> Result<(), PostReceiveError> {
        self.check_retired("posted a receive for connections");
        if self.faults.refuses_receive() {
            return Err(PostReceiveError);
        }
        let request = ReceiveRequest { wr_id: 0, bytes: bytes as u32 };
        let links = self.adapter.links.as_ref();
        let posted = match queue {
            ReceiveQueue::Shared => {
                let srq = links.and_then(|links| links.srq);
                srq.map(|srq| self.fabric.post_srq_receive(srq, request))
            }
            ReceiveQueue::Of(connection) => {
                let qp = links.and_then(|links| Some(links.get(connection)?.qp));
                qp.map(|qp| self.fabric.post_receive(qp, request))
            }
        };
        match posted {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                self.note(format!("a receive on {queue:?} is not possible: {error:?}"));
                Err(PostReceiveError)
            }
            None => {
                self.note(format!("a receive on {queue:?}, which does not exist"));
                Err(PostReceiveError)
            }
        }
    }

    fn post_receive(&mut self, bytes: usize) -> Result<(), PostReceiveError> {
        self.check_retired("posted a receive");
        if self.faults.refuses_receive() {
            return Err(PostReceiveError);
        }
        let bytes = u32::try_from(bytes).map_err(|_| PostReceiveError)?;
        let request = ReceiveRequest { wr_id: 0, bytes };
        self.fabric.post_receive(self.adapter.qp, request).map_err(|_| PostReceiveError)
    }

    fn fragment(
        &mut self,
        packet: &Packet,
        header: &[u8],
        payload: Range<usize>,
    ) -> Option<Packet> {
        let payload = packet.bytes().get(payload)?;
        let bytes = header.len() + payload.len();
        let mut fragment = self.fabric.allocate(bytes)?;
        let (head, rest) = fragment.bytes_mut().split_at_mut(header.len());
        head.copy_from_slice(header);
        rest.copy_from_slice(payload);
        Some(fragment)
    }
}
