//! PathRecord (IBA 15.2.5.16).

use core::mem::offset_of;

use bitflags::bitflags;
use ipoib_rs::action::{GlobalRoute, PathQuery, PathRecord};
use ipoib_rs::ib::{FlowLabel, Gid, IbMtu, Lid, Pkey, RateCode, ServiceLevel};
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::selector::Selector;

/// The length of a PathRecord.
pub const PATH_RECORD_BYTES: usize = 64;

bitflags! {
    /// Which components of a PathRecord a request fills in (IBA 15.2.5.16). Bit 7 is reserved.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct PathComponents: u64 {
        /// Both halves of the ServiceID.
        const SERVICE_ID = 0b11;
        /// DGID.
        const DESTINATION = 1 << 2;
        /// SGID.
        const SOURCE = 1 << 3;
        /// DLID.
        const DESTINATION_LID = 1 << 4;
        /// SLID.
        const SOURCE_LID = 1 << 5;
        /// RawTraffic.
        const RAW_TRAFFIC = 1 << 6;
        /// FlowLabel.
        const FLOW_LABEL = 1 << 8;
        /// HopLimit.
        const HOP_LIMIT = 1 << 9;
        /// TClass.
        const TRAFFIC_CLASS = 1 << 10;
        /// Reversible.
        const REVERSIBLE = 1 << 11;
        /// NumbPath.
        const PATHS_MAX = 1 << 12;
        /// P_Key.
        const PKEY = 1 << 13;
        /// QoSClass.
        const QOS_CLASS = 1 << 14;
        /// SL.
        const SERVICE_LEVEL = 1 << 15;
        /// MtuSelector.
        const MTU_SELECTOR = 1 << 16;
        /// Mtu.
        const MTU = 1 << 17;
        /// RateSelector.
        const RATE_SELECTOR = 1 << 18;
        /// Rate.
        const RATE = 1 << 19;
        /// PacketLifeTimeSelector.
        const LIFE_TIME_SELECTOR = 1 << 20;
        /// PacketLifeTime.
        const LIFE_TIME = 1 << 21;
        /// Preference.
        const PREFERENCE = 1 << 22;
    }
}

/// A PathRecord as it stands in a MAD.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct PathRecordWire {
    /// ServiceID.
    pub service_id: U64,
    /// DGID.
    pub destination: Gid,
    /// SGID.
    pub source: Gid,
    /// DLID.
    pub destination_lid: U16,
    /// SLID.
    pub source_lid: U16,
    /// RawTraffic (1 bit), reserved (3), FlowLabel (20), HopLimit (8).
    pub flow_hop: U32,
    /// TClass.
    pub traffic_class: u8,
    /// Reversible (1 bit), NumbPath (7).
    pub reversible_paths: u8,
    /// P_Key.
    pub pkey: U16,
    /// QoSClass (12 bits), SL (4).
    pub class_level: U16,
    /// MtuSelector (2 bits), Mtu (6).
    pub mtu: u8,
    /// RateSelector (2 bits), Rate (6).
    pub rate: u8,
    /// PacketLifeTimeSelector (2 bits), PacketLifeTime (6).
    pub life_time: u8,
    /// Preference.
    pub preference: u8,
    /// Reserved.
    pub reserved: [u8; 6],
}

const_assert_eq!(size_of::<PathRecordWire>(), PATH_RECORD_BYTES);
const_assert_eq!(offset_of!(PathRecordWire, destination), 8);
const_assert_eq!(offset_of!(PathRecordWire, source), 24);
const_assert_eq!(offset_of!(PathRecordWire, destination_lid), 40);
const_assert_eq!(offset_of!(PathRecordWire, source_lid), 42);
const_assert_eq!(offset_of!(PathRecordWire, flow_hop), 44);
const_assert_eq!(offset_of!(PathRecordWire, traffic_class), 48);
const_assert_eq!(offset_of!(PathRecordWire, reversible_paths), 49);
const_assert_eq!(offset_of!(PathRecordWire, pkey), 50);
const_assert_eq!(offset_of!(PathRecordWire, class_level), 52);
const_assert_eq!(offset_of!(PathRecordWire, mtu), 54);
const_assert_eq!(offset_of!(PathRecordWire, rate), 55);
const_assert_eq!(offset_of!(PathRecordWire, life_time), 56);
const_assert_eq!(offset_of!(PathRecordWire, preference), 57);

impl PathRecordWire {
    /// The Reversible bit in front of NumbPath.
    pub const REVERSIBLE: u8 = 0x80;

    /// The components of [`Self::query`].
    pub const QUERY: PathComponents = PathComponents::DESTINATION
        .union(PathComponents::SOURCE)
        .union(PathComponents::PKEY)
        .union(PathComponents::REVERSIBLE)
        .union(PathComponents::PATHS_MAX);

    /// A request for one path that works in both directions: IPoIB neighbours answer each other.
    pub fn query(query: &PathQuery) -> Self {
        Self {
            destination: query.destination,
            source: query.source,
            pkey: U16::new(query.pkey.value()),
            reversible_paths: Self::REVERSIBLE | 1,
            ..Self::new_zeroed()
        }
    }

    /// An answer, with exact MTU and rate. `source` and `pkey` are what `record` leaves out.
    pub fn answer(record: &PathRecord, source: (Gid, Lid), pkey: Pkey, life_time: u8) -> Self {
        let route = record.global.unwrap_or_default();
        Self {
            service_id: U64::ZERO,
            destination: record.destination,
            source: source.0,
            destination_lid: U16::new(record.lid.value()),
            source_lid: U16::new(source.1.value()),
            flow_hop: U32::new((route.flow_label.value() << 8) | u32::from(route.hop_limit)),
            traffic_class: route.traffic_class,
            reversible_paths: Self::REVERSIBLE | 1,
            pkey: U16::new(pkey.value()),
            class_level: U16::new(u16::from(record.sl.value())),
            mtu: Selector::Exactly.pack(record.mtu.code()),
            rate: Selector::Exactly.pack(record.rate.code()),
            life_time: Selector::Exactly.pack(life_time),
            preference: 0,
            reserved: [0; 6],
        }
    }

    /// What the core needs of an answer; `None` if the LID is not a unicast one or the MTU
    /// reserved.
    pub fn record(&self) -> Option<PathRecord> {
        Some(PathRecord {
            destination: self.destination,
            lid: Lid::new(self.destination_lid.get())?,
            sl: self.service_level(),
            mtu: IbMtu::from_code(Selector::unpack(self.mtu).1)?,
            rate: RateCode::new(Selector::unpack(self.rate).1)?,
            // IBA 8.3.6: a router takes one hop off and drops what arrives with 1 or less, so a
            // limit of 1 cannot mean a path beyond a router.
            global: (self.hop_limit() > 1).then(|| GlobalRoute {
                flow_label: self.flow_label(),
                hop_limit: self.hop_limit(),
                traffic_class: self.traffic_class,
            }),
        })
    }

    /// FlowLabel.
    pub fn flow_label(&self) -> FlowLabel {
        FlowLabel::new((self.flow_hop.get() >> 8) & 0xF_FFFF).unwrap_or_default()
    }

    /// HopLimit.
    pub const fn hop_limit(&self) -> u8 {
        self.flow_hop.to_bytes()[3]
    }

    /// SL.
    pub fn service_level(&self) -> ServiceLevel {
        ServiceLevel::new(self.class_level.to_bytes()[1] & 0x0F).unwrap_or_default()
    }
}
