//! The connections of a manager, and by what they are found.

use alloc::collections::{TryReserveError, VecDeque};
use alloc::vec::Vec;

use ipoib_rs::ib::Qpn;
use ipoib_rs::time::Instant;

use super::connection::{Connection, State};
use super::index::Index;
use crate::mad::cm::CommId;

/// The table. A communication id is the number of a place and its generation, mixed with a number
/// of the run.
#[derive(Debug)]
pub(super) struct Table<T> {
    places: Vec<Place<T>>,
    /// First out is the one that has been vacant longest.
    vacant: VecDeque<u16>,
    salt: u32,
    by_tag: Index<T>,
    /// By the peer's adapter and its communication id.
    by_remote: Index<(u64, CommId)>,
    /// By the peer's adapter and its queue pair, while that is taken for connected.
    by_qpn: Index<(u64, Qpn)>,
    by_deadline: Index<Instant>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u16,
    connection: Option<Connection<T>>,
}

impl<T: Copy + Ord> Table<T> {
    pub(super) fn new(len_max: u16, salt: u32) -> Result<Self, TryReserveError> {
        let mut places = Vec::new();
        places.try_reserve_exact(len_max.into())?;
        let mut vacant = VecDeque::new();
        vacant.try_reserve_exact(len_max.into())?;
        for place in 0..len_max {
            places.push(Place { generation: 0, connection: None });
            vacant.push_back(place);
        }
        Ok(Self {
            places,
            vacant,
            salt,
            by_tag: Index::new(len_max)?,
            by_remote: Index::new(len_max)?,
            by_qpn: Index::new(len_max)?,
            by_deadline: Index::new(len_max)?,
        })
    }

    /// Adds the connection that `make` makes of its communication id; `None` if the table is full.
    pub(super) fn insert(&mut self, make: impl FnOnce(CommId) -> Connection<T>) -> Option<CommId> {
        let number = self.vacant.pop_front()?;
        // Zero means in a REJ that the id is not known.
        if self.comm_id(number) == Some(CommId(0)) {
            self.advance(number);
        }
        let comm_id = self.comm_id(number)?;
        let connection = make(comm_id);
        self.enter(number, &connection.state);
        if let Some(place) = self.places.get_mut(usize::from(number)) {
            place.connection = Some(connection);
        }
        Some(comm_id)
    }

    pub(super) fn get(&self, comm_id: CommId) -> Option<&Connection<T>> {
        let place = self.places.get(usize::from(self.number(comm_id)?))?;
        place.connection.as_ref()
    }

    /// Changes the state.
    pub(super) fn replace(&mut self, comm_id: CommId, state: State<T>) {
        let Some(number) = self.number(comm_id) else {
            return;
        };
        let Some(mut connection) = self.take(number) else {
            return;
        };
        connection.state = state;
        self.enter(number, &connection.state);
        if let Some(place) = self.places.get_mut(usize::from(number)) {
            place.connection = Some(connection);
        }
    }

    pub(super) fn remove(&mut self, comm_id: CommId) {
        let Some(number) = self.number(comm_id) else {
            return;
        };
        if self.take(number).is_some() {
            self.advance(number);
            self.vacant.push_back(number);
        }
    }

    pub(super) fn find_tag(&self, tag: T) -> Option<CommId> {
        self.comm_id(self.by_tag.places(tag).next()?)
    }

    /// The connections that an adapter calls by this id.
    pub(super) fn find_remote(
        &self,
        ca_guid: u64,
        comm_id: CommId,
    ) -> impl Iterator<Item = CommId> {
        let places = self.by_remote.places((ca_guid, comm_id));
        places.filter_map(|number| self.comm_id(number))
    }

    /// The connection of this queue pair of an adapter.
    pub(super) fn find_qpn(&self, ca_guid: u64, qpn: Qpn) -> Option<CommId> {
        self.comm_id(self.by_qpn.places((ca_guid, qpn)).next()?)
    }

    pub(super) fn deadline_first(&self) -> Option<(Instant, CommId)> {
        let (deadline, number) = self.by_deadline.first()?;
        Some((deadline, self.comm_id(number)?))
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    fn enter(&mut self, number: u16, state: &State<T>) {
        if let Some(tag) = state.tag() {
            self.by_tag.insert(tag, number);
        }
        if let Some(remote) = state.remote() {
            self.by_remote.insert((remote.ca_guid, remote.comm_id), number);
            if state.is_connected() {
                self.by_qpn.insert((remote.ca_guid, remote.qpn), number);
            }
        }
        if let Some(deadline) = state.deadline() {
            self.by_deadline.insert(deadline, number);
        }
    }

    /// Takes a connection out of its place and all indexes.
    fn take(&mut self, number: u16) -> Option<Connection<T>> {
        let connection = self.places.get_mut(usize::from(number))?.connection.take()?;
        let state = &connection.state;
        if let Some(tag) = state.tag() {
            self.by_tag.remove(tag, number);
        }
        if let Some(remote) = state.remote() {
            self.by_remote.remove((remote.ca_guid, remote.comm_id), number);
            self.by_qpn.remove((remote.ca_guid, remote.qpn), number);
        }
        if let Some(deadline) = state.deadline() {
            self.by_deadline.remove(deadline, number);
        }
        Some(connection)
    }

    fn advance(&mut self, number: u16) {
        if let Some(place) = self.places.get_mut(usize::from(number)) {
            place.generation = place.generation.wrapping_add(1);
        }
    }

    fn comm_id(&self, number: u16) -> Option<CommId> {
        let place = self.places.get(usize::from(number))?;
        let name = u32::from(place.generation) << 16 | u32::from(number);
        Some(CommId(self.salt ^ name))
    }

    /// The place of a connection that has this id now.
    fn number(&self, comm_id: CommId) -> Option<u16> {
        // CAST: the low half is the number of the place.
        let number = (comm_id.0 ^ self.salt) as u16;
        (self.comm_id(number)? == comm_id).then_some(number)
    }
}
