//! The switch: unicast by LID, multicast by MLID (IBA 18.2.4).

use alloc::vec::Vec;

use ipoib_rs::ib::{Lid, Mlid};

use crate::port::PortId;

/// What the switch dropped.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SwitchCounters {
    /// No port has the LID.
    pub unroutable: u64,
    /// The port of the LID is down.
    pub links_down: u64,
    /// The port is not in the packet's partition (IBA 18.2.4).
    pub partition_violations: u64,
    /// Longer than the MTU of the port it leaves by.
    pub too_long: u64,
    /// No buffer for the copy of a multicast packet.
    pub buffers_missing: u64,
}

#[derive(Debug)]
pub(crate) struct Switch {
    /// The linear forwarding table, as long as the largest LID in use.
    unicast: Vec<Option<PortId>>,
    /// The multicast forwarding table: sorted members, by the MLID less [`Mlid::MIN`].
    multicast: Vec<Vec<PortId>>,
    pub(crate) counters: SwitchCounters,
}

/// No memory for a table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutOfMemory;

impl Switch {
    pub(crate) fn new() -> Self {
        Self { unicast: Vec::new(), multicast: Vec::new(), counters: SwitchCounters::default() }
    }

    pub(crate) fn port(&self, lid: Lid) -> Option<PortId> {
        let entry = self.unicast.get(usize::from(lid.value()));
        entry.copied().flatten()
    }

    pub(crate) fn set_port(&mut self, lid: Lid, port: Option<PortId>) -> Result<(), OutOfMemory> {
        let place = usize::from(lid.value());
        grow(&mut self.unicast, place + 1)?;
        self.unicast[place] = port;
        Ok(())
    }

    pub(crate) fn members(&self, mlid: Mlid) -> &[PortId] {
        let entry = self.multicast.get(multicast_place(mlid));
        entry.map_or(&[], Vec::as_slice)
    }

    pub(crate) fn set_member(
        &mut self,
        mlid: Mlid,
        port: PortId,
        is_member: bool,
    ) -> Result<(), OutOfMemory> {
        let place = multicast_place(mlid);
        grow(&mut self.multicast, place + 1)?;
        let members = &mut self.multicast[place];
        match members.binary_search(&port) {
            Ok(position) if !is_member => {
                members.remove(position);
            }
            Err(position) if is_member => {
                members.try_reserve(1).map_err(|_| OutOfMemory)?;
                members.insert(position, port);
            }
            Ok(_) | Err(_) => {}
        }
        Ok(())
    }
}

fn multicast_place(mlid: Mlid) -> usize {
    usize::from(mlid.value() - Mlid::MIN.value())
}

fn grow<T: Default>(table: &mut Vec<T>, len: usize) -> Result<(), OutOfMemory> {
    if len > table.len() {
        table.try_reserve(len - table.len()).map_err(|_| OutOfMemory)?;
        table.resize_with(len, T::default);
    }
    Ok(())
}
