//! SIGINT, SIGTERM and SIGHUP as readable events, so that every exit goes through the guards.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::Error;

/// The signals that ask the lab to end. While a value lives they do not end the process by
/// themselves; they stay blocked afterwards, so that clean-up is not cut short.
#[derive(Debug)]
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// Takes the signals over, for this thread and all that it starts later.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the kernel refuses.
    pub(crate) fn take_over() -> Result<Self, Error> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            set.add(signal);
        }
        let failed = |errno| Error::system("signals", errno);
        set.thread_block().map_err(failed)?;
        SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .map(Self)
            .map_err(failed)
    }

    /// Nothing if no signal came.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] if one did.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.0.read_signal() {
            Ok(None) => Ok(()),
            Ok(Some(info)) => Err(Error::Interrupted(
                i32::try_from(info.ssi_signo).unwrap_or_default(),
            )),
            Err(errno) => Err(Error::system("signals", errno)),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
