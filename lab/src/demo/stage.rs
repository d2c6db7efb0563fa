//! What a scenario works with: a lab of two hosts, the system's programs, and checks.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::capture;
use crate::console::{Console, Outcome};
use crate::error::Error;
use crate::ping::{Ping, Report};
use crate::signals::Signals;
use crate::tools::{self, Running};
use crate::world::{HostId, World, WorldConfig};

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

/// A lab of two hosts, and where to print.
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
    /// Makes the hosts and waits until both have a carrier.
    ///
    /// # Errors
    ///
    /// Whatever keeps them from being made.
    pub(super) fn open(
        scenario: &str,
        prefix: &str,
        captures: Option<&capture::Directory>,
        signals: &'a Signals,
        console: &'a mut Console,
    ) -> Result<Self, Error> {
        let world = World::start(
            WorldConfig {
                prefix,
                host_count: 2,
                captures: captures.map(|directory| (directory, Some(scenario))),
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
        for host in HostId::BOTH {
            is_up &= self.wait_carrier(host, "ib0", true)?;
        }
        let span = self.world.now().saturating_since(start);
        self.check("every interface has a carrier", after(is_up, span))
    }

    /// Ends the lab, and prints the tables if the scenario came to its end.
    ///
    /// # Errors
    ///
    /// That of the scenario; those of [`World::stop`].
    pub(super) fn close(self, result: Result<(), Error>) -> Result<(), Error> {
        let Self { world, console } = self;
        let result = result.and_then(|()| console.line(world.tables()));
        let stopped = world.stop();
        result.and(stopped)
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

fn after(is_good: bool, span: Duration) -> Outcome {
    Outcome::of(is_good, format!("after {} ms", span.as_millis()))
}

fn word_after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == key)?;
    words.next()
}
