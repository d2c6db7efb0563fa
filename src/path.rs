//! Unicast paths: one per neighbour, keyed by all 20 bytes of its link-layer address.
//!
//! Replaces `struct ipoib_path` and its tree of the C driver, which is keyed by the GID alone and
//! keeps a state in the combination of four pointers.

use crate::action::{AddressVector, OpId, PathRecord, Target};
use crate::ib::Gid;
use crate::limits::PATH_RETRY_FIRST;
use crate::storage::{Index, OutOfMemory, Queue, Slab};
use crate::time::Instant;
use crate::wire::LinkAddress;
use zerocopy::IntoBytes;

/// A neighbour.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) address: LinkAddress,
    pub(crate) state: PathState,
    /// The generation of the operation under way.
    pub(crate) operation: u32,
    /// Packets that wait, in order.
    pub(crate) queue: Queue,
    /// Set by each use, cleared by the search for a path to evict.
    pub(crate) is_used: bool,
    /// Whether its neighbour was seen later with other flags.
    pub(crate) is_superseded: bool,
    /// Whether the log was told of trouble that has not ended.
    pub(crate) noticed: Noticed,
    /// Packets posted.
    pub(crate) sent: u64,
    /// Packets that ended unsent.
    pub(crate) dropped: u64,
    /// Its outgoing connection.
    pub(crate) connection: Option<u32>,
}

/// The trouble with a neighbour that the log knows of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Noticed {
    pub(crate) unconnected: bool,
    pub(crate) unresolved: bool,
    pub(crate) too_big: bool,
}

/// The life of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PathState {
    /// The link is not up yet.
    Blocked,
    /// The SA is to be asked.
    QueryWanted { attempt: u8 },
    /// The SA is being asked.
    Querying { attempt: u8 },
    /// The SA was busy; it is asked again at a time.
    BackingOff { attempt: u8, retry_at: Instant },
    /// The address handle is being made.
    Addressing { record: PathRecord, handle: u32 },
    /// Packets go out.
    Ready { record: PathRecord, handle: u32, freshness: Freshness },
    /// The SA has no path. Packets are dropped, and the first one after `retry_at` asks again.
    Unreachable { attempt: u8, retry_at: Instant },
    /// Given up with a query under way, which is to be cancelled.
    CancelWanted,
}

/// How far the record of a ready path can be trusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Freshness {
    /// Nothing speaks against it.
    Fresh,
    /// Something happened in the fabric; the next packet after `since` has it looked up again.
    Stale { since: Instant },
    /// The SA is to be asked again.
    QueryWanted,
    /// The SA is being asked again.
    Querying,
    /// The record changed: the handle of the new one is being made.
    Replacing { record: PathRecord, handle: u32 },
}

impl PathState {
    /// Whether an action is to be taken for the path.
    pub(crate) fn wants_action(&self) -> bool {
        match self {
            Self::QueryWanted { .. }
            | Self::CancelWanted
            | Self::Ready { freshness: Freshness::QueryWanted, .. } => true,
            Self::Blocked
            | Self::Querying { .. }
            | Self::BackingOff { .. }
            | Self::Addressing { .. }
            | Self::Ready { .. }
            | Self::Unreachable { .. } => false,
        }
    }

    /// When the state ends by itself.
    pub(crate) fn ends_at(&self) -> Option<Instant> {
        match self {
            Self::BackingOff { retry_at, .. } => Some(*retry_at),
            Self::Blocked
            | Self::QueryWanted { .. }
            | Self::Querying { .. }
            | Self::Addressing { .. }
            | Self::Ready { .. }
            | Self::Unreachable { .. }
            | Self::CancelWanted => None,
        }
    }

    /// Whether the path may make room for another one when no packet waits for it.
    pub(crate) fn is_evictable(&self) -> bool {
        match self {
            Self::Ready { freshness: Freshness::Fresh | Freshness::Stale { .. }, .. }
            | Self::Unreachable { .. }
            | Self::Blocked => true,
            Self::QueryWanted { .. }
            | Self::Querying { .. }
            | Self::BackingOff { .. }
            | Self::Addressing { .. }
            | Self::Ready { .. }
            | Self::CancelWanted => false,
        }
    }

    /// The record, once there is one.
    pub(crate) fn record(&self) -> Option<&PathRecord> {
        match self {
            Self::Addressing { record, .. } | Self::Ready { record, .. } => Some(record),
            Self::Blocked
            | Self::QueryWanted { .. }
            | Self::Querying { .. }
            | Self::BackingOff { .. }
            | Self::Unreachable { .. }
            | Self::CancelWanted => None,
        }
    }

    /// For the table of neighbours.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::QueryWanted { .. } | Self::Querying { .. } => "resolving",
            Self::BackingOff { .. } => "backing-off",
            Self::Addressing { .. } => "addressing",
            Self::Ready { freshness: Freshness::Fresh, .. } => "ready",
            Self::Ready { freshness: Freshness::Stale { .. }, .. } => "stale",
            Self::Ready { freshness: Freshness::QueryWanted | Freshness::Querying, .. } => {
                "refreshing"
            }
            Self::Ready { freshness: Freshness::Replacing { .. }, .. } => "replacing",
            Self::Unreachable { .. } => "unreachable",
            Self::CancelWanted => "cancelling",
        }
    }
}

/// Where packets of a path go.
pub(crate) fn address_vector(record: &PathRecord) -> AddressVector {
    AddressVector {
        lid: record.lid.value(),
        sl: record.sl,
        rate: record.rate,
        grh: record.global.map(|global| (record.destination, global)),
    }
}

/// All paths of an interface.
#[derive(Debug)]
pub(crate) struct Paths {
    slots: Slab<Path>,
    index: Index,
    /// By GID: the path that was made last for a port.
    by_gid: Index,
    /// Where the search for a path to evict goes on.
    hand: u32,
}

/// How many places a search for a path to evict looks at, so that its cost has a bound.
const EVICTION_STEPS_MAX: u32 = 128;

impl Paths {
    pub(crate) fn new(len: u32, seed: u64) -> Result<Self, OutOfMemory> {
        Ok(Self {
            slots: Slab::new(len)?,
            index: Index::new(len, seed)?,
            by_gid: Index::new(len, seed)?,
            hand: 0,
        })
    }

    pub(crate) fn find(&self, address: &LinkAddress) -> Option<u32> {
        let slots = &self.slots;
        self.index.find(address.as_bytes(), |place| {
            slots.get(place).is_some_and(|path| path.address == *address)
        })
    }

    /// A path to a port, whatever the queue pair and the flags. There may be several for a while:
    /// one that holds a connection or packets is preferred.
    pub(crate) fn find_gid(&self, gid: Gid) -> Option<u32> {
        let slots = &self.slots;
        let is_it = |place| slots.get(place).is_some_and(|path| path.address.gid() == gid);
        let is_busy = |place| {
            let path = slots.get(place);
            path.is_some_and(|path| path.connection.is_some() || !path.queue.is_empty())
        };
        let busy = self.by_gid.find(gid.as_bytes(), |place| is_it(place) && is_busy(place));
        busy.or_else(|| self.by_gid.find(gid.as_bytes(), is_it))
    }

    /// The path to the same queue pair with other flags that was used last.
    pub(crate) fn find_successor(&self, superseded: u32) -> Option<u32> {
        let address = self.slots.get(superseded)?.address;
        self.by_gid.find(address.gid().as_bytes(), |place| {
            self.slots.get(place).is_some_and(|path| {
                let is_same =
                    path.address.gid() == address.gid() && path.address.qpn() == address.qpn();
                is_same && place != superseded && !path.is_superseded
            })
        })
    }

    /// Takes a place; `None` if all are taken.
    pub(crate) fn insert(&mut self, address: LinkAddress, state: PathState) -> Option<u32> {
        let path = Path {
            address,
            state,
            operation: 0,
            queue: Queue::default(),
            is_used: true,
            is_superseded: false,
            noticed: Noticed::default(),
            sent: 0,
            dropped: 0,
            connection: None,
        };
        let place = self.slots.insert(path).ok()?;
        self.index.insert(address.as_bytes(), place);
        self.by_gid.insert(address.gid().as_bytes(), place);
        Some(place)
    }

    /// Gives a path another address with the same GID.
    pub(crate) fn readdress(&mut self, place: u32, address: LinkAddress) {
        if let Some(path) = self.slots.get_mut(place) {
            self.index.remove(path.address.as_bytes(), place);
            self.index.insert(address.as_bytes(), place);
            path.address = address;
            path.noticed = Noticed::default();
            path.sent = 0;
            path.dropped = 0;
        }
    }

    pub(crate) fn remove(&mut self, place: u32) {
        if let Some(path) = self.slots.remove(place) {
            self.index.remove(path.address.as_bytes(), place);
            self.by_gid.remove(path.address.gid().as_bytes(), place);
        }
    }

    pub(crate) fn get(&self, place: u32) -> Option<&Path> {
        self.slots.get(place)
    }

    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut Path> {
        self.slots.get_mut(place)
    }

    /// The path that waits for the answer to `op`.
    pub(crate) fn of_operation(&self, op: OpId) -> Option<u32> {
        let Target::Path(place) = op.target else {
            return None;
        };
        self.get(place).filter(|path| path.operation == op.generation).map(|_| place)
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.slots.capacity()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.slots.is_full()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Path> {
        self.slots.iter().map(|(_, path)| path)
    }

    /// A path to evict: the first from the hand on that was not used since the hand came by, else
    /// the first that may be evicted at all (the clock algorithm).
    pub(crate) fn choose_victim(&mut self) -> Option<u32> {
        let mut second_choice = None;
        for _ in 0..EVICTION_STEPS_MAX.min(self.capacity()) {
            let place = self.hand;
            self.hand = if place + 1 < self.capacity() { place + 1 } else { 0 };
            let Some(path) = self.slots.get_mut(place) else {
                continue;
            };
            if !path.state.is_evictable() || !path.queue.is_empty() {
                continue;
            }
            if !core::mem::replace(&mut path.is_used, false) {
                return Some(place);
            }
            second_choice = second_choice.or(Some(place));
        }
        second_choice
    }
}

/// A path whose state allows a query at once, when the link is up.
pub(crate) const fn fresh_query() -> PathState {
    PathState::QueryWanted { attempt: 0 }
}

/// The state after a stale record could not be looked up: it is tried again after a while, with the
/// old record in use.
pub(crate) fn still_stale(now: Instant) -> Freshness {
    Freshness::Stale { since: now + PATH_RETRY_FIRST }
}
