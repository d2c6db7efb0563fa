//! Objects by numbers that are given once: what is gone is not found again.

use std::collections::BTreeMap;

use crate::check;

/// The objects of a kind.
#[derive(Debug)]
pub(super) struct Arena<T> {
    what: &'static str,
    objects: BTreeMap<usize, Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    value: T,
    /// Objects that were made of it.
    users: u32,
}

impl<T> Arena<T> {
    pub(super) const fn new(what: &'static str) -> Self {
        Self { what, objects: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn insert(&mut self, key: usize, value: T) {
        self.objects.insert(key, Entry { value, users: 0 });
    }

    pub(super) fn get(&mut self, key: usize) -> &mut T {
        &mut self.entry(key).value
    }

    /// The object, if it is there.
    pub(super) fn find(&self, key: usize) -> Option<&T> {
        self.objects.get(&key).map(|entry| &entry.value)
    }

    pub(super) fn has(&self, key: usize) -> bool {
        self.objects.contains_key(&key)
    }

    pub(super) fn hold(&mut self, key: usize) {
        self.entry(key).users += 1;
    }

    pub(super) fn release(&mut self, key: usize) {
        self.entry(key).users -= 1;
    }

    pub(super) fn remove(&mut self, key: usize) -> T {
        let what = self.what;
        let users = self.entry(key).users;
        check!(users == 0, "a {what} goes of which {users} objects are made");
        let Some(entry) = self.objects.remove(&key) else { unreachable!("looked at above") };
        entry.value
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.objects.iter().map(|(key, entry)| (*key, &entry.value))
    }

    fn entry(&mut self, key: usize) -> &mut Entry<T> {
        let what = self.what;
        match self.objects.get_mut(&key) {
            Some(entry) => entry,
            None => crate::panic(format_args!("a {what} is used that is gone")),
        }
    }
}
