//! The manager, by topic, with what they share.

mod faults;
mod groups;
mod malformed;
mod model;
mod paths;
mod ports;

use ipoib_rs::action::{JoinRequest, Membership};
use ipoib_rs::ib::Gid;

use super::*;
use crate::mad::{
    self, Attribute, MAD_BYTES, MemberComponents, MemberRecordWire, Method, PathComponents,
    PathRecordWire, SaMad, Status,
};

/// The port of the manager; hosts are 1 and up.
const SM: u32 = 0;

fn gid(port: u32) -> Gid {
    Gid::new(Gid::SUBNET_PREFIX_DEFAULT, guid(port))
}

fn guid(port: u32) -> u64 {
    0x0002_C903_0000_0000 | u64::from(port)
}

fn rate(code: u8) -> RateCode {
    RateCode::new(code).unwrap()
}

/// A port with 4096 bytes and 40 Gb/s.
fn port_config(port: u32) -> PortConfig {
    PortConfig { guid: guid(port), gid: gid(port), mtu: IbMtu::Mtu4096, rate: rate(7) }
}

fn pkey(value: u16) -> Pkey {
    Pkey::new(value).unwrap()
}

/// The broadcast group of a partition.
fn broadcast(partition: Pkey) -> Mgid {
    let high = 0xFF12_401B_0000_0000 | u64::from(partition.value()) << 16;
    Mgid::new(Gid::new(high, 0xFFFF_FFFF)).unwrap()
}

/// A group of the default partition.
fn group(number: u32) -> Mgid {
    Mgid::new(Gid::new(0xFF12_401B_FFFF_0000, number.into())).unwrap()
}

const LIMITS: SmLimits = SmLimits { ports_max: 8, groups_max: 6, members_max: 12, refusals_max: 2 };

/// A manager with its own port, the broadcast group of the default partition, and hosts with a
/// link.
fn manager(hosts: u32) -> SubnetManager<u32> {
    let mut manager = SubnetManager::new(SmConfig::new(LIMITS), SM, port_config(SM)).unwrap();
    let parameters = manager.config.group;
    manager.create_broadcast_group(Scope::LINK_LOCAL, Pkey::DEFAULT, parameters).unwrap();
    for host in 1..=hosts {
        manager.configure_port(host, port_config(host)).unwrap();
        manager.handle_link_up(host).unwrap();
    }
    commands(&mut manager);
    manager
}

fn commands(manager: &mut SubnetManager<u32>) -> Vec<Command<u32>> {
    std::iter::from_fn(|| manager.poll_command()).collect()
}

fn lid(manager: &SubnetManager<u32>, port: u32) -> Lid {
    manager.ports.find(port).unwrap().lid
}

/// Sends a request from a port and yields the answer, or the status of a refusal. Every answer must
/// be one to this request.
fn ask(manager: &mut SubnetManager<u32>, port: u32, request: &SaMad) -> Result<SaMad, Status> {
    let source = lid(manager, port);
    let answer = manager.handle_request(&request.to_bytes(), source).expect("an answer");
    let answer = mad::parse(&answer).expect("an answer that can be read");
    assert_eq!(Some(answer.method), mad::parse(&request.to_bytes()).unwrap().method.response());
    assert_eq!(answer.mad.header.transaction, request.header.transaction);
    assert_eq!(answer.mad.header.attribute, request.header.attribute);
    match answer.mad.status() {
        Status::SUCCESS => Ok(*answer.mad),
        status => Err(status),
    }
}

fn ask_path(
    manager: &mut SubnetManager<u32>,
    port: u32,
    components: PathComponents,
    record: &PathRecordWire,
) -> Result<PathRecordWire, Status> {
    let request = SaMad::request(Method::Get, Attribute::PathRecord, 7, components.bits(), record);
    ask(manager, port, &request).map(|answer| answer.record())
}

fn ask_member(
    manager: &mut SubnetManager<u32>,
    port: u32,
    method: Method,
    components: MemberComponents,
    record: &MemberRecordWire,
) -> Result<MemberRecordWire, Status> {
    let request = SaMad::request(method, Attribute::MemberRecord, 7, components.bits(), record);
    ask(manager, port, &request).map(|answer| answer.record())
}

/// Joins with the mandatory components alone.
fn join(
    manager: &mut SubnetManager<u32>,
    port: u32,
    mgid: Mgid,
    join_state: JoinState,
) -> Result<MemberRecordWire, Status> {
    let record = MemberRecordWire::member(mgid, gid(port), join_state);
    ask_member(manager, port, Method::Set, MemberComponents::JOIN, &record)
}

/// A join with all that the client fills in to create a group, on behalf of a port.
fn creation(
    port: u32,
    mgid: Mgid,
    join_state: JoinState,
    parameters: GroupParameters,
) -> (MemberRecordWire, MemberComponents) {
    let (record, components) = MemberRecordWire::join(&JoinRequest {
        mgid,
        port_gid: gid(port),
        pkey: Pkey::DEFAULT,
        membership: Membership::Full,
        create: Some(parameters),
    });
    (record.with_join_state(join_state), components)
}

/// Joins a group and creates it, like the broadcast group, if it does not exist.
fn create(
    manager: &mut SubnetManager<u32>,
    port: u32,
    mgid: Mgid,
    join_state: JoinState,
) -> Result<MemberRecordWire, Status> {
    let (record, components) = creation(port, mgid, join_state, manager.config.group);
    ask_member(manager, port, Method::Set, components, &record)
}

fn leave(
    manager: &mut SubnetManager<u32>,
    port: u32,
    mgid: Mgid,
    join_state: JoinState,
) -> Result<MemberRecordWire, Status> {
    let record = MemberRecordWire::member(mgid, gid(port), join_state);
    ask_member(manager, port, Method::Delete, MemberComponents::JOIN, &record)
}

fn members(manager: &SubnetManager<u32>, mgid: Mgid) -> Vec<(u32, JoinState)> {
    manager.members(mgid).collect()
}

fn refused(refusal: SaRefusal) -> Status {
    Status::refusal(refusal)
}

/// The bytes of any request that is well formed.
fn any_request() -> [u8; MAD_BYTES] {
    SaMad::request(Method::Get, Attribute::ClassPortInfo, 7, 0, &[0u8; 0]).to_bytes()
}
