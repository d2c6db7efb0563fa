//! Hosts that run until somebody ends them.

use crate::capture::{self, Extent};
use crate::cli;
use crate::console::Console;
use crate::error::Error;
use crate::signals::Signals;
use crate::world::{Captures, World, WorldConfig};

/// Starts the hosts, says how to enter them, and runs until a signal asks to end.
///
/// # Errors
///
/// Whatever keeps the hosts from being made or driven. Being asked to end is none.
pub(crate) fn run(
    arguments: &cli::Up,
    captures: Option<&capture::Directory>,
    signals: &Signals,
) -> Result<(), Error> {
    let mut console = Console::new();
    let config = WorldConfig {
        prefix: &arguments.common.naming.prefix,
        host_count: arguments.hosts,
        port_count: 1,
        captures: captures.map(|directory| Captures {
            directory,
            scenario: None,
            extent: Extent::Everything,
        }),
    };
    let mut world = World::start(config, signals)?;
    let end =
        introduce(&world, &mut console).and_then(|()| run_until_asked(&mut world, &mut console));
    world.stop()?;
    match end {
        Ok(()) | Err(Error::Interrupted(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

fn introduce(world: &World<'_>, console: &mut Console) -> Result<(), Error> {
    for (name, addresses) in world.directory() {
        console.line(format_args!("{name}: {addresses}"))?;
    }
    let (first, second) = world.first_pair()?;
    console.line(format_args!("enter a host:   ip netns exec {first} bash"))?;
    console.line(format_args!("ping its peer:  ip netns exec {first} ping {second}"))?;
    let pid = std::process::id();
    console.line(format_args!("show tables:    kill -USR1 {pid}"))?;
    console.line("ready; Ctrl-C ends the lab")
}

/// Ends with [`Error::Interrupted`].
fn run_until_asked(world: &mut World<'_>, console: &mut Console) -> Result<(), Error> {
    loop {
        world.run_until_tables_are_wanted()?;
        console.line(world.tables())?;
    }
}
