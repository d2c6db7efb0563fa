//! A lab at work: hosts, fabric, subnet manager, and the loop that moves packets between them in
//! real time.
//!
//! One thread does all of it. A packet that the kernel of a host sends is read from the host's TUN
//! device, resolved, sent by the core and delivered by the fabric at once; when the loop sleeps,
//! nothing is under way.

mod control;
mod host;
mod lagg;
mod observe;
mod show;

use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use fabric::packet::PoolLimits;
use fabric::port::PortId;
use fabric::sm::{SmConfig, SmLimits};
use fabric::subnet::Subnet;
use fabric::{AsyncEvent, Fabric, FabricConfig};
use ipoib_rs::ib::RateCode;
use ipoib_rs::time::Instant;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::capture::{self, Capture, Extent};
use crate::clock::Clock;
use crate::error::Error;
use crate::lease::Registry;
use crate::namespace::{self, Namespace};
use crate::signals::{ShowTables, Signals};
use crate::tools::{self, Bell, Running};

use host::LabPort;
pub(crate) use host::{HostId, Place};
use lagg::LabLagg;

/// How often the lab looks at what the kernel does not tell: administrative state and groups.
const WATCH: Duration = Duration::from_millis(100);
/// How long hosts may take to give everything back.
const DETACH_MAX: Duration = Duration::from_secs(3);
/// Packets that arrive before the receivers get their turn: fewer than QP1 has receives.
const DELIVERY_LEN: usize = 32;
/// Connected mode reads every packet into a buffer for the largest.
const FABRIC: FabricConfig = FabricConfig {
    pool: PoolLimits { large_max: 1024, ..PoolLimits::DEFAULT },
    ..FabricConfig::DEFAULT
};
/// The context of the subnet manager's completion queues; ports of hosts have
/// their place in the list.
const SUBNET_CONTEXT: u64 = u64::MAX;
const SUBNET_GUID: u64 = 0x0002_C903_0000_0100;
/// 10 Gb/s (IBA 15.2.5.16, Rate).
const RATE_CODE: u8 = 3;

/// What a lab is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldConfig<'a> {
    /// What the names of the namespaces begin with.
    pub(crate) prefix: &'a str,
    /// How many hosts.
    pub(crate) host_count: u8,
    /// Ports of each host, 1 or 2.
    pub(crate) port_count: u8,
    /// What is captured and where to.
    pub(crate) captures: Option<Captures<'a>>,
}

/// Captures of every link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Captures<'a> {
    /// Where they go.
    pub(crate) directory: &'a capture::Directory,
    /// What their names begin with.
    pub(crate) scenario: Option<&'a str>,
    /// What is written.
    pub(crate) extent: Extent,
}

/// A lab. Call [`Self::stop`] at the end, whatever happened; what is not the process's own is
/// removed in any case.
#[derive(Debug)]
pub(crate) struct World<'a> {
    clock: Clock,
    signals: &'a Signals,
    bell: Bell,
    fabric: Fabric,
    subnet: Subnet,
    subnet_port: PortId,
    subnet_capture: Option<Capture>,
    ports: Vec<LabPort>,
    laggs: Vec<LabLagg>,
    watch_at: Instant,
    wants_tables: Option<ShowTables>,
}

impl<'a> World<'a> {
    /// Makes the hosts, plugs them in and takes their interfaces up.
    ///
    /// # Errors
    ///
    /// Whatever keeps them from being made; then nothing is left.
    pub(crate) fn start(config: WorldConfig<'_>, signals: &'a Signals) -> Result<Self, Error> {
        let clock = Clock::start();
        let ids: Vec<HostId> = HostId::first(config.host_count).collect();
        let names: Vec<String> = ids.iter().map(|id| id.namespace(config.prefix)).collect();
        let namespaces = namespace::create_all(&Registry::system(), &names)?;
        let subnet_capture = open_capture(config, &format!("{}sm", config.prefix), &clock)?;
        let mut fabric = Fabric::new(FABRIC).map_err(interface_error("fabric"))?;
        let (subnet_port, subnet) = start_subnet(&mut fabric)?;
        let mut world = Self {
            clock,
            signals,
            bell: Bell::new()?,
            fabric,
            subnet,
            subnet_port,
            subnet_capture,
            ports: Vec::new(),
            laggs: Vec::new(),
            watch_at: Instant::ZERO,
            wants_tables: None,
        };
        world.plug_in_hosts(config, &ids, namespaces)?;
        world.settle()?;
        Ok(world)
    }

    /// Makes the ports of the hosts: all first ones, then all second ones.
    fn plug_in_hosts(
        &mut self,
        config: WorldConfig<'_>,
        ids: &[HostId],
        namespaces: Vec<Namespace>,
    ) -> Result<(), Error> {
        let namespaces: Vec<Rc<Namespace>> = namespaces.into_iter().map(Rc::new).collect();
        let adapters = ids
            .iter()
            .map(|id| control::plug_in(&mut self.fabric, id.guid(), config.port_count))
            .collect::<Result<Vec<_>, _>>()?;
        for number in 0..config.port_count {
            for ((&host, namespace), adapter) in ids.iter().zip(&namespaces).zip(&adapters) {
                let place = Place { host, number };
                let Some(&port) = adapter.get(usize::from(number)) else {
                    return Err(Error::Interface(format!("{host} has no port {number}")));
                };
                let capture = open_capture(config, &place.link(config.prefix), &self.clock)?;
                let context = self.ports.len() as u64;
                let namespace = Rc::clone(namespace);
                let port =
                    LabPort::new(&mut self.fabric, place, port, context, namespace, capture)?;
                let linked = self.subnet.link_up(&mut self.fabric, port.id());
                linked.map_err(interface_error("link"))?;
                self.ports.push(port);
            }
        }
        Ok(())
    }

    /// Takes everything back and checks that nothing was lost.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`] if an interface does not let go or packets are missing.
    pub(crate) fn stop(self) -> Result<(), Error> {
        match self.take_down()? {
            0 => Ok(()),
            lost => Err(Error::Interface(format!("{lost} packets were lost"))),
        }
    }

    /// Takes everything back. How many buffers are missing.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`] if an interface does not let go.
    pub(crate) fn take_down(mut self) -> Result<usize, Error> {
        let now = self.now();
        for lagg in &mut self.laggs {
            lagg.detach(now, &mut self.fabric);
        }
        self.settle()?;
        let are_released = self.laggs.iter().all(LabLagg::is_detached);
        for port in &mut self.ports {
            port.detach(now, &mut self.fabric);
        }
        let give_up = now + DETACH_MAX;
        self.settle()?;
        while !self.ports.iter().all(LabPort::is_detached) && self.now() < give_up {
            self.wait(self.deadline().min(give_up), Wake::OnTime)?;
            self.handle_timers()?;
            self.settle()?;
        }
        let detached = are_released && self.ports.iter().all(LabPort::is_detached);
        let mut result = Ok(());
        for lagg in self.laggs {
            lagg.close(&mut self.fabric);
        }
        for port in self.ports {
            result = result.and(port.close(&mut self.fabric));
        }
        self.subnet.close(&mut self.fabric);
        result = result.and(self.subnet_capture.map_or(Ok(()), Capture::finish));
        result?;
        if detached {
            Ok(self.fabric.pool().outstanding())
        } else {
            Err(Error::Interface("an interface does not detach".to_owned()))
        }
    }

    /// The time of the lab.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Runs for a while.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] and what the system refuses.
    pub(crate) fn run_for(&mut self, span: Duration) -> Result<(), Error> {
        self.run_until(span, |_| false).map(drop)
    }

    /// Runs until `is_done`, at most for `span`. Whether it was.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] and what the system refuses.
    pub(crate) fn run_until(
        &mut self,
        span: Duration,
        is_done: impl Fn(&Self) -> bool,
    ) -> Result<bool, Error> {
        let give_up = self.now() + span;
        loop {
            if is_done(self) {
                return Ok(true);
            }
            if self.now() >= give_up {
                return Ok(false);
            }
            self.turn(give_up)?;
        }
    }

    /// Runs until somebody asks for the tables.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] and what the system refuses.
    pub(crate) fn run_until_tables_are_wanted(&mut self) -> Result<(), Error> {
        while self.wants_tables.take().is_none() {
            self.turn(Instant::from_nanos(u64::MAX))?;
        }
        Ok(())
    }

    /// Starts a program in a host's namespace.
    ///
    /// # Errors
    ///
    /// [`Error::MissingProgram`], [`Error::System`].
    pub(crate) fn start_program(
        &self,
        host: HostId,
        program: &str,
        arguments: &[String],
    ) -> Result<Running, Error> {
        let name = self.namespace(host)?.name();
        let mut all: Vec<String> = ["netns", "exec", name, program].map(str::to_owned).into();
        all.extend_from_slice(arguments);
        Running::start(tools::IP, &all, self.bell.clone())
    }

    /// Runs until a program has ended, and gives what it said; `None` if it did not end within
    /// `span`.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] and what the system refuses.
    pub(crate) fn finish_program(
        &mut self,
        running: &mut Running,
        span: Duration,
    ) -> Result<Option<String>, Error> {
        let give_up = self.now() + span;
        loop {
            let said = running.poll()?;
            if said.is_some() || self.now() >= give_up {
                return Ok(said);
            }
            self.turn(give_up)?;
        }
    }

    /// Carries everything that the hosts have sent so far, without waiting.
    ///
    /// # Errors
    ///
    /// What the system refuses.
    pub(crate) fn drain(&mut self) -> Result<(), Error> {
        while self.read_devices()? {}
        Ok(())
    }

    fn turn(&mut self, latest: Instant) -> Result<(), Error> {
        self.wait(self.deadline().min(latest), Wake::OnAnything)?;
        if let Some(wanted) = self.signals.poll()? {
            self.wants_tables = Some(wanted);
        }
        self.bell.silence();
        self.handle_timers()?;
        self.read_devices()?;
        Ok(())
    }

    fn deadline(&self) -> Instant {
        let deadlines = self.ports.iter().filter_map(LabPort::deadline);
        let laggs = self.laggs.iter().filter_map(LabLagg::deadline);
        deadlines.chain(laggs).fold(self.watch_at, Instant::min)
    }

    fn handle_timers(&mut self) -> Result<(), Error> {
        let now = self.now();
        let is_watch_due = now >= self.watch_at;
        for index in 0..self.ports.len() {
            let port = &mut self.ports[index];
            port.handle_timeout(now, &mut self.fabric);
            if is_watch_due {
                port.watch(now, &mut self.fabric)?;
            }
            // Port by port, so that those that start together do not ask all at once.
            self.settle()?;
        }
        for lagg in &mut self.laggs {
            lagg.handle_timeout(now, &mut self.fabric);
            if is_watch_due {
                lagg.watch()?;
            }
        }
        if !self.laggs.is_empty() {
            self.settle()?;
        }
        if is_watch_due {
            self.watch_at = now + WATCH;
        }
        Ok(())
    }

    /// Reads a batch from every device. Whether there was anything.
    fn read_devices(&mut self) -> Result<bool, Error> {
        let mut any = false;
        for index in 0..self.ports.len() {
            let now = self.now();
            if self.ports[index].read_devices(now, &mut self.fabric)? {
                // Port by port, so that a burst of one meets empty queues at the others.
                self.settle()?;
                any = true;
            }
        }
        for index in 0..self.laggs.len() {
            let now = self.now();
            if self.laggs[index].read_device(now, &mut self.fabric)? {
                self.settle()?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Moves packets and events until nothing is under way.
    fn settle(&mut self) -> Result<(), Error> {
        let now = self.now();
        loop {
            let mut is_busy = self.deliver_transits(now)?;
            while let Some(notification) = self.fabric.poll_notification() {
                is_busy = true;
                let port = usize::try_from(notification.context)
                    .ok()
                    .and_then(|index| self.ports.get_mut(index));
                match port {
                    Some(port) => port.handle_notification(),
                    None => self.subnet.poll(&mut self.fabric),
                }
            }
            while let Some(event) = self.fabric.poll_event() {
                is_busy = true;
                self.handle_event(now, event);
            }
            for port in &mut self.ports {
                is_busy |= port.run(now, &mut self.fabric)?;
            }
            for lagg in &mut self.laggs {
                is_busy |= lagg.run(now, &mut self.fabric, &mut self.ports)?;
            }
            if !is_busy {
                return Ok(());
            }
        }
    }

    /// Lets a batch of packets arrive. Whether there was any.
    fn deliver_transits(&mut self, now: Instant) -> Result<bool, Error> {
        for count in 0..DELIVERY_LEN {
            let Some(transit) = self.fabric.poll_transit() else {
                return Ok(count > 0);
            };
            let (source, destination) = (transit.source(), transit.destination());
            let mut result = Ok(());
            if let Some(capture) = self.capture_of(source) {
                result = capture.write_sent(now, &transit);
            }
            if source != destination
                && let Some(capture) = self.capture_of(destination)
            {
                result = result.and(capture.write_arrived(now, &transit));
            }
            self.fabric.deliver(transit);
            result?;
        }
        Ok(true)
    }

    fn capture_of(&mut self, port: PortId) -> Option<&mut Capture> {
        if port == self.subnet_port {
            return self.subnet_capture.as_mut();
        }
        let mut ports = self.ports.iter_mut();
        ports.find(|other| other.id() == port)?.capture()
    }

    fn handle_event(&mut self, now: Instant, event: AsyncEvent) {
        for port in &mut self.ports {
            port.handle_adapter_event(now, &mut self.fabric, event);
        }
    }

    fn wait(&self, until: Instant, wake: Wake) -> Result<(), Error> {
        let mut descriptors = Vec::with_capacity(2 + self.ports.len());
        match wake {
            Wake::OnTime => {}
            Wake::OnAnything => {
                descriptors.push(PollFd::new(self.signals.as_fd(), PollFlags::POLLIN));
                descriptors.push(PollFd::new(self.bell.as_fd(), PollFlags::POLLIN));
                let laggs = self.laggs.iter().map(LabLagg::face);
                let laggs = laggs.filter(|face| face.can_send()).map(|face| &face.tun);
                for tun in self.ports.iter().flat_map(LabPort::readable_devices).chain(laggs) {
                    descriptors.push(PollFd::new(tun.as_fd(), PollFlags::POLLIN));
                }
            }
        }
        let span = until.saturating_since(self.now());
        // Rounded up: waking early would mean to spin.
        let millis = u16::try_from(span.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
        match poll(&mut descriptors, PollTimeout::from(millis)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(Error::system("poll", errno)),
        }
    }
}

/// What ends a sleep.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wake {
    /// Packets, signals, programs that end, and time.
    OnAnything,
    /// Time alone: packets and signals wait.
    OnTime,
}

fn start_subnet(fabric: &mut Fabric) -> Result<(PortId, Subnet), Error> {
    let port = control::plug_in(fabric, SUBNET_GUID, 1)?.into_iter().next();
    let port = port.ok_or_else(|| Error::Interface("an adapter without a port".to_owned()))?;
    let config = SmConfig::new(SmLimits::DEFAULT);
    let rate = RateCode::new(RATE_CODE).unwrap_or(config.group.rate);
    let mut subnet = Subnet::new(fabric, port, config, rate, SUBNET_CONTEXT)
        .map_err(interface_error("subnet manager"))?;
    control::configure_broadcast(&mut subnet, config.pkey_first)?;
    subnet.poll(fabric);
    Ok((port, subnet))
}

fn open_capture(
    config: WorldConfig<'_>,
    link: &str,
    clock: &Clock,
) -> Result<Option<Capture>, Error> {
    let Some(Captures { directory, scenario, extent }) = config.captures else {
        return Ok(None);
    };
    let name = scenario.map_or_else(|| link.to_owned(), |scenario| format!("{scenario}.{link}"));
    directory.create(&name, extent, clock.now()).map(Some)
}

fn interface_error<E: std::fmt::Debug>(what: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::Interface(format!("{what}: {error:?}"))
}
