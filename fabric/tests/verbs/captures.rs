//! Captured packets, as tshark reads them.

use std::fs;
use std::process::Command;

use fabric::capture::{LINKTYPE_ERF, PACKET_BYTES_MAX, RECORD_BYTES_MAX, encode, encode_record};
use fabric::{Fabric, FabricConfig};
use ipoib_rs::ib::Qpn;
use ipoib_rs::time::Instant;

use crate::hosts::{global, group, hosts, join, local, send};

const CONFIG: FabricConfig = FabricConfig::DEFAULT;

/// The bytes of every packet that is in transit, which are lost thereby.
fn capture(fabric: &mut Fabric) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while let Some(transit) = fabric.poll_transit() {
        let mut bytes = [0; PACKET_BYTES_MAX];
        let len = encode(&transit, 0, &mut bytes).unwrap();
        packets.push(bytes[..len].to_vec());
        fabric.discard(transit);
    }
    packets
}

#[test]
fn a_local_packet_has_its_headers_in_order() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"abcde").unwrap();
    let [packet] = &capture(&mut fabric)[..] else {
        panic!("not one packet");
    };
    // 8 + 12 + 8 + 5 payload + 3 padding + 4 is 10 words; the VCRC is not counted.
    assert_eq!(packet.len(), 42);
    assert_eq!(packet[..8], [0x00, 0x02, 0, 2, 0, 10, 0, 1]);
    assert_eq!(packet[8..12], [0x64, 0x30, 0xFF, 0xFF]);
    assert_eq!(packet[13..16], b.qpn.to_bytes());
    assert_eq!(packet[20..24], [0, 0, 0x0B, 0x1B]);
    assert_eq!(packet[25..28], a.qpn.to_bytes());
    assert_eq!(packet[28..36], *b"abcde\0\0\0");
}

#[test]
fn a_buffer_that_is_too_short_is_not_written() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let ah = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    send(&mut fabric, a.qp, 0, (ah, b.qpn), b"abcd").unwrap();
    let transit = fabric.poll_transit().unwrap();
    let mut bytes = [7; 37];
    assert_eq!(encode(&transit, 0, &mut bytes), None);
    assert_eq!(bytes, [7; 37]);
    let mut bytes = [7; 38];
    assert_eq!(encode(&transit, 0, &mut bytes), Some(38));
    fabric.discard(transit);
}

#[test]
fn tshark_reads_every_packet_without_complaint() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("tshark is not installed: its opinion was not asked for");
        return;
    }
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let (mgid, mlid) = group(1);
    join(&mut fabric, &b, group(1));
    let unicast = fabric.create_ah(a.port, &local(b.lid)).unwrap();
    let multicast = global(mlid.value(), mgid.gid());
    let multicast = fabric.create_ah(a.port, &multicast).unwrap();
    // An encapsulated ARP request (RFC 4391 9.2), broadcast, and an IPv4 packet.
    let mut arp = vec![0x08, 0x06, 0, 0, 0, 32, 8, 0, 20, 4, 0, 1];
    arp.resize(4 + 8 + 2 * 24, 0);
    send(&mut fabric, a.qp, 0, (multicast, Qpn::MULTICAST), &arp).unwrap();
    let mut ip = vec![0x08, 0x00, 0, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0];
    ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    send(&mut fabric, a.qp, 1, (unicast, b.qpn), &ip).unwrap();

    let mut file = Vec::new();
    for word in [0xA1B2_C3D4, 2 | 4 << 16, 0, 0, 65535, LINKTYPE_ERF] {
        file.extend(u32::to_le_bytes(word));
    }
    let now = Instant::from_nanos(1_700_000_000_000_000_001);
    while let Some(transit) = fabric.poll_transit() {
        let mut record = [0; RECORD_BYTES_MAX];
        let len = encode_record(&transit, 0, now, &mut record).unwrap();
        for word in [1_700_000_000, 0, len as u32, len as u32] {
            file.extend(u32::to_le_bytes(word));
        }
        file.extend(&record[..len]);
        fabric.discard(transit);
    }
    let path = std::env::temp_dir().join(format!("fabric-{}.pcap", std::process::id()));
    fs::write(&path, file).unwrap();
    let output = Command::new("tshark").arg("-r").arg(&path).arg("-V").output();
    fs::remove_file(&path).unwrap();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(!text.contains("Malformed"), "{text}");
    assert!(text.contains("Hardware type: InfiniBand (32)"), "{text}");
    assert!(text.contains("Destination GID: ff12:401b:ffff::1"), "{text}");
    assert!(text.contains("Internet Protocol Version 4"), "{text}");
    assert!(text.contains("Epoch Time: 1700000000.000000001"), "{text}");
}
