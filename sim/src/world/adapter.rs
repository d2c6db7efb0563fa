//! The adapter's side of an interface: its queue pair, its address handles, its data path.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use fabric::address::AhId;
use fabric::cq::CqId;
use fabric::packet::Packet;
use fabric::port::PortId;
use fabric::qp::{QpChange, QpConfig, QpId, QpType, ReceiveRequest, SendRequest};
use fabric::{CreateError, Fabric};
use ipoib_rs::action::{HandleId, QueuePairChange, VerbError};
use ipoib_rs::counters::DropReason;
use ipoib_rs::ib::{Mgid, Mlid, PkeyIndex, Qpn};
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::{DataPath, DatagramSend, Delivery, PacketBuf, PacketSink, PostReceiveError};
use ipoib_rs::time::Instant;

use super::faults::Faults;

/// What an interface owns on its adapter.
#[derive(Debug)]
pub(super) struct Adapter {
    qp: QpId,
    qpn: Qpn,
    send_cq: CqId,
    receive_cq: CqId,
    pub(super) handles: BTreeMap<HandleId, AhId>,
    /// The groups that the queue pair is attached to.
    pub(super) groups: BTreeSet<(Mgid, Mlid)>,
    /// Sends that were posted and have not completed.
    pub(super) posted: BTreeMap<u64, HandleId>,
    /// What the interface may post no more: it reported that it is detached.
    pub(super) is_retired: bool,
}

/// What the data path was told while the interface was locked.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) delivered: VecDeque<(Packet, Delivery)>,
    pub(super) too_big: VecDeque<(Packet, usize)>,
    /// Since the interface was attached.
    pub(super) drops: BTreeMap<DropReason, u64>,
    pub(super) delivered_count: u64,
    pub(super) too_big_count: u64,
    /// Packets that the interface took and has neither posted nor ended, by the place of their
    /// last byte, and since when. The place never decides over an order.
    pub(super) held: BTreeMap<usize, Instant>,
    /// What a correct interface never does.
    pub(super) misdeeds: Vec<String>,
}

impl Adapter {
    /// Makes a queue pair on a port; `context` comes with its notifications.
    pub(super) fn open(
        fabric: &mut Fabric,
        port: PortId,
        limits: &Limits,
        context: u64,
    ) -> Result<Self, CreateError> {
        let hca = fabric.query_port(port).ok_or(CreateError::Unknown)?.hca;
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
        let adapter = Self {
            qp,
            qpn,
            send_cq,
            receive_cq,
            handles: BTreeMap::new(),
            groups: BTreeSet::new(),
            posted: BTreeMap::new(),
            is_retired: false,
        };
        adapter.arm(fabric);
        Ok(adapter)
    }

    /// Destroys the queue pair. False if something refused.
    pub(super) fn close(self, fabric: &mut Fabric) -> bool {
        fabric.destroy_qp(self.qp).is_ok()
            && fabric.destroy_cq(self.send_cq).is_ok()
            && fabric.destroy_cq(self.receive_cq).is_ok()
    }

    pub(super) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(super) const fn cqs(&self) -> [CqId; 2] {
        [self.send_cq, self.receive_cq]
    }

    /// Asks for notifications. Whether there is something to poll already.
    pub(super) fn arm(&self, fabric: &mut Fabric) -> bool {
        let has_sends = fabric.req_notify(self.send_cq);
        let has_receives = fabric.req_notify(self.receive_cq);
        has_sends || has_receives
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
                self.posted.clear();
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
}

impl Queues<'_> {
    /// The interface holds the packet no more.
    fn let_go(&mut self, packet: &Packet) {
        self.records.held.remove(&identity(packet));
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
        self.let_go(&packet);
        *self.records.drops.entry(reason).or_default() += 1;
        self.fabric.pool_mut().free(packet);
    }

    fn packet_too_big(&mut self, packet: Packet, mtu: usize) {
        if packet.len() <= mtu {
            self.records.misdeeds.push(format!(
                "a packet of {} bytes was reported as larger than {mtu}",
                packet.len()
            ));
        }
        self.let_go(&packet);
        self.records.too_big_count += 1;
        self.records.too_big.push_back((packet, mtu));
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
                if self.adapter.posted.insert(send.id.to_bits(), send.handle).is_some() {
                    self.records.misdeeds.push(format!("posted {:?} twice", send.id));
                }
                Ok(())
            }
            Err(refused) => Err(refused.packet),
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
