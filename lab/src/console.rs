//! What the lab prints: lines and checks.

use std::fmt;
use std::io::{self, Write};

use crate::error::Error;

/// Standard output, and the count of the checks that were printed to it.
#[derive(Debug)]
pub(crate) struct Console {
    output: io::Stdout,
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Console {
    /// Nothing printed yet.
    pub(crate) fn new() -> Self {
        Self { output: io::stdout(), passed: 0, failed: 0, skipped: 0 }
    }

    /// Prints a line.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if nobody reads any more.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> Result<(), Error> {
        writeln!(self.output, "{text}")
            .and_then(|()| self.output.flush())
            .map_err(|source| Error::system("standard output", source))
    }

    /// Prints and counts a check.
    ///
    /// # Errors
    ///
    /// As [`Self::line`].
    pub(crate) fn check(&mut self, name: impl fmt::Display, outcome: Outcome) -> Result<(), Error> {
        match outcome {
            Outcome::Passed(seen) => {
                self.passed += 1;
                self.line(format_args!("  ok    {name}: {seen}"))
            }
            Outcome::Failed(seen) => {
                self.failed += 1;
                self.line(format_args!("  FAIL  {name}: {seen}"))
            }
        }
    }

    /// Prints and counts a check that cannot run here, and what it needs.
    ///
    /// # Errors
    ///
    /// As [`Self::line`].
    pub(crate) fn skip(
        &mut self,
        name: impl fmt::Display,
        need: impl fmt::Display,
    ) -> Result<(), Error> {
        self.skipped += 1;
        self.line(format_args!("  skip  {name}: needs {need}"))
    }

    /// Prints the sum.
    ///
    /// # Errors
    ///
    /// [`Error::ChecksFailed`] unless all passed; as [`Self::line`].
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        let Self { passed, failed, skipped, .. } = self;
        if skipped == 0 {
            self.line(format_args!("{passed} passed, {failed} failed"))?;
        } else {
            self.line(format_args!("{passed} passed, {failed} failed, {skipped} skipped"))?;
        }
        if failed == 0 { Ok(()) } else { Err(Error::ChecksFailed) }
    }
}

/// How a check ended, with what was seen.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// As it should be.
    Passed(String),
    /// Not as it should be.
    Failed(String),
}

impl Outcome {
    /// Passed if `is_good`.
    pub(crate) fn of(is_good: bool, seen: impl Into<String>) -> Self {
        if is_good { Self::Passed(seen.into()) } else { Self::Failed(seen.into()) }
    }
}
