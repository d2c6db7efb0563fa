//! What a scenario works with: a lab, the system's programs, and checks.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::capture::{self, Extent};
use crate::console::{Console, Outcome};
use crate::error::Error;
use crate::kernel::KernelCounters;
use crate::ping::{Ping, Report};
use crate::signals::Signals;
use crate::tools::{self, Running};
use crate::world::{Captures, HostId, Place, World, WorldConfig};

/// How long carriers may take to come up.
const LINK_UP_MAX: Duration = Duration::from_secs(20);

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl Family {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// The family of an address.
    pub(super) fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }

    /// A host's address on its first interface.
    pub(super) fn address(self, host: HostId) -> IpAddr {
        match self {
            Self::Ipv4 => host.ipv4().into(),
            Self::Ipv6 => host.ipv6().into(),
        }
    }

    /// The group of all hosts of a link.
    pub(super) fn all_hosts(self) -> IpAddr {
        match self {
            Self::Ipv4 => Ipv4Addr::new(224, 0, 0, 1).into(),
            Self::Ipv6 => Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1).into(),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// What a scenario needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Hosts.
    pub(super) host_count: u8,
    /// Ports of each.
    pub(super) port_count: u8,
    /// Its captures.
    pub(super) capturing: Capturing,
}

/// Which captures a scenario makes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Capturing {
    /// Of every packet, if somebody asks for them.
    WhenAsked,
    /// Always: it looks at them itself.
    Always(Extent),
}

impl Layout {
    /// Two hosts.
    pub(super) const PAIR: Self =
        Self { host_count: 2, port_count: 1, capturing: Capturing::WhenAsked };

    /// Two hosts, and captures to look at.
    pub(super) const fn pair_captured(extent: Extent) -> Self {
        Self { capturing: Capturing::Always(extent), ..Self::PAIR }
    }
}

/// A lab, and where to print.
pub(super) struct Stage<'a> {
    pub(super) world: World<'a>,
    console: &'a mut Console,
}

/// A ping that runs beside the lab.
pub(super) struct RunningPing {
    running: Running,
    time_max: Duration,
}

impl<'a> Stage<'a> {
    /// Makes the hosts.
    ///
    /// # Errors
    ///
    /// Whatever keeps them from being made.
    pub(super) fn open(
        scenario: &str,
        layout: Layout,
        prefix: &str,
        captures: Option<&capture::Directory>,
        signals: &'a Signals,
        console: &'a mut Console,
    ) -> Result<Self, Error> {
        let extent = match layout.capturing {
            Capturing::WhenAsked => Extent::Everything,
            Capturing::Always(extent) => extent,
        };
        let world = World::start(
            WorldConfig {
                prefix,
                host_count: layout.host_count,
                port_count: layout.port_count,
                captures: captures.map(|directory| Captures {
                    directory,
                    scenario: Some(scenario),
                    extent,
                }),
            },
            signals,
        )?;
        Ok(Self { world, console })
    }

    /// Waits for the carrier of every interface; prints and counts it as a check.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] and what the system refuses.
    pub(super) fn check_links_up(&mut self) -> Result<(), Error> {
        let start = self.world.now();
        let mut is_up = self.world.run_until(LINK_UP_MAX, World::are_links_up)?;
        for place in self.world.places() {
            is_up &= self.wait_carrier(place.host, place.interface(), true)?;
        }
        let span = self.world.now().saturating_since(start);
        self.check("every interface has a carrier", after(is_up, span))
    }

    /// Ends the lab, prints the tables if the scenario came to its end, and checks that every
    /// buffer came back.
    ///
    /// # Errors
    ///
    /// That of the scenario; those of [`World::take_down`].
    pub(super) fn close(self, result: Result<(), Error>) -> Result<(), Error> {
        let Self { world, console } = self;
        let result = result.and_then(|()| console.line(world.tables()));
        let leaked = world.take_down();
        result?;
        let leaked = leaked?;
        console.check("buffers leaked", Outcome::of(leaked == 0, leaked.to_string()))
    }

    /// Prints what is being done.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if nobody reads it.
    pub(super) fn say(&mut self, text: impl fmt::Display) -> Result<(), Error> {
        self.console.line(format_args!("  {text}"))
    }

    /// Prints and counts a check.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if nobody reads it.
    pub(super) fn check(&mut self, name: impl fmt::Display, outcome: Outcome) -> Result<(), Error> {
        self.console.check(name, outcome)
    }

    /// Runs a program on a host and takes what it says.
    ///
    /// # Errors
    ///
    /// [`Error::MissingProgram`], [`Error::Interrupted`] and what the system refuses.
    pub(super) fn run_program(
        &mut self,
        host: HostId,
        program: &str,
        arguments: &[&str],
    ) -> Result<String, Error> {
        const TIME_MAX: Duration = Duration::from_secs(20);
        let arguments: Vec<String> = arguments.iter().copied().map(str::to_owned).collect();
        let mut running = self.world.start_program(host, program, &arguments)?;
        Ok(self.world.finish_program(&mut running, TIME_MAX)?.unwrap_or_default())
    }

    /// What the kernel of a host has counted so far.
    ///
    /// # Errors
    ///
    /// As [`Self::run_program`].
    pub(super) fn kernel_counters(&mut self, host: HostId) -> Result<KernelCounters, Error> {
        let said = self.run_program(host, tools::NSTAT, &KernelCounters::ARGUMENTS)?;
        Ok(KernelCounters::parse(&said))
    }

    /// Starts a ping on a host.
    ///
    /// # Errors
    ///
    /// [`Error::MissingProgram`], [`Error::System`].
    pub(super) fn start_ping(&mut self, from: HostId, ping: &Ping) -> Result<RunningPing, Error> {
        Ok(RunningPing {
            running: self.world.start_program(from, tools::PING, &ping.arguments())?,
            time_max: ping.time_max(),
        })
    }

    /// Runs the lab until a ping has ended.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] and what the system refuses.
    pub(super) fn finish_ping(&mut self, mut ping: RunningPing) -> Result<Report, Error> {
        let said = self.world.finish_program(&mut ping.running, ping.time_max)?;
        Ok(said.map_or_else(Report::default, |text| Report::parse(&text)))
    }

    /// Runs a ping on a host.
    ///
    /// # Errors
    ///
    /// As [`Self::start_ping`] and [`Self::finish_ping`].
    pub(super) fn ping(&mut self, from: HostId, ping: &Ping) -> Result<Report, Error> {
        let running = self.start_ping(from, ping)?;
        self.finish_ping(running)
    }

    /// Runs a ping and checks that every request was answered.
    ///
    /// # Errors
    ///
    /// As [`Self::ping`].
    pub(super) fn check_answered(
        &mut self,
        name: impl fmt::Display,
        from: HostId,
        ping: &Ping,
    ) -> Result<(), Error> {
        let report = self.ping(from, ping)?;
        let is_good = report.is_complete(ping.count);
        self.check(name, Outcome::of(is_good, report.summary_of(ping.count)))
    }

    /// Checks that the kernel of a host has this MTU on its interface.
    ///
    /// # Errors
    ///
    /// As [`Self::check`], and what the system refuses.
    pub(super) fn check_mtu(&mut self, host: HostId, mtu: usize) -> Result<(), Error> {
        let shown = self.world.show_link(host, "ib0")?;
        let name = format!("MTU of {host}'s ib0 is {mtu}");
        let found = word_after(&shown, "mtu").unwrap_or("no MTU").to_owned();
        self.check(name, Outcome::of(found == mtu.to_string(), found))
    }

    /// Waits until the kernel of a host sees the carrier of an interface as wanted.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] and what the system refuses.
    pub(super) fn check_carrier(
        &mut self,
        host: HostId,
        interface: &str,
        is_wanted: bool,
    ) -> Result<(), Error> {
        let start = self.world.now();
        let is_good = self.wait_carrier(host, interface, is_wanted)?;
        let span = self.world.now().saturating_since(start);
        let word = if is_wanted { "up" } else { "gone" };
        self.check(format!("carrier of {host}'s {interface} is {word}"), after(is_good, span))
    }

    /// Waits until the kernel of a host has taken note of a carrier. It does so some time after it
    /// was told, and drops what is sent before.
    fn wait_carrier(
        &mut self,
        host: HostId,
        interface: &str,
        is_wanted: bool,
    ) -> Result<bool, Error> {
        const STEP: Duration = Duration::from_millis(5);
        let give_up = self.world.now() + LINK_UP_MAX;
        loop {
            let shown = self.world.show_link(host, interface)?;
            if (word_after(&shown, "state") == Some("UP")) == is_wanted {
                return Ok(true);
            }
            if self.world.now() > give_up {
                return Ok(false);
            }
            self.world.run_for(STEP)?;
        }
    }

    /// Checks that the device of a port, which holds packets until the lab reads them, was never
    /// full.
    ///
    /// # Errors
    ///
    /// As [`Self::check`] and [`Self::run_program`].
    pub(super) fn check_queue(&mut self, place: Place) -> Result<(), Error> {
        let file = format!("/sys/class/net/{}/statistics/tx_dropped", place.interface());
        let said = self.run_program(place.host, "cat", &[&file])?;
        let count = said.trim().to_owned();
        self.check(format!("packets that the device {place} dropped"), {
            Outcome::of(count == "0", count)
        })
    }

    /// Checks that a host dropped nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub(super) fn check_no_drops(&mut self, host: HostId) -> Result<(), Error> {
        let drops = self.world.drops_of(host);
        let name = format!("packets that {host} dropped");
        self.check(name, Outcome::of(drops.is_empty(), describe_drops(&drops)))
    }

    /// Checks that no datagram was larger than the fabric's MTU.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub(super) fn check_violations(&mut self) -> Result<(), Error> {
        let count = self.world.oversize_count();
        let name = "datagrams larger than the MTU of the fabric";
        self.check(name, Outcome::of(count == 0, count.to_string()))
    }

    /// Checks how long after `event` the first answer came.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub(super) fn check_recovery(
        &mut self,
        name: &str,
        report: &Report,
        event: Duration,
        recovery_max: Duration,
    ) -> Result<(), Error> {
        let outcome = match report.recovery_after(event) {
            Some(span) => Outcome::of(
                span <= recovery_max,
                format!("{} ms; {}", span.as_millis(), report.summary()),
            ),
            None => Outcome::Failed(format!("never; {}", report.summary())),
        };
        self.check(name, outcome)
    }
}

/// The time of day, since 1970: what ping stamps its answers with.
pub(super) fn time_of_day() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Drops by their reasons, on one line.
pub(super) fn describe_drops(drops: &[(&'static str, u64)]) -> String {
    if drops.is_empty() {
        return "0".to_owned();
    }
    let drops: Vec<String> = drops.iter().map(|(name, count)| format!("{name} {count}")).collect();
    drops.join(", ")
}

fn after(is_good: bool, span: Duration) -> Outcome {
    Outcome::of(is_good, format!("after {} ms", span.as_millis()))
}

/// The word behind `key`.
pub(super) fn word_after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == key)?;
    words.next()
}
