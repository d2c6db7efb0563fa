//! Checkers: what must hold after every event, whatever goes wrong.
//!
//! They know the world from outside, by counting what goes in and out; where they need what an
//! interface says of itself they compare it with something else.

mod accounts;
mod arrival;
pub(super) mod bond;
mod carrier;
mod isolation;
mod ledger;
pub(super) mod neighbors;
mod patience;
pub(super) mod size;

use fabric::Fabric;
use fabric::transit::Transit;
use ipoib_rs::event::Event;
use ipoib_rs::time::Instant;

use super::World;
use super::station::{Attached, Station};
use arrival::Arrivals;
use isolation::Isolation;
use patience::Patience;

/// What checkers remember from one event to the next.
#[derive(Debug)]
pub(super) struct Checkers {
    arrivals: Arrivals,
    isolation: Isolation,
    patience: Patience,
}

impl Checkers {
    pub(super) fn new(station_count: usize) -> Self {
        Self {
            arrivals: Arrivals::default(),
            isolation: Isolation::new(station_count),
            patience: Patience::default(),
        }
    }

    pub(super) fn before_arrival(&mut self, fabric: &Fabric, transit: &Transit) {
        self.arrivals.before(fabric, transit);
    }

    pub(super) fn after_arrival(&mut self, fabric: &Fabric) -> Result<(), String> {
        self.arrivals.after(fabric)
    }

    /// A packet of the host that sends through `from` was delivered to the one that receives
    /// through `at`.
    pub(super) fn on_delivery(
        &self,
        now: Instant,
        from: &[usize],
        at: &[usize],
    ) -> Result<(), String> {
        self.isolation.on_delivery(now, from, at)
    }

    pub(super) fn on_event(station: &mut Station, event: &Event) -> Result<(), String> {
        carrier::on_event(station, event)
    }

    pub(super) fn on_removed(station: usize, attached: &Attached) -> Result<(), String> {
        ledger::check_removed(station, attached)
    }
}

/// Looks at the whole world.
pub(super) fn check(world: &mut World) -> Result<(), String> {
    world.checkers.isolation.observe(world.now, &world.stations, &world.sites, &world.fabric);
    ledger::check(world)?;
    for bond in &world.bonds {
        bond::check(world, bond).map_err(|what| format!("lagg: {what}"))?;
    }
    for station in &mut world.stations {
        let index = station.index;
        let Some(attached) = &mut station.attached else {
            continue;
        };
        let found = match attached.records.misdeeds.pop() {
            Some(misdeed) => Err(misdeed),
            None => check_changed(attached)
                .and_then(|()| world.checkers.patience.check(world.now, attached)),
        };
        found.map_err(|what| format!("station {index}: {what}"))?;
    }
    world.checkers.patience.advance(world.now);
    Ok(())
}

/// Looks at an interface that was fed something; without that it is as it was.
fn check_changed(attached: &mut Attached) -> Result<(), String> {
    if !std::mem::take(&mut attached.is_changed) {
        return Ok(());
    }
    accounts::check(attached)?;
    carrier::check(attached)?;
    patience::check_progress(attached)
}

/// Looks at what is left after every interface was detached.
pub(super) fn check_closed(world: &mut World) -> Result<(), String> {
    ledger::check_closed(world)
}
