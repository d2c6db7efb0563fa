//! What a scenario looks at when its lab is gone: the captures.

use std::fmt;

use crate::capture;
use crate::console::{Console, Outcome};
use crate::error::Error;
use crate::tshark;
use crate::world::Place;

/// Captures that are complete, and where to print.
pub(super) struct Review<'a> {
    console: &'a mut Console,
    directory: &'a capture::Directory,
    scenario: &'a str,
    prefix: &'a str,
}

impl<'a> Review<'a> {
    /// Those of a scenario.
    pub(super) fn new(
        console: &'a mut Console,
        directory: &'a capture::Directory,
        scenario: &'a str,
        prefix: &'a str,
    ) -> Self {
        Self { console, directory, scenario, prefix }
    }

    /// Checks that no datagram on the link of a port is longer than the MTU of the fabric and its
    /// headers. The length in the local route header is in words, from there to the ICRC (IBA
    /// 7.7.7).
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub(super) fn check_datagrams_fit(&mut self, place: Place) -> Result<(), Error> {
        // Local and global route, base and datagram transport headers, ICRC.
        const WORDS_MAX: usize = (2048 + 8 + 40 + 12 + 8 + 4) / 4;
        const UD_SEND_ONLY: u8 = 100;
        let filter = format!("infiniband.bth.opcode == {UD_SEND_ONLY}");
        let name = format!("datagrams larger than that on the wire of {place}");
        self.check(name, place, &filter, &["infiniband.lrh.pktlen"], |packets| {
            let lengths = packets.iter().map(|words| words.parse().unwrap_or(usize::MAX));
            let count = lengths.filter(|&words| words > WORDS_MAX).count();
            let seen = format!("{count} of {}", packets.len());
            Outcome::of(count == 0 && !packets.is_empty(), seen)
        })
    }

    /// Prints and counts a check of what tshark finds on the link of a port: a line for each packet
    /// that matches the filter. Without tshark it is skipped.
    ///
    /// # Errors
    ///
    /// [`Error::Program`] with the message of tshark, [`Error::System`] if nobody reads.
    pub(super) fn check(
        &mut self,
        name: impl fmt::Display,
        place: Place,
        filter: &str,
        fields: &[&str],
        judge: impl FnOnce(&[String]) -> Outcome,
    ) -> Result<(), Error> {
        if !tshark::is_installed() {
            return self.console.skip(name, "tshark");
        }
        let link = format!("{}.{}", self.scenario, place.link(self.prefix));
        let packets = tshark::fields(&self.directory.path(&link), filter, fields)?;
        self.console.check(name, judge(&packets))
    }
}
