//! Connections come, end, are refused and come again: what the connection managers say meanwhile.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipoib_rs::counters::Counter;
use ipoib_rs::interface::Mode;

use crate::console::Outcome;
use crate::error::Error;
use crate::ping::Ping;
use crate::tools;
use crate::world::{HostId, Place};

use super::connected::{CONNECTED_MTU, switch};
use super::review::Review;
use super::stage::{Family, Stage, word_after};

/// Of the communication manager, by what it is called in IBA 12.6 and what tshark calls it.
const MESSAGES: [(&str, &str); 6] = [
    ("REQ", "CM: ConnectRequest"),
    ("REP", "CM: ConnectReply"),
    ("RTU", "CM: ReadyToUse"),
    ("REJ", "CM: ConnectReject"),
    ("DREQ", "CM: DisconnectRequest"),
    ("DREP", "CM: DisconnectReply"),
];
const CM_CLASS: &str = "infiniband.mad.mgmtclass == 0x07";
/// Long enough for a neighbour that refused to be asked again.
const RECONNECT_MAX: Duration = Duration::from_secs(10);

/// The scenario.
pub(super) fn run(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    for host in HostId::BOTH {
        switch(stage, host, Mode::Connected, CONNECTED_MTU)?;
    }
    check_first_packet(stage)?;
    let target = Family::Ipv4.address(HostId::B);
    let small = Ping { count: 10, ..Ping::once(target) };
    stage.check_answered("10 pings, so that host b has something to send", HostId::A, &small)?;
    check_refused(stage)?;
    check_again(stage, target)?;
    stage.check_violations()
}

/// Looks at the messages of the connection managers.
pub(super) fn review(review: &mut Review<'_>) -> Result<(), Error> {
    let place = Place::first(HostId::A);
    for (name, called) in MESSAGES {
        review.check(
            format!("tshark names {name}"),
            place,
            CM_CLASS,
            &["_ws.col.Info"],
            |packets| {
                let count = packets.iter().filter(|info| info.as_str() == called).count();
                Outcome::of(count > 0, format!("{count} of {called}"))
            },
        )?;
    }
    check_service_ids(review, place)?;
    review.check_datagrams_fit(place)
}

/// RFC 4755 6: the service ID of a REQ is the prefix of the IETF with the queue pair number of the
/// peer behind it, which ARP told.
fn check_service_ids(review: &mut Review<'_>, place: Place) -> Result<(), Error> {
    let filter =
        "arp || (infiniband.mad.mgmtclass == 0x07 && infiniband.mad.attributeid == 0x0010)";
    let fields = ["infiniband.cm.req.serviceid", "arp.src.hw"];
    review.check("service ID of every REQ", place, filter, &fields, |packets| {
        let (mut wanted, mut seen) = (BTreeSet::new(), BTreeSet::new());
        for packet in packets {
            match packet.split_once('\t') {
                Some(("", address)) => {
                    // Behind the flags.
                    let qpn = address.replace(':', "").get(2..8).map(str::to_owned);
                    wanted.insert(format!("0x1000000000{}", qpn.unwrap_or_default()));
                }
                Some((id, _)) => {
                    seen.insert(id.to_owned());
                }
                None => {}
            }
        }
        let is_good = !seen.is_empty() && seen.is_subset(&wanted);
        Outcome::of(is_good, Vec::from_iter(seen).join(" "))
    })
}

/// The first packet of all is as large as it can be: tracepath(8) begins with UDP and the MTU of
/// the interface.
fn check_first_packet(stage: &mut Stage<'_>) -> Result<(), Error> {
    let target = Family::Ipv4.address(HostId::B).to_string();
    let said = stage.run_program(HostId::A, tools::TRACEPATH, &["-n", &target])?;
    let resumed = said.lines().find(|line| line.contains("Resume:")).unwrap_or_default();
    let is_whole = word_after(resumed, "pmtu") == Some(&CONNECTED_MTU.to_string());
    let outcome = Outcome::of(is_whole && said.contains(" reached"), resumed.trim());
    stage.check("UDP of 65520 bytes before there is a connection arrives whole", outcome)?;
    for (name, counter) in [
        ("packets that went by a connection", Counter::ConnectedSent),
        ("packets that were fragmented", Counter::Fragmented),
    ] {
        let count = stage.world.count_of(HostId::A, counter);
        let is_good = (count > 0) == (counter == Counter::ConnectedSent);
        stage.check(name, Outcome::of(is_good, count.to_string()))?;
    }
    stage.check_no_drops(HostId::A)
}

/// The peer's interface is down: its connections end, and it refuses others.
fn check_refused(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.say("ip link set ib0 down on host b")?;
    stage.world.ip(HostId::B, &["link", "set", "ib0", "down"])?;
    let is_over = |world: &crate::world::World<'_>| world.incoming_count(HostId::A) == 0;
    let is_over = stage.world.run_until(Duration::from_secs(1), is_over)?;
    stage.check("connections that host b has to host a: none", Outcome::of(is_over, ""))?;
    let before = stage.world.count_of(HostId::A, Counter::ConnectsFailed);
    let target = Family::Ipv4.address(HostId::B);
    let ping = Ping { count: 30, interval: Duration::from_millis(100), ..Ping::once(target) };
    let ping = Ping { goes_on: true, ..ping };
    stage.ping(HostId::A, &ping)?;
    let count = stage.world.count_of(HostId::A, Counter::ConnectsFailed) - before;
    let outcome = Outcome::of((1..=3).contains(&count), count.to_string());
    stage.check("host a asks for a connection, is refused, and waits", outcome)?;
    let notices = stage.world.notices(HostId::A);
    let outcome = Outcome::of(notices.len() == 1, notices.join("; "));
    stage.check("lines of the log of host a: one", outcome)
}

/// The peer is there again: datagrams at once, a connection as soon as it is asked for again.
fn check_again(stage: &mut Stage<'_>, target: IpAddr) -> Result<(), Error> {
    stage.say("ip link set ib0 up on host b")?;
    stage.world.ip(HostId::B, &["link", "set", "ib0", "up"])?;
    stage.check_carrier(HostId::B, "ib0", true)?;
    let start = stage.world.now();
    let give_up = start + RECONNECT_MAX;
    let is_connected = loop {
        stage.ping(HostId::A, &Ping::once(target))?;
        let row = stage.world.neighbor(Place::first(HostId::A), target);
        if row.is_some_and(|row| row.transport == "connected") {
            break true;
        }
        if stage.world.now() > give_up {
            break false;
        }
        stage.world.run_for(Duration::from_millis(100))?;
    };
    let span = stage.world.now().saturating_since(start);
    let outcome = Outcome::of(is_connected, format!("after {} ms", span.as_millis()));
    stage.check("host a has a connection again", outcome)?;
    let payload_bytes = Ping::payload_bytes_max(target, CONNECTED_MTU);
    // Slowly: the socket of ping has room for few answers of that size.
    let interval = Duration::from_millis(20);
    let ping =
        Ping { count: 20, interval, payload_bytes, dont_fragment: true, ..Ping::once(target) };
    stage.check_answered("20 pings of 65520 bytes", HostId::A, &ping)
}
