//! What is lost on the way.

use alloc::vec::Vec;

use fabric::mad::MadHeader;
use fabric::port::PortId;
use fabric::transit::Transit;
use ipoib_rs::ib::Qpn;
use zerocopy::FromBytes;

use crate::error::Error;

/// One packet in so many can be lost at the finest setting.
pub(super) const PARTS: u32 = 1_000_000;

/// A link loses packets at random, the same ones for the same seed.
#[derive(Debug)]
pub(super) struct Chance {
    state: u64,
    /// Packets of a million that are lost on the link of a port, in either direction.
    losses: Vec<u32>,
    lost: u64,
    drops_requests: bool,
}

impl Chance {
    pub(super) const fn new(seed: u64) -> Self {
        Self { state: seed, losses: Vec::new(), lost: 0, drops_requests: false }
    }

    /// A port more, whose link loses nothing.
    pub(super) fn add_port(&mut self) -> Result<(), Error> {
        self.losses.try_reserve(1)?;
        self.losses.push(0);
        Ok(())
    }

    /// Sets how many packets of a million the link of a port loses.
    pub(super) fn set_loss(&mut self, port: PortId, parts: u32) -> Result<(), Error> {
        if parts > PARTS {
            return Err(Error::Invalid);
        }
        *self.losses.get_mut(port.index()).ok_or(Error::Invalid)? = parts;
        Ok(())
    }

    pub(super) fn loss(&self, port: PortId) -> u32 {
        self.losses.get(port.index()).copied().unwrap_or(0)
    }

    /// The packets that were lost; a message of a connection counts as one.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) const fn drops_requests(&self) -> bool {
        self.drops_requests
    }

    /// Loses all requests for connections from now on, or ends that.
    pub(super) const fn set_drops_requests(&mut self, drops: bool) {
        self.drops_requests = drops;
    }

    /// Whether a packet is lost.
    pub(super) fn loses(&mut self, transit: &Transit) -> bool {
        let is_lost =
            self.drops_requests && is_request_under_way(transit) || self.is_lost_on_links(transit);
        self.lost += u64::from(is_lost);
        is_lost
    }

    /// A message is lost if one of its packets is: its sender repeats all
    /// of it, or fails.
    fn is_lost_on_links(&mut self, transit: &Transit) -> bool {
        let links = [transit.source(), transit.destination()].map(|port| self.loss(port));
        if links == [0, 0] {
            return false;
        }
        (0..transit.packet_count())
            .flat_map(|_| links)
            .any(|parts| self.draw() % u64::from(PARTS) < u64::from(parts))
    }

    /// SplitMix64: every seed is as good as any other.
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }
}

fn is_request_under_way(transit: &Transit) -> bool {
    transit.header().destination_qpn == Qpn::GSI && is_request(transit.payload())
}

/// Whether what is sent to QP1 asks for a connection: ConnectRequest, attribute 0x0010 of class
/// 0x07 (IBA 12.6.5, 16.7.1).
pub(super) fn is_request(payload: &[u8]) -> bool {
    const CM_CLASS: u8 = 0x07;
    const CONNECT_REQUEST: u16 = 0x0010;
    let header = MadHeader::ref_from_prefix(payload);
    header.is_ok_and(|(header, _)| {
        header.class == CM_CLASS && header.attribute.get() == CONNECT_REQUEST
    })
}
