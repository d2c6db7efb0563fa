//! The core under a real TCP/IP stack.
//!
//! One network namespace per host, one TUN device per interface, real time. The kernel of this
//! machine does IP; the lab does what lies below it: address resolution, the protocol core, the
//! fabric.

mod bench;
mod capture;
mod cli;
mod clock;
mod console;
mod error;
mod lease;
mod memberships;
mod namespace;
mod signals;
mod tools;
mod tun;

use std::process::ExitCode;

use clap::Parser;

use cli::{Command, CommandLine};
use error::Error;
use signals::Signals;
use tun::Tun;

fn main() -> ExitCode {
    let command = CommandLine::parse().command;
    match run(&command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ipoib-lab: {error}");
            error.exit_code()
        }
    }
}

fn run(command: &Command) -> Result<(), Error> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    Tun::probe()?;
    tools::probe(tools::IP)?;
    let signals = Signals::take_over()?;
    match command {
        Command::Demo(_) => Ok(()),
        Command::Up(_) => Ok(()),
        Command::Bench(arguments) => bench::run(arguments, &signals),
    }
}
