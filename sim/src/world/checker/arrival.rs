//! A packet that arrives at a port is received or counted as not received.

use fabric::Fabric;
use fabric::port::{PortCounters, PortId};
use fabric::transit::Transit;

/// The arrival that is being looked at.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    current: Option<Current>,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    port: PortId,
    /// An adapter may keep a queue pair's own multicast from it.
    is_loopback: bool,
    accounted: u64,
}

impl Arrivals {
    pub(super) fn before(&mut self, fabric: &Fabric, transit: &Transit) {
        let port = transit.destination();
        self.current = Some(Current {
            port,
            is_loopback: transit.source() == port,
            accounted: accounted(fabric, port),
        });
    }

    pub(super) fn after(&mut self, fabric: &Fabric) -> Result<(), String> {
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        if accounted(fabric, current.port) > current.accounted || current.is_loopback {
            Ok(())
        } else {
            let port = current.port.index();
            Err(format!("a packet vanished at port {port}"))
        }
    }
}

fn accounted(fabric: &Fabric, port: PortId) -> u64 {
    let Some(&counters) = fabric.port_counters(port) else {
        return 0;
    };
    let PortCounters {
        sent: _,
        received,
        sends_while_inactive: _,
        sends_without_pkey: _,
        arrivals_while_inactive,
        foreign_lids,
        foreign_gids,
        unknown_qpns,
        unattached_groups,
        pkey_violations,
        qkey_violations,
        receives_missing,
        receives_too_short,
        buffers_missing,
        wrong_services,
        foreign_sources,
        duplicates,
        sequence_errors,
        stale_responses,
    } = counters;
    received
        + arrivals_while_inactive
        + foreign_lids
        + foreign_gids
        + unknown_qpns
        + unattached_groups
        + pkey_violations
        + qkey_violations
        + receives_missing
        + receives_too_short
        + buffers_missing
        + wrong_services
        + foreign_sources
        + duplicates
        + sequence_errors
        + stale_responses
}
