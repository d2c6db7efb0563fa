//! From the adapter to the network stack.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::action::Target;
use crate::counters::{Counter, DropReason};
use crate::ib::Qpn;
use crate::limits::RECEIVE_REFILL;
use crate::packet::{Cast, DataPath, Delivery, PacketBuf, Receive};
use crate::path::PathState;
use crate::time::Instant;
use crate::wire::{
    AddressFlags, Encapsulation, EtherType, GRH_BYTES, Grh, LINK_ADDRESS_BYTES, LinkAddress,
};

use super::Interface;
use super::link::Lifecycle;

/// What stands in front of every payload.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Front {
    grh: Grh,
    encapsulation: Encapsulation,
}

const FRONT_BYTES: usize = size_of::<Front>();

/// The front of an ARP packet (RFC 826) up to the sender's link-layer address.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct ArpFront {
    types: [u8; 4],
    link_address_bytes: u8,
    rest: [u8; 3],
    sender: LinkAddress,
}

impl<B: PacketBuf> Interface<B> {
    pub(super) fn on_receive(&mut self, receive: Receive<B>, datapath: &mut impl DataPath<B>) {
        let reason = match self.lifecycle {
            Lifecycle::Joined | Lifecycle::Joining => None,
            Lifecycle::Down
            | Lifecycle::AwaitingPartition
            | Lifecycle::AwaitingPort
            | Lifecycle::Opening
            | Lifecycle::Draining
            | Lifecycle::Detached => Some(DropReason::ReceivedWhileDown),
        };
        if let Some(reason) = reason {
            self.drop_packet(receive.packet, reason, datapath);
            return;
        }
        let Receive { mut packet, has_grh, source_lid, source_qpn } = receive;
        // Hazard H8: a frame may be shorter than the two headers.
        let mut front = [0; FRONT_BYTES];
        let bytes = packet.len() - GRH_BYTES.min(packet.len());
        let is_whole = packet.copy_out(0, &mut front).is_ok();
        let front = Front::read_from_bytes(&front).ok().filter(|_| is_whole);
        let (Some(front), Ok(())) = (front, packet.trim_front(FRONT_BYTES)) else {
            self.drop_packet(packet, DropReason::FrameTooShort, datapath);
            return;
        };
        let protocol = front.encapsulation.protocol();
        let grh = has_grh.then_some(&front.grh);
        let cast = self.cast_of(grh);
        let is_own =
            source_qpn == self.qpn && self.port.lid.is_some_and(|lid| lid.value() == source_lid);
        if is_own && cast != Cast::Unicast {
            self.drop_packet(packet, DropReason::OwnMulticast, datapath);
            return;
        }
        self.notice_source(grh, protocol, &packet, source_lid, source_qpn);
        self.counters.count(Counter::PacketsReceived);
        self.counters.add(Counter::BytesReceived, bytes as u64);
        if cast != Cast::Unicast {
            self.counters.count(Counter::MulticastReceived);
        }
        datapath.deliver(packet, Delivery { protocol, cast });
    }

    /// Decided by the destination GID of the GRH, as report B29 asks. Without a GRH it is unicast,
    /// and the 40 bytes in its place are not looked at.
    fn cast_of(&self, grh: Option<&Grh>) -> Cast {
        let Some(group) = grh.map(|grh| grh.destination).filter(|gid| gid.is_multicast()) else {
            return Cast::Unicast;
        };
        if self.broadcast().is_some_and(|mgid| mgid.gid() == group) {
            Cast::Broadcast
        } else {
            Cast::Multicast
        }
    }

    /// A frame that comes from another LID than its sender's path leads to proves that path old:
    /// the subnet manager moved the sender and told only the sender. Senders are known by their GID
    /// in a GRH, or by their address in ARP.
    fn notice_source(
        &mut self,
        grh: Option<&Grh>,
        protocol: EtherType,
        packet: &B,
        source_lid: u16,
        source_qpn: Qpn,
    ) {
        if let Some(grh) = grh {
            for flags in [AddressFlags::empty(), AddressFlags::RC] {
                let sender = LinkAddress::new(flags, source_qpn, grh.source);
                self.compare_lid(&sender, source_lid);
            }
        } else if protocol == EtherType::ARP {
            let mut front = [0; size_of::<ArpFront>()];
            if packet.copy_out(0, &mut front).is_err() {
                return;
            }
            let Ok(ArpFront { types: _, link_address_bytes, rest: _, sender }) =
                ArpFront::read_from_bytes(&front)
            else {
                return;
            };
            // Nobody else may speak for the sender.
            if usize::from(link_address_bytes) == LINK_ADDRESS_BYTES && sender.qpn() == source_qpn {
                self.compare_lid(&sender, source_lid);
            }
        }
    }

    fn compare_lid(&mut self, sender: &LinkAddress, source_lid: u16) {
        let Some(place) = self.paths.find(sender) else {
            return;
        };
        let Some(path) = self.paths.get(place) else {
            return;
        };
        if let PathState::Ready { record, .. } = path.state
            && record.lid.value() != source_lid
        {
            self.on_path_moved(place);
        }
    }

    /// After a receive ended: another one is posted, or the drain goes on.
    pub(super) fn after_receive(&mut self, now: Instant, datapath: &mut impl DataPath<B>) {
        self.queue_pair.receives_posted = self.queue_pair.receives_posted.saturating_sub(1);
        self.refill_receives(now, datapath);
        self.after_completion(now, datapath);
    }

    /// Posts receives up to the limit. What cannot be posted is tried again after a while, since no
    /// completion may come to do so.
    pub(super) fn refill_receives(&mut self, now: Instant, datapath: &mut impl DataPath<B>) {
        if self.queue_pair.state.open_index().is_none() {
            return;
        }
        let bytes = GRH_BYTES + self.port.mtu.bytes();
        while self.queue_pair.receives_posted < self.limits.receive_queue_len {
            if datapath.post_receive(bytes).is_err() {
                self.counters.count(Counter::ReceivePostFailed);
                self.set_timer(Target::QueuePair, Some(now + RECEIVE_REFILL));
                return;
            }
            self.queue_pair.receives_posted += 1;
        }
    }
}
