//! A kernel on a host, for tests: `fake/fake.h` as safe functions.
//!
//! There is one at a time; [`Kernel::start`] waits for it. What is used after it is gone, destroyed
//! twice or in the wrong order, or waited for by its own callback ends the process; what is left
//! over fails the test.

extern crate std;

use core::ffi::c_int;
use core::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use ipoib_rs::ib::{Qpn, ServiceId};
use sys_bindings as sys;

use crate::context::MaySleep;
use crate::dma::Chain;

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
    fn fake_mbuf_new(length: u32, segments: u32) -> *mut sys::mbuf;
    fn fake_mbuf_free(mbuf: *mut sys::mbuf);
    fn fake_mbuf_free_mapped();
    fn fake_mbuf_length(mbuf: *const sys::mbuf) -> u32;
}

static ONE: Mutex<()> = Mutex::new(());

/// A kernel, with nothing in it.
#[derive(Debug)]
pub struct Kernel {
    _one: MutexGuard<'static, ()>,
}

/// What can be made to fail once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Fault {
    /// Creating any object.
    Create = 1,
    /// Mapping a packet.
    Map = 2,
    /// Posting a work request.
    Post = 3,
    /// Asking the subnet administrator, or to join.
    Ask = 4,
    /// Sending a message of the communication manager.
    Send = 5,
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
        // SAFETY: the fake kernel checks what it is given and ends the process otherwise; there is
        // one kernel at a time, and `self` is it.
        unsafe { $call }
    }};
}

impl Kernel {
    /// Starts one, when no other test has it.
    pub fn start() -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: this is the only one who has the kernel now.
        unsafe { fake_reset() };
        Self { _one: one }
    }

    /// A host's thread may always sleep.
    pub fn may_sleep(&self) -> MaySleep {
        // SAFETY: the kernel has no mutex or epoch that a test could be in here.
        unsafe { MaySleep::assume() }
    }

    /// How many objects of the adapter and the stack there are, packets included.
    pub fn objects(&self) -> u32 {
        call!(fake_objects())
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
    pub fn complete_send(&self, qpn: Qpn, status: kpi_status::Type) {
        call!(fake_complete_send(qpn.value(), status))
    }

    /// The oldest receive of a queue pair ends.
    pub fn complete_receive(&self, qpn: Qpn, status: kpi_status::Type, bytes: u32) {
        call!(fake_complete_receive(qpn.value(), status, bytes))
    }

    /// A queue pair has an event.
    pub fn queue_pair_event(&self, qpn: Qpn, event: kpi_qp_event::Type) {
        call!(fake_qp_event(qpn.value(), event))
    }

    /// The state of a queue pair.
    pub fn queue_pair_state(&self, qpn: Qpn) -> kpi_qp_state::Type {
        call!(fake_qp_state(qpn.value()))
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
    pub fn request(&self, service: ServiceId, mtu: u8) -> Option<u32> {
        u32::try_from(call!(fake_cm_request(service.0, mtu))).ok()
    }

    /// Something happens to an id.
    pub fn connection_event(&self, number: u32, event: kpi_cm_event_type::Type, reason: u32) {
        call!(fake_cm_event(number, event, reason))
    }

    /// Frees the packet that was mapped last, which somebody leaked.
    pub fn free_leaked(&self) {
        call!(fake_mbuf_free_mapped())
    }

    /// A packet of so many bytes in so many pieces.
    pub fn packet(&self, bytes: u32, segments: u32) -> Packet {
        Packet(NonNull::new(call!(fake_mbuf_new(bytes, segments))).expect("there is memory"))
    }
}

/// Nothing is left over.
impl Drop for Kernel {
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

/// A packet.
#[derive(Debug)]
pub struct Packet(NonNull<sys::mbuf>);

// SAFETY: it has its chain for itself.
unsafe impl Send for Packet {}

impl Packet {
    /// Its length in bytes.
    pub fn bytes(&self) -> u32 {
        call!(fake_mbuf_length(self.0.as_ptr()))
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        call!(fake_mbuf_free(self.0.as_ptr()))
    }
}

// SAFETY: the chain is handed over whole, and not freed.
unsafe impl Chain for Packet {
    fn into_chain(self) -> NonNull<sys::mbuf> {
        let chain = self.0;
        core::mem::forget(self);
        chain
    }

    unsafe fn from_chain(chain: NonNull<sys::mbuf>) -> Self {
        Self(chain)
    }
}
