//! Any sequence of verbs against what every adapter promises: a work request that was posted
//! completes exactly once, in the order of its queue, unless its queue pair was reset; and no
//! packet is lost or made.

use std::collections::VecDeque;

use fabric::address::AhId;
use fabric::cq::{CqId, Outcome};
use fabric::qp::{QpChange, QpState, ReceiveRequest};
use fabric::transit::Transit;
use fabric::{Fabric, FabricConfig};
use ipoib_rs::ib::{PkeyIndex, Qpn};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::hosts::{Host, QKEY, global, group, hosts, join, local, send, to_ready};

const HOSTS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive { position: usize },
    Duplicate { position: usize },
    Leave,
    Lose { position: usize },
    Modify { host: usize, change: QpChange },
    PollReceives { host: usize },
    PollSends { host: usize },
    Receive { host: usize, bytes: u32 },
    Send { host: usize, to: usize, len: usize },
    Wedge { host: usize, is_wedged: bool },
}

fn change() -> impl Strategy<Value = QpChange> {
    let [init, receive, ready] = to_ready(PkeyIndex(0));
    let others = [
        init,
        receive,
        ready,
        ready,
        QpChange::SetQkey(QKEY),
        QpChange::DrainSendQueue,
        QpChange::Error,
        QpChange::Reset,
    ];
    prop::sample::select(others.to_vec())
}

fn step() -> impl Strategy<Value = Step> {
    let host = || 0..HOSTS;
    let len = prop_oneof![8 => 0..100_usize, 1 => 2047..2050_usize];
    let bytes = prop_oneof![8 => Just(2088_u32), 1 => 0..100_u32];
    prop_oneof![
        12 => (host(), 0..=HOSTS, len).prop_map(|(host, to, len)| Step::Send { host, to, len }),
        8 => (host(), bytes).prop_map(|(host, bytes)| Step::Receive { host, bytes }),
        8 => Just(Step::Leave),
        6 => any::<usize>().prop_map(|position| Step::Arrive { position }),
        1 => any::<usize>().prop_map(|position| Step::Duplicate { position }),
        1 => any::<usize>().prop_map(|position| Step::Lose { position }),
        5 => host().prop_map(|host| Step::PollSends { host }),
        5 => host().prop_map(|host| Step::PollReceives { host }),
        4 => (host(), change()).prop_map(|(host, change)| Step::Modify { host, change }),
        1 => (host(), any::<bool>())
            .prop_map(|(host, is_wedged)| Step::Wedge { host, is_wedged }),
    ]
}

/// The fabric, and what is known to be posted.
struct Model {
    fabric: Fabric,
    hosts: [Host; HOSTS],
    /// To every host, and to the group.
    handles: [[AhId; HOSTS + 1]; HOSTS],
    sends: [VecDeque<u64>; HOSTS],
    receives: [VecDeque<u64>; HOSTS],
    flying: Vec<Transit>,
    wr_id_next: u64,
}

impl Model {
    fn new() -> Self {
        let (mut fabric, hosts) = hosts::<HOSTS>(FabricConfig::DEFAULT);
        let (mgid, mlid) = group(1);
        for host in &hosts {
            join(&mut fabric, host, (mgid, mlid));
        }
        let handles = hosts.map(|host| {
            let group = global(mlid.value(), mgid.gid());
            let mut handles = [fabric.create_ah(host.port, &group).unwrap(); HOSTS + 1];
            for (handle, to) in handles.iter_mut().zip(&hosts) {
                *handle = fabric.create_ah(host.port, &local(to.lid)).unwrap();
            }
            handles
        });
        Self {
            fabric,
            hosts,
            handles,
            sends: Default::default(),
            receives: Default::default(),
            flying: Vec::new(),
            wr_id_next: 0,
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Arrive { position } => {
                if let Some(transit) = self.take_flying(position) {
                    self.fabric.deliver(transit);
                }
            }
            Step::Duplicate { position } => {
                if let Some(transit) = self.take_flying(position) {
                    let second = self.fabric.duplicate(&transit).unwrap();
                    self.flying.extend([transit, second]);
                }
            }
            Step::Leave => self.flying.extend(self.fabric.poll_transit()),
            Step::Lose { position } => {
                if let Some(transit) = self.take_flying(position) {
                    self.fabric.discard(transit);
                }
            }
            Step::Modify { host, change } => self.modify(host, &change),
            Step::PollReceives { host } => {
                let cq = self.hosts[host].receive_cq;
                poll(&mut self.fabric, cq, &mut self.receives[host]);
            }
            Step::PollSends { host } => {
                let cq = self.hosts[host].send_cq;
                poll(&mut self.fabric, cq, &mut self.sends[host]);
            }
            Step::Receive { host, bytes } => self.receive(host, bytes),
            Step::Send { host, to, len } => self.send(host, to, len),
            Step::Wedge { host, is_wedged } => {
                let hca = self.hosts[host].hca;
                self.fabric.set_wedged(hca, is_wedged).unwrap();
            }
        }
    }

    fn take_flying(&mut self, position: usize) -> Option<Transit> {
        let position = position.checked_rem(self.flying.len())?;
        Some(self.flying.swap_remove(position))
    }

    fn modify(&mut self, host: usize, change: &QpChange) {
        let qp = self.hosts[host].qp;
        if self.fabric.modify_qp(qp, change).is_ok() && *change == QpChange::Reset {
            self.sends[host].clear();
            self.receives[host].clear();
        }
    }

    /// Polls first when a queue could overflow: a full one loses completions, as it should.
    fn make_room(&mut self, host: usize) {
        let limit = crate::hosts::CQ_LEN as usize;
        if self.sends[host].len() == limit || self.receives[host].len() == limit {
            self.drain(host);
        }
    }

    fn drain(&mut self, host: usize) {
        let Host { hca, send_cq, receive_cq, .. } = self.hosts[host];
        self.fabric.set_wedged(hca, false).unwrap();
        while poll(&mut self.fabric, send_cq, &mut self.sends[host]) {}
        while poll(&mut self.fabric, receive_cq, &mut self.receives[host]) {}
    }

    fn receive(&mut self, host: usize, bytes: u32) {
        self.make_room(host);
        let wr_id = self.next_wr_id();
        let request = ReceiveRequest { wr_id, bytes };
        let qp = self.hosts[host].qp;
        if self.fabric.post_receive(qp, request).is_ok() {
            self.receives[host].push_back(wr_id);
        }
    }

    fn send(&mut self, host: usize, to: usize, len: usize) {
        self.make_room(host);
        let wr_id = self.next_wr_id();
        let ah = self.handles[host][to];
        let remote_qpn = self.hosts.get(to).map_or(Qpn::MULTICAST, |host| host.qpn);
        let qp = self.hosts[host].qp;
        let payload = vec![wr_id as u8; len];
        match send(&mut self.fabric, qp, wr_id, (ah, remote_qpn), &payload) {
            Ok(()) => self.sends[host].push_back(wr_id),
            Err(refused) => {
                assert_eq!(refused.packet.bytes(), payload);
                self.fabric.pool_mut().free(refused.packet);
            }
        }
    }

    fn next_wr_id(&mut self) -> u64 {
        self.wr_id_next += 1;
        self.wr_id_next
    }

    /// Everything that was posted comes back, and every packet.
    fn finish(mut self) {
        while let Some(transit) = self.fabric.poll_transit() {
            self.fabric.discard(transit);
        }
        for transit in std::mem::take(&mut self.flying) {
            self.fabric.discard(transit);
        }
        for host in 0..HOSTS {
            let qp = self.hosts[host].qp;
            self.drain(host);
            if self.fabric.qp_state(qp) != Some(QpState::Reset) {
                self.fabric.modify_qp(qp, &QpChange::Error).unwrap();
            }
            self.drain(host);
            assert!(self.sends[host].is_empty(), "{:?}", self.sends[host]);
            assert!(self.receives[host].is_empty(), "{:?}", self.receives[host]);
        }
        assert_eq!(self.fabric.pool().outstanding(), 0);
        assert_eq!(self.fabric.violations().missing_handles, 0);
    }
}

/// Takes a completion, which must be that of the oldest work request. Whether there was one.
fn poll(fabric: &mut Fabric, cq: CqId, posted: &mut VecDeque<u64>) -> bool {
    let Some(completion) = fabric.poll_cq(cq) else {
        return false;
    };
    if let Outcome::Received(arrival) = completion.outcome {
        fabric.pool_mut().free(arrival.packet);
    }
    assert_eq!(Some(completion.wr_id), posted.pop_front());
    true
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn work_completes_once_in_order_and_packets_are_conserved(steps in vec(step(), 0..400)) {
        let mut model = Model::new();
        for step in steps {
            model.apply(step);
        }
        model.finish();
    }
}
