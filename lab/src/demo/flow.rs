//! UDP datagrams between the kernels of two hosts, every one of which is accounted for.
//!
//! iperf3 knows how many datagrams it has read; those that wait in a socket when it ends are lost
//! to its count. Here the sum is exact.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};

use nix::sys::socket::{setsockopt, sockopt};

use crate::error::Error;
use crate::namespace::Namespace;

/// Bytes of the IPv4 and UDP headers.
const HEADER_BYTES: usize = 20 + 8;
const PORT: u16 = 7077;
/// Room for datagrams that nobody has read yet.
const RECEIVE_BYTES: usize = 16 * 1024 * 1024;
const SEQUENCE_BYTES: usize = 8;
/// For sockets that are made with it: DF is not set.
const PMTU_SETTING: &str = "ipv4/ip_no_pmtu_disc";

/// A flow in one direction.
#[derive(Debug)]
pub(super) struct Flow {
    sender: UdpSocket,
    receiver: UdpSocket,
    packet: Vec<u8>,
    room: Vec<u8>,
    sent: u64,
    refused: u64,
    received: BTreeSet<u64>,
    damaged: u64,
    repeated: u64,
}

/// How it went.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Account {
    /// Datagrams that the sending kernel took.
    pub(super) sent: u64,
    /// Those that it did not take.
    pub(super) refused: u64,
    /// Datagrams that arrived whole, each counted once.
    pub(super) received: u64,
    /// Datagrams that arrived with other bytes.
    pub(super) damaged: u64,
    /// Datagrams that arrived once more.
    pub(super) repeated: u64,
}

impl Account {
    /// Datagrams that did not arrive.
    pub(super) fn missing(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }
}

impl Flow {
    /// Datagrams whose IPv4 packets are `packet_bytes` long, without DF.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the sockets cannot be made.
    pub(super) fn open(
        (from, source): (&Namespace, Ipv4Addr),
        (to, target): (&Namespace, Ipv4Addr),
        packet_bytes: usize,
    ) -> Result<Self, Error> {
        let failed = |source| Error::system("socket for datagrams", source);
        from.set(PMTU_SETTING, "1")?;
        let sender = from.within(|| connect(source, target))?.map_err(failed)?;
        from.set(PMTU_SETTING, "0")?;
        let receiver = to.within(|| bind(target))?.map_err(failed)?;
        Ok(Self {
            sender,
            receiver,
            packet: vec![0; packet_bytes - HEADER_BYTES],
            room: vec![0; usize::from(u16::MAX)],
            sent: 0,
            refused: 0,
            received: BTreeSet::new(),
            damaged: 0,
            repeated: 0,
        })
    }

    /// Sends the next one.
    pub(super) fn send(&mut self) {
        fill(&mut self.packet, self.sent);
        match self.sender.send(&self.packet) {
            Ok(_) => self.sent += 1,
            Err(_) => self.refused += 1,
        }
    }

    /// Reads what has arrived.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the socket fails.
    pub(super) fn collect(&mut self) -> Result<(), Error> {
        let mut expected = vec![0; self.packet.len()];
        loop {
            let bytes = match self.receiver.recv(&mut self.room) {
                Ok(length) => &self.room[..length],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Error::system("receiving datagrams", error)),
            };
            let sequence = bytes.first_chunk::<SEQUENCE_BYTES>().copied().map(u64::from_be_bytes);
            fill(&mut expected, sequence.unwrap_or(0));
            match sequence {
                Some(sequence) if bytes == expected && sequence < self.sent => {
                    if !self.received.insert(sequence) {
                        self.repeated += 1;
                    }
                }
                Some(_) | None => self.damaged += 1,
            }
        }
    }

    /// The sum so far.
    pub(super) fn account(&self) -> Account {
        Account {
            sent: self.sent,
            refused: self.refused,
            received: self.received.len() as u64,
            damaged: self.damaged,
            repeated: self.repeated,
        }
    }
}

/// The number of a datagram, and bytes that depend on it.
fn fill(packet: &mut [u8], sequence: u64) {
    let Some((number, rest)) = packet.split_first_chunk_mut::<SEQUENCE_BYTES>() else {
        return;
    };
    *number = sequence.to_be_bytes();
    for (place, byte) in rest.iter_mut().enumerate() {
        *byte = (sequence as usize + place) as u8;
    }
}

fn connect(source: Ipv4Addr, target: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((source, 0))?;
    socket.connect((target, PORT))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn bind(target: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((target, PORT))?;
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BYTES)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
