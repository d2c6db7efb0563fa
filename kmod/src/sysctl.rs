//! What an admin sees and changes of an interface: `net.link.ipoib.<if>`.

use alloc::sync::Arc;
use core::ffi::CStr;
use core::fmt::{self, Write};

use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::ib::{Lid, Mlid};
use ipoib_rs::interface::{GroupRow, IncomingRow, Interface, Mode, NeighborRow};
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::mbuf::Packet;
use kpi::sysctl::{Label, Node, Output, Tree};

use crate::settings::{NORMALIZE_ND_DESCRIPTION, mode_of, name_of};

/// An interface, as an admin deals with it.
pub(crate) trait Admin: Send + Sync {
    /// Shows the core, which is locked meanwhile.
    fn look(&self, look: &mut dyn FnMut(&Interface<Packet>), may_sleep: &mut MaySleep);

    /// Wants another mode.
    ///
    /// # Errors
    ///
    /// The adapter does not know it.
    fn set_mode(&self, mode: Mode, may_sleep: &mut MaySleep) -> Result<(), Errno>;

    /// Wants another MTU for connected mode.
    ///
    /// # Errors
    ///
    /// It is out of range.
    fn set_connected_mtu(&self, mtu: usize, may_sleep: &mut MaySleep) -> Result<(), Errno>;

    /// Whether options of neighbour discovery are normalised.
    fn normalizes_nd(&self) -> bool;

    /// Wants them normalised, or as they are.
    fn set_normalizes_nd(&self, normalizes: bool);
}

/// Rows that are copied with the core locked once: packets wait meanwhile.
const ROWS: usize = 8;
/// With the 0 at its end. Interfaces have 16, counters fewer than that.
pub(crate) const NAME_BYTES: usize = 48;

/// Hangs an interface below `parent`, for as long as the tree exists.
///
/// # Errors
///
/// No memory.
pub(crate) fn publish(
    parent: &Arc<Tree>,
    name: fmt::Arguments<'_>,
    admin: &Arc<dyn Admin>,
    may_sleep: &mut MaySleep,
) -> Result<Tree, Errno> {
    let mut buffer = [0; NAME_BYTES];
    let label = Label { name: c_name(name, &mut buffer)?, description: c"interface" };
    let mut tree = Tree::below(parent, label, may_sleep)?;
    add_settings(&mut tree, admin, may_sleep)?;
    add_tables(&mut tree, admin, may_sleep)?;
    let label = Label { name: c"stats", description: c"counters" };
    let stats = tree.add_node(Tree::TOP, label, may_sleep)?;
    for &reason in DropReason::ALL {
        let description = c"packets dropped for this reason";
        add_counter(&mut tree, stats, (reason.name(), description), admin, may_sleep, {
            move |interface| interface.counters()[reason]
        })?;
    }
    for &counter in Counter::ALL {
        let description = c"how often it happened, or how many";
        add_counter(&mut tree, stats, (counter.name(), description), admin, may_sleep, {
            move |interface| interface.counters()[counter]
        })?;
    }
    Ok(tree)
}

fn add_settings(
    tree: &mut Tree,
    admin: &Arc<dyn Admin>,
    may_sleep: &mut MaySleep,
) -> Result<(), Errno> {
    let label = Label { name: c"mode", description: c"datagram or connected" };
    let (shown, changed) = (Arc::clone(admin), Arc::clone(admin));
    tree.add_changeable_text(
        Tree::TOP,
        label,
        move |out, may_sleep| {
            let mode = seen(&*shown, Interface::mode, may_sleep);
            out.write_str(mode.map_or("", name_of))
        },
        move |text, may_sleep| {
            let mode = mode_of(text).ok_or(Errno::EINVAL)?;
            changed.set_mode(mode, may_sleep)
        },
        may_sleep,
    )?;
    let label = Label { name: c"connected_mtu", description: c"MTU in connected mode, in bytes" };
    let (shown, changed) = (Arc::clone(admin), Arc::clone(admin));
    tree.add_changeable_number(
        Tree::TOP,
        label,
        move |may_sleep| bytes(seen(&*shown, Interface::connected_mtu, may_sleep)),
        move |mtu, may_sleep| {
            let mtu = usize::try_from(mtu).map_err(|_| Errno::EINVAL)?;
            changed.set_connected_mtu(mtu, may_sleep)
        },
        may_sleep,
    )?;
    let label = Label { name: c"normalize_nd", description: NORMALIZE_ND_DESCRIPTION };
    let (shown, changed) = (Arc::clone(admin), Arc::clone(admin));
    tree.add_changeable_number(
        Tree::TOP,
        label,
        move |_| shown.normalizes_nd().into(),
        move |value, _| match value {
            0 | 1 => {
                changed.set_normalizes_nd(value == 1);
                Ok(())
            }
            2.. => Err(Errno::EINVAL),
        },
        may_sleep,
    )?;
    let label = Label {
        name: c"datagram_mtu",
        description: c"MTU in datagram mode, which the broadcast group has, in bytes",
    };
    let shown = Arc::clone(admin);
    tree.add_number(
        Tree::TOP,
        label,
        move |may_sleep| bytes(seen(&*shown, Interface::datagram_mtu, may_sleep)),
        may_sleep,
    )?;
    let label = Label { name: c"state", description: c"how far the interface has come" };
    let shown = Arc::clone(admin);
    tree.add_text(
        Tree::TOP,
        label,
        move |out, may_sleep| {
            let state = seen(&*shown, Interface::state_name, may_sleep);
            out.write_str(state.unwrap_or_default())
        },
        may_sleep,
    )
}

fn add_tables(
    tree: &mut Tree,
    admin: &Arc<dyn Admin>,
    may_sleep: &mut MaySleep,
) -> Result<(), Errno> {
    let label = Label { name: c"neighbors", description: c"table of neighbours" };
    let shown = Arc::clone(admin);
    let neighbors = move |out: &mut Output, may_sleep: &mut MaySleep| {
        out.write_str("\naddress lid qpn transport state mtu queued tx drops\n")?;
        let copy = |interface: &Interface<Packet>, from, part: &mut [_]| {
            fill(part, interface.neighbors().skip(from));
        };
        rows(&*shown, copy, may_sleep, |row: NeighborRow| {
            let NeighborRow { address, lid, state, transport, mtu, queued, sent, dropped } = row;
            let (lid, qpn) = (lid.map_or(0, Lid::value), address.qpn().value());
            write!(out, "{address} {lid} {qpn:#08x} {transport} {state} {mtu} ")?;
            writeln!(out, "{queued} {sent} {dropped}")
        })
    };
    tree.add_text(Tree::TOP, label, neighbors, may_sleep)?;
    let label = Label { name: c"groups", description: c"table of multicast groups" };
    let shown = Arc::clone(admin);
    let groups = move |out: &mut Output, may_sleep: &mut MaySleep| {
        out.write_str("\nmgid mlid role state queued\n")?;
        let copy = |interface: &Interface<Packet>, from, part: &mut [_]| {
            fill(part, interface.groups().skip(from));
        };
        rows(&*shown, copy, may_sleep, |row: GroupRow| {
            let GroupRow { mgid, mlid, role, state, queued } = row;
            let mlid = mlid.map_or(0, Mlid::value);
            writeln!(out, "{mgid} {mlid:#06x} {role} {state} {queued}")
        })
    };
    tree.add_text(Tree::TOP, label, groups, may_sleep)?;
    let label = Label { name: c"connections", description: c"table of incoming connections" };
    let shown = Arc::clone(admin);
    let connections = move |out: &mut Output, may_sleep: &mut MaySleep| {
        out.write_str("\ngid qpn state\n")?;
        let copy = |interface: &Interface<Packet>, from, part: &mut [_]| {
            fill(part, interface.incoming().skip(from));
        };
        rows(&*shown, copy, may_sleep, |row: IncomingRow| {
            let IncomingRow { gid, qpn, state } = row;
            writeln!(out, "{gid} {:#08x} {state}", qpn.value())
        })
    };
    tree.add_text(Tree::TOP, label, connections, may_sleep)
}

fn add_counter(
    tree: &mut Tree,
    stats: Node,
    (name, description): (&str, &CStr),
    admin: &Arc<dyn Admin>,
    may_sleep: &mut MaySleep,
    read: impl Fn(&Interface<Packet>) -> u64 + Send + Sync + 'static,
) -> Result<(), Errno> {
    let mut buffer = [0; NAME_BYTES];
    let name = c_name(format_args!("{name}"), &mut buffer)?;
    let label = Label { name, description };
    let shown = Arc::clone(admin);
    tree.add_number(
        stats,
        label,
        move |may_sleep| seen(&*shown, &read, may_sleep).unwrap_or_default(),
        may_sleep,
    )
}

/// What is seen with the core locked.
fn seen<T>(
    admin: &dyn Admin,
    read: impl Fn(&Interface<Packet>) -> T,
    may_sleep: &mut MaySleep,
) -> Option<T> {
    let mut value = None;
    admin.look(&mut |interface| value = Some(read(interface)), may_sleep);
    value
}

/// Calls `write` with all rows of a table. It is copied in parts, with the core unlocked in
/// between, so rows that come and go meanwhile may be missed or seen twice.
fn rows<T>(
    admin: &dyn Admin,
    copy: impl Fn(&Interface<Packet>, usize, &mut [Option<T>]),
    may_sleep: &mut MaySleep,
    mut write: impl FnMut(T) -> fmt::Result,
) -> fmt::Result {
    let mut from = 0;
    loop {
        let mut part: [Option<T>; ROWS] = [const { None }; ROWS];
        admin.look(&mut |interface| copy(interface, from, &mut part), may_sleep);
        let is_last = part.iter().any(Option::is_none);
        part.into_iter().flatten().try_for_each(&mut write)?;
        if is_last {
            return Ok(());
        }
        from += ROWS;
    }
}

fn fill<T>(part: &mut [Option<T>], rows: impl Iterator<Item = T>) {
    for (place, row) in part.iter_mut().zip(rows) {
        *place = Some(row);
    }
}

fn bytes(count: Option<usize>) -> u64 {
    // CAST: at most 65520.
    count.unwrap_or_default() as u64
}

/// One part of the name of a sysctl: what separates the parts cannot stand in it.
pub(crate) fn c_name<'a>(
    name: fmt::Arguments<'_>,
    buffer: &'a mut [u8; NAME_BYTES],
) -> Result<&'a CStr, Errno> {
    /// What is left of the buffer.
    struct Part<'b>(&'b mut [u8]);

    impl fmt::Write for Part<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let left = core::mem::take(&mut self.0);
            let (part, left) = left.split_at_mut_checked(text.len()).ok_or(fmt::Error)?;
            part.copy_from_slice(text.as_bytes());
            part.iter_mut().filter(|byte| **byte == b'.').for_each(|byte| *byte = b'_');
            self.0 = left;
            Ok(())
        }
    }

    Part(buffer).write_fmt(name).map_err(|_| Errno::EINVAL)?;
    CStr::from_bytes_until_nul(buffer).map_err(|_| Errno::EINVAL)
}
