//! Queues of an adapter, which reads and writes packets where they are.

mod stuck;

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{c_int, c_void};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use sys_bindings as sys;
use sys_bindings::{kpi_qp_state as state, kpi_status as status};

use super::tables::{Locked, Tables, context, key, lock, pointer};
use super::{Fault, Pointer, QueuePair};
use crate::{check, sync, trace};

/// The key of all memory.
const LOCAL_KEY: u32 = 0x1234;
/// RFC 4391 4: what stands in front of a datagram that is received.
const GRH_BYTES: usize = 40;

pub(super) struct Domain {
    device: usize,
}

pub(super) struct AddressHandle {
    domain: usize,
    lid: u16,
}

pub(super) struct CompletionQueue {
    device: usize,
    context: Pointer,
    is_armed: bool,
    entries: usize,
    /// With the queue pairs that they are of.
    completions: VecDeque<(usize, sys::kpi_completion)>,
}

pub(super) struct SharedQueue {
    domain: usize,
    receives_max: u32,
    receives: VecDeque<Work>,
}

pub(super) struct Pair {
    domain: usize,
    config: sys::kpi_qp_config,
    context: Pointer,
    qpn: u32,
    state: state::Type,
    /// IBA 10.3.1, SQE: a datagram could not be sent, and what is posted behind it is flushed.
    is_stopped: bool,
    sends: VecDeque<Work>,
    receives: VecDeque<Work>,
    groups: BTreeSet<([u8; 16], u16)>,
}

// SAFETY: the pointers of its configuration are numbers, and the context is `kpi`'s.
unsafe impl Send for Pair {}

/// A work request.
struct Work {
    wr_id: u64,
    /// Address and bytes.
    segments: Vec<(u64, u32)>,
    /// LID and QPN.
    to: Option<(u16, u32)>,
}

/// What an adapter sent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sent {
    /// From this queue pair.
    pub qpn: u32,
    /// To this LID and queue pair, unless it was on a connection.
    pub to: Option<(u16, u32)>,
    /// The packet, with its encapsulation header.
    pub bytes: Vec<u8>,
}

impl Work {
    /// # Safety
    ///
    /// `segments` has `count` of them.
    unsafe fn new(wr_id: u64, segments: *const sys::kpi_segment, count: u32) -> Self {
        let at = |place| {
            // SAFETY: below the count.
            let segment = unsafe { segments.add(place).read() };
            check!(segment.lkey == LOCAL_KEY, "a work request with a wrong key");
            (segment.address, segment.bytes)
        };
        Self { wr_id, segments: (0..count as usize).map(at).collect(), to: None }
    }

    fn len(&self) -> usize {
        self.segments.iter().map(|(_, bytes)| *bytes as usize).sum()
    }

    /// What the adapter reads.
    fn read(&self) -> Vec<u8> {
        let mut read = Vec::new();
        for &(address, bytes) in &self.segments {
            // CAST: an address of this process.
            let from = with_exposed_provenance::<u8>(address as usize);
            // SAFETY: the packet is mapped: it is not freed, and not changed meanwhile.
            read.extend(unsafe { std::slice::from_raw_parts(from, bytes as usize) });
        }
        read
    }

    /// What the adapter writes.
    fn write(&self, mut written: &[u8]) {
        for &(address, bytes) in &self.segments {
            let (part, rest) = written.split_at(written.len().min(bytes as usize));
            // CAST: an address of this process.
            let to = with_exposed_provenance_mut::<u8>(address as usize);
            // SAFETY: the packet is mapped: it is not freed, and nobody looks at it meanwhile.
            unsafe { to.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
            written = rest;
        }
    }
}

/// Whether an adapter may read or write there.
pub(super) fn is_posted(address: u64) -> bool {
    let tables = lock();
    let is_there = |work: &Work| work.segments.iter().any(|(other, _)| *other == address);
    let shared = tables.shared.iter().flat_map(|(_, queue)| &queue.receives);
    let own = tables.pairs.iter().flat_map(|(_, pair)| pair.sends.iter().chain(&pair.receives));
    own.chain(shared).any(is_there)
}

/// The queue pair with a number.
fn find(tables: &Tables, qpn: u32) -> usize {
    let found = look_for(tables, qpn);
    check!(found.is_some(), "there is no queue pair {qpn:#x}");
    found.unwrap_or_default()
}

fn look_for(tables: &Tables, qpn: u32) -> Option<usize> {
    tables.pairs.iter().find(|(_, pair)| pair.qpn == qpn).map(|(key, _)| key)
}

pub(super) fn queue_pairs() -> Vec<QueuePair> {
    let tables = lock();
    let describe = |pair: &Pair| QueuePair {
        qpn: pair.qpn,
        is_connected: pair.config.is_connected != 0,
        shares_receives: !pair.config.srq.is_null(),
        state: pair.state,
        sends: pair.sends.len(),
        receives: pair.receives.len(),
        groups: pair.groups.len(),
    };
    tables.pairs.iter().map(|(_, pair)| describe(pair)).collect()
}

pub(super) fn shared_receives() -> usize {
    lock().shared.iter().map(|(_, queue)| queue.receives.len()).sum()
}

pub(super) fn state_of(qpn: u32) -> state::Type {
    let mut tables = lock();
    let pair = find(&tables, qpn);
    tables.pairs.get(pair).state
}

/// The oldest send of a queue pair ends. If it went well, it is among what was sent.
pub(super) fn complete_send(qpn: u32, status: status::Type) {
    check!(complete_send_if_there(qpn, status), "nothing is posted that could complete");
}

/// The same, if there is one.
pub(super) fn complete_send_if_there(qpn: u32, status: status::Type) -> bool {
    let mut tables = lock();
    let Some(key) = look_for(&tables, qpn) else { return false };
    let pair = tables.pairs.get(key);
    let Some(work) = pair.sends.pop_front() else { return false };
    let queue = pair.config.send_cq;
    if status == status::KPI_STATUS_SUCCESS && !work.segments.is_empty() {
        tables.sent.push(Sent { qpn, to: work.to, bytes: work.read() });
    }
    let is_connected = tables.pairs.get(key).config.is_connected != 0;
    if status == status::KPI_STATUS_FAILED && !is_connected {
        tables.pairs.get(key).is_stopped = true;
        tables = complete(tables, key, queue, &completion(work.wr_id, status));
        drop(flush_sends(tables, key, queue));
    } else {
        drop(complete(tables, key, queue, &completion(work.wr_id, status)));
    }
    true
}

/// A packet arrives for a queue pair that takes some, if it is there and has a receive.
pub(super) fn receive_if_there(qpn: u32, bytes: &[u8]) {
    let tables = lock();
    if let Some(key) = look_for(&tables, qpn) {
        receive(tables, key, status::KPI_STATUS_SUCCESS, Arrived::Bytes(bytes));
    }
}

/// Something arrives for the oldest receive of a queue pair, or that fails.
pub(super) fn complete_receive(qpn: u32, status: status::Type, arrived: Arrived<'_>) {
    let tables = lock();
    let key = find(&tables, qpn);
    check!(receive(tables, key, status, arrived), "nothing is posted that could complete");
}

/// Whether there was a receive.
fn receive(mut tables: Locked, key: usize, status: status::Type, arrived: Arrived<'_>) -> bool {
    let shared = tables.pairs.get(key).config.srq;
    let ring = if shared.is_null() {
        &mut tables.pairs.get(key).receives
    } else {
        &mut tables.shared.get(self::key(shared)).receives
    };
    let Some(work) = ring.pop_front() else { return false };
    let mut completion = completion(work.wr_id, status);
    let mut bytes = 0;
    if status == status::KPI_STATUS_SUCCESS {
        match arrived {
            Arrived::Length(length) => bytes = length as usize,
            Arrived::Bytes(arrived) if arrived.len() > work.len() => {
                completion.status = status::KPI_STATUS_FAILED;
            }
            Arrived::Bytes(arrived) => {
                work.write(arrived);
                bytes = arrived.len();
            }
        }
    }
    if completion.status == status::KPI_STATUS_SUCCESS {
        completion.bytes = u32::try_from(bytes).expect("a short packet");
        // CAST: small constants.
        completion.flags = sys::KPI_COMPLETION_RECEIVE as u8;
        if bytes >= GRH_BYTES && matches!(arrived, Arrived::Bytes(_)) {
            completion.flags |= sys::KPI_COMPLETION_HAS_GRH as u8;
        }
        completion.source_qpn = 0x42;
        completion.source_lid = 7;
    }
    let queue = tables.pairs.get(key).config.receive_cq;
    drop(complete(tables, key, queue, &completion));
    true
}

/// What a receive brings.
#[derive(Clone, Copy)]
pub(super) enum Arrived<'a> {
    /// So many bytes, whatever they are.
    Length(u32),
    /// These. The first 40 of a datagram are a GRH.
    Bytes(&'a [u8]),
}

/// A queue pair has an event.
pub(super) fn event(qpn: u32, event: u32) {
    let tables = lock();
    let key = find(&tables, qpn);
    raise(tables, key, event);
}

/// Adapters do what takes them a while. Whether there was anything.
pub(super) fn step() -> bool {
    let mut has_done = tell_late();
    loop {
        let mut tables = lock();
        let Some(pair) = tables.drained.pop() else { return has_done };
        if tables.pairs.has(pair) {
            has_done = true;
            raise(tables, pair, sys::kpi_qp_event::KPI_QP_LAST_WQE);
        }
    }
}

fn raise(mut tables: Locked, pair: usize, event: u32) {
    let context = tables.pairs.get(pair).context;
    let raised = tables.callbacks.and_then(|callbacks| callbacks.qp_event).expect("it is set");
    // SAFETY: the context is that of a queue pair that is not destroyed before this returns.
    let call = || unsafe { raised(context.0.cast(), event) };
    drop(tables.call(pair, || sync::call_atomic(call)));
}

fn completion(wr_id: u64, status: status::Type) -> sys::kpi_completion {
    sys::kpi_completion {
        wr_id,
        status,
        vendor_error: 0,
        bytes: 0,
        source_qpn: 0,
        qp_number: 0,
        source_lid: 0,
        flags: 0,
        raw_status: 0,
    }
}

fn complete(
    mut tables: Locked,
    pair: usize,
    queue: *mut sys::kpi_cq,
    completion: &sys::kpi_completion,
) -> Locked {
    let queue = key(queue);
    let context = tables.pairs.get(pair).context.0.cast::<sys::kpi_qp_context>();
    // SAFETY: the context is there while the queue pair is.
    let number = unsafe { (*context).number };
    let at = tables.queues.get(queue);
    check!(at.completions.len() < at.entries, "a completion queue overflows");
    at.completions.push_back((pair, sys::kpi_completion { qp_number: number, ..*completion }));
    if !std::mem::take(&mut at.is_armed) {
        return tables;
    }
    let handler = at.context;
    let completed = tables.callbacks.and_then(|callbacks| callbacks.completed);
    let completed = completed.expect("it is set");
    // SAFETY: the context is that of a completion queue that is not destroyed meanwhile.
    let call = || unsafe { completed(handler.0) };
    tables.call(queue, || sync::call_atomic(call)).0
}

fn enter(mut tables: Locked, pair: usize, next: state::Type) -> (Locked, c_int) {
    let at = tables.pairs.get(pair);
    // IBA 10.3.1: the states follow each other.
    let may_follow = match next {
        state::KPI_QPS_INIT => [state::KPI_QPS_RESET, state::KPI_QPS_INIT].contains(&at.state),
        state::KPI_QPS_RTR => at.state == state::KPI_QPS_INIT,
        state::KPI_QPS_RTS => at.state == state::KPI_QPS_RTR,
        _ => true,
    };
    let ends = [state::KPI_QPS_RESET, state::KPI_QPS_ERROR].contains(&next);
    let is_stuck = ends && !tables.resets();
    if is_stuck || !may_follow || tables.fails(Fault::Modify) {
        return (tables, sys::EINVAL.cast_signed());
    }
    let at = tables.pairs.get(pair);
    at.state = next;
    at.is_stopped = false;
    let queues = [at.config.send_cq, at.config.receive_cq];
    let (is_connected, shared) = (at.config.is_connected != 0, at.config.srq);
    match next {
        state::KPI_QPS_RESET => {
            trace::note("reset_qp");
            purge(&mut tables, pair);
        }
        state::KPI_QPS_ERROR => {
            trace::note("fail_qp");
            if is_connected && !shared.is_null() {
                tables.drained.push(pair);
            }
            tables = flush(tables, pair, queues);
        }
        _ => {}
    }
    (tables, 0)
}

/// Takes work requests and completions of a queue pair out of its queues.
fn purge(tables: &mut Tables, pair: usize) {
    let at = tables.pairs.get(pair);
    at.sends.clear();
    at.receives.clear();
    for queue in [at.config.send_cq, at.config.receive_cq] {
        tables.queues.get(key(queue)).completions.retain(|(owner, _)| *owner != pair);
    }
}

/// IBA 10.3.1.7: everything that is posted completes as flushed.
fn flush(mut tables: Locked, pair: usize, [sends, receives]: [*mut sys::kpi_cq; 2]) -> Locked {
    tables = flush_sends(tables, pair, sends);
    while tables.pairs.has(pair)
        && let Some(work) = tables.pairs.get(pair).receives.pop_front()
    {
        let flushed = completion(work.wr_id, status::KPI_STATUS_FLUSHED);
        tables = complete(tables, pair, receives, &flushed);
    }
    tables
}

fn flush_sends(mut tables: Locked, pair: usize, queue: *mut sys::kpi_cq) -> Locked {
    while tables.pairs.has(pair)
        && let Some(work) = tables.pairs.get(pair).sends.pop_front()
    {
        let flushed = completion(work.wr_id, status::KPI_STATUS_FLUSHED);
        tables = complete(tables, pair, queue, &flushed);
    }
    tables
}

/// Creates something, unless that is to fail.
fn create<T>(
    place: *mut *mut T,
    make: impl FnOnce(&mut Tables, usize) -> Result<(), c_int>,
) -> c_int {
    sync::assert_may_sleep("creating an object");
    let mut tables = lock();
    if tables.fails(Fault::Create) {
        return sys::ENOMEM.cast_signed();
    }
    let key = tables.key();
    match make(&mut tables, key) {
        Ok(()) => {
            // SAFETY: as kpi/c says: a place for a pointer.
            unsafe { place.write(pointer(key)) };
            0
        }
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_alloc_pd(
    device: *mut sys::ib_device,
    domain: *mut *mut sys::ib_pd,
) -> c_int {
    create(domain, |tables, made| {
        let device = key(device);
        tables.devices.hold(device);
        tables.domains.insert(made, Domain { device });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_dealloc_pd(domain: *mut sys::ib_pd) {
    sync::assert_may_sleep("dealloc_pd");
    trace::note("dealloc_pd");
    let mut tables = lock();
    let Domain { device } = tables.domains.remove(key(domain));
    tables.devices.release(device);
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_local_dma_lkey(domain: *mut sys::ib_pd) -> u32 {
    lock().domains.get(key(domain));
    LOCAL_KEY
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_create_cq(
    device: *mut sys::ib_device,
    entries: u32,
    handler: *mut c_void,
    queue: *mut *mut sys::kpi_cq,
) -> c_int {
    create(queue, |tables, made| {
        let device = key(device);
        if entries > tables.devices.get(device).attributes.max_cqe {
            return Err(sys::EINVAL.cast_signed());
        }
        tables.devices.hold(device);
        let created = CompletionQueue {
            device,
            context: context(handler),
            is_armed: false,
            entries: entries as usize,
            completions: VecDeque::new(),
        };
        tables.queues.insert(made, created);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_destroy_cq(queue: *mut sys::kpi_cq) {
    trace::note("destroy_cq");
    let mut tables = lock();
    tables.wait_until_idle(key(queue), "destroy_cq");
    let CompletionQueue { device, .. } = tables.queues.remove(key(queue));
    tables.devices.release(device);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_poll_cq(
    queue: *mut sys::kpi_cq,
    completions: *mut sys::kpi_completion,
    count: u32,
) -> c_int {
    let mut tables = lock();
    let at = tables.queues.get(key(queue));
    let polled = at.completions.len().min(count as usize);
    for (place, (_, completion)) in at.completions.drain(..polled).enumerate() {
        // SAFETY: below the count.
        unsafe { completions.add(place).write(completion) };
    }
    c_int::try_from(polled).expect("a short queue")
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_arm_cq(queue: *mut sys::kpi_cq) -> c_int {
    let mut tables = lock();
    let at = tables.queues.get(key(queue));
    at.is_armed = true;
    (!at.completions.is_empty()).into()
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_create_srq(
    domain: *mut sys::ib_pd,
    receives_max: u32,
    segments_max: u32,
    queue: *mut *mut sys::ib_srq,
) -> c_int {
    create(queue, |tables, made| {
        let domain = key(domain);
        let device = tables.domains.get(domain).device;
        let attributes = tables.devices.get(device).attributes;
        if receives_max > attributes.max_srq_wr || segments_max > attributes.max_srq_sge {
            return Err(sys::EINVAL.cast_signed());
        }
        tables.domains.hold(domain);
        tables.shared.insert(made, SharedQueue { domain, receives_max, receives: VecDeque::new() });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_destroy_srq(queue: *mut sys::ib_srq) -> c_int {
    sync::assert_may_sleep("destroy_srq");
    trace::note("destroy_srq");
    let mut tables = lock();
    let SharedQueue { domain, .. } = tables.shared.remove(key(queue));
    tables.domains.release(domain);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_create_qp(
    domain: *mut sys::ib_pd,
    config: *const sys::kpi_qp_config,
    pair: *mut *mut sys::ib_qp,
    qpn: *mut u32,
) -> c_int {
    // SAFETY: as kpi/c says.
    let config = unsafe { config.read() };
    create(pair, |tables, made| {
        let domain = key(domain);
        tables.domains.hold(domain);
        tables.queues.hold(key(config.send_cq));
        tables.queues.hold(key(config.receive_cq));
        if !config.srq.is_null() {
            tables.shared.hold(key(config.srq));
        }
        tables.next_qpn += 1;
        let number = tables.next_qpn;
        let created = Pair {
            domain,
            config,
            context: context(config.context.cast()),
            qpn: number,
            state: state::KPI_QPS_RESET,
            is_stopped: false,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            groups: BTreeSet::new(),
        };
        tables.pairs.insert(made, created);
        // SAFETY: as kpi/c says: a place for a number.
        unsafe { qpn.write(number) };
        Ok(())
    })
}

fn modify(pair: *mut sys::ib_qp, next: state::Type) -> c_int {
    sync::assert_may_sleep("modify_qp");
    enter(lock(), key(pair), next).1
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_init_ud_qp(
    pair: *mut sys::ib_qp,
    _port: u8,
    _pkey_index: u16,
    _qkey: u32,
) -> c_int {
    modify(pair, state::KPI_QPS_INIT)
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_init_rc_qp(
    pair: *mut sys::ib_qp,
    _port: u8,
    _pkey_index: u16,
) -> c_int {
    modify(pair, state::KPI_QPS_INIT)
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn rust_helper_ib_modify_qp(pair: *mut sys::ib_qp, next: u32) -> c_int {
    modify(pair, next)
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_restart_sends(pair: *mut sys::ib_qp) -> c_int {
    sync::assert_may_sleep("restart_sends");
    let mut tables = lock();
    let was_stopped = std::mem::take(&mut tables.pairs.get(key(pair)).is_stopped);
    if was_stopped { 0 } else { sys::EBUSY.cast_signed() }
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_set_qkey(pair: *mut sys::ib_qp, _qkey: u32) -> c_int {
    sync::assert_may_sleep("set_qkey");
    let mut tables = lock();
    let is_ready = tables.pairs.get(key(pair)).state == state::KPI_QPS_RTS;
    if !is_ready || tables.fails(Fault::Modify) { sys::EINVAL.cast_signed() } else { 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_attach_mcast(
    pair: *mut sys::ib_qp,
    mgid: *const u8,
    mlid: u16,
) -> c_int {
    sync::assert_may_sleep("attach_mcast");
    // SAFETY: as kpi/c says; bytes need no alignment.
    let mgid = unsafe { mgid.cast::<[u8; 16]>().read() };
    let mut tables = lock();
    let is_group = mgid[0] == 0xff && mlid >= 0xc000;
    if !is_group || tables.fails(Fault::Modify) {
        return sys::EINVAL.cast_signed();
    }
    tables.pairs.get(key(pair)).groups.insert((mgid, mlid));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_detach_mcast(
    pair: *mut sys::ib_qp,
    mgid: *const u8,
    mlid: u16,
) -> c_int {
    sync::assert_may_sleep("detach_mcast");
    // SAFETY: as kpi/c says; bytes need no alignment.
    let mgid = unsafe { mgid.cast::<[u8; 16]>().read() };
    let mut tables = lock();
    let was_attached = tables.pairs.get(key(pair)).groups.remove(&(mgid, mlid));
    if !was_attached || tables.fails(Fault::Modify) { sys::EINVAL.cast_signed() } else { 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_create_ah(
    domain: *mut sys::ib_pd,
    address: *const sys::kpi_address,
    handle: *mut *mut sys::ib_ah,
) -> c_int {
    // SAFETY: as kpi/c says.
    let address = unsafe { address.read() };
    check!((1..=2).contains(&address.port), "there is no port {}", address.port);
    create(handle, |tables, made| {
        let domain = key(domain);
        tables.domains.hold(domain);
        tables.handles.insert(made, AddressHandle { domain, lid: address.lid });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rust_helper_ib_destroy_ah(handle: *mut sys::ib_ah) {
    let mut tables = lock();
    let AddressHandle { domain, .. } = tables.handles.remove(key(handle));
    tables.domains.release(domain);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_post_send(
    pair: *mut sys::ib_qp,
    wr_id: u64,
    segments: *const sys::kpi_segment,
    count: u32,
    datagram: *const sys::kpi_datagram,
) -> c_int {
    let mut tables = lock();
    // SAFETY: as kpi/c says.
    let (mut work, datagram) = unsafe { (Work::new(wr_id, segments, count), datagram.as_ref()) };
    if let Some(datagram) = datagram {
        let lid = tables.handles.get(key(datagram.ah)).lid;
        work.to = Some((lid, datagram.remote_qpn));
    }
    let at = tables.pairs.get(key(pair));
    let is_connected = at.config.is_connected != 0;
    check!(datagram.is_none() == is_connected, "a datagram on a connection, or the reverse");
    check!(count <= at.config.max_send_segments, "a send has too many segments");
    // IBA 10.8.3.1: a queue that is full, or in one of the first states, takes none.
    let is_full = at.sends.len() >= at.config.max_sends as usize;
    if is_full || at.state < state::KPI_QPS_RTS || tables.fails(Fault::Post) {
        return sys::ENOMEM.cast_signed();
    }
    let at = tables.pairs.get(key(pair));
    at.sends.push_back(work);
    if at.state == state::KPI_QPS_ERROR || at.is_stopped {
        let queues = [at.config.send_cq, at.config.receive_cq];
        // It may be polled before this returns.
        drop(flush_later(tables, key(pair), queues));
    }
    0
}

/// As [`flush`], but the handler is told by the next [`step`] at the latest: who posts holds a
/// mutex, and adapters have a thread of their own for it.
fn flush_later(mut tables: Locked, pair: usize, queues: [*mut sys::kpi_cq; 2]) -> Locked {
    let armed = queues.map(|queue| std::mem::take(&mut tables.queues.get(key(queue)).is_armed));
    tables = match tables.pairs.get(pair).state {
        state::KPI_QPS_ERROR => flush(tables, pair, queues),
        _ => flush_sends(tables, pair, queues[0]),
    };
    for (queue, was_armed) in queues.into_iter().zip(armed) {
        if was_armed {
            tables.queues.get(key(queue)).is_armed = true;
            tables.to_tell.push(key(queue));
        }
    }
    tables
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_post_receive(
    pair: *mut sys::ib_qp,
    wr_id: u64,
    segments: *const sys::kpi_segment,
    count: u32,
) -> c_int {
    let mut tables = lock();
    // SAFETY: as kpi/c says.
    let work = unsafe { Work::new(wr_id, segments, count) };
    let at = tables.pairs.get(key(pair));
    check!(at.config.srq.is_null(), "a receive beside a shared queue");
    check!(count <= at.config.max_receive_segments, "a receive has too many segments");
    let is_full = at.receives.len() >= at.config.max_receives as usize;
    if is_full || at.state == state::KPI_QPS_RESET || tables.fails(Fault::Post) {
        return sys::ENOMEM.cast_signed();
    }
    let at = tables.pairs.get(key(pair));
    at.receives.push_back(work);
    if at.state == state::KPI_QPS_ERROR {
        let queues = [at.config.send_cq, at.config.receive_cq];
        drop(flush_later(tables, key(pair), queues));
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rust_helper_ib_post_srq_receive(
    queue: *mut sys::ib_srq,
    wr_id: u64,
    segments: *const sys::kpi_segment,
    count: u32,
) -> c_int {
    let mut tables = lock();
    // SAFETY: as kpi/c says.
    let work = unsafe { Work::new(wr_id, segments, count) };
    let at = tables.shared.get(key(queue));
    let is_full = at.receives.len() >= at.receives_max as usize;
    if is_full || tables.fails(Fault::Post) {
        return sys::ENOMEM.cast_signed();
    }
    tables.shared.get(key(queue)).receives.push_back(work);
    0
}

/// Handlers of completion queues that are to be told. Whether there was one.
fn tell_late() -> bool {
    let mut has_told = false;
    loop {
        let mut tables = lock();
        let Some(queue) = tables.to_tell.pop() else { return has_told };
        if !tables.queues.has(queue) {
            continue;
        }
        let at = tables.queues.get(queue);
        if at.completions.is_empty() || !std::mem::take(&mut at.is_armed) {
            continue;
        }
        let handler = at.context;
        let completed = tables.callbacks.and_then(|callbacks| callbacks.completed);
        let completed = completed.expect("it is set");
        has_told = true;
        // SAFETY: the context is that of a completion queue that is not destroyed meanwhile.
        let call = || unsafe { completed(handler.0) };
        drop(tables.call(queue, || sync::call_atomic(call)));
    }
}
