//! Software InfiniBand: adapters with ports and verbs, a switch, management datagrams.
//!
//! A [`Fabric`] is a pure state machine like the protocol core: it has no clock and draws no random
//! numbers. Whoever drives it decides when a packet arrives: [`Fabric::poll_transit`] hands out the
//! packets that left a port, [`Fabric::deliver`] lets one arrive. A simulator delays, reorders,
//! duplicates or loses them in between, the lab delivers at once.
//!
//! Reading order: [`packet`] (who owns what), [`Fabric`], [`qp`], [`srq`] and [`cq`] (verbs),
//! [`transit`] (a packet between two ports, and where connections differ from datagrams), [`gsi`]
//! (management datagrams), [`mad`], [`sa`] and [`sm`] (subnet administration), [`cm`]
//! (connections), [`subnet`] and [`node`] (the users of all this), [`capture`] (real bytes).

#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod address;
pub mod capture;
pub mod cm;
mod connection;
pub mod cq;
mod crc;
mod fabric;
pub mod gsi;
pub mod hca;
pub mod mad;
pub mod node;
mod outlet;
pub mod packet;
pub mod port;
pub mod qp;
pub mod sa;
mod slab;
pub mod sm;
pub mod srq;
pub mod subnet;
pub mod switch;
pub mod transit;
pub mod wire;

pub use fabric::{
    AttachError, CreateError, DestroyError, Fabric, FabricConfig, ManagementError, ModifyError,
    PostError, RefusedSend, Violations,
};
pub use outlet::AsyncEvent;
