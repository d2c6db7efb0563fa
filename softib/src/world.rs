//! A fabric with its subnet manager, and the objects that ibcore knows.
//!
//! Everything here happens with the lock held. What ibcore is to be told comes out of
//! [`World::step`], one thing at a time, and is told without the lock: the one who is told may come
//! back with any verb.

mod chance;
mod pairs;
mod ports;
mod posts;
mod queues;

use alloc::boxed::Box;
use alloc::vec::Vec;

use fabric::address::AhId;
use fabric::hca::{HcaConfig, HcaId};
use fabric::packet::PoolLimits;
use fabric::port::PortId;
use fabric::qp::QpId;
use fabric::sm::{SmConfig, SmLimits};
use fabric::subnet::Subnet;
use fabric::{AsyncEvent, Fabric, FabricConfig};
use ipoib_rs::ib::{IbMtu, Pkey, RateCode};
use ipoib_rs::interface::PortEvent;
use ipoib_rs::wire::Scope;

use crate::error::Error;
use crate::layout::{Config, Context};
use crate::table::{Handle, Table};
use chance::Chance;
use pairs::Pair;
pub use pairs::{Service, state_code};
pub use ports::Totals;
use queues::{Queue, Shared};

/// The adapters, what is between them, and their users.
#[derive(Debug)]
pub struct World {
    fabric: Box<Fabric>,
    subnet: Box<Subnet>,
    chance: Chance,
    refuses_requests: bool,
    /// Somebody left checksums to an adapter, so they are looked at as well.
    makes_checksums: bool,
    devices: Vec<Device>,
    addresses: Table<AhId>,
    queues: Table<Queue>,
    shared: Table<Shared>,
    pairs: Table<Pair>,
    /// Sorted, to find the pair of a completion.
    pair_index: Vec<(QpId, Handle)>,
    /// Whom [`World::step`] last told C to call; it may be called at this moment.
    calling: Option<Context>,
    thread: Thread,
}

/// What the thread that steps is at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Thread {
    /// It has stopped stepping: there was nothing to do.
    Idle,
    /// It has to be woken: there is something to do.
    Due,
    /// It steps, or will.
    Busy,
}

/// An adapter that is registered with ibcore.
#[derive(Debug)]
struct Device {
    hca: HcaId,
    guid: u64,
    ports: [PortId; PORTS_PER_DEVICE],
    /// Of each port: whether its ARP packets say that it takes no connections.
    hides_rc: [bool; PORTS_PER_DEVICE],
    /// None while it is not registered: then nobody hears of what happens to its ports.
    context: Option<Context>,
}

/// What is done outside of the lock before the next step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Nothing, and there is nothing more to do.
    Idle,
    /// Nothing, but there may be more to do.
    GoOn,
    /// Tell somebody something.
    Call(Call),
}

/// Somebody is told something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Call {
    /// A completion queue that was armed holds something.
    Complete {
        /// The queue.
        queue: Context,
    },
    /// A completion queue has lost something.
    QueueOverrun {
        /// The queue.
        queue: Context,
    },
    /// A message came before the word that the connection is there.
    CommunicationEstablished {
        /// The queue pair.
        pair: Context,
    },
    /// A queue pair takes no more from its shared receive queue.
    LastWqeReached {
        /// The queue pair.
        pair: Context,
    },
    /// A shared receive queue is low.
    SharedLimitReached {
        /// The queue.
        shared: Context,
    },
    /// Something changed at a port.
    Port {
        /// Its adapter.
        device: Context,
        /// Its number, from 1.
        number: u8,
        /// What.
        event: PortEvent,
    },
}

impl Call {
    const fn target(&self) -> Context {
        match *self {
            Self::Complete { queue } | Self::QueueOverrun { queue } => queue,
            Self::CommunicationEstablished { pair } | Self::LastWqeReached { pair } => pair,
            Self::SharedLimitReached { shared } => shared,
            Self::Port { device, .. } => device,
        }
    }
}

/// Ports of an adapter.
pub const PORTS_PER_DEVICE: usize = 2;
/// Adapters.
pub const DEVICES_MAX: usize = 16;
/// GUIDs of adapters begin like this: a range for local use (EUI-64, bit "local").
const GUID_FIRST: u64 = 0x0250_53FF_FE00_0000;
/// From one adapter to the next. The last byte of a GID tells adapter and port.
const GUID_STEP: u64 = 0x10;
/// What the fabric knows the subnet manager's queues by: the handle of no queue.
const SUBNET: u64 = 0;
/// So many packets move before somebody is told something: fewer than any receive queue has places.
const TRANSITS_PER_STEP_MAX: usize = 8;
const LIMITS: SmLimits =
    SmLimits { ports_max: 64, groups_max: 1024, members_max: 4096, refusals_max: 16 };

impl World {
    /// Adapters whose ports are ACTIVE, and a subnet manager on an adapter of its own.
    ///
    /// # Errors
    ///
    /// [`Error`].
    // Not inlined, and neither are its parts: together they would fill a kernel stack.
    #[inline(never)]
    pub fn new(config: &Config) -> Result<Self, Error> {
        let mut fabric = new_fabric(config)?;
        let subnet = new_subnet(&mut fabric)?;
        let mut world = Self {
            fabric,
            subnet,
            chance: Chance::new(config.seed),
            refuses_requests: false,
            makes_checksums: false,
            devices: Vec::new(),
            addresses: Table::default(),
            queues: Table::default(),
            shared: Table::default(),
            pairs: Table::default(),
            pair_index: Vec::new(),
            calling: None,
            thread: Thread::Idle,
        };
        world.populate(config)?;
        Ok(world)
    }

    #[inline(never)]
    fn populate(&mut self, config: &Config) -> Result<(), Error> {
        // The port of the subnet manager.
        self.chance.add_port()?;
        self.create_broadcast_group(Pkey::DEFAULT)?;
        let device_count = config.device_count as usize;
        if device_count == 0 || device_count > DEVICES_MAX {
            return Err(Error::Invalid);
        }
        for number in 1..=device_count as u64 {
            self.add_device(GUID_FIRST + number * GUID_STEP)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn add_device(&mut self, guid: u64) -> Result<(), Error> {
        // CAST: 2.
        let port_count = PORTS_PER_DEVICE as u8;
        let config = HcaConfig { port_count, gid_table_len: 1, ..HcaConfig::with_guid(guid) };
        debug_assert_eq!(config.mtu, IbMtu::Mtu2048);
        let hca = self.fabric.add_hca(&config)?;
        let mut ports = self.fabric.hca_ports(hca);
        let first = ports.next().ok_or(Error::Invalid)?;
        let second = ports.next().ok_or(Error::Invalid)?;
        drop(ports);
        for port in [first, second] {
            self.chance.add_port()?;
            self.subnet.link_up(&mut self.fabric, port)?;
        }
        self.devices.try_reserve(1)?;
        self.devices.push(Device {
            hca,
            guid,
            ports: [first, second],
            hides_rc: [false; PORTS_PER_DEVICE],
            context: None,
        });
        Ok(())
    }

    /// With it the partition carries IPoIB (RFC 4391 5).
    #[inline(never)]
    fn create_broadcast_group(&mut self, pkey: Pkey) -> Result<(), Error> {
        let group = SmConfig::new(LIMITS).group;
        self.subnet.manager_mut().create_broadcast_group(Scope::LINK_LOCAL, pkey, group)?;
        self.subnet.poll(&mut self.fabric);
        Ok(())
    }

    /// Lets packets move until there is something to be done without the lock.
    pub fn step(&mut self) -> Step {
        self.calling = None;
        let step = self.next_step();
        self.thread = match step {
            Step::Idle => Thread::Idle,
            Step::GoOn | Step::Call(_) => Thread::Busy,
        };
        if let Step::Call(call) = step {
            self.calling = Some(call.target());
        }
        step
    }

    /// There may be something for [`Self::step`] to do.
    fn schedule(&mut self) {
        self.thread = match self.thread {
            Thread::Idle | Thread::Due => Thread::Due,
            Thread::Busy => Thread::Busy,
        };
    }

    /// Whether the thread has to be woken, which the caller does.
    pub fn take_wake(&mut self) -> bool {
        let is_due = self.thread == Thread::Due;
        if is_due {
            self.thread = Thread::Busy;
        }
        is_due
    }

    fn next_step(&mut self) -> Step {
        if let Some(call) = self.next_call() {
            return Step::Call(call);
        }
        // A datagram that its own port drops is complete without a packet that moved.
        let has_more = self.move_transits() > 0 || self.fabric.has_notices();
        if has_more { Step::GoOn } else { Step::Idle }
    }

    /// Whom the fabric has something to tell.
    fn next_call(&mut self) -> Option<Call> {
        while let Some(notification) = self.fabric.poll_notification() {
            if notification.context == SUBNET {
                self.subnet.poll(&mut self.fabric);
            } else if let Some(queue) = self.notified_queue(notification.context) {
                return Some(Call::Complete { queue });
            }
        }
        while let Some(event) = self.fabric.poll_event() {
            if let Some(call) = self.call_for(event) {
                return Some(call);
            }
        }
        None
    }

    /// How many packets moved.
    fn move_transits(&mut self) -> usize {
        for count in 0..TRANSITS_PER_STEP_MAX {
            let Some(transit) = self.fabric.poll_transit() else {
                return count;
            };
            if self.chance.loses(&transit) {
                self.fabric.discard(transit);
            } else {
                self.fabric.deliver(transit);
            }
        }
        TRANSITS_PER_STEP_MAX
    }

    fn call_for(&self, event: AsyncEvent) -> Option<Call> {
        match event {
            AsyncEvent::CommunicationEstablished(qp) => {
                let pair = self.pair_of(qp)?.context;
                Some(Call::CommunicationEstablished { pair })
            }
            AsyncEvent::LastWqeReached(qp) => {
                let pair = self.pair_of(qp)?.context;
                Some(Call::LastWqeReached { pair })
            }
            AsyncEvent::CqOverrun(cq) => {
                let queue = self.queues.values().find(|queue| queue.is(cq))?.context;
                Some(Call::QueueOverrun { queue })
            }
            AsyncEvent::SrqLimitReached(srq) => {
                let shared = self.shared.values().find(|shared| shared.id == srq)?.context;
                Some(Call::SharedLimitReached { shared })
            }
            AsyncEvent::Port(port, event) => {
                let (device, number) = self.place_of(port)?;
                Some(Call::Port { device: device.context?, number, event })
            }
        }
    }

    /// Whether somebody may be being told something about this object: it must not go away yet.
    pub fn is_calling(&self, context: Context) -> bool {
        self.calling == Some(context)
    }

    /// The adapter is registered from now on, or is not any more.
    pub fn set_context(&mut self, device: u32, context: Option<Context>) {
        if let Some(device) = self.devices.get_mut(device as usize) {
            device.context = context;
        }
    }

    /// Makes an address handle for a port.
    pub fn create_address(
        &mut self,
        device: u32,
        port: u8,
        address: &crate::layout::Address,
    ) -> Result<Handle, Error> {
        let port = self.port(device, port)?;
        let vector = address.vector().ok_or(Error::Invalid)?;
        self.addresses.reserve()?;
        let ah = self.fabric.create_ah(port, &vector)?;
        Ok(self.addresses.insert(ah)?)
    }

    /// Destroys an address handle.
    pub fn destroy_address(&mut self, handle: Handle) {
        if let Some(ah) = self.addresses.remove(handle) {
            let result = self.fabric.destroy_ah(ah);
            debug_assert!(result.is_ok(), "it was in the table");
        }
    }
}

#[inline(never)]
fn new_fabric(config: &Config) -> Result<Box<Fabric>, Error> {
    let pool =
        PoolLimits { small_max: config.small_packets_max, large_max: config.large_packets_max };
    try_box(Fabric::new(FabricConfig { pool, ..FabricConfig::DEFAULT })?)
}

#[inline(never)]
fn new_subnet(fabric: &mut Fabric) -> Result<Box<Subnet>, Error> {
    let own = fabric.add_hca(&HcaConfig::with_guid(GUID_FIRST))?;
    let own = fabric.hca_ports(own).next().ok_or(Error::Invalid)?;
    // 10 Gb/s (IBA 14.2.5.6: four lanes of 2.5 Gb/s).
    let rate = RateCode::new(3).ok_or(Error::Invalid)?;
    try_box(Subnet::new(fabric, own, SmConfig::new(LIMITS), rate, SUBNET)?)
}

#[cfg(target_os = "none")]
fn try_box<T>(value: T) -> Result<Box<T>, Error> {
    kpi::owned::try_box(value).map_err(|_| Error::NoMemory)
}

/// Outside of a kernel there is always memory.
#[cfg(not(target_os = "none"))]
fn try_box<T>(value: T) -> Result<Box<T>, Error> {
    Ok(Box::new(value))
}

#[cfg(test)]
mod tests;
