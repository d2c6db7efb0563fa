//! The trace of a run: a hash over everything that happened, and a short log of it.

use std::collections::VecDeque;
use std::fmt;

use ipoib_rs::time::Instant;

/// Lines that are kept for a failed run.
const LINES_MAX: usize = 400;

/// What happened so far.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    verbosity: Verbosity,
    lines: VecDeque<String>,
}

/// What becomes of the short log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verbosity {
    /// Nothing is written down: fastest.
    Silent,
    /// The last lines are kept and shown if the run fails.
    Kept,
    /// Every line is printed.
    Printed,
}

impl Trace {
    /// An empty trace.
    pub fn new(verbosity: Verbosity) -> Self {
        Self {
            // The offset basis of FNV-1a, 64 bits.
            hash: 0xCBF2_9CE4_8422_2325,
            events: 0,
            verbosity,
            lines: VecDeque::new(),
        }
    }

    /// Adds an event: when, of which kind, and the numbers that tell it from others.
    pub fn record(&mut self, now: Instant, kind: Kind, words: &[u64]) {
        self.events += 1;
        self.mix(now.as_nanos());
        self.mix(kind as u64);
        for &word in words {
            self.mix(word);
        }
    }

    /// Adds bytes to the last event.
    pub fn record_bytes(&mut self, bytes: &[u8]) {
        self.mix(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    /// Adds what `value` looks like to the last event.
    pub fn record_debug(&mut self, value: &impl fmt::Debug) {
        struct Mixer<'a>(&'a mut Trace);
        impl fmt::Write for Mixer<'_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.record_bytes(text.as_bytes());
                Ok(())
            }
        }
        // The mixer takes everything.
        let _ = fmt::write(&mut Mixer(self), format_args!("{value:?}"));
    }

    /// Adds a line to the short log.
    pub fn note(&mut self, now: Instant, line: fmt::Arguments<'_>) {
        let stamped = || {
            let nanos = now.as_nanos();
            let (secs, micros) = (nanos / 1_000_000_000, nanos / 1_000 % 1_000_000);
            format!("{secs:4}.{micros:06} {line}")
        };
        match self.verbosity {
            Verbosity::Silent => {}
            Verbosity::Kept => {
                if self.lines.len() == LINES_MAX {
                    self.lines.pop_front();
                }
                self.lines.push_back(stamped());
            }
            Verbosity::Printed => println!("{}", stamped()),
        }
    }

    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The lines that were kept.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// FNV-1a over words instead of bytes, with a rotation so that high bits reach low ones.
    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }
}

/// The kinds of events in a trace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// The adapter or the SA carried out an action.
    Action,
    /// A packet arrived at a port.
    Arrival,
    /// A message of communication management arrived, or meant something.
    Contact,
    /// A packet reached the stack of a host.
    Delivery,
    /// A packet ended without being delivered.
    Drop,
    /// A fault began or ended.
    Fault,
    /// A packet left a port and was lost, delayed or duplicated.
    Flight,
    /// An interface reported something.
    Report,
    /// A host sent a packet.
    Send,
    /// A deadline was reached.
    Timer,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(events: &[(u64, Kind, &[u64])]) -> u64 {
        let mut trace = Trace::new(Verbosity::Silent);
        for (millis, kind, words) in events {
            trace.record(Instant::from_millis(*millis), *kind, words);
        }
        trace.hash()
    }

    #[test]
    fn hash_depends_on_order_time_kind_and_words() {
        let base: [(u64, Kind, &[u64]); 2] = [(1, Kind::Send, &[1, 2]), (2, Kind::Drop, &[3])];
        assert_eq!(hash_of(&base), hash_of(&base));
        for other in [
            [base[1], base[0]],
            [(2, base[0].1, base[0].2), base[1]],
            [(1, Kind::Timer, base[0].2), base[1]],
            [(1, Kind::Send, &[2, 1]), base[1]],
        ] {
            assert_ne!(hash_of(&base), hash_of(&other), "{other:?}");
        }
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut trace = Trace::new(Verbosity::Kept);
        for number in 0..LINES_MAX + 3 {
            trace.note(Instant::from_millis(1_500), format_args!("line {number}"));
        }
        assert_eq!(trace.lines().count(), LINES_MAX);
        assert_eq!(trace.lines().next(), Some("   1.500000 line 3"));
    }
}
