//! Two connection managers that talk from QP1 to QP1.

use std::iter;
use std::time::Duration;

use fabric::cm::{
    Acceptance, ConnectRequest, DisconnectCause, Event, Manager, ManagerConfig, ManagerCounters,
};
use fabric::gsi::{AgentId, Gsi, Role};
use fabric::mad::cm::{
    CM_CLASS, CmPath, CmRetries, IpoibPrivateData, Psn, RetryCount, ServiceId, TimeoutCode,
};
use fabric::{Fabric, FabricConfig};
use ipoib_rs::ib::{FlowLabel, Gid, IbMtu, Pkey, Qpn, RateCode, ServiceLevel};
use ipoib_rs::time::Instant;

use crate::hosts::{Host, hosts, run};

const NOW: Instant = Instant::ZERO;
const TIME_WAIT: Duration = Duration::from_secs(1);

struct Side {
    host: Host,
    gsi: Gsi,
    agent: AgentId,
    manager: Manager<u32>,
}

impl Side {
    fn new(fabric: &mut Fabric, host: Host) -> Self {
        let mut gsi = Gsi::open(fabric, host.port, 0).unwrap();
        let agent = gsi.register(Role::Server { class: CM_CLASS }).unwrap();
        let mut manager = Manager::new(&ManagerConfig {
            ca_guid: host.lid.value().into(),
            seed: host.lid.value().into(),
            connections_max: 1024,
            listeners_max: 1,
            mads_max: 16,
            time_wait: TIME_WAIT,
            wait_max: Duration::from_secs(8),
            service_timeout: TimeoutCode::at_least(TIME_WAIT),
        })
        .unwrap();
        let service = ServiceId::of_interface(host.qpn);
        manager.listen(service, u64::MAX).unwrap();
        Self { host, gsi, agent, manager }
    }

    fn send(&mut self, fabric: &mut Fabric) {
        while let Some(mad) = self.manager.poll_mad() {
            self.gsi.send(fabric, &mad.to, &mad.bytes).unwrap();
        }
    }

    fn receive(&mut self, fabric: &mut Fabric) {
        self.gsi.poll(fabric);
        while let Some(mad) = self.gsi.poll_mad(self.agent) {
            self.manager.handle_mad(NOW, mad.source, &mad.bytes);
        }
    }

    fn request(&self, fabric: &Fabric, peer: &Host) -> ConnectRequest {
        let sl = ServiceLevel::default();
        let code = |value| TimeoutCode::new(value).unwrap();
        let own = IpoibPrivateData { qpn: self.host.qpn, receive_mtu: 65524 };
        ConnectRequest {
            to: self.gsi.address(fabric, peer.lid, sl),
            path: CmPath {
                local_lid: self.host.lid,
                remote_lid: peer.lid,
                local_gid: Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 1),
                remote_gid: Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 2),
                flow_label: FlowLabel::default(),
                rate: RateCode::new(3).unwrap(),
                traffic_class: 0,
                hop_limit: 0,
                sl,
                is_subnet_local: true,
                ack_timeout: code(14),
            },
            service: ServiceId::of_interface(peer.qpn),
            qpn: Qpn::new(0x500).unwrap(),
            starting_psn: Psn::from_random(1),
            pkey: Pkey::DEFAULT,
            mtu: IbMtu::Mtu2048,
            retry_count: RetryCount::default(),
            rnr_retry_count: RetryCount::default(),
            has_shared_receive_queue: true,
            remote_response_timeout: code(20),
            local_response_timeout: code(20),
            max_cm_retries: CmRetries::new(7).unwrap(),
            private_data: own.to_private_data(),
        }
    }
}

fn acceptance(side: &Side) -> Acceptance {
    let own = IpoibPrivateData { qpn: side.host.qpn, receive_mtu: 65524 };
    Acceptance {
        qpn: Qpn::new(0x600).unwrap(),
        starting_psn: Psn::from_random(2),
        rnr_retry_count: RetryCount::default(),
        has_shared_receive_queue: true,
        target_ack_delay: TimeoutCode::default(),
        private_data: own.to_private_data(),
    }
}

/// Carries messages until none is under way.
fn settle(fabric: &mut Fabric, sides: &mut [Side; 2]) {
    loop {
        let before = sides.each_ref().map(|side| *side.manager.counters());
        for side in &mut *sides {
            side.send(fabric);
        }
        run(fabric);
        for side in &mut *sides {
            side.receive(fabric);
        }
        if sides.each_ref().map(|side| *side.manager.counters()) == before {
            return;
        }
    }
}

fn events(side: &mut Side) -> Vec<Event<u32>> {
    iter::from_fn(|| side.manager.poll_event()).collect()
}

#[test]
fn a_connection_is_made_and_ended_from_qp1_to_qp1() {
    let (mut fabric, [a, b]) = hosts(FabricConfig::DEFAULT);
    let mut sides = [Side::new(&mut fabric, a), Side::new(&mut fabric, b)];
    let request = sides[0].request(&fabric, &b);
    sides[0].manager.connect(NOW, 1, &request).unwrap();
    settle(&mut fabric, &mut sides);
    let [Event::Requested { request, from, demand }] = events(&mut sides[1])[..] else {
        panic!("the request is reported");
    };
    assert_eq!(from.lid, a.lid);
    let peer = IpoibPrivateData::from_private_data(&demand.private_data);
    assert_eq!((peer.qpn, peer.receive_mtu), (a.qpn, 65524));

    let acceptance = acceptance(&sides[1]);
    sides[1].manager.accept(NOW, request, 2, &acceptance).unwrap();
    settle(&mut fabric, &mut sides);
    let replied = events(&mut sides[0]);
    assert!(matches!(replied[..], [Event::Replied { tag: 1, .. }]));
    sides[0].manager.establish(1).unwrap();
    settle(&mut fabric, &mut sides);
    assert_eq!(events(&mut sides[1]), [Event::Established { tag: 2 }]);

    sides[1].manager.disconnect(NOW, 2).unwrap();
    settle(&mut fabric, &mut sides);
    let cause = DisconnectCause::ByPeer;
    assert_eq!(events(&mut sides[0]), [Event::Disconnected { tag: 1, cause }]);
    for side in &mut sides {
        side.manager.handle_timeout(NOW + TIME_WAIT);
        assert_eq!(side.manager.connections_len(), 0);
        let ManagerCounters { mads_unexpected, mads_malformed, mads_repeated, .. } =
            *side.manager.counters();
        assert_eq!((mads_unexpected, mads_malformed, mads_repeated), (0, 0, 0));
    }
    for side in sides {
        side.gsi.close(&mut fabric);
    }
    assert_eq!(fabric.pool().outstanding(), 0);
}

/// Makes a connection without a fabric between the two.
fn connect(sides: &mut [Side; 2], tag: u32, request: &ConnectRequest, accepted: &Acceptance) {
    let [active, passive] = sides;
    let to = request.to;
    let qpn = Qpn::new(tag + 0x1000).unwrap();
    let (mut request, mut accepted) = (*request, *accepted);
    (request.qpn, accepted.qpn) = (qpn, qpn);
    active.manager.connect(NOW, tag, &request).unwrap();
    let mut is_idle = false;
    while !is_idle {
        is_idle = true;
        // What comes from a side is answered to its QP1, which no message here ever reaches.
        while let Some(mad) = active.manager.poll_mad() {
            passive.manager.handle_mad(NOW, to, &mad.bytes);
            is_idle = false;
        }
        while let Some(mad) = passive.manager.poll_mad() {
            active.manager.handle_mad(NOW, to, &mad.bytes);
            is_idle = false;
        }
        if let Some(Event::Requested { request, .. }) = passive.manager.poll_event() {
            passive.manager.accept(NOW, request, tag, &accepted).unwrap();
            is_idle = false;
        }
        if let Some(Event::Replied { tag, .. }) = active.manager.poll_event() {
            active.manager.establish(tag).unwrap();
            is_idle = false;
        }
    }
}

#[test]
fn connections_are_made_without_an_allocation() {
    let (mut fabric, [a, b]) = hosts(FabricConfig::DEFAULT);
    let mut sides = [Side::new(&mut fabric, a), Side::new(&mut fabric, b)];
    let (request, accepted) = (sides[0].request(&fabric, &b), acceptance(&sides[1]));
    let allocations = allocation_counter::measure(|| {
        for tag in 0..1000 {
            connect(&mut sides, tag, &request, &accepted);
        }
    });
    for side in &sides {
        assert_eq!(side.manager.counters().established, 1000);
    }
    assert_eq!(allocations.count_total, 0);
}
