//! Ports, LIDs, P_Keys.

use super::*;

fn notify(port: u32, event: PortEvent) -> Command<u32> {
    Command::Notify { port, event }
}

#[test]
fn a_port_with_a_link_is_configured_and_then_told() {
    let mut manager = manager(0);
    let lid = manager.configure_port(1, port_config(1)).unwrap();
    assert_eq!(commands(&mut manager), [], "nothing happens without a link");
    manager.handle_link_up(1).unwrap();
    let sm_lid = manager.sm_lid();
    let table = PkeyTable::new(Pkey::DEFAULT);
    assert_ne!(lid, sm_lid);
    assert_eq!(
        commands(&mut manager),
        [
            Command::SetLid { port: 1, lid },
            Command::SetSmLid { port: 1, sm_lid },
            Command::SetPkeyTable { port: 1, table },
            Command::ActivatePort { port: 1 },
            notify(1, PortEvent::PortActive),
        ]
    );
}

#[test]
fn the_managers_own_port_is_active_from_the_start() {
    let mut manager = SubnetManager::new(SmConfig::new(LIMITS), SM, port_config(SM)).unwrap();
    let sm_lid = manager.sm_lid();
    assert_eq!(sm_lid, lid(&manager, SM));
    let commands = commands(&mut manager);
    assert!(commands.contains(&Command::SetSmLid { port: SM, sm_lid }));
    assert!(commands.contains(&Command::ActivatePort { port: SM }));
}

#[test]
fn a_port_keeps_its_lid_and_keys_without_a_link_but_no_membership() {
    let mut manager = manager(2);
    let before = lid(&manager, 1);
    let joined = join(&mut manager, 1, broadcast(Pkey::DEFAULT), JoinState::FULL).unwrap();
    create(&mut manager, 1, group(1), JoinState::FULL).unwrap();
    create(&mut manager, 2, group(1), JoinState::FULL).unwrap();
    commands(&mut manager);
    manager.handle_link_down(1).unwrap();
    assert_eq!(members(&manager, broadcast(Pkey::DEFAULT)), []);
    assert_eq!(members(&manager, group(1)), [(2, JoinState::FULL)]);
    let mlid = Mlid::new(joined.mlid.get()).unwrap();
    assert!(commands(&mut manager).contains(&Command::RemoveMember { mlid, port: 1 }));
    assert_eq!(lid(&manager, 1), before);
    manager.handle_link_up(1).unwrap();
    assert!(commands(&mut manager).contains(&Command::SetLid { port: 1, lid: before }));
}

#[test]
fn lids_are_all_different_and_run_out() {
    let mut manager = manager(7);
    let mut lids: Vec<_> = manager.ports().map(|row| row.lid).collect();
    lids.sort();
    lids.dedup();
    assert_eq!(lids.len(), 8);
    assert_eq!(manager.configure_port(8, port_config(8)), Err(SmError::TableFull));
}

#[test]
fn a_port_cannot_take_the_identity_of_another() {
    let mut manager = manager(2);
    let mut config = port_config(3);
    config.guid = guid(1);
    assert_eq!(manager.configure_port(3, config), Err(SmError::DuplicateGuid));
    let mut config = port_config(3);
    config.gid = gid(1);
    assert_eq!(manager.configure_port(3, config), Err(SmError::DuplicateGid));
    assert_eq!(manager.configure_port(2, config), Err(SmError::DuplicateGid));
    config.gid = group(1).gid();
    assert_eq!(manager.configure_port(3, config), Err(SmError::MulticastGid));
    assert_eq!(manager.handle_link_up(3), Err(SmError::UnknownPort));
    assert_eq!(manager.handle_link_down(3), Err(SmError::UnknownPort));
    assert_eq!(manager.move_lid(3), Err(SmError::UnknownPort));
    assert_eq!(manager.grant_pkey(3, Pkey::DEFAULT), Err(SmError::UnknownPort));
    assert_eq!(manager.revoke_pkey(3, Pkey::DEFAULT), Err(SmError::UnknownPort));
}

#[test]
fn a_port_that_moves_to_another_lid_keeps_its_groups() {
    let mut manager = manager(2);
    join(&mut manager, 1, broadcast(Pkey::DEFAULT), JoinState::FULL).unwrap();
    commands(&mut manager);
    let before = lid(&manager, 1);
    let after = manager.move_lid(1).unwrap();
    assert_ne!(before, after);
    assert_eq!(
        commands(&mut manager),
        [Command::SetLid { port: 1, lid: after }, notify(1, PortEvent::LidChanged)]
    );
    assert_eq!(members(&manager, broadcast(Pkey::DEFAULT)), [(1, JoinState::FULL)]);
    let request = any_request();
    assert_eq!(manager.handle_request(&request, before), None, "the old LID is nobody's");
    assert_eq!(manager.counters().dropped_unknown_source, 1);
    assert!(manager.handle_request(&request, after).is_some());
    assert_eq!(manager.assign_lid(2, after), Err(SmError::LidInUse));
    assert_eq!(manager.assign_lid(2, before), Ok(()), "the freed LID may go to another");
}

#[test]
fn lids_start_again_from_the_first_after_the_last() {
    let mut manager = manager(2);
    manager.assign_lid(1, Lid::MAX).unwrap();
    let next = manager.move_lid(2).unwrap();
    assert_eq!(next, Lid::new(2).unwrap(), "1 is the manager's, 2 was port 1's");
}

#[test]
fn every_port_learns_where_a_manager_that_moved_is() {
    let mut manager = manager(2);
    manager.handle_link_down(2).unwrap();
    commands(&mut manager);
    let sm_lid = manager.move_lid(SM).unwrap();
    assert_eq!(manager.sm_lid(), sm_lid);
    assert_eq!(
        commands(&mut manager),
        [
            Command::SetLid { port: SM, lid: sm_lid },
            Command::SetSmLid { port: SM, sm_lid },
            notify(SM, PortEvent::SmChanged),
            Command::SetSmLid { port: 1, sm_lid },
            notify(1, PortEvent::SmChanged),
            notify(SM, PortEvent::LidChanged),
        ]
    );
}

#[test]
fn keys_keep_their_places() {
    let mut manager = manager(1);
    for value in [0x8001, 0x8002, 0x8003] {
        manager.add_partition(pkey(value)).unwrap();
        manager.grant_pkey(1, pkey(value)).unwrap();
    }
    manager.revoke_pkey(1, pkey(0x8002)).unwrap();
    let entries = |manager: &SubnetManager<u32>| {
        let table = *manager.ports.find(1).unwrap().pkeys.entries();
        [table[0], table[1], table[2], table[3]]
    };
    let (first, second, third) = (Some(pkey(0xFFFF)), Some(pkey(0x8001)), Some(pkey(0x8003)));
    assert_eq!(entries(&manager), [first, second, None, third]);
    commands(&mut manager);
    manager.grant_pkey(1, pkey(0x0003)).unwrap();
    assert_eq!(entries(&manager), [first, second, None, Some(pkey(0x0003))], "in its place");
    let table = manager.ports.find(1).unwrap().pkeys;
    assert_eq!(
        commands(&mut manager),
        [Command::SetPkeyTable { port: 1, table }, notify(1, PortEvent::PkeyChanged)]
    );
    manager.grant_pkey(1, pkey(0x0003)).unwrap();
    assert_eq!(commands(&mut manager), [], "nothing changed");
    manager.grant_pkey(1, pkey(0x8002)).unwrap();
    assert_eq!(entries(&manager)[2], Some(pkey(0x8002)), "the first free place");
}

#[test]
fn a_key_table_that_is_full_refuses() {
    let mut manager = manager(1);
    for value in 1..PKEYS_PER_PORT as u16 {
        manager.add_partition(pkey(value)).unwrap();
        manager.grant_pkey(1, pkey(value)).unwrap();
    }
    manager.add_partition(pkey(0x1000)).unwrap();
    assert_eq!(manager.grant_pkey(1, pkey(0x1000)), Err(SmError::TableFull));
    assert_eq!(manager.add_partition(pkey(0x9000)), Err(SmError::Exists));
    assert_eq!(manager.grant_pkey(1, pkey(0x1001)), Err(SmError::UnknownPartition));
    assert_eq!(manager.revoke_pkey(1, pkey(0x1000)), Err(SmError::UnknownPartition));
}

#[test]
fn a_port_that_leaves_a_partition_leaves_its_groups() {
    let mut manager = manager(1);
    let key = pkey(0x8001);
    manager.add_partition(key).unwrap();
    let parameters = manager.config.group;
    let mlid = manager.create_group(broadcast(key), key, parameters).unwrap();
    manager.grant_pkey(1, key).unwrap();
    join(&mut manager, 1, broadcast(key), JoinState::FULL).unwrap();
    join(&mut manager, 1, broadcast(Pkey::DEFAULT), JoinState::FULL).unwrap();
    commands(&mut manager);
    manager.revoke_pkey(1, key).unwrap();
    assert_eq!(commands(&mut manager)[0], Command::RemoveMember { mlid, port: 1 });
    assert_eq!(members(&manager, broadcast(key)), []);
    assert_eq!(members(&manager, broadcast(Pkey::DEFAULT)), [(1, JoinState::FULL)]);
    let refusal = join(&mut manager, 1, broadcast(key), JoinState::FULL);
    assert_eq!(refusal, Err(refused(SaRefusal::RequestInvalid)));
}

#[test]
fn a_port_with_another_gid_is_no_member_any_more() {
    let mut manager = manager(1);
    join(&mut manager, 1, broadcast(Pkey::DEFAULT), JoinState::FULL).unwrap();
    let mut config = port_config(1);
    config.mtu = IbMtu::Mtu2048;
    manager.configure_port(1, config).unwrap();
    assert_eq!(members(&manager, broadcast(Pkey::DEFAULT)).len(), 1, "the GID is the same");
    config.gid = gid(100);
    manager.configure_port(1, config).unwrap();
    assert_eq!(members(&manager, broadcast(Pkey::DEFAULT)), []);
    let refusal = join(&mut manager, 1, broadcast(Pkey::DEFAULT), JoinState::FULL);
    assert_eq!(refusal, Err(refused(SaRefusal::RequestInvalidGid)), "the old GID is nobody's");
}
