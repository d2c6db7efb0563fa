//! A lagg has the address of the port that carries, and everything else that a change brings comes
//! once.

use std::collections::BTreeSet;

use ipoib_rs::lagg::{Action, Event, Lagg};
use ipoib_rs::wire::LinkAddress;

use crate::host::Host;
use crate::world::World;
use crate::world::bond::Bond;

/// What is remembered of a lagg.
#[derive(Debug, Default)]
pub(in crate::world) struct Watch {
    /// Times that it put on another address, and times that the stack was told.
    worn: u64,
    told: u64,
    /// Times that a port began to carry, or wanted to be announced although nothing changed.
    reasons: u64,
    announced: u64,
    /// The groups that the stack wants.
    listed: BTreeSet<GroupId>,
}

/// What tells groups apart whatever the scope and the P_Key are: signature and group ID.
type GroupId = ([u8; 2], [u8; 10]);

fn group_id(group: &LinkAddress) -> GroupId {
    let [_, _, a, b, _, _, id @ ..] = group.gid().0;
    ([a, b], id)
}

/// Scope and P_Key: groups of one link have the same.
fn link_id(group: &LinkAddress) -> [u8; 3] {
    let [_, flags_scope, _, _, high, low, ..] = group.gid().0;
    [flags_scope & 0x0F, high, low]
}

impl Watch {
    pub(in crate::world) fn on_worn(&mut self) {
        self.worn += 1;
    }

    pub(in crate::world) fn on_moved(&mut self) {
        self.reasons += 1;
    }

    pub(in crate::world) fn on_list(&mut self, list: &[LinkAddress]) {
        self.listed = list.iter().map(group_id).collect();
    }

    /// One notice for each change.
    pub(in crate::world) fn on_event(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::AddressChanged(_) => self.told += 1,
            Event::CarrierChanged(Some(_)) => self.reasons += 1,
            Event::CarrierChanged(None)
            | Event::CapabilitiesChanged(_)
            | Event::Detached
            | Event::LinkDown
            | Event::LinkUp
            | Event::MtuChanged(_) => {}
        }
        if self.told > self.worn {
            return Err(format!("told {} times of {} addresses", self.told, self.worn));
        }
        Ok(())
    }

    /// One announcement for each change, and no leave of what is listed.
    pub(in crate::world) fn on_action(
        &mut self,
        lagg: &Lagg,
        action: &Action,
    ) -> Result<(), String> {
        match action {
            Action::Announce { .. } => {
                self.announced += 1;
                if self.announced > self.worn + self.reasons {
                    return Err(format!("announced {} times without a reason", self.announced));
                }
            }
            Action::LeaveGroup { port, group, .. } => {
                let is_listed = self.listed.contains(&group_id(group));
                // One that goes gives its groups back, and one with another P_Key has others.
                let stays = lagg.ports().any(|row| {
                    row.port == *port
                        && row.state != "leaving"
                        && link_id(&row.identity.broadcast) == link_id(group)
                });
                if is_listed && stays {
                    return Err(format!("{group} is left on {port:?} although it is wanted"));
                }
            }
            Action::JoinGroup { .. }
            | Action::LowerPort { .. }
            | Action::QueryPorts
            | Action::RaisePort { .. }
            | Action::ReleasePort { .. }
            | Action::SetPortMtu { .. } => {}
        }
        Ok(())
    }

    /// A frame goes by the port that carries, and bears its address.
    pub(in crate::world) fn on_transmit(
        &self,
        carrier: Option<usize>,
        door: usize,
        host: &Host,
    ) -> Result<(), String> {
        if carrier != Some(door) {
            return Err(format!("a frame goes by station {door}, and {carrier:?} carries"));
        }
        match host.link_address() {
            Some(_) => Ok(()),
            None => Err("a frame goes out before there is an address".to_owned()),
        }
    }
}

/// The address that is worn is that of the port that carries, as it was last reported, and the
/// stack has both halves of it and was told.
pub(in crate::world) fn check(world: &World, bond: &Bond) -> Result<(), String> {
    let host = &world.stations[bond.host].host;
    let Some(row) = bond.lagg.ports().find(|row| row.is_carrier) else {
        return Ok(());
    };
    if bond.lagg.identity() != Some(&row.identity) {
        return Err("what is worn is not what the port that carries has".to_owned());
    }
    let worn = (Some(row.identity.address), row.identity.broadcast.mgid());
    if row.identity.broadcast.mgid().is_some() && (host.link_address(), host.broadcast()) != worn {
        return Err(format!(
            "the stack has {:?}, and the port that carries {}",
            host.link_address(),
            row.identity.address
        ));
    }
    if bond.watch.told != bond.watch.worn {
        let Watch { told, worn, .. } = bond.watch;
        return Err(format!("told {told} times of {worn} addresses"));
    }
    Ok(())
}
