//! The neighbour cache: one machine for ARP and for neighbour discovery (RFC 4861 7.3.2).
//!
//! The DELAY state of the RFC is left out: a host without upper layers has nothing that could
//! confirm a neighbour during it, so a stale address is probed when it is used.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use fabric::packet::Packet;
use ipoib_rs::packet::PacketBuf;
use ipoib_rs::time::Instant;
use ipoib_rs::wire::LinkAddress;

use super::limits::{HostLimits, REACHABLE, SOLICIT_RETRY, SOLICIT_TRIES_MAX};

/// What is known of a neighbour.
#[derive(Debug)]
pub(super) enum Neighbor {
    /// Its address is being asked for; packets wait.
    Incomplete(Incomplete),
    /// Its address was confirmed less than [`REACHABLE`] ago.
    Reachable { address: LinkAddress, until: Instant },
    /// Its address was learned and not confirmed, or long ago.
    Stale { address: LinkAddress },
    /// Its address is in use and being confirmed.
    Probing { address: LinkAddress, solicit: Solicit },
}

/// A neighbour without an address.
#[derive(Debug)]
pub(super) struct Incomplete {
    pub(super) queue: VecDeque<Packet>,
    queued_bytes: usize,
    solicit: Solicit,
}

/// A solicitation that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Solicit {
    /// The own address that asks.
    pub(super) source: IpAddr,
    tries: u8,
    retry_at: Instant,
}

/// How a link-layer address became known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Evidence {
    /// The neighbour answered: both directions work.
    Answered,
    /// The neighbour said so of its own accord.
    Claimed,
}

/// What to do with a packet for a neighbour.
#[derive(Debug)]
pub(super) enum Lookup {
    /// Send it there.
    Found(LinkAddress),
    /// Send it there, and confirm the address.
    FoundUnconfirmed(LinkAddress),
    /// Nothing is known.
    Missing,
    /// It is being asked for.
    Pending,
}

/// What became of a solicitation without an answer.
#[derive(Debug)]
pub(super) enum Expiry {
    /// Ask again, everybody or the address that is known.
    Retry { source: IpAddr, known: Option<LinkAddress> },
    /// The neighbour is given up; these packets waited for it.
    Lost(VecDeque<Packet>),
}

/// All neighbours of a host.
#[derive(Debug)]
pub(super) struct Table {
    entries: BTreeMap<IpAddr, Neighbor>,
    /// One entry per neighbour that has a deadline.
    deadlines: BTreeSet<(Instant, IpAddr)>,
    limits: HostLimits,
}

impl Table {
    pub(super) fn new(limits: HostLimits) -> Self {
        Self { entries: BTreeMap::new(), deadlines: BTreeSet::new(), limits }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, &Neighbor)> {
        self.entries.iter().map(|(&ip, neighbor)| (ip, neighbor))
    }

    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        self.entries.contains_key(&ip)
    }

    /// The earliest retry.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(at, _)| at)
    }

    /// Looks a neighbour up to send to it. `source` asks if the address must be confirmed.
    pub(super) fn find(&mut self, now: Instant, ip: IpAddr, source: IpAddr) -> Lookup {
        let address = match self.entries.get(&ip) {
            None => return Lookup::Missing,
            Some(Neighbor::Incomplete(_)) => return Lookup::Pending,
            Some(&Neighbor::Probing { address, .. }) => return Lookup::Found(address),
            Some(&Neighbor::Reachable { address, until }) if now < until => {
                return Lookup::Found(address);
            }
            Some(&Neighbor::Reachable { address, .. } | &Neighbor::Stale { address }) => address,
        };
        let solicit = Solicit::first(now, source);
        self.enter(ip, Neighbor::Probing { address, solicit });
        Lookup::FoundUnconfirmed(address)
    }

    /// Adds a neighbour that is asked for from now on.
    pub(super) fn add_incomplete(&mut self, now: Instant, ip: IpAddr, source: IpAddr) {
        let incomplete = Incomplete {
            queue: VecDeque::new(),
            queued_bytes: 0,
            solicit: Solicit::first(now, source),
        };
        self.enter(ip, Neighbor::Incomplete(incomplete));
    }

    /// Lets a packet wait for an unresolved neighbour, or gives it back.
    pub(super) fn enqueue(&mut self, ip: IpAddr, packet: Packet) -> Result<(), Packet> {
        let Some(Neighbor::Incomplete(incomplete)) = self.entries.get_mut(&ip) else {
            return Err(packet);
        };
        let queued_bytes = incomplete.queued_bytes + packet.len();
        if incomplete.queue.len() >= self.limits.queue_packets_max
            || queued_bytes > self.limits.queue_bytes_max
        {
            return Err(packet);
        }
        incomplete.queued_bytes = queued_bytes;
        incomplete.queue.push_back(packet);
        Ok(())
    }

    /// Takes note of an address of a neighbour that is in the table, or makes an entry for it.
    /// Returns the packets that waited for it.
    pub(super) fn learn(
        &mut self,
        now: Instant,
        ip: IpAddr,
        address: LinkAddress,
        evidence: Evidence,
    ) -> VecDeque<Packet> {
        let (known, waiting) = match self.entries.get_mut(&ip) {
            Some(Neighbor::Incomplete(incomplete)) => (None, std::mem::take(&mut incomplete.queue)),
            Some(
                Neighbor::Reachable { address, .. }
                | Neighbor::Stale { address }
                | Neighbor::Probing { address, .. },
            ) => (Some(*address), VecDeque::new()),
            None => (None, VecDeque::new()),
        };
        match evidence {
            Evidence::Answered => {
                let until = now + REACHABLE;
                self.enter(ip, Neighbor::Reachable { address, until });
            }
            // RFC 4861 7.2.3: an address that did not change leaves the state as it is.
            Evidence::Claimed if known == Some(address) => {}
            Evidence::Claimed => self.enter(ip, Neighbor::Stale { address }),
        }
        waiting
    }

    /// The address of a neighbour, whatever its state.
    pub(super) fn address_of(&self, ip: IpAddr) -> Option<LinkAddress> {
        self.entries.get(&ip).and_then(Neighbor::address)
    }

    /// Doubts an address that was confirmed before.
    pub(super) fn doubt(&mut self, ip: IpAddr) {
        if let Some(&Neighbor::Reachable { address, .. }) = self.entries.get(&ip) {
            self.enter(ip, Neighbor::Stale { address });
        }
    }

    /// Doubts every address that was confirmed before.
    pub(super) fn doubt_all(&mut self) {
        for neighbor in self.entries.values_mut() {
            if let Neighbor::Reachable { address, .. } = *neighbor {
                *neighbor = Neighbor::Stale { address };
            }
        }
    }

    /// One solicitation whose time is over, until there is none.
    pub(super) fn poll_expired(&mut self, now: Instant) -> Option<(IpAddr, Expiry)> {
        let ip = match self.deadlines.first() {
            Some(&(at, ip)) if at <= now => ip,
            Some(_) | None => return None,
        };
        let neighbor = self.remove(ip)?;
        let expiry = match neighbor {
            Neighbor::Incomplete(mut incomplete) => match incomplete.solicit.next(now) {
                Some(solicit) => {
                    incomplete.solicit = solicit;
                    self.enter(ip, Neighbor::Incomplete(incomplete));
                    Expiry::Retry { source: solicit.source, known: None }
                }
                None => Expiry::Lost(incomplete.queue),
            },
            Neighbor::Probing { address, solicit } => match solicit.next(now) {
                Some(solicit) => {
                    self.enter(ip, Neighbor::Probing { address, solicit });
                    Expiry::Retry { source: solicit.source, known: Some(address) }
                }
                // RFC 4861 7.3.3: the entry is deleted, and the next packet asks everybody.
                None => Expiry::Lost(VecDeque::new()),
            },
            Neighbor::Reachable { .. } | Neighbor::Stale { .. } => return None,
        };
        Some((ip, expiry))
    }

    /// Whether there is room for one more, after a neighbour that nothing waits for was evicted if
    /// need be. The second value is the number of evictions.
    pub(super) fn make_room(&mut self) -> (bool, u64) {
        if self.entries.len() < self.limits.neighbors_max {
            return (true, 0);
        }
        // Stale before reachable, of those the one confirmed longest ago.
        let victim = self
            .entries
            .iter()
            .filter_map(|(&ip, neighbor)| match *neighbor {
                Neighbor::Stale { .. } => Some((Instant::ZERO, ip)),
                Neighbor::Reachable { until, .. } => Some((until, ip)),
                Neighbor::Incomplete(_) | Neighbor::Probing { .. } => None,
            })
            .min();
        match victim {
            Some((_, ip)) => (self.remove(ip).is_some(), 1),
            None => (false, 0),
        }
    }

    /// The packets that wait.
    pub(super) fn packets_held(&self) -> usize {
        self.entries
            .values()
            .map(|neighbor| match neighbor {
                Neighbor::Incomplete(incomplete) => incomplete.queue.len(),
                Neighbor::Reachable { .. } | Neighbor::Stale { .. } | Neighbor::Probing { .. } => 0,
            })
            .sum()
    }

    /// Takes every packet that waits, and forgets every neighbour.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Packet> {
        self.deadlines.clear();
        std::mem::take(&mut self.entries).into_values().flat_map(|neighbor| match neighbor {
            Neighbor::Incomplete(incomplete) => incomplete.queue,
            Neighbor::Reachable { .. } | Neighbor::Stale { .. } | Neighbor::Probing { .. } => {
                VecDeque::new()
            }
        })
    }

    /// The only way to change a state.
    fn enter(&mut self, ip: IpAddr, neighbor: Neighbor) {
        if let Some(at) = neighbor.deadline() {
            self.deadlines.insert((at, ip));
        }
        let new_deadline = neighbor.deadline();
        let old_deadline = self.entries.insert(ip, neighbor).and_then(|old| old.deadline());
        if let Some(at) = old_deadline
            && Some(at) != new_deadline
        {
            self.deadlines.remove(&(at, ip));
        }
    }

    fn remove(&mut self, ip: IpAddr) -> Option<Neighbor> {
        let neighbor = self.entries.remove(&ip)?;
        if let Some(at) = neighbor.deadline() {
            self.deadlines.remove(&(at, ip));
        }
        Some(neighbor)
    }
}

impl Neighbor {
    /// The name of the state.
    pub(super) fn state_name(&self) -> &'static str {
        match self {
            Self::Incomplete(_) => "incomplete",
            Self::Reachable { .. } => "reachable",
            Self::Stale { .. } => "stale",
            Self::Probing { .. } => "probing",
        }
    }

    pub(super) fn address(&self) -> Option<LinkAddress> {
        match *self {
            Self::Incomplete(_) => None,
            Self::Reachable { address, .. }
            | Self::Stale { address }
            | Self::Probing { address, .. } => Some(address),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Incomplete(incomplete) => Some(incomplete.solicit.retry_at),
            Self::Probing { solicit, .. } => Some(solicit.retry_at),
            Self::Reachable { .. } | Self::Stale { .. } => None,
        }
    }
}

impl Solicit {
    fn first(now: Instant, source: IpAddr) -> Self {
        Self { source, tries: 1, retry_at: now + SOLICIT_RETRY }
    }

    /// `None` if there were enough.
    fn next(self, now: Instant) -> Option<Self> {
        (self.tries < SOLICIT_TRIES_MAX).then(|| Self {
            tries: self.tries + 1,
            retry_at: now + SOLICIT_RETRY,
            ..self
        })
    }
}
