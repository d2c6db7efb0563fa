//! A P_Key is taken away and given back; a child interface lives in a partition of its own.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipoib_rs::ib::Pkey;

use crate::console::Outcome;
use crate::error::Error;
use crate::ping::Ping;
use crate::world::HostId;

use super::stage::{Family, Stage, time_of_day};

const RECOVERY_MAX: Duration = Duration::from_secs(2);
const CHILD: &str = "ib0.8002";
/// The partition of the children.
const CHILD_PKEY: u16 = 0x8002;

/// The scenario.
pub(super) fn run(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    lose_the_key(stage)?;
    add_children(stage)
}

fn lose_the_key(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.say(format_args!(
        "the P_Key {:#06x} of {} is removed",
        Pkey::DEFAULT.value(),
        HostId::B
    ))?;
    let long_ping = Ping {
        count: 150,
        interval: Duration::from_millis(10),
        ..Ping::once(Family::Ipv4.address(HostId::B))
    };
    let ping = stage.start_ping(HostId::A, &long_ping)?;
    stage.world.run_for(Duration::from_millis(300))?;
    stage.world.revoke_pkey(HostId::B, Pkey::DEFAULT)?;
    stage.check_carrier(HostId::B, "ib0", false)?;
    stage.world.run_for(Duration::from_millis(300))?;
    stage.say("and added again")?;
    let event = time_of_day();
    stage.world.grant_pkey(HostId::B, Pkey::DEFAULT)?;
    stage.check_carrier(HostId::B, "ib0", true)?;
    let report = stage.finish_ping(ping)?;
    stage.check_recovery("IPv4 ping goes on with the P_Key", &report, event, RECOVERY_MAX)
}

fn add_children(stage: &mut Stage<'_>) -> Result<(), Error> {
    let Some(pkey) = Pkey::new(CHILD_PKEY) else {
        return Err(Error::Interface(format!("{CHILD_PKEY:#06x} is no P_Key")));
    };
    stage
        .say(format_args!("both hosts get a child interface {CHILD} in a partition of its own"))?;
    stage.world.add_partition(pkey)?;
    for host in HostId::BOTH {
        stage.world.grant_pkey(host, pkey)?;
        stage.world.add_child(host, pkey)?;
    }
    for host in HostId::BOTH {
        stage.check_carrier(host, CHILD, true)?;
    }
    for target in [HostId::B.child_ipv4().into(), HostId::B.child_ipv6().into()] {
        let ping = Ping { count: 20, interface: CHILD, ..Ping::once(target) };
        let name = format!("{} ping from child to child", Family::of(target));
        stage.check_answered(name, HostId::A, &ping)?;
    }
    check_isolated(stage)
}

/// An address of a parent, on a subnet that parents and children share, is reached from the
/// parent's partition and from no other.
fn check_isolated(stage: &mut Stage<'_>) -> Result<(), Error> {
    let [near, far, child] = [1, 2, 101].map(|host| Ipv4Addr::new(10, 77, 2, host));
    stage.world.add_address(HostId::A, "ib0", near.into())?;
    stage.world.add_address(HostId::B, "ib0", far.into())?;
    stage.world.add_address(HostId::A, CHILD, child.into())?;
    let ping = Ping { count: 3, interval: Duration::from_millis(100), ..Ping::once(far.into()) };
    stage.check_answered("a parent reaches a parent", HostId::A, &ping)?;
    let ping = Ping { interface: CHILD, ..ping };
    let report = stage.ping(HostId::A, &ping)?;
    let is_isolated = report.sent > 0 && report.received == 0;
    let outcome = Outcome::of(is_isolated, report.summary());
    stage.check("a child on the same subnet does not", outcome)
}
