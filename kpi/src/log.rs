//! Lines for the system log, and the end of the kernel.

use core::ffi::c_int;
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sys_bindings as sys;

use crate::time;

/// How important a line is (syslog(3)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Level {
    /// Something does not work.
    Error,
    /// Something may not work.
    Warning,
    /// A normal event that an admin wants to see.
    Notice,
    /// Good to know.
    Info,
}

impl Level {
    const fn priority(self) -> c_int {
        let priority = match self {
            Self::Error => sys::LOG_ERR,
            Self::Warning => sys::LOG_WARNING,
            Self::Notice => sys::LOG_NOTICE,
            Self::Info => sys::LOG_INFO,
        };
        // CAST: at most 7.
        priority as c_int
    }
}

/// Writes a line to the system log. It is cut after [`LINE_BYTES_MAX`] bytes.
pub fn line(level: Level, text: fmt::Arguments<'_>) {
    let line = Line::new(text);
    // SAFETY: log(9) neither sleeps nor takes locks that we may hold; it copies the text, which is
    // a live buffer of that length.
    unsafe { sys::rust_helper_log(level.priority(), line.bytes.as_ptr().cast(), line.length()) }
}

/// Lines of one kind, of which there are not more than some in a second.
#[derive(Debug)]
pub struct Limited {
    per_second_max: u32,
    second: AtomicU64,
    count: AtomicU32,
}

impl Limited {
    /// At most so many lines.
    pub const fn new(per_second_max: u32) -> Self {
        Self { per_second_max, second: AtomicU64::new(0), count: AtomicU32::new(0) }
    }

    /// Writes a line, or not.
    pub fn line(&self, level: Level, text: fmt::Arguments<'_>) {
        let second = time::now().as_nanos() / 1_000_000_000;
        // Two threads at the turn of a second may let a line more through; that is no harm.
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.count.store(0, Ordering::Relaxed);
        }
        if self.count.fetch_add(1, Ordering::Relaxed) < self.per_second_max {
            line(level, text);
        }
    }
}

/// What a panic in Rust ends in: panic(9), with the message and the place.
pub fn panic(info: &PanicInfo<'_>) -> ! {
    let line = Line::new(format_args!("{info}"));
    // SAFETY: panic(9) may be called anywhere and does not return; it copies the text.
    unsafe { sys::rust_helper_panic(line.bytes.as_ptr().cast(), line.length()) }
}

/// The longest line.
pub const LINE_BYTES_MAX: usize = 256;

/// A text on the stack, cut where it is too long.
struct Line {
    bytes: [u8; LINE_BYTES_MAX],
    length: usize,
}

impl Line {
    fn new(text: fmt::Arguments<'_>) -> Self {
        let mut line = Self { bytes: [0; LINE_BYTES_MAX], length: 0 };
        // An error says that the text was cut.
        let _ = line.write_fmt(text);
        line
    }

    fn length(&self) -> c_int {
        // CAST: at most LINE_BYTES_MAX.
        self.length as c_int
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        let length = text.len().min(room.len());
        for (to, from) in room.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        self.length += length;
        if length < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}
