//! The protocol core under a real TCP/IP stack.
//!
//! One network namespace per host, one TUN device per interface, real time. The kernel of this
//! machine does IP; the lab does what lies below it: address resolution, the protocol core, the
//! fabric. `docs/lab.md` says how to use it.
//!
//! Reading order: `world` (the loop that moves packets), `namespace` and `tun` (what the system
//! gives), `demo` (the guided tour).
#![cfg(target_os = "linux")]

mod bench;
mod capture;
mod cli;
mod clock;
mod console;
mod demo;
mod error;
mod kernel;
mod lease;
mod memberships;
mod namespace;
mod ping;
mod signals;
mod table;
mod tools;
mod tshark;
mod tun;
mod up;
mod world;

use std::process::ExitCode;

use clap::Parser;

use cli::{Command, CommandLine, Common};
use demo::Tour;
use error::Error;
use signals::Signals;
use tun::Tun;

/// Runs the command line of this process. The exit codes are in `docs/lab.md`.
pub fn main() -> ExitCode {
    let command = CommandLine::parse().command;
    match run(&command) {
        Ok(()) => ExitCode::SUCCESS,
        // The checks were printed.
        Err(error @ Error::ChecksFailed) => error.exit_code(),
        Err(error) => {
            eprintln!("ipoib-lab: {error}");
            error.exit_code()
        }
    }
}

fn run(command: &Command) -> Result<(), Error> {
    match command {
        Command::Demo(arguments) => {
            let tour = Tour::plan(arguments.only.as_deref())?;
            if arguments.list {
                return tour.list();
            }
            check_machine()?;
            tools::probe(tools::PING)?;
            let captures = open_captures(&arguments.common)?;
            tour.run(arguments, captures.as_ref(), &Signals::take_over()?)
        }
        Command::Up(arguments) => {
            check_machine()?;
            let captures = open_captures(&arguments.common)?;
            up::run(arguments, captures.as_ref(), &Signals::take_over()?)
        }
        Command::Bench(arguments) => {
            check_machine()?;
            bench::run(arguments, &Signals::take_over()?)
        }
    }
}

/// Whether this machine can run a lab. Touches nothing.
fn check_machine() -> Result<(), Error> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    Tun::probe()?;
    tools::probe(tools::IP)
}

fn open_captures(common: &Common) -> Result<Option<capture::Directory>, Error> {
    common.pcap.as_deref().map(capture::Directory::open).transpose()
}
