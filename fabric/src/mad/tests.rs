//! The bytes, against a second description of the layouts and against tshark.

use std::fs;
use std::process::Command;

use ipoib_rs::action::{
    GlobalRoute, GroupParameters, GroupRecord, JoinRequest, Membership, PathRecord, SaCapabilities,
    SaError, SaRefusal,
};
use ipoib_rs::ib::{FlowLabel, Gid, IbMtu, Lid, Mgid, Mlid, Pkey, Qkey, RateCode, ServiceLevel};
use proptest::prelude::*;

use super::*;

const PORT_A: Gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x0002_C903_0000_0A01);
const PORT_B: Gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x0002_C903_0000_0B02);

fn mgid() -> Mgid {
    Mgid::new(Gid::new(0xFF12_401B_FFFF_0000, 0x0000_0000_FFFF_FFFF)).unwrap()
}

fn group() -> GroupRecord {
    GroupRecord {
        mgid: mgid(),
        mlid: Mlid::new(0xC123).unwrap(),
        pkey: Pkey::new(0x8ABC).unwrap(),
        parameters: GroupParameters {
            qkey: Qkey(0x0001_0B1B),
            mtu: IbMtu::Mtu4096,
            rate: RateCode::new(16).unwrap(),
            sl: ServiceLevel::new(5).unwrap(),
            packet_life_time: 17,
            global: GlobalRoute {
                flow_label: FlowLabel::new(0xA_BCDE).unwrap(),
                hop_limit: 63,
                traffic_class: 0x2D,
            },
        },
    }
}

fn path(global: Option<GlobalRoute>) -> PathRecord {
    PathRecord {
        destination: PORT_B,
        lid: Lid::new(0x1234).unwrap(),
        sl: ServiceLevel::new(9).unwrap(),
        mtu: IbMtu::Mtu1024,
        rate: RateCode::new(7).unwrap(),
        global,
    }
}

fn path_wire(global: Option<GlobalRoute>) -> PathRecordWire {
    let source = (PORT_A, Lid::new(0x0042).unwrap());
    PathRecordWire::answer(&path(global), source, Pkey::DEFAULT, 18)
}

/// A field of a record, by 32-bit word, bit and width: how the IBA tables describe it, and an
/// implementation that shares nothing with the structs.
fn bits(bytes: &[u8], word: usize, bit: usize, width: usize) -> u128 {
    let first = word * 32 + bit;
    (first..first + width)
        .fold(0, |value, bit| (value << 1) | u128::from((bytes[bit / 8] >> (7 - bit % 8)) & 1))
}

#[test]
fn path_record_fields_stand_where_the_table_says() {
    let route = GlobalRoute {
        flow_label: FlowLabel::new(0x5_4321).unwrap(),
        hop_limit: 64,
        traffic_class: 0x77,
    };
    let wire = path_wire(Some(route));
    let bytes = wire.as_bytes();
    assert_eq!(bits(bytes, 0, 0, 64), 0, "service id");
    assert_eq!(bits(bytes, 2, 0, 128), u128::from_be_bytes(PORT_B.0));
    assert_eq!(bits(bytes, 6, 0, 128), u128::from_be_bytes(PORT_A.0));
    assert_eq!(bits(bytes, 10, 0, 16), 0x1234, "DLID");
    assert_eq!(bits(bytes, 10, 16, 16), 0x0042, "SLID");
    assert_eq!(bits(bytes, 11, 0, 1), 0, "raw traffic");
    assert_eq!(bits(bytes, 11, 4, 20), 0x5_4321, "flow label");
    assert_eq!(bits(bytes, 11, 24, 8), 64, "hop limit");
    assert_eq!(bits(bytes, 12, 0, 8), 0x77, "traffic class");
    assert_eq!(bits(bytes, 12, 8, 1), 1, "reversible");
    assert_eq!(bits(bytes, 12, 9, 7), 1, "number of paths");
    assert_eq!(bits(bytes, 12, 16, 16), 0xFFFF, "P_Key");
    assert_eq!(bits(bytes, 13, 0, 12), 0, "QoS class");
    assert_eq!(bits(bytes, 13, 12, 4), 9, "SL");
    assert_eq!(bits(bytes, 13, 16, 2), 2, "MTU selector");
    assert_eq!(bits(bytes, 13, 18, 6), 3, "MTU");
    assert_eq!(bits(bytes, 13, 24, 2), 2, "rate selector");
    assert_eq!(bits(bytes, 13, 26, 6), 7, "rate");
    assert_eq!(bits(bytes, 14, 0, 2), 2, "life time selector");
    assert_eq!(bits(bytes, 14, 2, 6), 18, "life time");
    assert_eq!(bits(bytes, 14, 8, 8), 0, "preference");
    assert_eq!(bits(bytes, 14, 16, 48), 0, "reserved");
}

#[test]
fn member_record_fields_stand_where_the_table_says() {
    let mut wire = MemberRecordWire::group(&group()).with_join_state(JoinState::SEND_ONLY_FULL);
    wire.port_gid = PORT_A;
    let bytes = wire.as_bytes();
    assert_eq!(bits(bytes, 0, 0, 128), u128::from_be_bytes(mgid().gid().0));
    assert_eq!(bits(bytes, 4, 0, 128), u128::from_be_bytes(PORT_A.0));
    assert_eq!(bits(bytes, 8, 0, 32), 0x0001_0B1B, "Q_Key");
    assert_eq!(bits(bytes, 9, 0, 16), 0xC123, "MLID");
    assert_eq!(bits(bytes, 9, 16, 2), 2, "MTU selector");
    assert_eq!(bits(bytes, 9, 18, 6), 5, "MTU");
    assert_eq!(bits(bytes, 9, 24, 8), 0x2D, "traffic class");
    assert_eq!(bits(bytes, 10, 0, 16), 0x8ABC, "P_Key");
    assert_eq!(bits(bytes, 10, 16, 2), 2, "rate selector");
    assert_eq!(bits(bytes, 10, 18, 6), 16, "rate");
    assert_eq!(bits(bytes, 10, 24, 2), 2, "life time selector");
    assert_eq!(bits(bytes, 10, 26, 6), 17, "life time");
    assert_eq!(bits(bytes, 11, 0, 4), 5, "SL");
    assert_eq!(bits(bytes, 11, 4, 20), 0xA_BCDE, "flow label");
    assert_eq!(bits(bytes, 11, 24, 8), 63, "hop limit");
    assert_eq!(bits(bytes, 12, 0, 4), 2, "scope");
    assert_eq!(bits(bytes, 12, 4, 4), 8, "join state");
    assert_eq!(bits(bytes, 12, 8, 1), 0, "proxy join");
    assert_eq!(bits(bytes, 12, 9, 23), 0, "reserved");
}

#[test]
fn class_port_info_fields_stand_where_the_table_says() {
    let capabilities = SaCapabilities { send_only_full_member: true };
    let wire = ClassPortInfo::answer(capabilities, 16);
    let bytes = wire.as_bytes();
    assert_eq!(bits(bytes, 0, 0, 8), 1, "base version");
    assert_eq!(bits(bytes, 0, 8, 8), 2, "class version");
    assert_eq!(bits(bytes, 0, 16, 16), 1 << 9, "capability mask");
    assert_eq!(bits(bytes, 1, 0, 27), 1 << 12, "capability mask 2");
    assert_eq!(bits(bytes, 1, 27, 5), 16, "response time");
    assert_eq!(bytes[8..], [0; 64], "no redirection, no traps");
}

#[test]
fn mad_header_fields_stand_where_the_table_says() {
    let (record, components) = (PathRecordWire::new_zeroed(), 0x1122_3344_5566_7788);
    let transaction = 0x0102_0304_0506_0708;
    let mut mad =
        SaMad::request(Method::Get, Attribute::PathRecord, transaction, components, &record);
    mad.header.status = U16::new(0x0300);
    mad.sm_key = U64::new(0xAABB);
    let bytes = mad.to_bytes();
    assert_eq!(bytes.len(), 256);
    assert_eq!(bytes[..4], [1, 3, 2, 1], "versions, class and method");
    assert_eq!(bits(&bytes, 1, 0, 16), 0x0300, "status");
    assert_eq!(bits(&bytes, 2, 0, 64), transaction.into());
    assert_eq!(bits(&bytes, 4, 0, 16), 0x35, "attribute");
    assert_eq!(bits(&bytes, 5, 0, 32), 0, "modifier");
    assert_eq!(bits(&bytes, 6, 0, 96), 0, "RMPP is inactive");
    assert_eq!(bits(&bytes, 9, 0, 64), 0xAABB, "SM_Key");
    assert_eq!(bits(&bytes, 11, 0, 16), 0, "no attribute offset in a request");
    assert_eq!(bits(&bytes, 12, 0, 64), components.into());
}

#[test]
fn records_survive_the_way_through_bytes() {
    assert_eq!(MemberRecordWire::group(&group()).record(), Some(group()));
    let route = group().parameters.global;
    for global in [None, Some(route)] {
        assert_eq!(path_wire(global).record(), Some(path(global)));
    }
    for send_only_full_member in [false, true] {
        let capabilities = SaCapabilities { send_only_full_member };
        let wire = ClassPortInfo::answer(capabilities, 31);
        assert_eq!(wire.capabilities(), capabilities);
    }
}

#[test]
fn a_hop_limit_of_one_or_less_means_no_grh() {
    for (hop_limit, needs_grh) in [(0, false), (1, false), (2, true), (255, true)] {
        let wire = path_wire(Some(GlobalRoute { hop_limit, ..GlobalRoute::default() }));
        let global = wire.record().unwrap().global;
        assert_eq!(global.map(|route| route.hop_limit), needs_grh.then_some(hop_limit));
    }
}

#[test]
fn an_answer_with_a_reserved_value_is_no_record() {
    let path = path_wire(None);
    for lid in [0, 0xC000, 0xFFFF] {
        let destination_lid = U16::new(lid);
        assert_eq!(PathRecordWire { destination_lid, ..path }.record(), None, "LID {lid:#x}");
    }
    let group = MemberRecordWire::group(&group());
    for mlid in [0, 1, 0xBFFF, 0xFFFF] {
        let mlid = U16::new(mlid);
        assert_eq!(MemberRecordWire { mlid, ..group }.record(), None, "MLID {mlid:#x}");
    }
    for mtu in [0, 6, 63] {
        let mtu = Selector::Exactly.pack(mtu);
        assert_eq!(PathRecordWire { mtu, ..path }.record(), None, "MTU {mtu:#x}");
        assert_eq!(MemberRecordWire { mtu, ..group }.record(), None, "MTU {mtu:#x}");
    }
    for pkey in [0, 0x8000] {
        let pkey = U16::new(pkey);
        assert_eq!(MemberRecordWire { pkey, ..group }.record(), None, "P_Key {pkey:#x}");
    }
    assert_eq!(MemberRecordWire { mgid: PORT_A, ..group }.record(), None, "MGID");
}

#[test]
fn a_join_without_creation_fills_in_the_mandatory_components_only() {
    let join = JoinRequest {
        mgid: mgid(),
        port_gid: PORT_A,
        pkey: Pkey::DEFAULT,
        membership: Membership::Full,
        create: None,
    };
    let (wire, components) = MemberRecordWire::join(&join);
    assert_eq!(components.bits(), 0x1_0003);
    assert_eq!(wire, MemberRecordWire::member(mgid(), PORT_A, JoinState::FULL));
}

#[test]
fn a_join_with_creation_fills_in_what_an_sa_demands() {
    let join = JoinRequest {
        mgid: mgid(),
        port_gid: PORT_A,
        pkey: group().pkey,
        membership: Membership::SendOnlyFull,
        create: Some(group().parameters),
    };
    let (wire, components) = MemberRecordWire::join(&join);
    assert!(components.contains(MemberComponents::CREATE));
    assert!(!components.contains(MemberComponents::LIFE_TIME));
    let mut expected = MemberRecordWire::group(&group());
    expected.port_gid = PORT_A;
    expected.mlid = U16::ZERO;
    expected.life_time = 0;
    expected.scope_join = JoinState::SEND_ONLY_FULL.bits();
    assert_eq!(wire, expected);
}

#[test]
fn every_status_means_one_thing() {
    assert_eq!(Status::SUCCESS.result(), Ok(()));
    assert_eq!(Status::BUSY.result(), Err(SaError::Busy));
    for status in [
        Status::REDIRECT,
        Status::BAD_VERSION,
        Status::UNSUPPORTED_METHOD,
        Status::UNSUPPORTED_ATTRIBUTE,
        Status::INVALID_VALUE,
        Status(0x0800),
        Status(0xFF00),
    ] {
        assert_eq!(status.result(), Err(SaError::Unusable), "{status:?}");
    }
    for code in 1..=7 {
        let refusal = SaRefusal::from_code(code).unwrap();
        let status = Status::refusal(refusal);
        assert_eq!(status.0, u16::from(code) << 8);
        assert_eq!(status.result(), Err(SaError::Refused(refusal)));
    }
    let failures = (0..=u16::MAX).filter(|status| Status(*status).result().is_err());
    assert_eq!(failures.count(), 0xFFFF);
}

#[test]
fn parse_names_what_is_wrong() {
    let good = SaMad::request(Method::Get, Attribute::PathRecord, 7, 0, &[0u8; 0]).to_bytes();
    assert_eq!(parse(&good).map(|message| message.method), Ok(Method::Get));
    let with = |place: usize, value: u8| {
        let mut bytes = good;
        bytes[place] = value;
        parse(&bytes).map(|message| message.method)
    };
    for len in [0, 23, 24, 255] {
        assert_eq!(parse(&good[..len]).err(), Some(ParseError::Length));
    }
    assert_eq!(parse(&[&good[..], &[0]].concat()).err(), Some(ParseError::Length));
    for byte in (0..=u8::MAX).filter(|byte| *byte != 1) {
        assert_eq!(with(0, byte), Err(ParseError::BaseVersion));
    }
    for byte in (0..=u8::MAX).filter(|byte| *byte != 3) {
        assert_eq!(with(1, byte), Err(ParseError::Class));
    }
    for byte in (0..=u8::MAX).filter(|byte| *byte != 2) {
        assert_eq!(with(2, byte), Err(ParseError::ClassVersion));
    }
    for byte in 0..=u8::MAX {
        let known = [0x01, 0x02, 0x15, 0x81, 0x95].contains(&byte);
        assert_eq!(with(3, byte).is_ok(), known, "method {byte:#x}");
        assert_eq!(with(26, byte).is_ok(), byte & 1 == 0, "RMPP flags {byte:#x}");
    }
}

proptest! {
    #[test]
    fn parse_takes_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..=300)) {
        if let Ok(message) = parse(&bytes) {
            let written = message.mad.to_bytes();
            prop_assert_eq!(written.as_slice(), bytes.as_slice());
        }
    }

    #[test]
    fn records_take_any_bytes(bytes in any::<[u8; 32]>(), tail in any::<[u8; 32]>()) {
        let mut mad = SaMad::request(Method::Get, Attribute::PathRecord, 7, 0, &[0u8; 0]);
        mad.data[..32].copy_from_slice(&bytes);
        mad.data[32..64].copy_from_slice(&tail);
        if let Some(record) = mad.record::<MemberRecordWire>().record() {
            let wire = MemberRecordWire::group(&record);
            prop_assert_eq!(wire.record(), Some(record));
        }
        if let Some(record) = mad.record::<PathRecordWire>().record() {
            let source = (PORT_A, Lid::MAX);
            let wire = PathRecordWire::answer(&record, source, Pkey::DEFAULT, 0);
            prop_assert_eq!(wire.record(), Some(record));
        }
    }
}

/// A capture file with UD packets between QP1s. tshark 4.0 does not know link type 247 (InfiniBand
/// with LRH), so that each packet is wrapped in an ERF record of type 21 (InfiniBand), link type
/// 197.
fn capture(mads: &[[u8; MAD_BYTES]]) -> Vec<u8> {
    const LINK_TYPE_ERF: u32 = 197;
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let mut file: Vec<u8> = words(&[0xA1B2_C3D4, 0x0002_0004, 0, 0, 0xFFFF, LINK_TYPE_ERF]);
    for mad in mads {
        // LRH: LNH 2 (IBA local), DLID 1, 72 words, SLID 2. BTH: UD SEND only, P_Key, QP1, PSN 0.
        // DETH: the Q_Key of QP1, QP1. ICRC and VCRC are zero.
        let mut packet = vec![0x00, 0x02, 0x00, 0x01, 0x00, 0x48, 0x00, 0x02];
        packet.extend_from_slice(&[0x64, 0, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 0]);
        packet.extend_from_slice(&[0x80, 0x01, 0, 0, 0, 0, 0, 1]);
        packet.extend_from_slice(mad);
        packet.extend_from_slice(&[0; 6]);
        // Timestamp 0; type 21, varying length, length of the record; nothing lost, length of the
        // packet.
        let (len, erf_len) = (packet.len() as u32, packet.len() as u32 + 16);
        file.extend::<Vec<u8>>(words(&[0, 0, erf_len, erf_len]));
        file.extend::<Vec<u8>>(words(&[0, 0, 0x1504_0000 | erf_len, len]));
        file.extend_from_slice(&packet);
    }
    file
}

#[test]
fn tshark_reads_what_was_written() {
    let path = std::env::temp_dir().join(format!("fabric-mad-{}.pcap", std::process::id()));
    let member = MemberRecordWire::group(&group()).with_join_state(JoinState::FULL);
    let member = MemberRecordWire { port_gid: PORT_A, ..member };
    let route = group().parameters.global;
    let mads = [
        SaMad::request(Method::Get, Attribute::PathRecord, 0x11, 0x2C, &path_wire(Some(route))),
        SaMad::request(Method::Set, Attribute::MemberRecord, 0x12, 0x1_0003, &member),
    ];
    fs::write(&path, capture(&mads.map(|mad| mad.to_bytes()))).unwrap();
    let output = Command::new("tshark").arg("-V").arg("-r").arg(&path).output();
    fs::remove_file(&path).unwrap();
    let Ok(output) = output else {
        eprintln!("tshark is not installed: not compared");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
    let expected = [
        "transaction id: 0x0000000000000011",
        "component mask: 0x000000000000002c",
        "subnadmget(pathrecord)",
        "subnadmset(mcmemberrecord)",
        "dlid: 0x1234",
        "slid: 0x0042",
        "flowlabel: 0xabcde",
        "hoplimit: 0x3f",
        "mlid: 0xc123",
        "q_key: 0x00010b1b",
        "p_key: 0x8abc",
        "mgid: ff12:401b:ffff::ffff:ffff",
        "portgid: fe80::2:c903:0:a01",
        "scope: 0x2",
        "joinstate: 0x1",
    ];
    for line in expected {
        assert!(text.contains(line), "tshark does not show {line:?} in\n{text}");
    }
    assert!(!text.contains("malformed"), "{text}");
}
