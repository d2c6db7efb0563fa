//! The system's own programs.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::Error;

/// ip(8) of iproute2.
pub(crate) const IP: &str = "ip";
/// ping(8) of iputils.
pub(crate) const PING: &str = "ping";

/// tracepath(8) of iputils.
pub(crate) const TRACEPATH: &str = "tracepath";
/// iperf3(1).
pub(crate) const IPERF: &str = "iperf3";
/// nstat(8) of iproute2.
pub(crate) const NSTAT: &str = "nstat";
/// tshark(1).
pub(crate) const TSHARK: &str = "tshark";

/// Runs a program to its end and wants nothing but success.
///
/// # Errors
///
/// [`Error::MissingProgram`], or [`Error::Program`] with its message.
pub(crate) fn run(program: &'static str, arguments: &[&str]) -> Result<(), Error> {
    output(program, arguments).map(drop)
}

/// Runs a program to its end and takes what it says.
///
/// # Errors
///
/// As [`run`].
pub(crate) fn read(program: &'static str, arguments: &[&str]) -> Result<String, Error> {
    let output = output(program, arguments)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn output(program: &'static str, arguments: &[&str]) -> Result<Output, Error> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed_to_start(program, error))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(Error::Program {
        command: format!("{program} {}", arguments.join(" ")),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Whether a program can be started.
///
/// # Errors
///
/// [`Error::MissingProgram`] if not.
pub(crate) fn probe(program: &'static str) -> Result<(), Error> {
    Command::new(program)
        .arg("-V")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map(drop)
        .map_err(|error| failed_to_start(program, error))
}

/// Whether a program answers when it is asked for its version.
pub(crate) fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    let silent = command.arg("--version").stdin(Stdio::null());
    let silent = silent.stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

fn failed_to_start(program: &'static str, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        Error::MissingProgram(program)
    } else {
        Error::system(program, error)
    }
}

/// A bell that other threads ring to wake the event loop.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<EventFd>);

impl Bell {
    /// A silent bell.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if there is no descriptor left.
    pub(crate) fn new() -> Result<Self, Error> {
        EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map(|event| Self(Arc::new(event)))
            .map_err(|errno| Error::system("eventfd", errno))
    }

    /// Wakes the loop.
    pub(crate) fn ring(&self) {
        // Full means that it rings already.
        let _ = self.0.write(1);
    }

    /// Stops ringing.
    pub(crate) fn silence(&self) {
        // Empty means that it did not ring.
        let _ = self.0.read();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A program that runs beside the event loop. Killed with the value.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    output: Receiver<String>,
}

impl Running {
    /// Starts a program; `bell` rings when it has closed its output.
    ///
    /// # Errors
    ///
    /// [`Error::MissingProgram`], or [`Error::System`] if it cannot be started.
    pub(crate) fn start(
        program: &'static str,
        arguments: &[String],
        bell: Bell,
    ) -> Result<Self, Error> {
        let mut child = Command::new(program)
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed_to_start(program, error))?;
        let streams = (child.stdout.take(), child.stderr.take());
        let (sender, output) = mpsc::channel();
        thread::spawn(move || {
            let mut text = read_all(streams.0);
            text.push_str(&read_all(streams.1));
            // Nobody listens any more if the program was given up.
            let _ = sender.send(text);
            bell.ring();
        });
        Ok(Self { child, output })
    }

    /// Its standard output, then its standard error; `None` while it runs.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if it cannot be waited for.
    pub(crate) fn poll(&mut self) -> Result<Option<String>, Error> {
        let text = match self.output.try_recv() {
            Ok(text) => text,
            Err(TryRecvError::Empty) => return Ok(None),
            Err(TryRecvError::Disconnected) => String::new(),
        };
        // It has closed its output: it ends now or has ended.
        self.child.wait().map_err(|source| Error::system("waiting for a program", source))?;
        Ok(Some(text))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_all(stream: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // What came before an error is still worth showing.
        let _ = stream.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
