//! IP over InfiniBand: the protocol core.
//!
//! A pure state machine: it reads no clock, draws no random numbers, allocates nothing after attach
//! and calls nobody but the [`packet::DataPath`] it is handed. The same code runs in the FreeBSD
//! kernel module, in the deterministic simulator and in the lab.
//!
//! Reading order: [`interface`] (the contract), [`packet`] and [`action`] (what an interface asks
//! of the world), `path` and `group` (the two machines that carry traffic), [`pump`] (how a shell
//! drives all of it), [`wire`] (bytes).

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod action;
mod connection;
pub mod counters;
pub mod event;
mod flush;
pub mod fragment;
mod group;
mod handle;
pub mod ib;
pub mod interface;
pub mod lagg;
pub mod limits;
pub mod packet;
mod path;
pub mod pump;
mod queue_pair;
mod seed;
mod send_ring;
pub mod size;
mod storage;
pub mod time;
mod timer;
pub mod wire;
