//! The control thread of an interface: what may sleep, and what the network stack is told.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use ipoib_rs::ib::Mgid;
use ipoib_rs::interface::{Mode, PortEvent};
use ipoib_rs::wire::{LINK_ADDRESS_BYTES, LinkAddress};
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::log::{self, Level};
use kpi::sync::{self, Mutex};
use kpi::time;
use kpi::worker::Work;

use super::hub::PORT_EVENTS;
use super::{Hardware, Interface, signals};

/// The mutex of the list of groups, which one thread uses.
#[derive(Debug)]
pub(super) struct GroupsLevel;

impl sync::Level for GroupsLevel {
    const NAME: &core::ffi::CStr = c"ipoib groups";
}

#[derive(Debug)]
pub(super) struct Control {
    interface: Arc<Interface>,
    /// Signals whose cause could not be looked at: the adapter did not say what its port is.
    again: AtomicU32,
    /// Room for the list of groups.
    groups: Mutex<GroupsLevel, Vec<[u8; LINK_ADDRESS_BYTES]>>,
}

impl Control {
    pub(super) fn new(interface: Arc<Interface>) -> Result<Self, Errno> {
        let mut groups = Vec::new();
        let len = interface.hardware.limits.groups_max as usize;
        groups.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
        Ok(Self { interface, again: AtomicU32::new(0), groups: Mutex::new(groups)? })
    }

    /// The groups that the stack wants. Those beyond the table of the core could not be joined, and
    /// are left out.
    fn update_groups(&self, may_sleep: &mut MaySleep) {
        let interface = &self.interface;
        let mut groups = self.groups.with(may_sleep, |groups, _| core::mem::take(groups));
        interface.net.each_group(|address| {
            if let Ok(address) = address.try_into()
                && groups.len() < groups.capacity()
            {
                groups.push(address);
            }
        });
        let now = time::now();
        interface.feed(may_sleep, |core, path| {
            core.handle_multicast_list(now, groups.iter().map(|group| &group[..]), path);
        });
        groups.clear();
        self.groups.with(may_sleep, |place, _| *place = groups);
    }
}

impl Control {
    #[inline(never)]
    fn look_at(&self, signals: u32, may_sleep: &mut MaySleep) {
        let interface = &self.interface;
        let of_port = (0..).zip(PORT_EVENTS);
        let of_port = of_port.map(|(at, event)| (signals::PORT_EVENT_FIRST << at, event));
        let changed = (signals::PORT_CHANGED, PortEvent::PortActive);
        for (signal, event) in of_port.chain([changed]) {
            if signals & signal != 0 && interface.update_port(event, may_sleep).is_err() {
                self.again.fetch_or(signal, Ordering::Relaxed);
            }
        }
        if signals & signals::GROUPS_CHANGED != 0 {
            interface.update_broadcast(may_sleep);
            self.update_groups(may_sleep);
        }
        if signals & signals::SEND_FAILED != 0 {
            interface.restart_sends(may_sleep);
        }
        if signals & signals::ANNOUNCE != 0 {
            interface.net.announce(may_sleep);
        }
    }
}

impl Work for Control {
    fn run(&self, may_sleep: &mut MaySleep) {
        let interface = &self.interface;
        loop {
            let signals = interface.take_signals() | self.again.swap(0, Ordering::Relaxed);
            self.look_at(signals, may_sleep);
            // It is never too early for the timer.
            interface.pump(may_sleep);
            if !interface.has_signals() {
                break;
            }
        }
        if self.again.load(Ordering::Relaxed) != 0 {
            // No event says when the adapter can be asked again. The timer of the core may be a
            // little late for it.
            interface.control.wake_at(time::now() + PORT_RETRY);
        }
    }
}

/// How long an adapter is left alone that did not say what its port is.
const PORT_RETRY: Duration = Duration::from_millis(100);

impl Interface {
    #[inline(never)]
    fn update_port(&self, event: PortEvent, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        let Hardware { port, partition, .. } = &self.hardware;
        let attributes = port.attributes(*partition, may_sleep)?;
        // What it was when the link was last up stays.
        if attributes.is_active
            && let Ok(rate) = port.bits_per_second(may_sleep)
        {
            self.net.set_rate(rate);
        }
        let now = time::now();
        self.feed(may_sleep, |core, path| core.handle_port_event(now, event, &attributes, path));
        Ok(())
    }

    /// IBA 10.3.1: a datagram that cannot be sent stops the send queue, and what is posted behind
    /// it is flushed until the queue is started again. Sends are flushed on the way to RESET as
    /// well; then the adapter finds nothing to start.
    #[inline(never)]
    fn restart_sends(&self, may_sleep: &mut MaySleep) {
        if self.hardware.queue_pair.restart_sends(may_sleep).is_ok() {
            let name = self.net.name();
            log::line(Level::Notice, format_args!("{name}: a send failed, sending goes on"));
        }
    }

    fn update_broadcast(&self, may_sleep: &mut MaySleep) {
        let broadcast: Option<Mgid> =
            self.core.with(may_sleep, |locked, _| locked.core.broadcast());
        if let Some(mgid) = broadcast {
            self.net.set_broadcast(&LinkAddress::multicast(mgid), may_sleep);
        }
    }

    /// Tells the stack what is so now, whatever happened and in which order.
    #[inline(never)]
    pub(super) fn update_state(&self, may_sleep: &mut MaySleep) {
        let (address, mtu, is_up, mode) = self.core.with(may_sleep, |locked, _| {
            let core = &locked.core;
            (core.address(), core.mtu(), core.is_link_up(), core.mode())
        });
        // An adapter makes them for datagrams only.
        self.net.set_checksums(mode == Mode::Datagram, may_sleep);
        self.subnet_prefix.store(address.gid().subnet_prefix(), Ordering::Relaxed);
        self.net.set_address(&address, may_sleep);
        // Only news: an administrator may have chosen a smaller one.
        if self.told_mtu.swap(mtu, Ordering::Relaxed) != mtu {
            self.net.set_mtu(mtu, may_sleep);
        }
        self.net.set_link(is_up);
    }
}
