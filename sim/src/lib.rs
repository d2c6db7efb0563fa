//! A deterministic world around the protocol core.
//!
//! A seed decides everything: how many hosts there are, what goes wrong and when, in which order
//! things happen that happen at once. Every seed is run twice and must do the same in every detail.
//! Checkers look at the world after every event.
//!
//! Reading order: [`world`] (what there is), [`rules`] (what goes wrong), [`scenario`] (what a seed
//! is put through), [`swarm`] (many seeds), [`host`] (a minimal IP host, used by the lab as well).

#![forbid(unsafe_code)]

pub mod agenda;
pub mod host;
pub mod random;
pub mod rules;
pub mod scenario;
pub mod swarm;
pub mod trace;
pub mod traffic;
pub mod verdict;
pub mod world;
