//! Ports, peers, packets and answers to choose from.

use ipoib_rs::action::{
    GlobalRoute, GroupParameters, GroupRecord, JoinRequest, PathQuery, PathRecord,
};
use ipoib_rs::ib::{
    FlowLabel, Gid, IbMtu, Lid, Mgid, Mlid, Partition, Pkey, PkeyIndex, PortAttributes, Qkey, Qpn,
    RateCode, ServiceLevel,
};
use ipoib_rs::wire::{AddressFlags, BroadcastGroup, LinkAddress, Scope};

pub const QKEY: Qkey = Qkey(0x0B1B);
pub const OWN_QPN: Qpn = Qpn::new(0x48).unwrap();
pub const OWN_GID: Gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x0002_C903_0000_0001);

pub fn port() -> PortAttributes {
    PortAttributes {
        is_active: true,
        lid: Lid::new(1),
        gid: OWN_GID,
        mtu: IbMtu::Mtu2048,
        partition: Some(Partition { pkey: Pkey::DEFAULT, index: PkeyIndex(0) }),
    }
}

/// The address of peer number `n`, without the RC flag.
pub fn peer(n: u8) -> LinkAddress {
    let gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x0002_C903_0000_0100 + u64::from(n));
    LinkAddress::new(AddressFlags::empty(), Qpn::new(0x100 + u32::from(n)).unwrap(), gid)
}

/// The address of peer number `n`, with the RC flag.
pub fn connected_peer(n: u8) -> LinkAddress {
    LinkAddress::new(AddressFlags::RC, peer(n).qpn(), peer(n).gid())
}

pub fn group_parameters() -> GroupParameters {
    GroupParameters {
        qkey: QKEY,
        mtu: IbMtu::Mtu2048,
        rate: RateCode::new(3).unwrap(),
        sl: ServiceLevel::new(0).unwrap(),
        packet_life_time: 18,
        global: GlobalRoute {
            flow_label: FlowLabel::new(0).unwrap(),
            hop_limit: 0,
            traffic_class: 0,
        },
    }
}

/// A minimal IPv4 packet of `len` bytes: no options, protocol UDP.
pub fn ipv4(len: usize, dont_fragment: bool) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
    bytes[..20].fill(0);
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    bytes[4..6].copy_from_slice(&0x1234u16.to_be_bytes());
    bytes[6] = if dont_fragment { 0x40 } else { 0 };
    bytes[8] = 64;
    bytes[9] = 17;
    bytes[12..16].copy_from_slice(&[10, 0, 0, 1]);
    bytes[16..20].copy_from_slice(&[10, 0, 0, 2]);
    bytes
}

/// The SA's answer to a join of a group like the broadcast group; the MLID follows from the MGID.
pub fn record_of(request: &JoinRequest) -> GroupRecord {
    let low = u16::from_be_bytes([request.mgid.gid().0[14], request.mgid.gid().0[15]]);
    GroupRecord {
        mgid: request.mgid,
        mlid: Mlid::new(0xC000 | low & 0x0FFF).unwrap(),
        pkey: request.pkey,
        parameters: request.create.unwrap_or_else(group_parameters),
    }
}

/// The SA's answer to a path query; the LID follows from the GID.
pub fn path_to(query: &PathQuery) -> PathRecord {
    PathRecord {
        destination: query.destination,
        lid: Lid::new(query.destination.guid() as u16 & 0x0FFF).unwrap(),
        sl: ServiceLevel::new(0).unwrap(),
        mtu: IbMtu::Mtu2048,
        rate: RateCode::new(3).unwrap(),
        global: None,
    }
}

/// The group that carries an IP multicast group in the default partition.
pub fn group(address: &str) -> Mgid {
    let broadcast = BroadcastGroup::new(Scope::LINK_LOCAL, Pkey::DEFAULT);
    broadcast.mgid_of(address.parse().unwrap()).unwrap()
}

pub fn broadcast() -> LinkAddress {
    LinkAddress::multicast(BroadcastGroup::new(Scope::LINK_LOCAL, Pkey::DEFAULT).mgid())
}
