//! Lock, feed, drain, unlock, execute: the one order in which a shell drives an interface.
//!
//! Shared by the kernel, the simulator and the lab, because the order of lock and action is where
//! kernel bugs live. Nothing sleeps, sends to the stack or calls back while the interface is
//! locked.

use core::array;

use crate::action::Action;
use crate::event::Event;
use crate::interface::Interface;
use crate::packet::{DataPath, PacketBuf};
use crate::time::Instant;

/// Actions that are taken out in one go, before the lock is dropped to execute them.
const BATCH_LEN: usize = 16;

/// What surrounds an interface.
pub trait Shell {
    /// The packets of this world.
    type Packet: PacketBuf;
    /// The queues of the adapter, while the interface is locked.
    type DataPath<'a>: DataPath<Self::Packet>;

    /// Runs `feed` with the interface locked.
    fn with_interface<R>(
        &mut self,
        feed: impl FnOnce(&mut Interface<Self::Packet>, &mut Self::DataPath<'_>) -> R,
    ) -> R;

    /// Hands what the data path recorded (delivered, dropped and too-big packets) to the stack.
    fn release_packets(&mut self);

    /// Records a state delta.
    fn observe(&mut self, event: Event);

    /// Executes an action or hands it to a thread that may sleep.
    fn execute(&mut self, action: Action);

    /// Sets the interface's one timer; `None` stops it.
    fn schedule(&mut self, deadline: Option<Instant>);
}

/// Feeds one input to the interface and carries out all that follows from it.
pub fn pump<S: Shell, R>(
    shell: &mut S,
    feed: impl FnOnce(&mut Interface<S::Packet>, &mut S::DataPath<'_>) -> R,
) -> R {
    let (result, mut outputs) = shell.with_interface(|interface, datapath| {
        let result = feed(interface, datapath);
        (result, Outputs::drain(interface))
    });
    shell.release_packets();
    loop {
        shell.schedule(outputs.deadline);
        outputs.events.into_iter().flatten().for_each(|event| shell.observe(event));
        outputs.actions.into_iter().flatten().for_each(|action| shell.execute(action));
        if !outputs.has_more {
            return result;
        }
        outputs = shell.with_interface(|interface, _| Outputs::drain(interface));
    }
}

/// One batch of outputs, in the order of the contract: actions, deadline, events.
struct Outputs {
    actions: [Option<Action>; BATCH_LEN],
    deadline: Option<Instant>,
    events: [Option<Event>; BATCH_LEN],
    has_more: bool,
}

impl Outputs {
    fn drain<B: PacketBuf>(interface: &mut Interface<B>) -> Self {
        let actions: [_; BATCH_LEN] = array::from_fn(|_| interface.poll_action());
        let deadline = interface.poll_timeout();
        let events: [_; BATCH_LEN] = array::from_fn(|_| interface.poll_event());
        let has_more =
            matches!(actions.last(), Some(Some(_))) || matches!(events.last(), Some(Some(_)));
        Self { actions, deadline, events, has_more }
    }
}
