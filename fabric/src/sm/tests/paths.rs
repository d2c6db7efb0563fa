//! PathRecord and ClassPortInfo.

use ipoib_rs::action::PathQuery;
use ipoib_rs::ib::FlowLabel;
use zerocopy::FromZeros;
use zerocopy::byteorder::network_endian::{U16, U32};

use super::*;
use crate::mad::{ClassPortInfo, Selector};

const ENDS: PathComponents = PathComponents::SOURCE.union(PathComponents::DESTINATION);

fn query(source: u32, destination: u32) -> PathRecordWire {
    PathRecordWire::query(&PathQuery {
        source: gid(source),
        destination: gid(destination),
        pkey: Pkey::DEFAULT,
    })
}

fn no_records<T>() -> Result<T, Status> {
    Err(refused(SaRefusal::NoRecords))
}

#[test]
fn a_path_has_the_smaller_mtu_and_the_slower_rate() {
    let mut manager = manager(2);
    let mut config = port_config(2);
    config.mtu = IbMtu::Mtu2048;
    config.rate = rate(5);
    manager.configure_port(2, config).unwrap();
    let answer = ask_path(&mut manager, 1, PathRecordWire::QUERY, &query(1, 2)).unwrap();
    assert_eq!(answer.source, gid(1));
    assert_eq!(answer.source_lid.get(), lid(&manager, 1).value());
    assert_eq!(answer.pkey.get(), 0xFFFF);
    assert_eq!(answer.reversible_paths, 0x81);
    assert_eq!(Selector::unpack(answer.life_time), (Selector::Exactly, 18));
    let record = answer.record().unwrap();
    assert_eq!(record.destination, gid(2));
    assert_eq!(record.lid, lid(&manager, 2));
    assert_eq!(record.mtu, IbMtu::Mtu2048);
    assert_eq!(record.rate, rate(5));
    assert_eq!(record.global, None);
}

#[test]
fn the_hop_limit_decides_about_a_grh() {
    let mut manager = manager(2);
    manager.set_hop_limit(64);
    let components =
        PathRecordWire::QUERY | PathComponents::TRAFFIC_CLASS | PathComponents::FLOW_LABEL;
    let mut wanted = query(1, 2);
    wanted.traffic_class = 3;
    wanted.flow_hop = U32::new(0x1_2345 << 8);
    let record = ask_path(&mut manager, 1, components, &wanted).unwrap().record().unwrap();
    let route = GlobalRoute {
        flow_label: FlowLabel::new(0x1_2345).unwrap(),
        hop_limit: 64,
        traffic_class: 3,
    };
    assert_eq!(record.global, Some(route));
}

#[test]
fn ends_are_named_by_gid_or_lid() {
    let mut manager = manager(2);
    let mut wanted = PathRecordWire::new_zeroed();
    wanted.source_lid = U16::new(lid(&manager, 1).value());
    wanted.destination_lid = U16::new(lid(&manager, 2).value());
    let lids = PathComponents::SOURCE_LID | PathComponents::DESTINATION_LID;
    let answer = ask_path(&mut manager, 1, lids, &wanted).unwrap();
    assert_eq!((answer.source, answer.destination), (gid(1), gid(2)));
    wanted.source = gid(1);
    wanted.destination = gid(2);
    assert!(ask_path(&mut manager, 1, lids | ENDS, &wanted).is_ok());
    wanted.destination = gid(1);
    assert_eq!(ask_path(&mut manager, 1, lids | ENDS, &wanted), no_records());
    wanted.destination_lid = U16::new(0xC000);
    assert_eq!(ask_path(&mut manager, 1, lids, &wanted), no_records());
}

#[test]
fn both_ends_must_be_named() {
    let mut manager = manager(2);
    for components in [
        PathComponents::empty(),
        PathComponents::SOURCE,
        PathComponents::DESTINATION,
        PathRecordWire::QUERY - PathComponents::SOURCE,
    ] {
        let refusal = ask_path(&mut manager, 1, components, &query(1, 2));
        assert_eq!(refusal, Err(refused(SaRefusal::InsufficientComponents)), "{components:?}");
    }
}

#[test]
fn there_is_no_path_to_a_port_that_is_unknown_or_down() {
    let mut manager = manager(2);
    let missing = ask_path(&mut manager, 1, PathRecordWire::QUERY, &query(1, 3));
    assert_eq!(missing, no_records());
    assert_eq!(missing, Err(Status(0x0300)), "as it stands in the MAD");
    manager.handle_link_down(2).unwrap();
    assert_eq!(ask_path(&mut manager, 1, PathRecordWire::QUERY, &query(1, 2)), no_records());
    manager.handle_link_up(2).unwrap();
    assert!(ask_path(&mut manager, 1, PathRecordWire::QUERY, &query(1, 2)).is_ok());
}

#[test]
fn there_is_no_path_without_a_shared_partition() {
    let mut manager = manager(3);
    manager.add_partition(pkey(0x8001)).unwrap();
    manager.grant_pkey(1, pkey(0x8001)).unwrap();
    let mut wanted = query(1, 2);
    wanted.pkey = U16::new(0x8001);
    let components = PathRecordWire::QUERY;
    assert_eq!(ask_path(&mut manager, 1, components, &wanted), no_records());
    manager.grant_pkey(2, pkey(0x0001)).unwrap();
    assert!(ask_path(&mut manager, 1, components, &wanted).is_ok(), "full and limited");
    manager.grant_pkey(1, pkey(0x0001)).unwrap();
    assert_eq!(ask_path(&mut manager, 1, components, &wanted), no_records(), "both limited");
    wanted.pkey = U16::new(0);
    assert_eq!(ask_path(&mut manager, 1, components, &wanted), no_records());
    // Without a P_Key the default partition will do, and after that none is left.
    assert!(ask_path(&mut manager, 1, ENDS, &wanted).is_ok());
    manager.revoke_pkey(2, Pkey::DEFAULT).unwrap();
    assert_eq!(ask_path(&mut manager, 1, ENDS, &wanted), no_records());
}

#[test]
fn a_requester_learns_nothing_of_ports_outside_its_partitions() {
    let mut manager = manager(3);
    assert!(ask_path(&mut manager, 3, ENDS, &query(1, 2)).is_ok());
    manager.add_partition(pkey(0x8001)).unwrap();
    manager.grant_pkey(3, pkey(0x8001)).unwrap();
    manager.revoke_pkey(3, Pkey::DEFAULT).unwrap();
    assert_eq!(ask_path(&mut manager, 3, ENDS, &query(1, 2)), no_records());
    assert_eq!(ask_path(&mut manager, 3, ENDS, &query(3, 2)), no_records());
}

#[test]
fn a_path_that_does_not_fit_the_selectors_is_not_found() {
    let mut manager = manager(2);
    let mtu = PathComponents::MTU_SELECTOR | PathComponents::MTU;
    let rate = PathComponents::RATE_SELECTOR | PathComponents::RATE;
    let life = PathComponents::LIFE_TIME_SELECTOR | PathComponents::LIFE_TIME;
    // The path: MTU code 5, rate code 7 (40 Gb/s), life time 18.
    let mut check = |components, fits: bool, change: fn(&mut PathRecordWire)| {
        let mut wanted = query(1, 2);
        change(&mut wanted);
        let found = ask_path(&mut manager, 1, ENDS | components, &wanted);
        assert_eq!(found.is_ok(), fits, "{components:?} {wanted:?}");
        if !fits {
            assert_eq!(found, no_records());
        }
    };
    check(mtu, true, |wanted| wanted.mtu = Selector::Exactly.pack(5));
    check(mtu, false, |wanted| wanted.mtu = Selector::Exactly.pack(4));
    check(mtu, true, |wanted| wanted.mtu = Selector::Greater.pack(4));
    check(mtu, false, |wanted| wanted.mtu = Selector::Less.pack(5));
    check(mtu, true, |wanted| wanted.mtu = Selector::Largest.pack(1));
    check(PathComponents::MTU, true, |wanted| wanted.mtu = Selector::Exactly.pack(4));
    check(rate, true, |wanted| wanted.rate = Selector::Greater.pack(5));
    check(rate, false, |wanted| wanted.rate = Selector::Greater.pack(8));
    check(rate, true, |wanted| wanted.rate = Selector::Less.pack(12));
    check(life, true, |wanted| wanted.life_time = Selector::Less.pack(19));
    check(life, false, |wanted| wanted.life_time = Selector::Less.pack(18));
    let level = PathComponents::SERVICE_LEVEL;
    check(level, true, |wanted| wanted.class_level = U16::new(0));
    check(level, false, |wanted| wanted.class_level = U16::new(3));
    let hops = PathComponents::HOP_LIMIT;
    check(hops, true, |wanted| wanted.flow_hop = U32::new(0));
    check(hops, false, |wanted| wanted.flow_hop = U32::new(1));
}

#[test]
fn a_reserved_mtu_or_rate_is_an_invalid_request() {
    let mut manager = manager(2);
    let invalid = Err(refused(SaRefusal::RequestInvalid));
    for mtu in [0, 6] {
        let wanted = PathRecordWire { mtu, ..query(1, 2) };
        let refusal = ask_path(&mut manager, 1, ENDS | PathComponents::MTU, &wanted);
        assert_eq!(refusal, invalid);
    }
    for rate in [0, 1, 63] {
        let wanted = PathRecordWire { rate, ..query(1, 2) };
        let refusal = ask_path(&mut manager, 1, ENDS | PathComponents::RATE, &wanted);
        assert_eq!(refusal, invalid);
    }
}

#[test]
fn class_port_info_says_whether_send_only_full_members_are_known() {
    let mut manager = manager(1);
    for send_only_full_member in [true, false] {
        let capabilities = SaCapabilities { send_only_full_member };
        manager.set_capabilities(capabilities);
        let request = *mad::parse(&any_request()).unwrap().mad;
        let answer = ask(&mut manager, 1, &request).unwrap();
        let info: ClassPortInfo = answer.record();
        assert_eq!(info.capabilities(), capabilities);
        assert_eq!((info.base_version, info.class_version), (1, 2));
    }
    assert_eq!(manager.counters().requests(Method::Get, Attribute::ClassPortInfo), 2);
}
