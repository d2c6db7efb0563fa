//! Queue pairs that go, or do not.

use std::ffi::c_int;

use sys_bindings as sys;

use super::super::Stuck;
use super::super::tables::{Tables, key, lock};
use super::{Pair, purge};
use crate::{check, trace};

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_destroy_qp(
    pair: *mut sys::ib_qp,
    send_queue: *mut sys::kpi_cq,
    receive_queue: *mut sys::kpi_cq,
    is_quiet: *mut c_int,
) -> c_int {
    trace::note("destroy_qp");
    let mut tables = lock();
    tables.wait_until_idle(key(pair), "destroy_qp");
    let resets = tables.resets();
    if resets {
        purge(&mut tables, key(pair));
    }
    // SAFETY: as kpi/c says: a place for a number.
    unsafe { is_quiet.write(resets.into()) };
    if tables.stuck.1 > 0 {
        tables.stuck.1 -= 1;
        return sys::EBUSY.cast_signed();
    }
    let Pair { domain, config, .. } = tables.pairs.remove(key(pair));
    let is_its = config.send_cq == send_queue && config.receive_cq == receive_queue;
    check!(is_its, "a queue pair is destroyed with the queues of another");
    tables.queues.release(key(send_queue));
    tables.queues.release(key(receive_queue));
    if !config.srq.is_null() {
        tables.shared.release(key(config.srq));
    }
    tables.domains.release(domain);
    0
}

impl Tables {
    /// Whether adapters reset queue pairs.
    pub(super) fn resets(&self) -> bool {
        let (stuck, refusals) = self.stuck;
        refusals == 0 || stuck == Stuck::Destroying
    }
}
