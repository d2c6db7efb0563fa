//! What is under way on reliable connections: each message once, in the order of posting.

use std::collections::{BTreeMap, VecDeque};

use ipoib_rs::ib::{Gid, Qpn};

/// Bytes of a message that tell it from others, besides its length.
const PRINT_BYTES: usize = 64;

/// One end of a connection: a port and a queue pair.
pub(super) type End = (Gid, Qpn);

/// The messages that were posted and did not arrive, by the end that sends them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: BTreeMap<End, VecDeque<u64>>,
}

impl Streams {
    /// A queue pair has a new connection.
    pub(super) fn open(&mut self, sender: End) {
        self.streams.insert(sender, VecDeque::new());
    }

    /// A message was posted that looks like `print`.
    pub(super) fn on_posted(&mut self, sender: End, print: u64) {
        self.streams.entry(sender).or_default().push_back(print);
    }

    /// A message was taken from the adapter (IBA 9.7.2: in order, once, and none is left out).
    pub(super) fn on_arrived(&mut self, sender: End, message: &[u8]) -> Result<(), String> {
        let expected = self.streams.get_mut(&sender).and_then(VecDeque::pop_front);
        if expected == Some(Self::print(message)) {
            return Ok(());
        }
        let (_, qpn) = sender;
        let bytes = message.len();
        Err(format!("a message of {bytes} bytes from {qpn:?} arrived out of order"))
    }

    /// What a message looks like: FNV-1a over its length and its first bytes.
    pub(super) fn print(message: &[u8]) -> u64 {
        let first = &message[..message.len().min(PRINT_BYTES)];
        let length = (message.len() as u64).to_le_bytes();
        length.iter().chain(first).fold(0xCBF2_9CE4_8422_2325, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: End = (Gid([1; 16]), Qpn::GSI);

    fn streams() -> Streams {
        let mut streams = Streams::default();
        streams.open(END);
        streams.on_posted(END, Streams::print(b"first"));
        streams.on_posted(END, Streams::print(b"second"));
        streams
    }

    #[test]
    fn messages_in_order_are_accepted_and_a_late_loss_as_well() {
        let mut streams = streams();
        assert_eq!(streams.on_arrived(END, b"first"), Ok(()));
        assert_eq!(streams.on_arrived(END, b"second"), Ok(()));
    }

    #[test]
    fn a_gap_and_a_repetition_are_refused() {
        assert!(streams().on_arrived(END, b"second").is_err());
        let mut streams = streams();
        assert_eq!(streams.on_arrived(END, b"first"), Ok(()));
        assert!(streams.on_arrived(END, b"first").is_err());
    }
}
