//! What the tests of the InfiniBand wrappers share.

use std::sync::{Arc, Mutex};

use fake_kernel::ofed::{Hca, Stack};
use ipoib_rs::action::OpId;
use ipoib_rs::counters::DropReason;
use ipoib_rs::ib::{Gid, IbMtu, Lid, Partition, Pkey, PkeyIndex, PortAttributes, Qpn};
use ipoib_rs::interface::{Config, Interface, Mode};
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::{Delivery, NoHeadroom, PacketBuf, PacketSink, ShortPacket};
use ipoib_rs::time::Instant;
use ipoib_rs::wire::Scope;
use kpi::client::{Client, Device, Port, Registration};
use kpi::context::MaySleep;
use kpi::ifnet::Reference;

use crate::common::may_sleep;

/// A stack with an HCA, and a client that was told of it.
pub(crate) struct Bench {
    pub(crate) port: Port,
    hca: Hca,
    registration: Registration,
    pub(crate) stack: Stack,
}

impl Bench {
    pub(crate) fn start() -> Self {
        let stack = Stack::start();
        let devices = Devices::default();
        let client = Box::new(devices.clone());
        let registration = Registration::new(client, &may_sleep()).unwrap();
        let hca = stack.add_device();
        let device = devices.0.lock().unwrap().pop().expect("the client was told");
        let port = device.ports().next().expect("it has two");
        Self { port, hca, registration, stack }
    }

    pub(crate) fn hca(&self) -> &Hca {
        &self.hca
    }

    /// Everything goes; what is left over fails the test.
    pub(crate) fn stop(self) {
        let Self { port, hca, registration, stack } = self;
        drop(port);
        hca.remove();
        registration.close(&may_sleep());
        drop(stack);
    }
}

/// Remembers the devices that came.
#[derive(Clone, Default)]
pub(crate) struct Devices(Arc<Mutex<Vec<Device>>>);

impl Client for Devices {
    fn device_added(&self, device: &Device, _may_sleep: &mut MaySleep) {
        self.0.lock().unwrap().push(device.clone());
    }

    fn device_removed(&self, device: &Device, _may_sleep: &mut MaySleep) {
        self.0.lock().unwrap().retain(|other| !other.is(device));
    }

    fn find_interface(
        &self,
        _port: &Port,
        _pkey: Pkey,
        _may_sleep: &mut MaySleep,
    ) -> Option<Reference> {
        None
    }
}

/// What was told, in order.
#[derive(Debug)]
pub(crate) struct Log<T>(Mutex<Vec<T>>);

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<T> Log<T> {
    pub(crate) fn push(&self, entry: T) {
        self.0.lock().unwrap().push(entry);
    }

    /// What was told since it was asked last.
    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Operations as an interface begins them: nobody else can.
pub(crate) fn operations<const COUNT: usize>() -> [OpId; COUNT] {
    let mut seed = 0;
    std::array::from_fn(|_| {
        seed += 1;
        operation(seed)
    })
}

fn operation(seed: u64) -> OpId {
    let port = PortAttributes {
        is_active: true,
        lid: Lid::new(1),
        gid: Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 1),
        mtu: IbMtu::Mtu2048,
        partition: Some(Partition { pkey: Pkey::DEFAULT, index: PkeyIndex(0) }),
    };
    let config = Config {
        qpn: Qpn::new(7).unwrap(),
        port,
        scope: Scope::LINK_LOCAL,
        mode: Mode::Datagram,
        connected: None,
        seed,
        limits: Limits::SMALL,
    };
    let mut interface = Interface::<NoPacket>::attach(config).unwrap();
    interface.handle_admin_up(Instant::default(), &mut NoSink);
    let actions = std::iter::from_fn(|| interface.poll_action());
    actions.filter_map(|action| action.operation()).last().expect("it wants something")
}

/// A packet that there is none of.
enum NoPacket {}

impl PacketBuf for NoPacket {
    fn len(&self) -> usize {
        match *self {}
    }

    fn copy_out(&self, _offset: usize, _out: &mut [u8]) -> Result<(), ShortPacket> {
        match *self {}
    }

    fn prepend(&mut self, _bytes: &[u8]) -> Result<(), NoHeadroom> {
        match *self {}
    }

    fn trim_front(&mut self, _count: usize) -> Result<(), ShortPacket> {
        match *self {}
    }
}

struct NoSink;

impl PacketSink<NoPacket> for NoSink {
    fn deliver(&mut self, packet: NoPacket, _delivery: Delivery) {
        match packet {}
    }

    fn drop_packet(&mut self, packet: NoPacket, _reason: DropReason) {
        match packet {}
    }

    fn release(&mut self, packet: NoPacket) {
        match packet {}
    }

    fn packet_too_big(&mut self, packet: NoPacket, _mtu: usize) {
        match packet {}
    }
}
