//! Connected mode: large packets by connections, and what becomes of them where there is none.

use std::time::Duration;

use ipoib_rs::interface::Mode;

use crate::console::Outcome;
use crate::error::Error;
use crate::ping::Ping;
use crate::world::HostId;

use super::stage::{Family, Stage};

/// RFC 4755 7: 64 KiB less the headers.
pub(super) const CONNECTED_MTU: usize = 65_520;
/// What a fabric of 2048 bytes leaves.
pub(super) const DATAGRAM_MTU: usize = 2044;

/// Both hosts in connected mode.
pub(super) fn run_ping(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    for host in HostId::BOTH {
        switch(stage, host, Mode::Connected, CONNECTED_MTU)?;
    }
    for family in Family::ALL {
        let target = family.address(HostId::B);
        let largest = Ping::payload_bytes_max(target, CONNECTED_MTU);
        // The largest comes first: before there is a connection.
        for payload_bytes in [largest, 56, 1000, 8000] {
            // Slowly if they are large: the socket of ping has room for few answers of that size.
            let interval = Duration::from_millis(if payload_bytes > 8000 { 10 } else { 1 });
            let ping = Ping {
                count: 100,
                interval,
                payload_bytes,
                dont_fragment: true,
                ..Ping::once(target)
            };
            let name = format!("{family}, 100 pings of {payload_bytes} bytes, none lost");
            stage.check_answered(name, HostId::A, &ping)?;
        }
    }
    for host in HostId::BOTH {
        let transports = stage.world.transports_of(host);
        let is_good = transports == ["connected"];
        let name = format!("{host} has a connection to its neighbor");
        stage.check(name, Outcome::of(is_good, transports.join(" ")))?;
    }
    stage.check_violations()
}

/// Host a in connected mode, host b in datagram mode.
pub(super) fn run_mixed(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.check_links_up()?;
    switch(stage, HostId::A, Mode::Connected, CONNECTED_MTU)?;
    stage.check_mtu(HostId::B, DATAGRAM_MTU)?;
    for family in Family::ALL {
        let target = family.address(HostId::B);
        let ping = Ping {
            count: 5,
            interval: Duration::from_millis(20),
            payload_bytes: 30_000,
            ..Ping::once(target)
        };
        if family == Family::Ipv4 {
            // Without DF the core fragments what the kernel sends whole.
            let name = "IPv4 without DF, 30000 bytes to a neighbor that takes 2044";
            stage.check_answered(name, HostId::A, &ping)?;
        }
        let bound = Ping { count: 2, dont_fragment: true, ..ping };
        stage.ping(HostId::A, &bound)?;
        let report = stage.ping(HostId::A, &bound)?;
        let said = report.errors.first().cloned().unwrap_or_default();
        let is_learned = said.ends_with(&DATAGRAM_MTU.to_string());
        let name = format!("{family} with DF: the host has learned the MTU of its neighbor");
        stage.check(name, Outcome::of(is_learned, said))?;
    }
    let transports = stage.world.transports_of(HostId::A);
    let name = "host a has no connection to a neighbor without the flag";
    stage.check(name, Outcome::of(transports == ["datagram"], transports.join(" ")))?;
    switch(stage, HostId::B, Mode::Connected, CONNECTED_MTU)?;
    switch(stage, HostId::A, Mode::Datagram, DATAGRAM_MTU)?;
    let small =
        Ping { count: 20, payload_bytes: 1000, ..Ping::once(Family::Ipv4.address(HostId::B)) };
    stage.check_answered("20 pings after both switched", HostId::A, &small)?;
    stage.check_violations()
}

/// Switches a host to another mode and checks its MTU.
pub(super) fn switch(
    stage: &mut Stage<'_>,
    host: HostId,
    mode: Mode,
    mtu: usize,
) -> Result<(), Error> {
    let word = match mode {
        Mode::Datagram => "datagram",
        Mode::Connected => "connected",
    };
    stage.say(format_args!("{host} switches to {word} mode"))?;
    stage.world.set_mode(host, mode)?;
    // Long enough for the announcement of the new address.
    stage.world.run_for(Duration::from_millis(50))?;
    stage.check_mtu(host, mtu)
}
