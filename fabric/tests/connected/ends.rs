//! Two ends of a connection, each on an adapter of its own.

use fabric::cq::{Arrival, Completion, CqId, Outcome, WorkError};
use fabric::hca::{HcaConfig, HcaId};
use fabric::packet::Packet;
use fabric::port::{PortCounters, PortId, PortState};
use fabric::qp::{
    QpChange, QpConfig, QpId, QpState, QpType, RcReadyToReceive, RcReadyToSend, ReceiveRequest,
    RetryCount, RnrTimer,
};
use fabric::srq::SrqId;
use fabric::{AsyncEvent, Fabric, FabricConfig};
use ipoib_rs::action::AddressVector;
use ipoib_rs::ib::Psn;
use ipoib_rs::ib::{IbMtu, Lid, PkeyIndex, Qkey, Qpn, RateCode, ServiceLevel};

/// Sends and receives that a queue pair may have posted.
pub(crate) const QUEUE_LEN: u32 = 16;
/// The longest message of IP over InfiniBand: 64 KiB and an encapsulation header.
pub(crate) const MESSAGE_BYTES_MAX: usize = 65_536 + 4;

/// An end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) hca: HcaId,
    pub(crate) port: PortId,
    pub(crate) lid: Lid,
    pub(crate) send_cq: CqId,
    pub(crate) receive_cq: CqId,
    pub(crate) qp: QpId,
    pub(crate) qpn: Qpn,
}

/// What two ends agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreement {
    pub(crate) psns: [Psn; 2],
    pub(crate) path_mtu: IbMtu,
    pub(crate) retry_count: RetryCount,
    pub(crate) rnr_retry_count: RetryCount,
}

impl Agreement {
    /// As RFC 4755 advises: without retries.
    pub(crate) const DEFAULT: Self = Self {
        psns: [psn(0x10), psn(0x20_0000)],
        path_mtu: IbMtu::Mtu2048,
        retry_count: RetryCount::NONE,
        rnr_retry_count: RetryCount::NONE,
    };

    /// With `count` retries of both kinds.
    pub(crate) fn retrying(count: u8) -> Self {
        let count = RetryCount::new(count).unwrap();
        Self { retry_count: count, rnr_retry_count: count, ..Self::DEFAULT }
    }
}

/// A sequence number.
pub(crate) const fn psn(value: u32) -> Psn {
    Psn::new(value).unwrap()
}

/// A fabric with two connected ends that have LID 1 and LID 2, and no event that was not polled.
pub(crate) fn connected(agreement: &Agreement) -> (Fabric, [End; 2]) {
    let (mut fabric, ends) = ends();
    connect(&mut fabric, &ends, agreement);
    events(&mut fabric);
    (fabric, ends)
}

/// Two ends in RESET.
pub(crate) fn ends() -> (Fabric, [End; 2]) {
    let mut fabric = Fabric::new(FabricConfig::DEFAULT).unwrap();
    let ends = [1, 2].map(|number| end(&mut fabric, number));
    (fabric, ends)
}

/// An end on an adapter of its own.
pub(crate) fn end(fabric: &mut Fabric, number: u16) -> End {
    let config = HcaConfig::with_guid(0x0002_C903_0000_0000 + (u64::from(number) << 8));
    let hca = fabric.add_hca(&config).unwrap();
    let port = fabric.hca_ports(hca).next().unwrap();
    let lid = Lid::new(number).unwrap();
    fabric.set_lid(port, Some(lid)).unwrap();
    fabric.set_port_state(port, PortState::Active).unwrap();
    let send_cq = fabric.create_cq(hca, 64, 0).unwrap();
    let receive_cq = fabric.create_cq(hca, 64, 0).unwrap();
    let half = End {
        hca,
        port,
        lid,
        send_cq,
        receive_cq,
        qp: queue_pair(fabric, port, [send_cq, receive_cq], None),
        qpn: Qpn::GSI,
    };
    another(fabric, &half, half.qp)
}

/// The same place with another queue pair.
pub(crate) fn another(fabric: &Fabric, end: &End, qp: QpId) -> End {
    End { qp, qpn: fabric.qpn(qp).unwrap(), ..*end }
}

/// A queue pair in RESET.
pub(crate) fn queue_pair(
    fabric: &mut Fabric,
    port: PortId,
    [send_cq, receive_cq]: [CqId; 2],
    srq: Option<SrqId>,
) -> QpId {
    let config = QpConfig {
        qp_type: QpType::Rc { srq },
        send_cq,
        receive_cq,
        sends_max: QUEUE_LEN,
        receives_max: QUEUE_LEN,
    };
    fabric.create_qp(port, &config).unwrap()
}

/// From RESET to INIT.
pub(crate) const INIT: QpChange = QpChange::Init { pkey_index: PkeyIndex(0), qkey: Qkey(0) };

/// Brings both ends from RESET to RTS.
pub(crate) fn connect(fabric: &mut Fabric, ends: &[End; 2], agreement: &Agreement) {
    for own in [0, 1] {
        for change in changes(ends, own, agreement) {
            fabric.modify_qp(ends[own].qp, &change).unwrap();
        }
    }
}

/// The way of one end from RESET to RTS.
pub(crate) fn changes(ends: &[End; 2], own: usize, agreement: &Agreement) -> [QpChange; 3] {
    let peer = &ends[1 - own];
    let receive = RcReadyToReceive {
        address: address(peer.lid),
        remote_qpn: peer.qpn,
        starting_psn: agreement.psns[1 - own],
        path_mtu: agreement.path_mtu,
        rnr_timer: RnrTimer::new(12).unwrap(),
    };
    let send = RcReadyToSend {
        starting_psn: agreement.psns[own],
        retry_count: agreement.retry_count,
        rnr_retry_count: agreement.rnr_retry_count,
    };
    [INIT, QpChange::RcReadyToReceive(receive), QpChange::RcReadyToSend(send)]
}

/// An address without a GRH.
pub(crate) fn address(lid: Lid) -> AddressVector {
    AddressVector {
        lid: lid.value(),
        sl: ServiceLevel::default(),
        rate: RateCode::new(3).unwrap(),
        grh: None,
    }
}

/// Posts messages of a few bytes that say their number, which is their identity as well.
pub(crate) fn send(fabric: &mut Fabric, end: &End, numbers: std::ops::Range<u64>) {
    for number in numbers {
        send_bytes(fabric, end, number, &number.to_be_bytes());
    }
}

/// Posts a message.
pub(crate) fn send_bytes(fabric: &mut Fabric, end: &End, wr_id: u64, bytes: &[u8]) {
    let packet = fabric.pool_mut().allocate_from(bytes).unwrap();
    fabric.post_message(end.qp, wr_id, packet).unwrap();
}

/// Posts a message without bytes.
pub(crate) fn send_marker(fabric: &mut Fabric, end: &End, wr_id: u64) {
    fabric.post_message(end.qp, wr_id, Packet::empty()).unwrap();
}

/// Posts receives for the longest message.
pub(crate) fn receive(fabric: &mut Fabric, end: &End, wr_ids: std::ops::Range<u64>) {
    for wr_id in wr_ids {
        fabric.post_receive(end.qp, room(wr_id)).unwrap();
    }
}

/// A receive for the longest message.
pub(crate) fn room(wr_id: u64) -> ReceiveRequest {
    ReceiveRequest { wr_id, bytes: MESSAGE_BYTES_MAX as u32 }
}

/// Lets everything arrive.
pub(crate) fn run(fabric: &mut Fabric) {
    while let Some(transit) = fabric.poll_transit() {
        fabric.deliver(transit);
    }
}

/// How the sends ended that a queue reports.
pub(crate) fn sends(fabric: &mut Fabric, end: &End) -> Vec<(u64, Result<(), WorkError>)> {
    completions(fabric, end.send_cq)
        .into_iter()
        .map(|completion| match completion.outcome {
            Outcome::Sent => (completion.wr_id, Ok(())),
            Outcome::SendFailed(error) => (completion.wr_id, Err(error)),
            Outcome::Received(_) | Outcome::ReceiveFailed(_) => panic!("{completion:?}"),
        })
        .collect()
}

/// How the receives ended that a queue reports: the messages, or errors.
pub(crate) fn receives(fabric: &mut Fabric, end: &End) -> Vec<(u64, Result<Vec<u8>, WorkError>)> {
    completions(fabric, end.receive_cq)
        .into_iter()
        .map(|completion| match completion.outcome {
            Outcome::Received(Arrival { packet, .. }) => {
                let bytes = packet.bytes().to_vec();
                fabric.pool_mut().free(packet);
                (completion.wr_id, Ok(bytes))
            }
            Outcome::ReceiveFailed(error) => (completion.wr_id, Err(error)),
            Outcome::Sent | Outcome::SendFailed(_) => panic!("{completion:?}"),
        })
        .collect()
}

/// The numbers of the messages that a queue holds; see [`send`].
pub(crate) fn numbers(fabric: &mut Fabric, end: &End) -> Vec<u64> {
    receives(fabric, end)
        .into_iter()
        .map(|(_, message)| u64::from_be_bytes(message.unwrap().try_into().unwrap()))
        .collect()
}

/// All completions of a queue.
pub(crate) fn completions(fabric: &mut Fabric, cq: CqId) -> Vec<Completion> {
    std::iter::from_fn(|| fabric.poll_cq(cq)).collect()
}

/// All events.
pub(crate) fn events(fabric: &mut Fabric) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| fabric.poll_event()).collect()
}

/// What the port of an end dropped.
pub(crate) fn counters(fabric: &Fabric, end: &End) -> PortCounters {
    *fabric.port_counters(end.port).unwrap()
}

/// The states of both ends.
pub(crate) fn states(fabric: &Fabric, ends: &[End; 2]) -> [QpState; 2] {
    [0, 1].map(|own| fabric.qp_state(ends[own].qp).unwrap())
}
