//! Lock, feed, drain, unlock, execute: as [`crate::pump`] does for an interface.

use crate::pump::{BATCH_LEN, fill};
use crate::time::Instant;

use super::action::{Action, Event};
use super::{Face, Lagg};

/// What surrounds a lagg.
pub trait Shell {
    /// What the network stack sees of the lagg, while it is locked.
    type Face<'a>: Face;

    /// Runs `feed` with the lagg locked.
    fn with_lagg<R>(&mut self, feed: impl FnOnce(&mut Lagg, &mut Self::Face<'_>) -> R) -> R;

    /// Tells the network stack of a change.
    fn observe(&mut self, event: Event);

    /// Executes an action. It may feed the lagg through a pump of its own.
    fn execute(&mut self, action: Action);

    /// Sets the lagg's one timer; `None` stops it.
    fn schedule(&mut self, deadline: Option<Instant>);
}

/// Feeds one input to the lagg and carries out all that follows from it: first the stack is told,
/// then what is to be done is done, so that an announcement never comes before the notice of the
/// address that it announces.
pub fn pump<S: Shell, R>(shell: &mut S, feed: impl FnOnce(&mut Lagg, &mut S::Face<'_>) -> R) -> R {
    let mut outputs = Outputs::NONE;
    let (result, mut has_more) = shell.with_lagg(|lagg, face| {
        let result = feed(lagg, face);
        (result, outputs.drain(lagg))
    });
    loop {
        shell.schedule(outputs.deadline);
        let events = outputs.events.iter_mut().map_while(Option::take);
        events.for_each(|event| shell.observe(event));
        let actions = outputs.actions.iter_mut().map_while(Option::take);
        actions.for_each(|action| shell.execute(action));
        if !has_more {
            return result;
        }
        has_more = shell.with_lagg(|lagg, _| outputs.drain(lagg));
    }
}

/// One batch of outputs.
struct Outputs {
    events: [Option<Event>; BATCH_LEN],
    actions: [Option<Action>; BATCH_LEN],
    deadline: Option<Instant>,
}

impl Outputs {
    const NONE: Self = Self {
        events: [const { None }; BATCH_LEN],
        actions: [const { None }; BATCH_LEN],
        deadline: None,
    };

    /// Takes a batch out. Whether there may be more: there may after every one that was not empty,
    /// because a port that is released can be the last one, of which an event tells.
    fn drain(&mut self, lagg: &mut Lagg) -> bool {
        fill(&mut self.events, || lagg.poll_event());
        fill(&mut self.actions, || lagg.poll_action());
        self.deadline = lagg.poll_timeout();
        self.events.iter().any(Option::is_some) || self.actions.iter().any(Option::is_some)
    }
}
