//! A lagg over two ports: the port that carries loses its link, again and again, under traffic.

use std::time::Duration;

use ipoib_rs::interface::Mode;
use ipoib_rs::limits::LAGG_HOLD_DOWN;

use crate::console::Outcome;
use crate::error::Error;
use crate::ping::{Ping, Report};
use crate::world::{HostId, Place};

use super::iperf;
use super::review::Review;
use super::stage::{Stage, describe_drops, time_of_day};

/// Who has the lagg.
const HOST: HostId = HostId::B;
const PEER: HostId = HostId::A;
const FAILOVER_COUNT: usize = 10;
/// How long the cable of the first port is out.
const OUT: Duration = Duration::from_millis(400);
/// How long it is in: the lagg comes back to it after the hold-down.
const IN: Duration = LAGG_HOLD_DOWN.saturating_add(Duration::from_millis(300));
/// How long a failover may take, from the event to the first answer through the other port.
const FAILOVER_MAX: Duration = Duration::from_millis(100);
/// Requests every millisecond, for a little longer than all failovers.
const PING_COUNT: u32 = 1000 * (SECONDS as u32 - 2);
/// A little longer than all failovers take, with what is asked of the kernel in between.
const SECONDS: u64 = 16;
/// Kind to a small machine.
const BULK_RATE: &str = "200M";
/// Time-outs of TCP, as nstat(8) calls them.
const TIMEOUTS: &str = "TcpExtTCPTimeouts";

/// The scenario.
pub(super) fn run(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    stage.say(format_args!("{HOST} makes a lagg over its two ports"))?;
    stage.world.make_lagg(HOST)?;
    stage.world.run_for(Duration::from_millis(300))?;
    check_carrier(stage, "the first port carries", 0)?;
    stage.check_answered("the address of the host moved to its lagg", PEER, &ping(1))?;
    fail_over_under_ping(stage)?;
    fail_over_under_tcp(stage)?;
    let (announced, changes) = stage.world.lagg_announcements(HOST);
    let seen = format!("{announced} announcements, {changes} addresses");
    let name = "each address was announced once";
    stage.check(name, Outcome::of(announced == changes, seen))?;
    let drops = stage.world.drops_of(HOST);
    stage.say(format_args!("{HOST} dropped: {}", describe_drops(&drops)))?;
    stage.check_violations()
}

/// Looks for the announcements on the peer's link.
pub(super) fn review(review: &mut Review<'_>) -> Result<(), Error> {
    let address = HOST.ipv4();
    let filter = format!("arp.src.proto_ipv4 == {address} && arp.dst.proto_ipv4 == {address}");
    let name = "gratuitous ARP for each failover, on the wire of the peer";
    review.check(name, Place::first(PEER), &filter, &["arp.src.hw"], |packets| {
        let mut addresses = packets.to_vec();
        addresses.sort_unstable();
        addresses.dedup();
        // There and back, under ping and under TCP; and the mode is a part of an address.
        let is_good = packets.len() >= 4 * FAILOVER_COUNT && addresses.len() == 4;
        Outcome::of(is_good, format!("{}, from {} addresses", packets.len(), addresses.len()))
    })
}

fn ping(count: u32) -> Ping {
    Ping { count, ..Ping::once(HOST.ipv4().into()) }
}

fn fail_over_under_ping(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.say(format_args!("{FAILOVER_COUNT} failovers under a ping every millisecond"))?;
    let pings = stage.start_ping(PEER, &ping(PING_COUNT))?;
    stage.world.run_for(IN)?;
    let (mut events, mut moved) = (Vec::new(), 0);
    for _ in 0..FAILOVER_COUNT {
        events.push(time_of_day());
        moved += fail_over(stage, OUT)?;
        moved += come_back(stage)?;
    }
    let report = stage.finish_ping(pings)?;
    let name = "the lagg moved to the other port and back each time";
    let count = 2 * FAILOVER_COUNT;
    stage.check(name, Outcome::of(moved == count, format!("{moved} of {count}")))?;
    check_outages(stage, &report, &events)
}

/// Pulls the cable of the first port. Whether the second one carries.
fn fail_over(stage: &mut Stage<'_>, span: Duration) -> Result<usize, Error> {
    stage.world.set_cable_at(Place::first(HOST), false)?;
    stage.world.run_for(span)?;
    Ok(usize::from(stage.world.lagg_carrier(HOST) == Some(Place::second(HOST))))
}

/// Puts it in again. Whether the first port carries.
fn come_back(stage: &mut Stage<'_>) -> Result<usize, Error> {
    stage.world.set_cable_at(Place::first(HOST), true)?;
    stage.world.run_for(IN)?;
    Ok(usize::from(stage.world.lagg_carrier(HOST) == Some(Place::first(HOST))))
}

fn check_outages(stage: &mut Stage<'_>, report: &Report, events: &[Duration]) -> Result<(), Error> {
    let window = OUT + IN;
    let mut outages: Vec<Duration> =
        events.iter().map(|&event| report.longest_gap(event, window)).collect();
    outages.sort_unstable();
    let median = outages.get(outages.len() / 2).copied().unwrap_or(Duration::MAX);
    let longest = outages.last().copied().unwrap_or(Duration::MAX);
    // A machine that is busy does not run ping for longer than that: what counts is what was lost,
    // one request for each millisecond.
    let lost = report.longest_loss(report.sent);
    let seen = format!(
        "{lost} requests lost in a row; longest time without an answer: median {:.1} ms, at most \
         {:.1} ms; {}",
        median.as_secs_f64() * 1e3,
        longest.as_secs_f64() * 1e3,
        report.summary()
    );
    let name = format!("a failover takes at most {} ms", FAILOVER_MAX.as_millis());
    let is_good = report.received > 0 && u128::from(lost) <= FAILOVER_MAX.as_millis();
    stage.check(name, Outcome::of(is_good, seen))
}

fn fail_over_under_tcp(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.say(format_args!("{FAILOVER_COUNT} failovers under TCP in connected mode"))?;
    for host in HostId::BOTH {
        stage.world.set_mode(host, Mode::Connected)?;
    }
    stage.world.run_for(IN)?;
    let ends = (PEER, HOST);
    let transfer = iperf::start(stage, ends, HOST.ipv4(), SECONDS, &["-b", BULK_RATE])?;
    stage.world.run_for(IN)?;
    let (mut timeouts, mut moved) = (Vec::new(), 0);
    for _ in 0..FAILOVER_COUNT {
        let before = stage.kernel_counters(PEER)?;
        moved += fail_over(stage, OUT)?;
        moved += come_back(stage)?;
        timeouts.push(stage.kernel_counters(PEER)?.since(&before, TIMEOUTS));
    }
    let bulk = transfer.finish(stage)?;
    let name = "the lagg moved to the other port and back each time";
    let count = 2 * FAILOVER_COUNT;
    stage.check(name, Outcome::of(moved == count, format!("{moved} of {count}")))?;
    let most = timeouts.iter().copied().max().unwrap_or(u64::MAX);
    let name = "at most one retransmission timeout of TCP for each failover";
    stage.check(name, Outcome::of(most <= 1, format!("{timeouts:?}")))?;
    let seen = bulk.map_or("nothing reported".to_owned(), |bulk| {
        format!("{:.0} Mbit/s, {} retransmits", bulk.mbits_per_second, bulk.retransmits)
    });
    let is_good = bulk.is_some_and(|bulk| bulk.mbits_per_second > 100.0);
    stage.check("TCP goes on through all of them", Outcome::of(is_good, seen))
}

fn check_carrier(stage: &mut Stage<'_>, name: &str, number: u8) -> Result<(), Error> {
    let carrier = stage.world.lagg_carrier(HOST);
    let seen = carrier.map_or("none".to_owned(), |place| place.to_string());
    stage.check(name, Outcome::of(carrier.is_some_and(|place| place.number == number), seen))
}
