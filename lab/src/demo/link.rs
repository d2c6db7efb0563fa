//! A port loses its link; an interface is taken down by its administrator.

use std::time::Duration;

use crate::console::Outcome;
use crate::error::Error;
use crate::ping::Ping;
use crate::world::{HostId, World};

use super::stage::{Family, Stage, time_of_day};

const INTERVAL: Duration = Duration::from_millis(10);
const RECOVERY_MAX: Duration = Duration::from_secs(2);

/// The scenario.
pub(super) fn run(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    for family in Family::ALL {
        pull_the_cable(stage, family)?;
    }
    take_the_interface_down(stage)
}

fn pull_the_cable(stage: &mut Stage<'_>, family: Family) -> Result<(), Error> {
    stage.say(format_args!("the port of {} goes down under a ping", HostId::B))?;
    let ping = stage.start_ping(HostId::A, &long_ping(family))?;
    stage.world.run_for(Duration::from_millis(300))?;
    stage.world.set_cable(HostId::B, false)?;
    stage.check_carrier(HostId::B, "ib0", false)?;
    stage.world.run_for(Duration::from_millis(300))?;
    stage.say("and comes back")?;
    let event = time_of_day();
    stage.world.set_cable(HostId::B, true)?;
    stage.check_carrier(HostId::B, "ib0", true)?;
    let report = stage.finish_ping(ping)?;
    let name = format!("{family} ping goes on after the port came back");
    stage.check_recovery(&name, &report, event, RECOVERY_MAX)
}

fn take_the_interface_down(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.say(format_args!("ip link set ib0 down on {}, then up", HostId::B))?;
    stage.world.ip(HostId::B, &["link", "set", "ib0", "down"])?;
    let is_down =
        stage.world.run_until(RECOVERY_MAX, |world| world.state_of(HostId::B) == "down")?;
    let state = stage.world.state_of(HostId::B);
    stage.check("the core takes the interface down", Outcome::of(is_down, state))?;
    let has_left = |world: &World<'_>| world.membership_count(HostId::B) == 0;
    stage.world.run_until(RECOVERY_MAX, has_left)?;
    let count = stage.world.membership_count(HostId::B);
    stage.check(
        "it has left its groups at the subnet manager",
        Outcome::of(count == 0, format!("{count} groups")),
    )?;
    stage.world.ip(HostId::B, &["link", "set", "ib0", "up"])?;
    stage.check_carrier(HostId::B, "ib0", true)?;
    stage.check_answered(
        "IPv4 ping after that",
        HostId::A,
        &Ping::once(Family::Ipv4.address(HostId::B)),
    )
}

/// Long enough for the whole story.
fn long_ping(family: Family) -> Ping {
    Ping { count: 200, interval: INTERVAL, ..Ping::once(family.address(HostId::B)) }
}
