//! Making a world.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fabric::hca::HcaConfig;
use fabric::packet::PoolLimits;
use fabric::port::PortId;
use fabric::sm::{SmConfig, SmLimits};
use fabric::subnet::{Subnet, SubnetError};
use fabric::{CreateError, Fabric, FabricConfig};
use ipoib_rs::ib::Pkey;
use ipoib_rs::interface::{ConnectedSupport, Mode};
use ipoib_rs::limits::{CONNECTED_MTU_MAX, MTU_MIN};
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{BroadcastGroup, Scope};

use super::bond::Bond;
use super::checker::Checkers;
use super::faults::Faults;
use super::pings::{Pings, Version};
use super::site::Site;
use super::station::Station;
use super::streams::Streams;
use super::{CONTEXT_SITES, CONTEXT_SUBNET, Totals, World};
use crate::agenda::Agenda;
use crate::host::{Host, HostConfig, HostLimits, Subnet as IpSubnet};
use crate::random::Random;
use crate::rules::{ConnectedRules, Rules};
use crate::swarm::Planted;
use crate::trace::{Trace, Verbosity};

/// The partition of children.
pub(super) const PKEY_CHILD: u16 = 0x8001;
/// A partition that a port's own interface is moved to now and then.
pub(super) const PKEY_SPARE: u16 = 0x8002;

/// The stations whose interfaces are ports of the lagg, if there is one.
const LAGG_PORTS: [usize; 2] = [0, 1];

/// Small enough that a drought empties it, large enough for every queue in the world.
const POOL: PoolLimits = PoolLimits { small_max: 4_096, large_max: 192 };

/// What a world is to be.
#[derive(Clone, Debug)]
pub struct WorldBuilder {
    seed: u64,
    rules: Rules,
    verbosity: Verbosity,
    planted: Option<Planted>,
}

impl WorldBuilder {
    /// Two hosts, nothing goes wrong, nothing is printed.
    pub fn new(seed: u64) -> Self {
        Self { seed, rules: Rules::calm(), verbosity: Verbosity::Silent, planted: None }
    }

    /// Sets the rules.
    #[must_use]
    pub fn rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// Sets what becomes of the short log.
    #[must_use]
    pub fn verbosity(self, verbosity: Verbosity) -> Self {
        Self { verbosity, ..self }
    }

    /// Plants a bug.
    #[must_use]
    pub fn planted(self, planted: Option<Planted>) -> Self {
        Self { planted, ..self }
    }

    /// Makes the world: every port has a link, every interface is attached and up.
    ///
    /// # Panics
    ///
    /// If there is no memory for it.
    pub fn build(self) -> World {
        match self.try_build() {
            Ok(world) => world,
            Err(error) => panic!("the world cannot be made: {error:?}"),
        }
    }

    fn try_build(self) -> Result<World, SubnetError> {
        let Self { seed, rules, verbosity, planted } = self;
        let mut random = Random::new(!seed);
        let faults = Faults::new(&rules, &mut random);
        let mut fabric = Fabric::new(FabricConfig {
            pool: POOL,
            multicast_loopback: random.chance(500),
            ..FabricConfig::DEFAULT
        })?;
        let subnet = make_subnet(&mut fabric)?;
        let mut sites = Vec::new();
        for index in 0..rules.station_count {
            let port = add_port(&mut fabric, index as u64 + 1)?;
            let context = CONTEXT_SITES + index as u64;
            let support = rules.connected.and_then(|rules| support(&rules, &mut random));
            let seed = random.word();
            sites.push(Site::open(&mut fabric, port, context, seed, support)?);
        }
        let mut stations = make_stations(&mut sites, &rules, &mut random)?;
        let bonds: Vec<Bond> =
            rules.lagg.iter().filter_map(|lagg| Bond::new(&LAGG_PORTS, lagg)).collect();
        for port in bonds.iter().flat_map(|bond| &bond.ports) {
            let station = &mut stations[port.station];
            station.inbox = Some(VecDeque::new());
            if LAGG_PORTS[0] != port.station {
                station.host.set_addresses(Vec::new());
            }
        }
        let mut world = World {
            now: Instant::ZERO,
            agenda: Agenda::new(),
            fabric,
            subnet,
            checkers: Checkers::new(stations.len()),
            sites,
            stations,
            bonds,
            streams: Streams::default(),
            tracks: BTreeMap::new(),
            rules,
            faults,
            random,
            hoard: Vec::new(),
            pings: Pings::default(),
            trace: Trace::new(verbosity),
            failure: None,
            planted,
            is_disturbed: false,
            is_take_off_near: false,
            is_closing: false,
            timeouts_at_once: 0,
            in_flight: 0,
            totals: Totals::new(),
        };
        for site in 0..world.sites.len() {
            world.bring_port_up(site);
            if world.is_parent(site) {
                world.grant_pkey(site, PKEY_CHILD);
            }
        }
        for station in 0..world.stations.len() {
            world.attach(station);
            world.admin_up(station);
        }
        world.settle();
        Ok(world)
    }
}

fn make_subnet(fabric: &mut Fabric) -> Result<Subnet, SubnetError> {
    let port = add_port(fabric, 0)?;
    let config = SmConfig::new(SmLimits::DEFAULT);
    let rate = config.group.rate;
    let mut subnet = Subnet::new(fabric, port, config, rate, CONTEXT_SUBNET)?;
    let manager = subnet.manager_mut();
    // The manager's own port is in every partition, so that every port can reach it.
    for pkey in [PKEY_CHILD, PKEY_SPARE].into_iter().filter_map(Pkey::new) {
        manager.add_partition(pkey)?;
        manager.grant_pkey(port, pkey)?;
    }
    // RFC 4391 5: the broadcast group is there before an interface comes up.
    let partitions = [Pkey::DEFAULT.value(), PKEY_CHILD, PKEY_SPARE];
    for pkey in partitions.into_iter().filter_map(Pkey::new) {
        let broadcast = BroadcastGroup::new(Scope::LINK_LOCAL, pkey).mgid();
        manager.create_group(broadcast, pkey, config.group)?;
    }
    subnet.poll(fabric);
    Ok(subnet)
}

fn add_port(fabric: &mut Fabric, number: u64) -> Result<PortId, CreateError> {
    let hca = fabric.add_hca(&HcaConfig::with_guid(0x0002_C903_0000_0000 + number * 0x100))?;
    fabric.hca_ports(hca).next().ok_or(CreateError::Unknown)
}

/// What an adapter can do for connected mode.
fn support(rules: &ConnectedRules, random: &mut Random) -> Option<ConnectedSupport> {
    if !random.chance(rules.support) {
        return None;
    }
    let mtu_max = if random.chance(rules.narrow) {
        random.within(MTU_MIN as u64..=CONNECTED_MTU_MAX as u64) as usize
    } else {
        CONNECTED_MTU_MAX
    };
    Some(ConnectedSupport { mtu_max, shares_receives: random.chance(rules.shared_receives) })
}

/// One station for each port, then the children.
fn make_stations(
    sites: &mut [Site],
    rules: &Rules,
    random: &mut Random,
) -> Result<Vec<Station>, CreateError> {
    let children = (0..sites.len()).filter(|site| rules.has_children && site % 2 == 0);
    let places: Vec<_> = (0..sites.len())
        .map(|site| (site, None))
        .chain(children.map(|site| (site, Pkey::new(PKEY_CHILD))))
        .collect();
    places
        .into_iter()
        .enumerate()
        .map(|(index, (site, pkey))| {
            let host = Host::new(HostConfig {
                addresses: Version::ALL
                    .into_iter()
                    .filter_map(|version| {
                        let address = address_of(site, pkey.is_some(), version);
                        IpSubnet::new(address, prefix_bits(version))
                    })
                    .collect(),
                answers_echo: true,
                limits: HostLimits::DEFAULT,
            });
            let wants_connections =
                rules.connected.is_some_and(|rules| random.chance(rules.connected_mode));
            let mode = match sites[site].support {
                Some(_) if wants_connections => Mode::Connected,
                Some(_) | None => Mode::Datagram,
            };
            Station::new(index, site, pkey, host, mode, &mut sites[site].gsi)
        })
        .collect()
}

/// The address of an interface: the port gives the host part, the partition the subnet.
pub(super) fn address_of(site: usize, is_child: bool, version: Version) -> IpAddr {
    let host = site as u8 + 1;
    let net = u8::from(is_child);
    match version {
        Version::V4 => Ipv4Addr::new(10, 0, net, host).into(),
        Version::V6 => Ipv6Addr::new(0xFD00, 0, 0, u16::from(net), 0, 0, 0, u16::from(host)).into(),
    }
}

const fn prefix_bits(version: Version) -> u8 {
    match version {
        Version::V4 => 24,
        Version::V6 => 64,
    }
}
