//! Trees of sysctls: what hangs on one goes with it.

mod common;

use std::ffi::CStr;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use fake_kernel::{kenv, sysctl};
use kpi::errno::Errno;
use kpi::sysctl::{Label, Root, Tree};
use kpi::tunable;

fn label(name: &CStr) -> Label<'_> {
    Label { name, description: c"a test" }
}

/// A tree with a number and a text that share a value.
fn tree(name: &CStr, value: &Arc<AtomicU64>) -> Result<Tree, Errno> {
    let may_sleep = &mut may_sleep();
    let mut tree = Tree::new(Root::Hw, label(name), may_sleep)?;
    let node = tree.add_node(Tree::TOP, label(c"branch"), may_sleep)?;
    let (shown, changed) = (Arc::clone(value), Arc::clone(value));
    tree.add_changeable_number(
        node,
        label(c"number"),
        move |_| shown.load(Ordering::Relaxed),
        move |number, _| {
            changed.store(number, Ordering::Relaxed);
            Ok(())
        },
        may_sleep,
    )?;
    let (shown, changed) = (Arc::clone(value), Arc::clone(value));
    tree.add_changeable_text(
        Tree::TOP,
        label(c"text"),
        move |out, _| write!(out, "it is {}", shown.load(Ordering::Relaxed)),
        move |text, _| {
            let number = text.parse().map_err(|_| Errno::EINVAL)?;
            changed.store(number, Ordering::Relaxed);
            Ok(())
        },
        may_sleep,
    )?;
    Ok(tree)
}

#[test]
fn what_is_written_is_what_is_read() {
    let value = Arc::new(AtomicU64::new(7));
    let tree = tree(c"readwrite", &value).unwrap();
    assert_eq!(sysctl::read_number("hw.readwrite.branch.number"), Ok(7));
    assert_eq!(sysctl::write_number("hw.readwrite.branch.number", 8), Ok(()));
    assert_eq!(sysctl::read_text("hw.readwrite.text").as_deref(), Ok("it is 8"));
    assert_eq!(sysctl::write_text("hw.readwrite.text", " 9\n"), Ok(()));
    assert_eq!(value.load(Ordering::Relaxed), 9);
    drop(tree);
}

#[test]
fn a_text_that_cannot_be_is_refused() {
    let value = Arc::new(AtomicU64::new(7));
    let tree = tree(c"refusing", &value).unwrap();
    let long = "9".repeat(64);
    for text in ["", "seven", "-1", &long] {
        let code = Errno::code(Err(Errno::EINVAL));
        assert_eq!(sysctl::write_text("hw.refusing.text", text), Err(code), "{text}");
    }
    assert_eq!(value.load(Ordering::Relaxed), 7);
    drop(tree);
}

#[test]
fn what_hangs_on_a_tree_goes_with_it() {
    let value = Arc::new(AtomicU64::new(7));
    let tree = tree(c"going", &value).unwrap();
    assert_eq!(sysctl::names("hw.going").len(), 4);
    assert_eq!(Arc::strong_count(&value), 5);
    drop(tree);
    assert_eq!(sysctl::names("hw.going").len(), 0);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn a_tree_keeps_the_one_that_it_hangs_on() {
    let may_sleep = &mut may_sleep();
    let parent = Arc::new(Tree::new(Root::NetLink, label(c"parent"), may_sleep).unwrap());
    let child = Tree::below(&parent, label(c"child"), may_sleep).unwrap();
    drop(parent);
    assert_eq!(sysctl::names("net.link.parent").len(), 2);
    drop(child);
    assert_eq!(sysctl::names("net.link.parent").len(), 0);
}

#[test]
fn a_name_that_is_taken_is_not_given_again() {
    let value = Arc::new(AtomicU64::new(7));
    let first = tree(c"taken", &value).unwrap();
    let second = tree(c"taken", &value).map(|_| ());
    assert_eq!(second, Err(Errno::EEXIST));
    assert_eq!(sysctl::read_number("hw.taken.branch.number"), Ok(7));
    drop(first);
}

#[test]
fn a_tree_without_memory_leaves_nothing() {
    let value = Arc::new(AtomicU64::new(7));
    with_each_allocation_failing(|| tree(c"failing", &value));
    assert_eq!(sysctl::names("hw.failing").len(), 0);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn the_environment_of_the_kernel_is_read() {
    kenv::set("hw.test.number", "42");
    kenv::set("hw.test.text", "connected");
    assert_eq!(tunable::number(c"hw.test.number"), Some(42));
    assert_eq!(tunable::number(c"hw.test.text"), None);
    let mut buffer = [0; tunable::TEXT_BYTES];
    assert_eq!(tunable::text(c"hw.test.text", &mut buffer), Some("connected"));
    assert_eq!(tunable::text(c"hw.test.nothing", &mut buffer), None);
}
