use fabric::packet::PoolLimits;
use ipoib_rs::ib::{Gid, Pkey, Qpn};
use ipoib_rs::packet::Cast;
use ipoib_rs::wire::{AddressFlags, Scope};
use std::time::Duration;

use super::wire::{Echo, EchoKind, Ipv4Fields, Ipv4Header, Protocol, TooBig};
use super::*;

const NOW: Instant = Instant::from_millis(1_000);

fn group() -> BroadcastGroup {
    BroadcastGroup::new(Scope::LINK_LOCAL, Pkey::DEFAULT)
}

fn everybody() -> LinkAddress {
    LinkAddress::multicast(group().mgid())
}

fn link_address(number: u32) -> LinkAddress {
    let gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x0002_C903_0000_0000 + u64::from(number));
    LinkAddress::new(AddressFlags::empty(), Qpn::new(0x40 + number).unwrap(), gid)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Two hosts on one link that carries whatever it is given, at once.
struct Pair {
    hosts: [Host; 2],
    pool: Pool,
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        let hosts = [1, 2].map(|number| {
            let mut host = Host::new(HostConfig {
                addresses: vec![
                    format!("10.0.0.{number}/24").parse().unwrap(),
                    format!("fd00::{number}/64").parse().unwrap(),
                ],
                answers_echo: true,
                limits: HostLimits::SMALL,
            });
            host.set_link(link_address(number), group().mgid()).unwrap();
            host
        });
        Self { hosts, pool: Pool::new(PoolLimits::DEFAULT).unwrap(), now: NOW }
    }

    fn ping(&mut self, destination: &str, sequence: u16) {
        let source = match ip(destination) {
            IpAddr::V4(_) => ip("10.0.0.1"),
            IpAddr::V6(_) => ip("fd00::1"),
        };
        let mut packet = self.pool.allocate(Echo::header_bytes(source) + 56).unwrap();
        let echo = Echo { kind: EchoKind::Request, identifier: 1, sequence };
        assert!(echo.write(source, ip(destination), packet.bytes_mut()));
        self.hosts[0].send_ip(self.now, packet, &mut self.pool);
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        let packet = self.pool.allocate_from(bytes).unwrap();
        self.hosts[0].send_ip(self.now, packet, &mut self.pool);
    }

    /// Carries frames until none is left, and returns them as (sender, destination, protocol).
    fn carry(&mut self) -> Vec<(usize, LinkAddress, EtherType)> {
        let mut log = Vec::new();
        loop {
            let frames: Vec<_> = (0..2)
                .flat_map(|from| {
                    std::iter::from_fn(|| self.hosts[from].poll_transmit())
                        .map(|frame| (from, frame))
                        .collect::<Vec<_>>()
                })
                .collect();
            if frames.is_empty() {
                return log;
            }
            for (from, frame) in frames {
                log.push((from, frame.to, frame.protocol));
                self.deliver(1 - from, frame);
            }
        }
    }

    fn deliver(&mut self, to: usize, frame: Frame) {
        let is_for_it = frame.to.mgid().is_some() || frame.to == link_address(to as u32 + 1);
        if !is_for_it {
            return self.pool.free(frame.packet);
        }
        let delivery = Delivery { protocol: frame.protocol, cast: Cast::Unicast };
        self.hosts[to].receive(self.now, frame.packet, delivery, &mut self.pool);
    }

    /// What the stack of the first host got, as echoes.
    fn echoes(&mut self) -> Vec<Echo> {
        let delivered: Vec<_> = std::iter::from_fn(|| self.hosts[0].poll_deliver()).collect();
        delivered
            .into_iter()
            .map(|packet| {
                let header = IpHeader::parse(packet.bytes()).unwrap();
                let echo = Echo::parse(&header, packet.bytes()).unwrap();
                self.pool.free(packet);
                echo
            })
            .collect()
    }

    fn drops(&mut self) -> Vec<HostDrop> {
        let dropped: Vec<_> = std::iter::from_fn(|| self.hosts[0].poll_drop()).collect();
        dropped
            .into_iter()
            .map(|(packet, reason)| {
                self.pool.free(packet);
                reason
            })
            .collect()
    }

    fn wait(&mut self, span: Duration) {
        self.now = self.now + span;
        for host in &mut self.hosts {
            host.handle_timeout(self.now, &mut self.pool);
        }
    }

    /// Loses every frame that is on its way and returns the number.
    fn lose(&mut self) -> usize {
        let frames: Vec<_> = (0..2)
            .flat_map(|from| {
                std::iter::from_fn(|| self.hosts[from].poll_transmit()).collect::<Vec<_>>()
            })
            .collect();
        let count = frames.len();
        frames.into_iter().for_each(|frame| self.pool.free(frame.packet));
        count
    }

    fn state_of(&self, neighbor: &str) -> Option<&'static str> {
        let ip = ip(neighbor);
        self.hosts[0].neighbors().find(|row| row.ip == ip).map(|row| row.state)
    }

    fn finish(mut self) {
        for host in &mut self.hosts {
            host.clear(&mut self.pool);
        }
        assert_eq!(self.pool.outstanding(), 0);
    }
}

#[test]
fn first_ping_resolves_the_neighbor_and_is_answered() {
    for destination in ["10.0.0.2", "fd00::2"] {
        let mut pair = Pair::new();
        pair.ping(destination, 7);
        assert_eq!(pair.state_of(destination), Some("incomplete"));
        let log = pair.carry();
        assert_eq!(pair.state_of(destination), Some("reachable"));
        let echoes = pair.echoes();
        assert_eq!(echoes.len(), 1);
        assert_eq!((echoes[0].kind, echoes[0].sequence), (EchoKind::Reply, 7));
        assert!(log[0].1.mgid().is_some(), "the question goes to a group");
        assert_eq!(log[1].1, link_address(1), "the answer goes to who asked");
        pair.ping(destination, 8);
        assert_eq!(pair.carry()[0].1, link_address(2), "no second question");
        assert_eq!(pair.hosts[0].counters().solicits_sent, 1);
        pair.finish();
    }
}

#[test]
fn nobody_answers_and_the_packets_come_back_after_three_tries() {
    for destination in ["10.0.0.99", "fd00::99"] {
        let mut pair = Pair::new();
        pair.ping(destination, 1);
        for try_count in 1..=u64::from(SOLICIT_TRIES_MAX) {
            assert_eq!(pair.hosts[0].counters().solicits_sent, try_count);
            pair.carry();
            assert_eq!(pair.drops(), []);
            assert_eq!(pair.hosts[0].poll_timeout(), Some(pair.now + SOLICIT_RETRY));
            pair.wait(SOLICIT_RETRY);
        }
        assert_eq!(pair.drops(), [HostDrop::NeighborUnresolved]);
        assert_eq!(pair.hosts[0].poll_timeout(), None);
        assert_eq!(pair.state_of(destination), None);
        pair.finish();
    }
}

#[test]
fn lost_question_is_asked_again_and_the_queue_goes_out_in_order() {
    let mut pair = Pair::new();
    for sequence in 0..5 {
        pair.ping("10.0.0.2", sequence);
    }
    assert_eq!(pair.lose(), 1, "one question for five packets");
    pair.wait(SOLICIT_RETRY);
    pair.carry();
    let sequences: Vec<_> = pair.echoes().iter().map(|echo| echo.sequence).collect();
    assert_eq!(sequences, [0, 1, 2, 3, 4]);
    pair.finish();
}

#[test]
fn old_address_is_confirmed_when_it_is_used() {
    for destination in ["10.0.0.2", "fd00::2"] {
        let mut pair = Pair::new();
        pair.ping(destination, 0);
        pair.carry();
        pair.wait(REACHABLE);
        pair.ping(destination, 1);
        assert_eq!(pair.state_of(destination), Some("probing"));
        let log = pair.carry();
        assert_eq!((log[0].1, log[1].1), (link_address(2), link_address(2)));
        assert_eq!(pair.state_of(destination), Some("reachable"));
        assert_eq!(pair.echoes().len(), 2, "the packet did not wait");
        pair.finish();
    }
}

#[test]
fn neighbor_that_no_longer_answers_is_forgotten() {
    let mut pair = Pair::new();
    pair.ping("10.0.0.2", 0);
    pair.carry();
    pair.wait(REACHABLE);
    pair.ping("10.0.0.2", 1);
    for _ in 0..SOLICIT_TRIES_MAX {
        pair.lose();
        pair.wait(SOLICIT_RETRY);
    }
    assert_eq!(pair.state_of("10.0.0.2"), None);
    assert_eq!(pair.hosts[0].counters().neighbors_lost, 1);
    pair.echoes();
    pair.finish();
}

#[test]
fn announcement_moves_known_neighbors_and_adds_none() {
    let mut pair = Pair::new();
    for destination in ["10.0.0.2", "fd00::2"] {
        pair.ping(destination, 0);
        pair.carry();
    }
    pair.echoes();
    let moved = link_address(2_000);
    pair.hosts[1].set_link(moved, group().mgid()).unwrap();
    let Pair { hosts, pool, .. } = &mut pair;
    hosts[1].announce(pool);
    assert_eq!(pair.carry().len(), 2);
    let addresses: Vec<_> = pair.hosts[0].neighbors().map(|row| row.address).collect();
    assert_eq!(addresses, [Some(moved), Some(moved)]);

    let mut stranger = Pair::new();
    let Pair { hosts, pool, .. } = &mut stranger;
    hosts[1].announce(pool);
    stranger.carry();
    assert_eq!(stranger.hosts[0].neighbors().count(), 0);
    stranger.finish();
    pair.finish();
}

#[test]
fn claim_of_the_own_address_is_counted_and_ignored() {
    let mut pair = Pair::new();
    pair.hosts[1]
        .set_addresses(vec!["10.0.0.1/24".parse().unwrap(), "fd00::1/64".parse().unwrap()]);
    let Pair { hosts, pool, .. } = &mut pair;
    hosts[1].announce(pool);
    pair.carry();
    assert_eq!(pair.hosts[0].counters().conflicts_received, 2);
    assert_eq!(pair.hosts[0].neighbors().count(), 0);
    pair.finish();
}

#[test]
fn groups_and_broadcast_addresses_go_to_their_groups() {
    let cases = [
        ("255.255.255.255", everybody()),
        ("10.0.0.255", everybody()),
        ("224.0.0.1", LinkAddress::multicast(group().mgid_of(ip("224.0.0.1")).unwrap())),
        ("ff02::1", LinkAddress::multicast(group().mgid_of(ip("ff02::1")).unwrap())),
    ];
    for (destination, expected) in cases {
        let mut pair = Pair::new();
        pair.ping(destination, 3);
        let log = pair.carry();
        assert_eq!(log[0].1, expected, "{destination}");
        assert_eq!(pair.echoes().len(), 1, "{destination} is answered from a unicast address");
        pair.finish();
    }
}

#[test]
fn full_queue_gives_the_packet_back() {
    let mut pair = Pair::new();
    for sequence in 0..HostLimits::SMALL.queue_packets_max as u16 {
        pair.ping("10.0.0.2", sequence);
    }
    assert_eq!(pair.drops(), []);
    pair.ping("10.0.0.2", 99);
    assert_eq!(pair.drops(), [HostDrop::NeighborQueueFull]);
    pair.finish();
}

#[test]
fn full_table_evicts_the_neighbor_that_was_confirmed_longest_ago() {
    let mut pair = Pair::new();
    pair.ping("10.0.0.2", 0);
    pair.carry();
    pair.echoes();
    for other in 10..9 + HostLimits::SMALL.neighbors_max {
        pair.ping(&format!("10.0.0.{other}"), 0);
    }
    assert_eq!(pair.state_of("10.0.0.2"), Some("reachable"));
    pair.ping("10.0.0.200", 0);
    assert_eq!(pair.state_of("10.0.0.2"), None);
    assert_eq!(pair.hosts[0].counters().neighbors_evicted, 1);
    pair.ping("10.0.0.201", 0);
    assert_eq!(pair.drops(), [HostDrop::NeighborTableFull]);
    pair.finish();
}

#[test]
fn packets_without_a_way_come_back_with_the_reason() {
    let mut pair = Pair::new();
    pair.ping("192.0.2.1", 0);
    pair.send_bytes(&[0x45, 0, 0]);
    assert_eq!(pair.drops(), [HostDrop::NoRoute, HostDrop::Malformed]);
    pair.hosts[0] = Host::new(HostConfig {
        addresses: Vec::new(),
        answers_echo: false,
        limits: HostLimits::SMALL,
    });
    pair.ping("10.0.0.2", 0);
    assert_eq!(pair.drops(), [HostDrop::LinkUnset]);
    pair.finish();
}

#[test]
fn stack_is_told_of_a_packet_that_is_too_big() {
    let mut pair = Pair::new();
    let fields = Ipv4Fields {
        dont_fragment: true,
        ..Ipv4Fields::whole([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::UDP)
    };
    let mut packet = pair.pool.allocate(3000).unwrap();
    let header = Ipv4Header::new(fields, 2980).unwrap();
    packet.bytes_mut()[..20].copy_from_slice(header.as_bytes());
    pair.hosts[0].handle_too_big(packet, 2044, &mut pair.pool);
    let answer = pair.hosts[0].poll_deliver().unwrap();
    let header = IpHeader::parse(answer.bytes()).unwrap();
    let too_big = TooBig::parse(&header, answer.bytes()).unwrap();
    assert_eq!((too_big.mtu, too_big.original_destination), (2044, ip("10.0.0.2")));
    assert_eq!(header.destination, ip("10.0.0.1"));
    pair.pool.free(answer);
    pair.finish();
}

#[test]
fn wanted_groups_are_those_of_the_addresses_and_the_extra_ones() {
    let mut pair = Pair::new();
    pair.hosts[0].set_groups([ip("239.1.2.3"), ip("224.0.0.1"), ip("10.0.0.9")]);
    let mut expected: Vec<_> = ["224.0.0.1", "ff02::1", "ff02::1:ff00:1", "239.1.2.3"]
        .map(|address| LinkAddress::multicast(group().mgid_of(ip(address)).unwrap()))
        .to_vec();
    expected.sort();
    assert_eq!(pair.hosts[0].joined_groups(), expected);
    pair.finish();
}

#[test]
fn only_a_broadcast_mgid_makes_a_link() {
    let mut host = Pair::new().hosts.into_iter().next().unwrap();
    let all_hosts = group().mgid_of(ip("224.0.0.1")).unwrap();
    assert_eq!(host.set_link(link_address(1), all_hosts), Err(NotBroadcast));
}

#[test]
fn empty_pool_is_counted_and_the_question_is_repeated() {
    let mut pair = Pair::new();
    pair.pool = Pool::new(PoolLimits { small_max: 1, large_max: 0 }).unwrap();
    pair.ping("10.0.0.2", 0);
    assert_eq!(pair.hosts[0].counters().pool_exhausted, 1);
    assert_eq!(pair.lose(), 0);
    assert!(pair.hosts[0].poll_timeout().is_some());
    pair.finish();
}

#[test]
fn damaged_neighbor_discovery_is_counted_and_not_delivered() {
    let mut pair = Pair::new();
    let target = "fd00::1".parse().unwrap();
    let source = "fd00::2".parse().unwrap();
    let mut bytes = wire::solicitation_packet(source, target, target, link_address(2));
    bytes[60] ^= 1;
    let packet = pair.pool.allocate_from(&bytes).unwrap();
    let delivery = Delivery { protocol: EtherType::IPV6, cast: Cast::Unicast };
    pair.hosts[0].receive(NOW, packet, delivery, &mut pair.pool);
    assert_eq!(pair.hosts[0].counters().malformed_received, 1);
    assert!(pair.hosts[0].poll_deliver().is_none());
    assert_eq!(pair.pool.outstanding(), 0);
    pair.finish();
}
