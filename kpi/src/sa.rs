//! Questions to the subnet administrator (rdma/ib_sa.h).
//!
//! What the core asks for in an action is one call here, with the same operation; the answer comes
//! to the [`Handler`]. Memberships of groups are kept per port by the stack, which sends a join
//! only if the port is not in the group yet: so a join here first gives up what was joined before,
//! as the core asks again only when the subnet manager may have forgotten it.

use alloc::sync::Arc;
use core::ffi::c_int;
use core::fmt;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU32, Ordering};

use ipoib_rs::action::{
    GlobalRoute, GroupParameters, GroupRecord, JoinRequest, OpId, PathQuery, PathRecord,
    SaCapabilities, SaError, SaRefusal,
};
use ipoib_rs::ib::{FlowLabel, Gid, IbMtu, Lid, Mgid, Mlid, Pkey, Qkey, RateCode, ServiceLevel};
use sys_bindings as sys;

use crate::client::Port;
use crate::context::{MaySleep, Unlocked};
use crate::errno::Errno;
use crate::owned::try_arc;
use crate::registry::{Id, Registry};

/// What wants to know the answers. Called by threads of the stack, or inside the call that asks:
/// with no lock of this crate held.
pub trait Handler: Send + Sync {
    /// The answer to [`Administrator::query_path`].
    fn path_answered(&self, op: OpId, answer: Result<PathRecord, SaError>, unlocked: &mut Unlocked);

    /// The answer to [`Administrator::join`].
    fn join_answered(
        &self,
        op: OpId,
        answer: Result<GroupRecord, SaError>,
        unlocked: &mut Unlocked,
    );

    /// The answer to [`Administrator::query_capabilities`].
    fn capabilities_answered(
        &self,
        op: OpId,
        answer: Result<SaCapabilities, SaError>,
        unlocked: &mut Unlocked,
    );
}

/// How long the subnet administrator is waited for, in ms.
const TIMEOUT_MS: u32 = 1000;
/// CapabilityMask2 of ClassPortInfo, IsSendOnlyFullMemberSupported (IBA 15.2.5.1).
const SEND_ONLY_FULL_MEMBER: u32 = 1 << 12;

/// A path without components.
const NO_PATH: sys::kpi_path = sys::kpi_path {
    destination: [0; 16],
    source: [0; 16],
    flow_label: 0,
    destination_lid: 0,
    source_lid: 0,
    pkey: 0,
    sl: 0,
    mtu: 0,
    rate: 0,
    hop_limit: 0,
    traffic_class: 0,
    packet_life_time: 0,
};

/// A group without components.
const NO_GROUP: sys::kpi_group = sys::kpi_group {
    mgid: [0; 16],
    port_gid: [0; 16],
    qkey: 0,
    flow_label: 0,
    mlid: 0,
    pkey: 0,
    mtu: 0,
    rate: 0,
    sl: 0,
    packet_life_time: 0,
    hop_limit: 0,
    traffic_class: 0,
    join_state: 0,
    creates: 0,
};

/// The subnet administrator, as an interface asks it.
pub struct Administrator {
    inner: Arc<Inner>,
}

struct Inner {
    port: Port,
    handler: Arc<dyn Handler>,
    /// Calls of the handler under way.
    calls: AtomicU32,
}

/// What an answer is about.
enum Entry {
    /// A question that is under way.
    Query { asker: Arc<Inner>, op: OpId, handle: Option<QueryHandle> },
    /// A join that is under way. The membership is known when the call that asks has returned; one
    /// that is given up before is freed then.
    Joining { asker: Arc<Inner>, op: OpId, mgid: Mgid, membership: Membership },
    /// A membership.
    Joined { asker: Arc<Inner>, mgid: Mgid, membership: MembershipHandle },
}

#[derive(Clone, Copy)]
enum Membership {
    Unknown,
    Known(MembershipHandle),
    Unwanted,
}

#[derive(Clone, Copy)]
struct QueryHandle {
    id: c_int,
    query: NonNull<sys::ib_sa_query>,
}

#[derive(Clone, Copy)]
struct MembershipHandle(NonNull<sys::ib_sa_multicast>);

// SAFETY: the stack's functions may be called from any thread.
unsafe impl Send for QueryHandle {}
// SAFETY: as above.
unsafe impl Send for MembershipHandle {}

static ENTRIES: Registry<Entry> = Registry::new();

/// Gives memory back when the client is unregistered.
pub(crate) fn forget() {
    ENTRIES.with(|entries| entries.trim());
}

impl Administrator {
    /// For an interface of a port.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(port: &Port, handler: Arc<dyn Handler>) -> Result<Self, Errno> {
        let inner = Inner { port: port.clone(), handler, calls: AtomicU32::new(0) };
        Ok(Self { inner: try_arc(inner)? })
    }

    /// Asks for a path. [`Handler::path_answered`] follows, unless it is cancelled.
    ///
    /// # Errors
    ///
    /// [`SaError::Unusable`]: it was not asked, and there is no answer.
    pub fn query_path(
        &self,
        op: OpId,
        query: &PathQuery,
        _may_sleep: &MaySleep,
    ) -> Result<(), SaError> {
        let PathQuery { destination, source, pkey } = *query;
        let path = sys::kpi_path {
            destination: destination.0,
            source: source.0,
            pkey: pkey.value(),
            ..NO_PATH
        };
        let port = &self.inner.port;
        self.ask(op, |id, query_id, query| {
            // SAFETY: the caller may sleep; the device exists by its invariant and has the port. It
            // writes the question down before it returns, and hands back the number, no pointer.
            unsafe {
                sys::rust_helper_sa_query_path(
                    port.device().raw().as_ptr(),
                    port.number(),
                    id.0,
                    &raw const path,
                    TIMEOUT_MS,
                    query_id,
                    query,
                )
            }
        })
    }

    /// Asks what the subnet administrator can do. [`Handler::capabilities_answered`] follows, maybe
    /// before this returns, unless it is cancelled.
    ///
    /// # Errors
    ///
    /// [`SaError::Unusable`]: it was not asked, and there is no answer.
    pub fn query_capabilities(&self, op: OpId, _may_sleep: &MaySleep) -> Result<(), SaError> {
        let port = &self.inner.port;
        self.ask(op, |id, query_id, query| {
            // SAFETY: the caller may sleep; the device exists by its invariant and has the port. It
            // hands back the number, no pointer.
            unsafe {
                sys::rust_helper_sa_query_capabilities(
                    port.device().raw().as_ptr(),
                    port.number(),
                    id.0,
                    TIMEOUT_MS,
                    query_id,
                    query,
                )
            }
        })
    }

    /// Asks to join a group. [`Handler::join_answered`] follows, unless it is cancelled.
    ///
    /// # Errors
    ///
    /// [`SaError::Unusable`]: it was not asked, and there is no answer.
    pub fn join(
        &self,
        op: OpId,
        request: &JoinRequest,
        may_sleep: &MaySleep,
    ) -> Result<(), SaError> {
        let mgid = request.mgid;
        self.leave(mgid, may_sleep);
        let entry = Entry::Joining {
            asker: Arc::clone(&self.inner),
            op,
            mgid,
            membership: Membership::Unknown,
        };
        let id = ENTRIES.with(|entries| entries.insert(entry)).map_err(|_| SaError::Unusable)?;
        let group = raw_group(request);
        let port = &self.inner.port;
        let mut membership = null_mut();
        // SAFETY: may sleep, as the argument proves; the device exists by its invariant and has the
        // port. It writes the request down before it returns, and hands back the number.
        let error = unsafe {
            sys::rust_helper_sa_join(
                port.device().raw().as_ptr(),
                port.number(),
                id.0,
                &raw const group,
                &raw mut membership,
            )
        };
        match (Errno::result(error), NonNull::new(membership)) {
            (Ok(()), Some(membership)) => {
                self.keep(id, MembershipHandle(membership));
                Ok(())
            }
            (Ok(()), None) | (Err(_), _) => {
                ENTRIES.with(|entries| entries.remove(id));
                Err(SaError::Unusable)
            }
        }
    }

    /// Leaves a group; a join of it that is under way is given up. The subnet administrator is told
    /// in the background, and when no other interface of the port is in the group.
    pub fn leave(&self, mgid: Mgid, _may_sleep: &MaySleep) {
        let asker = &self.inner;
        let is_it = |entry: &Entry| match entry {
            Entry::Joining { asker: other, mgid: group, .. }
            | Entry::Joined { asker: other, mgid: group, .. } => {
                Arc::ptr_eq(asker, other) && *group == mgid
            }
            Entry::Query { .. } => false,
        };
        // The caller may sleep.
        give_up(is_it);
    }

    /// Gives up a question or a join. An answer that is on its way may still come.
    pub fn cancel(&self, op: OpId, _may_sleep: &MaySleep) {
        let asker = &self.inner;
        let is_it = |entry: &Entry| match entry {
            Entry::Query { asker: other, op: operation, .. }
            | Entry::Joining { asker: other, op: operation, .. } => {
                Arc::ptr_eq(asker, other) && *operation == op
            }
            Entry::Joined { .. } => false,
        };
        // The caller may sleep.
        give_up(is_it);
    }

    /// Gives up everything that is under way and leaves all groups. No handler runs or is to come
    /// when it returns: it must not be called by one.
    pub fn close(self, _may_sleep: &MaySleep) {}

    fn ask(
        &self,
        op: OpId,
        ask: impl FnOnce(Id, *mut c_int, *mut *mut sys::ib_sa_query) -> c_int,
    ) -> Result<(), SaError> {
        let entry = Entry::Query { asker: Arc::clone(&self.inner), op, handle: None };
        let id = ENTRIES.with(|entries| entries.insert(entry)).map_err(|_| SaError::Unusable)?;
        let mut query_id = 0;
        let mut query = null_mut();
        if Errno::result(ask(id, &raw mut query_id, &raw mut query)).is_err() {
            ENTRIES.with(|entries| entries.remove(id));
            return Err(SaError::Unusable);
        }
        ENTRIES.with(|entries| {
            // It may have been answered meanwhile.
            if let (Some(Entry::Query { handle, .. }), Some(query)) =
                (entries.get_mut(id), NonNull::new(query))
            {
                *handle = Some(QueryHandle { id: query_id, query });
            }
        });
        Ok(())
    }

    /// The call that asked to join has returned: who frees the membership is known from now on.
    fn keep(&self, id: Id, handle: MembershipHandle) {
        let is_unwanted = ENTRIES.with(|entries| match entries.get_mut(id) {
            Some(Entry::Joining { membership: membership @ Membership::Unknown, .. }) => {
                *membership = Membership::Known(handle);
                false
            }
            Some(Entry::Joining { membership: Membership::Unwanted, .. }) => {
                entries.remove(id);
                true
            }
            // It was answered meanwhile: kept then, or, if it was refused, freed by the stack.
            Some(
                Entry::Joining { membership: Membership::Known(_), .. }
                | Entry::Joined { .. }
                | Entry::Query { .. },
            )
            | None => false,
        });
        if is_unwanted {
            free(handle);
        }
    }
}

impl fmt::Debug for Administrator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Administrator({:?})", self.inner.port)
    }
}

/// Where it may sleep, and by no handler.
impl Drop for Administrator {
    fn drop(&mut self) {
        let asker = &self.inner;
        give_up(|entry| match entry {
            Entry::Query { asker: other, .. }
            | Entry::Joining { asker: other, .. }
            | Entry::Joined { asker: other, .. } => Arc::ptr_eq(asker, other),
        });
        while self.inner.calls.load(Ordering::Acquire) > 0 {
            // SAFETY: where it may sleep.
            unsafe { sys::rust_helper_ofed_wait() };
        }
    }
}

/// What is left to do for an entry that was given up.
enum Rest {
    Nothing,
    Free(MembershipHandle),
}

/// Gives up all entries that are meant. The caller may sleep.
fn give_up(is_it: impl Fn(&Entry) -> bool) {
    loop {
        let is_meant = |entry: &Entry| {
            let is_given_up =
                matches!(entry, Entry::Joining { membership: Membership::Unwanted, .. });
            !is_given_up && is_it(entry)
        };
        let rest = ENTRIES.with(|entries| {
            let id = entries.find(is_meant)?;
            if let Some(Entry::Joining { membership: membership @ Membership::Unknown, .. }) =
                entries.get_mut(id)
            {
                *membership = Membership::Unwanted;
                return Some(Rest::Nothing);
            }
            entries.remove(id).map(|entry| match entry {
                Entry::Query { handle: Some(handle), .. } => {
                    // SAFETY: the question was not answered, or its answer waits for the mutex that
                    // is held here: so the stack still has it, and nobody else's by that number. It
                    // takes locks of the stack under which nothing of ours is called, and does not
                    // sleep.
                    unsafe { sys::rust_helper_sa_cancel(handle.id, handle.query.as_ptr()) };
                    Rest::Nothing
                }
                Entry::Query { handle: None, .. } => Rest::Nothing,
                Entry::Joining { membership: Membership::Known(handle), .. }
                | Entry::Joined { membership: handle, .. } => Rest::Free(handle),
                Entry::Joining { .. } => Rest::Nothing,
            })
        });
        match rest {
            Some(Rest::Free(handle)) => free(handle),
            Some(Rest::Nothing) => {}
            None => return,
        }
    }
}

/// The caller may sleep, and took the membership out of the table: nobody else frees it.
fn free(MembershipHandle(membership): MembershipHandle) {
    // SAFETY: as the comment above says. It returns when no answer about it runs or is to come; no
    // handler calls this for the membership that it is told of.
    unsafe { sys::rust_helper_sa_leave(membership.as_ptr()) }
}

/// Calls the handler of an asker, which is waited for when the asker is dropped.
fn call(asker: &Inner, call: impl FnOnce(&dyn Handler, &mut Unlocked)) {
    // SAFETY: the stack calls from a thread of its own, or inside a question, whose caller may
    // sleep; the mutex of the table is not held here.
    call(&*asker.handler, &mut unsafe { Unlocked::assume() });
    asker.calls.fetch_sub(1, Ordering::Release);
}

/// Takes a question out of the table, to call its handler.
fn take_query(id: u64) -> Option<(Arc<Inner>, OpId)> {
    ENTRIES.with(|entries| {
        let Some(Entry::Query { .. }) = entries.get_mut(Id(id)) else { return None };
        let Some(Entry::Query { asker, op, .. }) = entries.remove(Id(id)) else { return None };
        asker.calls.fetch_add(1, Ordering::Relaxed);
        Some((asker, op))
    })
}

/// # Safety
///
/// `path` is NULL or a path.
pub(crate) unsafe extern "C" fn path_answered(id: u64, error: c_int, path: *const sys::kpi_path) {
    let Some((asker, op)) = take_query(id) else { return };
    // SAFETY: as the caller says.
    let path = unsafe { path.as_ref() };
    let answer = match (Errno::result(error), path) {
        (Ok(()), Some(path)) => path_record(path).ok_or(SaError::Unusable),
        (Ok(()), None) => Err(SaError::Unusable),
        // The stack does not say which status it was. What the subnet administrator says of a GID
        // that it does not know is ERR_NO_RECORDS.
        (Err(error), _) => Err(sa_error(error, SaRefusal::NoRecords)),
    };
    call(&asker, |handler, unlocked| handler.path_answered(op, answer, unlocked));
}

/// # Safety
///
/// None.
pub(crate) unsafe extern "C" fn capabilities_answered(id: u64, error: c_int, mask2: u32) {
    let Some((asker, op)) = take_query(id) else { return };
    let answer = match Errno::result(error) {
        Ok(()) => Ok(SaCapabilities { send_only_full_member: mask2 & SEND_ONLY_FULL_MEMBER != 0 }),
        Err(error) => Err(sa_error(error, SaRefusal::RequestInvalid)),
    };
    call(&asker, |handler, unlocked| handler.capabilities_answered(op, answer, unlocked));
}

/// # Safety
///
/// `membership` is that of the join with this number, `group` is NULL or its group.
pub(crate) unsafe extern "C" fn group_answered(
    id: u64,
    error: c_int,
    membership: *mut sys::ib_sa_multicast,
    group: *const sys::kpi_group,
) -> c_int {
    /// Not 0 has the stack free the membership.
    const FREE: c_int = 1;
    const KEEP: c_int = 0;

    let result = Errno::result(error);
    let id = Id(id);
    // Whoever takes an entry out of the table frees the membership, so it is freed once.
    let (verdict, told) = ENTRIES.with(|entries| {
        let Some(entry) = entries.get_mut(id) else { return (KEEP, None) };
        match entry {
            Entry::Joining { membership: Membership::Unwanted, .. } => (KEEP, None),
            Entry::Joining { asker, op, mgid, .. } => {
                asker.calls.fetch_add(1, Ordering::Relaxed);
                let told = Some((Arc::clone(asker), *op));
                if let (Ok(()), Some(membership)) = (result, NonNull::new(membership)) {
                    let (asker, mgid) = (Arc::clone(asker), *mgid);
                    let membership = MembershipHandle(membership);
                    *entry = Entry::Joined { asker, mgid, membership };
                    return (KEEP, told);
                }
                entries.remove(id);
                (FREE, told)
            }
            // The membership is over (-ENETRESET): the core hears of the cause by itself.
            Entry::Joined { .. } | Entry::Query { .. } => {
                entries.remove(id);
                (FREE, None)
            }
        }
    });
    if let Some((asker, op)) = told {
        // SAFETY: as the caller says.
        let group = unsafe { group.as_ref() };
        let answer = match (result, group) {
            (Ok(()), Some(group)) => group_record(group).ok_or(SaError::Unusable),
            (Ok(()), None) => Err(SaError::Unusable),
            (Err(error), _) => Err(sa_error(error, SaRefusal::RequestInvalid)),
        };
        call(&asker, |handler, unlocked| handler.join_answered(op, answer, unlocked));
    }
    verdict
}

/// What the stack says of a question that was not answered well. It has one error for every status
/// that is not 0, which is told as `refusal`.
fn sa_error(error: Errno, refusal: SaRefusal) -> SaError {
    match error {
        Errno::ETIMEDOUT => SaError::TimedOut,
        Errno::EINVAL => SaError::Refused(refusal),
        _ => SaError::Unusable,
    }
}

fn path_record(path: &sys::kpi_path) -> Option<PathRecord> {
    let route = global_route(path.flow_label, path.hop_limit, path.traffic_class)?;
    Some(PathRecord {
        destination: Gid(path.destination),
        lid: Lid::new(path.destination_lid)?,
        sl: ServiceLevel::new(path.sl)?,
        mtu: IbMtu::from_code(path.mtu)?,
        rate: RateCode::new(path.rate)?,
        // IBA 8.3.6: a packet with a hop limit of 0 or 1 does not pass a router.
        global: (path.hop_limit > 1).then_some(route),
    })
}

fn global_route(flow_label: u32, hop_limit: u8, traffic_class: u8) -> Option<GlobalRoute> {
    Some(GlobalRoute { flow_label: FlowLabel::new(flow_label)?, hop_limit, traffic_class })
}

fn raw_group(request: &JoinRequest) -> sys::kpi_group {
    let JoinRequest { mgid, port_gid, pkey, membership, create } = *request;
    let mut group = sys::kpi_group {
        mgid: mgid.gid().0,
        port_gid: port_gid.0,
        pkey: pkey.value(),
        join_state: membership.join_state(),
        ..NO_GROUP
    };
    if let Some(GroupParameters { qkey, mtu, rate, sl, packet_life_time: _, global }) = create {
        group.creates = 1;
        group.qkey = qkey.0;
        group.mtu = mtu.code();
        group.rate = rate.code();
        group.sl = sl.value();
        group.flow_label = global.flow_label.value();
        group.hop_limit = global.hop_limit;
        group.traffic_class = global.traffic_class;
    }
    group
}

fn group_record(group: &sys::kpi_group) -> Option<GroupRecord> {
    Some(GroupRecord {
        mgid: Mgid::new(Gid(group.mgid))?,
        mlid: Mlid::new(group.mlid)?,
        pkey: Pkey::new(group.pkey)?,
        parameters: GroupParameters {
            qkey: Qkey(group.qkey),
            mtu: IbMtu::from_code(group.mtu)?,
            rate: RateCode::new(group.rate)?,
            sl: ServiceLevel::new(group.sl)?,
            packet_life_time: group.packet_life_time,
            global: global_route(group.flow_label, group.hop_limit, group.traffic_class)?,
        },
    })
}
