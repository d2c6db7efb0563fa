//! What was taken down, in order.

use std::sync::{Mutex, PoisonError};

use crate::memory;

static STEPS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// The names of what was taken down since the last call, first come first.
pub fn take() -> Vec<&'static str> {
    std::mem::take(&mut *STEPS.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) fn note(step: &'static str) {
    let _inside = memory::inside();
    STEPS.lock().unwrap_or_else(PoisonError::into_inner).push(step);
}
