//! The global route header (IBA 8.3).

use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::action::GlobalRoute;
use crate::ib::{FlowLabel, Gid};

/// The length of a GRH, and of the room that a UD receive keeps for one.
pub const GRH_BYTES: usize = 40;

/// IPVer (IBA 8.3.1): as in IPv6.
const VERSION: u32 = 6;
/// NxtHdr (IBA 8.3.5): an IBA transport header follows.
const NEXT_HEADER_IBA: u8 = 0x1B;
const FLOW_LABEL_MASK: u32 = 0x000F_FFFF;

/// A global route header.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct Grh {
    /// IPVer (6), TClass, FlowLabel.
    pub version_class_flow: U32,
    /// From the first byte after the GRH up to the last byte of the ICRC (IBA 8.3.4).
    pub payload_bytes: U16,
    /// `0x1B`: an IBA transport header follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// The sender's port.
    pub source: Gid,
    /// The destination port or group.
    pub destination: Gid,
}

const_assert_eq!(size_of::<Grh>(), GRH_BYTES);

impl Grh {
    /// A header in front of `payload_bytes` bytes, ICRC included.
    pub const fn new(
        route: GlobalRoute,
        payload_bytes: u16,
        source: Gid,
        destination: Gid,
    ) -> Self {
        let class = route.traffic_class as u32;
        Self {
            version_class_flow: U32::new(VERSION << 28 | class << 20 | route.flow_label.value()),
            payload_bytes: U16::new(payload_bytes),
            next_header: NEXT_HEADER_IBA,
            hop_limit: route.hop_limit,
            source,
            destination,
        }
    }

    /// From bytes of exactly the right length; `None` as well if version or next header are not
    /// those of a GRH.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok().filter(Self::is_valid)
    }

    /// Whether version and next header are those of a GRH.
    pub const fn is_valid(&self) -> bool {
        self.version_class_flow.get() >> 28 == VERSION && self.next_header == NEXT_HEADER_IBA
    }

    /// Traffic class, flow label and hop limit.
    pub fn route(&self) -> GlobalRoute {
        let word = self.version_class_flow.get();
        GlobalRoute {
            flow_label: FlowLabel::new(word & FLOW_LABEL_MASK).unwrap_or_default(),
            hop_limit: self.hop_limit,
            // CAST: keeps the 8 bits of the class, drops the version above them.
            traffic_class: (word >> 20) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::testing::config;

    fn grh() -> Grh {
        let gid = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 1);
        Grh::new(GlobalRoute::default(), 28, gid, gid)
    }

    #[test]
    fn only_40_bytes_are_a_grh() {
        let mut bytes = [0; GRH_BYTES + 1];
        bytes[..GRH_BYTES].copy_from_slice(grh().as_bytes());
        for length in 0..=bytes.len() {
            let parsed = Grh::from_bytes(&bytes[..length]);
            assert_eq!(parsed.is_some(), length == GRH_BYTES, "{length}");
        }
    }

    #[test]
    fn version_and_next_header_decide_whether_it_is_one() {
        for value in 0..=u8::MAX {
            let mut bytes = [0; GRH_BYTES];
            bytes.copy_from_slice(grh().as_bytes());
            bytes[0] = value;
            assert_eq!(Grh::from_bytes(&bytes).is_some(), value >> 4 == 6);
            bytes[0] = 0x60;
            bytes[6] = value;
            assert_eq!(Grh::from_bytes(&bytes).is_some(), value == 0x1B);
        }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn fields_survive_the_round_trip(
            flow_label in 0_u32..1 << 20,
            hop_limit: u8,
            traffic_class: u8,
            payload_bytes: u16,
            source: [u8; 16],
            destination: [u8; 16],
        ) {
            let route = GlobalRoute {
                flow_label: FlowLabel::new(flow_label).expect("20 bits"),
                hop_limit,
                traffic_class,
            };
            let grh = Grh::new(route, payload_bytes, Gid(source), Gid(destination));
            let parsed = Grh::from_bytes(grh.as_bytes()).expect("a GRH");
            prop_assert_eq!(parsed, grh);
            prop_assert_eq!(parsed.route(), route);
            prop_assert_eq!(parsed.payload_bytes.get(), payload_bytes);
            prop_assert_eq!((parsed.source.0, parsed.destination.0), (source, destination));
        }
    }
}
