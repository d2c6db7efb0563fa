//! Runs seeds through the simulator: many to search for failures, one to look at.

use std::ops::Range;
use std::process::ExitCode;

use clap::Parser;
use sim::swarm::{self, Options, Planted};

const EXIT_CODES: &str = "\
Exit codes: 0 every seed passed; 1 wrong arguments; 2 safety, 3 liveness, 4 leak, 5 two runs of a \
seed differ, 101 crash. With several failures, that of the lowest seed.";

/// Runs the protocol core in a simulated world in which things go wrong.
///
/// Every seed is run twice; both runs must be the same in every detail.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
struct Arguments {
    /// The seeds to run.
    #[arg(long, value_name = "FROM..TO", default_value = "0..100", value_parser = parse_range)]
    seeds: Range<u64>,

    /// Run one seed and print what happens, one line for each transition.
    #[arg(long, value_name = "SEED", conflicts_with = "seeds")]
    replay: Option<u64>,

    /// Seeds to run at the same time; as many as there are processors if it is not given.
    #[arg(long)]
    jobs: Option<usize>,

    /// Plant a bug in the world, to see that it is found.
    #[arg(long, value_enum, value_name = "BUG")]
    plant: Option<Planted>,
}

fn main() -> ExitCode {
    let Arguments { seeds, replay, jobs, plant } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let is_failure = error.use_stderr();
            // Nothing is left to be done if the message cannot be printed.
            let _ = error.print();
            return ExitCode::from(u8::from(is_failure));
        }
    };
    let options = Options { planted: plant };
    let failure = match replay {
        Some(seed) => swarm::replay(seed, options),
        None => swarm::run(seeds, jobs.unwrap_or_else(processors), options),
    };
    failure.map_or(ExitCode::SUCCESS, |kind| ExitCode::from(kind.exit_code()))
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("expected FROM..TO")?;
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a number"));
    let range = number(from)?..number(to)?;
    if range.is_empty() {
        return Err("there is no seed in this range".to_owned());
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn ranges_are_read_and_empty_ones_refused() {
        assert_eq!(parse_range("3..7"), Ok(3..7));
        for text in ["3", "7..3", "3..3", "a..3", "3..b"] {
            assert!(parse_range(text).is_err(), "{text}");
        }
    }
}
