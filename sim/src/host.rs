//! A minimal IP host.
pub mod wire;
