//! What C and Rust exchange: the structures of `softib/c/softib.h` once more.

#![allow(missing_docs, reason = "the fields are explained in softib.h")]

use core::ffi::c_void;

use ipoib_rs::action::{AddressVector, GlobalRoute};
use ipoib_rs::ib::{FlowLabel, Gid, RateCode, ServiceLevel};
use static_assertions::const_assert_eq;

use crate::memory::Segment;

/// A pointer of C that only C follows. A number, so that it can move between threads.
pub type Context = u64;

/// What an admin decides before the module is loaded: `struct softib_config`, of which C reads the
/// first two.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Config {
    pub device_count: u32,
    pub receive_segments_max: u32,
    pub small_packets_max: u32,
    pub large_packets_max: u32,
    pub seed: u64,
}

/// `struct softib_port`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct PortView {
    pub gid: [u8; 16],
    pub lid: u16,
    pub sm_lid: u16,
    pub sm_sl: u8,
    pub mtu_code: u8,
    pub is_active: u8,
    pub reserved: u8,
}

/// `struct softib_counters`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct Counters {
    pub sent: u64,
    pub received: u64,
    pub send_discards: u64,
    pub receive_errors: u64,
}

/// `struct softib_address`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Address {
    pub gid: [u8; 16],
    pub flow_label: u32,
    pub lid: u16,
    pub sl: u8,
    pub rate_code: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub has_grh: u8,
    pub reserved: u8,
}

impl Address {
    /// `None` if something has more bits than the wire has room for.
    pub fn vector(&self) -> Option<AddressVector> {
        let route = GlobalRoute {
            flow_label: FlowLabel::new(self.flow_label)?,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
        };
        Some(AddressVector {
            lid: self.lid,
            sl: ServiceLevel::new(self.sl)?,
            rate: RateCode::new(self.rate_code)?,
            grh: (self.has_grh != 0).then_some((Gid(self.gid), route)),
        })
    }
}

/// `struct softib_pair_config`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PairConfig {
    pub context: Context,
    pub send_queue: u32,
    pub receive_queue: u32,
    pub shared_queue: u32,
    pub service: u32,
    pub sends_max: u32,
    pub receives_max: u32,
    pub receive_segments_max: u32,
    pub port: u8,
    pub signals_all: u8,
    pub reserved: [u8; 2],
}

/// `struct softib_change`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Change {
    pub address: Address,
    pub state: u32,
    pub qkey: u32,
    pub remote_qpn: u32,
    pub receive_psn: u32,
    pub send_psn: u32,
    pub pkey_index: u16,
    pub has_pkey_index: u8,
    pub has_qkey: u8,
    pub port: u8,
    pub path_mtu_code: u8,
    pub rnr_timer: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub reserved: [u8; 3],
}

/// `struct softib_send`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Send {
    pub wr_id: u64,
    pub segments: *const Segment,
    pub segment_count: u32,
    pub address_handle: u32,
    pub remote_qpn: u32,
    pub qkey: u32,
    pub pkey_index: u16,
    pub is_signalled: u8,
    pub wants_checksums: u8,
    pub reserved: [u8; 4],
}

/// `struct softib_receive`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Receive {
    pub wr_id: u64,
    pub segments: *const Segment,
    pub segment_count: u32,
    pub reserved: u32,
}

/// `struct softib_completion`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct Completion {
    pub wr_id: u64,
    pub pair: Context,
    pub status: u32,
    pub byte_count: u32,
    pub source_qpn: u32,
    pub source_lid: u16,
    pub pkey_index: u16,
    pub sl: u8,
    pub is_receive: u8,
    pub has_grh: u8,
    pub has_right_checksums: u8,
    pub reserved: [u8; 4],
}

const_assert_eq!(size_of::<Context>(), size_of::<*const c_void>());
const_assert_eq!(size_of::<Config>(), 24);
const_assert_eq!(size_of::<PortView>(), 24);
const_assert_eq!(size_of::<Counters>(), 32);
const_assert_eq!(size_of::<Address>(), 28);
const_assert_eq!(size_of::<Segment>(), 16);
const_assert_eq!(size_of::<PairConfig>(), 40);
const_assert_eq!(size_of::<Change>(), 60);
const_assert_eq!(size_of::<Send>(), 40);
const_assert_eq!(size_of::<Receive>(), 24);
const_assert_eq!(size_of::<Completion>(), 40);
