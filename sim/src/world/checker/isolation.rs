//! Packets stay in their partition.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use fabric::Fabric;
use ipoib_rs::ib::Pkey;
use ipoib_rs::time::Instant;

use crate::world::site::Site;
use crate::world::station::Station;

/// How long a packet may lie in the queues of a receiver whose adapter withholds completions.
const MEMORY: Duration = Duration::from_secs(6);

/// Which partitions each station was in lately.
#[derive(Debug)]
pub(super) struct Isolation {
    histories: Vec<VecDeque<Stay>>,
}

/// A station was in a partition until then; the last of a history goes on.
#[derive(Clone, Copy, Debug)]
struct Stay {
    partition: Option<Pkey>,
    until: Option<Instant>,
}

impl Isolation {
    pub(super) fn new(station_count: usize) -> Self {
        Self { histories: vec![VecDeque::new(); station_count] }
    }

    pub(super) fn observe(
        &mut self,
        now: Instant,
        stations: &[Station],
        sites: &[Site],
        fabric: &Fabric,
    ) {
        for (station, history) in stations.iter().zip(&mut self.histories) {
            let port = sites[station.site].port;
            let partition = fabric
                .port_attributes(port, station.pkey)
                .and_then(|port| port.partition)
                .map(|partition| partition.pkey.full());
            match history.back_mut() {
                Some(stay) if stay.partition == partition => continue,
                Some(stay) => stay.until = Some(now),
                None => {}
            }
            history.push_back(Stay { partition, until: None });
            let is_old = |stay: &Stay| stay.until.is_some_and(|until| until + MEMORY < now);
            while history.front().is_some_and(is_old) {
                history.pop_front();
            }
        }
    }

    pub(super) fn on_delivery(
        &self,
        now: Instant,
        from: &[usize],
        at: &[usize],
    ) -> Result<(), String> {
        let lately = |stations: &[usize]| {
            let stays = stations.iter().flat_map(|&station| &self.histories[station]);
            stays
                .filter(move |stay| stay.until.is_none_or(|until| until + MEMORY >= now))
                .filter_map(|stay| stay.partition)
                .collect::<BTreeSet<_>>()
        };
        if !lately(from).is_disjoint(&lately(at)) {
            return Ok(());
        }
        Err(format!(
            "a packet of station {from:?} reached station {at:?}, which is in another partition"
        ))
    }
}
