//! What a lab shows of itself.

use std::fmt::Write;

use ipoib_rs::interface::Interface;

use fabric::packet::Packet;
use fabric::sm::GroupView;

use super::World;
use super::host::{HostId, LabInterface, LabPort, Place};
use super::lagg::{LAGG, LabLagg};
use crate::error::Error;
use crate::table::Table;

const INDENT: usize = 6;
const COUNTERS_PER_LINE: usize = 4;

impl World<'_> {
    /// Whether every interface has a carrier.
    pub(crate) fn are_links_up(&self) -> bool {
        self.ports.iter().all(|port| {
            let interfaces = port.node().interfaces();
            interfaces.fold(true, |all, (_, interface)| all && interface.is_link_up())
        })
    }

    /// The ports of all hosts.
    pub(crate) fn places(&self) -> Vec<Place> {
        self.ports.iter().map(LabPort::place).collect()
    }

    /// All hosts.
    pub(crate) fn hosts(&self) -> Vec<HostId> {
        let first = self.ports.iter().map(LabPort::place).filter(|place| place.number == 0);
        first.map(|place| place.host).collect()
    }

    /// The state of a host's first interface.
    pub(crate) fn state_of(&self, host: HostId) -> &'static str {
        self.first_interface(host).map_or("missing", Interface::state_name)
    }

    /// What carries large packets of a host's first interface to its neighbours.
    pub(crate) fn transports_of(&self, host: HostId) -> Vec<&'static str> {
        let interface = self.first_interface(host);
        interface.map_or_else(Vec::new, |interface| {
            interface.neighbors().map(|row| row.transport).collect()
        })
    }

    /// The groups of a host's first interface.
    pub(crate) fn group_count(&self, host: HostId) -> usize {
        self.first_interface(host).map_or(0, |interface| interface.groups().count())
    }

    /// The groups of a host's first interface that are joined.
    pub(crate) fn joined_count(&self, host: HostId) -> usize {
        let interface = self.first_interface(host);
        interface.map_or(0, |interface| {
            interface.groups().filter(|group| group.state == "joined").count()
        })
    }

    /// The groups that the subnet manager has a host's port in.
    pub(crate) fn membership_count(&self, host: HostId) -> usize {
        let Ok(port) = self.port(host) else { return 0 };
        let manager = self.subnet.manager();
        let is_member = |group: &GroupView| {
            let mut members = manager.members(group.record.mgid);
            members.any(|(member, _)| member == port.id())
        };
        manager.groups().filter(is_member).count()
    }

    /// The LID of a host's port, for people.
    pub(crate) fn lid_of(&self, host: HostId) -> String {
        self.port(host).map_or_else(|_| "none".to_owned(), |port| self.port_lid(port))
    }

    /// Datagrams that were larger than the fabric's MTU.
    pub(crate) fn oversize_count(&self) -> u64 {
        self.fabric.violations().oversize_ud
    }

    /// Every namespace with the addresses of its first interface.
    pub(crate) fn directory(&self) -> impl Iterator<Item = (&str, String)> {
        self.ports.iter().filter(|port| port.place().number == 0).map(|port| {
            let id = port.place().host;
            let addresses = format!("{} {} {}%ib0", id.ipv4(), id.ipv6(), id.link_local());
            (port.namespace().name(), addresses)
        })
    }

    /// The name of the first namespace and the address of its peer.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`] if there is none.
    pub(crate) fn first_pair(&self) -> Result<(&str, String), Error> {
        let first = self.namespace(HostId::A)?.name();
        Ok((first, HostId::B.ipv4().to_string()))
    }

    /// Every interface with its neighbours, groups and counters.
    pub(crate) fn tables(&self) -> String {
        let mut text = String::new();
        for port in &self.ports {
            for interface in port.interfaces() {
                let core = interface.id().and_then(|id| port.node().interface(id));
                if let Some(core) = core {
                    self.write_interface(&mut text, port, interface, core);
                }
            }
            for notice in port.notices() {
                push(&mut text, format_args!("   log: {notice}"));
            }
        }
        for lagg in &self.laggs {
            push_lagg(&mut text, lagg);
        }
        let violations = self.fabric.violations();
        push(
            &mut text,
            format_args!(
                "fabric: {} datagrams above the MTU, {} sends without address handle",
                violations.oversize_ud, violations.missing_handles
            ),
        );
        text.truncate(text.trim_end().len());
        text
    }

    fn write_interface(
        &self,
        text: &mut String,
        port: &LabPort,
        interface: &LabInterface,
        core: &Interface<Packet>,
    ) {
        let name = port.namespace().name();
        let carrier = if core.is_link_up() { "up" } else { "none" };
        push(
            text,
            format_args!(
                "{name} {}: state {}, carrier {carrier}, mtu {}, lid {}",
                interface.name(),
                core.state_name(),
                core.mtu(),
                self.port_lid(port)
            ),
        );
        push(text, format_args!("   lladdr {}", core.address()));
        let stack = interface.stack();
        let addresses: Vec<String> = stack.addresses().iter().map(ToString::to_string).collect();
        push(text, format_args!("   inet {}", addresses.join(" ")));
        push_table(text, "neighbors", &neighbors(core));
        push_table(text, "resolved addresses", &resolved(interface));
        push_table(text, "groups", &groups(core));
        push_counters(text, core, interface);
    }

    fn first_interface(&self, host: HostId) -> Option<&Interface<Packet>> {
        let port = self.port(host).ok()?;
        port.node().interface(port.interfaces().first()?.id()?)
    }

    fn port_lid(&self, port: &LabPort) -> String {
        let status = self.fabric.query_port(port.id());
        let lid = status.and_then(|status| status.lid);
        lid.map_or_else(|| "none".to_owned(), |lid| lid.value().to_string())
    }
}

fn push_lagg(text: &mut String, lagg: &LabLagg) {
    let core = lagg.core();
    let worn = core.identity().map_or("none".to_owned(), |worn| worn.address.to_string());
    push(text, format_args!("{LAGG} of {}: mtu {}, lladdr {worn}", lagg.host(), core.mtu()));
    let titles = ["address", "role", "state", "mtu", "groups", "sent", "received"];
    let mut table = Table::new(INDENT, titles);
    for row in core.ports() {
        table.push([
            row.identity.address.to_string(),
            if row.is_primary { "primary" } else { "backup" }.to_owned(),
            row.state.to_owned(),
            row.mtu.to_string(),
            row.groups.to_string(),
            row.sent.to_string(),
            row.received.to_string(),
        ]);
    }
    push_table(text, "ports", &table);
    push_counted(text, core.counters().iter());
}

fn neighbors(core: &Interface<Packet>) -> Table<9> {
    let titles =
        ["address", "lid", "qpn", "state", "transport", "mtu", "queued", "sent", "dropped"];
    let mut table = Table::new(INDENT, titles);
    for row in core.neighbors() {
        table.push([
            row.address.to_string(),
            row.lid.map_or("-".to_owned(), |lid| lid.value().to_string()),
            format!("{:#08x}", row.address.qpn().value()),
            row.state.to_owned(),
            row.transport.to_owned(),
            row.mtu.to_string(),
            row.queued.to_string(),
            row.sent.to_string(),
            row.dropped.to_string(),
        ]);
    }
    table
}

fn resolved(interface: &LabInterface) -> Table<3> {
    let mut table = Table::new(INDENT, ["ip", "state", "address"]);
    for row in interface.stack().neighbors() {
        table.push([
            row.ip.to_string(),
            row.state.to_owned(),
            row.address.map_or("-".to_owned(), |address| address.to_string()),
        ]);
    }
    table
}

fn groups(core: &Interface<Packet>) -> Table<5> {
    let mut table = Table::new(INDENT, ["mgid", "mlid", "role", "state", "queued"]);
    for row in core.groups() {
        table.push([
            row.mgid.to_string(),
            row.mlid.map_or("-".to_owned(), |mlid| format!("{:#06x}", mlid.value())),
            row.role.to_owned(),
            row.state.to_owned(),
            row.queued.to_string(),
        ]);
    }
    table
}

fn push_table<const COLUMNS: usize>(text: &mut String, title: &str, table: &Table<COLUMNS>) {
    if !table.is_empty() {
        push(text, format_args!("   {title}"));
        push(text, format_args!("{table}"));
    }
}

/// Those that are not zero.
fn push_counters(text: &mut String, core: &Interface<Packet>, interface: &LabInterface) {
    let stack = interface.stack().counters();
    push_counted(text, core.counters().iter().chain(stack.iter()));
}

fn push_counted(text: &mut String, all: impl Iterator<Item = (&'static str, u64)>) {
    let counted: Vec<String> = all
        .filter(|(_, value)| *value > 0)
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    push(text, format_args!("   counters"));
    for line in counted.chunks(COUNTERS_PER_LINE) {
        push(text, format_args!("{:INDENT$}{}", "", line.join(", ")));
    }
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}
