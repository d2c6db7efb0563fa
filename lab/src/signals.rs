//! Signals as readable events, so that every exit goes through the guards.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};

use crate::error::Error;

/// The signals that ask the lab to end.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// The signal that asks for the tables.
const SHOWING: Signal = Signal::SIGUSR1;

/// The signals of the lab. They do not end the process by themselves, also not after the value is
/// gone, so that clean-up is not cut short.
#[derive(Debug)]
pub(crate) struct Signals(SignalFd);

/// Somebody wants to see the tables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ShowTables;

impl Signals {
    /// Takes the signals over, for this thread and all that it starts later.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the kernel refuses.
    pub(crate) fn take_over() -> Result<Self, Error> {
        let mut set = SigSet::empty();
        ENDING.into_iter().for_each(|signal| set.add(signal));
        set.add(SHOWING);
        let failed = |errno| Error::system("signals", errno);
        set.thread_block().map_err(failed)?;
        SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .map(Self)
            .map_err(failed)
    }

    /// What was asked for since the last call.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] if the lab is to end.
    pub(crate) fn poll(&self) -> Result<Option<ShowTables>, Error> {
        match self.0.read_signal() {
            Ok(None) => Ok(None),
            Ok(Some(info)) if number(&info) == SHOWING as i32 => Ok(Some(ShowTables)),
            Ok(Some(info)) => Err(Error::Interrupted(number(&info))),
            Err(errno) => Err(Error::system("signals", errno)),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn number(info: &siginfo) -> i32 {
    i32::try_from(info.ssi_signo).unwrap_or_default()
}
