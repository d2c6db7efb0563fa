//! Bulk TCP, with iperf3.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::error::Error;
use crate::tools::{self, Running};
use crate::world::HostId;

use super::stage::Stage;

/// How long iperf3 takes beside the transfer: to start, to connect, to report.
const SLACK: Duration = Duration::from_secs(10);

/// A transfer that runs.
pub(super) struct Transfer {
    server: Running,
    client: Running,
    time_max: Duration,
}

/// What iperf3 says of a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Report {
    /// What the sender sent.
    pub(super) mbits_per_second: f64,
    /// What TCP sent twice.
    pub(super) retransmits: u64,
}

/// Starts a transfer from a host to an address of another, with more options of iperf3.
///
/// # Errors
///
/// [`Error::MissingProgram`], [`Error::Interrupted`] and what the system refuses.
pub(super) fn start(
    stage: &mut Stage<'_>,
    (from, to): (HostId, HostId),
    target: Ipv4Addr,
    seconds: u64,
    more: &[&str],
) -> Result<Transfer, Error> {
    if !tools::is_installed(tools::IPERF) {
        return Err(Error::MissingProgram(tools::IPERF));
    }
    let serve = ["-s", "-1"].map(str::to_owned);
    let server = stage.world.start_program(to, tools::IPERF, &serve)?;
    // It has to listen before the client comes.
    stage.world.run_for(Duration::from_millis(300))?;
    let (target, time) = (target.to_string(), seconds.to_string());
    let send = ["-c", &target, "-t", &time, "-f", "m"];
    let send: Vec<String> = send.iter().chain(more).copied().map(str::to_owned).collect();
    let client = stage.world.start_program(from, tools::IPERF, &send)?;
    Ok(Transfer { server, client, time_max: Duration::from_secs(seconds) + SLACK })
}

impl Transfer {
    /// Waits for its end. `None` if iperf3 did not say how it went.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] and what the system refuses.
    pub(super) fn finish(mut self, stage: &mut Stage<'_>) -> Result<Option<Report>, Error> {
        let said = stage.world.finish_program(&mut self.client, self.time_max)?;
        stage.world.finish_program(&mut self.server, SLACK)?;
        Ok(said.as_deref().and_then(parse))
    }
}

/// The line of the sender: `[  5]   0.00-3.00   sec   350 MBytes   979 Mbits/sec    0   sender`.
fn parse(said: &str) -> Option<Report> {
    let line = said.lines().find(|line| line.trim_end().ends_with("sender"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let unit = words.iter().position(|word| *word == "Mbits/sec")?;
    Some(Report {
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
        let report = parse(said).unwrap();
        assert_eq!((report.mbits_per_second, report.retransmits), (979.0, 12));
    }

    #[test]
    fn anything_else_is_no_transfer() {
        for said in ["", "iperf3: error - unable to connect", "x sender", "Mbits/sec 0 sender"] {
            assert!(parse(said).is_none(), "{said}");
        }
    }
}
