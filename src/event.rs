//! What an interface tells its shell: state deltas, in order. Nobody answers to them.

use crate::action::{ConnectError, SaError};
use crate::ib::Mgid;
use crate::interface::Mode;
use crate::storage::{Fixed, OutOfMemory};
use crate::wire::LinkAddress;

/// Something changed that an admin or the network stack should know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// The port's GID changed and with it the link-layer address.
    AddressChanged(LinkAddress),
    /// The port moved to another LID: the stack should announce its address (gratuitous ARP,
    /// unsolicited neighbour advertisement), so that peers look their path up again.
    AnnounceAddress,
    /// The broadcast group is another one, because the P_Key is. The multicast list should be fed
    /// again in its terms.
    BroadcastChanged(Mgid),
    /// Everything is given back; the interface may be freed.
    Detached,
    /// No carrier.
    LinkDown,
    /// Carrier: the port is ACTIVE, the P_Key present and the broadcast group joined.
    LinkUp,
    /// The mode of the interface.
    ModeChanged(Mode),
    /// The MTU of the interface, without the encapsulation header.
    MtuChanged(usize),
    /// A line for the log, at most one per object and cause until that object recovers.
    Notice(Notice),
}

/// A line for the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Notice {
    /// The SA's record of the broadcast group cannot be used: another partition, or an MTU that the
    /// port cannot carry.
    BroadcastUnusable(Mgid),
    /// A neighbour says that it accepts connections and refuses one; it is reached by datagrams.
    ConnectFailing(LinkAddress, ConnectError),
    /// A drain ended by force: completions did not come.
    DrainForced,
    /// A group cannot be joined; it is being retried.
    JoinFailing(Mgid, SaError),
    /// A group that could not be joined now is.
    JoinRecovered(Mgid),
    /// A neighbour cannot be resolved.
    PathFailing(LinkAddress, SaError),
    /// The adapter would not reset the queue pair: its buffers stay lost until it does.
    ResetFailed,
    /// Packets to a neighbour are larger than its MTU, which is given.
    TooBig(LinkAddress, usize),
}

/// Events that wait to be polled.
#[derive(Debug)]
pub(crate) struct Events {
    ring: Fixed<Option<Event>>,
    head: usize,
    len: usize,
}

/// More than one input can cause: an input concerns one object, and a link that goes up or down
/// tells at most four things.
const EVENTS_MAX: u32 = 64;

impl Events {
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        Ok(Self { ring: Fixed::new(EVENTS_MAX, || None)?, head: 0, len: 0 })
    }

    /// Appends, or says that there is no room because nobody polled.
    pub(crate) fn push(&mut self, event: Event) -> Result<(), Event> {
        let at = (self.head + self.len) % EVENTS_MAX as usize;
        match self.ring.get_mut(at) {
            Some(place @ None) => {
                *place = Some(event);
                self.len += 1;
                Ok(())
            }
            Some(Some(_)) | None => Err(event),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        let event = self.ring.get_mut(self.head)?.take()?;
        self.head = (self.head + 1) % EVENTS_MAX as usize;
        self.len -= 1;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_and_none_is_overwritten() {
        let mut events = Events::new().unwrap();
        for mtu in 0..EVENTS_MAX as usize {
            events.push(Event::MtuChanged(mtu)).unwrap();
        }
        assert_eq!(events.push(Event::LinkUp), Err(Event::LinkUp));
        assert_eq!(events.pop(), Some(Event::MtuChanged(0)));
        events.push(Event::LinkUp).unwrap();
        let last = core::iter::from_fn(|| events.pop()).last();
        assert_eq!(last, Some(Event::LinkUp));
    }
}
