//! One end of a reliable connection: what sequence numbers and acknowledgements mean (IBA 9.7).
//!
//! A message travels as a whole, as the run of packets that it is cut into; so one sequence number
//! stands for each packet, but acknowledgements always end at the end of a message.
//!
//! There are no timers. A requester that waits for an acknowledgement counts what is under way that
//! could bring it: its own packets and the responses to them. When nothing is left the
//! acknowledgement will not come, and that is what the transport timer of an adapter finds out
//! (IBA 9.7.6.1.3).

use alloc::collections::{TryReserveError, VecDeque};
use core::mem;

use ipoib_rs::ib::{IbMtu, Qpn};
use ipoib_rs::packet::PacketBuf;

use crate::address::Ah;
use crate::cq::WorkError;
use crate::packet::{HEADROOM_BYTES, LARGE_BYTES_MAX, Packet, Pool};
use crate::qp::{QpState, RcReadyToSend, RetryCount, RnrTimer};
use crate::slab::Key;
use crate::transit::{Flight, NakCode, Syndrome, packet_count};
use ipoib_rs::ib::Psn;

/// Sends that one queue pair may have posted.
pub(crate) const MESSAGES_MAX: u32 = 16_384;

/// All of them, cut as short as can be, fit the window of sequence numbers.
const _: () = {
    let packets_max = (LARGE_BYTES_MAX + HEADROOM_BYTES).div_ceil(IbMtu::Mtu256.bytes());
    assert!(MESSAGES_MAX as usize * packets_max < Psn::WINDOW as usize);
};

/// A connected queue pair's part of the transport.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Where receives come from, if not from the queue pair's own queue.
    pub(crate) srq: Option<Key>,
    /// Tells packets of this connection from those of an earlier one of the same queue pair.
    pub(crate) epoch: u32,
    /// Whether the queue pair is in the fabric's list of those that have something to send.
    pub(crate) is_scheduled: bool,
    /// Sends that are posted and not complete, in order.
    pub(crate) messages: VecDeque<Message>,
    /// From RTR on.
    pub(crate) responder: Option<Responder>,
    /// In RTS and SQD.
    pub(crate) requester: Option<Requester>,
}

/// A send that is posted and not complete.
#[derive(Debug)]
pub(crate) struct Message {
    wr_id: u64,
    /// Empty while the wire has it.
    packet: Packet,
    /// Of the first packet; of no meaning before the message was sent.
    psn: Psn,
    packet_count: u32,
}

/// What a requester does next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// Nothing else.
    GoOn,
    /// Sends what is not acknowledged again.
    Repeat,
    /// Completes its oldest send in error.
    Fail(WorkError),
}

impl Connection {
    pub(crate) fn new(srq: Option<Key>, messages_max: u32) -> Result<Self, TryReserveError> {
        let mut messages = VecDeque::new();
        messages.try_reserve_exact(messages_max as usize)?;
        Ok(Self { srq, epoch: 0, is_scheduled: false, messages, responder: None, requester: None })
    }

    /// Forgets the connection: only what was made with the queue pair remains. The flight of a
    /// response that will not leave.
    pub(crate) fn reset(&mut self) -> Option<Flight> {
        self.epoch = self.epoch.wrapping_add(1);
        self.is_scheduled = false;
        self.requester = None;
        mem::take(&mut self.responder)?.response?.flight
    }

    pub(crate) fn post(&mut self, wr_id: u64, packet: Packet) {
        self.messages.push_back(Message { wr_id, packet, psn: Psn::default(), packet_count: 0 });
    }

    /// Whether a message may leave now. In SQD only those do that have left before (IBA 10.3.1).
    pub(crate) fn can_send(&self, state: QpState) -> bool {
        let Some(requester) = &self.requester else {
            return false;
        };
        let end = match state {
            QpState::ReadyToSend => self.messages.len(),
            QpState::SendQueueDrained => requester.sent,
            QpState::Reset
            | QpState::Init
            | QpState::ReadyToReceive
            | QpState::SendQueueError
            | QpState::Error => 0,
        };
        requester.under_way < end
    }

    /// The packets of its messages. While the wire has one, or if a message has no bytes, there is
    /// none.
    pub(crate) fn packets_held(&self) -> usize {
        self.messages.iter().filter(|message| !message.packet.is_empty()).count()
    }

    /// Takes the next message to the wire: its first sequence number, and its packet. No packet if
    /// one that may be needed again could not be copied: then it is lost on the way.
    pub(crate) fn start(&mut self, pool: &mut Pool) -> Option<(Psn, Option<Packet>)> {
        let path_mtu = self.responder.as_ref()?.path_mtu;
        let requester = self.requester.as_mut()?;
        let message = self.messages.get_mut(requester.under_way)?;
        if requester.under_way == requester.sent {
            message.psn = requester.next_psn;
            message.packet_count = packet_count(message.packet.len(), path_mtu);
            requester.next_psn = message.psn.plus(message.packet_count);
            requester.sent += 1;
        }
        requester.under_way += 1;
        let packet = if requester.never_repeats() {
            Some(mem::replace(&mut message.packet, Packet::empty()))
        } else if message.packet.is_empty() {
            Some(Packet::empty())
        } else {
            pool.allocate_from(message.packet.bytes())
        };
        Some((message.psn, packet))
    }

    /// Takes the oldest message out: what it was called, and its packet.
    pub(crate) fn take_message(&mut self) -> Option<(u64, Packet)> {
        let message = self.messages.pop_front()?;
        if let Some(requester) = &mut self.requester {
            requester.sent = requester.sent.saturating_sub(1);
            requester.under_way = requester.under_way.saturating_sub(1);
        }
        Some((message.wr_id, message.packet))
    }

    /// Reads a response (IBA 9.7.5.1): how many messages it acknowledges, and what follows. `None`
    /// if it is about no packet that waits for one.
    pub(crate) fn read_response(
        &mut self,
        syndrome: Syndrome,
        psn: Psn,
    ) -> Option<(usize, Verdict)> {
        let requester = self.requester.as_mut().filter(|requester| requester.sent > 0)?;
        let first = self.messages.front()?.psn;
        let offset = psn.distance_from(first);
        if offset >= requester.next_psn.distance_from(first) {
            return None;
        }
        // A negative one acknowledges what is before its packet.
        let acknowledged = match syndrome {
            Syndrome::Ack => offset + 1,
            Syndrome::RnrNak(_) | Syndrome::Nak(_) => offset,
        };
        let ends = self.messages.iter().take(requester.sent);
        let completed = ends
            .take_while(|message| {
                let end = message.psn.plus(message.packet_count);
                end.distance_from(first) <= acknowledged
            })
            .count();
        if completed > 0 {
            requester.replenish();
        }
        let verdict = match syndrome {
            Syndrome::Ack => Verdict::GoOn,
            // The messages in question are on their way again already.
            Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::SequenceError)
                if requester.under_way <= completed =>
            {
                Verdict::GoOn
            }
            Syndrome::RnrNak(_) => requester.retry_receiver(),
            Syndrome::Nak(NakCode::SequenceError) => requester.retry(),
            Syndrome::Nak(NakCode::InvalidRequest) => {
                Verdict::Fail(WorkError::RemoteInvalidRequest)
            }
        };
        Some((completed, verdict))
    }

    /// The requester, if something under way is of this connection.
    pub(crate) fn requester_of(&mut self, flight: Flight) -> Option<&mut Requester> {
        let is_current = self.epoch == flight.epoch;
        self.requester.as_mut().filter(|_| is_current)
    }
}

/// The end that sends messages.
#[derive(Debug)]
pub(crate) struct Requester {
    retry_count: RetryCount,
    rnr_retry_count: RetryCount,
    retries_left: u8,
    rnr_retries_left: u8,
    /// Of the first message that never left.
    next_psn: Psn,
    /// Messages at the front of the queue that left at least once.
    sent: usize,
    /// Of these, those that do not wait to leave again.
    under_way: usize,
    /// Packets and responses that can bring an acknowledgement.
    pub(crate) in_flight: u32,
}

impl Requester {
    pub(crate) const fn new(attributes: &RcReadyToSend) -> Self {
        Self {
            retry_count: attributes.retry_count,
            rnr_retry_count: attributes.rnr_retry_count,
            retries_left: attributes.retry_count.value(),
            rnr_retries_left: attributes.rnr_retry_count.value(),
            next_psn: attributes.starting_psn,
            sent: 0,
            under_way: 0,
            in_flight: 0,
        }
    }

    /// Something that could have brought an acknowledgement is no more.
    pub(crate) fn land(&mut self) -> Verdict {
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.in_flight == 0 && self.under_way > 0 { self.retry() } else { Verdict::GoOn }
    }

    const fn never_repeats(&self) -> bool {
        self.retry_count.value() == 0 && self.rnr_retry_count.value() == 0
    }

    /// IBA 9.7.5.2.8: an acknowledgement makes the counts what they were.
    const fn replenish(&mut self) {
        self.retries_left = self.retry_count.value();
        self.rnr_retries_left = self.rnr_retry_count.value();
    }

    const fn retry(&mut self) -> Verdict {
        if self.retries_left == 0 {
            return Verdict::Fail(WorkError::RetryExceeded);
        }
        self.retries_left -= 1;
        self.under_way = 0;
        Verdict::Repeat
    }

    const fn retry_receiver(&mut self) -> Verdict {
        if self.rnr_retries_left == 0 {
            return Verdict::Fail(WorkError::RnrRetryExceeded);
        }
        self.rnr_retries_left -= 1;
        self.under_way = 0;
        Verdict::Repeat
    }
}

/// The end that receives messages, and what both ends know of the peer.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) ah: Ah,
    pub(crate) remote_qpn: Qpn,
    pub(crate) path_mtu: IbMtu,
    rnr_timer: RnrTimer,
    expected: Psn,
    /// Messages completed, 24 bits (IBA 9.7.5.2.6).
    msn: u32,
    /// Whether a message has arrived.
    is_established: bool,
    /// Whether the packet that is expected was asked for again (IBA 9.7.5.2.2).
    has_refused: bool,
    /// What is to be answered.
    pub(crate) response: Option<Response>,
}

/// A response that has not left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub(crate) syndrome: Syndrome,
    pub(crate) psn: Psn,
    pub(crate) msn: u32,
    /// Where it is counted as under way.
    pub(crate) flight: Option<Flight>,
}

/// Where a packet stands (IBA 9.7.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sequence {
    Expected,
    Duplicate,
    Early,
}

impl Responder {
    pub(crate) const fn new(
        ah: Ah,
        remote_qpn: Qpn,
        path_mtu: IbMtu,
        rnr_timer: RnrTimer,
        expected: Psn,
    ) -> Self {
        Self {
            ah,
            remote_qpn,
            path_mtu,
            rnr_timer,
            expected,
            msn: 0,
            is_established: false,
            has_refused: false,
            response: None,
        }
    }

    pub(crate) const fn sequence(&self, psn: Psn) -> Sequence {
        match psn.distance_from(self.expected) {
            0 => Sequence::Expected,
            1..Psn::WINDOW => Sequence::Early,
            Psn::WINDOW.. => Sequence::Duplicate,
        }
    }

    /// A message was put into a receive. Whether it is the first of the connection.
    pub(crate) fn accept(&mut self, packet_count: u32) -> bool {
        let is_first = !mem::replace(&mut self.is_established, true);
        self.has_refused = false;
        self.expected = self.expected.plus(packet_count);
        self.msn = (self.msn + 1) & 0x00FF_FFFF;
        self.respond(Syndrome::Ack, self.expected.previous());
        is_first
    }

    /// IBA 9.7.5.1.2: a packet that was acknowledged is acknowledged again.
    pub(crate) fn accept_again(&mut self) {
        match self.response {
            // A refusal that has not left says the same.
            Some(Response { syndrome: Syndrome::RnrNak(_) | Syndrome::Nak(_), .. }) => {}
            None | Some(Response { syndrome: Syndrome::Ack, .. }) => {
                self.respond(Syndrome::Ack, self.expected.previous())
            }
        }
    }

    /// A packet is ahead of the one that is expected.
    pub(crate) fn refuse_early(&mut self) {
        if !self.has_refused {
            self.refuse(Syndrome::Nak(NakCode::SequenceError));
        }
    }

    /// There is no receive.
    pub(crate) fn refuse_unready(&mut self) {
        self.refuse(Syndrome::RnrNak(self.rnr_timer));
    }

    /// The message cannot be received at all.
    pub(crate) fn refuse_invalid(&mut self) {
        self.refuse(Syndrome::Nak(NakCode::InvalidRequest));
    }

    fn refuse(&mut self, syndrome: Syndrome) {
        self.has_refused = true;
        self.respond(syndrome, self.expected);
    }

    /// One response at a time: a later one says all that an earlier one does (IBA 9.7.5.1.2,
    /// coalescing).
    fn respond(&mut self, syndrome: Syndrome, psn: Psn) {
        let flight = self.response.and_then(|response| response.flight);
        self.response = Some(Response { syndrome, psn, msn: self.msn, flight });
    }
}
