//! Packets that wait: one store for an interface, any number of queues through it.

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
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_none()
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
        queue.packets += 1;
        queue.bytes = queue.bytes.saturating_add(bytes);
        Ok(())
    }

    /// Takes the first packet out.
    pub(crate) fn pop(&mut self, queue: &mut Queue) -> Option<Pending<B>> {
        let (first, last) = queue.ends?;
        let Entry { pending, next } = self.entries.remove(first)?;
        queue.ends = next.map(|next| (next, last));
        queue.packets -= 1;
        queue.bytes = queue.bytes.saturating_sub(pending.bytes);
        Some(pending)
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

    fn pending(packet: u32) -> Pending<u32> {
        Pending { protocol: EtherType::IPV4, packet, bytes: packet }
    }

    #[test]
    fn queues_through_one_store_keep_their_own_order() {
        let mut store = PendingStore::new(4).unwrap();
        let (mut a, mut b) = (Queue::default(), Queue::default());
        store.push(&mut a, pending(1)).unwrap();
        store.push(&mut b, pending(10)).unwrap();
        store.push(&mut a, pending(2)).unwrap();
        store.push(&mut b, pending(20)).unwrap();
        assert_eq!(store.push(&mut a, pending(3)).unwrap_err().packet, 3);
        assert_eq!((a.packets(), store.first_bytes(&a)), (2, Some(1)));
        assert_eq!(store.pop(&mut b).unwrap().packet, 10);
        store.push(&mut a, pending(3)).unwrap();
        let order: [_; 4] = core::array::from_fn(|_| store.pop(&mut a).map(|p| p.packet));
        assert_eq!(order, [Some(1), Some(2), Some(3), None]);
        assert!(a.is_empty() && !b.is_empty() && !store.is_empty());
    }

    #[test]
    fn a_queue_has_room_up_to_both_limits() {
        let mut store = PendingStore::new(8).unwrap();
        let mut queue = Queue::default();
        store.push(&mut queue, pending(100)).unwrap();
        assert!(queue.has_room(50, 2, 150));
        assert!(!queue.has_room(51, 2, 150));
        assert!(!queue.has_room(1, 1, 150));
    }
}
