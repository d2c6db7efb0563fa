//! A [`Bench`] whose fabric is in order by itself, except for what a test says.
//!
//! Every action is answered at once as a healthy fabric does, unless [`Scene::answers`] decides
//! otherwise. Actions are logged, and nothing above the MTU of the fabric may be posted.

#![allow(dead_code, unreachable_pub, reason = "each test file is a crate and uses a part of it")]

use std::time::Duration;

use ipoib_rs::action::{
    Action, GroupRecord, OpId, PathRecord, QueuePairChange, SaCapabilities, SaError, VerbError,
};
use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::event::Event;
use ipoib_rs::ib::{Gid, Mgid, Mlid, Partition, Pkey, PkeyIndex, PortAttributes, Qpn};
use ipoib_rs::interface::{Interface, PortEvent};
use ipoib_rs::limits::Limits;
use ipoib_rs::packet::{CompletionStatus, Receive, SendId};
use ipoib_rs::time::Instant;
use ipoib_rs::wire::{BroadcastGroup, EtherType, LinkAddress, Scope};
use zerocopy::IntoBytes;

use crate::common::{Adapter, Bench, Packet, group_parameters, peer, port};

/// The MTU of the fabric.
const IB_MTU_BYTES: usize = 2048;

/// What becomes of an action.
pub enum Answer {
    /// What a healthy fabric says.
    Usual,
    /// Nothing yet: the action goes to [`Scene::held`].
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

pub struct Scene {
    bench: Bench,
    answers: Answers,
    /// Every action so far, with its time.
    pub log: Vec<(Instant, Action)>,
    /// Actions that were not answered.
    pub held: Vec<Action>,
    pub capabilities: SaCapabilities,
    /// Nothing completes in the error state.
    pub is_wedged: bool,
}

impl Scene {
    /// An interface that is down, on a port that is up.
    pub fn attach() -> Self {
        Self::attach_with(port(), Limits::DEFAULT)
    }

    pub fn attach_with(port: PortAttributes, limits: Limits) -> Self {
        Self {
            bench: Bench::new(port, limits),
            answers: Box::new(|_, _| Answer::Usual),
            log: Vec::new(),
            held: Vec::new(),
            capabilities: SaCapabilities::default(),
            is_wedged: false,
        }
    }

    /// An interface with a carrier.
    pub fn joined() -> Self {
        let mut scene = Self::attach();
        scene.admin_up();
        assert!(scene.interface().is_link_up());
        scene
    }

    /// An interface with a carrier and a path to peer 1.
    pub fn with_path() -> Self {
        let mut scene = Self::joined();
        scene.send(&peer(1), EtherType(0x1234), vec![0; 100]);
        scene.bench.complete_all();
        scene.settle();
        scene.bench.adapter.wire.clear();
        scene
    }

    /// From now on, `answers` decides what becomes of an action.
    pub fn answers(&mut self, answers: impl FnMut(&Action, Instant) -> Answer + 'static) {
        self.answers = Box::new(answers);
    }

    pub fn answers_as_usual(&mut self) {
        self.answers(|_, _| Answer::Usual);
    }

    /// From now on, path queries are not answered.
    pub fn holds_path_queries(&mut self) {
        self.answers(|action, _| match action {
            Action::QueryPath { .. } => Answer::Hold,
            _ => Answer::Usual,
        });
    }

    /// From now on, joins are answered with `error`.
    pub fn refuses_joins(&mut self, error: SaError) {
        self.answers(move |action, _| match action {
            Action::JoinGroup { .. } => Answer::Sa(error),
            _ => Answer::Usual,
        });
    }

    pub fn interface(&self) -> &Interface<Packet> {
        &self.bench.interface
    }

    pub fn adapter(&mut self) -> &mut Adapter {
        &mut self.bench.adapter
    }

    pub fn events(&self) -> &[Event] {
        &self.bench.events
    }

    pub fn now(&self) -> Instant {
        self.bench.now
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.bench.drops(reason)
    }

    pub fn counted(&self, counter: Counter) -> u64 {
        self.bench.count(counter)
    }

    /// What `choose` makes of the actions so far, with their times.
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
        self.bench.admin_up();
        self.settle();
    }

    pub fn admin_down(&mut self) {
        self.bench.admin_down();
        self.settle();
    }

    pub fn port_event(&mut self, event: PortEvent, port: PortAttributes) {
        self.bench.port_event(event, |old| *old = port);
        self.settle();
    }

    /// Feeds the list of link-layer addresses that the stack listens to.
    pub fn listen(&mut self, list: &[&[u8]]) {
        self.bench.listen(list);
        self.settle();
    }

    /// Feeds the list of IP groups that the stack listens to, in the default partition.
    pub fn listen_to(&mut self, groups: &[&str]) {
        let list: Vec<Vec<u8>> = groups.iter().map(|group| group_bytes(mgid(group))).collect();
        let list: Vec<&[u8]> = list.iter().map(Vec::as_slice).collect();
        self.listen(&list);
    }

    /// Sends; the ring has room.
    pub fn send(&mut self, to: &LinkAddress, protocol: EtherType, bytes: Vec<u8>) {
        self.bench.send(to, protocol, bytes).expect("room in the ring");
        self.settle();
    }

    /// A frame arrives from peer 1.
    pub fn receive(&mut self, frame: &[u8], has_grh: bool) {
        self.receive_from(frame, has_grh, 0x101, peer(1).qpn());
    }

    pub fn receive_from(&mut self, frame: &[u8], has_grh: bool, source_lid: u16, sender: Qpn) {
        let packet = Packet::new(frame);
        self.bench.receive(Receive { packet, has_grh, source_lid, source_qpn: sender });
        self.settle();
    }

    /// The adapter completes the posted send that `id` names.
    pub fn complete(&mut self, id: SendId, status: CompletionStatus) {
        let posted = &mut self.bench.adapter.posted;
        let at = posted.iter().position(|(send, _)| send.id == id);
        let (_, packet) = posted.remove(at.expect("a posted send")).unwrap();
        packet.end();
        self.bench.complete_id(id, status);
        self.settle();
    }

    /// The adapter completes everything that is posted, in order.
    pub fn complete_all(&mut self) {
        self.bench.complete_all();
        self.settle();
    }

    /// Lets `span` pass, with every deadline on the way.
    pub fn pass(&mut self, span: Duration) {
        let end = self.bench.now + span;
        while let Some(deadline) = self.bench.deadline.filter(|&deadline| deadline <= end) {
            self.bench.pass(deadline - self.bench.now);
            self.settle();
        }
        self.bench.pass(end - self.bench.now);
    }

    /// Answers an action that was held.
    pub fn answer(&mut self, action: Action, answer: Answer) {
        self.carry_out(action, answer);
        self.settle();
    }

    /// Answers all actions that are held, and those that follow, as a healthy fabric does.
    pub fn answer_held(&mut self) {
        self.answers_as_usual();
        for action in std::mem::take(&mut self.held) {
            self.answer(action, Answer::Usual);
        }
    }

    /// Detaches, and checks that nothing is left anywhere.
    pub fn finish(mut self) {
        self.answer_held();
        self.bench.finish();
    }

    fn settle(&mut self) {
        while let Some(action) = self.bench.actions.pop_front() {
            self.log.push((self.bench.now, action));
            match (self.answers)(&action, self.bench.now) {
                Answer::Hold => self.held.push(action),
                answer => self.carry_out(action, answer),
            }
        }
        let wire = &self.bench.adapter.wire;
        assert!(wire.iter().all(|(_, bytes)| bytes.len() <= IB_MTU_BYTES), "above the MTU");
    }

    fn carry_out(&mut self, action: Action, answer: Answer) {
        match (action, answer) {
            (Action::CancelQuery { op }, _) => {
                self.held.retain(|held| operation(held) != Some(op));
            }
            (Action::QuerySaCapabilities { op }, _) => {
                self.bench.capabilities(op, self.capabilities)
            }
            (Action::JoinGroup { op, .. }, Answer::Sa(error)) => {
                self.bench.join_answer(op, Err(error));
            }
            (Action::JoinGroup { op, request }, Answer::Group(record)) => {
                self.bench.members.push((request.mgid, request.membership.join_state()));
                self.bench.join_answer(op, Ok(record));
            }
            (Action::QueryPath { op, .. }, Answer::Sa(error)) => {
                self.bench.path_answer(op, Err(error));
            }
            (Action::QueryPath { op, .. }, Answer::Path(record)) => {
                self.bench.path_answer(op, Ok(record));
            }
            (Action::ModifyQueuePair { op, change: QueuePairChange::Error }, Answer::Usual)
                if self.is_wedged =>
            {
                self.bench.verb(op, Ok(()));
            }
            (Action::ModifyQueuePair { op, change: QueuePairChange::Reset }, Answer::Usual) => {
                // The data path takes back what the adapter never completed.
                let posted = self.bench.adapter.posted.drain(..);
                posted.for_each(|(_, packet)| drop(packet.end()));
                self.bench.adapter.receives_posted = 0;
                self.bench.verb(op, Ok(()));
            }
            (action, Answer::VerbFailed) => {
                let op = operation(&action).expect("a verb");
                self.bench.verb(op, Err(VerbError));
            }
            (action, _) => self.bench.answer(action),
        }
    }
}

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

/// A P_Key at a place of the table; `None` for an invalid key.
pub fn partition(pkey: u16, index: u16) -> Option<Partition> {
    let pkey = Pkey::new(pkey)?;
    Some(Partition { pkey, index: PkeyIndex(index) })
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

/// The link-layer address of an IP group in the default partition.
pub fn multicast(group: &str) -> LinkAddress {
    LinkAddress::multicast(mgid(group))
}

/// The link-layer address of a group, as it stands in the stack's list.
pub fn group_bytes(mgid: Mgid) -> Vec<u8> {
    LinkAddress::multicast(mgid).as_bytes().to_vec()
}

/// The SA's record of a group like the broadcast group.
pub fn group_record(mgid: Mgid, mlid: u16) -> GroupRecord {
    let [_, _, _, _, high, low, ..] = mgid.gid().0;
    GroupRecord {
        mgid,
        mlid: Mlid::new(mlid).unwrap(),
        pkey: Pkey::new(u16::from_be_bytes([high, low])).unwrap(),
        parameters: group_parameters(),
    }
}

/// A UDP packet of `len` bytes over IPv6.
pub fn ipv6(len: u16) -> Vec<u8> {
    let [high, low] = (len - 40).to_be_bytes();
    let mut bytes = vec![0x60, 0, 0, 0, high, low, 17, 64];
    for last in [1, 2] {
        bytes.extend([0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    bytes.resize(len.into(), 0x5A);
    bytes
}

/// A received frame: a GRH to `destination`, or 40 bytes of zeros; encapsulation; payload.
pub fn frame(destination: Option<Gid>, protocol: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 40];
    if let Some(destination) = destination {
        bytes[0] = 0x60;
        bytes[6] = 0x1B;
        bytes[8..24].copy_from_slice(&peer(1).gid().0);
        bytes[24..40].copy_from_slice(&destination.0);
    }
    bytes.extend(protocol.0.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}
