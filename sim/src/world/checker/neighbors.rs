//! What an interface says of its neighbours agrees with what it does.

use std::collections::BTreeSet;

use fabric::packet::Packet;
use ipoib_rs::action::Action;
use ipoib_rs::event::{Event, Notice};
use ipoib_rs::ib::ServiceId;
use ipoib_rs::interface::{Interface, Mode};
use ipoib_rs::wire::{AddressFlags, LinkAddress};

/// The lines that the log has for neighbours that are still there: one for each and cause.
#[derive(Debug, Default)]
pub(in crate::world) struct Log {
    lines: BTreeSet<(LinkAddress, Cause)>,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Cause {
    Unconnected,
    Unresolved,
    TooBig,
}

impl Log {
    /// A line for the log must be the only one of its kind.
    pub(in crate::world) fn on_event(&mut self, event: &Event) -> Result<(), String> {
        let line = match *event {
            Event::Notice(Notice::ConnectFailing(address, _)) => (address, Cause::Unconnected),
            Event::Notice(Notice::PathFailing(address, _)) => (address, Cause::Unresolved),
            Event::Notice(Notice::TooBig(address, _)) => (address, Cause::TooBig),
            Event::Notice(
                Notice::BroadcastUnusable(_)
                | Notice::DrainForced
                | Notice::JoinFailing(..)
                | Notice::JoinRecovered(_)
                | Notice::ResetFailed,
            )
            | Event::AddressChanged(_)
            | Event::AnnounceAddress
            | Event::BroadcastChanged(_)
            | Event::Detached
            | Event::LinkDown
            | Event::LinkUp
            | Event::ModeChanged(_)
            | Event::MtuChanged(_) => return Ok(()),
        };
        if self.lines.insert(line) {
            return Ok(());
        }
        let (address, cause) = line;
        Err(format!("the log was told twice of {address}: {cause:?}"))
    }

    /// A neighbour that is forgotten, and one that can be reached again, may fail anew.
    pub(in crate::world) fn forget_gone(&mut self, interface: &Interface<Packet>) {
        if self.lines.is_empty() {
            return;
        }
        let (mut known, mut ready) = (BTreeSet::new(), BTreeSet::new());
        for row in interface.neighbors() {
            known.insert(row.address);
            if is_ready(row.state) {
                ready.insert(row.address);
            }
        }
        self.lines.retain(|(address, cause)| match cause {
            Cause::Unconnected | Cause::TooBig => known.contains(address),
            Cause::Unresolved => known.contains(address) && !ready.contains(address),
        });
    }
}

/// The MTU that a sender is told is that of its receiver, as everybody can see it. If the receiver
/// has another address by now, it is that of the address.
pub(in crate::world) fn check_reported(
    interface: &Interface<Packet>,
    to: &LinkAddress,
    mtu: usize,
) -> Result<(), String> {
    // Before anything is known of a neighbour it is what the interface or the link can do.
    let is_limit = mtu == interface.mtu() || mtu == interface.datagram_mtu();
    let rows: Vec<_> = interface.neighbors().filter(|row| row.address.gid() == to.gid()).collect();
    let is_right =
        rows.iter().any(|row| if is_ready(row.state) { row.mtu == mtu } else { is_limit });
    if is_right || (rows.is_empty() && is_limit) {
        Ok(())
    } else {
        Err(format!("an MTU of {mtu} was reported, and the neighbours are {rows:?}"))
    }
}

/// Connections are asked for in connected mode, and only of neighbours that say that they accept
/// them (RFC 4755 3.1).
pub(in crate::world) fn check_action(
    interface: &Interface<Packet>,
    action: &Action,
) -> Result<(), String> {
    let Action::OpenConnection { request, .. } = action else {
        return Ok(());
    };
    if interface.mode() == Mode::Datagram {
        return Err("a connection was asked for in datagram mode".to_owned());
    }
    let is_wanted = interface.neighbors().any(|row| {
        let is_capable = row.address.flags().contains(AddressFlags::RC);
        is_capable && ServiceId::of_interface(row.address.qpn()) == request.service
    });
    if is_wanted {
        Ok(())
    } else {
        Err(format!("{:?} was asked for, which is nobody's", request.service))
    }
}

/// Whether packets go out to a neighbour in this state.
fn is_ready(state: &str) -> bool {
    ["ready", "stale", "refreshing", "replacing"].contains(&state)
}
