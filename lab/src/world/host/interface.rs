//! An interface of a host: TUN device above, address resolution between, the core below.

use std::net::IpAddr;

use fabric::Fabric;
use fabric::node::{InterfaceId, Node};
use fabric::packet::{Packet, SMALL_BYTES_MAX};
use ipoib_rs::interface::RingFull;
use ipoib_rs::time::Instant;
use ipoib_rs::wire::LinkAddress;
use sim::host::{Frame, Host, HostConfig, HostLimits, Subnet};
use zerocopy::IntoBytes;

use crate::error::Error;
use crate::tun::Tun;

/// Packets that are read from a device before others get their turn.
const BATCH_LEN: usize = 64;
/// Room for the longest packet of datagram mode.
const READ_BYTES_MIN: usize = SMALL_BYTES_MAX;

/// An interface.
#[derive(Debug)]
pub(crate) struct LabInterface {
    /// In the node of its port; a lagg has none.
    pub(super) id: Option<InterfaceId>,
    pub(super) name: String,
    pub(in crate::world) tun: Tun,
    /// Address resolution.
    pub(in crate::world) stack: Host,
    /// Room for the longest packet that the device may hold: its MTU, and never less than before,
    /// because packets from before a change of mode still wait there.
    read_bytes: usize,
    pub(super) is_admin_up: bool,
    pub(super) is_detached: bool,
    sending: Sending,
    /// The groups that the core was told of.
    groups: Vec<LinkAddress>,
}

/// Whether the core takes packets.
#[derive(Debug)]
enum Sending {
    Open,
    /// The send ring is full; this packet was refused and is the next.
    Blocked(Frame),
    /// There is room again.
    Reopened(Frame),
}

impl LabInterface {
    /// An interface without addresses.
    pub(super) fn new(id: InterfaceId, name: String, tun: Tun) -> Self {
        Self { id: Some(id), ..Self::without_core(name, tun) }
    }

    /// One that has no interface of the core below.
    pub(in crate::world) fn without_core(name: String, tun: Tun) -> Self {
        let stack = Host::new(HostConfig {
            addresses: Vec::new(),
            answers_echo: false,
            limits: HostLimits::DEFAULT,
        });
        Self {
            id: None,
            name,
            tun,
            stack,
            read_bytes: READ_BYTES_MIN,
            is_admin_up: false,
            is_detached: false,
            sending: Sending::Open,
            groups: Vec::new(),
        }
    }

    /// The core has another MTU.
    pub(in crate::world) fn set_mtu(&mut self, mtu: usize) -> Result<(), Error> {
        self.read_bytes = self.read_bytes.max(mtu);
        self.tun.set_mtu(mtu)
    }

    pub(in crate::world) fn id(&self) -> Option<InterfaceId> {
        self.id
    }

    pub(in crate::world) fn name(&self) -> &str {
        &self.name
    }

    pub(in crate::world) fn stack(&self) -> &Host {
        &self.stack
    }

    pub(in crate::world) fn add_address(&mut self, subnet: Subnet) {
        let mut addresses = self.stack.addresses().to_vec();
        addresses.push(subnet);
        self.stack.set_addresses(addresses);
    }

    pub(super) fn remove_address(&mut self, address: IpAddr) {
        let addresses = self.stack.addresses().iter().copied();
        let addresses = addresses.filter(|subnet| subnet.address() != address).collect();
        self.stack.set_addresses(addresses);
    }

    /// Tells the stack above which address the core has now.
    pub(super) fn set_link(&mut self, now: Instant, fabric: &mut Fabric, node: &mut Node) {
        let Some(interface) = self.id.and_then(|id| node.interface(id)) else {
            return;
        };
        if let Some(broadcast) = interface.broadcast() {
            // It was made from a P_Key and a scope by the core itself.
            let _ = self.stack.set_link(interface.address(), broadcast);
        }
        self.feed_groups(now, fabric, node);
    }

    /// Tells the core which groups are wanted, if they are others than before.
    pub(super) fn feed_groups(&mut self, now: Instant, fabric: &mut Fabric, node: &mut Node) {
        let groups = self.stack.joined_groups();
        if let Some(id) = self.id.filter(|_| groups != self.groups) {
            let list = groups.iter().map(|address| address.as_bytes());
            node.handle_multicast_list(now, fabric, id, list);
            self.groups = groups;
        }
    }

    /// Whether packets may be read from the device.
    pub(in crate::world) fn can_send(&self) -> bool {
        match self.sending {
            Sending::Open => true,
            Sending::Blocked(_) | Sending::Reopened(_) => false,
        }
    }

    /// The send ring has room again.
    pub(in crate::world) fn handle_wake(&mut self) {
        self.sending = match std::mem::replace(&mut self.sending, Sending::Open) {
            Sending::Blocked(frame) => Sending::Reopened(frame),
            other @ (Sending::Open | Sending::Reopened(_)) => other,
        };
    }

    /// Reads a batch of packets from the device. Whether there was any.
    pub(in crate::world) fn read_device(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
    ) -> Result<bool, Error> {
        for count in 0..BATCH_LEN {
            if !self.can_send() {
                return Ok(count > 0);
            }
            // Without a buffer packets wait in the device.
            let Some(mut packet) = fabric.allocate(self.read_bytes) else {
                return Ok(count > 0);
            };
            match self.tun.read(packet.bytes_mut()) {
                Ok(Some(length)) => {
                    packet.set_len(length);
                    self.stack.send_ip(now, packet, fabric.pool_mut());
                }
                Ok(None) => {
                    fabric.pool_mut().free(packet);
                    return Ok(count > 0);
                }
                Err(source) => {
                    fabric.pool_mut().free(packet);
                    return Err(Error::system(format!("reading {}", self.name), source));
                }
            }
        }
        Ok(true)
    }

    /// Gives the core what the stack wants to send. Whether there was anything.
    pub(super) fn send(&mut self, now: Instant, fabric: &mut Fabric, node: &mut Node) -> bool {
        let Some(id) = self.id else {
            return false;
        };
        self.send_by(|Frame { to, protocol, packet }| {
            node.handle_transmit(now, fabric, id, &to, protocol, packet)
        })
    }

    /// Hands over what the stack wants to send. Whether there was anything.
    pub(in crate::world) fn send_by(
        &mut self,
        mut hand_over: impl FnMut(Frame) -> Result<(), RingFull<Packet>>,
    ) -> bool {
        let mut any = false;
        loop {
            let frame = match std::mem::replace(&mut self.sending, Sending::Open) {
                Sending::Open => match self.stack.poll_transmit() {
                    Some(frame) => frame,
                    None => return any,
                },
                Sending::Reopened(frame) => frame,
                blocked @ Sending::Blocked(_) => {
                    self.sending = blocked;
                    return any;
                }
            };
            any = true;
            let Frame { to, protocol, .. } = frame;
            if let Err(RingFull(packet)) = hand_over(frame) {
                self.sending = Sending::Blocked(Frame { to, protocol, packet });
            }
        }
    }

    /// Gives the kernel what the stack received, and frees what it dropped. Whether there was
    /// anything.
    pub(in crate::world) fn deliver(&mut self, fabric: &mut Fabric) -> bool {
        let mut any = false;
        while let Some(packet) = self.stack.poll_deliver() {
            any = true;
            // The kernel counts what it does not take.
            self.tun.write(packet.bytes());
            fabric.pool_mut().free(packet);
        }
        while let Some((packet, _)) = self.stack.poll_drop() {
            any = true;
            fabric.pool_mut().free(packet);
        }
        any
    }

    /// Ends the packet that the core refused.
    pub(in crate::world) fn drop_refused(&mut self, fabric: &mut Fabric) {
        match std::mem::replace(&mut self.sending, Sending::Open) {
            Sending::Open => {}
            Sending::Blocked(frame) | Sending::Reopened(frame) => {
                fabric.pool_mut().free(frame.packet);
            }
        }
    }
}
