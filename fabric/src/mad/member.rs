//! MCMemberRecord (IBA 15.2.5.17).

use core::mem::offset_of;

use bitflags::bitflags;
use ipoib_rs::action::{GlobalRoute, GroupParameters, GroupRecord, JoinRequest};
use ipoib_rs::ib::{FlowLabel, Gid, IbMtu, Mgid, Mlid, Pkey, Qkey, RateCode, ServiceLevel};
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::selector::Selector;

/// The length of an MCMemberRecord.
pub const MEMBER_RECORD_BYTES: usize = 52;

bitflags! {
    /// Which components of an MCMemberRecord a request fills in (IBA 15.2.5.17).
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct MemberComponents: u64 {
        /// MGID.
        const MGID = 1 << 0;
        /// PortGID.
        const PORT_GID = 1 << 1;
        /// Q_Key.
        const QKEY = 1 << 2;
        /// MLID.
        const MLID = 1 << 3;
        /// MTUSelector.
        const MTU_SELECTOR = 1 << 4;
        /// MTU.
        const MTU = 1 << 5;
        /// TClass.
        const TRAFFIC_CLASS = 1 << 6;
        /// P_Key.
        const PKEY = 1 << 7;
        /// RateSelector.
        const RATE_SELECTOR = 1 << 8;
        /// Rate.
        const RATE = 1 << 9;
        /// PacketLifeTimeSelector.
        const LIFE_TIME_SELECTOR = 1 << 10;
        /// PacketLifeTime.
        const LIFE_TIME = 1 << 11;
        /// SL.
        const SERVICE_LEVEL = 1 << 12;
        /// FlowLabel.
        const FLOW_LABEL = 1 << 13;
        /// HopLimit.
        const HOP_LIMIT = 1 << 14;
        /// Scope.
        const SCOPE = 1 << 15;
        /// JoinState.
        const JOIN_STATE = 1 << 16;
        /// ProxyJoin.
        const PROXY_JOIN = 1 << 17;
    }
}

impl MemberComponents {
    /// What joins or leaves an existing group (IBA o15-0.2.4, o15-0.1.14).
    pub const JOIN: Self = Self::MGID.union(Self::PORT_GID).union(Self::JOIN_STATE);

    /// What an SA demands before it creates a group (IBA o15-0.2.3).
    pub const CREATE: Self = Self::JOIN
        .union(Self::QKEY)
        .union(Self::TRAFFIC_CLASS)
        .union(Self::PKEY)
        .union(Self::FLOW_LABEL)
        .union(Self::SERVICE_LEVEL);

    /// What the client asks for when it creates: the mandatory components and those that decide
    /// whether every member can be reached. The packet life time is left to the SA.
    pub const CREATE_EXACT: Self = Self::CREATE
        .union(Self::MTU_SELECTOR)
        .union(Self::MTU)
        .union(Self::RATE_SELECTOR)
        .union(Self::RATE)
        .union(Self::HOP_LIMIT);
}

bitflags! {
    /// JoinState (IBA 15.2.5.17): the ways in which a port takes part in a group.
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    pub struct JoinState: u8 {
        /// Receives and sends, keeps the group alive.
        const FULL = 1 << 0;
        /// Receives and sends, does not keep the group alive.
        const NON_MEMBER = 1 << 1;
        /// Sends only, does not keep the group alive.
        const SEND_ONLY_NON_MEMBER = 1 << 2;
        /// Sends only, keeps the group alive.
        const SEND_ONLY_FULL = 1 << 3;
    }
}

impl JoinState {
    /// Whether the port's switch must deliver the group's packets to it.
    pub const fn receives(self) -> bool {
        self.intersects(Self::FULL.union(Self::NON_MEMBER))
    }

    /// Whether the group lives as long as this member.
    pub const fn keeps_alive(self) -> bool {
        self.intersects(Self::FULL.union(Self::SEND_ONLY_FULL))
    }
}

/// An MCMemberRecord as it stands in a MAD.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct MemberRecordWire {
    /// MGID.
    pub mgid: Gid,
    /// PortGID.
    pub port_gid: Gid,
    /// Q_Key.
    pub qkey: U32,
    /// MLID.
    pub mlid: U16,
    /// MTUSelector (2 bits), MTU (6).
    pub mtu: u8,
    /// TClass.
    pub traffic_class: u8,
    /// P_Key.
    pub pkey: U16,
    /// RateSelector (2 bits), Rate (6).
    pub rate: u8,
    /// PacketLifeTimeSelector (2 bits), PacketLifeTime (6).
    pub life_time: u8,
    /// SL (4 bits), FlowLabel (20), HopLimit (8).
    pub level_flow_hop: U32,
    /// Scope (4 bits), JoinState (4).
    pub scope_join: u8,
    /// ProxyJoin (1 bit), reserved (7).
    pub proxy_join: u8,
    /// Reserved.
    pub reserved: [u8; 2],
}

const_assert_eq!(size_of::<MemberRecordWire>(), MEMBER_RECORD_BYTES);
const_assert_eq!(offset_of!(MemberRecordWire, port_gid), 16);
const_assert_eq!(offset_of!(MemberRecordWire, qkey), 32);
const_assert_eq!(offset_of!(MemberRecordWire, mlid), 36);
const_assert_eq!(offset_of!(MemberRecordWire, mtu), 38);
const_assert_eq!(offset_of!(MemberRecordWire, traffic_class), 39);
const_assert_eq!(offset_of!(MemberRecordWire, pkey), 40);
const_assert_eq!(offset_of!(MemberRecordWire, rate), 42);
const_assert_eq!(offset_of!(MemberRecordWire, life_time), 43);
const_assert_eq!(offset_of!(MemberRecordWire, level_flow_hop), 44);
const_assert_eq!(offset_of!(MemberRecordWire, scope_join), 48);
const_assert_eq!(offset_of!(MemberRecordWire, proxy_join), 49);

impl MemberRecordWire {
    /// A request to join, and the components that it fills in: the mandatory ones alone for an
    /// existing group, all that matter for one that may have to be created.
    pub fn join(request: &JoinRequest) -> (Self, MemberComponents) {
        let member = Self::member(
            request.mgid,
            request.port_gid,
            JoinState::from_bits_truncate(request.membership.join_state()),
        );
        let Some(parameters) = &request.create else {
            return (member, MemberComponents::JOIN);
        };
        let mut record = Self { pkey: U16::new(request.pkey.value()), ..member };
        record.set_parameters(parameters);
        record.life_time = 0;
        (record, MemberComponents::CREATE_EXACT)
    }

    /// A record that names a group, a port and a kind of membership and nothing else.
    pub fn member(mgid: Mgid, port_gid: Gid, join_state: JoinState) -> Self {
        Self { mgid: mgid.gid(), port_gid, scope_join: join_state.bits(), ..Self::new_zeroed() }
    }

    /// The record of a group, without a member. The scope is that of the MGID.
    pub fn group(record: &GroupRecord) -> Self {
        let mut wire = Self {
            mgid: record.mgid.gid(),
            mlid: U16::new(record.mlid.value()),
            pkey: U16::new(record.pkey.value()),
            scope_join: record.mgid.gid().0[1] << 4,
            ..Self::new_zeroed()
        };
        wire.set_parameters(&record.parameters);
        wire
    }

    fn set_parameters(&mut self, parameters: &GroupParameters) {
        self.qkey = U32::new(parameters.qkey.0);
        self.mtu = Selector::Exactly.pack(parameters.mtu.code());
        self.rate = Selector::Exactly.pack(parameters.rate.code());
        self.life_time = Selector::Exactly.pack(parameters.packet_life_time);
        self.traffic_class = parameters.global.traffic_class;
        self.level_flow_hop = U32::new(
            (u32::from(parameters.sl.value()) << 28)
                | (parameters.global.flow_label.value() << 8)
                | u32::from(parameters.global.hop_limit),
        );
    }

    /// The group that an answer describes; `None` if the MGID or MLID is not a multicast one, the
    /// P_Key invalid or the MTU reserved.
    pub fn record(&self) -> Option<GroupRecord> {
        Some(GroupRecord {
            mgid: Mgid::new(self.mgid)?,
            mlid: Mlid::new(self.mlid.get())?,
            pkey: Pkey::new(self.pkey.get())?,
            parameters: GroupParameters {
                qkey: Qkey(self.qkey.get()),
                mtu: IbMtu::from_code(Selector::unpack(self.mtu).1)?,
                rate: RateCode::new(Selector::unpack(self.rate).1)?,
                sl: self.service_level(),
                packet_life_time: Selector::unpack(self.life_time).1,
                global: GlobalRoute {
                    flow_label: self.flow_label(),
                    hop_limit: self.hop_limit(),
                    traffic_class: self.traffic_class,
                },
            },
        })
    }

    /// SL.
    pub fn service_level(&self) -> ServiceLevel {
        ServiceLevel::new(self.level_flow_hop.to_bytes()[0] >> 4).unwrap_or_default()
    }

    /// FlowLabel.
    pub fn flow_label(&self) -> FlowLabel {
        FlowLabel::new((self.level_flow_hop.get() >> 8) & 0xF_FFFF).unwrap_or_default()
    }

    /// HopLimit.
    pub const fn hop_limit(&self) -> u8 {
        self.level_flow_hop.to_bytes()[3]
    }

    /// Scope.
    pub const fn scope(&self) -> u8 {
        self.scope_join >> 4
    }

    /// JoinState.
    pub const fn join_state(&self) -> JoinState {
        JoinState::from_bits_truncate(self.scope_join & 0x0F)
    }

    /// The same record with another JoinState.
    pub const fn with_join_state(mut self, join_state: JoinState) -> Self {
        self.scope_join = (self.scope_join & 0xF0) | join_state.bits();
        self
    }
}
