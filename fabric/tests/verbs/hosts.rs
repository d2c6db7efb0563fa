//! Hosts on a fabric, each with a datagram queue pair that is ready.

use fabric::address::AhId;
use fabric::cq::{Arrival, Completion, CqId, Outcome, WorkError};
use fabric::hca::{HcaConfig, HcaId};
use fabric::port::{PortId, PortState};
use fabric::qp::{QpChange, QpConfig, QpId, QpType, ReceiveRequest, SendRequest};
use fabric::{Fabric, FabricConfig, RefusedSend};
use ipoib_rs::action::{AddressVector, GlobalRoute};
use ipoib_rs::ib::{Gid, Lid, Mgid, Mlid, PkeyIndex, Qkey, Qpn, RateCode, ServiceLevel};

/// The queue key of every queue pair here.
pub(crate) const QKEY: Qkey = Qkey(0x0B1B);
/// Sends and receives that a queue pair may have posted.
pub(crate) const QUEUE_LEN: u32 = 8;
/// The entries of a completion queue.
pub(crate) const CQ_LEN: u32 = 64;

/// A host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    pub(crate) hca: HcaId,
    pub(crate) port: PortId,
    pub(crate) lid: Lid,
    pub(crate) send_cq: CqId,
    pub(crate) receive_cq: CqId,
    pub(crate) qp: QpId,
    pub(crate) qpn: Qpn,
}

/// A fabric with `N` hosts; host 0 has LID 1.
pub(crate) fn hosts<const N: usize>(config: FabricConfig) -> (Fabric, [Host; N]) {
    let mut fabric = Fabric::new(config).unwrap();
    let hosts = std::array::from_fn(|number| host(&mut fabric, number as u16 + 1));
    (fabric, hosts)
}

fn host(fabric: &mut Fabric, number: u16) -> Host {
    let config = HcaConfig::with_guid(0x0002_C903_0000_0000 + (u64::from(number) << 8));
    let hca = fabric.add_hca(&config).unwrap();
    let port = fabric.hca_ports(hca).next().unwrap();
    let lid = Lid::new(number).unwrap();
    fabric.set_lid(port, Some(lid)).unwrap();
    fabric.set_port_state(port, PortState::Active).unwrap();
    let send_cq = fabric.create_cq(hca, CQ_LEN, u64::from(number)).unwrap();
    let receive_cq = fabric.create_cq(hca, CQ_LEN, u64::from(number)).unwrap();
    let qp = queue_pair(fabric, port, send_cq, receive_cq);
    Host { hca, port, lid, send_cq, receive_cq, qp, qpn: fabric.qpn(qp).unwrap() }
}

/// A datagram queue pair in RTS.
pub(crate) fn queue_pair(
    fabric: &mut Fabric,
    port: PortId,
    send_cq: CqId,
    receive_cq: CqId,
) -> QpId {
    let config = QpConfig {
        qp_type: QpType::Ud,
        send_cq,
        receive_cq,
        sends_max: QUEUE_LEN,
        receives_max: QUEUE_LEN,
    };
    let qp = fabric.create_qp(port, &config).unwrap();
    for change in to_ready(PkeyIndex(0)) {
        fabric.modify_qp(qp, &change).unwrap();
    }
    qp
}

/// From RESET to RTS.
pub(crate) fn to_ready(pkey_index: PkeyIndex) -> [QpChange; 3] {
    [QpChange::Init { pkey_index, qkey: QKEY }, QpChange::ReadyToReceive, QpChange::ReadyToSend]
}

/// An address without a GRH.
pub(crate) fn local(lid: Lid) -> AddressVector {
    AddressVector {
        lid: lid.value(),
        sl: ServiceLevel::default(),
        rate: RateCode::new(3).unwrap(),
        grh: None,
    }
}

/// An address with a GRH.
pub(crate) fn global(lid: u16, gid: Gid) -> AddressVector {
    let route = GlobalRoute { hop_limit: 64, ..GlobalRoute::default() };
    AddressVector { grh: Some((gid, route)), lid, ..local(Lid::MAX) }
}

/// A group of the default partition.
pub(crate) fn group(number: u8) -> (Mgid, Mlid) {
    let mut gid = [0; 16];
    gid[..6].copy_from_slice(&[0xFF, 0x12, 0x40, 0x1B, 0xFF, 0xFF]);
    gid[15] = number;
    let mlid = Mlid::new(Mlid::MIN.value() + u16::from(number)).unwrap();
    (Mgid::new(Gid(gid)).unwrap(), mlid)
}

/// Attaches a host to a group and routes the group to it.
pub(crate) fn join(fabric: &mut Fabric, host: &Host, (mgid, mlid): (Mgid, Mlid)) {
    fabric.attach_multicast(host.qp, mgid, mlid).unwrap();
    fabric.set_multicast_member(mlid, host.port, true).unwrap();
}

/// Posts a send of `payload` to a queue pair, with the key of all.
pub(crate) fn send(
    fabric: &mut Fabric,
    from: QpId,
    wr_id: u64,
    (ah, remote_qpn): (AhId, Qpn),
    payload: &[u8],
) -> Result<(), RefusedSend> {
    let request = SendRequest { wr_id, ah, remote_qpn, qkey: QKEY, pkey_index: PkeyIndex(0) };
    let packet = fabric.pool_mut().allocate_from(payload).unwrap();
    fabric.post_send(from, request, packet)
}

/// Posts receives for the longest datagram with the identities given.
pub(crate) fn receive(fabric: &mut Fabric, qp: QpId, wr_ids: std::ops::Range<u64>) {
    for wr_id in wr_ids {
        let request = ReceiveRequest { wr_id, bytes: 2088 };
        fabric.post_receive(qp, request).unwrap();
    }
}

/// Lets everything arrive.
pub(crate) fn run(fabric: &mut Fabric) {
    while let Some(transit) = fabric.poll_transit() {
        fabric.deliver(transit);
    }
}

/// All completions of a queue.
pub(crate) fn completions(fabric: &mut Fabric, cq: CqId) -> Vec<Completion> {
    std::iter::from_fn(|| fabric.poll_cq(cq)).collect()
}

/// The identities of all sends that a queue reports as sent, as failed, in order.
pub(crate) fn sends(fabric: &mut Fabric, cq: CqId) -> Vec<(u64, Result<(), WorkError>)> {
    completions(fabric, cq)
        .into_iter()
        .map(|completion| match completion.outcome {
            Outcome::Sent => (completion.wr_id, Ok(())),
            Outcome::SendFailed(error) => (completion.wr_id, Err(error)),
            Outcome::Received(_) | Outcome::ReceiveFailed(_) => panic!("{completion:?}"),
        })
        .collect()
}

/// Likewise for receives.
pub(crate) fn receives(fabric: &mut Fabric, cq: CqId) -> Vec<(u64, Result<Arrival, WorkError>)> {
    completions(fabric, cq)
        .into_iter()
        .map(|completion| match completion.outcome {
            Outcome::Received(arrival) => (completion.wr_id, Ok(arrival)),
            Outcome::ReceiveFailed(error) => (completion.wr_id, Err(error)),
            Outcome::Sent | Outcome::SendFailed(_) => panic!("{completion:?}"),
        })
        .collect()
}

/// The payloads, behind the 40 bytes for a GRH, of all packets that a queue holds.
pub(crate) fn payloads(fabric: &mut Fabric, cq: CqId) -> Vec<Vec<u8>> {
    receives(fabric, cq)
        .into_iter()
        .map(|(_, arrival)| {
            let packet = arrival.unwrap().packet;
            let payload = packet.bytes()[40..].to_vec();
            fabric.pool_mut().free(packet);
            payload
        })
        .collect()
}

/// The one packet that a queue holds.
pub(crate) fn arrival(fabric: &mut Fabric, cq: CqId) -> (u64, Arrival) {
    let mut receives = receives(fabric, cq);
    assert_eq!(receives.len(), 1, "{receives:?}");
    let (wr_id, arrival) = receives.remove(0);
    (wr_id, arrival.unwrap())
}

/// How the receives that a queue holds failed.
pub(crate) fn failures(fabric: &mut Fabric, cq: CqId) -> Vec<(u64, WorkError)> {
    receives(fabric, cq).into_iter().map(|(wr_id, arrival)| (wr_id, arrival.unwrap_err())).collect()
}
