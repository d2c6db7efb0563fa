//! Packets that wait: one store for an interface, any number of queues through it.

use crate::time::Instant;
use crate::wire::EtherType;

use super::{OutOfMemory, Slab};

/// Holds the waiting packets of an interface; a [`Queue`] is a chain through it.
#[derive(Debug)]
pub(crate) struct PendingStore<B> {
    entries: Slab<Entry<B>>,
}

/// A packet without its encapsulation header, and what the header will say.
#[derive(Debug)]
pub(crate) struct Pending<B> {
    pub(crate) protocol: EtherType,
    pub(crate) packet: B,
    /// The packet's length.
    pub(crate) bytes: u32,
}

#[derive(Debug)]
struct Entry<B> {
    pending: Pending<B>,
    next: Option<u32>,
}

/// A first-in, first-out queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queue {
    ends: Option<(u32, u32)>,
    packets: u32,
    bytes: u32,
    /// When the packets must go: set by the first of them, cleared with the last.
    expires_at: Option<Instant>,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_none()
    }

    pub(crate) fn expires_at(&self) -> Option<Instant> {
        self.expires_at
    }

    pub(crate) fn packets(&self) -> u32 {
        self.packets
    }

    /// Whether a packet of `bytes` bytes fits under both limits.
    pub(crate) fn has_room(&self, bytes: u32, packets_max: u32, bytes_max: u32) -> bool {
        self.packets < packets_max && self.bytes.saturating_add(bytes) <= bytes_max
    }
}

impl<B> PendingStore<B> {
    pub(crate) fn new(packets_max: u32) -> Result<Self, OutOfMemory> {
        Ok(Self { entries: Slab::new(packets_max)? })
    }

    /// Appends, or gives the packet back if the store is full.
    pub(crate) fn push(
        &mut self,
        queue: &mut Queue,
        pending: Pending<B>,
        expires_at: Instant,
    ) -> Result<(), Pending<B>> {
        let bytes = pending.bytes;
        let entry = Entry { pending, next: None };
        let place = self.entries.insert(entry).map_err(|entry| entry.pending)?;
        queue.ends = match queue.ends {
            Some((first, last)) => {
                if let Some(entry) = self.entries.get_mut(last) {
                    entry.next = Some(place);
                }
                Some((first, place))
            }
            None => Some((place, place)),
        };
        queue.expires_at = queue.expires_at.or(Some(expires_at));
        queue.packets += 1;
        queue.bytes = queue.bytes.saturating_add(bytes);
        Ok(())
    }

    /// Takes the first packet out.
    pub(crate) fn pop(&mut self, queue: &mut Queue) -> Option<Pending<B>> {
        let (first, last) = queue.ends?;
        let Entry { pending, next } = self.entries.remove(first)?;
        queue.ends = next.map(|next| (next, last));
        queue.expires_at = queue.expires_at.filter(|_| next.is_some());
        queue.packets -= 1;
        queue.bytes = queue.bytes.saturating_sub(pending.bytes);
        Some(pending)
    }

    /// Moves all of one queue behind another.
    pub(crate) fn append(&mut self, to: &mut Queue, from: &mut Queue) {
        let Queue { ends, packets, bytes, expires_at } = core::mem::take(from);
        let Some((first, last)) = ends else { return };
        to.ends = match to.ends {
            Some((head, tail)) => {
                if let Some(entry) = self.entries.get_mut(tail) {
                    entry.next = Some(first);
                }
                Some((head, last))
            }
            None => Some((first, last)),
        };
        to.expires_at = [to.expires_at, expires_at].into_iter().flatten().min();
        to.packets += packets;
        to.bytes = to.bytes.saturating_add(bytes);
    }

    /// The length of the first packet.
    pub(crate) fn first_bytes(&self, queue: &Queue) -> Option<u32> {
        let (first, _) = queue.ends?;
        self.entries.get(first).map(|entry| entry.pending.bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Instant = Instant::from_millis(7);

    fn pending(packet: u32) -> Pending<u32> {
        Pending { protocol: EtherType::IPV4, packet, bytes: packet }
    }

    #[test]
    fn queues_through_one_store_keep_their_own_order() {
        let mut store = PendingStore::new(4).unwrap();
        let (mut a, mut b) = (Queue::default(), Queue::default());
        store.push(&mut a, pending(1), AT).unwrap();
        store.push(&mut b, pending(10), AT).unwrap();
        store.push(&mut a, pending(2), AT).unwrap();
        store.push(&mut b, pending(20), AT).unwrap();
        assert_eq!(store.push(&mut a, pending(3), AT).unwrap_err().packet, 3);
        assert_eq!((a.packets(), store.first_bytes(&a)), (2, Some(1)));
        assert_eq!(store.pop(&mut b).unwrap().packet, 10);
        store.push(&mut a, pending(3), AT).unwrap();
        let order: [_; 4] = core::array::from_fn(|_| store.pop(&mut a).map(|p| p.packet));
        assert_eq!(order, [Some(1), Some(2), Some(3), None]);
        assert!(a.is_empty() && !b.is_empty() && !store.is_empty());
        assert_eq!((a.expires_at(), b.expires_at()), (None, Some(AT)));
    }

    #[test]
    fn a_queue_moves_whole_behind_another() {
        let mut store = PendingStore::new(4).unwrap();
        let (mut a, mut b) = (Queue::default(), Queue::default());
        store.append(&mut a, &mut b);
        assert!(a.is_empty());
        for packet in [1, 2] {
            store.push(&mut b, pending(packet), AT).unwrap();
        }
        store.append(&mut a, &mut b);
        store.push(&mut b, pending(3), AT).unwrap();
        store.append(&mut a, &mut b);
        assert_eq!((a.packets(), b.is_empty()), (3, true));
        let order: [_; 4] = core::array::from_fn(|_| store.pop(&mut a).map(|p| p.packet));
        assert_eq!(order, [Some(1), Some(2), Some(3), None]);
    }

    #[test]
    fn a_queue_has_room_up_to_both_limits() {
        let mut store = PendingStore::new(8).unwrap();
        let mut queue = Queue::default();
        store.push(&mut queue, pending(100), AT).unwrap();
        assert!(queue.has_room(50, 2, 150));
        assert!(!queue.has_room(51, 2, 150));
        assert!(!queue.has_room(1, 1, 150));
    }
}
