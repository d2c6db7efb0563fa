//! The subnet manager at work: its port, its datagrams, and what it tells ports and switch to do.

use ipoib_rs::ib::{RateCode, ServiceLevel};
use ipoib_rs::interface::PortEvent;

use crate::gsi::{AgentId, Gsi, Role};
use crate::mad::SA_CLASS;
use crate::port::{PortId, PortState, SmAddress};
use crate::sm::{Command, PortConfig, SmConfig, SmError, SubnetManager};
use crate::{CreateError, Fabric, ManagementError};

/// A subnet manager on a port of the fabric.
///
/// [`Self::poll`] makes everything happen: it carries out what the manager decided and answers
/// requests. Call it after each call of [`Self::manager_mut`] and when its port got a notification.
#[derive(Debug)]
pub struct Subnet {
    manager: SubnetManager<PortId>,
    gsi: Gsi,
    agent: AgentId,
    rate: RateCode,
    counters: SubnetCounters,
}

/// What could not be carried out.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SubnetCounters {
    /// Answers that could not be sent.
    pub answers_unsent: u64,
    /// Commands that port or switch refused.
    pub commands_refused: u64,
}

/// The subnet has no manager, or a port was not taken in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SubnetError {
    /// QP1 of the manager's port could not be opened.
    Gsi(CreateError),
    /// The manager refused.
    Manager(SmError),
    /// The fabric refused.
    Fabric(ManagementError),
}

impl From<CreateError> for SubnetError {
    fn from(error: CreateError) -> Self {
        Self::Gsi(error)
    }
}

impl From<SmError> for SubnetError {
    fn from(error: SmError) -> Self {
        Self::Manager(error)
    }
}

impl From<ManagementError> for SubnetError {
    fn from(error: ManagementError) -> Self {
        Self::Fabric(error)
    }
}

impl Subnet {
    /// Starts a subnet manager on a port, which becomes ACTIVE. All links have the same `rate`.
    /// `context` comes with the notifications of the port's QP1.
    ///
    /// # Errors
    ///
    /// [`SubnetError`].
    // Not inlined, so that its frame fits a kernel stack beside the caller's.
    #[inline(never)]
    pub fn new(
        fabric: &mut Fabric,
        port: PortId,
        config: SmConfig,
        rate: RateCode,
        context: u64,
    ) -> Result<Self, SubnetError> {
        let own = port_config(fabric, port, rate)?;
        let manager = SubnetManager::new(config, port, own)?;
        let mut gsi = Gsi::open(fabric, port, context)?;
        let agent = match gsi.register(Role::Server { class: SA_CLASS }) {
            Ok(agent) => agent,
            Err(error) => {
                gsi.close(fabric);
                return Err(error.into());
            }
        };
        let mut subnet = Self { manager, gsi, agent, rate, counters: SubnetCounters::default() };
        fabric.set_port_state(port, PortState::Init)?;
        subnet.poll(fabric);
        Ok(subnet)
    }

    /// Ends the manager. Ports and switch stay as they are.
    pub fn close(self, fabric: &mut Fabric) {
        self.gsi.close(fabric);
    }

    /// Connects a port: it gets a link, and the manager configures it.
    ///
    /// # Errors
    ///
    /// [`SubnetError`].
    pub fn link_up(&mut self, fabric: &mut Fabric, port: PortId) -> Result<(), SubnetError> {
        let config = port_config(fabric, port, self.rate)?;
        self.manager.configure_port(port, config)?;
        fabric.set_port_state(port, PortState::Init)?;
        self.manager.handle_link_up(port)?;
        self.poll(fabric);
        Ok(())
    }

    /// Takes a port's link away.
    ///
    /// # Errors
    ///
    /// [`SubnetError`].
    pub fn link_down(&mut self, fabric: &mut Fabric, port: PortId) -> Result<(), SubnetError> {
        fabric.set_port_state(port, PortState::Down)?;
        self.manager.handle_link_down(port)?;
        self.poll(fabric);
        Ok(())
    }

    /// Carries out what the manager decided and answers the requests that arrived.
    pub fn poll(&mut self, fabric: &mut Fabric) {
        self.carry_out(fabric);
        self.gsi.poll(fabric);
        while let Some(mad) = self.gsi.poll_mad(self.agent) {
            let answer = self.manager.handle_request(&mad.bytes, mad.source.lid);
            // The switch knows a new member before the member knows.
            self.carry_out(fabric);
            if let Some(answer) = answer
                && self.gsi.send(fabric, &mad.source, &answer).is_err()
            {
                self.counters.answers_unsent += 1;
            }
        }
    }

    /// The manager.
    pub const fn manager(&self) -> &SubnetManager<PortId> {
        &self.manager
    }

    /// The manager, to be told something. [`Self::poll`] carries out what follows.
    pub const fn manager_mut(&mut self) -> &mut SubnetManager<PortId> {
        &mut self.manager
    }

    /// Its datagrams.
    pub const fn gsi(&self) -> &Gsi {
        &self.gsi
    }

    /// What could not be carried out.
    pub const fn counters(&self) -> &SubnetCounters {
        &self.counters
    }

    fn carry_out(&mut self, fabric: &mut Fabric) {
        while let Some(command) = self.manager.poll_command() {
            if carry_out(fabric, command).is_err() {
                self.counters.commands_refused += 1;
            }
        }
    }
}

fn port_config(
    fabric: &Fabric,
    port: PortId,
    rate: RateCode,
) -> Result<PortConfig, ManagementError> {
    let status = fabric.query_port(port).ok_or(ManagementError::Unknown)?;
    Ok(PortConfig { guid: status.guid, gid: status.gid, mtu: status.mtu, rate })
}

fn carry_out(fabric: &mut Fabric, command: Command<PortId>) -> Result<(), ManagementError> {
    match command {
        Command::ActivatePort { port } => fabric.set_port_state(port, PortState::Active),
        Command::AddMember { mlid, port } => fabric.set_multicast_member(mlid, port, true),
        Command::RemoveMember { mlid, port } => fabric.set_multicast_member(mlid, port, false),
        Command::Notify { port, event } => {
            notify(fabric, port, event);
            Ok(())
        }
        Command::SetLid { port, lid } => fabric.set_lid(port, Some(lid)),
        Command::SetPkeyTable { port, table } => fabric.set_pkey_table(port, table.entries()),
        Command::SetSmLid { port, sm_lid } => {
            let sm = SmAddress { lid: sm_lid, sl: ServiceLevel::default() };
            fabric.set_sm(port, Some(sm))
        }
    }
}

/// Raises the events that only the manager knows of. The others come from the adapter, which sees
/// the change itself when the command before is carried out.
fn notify(fabric: &mut Fabric, port: PortId, event: PortEvent) {
    match event {
        PortEvent::ClientReregister | PortEvent::SmChanged => fabric.dispatch_event(port, event),
        PortEvent::GidChanged
        | PortEvent::LidChanged
        | PortEvent::PkeyChanged
        | PortEvent::PortActive
        | PortEvent::PortError => {}
    }
}
