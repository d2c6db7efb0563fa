//! The bytes, against a second description of the layouts and against tshark.

use std::fs;
use std::process::Command;

use ipoib_rs::ib::{FlowLabel, Gid, IbMtu, Lid, Pkey, Qpn, RateCode, ServiceLevel};
use proptest::prelude::*;

use super::*;
use crate::mad::tests::{bits, capture};

const TRANSACTION: u64 = 0x0102_0304_0506_0708;
const IDS: CommIds = CommIds { local: CommId(0xA1A2_A3A4), remote: CommId(0xB1B2_B3B4) };
const PORT_A: Gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x0002_C903_0000_0A01);
const PORT_B: Gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x0002_C903_0000_0B02);
const UD_QPN: u32 = 0x00C0_FFEE;

fn ipoib() -> IpoibPrivateData {
    IpoibPrivateData { qpn: Qpn::new(UD_QPN).unwrap(), receive_mtu: 65524 }
}

fn request() -> Request {
    Request {
        comm_id: IDS.local,
        service: ServiceId::of_interface(Qpn::new(0x00AB_CDEF).unwrap()),
        ca_guid: 0x0002_C903_0000_0A00,
        qpn: Qpn::new(0x0012_3456).unwrap(),
        responder_resources: 3,
        initiator_depth: 4,
        remote_response_timeout: TimeoutCode::new(21).unwrap(),
        local_response_timeout: TimeoutCode::new(19).unwrap(),
        has_flow_control: true,
        starting_psn: Psn::from_random(0x0065_4321),
        retry_count: RetryCount::new(5).unwrap(),
        rnr_retry_count: RetryCount::new(6).unwrap(),
        pkey: Pkey::new(0x8ABC).unwrap(),
        mtu: IbMtu::Mtu2048,
        max_cm_retries: CmRetries::new(9).unwrap(),
        has_shared_receive_queue: true,
        path: CmPath {
            local_lid: Lid::new(0x0042).unwrap(),
            remote_lid: Lid::new(0x1234).unwrap(),
            local_gid: PORT_A,
            remote_gid: PORT_B,
            flow_label: FlowLabel::new(0xA_BCDE).unwrap(),
            rate: RateCode::new(0x23).unwrap(),
            traffic_class: 0x2D,
            hop_limit: 63,
            sl: ServiceLevel::new(5).unwrap(),
            is_subnet_local: true,
            ack_timeout: TimeoutCode::new(17).unwrap(),
        },
        private_data: ipoib().to_private_data(),
    }
}

fn reply() -> Reply {
    Reply {
        comm_id: IDS.local,
        remote_comm_id: IDS.remote,
        qpn: Qpn::new(0x0012_3456).unwrap(),
        starting_psn: Psn::from_random(0x0065_4321),
        responder_resources: 3,
        initiator_depth: 4,
        target_ack_delay: TimeoutCode::new(21).unwrap(),
        is_alternate_refused: true,
        has_flow_control: true,
        rnr_retry_count: RetryCount::new(6).unwrap(),
        has_shared_receive_queue: true,
        ca_guid: 0x0002_C903_0000_0A00,
        private_data: ipoib().to_private_data(),
    }
}

fn reject() -> RejectWire {
    let mut wire = RejectWire::new(IDS, MessageKind::Reply, RejectReason::ConsumerReject)
        .with_ca_guid(0x0002_C903_0000_0A00);
    wire.private_data = [0x5A; REJECT_PRIVATE_BYTES];
    wire
}

fn qpn() -> Qpn {
    Qpn::new(0x0012_3456).unwrap()
}

/// A field of the data area, by its place in bytes, first bit and width.
fn field(bytes: &[u8; MAD_BYTES], place: usize, bit: usize, width: usize) -> u128 {
    bits(&bytes[24..], place / 4, place % 4 * 8 + bit, width)
}

#[test]
fn the_header_is_that_of_communication_management() {
    let bytes = Message::ReadyToUse(&ReadyToUseWire::new(IDS)).to_bytes(TRANSACTION);
    assert_eq!(bytes[..4], [1, 7, 2, 3], "versions, class and method");
    assert_eq!(bits(&bytes, 1, 0, 32), 0, "status and class specific");
    assert_eq!(bits(&bytes, 2, 0, 64), TRANSACTION.into());
    assert_eq!(bits(&bytes, 4, 0, 16), 0x14, "attribute");
    assert_eq!(bits(&bytes, 4, 16, 48), 0, "reserved and modifier");
}

#[test]
fn request_fields_stand_where_the_table_says() {
    let bytes = Message::Request(&RequestWire::new(&request())).to_bytes(TRANSACTION);
    let at = |place, bit, width| field(&bytes, place, bit, width);
    assert_eq!(bits(&bytes, 4, 0, 16), 0x10, "attribute");
    assert_eq!(at(0, 0, 32), 0xA1A2_A3A4, "local comm id");
    assert_eq!(at(8, 0, 64), 0x1000_0000_00AB_CDEF, "service id");
    assert_eq!(at(16, 0, 64), 0x0002_C903_0000_0A00, "CA GUID");
    assert_eq!(at(28, 0, 32), 0, "Q_Key");
    assert_eq!(at(32, 0, 24), 0x12_3456, "QPN");
    assert_eq!(at(35, 0, 8), 3, "responder resources");
    assert_eq!(at(39, 0, 8), 4, "initiator depth");
    assert_eq!(at(43, 0, 5), 21, "remote response timeout");
    assert_eq!(at(43, 5, 2), 0, "transport: RC");
    assert_eq!(at(43, 7, 1), 1, "flow control");
    assert_eq!(at(44, 0, 24), 0x65_4321, "PSN");
    assert_eq!(at(47, 0, 5), 19, "local response timeout");
    assert_eq!(at(47, 5, 3), 5, "retry count");
    assert_eq!(at(48, 0, 16), 0x8ABC, "P_Key");
    assert_eq!(at(50, 0, 4), 4, "MTU");
    assert_eq!(at(50, 4, 1), 0, "RDC exists");
    assert_eq!(at(50, 5, 3), 6, "RNR retry count");
    assert_eq!(at(51, 0, 4), 9, "max CM retries");
    assert_eq!(at(51, 4, 1), 1, "SRQ");
    assert_eq!(at(51, 5, 3), 0, "extended transport type");
    assert_eq!(at(52, 0, 16), 0x0042, "local LID");
    assert_eq!(at(54, 0, 16), 0x1234, "remote LID");
    assert_eq!(at(56, 0, 128), u128::from_be_bytes(PORT_A.0));
    assert_eq!(at(72, 0, 128), u128::from_be_bytes(PORT_B.0));
    assert_eq!(at(88, 0, 20), 0xA_BCDE, "flow label");
    assert_eq!(at(91, 2, 6), 0x23, "rate");
    assert_eq!(at(92, 0, 8), 0x2D, "traffic class");
    assert_eq!(at(93, 0, 8), 63, "hop limit");
    assert_eq!(at(94, 0, 4), 5, "SL");
    assert_eq!(at(94, 4, 1), 1, "subnet local");
    assert_eq!(at(95, 0, 5), 17, "ACK timeout");
    assert_eq!(bytes[24 + 96..24 + 140], [0; 44], "no alternate path");
    assert_eq!(at(140, 0, 32), UD_QPN.into(), "private data: QPN");
    assert_eq!(at(144, 0, 32), 65524, "private data: receive MTU");
    assert_eq!(bytes[24 + 148..], [0; 84], "rest of the private data");
}

#[test]
fn reply_fields_stand_where_the_table_says() {
    let bytes = Message::Reply(&ReplyWire::new(&reply())).to_bytes(TRANSACTION);
    let at = |place, bit, width| field(&bytes, place, bit, width);
    assert_eq!(bits(&bytes, 4, 0, 16), 0x13, "attribute");
    assert_eq!(at(0, 0, 32), 0xA1A2_A3A4, "local comm id");
    assert_eq!(at(4, 0, 32), 0xB1B2_B3B4, "remote comm id");
    assert_eq!(at(8, 0, 32), 0, "Q_Key");
    assert_eq!(at(12, 0, 24), 0x12_3456, "QPN");
    assert_eq!(at(20, 0, 24), 0x65_4321, "PSN");
    assert_eq!(at(24, 0, 8), 3, "responder resources");
    assert_eq!(at(25, 0, 8), 4, "initiator depth");
    assert_eq!(at(26, 0, 5), 21, "target ACK delay");
    assert_eq!(at(26, 5, 2), 1, "failover is not supported");
    assert_eq!(at(26, 7, 1), 1, "flow control");
    assert_eq!(at(27, 0, 3), 6, "RNR retry count");
    assert_eq!(at(27, 3, 1), 1, "SRQ");
    assert_eq!(at(27, 4, 4), 0, "reserved");
    assert_eq!(at(28, 0, 64), 0x0002_C903_0000_0A00, "CA GUID");
    assert_eq!(at(36, 0, 32), UD_QPN.into(), "private data: QPN");
    assert_eq!(at(40, 0, 32), 65524, "private data: receive MTU");
}

#[test]
fn the_fields_of_short_messages_stand_where_the_tables_say() {
    let reject = Message::Reject(&reject()).to_bytes(TRANSACTION);
    let at = |place, bit, width| field(&reject, place, bit, width);
    assert_eq!(bits(&reject, 4, 0, 16), 0x12, "attribute");
    assert_eq!(at(0, 0, 64), 0xA1A2_A3A4_B1B2_B3B4);
    assert_eq!(at(8, 0, 2), 1, "REP was rejected");
    assert_eq!(at(9, 0, 7), 8, "length of the information");
    assert_eq!(at(10, 0, 16), 28, "reason");
    assert_eq!(at(12, 0, 64), 0x0002_C903_0000_0A00);
    assert_eq!(reject[24 + 84..], [0x5A; 148], "private data");

    let mra = MraWire::new(IDS, MessageKind::Request, TimeoutCode::new(20).unwrap());
    let mra = Message::Mra(&mra).to_bytes(TRANSACTION);
    assert_eq!(bits(&mra, 4, 0, 16), 0x11, "attribute");
    assert_eq!(field(&mra, 0, 0, 64), 0xA1A2_A3A4_B1B2_B3B4);
    assert_eq!(field(&mra, 8, 0, 2), 0, "REQ is dealt with");
    assert_eq!(field(&mra, 9, 0, 5), 20, "service timeout");

    let disconnect = DisconnectRequestWire::new(IDS, qpn());
    let disconnect = Message::DisconnectRequest(&disconnect).to_bytes(TRANSACTION);
    assert_eq!(bits(&disconnect, 4, 0, 16), 0x15, "attribute");
    assert_eq!(field(&disconnect, 0, 0, 64), 0xA1A2_A3A4_B1B2_B3B4);
    assert_eq!(field(&disconnect, 8, 0, 24), 0x12_3456, "QPN");

    let released = DisconnectReplyWire::new(IDS);
    let released = Message::DisconnectReply(&released).to_bytes(TRANSACTION);
    assert_eq!(bits(&released, 4, 0, 16), 0x16, "attribute");
    assert_eq!(field(&released, 0, 0, 64), 0xA1A2_A3A4_B1B2_B3B4);
}

#[test]
fn messages_survive_the_way_through_bytes() {
    let mra = MraWire::new(IDS, MessageKind::Other, TimeoutCode::MAX);
    let messages = [
        Message::Request(&RequestWire::new(&request())),
        Message::Mra(&mra),
        Message::Reject(&reject()),
        Message::Reply(&ReplyWire::new(&reply())),
        Message::ReadyToUse(&ReadyToUseWire::new(IDS)),
        Message::DisconnectRequest(&DisconnectRequestWire::new(IDS, qpn())),
        Message::DisconnectReply(&DisconnectReplyWire::new(IDS)),
    ];
    for message in messages {
        let bytes = message.to_bytes(TRANSACTION);
        let parsed = parse(&bytes).unwrap();
        assert_eq!(parsed.transaction, TRANSACTION);
        assert_eq!(parsed.message, message);
    }
    assert_eq!(RequestWire::new(&request()).request(), Ok(request()));
    assert_eq!(ReplyWire::new(&reply()).reply(), reply());
    assert_eq!(
        (mra.comm_ids(), mra.message(), mra.service_timeout()),
        (IDS, Some(MessageKind::Other), TimeoutCode::MAX)
    );
    let reject = reject();
    assert_eq!(
        (reject.comm_ids(), reject.message(), reject.reason()),
        (IDS, Some(MessageKind::Reply), Some(RejectReason::ConsumerReject))
    );
    assert_eq!(reject.ca_guid(), Some(0x0002_C903_0000_0A00));
    assert_eq!(ReadyToUseWire::new(IDS).comm_ids(), IDS);
    assert_eq!(DisconnectReplyWire::new(IDS).comm_ids(), IDS);
    let disconnect = DisconnectRequestWire::new(IDS, qpn());
    assert_eq!((disconnect.comm_ids(), disconnect.remote_qpn()), (IDS, qpn()));
}

#[test]
fn a_request_that_cannot_be_granted_has_its_reason() {
    let good = RequestWire::new(&request());
    let reason = |change: fn(&mut RequestWire)| {
        let mut wire = good;
        change(&mut wire);
        wire.request().err()
    };
    let transport = |code: u32| U32::new(code << 1);
    for code in 1..=3 {
        let mut wire = good;
        wire.eecn_timeout_transport = transport(code);
        assert_eq!(wire.request(), Err(RejectReason::InvalidTransport));
    }
    assert_eq!(reason(|wire| wire.mtu_rnr = 0x06), Some(RejectReason::InvalidMtu));
    assert_eq!(reason(|wire| wire.mtu_rnr = 0x60), Some(RejectReason::InvalidMtu));
    assert_eq!(reason(|wire| wire.pkey = U16::new(0x8000)), Some(RejectReason::UnsupportedRequest));
    assert_eq!(
        reason(|wire| wire.primary.local_lid = U16::new(0xC000)),
        Some(RejectReason::InvalidLid)
    );
    assert_eq!(reason(|wire| wire.primary.remote_lid = U16::ZERO), Some(RejectReason::InvalidLid));
    assert!(!good.has_alternate());
}

#[test]
fn every_reason_has_one_code() {
    for (code, reason) in (1..=33).zip(RejectReason::ALL) {
        assert_eq!(reason.code(), code);
        assert_eq!(RejectReason::from_code(code), Some(*reason));
    }
    assert_eq!(RejectReason::ALL.len(), 33);
    assert_eq!(RejectReason::from_code(0), None);
    assert_eq!(RejectReason::from_code(34), None);
}

#[test]
fn a_timeout_code_is_an_exponent() {
    use core::time::Duration;
    let code = |value| TimeoutCode::new(value).unwrap();
    assert_eq!(code(0).duration(), Duration::from_nanos(4096));
    assert_eq!(code(20).duration(), Duration::from_nanos(4096 << 20));
    assert_eq!(TimeoutCode::at_least(Duration::ZERO), code(0));
    assert_eq!(TimeoutCode::at_least(Duration::from_nanos(4097)), code(1));
    assert_eq!(TimeoutCode::at_least(Duration::from_secs(1)), code(18));
    assert_eq!(TimeoutCode::at_least(Duration::MAX), TimeoutCode::MAX);
    assert_eq!(TimeoutCode::new(32), None);
    assert_eq!(RetryCount::new(8), None);
    assert_eq!(CmRetries::new(16), None);
}

#[test]
fn the_information_of_a_rejection_is_as_long_as_it_can_be() {
    let mut wire = reject();
    for (len, expected) in [(0, 0), (7, 7), (8, 8), (72, 72), (73, 72), (127, 72)] {
        wire.info_len = len << 1;
        assert_eq!(wire.info().len(), expected);
        assert_eq!(wire.ca_guid().is_some(), expected >= 8);
    }
}

#[test]
fn the_flags_in_front_of_a_qpn_are_no_part_of_it() {
    let mut private: [u8; 92] = ipoib().to_private_data();
    private[0] = 0x80;
    assert_eq!(IpoibPrivateData::from_private_data(&private), ipoib());
}

#[test]
fn parse_names_what_is_wrong() {
    let good = Message::ReadyToUse(&ReadyToUseWire::new(IDS)).to_bytes(TRANSACTION);
    let with = |place: usize, value: u8| {
        let mut bytes = good;
        bytes[place] = value;
        parse(&bytes).err()
    };
    for len in [0, 23, 24, 255] {
        assert_eq!(parse(&good[..len]).err(), Some(CmParseError::Length));
    }
    assert_eq!(with(0, 2), Some(CmParseError::BaseVersion));
    assert_eq!(with(1, 3), Some(CmParseError::Class));
    assert_eq!(with(2, 1), Some(CmParseError::ClassVersion));
    assert_eq!(with(3, 0x83), Some(CmParseError::Method));
    for byte in 0..=u8::MAX {
        let is_known = (0x10..=0x16).contains(&byte);
        let expected = (!is_known).then_some(CmParseError::Attribute);
        assert_eq!(with(17, byte), expected, "attribute {byte:#x}");
    }
}

proptest! {
    #[test]
    fn parse_takes_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..=300)) {
        if let Ok(parsed) = parse(&bytes) {
            let written = parsed.message.to_bytes(parsed.transaction);
            prop_assert_eq!(&written[24..], &bytes[24..]);
        }
    }

    #[test]
    fn messages_take_any_data(
        attribute in 0x10u8..=0x16,
        data in proptest::collection::vec(any::<u8>(), CM_DATA_BYTES),
    ) {
        let mut bytes = Message::ReadyToUse(&ReadyToUseWire::new(IDS)).to_bytes(TRANSACTION);
        bytes[17] = attribute;
        bytes[24..].copy_from_slice(&data);
        let parsed = parse(&bytes).unwrap();
        prop_assert_eq!(parsed.message.to_bytes(TRANSACTION), bytes);
        match parsed.message {
            Message::Request(wire) => if let Ok(request) = wire.request() {
                prop_assert_eq!(RequestWire::new(&request).request(), Ok(request));
            },
            Message::Reply(wire) => {
                let reply = wire.reply();
                prop_assert_eq!(ReplyWire::new(&reply).reply(), reply);
            }
            Message::Reject(wire) => prop_assert!(wire.info().len() <= ADDITIONAL_BYTES),
            Message::Mra(_)
            | Message::ReadyToUse(_)
            | Message::DisconnectRequest(_)
            | Message::DisconnectReply(_) => {}
        }
    }
}

/// What tshark shows. Flow label and packet rate are left out: the dissector takes both from
/// the wrong bits.
const SHOWN: &[&str] = &[
    "cm connectrequest",
    "cm connectreply",
    "cm readytouse",
    "cm connectreject",
    "cm disconnectrequest",
    "cm disconnectreply",
    "transaction id: 0x0102030405060708",
    "attribute id: 0x0011",
    "local communication id: 0xa1a2a3a4",
    "remote communication id: 0xb1b2b3b4",
    "serviceid: 0x1000000000abcdef",
    "local ca guid: 0x0002c90300000a00",
    "local qpn: 0x123456",
    "responder resources: 0x03",
    "initiator depth: 0x04",
    "remote cm response timeout: 0x15",
    "transport service type: 0x0",
    "end-to-end flow control: 0x1",
    "starting psn: 0x654321",
    "local cm response timeout: 0x13",
    ".... .101 = retry count: 0x5",
    "partition key: 0x8abc",
    "path packet payload mtu: 0x4",
    ".... .110 = rnr retry count: 0x6",
    "max cm retries: 0x9",
    ".... 1... = srq: 0x1",
    "primary local port lid: 66",
    "primary remote port lid: 4660",
    "primary local port gid: fe80::2:c903:0:a01",
    "primary remote port gid: fe80::2:c903:0:b02",
    "primary traffic class: 0x2d",
    "primary hop limit: 0x3f",
    "primary sl: 0x5",
    "primary subnet local: 0x1",
    "primary local ack timeout: 0x11",
    "privatedata: 00c0ffee0000fff40000",
    "target ack delay: 0x15",
    "failover accepted: 0x1",
    "110. .... = rnr retry count: 0x6",
    "...1 .... = srq: 0x1",
    "message rejected: 0x1",
    "reject info length: 0x08",
    "reason: 0x001c",
    "additional reject information (ari): 0002c90300000a000000",
    "remote qpn/eecn: 0x123456",
];

#[test]
fn tshark_reads_what_was_written() {
    let mra = MraWire::new(IDS, MessageKind::Request, TimeoutCode::new(20).unwrap());
    let messages = [
        Message::Request(&RequestWire::new(&request())),
        Message::Reply(&ReplyWire::new(&reply())),
        Message::ReadyToUse(&ReadyToUseWire::new(IDS)),
        Message::Reject(&reject()),
        Message::DisconnectRequest(&DisconnectRequestWire::new(IDS, qpn())),
        Message::DisconnectReply(&DisconnectReplyWire::new(IDS)),
        Message::Mra(&mra),
    ];
    let mads = messages.map(|message| message.to_bytes(TRANSACTION));
    let path = std::env::temp_dir().join(format!("fabric-cm-{}.pcap", std::process::id()));
    fs::write(&path, capture(&mads)).unwrap();
    let output = Command::new("tshark").arg("-V").arg("-r").arg(&path).output();
    fs::remove_file(&path).unwrap();
    let Ok(output) = output else {
        eprintln!("tshark is not installed: not compared");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
    for line in SHOWN {
        assert!(text.contains(line), "tshark does not show {line:?} in\n{text}");
    }
    assert!(!text.contains("malformed"), "{text}");
}
