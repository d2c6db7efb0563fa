//! Nothing waits for nothing, and no packet waits too long.

use std::time::Duration;

use ipoib_rs::limits::{DRAIN_MAX, PENDING_MAX};
use ipoib_rs::time::Instant;

use crate::world::links::Links;
use crate::world::station::Attached;

/// How often the age of packets is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a packet may be held: for its path, and then for its connection.
const HELD_MAX: Duration = Duration::from_nanos(2 * PENDING_MAX.as_nanos() as u64);
/// What a packet may wait beyond its time.
const SLACK: Duration = Duration::from_secs(1);

/// When the ages are looked at next.
#[derive(Debug, Default)]
pub(super) struct Patience {
    look_at: Instant,
}

impl Patience {
    pub(super) fn advance(&mut self, now: Instant) {
        if now >= self.look_at {
            self.look_at = now + LOOK_EVERY;
        }
    }

    pub(super) fn check(&self, now: Instant, attached: &Attached) -> Result<(), String> {
        if now < self.look_at {
            return Ok(());
        }
        check_failed_links(now, attached)?;
        let oldest = attached.records.held.values().map(|held| held.since).min();
        match oldest {
            Some(since) if now - since > HELD_MAX + SLACK => {
                Err(format!("a packet was held for {:?}", now - since))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// A connection whose queue pair failed is destroyed, whatever its adapter says or does not say.
fn check_failed_links(now: Instant, attached: &Attached) -> Result<(), String> {
    let links = attached.adapter.links.iter().flat_map(Links::iter);
    let mut failed = links.filter_map(|(connection, link)| Some((connection, link.erred_at?)));
    match failed.find(|&(_, erred_at)| now - erred_at > DRAIN_MAX + SLACK) {
        Some((connection, erred_at)) => {
            Err(format!("{connection:?} failed {:?} ago and is still there", now - erred_at))
        }
        None => Ok(()),
    }
}

/// What waits has a deadline, or an operation or a completion is under way.
pub(super) fn check_progress(attached: &Attached) -> Result<(), String> {
    let interface = &attached.interface;
    let port = &attached.port_seen;
    let state = interface.state_name();
    let waits = match state {
        "awaiting-pkey" if port.partition.is_some() => {
            return Err("it waits for a P_Key that is there".to_owned());
        }
        "awaiting-port" if port.is_active => {
            return Err("it waits for a port that is active".to_owned());
        }
        "opening" | "joining" | "draining" => true,
        _ => attached.queued > 0,
    };
    let is_moving = attached.deadline.is_some()
        || !attached.operations.is_empty()
        || !attached.adapter.posted.is_empty();
    if waits && !is_moving {
        let queued = attached.queued;
        return Err(format!("it is {state} with {queued} packets queued and waits for nothing"));
    }
    Ok(())
}
