//! Ports: what they are, and what an admin does to them.

use core::fmt;

use fabric::hca::HcaId;
use fabric::port::{PortCounters, PortId, PortState, PortStatus};
use fabric::sm::{PKEYS_PER_PORT, SmCounters, SmError};
use fabric::switch::SwitchCounters;
use fabric::{ManagementError, Violations};
use ipoib_rs::ib::{Lid, Pkey, PkeyIndex};
use ipoib_rs::interface::PortEvent;

use super::{Device, PORTS_PER_DEVICE, World};
use crate::error::Error;
use crate::layout::{Counters, PortView};

/// What events are called.
const EVENTS: [(&str, PortEvent); 7] = [
    ("client_reregister", PortEvent::ClientReregister),
    ("gid_change", PortEvent::GidChanged),
    ("lid_change", PortEvent::LidChanged),
    ("pkey_change", PortEvent::PkeyChanged),
    ("port_active", PortEvent::PortActive),
    ("port_err", PortEvent::PortError),
    ("sm_change", PortEvent::SmChanged),
];

/// What was dropped or must not happen, over the whole fabric.
#[derive(Clone, Copy, Debug)]
pub struct Totals {
    /// What no correct user of the verbs does.
    pub violations: Violations,
    /// What the switch dropped.
    pub switch: SwitchCounters,
    /// What the subnet manager did.
    pub manager: SmCounters,
    /// Packets that a link lost because it was set to.
    pub lost: u64,
    /// Packets that exist at this moment.
    pub packets: u64,
}

impl World {
    /// What a port is now.
    pub fn query_port(&self, device: u32, number: u8) -> Result<PortView, Error> {
        let status = self.status(self.port(device, number)?)?;
        let sm = status.sm;
        Ok(PortView {
            gid: status.gid.0,
            lid: status.lid.map_or(0, Lid::value),
            sm_lid: sm.map_or(0, |sm| sm.lid.value()),
            sm_sl: sm.map_or(0, |sm| sm.sl.value()),
            mtu_code: status.mtu.code(),
            is_active: u8::from(status.state == PortState::Active),
            reserved: 0,
        })
    }

    /// A place of a port's P_Key table; 0 if it is empty.
    pub fn query_pkey(&self, device: u32, number: u8, index: u16) -> u16 {
        let port = self.port(device, number).ok();
        let pkey = port.and_then(|port| self.fabric.query_pkey(port, PkeyIndex(index)));
        pkey.map_or(0, Pkey::value)
    }

    /// The GUID of an adapter; 0 for none.
    pub fn guid(&self, device: u32) -> u64 {
        self.device(device).map_or(0, |device| device.guid)
    }

    /// Gives a port its link, or takes it away.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn set_link(&mut self, device: u32, number: u8, is_up: bool) -> Result<(), Error> {
        let port = self.port(device, number)?;
        let was_up = self.status(port)?.state != PortState::Down;
        match (was_up, is_up) {
            (false, true) => self.subnet.link_up(&mut self.fabric, port)?,
            (true, false) => self.subnet.link_down(&mut self.fabric, port)?,
            (true, true) | (false, false) => {}
        }
        self.schedule();
        Ok(())
    }

    /// Has the subnet manager give a port another LID: this one, or with 0 the next that is free.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn set_lid(&mut self, device: u32, number: u8, lid: u16) -> Result<(), Error> {
        let port = self.port(device, number)?;
        let manager = self.subnet.manager_mut();
        match lid {
            0 => {
                manager.move_lid(port)?;
            }
            _ => manager.assign_lid(port, Lid::new(lid).ok_or(Error::Invalid)?)?,
        }
        self.carry_out();
        Ok(())
    }

    /// Writes the keys of a port's P_Key table, in their order, empty places as 0.
    pub fn show_pkeys(&self, device: u32, number: u8, out: &mut impl fmt::Write) -> fmt::Result {
        let keys = (0..).take(PKEYS_PER_PORT).map(|index| self.query_pkey(device, number, index));
        // What is empty at the end says nothing.
        let end = keys.clone().zip(1..).filter(|&(pkey, _)| pkey != 0).last();
        for (index, pkey) in keys.take(end.map_or(0, |(_, count)| count)).enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(out, "{separator}{pkey:#06x}")?;
        }
        Ok(())
    }

    /// Has the subnet manager let a port into the partitions of these keys, and out of all others.
    /// A partition that is new gets its broadcast group. Keys that stay keep their place.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for what is no list of keys.
    pub fn set_pkeys(&mut self, device: u32, number: u8, text: &str) -> Result<(), Error> {
        let port = self.port(device, number)?;
        let mut keys = [None; PKEYS_PER_PORT];
        let mut places = keys.iter_mut();
        for word in text.split_ascii_whitespace() {
            let key = parse_pkey(word).ok_or(Error::Invalid)?;
            *places.next().ok_or(Error::Invalid)? = Some(key);
        }
        for index in (0..).take(PKEYS_PER_PORT) {
            let own = self.fabric.query_pkey(port, PkeyIndex(index));
            let stays = |own: Pkey| keys.iter().flatten().any(|key| key.full() == own.full());
            if let Some(own) = own.filter(|own| !stays(*own)) {
                self.subnet.manager_mut().revoke_pkey(port, own)?;
            }
        }
        for key in keys.into_iter().flatten() {
            self.add_partition(key)?;
            self.subnet.manager_mut().grant_pkey(port, key)?;
        }
        self.carry_out();
        Ok(())
    }

    fn add_partition(&mut self, pkey: Pkey) -> Result<(), Error> {
        match self.subnet.manager_mut().add_partition(pkey) {
            Ok(()) => self.create_broadcast_group(pkey),
            // With its group.
            Err(SmError::Exists) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Raises an event at a port, whether or not something changed.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is none.
    pub fn raise_event(&mut self, device: u32, number: u8, name: &str) -> Result<(), Error> {
        let port = self.port(device, number)?;
        let event = EVENTS.iter().find(|(own, _)| *own == name);
        self.fabric.dispatch_event(port, event.ok_or(Error::Invalid)?.1);
        self.schedule();
        Ok(())
    }

    /// Packets of a million that the link of a port loses.
    pub fn loss(&self, device: u32, number: u8) -> u32 {
        self.port(device, number).map_or(0, |port| self.chance.loss(port))
    }

    /// Sets how many packets of a million the link of a port loses.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] above a million.
    pub fn set_loss(&mut self, device: u32, number: u8, parts: u32) -> Result<(), Error> {
        let port = self.port(device, number)?;
        self.chance.set_loss(port, parts)
    }

    /// Whether the address of a port's interface is shown without the RC flag.
    pub fn hides_rc(&self, device: u32, number: u8) -> bool {
        let device = self.devices.get(device as usize);
        let place = usize::from(number).checked_sub(1);
        let hides = device.zip(place).and_then(|(device, place)| device.hides_rc.get(place));
        hides.copied().unwrap_or(false)
    }

    /// Clears the RC flag of the sender's address in the packets of ARP and of neighbour discovery
    /// that a port sends from now on, or ends that: to others the port is one that takes no
    /// connections.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no such port.
    pub fn set_hides_rc(&mut self, device: u32, number: u8, hides: bool) -> Result<(), Error> {
        let device = self.devices.get_mut(device as usize).ok_or(Error::Invalid)?;
        let place = usize::from(number).checked_sub(1).ok_or(Error::Invalid)?;
        *device.hides_rc.get_mut(place).ok_or(Error::Invalid)? = hides;
        Ok(())
    }

    /// Datagrams that a port is to fail to send.
    pub fn sends_to_fail(&self, device: u32, number: u8) -> u32 {
        self.port(device, number).map_or(0, |port| self.fabric.datagrams_to_fail(port))
    }

    /// Has the next datagrams that a port sends fail: each stops the send queue of its queue pair.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no such port.
    pub fn fail_sends(&mut self, device: u32, number: u8, count: u32) -> Result<(), Error> {
        Ok(self.fabric.fail_datagrams(self.port(device, number)?, count)?)
    }

    /// Whether requests for connections are lost.
    pub const fn drops_requests(&self) -> bool {
        self.chance.drops_requests()
    }

    /// Loses all requests for connections from now on, or ends that.
    pub const fn set_drops_requests(&mut self, drops: bool) {
        self.chance.set_drops_requests(drops);
    }

    /// Whether no request for a connection can be posted.
    pub const fn refuses_requests(&self) -> bool {
        self.refuses_requests
    }

    /// Refuses the posting of all requests for connections from now on, or ends that.
    pub const fn set_refuses_requests(&mut self, refuses: bool) {
        self.refuses_requests = refuses;
    }

    /// Another subnet manager takes over, which knows no members of groups.
    pub fn restart_manager(&mut self) {
        self.subnet.manager_mut().restart();
        self.carry_out();
    }

    /// The subnet manager asks every port to register again.
    pub fn request_reregistration(&mut self) {
        self.subnet.manager_mut().request_reregistration();
        self.carry_out();
    }

    fn carry_out(&mut self) {
        self.subnet.poll(&mut self.fabric);
        self.schedule();
    }

    /// What a port dropped, and how much passed through.
    pub fn port_counters(&self, device: u32, number: u8) -> PortCounters {
        let port = self.port(device, number).ok();
        let counters = port.and_then(|port| self.fabric.port_counters(port));
        counters.copied().unwrap_or_default()
    }

    /// What performance management tells of a port: packets sent and received, those that the port
    /// could not send, and those that nobody on it could receive (IBA 16.1.3.5).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no such port.
    pub fn summary(&self, device: u32, number: u8) -> Result<Counters, Error> {
        let port = self.port(device, number)?;
        let counters = self.fabric.port_counters(port).ok_or(Error::Invalid)?;
        let PortCounters {
            sent,
            received,
            sends_while_inactive,
            sends_without_pkey,
            arrivals_while_inactive: _,
            foreign_lids,
            foreign_gids,
            unknown_qpns,
            unattached_groups: _,
            pkey_violations,
            qkey_violations,
            receives_missing,
            receives_too_short,
            buffers_missing: _,
            wrong_services,
            foreign_sources,
            duplicates: _,
            sequence_errors: _,
            stale_responses: _,
        } = *counters;
        let receive_errors = [
            foreign_lids,
            foreign_gids,
            unknown_qpns,
            pkey_violations,
            qkey_violations,
            receives_missing,
            receives_too_short,
            wrong_services,
            foreign_sources,
        ];
        Ok(Counters {
            sent,
            received,
            send_discards: sends_while_inactive + sends_without_pkey,
            receive_errors: receive_errors.into_iter().sum(),
        })
    }

    /// What was dropped or must not happen, over the whole fabric.
    pub fn totals(&self) -> Totals {
        Totals {
            violations: *self.fabric.violations(),
            switch: *self.fabric.switch_counters(),
            manager: *self.subnet.manager().counters(),
            lost: self.chance.lost(),
            packets: self.fabric.pool().outstanding() as u64,
        }
    }

    pub(super) fn device(&self, device: u32) -> Result<&Device, Error> {
        self.devices.get(device as usize).ok_or(Error::Invalid)
    }

    /// A port by its number, from 1.
    pub(super) fn port(&self, device: u32, number: u8) -> Result<PortId, Error> {
        let place = usize::from(number).checked_sub(1).ok_or(Error::Invalid)?;
        self.device(device)?.ports.get(place).copied().ok_or(Error::Invalid)
    }

    /// Where a port is.
    pub(super) fn place_of(&self, port: PortId) -> Option<(&Device, u8)> {
        let hca: HcaId = self.fabric.query_port(port)?.hca;
        let device = self.devices.iter().find(|device| device.hca == hca)?;
        let place = (0..PORTS_PER_DEVICE).find(|&place| device.ports[place] == port)?;
        // CAST: 1 or 2.
        Some((device, place as u8 + 1))
    }

    fn status(&self, port: PortId) -> Result<PortStatus, Error> {
        self.fabric.query_port(port).ok_or(ManagementError::Unknown.into())
    }
}

fn parse_pkey(word: &str) -> Option<Pkey> {
    let digits = word.strip_prefix("0x").unwrap_or(word);
    Pkey::new(u16::from_str_radix(digits, 16).ok()?)
}
