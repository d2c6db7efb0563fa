//! The InfiniBand stack and HCAs, as `kpi/c/ofed` has them.
//!
//! There is one stack at a time; [`Stack::start`] waits for it. What the stack and an HCA would do
//! by themselves, a test asks for, or has them do with [`Stack::be_automatic`]. What is left over
//! fails the test.

mod arena;
mod client;
mod cm;
mod sa;
mod tables;
mod verbs;

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use sys_bindings as sys;

use crate::{check, dma, time};
use tables::{Tables, lock};
use verbs::Arrived;

pub use sys::{kpi_cm_event_type, kpi_port_event, kpi_qp_event, kpi_qp_state, kpi_status};
pub use verbs::Sent;

static ONE: Mutex<()> = Mutex::new(());

/// A stack, with nothing in it.
#[derive(Debug)]
pub struct Stack {
    _one: MutexGuard<'static, ()>,
}

/// What can be made to fail once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Creating any object.
    Create,
    /// Changing a queue pair, or its groups.
    Modify,
    /// Posting a work request.
    Post,
    /// Asking an adapter what it is, or what its ports are.
    Query,
    /// Asking the subnet administrator, or to join.
    Ask,
    /// Sending a message of the communication manager, or listening for one.
    Send,
}

impl Fault {
    const fn name(self) -> &'static str {
        match self {
            Self::Create => "creating an object",
            Self::Modify => "modifying a queue pair",
            Self::Post => "posting a work request",
            Self::Query => "querying an adapter",
            Self::Ask => "asking the subnet administrator",
            Self::Send => "sending a message",
        }
    }
}

/// An adapter that does not destroy queue pairs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stuck {
    /// It resets them at least.
    Destroying,
    /// It does not even reset them, nor end what is posted.
    Resetting,
}

/// A message of the communication manager.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Message {
    /// None yet.
    None,
    /// REQ.
    Request,
    /// REP.
    Reply,
    /// RTU.
    ReadyToUse,
    /// REJ.
    Reject,
    /// DREP.
    DisconnectReply,
}

/// A queue pair, as its adapter has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct QueuePair {
    /// The number.
    pub qpn: u32,
    /// RC, or UD.
    pub is_connected: bool,
    /// Its receives are those of a shared queue.
    pub shares_receives: bool,
    /// The state.
    pub state: kpi_qp_state::Type,
    /// Sends that are posted.
    pub sends: usize,
    /// Receives of its own that are posted.
    pub receives: usize,
    /// Multicast groups that it is attached to.
    pub groups: usize,
}

/// A port of an HCA.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Port {
    /// The first of its GIDs.
    pub gid: [u8; 16],
    /// The LID.
    pub lid: u16,
    /// The code of its MTU.
    pub mtu: u8,
    /// It is up.
    pub is_active: bool,
    /// It is of InfiniBand, and not of another network.
    pub is_infiniband: bool,
    /// The table of P_Keys.
    pub pkeys: Vec<u16>,
}

impl Port {
    /// The port with a number, as an HCA has it.
    pub fn new(number: u8) -> Self {
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&[0xfe, 0x80]);
        gid[15] = number;
        let pkeys = vec![0xffff];
        Self { gid, lid: number.into(), mtu: 4, is_active: true, is_infiniband: true, pkeys }
    }
}

/// What an HCA says that it can do.
pub const ATTRIBUTES: sys::kpi_device_attributes = sys::kpi_device_attributes {
    node_guid: 0x0002_c903_0000_0001,
    max_qp_wr: 1024,
    max_send_sge: 4,
    max_cqe: 4096,
    max_srq_wr: 1024,
    max_srq_sge: 16,
    flags: 0,
    first_port: 1,
    last_port: 2,
    reserved: [0; 6],
};

impl Stack {
    /// Starts one, when no other test has it.
    pub fn start() -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        *lock() = Tables::new();
        time::be_patient();
        Self { _one: one }
    }

    /// How many objects of the adapter and the stack there are, packets that are mapped included.
    pub fn objects(&self) -> usize {
        lock().objects() + dma::mapped()
    }

    /// Has the next call of a kind fail.
    pub fn fail_next(&self, fault: Fault) {
        lock().next_fault = Some(fault);
    }

    /// Has adapters refuse to destroy queue pairs, this number of times.
    pub fn be_stuck(&self, stuck: Stuck, refusals: u32) {
        lock().stuck = (stuck, refusals);
    }

    /// From now on, at each [`step`], sends succeed, the subnet administrator knows all paths and
    /// groups, and peers accept connections; or no longer, and who waits for one of them is told
    /// after a while that it does not answer.
    pub fn be_automatic(&self, is_automatic: bool) {
        lock().is_automatic = is_automatic;
    }

    /// An HCA with two ports comes.
    pub fn add_device(&self) -> Hca {
        self.add_device_with(ATTRIBUTES, [1, 2].map(Port::new))
    }

    /// An HCA comes that is another than [`Stack::add_device`] makes.
    pub fn add_device_with(&self, attributes: sys::kpi_device_attributes, ports: [Port; 2]) -> Hca {
        Hca(client::add(attributes, ports))
    }

    /// The queue pairs that there are, oldest first.
    pub fn queue_pairs(&self) -> Vec<QueuePair> {
        verbs::queue_pairs()
    }

    /// Receives that are posted to shared queues.
    pub fn shared_receives(&self) -> usize {
        verbs::shared_receives()
    }

    /// The oldest send of a queue pair ends.
    pub fn complete_send(&self, qpn: u32, status: kpi_status::Type) {
        verbs::complete_send(qpn, status);
    }

    /// What was sent since the last call.
    pub fn take_sent(&self) -> Vec<Sent> {
        std::mem::take(&mut lock().sent)
    }

    /// The oldest receive of a queue pair ends; what it brought is not looked at.
    pub fn complete_receive(&self, qpn: u32, status: kpi_status::Type, bytes: u32) {
        verbs::complete_receive(qpn, status, Arrived::Length(bytes));
    }

    /// A packet arrives for a queue pair: of a datagram, the first 40 bytes are a GRH.
    pub fn receive(&self, qpn: u32, bytes: &[u8]) {
        verbs::complete_receive(qpn, kpi_status::KPI_STATUS_SUCCESS, Arrived::Bytes(bytes));
    }

    /// As [`Stack::receive`], but only if there is a receive for it; 0 is the first datagram queue
    /// pair.
    pub fn receive_if_posted(&self, qpn: u32, bytes: &[u8]) {
        let shared = self.shared_receives();
        let is_it = |pair: &&QueuePair| match qpn {
            0 => !pair.is_connected,
            qpn => pair.qpn == qpn,
        };
        if let Some(pair) = self.queue_pairs().iter().find(is_it) {
            let posted = if pair.shares_receives { shared } else { pair.receives };
            if posted > 0 {
                self.receive(pair.qpn, bytes);
            }
        }
    }

    /// As [`Stack::receive`], where others may take receives and queue pairs away meanwhile.
    pub fn receive_if_there(&self, qpn: u32, bytes: &[u8]) {
        verbs::receive_if_there(qpn, bytes);
    }

    /// A queue pair has an event.
    pub fn queue_pair_event(&self, qpn: u32, event: kpi_qp_event::Type) {
        verbs::event(qpn, event);
    }

    /// The state of a queue pair.
    pub fn queue_pair_state(&self, qpn: u32) -> kpi_qp_state::Type {
        verbs::state_of(qpn)
    }

    /// How many questions the subnet administrator was asked.
    pub fn questions(&self) -> u32 {
        count(lock().questions.len())
    }

    /// Whether a question was cancelled.
    pub fn is_cancelled(&self, question: u32) -> bool {
        lock().questions[question as usize].is_cancelled
    }

    /// Answers a question about a path, which may have been answered or cancelled before.
    pub fn answer_path(&self, question: u32, error: c_int) {
        sa::answer(question as usize, error, 0);
    }

    /// Answers the question what the subnet administrator can do.
    pub fn answer_capabilities(&self, question: u32, error: c_int, mask2: u32) {
        sa::answer(question as usize, error, mask2);
    }

    /// How often it was asked to join.
    pub fn joins(&self) -> u32 {
        count(lock().joins.len())
    }

    /// Whether the stack has a membership for a join.
    pub fn is_member(&self, join: u32) -> bool {
        let tables = lock();
        tables.memberships.has(tables.joins[join as usize])
    }

    /// Answers a join, or ends the membership with an error.
    pub fn answer_join(&self, join: u32, error: c_int) {
        check!(sa::answer_join(join as usize, error), "a membership is answered that is gone");
    }

    /// How many ids the communication manager made.
    pub fn ids(&self) -> u32 {
        count(lock().id_keys.len())
    }

    /// Whether an id was not destroyed.
    pub fn id_exists(&self, number: u32) -> bool {
        let tables = lock();
        tables.ids.has(tables.id_keys[number as usize])
    }

    /// The last message that was sent with an id.
    pub fn last_message(&self, number: u32) -> Message {
        let mut tables = lock();
        let key = tables.id_keys[number as usize];
        tables.ids.get(key).message
    }

    /// The reason of the last REJ.
    pub fn last_reason(&self, number: u32) -> u32 {
        let mut tables = lock();
        let key = tables.id_keys[number as usize];
        tables.ids.get(key).reason
    }

    /// The services that are listened for.
    pub fn services(&self) -> Vec<u64> {
        lock().ids.iter().filter_map(|(_, id)| id.service).collect()
    }

    /// A REQ arrives, with a code of its MTU. The number of its id, if somebody keeps it.
    pub fn request(&self, service: u64, mtu: u8) -> Option<u32> {
        cm::request(service, mtu).map(count)
    }

    /// Something happens to an id.
    pub fn connection_event(&self, number: u32, event: kpi_cm_event_type::Type, reason: u32) {
        check!(cm::event(number as usize, event, reason), "an event of an id that is gone");
    }
}

/// Adapters, the subnet administrator and peers do what takes them a while; and more, after
/// [`Stack::be_automatic`]. Whether there was anything to do.
pub fn step() -> bool {
    let mut has_done = verbs::step();
    let is_automatic = lock().is_automatic;
    for QueuePair { qpn, sends, state, .. } in verbs::queue_pairs() {
        if is_automatic && state == kpi_qp_state::KPI_QPS_RTS {
            let status = kpi_status::KPI_STATUS_SUCCESS;
            for _ in 0..sends {
                has_done |= verbs::complete_send_if_there(qpn, status);
            }
        }
    }
    has_done |= sa::answer_all(!is_automatic);
    has_done | cm::accept_all(!is_automatic)
}

/// Whether an adapter may read or write at an address.
pub(crate) fn is_posted(address: u64) -> bool {
    verbs::is_posted(address)
}

fn count(count: usize) -> u32 {
    u32::try_from(count).expect("a short test")
}

/// Nothing is left over.
impl Drop for Stack {
    fn drop(&mut self) {
        if !thread::panicking() {
            assert_eq!(self.objects(), 0, "something is left over");
        }
    }
}

/// An HCA, as the kernel has it.
#[derive(Debug)]
pub struct Hca(usize);

impl Hca {
    /// It goes: returns when nothing of it is left.
    pub fn remove(self) {
        client::remove(self.0);
    }

    /// A port has an event.
    pub fn port_event(&self, port: u8, event: kpi_port_event::Type) {
        client::port_event(self.0, port, event);
    }

    /// The name of the interface of a port in a partition, as the client says it.
    pub fn find_interface(&self, port: u8, pkey: u16) -> Option<String> {
        client::find_interface(self.0, port, pkey)
    }

    /// A port becomes another; nobody is told.
    pub fn change_port(&self, port: u8, change: impl FnOnce(&mut Port)) {
        change(&mut lock().devices.get(self.0).ports[usize::from(port) - 1]);
    }
}

/// What `kpi` gave, to be given back.
#[derive(Clone, Copy)]
struct Pointer(*mut c_void);

// SAFETY: the kernel gives it back in any thread.
unsafe impl Send for Pointer {}
