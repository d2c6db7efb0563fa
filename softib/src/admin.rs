//! What an admin sees and changes: the loader tunables and the tree `hw.softib`.

use alloc::sync::Arc;
use core::ffi::CStr;
use core::fmt::{self, Write};

use fabric::port::PortCounters;
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::sysctl::{Label, Node, Root, Tree};
use kpi::tunable;

use crate::abi::Inner;
use crate::error::Error;
use crate::layout::Config;
use crate::world::{PORTS_PER_DEVICE, Totals, World};

/// A number of the tree that is read.
struct Gauge<T> {
    label: Label<'static>,
    read: fn(&T) -> u64,
}

/// Declares a list of [`Gauge`].
macro_rules! gauges {
    ($($name:literal $read:expr, $description:literal;)*) => {
        &[$(Gauge {
            label: Label { name: $name, description: $description },
            read: $read,
        },)*]
    };
}

const CONFIG: &[Gauge<Config>] = gauges! {
    c"devices" |config| config.device_count.into(), c"Adapters, with two ports each";
    c"max_srq_sge" |config| config.receive_segments_max.into(),
        c"Segments of a receive that the adapters say they support";
    c"small_packets" |config| config.small_packets_max.into(),
        c"Packets up to the MTU that there may be";
    c"large_packets" |config| config.large_packets_max.into(),
        c"Larger packets that there may be";
    c"seed" |config| config.seed, c"Seed of what is left to chance";
};

const TOTALS: &[Gauge<Totals>] = gauges! {
    c"oversize_datagrams" |totals| totals.violations.oversize_ud,
        c"Datagrams that were longer than the MTU of a port";
    c"missing_handles" |totals| totals.violations.missing_handles,
        c"Sends whose address handle was destroyed before they left";
    c"lost" |totals| totals.lost, c"Packets that were lost because a port was set to";
    c"packets" |totals| totals.packets, c"Packets that exist at this moment";
    c"unroutable" |totals| totals.switch.unroutable, c"Packets to a LID that no port has";
    c"partition_violations" |totals| totals.switch.partition_violations,
        c"Packets to a port that is not in their partition";
    c"buffers_missing" |totals| totals.switch.buffers_missing,
        c"Copies of multicast packets for which there was no buffer";
};

const MANAGER: &[Gauge<Totals>] = gauges! {
    c"path_queries" |totals| totals.manager.path_record_gets, c"Requests for a path";
    c"joins" |totals| totals.manager.member_record_sets, c"Requests to join a group";
    c"leaves" |totals| totals.manager.member_record_deletes, c"Requests to leave a group";
    c"refused" |totals| totals.manager.refused, c"Requests that were refused";
    c"groups_created" |totals| totals.manager.groups_created, c"Groups that came into being";
    c"groups_deleted" |totals| totals.manager.groups_deleted, c"Groups that ended";
};

const COUNTERS: &[Gauge<PortCounters>] = gauges! {
    c"sent" |port| port.sent, c"Packets sent";
    c"received" |port| port.received, c"Packets received";
    c"sends_while_inactive" |port| port.sends_while_inactive, c"Not sent: the port was down";
    c"sends_without_pkey" |port| port.sends_without_pkey, c"Not sent: no such P_Key";
    c"arrivals_while_inactive" |port| port.arrivals_while_inactive,
        c"Not received: the port was down";
    c"foreign_lids" |port| port.foreign_lids, c"Not received: another LID by now";
    c"foreign_gids" |port| port.foreign_gids, c"Not received: another GID";
    c"unknown_qpns" |port| port.unknown_qpns, c"Not received: no such queue pair";
    c"unattached_groups" |port| port.unattached_groups, c"Not received: nobody in the group";
    c"pkey_violations" |port| port.pkey_violations, c"Not received: another P_Key";
    c"qkey_violations" |port| port.qkey_violations, c"Not received: another Q_Key";
    c"receives_missing" |port| port.receives_missing, c"Not received: no receive was posted";
    c"receives_too_short" |port| port.receives_too_short, c"Not received: longer than the receive";
    c"buffers_missing" |port| port.buffers_missing, c"Lost: no buffer";
    c"wrong_services" |port| port.wrong_services, c"Not received: a datagram for a connection";
    c"foreign_sources" |port| port.foreign_sources, c"Not received: not from the peer";
    c"duplicates" |port| port.duplicates, c"Not received: received before";
    c"sequence_errors" |port| port.sequence_errors, c"Not received: one before was lost";
    c"stale_responses" |port| port.stale_responses, c"Not received: an answer to nothing";
};

/// What the loader says.
pub(crate) fn config() -> Config {
    let number = |name, default: u32| {
        let number = tunable::number(name).and_then(|number| u32::try_from(number).ok());
        number.unwrap_or(default)
    };
    Config {
        seed: tunable::number(c"hw.softib.seed").unwrap_or(1),
        device_count: number(c"hw.softib.devices", 2),
        // Gives the stock ipoib(4) an MTU of 65520.
        receive_segments_max: number(c"hw.softib.max_srq_sge", 16),
        small_packets_max: number(c"hw.softib.small_packets", 4096),
        large_packets_max: number(c"hw.softib.large_packets", 512),
    }
}

/// Makes the tree.
#[inline(never)]
pub(crate) fn publish(
    inner: &Arc<Inner>,
    config: &Config,
    may_sleep: &mut MaySleep,
) -> Result<Tree, Errno> {
    let label = Label { name: c"softib", description: c"Software InfiniBand adapter" };
    let mut tree = Tree::new(Root::Hw, label, may_sleep)?;
    for gauge in CONFIG {
        let number = (gauge.read)(config);
        tree.add_number(Tree::TOP, gauge.label, move |_| number, may_sleep)?;
    }
    add_totals(&mut tree, Tree::TOP, TOTALS, inner, may_sleep)?;
    for switch in REQUESTS {
        add_switch(&mut tree, Tree::TOP, switch, inner, may_sleep)?;
    }
    add_manager(&mut tree, inner, may_sleep)?;
    for device in 0..config.device_count {
        add_device(&mut tree, device, inner, may_sleep)?;
    }
    Ok(tree)
}

fn add_totals(
    tree: &mut Tree,
    node: Node,
    gauges: &'static [Gauge<Totals>],
    inner: &Arc<Inner>,
    may_sleep: &mut MaySleep,
) -> Result<(), Errno> {
    for gauge in gauges {
        let inner = Arc::clone(inner);
        let show = move |may_sleep: &mut MaySleep| {
            (gauge.read)(&inner.with(may_sleep, |world| world.totals()))
        };
        tree.add_number(node, gauge.label, show, may_sleep)?;
    }
    Ok(())
}

/// Something that is on or off.
struct Switch {
    name: &'static CStr,
    description: &'static CStr,
    show: fn(&World) -> bool,
    change: fn(&mut World, bool),
}

const REQUESTS: [Switch; 2] = [
    Switch {
        name: c"drop_requests",
        description: c"Lose all requests for connections",
        show: World::drops_requests,
        change: World::set_drops_requests,
    },
    Switch {
        name: c"refuse_requests",
        description: c"Refuse to send requests for connections",
        show: World::refuses_requests,
        change: World::set_refuses_requests,
    },
];

fn add_switch(
    tree: &mut Tree,
    node: Node,
    switch: Switch,
    inner: &Arc<Inner>,
    may_sleep: &mut MaySleep,
) -> Result<(), Errno> {
    let Switch { name, description, show, change } = switch;
    let (reader, writer) = (Arc::clone(inner), Arc::clone(inner));
    tree.add_changeable_number(
        node,
        Label { name, description },
        move |may_sleep| reader.with(may_sleep, |world| show(world)).into(),
        move |value, may_sleep| {
            let is_on = truth(value)?;
            writer.with(may_sleep, |world| change(world, is_on));
            Ok(())
        },
        may_sleep,
    )
}

fn add_manager(tree: &mut Tree, inner: &Arc<Inner>, may_sleep: &mut MaySleep) -> Result<(), Errno> {
    let label = Label { name: c"sm", description: c"Subnet manager" };
    let node = tree.add_node(Tree::TOP, label, may_sleep)?;
    add_totals(tree, node, MANAGER, inner, may_sleep)?;
    let restart = Switch {
        name: c"restart",
        description: c"Write 1: a manager that knows no members takes over",
        show: |_| false,
        change: |world, is_on| {
            if is_on {
                world.restart_manager();
            }
        },
    };
    add_switch(tree, node, restart, inner, may_sleep)?;
    let reregister = Switch {
        name: c"reregister",
        description: c"Write 1: every port is asked to register again",
        show: |_| false,
        change: |world, is_on| {
            if is_on {
                world.request_reregistration();
            }
        },
    };
    add_switch(tree, node, reregister, inner, may_sleep)
}

fn add_device(
    tree: &mut Tree,
    device: u32,
    inner: &Arc<Inner>,
    may_sleep: &mut MaySleep,
) -> Result<(), Errno> {
    let name = Name::new(device);
    let label = Label { name: name.text(), description: c"Adapter" };
    let node = tree.add_node(Tree::TOP, label, may_sleep)?;
    for number in (1..).take(PORTS_PER_DEVICE) {
        let name = Name::new(number);
        let label = Label { name: name.text(), description: c"Port" };
        let node = tree.add_node(node, label, may_sleep)?;
        let port = Port { device, number: number as u8, inner: Arc::clone(inner) };
        port.add_numbers(tree, node, may_sleep)?;
        port.add_texts(tree, node, may_sleep)?;
        port.add_counters(tree, node, may_sleep)?;
    }
    Ok(())
}

/// A port, as its branch of the tree knows it.
#[derive(Clone)]
struct Port {
    device: u32,
    /// From 1.
    number: u8,
    inner: Arc<Inner>,
}

/// A number of a port that is written.
struct Knob {
    label: Label<'static>,
    show: fn(&World, u32, u8) -> u64,
    change: fn(&mut World, u32, u8, u64) -> Result<(), Errno>,
}

const KNOBS: &[Knob] = &[
    Knob {
        label: Label { name: c"link", description: c"1 with a link, 0 without" },
        show: |world, device, number| {
            world.query_port(device, number).map_or(0, |port| port.is_active.into())
        },
        change: |world, device, number, value| Ok(world.set_link(device, number, truth(value)?)?),
    },
    Knob {
        label: Label { name: c"lid", description: c"LID; write 0 for the next one that is free" },
        show: |world, device, number| {
            world.query_port(device, number).map_or(0, |port| port.lid.into())
        },
        change: |world, device, number, value| Ok(world.set_lid(device, number, narrow(value)?)?),
    },
    Knob {
        label: Label { name: c"loss", description: c"Packets of a million that the link loses" },
        show: |world, device, number| world.loss(device, number).into(),
        change: |world, device, number, value| {
            Ok(world.set_loss(device, number, narrow(value)?)?)
        },
    },
    Knob {
        label: Label {
            name: c"hide_rc",
            description: c"1: the port says in ARP and ND that it takes no connections",
        },
        show: |world, device, number| world.hides_rc(device, number).into(),
        change: |world, device, number, value| {
            Ok(world.set_hides_rc(device, number, truth(value)?)?)
        },
    },
    Knob {
        label: Label { name: c"fail_sends", description: c"Datagrams that fail to be sent next" },
        show: |world, device, number| world.sends_to_fail(device, number).into(),
        change: |world, device, number, value| {
            Ok(world.fail_sends(device, number, narrow(value)?)?)
        },
    },
];

impl Port {
    fn add_numbers(
        &self,
        tree: &mut Tree,
        node: Node,
        may_sleep: &mut MaySleep,
    ) -> Result<(), Errno> {
        for knob in KNOBS {
            let (reader, writer) = (self.clone(), self.clone());
            tree.add_changeable_number(
                node,
                knob.label,
                move |may_sleep| {
                    let Port { device, number, inner } = &reader;
                    inner.with(may_sleep, |world| (knob.show)(world, *device, *number))
                },
                move |value, may_sleep| {
                    let Port { device, number, inner } = &writer;
                    inner.with(may_sleep, |world| (knob.change)(world, *device, *number, value))
                },
                may_sleep,
            )?;
        }
        Ok(())
    }

    fn add_texts(
        &self,
        tree: &mut Tree,
        node: Node,
        may_sleep: &mut MaySleep,
    ) -> Result<(), Errno> {
        let (reader, writer) = (self.clone(), self.clone());
        let label = Label { name: c"pkeys", description: c"P_Key table" };
        tree.add_changeable_text(
            node,
            label,
            move |out, may_sleep| {
                let Port { device, number, inner } = &reader;
                inner.with(may_sleep, |world| world.show_pkeys(*device, *number, out))
            },
            move |text, may_sleep| {
                let Port { device, number, inner } = &writer;
                let result = inner.with(may_sleep, |world| world.set_pkeys(*device, *number, text));
                Ok(result?)
            },
            may_sleep,
        )?;
        let writer = self.clone();
        let label = Label {
            name: c"event",
            description: c"Write the name of an event to raise it, whether or not it is true",
        };
        tree.add_changeable_text(
            node,
            label,
            |_, _| Ok(()),
            move |text, may_sleep| {
                let Port { device, number, inner } = &writer;
                let result =
                    inner.with(may_sleep, |world| world.raise_event(*device, *number, text));
                Ok(result?)
            },
            may_sleep,
        )
    }

    fn add_counters(
        &self,
        tree: &mut Tree,
        node: Node,
        may_sleep: &mut MaySleep,
    ) -> Result<(), Errno> {
        let label = Label { name: c"counters", description: c"What passed through, and what not" };
        let node = tree.add_node(node, label, may_sleep)?;
        for gauge in COUNTERS {
            let Port { device, number, inner } = self.clone();
            let show = move |may_sleep: &mut MaySleep| {
                (gauge.read)(&inner.with(may_sleep, |world| world.port_counters(device, number)))
            };
            tree.add_number(node, gauge.label, show, may_sleep)?;
        }
        Ok(())
    }
}

fn truth(value: u64) -> Result<bool, Errno> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}

fn narrow<T: TryFrom<u64>>(value: u64) -> Result<T, Errno> {
    T::try_from(value).map_err(|_| Error::Invalid.into())
}

/// A number as part of a name.
struct Name([u8; 12]);

impl Name {
    fn new(number: u32) -> Self {
        struct Rest<'a>(&'a mut [u8]);
        impl Write for Rest<'_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                let (part, rest) = core::mem::take(&mut self.0)
                    .split_at_mut_checked(text.len())
                    .ok_or(fmt::Error)?;
                part.copy_from_slice(text.as_bytes());
                self.0 = rest;
                Ok(())
            }
        }
        let mut name = [0; 12];
        // Ten digits and a 0 at the end fit.
        let _ = write!(Rest(&mut name[..11]), "{number}");
        Self(name)
    }

    fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}
