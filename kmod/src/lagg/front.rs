//! What the network stack calls: it finds the lagg, if there still is one.

use alloc::sync::Arc;
use alloc::vec::Vec;

use ipoib_rs::lagg::{DropReason, PortId, PortRow};
use ipoib_rs::packet::Cast;
use kpi::context::{InNetEpoch, MaySleep, Unlocked};
use kpi::errno::Errno;
use kpi::ifnet::{Driver, InterfaceCounter, LinkHeader, Vlan, VlanTag};
use kpi::lagg::{Aggregator, Name, Named, Options, PortStatus, WhichPort};
use kpi::late::Late;
use kpi::log::{self, Level};
use kpi::mbuf::Packet;

use super::control::signals;
use super::desk::Ask;
use super::table::Counted;
use super::{Lagg, Locked};

#[derive(Debug)]
pub(super) struct Front {
    lagg: Late<Lagg>,
}

impl Front {
    /// Connected to nothing: what is called before is as if it came too late.
    pub(super) const fn new() -> Self {
        Self { lagg: Late::new() }
    }

    pub(super) fn connect(&self, lagg: &Arc<Lagg>, may_sleep: &mut MaySleep) {
        // There was none before.
        drop(self.lagg.connect(Arc::clone(lagg), may_sleep));
    }

    pub(super) fn disconnect(&self, may_sleep: &mut MaySleep) {
        drop(self.lagg.disconnect(may_sleep));
    }
}

impl Driver for Front {
    fn transmit(
        &self,
        header: LinkHeader,
        packet: Packet,
        epoch: &mut InNetEpoch,
    ) -> Result<(), Errno> {
        self.lagg.with(|lagg| lagg.transmit(&header, packet, epoch)).unwrap_or(Err(Errno::ENXIO))
    }

    fn flush_queue(&self, _unlocked: &mut Unlocked) {
        // Nothing waits in a lagg; its ports have queues of their own.
    }

    fn set_up(&self, is_up: bool, may_sleep: &mut MaySleep) {
        self.lagg.with(|lagg| {
            lagg.locked.with(may_sleep, |locked, _| {
                if is_up {
                    locked.machine.handle_admin_up();
                } else {
                    locked.machine.handle_admin_down();
                }
            });
            lagg.waker.wake();
        });
    }

    fn set_mtu(&self, mtu: usize, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        self.lagg.with(|lagg| lagg.ask(Ask::Mtu(mtu), may_sleep)).unwrap_or(Err(Errno::ENXIO))
    }

    fn mtu_max(&self, unlocked: &mut Unlocked) -> usize {
        let mtu =
            self.lagg.with(|lagg| lagg.locked.with(unlocked, |locked, _| locked.machine.mtu()));
        mtu.unwrap_or_default()
    }

    fn groups_changed(&self) {
        self.lagg.with(|lagg| lagg.signal(signals::GROUPS));
    }

    fn counter(&self, counter: InterfaceCounter, unlocked: &mut Unlocked) -> u64 {
        self.lagg.with(|lagg| lagg.counter(counter, unlocked)).unwrap_or_default()
    }

    fn child_configured(&self, vlan: &Vlan, _may_sleep: &mut MaySleep) {
        let VlanTag(tag) = vlan.tag();
        self.lagg.with(|lagg| {
            let name = lagg.net.name();
            let text =
                format_args!("{name}: P_Key {tag:#06x}: make it on the ports, and a lagg of these");
            log::line(Level::Error, text);
        });
    }

    fn child_unconfigured(&self, _tag: VlanTag, _may_sleep: &mut MaySleep) {
        // None was adopted.
    }

    fn aggregator(&self) -> Option<&dyn Aggregator> {
        Some(self)
    }
}

impl Aggregator for Front {
    fn name(&self) -> Name {
        self.lagg.with(|lagg| Name::new(lagg.net.name())).unwrap_or(Name::new(""))
    }

    fn ports(&self, may_sleep: &mut MaySleep) -> Result<Vec<PortStatus>, Errno> {
        self.lagg.with(|lagg| lagg.ports(may_sleep)).unwrap_or(Err(Errno::ENXIO))
    }

    fn port(&self, which: WhichPort<'_>, unlocked: &mut Unlocked) -> Option<PortStatus> {
        self.lagg
            .with(|lagg| {
                lagg.locked.with(unlocked, |locked, _| {
                    let id = match which {
                        WhichPort::Named(named) => locked.ports.find(named)?,
                        WhichPort::Id(id) => id,
                    };
                    let row = locked.machine.ports().find(|row| row.port == id)?;
                    locked.status(&row)
                })
            })
            .flatten()
    }

    fn add_port(&self, named: Named, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        self.lagg.with(|lagg| lagg.ask(Ask::Add(named), may_sleep)).unwrap_or(Err(Errno::ENXIO))
    }

    fn remove_port(&self, named: Named, may_sleep: &mut MaySleep) -> Result<(), Errno> {
        self.lagg.with(|lagg| lagg.ask(Ask::Remove(named), may_sleep)).unwrap_or(Err(Errno::ENXIO))
    }

    fn port_departs(&self, port: PortId, may_sleep: &mut MaySleep) {
        self.lagg.with(|lagg| lagg.wait_for_departure(port, may_sleep));
    }

    fn port_moved(&self, port: PortId, unlocked: &mut Unlocked) {
        self.lagg.with(|lagg| {
            lagg.locked.with(unlocked, |locked, _| locked.machine.handle_port_moved(port));
            lagg.waker.wake();
        });
    }

    fn ports_changed(&self) {
        self.lagg.with(|lagg| lagg.signal(signals::PORTS));
    }

    fn flags_changed(&self) {
        self.lagg.with(|lagg| lagg.signal(signals::FLAGS));
    }

    fn receives(&self, port: PortId, cast: Cast, epoch: &mut InNetEpoch) -> bool {
        let takes = self.lagg.with(|lagg| {
            lagg.locked.with(epoch, |locked, _| locked.machine.handle_receive(port, cast).is_ok())
        });
        takes.unwrap_or(false)
    }

    fn options(&self, look: &mut dyn FnMut(&mut Options), unlocked: &mut Unlocked) {
        self.lagg.with(|lagg| {
            lagg.locked.with(unlocked, |locked, _| look(&mut locked.options));
        });
    }

    fn carrier_changes(&self, unlocked: &mut Unlocked) -> u64 {
        let changes = self.lagg.with(|lagg| {
            lagg.locked.with(unlocked, |locked, _| {
                locked.machine.counters()[ipoib_rs::lagg::Counter::CarrierChanges]
            })
        });
        changes.unwrap_or_default()
    }
}

impl Locked {
    fn status(&self, row: &PortRow) -> Option<PortStatus> {
        let PortRow { port, is_primary, is_carrier, has_link, .. } = *row;
        let name = self.ports.get(port)?.port.name();
        Some(PortStatus { name, is_primary, is_carrier, has_link })
    }
}

impl Lagg {
    fn transmit(
        &self,
        header: &LinkHeader,
        packet: Packet,
        epoch: &mut InNetEpoch,
    ) -> Result<(), Errno> {
        self.net.tap_output(header, &packet);
        let port = self.locked.with(epoch, |locked, _| {
            let id = locked.machine.handle_transmit().map_err(errno_of)?;
            let member = locked.ports.get(id).ok_or(Errno::ENXIO)?;
            Ok(Arc::clone(&member.port))
        })?;
        port.transmit(header, packet, epoch)
    }

    fn ports(&self, may_sleep: &mut MaySleep) -> Result<Vec<PortStatus>, Errno> {
        let mut ports = Vec::new();
        let len = ipoib_rs::limits::LaggLimits::DEFAULT.ports_max as usize;
        ports.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
        self.locked.with(may_sleep, |locked, _| {
            let all = locked.machine.ports().filter_map(|row| locked.status(&row));
            for status in all {
                if ports.len() < ports.capacity() {
                    ports.push(status);
                }
            }
        });
        Ok(ports)
    }

    /// Those of the ports, since they are some, those of ports that have left, and drops of the
    /// lagg itself.
    fn counter(&self, counter: InterfaceCounter, unlocked: &mut Unlocked) -> u64 {
        let mut sum = self.locked.with(unlocked, |locked, _| {
            let own = match counter {
                InterfaceCounter::DropsOut => {
                    let counters = locked.machine.counters();
                    UNSENT.iter().map(|&reason| counters[reason]).sum()
                }
                InterfaceCounter::PacketsIn
                | InterfaceCounter::ErrorsIn
                | InterfaceCounter::BytesIn
                | InterfaceCounter::MulticastIn
                | InterfaceCounter::DropsIn
                | InterfaceCounter::PacketsOut
                | InterfaceCounter::ErrorsOut
                | InterfaceCounter::BytesOut
                | InterfaceCounter::MulticastOut => 0,
            };
            locked.ports.kept().value(counter).wrapping_add(own)
        });
        let mut place = 0;
        loop {
            let next =
                self.locked.with(unlocked, |locked, _| locked.ports.at_or_behind(place).cloned());
            let Some(member) = next else { return sum };
            place = member.id.index() + 1;
            let before: &Counted = &member.before;
            let since = member.port.counter(counter, unlocked).wrapping_sub(before.value(counter));
            sum = sum.wrapping_add(since);
        }
    }
}

/// Why packets are not sent.
const UNSENT: [DropReason; 3] = [DropReason::LaggDown, DropReason::NoPort, DropReason::NoLink];

/// What the sender is told.
const fn errno_of(reason: DropReason) -> Errno {
    match reason {
        DropReason::NoPort => Errno::ENXIO,
        DropReason::LaggDown
        | DropReason::NoLink
        | DropReason::ReceivedWhileDown
        | DropReason::InactivePort
        | DropReason::UnknownPort => Errno::ENETDOWN,
    }
}
