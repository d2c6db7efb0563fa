//! A lagg on a bench: who carries, what is worn, who is told, and what ports are asked to do.

#[allow(dead_code, unreachable_pub, reason = "each test file is a crate and uses a part of it")]
#[path = "common/lagg.rs"]
mod bench;

#[path = "lagg/failover.rs"]
mod failover;
#[path = "lagg/field_reports.rs"]
mod field_reports;
#[path = "lagg/ports.rs"]
mod ports;
#[path = "lagg/races.rs"]
mod races;
