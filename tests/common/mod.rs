//! One interface between a network stack, an adapter and a subnet administrator that the test plays.
//!
//! [`Bench`] answers every action as a healthy fabric does, unless the test gave it an
//! [`Bench::answers`] of its own. It keeps account of packets, address handles, attachments and
//! memberships, and [`Bench::detach`] fails if one of them is left.

// Each test binary uses its part of it.
#![allow(dead_code)]

mod adapter;
mod packets;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ipoib_rs::action::{
    Action, GroupParameters, GroupRecord, OpId, PathRecord, QueuePairChange, SaCapabilities,
    SaError, VerbError,
};
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::event::Event;
use ipoib_rs::ib::{
    Gid, IbMtu, Lid, Mgid, Mlid, Partition, Pkey, PkeyIndex, PortAttributes, Qkey, Qpn, RateCode,
    ServiceLevel,
};
use ipoib_rs::interface::{Config, Interface, PortEvent, RingFull};
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::{CompletionStatus, Receive, SendId};
use ipoib_rs::pump::{Shell, pump};
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{AddressFlags, BroadcastGroup, EtherType, LinkAddress, Scope};

pub use adapter::{Adapter, Packet};
pub use packets::*;

pub const OWN_QPN: u32 = 0x48;
pub const OWN_LID: u16 = 7;
pub const QKEY: Qkey = Qkey(0x0B1B);

/// The own port as the subnet manager set it up.
pub fn port() -> PortAttributes {
    PortAttributes {
        is_active: true,
        lid: Lid::new(OWN_LID),
        gid: gid(0),
        mtu: IbMtu::Mtu2048,
        partition: partition(0xFFFF, 0),
    }
}

pub fn partition(pkey: u16, index: u16) -> Option<Partition> {
    let pkey = Pkey::new(pkey)?;
    Some(Partition { pkey, index: PkeyIndex(index) })
}

pub fn gid(host: u64) -> Gid {
    Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x10_0000 + host)
}

pub fn lid(host: u64) -> u16 {
    0x100 + u16::try_from(host).unwrap()
}

/// The address of another host.
pub fn neighbour(host: u64) -> LinkAddress {
    let qpn = Qpn::new(0x1000 + u32::try_from(host).unwrap()).unwrap();
    LinkAddress::new(AddressFlags::empty(), qpn, gid(host))
}

/// The MGID of an IP group in a partition.
pub fn mgid_in(pkey: u16, group: &str) -> Mgid {
    let broadcast = BroadcastGroup::new(Scope::LINK_LOCAL, Pkey::new(pkey).unwrap());
    broadcast.mgid_of(group.parse().unwrap()).unwrap()
}

/// The MGID of an IP group in the default partition.
pub fn mgid(group: &str) -> Mgid {
    mgid_in(0xFFFF, group)
}

pub fn broadcast_mgid() -> Mgid {
    mgid("255.255.255.255")
}

/// What the test lets the fabric answer to an action.
pub enum Answer {
    /// What a healthy fabric says.
    Usual,
    /// Nothing yet: the action goes to [`Bench::held`].
    Hold,
    /// The SA's error.
    Sa(SaError),
    /// The SA's record of a group.
    Group(GroupRecord),
    /// The SA's record of a path.
    Path(PathRecord),
    /// The verb failed.
    VerbFailed,
}

type Answers = Box<dyn FnMut(&Action, Instant) -> Answer>;

pub struct Bench {
    parts: Parts,
    pub now: Instant,
    /// Every action so far, with its time.
    pub log: Vec<(Instant, Action)>,
    /// Actions that were not answered.
    pub held: Vec<Action>,
    pub capabilities: SaCapabilities,
    answers: Answers,
    mlids: BTreeMap<Mgid, Mlid>,
    owned: Owned,
}

/// What the interface has of others.
#[derive(Debug, Default, Eq, PartialEq)]
struct Owned {
    handles: BTreeSet<usize>,
    attached: BTreeSet<(Mgid, u16)>,
    joined: BTreeSet<(Mgid, u8)>,
}

/// What [`pump`] drives.
struct Parts {
    interface: Interface<Packet>,
    adapter: Adapter,
    actions: VecDeque<Action>,
    events: Vec<Event>,
    deadline: Option<Instant>,
}

impl Shell for Parts {
    type Packet = Packet;
    type DataPath<'a> = Adapter;

    fn with_interface<R>(
        &mut self,
        feed: impl FnOnce(&mut Interface<Packet>, &mut Adapter) -> R,
    ) -> R {
        feed(&mut self.interface, &mut self.adapter)
    }

    fn release_packets(&mut self) {}

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
    /// An interface that is down, on a port that is up.
    pub fn attach() -> Self {
        Self::attach_with(port(), Limits::DEFAULT)
    }

    pub fn attach_with(port: PortAttributes, limits: Limits) -> Self {
        let config = Config {
            qpn: Qpn::new(OWN_QPN).unwrap(),
            port,
            scope: Scope::LINK_LOCAL,
            seed: 4391,
            limits,
        };
        Self {
            parts: Parts {
                interface: Interface::attach(config).unwrap(),
                adapter: Adapter::default(),
                actions: VecDeque::new(),
                events: Vec::new(),
                deadline: None,
            },
            now: Instant::from_millis(1),
            log: Vec::new(),
            held: Vec::new(),
            capabilities: SaCapabilities::default(),
            answers: Box::new(|_, _| Answer::Usual),
            mlids: BTreeMap::new(),
            owned: Owned::default(),
        }
    }

    /// An interface with a carrier.
    pub fn joined() -> Self {
        let mut bench = Self::attach();
        bench.admin_up();
        assert!(bench.interface().is_link_up());
        bench
    }

    /// An interface with a carrier and a path to host 1.
    pub fn with_path() -> Self {
        let mut bench = Self::joined();
        bench.transmit(&neighbour(1), EtherType::IPV4, &ipv4(100, DF)).unwrap();
        bench.complete_all();
        bench.adapter().forget();
        bench
    }

    /// From now on, `answers` decides what becomes of an action.
    pub fn answers(&mut self, answers: impl FnMut(&Action, Instant) -> Answer + 'static) {
        self.answers = Box::new(answers);
    }

    pub fn answers_as_usual(&mut self) {
        self.answers(|_, _| Answer::Usual);
    }

    pub fn interface(&self) -> &Interface<Packet> {
        &self.parts.interface
    }

    pub fn adapter(&mut self) -> &mut Adapter {
        &mut self.parts.adapter
    }

    pub fn events(&self) -> &[Event] {
        &self.parts.events
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.interface().counters()[reason]
    }

    pub fn counted(&self, counter: Counter) -> u64 {
        self.interface().counters()[counter]
    }

    /// Actions that `choose` makes something of, with their times.
    pub fn logged<T>(&self, choose: impl Fn(&Action) -> Option<T>) -> Vec<(Instant, T)> {
        let chosen = |(at, action): &(Instant, Action)| Some((*at, choose(action)?));
        self.log.iter().filter_map(chosen).collect()
    }

    /// The groups that were asked for, in order.
    pub fn joins(&self) -> Vec<Mgid> {
        let joins = self.logged(|action| match action {
            Action::JoinGroup { request, .. } => Some(request.mgid),
            _ => None,
        });
        joins.into_iter().map(|(_, mgid)| mgid).collect()
    }

    pub fn admin_up(&mut self) {
        let now = self.now;
        self.feed(|interface, adapter| interface.handle_admin_up(now, adapter));
    }

    pub fn admin_down(&mut self) {
        let now = self.now;
        self.feed(|interface, adapter| interface.handle_admin_down(now, adapter));
    }

    pub fn port_event(&mut self, event: PortEvent, port: PortAttributes) {
        let now = self.now;
        self.feed(|interface, adapter| interface.handle_port_event(now, event, &port, adapter));
    }

    /// Feeds the list of groups that the stack listens to.
    pub fn listen(&mut self, list: &[&[u8]]) {
        let now = self.now;
        self.feed(|interface, adapter| {
            interface.handle_multicast_list(now, list.iter().copied(), adapter);
        });
    }

    /// Feeds the IP groups that the stack listens to.
    pub fn listen_to(&mut self, groups: &[&str]) {
        let list: Vec<Vec<u8>> = groups.iter().map(|group| group_bytes(mgid(group))).collect();
        let list: Vec<&[u8]> = list.iter().map(Vec::as_slice).collect();
        self.listen(&list);
    }

    /// Sends; a packet that the ring has no room for is counted as settled.
    pub fn transmit(
        &mut self,
        to: &LinkAddress,
        protocol: EtherType,
        bytes: &[u8],
    ) -> Result<(), SendRingFull> {
        let now = self.now;
        let packet = self.adapter().packet(bytes);
        let outcome = self.feed(|interface, adapter| {
            interface.handle_transmit(now, to, protocol, packet, adapter)
        });
        outcome.map_err(|RingFull(packet)| {
            packet.settle();
            SendRingFull
        })
    }

    /// A frame arrives from host 1.
    pub fn receive(&mut self, frame: &[u8], has_grh: bool) {
        let sender = neighbour(1).qpn();
        self.receive_from(frame, has_grh, lid(1), sender);
    }

    pub fn receive_from(&mut self, frame: &[u8], has_grh: bool, source_lid: u16, sender: Qpn) {
        let now = self.now;
        let packet = self.adapter().received(frame);
        let receive = Receive { packet, has_grh, source_lid, source_qpn: sender };
        self.feed(|interface, adapter| interface.handle_receive(now, receive, adapter));
    }

    /// The adapter completes the posted send that `id` names.
    pub fn complete(&mut self, id: SendId, status: CompletionStatus) {
        let now = self.now;
        self.adapter().finish(id);
        self.feed(|interface, adapter| {
            interface.handle_send_completion(now, id, status, adapter);
        });
    }

    /// The adapter completes everything that is posted, in order.
    pub fn complete_all(&mut self) {
        while let Some(id) = self.adapter().oldest() {
            self.complete(id, CompletionStatus::Success);
        }
    }

    /// Lets `span` pass, with every timeout on the way.
    pub fn run(&mut self, span: Duration) {
        let end = self.now + span;
        let mut timeouts = 0;
        while let Some(deadline) = self.parts.deadline.filter(|&deadline| deadline <= end) {
            self.now = self.now.max(deadline);
            let now = self.now;
            self.feed(|interface, adapter| interface.handle_timeout(now, adapter));
            timeouts += 1;
            assert!(timeouts < 10_000, "a timer does not move on");
        }
        self.now = end;
    }

    /// Answers an action that was held.
    pub fn answer(&mut self, action: Action, answer: Answer) {
        self.carry_out(action, answer);
        self.settle();
    }

    /// Detaches and checks that everything was given back.
    pub fn detach(mut self) {
        let now = self.now;
        self.answers_as_usual();
        self.feed(|interface, adapter| interface.handle_detach(now, adapter));
        for action in std::mem::take(&mut self.held) {
            self.answer(action, Answer::Usual);
        }
        self.run(Duration::from_secs(60));
        assert!(self.events().contains(&Event::Detached), "{:?}", self.interface().state_name());
        assert_eq!(self.owned, Owned::default(), "something is left");
        self.adapter().assert_empty();
    }

    /// Feeds an input and carries out all that follows from it.
    fn feed<R>(&mut self, feed: impl FnOnce(&mut Interface<Packet>, &mut Adapter) -> R) -> R {
        let result = pump(&mut self.parts, feed);
        self.settle();
        result
    }

    fn settle(&mut self) {
        while let Some(action) = self.parts.actions.pop_front() {
            self.log.push((self.now, action));
            match (self.answers)(&action, self.now) {
                Answer::Hold => self.held.push(action),
                answer => self.carry_out(action, answer),
            }
        }
    }

    fn carry_out(&mut self, action: Action, answer: Answer) {
        let now = self.now;
        match action {
            Action::CancelQuery { op } => self.held.retain(|held| operation(held) != Some(op)),
            Action::WakeSendQueue => {}
            Action::JoinGroup { op, request } => {
                let answer = match answer {
                    Answer::Sa(error) => Err(error),
                    Answer::Group(record) => Ok(record),
                    _ => Ok(self.group_record(request.mgid)),
                };
                if answer.is_ok() {
                    let state = request.membership.join_state();
                    self.owned.joined.insert((request.mgid, state));
                }
                pump(&mut self.parts, |interface, adapter| {
                    interface.handle_join_answer(now, op, answer, adapter);
                });
            }
            Action::LeaveGroup { op, mgid, membership, .. } => {
                self.owned.joined.remove(&(mgid, membership.join_state()));
                pump(&mut self.parts, |interface, adapter| {
                    interface.handle_leave_answer(now, op, Ok(()), adapter);
                });
            }
            Action::QueryPath { op, query } => {
                let answer = match answer {
                    Answer::Sa(error) => Err(error),
                    Answer::Path(record) => Ok(record),
                    _ => Ok(path_record(query.destination)),
                };
                pump(&mut self.parts, |interface, adapter| {
                    interface.handle_path_answer(now, op, answer, adapter);
                });
            }
            Action::QuerySaCapabilities { op } => {
                let answer = match answer {
                    Answer::Sa(error) => Err(error),
                    _ => Ok(self.capabilities),
                };
                pump(&mut self.parts, |interface, _| interface.handle_sa_capabilities(op, answer));
            }
            Action::AttachGroup { op, .. }
            | Action::DetachGroup { op, .. }
            | Action::CreateAddressHandle { op, .. }
            | Action::DestroyAddressHandle { op, .. }
            | Action::ModifyQueuePair { op, .. } => {
                let result = match answer {
                    Answer::VerbFailed => Err(VerbError),
                    _ => Ok(()),
                };
                if result.is_ok() {
                    self.carry_out_verb(action);
                }
                pump(&mut self.parts, |interface, adapter| {
                    interface.handle_verb_result(now, op, result, adapter);
                });
                self.flush_if_in_error(action, result);
            }
        }
    }

    fn carry_out_verb(&mut self, action: Action) {
        match action {
            Action::CreateAddressHandle { handle, .. } => {
                assert!(self.owned.handles.insert(handle.index()), "a handle is made twice");
            }
            Action::DestroyAddressHandle { handle, .. } => {
                assert!(self.owned.handles.remove(&handle.index()), "no such handle");
                assert!(!self.adapter().uses(handle), "a posted send uses the handle");
            }
            Action::AttachGroup { mgid, mlid, .. } => {
                assert!(self.owned.attached.insert((mgid, mlid.value())), "attached twice");
            }
            Action::DetachGroup { mgid, mlid, .. } => {
                assert!(self.owned.attached.remove(&(mgid, mlid.value())), "not attached");
            }
            Action::ModifyQueuePair { change: QueuePairChange::Reset, .. } => {
                self.adapter().reset();
            }
            _ => {}
        }
    }

    /// What is posted on a queue pair in the error state comes back.
    fn flush_if_in_error(&mut self, action: Action, result: Result<(), VerbError>) {
        let change = match action {
            Action::ModifyQueuePair { change, .. } => Some(change),
            _ => None,
        };
        if change != Some(QueuePairChange::Error) || result.is_err() || self.adapter().is_wedged {
            return;
        }
        let now = self.now;
        while let Some(id) = self.adapter().oldest() {
            self.adapter().finish(id);
            pump(&mut self.parts, |interface, adapter| {
                interface.handle_send_completion(now, id, CompletionStatus::Flushed, adapter);
            });
        }
        while self.adapter().take_receive() {
            pump(&mut self.parts, |interface, adapter| {
                interface.handle_receive_failed(now, CompletionStatus::Flushed, adapter);
            });
        }
    }

    /// The record of a group like the broadcast group.
    pub fn group_record(&mut self, mgid: Mgid) -> GroupRecord {
        let next = Mlid::MIN.value() + u16::try_from(self.mlids.len()).unwrap();
        let mlid = *self.mlids.entry(mgid).or_insert(Mlid::new(next).unwrap());
        group_record(mgid, mlid.value())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.adapter().lost(), 0, "packets ended without a word");
        }
    }
}

/// [`RingFull`] without its packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SendRingFull;

fn operation(action: &Action) -> Option<OpId> {
    match *action {
        Action::AttachGroup { op, .. }
        | Action::CancelQuery { op }
        | Action::CreateAddressHandle { op, .. }
        | Action::DestroyAddressHandle { op, .. }
        | Action::DetachGroup { op, .. }
        | Action::JoinGroup { op, .. }
        | Action::LeaveGroup { op, .. }
        | Action::ModifyQueuePair { op, .. }
        | Action::QueryPath { op, .. }
        | Action::QuerySaCapabilities { op } => Some(op),
        Action::WakeSendQueue => None,
    }
}

pub fn group_record(mgid: Mgid, mlid: u16) -> GroupRecord {
    let [_, _, _, _, high, low, ..] = mgid.gid().0;
    GroupRecord {
        mgid,
        mlid: Mlid::new(mlid).unwrap(),
        pkey: Pkey::new(u16::from_be_bytes([high, low])).unwrap(),
        parameters: GroupParameters {
            qkey: QKEY,
            mtu: IbMtu::Mtu2048,
            rate: RateCode::new(3).unwrap(),
            sl: ServiceLevel::default(),
            packet_life_time: 18,
            global: Default::default(),
        },
    }
}

/// The record of a path to the host with this GID.
pub fn path_record(destination: Gid) -> PathRecord {
    let host = destination.guid() - gid(0).guid();
    PathRecord {
        destination,
        lid: Lid::new(lid(host)).unwrap(),
        sl: ServiceLevel::default(),
        mtu: IbMtu::Mtu2048,
        rate: RateCode::new(3).unwrap(),
        global: None,
    }
}
