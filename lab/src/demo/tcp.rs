//! TCP in both modes, with iperf3.

use std::time::Duration;

use ipoib_rs::interface::Mode;

use crate::console::Outcome;
use crate::error::Error;
use crate::tools;
use crate::world::HostId;

use super::stage::Stage;

const SECONDS: u64 = 3;
/// How long iperf3 takes beside the transfer: to start, to connect, to report.
const SLACK: Duration = Duration::from_secs(10);
/// How much faster connected mode is to be.
const RATIO_MIN: f64 = 2.0;

/// What iperf3 says of a transfer.
struct Transfer {
    mbits_per_second: f64,
    retransmits: u64,
}

/// The scenario.
pub(super) fn run(stage: &mut Stage<'_>) -> Result<(), Error> {
    if !tools::is_installed(tools::IPERF) {
        return Err(Error::MissingProgram(tools::IPERF));
    }
    stage.check_links_up()?;
    let datagram = check_transfer(stage, "datagram mode, MTU 2044")?;
    for host in HostId::BOTH {
        stage.world.set_mode(host, Mode::Connected)?;
    }
    stage.world.run_for(Duration::from_millis(100))?;
    stage.check_mtu(HostId::A, 65_520)?;
    let connected = check_transfer(stage, "connected mode, MTU 65520")?;
    let ratio = connected / datagram;
    let outcome = Outcome::of(ratio >= RATIO_MIN, format!("{ratio:.1} times"));
    stage.check(format!("connected mode is at least {RATIO_MIN} times as fast"), outcome)?;
    for host in HostId::BOTH {
        stage.check_no_drops(host)?;
    }
    stage.check_violations()
}

/// Transfers for [`SECONDS`]; returns megabits per second. What TCP sent twice is only shown: it
/// does so as well when a program was not scheduled for a while. That nothing is lost is checked
/// apart.
fn check_transfer(stage: &mut Stage<'_>, what: &str) -> Result<f64, Error> {
    let transfer = transfer(stage)?;
    let (rate, outcome) = match transfer {
        Some(Transfer { mbits_per_second, retransmits }) => {
            let seen = format!("{mbits_per_second:.0} Mbit/s, {retransmits} retransmits");
            (mbits_per_second, Outcome::of(mbits_per_second > 0.0, seen))
        }
        None => (f64::NAN, Outcome::Failed("iperf3 reported nothing".to_owned())),
    };
    stage.check(format!("TCP in {what}"), outcome)?;
    Ok(rate)
}

fn transfer(stage: &mut Stage<'_>) -> Result<Option<Transfer>, Error> {
    let time_max = Duration::from_secs(SECONDS + 1) + SLACK;
    let serve = ["-s", "-1"].map(str::to_owned);
    let mut server = stage.world.start_program(HostId::B, tools::IPERF, &serve)?;
    // It has to listen before the client comes.
    stage.world.run_for(Duration::from_millis(300))?;
    let server_address = HostId::B.ipv4().to_string();
    let seconds = SECONDS.to_string();
    // Without the first second, in which TCP tries out how much is too much.
    let send = ["-c", &server_address, "-t", &seconds, "-f", "m", "-O", "1"];
    let send = send.map(str::to_owned);
    let mut client = stage.world.start_program(HostId::A, tools::IPERF, &send)?;
    let said = stage.world.finish_program(&mut client, time_max)?;
    stage.world.finish_program(&mut server, SLACK)?;
    Ok(said.as_deref().and_then(parse))
}

/// The line of the sender: `[  5]   0.00-3.00   sec   350 MBytes   979 Mbits/sec    0   sender`.
fn parse(said: &str) -> Option<Transfer> {
    let line = said.lines().find(|line| line.trim_end().ends_with("sender"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let unit = words.iter().position(|word| *word == "Mbits/sec")?;
    Some(Transfer {
        mbits_per_second: words.get(unit.checked_sub(1)?)?.parse().ok()?,
        retransmits: words.get(unit + 1)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_senders_line_is_read() {
        let said = "[ ID] Interval           Transfer     Bitrate         Retr\n\
            [  5]   0.00-3.00   sec   350 MBytes   979 Mbits/sec   12             sender\n\
            [  5]   0.00-3.00   sec   348 MBytes   973 Mbits/sec                  receiver\n";
        let transfer = parse(said).unwrap();
        assert_eq!((transfer.mbits_per_second, transfer.retransmits), (979.0, 12));
    }

    #[test]
    fn anything_else_is_no_transfer() {
        for said in ["", "iperf3: error - unable to connect", "x sender", "Mbits/sec 0 sender"] {
            assert!(parse(said).is_none(), "{said}");
        }
    }
}
