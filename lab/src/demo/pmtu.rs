//! A connected host and a neighbour that takes datagrams only: how the host learns what fits.

use std::collections::BTreeMap;
use std::time::Duration;

use ipoib_rs::counters::Counter;
use ipoib_rs::interface::Mode;

use crate::console::Outcome;
use crate::error::Error;
use crate::ping::Ping;
use crate::tools;
use crate::world::{HostId, Place};

use super::connected::{CONNECTED_MTU, DATAGRAM_MTU, switch};
use super::review::Review;
use super::stage::{Family, Stage, word_after};

/// The IPv4 packet that is to be fragmented, header included, and how many of them are sent.
const PACKET_BYTES: usize = 12_380;
const PACKET_COUNT: u32 = 10;
/// Its fragments to an MTU of 2044: six of 2024 bytes and one of 216, behind 20 bytes of header.
const FRAGMENT_BYTES: [usize; 7] = [2044, 2044, 2044, 2044, 2044, 2044, 236];
const BURST_LEN: u32 = 5;
const BURST_COUNT: u32 = 3;

/// The scenario.
pub(super) fn run(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    switch(stage, HostId::A, Mode::Connected, CONNECTED_MTU)?;
    stage.check_mtu(HostId::B, DATAGRAM_MTU)?;
    // Before the kernel has learned the MTU and fragments by itself.
    check_fragmented(stage)?;
    for family in Family::ALL {
        check_tracepath(stage, family)?;
        check_bursts(stage, family)?;
        check_learned(stage, family)?;
    }
    let notices = stage.world.notices(HostId::A);
    let outcome = Outcome::of(notices.len() == 1, notices.join("; "));
    stage.check("lines of the log of host a: one", outcome)?;
    stage.check_violations()
}

/// Looks at the fragments on the wire.
pub(super) fn review(review: &mut Review<'_>) -> Result<(), Error> {
    let source = HostId::A.ipv4();
    let filter = format!("ip.src == {source} && (ip.flags.mf == 1 || ip.frag_offset > 0)");
    let fields = ["ip.id", "ip.len", "infiniband.bth.opcode"];
    // The kernel's are those that followed when it had learned the MTU.
    let count = 2 * PACKET_COUNT as usize;
    let name = format!(
        "each of {count} packets of {PACKET_BYTES} bytes is 7 fragments, half of them the kernel's"
    );
    review.check(name, Place::first(HostId::A), &filter, &fields, |packets| {
        let mut lengths: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for packet in packets {
            let mut words = packet.split('\t');
            if let (Some(ident), Some(length)) = (words.next(), words.next()) {
                lengths.entry(ident).or_default().push(length.parse().unwrap_or(0));
            }
        }
        let are_good = lengths.values().all(|lengths| *lengths == FRAGMENT_BYTES);
        let is_good = are_good && lengths.len() == count;
        let seen = lengths.values().next().map(|lengths| format!("{lengths:?}"));
        let seen = format!("{} packets, {}", lengths.len(), seen.unwrap_or_default());
        Outcome::of(is_good, seen)
    })?;
    review.check_datagrams_fit(Place::first(HostId::A))
}

fn check_fragmented(stage: &mut Stage<'_>) -> Result<(), Error> {
    let target = Family::Ipv4.address(HostId::B);
    let before = stage.world.count_of(HostId::A, Counter::Fragmented);
    let ping = Ping {
        count: PACKET_COUNT,
        interval: Duration::from_millis(5),
        payload_bytes: Ping::payload_bytes_max(target, PACKET_BYTES),
        ..Ping::once(target)
    };
    let name = format!("{PACKET_COUNT} IPv4 packets of {PACKET_BYTES} bytes without DF");
    stage.check_answered(name, HostId::A, &ping)?;
    let count = stage.world.count_of(HostId::A, Counter::Fragmented) - before;
    let outcome = Outcome::of(count == u64::from(PACKET_COUNT), count.to_string());
    stage.check("packets that the core fragmented", outcome)
}

/// tracepath(8) sends the largest packets that its host lets it, and less when it is told so.
fn check_tracepath(stage: &mut Stage<'_>, family: Family) -> Result<(), Error> {
    let target = family.address(HostId::B).to_string();
    let said = stage.run_program(HostId::A, tools::TRACEPATH, &["-n", &target])?;
    let learned: Vec<&str> = said.lines().filter_map(|line| word_after(line, "pmtu")).collect();
    let has_begun = learned.first() == Some(&CONNECTED_MTU.to_string().as_str());
    let has_ended = learned.last() == Some(&DATAGRAM_MTU.to_string().as_str());
    let is_reached = said.contains(" reached");
    let seen = format!("pmtu {}", learned.join(", "));
    let seen = if is_reached { seen } else { format!("{seen}, not reached") };
    let name = format!("{family}, tracepath finds {DATAGRAM_MTU} on an interface of 65520");
    stage.check(name, Outcome::of(has_begun && has_ended && is_reached, seen))
}

/// Bursts of packets with DF set, each of a host that has forgotten what it learned.
fn check_bursts(stage: &mut Stage<'_>, family: Family) -> Result<(), Error> {
    let target = family.address(HostId::B);
    let counter = match family {
        Family::Ipv4 => "IcmpInDestUnreachs",
        Family::Ipv6 => "Icmp6InPktTooBigs",
    };
    let ping = Ping {
        count: BURST_LEN,
        interval: Duration::from_millis(10),
        payload_bytes: Ping::payload_bytes_max(target, PACKET_BYTES),
        dont_fragment: true,
        goes_on: true,
        ..Ping::once(target)
    };
    for number in 1..=BURST_COUNT {
        forget(stage, family)?;
        let (sent, before) =
            (stage.world.too_big_count(HostId::A), stage.kernel_counters(HostId::A)?);
        let report = stage.ping(HostId::A, &ping)?;
        let received = stage.kernel_counters(HostId::A)?.since(&before, counter);
        let sent = stage.world.too_big_count(HostId::A) - sent;
        let (told, refused) = (report.too_big.len(), report.errors.len());
        let is_mtu = |said: &String| said.ends_with(&format!("{DATAGRAM_MTU}"));
        let says_mtu = report.too_big.iter().chain(&report.errors).all(is_mtu);
        let is_good = (sent, received, told) == (1, 1, 1) && refused > 0 && says_mtu;
        let seen = format!(
            "{sent} sent, {received} received, then {refused} refused by the own host; {}",
            report.too_big.first().map_or("", String::as_str)
        );
        let name = format!("{family} with DF, burst {number}: one ICMP message");
        stage.check(name, Outcome::of(is_good, seen))?;
    }
    Ok(())
}

/// What the kernel knows now, and that it goes by it.
fn check_learned(stage: &mut Stage<'_>, family: Family) -> Result<(), Error> {
    let target = family.address(HostId::B);
    let said = stage.run_program(HostId::A, tools::IP, &["route", "get", &target.to_string()])?;
    let mtu = word_after(&said, "mtu").unwrap_or("none").to_owned();
    let name = format!("{family}, MTU that ip route get shows");
    stage.check(name, Outcome::of(mtu == DATAGRAM_MTU.to_string(), mtu))?;
    let fragmented = stage.world.count_of(HostId::A, Counter::Fragmented);
    let ping = Ping {
        count: PACKET_COUNT,
        interval: Duration::from_millis(5),
        payload_bytes: Ping::payload_bytes_max(target, PACKET_BYTES),
        ..Ping::once(target)
    };
    let name = format!("{family}, {PACKET_BYTES} bytes after that, fragmented by the kernel");
    let report = stage.ping(HostId::A, &ping)?;
    let count = stage.world.count_of(HostId::A, Counter::Fragmented) - fragmented;
    let is_good = report.is_complete(PACKET_COUNT) && count == 0;
    stage.check(name, Outcome::of(is_good, report.summary_of(PACKET_COUNT)))
}

fn forget(stage: &mut Stage<'_>, family: Family) -> Result<(), Error> {
    let option = match family {
        Family::Ipv4 => "-4",
        Family::Ipv6 => "-6",
    };
    stage.world.ip(HostId::A, &[option, "route", "flush", "cache"])
}
