//! MCMemberRecord: join, create, leave, find.

use zerocopy::FromZeros;
use zerocopy::byteorder::network_endian::{U16, U32};

use super::*;
use crate::mad::Selector;

const FULL: JoinState = JoinState::FULL;
const NON_MEMBER: JoinState = JoinState::NON_MEMBER;
const SEND_ONLY: JoinState = JoinState::SEND_ONLY_NON_MEMBER;
const SEND_ONLY_FULL: JoinState = JoinState::SEND_ONLY_FULL;

fn invalid<T>() -> Result<T, Status> {
    Err(refused(SaRefusal::RequestInvalid))
}

#[test]
fn a_join_of_an_existing_group_needs_the_mandatory_components_only() {
    let mut manager = manager(1);
    let mgid = broadcast(Pkey::DEFAULT);
    let answer = join(&mut manager, 1, mgid, FULL).unwrap();
    let record = answer.record().unwrap();
    assert_eq!(record.mgid, mgid);
    assert_eq!(record.pkey, Pkey::DEFAULT);
    assert_eq!(record.parameters, manager.config.group);
    assert_eq!(answer.port_gid, gid(1));
    assert_eq!(answer.scope(), 2);
    assert_eq!(answer.join_state(), FULL);
    let mlid = record.mlid;
    assert_eq!(commands(&mut manager), [Command::AddMember { mlid, port: 1 }]);
}

#[test]
fn a_join_without_a_mandatory_component_is_insufficient() {
    let mut manager = manager(1);
    let record = MemberRecordWire::member(broadcast(Pkey::DEFAULT), gid(1), FULL);
    for missing in MemberComponents::JOIN.iter() {
        for method in [Method::Set, Method::Delete] {
            let components = MemberComponents::JOIN - missing;
            let refusal = ask_member(&mut manager, 1, method, components, &record);
            assert_eq!(refusal, Err(refused(SaRefusal::InsufficientComponents)));
        }
    }
}

#[test]
fn a_group_is_created_only_with_all_that_it_needs() {
    let mut manager = manager(1);
    let insufficient = Err(refused(SaRefusal::InsufficientComponents));
    assert_eq!(join(&mut manager, 1, group(1), FULL), insufficient);
    let (record, components) = creation(1, group(1), FULL, manager.config.group);
    for missing in (MemberComponents::CREATE - MemberComponents::JOIN).iter() {
        let refusal = ask_member(&mut manager, 1, Method::Set, components - missing, &record);
        assert_eq!(refusal, insufficient, "{missing:?}");
    }
    assert_eq!(manager.groups().count(), 1);
    assert!(ask_member(&mut manager, 1, Method::Set, components, &record).is_ok());
    assert_eq!(manager.groups().count(), 2);
    assert_eq!(manager.counters().groups_created, 2);
}

#[test]
fn only_a_member_that_keeps_it_alive_creates_a_group() {
    for (join_state, creates) in [
        (FULL, true),
        (SEND_ONLY_FULL, true),
        (FULL | NON_MEMBER, true),
        (NON_MEMBER, false),
        (SEND_ONLY, false),
    ] {
        let mut manager = manager(1);
        let result = create(&mut manager, 1, group(1), join_state);
        assert_eq!(result.is_ok(), creates, "{join_state:?}");
        if !creates {
            assert_eq!(result, invalid());
        }
    }
}

#[test]
fn join_states_are_checked() {
    let mut manager = manager(1);
    let mgid = broadcast(Pkey::DEFAULT);
    assert_eq!(join(&mut manager, 1, mgid, JoinState::empty()), invalid());
    assert!(join(&mut manager, 1, mgid, SEND_ONLY_FULL).is_ok());
    manager.set_capabilities(SaCapabilities::default());
    assert_eq!(join(&mut manager, 1, mgid, SEND_ONLY_FULL), invalid());
    assert!(join(&mut manager, 1, mgid, SEND_ONLY).is_ok());
}

#[test]
fn only_those_who_receive_are_put_into_the_switch() {
    let mut manager = manager(1);
    let mgid = broadcast(Pkey::DEFAULT);
    let answer = join(&mut manager, 1, mgid, SEND_ONLY_FULL).unwrap();
    let mlid = Mlid::new(answer.mlid.get()).unwrap();
    join(&mut manager, 1, mgid, SEND_ONLY).unwrap();
    assert_eq!(commands(&mut manager), []);
    let answer = join(&mut manager, 1, mgid, FULL).unwrap();
    assert_eq!(answer.join_state(), FULL | SEND_ONLY | SEND_ONLY_FULL, "all of them");
    assert_eq!(commands(&mut manager), [Command::AddMember { mlid, port: 1 }]);
    join(&mut manager, 1, mgid, NON_MEMBER).unwrap();
    leave(&mut manager, 1, mgid, FULL).unwrap();
    assert_eq!(commands(&mut manager), [], "it still receives");
    let answer = leave(&mut manager, 1, mgid, NON_MEMBER).unwrap();
    assert_eq!(answer.join_state(), SEND_ONLY | SEND_ONLY_FULL, "what is left");
    assert_eq!(commands(&mut manager), [Command::RemoveMember { mlid, port: 1 }]);
}

type Components = MemberComponents;
type Change = fn(&mut MemberRecordWire);

/// Ways to ask for something that a group of default parameters does not have.
const DIFFERING: [(Components, Change); 12] = [
    (Components::QKEY, |record| record.qkey = U32::new(1)),
    (Components::MLID, |record| record.mlid = U16::new(0xFFFE)),
    (Components::MTU_SELECTOR.union(Components::MTU), |record| {
        record.mtu = Selector::Exactly.pack(5);
    }),
    (Components::TRAFFIC_CLASS, |record| record.traffic_class = 1),
    (Components::PKEY, |record| record.pkey = U16::new(0x8001)),
    (Components::PKEY, |record| record.pkey = U16::new(0)),
    (Components::RATE_SELECTOR.union(Components::RATE), |record| {
        record.rate = Selector::Exactly.pack(7);
    }),
    (Components::LIFE_TIME_SELECTOR.union(Components::LIFE_TIME), |record| {
        record.life_time = Selector::Exactly.pack(19);
    }),
    (Components::SERVICE_LEVEL, |record| record.level_flow_hop = U32::new(1 << 28)),
    (Components::FLOW_LABEL, |record| record.level_flow_hop = U32::new(1 << 8)),
    (Components::HOP_LIMIT, |record| record.level_flow_hop = U32::new(6)),
    (Components::SCOPE, |record| record.scope_join = 0x51),
];

#[test]
fn every_component_of_a_join_must_be_the_groups() {
    let mut manager = manager(2);
    let mut parameters = manager.config.group;
    parameters.global.hop_limit = 5;
    let (record, components) = creation(1, group(1), FULL, parameters);
    ask_member(&mut manager, 1, Method::Set, components, &record).unwrap();
    // In a join on behalf of port 2, one component after the other differs.
    let (good, _) = creation(2, group(1), FULL, parameters);
    for (component, change) in DIFFERING {
        let mut record = good;
        change(&mut record);
        let joining = Components::JOIN | component;
        let refusal = ask_member(&mut manager, 2, Method::Set, joining, &record);
        assert_eq!(refusal, invalid(), "{component:?}");
        let finding = Components::MGID | component;
        let found = ask_member(&mut manager, 2, Method::Get, finding, &record);
        assert_eq!(found, Err(refused(SaRefusal::NoRecords)), "{component:?}");
    }
    assert!(ask_member(&mut manager, 2, Method::Set, components, &good).is_ok());
    let limited = MemberRecordWire { pkey: U16::new(0x7FFF), ..good };
    assert!(ask_member(&mut manager, 2, Method::Set, components, &limited).is_ok());
}

#[test]
fn a_port_that_cannot_carry_the_group_is_not_let_in() {
    let mut manager = manager(3);
    let mgid = broadcast(Pkey::DEFAULT);
    let mut config = port_config(1);
    config.mtu = IbMtu::Mtu1024;
    manager.configure_port(1, config).unwrap();
    assert_eq!(join(&mut manager, 1, mgid, FULL), invalid(), "MTU");
    let mut config = port_config(2);
    config.rate = rate(5);
    manager.configure_port(2, config).unwrap();
    assert_eq!(join(&mut manager, 2, mgid, FULL), invalid(), "rate");
    manager.revoke_pkey(3, Pkey::DEFAULT).unwrap();
    assert_eq!(join(&mut manager, 3, mgid, FULL), invalid(), "partition");
    assert_eq!(create(&mut manager, 3, group(1), FULL), invalid(), "partition");
}

#[test]
fn limited_members_of_the_partition_are_let_in() {
    let mut manager = manager(1);
    manager.grant_pkey(1, pkey(0x7FFF)).unwrap();
    assert!(join(&mut manager, 1, broadcast(Pkey::DEFAULT), FULL).is_ok());
}

#[test]
fn a_port_speaks_for_itself_only() {
    let mut manager = manager(2);
    let mgid = broadcast(Pkey::DEFAULT);
    let for_port = |manager: &mut _, method, port_gid| {
        let record = MemberRecordWire::member(mgid, port_gid, FULL);
        ask_member(manager, 1, method, MemberComponents::JOIN, &record)
    };
    let denied = Err(refused(SaRefusal::RequestDenied));
    assert_eq!(for_port(&mut manager, Method::Set, gid(2)), denied, "no proxies");
    let unknown = for_port(&mut manager, Method::Set, gid(9));
    assert_eq!(unknown, Err(refused(SaRefusal::RequestInvalidGid)));
    join(&mut manager, 2, mgid, FULL).unwrap();
    assert_eq!(for_port(&mut manager, Method::Set, gid(2)), invalid(), "a foreign record");
    assert_eq!(for_port(&mut manager, Method::Delete, gid(2)), invalid(), "a foreign record");
    assert_eq!(members(&manager, mgid), [(2, FULL)]);
}

#[test]
fn an_mgid_must_be_one() {
    let mut manager = manager(1);
    let with_bytes = |first: u8, second: u8, signature: u16| {
        let mut bytes = group(1).gid().0;
        bytes[..2].copy_from_slice(&[first, second]);
        bytes[2..4].copy_from_slice(&signature.to_be_bytes());
        Gid(bytes)
    };
    let mut create_gid = |mgid: Gid| {
        let (mut record, components) = creation(1, group(1), FULL, manager.config.group);
        record.mgid = mgid;
        ask_member(&mut manager, 1, Method::Set, components, &record)
    };
    for bad in [
        Gid([0; 16]),
        gid(1),
        with_bytes(0xFE, 0x12, 0x401B),
        with_bytes(0xFF, 0x22, 0x401B),
        with_bytes(0xFF, 0x82, 0x601B),
        with_bytes(0xFF, 0x10, 0x401B),
        with_bytes(0xFF, 0x1F, 0x401B),
        with_bytes(0xFF, 0x12, 0xA01B),
    ] {
        assert_eq!(create_gid(bad), Err(refused(SaRefusal::RequestInvalidGid)), "{bad}");
    }
    for good in [with_bytes(0xFF, 0x15, 0xA01B), with_bytes(0xFF, 0x0E, 0x401B)] {
        assert!(create_gid(good).is_ok(), "{good}");
    }
}

#[test]
fn a_new_group_has_what_its_creator_demands_and_can_carry() {
    let mtu = MemberComponents::MTU_SELECTOR | MemberComponents::MTU;
    let rates = MemberComponents::RATE_SELECTOR | MemberComponents::RATE;
    let life = MemberComponents::LIFE_TIME_SELECTOR | MemberComponents::LIFE_TIME;
    // The creator's port: MTU code 5, rate code 7 (40 Gb/s). Configured: 4, 3 (10 Gb/s), 18.
    let check = |components, byte: u8, expected: Option<(IbMtu, u8, u8)>| {
        let mut manager = manager(1);
        let (mut record, _) = creation(1, group(1), FULL, manager.config.group);
        (record.mtu, record.rate, record.life_time) = (byte, byte, byte);
        let components = MemberComponents::CREATE | components;
        let created = ask_member(&mut manager, 1, Method::Set, components, &record);
        let chosen = created.map(|answer| {
            let parameters = answer.record().unwrap().parameters;
            (parameters.mtu, parameters.rate.code(), parameters.packet_life_time)
        });
        assert_eq!(chosen.ok(), expected, "{components:?} {byte:#x}");
        if expected.is_none() {
            assert_eq!(manager.groups().count(), 1, "nothing is left over");
        }
    };
    let none = MemberComponents::empty();
    check(none, 0, Some((IbMtu::Mtu2048, 3, 18)));
    check(mtu, Selector::Exactly.pack(2), Some((IbMtu::Mtu512, 3, 18)));
    check(mtu, Selector::Exactly.pack(0), None);
    check(mtu, Selector::Exactly.pack(6), None);
    check(mtu, Selector::Greater.pack(3), Some((IbMtu::Mtu4096, 3, 18)));
    check(mtu, Selector::Greater.pack(5), None);
    check(mtu, Selector::Less.pack(4), Some((IbMtu::Mtu1024, 3, 18)));
    check(mtu, Selector::Less.pack(1), None);
    check(mtu, Selector::Largest.pack(0), Some((IbMtu::Mtu4096, 3, 18)));
    check(rates, Selector::Exactly.pack(5), Some((IbMtu::Mtu2048, 5, 18)));
    check(rates, Selector::Exactly.pack(8), None);
    check(rates, Selector::Exactly.pack(1), None);
    check(rates, Selector::Greater.pack(3), Some((IbMtu::Mtu2048, 7, 18)));
    check(rates, Selector::Less.pack(3), Some((IbMtu::Mtu2048, 5, 18)));
    check(rates, Selector::Less.pack(2), None);
    check(life, Selector::Exactly.pack(20), Some((IbMtu::Mtu2048, 3, 20)));
    check(life, Selector::Greater.pack(18), Some((IbMtu::Mtu2048, 3, 19)));
    check(life, Selector::Less.pack(10), Some((IbMtu::Mtu2048, 3, 9)));
    check(life, Selector::Less.pack(0), None);
}

#[test]
fn a_new_group_has_the_scope_and_partition_that_it_says() {
    let mut manager = manager(1);
    let (good, components) = creation(1, group(1), FULL, manager.config.group);
    let scope = components | MemberComponents::SCOPE;
    let record = MemberRecordWire { scope_join: 0x51, ..good };
    assert_eq!(ask_member(&mut manager, 1, Method::Set, scope, &record), invalid());
    for value in [0, 0x8000, 0x8001] {
        let record = MemberRecordWire { pkey: U16::new(value), ..good };
        assert_eq!(ask_member(&mut manager, 1, Method::Set, components, &record), invalid());
    }
    let record = MemberRecordWire { scope_join: 0x21, ..good };
    assert!(ask_member(&mut manager, 1, Method::Set, scope, &record).is_ok());
}

#[test]
fn a_group_goes_with_the_last_member_that_keeps_it_alive() {
    let mut manager = manager(4);
    create(&mut manager, 1, group(1), FULL).unwrap();
    join(&mut manager, 2, group(1), SEND_ONLY_FULL).unwrap();
    let answer = join(&mut manager, 3, group(1), NON_MEMBER).unwrap();
    join(&mut manager, 4, group(1), SEND_ONLY).unwrap();
    leave(&mut manager, 1, group(1), FULL).unwrap();
    assert_eq!(members(&manager, group(1)).len(), 3, "the send-only full member keeps it");
    commands(&mut manager);
    leave(&mut manager, 2, group(1), SEND_ONLY_FULL).unwrap();
    assert_eq!(members(&manager, group(1)), []);
    assert_eq!(manager.groups().count(), 1);
    let mlid = Mlid::new(answer.mlid.get()).unwrap();
    assert_eq!(commands(&mut manager), [Command::RemoveMember { mlid, port: 3 }]);
    assert_eq!(manager.counters().groups_deleted, 1);
    assert_eq!(join(&mut manager, 3, group(1), NON_MEMBER), invalid(), "it is gone");
}

#[test]
fn a_configured_group_stays_without_members() {
    let mut manager = manager(1);
    let mgid = broadcast(Pkey::DEFAULT);
    let before = join(&mut manager, 1, mgid, FULL).unwrap();
    leave(&mut manager, 1, mgid, FULL).unwrap();
    let after = join(&mut manager, 1, mgid, NON_MEMBER).unwrap();
    assert_eq!(before.mlid, after.mlid);
    assert_eq!(manager.counters().groups_deleted, 0);
    let parameters = manager.config.group;
    let again = manager.create_group(mgid, Pkey::DEFAULT, parameters);
    assert_eq!(again, Err(SmError::Exists));
    let foreign = manager.create_group(group(1), pkey(0x8001), parameters);
    assert_eq!(foreign, Err(SmError::UnknownPartition));
}

#[test]
fn a_leave_must_be_of_a_membership_that_there_is() {
    let mut manager = manager(2);
    let mgid = broadcast(Pkey::DEFAULT);
    assert_eq!(leave(&mut manager, 1, mgid, FULL), invalid(), "not a member");
    assert_eq!(leave(&mut manager, 1, group(1), FULL), invalid(), "no such group");
    join(&mut manager, 1, mgid, FULL).unwrap();
    assert_eq!(leave(&mut manager, 1, mgid, SEND_ONLY_FULL), invalid(), "another kind");
    assert_eq!(leave(&mut manager, 1, mgid, FULL | NON_MEMBER), invalid(), "too much");
    assert_eq!(leave(&mut manager, 1, mgid, JoinState::empty()), invalid(), "nothing");
    let record = MemberRecordWire { mgid: gid(1), ..MemberRecordWire::member(mgid, gid(1), FULL) };
    let refusal = ask_member(&mut manager, 1, Method::Delete, MemberComponents::JOIN, &record);
    assert_eq!(refusal, Err(refused(SaRefusal::RequestInvalidGid)));
    let answer = leave(&mut manager, 1, mgid, FULL).unwrap();
    assert_eq!(answer.join_state(), JoinState::empty());
    assert_eq!(leave(&mut manager, 1, mgid, FULL), invalid(), "twice");
}

#[test]
fn tables_that_are_full_refuse_for_lack_of_resources() {
    let no_resources = Err(refused(SaRefusal::NoResources));
    let mut manager = manager(7);
    for number in 1..LIMITS.groups_max as u32 {
        create(&mut manager, 1, group(number), FULL).unwrap();
    }
    assert_eq!(create(&mut manager, 1, group(100), FULL), no_resources, "multicast LIDs");
    leave(&mut manager, 1, group(3), FULL).unwrap();
    let freed = create(&mut manager, 1, group(100), FULL).unwrap();
    assert_eq!(freed.mlid.get(), 0xC003, "a freed multicast LID is used again");
    for port in 1..=7 {
        join(&mut manager, port, broadcast(Pkey::DEFAULT), FULL).unwrap();
    }
    assert_eq!(join(&mut manager, 2, group(1), FULL), no_resources, "members");
    assert!(join(&mut manager, 1, group(1), NON_MEMBER).is_ok(), "the same member again");
    leave(&mut manager, 1, group(100), FULL).unwrap();
    assert!(join(&mut manager, 2, group(1), FULL).is_ok());
    assert_eq!(create(&mut manager, 1, group(100), FULL), no_resources);
    assert_eq!(manager.groups().count(), LIMITS.groups_max - 1, "no group without a member");
}

#[test]
fn mlids_are_multicast_lids_and_all_different() {
    let mut manager = manager(1);
    let mut mlids: Vec<_> = (1..LIMITS.groups_max as u32)
        .map(|number| create(&mut manager, 1, group(number), FULL).unwrap())
        .map(|answer| Mlid::new(answer.mlid.get()).unwrap())
        .collect();
    mlids.sort();
    mlids.dedup();
    assert_eq!(mlids.len(), LIMITS.groups_max - 1);
}

#[test]
fn a_group_is_found_but_its_members_are_not_told() {
    let mut manager = manager(2);
    create(&mut manager, 1, group(1), FULL).unwrap();
    let mut wanted = MemberRecordWire::member(group(1), gid(1), FULL);
    let components = MemberComponents::JOIN;
    let answer = ask_member(&mut manager, 2, Method::Get, components, &wanted).unwrap();
    assert_eq!(answer.mgid, group(1).gid());
    assert_eq!((answer.port_gid, answer.join_state()), (Gid([0; 16]), JoinState::empty()));
    let no_records = Err(refused(SaRefusal::NoRecords));
    wanted.port_gid = gid(2);
    let found = ask_member(&mut manager, 2, Method::Get, components, &wanted);
    assert_eq!(found, no_records, "not a member");
    wanted = wanted.with_join_state(NON_MEMBER);
    wanted.port_gid = gid(1);
    let found = ask_member(&mut manager, 2, Method::Get, components, &wanted);
    assert_eq!(found, no_records, "not in this way");
}

#[test]
fn a_search_that_finds_more_than_one_group_says_so() {
    let mut manager = manager(1);
    create(&mut manager, 1, group(1), FULL).unwrap();
    let mut wanted = MemberRecordWire::new_zeroed();
    let all = MemberComponents::empty();
    let found = ask_member(&mut manager, 1, Method::Get, all, &wanted);
    assert_eq!(found, Err(refused(SaRefusal::TooManyRecords)));
    wanted.mlid = U16::new(Mlid::MIN.value());
    let found = ask_member(&mut manager, 1, Method::Get, MemberComponents::MLID, &wanted);
    assert_eq!(found.unwrap().mgid, broadcast(Pkey::DEFAULT).gid());
}

#[test]
fn groups_of_other_partitions_are_not_found() {
    let mut manager = manager(2);
    let key = pkey(0x8001);
    manager.add_partition(key).unwrap();
    let parameters = manager.config.group;
    manager.create_group(broadcast(key), key, parameters).unwrap();
    manager.grant_pkey(1, key).unwrap();
    let wanted = MemberRecordWire::member(broadcast(key), gid(1), FULL);
    let components = MemberComponents::MGID;
    assert!(ask_member(&mut manager, 1, Method::Get, components, &wanted).is_ok());
    let found = ask_member(&mut manager, 2, Method::Get, components, &wanted);
    assert_eq!(found, Err(refused(SaRefusal::NoRecords)));
}
