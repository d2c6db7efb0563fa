//! The mode of an interface is changed at run time, under traffic.

use std::time::Duration;

use ipoib_rs::interface::Mode;
use ipoib_rs::wire::AddressFlags;

use crate::console::Outcome;
use crate::error::Error;
use crate::kernel::KernelCounters;
use crate::ping::Ping;
use crate::world::{HostId, Place};

use super::connected::{CONNECTED_MTU, DATAGRAM_MTU};
use super::flow::Flow;
use super::iperf;
use super::stage::{Family, Stage, describe_drops, word_after};

/// One host after the other, down and up again.
const ROUND: [(HostId, Mode); 4] = [
    (HostId::B, Mode::Datagram),
    (HostId::A, Mode::Datagram),
    (HostId::B, Mode::Connected),
    (HostId::A, Mode::Connected),
];
const ROUND_COUNT: usize = 5;
const SWITCH_COUNT: usize = ROUND.len() * ROUND_COUNT;
const SWITCH_EVERY: Duration = Duration::from_millis(400);
const TICK: Duration = Duration::from_millis(5);
/// A little longer than all switches.
const SECONDS: u64 = 10;
/// An IPv4 packet that datagram mode does not carry whole.
const PACKET_BYTES: usize = 12_380;
/// Requests that are sent even where ping hardly gets to run.
const PINGS_MIN: u64 = 500;
/// Kind to a small machine: the ping is to be sent every millisecond.
const BULK_RATE: &str = "500M";

/// What followed the switches, of [`SWITCH_COUNT`].
#[derive(Default)]
struct Followed {
    flags: usize,
    mtus: usize,
    transports: usize,
    listeners: usize,
}

/// The scenario.
pub(super) fn run(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    for host in HostId::BOTH {
        stage.world.set_mode(host, Mode::Connected)?;
    }
    let target = HostId::B.ipv4();
    let ping = Ping {
        count: 1000 * u32::try_from(SECONDS).unwrap_or(u32::MAX),
        ..Ping::once(target.into())
    };
    let before = read_kernels(stage)?;
    let mut flow = open_flow(stage)?;
    let transfer =
        iperf::start(stage, (HostId::A, HostId::B), target, SECONDS, &["-b", BULK_RATE])?;
    let pings = stage.start_ping(HostId::A, &ping)?;
    let followed = switch_all(stage, &mut flow)?;
    let report = stage.finish_ping(pings)?;
    let bulk = transfer.finish(stage)?;
    flow.collect()?;
    check_followed(stage, &followed)?;
    let count = SWITCH_COUNT;
    let name = format!("ping every millisecond through {count} switches, none lost");
    let after = read_kernels(stage)?;
    // Counted by the kernels: ping does not read every answer if it does not run for long enough.
    let crossed = [
        after[0].since(&before[0], "IcmpOutEchos"),
        after[1].since(&before[1], "IcmpInEchos"),
        after[1].since(&before[1], "IcmpOutEchoReps"),
        after[0].since(&before[0], "IcmpInEchoReps"),
    ];
    let are_complete = crossed[0] >= PINGS_MIN && crossed.iter().all(|&n| n == crossed[0]);
    let seen = format!(
        "{} requests, {} arrived, {} answers, {} arrived; {}",
        crossed[0],
        crossed[1],
        crossed[2],
        crossed[3],
        report.summary_of(ping.count)
    );
    stage.check(name, Outcome::of(are_complete, seen))?;
    let account = flow.account();
    let is_good = account.missing() == 0 && account.damaged == 0 && account.repeated == 0;
    let seen = format!(
        "{} sent, {} received, {} damaged, {} twice",
        account.sent, account.received, account.damaged, account.repeated
    );
    let name = format!("UDP of {PACKET_BYTES} bytes without DF, none lost");
    stage.check(name, Outcome::of(is_good && account.sent > 0, seen))?;
    let seen = bulk.map_or("nothing reported".to_owned(), |bulk| {
        format!("{:.0} Mbit/s, {} retransmits", bulk.mbits_per_second, bulk.retransmits)
    });
    let is_good = bulk.is_some_and(|bulk| bulk.mbits_per_second > 0.0);
    stage.check("TCP goes on through all of them", Outcome::of(is_good, seen))?;
    for host in HostId::BOTH {
        let drops = stage.world.drops_of(host);
        // The sender was told, and sends again: TCP.
        let are_told = drops.iter().all(|(name, _)| *name == "drop_too_big_reported");
        let name = format!("{host} dropped only what it reported by ICMP");
        stage.check(name, Outcome::of(are_told, describe_drops(&drops)))?;
    }
    stage.check_violations()
}

fn read_kernels(stage: &mut Stage<'_>) -> Result<[KernelCounters; 2], Error> {
    Ok([stage.kernel_counters(HostId::A)?, stage.kernel_counters(HostId::B)?])
}

fn open_flow(stage: &Stage<'_>) -> Result<Flow, Error> {
    let end = |host: HostId| Ok((stage.world.namespace(host)?, host.ipv4()));
    Flow::open(end(HostId::A)?, end(HostId::B)?, PACKET_BYTES)
}

fn switch_all(stage: &mut Stage<'_>, flow: &mut Flow) -> Result<Followed, Error> {
    let mut followed = Followed::default();
    let mut modes = [Mode::Connected; 2];
    // The ping and the bulk are under way when the first one comes.
    run_with(stage, flow, SWITCH_EVERY)?;
    for (host, mode) in ROUND.iter().copied().cycle().take(SWITCH_COUNT) {
        let (own, peer) = if host == HostId::A { (0, HostId::B) } else { (1, HostId::A) };
        modes[own] = mode;
        stage.world.set_mode(host, mode)?;
        run_with(stage, flow, SWITCH_EVERY)?;
        let address = stage.world.resolved(Place::first(peer), host.ipv4().into());
        let is_flagged = address.is_some_and(|address| address.flags().contains(AddressFlags::RC));
        followed.flags += usize::from(is_flagged == (mode == Mode::Connected));
        let mtu = match mode {
            Mode::Datagram => DATAGRAM_MTU,
            Mode::Connected => CONNECTED_MTU,
        };
        let shown = stage.world.show_link(host, "ib0")?;
        followed.mtus += usize::from(word_after(&shown, "mtu") == Some(&mtu.to_string()));
        let are_connected = modes == [Mode::Connected; 2];
        let expected = if are_connected { "connected" } else { "datagram" };
        let target = Family::Ipv4.address(peer);
        let row = stage.world.neighbor(Place::first(host), target);
        followed.transports += usize::from(row.is_some_and(|row| row.transport == expected));
        let count = stage.world.incoming_count(host);
        followed.listeners += usize::from((count > 0) == are_connected);
    }
    Ok(followed)
}

fn check_followed(stage: &mut Stage<'_>, followed: &Followed) -> Result<(), Error> {
    let Followed { flags, mtus, transports, listeners } = *followed;
    for (what, count) in [
        ("the peer has the address with the flag of the mode", flags),
        ("the kernel has the MTU of the mode", mtus),
        ("the neighbor has a connection where both may, and none else", transports),
        ("peers have connections to the host where both may, and none else", listeners),
    ] {
        let outcome = Outcome::of(count == SWITCH_COUNT, format!("{count} of {SWITCH_COUNT}"));
        stage.check(format!("after a switch {what}"), outcome)?;
    }
    Ok(())
}

/// Runs for a while and sends datagrams.
fn run_with(stage: &mut Stage<'_>, flow: &mut Flow, span: Duration) -> Result<(), Error> {
    let give_up = stage.world.now() + span;
    while stage.world.now() < give_up {
        flow.send();
        stage.world.run_for(TICK)?;
        flow.collect()?;
    }
    Ok(())
}
