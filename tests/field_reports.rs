//! What went wrong for users of other drivers must not go wrong here.
//!
//! `docs/field-reports.md` says what each report is about; the tests are named after them.

mod common;
#[path = "common/scene.rs"]
mod scene;

#[path = "field_reports/groups.rs"]
mod groups;
#[path = "field_reports/link.rs"]
mod link;
#[path = "field_reports/receive.rs"]
mod receive;
#[path = "field_reports/unicast.rs"]
mod unicast;
