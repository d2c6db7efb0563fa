//! Whether TCP goes on: what ss(8) says that a peer has acknowledged.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipoib_rs::time::Instant;

/// ss(8) of iproute2.
pub(super) const PROGRAM: &str = "ss";
/// TCP, numbers, details, one line for each socket.
pub(super) const ARGUMENTS: [&str; 3] = ["-tinHO", "state", "established"];

/// The connections to a peer, those that ended included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    peer: Ipv4Addr,
    /// When more was acknowledged than before.
    since: Option<Instant>,
    /// The longest time in which nothing was, up to a reading.
    pub(super) stall_max: Duration,
    /// What the peer has acknowledged.
    pub(super) bytes: u64,
}

impl Progress {
    /// Nothing known yet.
    pub(super) fn new(peer: Ipv4Addr) -> Self {
        Self { peer, since: None, stall_max: Duration::ZERO, bytes: 0 }
    }

    /// Takes note of what ss(8) said.
    pub(super) fn note(&mut self, now: Instant, said: &str) {
        let bytes = acknowledged(said, self.peer);
        let since = *self.since.get_or_insert(now);
        if bytes > self.bytes {
            // When is not known: on a busy machine ss(8) itself takes its time.
            self.bytes = bytes;
            self.since = Some(now);
        } else {
            self.stall_max = self.stall_max.max(now.saturating_since(since));
        }
    }
}

/// The sum of `bytes_acked:N` over the sockets whose peer has the address.
fn acknowledged(said: &str, peer: Ipv4Addr) -> u64 {
    let peer = format!("{peer}:");
    // Two queues and the own address come first.
    let lines = said
        .lines()
        .filter(|line| line.split_whitespace().nth(3).is_some_and(|word| word.starts_with(&peer)));
    let counts = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        words.find_map(|word| word.strip_prefix("bytes_acked:"))?.parse::<u64>().ok()
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "0 0 10.77.0.1:40000 10.77.0.101:5201 cubic rto:204 bytes_acked:1500\n\
        0 5 10.77.0.1:40002 10.77.0.101:5201 cubic bytes_sent:70000 bytes_acked:60000\n\
        0 0 10.77.0.1:40004 10.77.0.10:5201 cubic bytes_acked:7\n";

    #[test]
    fn only_the_sockets_of_the_peer_count() {
        assert_eq!(acknowledged(SAID, Ipv4Addr::new(10, 77, 0, 101)), 61_500);
        assert_eq!(acknowledged(SAID, Ipv4Addr::new(10, 77, 0, 1)), 0);
    }

    #[test]
    fn a_stall_lasts_until_more_is_acknowledged() {
        let mut progress = Progress::new(Ipv4Addr::new(10, 77, 0, 10));
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        progress.note(at(100), SAID);
        progress.note(at(400), SAID);
        assert_eq!(progress.stall_max, Duration::from_millis(300));
        progress.note(at(900), &SAID.replace("acked:7", "acked:8"));
        assert_eq!(progress.stall_max, Duration::from_millis(300));
        progress.note(at(1300), SAID);
        assert_eq!(progress.stall_max, Duration::from_millis(400));
        assert_eq!(progress.bytes, 8);
    }
}
