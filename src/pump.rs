//! Lock, feed, drain, unlock, execute: the one order in which a shell drives an interface.
//!
//! Shared by the kernel, the simulator and the lab, because the order of lock and action is where
//! kernel bugs live. Nothing sleeps, sends to the stack or calls back while the interface is
//! locked.

use crate::action::Action;
use crate::event::Event;
use crate::interface::Interface;
use crate::packet::{DataPath, PacketBuf};
use crate::time::Instant;

/// Actions that are taken out in one go, before the lock is dropped to execute them.
pub(crate) const BATCH_LEN: usize = 8;

/// What surrounds an interface: enough to feed it.
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
}

/// A shell that carries out what follows from an input.
pub trait PumpingShell: Shell {
    /// Records a state delta.
    fn observe(&mut self, event: Event);

    /// Executes an action or hands it to a thread that may sleep.
    fn execute(&mut self, action: Action);

    /// Sets the interface's one timer; `None` stops it.
    fn schedule(&mut self, deadline: Option<Instant>);
}

/// Feeds one input to the interface and carries out all that follows from it.
pub fn pump<S: PumpingShell, R>(
    shell: &mut S,
    feed: impl FnOnce(&mut Interface<S::Packet>, &mut S::DataPath<'_>) -> R,
) -> R {
    let mut outputs = Outputs::NONE;
    let (result, mut has_more) = shell.with_interface(|interface, datapath| {
        let result = feed(interface, datapath);
        (result, outputs.drain(interface))
    });
    shell.release_packets();
    loop {
        shell.schedule(outputs.deadline);
        let events = outputs.events.iter_mut().map_while(Option::take);
        events.for_each(|event| shell.observe(event));
        let actions = outputs.actions.iter_mut().map_while(Option::take);
        actions.for_each(|action| shell.execute(action));
        if !has_more {
            return result;
        }
        has_more = shell.with_interface(|interface, _| outputs.drain(interface));
    }
}

/// A shell that takes inputs where nothing may sleep, and has a thread that may.
pub trait DeferringShell: Shell {
    /// Has the thread [`pump`]. It may be called while that is doing so: it then does so again.
    fn wake(&mut self);
}

/// Feeds one input where nothing may sleep: packets are released, and all else that follows from it
/// stays in the interface until the shell's thread pumps.
pub fn feed<S: DeferringShell, R>(
    shell: &mut S,
    feed: impl FnOnce(&mut Interface<S::Packet>, &mut S::DataPath<'_>) -> R,
) -> R {
    let (result, has_output) = shell.with_interface(|interface, datapath| {
        let result = feed(interface, datapath);
        (result, interface.has_output())
    });
    shell.release_packets();
    if has_output {
        shell.wake();
    }
    result
}

/// One batch of outputs, in the order of the contract: actions, deadline, events. Most inputs have
/// none, so it is filled in place and nothing is copied.
struct Outputs {
    actions: [Option<Action>; BATCH_LEN],
    deadline: Option<Instant>,
    events: [Option<Event>; BATCH_LEN],
}

impl Outputs {
    const NONE: Self = Self {
        actions: [const { None }; BATCH_LEN],
        deadline: None,
        events: [const { None }; BATCH_LEN],
    };

    /// Takes a batch out. Whether there may be more.
    fn drain<B: PacketBuf>(&mut self, interface: &mut Interface<B>) -> bool {
        let has_more_actions = fill(&mut self.actions, || interface.poll_action());
        self.deadline = interface.poll_timeout();
        let has_more_events = fill(&mut self.events, || interface.poll_event());
        has_more_actions || has_more_events
    }
}

/// Fills places in order until there is no more to put there. Whether all were filled.
pub(crate) fn fill<T>(places: &mut [Option<T>], mut poll: impl FnMut() -> Option<T>) -> bool {
    places.iter_mut().all(|place| {
        *place = poll();
        place.is_some()
    })
}
