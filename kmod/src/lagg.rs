//! InfiniBand laggs: failover over interfaces of this module, and of others.
//!
//! Who does what:
//!
//! | thread | does |
//! | --- | --- |
//! | of the network stack | [`front`]: transmit and receive, in the net epoch |
//! | administrator | [`front`]: what can be answered at once; the rest goes to the [`desk`] |
//! | of interfaces that change or go | [`front`]: signals, and for one that goes, the [`desk`] |
//! | `lagg` of each lagg | [`control`]: looks at ports, does what is to be done, tells the stack |
//!
//! The machine and the table of ports are behind one mutex, under which nothing is called but
//! [`kpi::ifnet::NetInterface::wear`]. So no lock of a lagg is held while anything goes down to a
//! port or up to the stack, and none can be part of a reversal.

mod control;
mod desk;
mod front;
mod name;
mod settings;
mod sysctl;
mod table;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ipoib_rs::ib::Pkey;
use ipoib_rs::lagg::{Config, Lagg as Machine};
use ipoib_rs::limits::LAGG_MTU_IDLE;
use ipoib_rs::wire::{BroadcastGroup, LinkAddress, Scope};
use kpi::cloner::{Cloner, Kind, Maker};
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::ifnet::{InterfaceConfig, InterfaceId, NetInterface, Place};
use kpi::lagg::{Beside, Options, Watch};
use kpi::log::{self, Level, Limited};
use kpi::owned::{try_arc, try_box};
use kpi::sync::{self, Mutex};
use kpi::sysctl::Tree;
use kpi::time;
use kpi::worker::{Waker, Work, Worker};

use control::{Control, signals};
use desk::Desk;
use front::Front;
pub(crate) use name::Naming;
use settings::Shared;
use table::Table;

/// All laggs. Dropping it destroys them, wherever they are.
#[derive(Debug)]
pub(crate) struct Laggs {
    /// It destroys what it made: the first to go.
    _cloner: Cloner,
    _settings: Tree,
    /// The last one: interfaces are watched as long as there may be a lagg.
    _watch: Watch,
}

impl Laggs {
    /// Has ifconfig(8) create laggs. `None` if none are wanted.
    ///
    /// # Errors
    ///
    /// No memory, or the name is taken.
    pub(crate) fn new(
        naming: Naming,
        tree: &Arc<Tree>,
        may_sleep: &mut MaySleep,
    ) -> Result<Option<Self>, Errno> {
        let (name, beside) = match naming {
            Naming::Off => return Ok(None),
            Naming::Lagg => (c"lagg", Beside::Nobody),
            Naming::Iblagg => (c"iblagg", Beside::Stock),
        };
        let watch = Watch::new(beside, may_sleep);
        let factory = try_arc(Factory::new(naming, name, tree)?)?;
        let settings = settings::publish(tree, &factory, may_sleep)?;
        let cloner = Cloner::new(name, factory, may_sleep)?;
        Ok(Some(Self { _cloner: cloner, _settings: settings, _watch: watch }))
    }
}

/// The mutex of the list of laggs.
#[derive(Debug)]
struct ListLevel;

impl sync::Level for ListLevel {
    const NAME: &CStr = c"ipoib lagg list";
}

/// Makes laggs.
#[derive(Debug)]
struct Factory {
    naming: Naming,
    name: &'static CStr,
    /// `net.link.ipoib`
    tree: Arc<Tree>,
    shared: Arc<Shared>,
    first: Mutex<ListLevel, Option<Box<Attached>>>,
}

impl Factory {
    fn new(naming: Naming, name: &'static CStr, tree: &Arc<Tree>) -> Result<Self, Errno> {
        let (shared, tree) = (try_arc(Shared::new())?, Arc::clone(tree));
        Ok(Self { naming, name, tree, shared, first: Mutex::new(None)? })
    }

    /// Has all laggs look at the settings.
    fn settings_changed(&self, may_sleep: &mut MaySleep) {
        self.first.with(may_sleep, |first, _| {
            let mut next = first.as_ref();
            while let Some(attached) = next {
                attached.lagg.signal(signals::SETTINGS);
                next = attached.next.as_ref();
            }
        });
    }
}

impl Maker for Factory {
    fn create(
        &self,
        unit: u32,
        kind: Kind,
        may_sleep: &mut MaySleep,
    ) -> Result<InterfaceId, Errno> {
        match (kind, self.naming) {
            // The name says it.
            (Kind::InfiniBand, _) | (Kind::Default, Naming::Iblagg) => {}
            (Kind::Ethernet, _) | (Kind::Default, Naming::Lagg | Naming::Off) => {
                let name = self.name.to_str().unwrap_or_default();
                log::line(Level::Error, format_args!("{name}{unit}: {}", name::ETHERNET_REFUSED));
                return Err(Errno::EPROTONOSUPPORT);
            }
        }
        let mut attached = Attached::new(self, unit, may_sleep)?;
        let id = attached.lagg.net.id();
        self.first.with(may_sleep, |first, _| {
            attached.next = first.take();
            *first = Some(attached);
        });
        Ok(id)
    }

    fn destroy(&self, which: InterfaceId, may_sleep: &mut MaySleep) {
        let attached = self.first.with(may_sleep, |first, _| {
            let mut place = first;
            while place.as_ref().is_some_and(|attached| attached.lagg.net.id() != which) {
                place = &mut place.as_mut()?.next;
            }
            let mut attached = place.take()?;
            *place = attached.next.take();
            Some(attached)
        });
        if let Some(attached) = attached {
            attached.detach(may_sleep);
        }
    }
}

/// The mutex of the machine and the table of ports.
#[derive(Debug)]
struct LaggLevel;

impl sync::Level for LaggLevel {
    const NAME: &CStr = c"ipoib lagg";
}

/// What a lagg is, from its creation to its end.
#[derive(Debug)]
struct Lagg {
    net: NetInterface,
    locked: Mutex<LaggLevel, Locked>,
    shared: Arc<Shared>,
    /// What its thread is to look at.
    signals: AtomicU32,
    waker: Waker,
    /// The stack is not told of anything any more.
    is_closing: AtomicBool,
    /// ARP has announced the address that is worn.
    has_arp_announced: AtomicBool,
    changes: Limited,
}

/// What the mutex protects.
#[derive(Debug)]
struct Locked {
    machine: Box<Machine>,
    ports: Table,
    desk: Desk,
    options: Options,
    /// The MTU that the administrator wants.
    mtu_wish: Option<usize>,
    is_detached: bool,
}

impl Lagg {
    #[inline(never)]
    fn new(
        factory: &Factory,
        unit: u32,
        (front, waker): (&Arc<Front>, Waker),
        may_sleep: &mut MaySleep,
    ) -> Result<Self, Errno> {
        let mut config = Config::new(time::random_seed());
        factory.shared.apply(&mut config);
        let machine = Machine::attach(config).map_err(|_| Errno::ENOMEM)?;
        let locked = Locked {
            machine: try_box(machine)?,
            ports: Table::new(&config.limits)?,
            desk: Desk::Free,
            options: Options::DEFAULT,
            mtu_wish: None,
            is_detached: false,
        };
        let locked = Mutex::new(locked)?;
        // What it is called before it has a port nobody sees.
        let nobody = BroadcastGroup::new(Scope::LINK_LOCAL, Pkey::DEFAULT);
        let address = LinkAddress::multicast(nobody.mgid());
        let net = NetInterface::attach(
            &InterfaceConfig {
                place: Place::New { name: factory.name, unit },
                mtu: LAGG_MTU_IDLE,
                address,
                broadcast: address,
                bits_per_second: 0,
                has_checksums: false,
            },
            front.clone(),
            may_sleep,
        )?;
        net.wear(None);
        Ok(Self {
            net,
            locked,
            shared: Arc::clone(&factory.shared),
            signals: AtomicU32::new(0),
            waker,
            is_closing: AtomicBool::new(false),
            has_arp_announced: AtomicBool::new(false),
            changes: Limited::new(LOG_LINES_PER_SECOND),
        })
    }
}

/// A lagg and its thread.
#[derive(Debug)]
struct Attached {
    lagg: Arc<Lagg>,
    /// What the stack calls.
    front: Arc<Front>,
    /// `net.link.ipoib.<lagg>`
    tree: Tree,
    worker: Worker,
    next: Option<Box<Self>>,
}

impl Attached {
    fn new(factory: &Factory, unit: u32, may_sleep: &mut MaySleep) -> Result<Box<Self>, Errno> {
        let front = try_arc(Front::new())?;
        let lagg = try_arc(Lagg::new(factory, unit, (&front, Waker::new()?), may_sleep)?)?;
        front.connect(&lagg, may_sleep);
        let started = Self::start(factory, &lagg, &front, may_sleep);
        if started.is_err() {
            lagg.net.detach(may_sleep);
            front.disconnect(may_sleep);
        }
        started
    }

    #[inline(never)]
    fn start(
        factory: &Factory,
        lagg: &Arc<Lagg>,
        front: &Arc<Front>,
        may_sleep: &mut MaySleep,
    ) -> Result<Box<Self>, Errno> {
        let (lagg, front) = (Arc::clone(lagg), Arc::clone(front));
        let tree = sysctl::publish(&factory.tree, &lagg, may_sleep)?;
        let work: Arc<dyn Work> = try_arc(Control::new(Arc::clone(&lagg))?)?;
        let worker = Worker::start(&lagg.waker, c"ipoib lagg", work, may_sleep)?;
        // It may have been marked up before there was anybody to tell.
        lagg.net.refresh(may_sleep);
        try_box(Self { lagg, front, tree, worker, next: None })
    }

    /// Gives all ports back, takes the interface out of the stack, and ends it.
    fn detach(self, may_sleep: &mut MaySleep) {
        let Self { lagg, front, tree, worker, next: _ } = self;
        drop(tree);
        lagg.close(may_sleep);
        lagg.net.detach(may_sleep);
        worker.stop(may_sleep);
        front.disconnect(may_sleep);
    }
}

impl Lagg {
    /// Has the thread look at something.
    fn signal(&self, signals: u32) {
        self.signals.fetch_or(signals, Ordering::Release);
        self.waker.wake();
    }

    /// Returns when no port is left. Ports that departed meanwhile are waited for by those who told
    /// of it.
    fn close(&self, may_sleep: &mut MaySleep) {
        self.close_desk(may_sleep);
        self.is_closing.store(true, Ordering::Release);
        self.signal(signals::CLOSE);
        self.locked.wait(may_sleep, |locked| locked.is_detached.then_some(()));
    }
}

/// Of a port that flaps, not every change is told.
const LOG_LINES_PER_SECOND: u32 = 5;
