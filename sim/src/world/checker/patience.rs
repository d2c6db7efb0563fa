//! Nothing waits for nothing, and no packet waits too long.

use std::time::Duration;

use ipoib_rs::limits::PENDING_MAX;
use ipoib_rs::time::Instant;

use crate::world::station::Attached;

/// How often the age of packets is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
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
        check_progress(attached)?;
        if now < self.look_at {
            return Ok(());
        }
        let oldest = attached.records.held.values().min();
        match oldest {
            Some(&since) if now - since > PENDING_MAX + SLACK => {
                Err(format!("a packet was held for {:?}", now - since))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// What waits has a deadline, or an operation or a completion is under way.
fn check_progress(attached: &Attached) -> Result<(), String> {
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
        _ => interface.packets_queued() > 0,
    };
    let is_moving = attached.deadline.is_some()
        || !attached.operations.is_empty()
        || !attached.adapter.posted.is_empty();
    if waits && !is_moving {
        let queued = interface.packets_queued();
        return Err(format!("it is {state} with {queued} packets queued and waits for nothing"));
    }
    Ok(())
}
