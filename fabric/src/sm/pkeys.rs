//! P_Key tables (IBA 10.9.1).

use ipoib_rs::ib::Pkey;

use super::SmError;

/// Entries of the P_Key table that the manager keeps for a port.
pub const PKEYS_PER_PORT: usize = 16;

/// The P_Key table of a port. At most one key of a partition; free places stay free until a key is
/// granted, so that the others keep their index.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PkeyTable([Option<Pkey>; PKEYS_PER_PORT]);

impl PkeyTable {
    /// A table with one key at index 0.
    pub(super) fn new(first: Pkey) -> Self {
        let mut table = Self::default();
        table.0[0] = Some(first);
        table
    }

    /// All places, by index.
    pub const fn entries(&self) -> &[Option<Pkey>; PKEYS_PER_PORT] {
        &self.0
    }

    /// The key of a partition, with the membership that the port has.
    pub fn key_of(&self, pkey: Pkey) -> Option<Pkey> {
        self.keys().find(|own| own.full() == pkey.full())
    }

    /// The first own key with which packets can be exchanged with a port of the other table (IBA
    /// 10.9.3: at least one of two full members).
    pub(super) fn shared_key(&self, other: &Self) -> Option<Pkey> {
        self.keys().find(|own| other.keys().any(|theirs| own.matches(theirs)))
    }

    /// Whether the table changed.
    pub(super) fn grant(&mut self, pkey: Pkey) -> Result<bool, SmError> {
        let same_partition =
            |entry: &&mut Option<Pkey>| entry.is_some_and(|own| own.full() == pkey.full());
        if let Some(entry) = self.0.iter_mut().find(same_partition) {
            return Ok(entry.replace(pkey) != Some(pkey));
        }
        let free = self.0.iter_mut().find(|entry| entry.is_none());
        *free.ok_or(SmError::TableFull)? = Some(pkey);
        Ok(true)
    }

    /// Whether there was a key of this partition.
    pub(super) fn revoke(&mut self, pkey: Pkey) -> bool {
        let same_partition =
            |entry: &&mut Option<Pkey>| entry.is_some_and(|own| own.full() == pkey.full());
        let entry = self.0.iter_mut().find(same_partition);
        entry.is_some_and(|entry| entry.take().is_some())
    }

    fn keys(&self) -> impl Iterator<Item = Pkey> + '_ {
        self.0.iter().flatten().copied()
    }
}
