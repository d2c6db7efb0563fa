//! Connections as bytes, and as tshark reads them.

use std::fs;
use std::process::Command;

use fabric::Fabric;
use fabric::capture::{LINKTYPE_ERF, PACKET_BYTES_MAX, RECORD_BYTES_MAX, encode, encode_record};
use fabric::qp::QpChange;
use ipoib_rs::action::GlobalRoute;
use ipoib_rs::ib::IbMtu;
use ipoib_rs::time::Instant;

use crate::ends::{
    Agreement, changes, connected, ends, receive, receives, run, send_bytes, send_marker,
};

/// The bytes of all packets, which arrive.
fn capture(fabric: &mut Fabric) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while let Some(transit) = fabric.poll_transit() {
        for number in 0..transit.packet_count() {
            let mut bytes = [0; PACKET_BYTES_MAX];
            let len = encode(&transit, number, &mut bytes).unwrap();
            packets.push(bytes[..len].to_vec());
        }
        let mut bytes = [0; PACKET_BYTES_MAX];
        assert_eq!(encode(&transit, transit.packet_count(), &mut bytes), None);
        fabric.deliver(transit);
    }
    packets
}

#[test]
fn a_message_is_cut_into_first_middle_and_last() {
    let agreement = Agreement { path_mtu: IbMtu::Mtu256, ..Agreement::DEFAULT };
    let (mut fabric, [a, b]) = connected(&agreement);
    receive(&mut fabric, &b, 0..2);
    let message: Vec<u8> = (0..700).map(|place| place as u8).collect();
    send_bytes(&mut fabric, &a, 0, &message);
    send_marker(&mut fabric, &a, 1);
    let packets = capture(&mut fabric);
    let summary: Vec<_> =
        packets.iter().map(|packet| (packet[8], packet[16], packet[19], packet.len())).collect();
    // Opcode, acknowledge request, low byte of the sequence number, length: LRH 8, BTH 12, AETH 4,
    // ICRC 4, VCRC 2.
    let expected = [
        (0x00, 0x00, 0x10, 256 + 26),
        (0x01, 0x00, 0x11, 256 + 26),
        (0x02, 0x80, 0x12, 188 + 26),
        (0x04, 0x80, 0x13, 26),
        (0x11, 0x00, 0x13, 4 + 26),
    ];
    assert_eq!(summary, expected);
    let payload: Vec<u8> =
        packets[..3].iter().flat_map(|packet| packet[20..packet.len() - 6].to_vec()).collect();
    assert_eq!(payload, message);
    assert_eq!(packets[0][13..16], b.qpn.to_bytes());
    // An acknowledgement without a credit count, of two messages.
    assert_eq!(packets[4][13..16], a.qpn.to_bytes());
    assert_eq!(packets[4][20..24], [0x1F, 0, 0, 2]);
    assert_eq!(receives(&mut fabric, &b), [(0, Ok(message)), (1, Ok(vec![]))]);
}

#[test]
fn a_refusal_says_why() {
    let (mut fabric, [a, _]) = connected(&Agreement::DEFAULT);
    send_bytes(&mut fabric, &a, 0, b"abcde");
    let packets = capture(&mut fabric);
    assert_eq!(packets.len(), 2);
    // Three bytes of padding.
    assert_eq!(packets[0][9], 0x30);
    // An RNR NAK with timer 12, of the packet that was sent.
    assert_eq!(packets[1][20], 0b001 << 5 | 12);
    assert_eq!(packets[1][17..20], packets[0][17..20]);
}

#[test]
fn tshark_reads_connections_without_complaint() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("tshark is not installed: its opinion was not asked for");
        return;
    }
    let (mut fabric, ends) = ends();
    let [a, b] = ends;
    for own in [0, 1] {
        for mut change in changes(&ends, own, &Agreement::DEFAULT) {
            if let QpChange::RcReadyToReceive(attributes) = &mut change {
                let gid = fabric.query_port(ends[1 - own].port).unwrap().gid;
                attributes.address.grh = Some((gid, GlobalRoute::default()));
            }
            fabric.modify_qp(ends[own].qp, &change).unwrap();
        }
    }
    receive(&mut fabric, &b, 0..1);
    // An IPv4 packet of 5000 bytes behind its encapsulation header.
    let mut ip = vec![0x08, 0x00, 0, 0, 0x45, 0, 0x13, 0x88, 0, 0, 0, 0, 64, 59, 0, 0];
    ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    // One of 21 bytes, which needs padding.
    let mut short = [&ip[..], &[0]].concat();
    short[6..8].copy_from_slice(&[0, 21]);
    ip.resize(4 + 5000, 0);
    send_bytes(&mut fabric, &a, 0, &ip);
    send_bytes(&mut fabric, &a, 1, &short);

    let mut file = Vec::new();
    for word in [0xA1B2_C3D4, 2 | 4 << 16, 0, 0, 65535, LINKTYPE_ERF] {
        file.extend(u32::to_le_bytes(word));
    }
    while let Some(transit) = fabric.poll_transit() {
        for number in 0..transit.packet_count() {
            let mut record = [0; RECORD_BYTES_MAX];
            let now = Instant::from_nanos(1_700_000_000_000_000_001);
            let len = encode_record(&transit, number, now, &mut record).unwrap();
            for word in [1_700_000_000, 0, len as u32, len as u32] {
                file.extend(u32::to_le_bytes(word));
            }
            file.extend(&record[..len]);
        }
        fabric.deliver(transit);
    }
    run(&mut fabric);
    assert_eq!(receives(&mut fabric, &b).len(), 1);
    let path = std::env::temp_dir().join(format!("connected-{}.pcap", std::process::id()));
    fs::write(&path, file).unwrap();
    let output = Command::new("tshark").arg("-r").arg(&path).arg("-V").output();
    fs::remove_file(&path).unwrap();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(!text.contains("Malformed"), "{text}");
    for opcode in ["SEND First", "SEND Middle", "SEND Last", "SEND Only"] {
        let name = format!("Reliable Connection (RC) - {opcode}");
        assert_eq!(text.matches(&name).count(), 1, "{name}: {text}");
    }
    let response = "Reliable Connection (RC) - Acknowledge";
    assert_eq!(text.matches(response).count(), 1, "{text}");
    assert!(text.contains("RNR Nak"), "{text}");
    assert!(text.contains("Packet Sequence Number: 16"), "{text}");
}
