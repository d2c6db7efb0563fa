//! Queue pairs: one of unreliable datagrams per interface, one of a reliable connection per
//! direction and peer (IBA 10.2.4).

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ptr::{NonNull, null, null_mut};
use core::sync::atomic::{AtomicU64, Ordering};

use ipoib_rs::action::ConnectionId;
use ipoib_rs::ib::{Mgid, Mlid, PkeyIndex, Qkey, Qpn};
use sys_bindings as sys;

use super::{
    AddressHandle, CompletionQueue, Kept, ProtectionDomain, QueueId, Quiet, SharedReceiveQueue,
};
use crate::client::{Device, Port};
use crate::context::{MaySleep, Unlocked};
use crate::dma::{Chain, ReceiveSlot, SendSlot, Work};
use crate::errno::Errno;
use crate::owned::{try_arc, try_box};
use crate::registry::Registry;

/// The queue pair of an interface: unreliable datagrams (UD).
#[derive(Debug)]
pub struct DatagramQueuePair {
    queue: Queue,
    port: Port,
}

/// What a datagram queue pair is made of.
#[derive(Debug)]
pub struct DatagramConfig<'a> {
    /// The domain of its buffers.
    pub domain: &'a ProtectionDomain,
    /// The port that it sends from.
    pub port: &'a Port,
    /// Where sends complete.
    pub send_queue: &'a CompletionQueue,
    /// Where receives complete.
    pub receive_queue: &'a CompletionQueue,
    /// Sends posted at the same time.
    pub sends_max: u32,
    /// Receives posted at the same time.
    pub receives_max: u32,
    /// Segments of a send.
    pub send_segments_max: usize,
    /// Segments of a receive.
    pub receive_segments_max: usize,
}

/// Where a datagram goes.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// The way.
    pub handle: &'a AddressHandle,
    /// The queue pair at its end.
    pub remote_qpn: Qpn,
    /// The queue key to put into it.
    pub qkey: Qkey,
    /// Whether the adapter is to compute the checksums. Only if it says that it can, see
    /// [`crate::client::DeviceAttributes::checksums_datagrams`].
    pub wants_checksums: bool,
}

impl DatagramQueuePair {
    /// Creates one, in the state RESET. It gets no multicast of its own if the adapter can keep it
    /// away.
    ///
    /// # Errors
    ///
    /// What the adapter says.
    pub fn new(config: &DatagramConfig<'_>, _may_sleep: &MaySleep) -> Result<Self, Errno> {
        let completions = [config.send_queue, config.receive_queue].map(Clone::clone);
        let domain = config.domain.clone();
        let parts = try_arc(Parts { domain, completions, shared: None })?;
        let number = sys::kpi_qp_context { number: 0 };
        let blocks_loopback = config.port.device().attributes().blocks_loopback;
        let raw = sys::kpi_qp_config {
            send_cq: config.send_queue.raw(),
            receive_cq: config.receive_queue.raw(),
            srq: null_mut(),
            context: null_mut(),
            max_sends: config.sends_max,
            max_receives: config.receives_max,
            max_send_segments: config.send_segments_max as u32,
            max_receive_segments: config.receive_segments_max as u32,
            is_connected: 0,
            blocks_loopback: blocks_loopback.into(),
            reserved: [0; 6],
        };
        // The caller may sleep.
        let queue = Queue::new(raw, number, None, parts)?;
        Ok(Self { queue, port: config.port.clone() })
    }

    /// The number.
    pub fn qpn(&self) -> Qpn {
        self.queue.qpn
    }

    /// From RESET through INIT and RTR to RTS.
    ///
    /// # Errors
    ///
    /// What the adapter says; the queue pair may be in any state on the way, and goes back to RESET
    /// from there.
    pub fn ready_to_send(
        &self,
        pkey_index: PkeyIndex,
        qkey: Qkey,
        _may_sleep: &MaySleep,
    ) -> Result<(), Errno> {
        // SAFETY: may sleep, as the argument proves; the queue pair exists by its invariant.
        let error = unsafe {
            sys::rust_helper_ib_init_ud_qp(
                self.queue.raw(),
                self.port.number(),
                pkey_index.0,
                qkey.0,
            )
        };
        Errno::result(error)?;
        self.queue.modify(sys::kpi_qp_state::KPI_QPS_RTR)?;
        self.queue.modify(sys::kpi_qp_state::KPI_QPS_RTS)
    }

    /// To another queue key, from RTS to RTS.
    ///
    /// # Errors
    ///
    /// What the adapter says.
    pub fn set_qkey(&self, qkey: Qkey, _may_sleep: &MaySleep) -> Result<(), Errno> {
        // SAFETY: may sleep, as the argument proves; the queue pair exists by its invariant.
        Errno::result(unsafe { sys::rust_helper_ib_set_qkey(self.queue.raw(), qkey.0) })
    }

    /// From SQE, where a send that failed has brought it, to RTS (IBA 10.3.1).
    ///
    /// # Errors
    ///
    /// It is in another state ([`Errno::EBUSY`]), or what the adapter says.
    pub fn restart_sends(&self, _may_sleep: &MaySleep) -> Result<(), Errno> {
        // SAFETY: may sleep, as the argument proves; the queue pair exists by its invariant.
        Errno::result(unsafe { sys::rust_helper_ib_restart_sends(self.queue.raw()) })
    }

    /// To the error state: everything posted completes as flushed.
    ///
    /// # Errors
    ///
    /// What the adapter says.
    pub fn fail(&self, _may_sleep: &MaySleep) -> Result<(), Errno> {
        self.queue.modify(sys::kpi_qp_state::KPI_QPS_ERROR)
    }

    /// To RESET. With the proof, slots give back what was posted and did not complete.
    ///
    /// # Errors
    ///
    /// What the adapter says.
    pub fn reset(&self, _may_sleep: &MaySleep) -> Result<Quiet, Errno> {
        self.queue.reset()
    }

    /// Receives the packets of a multicast group from now on (IBA 11.3.1).
    ///
    /// # Errors
    ///
    /// What the adapter says.
    pub fn attach(&self, mgid: Mgid, mlid: Mlid, _may_sleep: &MaySleep) -> Result<(), Errno> {
        let gid = mgid.gid();
        // SAFETY: may sleep, as the argument proves; the queue pair exists by its invariant.
        Errno::result(unsafe {
            sys::rust_helper_ib_attach_mcast(self.queue.raw(), gid.0.as_ptr(), mlid.value())
        })
    }

    /// Receives them no longer (IBA 11.3.2).
    ///
    /// # Errors
    ///
    /// What the adapter says.
    pub fn detach(&self, mgid: Mgid, mlid: Mlid, _may_sleep: &MaySleep) -> Result<(), Errno> {
        let gid = mgid.gid();
        // SAFETY: may sleep, as the argument proves; the queue pair exists by its invariant.
        Errno::result(unsafe {
            sys::rust_helper_ib_detach_mcast(self.queue.raw(), gid.0.as_ptr(), mlid.value())
        })
    }

    /// Posts a send. The slot has the packet until the completion came.
    ///
    /// # Errors
    ///
    /// The packet, if it cannot be mapped, the slot is in use, or the adapter refused.
    pub fn post_send<P: Chain>(
        &self,
        wr_id: u64,
        datagram: &Datagram<'_>,
        packet: P,
        slot: &mut SendSlot<P>,
    ) -> Result<(), P> {
        let raw = sys::kpi_datagram {
            ah: datagram.handle.raw(),
            remote_qpn: datagram.remote_qpn.value(),
            qkey: datagram.qkey.0,
            wants_ip_csum: datagram.wants_checksums.into(),
            reserved: [0; 7],
        };
        self.queue.post_send(wr_id, &raw const raw, packet, slot)
    }

    /// Posts a receive of `bytes` bytes, with a buffer of its own.
    ///
    /// # Errors
    ///
    /// No memory, the slot is in use, or the adapter refused.
    pub fn post_receive<P: Chain>(
        &self,
        wr_id: u64,
        bytes: usize,
        slot: &mut ReceiveSlot<P>,
    ) -> Result<(), Errno> {
        self.queue.post_receive(wr_id, bytes, slot)
    }

    /// Destroys it. With the proof, slots give back what was posted and did not complete.
    ///
    /// # Errors
    ///
    /// The adapter keeps it, see [`Kept`].
    pub fn close(self, _may_sleep: &MaySleep) -> Result<Quiet, Kept> {
        self.queue.close()
    }
}

/// The queue pair of a connection: one direction of a reliable connection (RC).
#[derive(Debug)]
pub struct ConnectedQueuePair {
    queue: Queue,
    port: Port,
    connection: ConnectionId,
}

/// What the queue pair of a connection is made of.
#[derive(Debug)]
pub struct ConnectedConfig<'a> {
    /// The domain of its buffers.
    pub domain: &'a ProtectionDomain,
    /// The port that it sends from.
    pub port: &'a Port,
    /// Where sends complete.
    pub send_queue: &'a CompletionQueue,
    /// Where receives complete.
    pub receive_queue: &'a CompletionQueue,
    /// Where receives come from; `None` if it has receives of its own, or none.
    pub shared_receives: Option<&'a SharedReceiveQueue>,
    /// Sends posted at the same time.
    pub sends_max: u32,
    /// Receives of its own posted at the same time.
    pub receives_max: u32,
    /// Segments of a send.
    pub send_segments_max: usize,
    /// Segments of a receive of its own.
    pub receive_segments_max: usize,
    /// The connection, whose place stands in its completions.
    pub connection: ConnectionId,
}

/// What wants to know of events of the queue pair of a connection. Called by the interrupt of the
/// HCA or by a thread of its driver; the queue pair does not go meanwhile.
pub trait QueuePairHandler: Send + Sync {
    /// The adapter has taken its last receive for it (IBA 11.6.3.1).
    fn last_wqe_reached(&self, connection: ConnectionId, unlocked: &mut Unlocked);

    /// It failed.
    fn queue_pair_failed(&self, connection: ConnectionId, unlocked: &mut Unlocked);
}

impl ConnectedQueuePair {
    /// Creates one, in the state RESET.
    ///
    /// # Errors
    ///
    /// What the adapter says.
    pub fn new(
        config: &ConnectedConfig<'_>,
        handler: Arc<dyn QueuePairHandler>,
        _may_sleep: &MaySleep,
    ) -> Result<Self, Errno> {
        let connection = config.connection;
        // CAST: a place in a table of the core, which numbers them with 32 bits.
        let number = sys::kpi_qp_context { number: connection.index() as u32 };
        let events = Some(Events { connection, handler });
        let completions = [config.send_queue, config.receive_queue].map(Clone::clone);
        let (domain, shared) = (config.domain.clone(), config.shared_receives.cloned());
        let parts = try_arc(Parts { domain, completions, shared })?;
        let raw = sys::kpi_qp_config {
            send_cq: config.send_queue.raw(),
            receive_cq: config.receive_queue.raw(),
            srq: config.shared_receives.map_or(null_mut(), SharedReceiveQueue::raw),
            context: null_mut(),
            max_sends: config.sends_max,
            max_receives: config.receives_max,
            max_send_segments: config.send_segments_max as u32,
            max_receive_segments: config.receive_segments_max as u32,
            is_connected: 1,
            blocks_loopback: 0,
            reserved: [0; 6],
        };
        // The caller may sleep.
        let queue = Queue::new(raw, number, events, parts)?;
        Ok(Self { queue, port: config.port.clone(), connection })
    }

    /// The number.
    pub fn qpn(&self) -> Qpn {
        self.queue.qpn
    }

    /// The connection.
    pub fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Whether it shares its receives.
    pub fn shares_receives(&self) -> bool {
        self.queue.parts.shared.is_some()
    }

    /// To the error state: everything posted completes as flushed, and with a shared receive queue
    /// [`QueuePairHandler::last_wqe_reached`] follows.
    ///
    /// # Errors
    ///
    /// What the adapter says.
    pub fn fail(&self, _may_sleep: &MaySleep) -> Result<(), Errno> {
        self.queue.modify(sys::kpi_qp_state::KPI_QPS_ERROR)
    }

    /// Posts a send. The slot has the packet until the completion came.
    ///
    /// # Errors
    ///
    /// The packet, if it cannot be mapped, the slot is in use, or the adapter refused.
    pub fn post_send<P: Chain>(
        &self,
        wr_id: u64,
        packet: P,
        slot: &mut SendSlot<P>,
    ) -> Result<(), P> {
        self.queue.post_send(wr_id, null(), packet, slot)
    }

    /// Posts a send without data, whose completion says that no earlier one is to come.
    ///
    /// # Errors
    ///
    /// The adapter refused.
    pub fn post_marker(&self, wr_id: u64) -> Result<(), Errno> {
        self.queue.post_marker(wr_id)
    }

    /// Posts a receive of its own of `bytes` bytes, with a buffer of its own.
    ///
    /// # Errors
    ///
    /// No memory, the slot is in use, or the adapter refused.
    pub fn post_receive<P: Chain>(
        &self,
        wr_id: u64,
        bytes: usize,
        slot: &mut ReceiveSlot<P>,
    ) -> Result<(), Errno> {
        self.queue.post_receive(wr_id, bytes, slot)
    }

    /// Destroys it. With the proof, slots give back what was posted and did not complete.
    ///
    /// # Errors
    ///
    /// The adapter keeps it, see [`Kept`].
    pub fn close(self, _may_sleep: &MaySleep) -> Result<Quiet, Kept> {
        self.queue.close()
    }

    /// From RESET to INIT. The caller may sleep.
    pub(crate) fn init(&self, pkey_index: PkeyIndex) -> Result<(), Errno> {
        // SAFETY: the caller may sleep; the queue pair exists by its invariant.
        Errno::result(unsafe {
            sys::rust_helper_ib_init_rc_qp(self.queue.raw(), self.port.number(), pkey_index.0)
        })
    }

    pub(crate) fn raw(&self) -> NonNull<sys::ib_qp> {
        self.queue.pair
    }
}

/// What both kinds have.
///
/// # Invariants
///
/// `pair` is created with `context`, which came from a box, and with what `parts` has. It is
/// destroyed at most once, by who has set `is_closed`.
#[derive(Debug)]
struct Queue {
    pair: NonNull<sys::ib_qp>,
    qpn: Qpn,
    /// The [`QueueId`] of its present life.
    id: AtomicU64,
    context: NonNull<Context>,
    parts: Arc<Parts>,
    send_segments_max: usize,
    is_closed: bool,
}

/// What it is made of.
#[derive(Debug)]
struct Parts {
    domain: ProtectionDomain,
    completions: [CompletionQueue; 2],
    shared: Option<SharedReceiveQueue>,
}

// SAFETY: verbs may be called from any thread; the context is `Send` and `Sync` and not changed.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// What the adapter's events and completions are about. The C half reads its first field.
#[repr(C)]
struct Context {
    raw: sys::kpi_qp_context,
    events: Option<Events>,
    /// They stay as long as the context: the adapter may use them as long.
    _parts: Arc<Parts>,
}

struct Events {
    connection: ConnectionId,
    handler: Arc<dyn QueuePairHandler>,
}

impl Queue {
    /// The caller may sleep.
    fn new(
        mut raw: sys::kpi_qp_config,
        number: sys::kpi_qp_context,
        events: Option<Events>,
        parts: Arc<Parts>,
    ) -> Result<Self, Errno> {
        let context = try_box(Context { raw: number, events, _parts: Arc::clone(&parts) })?;
        let context = NonNull::from(Box::leak(context));
        let domain = parts.domain.raw();
        raw.context = context.as_ptr().cast();
        let mut pair = null_mut();
        let mut qpn = 0;
        // SAFETY: the callers may sleep. The domain and the queues exist by their invariants; the
        // context stays where it is until the queue pair is destroyed.
        let error = unsafe {
            sys::rust_helper_ib_create_qp(domain, &raw const raw, &raw mut pair, &raw mut qpn)
        };
        let pair = super::created(error, pair).inspect_err(|_| {
            // SAFETY: it came from a box, and an error says that nobody else has it.
            drop(unsafe { Box::from_raw(context.as_ptr()) });
        })?;
        // INVARIANT: just created with these.
        let queue = Self {
            pair,
            qpn: Qpn::new(qpn & Qpn::MULTICAST.value()).unwrap_or(Qpn::MULTICAST),
            id: AtomicU64::new(QueueId::draw().0),
            context,
            parts,
            send_segments_max: raw.max_send_segments as usize,
            is_closed: false,
        };
        Ok(queue)
    }

    fn raw(&self) -> *mut sys::ib_qp {
        self.pair.as_ptr()
    }

    fn id(&self) -> QueueId {
        QueueId(self.id.load(Ordering::Relaxed))
    }

    fn work(&self, wr_id: u64) -> Work<'_> {
        Work { wr_id, queue: self.id(), domain: &self.parts.domain }
    }

    /// The caller may sleep.
    fn modify(&self, state: sys::kpi_qp_state::Type) -> Result<(), Errno> {
        // SAFETY: the callers may sleep; the queue pair exists by its invariant.
        Errno::result(unsafe { sys::rust_helper_ib_modify_qp(self.raw(), state) })
    }

    /// The caller may sleep.
    fn reset(&self) -> Result<Quiet, Errno> {
        self.modify(sys::kpi_qp_state::KPI_QPS_RESET)?;
        // What is posted from now on is of another life.
        let id = self.id.swap(QueueId::draw().0, Ordering::Relaxed);
        Ok(Quiet(QueueId(id)))
    }

    /// The caller may sleep.
    fn close(mut self) -> Result<Quiet, Kept> {
        self.end()
    }

    /// The caller may sleep.
    fn end(&mut self) -> Result<Quiet, Kept> {
        self.is_closed = true;
        let (result, is_quiet) = self.destroy();
        let quiet = Quiet(self.id());
        let Err(error) = result else { return Ok(quiet) };
        let what = format_args!("queue pair {:#x}", self.qpn.value());
        super::keep(&self.parts.domain, what, error);
        let Self { pair, qpn, context, send_segments_max, is_closed, .. } = *self;
        let (id, parts) = (AtomicU64::new(self.id().0), Arc::clone(&self.parts));
        // INVARIANT: the same one, and closed.
        Self { pair, qpn, id, context, parts, send_segments_max, is_closed }.keep();
        Err(Kept { quiet: is_quiet.then_some(quiet) })
    }

    /// Whether it is gone, and if not, whether it is reset at least. The caller may sleep.
    fn destroy(&self) -> (Result<(), Errno>, bool) {
        let [send, receive] = &self.parts.completions;
        let mut is_quiet = 0;
        // SAFETY: created by the invariant. The C half resets the queue pair first and then waits
        // for polls of its completion queues, so that no completion of it is being looked at; the
        // verb returns when no event handler runs or is to come.
        let error = unsafe {
            sys::rust_helper_ib_destroy_qp(self.raw(), send.raw(), receive.raw(), &raw mut is_quiet)
        };
        let result = Errno::result(error).inspect(|()| {
            // SAFETY: from a box by the invariant, and nobody else knows it any more.
            drop(unsafe { Box::from_raw(self.context.as_ptr()) });
        });
        (result, is_quiet != 0)
    }

    /// It stays, with all that it is made of. Without memory that is for ever, and the context has
    /// its parts.
    fn keep(self) {
        // INVARIANT: closed, so dropping it destroys nothing, and the context has its parts, too.
        let _ = KEPT.with(|kept| kept.insert(self));
    }

    fn post_send<P: Chain>(
        &self,
        wr_id: u64,
        datagram: *const sys::kpi_datagram,
        packet: P,
        slot: &mut SendSlot<P>,
    ) -> Result<(), P> {
        slot.post(&self.work(wr_id), self.send_segments_max, packet, |segments| {
            // SAFETY: the queue pair exists by its invariant, and so does the address handle, which
            // the caller lends. It does not sleep, and takes locks of the adapter only. The
            // segments are mapped, and stay so until the slot is told that the adapter is done.
            unsafe {
                sys::rust_helper_ib_post_send(
                    self.raw(),
                    wr_id,
                    segments.as_ptr(),
                    // CAST: at most SEGMENTS_MAX.
                    segments.len() as u32,
                    datagram,
                )
            }
        })
    }

    fn post_marker(&self, wr_id: u64) -> Result<(), Errno> {
        // SAFETY: as in `post_send`, without segments.
        Errno::result(unsafe {
            sys::rust_helper_ib_post_send(self.raw(), wr_id, null(), 0, null())
        })
    }

    fn post_receive<P: Chain>(
        &self,
        wr_id: u64,
        bytes: usize,
        slot: &mut ReceiveSlot<P>,
    ) -> Result<(), Errno> {
        slot.post(&self.work(wr_id), bytes, |segments| {
            // SAFETY: as in `post_send`.
            unsafe {
                sys::rust_helper_ib_post_receive(
                    self.raw(),
                    wr_id,
                    segments.as_ptr(),
                    // CAST: at most SEGMENTS_MAX.
                    segments.len() as u32,
                )
            }
        })
    }
}

/// Queue pairs that adapters did not destroy.
static KEPT: Registry<Queue> = Registry::new();

/// Has an adapter destroy one of those that it kept.
pub(crate) fn destroy_again(device: &Device, _may_sleep: &MaySleep) {
    let queue = KEPT.with(|kept| {
        let id = kept.find(|queue| queue.parts.domain.device().is(device))?;
        let queue = kept.remove(id);
        kept.trim();
        queue
    });
    let Some(queue) = queue else { return };
    match queue.destroy() {
        (Ok(()), _) => {
            let what = format_args!("queue pair {:#x}", queue.qpn.value());
            super::give_back(&queue.parts.domain, what);
        }
        (Err(_), _) => queue.keep(),
    }
}

/// Where it may sleep. No handler may be waiting for it.
impl Drop for Queue {
    fn drop(&mut self) {
        if !self.is_closed {
            // Who wants to know calls `close`; the log says it.
            let _ = self.end();
        }
    }
}

/// # Safety
///
/// `context` is that of a queue pair that is not destroyed.
pub(super) unsafe fn event(context: *mut sys::kpi_qp_context, event: u32) {
    // SAFETY: a context stays where it is until its queue pair is destroyed, and what the C half
    // has of it is its first field.
    let context = unsafe { &*context.cast::<Context>() };
    let Some(Events { connection, handler }) = &context.events else { return };
    // SAFETY: the driver calls from a thread of its own, with its own locks held only.
    let mut unlocked = unsafe { Unlocked::assume() };
    match event {
        sys::kpi_qp_event::KPI_QP_LAST_WQE => handler.last_wqe_reached(*connection, &mut unlocked),
        sys::kpi_qp_event::KPI_QP_FAILED => handler.queue_pair_failed(*connection, &mut unlocked),
        _ => {}
    }
}
