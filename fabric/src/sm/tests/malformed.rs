//! MADs that are not what the SA understands.

use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;

/// What a request with one changed byte is answered with.
fn changed(place: usize, value: u8) -> (Option<Status>, SmCounters) {
    let mut manager = manager(1);
    let source = lid(&manager, 1);
    let mut request = any_request();
    request[place] = value;
    let answer = manager.handle_request(&request, source).map(|answer| {
        let answer = SaMad::read_from_bytes(&answer).unwrap();
        // Set has the response of Get (IBA 15.2.2).
        let method = if request[3] == 0x02 { 0x81 } else { request[3] | 0x80 };
        assert_eq!(answer.header.method, method, "a response");
        assert_eq!(answer.header.transaction.to_bytes(), request[8..16], "to this request");
        answer.status()
    });
    (answer, *manager.counters())
}

#[test]
fn what_cannot_be_understood_is_dropped_and_counted() {
    let mut manager = manager(1);
    let source = lid(&manager, 1);
    for len in [0, 24, 255] {
        assert_eq!(manager.handle_request(&any_request()[..len], source), None);
    }
    assert_eq!(manager.counters().dropped_malformed, 3);
    let (answer, counters) = changed(0, 2);
    assert_eq!((answer, counters.dropped_malformed), (None, 1), "base version");
    let (answer, counters) = changed(26, 1);
    assert_eq!((answer, counters.dropped_malformed), (None, 1), "a segment");
}

#[test]
fn another_class_or_version_is_refused() {
    assert_eq!(changed(1, 0x04).0, Some(Status::BAD_VERSION), "class");
    assert_eq!(changed(2, 1).0, Some(Status::BAD_VERSION), "class version");
}

#[test]
fn unknown_methods_are_refused_and_unanswerable_ones_dropped() {
    for method in 0..=u8::MAX {
        let (answer, counters) = changed(3, method);
        let expected = match method {
            0x01 => Some(Status::SUCCESS),
            0x02 | 0x15 => Some(Status::UNSUPPORTED_ATTRIBUTE),
            0x03 | 0x05 | 0x07 | 0x80.. => None,
            _ => Some(Status::UNSUPPORTED_METHOD),
        };
        assert_eq!(answer, expected, "method {method:#x}");
        assert_eq!(counters.dropped_unanswerable, u64::from(expected.is_none()));
    }
}

#[test]
fn methods_are_refused_for_attributes_that_do_not_have_them() {
    let mut manager = manager(1);
    let attributes = [0x0001, 0x0035, 0x0038, 0x0011, 0x0012, 0x0031, 0xFFFF];
    for method in [Method::Get, Method::Set, Method::Delete] {
        for attribute in attributes {
            let mut request = SaMad::request(method, Attribute::PathRecord, 7, 0, &[0u8; 0]);
            request.header.attribute.set(attribute);
            let result = ask(&mut manager, 1, &request);
            let is_supported = matches!(
                (method, attribute),
                (Method::Get, 0x0001 | 0x0035 | 0x0038) | (Method::Set | Method::Delete, 0x0038)
            );
            let is_unsupported = result == Err(Status::UNSUPPORTED_ATTRIBUTE);
            assert_eq!(is_unsupported, !is_supported, "{method:?} {attribute:#x}");
        }
    }
    assert_eq!(manager.counters().others, 16);
}

#[test]
fn a_request_from_nowhere_is_dropped() {
    let mut manager = manager(2);
    let source = lid(&manager, 1);
    assert_eq!(manager.handle_request(&any_request(), Lid::MAX), None);
    manager.handle_link_down(1).unwrap();
    assert_eq!(manager.handle_request(&any_request(), source), None);
    assert_eq!(manager.counters().dropped_unknown_source, 2);
    assert_eq!(manager.counters().class_port_info_gets, 0);
}

#[test]
fn a_wrong_sm_key_is_not_answered() {
    let (answer, counters) = changed(43, 1);
    assert_eq!((answer, counters.dropped_sm_key), (None, 1));
}

#[test]
fn answers_name_their_attribute_offset() {
    let mut manager = manager(1);
    let request = *mad::parse(&any_request()).unwrap().mad;
    let answer = ask(&mut manager, 1, &request).unwrap();
    assert_eq!(answer.attribute_offset.get(), 9, "72 bytes");
    let record = MemberRecordWire::member(broadcast(Pkey::DEFAULT), gid(1), JoinState::FULL);
    let components = MemberComponents::JOIN.bits();
    let request = SaMad::request(Method::Set, Attribute::MemberRecord, 7, components, &record);
    let answer = ask(&mut manager, 1, &request).unwrap();
    assert_eq!(answer.attribute_offset.get(), 7, "52 bytes, rounded up");
    assert_eq!(answer.data[52..], [0; 148]);
}

/// A join, a path query and the like, of which a few bytes are changed.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let (join, join_components) =
        creation(1, group(1), JoinState::FULL, SmConfig::new(LIMITS).group);
    let path = PathRecordWire {
        source: gid(1),
        destination: gid(2),
        ..PathRecordWire::query(&ipoib_rs::action::PathQuery {
            source: gid(1),
            destination: gid(2),
            pkey: Pkey::DEFAULT,
        })
    };
    let components = join_components.bits();
    let member = |method| {
        SaMad::request(method, Attribute::MemberRecord, 7, components, &join).to_bytes().to_vec()
    };
    let path =
        SaMad::request(Method::Get, Attribute::PathRecord, 7, PathRecordWire::QUERY.bits(), &path);
    let bases = vec![
        member(Method::Set),
        member(Method::Get),
        member(Method::Delete),
        path.to_bytes().to_vec(),
        any_request().to_vec(),
    ];
    // The component mask and the record are changed more often than the rest.
    let place = prop_oneof![1 => 0..MAD_BYTES, 1 => 48..56usize, 2 => 56..120usize];
    let changes = proptest::collection::vec((place, any::<u8>()), 0..6);
    (proptest::sample::select(bases), changes).prop_map(|(mut bytes, changes)| {
        for (place, value) in changes {
            bytes[place] = value;
        }
        bytes
    })
}

/// Every request is counted as one thing, and what is answered is a response to it that can be
/// read.
fn check_any(manager: &mut SubnetManager<u32>, bytes: &[u8]) -> Result<(), TestCaseError> {
    let source = lid(manager, 1);
    let outcomes = |counters: &SmCounters| {
        counters.answered
            + counters.refused
            + counters.dropped_malformed
            + counters.dropped_unanswerable
            + counters.dropped_sm_key
    };
    let before = outcomes(manager.counters());
    let answer = manager.handle_request(bytes, source);
    prop_assert_eq!(outcomes(manager.counters()), before + 1);
    if let Some(answer) = answer {
        let request = SaMad::read_from_bytes(bytes).unwrap();
        let answer = SaMad::read_from_bytes(&answer).unwrap();
        prop_assert_eq!(answer.header.transaction, request.header.transaction);
        prop_assert!(answer.header.method & 0x80 != 0);
        if answer.status() == Status::SUCCESS {
            prop_assert!(mad::parse(&answer.to_bytes()).is_ok());
        }
        if answer.status() == Status::SUCCESS && answer.header.method == 0x81 {
            let is_record = match answer.attribute() {
                Some(Attribute::ClassPortInfo) => true,
                Some(Attribute::PathRecord) => answer.record::<PathRecordWire>().record().is_some(),
                Some(Attribute::MemberRecord) => {
                    answer.record::<MemberRecordWire>().record().is_some()
                }
                None => false,
            };
            prop_assert!(is_record, "{answer:?}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn random_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        check_any(&mut manager(2), &bytes)?;
    }

    #[test]
    fn mutated_requests_are_survived(requests in proptest::collection::vec(mutated(), 1..12)) {
        let mut manager = manager(2);
        for request in requests {
            check_any(&mut manager, &request)?;
        }
    }
}
