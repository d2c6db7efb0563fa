//! What is going to happen, in the order of time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use ipoib_rs::time::Instant;

/// Events to come. Two of the same time come in the order in which they were added.
#[derive(Debug)]
pub struct Agenda<T> {
    heap: BinaryHeap<Entry<T>>,
    sequence_next: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Instant,
    sequence: u64,
    item: T,
}

impl<T> Agenda<T> {
    /// Nothing to come.
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), sequence_next: 0 }
    }

    /// Adds an event.
    pub fn add(&mut self, at: Instant, item: T) {
        let sequence = self.sequence_next;
        self.sequence_next += 1;
        self.heap.push(Entry { at, sequence, item });
    }

    /// When the next event is due.
    pub fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// The next event.
    pub fn pop(&mut self) -> Option<(Instant, T)> {
        self.heap.pop().map(|entry| (entry.at, entry.item))
    }

    /// The events to come, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.heap.iter().map(|entry| &entry.item)
    }

    /// Takes out every event, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.pop().map(|(_, item)| item))
    }
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Ord for Entry<T> {
    /// The heap yields its greatest: the earliest is greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_by_order_of_adding() {
        let mut agenda = Agenda::new();
        for (millis, item) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            agenda.add(Instant::from_millis(millis), item);
        }
        assert_eq!(agenda.next_at(), Some(Instant::from_millis(1)));
        assert_eq!(agenda.drain().collect::<String>(), "abcd");
        assert_eq!(agenda.next_at(), None);
    }
}
