//! The guided tour.
//!
//! Every scenario has a lab of its own: fresh hosts, a fresh fabric, and at the end tables of what
//! came of it.

mod arp_flap;
mod connected;
mod connections;
mod flow;
mod iperf;
mod lagg_failover;
mod link;
mod mode_switch;
mod partition;
mod ping_datagram;
mod pmtu;
mod review;
mod stage;
mod subnet;
mod tcp;

use crate::capture::{self, Extent, Scratch};
use crate::cli;
use crate::console::Console;
use crate::error::Error;
use crate::signals::Signals;

use review::Review;
use stage::{Capturing, Layout, Stage};

type Run = fn(&mut Stage<'_>) -> Result<(), Error>;
type Look = fn(&mut Review<'_>) -> Result<(), Error>;

/// A part of the tour.
struct Scenario {
    name: &'static str,
    /// One line.
    title: &'static str,
    layout: Layout,
    run: Run,
    /// Looks at the captures afterwards.
    review: Option<Look>,
}

impl Scenario {
    /// A scenario of two hosts.
    const fn pair(name: &'static str, title: &'static str, run: Run) -> Self {
        Self { name, title, layout: Layout::PAIR, run, review: None }
    }
}

impl Scenario {
    fn play(
        &self,
        prefix: &str,
        captures: Option<&capture::Directory>,
        signals: &Signals,
        console: &mut Console,
    ) -> Result<(), Error> {
        let scratch = match (captures, self.layout.capturing) {
            (None, Capturing::Always(_)) => Some(Scratch::create(self.name)?),
            (None, Capturing::WhenAsked) | (Some(_), _) => None,
        };
        let captures = captures.or(scratch.as_ref().map(Scratch::directory));
        let mut stage = Stage::open(self.name, self.layout, prefix, captures, signals, console)?;
        let result = (self.run)(&mut stage);
        stage.close(result)?;
        match (self.review, captures) {
            (Some(review), Some(captures)) => {
                review(&mut Review::new(console, captures, self.name, prefix))
            }
            (Some(_), None) | (None, _) => Ok(()),
        }
    }
}

const SCENARIOS: [Scenario; 14] = [
    Scenario::pair(
        "ping-datagram",
        "two hosts ping each other in datagram mode, up to the MTU and beyond",
        ping_datagram::run,
    ),
    Scenario::pair(
        "ping-connected",
        "both hosts switch to connected mode: packets of 65520 bytes, whole",
        connected::run_ping,
    ),
    Scenario::pair(
        "tcp-connected",
        "TCP by iperf3 in datagram mode and in connected mode",
        tcp::run,
    ),
    Scenario::pair(
        "mixed",
        "a connected host and a host of datagram mode on one subnet",
        connected::run_mixed,
    ),
    Scenario {
        name: "connections",
        title: "connections come, end, are refused and come again; the CM by name",
        layout: Layout::pair_captured(Extent::Everything),
        run: connections::run,
        review: Some(connections::review),
    },
    Scenario {
        name: "pmtu",
        title: "a connected host learns what a datagram-only neighbor takes",
        layout: Layout::pair_captured(Extent::Everything),
        run: pmtu::run,
        review: Some(pmtu::review),
    },
    Scenario::pair(
        "mode-switch",
        "the mode is changed twenty times, under ping, TCP and UDP",
        mode_switch::run,
    ),
    Scenario {
        name: "arp-flap",
        title: "addresses of three peers move between their ports sixty times, under traffic",
        layout: Layout {
            host_count: 4,
            port_count: 2,
            capturing: Capturing::Always(Extent::Datagrams),
        },
        run: arp_flap::run,
        review: Some(arp_flap::review),
    },
    Scenario {
        name: "lagg-failover",
        title: "a lagg over two ports moves from one to the other, under ping and TCP",
        layout: Layout {
            host_count: 2,
            port_count: 2,
            capturing: Capturing::Always(Extent::Datagrams),
        },
        run: lagg_failover::run,
        review: Some(lagg_failover::review),
    },
    Scenario::pair(
        "link",
        "a port loses its link, an interface is taken down: the carrier follows",
        link::run,
    ),
    Scenario::pair(
        "sm-restart",
        "the subnet manager forgets everything while a ping runs",
        subnet::run_restart,
    ),
    Scenario::pair(
        "lid-change",
        "a host gets another LID while a ping runs",
        subnet::run_lid_change,
    ),
    Scenario::pair(
        "partition",
        "a P_Key goes and comes back; a child interface in a partition of its own",
        partition::run,
    ),
    Scenario::pair(
        "sa-busy",
        "the subnet administrator is busy when the hosts start",
        subnet::run_busy,
    ),
];

/// What is to be run, checked before anything is touched.
pub(crate) struct Tour {
    scenarios: Vec<&'static Scenario>,
}

impl Tour {
    /// All scenarios, or the one called `only`.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownScenario`].
    pub(crate) fn plan(only: Option<&str>) -> Result<Self, Error> {
        let is_wanted = |scenario: &&Scenario| only.is_none_or(|name| name == scenario.name);
        let scenarios: Vec<_> = SCENARIOS.iter().filter(is_wanted).collect();
        match (scenarios.is_empty(), only) {
            (true, Some(name)) => Err(Error::UnknownScenario(name.to_owned())),
            (true, None) | (false, _) => Ok(Self { scenarios }),
        }
    }

    /// Prints the names.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if nobody reads them.
    pub(crate) fn list(&self) -> Result<(), Error> {
        let mut console = Console::new();
        self.scenarios.iter().try_for_each(|scenario| {
            console.line(format_args!("{:<14} {}", scenario.name, scenario.title))
        })
    }

    /// Runs it and prints checks, tables and, as the last line, the sum.
    ///
    /// # Errors
    ///
    /// [`Error::ChecksFailed`], or what kept the tour from its end.
    pub(crate) fn run(
        &self,
        arguments: &cli::Demo,
        captures: Option<&capture::Directory>,
        signals: &Signals,
    ) -> Result<(), Error> {
        let mut console = Console::new();
        for scenario in &self.scenarios {
            console.line(format_args!("== {}: {}", scenario.name, scenario.title))?;
            let prefix = &arguments.common.naming.prefix;
            scenario.play(prefix, captures, signals, &mut console)?;
        }
        console.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_a_name_of_its_own() {
        for scenario in &SCENARIOS {
            let tour = Tour::plan(Some(scenario.name)).unwrap();
            assert_eq!(tour.scenarios.len(), 1, "{}", scenario.name);
        }
        assert_eq!(Tour::plan(None).unwrap().scenarios.len(), SCENARIOS.len());
    }

    #[test]
    fn an_unknown_scenario_is_an_error() {
        assert!(matches!(
            Tour::plan(Some("x")),
            Err(Error::UnknownScenario(name)) if name == "x"
        ));
    }
}
