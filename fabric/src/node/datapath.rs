//! The queues of an interface, as the core sees them.

use alloc::vec::Vec;
use core::ops::Range;

use ipoib_rs::action::Action;
use ipoib_rs::counters::DropReason;
use ipoib_rs::event::Event;
use ipoib_rs::ib::{PkeyIndex, Qpn};
use ipoib_rs::interface::Interface;
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::{
    ConnectedSend, DataPath, DatagramSend, Delivery, PacketSink, PostReceiveError, ReceiveQueue,
};
use ipoib_rs::pump::{PumpingShell, Shell};
use ipoib_rs::time::Instant;

use super::links::Links;
use super::outputs::{Delivered, HostEvent, Outputs, TooBig};
use super::{
    CqId, CreateError, Fabric, InterfaceConfig, InterfaceId, Packet, PortId, QpConfig, QpId,
    QpType, Slot,
};
use crate::address::AhId;
use crate::qp::{ReceiveRequest, SendRequest};

/// What an interface has of the adapter.
#[derive(Debug)]
pub(super) struct Wiring {
    pub(super) qp: QpId,
    pub(super) qpn: Qpn,
    pub(super) send_cq: CqId,
    pub(super) receive_cq: CqId,
    /// By [`ipoib_rs::action::HandleId::index`].
    pub(super) handles: Vec<Option<AhId>>,
    /// `None` without reliable connections.
    pub(super) links: Option<Links>,
    pub(super) posts_to_refuse: u32,
    pub(super) limits: Limits,
}

impl Wiring {
    /// Makes the queue pair of an interface, what its connections share, and completion queues,
    /// armed.
    pub(super) fn open(
        fabric: &mut Fabric,
        port: PortId,
        context: u64,
        config: &InterfaceConfig,
    ) -> Result<Self, CreateError> {
        let limits = &config.limits;
        let hca = fabric.query_port(port).ok_or(CreateError::Unknown)?.hca;
        let handle_count = limits.handles_max() as usize;
        let mut handles = Vec::new();
        handles.try_reserve_exact(handle_count).map_err(|_| CreateError::OutOfMemory)?;
        handles.resize(handle_count, None);
        let send_cq = fabric.create_cq(hca, limits.send_queue_len, context)?;
        let receive_cq = match fabric.create_cq(hca, limits.receive_queue_len, context) {
            Ok(cq) => cq,
            Err(error) => {
                let _ = fabric.destroy_cq(send_cq);
                return Err(error);
            }
        };
        let qp_config = QpConfig {
            qp_type: QpType::Ud,
            send_cq,
            receive_cq,
            sends_max: limits.send_queue_len,
            receives_max: limits.receive_queue_len,
        };
        let made = fabric
            .create_qp(port, &qp_config)
            .and_then(|qp| Ok((qp, fabric.qpn(qp).ok_or(CreateError::Unknown)?)));
        let (qp, qpn) = match made {
            Ok(made) => made,
            Err(error) => {
                let _ = fabric.destroy_cq(send_cq);
                let _ = fabric.destroy_cq(receive_cq);
                return Err(error);
            }
        };
        fabric.req_notify(send_cq);
        fabric.req_notify(receive_cq);
        let mut wiring = Self {
            qp,
            qpn,
            send_cq,
            receive_cq,
            handles,
            links: None,
            posts_to_refuse: 0,
            limits: *limits,
        };
        if let Some(support) = &config.connected {
            match Links::open(fabric, hca, context, limits, support) {
                Ok(links) => wiring.links = Some(links),
                Err(error) => {
                    wiring.close(fabric);
                    return Err(error);
                }
            }
        }
        Ok(wiring)
    }

    /// Destroys everything.
    pub(super) fn close(self, fabric: &mut Fabric) {
        // Connections complete in the other queues as well.
        if let Some(links) = self.links {
            links.close(fabric);
        }
        let is_destroyed = fabric.destroy_qp(self.qp).is_ok()
            && fabric.destroy_cq(self.send_cq).is_ok()
            && fabric.destroy_cq(self.receive_cq).is_ok();
        debug_assert!(is_destroyed, "only this value destroys them");
        for handle in self.handles.into_iter().flatten() {
            let _ = fabric.destroy_ah(handle);
        }
    }

    /// Whether a fault that was asked for hits this post.
    fn refuses_post(&mut self) -> bool {
        let refuses = self.posts_to_refuse > 0;
        self.posts_to_refuse = self.posts_to_refuse.saturating_sub(1);
        refuses
    }
}

/// The queues of an interface while it is locked.
#[derive(Debug)]
pub(super) struct NodePath<'a> {
    pub(super) id: InterfaceId,
    pub(super) wiring: &'a mut Wiring,
    pub(super) outputs: &'a mut Outputs,
    pub(super) fabric: &'a mut Fabric,
}

impl PacketSink<Packet> for NodePath<'_> {
    fn deliver(&mut self, packet: Packet, delivery: Delivery) {
        let delivered = Delivered { interface: self.id, packet, delivery };
        if let Err(packet) = self.outputs.push_delivered(delivered) {
            self.fabric.pool_mut().free(packet);
        }
    }

    fn drop_packet(&mut self, packet: Packet, _reason: DropReason) {
        self.fabric.pool_mut().free(packet);
    }

    fn release(&mut self, packet: Packet) {
        self.fabric.pool_mut().free(packet);
    }

    fn packet_too_big(&mut self, packet: Packet, mtu: usize) {
        let too_big = TooBig { interface: self.id, packet, mtu };
        if let Err(packet) = self.outputs.push_too_big(too_big) {
            self.fabric.pool_mut().free(packet);
        }
    }
}

impl DataPath<Packet> for NodePath<'_> {
    fn post_send(&mut self, send: DatagramSend, packet: Packet) -> Result<(), Packet> {
        let handle = self.wiring.handles.get(send.handle.index());
        let Some(ah) = handle.copied().flatten() else {
            return Err(packet);
        };
        if self.wiring.refuses_post() {
            return Err(packet);
        }
        let request = SendRequest {
            wr_id: send.id.to_bits(),
            ah,
            remote_qpn: send.remote_qpn,
            qkey: send.qkey,
            pkey_index: PkeyIndex::default(),
        };
        self.fabric.post_send(self.wiring.qp, request, packet).map_err(|refused| refused.packet)
    }

    fn post_connected_send(&mut self, send: ConnectedSend, packet: Packet) -> Result<(), Packet> {
        let links = self.wiring.links.as_ref();
        let Some(qp) = links.and_then(|links| Some(links.get(send.connection)?.qp)) else {
            return Err(packet);
        };
        if self.wiring.refuses_post() {
            return Err(packet);
        }
        let posted = self.fabric.post_message(qp, send.id.to_bits(), packet);
        posted.map_err(|refused| refused.packet)
    }

    fn post_connected_receive(
        &mut self,
        queue: ReceiveQueue,
        bytes: usize,
    ) -> Result<(), PostReceiveError> {
        if self.wiring.refuses_post() {
            return Err(PostReceiveError);
        }
        let links = self.wiring.links.as_ref().ok_or(PostReceiveError)?;
        let request = ReceiveRequest { wr_id: 0, bytes: bytes as u32 };
        let posted = match queue {
            ReceiveQueue::Shared => {
                let srq = links.srq.ok_or(PostReceiveError)?;
                self.fabric.post_srq_receive(srq, request)
            }
            ReceiveQueue::Of(connection) => {
                let qp = links.get(connection).ok_or(PostReceiveError)?.qp;
                self.fabric.post_receive(qp, request)
            }
        };
        posted.map_err(|_| PostReceiveError)
    }

    fn post_receive(&mut self, bytes: usize) -> Result<(), PostReceiveError> {
        if self.wiring.refuses_post() {
            return Err(PostReceiveError);
        }
        let request = ReceiveRequest { wr_id: 0, bytes: bytes as u32 };
        self.fabric.post_receive(self.wiring.qp, request).map_err(|_| PostReceiveError)
    }

    fn fragment(
        &mut self,
        packet: &Packet,
        header: &[u8],
        payload: Range<usize>,
    ) -> Option<Packet> {
        let payload = packet.bytes().get(payload)?;
        let mut fragment = self.fabric.allocate(header.len() + payload.len())?;
        let (front, back) = fragment.bytes_mut().split_at_mut(header.len());
        front.copy_from_slice(header);
        back.copy_from_slice(payload);
        Some(fragment)
    }
}

/// An interface and its surroundings, for the pump.
#[derive(Debug)]
pub(super) struct NodeShell<'n> {
    pub(super) id: InterfaceId,
    pub(super) slot: &'n mut Slot,
    pub(super) outputs: &'n mut Outputs,
    pub(super) fabric: &'n mut Fabric,
}

impl Shell for NodeShell<'_> {
    type Packet = Packet;
    type DataPath<'a> = NodePath<'a>;

    fn with_interface<R>(
        &mut self,
        feed: impl FnOnce(&mut Interface<Packet>, &mut NodePath<'_>) -> R,
    ) -> R {
        let mut path = NodePath {
            id: self.id,
            wiring: &mut self.slot.wiring,
            outputs: self.outputs,
            fabric: self.fabric,
        };
        feed(&mut self.slot.interface, &mut path)
    }

    fn release_packets(&mut self) {
        // The data path put them where the host polls for them.
    }
}

impl PumpingShell for NodeShell<'_> {
    fn observe(&mut self, event: Event) {
        self.slot.is_detached |= event == Event::Detached;
        self.outputs.push_event(self.id, HostEvent::State(event));
    }

    fn execute(&mut self, action: Action) {
        self.outputs.push_action(self.id, action);
    }

    fn schedule(&mut self, deadline: Option<Instant>) {
        self.slot.deadline = deadline;
    }
}

impl super::Node {
    /// Feeds one input to an interface; nothing if it was removed.
    pub(super) fn pump<R>(
        &mut self,
        fabric: &mut Fabric,
        id: InterfaceId,
        feed: impl FnOnce(&mut Interface<Packet>, &mut NodePath<'_>) -> R,
    ) -> Option<R> {
        let mut shell = self.shell(fabric, id)?;
        Some(ipoib_rs::pump::pump(&mut shell, feed))
    }
}
