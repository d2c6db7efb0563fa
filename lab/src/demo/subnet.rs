//! What a subnet manager does to running hosts.

use std::time::Duration;

use crate::console::Outcome;
use crate::error::Error;
use crate::ping::Ping;
use crate::world::HostId;

use super::stage::{Family, Stage, time_of_day};

const LEAD: Duration = Duration::from_millis(500);
const RECOVERY_MAX: Duration = Duration::from_secs(2);

/// The subnet manager restarts: groups and paths are forgotten, clients register again.
pub(super) fn run_restart(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    let request = running_ping(Family::Ipv4);
    let ping = stage.start_ping(HostId::A, &request)?;
    stage.world.run_for(LEAD)?;
    stage.say("the subnet manager restarts and asks its clients to register again")?;
    let before = stage.world.group_count(HostId::A);
    stage.world.restart_sm()?;
    let report = stage.finish_ping(ping)?;
    let is_good = report.is_complete(request.count);
    let seen = report.summary_of(request.count);
    stage.check("no ping is lost", Outcome::of(is_good, seen))?;
    let after = stage.world.joined_count(HostId::A);
    let seen = format!("{after} of {before}");
    stage.check("the groups are joined again", Outcome::of(after == before, seen))?;
    stage.check_answered(
        "IPv6 ping after that",
        HostId::A,
        &Ping::once(Family::Ipv6.address(HostId::B)),
    )
}

/// A port moves to another LID.
pub(super) fn run_lid_change(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    for family in Family::ALL {
        let ping = stage.start_ping(HostId::A, &running_ping(family))?;
        stage.world.run_for(LEAD)?;
        let old = stage.world.lid_of(HostId::B);
        let event = time_of_day();
        stage.world.move_lid(HostId::B)?;
        let new = stage.world.lid_of(HostId::B);
        stage.say(format_args!("LID of {} changes from {old} to {new}", HostId::B))?;
        let report = stage.finish_ping(ping)?;
        let name = format!("{family} ping goes on with the new LID");
        stage.check_recovery(&name, &report, event, RECOVERY_MAX)?;
    }
    Ok(())
}

/// The subnet administrator answers BUSY for a while.
pub(super) fn run_busy(stage: &mut Stage<'_>) -> Result<(), Error> {
    const REQUESTS: u32 = 6;
    stage.check_links_up()?;
    stage.say(format_args!(
        "the interfaces go down; the administrator is busy for {REQUESTS} requests"
    ))?;
    for host in HostId::BOTH {
        stage.world.ip(host, &["link", "set", "ib0", "down"])?;
    }
    stage.world.run_until(RECOVERY_MAX, |world| {
        HostId::BOTH.iter().all(|host| world.state_of(*host) == "down")
    })?;
    stage.world.make_sa_busy(REQUESTS)?;
    for host in HostId::BOTH {
        stage.world.ip(host, &["link", "set", "ib0", "up"])?;
    }
    stage.check_links_up()?;
    stage.check_answered(
        "IPv4 ping after that",
        HostId::A,
        &Ping::once(Family::Ipv4.address(HostId::B)),
    )
}

fn running_ping(family: Family) -> Ping {
    Ping {
        count: 200,
        interval: Duration::from_millis(10),
        ..Ping::once(family.address(HostId::B))
    }
}
