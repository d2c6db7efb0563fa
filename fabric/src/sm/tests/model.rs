//! Clients against the manager, at random, beside a model of what both must agree on.

use std::collections::{BTreeMap, BTreeSet};

use ipoib_rs::action::{PathQuery, SaError};
use ipoib_rs::time::Instant;

use super::*;
use crate::sa::{Answer, Client, REQUEST_TIMEOUT};

const HOSTS: u32 = 5;
const GROUPS: u32 = 7;
const STEPS: u32 = 400;
const SEEDS: u64 = 60;

/// Numbers that depend on the seed alone (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % u64::from(bound)) as u32
    }
}

/// Who is in which group, as sets; what the switch was told; who has a link.
#[derive(Default)]
struct Model {
    members: BTreeMap<Mgid, BTreeMap<u32, JoinState>>,
    forwarding: BTreeSet<(Mlid, u32)>,
    up: BTreeSet<u32>,
}

impl Model {
    fn members_len(&self) -> usize {
        self.members.values().map(BTreeMap::len).sum()
    }

    fn join(
        &mut self,
        port: u32,
        mgid: Mgid,
        membership: Membership,
        creates: bool,
    ) -> Result<(), SaError> {
        let exists = mgid == broadcast(Pkey::DEFAULT) || self.members.contains_key(&mgid);
        let is_member = self.members.get(&mgid).is_some_and(|ports| ports.contains_key(&port));
        let full_groups = self.members.keys().filter(|other| **other != broadcast(Pkey::DEFAULT));
        let no_resources = Err(SaError::Refused(SaRefusal::NoResources));
        if self.members_len() == LIMITS.members_max && !is_member {
            return no_resources;
        }
        if !exists && !creates {
            return Err(SaError::Refused(SaRefusal::InsufficientComponents));
        }
        if !exists && full_groups.count() == LIMITS.groups_max - 1 {
            return no_resources;
        }
        let state = self.members.entry(mgid).or_default().entry(port).or_default();
        *state |= JoinState::from_bits_truncate(membership.join_state());
        Ok(())
    }

    fn leave(&mut self, port: u32, mgid: Mgid, membership: Membership) -> Result<(), SaError> {
        let leaving = JoinState::from_bits_truncate(membership.join_state());
        let state = self.members.get_mut(&mgid).and_then(|ports| ports.get_mut(&port));
        match state {
            Some(state) if state.contains(leaving) => {
                *state -= leaving;
                self.forget_empty();
                Ok(())
            }
            Some(_) | None => Err(SaError::Refused(SaRefusal::RequestInvalid)),
        }
    }

    fn forget_port(&mut self, port: u32) {
        for ports in self.members.values_mut() {
            ports.remove(&port);
        }
        self.forget_empty();
    }

    fn forget_empty(&mut self) {
        for ports in self.members.values_mut() {
            ports.retain(|_, state| !state.is_empty());
        }
        self.members.retain(|_, ports| !ports.is_empty());
    }
}

struct World {
    random: Random,
    now: Instant,
    manager: SubnetManager<u32>,
    clients: Vec<Client<u32>>,
    model: Model,
    trace: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let client = |agent| Client::new(agent, 2).unwrap();
        Self {
            random: Random(seed),
            now: Instant::ZERO,
            manager: manager(HOSTS),
            clients: (1..=HOSTS).map(client).collect(),
            model: Model { up: (1..=HOSTS).collect(), ..Model::default() },
            trace: Vec::new(),
        }
    }

    fn mgid(&mut self) -> Mgid {
        match self.random.below(GROUPS) {
            0 => broadcast(Pkey::DEFAULT),
            number => group(number),
        }
    }

    fn step(&mut self, step: u32) {
        let port = 1 + self.random.below(HOSTS);
        match self.random.below(20) {
            0 => self.toggle_link(port),
            1 => self.manager.move_lid(port).map(drop).unwrap(),
            2 if self.random.below(4) == 0 => {
                self.manager.restart();
                self.model.members.clear();
            }
            2..=9 => self.join(step, port),
            10..=14 => self.leave(step, port),
            15..=17 => self.query_path(step, port),
            _ => self.ask_capabilities(step, port),
        }
        self.follow_commands();
        self.compare();
    }

    fn toggle_link(&mut self, port: u32) {
        if self.model.up.remove(&port) {
            self.manager.handle_link_down(port).unwrap();
            self.model.forget_port(port);
        } else {
            self.manager.handle_link_up(port).unwrap();
            self.model.up.insert(port);
        }
    }

    fn membership(&mut self) -> Membership {
        match self.random.below(2) {
            0 => Membership::Full,
            _ => Membership::SendOnlyFull,
        }
    }

    fn join(&mut self, step: u32, port: u32) {
        let (mgid, membership) = (self.mgid(), self.membership());
        let creates = self.random.below(3) > 0;
        let request = JoinRequest {
            mgid,
            port_gid: gid(port),
            pkey: Pkey::DEFAULT,
            membership,
            create: creates.then_some(self.manager.config.group),
        };
        let client = &mut self.clients[port as usize - 1];
        let mad = client.request_join(self.now, step, &request).unwrap();
        let (fate, answer) = self.deliver(step, port, mad);
        let expected = fate.and_then(|()| self.model.join(port, mgid, membership, creates));
        match answer {
            Answer::Join(answer) => {
                assert_eq!(answer.map(|record| record.mgid), expected.map(|()| mgid));
            }
            other => panic!("{other:?}"),
        }
    }

    fn leave(&mut self, step: u32, port: u32) {
        let (mgid, membership) = (self.mgid(), self.membership());
        let client = &mut self.clients[port as usize - 1];
        let mad = client.request_leave(self.now, step, mgid, gid(port), membership).unwrap();
        let (fate, answer) = self.deliver(step, port, mad);
        let expected = fate.and_then(|()| self.model.leave(port, mgid, membership));
        assert_eq!(answer, Answer::Leave(expected));
    }

    fn query_path(&mut self, step: u32, port: u32) {
        let other = 1 + self.random.below(HOSTS + 1);
        let query = PathQuery { source: gid(port), destination: gid(other), pkey: Pkey::DEFAULT };
        let client = &mut self.clients[port as usize - 1];
        let mad = client.request_path(self.now, step, &query).unwrap();
        let (fate, answer) = self.deliver(step, port, mad);
        let expected = fate.and_then(|()| match self.model.up.contains(&other) {
            true => Ok(lid(&self.manager, other)),
            false => Err(SaError::Refused(SaRefusal::NoRecords)),
        });
        match answer {
            Answer::Path(answer) => assert_eq!(answer.map(|record| record.lid), expected),
            other => panic!("{other:?}"),
        }
    }

    fn ask_capabilities(&mut self, step: u32, port: u32) {
        let client = &mut self.clients[port as usize - 1];
        let mad = client.request_capabilities(self.now, step).unwrap();
        let (fate, answer) = self.deliver(step, port, mad);
        let expected = fate.map(|()| self.manager.config.capabilities);
        assert_eq!(answer, Answer::Capabilities(expected));
    }

    /// Carries a request to the manager and the answer back, through whatever happens on the way.
    /// Yields what the client must learn, where `Ok` leaves it to the manager, and what it learned.
    fn deliver(
        &mut self,
        step: u32,
        port: u32,
        request: [u8; MAD_BYTES],
    ) -> (Result<(), SaError>, Answer) {
        let fault = match self.random.below(12) {
            0 => Some((Fault::Status(Status::BUSY), SaError::Busy)),
            1 => Some((Fault::Silent, SaError::TimedOut)),
            _ => None,
        };
        if let Some((fault, _)) = fault {
            self.manager.set_fault(fault, FaultExtent::Next(1));
        }
        let source = lid(&self.manager, port);
        let answer = self.manager.handle_request(&request, source);
        self.manager.clear_fault();
        let client = &mut self.clients[port as usize - 1];
        let result = match answer {
            Some(answer) => {
                let result = client.handle_mad(&answer);
                assert_eq!(client.handle_mad(&answer), None, "the second copy is ignored");
                result
            }
            None => {
                self.now = self.now + REQUEST_TIMEOUT;
                client.handle_timeout(self.now)
            }
        };
        assert_eq!(client.outstanding_len(), 0);
        self.trace.push(format!("{port} {result:?}"));
        let (tag, answer) = result.expect("an answer or a timeout");
        assert_eq!(tag, step);
        if !self.model.up.contains(&port) {
            return (Err(SaError::TimedOut), answer);
        }
        (fault.map_or(Ok(()), |(_, error)| Err(error)), answer)
    }

    fn follow_commands(&mut self) {
        while let Some(command) = self.manager.poll_command() {
            match command {
                Command::AddMember { mlid, port } => {
                    assert!(self.model.forwarding.insert((mlid, port)), "added twice");
                }
                Command::RemoveMember { mlid, port } => {
                    assert!(self.model.forwarding.remove(&(mlid, port)), "removed twice");
                }
                Command::ActivatePort { .. }
                | Command::Notify { .. }
                | Command::SetLid { .. }
                | Command::SetPkeyTable { .. }
                | Command::SetSmLid { .. } => {}
            }
        }
    }

    /// Groups, members and the switch are what the model says.
    fn compare(&self) {
        let mut forwarding = BTreeSet::new();
        let mut groups = BTreeSet::new();
        for view in self.manager.groups() {
            let mgid = view.record.mgid;
            groups.insert(mgid);
            let members: BTreeMap<_, _> = self.manager.members(mgid).collect();
            let expected = self.model.members.get(&mgid).cloned().unwrap_or_default();
            assert_eq!(members, expected, "{mgid}");
            assert_eq!(view.members_len, expected.len());
            for (port, state) in members {
                if state.receives() {
                    forwarding.insert((view.record.mlid, port));
                }
            }
        }
        let mut expected: BTreeSet<_> = self.model.members.keys().copied().collect();
        expected.insert(broadcast(Pkey::DEFAULT));
        assert_eq!(groups, expected);
        assert_eq!(forwarding, self.model.forwarding);
    }
}

#[test]
fn clients_and_manager_agree_with_the_model() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..SEEDS {
        let run = || {
            let mut world = World::new(seed);
            for step in 0..STEPS {
                world.step(step);
            }
            (world.trace, *world.manager.counters())
        };
        let (trace, counters) = run();
        assert_eq!(run(), (trace.clone(), counters), "seed {seed} gives the same run twice");
        assert!(counters.answered > 0 && counters.groups_deleted > 0);
        let words = ["Busy", "TimedOut", "NoResources", "NoRecords", "Invalid", "Insufficient"];
        let seen = |word: &&str| trace.iter().any(|line| line.contains(*word));
        outcomes.extend(words.into_iter().filter(seen));
    }
    assert_eq!(outcomes.len(), 6, "every outcome was met: {outcomes:?}");
}
