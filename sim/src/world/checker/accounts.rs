//! What an interface counts is what its data path saw.

use ipoib_rs::counters::{Counter, DropReason};

use crate::world::station::Attached;

pub(super) fn check(attached: &Attached) -> Result<(), String> {
    let (counters, records) = (attached.interface.counters(), &attached.records);
    for &reason in DropReason::ALL {
        let seen = match reason {
            DropReason::TooBigReported => records.too_big_count,
            reason => records.drops.get(&reason).copied().unwrap_or(0),
        };
        if counters[reason] != seen {
            return Err(format!(
                "{} counts {}, and {seen} packets were seen",
                reason.name(),
                counters[reason]
            ));
        }
    }
    let received = counters[Counter::PacketsReceived];
    if received != records.delivered_count {
        return Err(format!(
            "{received} packets received, and {} were delivered",
            records.delivered_count
        ));
    }
    let outstanding = attached.interface.sends_outstanding() as usize;
    let posted = attached.adapter.posted.len();
    if outstanding != posted {
        return Err(format!("{outstanding} sends outstanding, and {posted} are posted"));
    }
    Ok(())
}
