//! What an administrator sees of a lagg: `net.link.ipoib.<lagg>`.

use alloc::sync::Arc;
use core::fmt::{self, Write};
use core::net::IpAddr;

use ipoib_rs::lagg::{Counter, DropReason, GroupRow, Lagg as Machine, PortRow};
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::sysctl::{Label, Node, Output, Tree};

use super::Lagg;
use crate::sysctl::{NAME_BYTES, c_name};

/// Hangs a lagg below `parent`, for as long as the tree exists.
///
/// # Errors
///
/// No memory.
pub(super) fn publish(
    parent: &Arc<Tree>,
    lagg: &Arc<Lagg>,
    may_sleep: &mut MaySleep,
) -> Result<Tree, Errno> {
    let mut buffer = [0; NAME_BYTES];
    let label = Label {
        name: c_name(format_args!("{}", lagg.net.name()), &mut buffer)?,
        description: c"lagg",
    };
    let mut tree = Tree::below(parent, label, may_sleep)?;
    let label = Label { name: c"ports", description: c"table of ports, in order of preference" };
    let shown = Arc::clone(lagg);
    let ports = move |out: &mut Output, may_sleep: &mut MaySleep| shown.show_ports(out, may_sleep);
    tree.add_text(Tree::TOP, label, ports, may_sleep)?;
    let label = Label { name: c"groups", description: c"table of multicast groups" };
    let shown = Arc::clone(lagg);
    let groups =
        move |out: &mut Output, may_sleep: &mut MaySleep| shown.show_groups(out, may_sleep);
    tree.add_text(Tree::TOP, label, groups, may_sleep)?;
    let label = Label { name: c"stats", description: c"counters" };
    let stats = tree.add_node(Tree::TOP, label, may_sleep)?;
    for &reason in DropReason::ALL {
        let description = c"packets dropped for this reason";
        add_counter(&mut tree, stats, (reason.name(), description), lagg, may_sleep, {
            move |machine| machine.counters()[reason]
        })?;
    }
    for &counter in Counter::ALL {
        let description = c"how often it happened, or how many";
        add_counter(&mut tree, stats, (counter.name(), description), lagg, may_sleep, {
            move |machine| machine.counters()[counter]
        })?;
    }
    Ok(tree)
}

fn add_counter(
    tree: &mut Tree,
    stats: Node,
    (name, description): (&str, &core::ffi::CStr),
    lagg: &Arc<Lagg>,
    may_sleep: &mut MaySleep,
    read: impl Fn(&Machine) -> u64 + Send + Sync + 'static,
) -> Result<(), Errno> {
    let mut buffer = [0; NAME_BYTES];
    let label = Label { name: c_name(format_args!("{name}"), &mut buffer)?, description };
    let shown = Arc::clone(lagg);
    let show = move |may_sleep: &mut MaySleep| {
        shown.locked.with(may_sleep, |locked, _| read(&locked.machine))
    };
    tree.add_number(stats, label, show, may_sleep)
}

/// The library's own way may panic.
fn write_ip(out: &mut Output, ip: IpAddr) -> fmt::Result {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            write!(out, "{a}.{b}.{c}.{d}")
        }
        IpAddr::V6(ip) => {
            let [first, others @ ..] = ip.segments();
            write!(out, "{first:x}")?;
            others.iter().try_for_each(|part| write!(out, ":{part:x}"))
        }
    }
}

/// Rows that are copied with the machine locked once: packets wait meanwhile.
const ROWS: usize = 8;

impl Lagg {
    fn show_ports(&self, out: &mut Output, may_sleep: &mut MaySleep) -> fmt::Result {
        out.write_str("\nport role state address mtu groups sent received\n")?;
        for position in 0.. {
            let row = self.locked.with(may_sleep, |locked, _| {
                let row = locked.machine.ports().nth(position)?;
                Some((locked.ports.get(row.port)?.port.name(), row))
            });
            let Some((name, row)) = row else { break };
            let PortRow { is_primary, state, identity, mtu, groups, sent, received, .. } = row;
            let role = if is_primary { "primary" } else { "backup" };
            let (name, address) = (name.as_str(), identity.address);
            writeln!(out, "{name} {role} {state} {address} {mtu} {groups} {sent} {received}")?;
        }
        Ok(())
    }

    fn show_groups(&self, out: &mut Output, may_sleep: &mut MaySleep) -> fmt::Result {
        out.write_str("\ngroup wanted joined\n")?;
        let mut from = 0;
        loop {
            let mut rows: [Option<GroupRow>; ROWS] = [None; ROWS];
            self.locked.with(may_sleep, |locked, _| {
                let groups = locked.machine.groups().skip(from);
                rows.iter_mut().zip(groups).for_each(|(place, row)| *place = Some(row));
            });
            let is_last = rows.iter().any(Option::is_none);
            for GroupRow { ip, is_listed, joined } in rows.into_iter().flatten() {
                write_ip(out, ip)?;
                writeln!(out, " {is_listed} {joined}")?;
            }
            if is_last {
                return Ok(());
            }
            from += ROWS;
        }
    }
}
