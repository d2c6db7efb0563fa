//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// IP over InfiniBand between network namespaces of this machine.
///
/// Every host is a network namespace with an interface ib0. Its packets go through the protocol
/// core of ipoib_rs and a software InfiniBand fabric to the core of the other host.
#[derive(Debug, Parser)]
#[command(name = "ipoib-lab", version)]
pub(crate) struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// A guided tour: scenarios with checks.
    Demo(Demo),
    /// Keep hosts running until interrupted.
    Up(Up),
    /// Packets per second beside a loop that only copies.
    Bench(Bench),
}

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// Run this scenario alone.
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<String>,
    /// List the scenarios and do nothing.
    #[arg(long)]
    pub(crate) list: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Arguments of `up`.
#[derive(Args, Debug)]
pub(crate) struct Up {
    /// How many hosts.
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(2..=26))]
    pub(crate) hosts: u8,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// How long each measurement takes.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    #[command(flatten)]
    pub(crate) naming: Naming,
}

/// Arguments of `demo` and `up`.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// Write one capture per link into this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) pcap: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) naming: Naming,
}

/// How namespaces are called.
#[derive(Args, Debug)]
pub(crate) struct Naming {
    /// Namespaces are called PREFIXa, PREFIXb and so on.
    #[arg(long, value_name = "PREFIX", default_value = "ipoib-", value_parser = parse_prefix)]
    pub(crate) prefix: String,
}

/// A prefix becomes part of a file name and an argument of ip(8).
fn parse_prefix(text: &str) -> Result<String, &'static str> {
    const BYTES_MAX: usize = 32;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && text.len() <= BYTES_MAX && text.chars().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err("a prefix starts with a letter or digit and has only those, '-' and '_', up to 32")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn a_prefix_is_a_plain_name() {
        assert_eq!(parse_prefix("lab2_x-").as_deref(), Ok("lab2_x-"));
        for bad in ["", "-a", "../x", "a b", "a/b", &"x".repeat(33)] {
            assert!(parse_prefix(bad).is_err(), "{bad:?}");
        }
    }
}
