//! What the administrator sets for all laggs: `net.link.ipoib.lagg`.

use alloc::sync::Arc;
use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use ipoib_rs::lagg::{Config, Face, InactiveInput, Lagg as Machine};
use ipoib_rs::limits::{LAGG_HOLD_DOWN, LAGG_UPDATE_INTERVAL};
use ipoib_rs::time::Instant;
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::sysctl::{Label, Tree};

use super::Factory;

/// A minute is longer than anybody wants to wait for a failback, or for a lost event.
const MS_MAX: u64 = 60_000;

#[derive(Debug)]
pub(super) struct Shared {
    hold_down_ms: AtomicU64,
    /// 0: ports are not looked at by time.
    update_interval_ms: AtomicU64,
    /// The position in [`INPUTS`].
    inactive_input: AtomicU32,
}

const INPUTS: [(InactiveInput, &str); 3] = [
    (InactiveInput::Unicast, "unicast"),
    (InactiveInput::Refused, "none"),
    (InactiveInput::All, "all"),
];

impl Shared {
    pub(super) const fn new() -> Self {
        Self {
            // CAST: in this and in the other, less than a minute.
            hold_down_ms: AtomicU64::new(LAGG_HOLD_DOWN.as_millis() as u64),
            // CAST: see above.
            update_interval_ms: AtomicU64::new(LAGG_UPDATE_INTERVAL.as_millis() as u64),
            inactive_input: AtomicU32::new(0),
        }
    }

    fn hold_down(&self) -> Duration {
        Duration::from_millis(self.hold_down_ms.load(Ordering::Relaxed))
    }

    fn update_interval(&self) -> Duration {
        Duration::from_millis(self.update_interval_ms.load(Ordering::Relaxed))
    }

    fn inactive_input(&self) -> (InactiveInput, &'static str) {
        let position = self.inactive_input.load(Ordering::Relaxed) as usize;
        INPUTS.get(position).copied().unwrap_or((InactiveInput::Unicast, "unicast"))
    }

    /// For a lagg that is made.
    pub(super) fn apply(&self, config: &mut Config) {
        config.hold_down = self.hold_down();
        config.update_interval = self.update_interval();
        config.inactive_input = self.inactive_input().0;
    }

    /// For one that exists.
    pub(super) fn feed(&self, now: Instant, machine: &mut Machine, face: &mut impl Face) {
        machine.handle_hold_down(now, self.hold_down(), face);
        machine.handle_update_interval(now, self.update_interval());
        machine.handle_inactive_input(self.inactive_input().0);
    }
}

/// Where a number stands.
type Number = fn(&Shared) -> &AtomicU64;

/// Shows them below `parent`, for as long as the tree exists.
///
/// # Errors
///
/// No memory.
pub(super) fn publish(
    parent: &Arc<Tree>,
    factory: &Arc<Factory>,
    may_sleep: &mut MaySleep,
) -> Result<Tree, Errno> {
    let top = Label { name: c"lagg", description: c"all laggs" };
    let mut tree = Tree::below(parent, top, may_sleep)?;
    let numbers: [(&CStr, &CStr, Number); 2] = [
        (
            c"hold_down_ms",
            c"How long a preferred port has a link before it carries again",
            |shared| &shared.hold_down_ms,
        ),
        (
            c"update_interval_ms",
            c"How often ports are looked at, lest an event was lost; 0: never",
            |shared| &shared.update_interval_ms,
        ),
    ];
    for (name, description, place) in numbers {
        let (shown, changed) = (Arc::clone(factory), Arc::clone(factory));
        tree.add_changeable_number(
            Tree::TOP,
            Label { name, description },
            move |_| place(&shown.shared).load(Ordering::Relaxed),
            move |value, may_sleep| {
                if value > MS_MAX {
                    return Err(Errno::EINVAL);
                }
                place(&changed.shared).store(value, Ordering::Relaxed);
                changed.settings_changed(may_sleep);
                Ok(())
            },
            may_sleep,
        )?;
    }
    let label = Label {
        name: c"inactive_input",
        description: c"What is taken from ports that do not carry: none, unicast, all",
    };
    let (shown, changed) = (Arc::clone(factory), Arc::clone(factory));
    tree.add_changeable_text(
        Tree::TOP,
        label,
        move |out, _| out.write_str(shown.shared.inactive_input().1),
        move |text, may_sleep| {
            let known = (0..).zip(INPUTS).find(|(_, (_, name))| *name == text);
            let (position, _) = known.ok_or(Errno::EINVAL)?;
            changed.shared.inactive_input.store(position, Ordering::Relaxed);
            changed.settings_changed(may_sleep);
            Ok(())
        },
        may_sleep,
    )?;
    Ok(tree)
}
