//! The address of a peer moves between two ports, under traffic.
//!
//! A server has two ports in two subnets on one fabric, and so have three peers. ARP of a peer's
//! address is answered now by one of its ports, now by the other, as hosts do that answer for all
//! of their addresses on all of their interfaces. To the server it is another neighbour each time.

mod progress;

use std::net::Ipv4Addr;
use std::time::Duration;

use ipoib_rs::counters::Counter;
use ipoib_rs::interface::Mode;
use ipoib_rs::time::Instant;

use crate::console::Outcome;
use crate::error::Error;
use crate::table::Table;
use crate::world::{HostId, Place};

use super::flow::Flow;
use super::iperf;
use super::review::Review;
use super::stage::{Stage, describe_drops};

use progress::Progress;

const SERVER: HostId = HostId::A;
/// A peer, and which of its ports and the server's its traffic begins with.
const PEERS: [(HostId, u8); 3] = [(HostId::B, 0), (HostId::C, 0), (HostId::D, 1)];
/// This port is taken down whenever its address has left it, and up again: its connections end, and
/// the address comes back to a port that has none. What this host sends goes by the other one.
const RESTARTING: Place = Place { host: HostId::D, number: 0 };
/// How long it is down.
const DOWN: Duration = Duration::from_millis(500);
const FLIP_COUNT: u32 = 60;
const FLIP_EVERY: Duration = Duration::from_secs(1);
/// How long TCP may take to go on.
const STALL_MAX: Duration = Duration::from_secs(2);
const MTU: usize = 40_950;
const PACKET_BYTES: usize = 12_380;
const TICK: Duration = Duration::from_millis(10);
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// For each peer; kind to a small machine.
const BULK_RATE: &str = "200M";

/// A peer under traffic.
struct Target {
    host: HostId,
    address: Ipv4Addr,
    /// The subnet of its address, by the port of that number.
    subnet: u8,
    flow: Flow,
    progress: Progress,
    transfer: Option<iperf::Transfer>,
}

/// The scenario.
pub(super) fn run(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    for host in stage.world.hosts() {
        stage.world.set_connected_mtu(host, MTU)?;
        stage.world.set_mode(host, Mode::Connected)?;
    }
    stage.world.run_for(Duration::from_millis(100))?;
    stage.check_mtu(SERVER, MTU)?;
    let mut targets = PEERS
        .into_iter()
        .map(|(host, subnet)| open_target(stage, host, subnet))
        .collect::<Result<Vec<_>, _>>()?;
    flip_all(stage, &mut targets)?;
    for target in &mut targets {
        if let Some(transfer) = target.transfer.take() {
            transfer.finish(stage)?;
        }
        target.flow.collect()?;
    }
    check_datagrams(stage, &targets)?;
    check_progress(stage, &targets)?;
    check_log(stage)?;
    for (name, counter, least) in [
        ("packets that the server sent by connections", Counter::ConnectedSent, 1),
        ("connections that the server made", Counter::Connected, u64::from(FLIP_COUNT / 2)),
    ] {
        let count = stage.world.count_of(SERVER, counter);
        stage.check(name, Outcome::of(count >= least, count.to_string()))?;
    }
    stage.check_violations()
}

/// Looks for datagrams on the wire that are too large.
pub(super) fn review(review: &mut Review<'_>) -> Result<(), Error> {
    for place in [Place::first(SERVER), Place::second(SERVER)] {
        review.check_datagrams_fit(place)?;
    }
    Ok(())
}

/// Gives a peer its address, and starts its traffic.
fn open_target(stage: &mut Stage<'_>, host: HostId, subnet: u8) -> Result<Target, Error> {
    let place = Place { host, number: subnet };
    let address = place.ipv4_floating();
    let with_prefix = format!("{address}/32");
    stage.world.ip(host, &["address", "add", &with_prefix, "dev", place.interface()])?;
    stage.world.answer_at(place, address.into())?;
    let source = Place { host: SERVER, number: subnet }.ipv4();
    let flow = Flow::open(
        (stage.world.namespace(SERVER)?, source),
        (stage.world.namespace(host)?, address),
        PACKET_BYTES,
    )?;
    // Longer than the flips, whatever the start of the others takes.
    let seconds = (FLIP_EVERY * FLIP_COUNT).as_secs() + 5;
    let transfer = iperf::start(stage, (SERVER, host), address, seconds, &["-b", BULK_RATE])?;
    let progress = Progress::new(address);
    Ok(Target { host, address, subnet, flow, progress, transfer: Some(transfer) })
}

fn flip_all(stage: &mut Stage<'_>, targets: &mut [Target]) -> Result<(), Error> {
    stage
        .say(format_args!("{FLIP_COUNT} times, all peers' addresses move to their other ports"))?;
    run_until(stage, targets, stage.world.now() + FLIP_EVERY)?;
    let start = stage.world.now();
    for flip in 1..=FLIP_COUNT {
        let mut has_left = true;
        for target in targets.iter() {
            let number = (u32::from(target.subnet) + flip) % 2;
            let place = Place { host: target.host, number: u8::from(number == 1) };
            stage.world.answer_at(place, target.address.into())?;
            has_left &= place != RESTARTING;
        }
        let end = start + FLIP_EVERY * flip;
        if has_left {
            // What was sent to the port before has arrived there: the lab was at rest.
            set_restarting(stage, "down")?;
            run_until(stage, targets, stage.world.now() + DOWN)?;
            set_restarting(stage, "up")?;
            // The kernel is to forget that it was told of a smaller MTU.
            stage.world.ip(SERVER, &["route", "flush", "cache"])?;
        }
        run_until(stage, targets, end)?;
    }
    // Everything that is under way arrives.
    stage.world.run_for(Duration::from_millis(200))
}

fn set_restarting(stage: &mut Stage<'_>, state: &str) -> Result<(), Error> {
    stage.world.ip(RESTARTING.host, &["link", "set", RESTARTING.interface(), state])
}

/// Runs, sends datagrams and watches TCP.
fn run_until(stage: &mut Stage<'_>, targets: &mut [Target], give_up: Instant) -> Result<(), Error> {
    let mut progress_at = stage.world.now();
    while stage.world.now() < give_up {
        for target in targets.iter_mut() {
            target.flow.send();
        }
        stage.world.run_for(TICK)?;
        for target in targets.iter_mut() {
            target.flow.collect()?;
        }
        if stage.world.now() >= progress_at {
            progress_at = stage.world.now() + PROGRESS_EVERY;
            let said = stage.run_program(SERVER, progress::PROGRAM, &progress::ARGUMENTS)?;
            let now = stage.world.now();
            for target in targets.iter_mut() {
                target.progress.note(now, &said);
            }
        }
    }
    Ok(())
}

fn check_datagrams(stage: &mut Stage<'_>, targets: &[Target]) -> Result<(), Error> {
    let titles = ["datagrams to", "sent", "received", "missing", "damaged", "twice"];
    let mut table = Table::new(4, titles);
    let (mut missing, mut unsound, mut sent) = (0, 0, 0);
    for target in targets {
        let account = target.flow.account();
        table.push([
            format!("{} ({})", target.address, target.host),
            account.sent.to_string(),
            account.received.to_string(),
            account.missing().to_string(),
            account.damaged.to_string(),
            account.repeated.to_string(),
        ]);
        missing += account.missing();
        unsound += account.damaged + account.repeated + account.refused;
        sent += account.sent;
    }
    stage.say(format_args!("UDP of {PACKET_BYTES} bytes without DF\n{table}"))?;
    let mut counted = 0;
    for host in stage.world.hosts() {
        let drops = stage.world.drops_of(host);
        stage.say(format_args!("{host} dropped: {}", describe_drops(&drops)))?;
        // The sender of those was told by ICMP; only TCP has DF set.
        let lost = drops.iter().filter(|(name, _)| *name != "drop_too_big_reported");
        counted += lost.map(|(_, count)| count).sum::<u64>();
    }
    let name = "every datagram arrived whole or was dropped for a reason";
    let seen = format!("{missing} of {sent} missing, {counted} dropped");
    stage.check(name, Outcome::of(sent > 0 && missing <= counted, seen))?;
    let name = "datagrams damaged, repeated or refused";
    stage.check(name, Outcome::of(unsound == 0, unsound.to_string()))?;
    for port in [Place::first(SERVER), Place::second(SERVER)] {
        stage.check_queue(port)?;
    }
    Ok(())
}

fn check_progress(stage: &mut Stage<'_>, targets: &[Target]) -> Result<(), Error> {
    for target in targets {
        let Progress { stall_max, bytes, .. } = target.progress;
        let seen = format!(
            "longest time without progress {} ms, {} MB in all",
            stall_max.as_millis(),
            bytes / 1_000_000
        );
        // A stall ends between two readings.
        let is_good = stall_max + 2 * PROGRESS_EVERY < STALL_MAX && bytes > 0;
        let name = format!("TCP to {} goes on within {} s", target.address, STALL_MAX.as_secs());
        stage.check(name, Outcome::of(is_good, seen))?;
    }
    Ok(())
}

/// At most one line for each neighbour and cause.
fn check_log(stage: &mut Stage<'_>) -> Result<(), Error> {
    for host in stage.world.hosts() {
        let mut notices = stage.world.notices(host);
        notices.sort_unstable();
        let count = notices.len();
        notices.dedup();
        let seen = format!("{count} lines, {} different", notices.len());
        let outcome = Outcome::of(notices.len() == count, seen);
        stage.check(format!("log of {host}: no line twice"), outcome)?;
    }
    Ok(())
}
