//! An interface: the protocol core, what it has of the adapter, and its place in the network stack.
//!
//! Who calls what:
//!
//! | thread | does |
//! | --- | --- |
//! | of the network stack | [`driver`]: transmit, up and down, MTU, in the net epoch or not |
//! | of the InfiniBand stack | [`hub`]: answers and events, which are fed to the core at once |
//! | `reaper` of the interface | [`reap`]: completions, and received packets to the stack |
//! | `control` of the interface | [`control`]: actions that sleep, timer, what the stack is told |
//! | `closer` of the interface | [`close`]: connections that are over, which may take long |
//!
//! The core and the queues are behind one mutex; nothing is called with it held but the adapter's
//! post functions.

mod close;
mod connect;
mod control;
mod driver;
mod execute;
mod hub;
mod queues;
mod reap;
mod shell;
mod signals;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use ipoib_rs::ib::Pkey;
use ipoib_rs::interface::{AttachError, Config, ConnectedSupport, Interface as Core};
use ipoib_rs::limits::Limits;
use ipoib_rs::wire::{BroadcastGroup, LinkAddress, Scope};
use kpi::client::{PartitionChoice, Port, PortWatch};
use kpi::cm::Manager;
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::ifnet::{InterfaceConfig, NetInterface, Place, Vlan};
use kpi::log::{self, Level};
use kpi::mbuf::Packet;
use kpi::owned::{try_arc, try_box};
use kpi::sa::Administrator;
use kpi::sync::{Level as LockLevel, Mutex};
use kpi::sysctl::Tree;
use kpi::time;
use kpi::verbs::{
    CompletionQueue, DatagramConfig, DatagramQueuePair, Kept, ProtectionDomain, Quiet,
    SharedReceiveQueue,
};
use kpi::worker::{Waker, Work, Worker};

use crate::children::Children;
use crate::settings::{RECEIVE_SEGMENTS_MAX, Settings};
use crate::sysctl::{self, Admin};
use close::{Closer, Passes};
use control::Control;
use hub::Hub;
use queues::Queues;
use reap::Reaper;

/// The mutex of the core and the queues.
#[derive(Debug)]
pub(crate) struct CoreLevel;

impl LockLevel for CoreLevel {
    const NAME: &core::ffi::CStr = c"ipoib core";
}

/// What an interface is, from its attachment to its end.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) net: NetInterface,
    core: Mutex<CoreLevel, Locked>,
    hardware: Hardware,
    /// What the control thread is to look at, see [`signals`].
    signals: AtomicU32,
    control: Waker,
    reaper: Waker,
    closer: Waker,
    passes: Passes,
    hub: Arc<Hub>,
    /// That of the own GID.
    subnet_prefix: AtomicU64,
    /// The MTU that the stack was told last.
    told_mtu: AtomicUsize,
    /// Whether address options of neighbour discovery are as RFC 4391 9.3 has them on the fabric,
    /// and as the stack has them here.
    normalizes_nd: AtomicBool,
}

/// What the mutex protects.
#[derive(Debug)]
struct Locked {
    core: Box<Core<Packet>>,
    queues: Queues,
}

/// What an interface has of its adapter.
#[derive(Debug)]
struct Hardware {
    port: Port,
    partition: PartitionChoice,
    limits: Limits,
    connected: ConnectedSupport,
    domain: ProtectionDomain,
    send_queue: CompletionQueue,
    receive_queue: CompletionQueue,
    queue_pair: DatagramQueuePair,
    shared: Option<SharedReceiveQueue>,
    administrator: Administrator,
    manager: Manager,
    /// The segments of a send.
    segments_max: usize,
}

/// An interface and its threads.
#[derive(Debug)]
pub(crate) struct Attached {
    interface: Arc<Interface>,
    /// What the stacks call.
    hub: Arc<Hub>,
    /// `net.link.ipoib.<if>`
    tree: Tree,
    control: Worker,
    reaper: Worker,
    closer: Worker,
    watch: PortWatch,
}

/// Which interface of a port it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role<'a> {
    /// That of the port, with this number.
    Port { unit: u32 },
    /// One of an interface of vlan(4), in a partition of its own. The number is that of the port's.
    Child { vlan: &'a Vlan, pkey: Pkey, parent: u32 },
}

impl Role<'_> {
    const fn partition(self) -> PartitionChoice {
        match self {
            Self::Port { .. } => PartitionChoice::Port,
            Self::Child { pkey, .. } => PartitionChoice::Child(pkey),
        }
    }
}

impl Attached {
    /// Makes an interface of a port, administratively down.
    ///
    /// # Errors
    ///
    /// What the adapter or the stack says.
    pub(crate) fn new(
        port: &Port,
        role: Role<'_>,
        (settings, parent): (&Settings, &Arc<Tree>),
        may_sleep: &mut MaySleep,
    ) -> Result<Self, Errno> {
        let children = match role {
            Role::Port { unit } => Some(Children::new(port, unit, (settings, parent))?),
            Role::Child { .. } => None,
        };
        let hub = try_arc(Hub::new(children))?;
        let wakers = [Waker::new()?, Waker::new()?, Waker::new()?];
        let hardware = Hardware::new((port, role), settings, &hub, may_sleep)?;
        let interface = Interface::new(hardware, role, settings, (&hub, &wakers), may_sleep)?;
        let interface = try_arc(interface)?;
        hub.connect(&interface, may_sleep);
        let started = Self::start(&interface, &hub, (parent, role), may_sleep);
        if started.is_err() {
            interface.net.detach(may_sleep);
            hub.disconnect(may_sleep);
            interface.end(may_sleep);
        }
        started
    }

    /// Starts what makes an interface run.
    #[inline(never)]
    fn start(
        interface: &Arc<Interface>,
        hub: &Arc<Hub>,
        (parent, role): (&Arc<Tree>, Role<'_>),
        may_sleep: &mut MaySleep,
    ) -> Result<Self, Errno> {
        let work: Arc<dyn Work> = try_arc(Control::new(Arc::clone(interface))?)?;
        let control = Worker::start(&interface.control, c"ipoib control", work, may_sleep)?;
        let work: Arc<dyn Work> = try_arc(Reaper::new(Arc::clone(interface)))?;
        let reaper = Worker::start(&interface.reaper, c"ipoib reaper", work, may_sleep)?;
        // It waits for the one before, so it is to end first.
        let work: Arc<dyn Work> = try_arc(Closer::new(Arc::clone(interface)))?;
        let closer = Worker::start(&interface.closer, c"ipoib closer", work, may_sleep)?;
        let watch = interface.hardware.port.watch(hub.clone(), may_sleep)?;
        interface.arm_queues();
        let admin: Arc<dyn Admin> = interface.clone();
        let tree = match role {
            Role::Port { .. } => {
                let name = interface.net.name();
                sysctl::publish(parent, format_args!("{name}"), &admin, may_sleep)?
            }
            // Its own name may be that of another one in another jail.
            Role::Child { pkey, parent: unit, .. } => {
                let name = format_args!("ib{unit}_{:04x}", pkey.value());
                sysctl::publish(parent, name, &admin, may_sleep)?
            }
        };
        // What happened to the port before it was watched.
        interface.signal(signals::PORT_CHANGED);
        interface.net.refresh(may_sleep);
        let (interface, hub) = (Arc::clone(interface), Arc::clone(hub));
        Ok(Self { interface, hub, tree, control, reaper, closer, watch })
    }

    /// The interface.
    pub(crate) fn interface(&self) -> &Arc<Interface> {
        &self.interface
    }

    /// The children of the interface of a port.
    pub(crate) fn children(&self) -> Option<&Children> {
        self.hub.children()
    }

    /// Whether it is of this port.
    pub(crate) fn is_of(&self, port: &Port) -> bool {
        let own = &self.interface.hardware.port;
        own.device().is(port.device()) && own.number() == port.number()
    }

    /// Takes the interface out of the stack, has it give everything back, and ends it. If that
    /// takes too long, its queues are destroyed without it: then the adapter touches nothing of
    /// theirs any more. It may be waited for, but no memory is freed that it may still write to.
    pub(crate) fn detach(self, may_sleep: &mut MaySleep) {
        let Self { interface, hub, tree, control, reaper, closer, watch } = self;
        // Nothing new from above ...
        drop(tree);
        interface.net.detach(may_sleep);
        interface.feed(may_sleep, |core, path| core.handle_detach(time::now(), path));
        let is_detached = interface.wait_until_detached(may_sleep);
        // ... nor from below.
        drop(watch);
        control.stop(may_sleep);
        closer.stop(may_sleep);
        reaper.stop(may_sleep);
        hub.disconnect(may_sleep);
        if !is_detached {
            let name = interface.net.name();
            log::line(
                Level::Error,
                format_args!("{name}: the adapter did not give everything back: taken by force"),
            );
        }
        interface.end(may_sleep);
    }
}

/// How long an interface may take to give everything back.
const DETACH_MS_MAX: u32 = 10_000;
const DETACH_POLL_MS: u32 = 10;

#[inline(never)]
fn attach(config: Config) -> Result<Core<Packet>, AttachError> {
    Core::attach(config)
}

/// In a function of its own, as others here: what is made here is large, and a thread of the kernel
/// has little stack.
#[inline(never)]
fn make_core(config: Config) -> Result<Box<Core<Packet>>, Errno> {
    match attach(config) {
        Ok(core) => try_box(core),
        Err(_) => Err(Errno::ENOMEM),
    }
}

impl Interface {
    #[inline(never)]
    fn new(
        hardware: Hardware,
        role: Role<'_>,
        settings: &Settings,
        (hub, [control, reaper, closer]): (&Arc<Hub>, &[Waker; 3]),
        may_sleep: &mut MaySleep,
    ) -> Result<Self, Errno> {
        let port = hardware.port.attributes(hardware.partition, may_sleep)?;
        let config = Config {
            qpn: hardware.queue_pair.qpn(),
            port,
            scope: Scope::LINK_LOCAL,
            mode: settings.mode,
            connected: Some(hardware.connected),
            seed: time::random_seed(),
            limits: hardware.limits,
        };
        let mut core = make_core(config)?;
        // Out of range for this adapter: it keeps the largest that it has.
        let _ = core.handle_connected_mtu(settings.connected_mtu);
        let (place, pkey) = match role {
            Role::Port { unit } => {
                let own = port.partition.map_or(Pkey::DEFAULT, |partition| partition.pkey);
                (Place::New { name: c"ib", unit }, own)
            }
            Role::Child { vlan, pkey, .. } => (Place::Child(vlan), pkey),
        };
        let broadcast = BroadcastGroup::new(Scope::LINK_LOCAL, pkey);
        // 0 is "not known". What it is when the link comes up is told then.
        let rate = hardware.port.bits_per_second(may_sleep).unwrap_or(0);
        let net = NetInterface::attach(
            &InterfaceConfig {
                place,
                mtu: core.mtu(),
                address: core.address(),
                broadcast: LinkAddress::multicast(broadcast.mgid()),
                bits_per_second: rate,
                has_checksums: hardware.port.device().attributes().checksums_datagrams,
            },
            hub.clone(),
            may_sleep,
        )?;
        let told_mtu = AtomicUsize::new(core.mtu());
        let queues = Queues::new(&hardware)?;
        Ok(Self {
            net,
            core: Mutex::new(Locked { core, queues })?,
            hardware,
            signals: AtomicU32::new(0),
            control: control.clone(),
            reaper: reaper.clone(),
            closer: closer.clone(),
            passes: Passes::default(),
            hub: Arc::clone(hub),
            subnet_prefix: AtomicU64::new(port.gid.subnet_prefix()),
            told_mtu,
            normalizes_nd: AtomicBool::new(settings.normalizes_nd),
        })
    }

    /// Whether it gave everything back in time.
    fn wait_until_detached(&self, may_sleep: &mut MaySleep) -> bool {
        for _ in 0..DETACH_MS_MAX / DETACH_POLL_MS {
            if self.core.with(may_sleep, |locked, _| locked.core.state_name() == "detached") {
                return true;
            }
            time::pause_ms(DETACH_POLL_MS, may_sleep);
        }
        false
    }

    #[inline(never)]
    fn end(self: Arc<Self>, may_sleep: &mut MaySleep) {
        match Arc::try_unwrap(self) {
            Ok(interface) => interface.free(may_sleep),
            // Somebody else has it, who drops it: its queues go in the order of their fields.
            Err(interface) => drop(interface),
        }
    }

    /// Destroys the queues before the buffers that were posted to them are freed.
    fn free(self, may_sleep: &mut MaySleep) {
        let Self { net, core, hardware, .. } = self;
        let mut locked = core.into_inner();
        // There are some if the interface did not give everything back.
        while let Some(connection) = locked.queues.take_connection() {
            if let Some(quiet) = quiet_of(connection.close(may_sleep)) {
                locked.queues.reclaim_connected(&quiet);
                locked.queues.reclaim_sends(&quiet, drop);
            }
        }
        hardware.manager.close(may_sleep);
        hardware.administrator.close(may_sleep);
        if let Some(quiet) = quiet_of(hardware.queue_pair.close(may_sleep)) {
            locked.queues.reclaim_datagrams(&quiet);
        }
        if let Some(shared) = hardware.shared
            && let Some(quiet) = quiet_of(shared.close(may_sleep))
        {
            locked.queues.reclaim_connected(&quiet);
        }
        drop(locked);
        drop(net);
    }
}

/// What a queue that was closed gives back. What it does not, the adapter may still write to: it is
/// lost with its slots, which say so.
fn quiet_of(closed: Result<Quiet, Kept>) -> Option<Quiet> {
    closed.map_or_else(|kept| kept.quiet, Some)
}

impl Hardware {
    #[inline(never)]
    fn new(
        (port, role): (&Port, Role<'_>),
        settings: &Settings,
        hub: &Arc<Hub>,
        may_sleep: &mut MaySleep,
    ) -> Result<Self, Errno> {
        let device = port.device();
        let attributes = *device.attributes();
        let limits = settings.limits_for(&attributes);
        let domain = ProtectionDomain::new(device, may_sleep)?;
        let sends = limits.send_queue_len;
        let send_queue = CompletionQueue::new(device, sends, hub.clone(), may_sleep)?;
        let receives = receive_completions(&limits);
        let receive_queue = CompletionQueue::new(device, receives, hub.clone(), may_sleep)?;
        let segments_max = attributes.send_segments_max;
        let queue_pair = DatagramQueuePair::new(
            &DatagramConfig {
                domain: &domain,
                port,
                send_queue: &send_queue,
                receive_queue: &receive_queue,
                sends_max: limits.send_queue_len,
                receives_max: limits.receive_queue_len,
                send_segments_max: segments_max,
                receive_segments_max: 2,
            },
            may_sleep,
        )?;
        let shared = attributes.shared_receives.and_then(|shared| {
            let receives = limits.shared_receive_queue_len.min(shared.queue_len_max);
            let segments = shared.segments_max.min(RECEIVE_SEGMENTS_MAX);
            SharedReceiveQueue::new(&domain, receives, segments, may_sleep).ok()
        });
        let connected = settings.connected_for(&attributes, shared.is_some());
        let administrator = Administrator::new(port, hub.clone())?;
        let manager = Manager::new(port, hub.clone())?;
        Ok(Self {
            port: port.clone(),
            partition: role.partition(),
            limits,
            connected,
            domain,
            send_queue,
            receive_queue,
            queue_pair,
            shared,
            administrator,
            manager,
            segments_max,
        })
    }
}

/// Every receive that may be posted, and the drain marker of every incoming connection.
fn receive_completions(limits: &Limits) -> u32 {
    let unshared = limits.incoming_unshared_max * limits.connection_receive_queue_len;
    limits.receive_queue_len + limits.shared_receive_queue_len.max(unshared) + limits.incoming_max
}
