//! Workers: what they work on goes when they do, whoever still wakes them.

mod common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use common::*;
use kpi::context::MaySleep;
use kpi::errno::Errno;
use kpi::owned::try_arc;
use kpi::time;
use kpi::worker::{Waker, Work, Worker};

const SOON: Duration = Duration::from_secs(20);

/// Tells each time that it runs.
struct Teller(Sender<()>);

impl Work for Teller {
    fn run(&self, _may_sleep: &mut MaySleep) {
        assert!(!fake_kernel::sync::holds_mutex());
        let _ = self.0.send(());
    }
}

fn start(waker: &Waker) -> Result<(Worker, Receiver<()>, Weak<Teller>), Errno> {
    let (sender, receiver) = channel();
    let teller = try_arc(Teller(sender))?;
    let weak = Arc::downgrade(&teller);
    let worker = Worker::start(waker, c"teller", teller, &mut may_sleep())?;
    Ok((worker, receiver, weak))
}

#[test]
fn a_worker_runs_when_it_is_woken() {
    let waker = Waker::new().unwrap();
    let (worker, told, _) = start(&waker).unwrap();
    assert!(told.recv_timeout(Duration::from_millis(20)).is_err());
    waker.wake();
    told.recv_timeout(SOON).unwrap();
    worker.stop(&mut may_sleep());
}

#[test]
fn a_worker_runs_at_its_deadline_and_not_before() {
    let waker = Waker::new().unwrap();
    let (worker, told, _) = start(&waker).unwrap();
    let deadline = time::now() + Duration::from_millis(50);
    waker.wake_at(deadline);
    told.recv_timeout(SOON).unwrap();
    assert!(time::now() >= deadline);
    worker.stop(&mut may_sleep());
}

#[test]
fn a_later_deadline_takes_the_place_of_an_earlier_one() {
    let waker = Waker::new().unwrap();
    let (worker, told, _) = start(&waker).unwrap();
    let now = time::now();
    waker.wake_at(now + Duration::from_millis(20));
    waker.wake_at(now + Duration::from_millis(80));
    told.recv_timeout(SOON).unwrap();
    assert!(time::now() >= now + Duration::from_millis(80));
    worker.stop(&mut may_sleep());
}

#[test]
fn what_a_worker_works_on_goes_with_it() {
    let waker = Waker::new().unwrap();
    let (worker, told, weak) = start(&waker).unwrap();
    waker.wake_at(time::now() + Duration::from_secs(3600));
    assert_eq!(weak.strong_count(), 1);
    worker.stop(&mut may_sleep());
    assert_eq!(weak.strong_count(), 0);
    // Those who wake it do not know that it is gone.
    waker.wake();
    waker.wake_at(time::now());
    assert!(told.recv().is_err());
}

#[test]
fn a_worker_can_be_followed_by_another() {
    let waker = Waker::new().unwrap();
    let (first, _, _) = start(&waker).unwrap();
    let refused = start(&waker).map(|_| ());
    assert_eq!(refused, Err(Errno::EEXIST));
    waker.wake();
    first.stop(&mut may_sleep());
    let (second, told, _) = start(&waker).unwrap();
    waker.wake();
    told.recv_timeout(SOON).unwrap();
    second.stop(&mut may_sleep());
}

#[test]
fn a_worker_without_memory_is_none() {
    with_each_allocation_failing(|| {
        let waker = Waker::new()?;
        start(&waker).map(|(worker, ..)| worker.stop(&mut may_sleep()))
    });
}
