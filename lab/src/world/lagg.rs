//! A lagg of a host: a TUN device and address resolution of its own, over two ports.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;

use fabric::Fabric;
use ipoib_rs::lagg::{
    self, Action, AddPortError, Config, Event, Face, Identity, Lagg, PortError, PortId,
};
use ipoib_rs::time::Instant;
use ipoib_rs::wire::LinkAddress;
use sim::host::{Frame, Host};
use zerocopy::IntoBytes;

use super::host::{HostId, Inbound, LabInterface, LabPort, subnet_of};
use super::interface_error;
use crate::error::Error;
use crate::memberships::Memberships;
use crate::namespace::Namespace;
use crate::tun::Tun;

/// The name of its device.
pub(crate) const LAGG: &str = "lagg0";

/// A lagg.
#[derive(Debug)]
pub(super) struct LabLagg {
    host: HostId,
    face: LabInterface,
    memberships: Memberships,
    core: Lagg,
    members: Vec<Member>,
    deadline: Option<Instant>,
    events: VecDeque<Event>,
    actions: VecDeque<Action>,
    /// Announcements that it made.
    announced: u64,
    is_detached: bool,
    // Last: the device goes before its namespace.
    _namespace: Rc<Namespace>,
}

/// A port.
#[derive(Debug)]
struct Member {
    /// Its place among the ports of the lab.
    port: usize,
    id: Option<PortId>,
    groups: BTreeSet<LinkAddress>,
}

/// What the stack sees.
pub(super) struct Mirror<'a>(&'a mut Host);

impl Face for Mirror<'_> {
    fn wear(&mut self, identity: Option<&Identity>) {
        let worn = identity.and_then(|one| Some((one.address, one.broadcast.mgid()?)));
        if let Some((address, broadcast)) = worn {
            // An address that is no broadcast group's is that of a port without a P_Key.
            let _ = self.0.set_link(address, broadcast);
        }
    }
}

impl lagg::Shell for LabLagg {
    type Face<'a> = Mirror<'a>;

    fn with_lagg<R>(&mut self, feed: impl FnOnce(&mut Lagg, &mut Mirror<'_>) -> R) -> R {
        feed(&mut self.core, &mut Mirror(&mut self.face.stack))
    }

    fn observe(&mut self, event: Event) {
        self.events.push_back(event);
    }

    fn execute(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn schedule(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }
}

impl LabLagg {
    /// A lagg over ports of one host, up and with the addresses of the first of them.
    pub(super) fn new(
        host: HostId,
        namespace: &Rc<Namespace>,
        members: &[usize],
    ) -> Result<Self, Error> {
        let core = Lagg::attach(Config::new(1)).map_err(interface_error("lagg"))?;
        let tun = namespace.within(|| Tun::create(LAGG))??;
        let face = LabInterface::without_core(LAGG.to_owned(), tun);
        let member = |&port: &usize| Member { port, id: None, groups: BTreeSet::new() };
        let mut lagg = Self {
            host,
            face,
            memberships: Memberships::open(namespace)?,
            core,
            members: members.iter().map(member).collect(),
            deadline: None,
            events: VecDeque::new(),
            actions: VecDeque::new(),
            announced: 0,
            is_detached: false,
            _namespace: Rc::clone(namespace),
        };
        let own: [IpAddr; 3] = [host.ipv4().into(), host.ipv6().into(), host.link_local().into()];
        for address in own {
            let (subnet, prefix_bits) = subnet_of(address)?;
            namespace.add_address(LAGG, address, prefix_bits)?;
            lagg.face.add_address(subnet);
        }
        lagg::pump(&mut lagg, |core, _| core.handle_admin_up());
        namespace.ip(&["link", "set", LAGG, "up"])?;
        Ok(lagg)
    }

    pub(super) fn host(&self) -> HostId {
        self.host
    }

    pub(super) fn core(&self) -> &Lagg {
        &self.core
    }

    pub(super) fn face(&self) -> &LabInterface {
        &self.face
    }

    /// How many addresses it announced.
    pub(super) fn announced(&self) -> u64 {
        self.announced
    }

    pub(super) fn is_detached(&self) -> bool {
        self.is_detached
    }

    /// The port that carries, by its place among the ports of the lab.
    pub(super) fn carrier(&self) -> Option<usize> {
        self.member(self.core.carrier()?).map(|member| member.port)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.face.stack.poll_timeout()).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, fabric: &mut Fabric) {
        if self.deadline.is_some_and(|at| at <= now) {
            lagg::pump(self, |core, face| core.handle_timeout(now, face));
        }
        self.face.stack.handle_timeout(now, fabric.pool_mut());
    }

    /// Looks at the groups that the kernel wants.
    pub(super) fn watch(&mut self) -> Result<(), Error> {
        let groups = self.memberships.read(LAGG)?;
        self.face.stack.set_groups(groups);
        self.feed_groups();
        Ok(())
    }

    pub(super) fn read_device(&mut self, now: Instant, fabric: &mut Fabric) -> Result<bool, Error> {
        self.face.read_device(now, fabric)
    }

    /// Moves what is in the lagg, its stack and its ports. Whether there was anything.
    pub(super) fn run(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        ports: &mut [LabPort],
    ) -> Result<bool, Error> {
        let mut any = self.hear_ports(now, fabric, ports)?;
        while let Some(event) = self.events.pop_front() {
            any = true;
            self.handle_event(event)?;
        }
        while let Some(action) = self.actions.pop_front() {
            any = true;
            self.execute_action(now, fabric, ports, action)?;
        }
        any |= self.send(now, fabric, ports);
        any |= self.face.deliver(fabric);
        Ok(any)
    }

    /// Gives every port back.
    pub(super) fn detach(&mut self, now: Instant, fabric: &mut Fabric) {
        self.face.stack.clear(fabric.pool_mut());
        self.face.drop_refused(fabric);
        lagg::pump(self, |core, face| core.handle_detach(now, face));
    }

    pub(super) fn close(mut self, fabric: &mut Fabric) {
        self.face.stack.clear(fabric.pool_mut());
        self.face.drop_refused(fabric);
    }

    /// Takes what ports have for the lagg.
    fn hear_ports(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        ports: &mut [LabPort],
    ) -> Result<bool, Error> {
        let mut any = false;
        for index in 0..self.members.len() {
            let Some(port) = ports.get_mut(self.members[index].port) else {
                continue;
            };
            if self.members[index].id.is_none() && !self.is_detached {
                any |= self.add(now, index, port)?;
            }
            let id = self.members[index].id;
            let Some(enslaved) = port.enslaved() else {
                continue;
            };
            if std::mem::take(&mut enslaved.is_woken) {
                self.face.handle_wake();
                any = true;
            }
            let has_moved = std::mem::take(&mut enslaved.has_moved);
            let is_changed = std::mem::take(&mut enslaved.is_changed);
            let inbound = std::mem::take(&mut enslaved.inbound);
            any |= has_moved || is_changed || !inbound.is_empty();
            if let (Some(id), Some(report), true) = (id, port.report(), is_changed || has_moved) {
                // At once, so that an address that changed and is to be announced is announced
                // once.
                lagg::pump(self, |core, face| {
                    core.handle_port_reported(now, id, &report, face);
                    if has_moved {
                        core.handle_port_moved(id);
                    }
                });
            }
            for packet in inbound {
                self.receive(now, fabric, id, packet);
            }
        }
        Ok(any)
    }

    fn add(&mut self, now: Instant, index: usize, port: &LabPort) -> Result<bool, Error> {
        let Some(report) = port.report() else {
            return Ok(false);
        };
        match lagg::pump(self, |core, face| core.handle_port_added(now, &report, face)) {
            Ok(id) => {
                self.members[index].id = Some(id);
                Ok(true)
            }
            Err(AddPortError::Detaching) => Ok(false),
            Err(error @ (AddPortError::AddressInUse | AddPortError::TableFull)) => {
                Err(interface_error("port")(error))
            }
        }
    }

    fn receive(&mut self, now: Instant, fabric: &mut Fabric, id: Option<PortId>, got: Inbound) {
        let pool = fabric.pool_mut();
        match got {
            Inbound::TooBig(packet, mtu) => self.face.stack.handle_too_big(packet, mtu, pool),
            Inbound::Received(packet, delivery) => {
                match id.map(|id| self.core.handle_receive(id, delivery.cast)) {
                    Some(Ok(())) => self.face.stack.receive(now, packet, delivery, pool),
                    Some(Err(_)) | None => pool.free(packet),
                }
            }
        }
    }

    fn handle_event(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::AddressChanged(_) => self.feed_groups(),
            // A packet that a port refused goes by the one that carries now.
            Event::CarrierChanged(_) => self.face.handle_wake(),
            Event::LinkUp => self.face.tun.set_carrier(true)?,
            Event::LinkDown => self.face.tun.set_carrier(false)?,
            Event::MtuChanged(mtu) => self.face.set_mtu(mtu)?,
            Event::Detached => self.is_detached = true,
            Event::CapabilitiesChanged(_) => {}
        }
        Ok(())
    }

    fn execute_action(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        ports: &mut [LabPort],
        action: Action,
    ) -> Result<(), Error> {
        match action {
            Action::Announce { port } => {
                if self.core.carrier() == Some(port) {
                    self.announced += 1;
                    self.face.stack.announce(fabric.pool_mut());
                }
            }
            Action::JoinGroup { op, port, group } => {
                self.change_groups(now, fabric, ports, port, |groups| groups.insert(group));
                lagg::pump(self, |core, _| core.handle_group_answer(op, Ok(())));
            }
            Action::LeaveGroup { op, port, group } => {
                self.change_groups(now, fabric, ports, port, |groups| groups.remove(&group));
                lagg::pump(self, |core, _| core.handle_group_answer(op, Ok(())));
            }
            Action::QueryPorts => {
                for member in &self.members {
                    let enslaved = ports.get_mut(member.port).and_then(LabPort::enslaved);
                    if let Some(enslaved) = enslaved {
                        enslaved.is_changed = true;
                    }
                }
                self.feed_groups();
            }
            Action::ReleasePort { port } => {
                if let Some(member) = self.members.iter_mut().find(|one| one.id == Some(port)) {
                    member.id = None;
                }
                lagg::pump(self, |core, _| core.handle_port_released(port));
            }
            Action::SetPortMtu { op, port, mtu } => {
                let index = self.member(port).map(|member| member.port);
                let port = index.and_then(|index| ports.get_mut(index));
                let answer = port.map_or(Err(PortError), |port| {
                    port.set_connected_mtu(fabric, mtu).map_err(|_| PortError)
                });
                lagg::pump(self, |core, _| core.handle_mtu_answer(op, answer));
            }
            // The devices of ports were marked up when they were made, and stay so.
            Action::RaisePort { .. } | Action::LowerPort { .. } => {}
        }
        Ok(())
    }

    fn change_groups(
        &mut self,
        now: Instant,
        fabric: &mut Fabric,
        ports: &mut [LabPort],
        id: PortId,
        change: impl FnOnce(&mut BTreeSet<LinkAddress>) -> bool,
    ) {
        let Some(member) = self.members.iter_mut().find(|one| one.id == Some(id)) else {
            return;
        };
        change(&mut member.groups);
        if let Some(port) = ports.get_mut(member.port) {
            port.set_groups(now, fabric, member.groups.iter());
        }
    }

    fn feed_groups(&mut self) {
        let groups = self.face.stack.joined_groups();
        lagg::pump(self, |core, _| {
            core.handle_multicast_list(groups.iter().map(IntoBytes::as_bytes));
        });
    }

    /// Sends what the stack has by the port that carries.
    fn send(&mut self, now: Instant, fabric: &mut Fabric, ports: &mut [LabPort]) -> bool {
        let Self { face, core, members, .. } = self;
        face.send_by(|frame| {
            let Frame { to, protocol, packet } = frame;
            let carrier = core.handle_transmit().ok();
            let member = members.iter().find(|one| one.id.is_some() && one.id == carrier);
            match member.and_then(|member| ports.get_mut(member.port)) {
                Some(port) => port.transmit(now, fabric, &to, protocol, packet),
                None => {
                    fabric.pool_mut().free(packet);
                    Ok(())
                }
            }
        })
    }

    fn member(&self, id: PortId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == Some(id))
    }
}
