//! Two hosts ping each other.

use std::net::IpAddr;
use std::time::Duration;

use crate::console::Outcome;
use crate::error::Error;
use crate::ping::Ping;
use crate::world::HostId;

use super::stage::{Family, Stage};

const SERIES_LEN: u32 = 100;
const INTERVAL: Duration = Duration::from_millis(1);
/// RFC 4391 7: the MTU of a 2048-byte fabric without the encapsulation header.
const MTU: usize = 2044;

/// The scenario.
pub(super) fn run(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    stage.say("two hosts, one interface each, on a switch with a subnet manager")?;
    stage.check_mtu(HostId::A, MTU)?;
    stage.check_mtu(HostId::B, MTU)?;
    for family in Family::ALL {
        let target = family.address(HostId::B);
        let payload_bytes_max = Ping::payload_bytes_max(target, MTU);
        for payload_bytes in [56, 1000, payload_bytes_max] {
            check_series(stage, family, payload_bytes)?;
        }
        check_too_long(stage, target, payload_bytes_max + 1)?;
        check_fragmented(stage, family)?;
        check_group(stage, family)?;
    }
    stage.check_violations()
}

fn check_series(stage: &mut Stage<'_>, family: Family, payload_bytes: usize) -> Result<(), Error> {
    let ping = Ping {
        count: SERIES_LEN,
        interval: INTERVAL,
        payload_bytes,
        dont_fragment: true,
        ..Ping::once(family.address(HostId::B))
    };
    let name = format!("{family}, {SERIES_LEN} pings of {payload_bytes} bytes, none lost");
    stage.check_answered(name, HostId::A, &ping)
}

/// The own host refuses what the interface cannot carry, before the fabric sees it.
fn check_too_long(
    stage: &mut Stage<'_>,
    target: IpAddr,
    payload_bytes: usize,
) -> Result<(), Error> {
    let ping = Ping { payload_bytes, dont_fragment: true, ..Ping::once(target) };
    let report = stage.ping(HostId::A, &ping)?;
    let said = report.errors.first().cloned().unwrap_or_default();
    let is_too_long = said.to_lowercase().contains("message too long");
    let is_refused = report.received == 0 && is_too_long && said.ends_with(&MTU.to_string());
    let name = format!("{}, one byte more is too long", Family::of(target));
    stage.check(name, Outcome::of(is_refused, said))
}

fn check_fragmented(stage: &mut Stage<'_>, family: Family) -> Result<(), Error> {
    const PAYLOAD_BYTES: usize = 60_000;
    let ping = Ping {
        count: 5,
        interval: Duration::from_millis(20),
        payload_bytes: PAYLOAD_BYTES,
        ..Ping::once(family.address(HostId::B))
    };
    let name = format!("{family}, {PAYLOAD_BYTES} bytes in fragments of {MTU}");
    stage.check_answered(name, HostId::A, &ping)
}

fn check_group(stage: &mut Stage<'_>, family: Family) -> Result<(), Error> {
    let group = family.all_hosts();
    let ping = Ping { count: 3, interval: Duration::from_millis(20), ..Ping::once(group) };
    let report = stage.ping(HostId::A, &ping)?;
    let peer = match family {
        Family::Ipv4 => family.address(HostId::B),
        // RFC 4443 4.2: the answer to a link-local group comes from the link-local address.
        Family::Ipv6 => HostId::B.link_local().into(),
    };
    let count = report.answered(ping.count, Some(peer)).len();
    let is_good = count == ping.count as usize;
    let seen = format!("{count} of {} answered by {peer}", ping.count);
    stage.check(format!("{family}, ping to {group}"), Outcome::of(is_good, seen))
}
