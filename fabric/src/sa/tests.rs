//! The client, against answers made by hand.

use ipoib_rs::action::{GroupParameters, SaRefusal};
use ipoib_rs::ib::{IbMtu, Lid, Mlid, Pkey, Qkey, RateCode, ServiceLevel};
use proptest::prelude::*;
use zerocopy::byteorder::network_endian::U16;

use super::*;
use crate::mad::Status;

const AGENT: u32 = 0xA6E7_0001;
const HERE: Gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x0A01);
const THERE: Gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x0B02);
const QUERY: PathQuery = PathQuery { destination: THERE, source: HERE, pkey: Pkey::DEFAULT };

fn mgid() -> Mgid {
    Mgid::new(Gid::new(0xFF12_401B_FFFF_0000, 0x0000_0000_FFFF_FFFF)).unwrap()
}

fn join() -> JoinRequest {
    JoinRequest {
        mgid: mgid(),
        port_gid: HERE,
        pkey: Pkey::DEFAULT,
        membership: Membership::Full,
        create: None,
    }
}

fn path() -> PathRecord {
    PathRecord {
        destination: THERE,
        lid: Lid::new(7).unwrap(),
        sl: ServiceLevel::default(),
        mtu: IbMtu::Mtu2048,
        rate: RateCode::new(3).unwrap(),
        global: None,
    }
}

fn group() -> GroupRecord {
    GroupRecord {
        mgid: mgid(),
        mlid: Mlid::MIN,
        pkey: Pkey::DEFAULT,
        parameters: GroupParameters {
            qkey: Qkey(0x0B1B),
            mtu: IbMtu::Mtu2048,
            rate: RateCode::new(3).unwrap(),
            sl: ServiceLevel::default(),
            packet_life_time: 18,
            global: ipoib_rs::action::GlobalRoute::default(),
        },
    }
}

fn client() -> Client<&'static str> {
    Client::new(AGENT, 4).unwrap()
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn parsed(bytes: &[u8; MAD_BYTES]) -> SaMad {
    *mad::parse(bytes).unwrap().mad
}

/// The answer that an SA would give to a request.
fn answered(request: &[u8; MAD_BYTES]) -> SaMad {
    let request = parsed(request);
    match request.attribute().unwrap() {
        Attribute::ClassPortInfo => {
            let info = ClassPortInfo::answer(SaCapabilities { send_only_full_member: true }, 16);
            request.answer(Attribute::ClassPortInfo, &info)
        }
        Attribute::PathRecord => {
            let source = (HERE, Lid::new(3).unwrap());
            let record = PathRecordWire::answer(&path(), source, Pkey::DEFAULT, 18);
            request.answer(Attribute::PathRecord, &record)
        }
        Attribute::MemberRecord => {
            request.answer(Attribute::MemberRecord, &MemberRecordWire::group(&group()))
        }
    }
}

#[test]
fn each_request_gets_its_own_answer_in_any_order() {
    let mut client = client();
    let requests = [
        client.request_path(at(0), "path", &QUERY).unwrap(),
        client.request_join(at(0), "join", &join()).unwrap(),
        client.request_leave(at(0), "leave", mgid(), HERE, Membership::Full).unwrap(),
        client.request_capabilities(at(0), "capabilities").unwrap(),
    ];
    let expected = [
        ("path", Answer::Path(Ok(path()))),
        ("join", Answer::Join(Ok(group()))),
        ("leave", Answer::Leave(Ok(()))),
        ("capabilities", Answer::Capabilities(Ok(SaCapabilities { send_only_full_member: true }))),
    ];
    for place in [2, 0, 3, 1] {
        let answer = client.handle_mad(&answered(&requests[place]).to_bytes());
        assert_eq!(answer, Some(expected[place]));
    }
    assert_eq!(client.counters().answers_good, 4);
    assert_eq!(client.outstanding_len(), 0);
    assert_eq!(client.poll_timeout(), None);
}

#[test]
fn the_transaction_id_is_the_agent_and_a_sequence_number() {
    let mut client = client();
    for sequence in 1..=3 {
        let request = client.request_path(at(0), "path", &QUERY).unwrap();
        let transaction = parsed(&request).header.transaction.get();
        assert_eq!(transaction, 0xA6E7_0001_0000_0000 | sequence);
    }
}

#[test]
fn a_request_that_nobody_answers_times_out_once() {
    let mut client = client();
    client.request_path(at(0), "path", &QUERY).unwrap();
    client.request_join(at(10), "join", &join()).unwrap();
    assert_eq!(client.poll_timeout(), Some(at(0) + REQUEST_TIMEOUT));
    assert_eq!(client.handle_timeout(at(999)), None, "a call too early does nothing");
    assert_eq!(
        client.handle_timeout(at(1000)),
        Some(("path", Answer::Path(Err(SaError::TimedOut))))
    );
    assert_eq!(client.handle_timeout(at(1000)), None);
    assert_eq!(client.poll_timeout(), Some(at(1010)));
    assert_eq!(
        client.handle_timeout(at(5000)),
        Some(("join", Answer::Join(Err(SaError::TimedOut))))
    );
    assert_eq!(client.handle_timeout(at(5000)), None);
    assert_eq!(client.counters().requests_timed_out, 2);
}

#[test]
fn deadlines_stay_in_order_when_the_clock_goes_back() {
    let mut client = client();
    client.request_path(at(500), "first", &QUERY).unwrap();
    client.request_path(at(0), "second", &QUERY).unwrap();
    assert_eq!(client.handle_timeout(at(1499)), None);
    assert_eq!(client.handle_timeout(at(1500)).map(|(tag, _)| tag), Some("first"));
    assert_eq!(client.handle_timeout(at(1500)).map(|(tag, _)| tag), Some("second"));
}

#[test]
fn late_and_repeated_answers_are_ignored() {
    let mut client = client();
    let request = client.request_path(at(0), "path", &QUERY).unwrap();
    let answer = answered(&request).to_bytes();
    assert!(client.handle_mad(&answer).is_some());
    assert_eq!(client.handle_mad(&answer), None, "repeated");
    let request = client.request_path(at(0), "path", &QUERY).unwrap();
    assert!(client.handle_timeout(at(1000)).is_some());
    assert_eq!(client.handle_mad(&answered(&request).to_bytes()), None, "late");
    assert_eq!(client.counters().answers_unexpected, 2);
}

#[test]
fn a_cancelled_request_has_no_answer_and_no_timeout() {
    let mut client = client();
    let request = client.request_path(at(0), "path", &QUERY).unwrap();
    client.request_join(at(1), "join", &join()).unwrap();
    client.cancel("path");
    client.cancel("nothing");
    assert_eq!(client.handle_mad(&answered(&request).to_bytes()), None);
    assert_eq!(client.poll_timeout(), Some(at(1001)));
    assert_eq!(client.counters().requests_cancelled, 1);
}

#[test]
fn a_full_table_refuses_until_a_request_ends() {
    let mut client = client();
    let first = client.request_path(at(0), "path", &QUERY).unwrap();
    for _ in 1..4 {
        client.request_path(at(0), "path", &QUERY).unwrap();
    }
    assert_eq!(client.request_capabilities(at(0), "full"), Err(TableFull));
    assert_eq!(client.counters().requests_table_full, 1);
    assert!(client.handle_mad(&answered(&first).to_bytes()).is_some());
    assert!(client.request_capabilities(at(0), "again").is_ok());
}

#[test]
fn a_refusal_tells_its_reason() {
    let mut client = client();
    let mut refused_with = |status: Status| {
        let request = client.request_join(at(0), "join", &join()).unwrap();
        match client.handle_mad(&parsed(&request).refusal(status).to_bytes()) {
            Some(("join", Answer::Join(Err(error)))) => error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused_with(Status::BUSY), SaError::Busy);
    for code in 1..=7 {
        let refusal = SaRefusal::from_code(code).unwrap();
        assert_eq!(refused_with(Status::refusal(refusal)), SaError::Refused(refusal));
    }
    assert_eq!(refused_with(Status::UNSUPPORTED_ATTRIBUTE), SaError::Unusable);
    assert_eq!(refused_with(Status(0x6300)), SaError::Unusable);
    let counters = client.counters();
    assert_eq!(counters.answers_busy, 1);
    assert_eq!(counters.answers_refused, 7);
    assert_eq!(counters.answers_unusable, 2);
}

#[test]
fn an_answer_with_unusable_values_is_an_error() {
    let source = (HERE, Lid::MAX);
    let good = PathRecordWire::answer(&path(), source, Pkey::DEFAULT, 18);
    let unusable = [
        PathRecordWire { destination_lid: U16::new(0), ..good },
        PathRecordWire { destination_lid: U16::new(0xC000), ..good },
        PathRecordWire { mtu: 0x80 | 6, ..good },
        PathRecordWire { destination: HERE, ..good },
    ];
    let mut client = client();
    for record in unusable {
        let request = client.request_path(at(0), "path", &QUERY).unwrap();
        let answer = parsed(&request).answer(Attribute::PathRecord, &record);
        let answer = client.handle_mad(&answer.to_bytes());
        assert_eq!(answer, Some(("path", Answer::Path(Err(SaError::Unusable)))), "{record:?}");
    }
    let good = MemberRecordWire::group(&group());
    let unusable = [
        MemberRecordWire { mlid: U16::new(1), ..good },
        MemberRecordWire { mtu: 0x80, ..good },
        MemberRecordWire { pkey: U16::new(0x8000), ..good },
        MemberRecordWire { mgid: Gid::new(0xFF12_401B_8001_0000, 0xFFFF_FFFF), ..good },
        MemberRecordWire { mgid: HERE, ..good },
    ];
    for record in unusable {
        let request = client.request_join(at(0), "join", &join()).unwrap();
        let answer = parsed(&request).answer(Attribute::MemberRecord, &record);
        let answer = client.handle_mad(&answer.to_bytes());
        assert_eq!(answer, Some(("join", Answer::Join(Err(SaError::Unusable)))), "{record:?}");
    }
    assert_eq!(client.counters().answers_unusable, 9);
}

#[test]
fn an_answer_of_another_kind_is_an_error() {
    let mut client = client();
    let request = client.request_path(at(0), "path", &QUERY).unwrap();
    let mut answer = answered(&request);
    answer.header.attribute = U16::new(Attribute::MemberRecord.code());
    let answer = client.handle_mad(&answer.to_bytes());
    assert_eq!(answer, Some(("path", Answer::Path(Err(SaError::Unusable)))));

    let request = client.request_leave(at(0), "leave", mgid(), HERE, Membership::Full).unwrap();
    let mut answer = answered(&request);
    answer.header.method = Method::GetResponse.code();
    let answer = client.handle_mad(&answer.to_bytes());
    assert_eq!(answer, Some(("leave", Answer::Leave(Err(SaError::Unusable)))));
}

#[test]
fn what_is_no_answer_leaves_requests_alone() {
    let mut client = client();
    let request = client.request_path(at(0), "path", &QUERY).unwrap();
    let good = answered(&request);
    assert_eq!(client.handle_mad(&request), None, "the request itself");
    assert_eq!(client.handle_mad(&good.to_bytes()[..255]), None, "too short");
    let mut foreign = good;
    foreign.header.class = 0x07;
    assert_eq!(client.handle_mad(&foreign.to_bytes()), None, "another class");
    assert_eq!(client.counters().mads_malformed, 3);
    let mut foreign = good;
    foreign.header.transaction.set(good.header.transaction.get() ^ (1 << 32));
    assert_eq!(client.handle_mad(&foreign.to_bytes()), None, "another agent");
    assert_eq!(client.counters().answers_unexpected, 1);
    assert!(client.handle_mad(&good.to_bytes()).is_some());
}

#[test]
fn sequence_numbers_wrap() {
    let mut client = client();
    client.sequence_next = u32::MAX - 1;
    let requests = [(); 4].map(|()| client.request_path(at(0), "path", &QUERY).unwrap());
    for request in [&requests[3], &requests[0], &requests[2], &requests[1]] {
        assert!(client.handle_mad(&answered(request).to_bytes()).is_some());
    }
    assert_eq!(client.counters().answers_good, 4);
}

proptest! {
    /// Whatever comes in, at most the one request that was made ends, and every MAD is counted
    /// once.
    #[test]
    fn handle_mad_takes_any_bytes(
        changes in proptest::collection::vec((0..MAD_BYTES, any::<u8>()), 0..8),
        len in prop_oneof![Just(MAD_BYTES), 0..300usize],
    ) {
        let mut client = client();
        let request = client.request_join(at(0), "join", &join()).unwrap();
        let mut bytes = answered(&request).to_bytes().to_vec();
        for (place, value) in changes {
            bytes[place] = value;
        }
        bytes.resize(len, 0);
        let ended = client.handle_mad(&bytes).is_some();
        prop_assert_eq!(client.outstanding_len(), usize::from(!ended));
        let counters = client.counters();
        let counted = counters.answers_good
            + counters.answers_busy
            + counters.answers_refused
            + counters.answers_unusable
            + counters.answers_unexpected
            + counters.mads_malformed;
        prop_assert_eq!(counted, 1);
    }
}
