//! Software InfiniBand.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod mad;
pub mod sa;
pub mod sm;
