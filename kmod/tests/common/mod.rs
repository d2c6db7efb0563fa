//! A fake kernel with the module in it.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

mod entry;

use std::time::Duration;

use fake_kernel::ofed::{self, ATTRIBUTES, Hca, Port, QueuePair, Stack};
use fake_kernel::{ifnet, kenv, log, mbuf, sysctl, time, trace, worker};

/// A link-layer address.
pub type Address = [u8; 20];

/// The neighbour that packets go to: without connections.
pub const NEIGHBOR: Address = address(0, 0x77);
/// One with connections.
pub const CONNECTED: Address = address(0x80, 0x78);

/// The interfaces of an adapter.
pub const INTERFACES: usize = if cfg!(miri) { 1 } else { 2 };

pub const IPV4: u16 = 0x0800;

const fn address(flags: u8, host: u8) -> Address {
    let mut address = [0; 20];
    (address[0], address[3]) = (flags, host);
    (address[4], address[5], address[19]) = (0xfe, 0x80, host);
    address
}

/// What an interface has fewer of than by default: to fill a table takes Miri long.
const SETTINGS: [(&str, &str); 6] = [
    ("send_queue_size", "16"),
    ("recv_queue_size", "16"),
    ("max_neighbors", "8"),
    ("max_groups", "8"),
    ("max_pending", "64"),
    ("max_connections", "4"),
];

/// A kernel with a stack, and perhaps the module.
pub struct Machine {
    pub stack: Stack,
    module: Option<entry::Loaded>,
    packets: usize,
}

impl Machine {
    /// Without the module.
    pub fn start() -> Self {
        let stack = Stack::start();
        worker::by_hand();
        kenv::reset();
        for (name, value) in SETTINGS {
            kenv::set(&format!("hw.ipoib.{name}"), value);
        }
        log::take_lines();
        trace::take();
        stack.be_automatic(true);
        Self { stack, module: None, packets: mbuf::count() }
    }

    /// With the module and an adapter, whose interfaces are `ib0` and `ib1`.
    pub fn start_with_adapter() -> (Self, Hca) {
        let mut machine = Self::start();
        assert_eq!(machine.load(), 0);
        let hca = machine.add_adapter();
        (machine, hca)
    }

    /// With an interface that is up and has joined its broadcast group: `ib0`.
    pub fn start_up() -> (Self, Hca) {
        let (machine, hca) = Self::start_with_adapter();
        ifnet::set_up("ib0", true);
        machine.settle();
        assert!(ifnet::state("ib0").is_some_and(|state| state.is_link_up));
        (machine, hca)
    }

    /// As [`Self::start_up`], in connected mode.
    pub fn start_connected() -> (Self, Hca) {
        let (machine, hca) = Self::start_up();
        machine.be_connected();
        (machine, hca)
    }

    /// The administrator puts `ib0` into connected mode.
    pub fn be_connected(&self) {
        sysctl::write_text("net.link.ipoib.ib0.mode", "connected").expect("it is known");
        self.settle();
    }

    /// The kernel's linker loads the module. The number of the error, or 0.
    pub fn load(&mut self) -> i32 {
        match entry::load() {
            Ok(module) => {
                self.module = Some(module);
                0
            }
            Err(error) => error,
        }
    }

    /// It unloads the module, which comes after a load that failed, too.
    pub fn unload(&mut self) {
        time::be_patient();
        if let Some(module) = self.module.take() {
            entry::unload(module);
        }
    }

    /// An adapter with two ports comes, whose shared receive queues are short. Under Miri, which
    /// takes seconds for an interface, only the first port has one.
    pub fn add_adapter(&self) -> Hca {
        self.add_adapter_with(|_, _| {})
    }

    pub fn add_adapter_with(&self, change: impl FnOnce(&mut [Port; 2], &mut u32)) -> Hca {
        let mut ports = [1, 2].map(Port::new);
        ports.iter_mut().for_each(|port| port.pkeys.push(0x8123));
        ports[1].is_infiniband = INTERFACES == 2;
        let mut attributes = ATTRIBUTES;
        let mut shared_receives = 8;
        change(&mut ports, &mut shared_receives);
        attributes.max_srq_wr = shared_receives;
        self.stack.add_device_with(attributes, ports)
    }

    /// Everything happens that happens without time passing.
    pub fn settle(&self) {
        for _ in 0..ROUNDS_MAX {
            let has_stepped = ofed::step();
            if !worker::run_due() && !has_stepped {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// Time passes, and what happens meanwhile.
    pub fn pass(&self, span: Duration) {
        const STEPS: u32 = if cfg!(miri) { 5 } else { 20 };
        for _ in 0..STEPS {
            time::advance(span / STEPS);
            self.settle();
        }
    }

    /// The datagram queue pair of the n-th interface.
    pub fn datagrams(&self, interface: usize) -> QueuePair {
        let pairs = self.stack.queue_pairs();
        pairs.into_iter().filter(|pair| !pair.is_connected).nth(interface).expect("there is one")
    }

    /// The queue pairs of connections.
    pub fn connections(&self) -> Vec<QueuePair> {
        self.stack.queue_pairs().into_iter().filter(|pair| pair.is_connected).collect()
    }

    /// The module and everything of it is gone.
    pub fn stop(mut self) {
        self.unload();
        self.assert_empty();
    }

    /// Nothing of the module is left; adapters may be.
    pub fn assert_empty(&self) {
        assert_eq!(ifnet::count(), 0, "interfaces are left");
        assert_eq!(worker::names(), [""; 0], "workers are left");
        for top in ["net.link.ipoib", "hw.ipoib"] {
            assert_eq!(sysctl::names(top), [""; 0], "sysctls are left");
        }
        assert_eq!(mbuf::count(), self.packets, "packets are left");
    }
}

/// A test that fails says what it says, and not what is left over.
impl Drop for Machine {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.module.is_none(), "the module is still loaded");
        }
    }
}

const ROUNDS_MAX: u32 = 2000;

/// An IPv4 packet of this length, which must not be fragmented.
pub fn ipv4(bytes: usize) -> Vec<u8> {
    let mut packet = vec![0x5a; bytes];
    packet[..20]
        .copy_from_slice(&[0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let length = u16::try_from(bytes).expect("a packet").to_be_bytes();
    packet[2..4].copy_from_slice(&length);
    packet
}

/// A datagram as an adapter receives it: a GRH, the encapsulation header, a packet.
pub fn datagram(protocol: u16, packet: &[u8]) -> Vec<u8> {
    let mut grh = [0; 40];
    grh[0] = 0x60;
    (grh[6], grh[7]) = (0x1b, 64);
    grh[8..24].copy_from_slice(&NEIGHBOR[4..]);
    grh[24..40].copy_from_slice(&Port::new(1).gid);
    [&grh[..], &protocol.to_be_bytes(), &[0, 0], packet].concat()
}

/// A message as an adapter receives it on a connection.
pub fn message(protocol: u16, packet: &[u8]) -> Vec<u8> {
    [&protocol.to_be_bytes()[..], &[0, 0], packet].concat()
}
