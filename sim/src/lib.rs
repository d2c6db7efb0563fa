//! A deterministic world around the protocol core.

pub mod host;
