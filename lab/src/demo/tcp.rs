//! TCP in both modes, with iperf3.

use std::time::Duration;

use ipoib_rs::interface::Mode;

use crate::console::Outcome;
use crate::error::Error;
use crate::world::{HostId, Place};

use super::connected::CONNECTED_MTU;
use super::iperf;
use super::stage::Stage;

const SECONDS: u64 = 3;
/// How much faster connected mode is to be.
const RATIO_MIN: f64 = 2.0;
/// The steady state is what follows the first second, in which TCP tries out how much is too much.
const OMITTED: [&str; 2] = ["-O", "1"];

/// The scenario.
pub(super) fn run(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    distrust_time(stage)?;
    let datagram = check_transfer(stage, "datagram mode, MTU 2044")?;
    for host in HostId::BOTH {
        stage.world.set_mode(host, Mode::Connected)?;
    }
    stage.world.run_for(Duration::from_millis(100))?;
    stage.check_mtu(HostId::A, CONNECTED_MTU)?;
    let connected = check_transfer(stage, "connected mode, MTU 65520")?;
    let ratio = connected / datagram;
    let outcome = Outcome::of(ratio >= RATIO_MIN, format!("{ratio:.1} times"));
    stage.check(format!("connected mode is at least {RATIO_MIN} times as fast"), outcome)?;
    for host in HostId::BOTH {
        stage.check_no_drops(host)?;
    }
    stage.check_violations()
}

/// Lets the sender take a packet for lost when the receiver has later ones and not that one, and
/// not because time went by. A tail loss probe (RFC 8985 7) sends a segment twice when no answer
/// came for two round trips, which is less than a millisecond here, and a timeout (RFC 6298) after
/// 200 ms: both see that a program waits for a processor.
fn distrust_time(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.world.namespace(HostId::A)?.set("ipv4/tcp_early_retrans", "0")?;
    let own = HostId::A.ipv4().to_string();
    let route = ["route", "change", "10.77.0.0/24", "dev", "ib0", "proto", "kernel"];
    let mut arguments = route.to_vec();
    arguments.extend(["scope", "link", "src", &own, "rto_min", "5s"]);
    stage.world.ip(HostId::A, &arguments)
}

/// Transfers for [`SECONDS`]; returns megabits per second.
fn check_transfer(stage: &mut Stage<'_>, what: &str) -> Result<f64, Error> {
    let ends = (HostId::A, HostId::B);
    let before = stage.kernel_counters(HostId::A)?;
    let transfer = iperf::start(stage, ends, HostId::B.ipv4(), SECONDS, &OMITTED)?;
    let Some(report) = transfer.finish(stage)? else {
        let outcome = Outcome::Failed("iperf3 reported nothing".to_owned());
        stage.check(format!("TCP in {what}"), outcome)?;
        return Ok(f64::NAN);
    };
    let iperf::Report { mbits_per_second, retransmits } = report;
    let outcome = Outcome::of(mbits_per_second > 0.0, format!("{mbits_per_second:.0} Mbit/s"));
    stage.check(format!("TCP in {what}"), outcome)?;
    let after = stage.kernel_counters(HostId::A)?;
    // RFC 2883: the receiver says of a segment that it had it before.
    let needless = after.since(&before, "TcpExtTCPDSACKRecv");
    let seen = format!("{retransmits}; in all the receiver had {needless} twice");
    stage.check("retransmits in the steady state", Outcome::of(retransmits == 0, seen))?;
    stage.check_queue(Place::first(HostId::A))?;
    Ok(mbits_per_second)
}
