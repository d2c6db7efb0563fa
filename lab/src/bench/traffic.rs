//! The generator, the counter and the stop watch.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::net::UdpSocket;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};

use crate::error::Error;
use crate::namespace::Namespace;

/// Packets that wait in the device when the watch starts: below the length of its queue, 500.
const BURST_LEN: usize = 128;
const IP_UDP_BYTES: usize = 20 + 8;
/// What the kernel cuts into packets in one call.
const SEGMENTS_MAX: usize = 64;
const SEND_BYTES_MAX: usize = 65_000;
const PORT: u16 = 9;

/// A flow of UDP packets from one host to another.
#[derive(Debug)]
pub(super) struct Traffic {
    socket: UdpSocket,
    payload: Vec<u8>,
    payload_bytes: usize,
    statistics: File,
    /// Bound so that no ICMP error goes back. Nobody reads: the kernel counts before it drops.
    _sink: UdpSocket,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Packets that the receiving kernel counted.
    pub(super) received: u64,
    /// Packets that were sent.
    pub(super) sent: u64,
    /// Time that the loop took for them; the generator's own time is not in it.
    pub(super) spent: Duration,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.sent += other.sent;
        self.spent += other.spent;
    }
}

impl Tally {
    /// Packets per second of the loop.
    pub(super) fn rate(&self) -> f64 {
        self.received as f64 / self.spent.as_secs_f64()
    }
}

impl Traffic {
    /// A flow of packets of `packet_bytes`, IP header included.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the sockets cannot be made.
    pub(super) fn new(
        from: &Namespace,
        to: &Namespace,
        packet_bytes: usize,
    ) -> Result<Self, Error> {
        let failed = |source| Error::system("socket for the benchmark", source);
        let payload_bytes = packet_bytes - IP_UDP_BYTES;
        let socket = from.within(|| connect(payload_bytes))?.map_err(failed)?;
        let (sink, statistics) = to.within(|| {
            (UdpSocket::bind(("10.77.0.2", PORT)), File::open("/proc/thread-self/net/dev"))
        })?;
        let segments = SEGMENTS_MAX.min(SEND_BYTES_MAX / payload_bytes);
        Ok(Self {
            socket,
            payload: vec![0x5A; segments * payload_bytes],
            payload_bytes,
            statistics: statistics.map_err(failed)?,
            _sink: sink.map_err(failed)?,
        })
    }

    /// Sends bursts and has `drain` carry each to the other host, for `span` of its time.
    ///
    /// # Errors
    ///
    /// Those of `drain`, or [`Error::System`] if a burst cannot be sent or counted.
    pub(super) fn measure(
        &mut self,
        span: Duration,
        mut drain: impl FnMut() -> Result<(), Error>,
    ) -> Result<Tally, Error> {
        let mut tally = Tally::default();
        let before = self.received()?;
        while tally.spent < span {
            self.send_burst()?;
            tally.sent += BURST_LEN as u64;
            let start = Instant::now();
            drain()?;
            tally.spent += start.elapsed();
        }
        tally.received = self.received()? - before;
        Ok(tally)
    }

    fn send_burst(&self) -> Result<(), Error> {
        let mut left = BURST_LEN * self.payload_bytes;
        while left > 0 {
            let bytes = left.min(self.payload.len());
            left -= self
                .socket
                .send(&self.payload[..bytes])
                .map_err(|source| Error::system("sending a burst", source))?;
        }
        Ok(())
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
            .ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
    }
}

fn connect(payload_bytes: usize) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(("10.77.0.1", 0))?;
    socket.connect(("10.77.0.2", PORT))?;
    let segment = i32::try_from(payload_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    setsockopt(&socket, sockopt::UdpGsoSegment, &segment)?;
    Ok(socket)
}
