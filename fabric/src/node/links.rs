//! The queue pairs of an interface's reliable connections, and what they share.

use alloc::vec::Vec;

use ipoib_rs::action::{ConnectionId, OpId, VerbError};
use ipoib_rs::ib::{PkeyIndex, Psn, Qkey, ServiceId};
use ipoib_rs::interface::ConnectedSupport;
use ipoib_rs::limits::Limits;

use super::{CqId, CreateError, Fabric, PortId, QpConfig, QpId, QpType};
use crate::connection::MESSAGES_MAX;
use crate::hca::HcaId;
use crate::qp::{QpChange, RcReadyToReceive, RcReadyToSend, RetryCount, RnrTimer};
use crate::srq::SrqId;

/// Sends that the queue pair of an incoming connection may have posted: the drain marker.
const INCOMING_SENDS_MAX: u32 = 1;

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
    /// By [`ConnectionId::index`].
    links: Vec<Option<Link>>,
    /// Sorted by queue pair.
    by_qp: Vec<(QpId, ConnectionId)>,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) qp: QpId,
    pub(super) state: LinkState,
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
        /// Whether the adapter has taken its last receive for it.
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
    pub(super) address: ipoib_rs::action::AddressVector,
    pub(super) path_mtu: ipoib_rs::ib::IbMtu,
}

/// What a peer says of its queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteEnd {
    pub(super) qpn: ipoib_rs::ib::Qpn,
    pub(super) starting_psn: Psn,
}

impl Links {
    /// Makes what connections share, for as many as the limits allow.
    pub(super) fn open(
        fabric: &mut Fabric,
        hca: HcaId,
        context: u64,
        limits: &Limits,
        support: &ConnectedSupport,
    ) -> Result<Self, CreateError> {
        let out_of_memory = |_| CreateError::OutOfMemory;
        let connections_max = limits.connections_max() as usize;
        let mut links = Vec::new();
        links.try_reserve_exact(connections_max).map_err(out_of_memory)?;
        links.resize(connections_max, None);
        let mut by_qp = Vec::new();
        by_qp.try_reserve_exact(connections_max).map_err(out_of_memory)?;
        let receives_max = if support.shares_receives {
            limits.shared_receive_queue_len
        } else {
            limits.incoming_max.saturating_mul(limits.connection_receive_queue_len)
        };
        let markers_max = INCOMING_SENDS_MAX * limits.incoming_max;
        let cq = fabric.create_cq(hca, receives_max.saturating_add(markers_max), context)?;
        let srq = if support.shares_receives {
            match fabric.create_srq(hca, limits.shared_receive_queue_len) {
                Ok(srq) => Some(srq),
                Err(error) => {
                    let _ = fabric.destroy_cq(cq);
                    return Err(error);
                }
            }
        } else {
            None
        };
        fabric.req_notify(cq);
        Ok(Self {
            cq,
            srq,
            service: None,
            sends_max: limits.send_queue_len.min(MESSAGES_MAX),
            receives_max: limits.connection_receive_queue_len,
            links,
            by_qp,
        })
    }

    /// Destroys everything.
    pub(super) fn close(self, fabric: &mut Fabric) {
        for link in self.links.into_iter().flatten() {
            let _ = fabric.destroy_qp(link.qp);
        }
        let is_destroyed = self.srq.is_none_or(|srq| fabric.destroy_srq(srq).is_ok())
            && fabric.destroy_cq(self.cq).is_ok();
        debug_assert!(is_destroyed, "only this value destroys them");
    }

    /// The queue pair of a connection to send on; not in the table yet. What it sends completes in
    /// `send_cq`.
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

    /// The queue pair of a connection to receive from; not in the table yet.
    pub(super) fn incoming_config(&self) -> QpConfig {
        QpConfig {
            qp_type: QpType::Rc { srq: self.srq },
            send_cq: self.cq,
            receive_cq: self.cq,
            sends_max: INCOMING_SENDS_MAX,
            receives_max: self.receives_max,
        }
    }

    pub(super) fn get(&self, connection: ConnectionId) -> Option<&Link> {
        self.links.get(connection.index())?.as_ref()
    }

    pub(super) fn set_state(&mut self, connection: ConnectionId, state: LinkState) {
        if let Some(Some(link)) = self.links.get_mut(connection.index()) {
            link.state = state;
        }
    }

    /// The connection of a queue pair.
    pub(super) fn find(&self, qp: QpId) -> Option<(ConnectionId, &Link)> {
        let place = self.by_qp.binary_search_by_key(&qp, |&(qp, _)| qp).ok()?;
        let (_, connection) = *self.by_qp.get(place)?;
        Some((connection, self.get(connection)?))
    }

    /// Whether a connection can get a queue pair.
    pub(super) fn is_vacant(&self, connection: ConnectionId) -> bool {
        self.links.get(connection.index()).is_some_and(Option::is_none)
    }

    /// Gives a vacant connection its queue pair.
    pub(super) fn insert(&mut self, connection: ConnectionId, link: Link) {
        let place = self.links.get_mut(connection.index());
        if let Some(place) = place.filter(|place| place.is_none()) {
            *place = Some(link);
            // There is room: as many as there are places.
            let position = self.by_qp.partition_point(|&(qp, _)| qp < link.qp);
            self.by_qp.insert(position, (link.qp, connection));
        }
    }

    /// Takes a connection out of the table.
    pub(super) fn remove(&mut self, connection: ConnectionId) -> Option<Link> {
        let link = self.links.get_mut(connection.index())?.take()?;
        self.by_qp.retain(|&(qp, _)| qp != link.qp);
        Some(link)
    }

    /// The operation that waited for the drain marker of a queue pair, which is complete.
    pub(super) fn take_marker(&mut self, qp: QpId) -> Option<OpId> {
        let (connection, link) = self.find(qp)?;
        let LinkState::Draining { op } = link.state else {
            return None;
        };
        self.set_state(connection, LinkState::Incoming { has_last_wqe: true });
        Some(op)
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
