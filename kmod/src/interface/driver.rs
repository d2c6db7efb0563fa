//! What the network stack asks of an interface.

use core::sync::atomic::Ordering;

use ipoib_rs::counters::Counter;
use ipoib_rs::interface::{Interface as Core, Mode, ModeError, RingFull};
use ipoib_rs::limits::MTU_MIN;
use ipoib_rs::packet::{Delivery, PacketBuf};
use ipoib_rs::wire::{
    EtherType, LINK_ADDRESS_BYTES, LinkAddress, NEIGHBOR_DISCOVERY_BYTES_MAX, OptionPadding,
    is_neighbor_discovery, rewrite_address_options,
};
use kpi::context::{InNetEpoch, MaySleep, Unlocked};
use kpi::errno::Errno;
use kpi::ifnet::{InterfaceCounter, LinkHeader};
use kpi::mbuf::Packet;
use kpi::time;
use zerocopy::IntoBytes;

use crate::sysctl::Admin;

use super::Interface;
use super::queues::Path;

impl Admin for Interface {
    fn look(&self, look: &mut dyn FnMut(&Core<Packet>), may_sleep: &mut MaySleep) {
        self.core.with(may_sleep, |locked, _| look(&locked.core));
    }

    fn set_mode(&self, mode: Mode, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        let now = time::now();
        self.feed(may_sleep, |core, path| core.handle_mode(now, mode, path))
            .map_err(|ModeError::Unsupported| Errno::EOPNOTSUPP)
    }

    fn set_connected_mtu(&self, mtu: usize, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        self.feed(may_sleep, |core, _| core.handle_connected_mtu(mtu)).map_err(|_| Errno::EINVAL)
    }

    fn normalizes_nd(&self) -> bool {
        self.normalizes_nd.load(Ordering::Relaxed)
    }

    fn set_normalizes_nd(&self, normalizes: bool) {
        self.normalizes_nd.store(normalizes, Ordering::Relaxed);
    }
}

impl Interface {
    pub(super) fn transmit(
        &self,
        header: LinkHeader,
        mut packet: Packet,
        epoch: &mut InNetEpoch,
    ) -> Result<(), Errno> {
        if header.protocol == EtherType::IPV6 {
            self.normalize(&mut packet, OptionPadding::Before);
        }
        // As it is on the fabric.
        self.net.tap_output(&header, &packet);
        self.feed(epoch, |core, path| {
            if !path.queues.waiting.is_empty() {
                // Others wait already: this one goes behind them.
                return wait(header, packet, path);
            }
            match offer(core, path, header, packet) {
                Ok(()) => Ok(()),
                Err(RingFull(packet)) => wait(header, packet, path),
            }
        })
    }

    /// Offers what waited for room in the send ring.
    pub(super) fn send_waiting(&self, may_sleep: &mut MaySleep) {
        self.feed(may_sleep, |core, path| {
            while let Some((mut packet, _)) = path.queues.waiting.pop() {
                let Some(header) = take_header(&mut packet) else {
                    path.records.end(packet);
                    continue;
                };
                if let Err(RingFull(packet)) = offer(core, path, header, packet) {
                    // It was the first.
                    wait_in_front(header, packet, path);
                    return;
                }
            }
        });
    }

    pub(super) fn flush_queue(&self, unlocked: &mut Unlocked) {
        self.feed(unlocked, |_, path| {
            while let Some((packet, _)) = path.queues.waiting.pop() {
                path.records.end(packet);
            }
        });
    }

    pub(super) fn input(&self, mut packet: Packet, delivery: Delivery, epoch: &mut InNetEpoch) {
        self.net.tap_input(&packet, delivery);
        if delivery.protocol == EtherType::IPV6 {
            self.normalize(&mut packet, OptionPadding::Behind);
        }
        self.net.input(packet, delivery, epoch);
    }

    pub(super) fn set_up(&self, is_up: bool, may_sleep: &mut MaySleep) {
        let now = time::now();
        self.feed(may_sleep, |core, path| {
            if is_up {
                core.handle_admin_up(now, path);
            } else {
                core.handle_admin_down(now, path);
            }
        });
    }

    /// In connected mode it is the limit for all neighbours; in datagram mode the broadcast group
    /// has one, and the stack may have a smaller one.
    pub(super) fn set_mtu(&self, mtu: usize, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        self.feed(may_sleep, |core, _| match core.mode() {
            Mode::Datagram if (MTU_MIN..=core.datagram_mtu()).contains(&mtu) => Ok(()),
            Mode::Datagram => Err(Errno::EINVAL),
            Mode::Connected => core.handle_connected_mtu(mtu).map_err(|_| Errno::EINVAL),
        })
    }

    /// The largest one that [`Self::set_mtu`] takes.
    pub(super) fn mtu_max(&self, unlocked: &mut Unlocked) -> usize {
        self.core.with(unlocked, |locked, _| match locked.core.mode() {
            Mode::Datagram => locked.core.datagram_mtu(),
            Mode::Connected => self.hardware.connected.mtu_max,
        })
    }

    pub(super) fn counter(&self, counter: InterfaceCounter, unlocked: &mut Unlocked) -> u64 {
        self.core.with(unlocked, |locked, _| {
            let counters = locked.core.counters();
            match counter {
                InterfaceCounter::PacketsIn => counters[Counter::PacketsReceived],
                InterfaceCounter::ErrorsIn => counters[Counter::ReceiveFailed],
                InterfaceCounter::BytesIn => counters[Counter::BytesReceived],
                InterfaceCounter::MulticastIn => counters[Counter::MulticastReceived],
                InterfaceCounter::DropsIn => 0,
                InterfaceCounter::PacketsOut => counters[Counter::PacketsSent],
                InterfaceCounter::ErrorsOut => counters[Counter::SendFailed],
                InterfaceCounter::BytesOut => counters[Counter::BytesSent],
                InterfaceCounter::MulticastOut => counters[Counter::MulticastSent],
                InterfaceCounter::DropsOut => counters.drops_total(),
            }
        })
    }

    /// The mode and the MTU.
    pub(crate) fn mode_and_mtu(&self, may_sleep: &mut MaySleep) -> (Mode, usize) {
        self.core.with(may_sleep, |locked, _| (locked.core.mode(), locked.core.mtu()))
    }

    /// Brings the address options of neighbour discovery into the form that the other side reads.
    fn normalize(&self, packet: &mut Packet, to: OptionPadding) {
        if !self.normalizes_nd() || !is_neighbor_discovery(packet) {
            return;
        }
        let subnet_prefix = self.subnet_prefix.load(Ordering::Relaxed);
        let bytes = packet.len().min(NEIGHBOR_DISCOVERY_BYTES_MAX);
        // Without memory it goes as it is: the peer asks again.
        if let Some(front) = packet.writable_front(bytes) {
            rewrite_address_options(front, to, subnet_prefix);
        }
    }
}

/// Hands a packet to the core.
fn offer(
    core: &mut Core<Packet>,
    path: &mut Path<'_>,
    header: LinkHeader,
    mut packet: Packet,
) -> Result<(), RingFull<Packet>> {
    // What is no datagram goes in fragments or by a connection: no adapter helps there.
    if packet.wants_checksums() && packet.len() > core.datagram_mtu() {
        packet.finish_checksums(0);
    }
    core.handle_transmit(time::now(), &header.to, header.protocol, packet, path)
}

/// Keeps a packet until the send ring has room, as far as the queue goes.
fn wait(header: LinkHeader, mut packet: Packet, path: &mut Path<'_>) -> Result<(), Errno> {
    let has_room = path.queues.waiting.len() < path.queues.waiting_max;
    if !has_room || packet.prepend(&bytes_of(header)).is_err() {
        path.records.end(packet);
        return Err(Errno::ENOBUFS);
    }
    path.queues.waiting.push(packet, 0);
    Ok(())
}

fn wait_in_front(header: LinkHeader, mut packet: Packet, path: &mut Path<'_>) {
    match packet.prepend(&bytes_of(header)) {
        Ok(()) => path.queues.waiting.push_front(packet, 0),
        Err(_) => path.records.end(packet),
    }
}

const HEADER_BYTES: usize = LINK_ADDRESS_BYTES + 2;

fn bytes_of(header: LinkHeader) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let (address, protocol) = bytes.split_at_mut(LINK_ADDRESS_BYTES);
    address.copy_from_slice(header.to.as_bytes());
    protocol.copy_from_slice(&header.protocol.0.to_be_bytes());
    bytes
}

fn take_header(packet: &mut Packet) -> Option<LinkHeader> {
    let mut bytes = [0; HEADER_BYTES];
    packet.copy_out(0, &mut bytes).ok()?;
    packet.trim_front(HEADER_BYTES).ok()?;
    let [address @ .., high, low] = bytes;
    let to = LinkAddress::from_bytes(&address)?;
    Some(LinkHeader { to, protocol: EtherType(u16::from_be_bytes([high, low])) })
}
