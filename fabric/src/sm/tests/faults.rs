//! Faults on order, and another manager that takes over.

use super::*;

#[test]
fn the_next_requests_are_busy_and_then_it_is_over() {
    let mut manager = manager(1);
    let mgid = broadcast(Pkey::DEFAULT);
    manager.set_fault(Fault::Status(Status::BUSY), FaultExtent::Next(2));
    for _ in 0..2 {
        assert_eq!(join(&mut manager, 1, mgid, JoinState::FULL), Err(Status::BUSY));
    }
    assert_eq!(members(&manager, mgid), [], "a busy manager does nothing");
    assert!(join(&mut manager, 1, mgid, JoinState::FULL).is_ok());
    assert_eq!(manager.counters().refused_by_fault, 2);
    assert_eq!(manager.counters().requests(Method::Set, Attribute::MemberRecord), 3);
}

#[test]
fn a_silent_manager_stays_so_until_told_otherwise() {
    let mut manager = manager(1);
    let source = lid(&manager, 1);
    manager.set_fault(Fault::Silent, FaultExtent::UntilCleared);
    for _ in 0..10 {
        assert_eq!(manager.handle_request(&any_request(), source), None);
    }
    manager.clear_fault();
    assert!(manager.handle_request(&any_request(), source).is_some());
    assert_eq!(manager.counters().dropped_by_fault, 10);
    manager.set_fault(Fault::Silent, FaultExtent::Next(0));
    assert!(manager.handle_request(&any_request(), source).is_some());
}

#[test]
fn a_group_can_be_refused_and_admitted() {
    let mut manager = manager(1);
    for refusal in [SaRefusal::RequestDenied, SaRefusal::NoResources] {
        manager.refuse_group(group(1), refusal).unwrap();
        let joined = create(&mut manager, 1, group(1), JoinState::FULL);
        assert_eq!(joined, Err(refused(refusal)));
    }
    assert!(create(&mut manager, 1, group(2), JoinState::FULL).is_ok(), "others are let in");
    manager.refuse_group(group(3), SaRefusal::RequestDenied).unwrap();
    let full = manager.refuse_group(group(4), SaRefusal::RequestDenied);
    assert_eq!(full, Err(SmError::TableFull));
    manager.admit_group(group(1));
    manager.admit_group(group(4));
    assert!(create(&mut manager, 1, group(1), JoinState::FULL).is_ok());
}

#[test]
fn another_manager_knows_the_configuration_but_no_members() {
    let mut manager = manager(2);
    let mgid = broadcast(Pkey::DEFAULT);
    let joined = join(&mut manager, 1, mgid, JoinState::FULL).unwrap();
    let mlid = Mlid::new(joined.mlid.get()).unwrap();
    create(&mut manager, 1, group(1), JoinState::FULL).unwrap();
    create(&mut manager, 2, group(1), JoinState::SEND_ONLY_FULL).unwrap();
    manager.handle_link_down(2).unwrap();
    commands(&mut manager);
    manager.restart();
    let groups: Vec<_> = manager.groups().map(|group| group.record.mgid).collect();
    assert_eq!(groups, [mgid]);
    assert_eq!(members(&manager, mgid), []);
    let commands = commands(&mut manager);
    assert!(commands.contains(&Command::RemoveMember { mlid, port: 1 }));
    let sm_lid = manager.sm_lid();
    let (first, second) = (PortEvent::SmChanged, PortEvent::ClientReregister);
    let for_port = |port| {
        [
            Command::SetSmLid { port, sm_lid },
            Command::Notify { port, event: first },
            Command::Notify { port, event: second },
        ]
    };
    let expected = [for_port(SM), for_port(1)].concat();
    assert!(commands.ends_with(&expected), "the port without a link hears nothing: {commands:?}");
    let refusal = leave(&mut manager, 1, mgid, JoinState::FULL);
    assert_eq!(refusal, Err(refused(SaRefusal::RequestInvalid)), "not a member any more");
    assert!(join(&mut manager, 1, mgid, JoinState::FULL).is_ok());
}

#[test]
fn reregistration_can_be_asked_for_alone() {
    let mut manager = manager(1);
    join(&mut manager, 1, broadcast(Pkey::DEFAULT), JoinState::FULL).unwrap();
    commands(&mut manager);
    manager.request_reregistration();
    let event = PortEvent::ClientReregister;
    let expected = [SM, 1].map(|port| Command::Notify { port, event });
    assert_eq!(commands(&mut manager), expected);
    assert_eq!(members(&manager, broadcast(Pkey::DEFAULT)).len(), 1);
}
