//! The host side of subnet administration: asks the SA and understands its answers.
//!
//! Sans-IO: a request is 256 bytes to send from QP1 to QP1 of the subnet manager's port, an answer
//! 256 bytes that came back. The calling order is: `request_*` or [`Client::handle_mad`], then
//! [`Client::poll_timeout`]; when that instant has come, [`Client::handle_timeout`] until it yields
//! nothing.
//!
//! A request is sent once. The client does not repeat it: the core that asks has a back-off of its
//! own for every object, and a second layer of repetition below would multiply the load on an SA
//! that is already slow to answer.

use alloc::collections::{TryReserveError, VecDeque};
use core::time::Duration;

use ipoib_rs::action::{
    GroupRecord, JoinRequest, Membership, PathQuery, PathRecord, SaCapabilities, SaError,
};
use ipoib_rs::ib::{Gid, Mgid};
use ipoib_rs::time::Instant;

use crate::mad::{
    self, Attribute, ClassPortInfo, JoinState, MAD_BYTES, MemberComponents, MemberRecordWire,
    Message, Method, ParseError, PathRecordWire, SaMad,
};

/// How long an answer may take.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// A client of the SA. `T` names a request to its owner.
#[derive(Debug)]
pub struct Client<T> {
    /// The upper half of every TransactionID: tells clients of one port apart.
    agent: u32,
    /// The lower half of the next TransactionID.
    sequence_next: u32,
    /// In the order of sequence numbers and, by construction, of deadlines.
    outstanding: VecDeque<Outstanding<T>>,
    requests_max: usize,
    counters: ClientCounters,
}

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
struct Outstanding<T> {
    sequence: u32,
    tag: T,
    request: Request,
    deadline: Instant,
}

/// What was asked, as far as an answer must agree with it.
#[derive(Clone, Copy, Debug)]
enum Request {
    Path { destination: Gid },
    Join { mgid: Mgid },
    Leave,
    Capabilities,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// Of [`Client::request_path`].
    Path(Result<PathRecord, SaError>),
    /// Of [`Client::request_join`].
    Join(Result<GroupRecord, SaError>),
    /// Of [`Client::request_leave`].
    Leave(Result<(), SaError>),
    /// Of [`Client::request_capabilities`].
    Capabilities(Result<SaCapabilities, SaError>),
}

/// As many requests as the client was made for are without an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TableFull;

/// What a client saw.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ClientCounters {
    /// Requests made.
    pub requests: u64,
    /// Requests refused because the table was full.
    pub requests_table_full: u64,
    /// Requests given up by their owner.
    pub requests_cancelled: u64,
    /// Requests that nobody answered in time.
    pub requests_timed_out: u64,
    /// Answers that did what was asked for.
    pub answers_good: u64,
    /// Answers with status BUSY.
    pub answers_busy: u64,
    /// Answers with a status of the SA.
    pub answers_refused: u64,
    /// Answers that contradict the request, hold reserved values or a status nobody can act on.
    pub answers_unusable: u64,
    /// Answers to no request: of another client, late, or repeated.
    pub answers_unexpected: u64,
    /// MADs that are no answer of an SA at all.
    pub mads_malformed: u64,
}

impl<T: Copy + Eq> Client<T> {
    /// Makes a client that can have `requests_max` requests under way. `agent` must differ between
    /// the clients of a port. Fails if there is no memory for the table; later it allocates
    /// nothing.
    pub fn new(agent: u32, requests_max: usize) -> Result<Self, TryReserveError> {
        let mut outstanding = VecDeque::new();
        outstanding.try_reserve_exact(requests_max)?;
        Ok(Self {
            agent,
            sequence_next: 1,
            outstanding,
            requests_max,
            counters: ClientCounters::default(),
        })
    }

    /// SubnAdmGet(PathRecord).
    pub fn request_path(
        &mut self,
        now: Instant,
        tag: T,
        query: &PathQuery,
    ) -> Result<[u8; MAD_BYTES], TableFull> {
        let request = Request::Path { destination: query.destination };
        let transaction = self.enter_outstanding(now, tag, request)?;
        let mad = SaMad::request(
            Method::Get,
            Attribute::PathRecord,
            transaction,
            PathRecordWire::QUERY.bits(),
            &PathRecordWire::query(query),
        );
        Ok(mad.to_bytes())
    }

    /// SubnAdmSet(MCMemberRecord).
    pub fn request_join(
        &mut self,
        now: Instant,
        tag: T,
        join: &JoinRequest,
    ) -> Result<[u8; MAD_BYTES], TableFull> {
        let request = Request::Join { mgid: join.mgid };
        let transaction = self.enter_outstanding(now, tag, request)?;
        let (record, components) = MemberRecordWire::join(join);
        let mad = SaMad::request(
            Method::Set,
            Attribute::MemberRecord,
            transaction,
            components.bits(),
            &record,
        );
        Ok(mad.to_bytes())
    }

    /// SubnAdmDelete(MCMemberRecord).
    pub fn request_leave(
        &mut self,
        now: Instant,
        tag: T,
        mgid: Mgid,
        port_gid: Gid,
        membership: Membership,
    ) -> Result<[u8; MAD_BYTES], TableFull> {
        let transaction = self.enter_outstanding(now, tag, Request::Leave)?;
        let join_state = JoinState::from_bits_truncate(membership.join_state());
        let mad = SaMad::request(
            Method::Delete,
            Attribute::MemberRecord,
            transaction,
            MemberComponents::JOIN.bits(),
            &MemberRecordWire::member(mgid, port_gid, join_state),
        );
        Ok(mad.to_bytes())
    }

    /// SubnAdmGet(ClassPortInfo).
    pub fn request_capabilities(
        &mut self,
        now: Instant,
        tag: T,
    ) -> Result<[u8; MAD_BYTES], TableFull> {
        let transaction = self.enter_outstanding(now, tag, Request::Capabilities)?;
        let mad = SaMad::request(Method::Get, Attribute::ClassPortInfo, transaction, 0, &[0u8; 0]);
        Ok(mad.to_bytes())
    }

    /// A MAD that arrived. Yields the request that it answers and what came of it; anything else is
    /// counted and ignored.
    pub fn handle_mad(&mut self, bytes: &[u8]) -> Option<(T, Answer)> {
        let message = match mad::parse(bytes) {
            Ok(message) => message,
            // None of these can be matched with a request: it runs into its timeout.
            Err(
                ParseError::Length
                | ParseError::BaseVersion
                | ParseError::Class
                | ParseError::ClassVersion
                | ParseError::Method
                | ParseError::Segment,
            ) => {
                self.counters.mads_malformed += 1;
                return None;
            }
        };
        // A request, for instance of a port that takes this one for the subnet manager's.
        if message.method.response().is_some() {
            self.counters.mads_malformed += 1;
            return None;
        }
        let Some(position) = self.position(message.mad.header.transaction.get()) else {
            self.counters.answers_unexpected += 1;
            return None;
        };
        let outstanding = self.outstanding.remove(position)?;
        let answer = outstanding.request.answer(&message);
        self.count(&answer);
        Some((outstanding.tag, answer))
    }

    /// When [`Self::handle_timeout`] has something to do; `None` while nothing is under way.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.outstanding.front().map(|oldest| oldest.deadline)
    }

    /// Gives up the oldest request whose time is over. Call it until it yields nothing. Calls at
    /// any other time do nothing.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<(T, Answer)> {
        if self.poll_timeout()? > now {
            return None;
        }
        let expired = self.outstanding.pop_front()?;
        self.counters.requests_timed_out += 1;
        Some((expired.tag, expired.request.failed(SaError::TimedOut)))
    }

    /// Forgets every request of this name. An answer that still comes is an unexpected one.
    pub fn cancel(&mut self, tag: T) {
        let before = self.outstanding.len();
        self.outstanding.retain(|outstanding| outstanding.tag != tag);
        self.counters.requests_cancelled += (before - self.outstanding.len()) as u64;
    }

    /// How many requests are under way.
    pub fn outstanding_len(&self) -> usize {
        self.outstanding.len()
    }

    /// What the client saw so far.
    pub const fn counters(&self) -> &ClientCounters {
        &self.counters
    }

    /// Notes a request and yields its TransactionID.
    fn enter_outstanding(
        &mut self,
        now: Instant,
        tag: T,
        request: Request,
    ) -> Result<u64, TableFull> {
        if self.outstanding.len() == self.requests_max {
            self.counters.requests_table_full += 1;
            return Err(TableFull);
        }
        self.counters.requests += 1;
        let sequence = self.sequence_next;
        self.sequence_next = sequence.wrapping_add(1);
        // A clock that went back does not break the order of deadlines.
        let newest = self.outstanding.back().map(|newest| newest.deadline);
        let deadline =
            newest.map_or(now + REQUEST_TIMEOUT, |newest| newest.max(now + REQUEST_TIMEOUT));
        self.outstanding.push_back(Outstanding { sequence, tag, request, deadline });
        Ok((u64::from(self.agent) << 32) | u64::from(sequence))
    }

    /// Where the request with this TransactionID stands in the table.
    fn position(&self, transaction: u64) -> Option<usize> {
        if transaction >> 32 != u64::from(self.agent) {
            return None;
        }
        // Sequence numbers wrap, but their distance from the oldest one does not.
        let oldest = self.outstanding.front()?.sequence;
        let wanted = (transaction as u32).wrapping_sub(oldest);
        self.outstanding
            .binary_search_by_key(&wanted, |outstanding| outstanding.sequence.wrapping_sub(oldest))
            .ok()
    }

    fn count(&mut self, answer: &Answer) {
        let counters = &mut self.counters;
        let counter = match answer.error() {
            None => &mut counters.answers_good,
            Some(SaError::Busy) => &mut counters.answers_busy,
            Some(SaError::Refused(_)) => &mut counters.answers_refused,
            Some(SaError::Unusable) => &mut counters.answers_unusable,
            Some(SaError::TimedOut) => &mut counters.requests_timed_out,
        };
        *counter += 1;
    }
}

impl Request {
    /// What a response to this request means.
    fn answer(self, message: &Message<'_>) -> Answer {
        if (message.method, message.mad.attribute()) != (self.response(), Some(self.attribute())) {
            return self.failed(SaError::Unusable);
        }
        if let Err(error) = message.mad.status().result() {
            return self.failed(error);
        }
        match self {
            Self::Path { destination } => {
                let record = message.mad.record::<PathRecordWire>().record();
                let record = record.filter(|record| record.destination == destination);
                Answer::Path(record.ok_or(SaError::Unusable))
            }
            Self::Join { mgid } => {
                let record = message.mad.record::<MemberRecordWire>().record();
                let record = record.filter(|record| record.mgid == mgid);
                Answer::Join(record.ok_or(SaError::Unusable))
            }
            Self::Leave => Answer::Leave(Ok(())),
            Self::Capabilities => {
                let info = message.mad.record::<ClassPortInfo>();
                Answer::Capabilities(Ok(info.capabilities()))
            }
        }
    }

    const fn failed(self, error: SaError) -> Answer {
        match self {
            Self::Path { .. } => Answer::Path(Err(error)),
            Self::Join { .. } => Answer::Join(Err(error)),
            Self::Leave => Answer::Leave(Err(error)),
            Self::Capabilities => Answer::Capabilities(Err(error)),
        }
    }

    const fn response(self) -> Method {
        match self {
            Self::Path { .. } | Self::Join { .. } | Self::Capabilities => Method::GetResponse,
            Self::Leave => Method::DeleteResponse,
        }
    }

    const fn attribute(self) -> Attribute {
        match self {
            Self::Path { .. } => Attribute::PathRecord,
            Self::Join { .. } | Self::Leave => Attribute::MemberRecord,
            Self::Capabilities => Attribute::ClassPortInfo,
        }
    }
}

impl Answer {
    /// Why there is no result.
    pub const fn error(&self) -> Option<SaError> {
        match self {
            Self::Path(Err(error))
            | Self::Join(Err(error))
            | Self::Leave(Err(error))
            | Self::Capabilities(Err(error)) => Some(*error),
            Self::Path(Ok(_))
            | Self::Join(Ok(_))
            | Self::Leave(Ok(()))
            | Self::Capabilities(Ok(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests;
