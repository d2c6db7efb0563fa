//! Questions to the subnet administrator: every answer is told once, or not at all.

use std::sync::Arc;

use crate::bench::{Bench, Log, operations};
use crate::common::may_sleep;
use fake_kernel::ofed::Fault;
use ipoib_rs::action::{
    GroupRecord, JoinRequest, Membership, OpId, PathQuery, PathRecord, SaCapabilities, SaError,
    SaRefusal,
};
use ipoib_rs::ib::{Gid, Mgid, Pkey};
use kpi::context::Unlocked;
use kpi::sa::{Administrator, Handler};

/// Error numbers of FreeBSD, as the stack gives them.
const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENETRESET: i32 = 52;
const EINTR: i32 = 4;

#[derive(Debug, PartialEq)]
enum Told {
    Path(OpId, Result<Gid, SaError>),
    Join(OpId, Result<Mgid, SaError>),
    Capabilities(OpId, Result<SaCapabilities, SaError>),
}

impl Handler for Log<Told> {
    fn path_answered(
        &self,
        op: OpId,
        answer: Result<PathRecord, SaError>,
        _unlocked: &mut Unlocked,
    ) {
        self.push(Told::Path(op, answer.map(|record| record.destination)));
    }

    fn join_answered(
        &self,
        op: OpId,
        answer: Result<GroupRecord, SaError>,
        _unlocked: &mut Unlocked,
    ) {
        self.push(Told::Join(op, answer.map(|record| record.mgid)));
    }

    fn capabilities_answered(
        &self,
        op: OpId,
        answer: Result<SaCapabilities, SaError>,
        _unlocked: &mut Unlocked,
    ) {
        self.push(Told::Capabilities(op, answer));
    }
}

fn administrator(bench: &Bench) -> (Administrator, Arc<Log<Told>>) {
    let log = Arc::new(Log::default());
    let handler = Arc::clone(&log) as Arc<dyn Handler>;
    (Administrator::new(&bench.port, handler).unwrap(), log)
}

fn destination() -> Gid {
    Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 0x99)
}

fn query() -> PathQuery {
    let source = Gid::new(Gid::SUBNET_PREFIX_DEFAULT, 1);
    PathQuery { destination: destination(), source, pkey: Pkey::DEFAULT }
}

fn mgid() -> Mgid {
    Mgid::new(Gid::new(0xff12_401b_ffff_0000, 0xffff_ffff)).unwrap()
}

fn request() -> JoinRequest {
    JoinRequest {
        mgid: mgid(),
        port_gid: query().source,
        pkey: Pkey::DEFAULT,
        membership: Membership::Full,
        create: None,
    }
}

#[test]
fn answers_come_to_their_operations() {
    let bench = Bench::start();
    let may_sleep = may_sleep();
    let (sa, log) = administrator(&bench);
    let [first, second, third] = operations();
    sa.query_path(first, &query(), &may_sleep).unwrap();
    sa.query_path(second, &query(), &may_sleep).unwrap();
    sa.query_capabilities(third, &may_sleep).unwrap();
    bench.stack.answer_capabilities(2, 0, 1 << 12);
    bench.stack.answer_path(1, EINVAL);
    bench.stack.answer_path(0, 0);
    let refused = Err(SaError::Refused(SaRefusal::NoRecords));
    assert_eq!(
        log.take(),
        [
            Told::Capabilities(third, Ok(SaCapabilities { send_only_full_member: true })),
            Told::Path(second, refused),
            Told::Path(first, Ok(destination())),
        ]
    );
    drop(sa);
    bench.stop();
}

#[test]
fn an_answer_that_comes_twice_is_told_once() {
    let bench = Bench::start();
    let may_sleep = may_sleep();
    let (sa, log) = administrator(&bench);
    let [op] = operations();
    sa.query_path(op, &query(), &may_sleep).unwrap();
    bench.stack.answer_path(0, 0);
    bench.stack.answer_path(0, EIO);
    assert_eq!(log.take(), [Told::Path(op, Ok(destination()))]);
    drop(sa);
    bench.stop();
}

#[test]
fn an_answer_after_cancel_is_not_told() {
    let bench = Bench::start();
    let may_sleep = may_sleep();
    let (sa, log) = administrator(&bench);
    let [cancelled, other] = operations();
    sa.query_path(cancelled, &query(), &may_sleep).unwrap();
    sa.query_path(other, &query(), &may_sleep).unwrap();
    sa.cancel(cancelled, &may_sleep);
    assert!(bench.stack.is_cancelled(0) && !bench.stack.is_cancelled(1));
    bench.stack.answer_path(0, EINTR);
    assert_eq!(log.take(), []);
    bench.stack.answer_path(1, 0);
    assert_eq!(log.take(), [Told::Path(other, Ok(destination()))]);
    drop(sa);
    bench.stop();
}

#[test]
fn an_answer_after_the_interface_is_gone_is_not_told() {
    let bench = Bench::start();
    let may_sleep = may_sleep();
    let (sa, log) = administrator(&bench);
    let (other, other_log) = administrator(&bench);
    let [first, second] = operations();
    sa.query_path(first, &query(), &may_sleep).unwrap();
    other.query_path(second, &query(), &may_sleep).unwrap();
    sa.close(&may_sleep);
    assert!(bench.stack.is_cancelled(0) && !bench.stack.is_cancelled(1));
    bench.stack.answer_path(0, 0);
    bench.stack.answer_path(1, 0);
    assert_eq!(log.take(), []);
    assert_eq!(other_log.take(), [Told::Path(second, Ok(destination()))]);
    drop(other);
    bench.stop();
}

#[test]
fn a_question_that_cannot_be_asked_leaves_nothing() {
    let bench = Bench::start();
    let may_sleep = may_sleep();
    let (sa, log) = administrator(&bench);
    let [op] = operations();
    bench.stack.fail_next(Fault::Ask);
    assert_eq!(sa.query_path(op, &query(), &may_sleep), Err(SaError::Unusable));
    bench.stack.fail_next(Fault::Ask);
    assert_eq!(sa.join(op, &request(), &may_sleep), Err(SaError::Unusable));
    assert_eq!((bench.stack.questions(), bench.stack.joins()), (0, 0));
    drop(sa);
    assert_eq!(log.take(), []);
    bench.stop();
}

#[test]
fn a_membership_is_kept_until_it_is_left() {
    let bench = Bench::start();
    let may_sleep = may_sleep();
    let (sa, log) = administrator(&bench);
    let [op] = operations();
    sa.join(op, &request(), &may_sleep).unwrap();
    bench.stack.answer_join(0, 0);
    assert_eq!(log.take(), [Told::Join(op, Ok(mgid()))]);
    assert!(bench.stack.is_member(0));
    sa.leave(mgid(), &may_sleep);
    assert!(!bench.stack.is_member(0));
    // Leaving twice is leaving once.
    sa.leave(mgid(), &may_sleep);
    drop(sa);
    bench.stop();
}

#[test]
fn a_refused_join_is_freed_once() {
    let bench = Bench::start();
    let may_sleep = may_sleep();
    let (sa, log) = administrator(&bench);
    let [op] = operations();
    sa.join(op, &request(), &may_sleep).unwrap();
    bench.stack.answer_join(0, EINVAL);
    let refused = Err(SaError::Refused(SaRefusal::RequestInvalid));
    assert_eq!(log.take(), [Told::Join(op, refused)]);
    assert!(!bench.stack.is_member(0));
    sa.leave(mgid(), &may_sleep);
    drop(sa);
    bench.stop();
}

#[test]
fn a_membership_that_the_stack_ends_is_freed_once() {
    let bench = Bench::start();
    let may_sleep = may_sleep();
    let (sa, log) = administrator(&bench);
    let [first, second] = operations();
    sa.join(first, &request(), &may_sleep).unwrap();
    bench.stack.answer_join(0, 0);
    bench.stack.answer_join(0, ENETRESET);
    assert!(!bench.stack.is_member(0));
    // The interface hears of the cause by itself, and joins again.
    assert_eq!(log.take(), [Told::Join(first, Ok(mgid()))]);
    sa.join(second, &request(), &may_sleep).unwrap();
    bench.stack.answer_join(1, 0);
    assert_eq!(log.take(), [Told::Join(second, Ok(mgid()))]);
    sa.close(&may_sleep);
    assert!(!bench.stack.is_member(1));
    bench.stop();
}

#[test]
fn joining_again_gives_up_what_was_joined_before() {
    let bench = Bench::start();
    let may_sleep = may_sleep();
    let (sa, _log) = administrator(&bench);
    let [first, second] = operations();
    sa.join(first, &request(), &may_sleep).unwrap();
    bench.stack.answer_join(0, 0);
    sa.join(second, &request(), &may_sleep).unwrap();
    assert!(!bench.stack.is_member(0) && bench.stack.is_member(1));
    drop(sa);
    bench.stop();
}

#[test]
fn a_join_under_way_is_given_up_by_cancel_and_by_leaving() {
    let bench = Bench::start();
    let may_sleep = may_sleep();
    let (sa, log) = administrator(&bench);
    let [first, second] = operations();
    sa.join(first, &request(), &may_sleep).unwrap();
    sa.cancel(first, &may_sleep);
    assert!(!bench.stack.is_member(0));
    sa.join(second, &request(), &may_sleep).unwrap();
    sa.leave(mgid(), &may_sleep);
    assert!(!bench.stack.is_member(1));
    assert_eq!(log.take(), []);
    drop(sa);
    bench.stop();
}
