//! What can go wrong before and beside the checks, each with an exit code of its own.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Why the lab stops.
#[derive(Debug)]
pub(crate) enum Error {
    /// Checks ran and some failed; they were printed.
    ChecksFailed,
    /// Not root.
    NotRoot,
    /// `/dev/net/tun` is missing or cannot be opened.
    NoTun(io::Error),
    /// A namespace of that name is there and was not made by a lab.
    NameTaken(String),
    /// Another lab is running with that name.
    LabRunning {
        /// The namespace.
        name: String,
        /// Its owner.
        pid: u32,
    },
    /// No scenario has that name.
    UnknownScenario(String),
    /// The directory for captures cannot be used.
    CaptureDirectory(PathBuf, io::Error),
    /// A program that the lab runs is not installed.
    MissingProgram(&'static str),
    /// The operating system refused something.
    System {
        /// What was tried.
        what: String,
        /// What it said.
        source: io::Error,
    },
    /// A program that the lab runs failed.
    Program {
        /// The command line.
        command: String,
        /// What it wrote to its standard error.
        stderr: String,
    },
    /// A signal asked the lab to end.
    Interrupted(i32),
    /// An interface could not be made or driven.
    Interface(String),
}

impl Error {
    /// A refusal of the operating system.
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), source: source.into() }
    }

    /// The exit code, as `docs/lab.md` lists it.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::ChecksFailed => ExitCode::from(1),
            // 2 is what clap uses for a command line that it cannot read.
            Self::NotRoot => ExitCode::from(3),
            Self::NoTun(_) => ExitCode::from(4),
            Self::NameTaken(_) => ExitCode::from(5),
            Self::LabRunning { .. } => ExitCode::from(6),
            Self::UnknownScenario(_) => ExitCode::from(7),
            Self::CaptureDirectory(..) => ExitCode::from(8),
            Self::MissingProgram(_) => ExitCode::from(9),
            Self::System { .. } | Self::Program { .. } | Self::Interface(_) => ExitCode::from(10),
            // What a shell reports for a program that a signal ended.
            Self::Interrupted(signal) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(128)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChecksFailed => f.write_str("some checks failed"),
            Self::NotRoot => f.write_str("root is needed to make network namespaces"),
            Self::NoTun(source) => write!(f, "/dev/net/tun cannot be used: {source}"),
            Self::NameTaken(name) => write!(
                f,
                "network namespace {name} exists and is not ours; choose another --prefix"
            ),
            Self::LabRunning { name, pid } => write!(
                f,
                "network namespace {name} belongs to the running lab with pid {pid}; \
                 choose another --prefix"
            ),
            Self::UnknownScenario(name) => {
                write!(f, "no scenario is called {name:?}; see ipoib-lab demo --list")
            }
            Self::CaptureDirectory(path, source) => {
                write!(f, "captures cannot be written to {}: {source}", path.display())
            }
            Self::MissingProgram(name) => write!(f, "the program {name:?} is not installed"),
            Self::System { what, source } => write!(f, "{what}: {source}"),
            Self::Program { command, stderr } => {
                let reason = stderr.lines().next().unwrap_or("it failed without a word");
                write!(f, "{command}: {reason}")
            }
            Self::Interrupted(signal) => write!(f, "interrupted by signal {signal}"),
            Self::Interface(what) => f.write_str(what),
        }
    }
}
