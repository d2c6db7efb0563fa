//! The subnet administrator: requests and their answers (IBA 15.4).

mod join;
mod member;
mod path;

use ipoib_rs::action::SaRefusal;
use ipoib_rs::ib::Lid;

use super::SubnetManager;
use super::fault::Fault;
use super::ports::{LinkState, PortView};
use crate::mad::{
    self, Attribute, ClassPortInfo, MAD_BYTES, METHOD_RESPONSE, MadHeader, Message, Method,
    ParseError, SaMad, Selector, Status,
};
use zerocopy::FromBytes;

/// What a request asks for.
#[derive(Clone, Copy)]
enum Kind {
    Capabilities,
    Join,
    Leave,
    Member,
    Path,
    Unsupported,
}

impl Kind {
    /// `None` for a response.
    fn of(message: &Message<'_>) -> Option<Self> {
        let attribute = message.mad.attribute();
        match message.method {
            Method::Get => Some(match attribute {
                Some(Attribute::ClassPortInfo) => Self::Capabilities,
                Some(Attribute::PathRecord) => Self::Path,
                Some(Attribute::MemberRecord) => Self::Member,
                None => Self::Unsupported,
            }),
            Method::Set if attribute == Some(Attribute::MemberRecord) => Some(Self::Join),
            Method::Delete if attribute == Some(Attribute::MemberRecord) => Some(Self::Leave),
            Method::Set | Method::Delete => Some(Self::Unsupported),
            Method::GetResponse | Method::DeleteResponse => None,
        }
    }
}

/// What came of a request: the answer, or the status of the refusal.
type Outcome = Result<SaMad, Status>;

impl<P: Copy + Ord> SubnetManager<P> {
    /// A MAD that arrived at QP1 of the manager's port from a LID. Yields the answer, to be sent
    /// back to QP1 there.
    pub fn handle_request(&mut self, bytes: &[u8], source: Lid) -> Option<[u8; MAD_BYTES]> {
        let message = match mad::parse(bytes) {
            Ok(message) => message,
            Err(error) => return self.refuse_unparsed(bytes, error),
        };
        // IBA 13.4.5: a response is never answered.
        let Some(kind) = Kind::of(&message) else {
            self.counters.dropped_unanswerable += 1;
            return None;
        };
        let requester = self.ports.find_lid(source);
        let Some(requester) = requester.filter(|port| port.link == LinkState::Active) else {
            self.counters.dropped_unknown_source += 1;
            return None;
        };
        // IBA 15.4.1: an SM_Key of zero is an untrusted request; any other must be the manager's,
        // which is zero here, and a wrong one is not answered, lest it be found by trying.
        if message.mad.sm_key.get() != 0 {
            self.counters.dropped_sm_key += 1;
            return None;
        }
        let requester = *requester;
        self.count(kind);
        let outcome = match self.faults.take() {
            Some(Fault::Silent) => {
                self.counters.dropped_by_fault += 1;
                return None;
            }
            Some(Fault::Status(status)) => {
                self.counters.refused_by_fault += 1;
                return Some(message.mad.refusal(status).to_bytes());
            }
            None => self.answer(kind, message.mad, &requester),
        };
        match outcome {
            Ok(answer) => {
                self.counters.answered += 1;
                Some(answer.to_bytes())
            }
            Err(status) => {
                self.counters.refused += 1;
                Some(message.mad.refusal(status).to_bytes())
            }
        }
    }

    fn answer(&mut self, kind: Kind, mad: &SaMad, requester: &PortView<P>) -> Outcome {
        match kind {
            Kind::Capabilities => {
                let config = &self.config;
                let info = ClassPortInfo::answer(config.capabilities, config.response_time);
                Ok(mad.answer(Attribute::ClassPortInfo, &info))
            }
            Kind::Join => self.answer_join(mad, requester),
            Kind::Leave => self.answer_leave(mad, requester),
            Kind::Member => self.answer_member(mad, requester),
            Kind::Path => self.answer_path(mad, requester),
            Kind::Unsupported => Err(Status::UNSUPPORTED_ATTRIBUTE),
        }
    }

    fn count(&mut self, kind: Kind) {
        let counters = &mut self.counters;
        let counter = match kind {
            Kind::Capabilities => &mut counters.class_port_info_gets,
            Kind::Join => &mut counters.member_record_sets,
            Kind::Leave => &mut counters.member_record_deletes,
            Kind::Member => &mut counters.member_record_gets,
            Kind::Path => &mut counters.path_record_gets,
            Kind::Unsupported => &mut counters.others,
        };
        *counter += 1;
    }

    /// A MAD that is not for the SA, or of a version or method that it does not know.
    fn refuse_unparsed(&mut self, bytes: &[u8], error: ParseError) -> Option<[u8; MAD_BYTES]> {
        let status = match error {
            // IBA 13.4.7, code 1: the class, or its version, is not supported.
            ParseError::Class | ParseError::ClassVersion => Status::BAD_VERSION,
            ParseError::Method => Status::UNSUPPORTED_METHOD,
            // There is no telling what these are, so there is no way to answer them.
            ParseError::Length | ParseError::BaseVersion | ParseError::Segment => {
                self.counters.dropped_malformed += 1;
                return None;
            }
        };
        let mad = SaMad::ref_from_bytes(bytes).ok()?;
        if !has_response(&mad.header) {
            self.counters.dropped_unanswerable += 1;
            return None;
        }
        self.counters.refused += 1;
        Some(mad.refusal(status).to_bytes())
    }
}

/// Whether the sender waits for an answer. IBA 13.4.5: Send, Trap and TrapRepress have none, and
/// neither has a response.
fn has_response(header: &MadHeader) -> bool {
    const SEND: u8 = 0x03;
    const TRAP: u8 = 0x05;
    const TRAP_REPRESS: u8 = 0x07;
    header.method & METHOD_RESPONSE == 0 && !matches!(header.method, SEND | TRAP | TRAP_REPRESS)
}

const fn refused(refusal: SaRefusal) -> Status {
    Status::refusal(refusal)
}

/// What a request demands of a value with a selector: something only if it fills in both.
fn demand(has_selector: bool, has_value: bool, byte: u8) -> Option<(Selector, u8)> {
    (has_selector && has_value).then(|| Selector::unpack(byte))
}
