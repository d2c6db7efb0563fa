//! Management datagrams from QP1 to QP1, and the subnet manager on the fabric.

use std::iter;

use fabric::gsi::{AgentId, Gsi, Role};
use fabric::hca::HcaConfig;
use fabric::mad::{MAD_BYTES, SA_CLASS};
use fabric::port::{PortId, PortState};
use fabric::sa::{Answer, Client};
use fabric::sm::{SmConfig, SmLimits};
use fabric::subnet::Subnet;
use fabric::{AsyncEvent, CreateError, Fabric, FabricConfig};
use ipoib_rs::action::{GroupParameters, JoinRequest, Membership, PathQuery};
use ipoib_rs::ib::{Gid, IbMtu, Pkey, PkeyIndex, RateCode, ServiceLevel};
use ipoib_rs::interface::PortEvent;
use ipoib_rs::time::Instant;

use crate::hosts::{group, hosts, run};

const CONFIG: FabricConfig = FabricConfig::DEFAULT;

/// A datagram that is a response or a request of a class.
fn mad(class: u8, method: u8, agent: u32) -> [u8; MAD_BYTES] {
    let mut bytes = [0; MAD_BYTES];
    bytes[..4].copy_from_slice(&[1, class, 2, method]);
    bytes[8..12].copy_from_slice(&agent.to_be_bytes());
    bytes
}

#[test]
fn a_request_reaches_the_server_and_the_response_its_client() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let mut client_side = Gsi::open(&mut fabric, a.port, 0).unwrap();
    let mut server_side = Gsi::open(&mut fabric, b.port, 0).unwrap();
    let other = client_side.register(Role::Client).unwrap();
    let client = client_side.register(Role::Client).unwrap();
    let server = server_side.register(Role::Server { class: 3 }).unwrap();

    let to = client_side.address(&fabric, b.lid, ServiceLevel::default());
    let request = mad(3, 1, client.value());
    client_side.send(&mut fabric, &to, &request).unwrap();
    run(&mut fabric);
    server_side.poll(&mut fabric);
    let received = server_side.poll_mad(server).unwrap();
    assert_eq!(received.bytes, request);
    assert_eq!(received.source.lid, a.lid);

    let response = mad(3, 0x81, client.value());
    server_side.send(&mut fabric, &received.source, &response).unwrap();
    run(&mut fabric);
    client_side.poll(&mut fabric);
    assert_eq!(client_side.poll_mad(other), None);
    assert_eq!(client_side.poll_mad(client).unwrap().bytes, response);
    assert_eq!(client_side.poll_mad(client), None);

    client_side.close(&mut fabric);
    server_side.close(&mut fabric);
    assert_eq!(fabric.pool().outstanding(), 0);
    assert_eq!(fabric.ah_count(a.hca) + fabric.ah_count(b.hca), 0);
}

#[test]
fn datagrams_for_nobody_are_counted() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let mut sender = Gsi::open(&mut fabric, a.port, 0).unwrap();
    let mut receiver = Gsi::open(&mut fabric, b.port, 0).unwrap();
    let agent = receiver.register(Role::Server { class: 3 }).unwrap();
    let to = sender.address(&fabric, b.lid, ServiceLevel::default());
    for bytes in [mad(4, 1, 0), mad(3, 0x81, 77)] {
        sender.send(&mut fabric, &to, &bytes).unwrap();
    }
    run(&mut fabric);
    receiver.poll(&mut fabric);
    assert_eq!(receiver.counters().unclaimed, 2);
    assert_eq!(receiver.poll_mad(agent), None);
}

#[test]
fn a_flood_of_datagrams_fills_the_agents_queue_and_no_more() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let mut sender = Gsi::open(&mut fabric, a.port, 0).unwrap();
    let mut receiver = Gsi::open(&mut fabric, b.port, 0).unwrap();
    let agent = receiver.register(Role::Server { class: 3 }).unwrap();
    let to = sender.address(&fabric, b.lid, ServiceLevel::default());
    for _ in 0..100 {
        sender.send(&mut fabric, &to, &mad(3, 1, 0)).unwrap();
        run(&mut fabric);
        receiver.poll(&mut fabric);
    }
    let received = iter::from_fn(|| receiver.poll_mad(agent)).count() as u64;
    assert_eq!(received, receiver.counters().received);
    assert_eq!(received + receiver.counters().queues_full, 100);
    assert_eq!(fabric.pool().outstanding(), 0);
}

#[test]
fn a_port_has_one_qp1_and_a_class_one_server() {
    let (mut fabric, [a]) = hosts(CONFIG);
    let mut gsi = Gsi::open(&mut fabric, a.port, 0).unwrap();
    let second = Gsi::open(&mut fabric, a.port, 0).map(|_| ());
    assert_eq!(second, Err(CreateError::TooMany));
    gsi.register(Role::Server { class: 3 }).unwrap();
    let second = gsi.register(Role::Server { class: 3 });
    assert_eq!(second, Err(CreateError::TooMany));
    gsi.close(&mut fabric);
    Gsi::open(&mut fabric, a.port, 0).unwrap();
}

#[test]
fn datagrams_go_by_the_default_partition_wherever_it_stands() {
    let (mut fabric, [a, b]) = hosts(CONFIG);
    let table = [Pkey::new(0x8001), None, Pkey::new(0x7FFF)];
    fabric.set_pkey_table(a.port, &table).unwrap();
    let mut sender = Gsi::open(&mut fabric, a.port, 0).unwrap();
    let mut receiver = Gsi::open(&mut fabric, b.port, 0).unwrap();
    let agent = receiver.register(Role::Server { class: 3 }).unwrap();
    let to = sender.address(&fabric, b.lid, ServiceLevel::default());
    assert_eq!(to.pkey_index, PkeyIndex(2));
    sender.send(&mut fabric, &to, &mad(3, 1, 0)).unwrap();
    run(&mut fabric);
    receiver.poll(&mut fabric);
    assert!(receiver.poll_mad(agent).is_some());
}

/// A subnet manager and two ports that it configured.
struct World {
    fabric: Fabric,
    subnet: Subnet,
    ports: [PortId; 2],
}

fn world() -> World {
    let mut fabric = Fabric::new(CONFIG).unwrap();
    let mut port = |guid| {
        let hca = fabric.add_hca(&HcaConfig::with_guid(guid)).unwrap();
        fabric.hca_ports(hca).next().unwrap()
    };
    let (manager, ports) = (port(0x100), [port(0x200), port(0x300)]);
    let config = SmConfig::new(SmLimits::DEFAULT);
    let rate = RateCode::new(3).unwrap();
    let mut subnet = Subnet::new(&mut fabric, manager, config, rate, 0).unwrap();
    for port in ports {
        subnet.link_up(&mut fabric, port).unwrap();
    }
    World { fabric, subnet, ports }
}

fn client(world: &mut World, port: PortId) -> (Gsi, AgentId, Client<u32>) {
    let mut gsi = Gsi::open(&mut world.fabric, port, 0).unwrap();
    let agent = gsi.register(Role::Client).unwrap();
    let client = Client::new(agent.value(), 4).unwrap();
    (gsi, agent, client)
}

fn ask(world: &mut World, gsi: &mut Gsi, request: &[u8; MAD_BYTES]) {
    let sm = world.fabric.query_port(world.ports[0]).unwrap().sm.unwrap();
    let to = gsi.address(&world.fabric, sm.lid, sm.sl);
    gsi.send(&mut world.fabric, &to, request).unwrap();
    run(&mut world.fabric);
    world.subnet.poll(&mut world.fabric);
    run(&mut world.fabric);
    gsi.poll(&mut world.fabric);
}

#[test]
fn a_port_that_gets_a_link_becomes_active_with_a_lid_of_its_own() {
    let world = world();
    let lids = world.ports.map(|port| {
        let status = world.fabric.query_port(port).unwrap();
        assert_eq!(status.state, PortState::Active);
        assert_eq!(status.sm.unwrap().lid, world.subnet.manager().sm_lid());
        status.lid.unwrap()
    });
    assert_ne!(lids[0], lids[1]);
    assert_eq!(world.subnet.counters().commands_refused, 0);
}

#[test]
fn the_events_of_a_link_come_once_each() {
    let mut world = world();
    while world.fabric.poll_event().is_some() {}
    let port = world.ports[1];
    world.subnet.link_down(&mut world.fabric, port).unwrap();
    world.subnet.link_up(&mut world.fabric, port).unwrap();
    world.subnet.manager_mut().move_lid(port).unwrap();
    world.subnet.poll(&mut world.fabric);
    let events = iter::from_fn(|| world.fabric.poll_event()).collect::<Vec<_>>();
    let expected = [
        PortEvent::PortError,
        PortEvent::PkeyChanged,
        PortEvent::PortActive,
        PortEvent::LidChanged,
    ];
    assert_eq!(events, expected.map(|event| AsyncEvent::Port(port, event)));
}

#[test]
fn another_manager_on_the_same_port_is_announced() {
    let mut world = world();
    while world.fabric.poll_event().is_some() {}
    world.subnet.manager_mut().restart();
    world.subnet.poll(&mut world.fabric);
    let events = iter::from_fn(|| world.fabric.poll_event()).collect::<Vec<_>>();
    for port in world.ports {
        for event in [PortEvent::SmChanged, PortEvent::ClientReregister] {
            let count = events.iter().filter(|&&e| e == AsyncEvent::Port(port, event));
            assert_eq!(count.count(), 1, "{port:?} {event:?}");
        }
    }
}

#[test]
fn a_path_is_found_by_real_datagrams() {
    let mut world = world();
    let [a, b] = world.ports;
    let (mut gsi, agent, mut client) = client(&mut world, a);
    let destination = world.fabric.query_port(b).unwrap();
    let query = PathQuery {
        destination: destination.gid,
        source: world.fabric.query_port(a).unwrap().gid,
        pkey: Pkey::DEFAULT,
    };
    let request = client.request_path(Instant::ZERO, 1, &query).unwrap();
    ask(&mut world, &mut gsi, &request);
    let mad = gsi.poll_mad(agent).unwrap();
    assert_eq!(mad.bytes[1], SA_CLASS);
    let Some((1, Answer::Path(Ok(record)))) = client.handle_mad(&mad.bytes) else {
        panic!("no path");
    };
    assert_eq!(Some(record.lid), destination.lid);
    assert_eq!(record.mtu, IbMtu::Mtu2048);
    assert_eq!(world.fabric.pool().outstanding(), 0);
}

#[test]
fn the_switch_knows_a_member_before_the_member_knows() {
    let mut world = world();
    let [a, _] = world.ports;
    let (mut gsi, agent, mut client) = client(&mut world, a);
    let port_gid = world.fabric.query_port(a).unwrap().gid;
    let (mgid, _) = group(1);
    let join = JoinRequest {
        mgid,
        port_gid,
        pkey: Pkey::DEFAULT,
        membership: Membership::Full,
        create: Some(GroupParameters {
            qkey: crate::hosts::QKEY,
            mtu: IbMtu::Mtu2048,
            rate: RateCode::new(3).unwrap(),
            sl: ServiceLevel::default(),
            packet_life_time: 18,
            global: ipoib_rs::action::GlobalRoute::default(),
        }),
    };
    let request = client.request_join(Instant::ZERO, 1, &join).unwrap();
    ask(&mut world, &mut gsi, &request);
    let mad = gsi.poll_mad(agent).unwrap();
    let Some((1, Answer::Join(Ok(record)))) = client.handle_mad(&mad.bytes) else {
        panic!("not joined");
    };
    assert_eq!(world.fabric.multicast_members(record.mlid), [a]);

    let membership = Membership::Full;
    let now = Instant::ZERO;
    let request = client.request_leave(now, 2, mgid, port_gid, membership).unwrap();
    ask(&mut world, &mut gsi, &request);
    assert!(world.fabric.multicast_members(record.mlid).is_empty());
}

#[test]
fn a_gid_that_nobody_has_is_refused() {
    let mut world = world();
    let [a, _] = world.ports;
    let (mut gsi, agent, mut client) = client(&mut world, a);
    let query = PathQuery {
        destination: Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0xDEAD),
        source: world.fabric.query_port(a).unwrap().gid,
        pkey: Pkey::DEFAULT,
    };
    let request = client.request_path(Instant::ZERO, 1, &query).unwrap();
    ask(&mut world, &mut gsi, &request);
    let mad = gsi.poll_mad(agent).unwrap();
    let (_, answer) = client.handle_mad(&mad.bytes).unwrap();
    assert!(answer.error().is_some());
}
