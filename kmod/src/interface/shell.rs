//! The pump of the core in the kernel: one mutex, and what was decided under it done after it.

use ipoib_rs::action::Action;
use ipoib_rs::event::{Event, Notice};
use ipoib_rs::interface::Interface as Core;
use ipoib_rs::packet::{Cast, Delivery};
use ipoib_rs::pump::{self, DeferringShell, PumpingShell, Shell};
use ipoib_rs::time::Instant;
use ipoib_rs::wire::EtherType;
use kpi::context::{Free, InNetEpoch, MaySleep, with_net_epoch};
use kpi::log::{self, Level};
use kpi::mbuf::{Packet, PacketList};
use kpi::sync::Before;
use kpi::time;

use super::queues::Path;
use super::{CoreLevel, Interface, Locked, signals};

/// A context from which the core may be fed.
pub(super) trait Context: Before<CoreLevel> + Free {}

impl<C: Before<CoreLevel> + Free> Context for C {}

/// Packets that leave the core for the stack, or for good, once it is unlocked.
#[derive(Debug)]
pub(super) struct Records {
    delivered: PacketList,
    too_big: PacketList,
    ended: PacketList,
    /// A send did not succeed.
    pub(super) has_failed_send: bool,
}

impl Records {
    const fn new() -> Self {
        Self {
            delivered: PacketList::new(),
            too_big: PacketList::new(),
            ended: PacketList::new(),
            has_failed_send: false,
        }
    }

    pub(super) fn deliver(&mut self, packet: Packet, delivery: Delivery) {
        let cast = match delivery.cast {
            Cast::Unicast => 0,
            Cast::Multicast => 1,
            Cast::Broadcast => 2,
        };
        self.delivered.push(packet, u64::from(delivery.protocol.0) << 8 | cast);
    }

    pub(super) fn too_big(&mut self, packet: Packet, mtu: usize) {
        self.too_big.push(packet, mtu as u64);
    }

    /// Hands what was recorded to the stack.
    fn release(&mut self, interface: &Interface, epoch: &mut InNetEpoch) {
        while let Some((packet, note)) = self.delivered.pop() {
            interface.input(packet, delivery_of(note), epoch);
        }
        while let Some((packet, mtu)) = self.too_big.pop() {
            // Nobody can be told; the packet was counted.
            // CAST: what `too_big` wrote.
            let _ = interface.net.report_too_big(packet, mtu as usize, epoch);
        }
    }

    /// The packet is freed.
    pub(super) fn end(&mut self, packet: Packet) {
        self.ended.push(packet, 0);
    }
}

/// What a note of a delivered packet says.
fn delivery_of(note: u64) -> Delivery {
    let cast = match note & 0xFF {
        0 => Cast::Unicast,
        1 => Cast::Multicast,
        // wildcard: a number, see `deliver`.
        _ => Cast::Broadcast,
    };
    // CAST: the 16 bits that `deliver` wrote.
    Delivery { protocol: EtherType((note >> 8) as u16), cast }
}

struct KernelShell<'i, C> {
    interface: &'i Interface,
    context: &'i mut C,
    records: Records,
}

impl<C: Context> Shell for KernelShell<'_, C> {
    type Packet = Packet;
    type DataPath<'p> = Path<'p>;

    fn with_interface<R>(&mut self, feed: impl FnOnce(&mut Core<Packet>, &mut Path<'_>) -> R) -> R {
        let Self { interface, context, records } = self;
        interface.core.with(*context, |locked, _| {
            let Locked { core, queues } = locked;
            feed(core, &mut Path::new(queues, &interface.hardware, records))
        })
    }

    fn release_packets(&mut self) {
        let Self { interface, context, records } = self;
        if !records.delivered.is_empty() || !records.too_big.is_empty() {
            with_net_epoch(*context, |epoch| records.release(interface, epoch));
        }
        while records.ended.pop().is_some() {}
        if core::mem::take(&mut records.has_failed_send) {
            interface.signal(signals::SEND_FAILED);
        }
    }
}

impl<C: Context> DeferringShell for KernelShell<'_, C> {
    fn wake(&mut self) {
        self.interface.control.wake();
    }
}

/// In the control thread.
impl PumpingShell for KernelShell<'_, MaySleep> {
    fn observe(&mut self, event: Event) {
        match event {
            Event::Notice(notice) => self.interface.note(&notice),
            Event::AnnounceAddress => self.interface.signal(signals::ANNOUNCE),
            Event::BroadcastChanged(_) => self.interface.signal(signals::GROUPS_CHANGED),
            // At once: the actions that follow may take their time.
            Event::AddressChanged(_)
            | Event::Detached
            | Event::LinkDown
            | Event::LinkUp
            | Event::ModeChanged(_)
            | Event::MtuChanged(_) => self.interface.update_state(self.context),
        }
    }

    fn execute(&mut self, action: Action) {
        self.interface.execute(action, self.context);
    }

    fn schedule(&mut self, deadline: Option<Instant>) {
        if let Some(deadline) = deadline {
            self.interface.control.wake_at(deadline);
        }
    }
}

impl Interface {
    /// Feeds one input to the core. What follows from it, but for packets, the control thread does.
    pub(super) fn feed<C: Context, R>(
        &self,
        context: &mut C,
        feed: impl FnOnce(&mut Core<Packet>, &mut Path<'_>) -> R,
    ) -> R {
        pump::feed(&mut KernelShell { interface: self, context, records: Records::new() }, feed)
    }

    /// In the control thread: tells the core the time, and does what follows from that and from all
    /// that was fed.
    pub(super) fn pump(&self, may_sleep: &mut MaySleep) {
        let records = Records::new();
        let mut shell = KernelShell { interface: self, context: may_sleep, records };
        let now = time::now();
        pump::pump(&mut shell, |core, path| core.handle_timeout(now, path));
    }

    /// A line in the log, of which the core sends one per object and cause.
    #[inline(never)]
    fn note(&self, notice: &Notice) {
        let name = self.net.name();
        let warn = |text: core::fmt::Arguments<'_>| log::line(Level::Warning, text);
        match notice {
            Notice::BroadcastUnusable(mgid) => {
                warn(format_args!("{name}: broadcast group {mgid:?} cannot be used"));
            }
            Notice::ConnectFailing(to, error) => {
                warn(format_args!("{name}: {to}: no connection ({error:?}), datagrams only"));
            }
            Notice::DrainForced => warn(format_args!("{name}: completions are missing")),
            Notice::JoinFailing(mgid, error) => {
                warn(format_args!("{name}: group {mgid:?}: not joined ({error:?})"));
            }
            Notice::JoinRecovered(mgid) => {
                log::line(Level::Notice, format_args!("{name}: group {mgid:?}: joined"));
            }
            Notice::PathFailing(to, error) => {
                warn(format_args!("{name}: {to}: no path ({error:?})"));
            }
            Notice::ResetFailed => warn(format_args!("{name}: the queue pair is not reset")),
            Notice::TooBig(to, mtu) => {
                warn(format_args!("{name}: {to}: packets are larger than its mtu of {mtu}"));
            }
        }
    }
}
