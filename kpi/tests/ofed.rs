//! The InfiniBand wrappers over a kernel that checks how it is used: who owns what, and answers
//! that come late, twice or never.

mod common;

#[path = "ofed/bench.rs"]
mod bench;
#[path = "ofed/cm.rs"]
mod cm;
#[path = "ofed/sa.rs"]
mod sa;
#[path = "ofed/verbs.rs"]
mod verbs;
