//! A deterministic world for the core.
