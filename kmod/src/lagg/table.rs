//! The ports of a lagg, by the places that the machine gives them, and what they have counted.

use alloc::sync::Arc;
use alloc::vec::Vec;

use ipoib_rs::lagg::PortId;
use ipoib_rs::limits::LaggLimits;
use kpi::context::{Free, MaySleep};
use kpi::errno::Errno;
use kpi::ifnet::InterfaceCounter;
use kpi::lagg::{LaggPort, Named};

const COUNTERS: usize = InterfaceCounter::ALL.len();

/// One number for each counter of an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted([u64; COUNTERS]);

impl Counted {
    const NOTHING: Self = Self([0; COUNTERS]);

    /// What a port has counted until now.
    pub(super) fn of(port: &LaggPort, free: &mut impl Free) -> Self {
        Self(InterfaceCounter::ALL.map(|counter| port.counter(counter, free)))
    }

    pub(super) fn value(&self, counter: InterfaceCounter) -> u64 {
        let all = InterfaceCounter::ALL.iter().zip(self.0);
        all.filter(|(known, _)| **known == counter).map(|(_, value)| value).sum()
    }

    fn add_since(&mut self, now: &Self, then: &Self) {
        for (sum, (now, then)) in self.0.iter_mut().zip(now.0.iter().zip(then.0)) {
            *sum = sum.wrapping_add(now.wrapping_sub(then));
        }
    }
}

/// A port, and what it is to the lagg.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) id: PortId,
    pub(super) port: Arc<LaggPort>,
    /// What it had counted before it came.
    pub(super) before: Counted,
    pub(super) bits_per_second: u64,
}

#[derive(Debug)]
pub(super) struct Table {
    places: Vec<Option<Member>>,
    /// What those have counted that have left.
    kept: Counted,
}

impl Table {
    pub(super) fn new(limits: &LaggLimits) -> Result<Self, Errno> {
        let len = limits.ports_max as usize;
        let mut places = Vec::new();
        places.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
        while places.len() < places.capacity() {
            places.push(None);
        }
        Ok(Self { places, kept: Counted::NOTHING })
    }

    pub(super) fn put(&mut self, member: Member) {
        if let Some(place) = self.places.get_mut(member.id.index()) {
            *place = Some(member);
        }
    }

    pub(super) fn get(&self, id: PortId) -> Option<&Member> {
        self.places.get(id.index())?.as_ref().filter(|member| member.id == id)
    }

    pub(super) fn get_mut(&mut self, id: PortId) -> Option<&mut Member> {
        self.places.get_mut(id.index())?.as_mut().filter(|member| member.id == id)
    }

    pub(super) fn find(&self, named: &Named) -> Option<PortId> {
        self.iter().find(|member| member.port.is(named)).map(|member| member.id)
    }

    /// The first member at a place or behind it.
    pub(super) fn at_or_behind(&self, place: usize) -> Option<&Member> {
        self.places.iter().skip(place).find_map(Option::as_ref)
    }

    /// Takes a port out; what it has counted is kept.
    pub(super) fn remove(&mut self, id: PortId, now: &Counted) {
        let Some(member) = self.get(id) else { return };
        self.kept.add_since(now, &member.before.clone());
        if let Some(place) = self.places.get_mut(id.index()) {
            *place = None;
        }
    }

    /// What those have counted that have left.
    pub(super) fn kept(&self) -> Counted {
        self.kept
    }

    fn iter(&self) -> impl Iterator<Item = &Member> {
        self.places.iter().flatten()
    }
}

impl super::Lagg {
    /// Calls `each` with every port, with the mutex free. Ports that come meanwhile may be missed.
    pub(super) fn each_member(
        &self,
        may_sleep: &mut MaySleep,
        mut each: impl FnMut(Member, &mut MaySleep),
    ) {
        let mut place = 0;
        loop {
            let next =
                self.locked.with(may_sleep, |locked, _| locked.ports.at_or_behind(place).cloned());
            let Some(member) = next else { return };
            place = member.id.index() + 1;
            each(member, may_sleep);
        }
    }

    /// A port as the thread of the lagg needs it, to do something with it.
    pub(super) fn port_of(&self, id: PortId, may_sleep: &mut MaySleep) -> Option<Arc<LaggPort>> {
        self.locked.with(may_sleep, |locked, _| {
            locked.ports.get(id).map(|member| Arc::clone(&member.port))
        })
    }
}
