//! The InfiniBand stack and an HCA: `c/fake.h` as safe functions.
//!
//! There is one at a time; [`Stack::start`] waits for it. What is used after it is gone, destroyed
//! twice or in the wrong order, or waited for by its own callback ends the process; what is left
//! over fails the test.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use sys_bindings as sys;

use crate::dma;

pub use sys::{kpi_cm_event_type, kpi_port_event, kpi_qp_event, kpi_qp_state, kpi_status};

unsafe extern "C" {
    fn fake_reset();
    fn fake_fail_next(fault: u32);
    fn fake_objects() -> u32;
    fn fake_device_add() -> *mut sys::ib_device;
    fn fake_device_remove(device: *mut sys::ib_device);
    fn fake_port_event(device: *mut sys::ib_device, port: u8, event: u32);
    fn fake_complete_send(qpn: u32, status: u32);
    fn fake_complete_receive(qpn: u32, status: u32, bytes: u32);
    fn fake_qp_event(qpn: u32, event: u32);
    fn fake_qp_state(qpn: u32) -> u32;
    fn fake_sa_asked() -> u32;
    fn fake_sa_is_cancelled(question: u32) -> bool;
    fn fake_sa_answer_path(question: u32, error: c_int);
    fn fake_sa_answer_capabilities(question: u32, error: c_int, mask2: u32);
    fn fake_sa_joins() -> u32;
    fn fake_sa_is_member(join: u32) -> bool;
    fn fake_sa_answer_join(join: u32, error: c_int);
    fn fake_cm_ids() -> u32;
    fn fake_cm_exists(number: u32) -> bool;
    fn fake_cm_message(number: u32) -> u32;
    fn fake_cm_reason(number: u32) -> u32;
    fn fake_cm_request(service: u64, mtu: u8) -> c_int;
    fn fake_cm_event(number: u32, event: u32, reason: u32);
}

static ONE: Mutex<()> = Mutex::new(());

/// A stack, with nothing in it.
#[derive(Debug)]
pub struct Stack {
    _one: MutexGuard<'static, ()>,
}

/// What can be made to fail once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Fault {
    /// Creating any object.
    Create = 1,
    /// Posting a work request.
    Post = 2,
    /// Asking the subnet administrator, or to join.
    Ask = 3,
    /// Sending a message of the communication manager.
    Send = 4,
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

// The functions below have no condition but those that fake.h checks itself.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: the stack checks what it is given and ends the process otherwise; there is one at
        // a time, and `self` is it or of it.
        unsafe { $call }
    }};
}

impl Stack {
    /// Starts one, when no other test has it.
    pub fn start() -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: this is the only one who has the stack now.
        unsafe { fake_reset() };
        Self { _one: one }
    }

    /// How many objects of the adapter and the stack there are, packets that are mapped included.
    pub fn objects(&self) -> usize {
        call!(fake_objects()) as usize + dma::mapped()
    }

    /// Has the next call of a kind fail.
    pub fn fail_next(&self, fault: Fault) {
        call!(fake_fail_next(fault as u32))
    }

    /// An HCA with two ports comes.
    pub fn add_device(&self) -> Hca {
        Hca(NonNull::new(call!(fake_device_add())).expect("it was not asked to fail"))
    }

    /// The oldest send of a queue pair ends.
    pub fn complete_send(&self, qpn: u32, status: kpi_status::Type) {
        call!(fake_complete_send(qpn, status))
    }

    /// The oldest receive of a queue pair ends.
    pub fn complete_receive(&self, qpn: u32, status: kpi_status::Type, bytes: u32) {
        call!(fake_complete_receive(qpn, status, bytes))
    }

    /// A queue pair has an event.
    pub fn queue_pair_event(&self, qpn: u32, event: kpi_qp_event::Type) {
        call!(fake_qp_event(qpn, event))
    }

    /// The state of a queue pair.
    pub fn queue_pair_state(&self, qpn: u32) -> kpi_qp_state::Type {
        call!(fake_qp_state(qpn))
    }

    /// How many questions the subnet administrator was asked.
    pub fn questions(&self) -> u32 {
        call!(fake_sa_asked())
    }

    /// Whether a question was cancelled.
    pub fn is_cancelled(&self, question: u32) -> bool {
        call!(fake_sa_is_cancelled(question))
    }

    /// Answers a question about a path, which may have been answered or cancelled before.
    pub fn answer_path(&self, question: u32, error: c_int) {
        call!(fake_sa_answer_path(question, error))
    }

    /// Answers the question what the subnet administrator can do.
    pub fn answer_capabilities(&self, question: u32, error: c_int, mask2: u32) {
        call!(fake_sa_answer_capabilities(question, error, mask2))
    }

    /// How often it was asked to join.
    pub fn joins(&self) -> u32 {
        call!(fake_sa_joins())
    }

    /// Whether the stack has a membership for a join.
    pub fn is_member(&self, join: u32) -> bool {
        call!(fake_sa_is_member(join))
    }

    /// Answers a join, or ends the membership with an error.
    pub fn answer_join(&self, join: u32, error: c_int) {
        call!(fake_sa_answer_join(join, error))
    }

    /// How many ids the communication manager made.
    pub fn ids(&self) -> u32 {
        call!(fake_cm_ids())
    }

    /// Whether an id was not destroyed.
    pub fn id_exists(&self, number: u32) -> bool {
        call!(fake_cm_exists(number))
    }

    /// The last message that was sent with an id.
    pub fn last_message(&self, number: u32) -> Message {
        match call!(fake_cm_message(number)) {
            1 => Message::Request,
            2 => Message::Reply,
            3 => Message::ReadyToUse,
            4 => Message::Reject,
            6 => Message::DisconnectReply,
            _ => Message::None,
        }
    }

    /// The reason of the last REJ.
    pub fn last_reason(&self, number: u32) -> u32 {
        call!(fake_cm_reason(number))
    }

    /// A REQ arrives, with a code of its MTU. The number of its id, if somebody keeps it.
    pub fn request(&self, service: u64, mtu: u8) -> Option<u32> {
        u32::try_from(call!(fake_cm_request(service, mtu))).ok()
    }

    /// Something happens to an id.
    pub fn connection_event(&self, number: u32, event: kpi_cm_event_type::Type, reason: u32) {
        call!(fake_cm_event(number, event, reason))
    }
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
pub struct Hca(NonNull<sys::ib_device>);

// SAFETY: the fake kernel counts with atomics what more than one thread counts.
unsafe impl Send for Hca {}

impl Hca {
    /// It goes: returns when nothing of it is left.
    pub fn remove(self) {
        call!(fake_device_remove(self.0.as_ptr()))
    }

    /// A port has an event.
    pub fn port_event(&self, port: u8, event: kpi_port_event::Type) {
        call!(fake_port_event(self.0.as_ptr(), port, event))
    }
}
