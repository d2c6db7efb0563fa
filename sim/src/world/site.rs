//! A port of a host: its management datagrams and its communication manager.

use std::collections::{BTreeMap, TryReserveError};
use std::time::Duration;

use fabric::cm::{Manager, ManagerConfig};
use fabric::gsi::{AgentId, Gsi, Role};
use fabric::hca::HcaId;
use fabric::mad::cm::{CM_CLASS, TimeoutCode};
use fabric::port::PortId;
use fabric::{CreateError, Fabric, cm};
use ipoib_rs::action::{ConnectionId, RequestId};
use ipoib_rs::ib::Gid;
use ipoib_rs::interface::ConnectedSupport;

use super::links::{RemoteEnd, Route};

/// The port that a station is on.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) port: PortId,
    pub(super) hca: HcaId,
    pub(super) gid: Gid,
    pub(super) gsi: Gsi,
    pub(super) cm_agent: AgentId,
    pub(super) cm: Manager<Tag>,
    /// Where the names of connections begin.
    pub(super) cm_seed: u64,
    /// REQs that interfaces are about to accept.
    pub(super) requests: BTreeMap<RequestId, PendingRequest>,
    /// Whether the adapter withholds its completions.
    pub(super) is_wedged: bool,
    /// What the adapter can do for connected mode.
    pub(super) support: Option<ConnectedSupport>,
}

/// A connection as the communication manager knows it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Tag {
    pub(super) station: usize,
    /// Which of its attachments.
    pub(super) epoch: u32,
    pub(super) connection: ConnectionId,
}

/// A REQ that an interface wants to accept.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingRequest {
    pub(super) request: cm::RequestId,
    pub(super) route: Route,
    pub(super) remote: RemoteEnd,
}

/// Connections of a port, those included that ended a moment ago.
const CONNECTIONS_MAX: u16 = 1024;
/// Services that the interfaces of a port listen for.
const LISTENERS_MAX: u16 = 16;
/// Messages that wait to be sent.
const MADS_MAX: u16 = 64;
/// How long the names of a connection that ended stay reserved.
const TIME_WAIT: Duration = Duration::from_millis(500);
/// The longest wait that a peer can impose.
const WAIT_MAX: Duration = Duration::from_secs(4);
/// A message that is not answered within this time is sent again: about 0.54 s.
pub(super) const RESPONSE_TIMEOUT: TimeoutCode = TimeoutCode::at_least(Duration::from_millis(500));

impl Site {
    pub(super) fn open(
        fabric: &mut Fabric,
        port: PortId,
        context: u64,
        seed: u64,
        support: Option<ConnectedSupport>,
    ) -> Result<Self, CreateError> {
        let status = fabric.query_port(port).ok_or(CreateError::Unknown)?;
        let mut gsi = Gsi::open(fabric, port, context)?;
        let cm_agent = gsi.register(Role::Server { class: CM_CLASS })?;
        Ok(Self {
            port,
            hca: status.hca,
            gid: status.gid,
            gsi,
            cm_agent,
            cm: manager(status.guid, seed).map_err(|_| CreateError::OutOfMemory)?,
            cm_seed: seed,
            requests: BTreeMap::new(),
            is_wedged: false,
            support,
        })
    }

    /// What befell communication since the host started, by name.
    pub(super) fn cm_totals(&self) -> [(&'static str, u64); 10] {
        let counters = self.cm.counters();
        [
            ("cm_disconnects_crossed", counters.disconnects_crossed),
            ("cm_disconnects_unanswered", counters.disconnects_unanswered),
            ("cm_mads_repeated", counters.mads_repeated),
            ("cm_rejections", counters.rejections),
            ("cm_replies_duplicate", counters.replies_duplicate),
            ("cm_requests_duplicate", counters.requests_duplicate),
            ("cm_requests_stale", counters.requests_stale),
            ("cm_requests_unserved", counters.requests_unserved),
            ("cm_requests_withdrawn", counters.requests_withdrawn),
            ("cm_timed_out", counters.timed_out),
        ]
    }

    /// Forgets every connection, as a host does that starts anew.
    pub(super) fn forget_connections(&mut self, guid: u64) {
        self.requests.clear();
        if let Ok(cm) = manager(guid, self.cm_seed) {
            self.cm = cm;
        }
    }
}

fn manager(ca_guid: u64, seed: u64) -> Result<Manager<Tag>, TryReserveError> {
    Manager::new(&ManagerConfig {
        ca_guid,
        seed,
        connections_max: CONNECTIONS_MAX,
        listeners_max: LISTENERS_MAX,
        mads_max: MADS_MAX,
        time_wait: TIME_WAIT,
        wait_max: WAIT_MAX,
        service_timeout: RESPONSE_TIMEOUT,
    })
}
