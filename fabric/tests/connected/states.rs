//! The states of a connected queue pair and the ways between them (IBA 10.3.1, table 91).

use fabric::ModifyError;
use fabric::qp::{QpChange, QpState, RcReadyToReceive, RetryCount, RnrTimer};
use ipoib_rs::action::GlobalRoute;
use ipoib_rs::ib::{Gid, IbMtu, PkeyIndex, Qkey};

use crate::ends::{Agreement, End, INIT, changes, ends};

const PLAIN: Agreement = Agreement::DEFAULT;

const STATES: [QpState; 6] = [
    QpState::Reset,
    QpState::Init,
    QpState::ReadyToReceive,
    QpState::ReadyToSend,
    QpState::SendQueueDrained,
    QpState::Error,
];

/// All changes, and the states from which each leads to which.
fn table(ends: &[End; 2]) -> [(QpChange, &'static [QpState], Option<QpState>); 9] {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};
    let [_, receive, send] = changes(ends, 0, &PLAIN);
    let all_but_reset = &STATES[1..];
    [
        (QpChange::Reset, &STATES, Some(Reset)),
        (INIT, &[Reset, Init], Some(Init)),
        (receive, &[Init], Some(ReadyToReceive)),
        (send, &[ReadyToReceive], Some(ReadyToSend)),
        (QpChange::DrainSendQueue, &[ReadyToSend], Some(SendQueueDrained)),
        (QpChange::ReadyToSend, &[SendQueueDrained], Some(ReadyToSend)),
        (QpChange::Error, all_but_reset, Some(Error)),
        // Those of datagrams.
        (QpChange::ReadyToReceive, &[], None),
        (QpChange::SetQkey(Qkey(1)), &[], None),
    ]
}

/// The way from RESET to a state.
fn way(ends: &[End; 2], state: QpState) -> Vec<QpChange> {
    let [init, receive, send] = changes(ends, 0, &PLAIN);
    let all = [init, receive, send, QpChange::DrainSendQueue];
    match state {
        QpState::Reset => vec![],
        QpState::Init => all[..1].to_vec(),
        QpState::ReadyToReceive => all[..2].to_vec(),
        QpState::ReadyToSend => all[..3].to_vec(),
        QpState::SendQueueDrained => all.to_vec(),
        QpState::Error => vec![init, QpChange::Error],
        QpState::SendQueueError => panic!("not a state of a connected queue pair"),
    }
}

#[test]
fn every_legal_transition_is_made_and_every_other_one_refused() {
    let (mut fabric, ends) = ends();
    let qp = ends[0].qp;
    for state in STATES {
        for (change, from, to) in table(&ends) {
            fabric.modify_qp(qp, &QpChange::Reset).unwrap();
            for step in way(&ends, state) {
                fabric.modify_qp(qp, &step).unwrap();
            }
            assert_eq!(fabric.qp_state(qp), Some(state));
            let result = fabric.modify_qp(qp, &change);
            let case = format!("{change:?} in {state:?}");
            if from.contains(&state) {
                assert_eq!(result, Ok(()), "{case}");
                assert_eq!(fabric.qp_state(qp), to, "{case}");
            } else {
                assert_eq!(result, Err(ModifyError::IllegalTransition), "{case}");
                assert_eq!(fabric.qp_state(qp), Some(state), "{case}");
            }
        }
    }
}

#[test]
fn attributes_that_cannot_be_are_refused() {
    let (mut fabric, ends) = ends();
    let qp = ends[0].qp;
    let nowhere = QpChange::Init { pkey_index: PkeyIndex(16), qkey: Qkey(0) };
    let result = fabric.modify_qp(qp, &nowhere);
    assert_eq!(result, Err(ModifyError::InvalidPkeyIndex));
    fabric.modify_qp(qp, &INIT).unwrap();
    let QpChange::RcReadyToReceive(good) = changes(&ends, 0, &PLAIN)[1] else {
        panic!("the second step");
    };
    let multicast = Gid([0xFF; 16]);
    let mut bad = [good; 4];
    bad[0].address.lid = 0;
    bad[1].address.lid = 0xC000;
    bad[2].address.grh = Some((multicast, GlobalRoute::default()));
    bad[3].path_mtu = IbMtu::Mtu4096;
    for attributes in bad {
        let result = fabric.modify_qp(qp, &QpChange::RcReadyToReceive(attributes));
        assert_eq!(result, Err(ModifyError::InvalidAttribute), "{attributes:?}");
        assert_eq!(fabric.qp_state(qp), Some(QpState::Init));
    }
    let small = RcReadyToReceive { path_mtu: IbMtu::Mtu256, ..good };
    fabric.modify_qp(qp, &QpChange::RcReadyToReceive(small)).unwrap();
}

#[test]
fn counts_and_codes_have_ranges() {
    assert_eq!(RetryCount::new(6).map(RetryCount::value), Some(6));
    assert_eq!(RetryCount::new(7), None);
    assert_eq!(RnrTimer::new(31).map(RnrTimer::code), Some(31));
    assert_eq!(RnrTimer::new(32), None);
}
