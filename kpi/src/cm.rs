//! Reliable connections by the communication manager (rdma/ib_cm.h).
//!
//! A [`Connection`] is a queue pair and a communication id: the id goes first, and the stack waits
//! for its events meanwhile, so an event always finds the queue pair there. What an event is about
//! is a number (see [`crate::registry`]); one that is stale is dropped.
//!
//! The order of calls for a connection that this side opens:
//! [`Connection::open`], then, when the caller finds it in its tables, [`Connection::request`]; the
//! queue pair is brought to RTS and a RTU sent before [`Handler::connect_answered`] says that it is
//! there. For one that a peer asks for: [`Handler::connect_requested`], [`Connection::accept`],
//! [`Connection::prepare`] (the queue pair is ready: receives are to be posted now),
//! [`Connection::reply`].
//!
//! What destroys an id ([`Manager::unlisten`], [`Manager::refuse`], [`Connection::close`]) waits
//! until its last message has left the adapter. An adapter that is stuck makes that long: such
//! calls belong into a thread on which nothing else waits.

mod event;

use alloc::sync::Arc;
use core::fmt;
use core::ptr::{NonNull, null, null_mut};

use ipoib_rs::action::{
    ConnectError, ConnectRequest, ConnectionId, ConnectionParameters, OpId, RequestId,
};
use ipoib_rs::ib::{Pkey, Psn, Qpn, ServiceId};
use ipoib_rs::interface::IncomingRequest;
use sys_bindings as sys;

use crate::client::{PartitionChoice, Port};
use crate::context::{MaySleep, Unlocked};
use crate::errno::Errno;
use crate::owned::try_arc;
use crate::registry::{Id, Registry};
use crate::verbs::{ConnectedQueuePair, Kept, Quiet};

pub use ipoib_rs::action::RejectReason;

pub(crate) use event::{event, requested};

/// What wants to know of connections. Called by threads of the stack, with no lock of this crate
/// held. It must not drop what it is told about: that waits for the call to return.
pub trait Handler: Send + Sync {
    /// A peer asks for a connection in a partition.
    ///
    /// # Errors
    ///
    /// The reason with which to refuse it.
    fn connect_requested(
        &self,
        request: IncomingRequest,
        pkey: Pkey,
        unlocked: &mut Unlocked,
    ) -> Result<(), RejectReason>;

    /// The answer to [`Connection::request`].
    fn connect_answered(
        &self,
        op: OpId,
        answer: Result<ConnectionParameters, ConnectError>,
        unlocked: &mut Unlocked,
    );

    /// A connection that was there is over. Told once.
    fn connection_lost(&self, connection: ConnectionId, unlocked: &mut Unlocked);
}

/// A message that is not answered within this time is sent again (IBA 12.7.4): about 0.54 s.
const RESPONSE_TIMEOUT: u8 = 17;
/// How often. In all it takes as long as the core keeps packets for the answer.
const RETRIES_MAX: u8 = 5;
/// What the stack takes a packet to be on its way at most, 4.096 us * 2^14: with it, a peer has
/// about 0.13 s for an acknowledgement.
const PACKET_LIFE_TIME: u8 = 14;
/// REQs that wait to be accepted, per interface. Above it, the oldest is refused: the core may have
/// given it up without a word.
const REQUESTS_MAX: usize = 64;

/// The connections of an interface.
pub struct Manager {
    inner: Arc<Inner>,
}

struct Inner {
    port: Port,
    handler: Arc<dyn Handler>,
}

/// What an event is about.
enum Entry {
    /// A service that is listened for.
    Listener { manager: Arc<Inner>, cm_id: CmId },
    /// A REQ that is not answered.
    Requested { manager: Arc<Inner>, cm_id: CmId },
    /// A connection.
    Connection {
        manager: Arc<Inner>,
        connection: ConnectionId,
        queue_pair: QueuePair,
        state: State,
    },
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Nothing was sent.
    Idle,
    /// A REQ was sent for an operation.
    Requesting(OpId),
    /// It is there, or will be when the peer has our REP.
    Live,
    /// It is over, and the handler knows.
    Over,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct CmId(NonNull<sys::ib_cm_id>);

#[derive(Clone, Copy)]
struct QueuePair(NonNull<sys::ib_qp>);

// SAFETY: the stack's functions may be called from any thread.
unsafe impl Send for CmId {}
// SAFETY: as above; nothing is reached through a shared reference but by the stack.
unsafe impl Sync for CmId {}
// SAFETY: as above.
unsafe impl Send for QueuePair {}

static ENTRIES: Registry<Entry> = Registry::new();

/// Gives memory back when the client is unregistered.
pub(crate) fn forget() {
    ENTRIES.with(|entries| entries.trim());
}

impl Manager {
    /// For an interface of a port.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn new(port: &Port, handler: Arc<dyn Handler>) -> Result<Self, Errno> {
        Ok(Self { inner: try_arc(Inner { port: port.clone(), handler })? })
    }

    /// Listens for REQs to a service.
    ///
    /// # Errors
    ///
    /// What the stack says; somebody may be listening already.
    pub fn listen(&self, service: ServiceId, _may_sleep: &MaySleep) -> Result<(), Errno> {
        // The caller may sleep, here and below.
        let (id, cm_id) = self.create(|manager, cm_id| Entry::Listener { manager, cm_id })?;
        // SAFETY: may sleep; the id exists, as nobody else has it.
        let error = unsafe { sys::rust_helper_cm_listen(cm_id.0.as_ptr(), service.0) };
        Errno::result(error).inspect_err(|_| {
            ENTRIES.with(|entries| entries.remove(id));
            destroy(cm_id);
        })
    }

    /// Listens no longer, and refuses what was not accepted. No handler of a REQ runs or is to come
    /// when it returns: it must not be called by one.
    pub fn unlisten(&self, _may_sleep: &MaySleep) {
        // The caller may sleep.
        self.stop();
    }

    /// Refuses a REQ. Not to be called by the handler that is told of it.
    pub fn refuse(&self, request: RequestId, reason: RejectReason, _may_sleep: &MaySleep) {
        if let Some(cm_id) = self.take_request(request) {
            // The caller may sleep. The peer may have given up already.
            let _ = reject(cm_id, reason as u16);
            destroy(cm_id);
        }
    }

    /// Everything ends but the connections, which hold what they need.
    pub fn close(self, _may_sleep: &MaySleep) {}

    /// Makes an id and its entry. The caller may sleep.
    fn create(&self, entry: impl FnOnce(Arc<Inner>, CmId) -> Entry) -> Result<(Id, CmId), Errno> {
        let mut cm_id = null_mut();
        let device = self.inner.port.device().raw();
        // SAFETY: the callers may sleep; the device exists by its invariant. There are no events
        // before something is sent or listened for, and by then the id has its number.
        let error = unsafe { sys::rust_helper_cm_create(device.as_ptr(), 0, &raw mut cm_id) };
        Errno::result(error)?;
        let cm_id = CmId(NonNull::new(cm_id).ok_or(Errno::ENOMEM)?);
        let entry = entry(Arc::clone(&self.inner), cm_id);
        match ENTRIES.with(|entries| entries.insert(entry)) {
            Ok(id) => {
                // SAFETY: as above.
                unsafe { sys::rust_helper_cm_set_id(cm_id.0.as_ptr(), id.0) };
                Ok((id, cm_id))
            }
            Err(error) => {
                destroy(cm_id);
                Err(error)
            }
        }
    }

    /// Takes a REQ of this manager.
    fn take_request(&self, request: RequestId) -> Option<CmId> {
        let id = Id(request.0);
        ENTRIES.with(|entries| {
            self.requested(entries.get_mut(id)?)?;
            entries.remove(id)?.owned_id()
        })
    }

    /// The id of a REQ of this manager.
    fn requested(&self, entry: &Entry) -> Option<CmId> {
        match entry {
            Entry::Requested { manager, cm_id } if Arc::ptr_eq(manager, &self.inner) => {
                Some(*cm_id)
            }
            Entry::Requested { .. } | Entry::Listener { .. } | Entry::Connection { .. } => None,
        }
    }

    /// Ends the listener, and what it brought. The caller may sleep.
    fn stop(&self) {
        // REQs come until the listener is gone.
        self.destroy_all(|entry| match entry {
            Entry::Listener { .. } => true,
            Entry::Requested { .. } | Entry::Connection { .. } => false,
        });
        self.destroy_all(|entry| match entry {
            Entry::Requested { .. } => true,
            Entry::Listener { .. } | Entry::Connection { .. } => false,
        });
    }

    /// Destroys all of one kind. The caller may sleep.
    fn destroy_all(&self, is_it: impl Fn(&Entry) -> bool) {
        let is_own = |entry: &Entry| Arc::ptr_eq(entry.manager(), &self.inner) && is_it(entry);
        loop {
            let taken = ENTRIES.with(|entries| {
                let id = entries.find(is_own)?;
                entries.remove(id)?.owned_id()
            });
            let Some(cm_id) = taken else { return };
            destroy(cm_id);
        }
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Manager({:?})", self.inner.port)
    }
}

/// Where it may sleep, and by no handler.
impl Drop for Manager {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Entry {
    fn manager(&self) -> &Arc<Inner> {
        match self {
            Self::Listener { manager, .. }
            | Self::Requested { manager, .. }
            | Self::Connection { manager, .. } => manager,
        }
    }

    /// The id, if it is the entry that owns it.
    fn owned_id(self) -> Option<CmId> {
        match self {
            Self::Listener { cm_id, .. } | Self::Requested { cm_id, .. } => Some(cm_id),
            Self::Connection { .. } => None,
        }
    }
}

/// A reliable connection to or from a peer, from the first message to the last.
///
/// # Invariants
///
/// The entry of `dialog` has the queue pair, which goes after it: when no event finds it any more.
#[derive(Debug)]
pub struct Connection {
    dialog: Dialog,
    queue_pair: ConnectedQueuePair,
}

/// What the communication manager has of a connection.
///
/// # Invariants
///
/// `cm_id` exists and is owned. The entry of `id` is there.
#[derive(Debug)]
struct Dialog {
    id: Id,
    cm_id: CmId,
}

impl Connection {
    /// A connection to be asked for, with its queue pair in RESET. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// No memory.
    pub fn open(
        manager: &Manager,
        queue_pair: ConnectedQueuePair,
        _may_sleep: &MaySleep,
    ) -> Result<Self, Errno> {
        let connection = queue_pair.connection();
        let raw = QueuePair(queue_pair.raw());
        // The caller may sleep.
        let (id, cm_id) = manager.create(|manager, _| Entry::Connection {
            manager,
            connection,
            queue_pair: raw,
            state: State::Idle,
        })?;
        // INVARIANT: just created, with its entry.
        Ok(Self { dialog: Dialog { id, cm_id }, queue_pair })
    }

    /// Sends a REQ. [`Handler::connect_answered`] follows.
    ///
    /// # Errors
    ///
    /// It was not sent, and there is no answer.
    pub fn request(
        &self,
        op: OpId,
        request: &ConnectRequest,
        may_sleep: &MaySleep,
    ) -> Result<(), Errno> {
        let port = self.queue_pair.port();
        let attributes = port.attributes(PartitionChoice::Port, may_sleep)?;
        let pkey_index = port.find(request.pkey)?;
        // The caller may sleep.
        self.queue_pair.init(pkey_index)?;
        let path = &request.path;
        let route = path.global.unwrap_or_default();
        let raw = sys::kpi_cm_connect {
            path: sys::kpi_path {
                destination: path.destination.0,
                source: attributes.gid.0,
                flow_label: route.flow_label.value(),
                destination_lid: path.lid.value(),
                source_lid: attributes.lid.ok_or(Errno::EINVAL)?.value(),
                pkey: request.pkey.value(),
                sl: path.sl.value(),
                // IBA 12.7.11: both ends cut messages alike.
                mtu: path.mtu.min(attributes.mtu).code(),
                rate: path.rate.code(),
                hop_limit: route.hop_limit,
                traffic_class: route.traffic_class,
                packet_life_time: PACKET_LIFE_TIME,
            },
            service: request.service.0,
            qpn: self.queue_pair.qpn().value(),
            starting_psn: request.starting_psn.value(),
            private_data: private_data(&request.own),
            response_timeout: RESPONSE_TIMEOUT,
            max_retries: RETRIES_MAX,
            has_srq: self.queue_pair.shares_receives().into(),
            reserved: [0; 5],
        };
        // The answer may come before the call returns.
        self.enter(State::Requesting(op));
        // SAFETY: may sleep, as the argument proves; the id exists by the invariant.
        let error =
            unsafe { sys::rust_helper_cm_connect(self.dialog.cm_id.0.as_ptr(), &raw const raw) };
        Errno::result(error).inspect_err(|_| self.enter(State::Over))
    }

    /// A connection that a peer asked for, with its queue pair in RESET. Nothing is sent yet: next
    /// is [`Connection::prepare`].
    ///
    /// # Errors
    ///
    /// The peer gave up, or the REQ is not of this manager.
    pub fn accept(
        manager: &Manager,
        queue_pair: ConnectedQueuePair,
        request: RequestId,
    ) -> Result<Self, Errno> {
        let id = Id(request.0);
        let cm_id = ENTRIES.with(|entries| {
            let entry = entries.get_mut(id)?;
            let cm_id = manager.requested(entry)?;
            *entry = Entry::Connection {
                manager: Arc::clone(&manager.inner),
                connection: queue_pair.connection(),
                queue_pair: QueuePair(queue_pair.raw()),
                state: State::Idle,
            };
            Some(cm_id)
        });
        // INVARIANT: the table's until now, and its entry has the queue pair.
        let dialog = Dialog { id, cm_id: cm_id.ok_or(Errno::EINVAL)? };
        Ok(Self { dialog, queue_pair })
    }

    /// Brings the queue pair of a connection that a peer asked for to RTS: receives are to be
    /// posted next, then comes [`Connection::reply`].
    ///
    /// # Errors
    ///
    /// The adapter refused; the peer is told.
    pub fn prepare(&self, starting_psn: Psn, _may_sleep: &MaySleep) -> Result<(), Errno> {
        self.ready_to_receive(starting_psn).inspect_err(|_| {
            // The peer may have given up already.
            let _ = reject(self.dialog.cm_id, RejectReason::NoResources as u16);
        })
    }

    /// Sends a REP. [`Handler::connection_lost`] says when the connection is over.
    ///
    /// # Errors
    ///
    /// It was not sent: there is no connection, and nothing is told of it any more.
    pub fn reply(
        &self,
        starting_psn: Psn,
        own: &ConnectionParameters,
        _may_sleep: &MaySleep,
    ) -> Result<(), Errno> {
        let raw = sys::kpi_cm_reply {
            qpn: self.queue_pair.qpn().value(),
            starting_psn: starting_psn.value(),
            private_data: private_data(own),
            has_srq: self.queue_pair.shares_receives().into(),
            reserved: [0; 7],
        };
        // The peer's next message may come before the call returns.
        self.enter(State::Live);
        // SAFETY: may sleep, as the argument proves; the id exists by the invariant.
        let error =
            unsafe { sys::rust_helper_cm_reply(self.dialog.cm_id.0.as_ptr(), &raw const raw) };
        Errno::result(error).inspect_err(|_| self.enter(State::Over))
    }

    /// The queue pair.
    pub fn queue_pair(&self) -> &ConnectedQueuePair {
        &self.queue_pair
    }

    /// Disconnects, and destroys the queue pair. With the proof, slots give back what was posted
    /// and did not complete. Not to be called by a handler that is told of this connection.
    ///
    /// # Errors
    ///
    /// The adapter keeps the queue pair, see [`Kept`].
    pub fn close(self, may_sleep: &MaySleep) -> Result<Quiet, Kept> {
        let Self { dialog, queue_pair } = self;
        drop(dialog);
        queue_pair.close(may_sleep)
    }

    /// From RESET to RTS, for a REQ. The caller may sleep.
    fn ready_to_receive(&self, starting_psn: Psn) -> Result<(), Errno> {
        let queue_pair = QueuePair(self.queue_pair.raw());
        modify(self.dialog.cm_id, queue_pair, sys::kpi_qp_state::KPI_QPS_INIT, None)?;
        // The stack knows our starting PSN when the REP is sent, and here is where it is needed.
        let psn = Some(starting_psn);
        modify(self.dialog.cm_id, queue_pair, sys::kpi_qp_state::KPI_QPS_RTR, psn)?;
        // The queue pair sends nothing but the marker of its drain, which some adapters complete
        // only if it was in RTS before.
        modify(self.dialog.cm_id, queue_pair, sys::kpi_qp_state::KPI_QPS_RTS, None)
    }

    fn enter(&self, next: State) {
        ENTRIES.with(|entries| {
            if let Some(Entry::Connection { state, .. }) = entries.get_mut(self.dialog.id) {
                *state = next;
            }
        });
    }
}

/// Where it may sleep, and by no handler that is told of this connection.
impl Drop for Dialog {
    fn drop(&mut self) {
        // Whatever it was, it is over: nothing more is told of it.
        ENTRIES.with(|entries| entries.remove(self.id));
        destroy(self.cm_id);
    }
}

/// Moves a queue pair to a state, with what the messages of its connection said. The caller may
/// sleep; `receive_psn` is for RTR, where the stack does not know it yet.
fn modify(
    cm_id: CmId,
    queue_pair: QueuePair,
    state: sys::kpi_qp_state::Type,
    receive_psn: Option<Psn>,
) -> Result<(), Errno> {
    let psn = receive_psn.map(Psn::value);
    let psn = psn.as_ref().map_or(null(), core::ptr::from_ref);
    // SAFETY: the callers may sleep. They own the id or run in an event of it, so that both exist:
    // a queue pair goes after its id.
    Errno::result(unsafe {
        sys::rust_helper_cm_modify_qp(cm_id.0.as_ptr(), queue_pair.0.as_ptr(), state, psn)
    })
}

/// Sends a REJ. The caller may sleep.
fn reject(cm_id: CmId, reason: u16) -> Result<(), Errno> {
    // SAFETY: the callers may sleep. They own the id or run in an event of it, so it exists.
    Errno::result(unsafe { sys::rust_helper_cm_reject(cm_id.0.as_ptr(), reason.into()) })
}

/// Destroys an id that the caller took out of the table, or owns. The caller may sleep, and is no
/// event of the id.
fn destroy(cm_id: CmId) {
    // SAFETY: as the comment above says: it exists and nobody else destroys it. It returns when no
    // event of it runs or is to come.
    unsafe { sys::rust_helper_cm_destroy(cm_id.0.as_ptr()) }
}

/// RFC 4755 6: the number of the datagram queue pair, below 8 reserved bits, and the MTU.
fn private_data(own: &ConnectionParameters) -> [u8; 8] {
    let [a, b, c] = own.qpn.to_bytes();
    let [d, e, f, g] = own.receive_mtu.to_be_bytes();
    [0, a, b, c, d, e, f, g]
}

/// The reserved bits are not looked at.
fn parameters(private_data: &[u8; 8]) -> ConnectionParameters {
    let [_, a, b, c, mtu @ ..] = *private_data;
    ConnectionParameters { qpn: Qpn::from_bytes([a, b, c]), receive_mtu: u32::from_be_bytes(mtu) }
}
