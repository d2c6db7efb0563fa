//! The generator and the counter.

use std::fs::File;
use std::io::{Read, Seek};
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};

use crate::error::Error;
use crate::namespace::Namespace;

const IP_UDP_BYTES: usize = 20 + 8;
/// The kernel cuts one send into at most this many packets, so that the generator is not what is
/// measured.
const SEGMENTS_MAX: usize = 64;
const SEND_BYTES_MAX: usize = 65_000;
const PORT: u16 = 9;

/// A flow of UDP packets from one host to another. Ends with the value.
pub(super) struct Traffic {
    generator: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    statistics: File,
    /// Bound so that no ICMP error goes back. Nobody reads: the kernel counts before it drops.
    _sink: UdpSocket,
}

impl Traffic {
    /// Starts to send packets of `packet_bytes`, IP header included, as fast as possible.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the sockets cannot be made.
    pub(super) fn start(
        from: &Namespace,
        to: &Namespace,
        packet_bytes: usize,
    ) -> Result<Self, Error> {
        let failed = |source| Error::system("socket for the benchmark", source);
        let payload_bytes = packet_bytes - IP_UDP_BYTES;
        let socket = from
            .within(|| connect(payload_bytes))?
            .map_err(|source| Error::system("socket for the benchmark", source))?;
        let (sink, statistics) = to.within(|| {
            (
                UdpSocket::bind(("10.77.0.2", PORT)),
                File::open("/proc/thread-self/net/dev"),
            )
        })?;
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        let segments = SEGMENTS_MAX.min(SEND_BYTES_MAX / payload_bytes);
        let burst = vec![0x5A; segments * payload_bytes];
        let generator = thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                // A full queue refuses; that is what it is for.
                let _ = socket.send(&burst);
            }
        });
        Ok(Self {
            generator: Some(generator),
            is_over,
            statistics: statistics.map_err(failed)?,
            _sink: sink.map_err(failed)?,
        })
    }

    /// Packets per second that the receiving host counts while `drive` runs; `drive` is given the
    /// time at which to return.
    ///
    /// # Errors
    ///
    /// Those of `drive`, or [`Error::System`] if the counter cannot be read.
    pub(super) fn measure(
        mut self,
        span: Duration,
        mut drive: impl FnMut(Instant) -> Result<(), Error>,
    ) -> Result<f64, Error> {
        const WARM_UP: Duration = Duration::from_millis(500);
        drive(Instant::now() + WARM_UP)?;
        let (start, before) = (Instant::now(), self.received()?);
        drive(start + span)?;
        let packets = self.received()? - before;
        Ok(packets as f64 / start.elapsed().as_secs_f64())
    }

    /// Packets that the kernel has received on ib0: the second field behind the name.
    fn received(&mut self) -> Result<u64, Error> {
        let failed = |source| Error::system("interface statistics", source);
        let mut text = String::new();
        self.statistics.rewind().map_err(failed)?;
        self.statistics.read_to_string(&mut text).map_err(failed)?;
        text.lines()
            .filter_map(|line| line.trim_start().strip_prefix("ib0:"))
            .find_map(|fields| fields.split_whitespace().nth(1)?.parse().ok())
            .ok_or_else(|| failed(std::io::ErrorKind::InvalidData.into()))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(generator) = self.generator.take() {
            // It does not panic; and if it did, the count says so.
            let _ = generator.join();
        }
    }
}

fn connect(payload_bytes: usize) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(("10.77.0.1", 0))?;
    socket.connect(("10.77.0.2", PORT))?;
    let segment = i32::try_from(payload_bytes).map_err(|_| std::io::ErrorKind::InvalidInput)?;
    setsockopt(&socket, sockopt::UdpGsoSegment, &segment)?;
    Ok(socket)
}
