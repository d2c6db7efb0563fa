//! The queue pairs of an interface's reliable connections, and what they share.

use std::collections::BTreeMap;

use fabric::cq::CqId;
use fabric::hca::HcaId;
use fabric::port::PortId;
use fabric::qp::{
    QpChange, QpConfig, QpId, QpType, RcReadyToReceive, RcReadyToSend, RetryCount, RnrTimer,
};
use fabric::srq::SrqId;
use fabric::{CreateError, Fabric};
use ipoib_rs::action::{AddressVector, ConnectionId, OpId, VerbError};
use ipoib_rs::ib::{Gid, IbMtu, PkeyIndex, Psn, Qkey, Qpn, ServiceId};
use ipoib_rs::interface::ConnectedSupport;
use ipoib_rs::limits::Limits;
use ipoib_rs::time::Instant;

/// The connections of an interface.
#[derive(Debug)]
pub(super) struct Links {
    /// Where receives complete, and drain markers: behind the receives of their queue pair.
    pub(super) cq: CqId,
    /// Where receives come from, if connections share them.
    pub(super) srq: Option<SrqId>,
    /// The service that is listened for.
    pub(super) service: Option<ServiceId>,
    sends_max: u32,
    receives_max: u32,
    links: BTreeMap<ConnectionId, Link>,
    by_qp: BTreeMap<QpId, ConnectionId>,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) qp: QpId,
    pub(super) state: LinkState,
    /// The other end, once it is known.
    pub(super) remote: Option<RemoteEnd>,
    /// Since when it is known to the core that the queue pair failed.
    pub(super) erred_at: Option<Instant>,
}

/// The life of a connection's queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) enum LinkState {
    /// In INIT: the peer is being asked.
    Opening {
        /// The operation to answer.
        op: OpId,
        /// The way to the peer.
        route: Route,
        /// The first PSN that is sent.
        starting_psn: Psn,
    },
    /// To send on. The peer agreed, or it did not and the queue pair waits for its end.
    Outgoing,
    /// To receive from.
    Incoming {
        /// Whether the adapter has said that it took its last receive for it.
        has_last_wqe: bool,
    },
    /// A drain marker is posted.
    Draining {
        /// The operation to answer.
        op: OpId,
    },
}

/// What a queue pair must know of the way to its peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) address: AddressVector,
    pub(super) path_mtu: IbMtu,
    pub(super) remote_gid: Gid,
}

/// What a peer says of its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteEnd {
    pub(super) gid: Gid,
    pub(super) qpn: Qpn,
    pub(super) starting_psn: Psn,
    /// The largest message that it receives.
    pub(super) receive_mtu: u32,
}

/// Sends that the queue pair of an incoming connection may have posted: the drain marker.
const INCOMING_SENDS_MAX: u32 = 1;

impl Links {
    /// Makes what connections share, for as many as the limits allow.
    pub(super) fn open(
        fabric: &mut Fabric,
        hca: HcaId,
        context: u64,
        limits: &Limits,
        support: &ConnectedSupport,
    ) -> Result<Self, CreateError> {
        let receives_max = if support.shares_receives {
            limits.shared_receive_queue_len
        } else {
            limits.incoming_max * limits.connection_receive_queue_len
        };
        let markers_max = INCOMING_SENDS_MAX * limits.incoming_max;
        let cq = fabric.create_cq(hca, receives_max + markers_max, context)?;
        let srq = if support.shares_receives {
            Some(fabric.create_srq(hca, limits.shared_receive_queue_len)?)
        } else {
            None
        };
        Ok(Self {
            cq,
            srq,
            service: None,
            sends_max: limits.send_queue_len,
            receives_max: limits.connection_receive_queue_len,
            links: BTreeMap::new(),
            by_qp: BTreeMap::new(),
        })
    }

    /// Destroys everything. False if something refused.
    pub(super) fn close(self, fabric: &mut Fabric) -> bool {
        let mut qps = self.links.into_values();
        let is_empty = qps.all(|link| fabric.destroy_qp(link.qp).is_ok());
        is_empty
            && self.srq.is_none_or(|srq| fabric.destroy_srq(srq).is_ok())
            && fabric.destroy_cq(self.cq).is_ok()
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Link)> {
        self.links.iter().map(|(&connection, link)| (connection, link))
    }

    pub(super) fn get(&self, connection: ConnectionId) -> Option<&Link> {
        self.links.get(&connection)
    }

    pub(super) fn get_mut(&mut self, connection: ConnectionId) -> Option<&mut Link> {
        self.links.get_mut(&connection)
    }

    /// The connection of a queue pair.
    pub(super) fn find(&self, qp: QpId) -> Option<ConnectionId> {
        self.by_qp.get(&qp).copied()
    }

    /// Adds a connection. False if there is one of this name.
    pub(super) fn insert(&mut self, connection: ConnectionId, link: Link) -> bool {
        self.by_qp.insert(link.qp, connection);
        self.links.insert(connection, link).is_none()
    }

    pub(super) fn remove(&mut self, connection: ConnectionId) -> Option<Link> {
        let link = self.links.remove(&connection)?;
        self.by_qp.remove(&link.qp);
        Some(link)
    }

    /// The operation that waited for the drain marker of a connection, which is complete.
    pub(super) fn take_marker(&mut self, connection: ConnectionId) -> Option<OpId> {
        let link = self.links.get_mut(&connection)?;
        let LinkState::Draining { op } = link.state else {
            return None;
        };
        link.state = LinkState::Incoming { has_last_wqe: true };
        Some(op)
    }

    /// The queue pair of a connection to send on. What it sends completes in `send_cq`.
    pub(super) fn outgoing_config(&self, send_cq: CqId) -> QpConfig {
        QpConfig {
            qp_type: QpType::Rc { srq: None },
            send_cq,
            receive_cq: self.cq,
            sends_max: self.sends_max,
            // Each direction has its own connection (RFC 4755 3): nothing arrives here.
            receives_max: 0,
        }
    }

    /// The queue pair of a connection to receive from.
    pub(super) fn incoming_config(&self) -> QpConfig {
        QpConfig {
            qp_type: QpType::Rc { srq: self.srq },
            send_cq: self.cq,
            receive_cq: self.cq,
            sends_max: INCOMING_SENDS_MAX,
            receives_max: self.receives_max,
        }
    }
}

/// Makes a queue pair and brings it to INIT.
pub(super) fn create_qp(
    fabric: &mut Fabric,
    port: PortId,
    config: &QpConfig,
    pkey_index: PkeyIndex,
) -> Result<QpId, VerbError> {
    let qp = fabric.create_qp(port, config).map_err(|_| VerbError)?;
    // A connected queue pair has no Q_Key.
    let init = QpChange::Init { pkey_index, qkey: Qkey(0) };
    if fabric.modify_qp(qp, &init).is_err() {
        let _ = fabric.destroy_qp(qp);
        return Err(VerbError);
    }
    Ok(qp)
}

/// Brings a queue pair from INIT to RTS.
pub(super) fn connect_qp(
    fabric: &mut Fabric,
    qp: QpId,
    route: &Route,
    remote: &RemoteEnd,
    starting_psn: Psn,
) -> Result<(), VerbError> {
    let receive = RcReadyToReceive {
        address: route.address,
        remote_qpn: remote.qpn,
        starting_psn: remote.starting_psn,
        path_mtu: route.path_mtu,
        rnr_timer: RnrTimer::default(),
    };
    let send = RcReadyToSend {
        starting_psn,
        // RFC 4755 7.1: IP has repetition of its own.
        retry_count: RetryCount::NONE,
        rnr_retry_count: RetryCount::NONE,
    };
    for change in [QpChange::RcReadyToReceive(receive), QpChange::RcReadyToSend(send)] {
        fabric.modify_qp(qp, &change).map_err(|_| VerbError)?;
    }
    Ok(())
}
