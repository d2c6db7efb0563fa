//! A lagg with nothing around it: every action is seen, and answered when the test says so.
//!
//! [`Bench`] plays the shell through the same pump as the real ones. Its face has to agree with the
//! lagg after every input.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ipoib_rs::ib::{Gid, Pkey, Qpn};
use ipoib_rs::lagg::{
    Action, Capabilities, Config, Event, Face, Identity, Lagg, PortError, PortId, PortLink,
    PortReport, Removal, Shell, pump,
};
use ipoib_rs::limits::LaggLimits;
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{AddressFlags, BroadcastGroup, LinkAddress, Scope};

pub const BROADCAST: BroadcastGroup = BroadcastGroup::new(Scope::LINK_LOCAL, Pkey::DEFAULT);

/// The identity of port number `n` with a queue pair of its own.
pub fn identity(n: u8, qpn: u32) -> Identity {
    let gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x0002_C903_0000_0200 + u64::from(n));
    Identity {
        address: LinkAddress::new(AddressFlags::empty(), Qpn::new(qpn).unwrap(), gid),
        broadcast: LinkAddress::multicast(BROADCAST.mgid()),
    }
}

/// Port number `n` with a link.
pub fn joined(n: u8) -> PortReport {
    PortReport {
        identity: identity(n, 0x200 + u32::from(n)),
        link: PortLink::Joined,
        mtu: 2044,
        mtu_max: 2044,
        capabilities: Capabilities { supported: 0b111, enabled: 0b110, assist: 0b11 },
    }
}

/// Port number `n` without a link.
pub fn down(n: u8) -> PortReport {
    PortReport { link: PortLink::Down, ..joined(n) }
}

/// What the stack sees.
#[derive(Debug, Default)]
pub struct Mirror {
    pub worn: Option<Identity>,
    pub changes: u32,
}

impl Face for Mirror {
    fn wear(&mut self, identity: Option<&Identity>) {
        self.worn = identity.copied();
        self.changes += 1;
    }
}

/// A lagg and its surroundings.
#[derive(Debug)]
pub struct Bench {
    pub lagg: Lagg,
    pub mirror: Mirror,
    pub now: Instant,
    pub deadline: Option<Instant>,
    pub events: Vec<Event>,
    /// Those that nobody has carried out yet.
    pub actions: VecDeque<Action>,
    /// What every port that was ever added is like, for [`Action::QueryPorts`].
    pub ports: BTreeMap<PortId, PortReport>,
    /// The groups of each port.
    pub groups: BTreeMap<PortId, BTreeSet<LinkAddress>>,
    pub joins: u32,
    pub leaves: u32,
    pub announced: Vec<LinkAddress>,
    pub released: Vec<PortId>,
    /// Whether ports refuse groups and MTUs.
    pub refuses: bool,
}

impl Shell for Bench {
    type Face<'a> = Mirror;

    fn with_lagg<R>(&mut self, feed: impl FnOnce(&mut Lagg, &mut Mirror) -> R) -> R {
        let result = feed(&mut self.lagg, &mut self.mirror);
        assert_eq!(self.mirror.worn.as_ref(), self.lagg.identity(), "what is worn is what is seen");
        if let Some(carrier) = self.lagg.ports().find(|row| row.is_carrier) {
            assert_eq!(self.lagg.identity(), Some(&carrier.identity), "the port that carries");
        }
        result
    }

    fn observe(&mut self, event: Event) {
        self.events.push(event);
    }

    fn execute(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn schedule(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }
}

impl Bench {
    pub fn new() -> Self {
        Self::with(Config { limits: LaggLimits::SMALL, ..Config::new(7) })
    }

    pub fn with(config: Config) -> Self {
        Self {
            lagg: Lagg::attach(config).unwrap(),
            mirror: Mirror::default(),
            now: Instant::from_millis(1000),
            deadline: None,
            events: Vec::new(),
            actions: VecDeque::new(),
            ports: BTreeMap::new(),
            groups: BTreeMap::new(),
            joins: 0,
            leaves: 0,
            announced: Vec::new(),
            released: Vec::new(),
            refuses: false,
        }
    }

    /// Up, with ports 1 to `count`, all of them with a link, and nothing left to do.
    pub fn up(count: u8) -> (Self, Vec<PortId>) {
        let mut bench = Self::new();
        bench.feed(|lagg, _, _| lagg.handle_admin_up());
        let ports = (1..=count).map(|n| bench.add(&joined(n))).collect();
        bench.run();
        (bench, ports)
    }

    pub fn feed<R>(&mut self, input: impl FnOnce(&mut Lagg, Instant, &mut Mirror) -> R) -> R {
        let now = self.now;
        pump(self, |lagg, mirror| input(lagg, now, mirror))
    }

    pub fn add(&mut self, report: &PortReport) -> PortId {
        let port = self.feed(|lagg, now, face| lagg.handle_port_added(now, report, face)).unwrap();
        self.ports.insert(port, *report);
        port
    }

    pub fn report(&mut self, port: PortId, report: &PortReport) {
        self.ports.insert(port, *report);
        self.feed(|lagg, now, face| lagg.handle_port_reported(now, port, report, face));
    }

    pub fn remove(&mut self, port: PortId, removal: Removal) {
        self.feed(|lagg, now, face| lagg.handle_port_removed(now, port, removal, face));
        if removal == Removal::Vanished {
            self.ports.remove(&port);
            self.groups.remove(&port);
        }
    }

    pub fn list(&mut self, groups: &[&str]) {
        let broadcast = self.lagg.identity().unwrap().broadcast.mgid().unwrap();
        let broadcast = BroadcastGroup::from_mgid(broadcast).unwrap();
        let address = |group: &&str| {
            LinkAddress::multicast(broadcast.mgid_of(group.parse().unwrap()).unwrap())
        };
        let list: Vec<LinkAddress> = groups.iter().map(address).collect();
        self.raw_list(&list.iter().map(zerocopy_bytes).collect::<Vec<_>>());
    }

    pub fn raw_list(&mut self, list: &[Vec<u8>]) {
        self.feed(|lagg, _, _| lagg.handle_multicast_list(list.iter().map(Vec::as_slice)));
    }

    /// Carries out one action, as ports in order do.
    pub fn execute_next(&mut self) -> bool {
        let Some(action) = self.actions.pop_front() else {
            return false;
        };
        let answer = if self.refuses { Err(PortError) } else { Ok(()) };
        match action {
            Action::Announce { port } => {
                // By now another port may carry, whose announcement is still to come.
                if self.lagg.carrier() == Some(port) {
                    self.announced.push(self.lagg.identity().unwrap().address);
                }
            }
            Action::JoinGroup { op, port, group } => {
                self.joins += 1;
                if answer.is_ok() {
                    let is_new = self.groups.entry(port).or_default().insert(group);
                    assert!(is_new, "joined twice");
                }
                self.feed(|lagg, _, _| lagg.handle_group_answer(op, answer));
            }
            Action::LeaveGroup { op, port, group } => {
                self.leaves += 1;
                assert!(self.groups.get_mut(&port).unwrap().remove(&group), "left, not joined");
                self.feed(|lagg, _, _| lagg.handle_group_answer(op, Ok(())));
            }
            Action::SetPortMtu { op, port, mtu } => {
                if answer.is_ok() {
                    self.ports.get_mut(&port).unwrap().mtu = mtu;
                }
                self.feed(|lagg, _, _| lagg.handle_mtu_answer(op, answer));
            }
            Action::QueryPorts => {
                for (port, report) in self.ports.clone() {
                    self.report(port, &report);
                }
            }
            Action::ReleasePort { port } => {
                assert!(self.groups.remove(&port).is_none_or(|groups| groups.is_empty()));
                assert!(self.ports.remove(&port).is_some(), "released twice");
                self.released.push(port);
                self.feed(|lagg, _, _| lagg.handle_port_released(port));
            }
            Action::RaisePort { .. } | Action::LowerPort { .. } => {}
        }
        true
    }

    /// Carries out everything.
    pub fn run(&mut self) {
        let mut count = 0;
        while self.execute_next() {
            count += 1;
            assert!(count < 10_000, "there is always something to do");
        }
    }

    /// Lets time go by, with all that is due in it.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        self.run();
        while let Some(at) = self.deadline.filter(|&at| at <= end) {
            assert!(at > self.now, "a deadline is reached again and again");
            self.now = at;
            self.feed(|lagg, now, face| lagg.handle_timeout(now, face));
            self.run();
        }
        self.now = end;
    }

    /// How often the stack was told of an address.
    pub fn address_events(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::AddressChanged(_))).count()
    }

    pub fn carrier(&self) -> Option<PortId> {
        self.lagg.carrier()
    }

    /// Forgets what was seen so far.
    pub fn forget(&mut self) {
        self.events.clear();
        self.announced.clear();
        self.joins = 0;
        self.leaves = 0;
        self.mirror.changes = 0;
    }
}

/// The bytes of an address, as they stand in the stack's list.
pub fn zerocopy_bytes(address: &LinkAddress) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(address.qpn().to_bytes());
    bytes.extend(address.gid().0);
    bytes[0] = address.flags().bits();
    bytes
}
