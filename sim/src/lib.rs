//! A deterministic world around the protocol core.

pub mod agenda;
pub mod host;
pub mod random;
pub mod rules;
pub mod trace;
pub mod traffic;
pub mod verdict;
