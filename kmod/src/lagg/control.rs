//! The thread of a lagg: the pump of its machine. It alone deals with ports, one thing after the
//! other.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use ipoib_rs::lagg::{
    Action, AddPortError, Event, Face, Identity, Lagg as Machine, PortError, PortId, Removal,
    Shell, pump,
};
use ipoib_rs::limits::LaggLimits;
use ipoib_rs::time::Instant;
use ipoib_rs::wire::LINK_ADDRESS_BYTES;
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::ifnet::NetInterface;
use kpi::lagg::{LaggPort, Named};
use kpi::log::Level;
use kpi::owned::try_arc;
use kpi::sync::{self, Mutex};
use kpi::time;
use kpi::worker::Work;

use super::Lagg;
use super::desk::Ask;
use super::table::{Counted, Member};

/// What the thread is to look at.
pub(super) mod signals {
    /// A port is not what it was.
    pub(crate) const PORTS: u32 = 1 << 0;
    /// The list of multicast groups changed, or the terms that it is in.
    pub(crate) const GROUPS: u32 = 1 << 1;
    /// Flags that ports have too.
    pub(crate) const FLAGS: u32 = 1 << 2;
    /// What the administrator has set for all laggs.
    pub(crate) const SETTINGS: u32 = 1 << 3;
    /// Every port is to be given back.
    pub(crate) const CLOSE: u32 = 1 << 4;
}

/// The mutex of the list of groups, which one thread uses.
#[derive(Debug)]
struct GroupsLevel;

impl sync::Level for GroupsLevel {
    const NAME: &core::ffi::CStr = c"ipoib lagg groups";
}

type GroupList = Vec<[u8; LINK_ADDRESS_BYTES]>;

#[derive(Debug)]
pub(super) struct Control {
    lagg: Arc<Lagg>,
    /// Room for the list of groups.
    groups: Mutex<GroupsLevel, GroupList>,
}

impl Control {
    pub(super) fn new(lagg: Arc<Lagg>) -> Result<Self, Errno> {
        let mut groups = Vec::new();
        let len = LaggLimits::DEFAULT.groups_max as usize;
        groups.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
        Ok(Self { lagg, groups: Mutex::new(groups)? })
    }

    /// The groups that the stack wants. Those beyond the table could not be joined, and are left
    /// out.
    fn update_groups(&self, may_sleep: &mut MaySleep) {
        let mut groups = self.groups.with(may_sleep, |groups, _| core::mem::take(groups));
        self.lagg.net.each_group(|address| {
            if let Ok(address) = address.try_into()
                && groups.len() < groups.capacity()
            {
                groups.push(address);
            }
        });
        self.lagg.locked.with(may_sleep, |locked, _| {
            locked.machine.handle_multicast_list(groups.iter().map(|group| &group[..]));
        });
        groups.clear();
        self.groups.with(may_sleep, |place, _| *place = groups);
    }

    fn look_at(&self, signals: u32, may_sleep: &mut MaySleep) {
        let lagg = &self.lagg;
        if signals & signals::SETTINGS != 0 {
            lagg.take_settings(may_sleep);
        }
        if signals & signals::PORTS != 0 {
            lagg.report_ports(may_sleep);
        }
        if signals & signals::GROUPS != 0 {
            self.update_groups(may_sleep);
        }
        if signals & signals::FLAGS != 0 {
            lagg.each_member(may_sleep, |member, may_sleep| member.port.take_flags(may_sleep));
        }
        if signals & signals::CLOSE != 0 {
            lagg.feed(may_sleep, |machine, face| machine.handle_detach(time::now(), face));
        }
    }
}

impl Work for Control {
    fn run(&self, may_sleep: &mut MaySleep) {
        let lagg = &self.lagg;
        loop {
            let signals = lagg.signals.swap(0, Ordering::Acquire);
            self.look_at(signals, may_sleep);
            // It is never too early for the timer.
            lagg.pump(may_sleep);
            if let Some(ask) = lagg.take_ask(may_sleep) {
                let answer = lagg.serve(ask, may_sleep);
                lagg.answer(answer, may_sleep);
            } else if lagg.signals.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }
}

/// What the stack sees of a lagg.
struct Mask<'l> {
    net: &'l NetInterface,
}

impl Face for Mask<'_> {
    fn wear(&mut self, identity: Option<&Identity>) {
        self.net.wear(identity);
    }
}

struct KernelShell<'l, 'm> {
    lagg: &'l Lagg,
    may_sleep: &'m mut MaySleep,
    /// An answer was fed, from which something may follow.
    has_more: bool,
}

impl<'l> Shell for KernelShell<'l, '_> {
    type Face<'a> = Mask<'l>;

    fn with_lagg<R>(&mut self, feed: impl FnOnce(&mut Machine, &mut Mask<'l>) -> R) -> R {
        self.lagg.feed(self.may_sleep, feed)
    }

    fn observe(&mut self, event: Event) {
        let lagg = self.lagg;
        let is_closing = lagg.is_closing.load(Ordering::Acquire);
        // What the stack has of a lagg that goes may be gone already.
        if is_closing && event != Event::Detached {
            return;
        }
        match event {
            Event::Detached => lagg.end(self.may_sleep),
            Event::AddressChanged(identity) => lagg.tell_address(identity, self.may_sleep),
            Event::CapabilitiesChanged(capabilities) => lagg.net.set_capabilities(capabilities),
            Event::CarrierChanged(carrier) => lagg.note_carrier(carrier, self.may_sleep),
            Event::LinkDown => lagg.net.set_link(false),
            Event::LinkUp => lagg.net.set_link(true),
            Event::MtuChanged(mtu) => lagg.net.apply_mtu(mtu, self.may_sleep),
        }
    }

    fn execute(&mut self, action: Action) {
        let lagg = self.lagg;
        let may_sleep = &mut *self.may_sleep;
        match action {
            Action::Announce { port } => lagg.announce(port, may_sleep),
            Action::JoinGroup { op, port, group } => {
                let answer =
                    lagg.do_with(port, may_sleep, |port, may_sleep| port.join(&group, may_sleep));
                lagg.feed(may_sleep, |machine, _| machine.handle_group_answer(op, answer));
                self.has_more = true;
            }
            Action::LeaveGroup { op, port, group } => {
                let answer =
                    lagg.do_with(port, may_sleep, |port, may_sleep| port.leave(&group, may_sleep));
                lagg.feed(may_sleep, |machine, _| machine.handle_group_answer(op, answer));
                self.has_more = true;
            }
            Action::LowerPort { port } => lagg.set_port_up(port, false, may_sleep),
            Action::QueryPorts => lagg.signal(signals::PORTS | signals::GROUPS),
            Action::RaisePort { port } => lagg.set_port_up(port, true, may_sleep),
            Action::ReleasePort { port } => {
                lagg.release(port, may_sleep);
                lagg.feed(may_sleep, |machine, _| machine.handle_port_released(port));
                self.has_more = true;
            }
            Action::SetPortMtu { op, port, mtu } => {
                let answer =
                    lagg.do_with(port, may_sleep, |port, may_sleep| port.set_mtu(mtu, may_sleep));
                lagg.feed(may_sleep, |machine, _| machine.handle_mtu_answer(op, answer));
                self.has_more = true;
            }
        }
    }

    fn schedule(&mut self, deadline: Option<Instant>) {
        if let Some(deadline) = deadline {
            self.lagg.waker.wake_at(deadline);
        }
    }
}

impl Lagg {
    /// Feeds the machine; what follows, the thread does.
    fn feed<'l, R>(
        &'l self,
        may_sleep: &mut MaySleep,
        feed: impl FnOnce(&mut Machine, &mut Mask<'l>) -> R,
    ) -> R {
        self.locked
            .with(may_sleep, |locked, _| feed(&mut locked.machine, &mut Mask { net: &self.net }))
    }

    /// Does all that follows from what was fed.
    fn pump(&self, may_sleep: &mut MaySleep) {
        loop {
            let mut shell = KernelShell { lagg: self, may_sleep, has_more: false };
            let now = time::now();
            pump(&mut shell, |machine, face| machine.handle_timeout(now, face));
            if !shell.has_more {
                return;
            }
        }
    }

    fn serve(&self, ask: Ask, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        let result = match ask {
            Ask::Add(named) => self.add(&named, may_sleep),
            Ask::Remove(named) => self.remove(&named, may_sleep),
            Ask::Depart(port) => {
                self.depart(port, may_sleep);
                Ok(())
            }
            Ask::Mtu(mtu) => return self.set_mtu(mtu, may_sleep),
        };
        // Whoever asked sees it done.
        self.pump(may_sleep);
        result
    }

    fn add(&self, named: &Named, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        let port = try_arc(LaggPort::attach(&self.net, named, may_sleep)?)?;
        let added = self.add_attached(&port, may_sleep);
        match added {
            Ok(()) => port.take_flags(may_sleep),
            Err(_) => port.detach(may_sleep),
        }
        added
    }

    fn add_attached(&self, port: &Arc<LaggPort>, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        let described = port.report(may_sleep).ok_or(Errno::EADDRNOTAVAIL)?;
        let before = Counted::of(port, may_sleep);
        let (now, bits_per_second) = (time::now(), described.bits_per_second);
        self.locked.with(may_sleep, |locked, _| {
            let face = &mut Mask { net: &self.net };
            let added = locked.machine.handle_port_added(now, &described.report, face);
            let id = added.map_err(|error| match error {
                AddPortError::AddressInUse => Errno::EEXIST,
                AddPortError::Detaching => Errno::ENXIO,
                AddPortError::TableFull => Errno::ENOSPC,
            })?;
            locked.ports.put(Member { id, port: Arc::clone(port), before, bits_per_second });
            port.set_id(id);
            Ok(())
        })
    }

    fn remove(&self, named: &Named, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        let now = time::now();
        self.locked.with(may_sleep, |locked, _| {
            let id = locked.ports.find(named).ok_or(Errno::ENOENT)?;
            let face = &mut Mask { net: &self.net };
            locked.machine.handle_port_removed(now, id, Removal::Orderly, face);
            Ok(())
        })
    }

    fn depart(&self, id: PortId, may_sleep: &mut MaySleep) {
        self.feed(may_sleep, |machine, face| {
            machine.handle_port_removed(time::now(), id, Removal::Vanished, face);
        });
        self.release(id, may_sleep);
    }

    /// Gives an interface back: it is a port to nobody afterwards.
    fn release(&self, id: PortId, may_sleep: &mut MaySleep) {
        let Some(port) = self.port_of(id, may_sleep) else { return };
        port.detach(may_sleep);
        let counted = Counted::of(&port, may_sleep);
        self.locked.with(may_sleep, |locked, _| locked.ports.remove(id, &counted));
        self.locked.notify();
    }

    /// Every port takes it, or none does.
    fn set_mtu(&self, mtu: usize, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        let before = self.locked.with(may_sleep, |locked, _| {
            locked.machine.handle_mtu(Some(mtu)).map_err(|_| Errno::EINVAL)?;
            Ok(locked.mtu_wish.replace(mtu))
        })?;
        self.pump(may_sleep);
        let is_set = self.locked.with(may_sleep, |locked, _| {
            let is_set = locked.machine.mtu() == mtu;
            if !is_set {
                locked.mtu_wish = before;
                // What was wanted before was in range.
                let _ = locked.machine.handle_mtu(before);
            }
            is_set
        });
        self.pump(may_sleep);
        if is_set { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn report_ports(&self, may_sleep: &mut MaySleep) {
        self.each_member(may_sleep, |member, may_sleep| {
            let Some(described) = member.port.report(may_sleep) else { return };
            let now = time::now();
            self.locked.with(may_sleep, |locked, _| {
                let face = &mut Mask { net: &self.net };
                locked.machine.handle_port_reported(now, member.id, &described.report, face);
                if let Some(member) = locked.ports.get_mut(member.id) {
                    member.bits_per_second = described.bits_per_second;
                }
            });
        });
    }

    fn take_settings(&self, may_sleep: &mut MaySleep) {
        let now = time::now();
        self.feed(may_sleep, |machine, face| self.shared.feed(now, machine, face));
    }

    fn do_with(
        &self,
        id: PortId,
        may_sleep: &mut MaySleep,
        act: impl FnOnce(&LaggPort, &mut MaySleep) -> Result<(), Errno>,
    ) -> Result<(), PortError> {
        let port = self.port_of(id, may_sleep).ok_or(PortError)?;
        act(&port, may_sleep).map_err(|error| {
            let (lagg, name) = (self.net.name(), port.name());
            let text = format_args!("{lagg}: {}: refused ({error:?})", name.as_str());
            self.changes.line(Level::Warning, text);
            PortError
        })
    }

    fn set_port_up(&self, id: PortId, is_up: bool, may_sleep: &mut MaySleep) {
        // That it was not done, was said.
        let _ = self.do_with(id, may_sleep, |port, may_sleep| port.set_up(is_up, may_sleep));
    }

    fn tell_address(&self, identity: Option<Identity>, may_sleep: &mut MaySleep) {
        let is_announced = self.net.tell_address(may_sleep);
        let is_carried = self.feed(may_sleep, |machine, _| machine.carrier().is_some());
        let is_announced = is_announced && is_carried && identity.is_some();
        self.has_arp_announced.store(is_announced, Ordering::Relaxed);
        // The list is in terms of the broadcast address.
        self.signal(signals::GROUPS);
    }

    fn announce(&self, carrier: PortId, may_sleep: &mut MaySleep) {
        let is_done = self.has_arp_announced.swap(false, Ordering::Relaxed);
        // Otherwise it is not what is worn any more, and another announcement is to come.
        if self.feed(may_sleep, |machine, _| machine.carrier() == Some(carrier)) {
            self.net.announce_lagg(is_done, may_sleep);
        }
    }

    fn note_carrier(&self, carrier: Option<PortId>, may_sleep: &mut MaySleep) {
        let lagg = self.net.name();
        let member = carrier
            .and_then(|id| self.locked.with(may_sleep, |locked, _| locked.ports.get(id).cloned()));
        match member {
            Some(Member { port, bits_per_second, .. }) => {
                self.net.set_rate(bits_per_second);
                let name = port.name();
                let text = format_args!("{lagg}: {} carries", name.as_str());
                self.changes.line(Level::Notice, text);
            }
            None => self.changes.line(Level::Notice, format_args!("{lagg}: no port carries")),
        }
    }

    fn end(&self, may_sleep: &mut MaySleep) {
        self.locked.with(may_sleep, |locked, _| locked.is_detached = true);
        self.locked.notify();
    }
}
