//! Objects that have something to do, each at most once.

use super::{Fixed, OutOfMemory};

/// A first-in, first-out queue of small numbers in which each stands at most once, so that it
/// cannot overflow.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    ring: Fixed<u32>,
    is_queued: Fixed<bool>,
    head: usize,
    len: usize,
}

impl WorkQueue {
    /// For the numbers below `objects`.
    pub(crate) fn new(objects: u32) -> Result<Self, OutOfMemory> {
        Ok(Self {
            ring: Fixed::new(objects, || 0)?,
            is_queued: Fixed::new(objects, || false)?,
            head: 0,
            len: 0,
        })
    }

    /// Appends `object` unless it stands in the queue already.
    pub(crate) fn push(&mut self, object: u32) {
        let Some(is_queued) = self.is_queued.get_mut(object as usize) else {
            return;
        };
        if core::mem::replace(is_queued, true) {
            return;
        }
        let at = self.wrap(self.head + self.len);
        if let Some(place) = self.ring.get_mut(at) {
            *place = object;
            self.len += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let object = *self.ring.get(self.head)?;
        self.head = self.wrap(self.head + 1);
        self.len -= 1;
        if let Some(is_queued) = self.is_queued.get_mut(object as usize) {
            *is_queued = false;
        }
        Some(object)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn wrap(&self, at: usize) -> usize {
        if at >= self.ring.len() { at - self.ring.len() } else { at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_stands_in_the_queue_at_most_once() {
        let mut queue = WorkQueue::new(3).unwrap();
        for object in [2, 0, 2, 1, 0, 7] {
            queue.push(object);
        }
        assert_eq!(queue.pop(), Some(2));
        queue.push(2);
        let order: [_; 4] = core::array::from_fn(|_| queue.pop());
        assert_eq!(order, [Some(0), Some(1), Some(2), None]);
        assert!(queue.is_empty());
    }
}
