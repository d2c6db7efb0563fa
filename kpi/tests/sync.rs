//! Mutexes and contexts.

mod common;

use std::ffi::CStr;

use common::*;
use kpi::context::with_net_epoch;
use kpi::sync::{After, Level, Mutex};

struct Outer;

impl Level for Outer {
    const NAME: &CStr = c"outer";
}

struct Inner;

impl Level for Inner {
    const NAME: &CStr = c"inner";
}

impl After<Outer> for Inner {}

#[test]
fn mutexes_are_locked_in_the_order_of_their_levels() {
    let outer = Mutex::<Outer, _>::new(1).unwrap();
    let inner = Mutex::<Inner, _>::new(2).unwrap();
    let sum = outer.with(&mut may_sleep(), |a, held| {
        assert!(fake_kernel::sync::holds_mutex());
        inner.with(held, |b, _| *a + *b)
    });
    assert_eq!(sum, 3);
    assert!(!fake_kernel::sync::holds_mutex());
}

#[test]
fn a_value_is_changed_by_one_thread_at_a_time() {
    let rounds = if cfg!(miri) { 20 } else { 1000 };
    let mutex = Mutex::<Outer, _>::new(0_u32).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    mutex.with(&mut unlocked(), |value, _| *value += 1);
                }
            });
        }
    });
    assert_eq!(mutex.with(&mut unlocked(), |value, _| *value), 4 * rounds);
}

#[test]
fn the_net_epoch_is_left_as_often_as_it_is_entered() {
    with_net_epoch(&mut may_sleep(), |epoch| {
        assert!(fake_kernel::sync::is_in_epoch());
        with_net_epoch(epoch, |_| assert!(fake_kernel::sync::is_in_epoch()));
        assert!(fake_kernel::sync::is_in_epoch());
    });
    assert!(!fake_kernel::sync::is_in_epoch());
}

#[test]
fn a_mutex_without_memory_drops_its_value() {
    with_each_allocation_failing(|| Mutex::<Outer, _>::new(Box::new(1)));
}
