//! Which pings were sent and which came back.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// A direction of a pair of stations, and the version of IP.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Lane {
    /// Who asks.
    pub from: usize,
    /// Who answers.
    pub to: usize,
    /// Which IP.
    pub version: Version,
}

/// A version of IP.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Version {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// That of an address.
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

/// What a ping is to show.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Size {
    /// That the lane is open.
    Small,
    /// That it carries what a datagram cannot.
    Large,
}

/// The pings of all lanes.
#[derive(Debug, Default)]
pub(super) struct Pings {
    lanes: BTreeMap<(Lane, Size), LaneRecord>,
}

#[derive(Debug, Default)]
struct LaneRecord {
    sequence_next: u16,
    /// Answered since [`Pings::start_over`].
    answered_lately: u64,
    /// Sequence numbers below were used before [`Pings::start_over`].
    sequence_first: u16,
}

impl Pings {
    /// Notes a ping and returns its identifier and sequence number.
    pub(super) fn send(&mut self, lane: Lane, size: Size) -> (u16, u16) {
        let record = self.lanes.entry((lane, size)).or_default();
        let sequence = record.sequence_next;
        record.sequence_next = sequence.wrapping_add(1);
        (identifier(lane, size), sequence)
    }

    /// Notes an answer that reached a station. False if nobody there asked.
    pub(super) fn receive(&mut self, at: usize, (identifier, sequence): (u16, u16)) -> bool {
        let Some(lane) = lane_of(identifier).filter(|(lane, _)| lane.from == at) else {
            return false;
        };
        let Some(record) = self.lanes.get_mut(&lane) else {
            return false;
        };
        let age = record.sequence_next.wrapping_sub(sequence);
        if age <= record.sequence_next.wrapping_sub(record.sequence_first) {
            record.answered_lately += 1;
        }
        true
    }

    /// From now on only answers to later pings count as late ones.
    pub(super) fn start_over(&mut self) {
        for record in self.lanes.values_mut() {
            record.answered_lately = 0;
            record.sequence_first = record.sequence_next;
        }
    }

    /// Answers since [`Self::start_over`] to pings since then.
    pub(super) fn answered_lately(&self, lane: Lane, size: Size) -> u64 {
        self.lanes.get(&(lane, size)).map_or(0, |record| record.answered_lately)
    }
}

const STATION_BITS: u32 = 6;

fn identifier(lane: Lane, size: Size) -> u16 {
    (size as u16) << (2 * STATION_BITS + 1)
        | (lane.version as u16) << (2 * STATION_BITS)
        | (lane.from as u16) << STATION_BITS
        | lane.to as u16
}

fn lane_of(identifier: u16) -> Option<(Lane, Size)> {
    let mask = (1 << STATION_BITS) - 1;
    let (version, size) = match identifier >> (2 * STATION_BITS) {
        0 => (Version::V4, Size::Small),
        1 => (Version::V6, Size::Small),
        2 => (Version::V4, Size::Large),
        3 => (Version::V6, Size::Large),
        _ => return None,
    };
    let lane = Lane {
        from: usize::from(identifier >> STATION_BITS & mask),
        to: usize::from(identifier & mask),
        version,
    };
    Some((lane, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: Lane = Lane { from: 1, to: 2, version: Version::V6 };

    #[test]
    fn answer_is_matched_with_its_lane() {
        let mut pings = Pings::default();
        let ping = pings.send(LANE, Size::Small);
        assert!(!pings.receive(2, ping), "another station did not ask");
        assert!(pings.receive(1, ping));
        assert_eq!(pings.answered_lately(LANE, Size::Small), 1);
    }

    #[test]
    fn late_answer_to_an_early_ping_proves_nothing() {
        let mut pings = Pings::default();
        let early = pings.send(LANE, Size::Small);
        pings.start_over();
        assert!(pings.receive(1, early));
        assert_eq!(pings.answered_lately(LANE, Size::Small), 0);
        let later = pings.send(LANE, Size::Small);
        assert!(pings.receive(1, later));
        assert_eq!(pings.answered_lately(LANE, Size::Small), 1);
    }
}
