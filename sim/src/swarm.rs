//! Many seeds, each run twice.

use std::cell::RefCell;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use ipoib_rs::time::Instant;

use crate::random::Random;
use crate::rules::Rules;
use crate::scenario;
use crate::trace::Verbosity;
use crate::verdict::{Failure, FailureKind};
use crate::world::Totals;

/// A seed takes a second. One that does not end in this time, by the clock of the
/// machine, never will.
const HANG_AFTER: Duration = Duration::from_secs(300);
/// The seeds among which a hanging one is looked for: those begun last, a thread each.
const SEEDS_SHOWN: u64 = 8;

/// A bug to plant in the world, so that the checkers can show that they find it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Planted {
    /// A packet that was received is kept for ever.
    Leak,
    /// A packet is delivered to a host of another partition.
    Trespass,
    /// A completion is fed twice.
    DoubleCompletion,
    /// Something outside the world decides.
    Whim,
    /// A message of a connection is thrown away by the shell.
    LostMessage,
    /// A message of a connection leaves as a datagram, whatever its length is.
    WrongQueue,
    /// What is posted on a connection is forgotten before its queue pair is gone.
    EarlyDestroy,
    /// The queue pair of a connection is not destroyed.
    LostQueuePair,
    /// A connection that is over keeps its name.
    ForgottenName,
    /// The peer's answer to a REQ is not told.
    LostAnswer,
    /// More is sent to a peer than it said that it receives.
    Promise,
    /// A sender is not told that its packet is too big.
    Silence,
    /// A sender is told another MTU than that of its receiver.
    WrongMtu,
    /// The log is told everything twice.
    Repetition,
    /// A connection that failed is never destroyed.
    StuckDrain,
    /// A peer is asked for a service that nobody has.
    WrongService,
    /// An interface is not told of another MTU.
    StaleMtu,
    /// An interface does not get its deadlines.
    LostTimer,
    /// The stack of a lagg does not get the address of the port that carries.
    LateAddress,
    /// The stack is told of every change of a lagg twice.
    RepeatedNotice,
    /// A packet goes by the port that does not carry.
    IdlePort,
    /// All groups of a lagg are left and joined again when one changes.
    GroupChurn,
    /// A lagg never hears what its ports are like unless an event says so.
    LostQuery,
}

/// How seeds are run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The bug, if there is to be one.
    pub planted: Option<Planted>,
}

/// What came of one run.
#[derive(Debug)]
pub struct Outcome {
    /// The hash of everything that happened.
    pub hash: u64,
    /// How much happened.
    pub events: u64,
    /// How long it took in the world.
    pub virtual_time: Duration,
    /// Every counter of every interface and host, summed.
    pub totals: Totals,
    /// The last lines of the short log.
    pub log: Vec<String>,
    /// What is wrong, if something is.
    pub failure: Option<Failure>,
}

/// Sums over all seeds.
#[derive(Debug, Default)]
struct Summary {
    seeds: u64,
    events: u64,
    virtual_time: Duration,
    totals: Totals,
    failures: Vec<(u64, Outcome, Failure)>,
}

/// Runs the seeds on `jobs` threads, prints what failed and a summary, and returns the kind of the
/// failure of the lowest seed.
pub fn run(seeds: Range<u64>, jobs: usize, options: Options) -> Option<FailureKind> {
    catch_panics();
    let next = AtomicU64::new(seeds.start);
    let (sender, receiver) = mpsc::channel();
    let mut summary = Summary::default();
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let sender = sender.clone();
            let (next, end) = (&next, seeds.end);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    // The receiver lives until all senders are gone.
                    if seed >= end || sender.send((seed, run_twice(seed, options))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        loop {
            match receiver.recv_timeout(HANG_AFTER) {
                Ok((seed, outcome)) => summary.add(seed, outcome),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => summary.give_up(next.load(Ordering::Relaxed)),
            }
        }
    });
    summary.print(options);
    summary.failures.first().map(|(_, _, failure)| failure.kind)
}

/// Runs one seed with every line of its short log printed.
pub fn replay(seed: u64, options: Options) -> Option<FailureKind> {
    catch_panics();
    let outcome = run_once(seed, Verbosity::Printed, options);
    println!("rules: {}", Rules::swarm(&mut Random::new(seed)));
    println!("hash: {:016x}, events: {}", outcome.hash, outcome.events);
    match outcome.failure {
        Some(failure) => {
            println!("FAILED: {failure}");
            Some(failure.kind)
        }
        None => {
            println!("passed");
            None
        }
    }
}

/// Runs a seed twice and compares. The short log is made only when it is needed, by a third run.
pub fn run_twice(seed: u64, options: Options) -> Outcome {
    let first = run_once(seed, Verbosity::Silent, options);
    let second = run_once(seed, Verbosity::Silent, options);
    if first.failure.is_none() && second.failure.is_none() && first.hash == second.hash {
        return first;
    }
    let mut outcome = run_once(seed, Verbosity::Kept, options);
    if (first.hash, first.events) != (second.hash, second.events) {
        outcome.failure = Some(Failure {
            kind: FailureKind::NonDeterminism,
            at: Instant::ZERO + first.virtual_time,
            what: format!(
                "hash {:016x} after {} events, then {:016x} after {}",
                first.hash, first.events, second.hash, second.events
            ),
        });
    }
    if outcome.failure.is_none() {
        outcome.failure = first.failure;
    }
    outcome
}

fn run_once(seed: u64, verbosity: Verbosity, options: Options) -> Outcome {
    let run = AssertUnwindSafe(|| scenario::swarm(seed, verbosity, options));
    panic::catch_unwind(run).unwrap_or_else(|_| {
        let text = LAST_PANIC.take();
        Outcome {
            hash: 0,
            events: 0,
            virtual_time: Duration::ZERO,
            totals: Totals::new(),
            log: Vec::new(),
            failure: Some(Failure { kind: FailureKind::Crash, at: Instant::ZERO, what: text }),
        }
    })
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A panic is reported with its seed; the default hook would print it without.
fn catch_panics() {
    panic::set_hook(Box::new(|info| LAST_PANIC.set(info.to_string())));
}

impl Summary {
    /// Ends the process: a thread that does not come back cannot be ended.
    fn give_up(&self, seed_next: u64) -> ! {
        let lowest = seed_next.saturating_sub(SEEDS_SHOWN);
        println!(
            "no seed ended for {HANG_AFTER:?}; {} are done, the one that hangs is among \
             {lowest}..{seed_next}",
            self.seeds
        );
        process::exit(i32::from(FailureKind::Liveness.exit_code()));
    }

    fn add(&mut self, seed: u64, mut outcome: Outcome) {
        self.seeds += 1;
        self.events += outcome.events;
        self.virtual_time += outcome.virtual_time;
        for (&name, value) in &outcome.totals {
            *self.totals.entry(name).or_default() += value;
        }
        if let Some(failure) = outcome.failure.take() {
            self.failures.push((seed, outcome, failure));
            self.failures.sort_by_key(|&(seed, ..)| seed);
        }
    }

    fn print(&self, options: Options) {
        const FAILURES_SHOWN_MAX: usize = 5;
        const LINES_SHOWN_MAX: usize = 40;
        for (seed, outcome, failure) in self.failures.iter().take(FAILURES_SHOWN_MAX) {
            println!("seed {seed}: {failure}");
            let skip = outcome.log.len().saturating_sub(LINES_SHOWN_MAX);
            for line in &outcome.log[skip..] {
                println!("    {line}");
            }
            let rules = Rules::swarm(&mut Random::new(*seed));
            let planted =
                options.planted.map_or(String::new(), |bug| format!(" --plant {}", bug.argument()));
            println!("  rules: {rules}");
            println!("  replay: sim --replay {seed}{planted}");
        }
        let unreached: Vec<_> =
            self.totals.iter().filter(|&(_, &value)| value == 0).map(|(&name, _)| name).collect();
        println!("counters that no seed reached: {}", unreached.join(" "));
        let count = |kind| {
            let of_kind = |failure: &&(u64, Outcome, Failure)| failure.2.kind == kind;
            self.failures.iter().filter(of_kind).count()
        };
        println!(
            "{} seeds, each run twice: {} events, {:.0} s of virtual time; {} safety violations, \
             {} liveness failures, {} leaks, {} not deterministic, {} crashes",
            self.seeds,
            self.events,
            self.virtual_time.as_secs_f64(),
            count(FailureKind::Safety),
            count(FailureKind::Liveness),
            count(FailureKind::Leak),
            count(FailureKind::NonDeterminism),
            count(FailureKind::Crash),
        );
    }
}

impl Planted {
    fn argument(self) -> String {
        use clap::ValueEnum;
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }
}
