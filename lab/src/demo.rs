//! The guided tour.
//!
//! Every scenario has a lab of its own: fresh hosts, a fresh fabric, and at the end tables of what
//! came of it.

mod connected;
mod link;
mod partition;
mod ping_datagram;
mod stage;
mod subnet;
mod tcp;

use crate::capture;
use crate::cli;
use crate::console::Console;
use crate::error::Error;
use crate::signals::Signals;

use stage::Stage;

/// A part of the tour.
struct Scenario {
    name: &'static str,
    /// One line.
    title: &'static str,
    run: fn(&mut Stage<'_>) -> Result<(), Error>,
}

const SCENARIOS: [Scenario; 9] = [
    Scenario {
        name: "ping-datagram",
        title: "two hosts ping each other in datagram mode, up to the MTU and beyond",
        run: ping_datagram::run,
    },
    Scenario {
        name: "ping-connected",
        title: "both hosts switch to connected mode: packets of 65520 bytes, whole",
        run: connected::run_ping,
    },
    Scenario {
        name: "tcp-connected",
        title: "TCP by iperf3 in datagram mode and in connected mode",
        run: tcp::run,
    },
    Scenario {
        name: "mixed",
        title: "a connected host and a host of datagram mode on one subnet",
        run: connected::run_mixed,
    },
    Scenario {
        name: "link",
        title: "a port loses its link, an interface is taken down: the carrier follows",
        run: link::run,
    },
    Scenario {
        name: "sm-restart",
        title: "the subnet manager forgets everything while a ping runs",
        run: subnet::run_restart,
    },
    Scenario {
        name: "lid-change",
        title: "a host gets another LID while a ping runs",
        run: subnet::run_lid_change,
    },
    Scenario {
        name: "partition",
        title: "a P_Key goes and comes back; a child interface in a partition of its own",
        run: partition::run,
    },
    Scenario {
        name: "sa-busy",
        title: "the subnet administrator is busy when the hosts start",
        run: subnet::run_busy,
    },
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
            let mut stage = Stage::open(scenario.name, prefix, captures, signals, &mut console)?;
            let result = (scenario.run)(&mut stage);
            stage.close(result)?;
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
