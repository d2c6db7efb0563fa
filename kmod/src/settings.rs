//! What the loader was told: the tunables `hw.ipoib.*`, and what they mean.

use core::fmt::Write;

use ipoib_rs::interface::{ConnectedSupport, Mode};
use ipoib_rs::limits::{CONNECTED_MTU_MAX, LIMIT_MAX, Limits, MTU_MIN};
use ipoib_rs::wire::ENCAPSULATION_BYTES;
use kpi::client::DeviceAttributes;
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::log::{self, Level};
use kpi::sysctl::{Label, Output, Root, Tree};
use kpi::tunable;

/// A receive for a connection is made of segments of this size.
const PAGE_BYTES: usize = 4096;
/// And of so many of them at most: the largest message there is.
pub(crate) const RECEIVE_SEGMENTS_MAX: usize =
    (CONNECTED_MTU_MAX + ENCAPSULATION_BYTES).div_ceil(PAGE_BYTES);
const _: () = assert!(RECEIVE_SEGMENTS_MAX <= kpi::verbs::SEGMENTS_MAX);

/// What every interface begins with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Settings {
    /// The sizes of an interface's tables.
    pub(crate) limits: Limits,
    /// The mode of an interface that nobody has set one for.
    pub(crate) mode: Mode,
    /// The MTU in connected mode of such an interface.
    pub(crate) connected_mtu: usize,
    /// Whether such an interface normalises options of neighbour discovery.
    pub(crate) normalizes_nd: bool,
    /// The names of the HCAs that get interfaces, with commas between them; empty for all.
    devices: Devices,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Devices([u8; tunable::TEXT_BYTES]);

impl Devices {
    fn read() -> Self {
        let mut buffer = [0; tunable::TEXT_BYTES];
        // Without one, it is empty.
        let _ = tunable::text(c"hw.ipoib.devices", &mut buffer);
        Self(buffer)
    }

    fn as_str(&self) -> &str {
        let text = core::ffi::CStr::from_bytes_until_nul(&self.0).unwrap_or_default();
        text.to_str().unwrap_or_default()
    }
}

impl Settings {
    /// From the kernel's environment. What is out of its range is said to be so, and ignored.
    pub(crate) fn read() -> Self {
        let default = Limits::DEFAULT;
        let limit = |name, or| {
            number(name, 1..=LIMIT_MAX.into())
                .and_then(|value| u32::try_from(value).ok())
                .unwrap_or(or)
        };
        let connections = limit(c"hw.ipoib.max_connections", default.outgoing_max);
        let limits = Limits {
            send_queue_len: limit(c"hw.ipoib.send_queue_size", default.send_queue_len),
            receive_queue_len: limit(c"hw.ipoib.recv_queue_size", default.receive_queue_len),
            paths_max: limit(c"hw.ipoib.max_neighbors", default.paths_max),
            groups_max: limit(c"hw.ipoib.max_groups", default.groups_max),
            pending_packets_max: limit(c"hw.ipoib.max_pending", default.pending_packets_max),
            outgoing_max: connections,
            incoming_max: connections,
            ..default
        };
        let mtu = number(c"hw.ipoib.connected_mtu", MTU_MIN as u64..=CONNECTED_MTU_MAX as u64);
        let connected_mtu = mtu.and_then(|mtu| usize::try_from(mtu).ok());
        let connected_mtu = connected_mtu.unwrap_or(CONNECTED_MTU_MAX);
        let normalizes_nd = number(c"hw.ipoib.normalize_nd", 0..=1).is_none_or(|value| value != 0);
        Self { limits, mode: mode(), connected_mtu, normalizes_nd, devices: Devices::read() }
    }

    /// The sizes of tables, as far as the adapter goes.
    pub(crate) fn limits_for(&self, device: &DeviceAttributes) -> Limits {
        let limits = &self.limits;
        let shared_max = device.shared_receives.map_or(u32::MAX, |shared| shared.queue_len_max);
        Limits {
            send_queue_len: limits.send_queue_len.min(device.queue_len_max),
            receive_queue_len: limits.receive_queue_len.min(device.queue_len_max),
            shared_receive_queue_len: limits.shared_receive_queue_len.min(shared_max),
            ..*limits
        }
    }

    /// What connected mode can be with an adapter: a message is received in segments of a page,
    /// and the encapsulation header is part of it.
    pub(crate) fn connected_for(
        &self,
        device: &DeviceAttributes,
        shares_receives: bool,
    ) -> ConnectedSupport {
        let segments = match device.shared_receives {
            Some(shared) if shares_receives => shared.segments_max,
            Some(_) | None => device.send_segments_max,
        };
        let bytes = segments.min(RECEIVE_SEGMENTS_MAX) * PAGE_BYTES;
        let mtu_max = CONNECTED_MTU_MAX.min(bytes - ENCAPSULATION_BYTES);
        ConnectedSupport { mtu_max, shares_receives }
    }

    /// Shows them as sysctls of the same names.
    pub(crate) fn publish(self, may_sleep: &mut MaySleep) -> Result<Tree, Errno> {
        let top = Label { name: c"ipoib", description: c"IP over InfiniBand: loader tunables" };
        let mut tree = Tree::new(Root::Hw, top, may_sleep)?;
        let Self { limits, mode, connected_mtu, normalizes_nd, devices } = self;
        let numbers = [
            (c"send_queue_size", c"Sends that are posted at most", limits.send_queue_len.into()),
            (c"recv_queue_size", c"Receives that are posted", limits.receive_queue_len.into()),
            (c"max_neighbors", c"Neighbors, per interface", limits.paths_max.into()),
            (c"max_groups", c"Multicast groups, per interface", limits.groups_max.into()),
            (
                c"max_pending",
                c"Packets that wait, per interface",
                limits.pending_packets_max.into(),
            ),
            (c"max_connections", c"Connections in each direction", limits.outgoing_max.into()),
            (c"connected_mtu", c"The MTU of connected mode", connected_mtu as u64),
            (c"normalize_nd", NORMALIZE_ND_DESCRIPTION, normalizes_nd.into()),
        ];
        for (name, description, value) in numbers {
            let label = Label { name, description };
            tree.add_number(Tree::TOP, label, move |_| value, may_sleep)?;
        }
        let label = Label { name: c"default_mode", description: c"datagram or connected" };
        tree.add_text(Tree::TOP, label, move |out, _| out.write_str(name_of(mode)), may_sleep)?;
        let label =
            Label { name: c"devices", description: c"HCAs that get interfaces; all if empty" };
        let show = move |out: &mut Output, _: &mut MaySleep| out.write_str(devices.as_str());
        tree.add_text(Tree::TOP, label, show, may_sleep)?;
        Ok(tree)
    }

    /// Whether every HCA gets interfaces.
    pub(crate) fn drives_all(&self) -> bool {
        self.devices.as_str().is_empty()
    }

    /// Whether an HCA gets interfaces.
    pub(crate) fn drives(&self, device: &str) -> bool {
        let names = self.devices.as_str();
        self.drives_all() || names.split(',').any(|name| name.trim() == device)
    }
}

/// Of the tunable, and of the sysctl of an interface.
pub(crate) const NORMALIZE_ND_DESCRIPTION: &core::ffi::CStr =
    c"Address options of neighbor discovery as RFC 4391 has them";

/// The name of a mode in sysctl and kenv.
pub(crate) const fn name_of(mode: Mode) -> &'static str {
    match mode {
        Mode::Datagram => "datagram",
        Mode::Connected => "connected",
    }
}

/// The mode that a name means.
pub(crate) fn mode_of(name: &str) -> Option<Mode> {
    [Mode::Datagram, Mode::Connected].into_iter().find(|mode| name_of(*mode) == name)
}

fn mode() -> Mode {
    let mut buffer = [0; tunable::TEXT_BYTES];
    let Some(text) = tunable::text(c"hw.ipoib.default_mode", &mut buffer) else {
        return Mode::Datagram;
    };
    mode_of(text).unwrap_or_else(|| {
        let text = format_args!("ipoib_rs: hw.ipoib.default_mode: \"{text}\" is no mode");
        log::line(Level::Warning, text);
        Mode::Datagram
    })
}

fn number(name: &core::ffi::CStr, range: core::ops::RangeInclusive<u64>) -> Option<u64> {
    let value = tunable::number(name)?;
    if range.contains(&value) {
        return Some(value);
    }
    let (from, to) = (range.start(), range.end());
    let name = name.to_str().unwrap_or_default();
    let text = format_args!("ipoib_rs: {name}: {value} is not between {from} and {to}");
    log::line(Level::Warning, text);
    None
}
