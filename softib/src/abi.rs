//! What C calls, and what C is called for: `softib/c/softib.h`.
//!
//! The pointers of these functions are those of the C half. Unless a function says otherwise: the
//! [`Softib`] is one that [`softib_rs_create`] made and [`softib_rs_destroy`] has not ended; the
//! others point to a live value of their type, which nobody else uses during the call.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::{CStr, c_int, c_void};
use core::slice;

use ipoib_rs::interface::PortEvent;
use kpi::context::{Free, MaySleep, Unlocked};
use kpi::errno::Errno;
use kpi::owned::{try_arc, try_box};
use kpi::sync::{Before, Level, Mutex};
use kpi::sysctl::Tree;
use kpi::worker::{Waker, Work, Worker};

use crate::admin;
use crate::error::Error;
use crate::layout::{
    Address, Change, Completion, Config, Context, Counters, PairConfig, PortView, Receive, Send,
};
use crate::memory::Segment;
use crate::table::Handle;
use crate::world::{Call, Step, World, state_code};

/// One fabric, and the thread that moves its packets.
#[derive(Debug)]
pub struct Softib {
    inner: Arc<Inner>,
    tree: Tree,
    worker: Worker,
}

#[derive(Debug)]
pub(crate) struct Inner {
    world: Mutex<Leaf, Box<World>>,
    waker: Waker,
}

/// A leaf: whoever holds it calls nobody. Verbs lock it in every context in which a mutex may be
/// locked.
#[derive(Debug)]
pub(crate) struct Leaf;

impl Level for Leaf {
    const NAME: &CStr = c"softib";
}

// SAFETY: these are functions of the C half, which call users of ibcore. They are called without
// the lock, with a context that `World::is_calling` keeps alive.
unsafe extern "C" {
    fn softib_c_complete(queue: *mut c_void);
    fn softib_c_queue_event(queue: *mut c_void, event: u32);
    fn softib_c_pair_event(pair: *mut c_void, event: u32);
    fn softib_c_shared_event(shared: *mut c_void, event: u32);
    fn softib_c_port_event(device: *mut c_void, port: u8, event: u32);
}

impl Inner {
    /// Does something with the lock held, and has the thread do what follows from it.
    pub(crate) fn with<R>(
        &self,
        before: &mut impl Before<Leaf>,
        f: impl FnOnce(&mut World) -> R,
    ) -> R {
        let (result, is_due) = self.world.with(before, |world, _| {
            let result = f(world);
            (result, world.take_wake())
        });
        if is_due {
            self.waker.wake();
        }
        result
    }
}

impl Work for Inner {
    /// Lets packets move and tells everybody, until there is nothing left to do.
    fn run(&self, may_sleep: &mut MaySleep) {
        loop {
            match self.with(may_sleep, World::step) {
                Step::Idle => return,
                Step::GoOn => {}
                // SAFETY: the thread of the worker is the only one that steps.
                Step::Call(call) => unsafe { call.make(may_sleep) },
            }
        }
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match error {
            Error::Busy => Self::EBUSY,
            Error::Invalid => Self::EINVAL,
            Error::NoMemory => Self::ENOMEM,
        }
    }
}

/// Writes what was made and returns 0, or returns an error number.
///
/// # Safety
///
/// `out` can be written.
unsafe fn give<T>(result: Result<T, Error>, out: *mut T) -> c_int {
    match result {
        Ok(value) => {
            // SAFETY: the caller says so.
            unsafe { out.write(value) };
            0
        }
        Err(error) => Errno::code(Err(error.into())),
    }
}

fn code(result: Result<(), Error>) -> c_int {
    Errno::code(result.map_err(Errno::from))
}

/// The segments of a work request.
///
/// # Safety
///
/// There are `count` of them, which keep their contract (see [`Segment`]).
unsafe fn segments<'a>(segments: *const Segment, count: u32) -> &'a [Segment] {
    if count == 0 {
        // There need not be a pointer then.
        return &[];
    }
    // SAFETY: the caller says so; nobody writes to a work request while it is posted.
    unsafe { slice::from_raw_parts(segments, count as usize) }
}

/// Makes a fabric with adapters that are not registered yet.
///
/// # Safety
///
/// See the module. The caller may sleep.
// SAFETY: no other symbol of the kernel has this name; so for all below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softib_rs_create(out: *mut *mut Softib, config: *mut Config) -> c_int {
    // SAFETY: C loads a module: the thread holds no mutex and is in no epoch.
    let mut may_sleep = unsafe { MaySleep::assume() };
    let chosen = admin::config();
    match create(&chosen, &mut may_sleep) {
        Ok(softib) => {
            // SAFETY: these are C's variables for the results.
            unsafe {
                config.write(chosen);
                out.write(Box::into_raw(softib));
            }
            0
        }
        Err(error) => Errno::code(Err(error)),
    }
}

// Not inlined, and neither are its parts: together they would fill a kernel stack.
#[inline(never)]
fn create(config: &Config, may_sleep: &mut MaySleep) -> Result<Box<Softib>, Errno> {
    let world = Mutex::new(new_world(config)?)?;
    let inner = try_arc(Inner { world, waker: Waker::new()? })?;
    let work: Arc<dyn Work> = inner.clone();
    let worker = Worker::start(&inner.waker, c"softib", work, may_sleep)?;
    let tree = admin::publish(&inner, config, may_sleep)?;
    try_box(Softib { inner, tree, worker })
}

#[inline(never)]
fn new_world(config: &Config) -> Result<Box<World>, Errno> {
    try_box(World::new(config)?)
}

/// Ends a fabric, and its thread. Nobody uses it any more.
///
/// # Safety
///
/// See the module. The caller may sleep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softib_rs_destroy(softib: *mut Softib) {
    // SAFETY: it came out of `Box::into_raw` in `softib_rs_create`.
    let Softib { inner, tree, worker } = *unsafe { Box::from_raw(softib) };
    // SAFETY: C unloads a module: the thread holds no mutex and is in no epoch.
    let mut may_sleep = unsafe { MaySleep::assume() };
    // Waits for those who read or write it.
    drop(tree);
    worker.stop(&mut may_sleep);
    drop(inner);
}

impl Call {
    /// Tells somebody something.
    ///
    /// # Safety
    ///
    /// It is what [`World::step`] yielded last: until the next step, C keeps the object whose
    /// context it is. The lock is not held.
    unsafe fn make(self, _unlocked: &mut impl Free) {
        // SAFETY: the caller says that the context is that of an object of its kind that is there.
        unsafe {
            match self {
                Self::Complete { queue } => softib_c_complete(pointer(queue)),
                Self::QueueOverrun { queue } => softib_c_queue_event(pointer(queue), 2),
                Self::CommunicationEstablished { pair } => softib_c_pair_event(pointer(pair), 0),
                Self::LastWqeReached { pair } => softib_c_pair_event(pointer(pair), 1),
                Self::SharedLimitReached { shared } => softib_c_shared_event(pointer(shared), 3),
                Self::Port { device, number, event } => {
                    softib_c_port_event(pointer(device), number, event_code(event));
                }
            }
        }
    }
}

/// `enum softib_event`, as far as ports go.
const fn event_code(event: PortEvent) -> u32 {
    match event {
        PortEvent::ClientReregister => 4,
        PortEvent::GidChanged => 5,
        PortEvent::LidChanged => 6,
        PortEvent::PkeyChanged => 7,
        PortEvent::PortActive => 8,
        PortEvent::PortError => 9,
        PortEvent::SmChanged => 10,
    }
}

fn pointer(context: Context) -> *mut c_void {
    context as *mut c_void
}

fn context(pointer: *const c_void) -> Context {
    pointer as Context
}

/// Declares functions that take the lock and call a method of [`World`].
macro_rules! under_lock {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($world:ident $(, $argument:ident: $type:ty)*) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// See the module.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            softib: *const Softib $(, $argument: $type)*
        ) $(-> $result)? {
            // SAFETY: see the module. C calls with no mutex of ours held: it has none.
            let (softib, mut unlocked) = unsafe { (&*softib, Unlocked::assume()) };
            softib.inner.with(&mut unlocked, |$world| $body)
        }
    )*};
}

under_lock! {
    /// Whether somebody may be being told something about an object.
    fn softib_rs_is_calling(world, object: *const c_void) -> c_int {
        c_int::from(world.is_calling(context(object)))
    }

    /// An adapter is registered from now on, or with NULL not any more.
    fn softib_rs_set_context(world, device: u32, object: *const c_void) {
        world.set_context(device, (!object.is_null()).then(|| context(object)));
    }

    /// What a port is now.
    fn softib_rs_query_port(world, device: u32, port: u8, out: *mut PortView) -> c_int {
        // SAFETY: `out` is C's variable for the result.
        unsafe { give(world.query_port(device, port), out) }
    }

    /// A place of a port's P_Key table; 0 if it is empty.
    fn softib_rs_query_pkey(world, device: u32, port: u8, index: u16) -> u16 {
        world.query_pkey(device, port, index)
    }

    /// What performance management tells of a port.
    fn softib_rs_port_counters(world, device: u32, port: u8, out: *mut Counters) -> c_int {
        // SAFETY: `out` is C's variable for the result.
        unsafe { give(world.summary(device, port), out) }
    }

    /// The GUID of an adapter.
    fn softib_rs_guid(world, device: u32) -> u64 {
        world.guid(device)
    }

    /// Makes an address handle.
    fn softib_rs_create_address(
        world, device: u32, port: u8, address: *const Address, out: *mut Handle
    ) -> c_int {
        // SAFETY: C passes a live structure, and its variable for the result.
        unsafe { give(world.create_address(device, port, &*address), out) }
    }

    /// Destroys an address handle.
    fn softib_rs_destroy_address(world, address: Handle) {
        world.destroy_address(address);
    }

    /// Makes a completion queue.
    fn softib_rs_create_queue(
        world, device: u32, entries: u32, object: *const c_void, out: *mut Handle
    ) -> c_int {
        // SAFETY: `out` is C's variable for the result.
        unsafe { give(world.create_queue(device, entries, context(object)), out) }
    }

    /// Destroys a completion queue.
    fn softib_rs_destroy_queue(world, queue: Handle) -> c_int {
        code(world.destroy_queue(queue))
    }

    /// Asks to be told of the next completion. Whether there are some already.
    fn softib_rs_arm_queue(world, queue: Handle) -> c_int {
        c_int::from(world.arm_queue(queue))
    }

    /// Takes completions out of a queue: how many there were.
    fn softib_rs_poll_queue(
        world, queue: Handle, completions: *mut Completion, count: u32
    ) -> u32 {
        // SAFETY: C passes an array of `count` completions, 1 or more, that was filled with zeros.
        let completions = unsafe { slice::from_raw_parts_mut(completions, count as usize) };
        // CAST: no more than `count`.
        world.poll_queue(queue, completions) as u32
    }

    /// Makes a shared receive queue.
    fn softib_rs_create_shared(
        world,
        device: u32,
        receives_max: u32,
        segments_max: u32,
        object: *const c_void,
        out: *mut Handle
    ) -> c_int {
        let made = world.create_shared(device, receives_max, segments_max, context(object));
        // SAFETY: `out` is C's variable for the result.
        unsafe { give(made, out) }
    }

    /// Destroys a shared receive queue.
    fn softib_rs_destroy_shared(world, shared: Handle) -> c_int {
        code(world.destroy_shared(shared))
    }

    /// Asks to be told when a shared receive queue is low.
    fn softib_rs_limit_shared(world, shared: Handle, limit: u32) -> c_int {
        code(world.limit_shared(shared, limit))
    }

    /// Posts a receive to a shared receive queue.
    fn softib_rs_post_shared(world, shared: Handle, receive: *const Receive) -> c_int {
        // SAFETY: C passes a live structure with its segments.
        let (receive, segments) = unsafe {
            let receive = &*receive;
            (receive, segments(receive.segments, receive.segment_count))
        };
        code(world.post_shared(shared, receive.wr_id, segments))
    }

    /// Makes a queue pair: its handle and its number.
    fn softib_rs_create_pair(
        world, device: u32, config: *const PairConfig, out: *mut Handle, qpn: *mut u32
    ) -> c_int {
        // SAFETY: C passes a live structure.
        let made = world.create_pair(device, unsafe { &*config });
        let number = made.map(|(_, number)| number);
        // SAFETY: `out` and `qpn` are C's variables for the results.
        unsafe {
            give(number, qpn);
            give(made.map(|(handle, _)| handle), out)
        }
    }

    /// Destroys a queue pair.
    fn softib_rs_destroy_pair(world, pair: Handle) -> c_int {
        code(world.destroy_pair(pair))
    }

    /// The state of a queue pair.
    fn softib_rs_pair_state(world, pair: Handle) -> u32 {
        state_code(world.pair_state(pair))
    }

    /// Changes a queue pair.
    fn softib_rs_modify_pair(world, pair: Handle, change: *const Change) -> c_int {
        // SAFETY: C passes a live structure.
        code(world.modify_pair(pair, unsafe { &*change }))
    }

    /// Posts a send.
    fn softib_rs_post_send(world, pair: Handle, send: *const Send) -> c_int {
        // SAFETY: C passes a live structure with its segments.
        let (send, segments) = unsafe {
            let send = &*send;
            (send, segments(send.segments, send.segment_count))
        };
        code(world.post_send(pair, send, segments))
    }

    /// Posts a receive.
    fn softib_rs_post_receive(world, pair: Handle, receive: *const Receive) -> c_int {
        // SAFETY: C passes a live structure with its segments.
        let (receive, segments) = unsafe {
            let receive = &*receive;
            (receive, segments(receive.segments, receive.segment_count))
        };
        code(world.post_receive(pair, receive.wr_id, segments))
    }

    /// Attaches a queue pair to a group.
    fn softib_rs_attach(world, pair: Handle, gid: *const [u8; 16], lid: u16) -> c_int {
        // SAFETY: C passes 16 bytes.
        code(world.attach(pair, (unsafe { *gid }, lid), true))
    }

    /// Detaches a queue pair from a group.
    fn softib_rs_detach(world, pair: Handle, gid: *const [u8; 16], lid: u16) -> c_int {
        // SAFETY: C passes 16 bytes.
        code(world.attach(pair, (unsafe { *gid }, lid), false))
    }
}
