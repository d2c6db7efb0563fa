//! Two managers and whatever is done to the messages between them.

mod active;
mod ending;
mod limits;
mod passive;
mod simulation;

use ipoib_rs::ib::{FlowLabel, Gid, Lid, PkeyIndex, RateCode, ServiceLevel};

use super::*;
use crate::mad::cm::{CmAttribute, IpoibPrivateData, parse};

const TIME_WAIT: Duration = Duration::from_secs(2);
/// The time to answer and a round trip, as [`connect_request`] asks for them.
const RESPONSE: Duration = Duration::from_nanos((4096 << 16) + (4096 << 14));
const RETRIES: u8 = 3;
const SERVICE_TIMEOUT: Duration = Duration::from_nanos(4096 << 18);

fn service() -> ServiceId {
    ServiceId::of_interface(qpn(0x48))
}

fn qpn(value: u32) -> Qpn {
    Qpn::new(value).unwrap()
}

fn lid(value: u16) -> Lid {
    Lid::new(value).unwrap()
}

fn code(value: u8) -> TimeoutCode {
    TimeoutCode::new(value).unwrap()
}

fn address(value: u16) -> MadAddress {
    MadAddress { lid: lid(value), sl: ServiceLevel::default(), pkey_index: PkeyIndex::default() }
}

fn config(side: u64) -> ManagerConfig {
    ManagerConfig {
        ca_guid: 0x0002_C903_0000_0000 + side,
        seed: side,
        connections_max: 4,
        listeners_max: 2,
        mads_max: 16,
        time_wait: TIME_WAIT,
        wait_max: Duration::from_secs(8),
        service_timeout: code(18),
    }
}

fn connect_request(local_qpn: u32) -> ConnectRequest {
    ConnectRequest {
        to: address(2),
        path: CmPath {
            local_lid: lid(1),
            remote_lid: lid(2),
            local_gid: Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 1),
            remote_gid: Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 2),
            flow_label: FlowLabel::default(),
            rate: RateCode::new(3).unwrap(),
            traffic_class: 0,
            hop_limit: 0,
            sl: ServiceLevel::default(),
            is_subnet_local: true,
            ack_timeout: code(14),
        },
        service: service(),
        qpn: qpn(local_qpn),
        starting_psn: Psn::from_random(u64::from(local_qpn) << 4),
        pkey: Pkey::DEFAULT,
        mtu: IbMtu::Mtu2048,
        retry_count: RetryCount::default(),
        rnr_retry_count: RetryCount::default(),
        has_shared_receive_queue: true,
        remote_response_timeout: code(16),
        local_response_timeout: code(16),
        max_cm_retries: CmRetries::new(RETRIES).unwrap(),
        private_data: private_data().to_private_data(),
    }
}

fn private_data() -> IpoibPrivateData {
    IpoibPrivateData { qpn: qpn(0x48), receive_mtu: 65524 }
}

fn acceptance(local_qpn: u32) -> Acceptance {
    Acceptance {
        qpn: qpn(local_qpn),
        starting_psn: Psn::from_random(u64::from(local_qpn) << 4),
        rnr_retry_count: RetryCount::default(),
        has_shared_receive_queue: true,
        target_ack_delay: code(7),
        private_data: private_data().to_private_data(),
    }
}

/// Manager `a` at LID 1 connects to manager `b` at LID 2, which listens.
struct Pair {
    a: Manager<&'static str>,
    b: Manager<&'static str>,
    now: Instant,
}

type Mads = Vec<[u8; MAD_BYTES]>;

fn drained(manager: &mut Manager<&'static str>, to: u16) -> Mads {
    let mut mads = Vec::new();
    while let Some(mad) = manager.poll_mad() {
        assert_eq!(mad.to, address(to));
        mads.push(mad.bytes);
    }
    mads
}

fn kinds(mads: &Mads) -> Vec<CmAttribute> {
    mads.iter().map(|bytes| parse(bytes).unwrap().message.attribute()).collect()
}

fn events(manager: &mut Manager<&'static str>) -> Vec<Event<&'static str>> {
    core::iter::from_fn(|| manager.poll_event()).collect()
}

impl Pair {
    fn new() -> Self {
        let mut b = Manager::new(&config(2)).unwrap();
        b.listen(service(), u64::MAX).unwrap();
        Self { a: Manager::new(&config(1)).unwrap(), b, now: Instant::from_millis(1000) }
    }

    /// With a REQ under way.
    fn requesting() -> Self {
        let mut pair = Self::new();
        let request = connect_request(0x101);
        pair.a.connect(pair.now, "out", &request).unwrap();
        pair
    }

    /// With a REQ reported.
    fn requested() -> (Self, RequestId) {
        let mut pair = Self::requesting();
        assert_eq!(pair.a_to_b(), [CmAttribute::Request]);
        let request = pair.take_request();
        (pair, request)
    }

    /// With a REP under way.
    fn accepting() -> Self {
        let (mut pair, request) = Self::requested();
        let now = pair.now;
        let acceptance = acceptance(0x201);
        pair.b.accept(now, request, "in", &acceptance).unwrap();
        pair
    }

    /// With a REP reported.
    fn replied() -> Self {
        let mut pair = Self::accepting();
        assert_eq!(pair.b_to_a(), [CmAttribute::Reply]);
        let events = events(&mut pair.a);
        assert!(matches!(events[..], [Event::Replied { tag: "out", .. }]));
        pair
    }

    fn established() -> Self {
        let mut pair = Self::replied();
        pair.a.establish("out").unwrap();
        assert_eq!(pair.a_to_b(), [CmAttribute::ReadyToUse]);
        let expected = [Event::Established { tag: "in" }];
        assert_eq!(events(&mut pair.b), expected);
        pair
    }

    fn take_request(&mut self) -> RequestId {
        match events(&mut self.b)[..] {
            [Event::Requested { request, .. }] => request,
            ref other => panic!("{other:?}"),
        }
    }

    fn give_a(&mut self, mads: &Mads) {
        for bytes in mads {
            self.a.handle_mad(self.now, address(2), bytes);
        }
    }

    fn give_b(&mut self, mads: &Mads) {
        for bytes in mads {
            self.b.handle_mad(self.now, address(1), bytes);
        }
    }

    /// Takes the messages of `a` to `b`.
    fn a_to_b(&mut self) -> Vec<CmAttribute> {
        let mads = self.lose_a();
        self.give_b(&mads);
        kinds(&mads)
    }

    fn b_to_a(&mut self) -> Vec<CmAttribute> {
        let mads = self.lose_b();
        self.give_a(&mads);
        kinds(&mads)
    }

    fn lose_a(&mut self) -> Mads {
        drained(&mut self.a, 2)
    }

    fn lose_b(&mut self) -> Mads {
        drained(&mut self.b, 1)
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now + span;
        self.a.handle_timeout(self.now);
        self.b.handle_timeout(self.now);
    }

    /// All that was sent for a connection is gone, on both sides.
    fn assert_empty(&mut self) {
        assert_eq!((self.lose_a(), self.lose_b()), (vec![], vec![]));
        assert_eq!((self.a.connections_len(), self.b.connections_len()), (0, 0));
        assert_eq!((self.a.poll_timeout(), self.b.poll_timeout()), (None, None));
        assert_eq!((self.a.poll_event(), self.b.poll_event()), (None, None));
    }
}

/// The reason of the only message, a REJ.
fn rejected_with(mads: &Mads) -> Option<RejectReason> {
    assert_eq!(kinds(mads), [CmAttribute::Reject]);
    match parse(&mads[0]).unwrap().message {
        Message::Reject(wire) => wire.reason(),
        ref other => panic!("{other:?}"),
    }
}

/// A message, changed.
fn altered(bytes: &[u8; MAD_BYTES], place: usize, value: &[u8]) -> Mads {
    let mut bytes = *bytes;
    bytes[24 + place..24 + place + value.len()].copy_from_slice(value);
    vec![bytes]
}

#[test]
fn a_connection_lives_and_ends() {
    let mut pair = Pair::established();
    pair.a.disconnect(pair.now, "out").unwrap();
    assert_eq!(pair.a_to_b(), [CmAttribute::DisconnectRequest]);
    let cause = DisconnectCause::ByPeer;
    let expected = [Event::Disconnected { tag: "in", cause }];
    assert_eq!(events(&mut pair.b), expected);
    assert_eq!(pair.b_to_a(), [CmAttribute::DisconnectReply]);
    let cause = DisconnectCause::Confirmed;
    let expected = [Event::Disconnected { tag: "out", cause }];
    assert_eq!(events(&mut pair.a), expected);
    assert_eq!(
        pair.a.connect(pair.now, "out", &connect_request(0x101)),
        Err(CommandError::TagInUse)
    );
    pair.pass(TIME_WAIT - Duration::from_nanos(1));
    assert_eq!(events(&mut pair.a), []);
    pair.pass(Duration::from_nanos(1));
    assert_eq!(events(&mut pair.a), [Event::TimeWaitExited { tag: "out" }]);
    assert_eq!(events(&mut pair.b), [Event::TimeWaitExited { tag: "in" }]);
    pair.assert_empty();
}

#[test]
fn both_sides_learn_what_the_other_says() {
    let mut pair = Pair::requesting();
    pair.a_to_b();
    let Some(Event::Requested { demand, from, request }) = pair.b.poll_event() else {
        panic!("a request is reported");
    };
    assert_eq!(from, address(1));
    let sent = connect_request(0x101);
    assert_eq!(demand, sent.to_request(demand.comm_id, config(1).ca_guid));
    assert_eq!(IpoibPrivateData::from_private_data(&demand.private_data), private_data());
    let sent = acceptance(0x201);
    pair.b.accept(pair.now, request, "in", &sent).unwrap();
    pair.b_to_a();
    let expected = Event::Replied {
        tag: "out",
        reply: PeerReply {
            qpn: sent.qpn,
            starting_psn: sent.starting_psn,
            rnr_retry_count: sent.rnr_retry_count,
            has_shared_receive_queue: true,
            target_ack_delay: sent.target_ack_delay,
            private_data: sent.private_data,
        },
    };
    assert_eq!(events(&mut pair.a), [expected]);
}

#[test]
fn crossed_requests_make_two_connections() {
    let mut pair = Pair::new();
    pair.a.listen(service(), u64::MAX).unwrap();
    let mut back = connect_request(0x301);
    back.to = address(1);
    let now = pair.now;
    pair.a.connect(now, "out", &connect_request(0x101)).unwrap();
    pair.b.connect(now, "out", &back).unwrap();
    let (from_a, from_b) = (pair.lose_a(), pair.lose_b());
    pair.give_a(&from_b);
    pair.give_b(&from_a);
    for (manager, own) in [(&mut pair.a, 0x102), (&mut pair.b, 0x302)] {
        let [Event::Requested { request, .. }] = events(manager)[..] else {
            panic!("a request is reported");
        };
        manager.accept(now, request, "in", &acceptance(own)).unwrap();
    }
    assert_eq!((pair.a_to_b().len(), pair.b_to_a().len()), (1, 1));
    pair.a.establish("out").unwrap();
    pair.b.establish("out").unwrap();
    assert_eq!((pair.a_to_b().len(), pair.b_to_a().len()), (1, 1));
    for manager in [&mut pair.a, &mut pair.b] {
        let events = events(manager);
        assert!(events.contains(&Event::Established { tag: "in" }));
        assert_eq!(manager.connections_len(), 2);
        assert_eq!(manager.counters().established, 2);
        assert_eq!(manager.counters().rejections_sent, 0);
    }
}
