//! A subnet with hosts.

use std::time::Duration;

use fabric::hca::{HcaConfig, HcaId};
use fabric::node::{
    Delivered, HostEvent, InterfaceConfig, InterfaceId, Node, NodeConfig, NodeEvent,
};
use fabric::port::PortId;
use fabric::sm::{SmConfig, SmLimits};
use fabric::subnet::Subnet;
use fabric::{AsyncEvent, Fabric, FabricConfig};
use ipoib_rs::event::Event;
use ipoib_rs::ib::{Mgid, Pkey, RateCode};
use ipoib_rs::interface::RingFull;
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::Cast;
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{BroadcastGroup, EtherType, LinkAddress, Scope};

/// The interface of the port itself, on every host.
pub(crate) const PARENT: InterfaceId = InterfaceId::FIRST;

/// Steps until everything must have come to rest.
const STEPS_MAX: usize = 10_000;

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) fabric: Fabric,
    pub(crate) subnet: Subnet,
    pub(crate) hosts: Vec<Host>,
}

pub(crate) struct Host {
    pub(crate) hca: HcaId,
    pub(crate) port: PortId,
    pub(crate) node: Node,
    /// What was received: the payload and to whom it was sent.
    pub(crate) received: Vec<(InterfaceId, Vec<u8>, Cast)>,
    pub(crate) events: Vec<NodeEvent>,
    /// Packets too big, and the MTU to report.
    pub(crate) too_big: Vec<(usize, usize)>,
}

impl World {
    /// `host_count` hosts whose interface is up, in a subnet with the broadcast group of the
    /// default partition.
    pub(crate) fn new(host_count: usize, limits: Limits) -> Self {
        let mut fabric = Fabric::new(FabricConfig::DEFAULT).unwrap();
        let port = plug(&mut fabric, 0).1;
        let config = SmConfig::new(SmLimits::DEFAULT);
        let rate = RateCode::new(3).unwrap();
        let subnet = Subnet::new(&mut fabric, port, config, rate, 0).unwrap();
        let mut world = Self { now: Instant::ZERO, fabric, subnet, hosts: Vec::new() };
        world.create_broadcast_group(Pkey::DEFAULT);
        for number in 1..=host_count {
            world.add_host(number, limits);
        }
        world.settle();
        world
    }

    fn add_host(&mut self, number: usize, limits: Limits) {
        let (hca, port) = plug(&mut self.fabric, number as u64);
        self.subnet.link_up(&mut self.fabric, port).unwrap();
        let config = NodeConfig::with_context(number as u64);
        let mut node = Node::new(&mut self.fabric, port, &config).unwrap();
        let config =
            InterfaceConfig { pkey: None, scope: Scope::LINK_LOCAL, seed: number as u64, limits };
        let id = node.add_interface(&mut self.fabric, &config).unwrap();
        assert_eq!(id, PARENT);
        node.handle_admin_up(self.now, &mut self.fabric, id);
        self.hosts.push(Host {
            hca,
            port,
            node,
            received: Vec::new(),
            events: Vec::new(),
            too_big: Vec::new(),
        });
    }

    pub(crate) fn create_broadcast_group(&mut self, pkey: Pkey) {
        let mgid = BroadcastGroup::new(Scope::LINK_LOCAL, pkey).mgid();
        let parameters = SmConfig::new(SmLimits::DEFAULT).group;
        let manager = self.subnet.manager_mut();
        manager.create_group(mgid, pkey, parameters).unwrap();
        self.subnet.poll(&mut self.fabric);
    }

    /// Lets everything happen that happens without time.
    pub(crate) fn settle(&mut self) {
        for _ in 0..STEPS_MAX {
            if !self.step() {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// Lets time pass, with every timer in between.
    pub(crate) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        self.settle();
        for _ in 0..STEPS_MAX {
            let deadlines = self.hosts.iter().filter_map(|host| host.node.poll_timeout());
            match deadlines.min().filter(|deadline| *deadline <= end) {
                Some(deadline) => self.now = self.now.max(deadline),
                None => {
                    self.now = end;
                    return;
                }
            }
            for host in &mut self.hosts {
                host.node.handle_timeout(self.now, &mut self.fabric);
            }
            self.settle();
        }
        panic!("a timer does not make progress");
    }

    /// Whether anything happened.
    fn step(&mut self) -> bool {
        let mut is_busy = false;
        while let Some(event) = self.fabric.poll_event() {
            is_busy = true;
            let AsyncEvent::Port(port, event) = event else {
                panic!("{event:?}");
            };
            for host in self.hosts.iter_mut().filter(|host| host.port == port) {
                host.node.handle_port_event(self.now, &mut self.fabric, event);
            }
        }
        for host in &mut self.hosts {
            host.run(self.now, &mut self.fabric);
        }
        while let Some(transit) = self.fabric.poll_transit() {
            is_busy = true;
            self.fabric.deliver(transit);
        }
        while let Some(notification) = self.fabric.poll_notification() {
            is_busy = true;
            if notification.context == 0 {
                self.subnet.poll(&mut self.fabric);
            } else {
                let host = &mut self.hosts[notification.context as usize - 1];
                host.run(self.now, &mut self.fabric);
            }
        }
        is_busy
    }

    pub(crate) fn address(&self, host: usize) -> LinkAddress {
        self.hosts[host].node.interface(PARENT).unwrap().address()
    }

    pub(crate) fn broadcast(&self) -> LinkAddress {
        let interface = self.hosts[0].node.interface(PARENT).unwrap();
        LinkAddress::multicast(interface.broadcast().unwrap())
    }

    /// Sends an IPv6 packet, or what looks like one.
    pub(crate) fn send(
        &mut self,
        from: usize,
        to: &LinkAddress,
        payload: &[u8],
    ) -> Result<(), RingFull<fabric::packet::Packet>> {
        let packet = self.fabric.pool_mut().allocate_from(payload).unwrap();
        let node = &mut self.hosts[from].node;
        let protocol = EtherType::IPV6;
        node.handle_transmit(self.now, &mut self.fabric, PARENT, to, protocol, packet)
    }

    /// What a host received since the last call.
    pub(crate) fn received(&mut self, host: usize) -> Vec<(Vec<u8>, Cast)> {
        let received = std::mem::take(&mut self.hosts[host].received);
        let parts = received.into_iter();
        parts.map(|(_, payload, cast)| (payload, cast)).collect()
    }

    pub(crate) fn is_link_up(&self, host: usize) -> bool {
        self.hosts[host].node.interface(PARENT).unwrap().is_link_up()
    }

    pub(crate) fn drops(&self, host: usize) -> u64 {
        let interface = self.hosts[host].node.interface(PARENT).unwrap();
        interface.counters().drops_total()
    }

    pub(crate) fn group(&self, group: std::net::IpAddr) -> Mgid {
        BroadcastGroup::new(Scope::LINK_LOCAL, Pkey::DEFAULT).mgid_of(group).unwrap()
    }
}

impl Host {
    pub(crate) fn run(&mut self, now: Instant, fabric: &mut Fabric) {
        self.node.run(now, fabric);
        while let Some(delivered) = self.node.poll_delivered() {
            let Delivered { interface, packet, delivery } = delivered;
            self.received.push((interface, packet.bytes().to_vec(), delivery.cast));
            fabric.pool_mut().free(packet);
        }
        while let Some(too_big) = self.node.poll_too_big() {
            self.too_big.push((too_big.packet.bytes().len(), too_big.mtu));
            fabric.pool_mut().free(too_big.packet);
        }
        self.events.extend(std::iter::from_fn(|| self.node.poll_event()));
    }

    pub(crate) fn has_seen(&self, event: Event) -> bool {
        let event = HostEvent::State(event);
        self.events.iter().any(|seen| seen.event == event)
    }
}

fn plug(fabric: &mut Fabric, number: u64) -> (HcaId, PortId) {
    let config = HcaConfig::with_guid(0x0002_C903_0000_1000 + (number << 4));
    let hca = fabric.add_hca(&config).unwrap();
    let port = fabric.hca_ports(hca).next().unwrap();
    (hca, port)
}
