//! The carrier is up only while port, P_Key and broadcast group are there.

use ipoib_rs::event::Event;

use crate::world::station::{Attached, Station};

/// The carrier goes up and down in turns.
pub(super) fn on_event(station: &mut Station, event: &Event) -> Result<(), String> {
    let index = station.index;
    let Some(attached) = &mut station.attached else {
        return Ok(());
    };
    let is_up = match event {
        Event::LinkUp => true,
        Event::LinkDown => false,
        Event::AddressChanged(_)
        | Event::AnnounceAddress
        | Event::BroadcastChanged(_)
        | Event::Detached
        | Event::ModeChanged(_)
        | Event::MtuChanged(_)
        | Event::Notice(_) => return Ok(()),
    };
    let was_up = std::mem::replace(&mut attached.is_link_reported_up, is_up);
    if was_up == is_up {
        return Err(format!("station {index}: {event:?} was reported twice"));
    }
    Ok(())
}

pub(super) fn check(attached: &Attached) -> Result<(), String> {
    let interface = &attached.interface;
    let is_up = interface.is_link_up();
    if is_up != attached.is_link_reported_up {
        return Err(format!("the carrier is up: {is_up}, and nobody was told"));
    }
    if !is_up {
        return Ok(());
    }
    let port = &attached.port_seen;
    if !port.is_active {
        return Err("the carrier is up and the port is not active".to_owned());
    }
    if port.partition.is_none() {
        return Err("the carrier is up and the P_Key is absent".to_owned());
    }
    let broadcast = interface.broadcast();
    let is_joined =
        interface.groups().any(|group| Some(group.mgid) == broadcast && group.mlid.is_some());
    if !is_joined {
        return Err("the carrier is up and the broadcast group is not joined".to_owned());
    }
    Ok(())
}
