//! What a scenario does to a lab: as an administrator of a host, and as the subnet manager's.

use std::net::IpAddr;

use fabric::Fabric;
use fabric::hca::HcaConfig;
use fabric::mad::Status;
use fabric::port::PortId;
use fabric::sm::{Fault, FaultExtent, SmConfig, SmError, SmLimits};
use fabric::subnet::Subnet;
use ipoib_rs::ib::Pkey;
use ipoib_rs::interface::Mode;
use ipoib_rs::wire::{BroadcastGroup, Scope};

use super::host::{HostId, LabPort, Place};
use super::lagg::LabLagg;
use super::{World, interface_error};
use crate::error::Error;
use crate::namespace::Namespace;
use crate::tools;

/// Plugs an adapter into the fabric. Its ports.
pub(super) fn plug_in(
    fabric: &mut Fabric,
    guid: u64,
    port_count: u8,
) -> Result<Vec<PortId>, Error> {
    let config = HcaConfig { port_count, ..HcaConfig::with_guid(guid) };
    let hca = fabric.add_hca(&config).map_err(interface_error("adapter"))?;
    Ok(fabric.hca_ports(hca).collect())
}

/// Configures the broadcast group of a partition, as OpenSM does where IPoIB is wanted.
pub(super) fn configure_broadcast(subnet: &mut Subnet, pkey: Pkey) -> Result<(), Error> {
    let mgid = BroadcastGroup::new(Scope::LINK_LOCAL, pkey).mgid();
    let parameters = SmConfig::new(SmLimits::DEFAULT).group;
    match subnet.manager_mut().create_group(mgid, pkey, parameters) {
        Ok(_) => Ok(()),
        Err(error) => Err(interface_error("broadcast group")(error)),
    }
}

impl World<'_> {
    /// A host's first port.
    pub(super) fn port(&self, host: HostId) -> Result<&LabPort, Error> {
        self.port_at(Place::first(host))
    }

    pub(super) fn port_at(&self, place: Place) -> Result<&LabPort, Error> {
        let port = self.ports.iter().find(|port| port.place() == place);
        port.ok_or_else(|| Error::Interface(format!("there is no {place}")))
    }

    /// A host's namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`] if there is no such host.
    pub(crate) fn namespace(&self, host: HostId) -> Result<&Namespace, Error> {
        Ok(self.port(host)?.namespace())
    }

    /// Runs ip(8) in a host's namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Program`] with its message.
    pub(crate) fn ip(&self, host: HostId, arguments: &[&str]) -> Result<(), Error> {
        self.namespace(host)?.ip(arguments)
    }

    /// What ip(8) shows of a host's interface, on one line.
    ///
    /// # Errors
    ///
    /// [`Error::Program`] with its message.
    pub(crate) fn show_link(&self, host: HostId, interface: &str) -> Result<String, Error> {
        let name = self.namespace(host)?.name();
        tools::read(tools::IP, &["-n", name, "-o", "link", "show", interface])
    }

    /// Gives an interface one more address.
    ///
    /// # Errors
    ///
    /// [`Error::Program`] with the message of ip(8).
    pub(crate) fn add_address(
        &mut self,
        host: HostId,
        interface: &str,
        address: IpAddr,
    ) -> Result<(), Error> {
        port_mut(&mut self.ports, Place::first(host))?.add_address(interface, address)
    }

    /// Gives a host an interface in a partition of its port: `ib0.8002` for P_Key 0x8002.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`], [`Error::System`], [`Error::Program`].
    pub(crate) fn add_child(&mut self, id: HostId, pkey: Pkey) -> Result<(), Error> {
        let Self { ports, fabric, .. } = self;
        let port = port_mut(ports, Place::first(id))?;
        let name = format!("ib0.{:04x}", pkey.value());
        let addresses = [id.child_ipv4().into(), id.child_ipv6().into()];
        port.add_interface(fabric, &name, Some(pkey), &addresses)?;
        self.settle()
    }

    /// Makes a lagg over all ports of a host. It gets the addresses of the first one, whose
    /// interface has none any more.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`], [`Error::System`], [`Error::Program`].
    pub(crate) fn make_lagg(&mut self, host: HostId) -> Result<(), Error> {
        let now = self.now();
        let namespace = self.port(host)?.shared_namespace();
        let is_port = |&index: &usize| self.ports[index].place().host == host;
        let members: Vec<usize> = (0..self.ports.len()).filter(is_port).collect();
        for &index in &members {
            self.ports[index].enslave(now, &mut self.fabric)?;
        }
        self.laggs.push(LabLagg::new(host, &namespace, &members)?);
        self.settle()
    }

    /// Connects a host's port to the switch or pulls the cable.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`].
    pub(crate) fn set_cable(&mut self, host: HostId, is_connected: bool) -> Result<(), Error> {
        self.set_cable_at(Place::first(host), is_connected)
    }

    /// Connects a port to the switch or pulls its cable.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`].
    pub(crate) fn set_cable_at(&mut self, place: Place, is_connected: bool) -> Result<(), Error> {
        let port = self.port_at(place)?.id();
        let result = if is_connected {
            self.subnet.link_up(&mut self.fabric, port)
        } else {
            self.subnet.link_down(&mut self.fabric, port)
        };
        result.map_err(interface_error("link"))?;
        self.settle()
    }

    /// Switches the mode of a host's interfaces.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`] if the adapter cannot.
    pub(crate) fn set_mode(&mut self, id: HostId, mode: Mode) -> Result<(), Error> {
        let now = self.now();
        for port in self.ports.iter_mut().filter(|port| port.place().host == id) {
            port.set_mode(now, &mut self.fabric, mode)?;
        }
        self.settle()
    }

    /// Sets the MTU that a host's interfaces have in connected mode.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`] if it is none for connected mode.
    pub(crate) fn set_connected_mtu(&mut self, id: HostId, mtu: usize) -> Result<(), Error> {
        for port in self.ports.iter_mut().filter(|port| port.place().host == id) {
            port.set_connected_mtu(&mut self.fabric, mtu)?;
        }
        self.settle()
    }

    /// Lets a port answer for an address of its host, and no other port of that host. The port
    /// announces it.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`] if there is no such port or the address is none of a host.
    pub(crate) fn answer_at(&mut self, place: Place, address: IpAddr) -> Result<(), Error> {
        let fabric = &mut self.fabric;
        for port in self.ports.iter_mut().filter(|port| port.place().host == place.host) {
            port.forget_address(address);
        }
        port_mut(&mut self.ports, place)?.answer_for(fabric, address)?;
        self.settle()
    }

    /// Another subnet manager takes over that knows the configuration and no members.
    ///
    /// # Errors
    ///
    /// As [`Self::set_cable`].
    pub(crate) fn restart_sm(&mut self) -> Result<(), Error> {
        self.manage(|manager| {
            manager.restart();
            Ok(())
        })
    }

    /// Gives a host's port another LID.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`] with the manager's refusal.
    pub(crate) fn move_lid(&mut self, host: HostId) -> Result<(), Error> {
        let port = self.port(host)?.id();
        self.manage(|manager| manager.move_lid(port).map(drop))
    }

    /// Makes a partition and its broadcast group.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`] with the manager's refusal.
    pub(crate) fn add_partition(&mut self, pkey: Pkey) -> Result<(), Error> {
        self.manage(|manager| manager.add_partition(pkey))?;
        configure_broadcast(&mut self.subnet, pkey)
    }

    /// Lets a host's port into a partition.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`] with the manager's refusal.
    pub(crate) fn grant_pkey(&mut self, host: HostId, pkey: Pkey) -> Result<(), Error> {
        let port = self.port(host)?.id();
        self.manage(|manager| manager.grant_pkey(port, pkey))
    }

    /// Takes a host's port out of a partition.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`] with the manager's refusal.
    pub(crate) fn revoke_pkey(&mut self, host: HostId, pkey: Pkey) -> Result<(), Error> {
        let port = self.port(host)?.id();
        self.manage(|manager| manager.revoke_pkey(port, pkey))
    }

    /// Lets the subnet administrator answer the next requests with BUSY.
    ///
    /// # Errors
    ///
    /// As [`Self::set_cable`].
    pub(crate) fn make_sa_busy(&mut self, requests: u32) -> Result<(), Error> {
        self.manage(|manager| {
            manager.set_fault(Fault::Status(Status::BUSY), FaultExtent::Next(requests));
            Ok(())
        })
    }

    fn manage(
        &mut self,
        change: impl FnOnce(&mut fabric::sm::SubnetManager<PortId>) -> Result<(), SmError>,
    ) -> Result<(), Error> {
        change(self.subnet.manager_mut()).map_err(interface_error("subnet manager"))?;
        self.subnet.poll(&mut self.fabric);
        self.settle()
    }
}

fn port_mut(ports: &mut [LabPort], place: Place) -> Result<&mut LabPort, Error> {
    let port = ports.iter_mut().find(|port| port.place() == place);
    port.ok_or_else(|| Error::Interface(format!("there is no {place}")))
}
