//! What happens because time passes.

use ipoib_rs::time::Instant;

use super::connection::{Sent, State};
use super::{DisconnectCause, EVENTS_MAX, Event, Manager};
use crate::mad::cm::{CommId, MessageKind};

impl<T: Copy + Ord> Manager<T> {
    /// Does all whose time has come: repeats messages, gives connections up, ends time-waits. With
    /// more events than can wait the rest is left for the next call; [`Self::poll_timeout`] says
    /// so. Calls at any other time do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((deadline, comm_id)) = self.table.deadline_first() {
            if deadline > now || self.events.len() == EVENTS_MAX {
                return;
            }
            self.expire(now, comm_id);
        }
    }

    fn expire(&mut self, now: Instant, comm_id: CommId) {
        let Some(connection) = self.table.get(comm_id) else {
            return;
        };
        let timing = connection.timing;
        match connection.state {
            State::Requesting { tag, local_qpn, sent } => {
                if let Some(repetition) = sent.repetition.next(now, &timing) {
                    let sent = Sent { repetition, ..sent };
                    let state = State::Requesting { tag, local_qpn, sent };
                    self.repeat(comm_id, state);
                    return;
                }
                // The peer may have seen the REQ: it learns that nobody waits (IBA 12.9.7).
                self.send_reject_timeout(comm_id, CommId(0), MessageKind::Request);
                self.table.remove(comm_id);
                self.counters.timed_out += 1;
                self.push_event(Event::TimedOut { tag });
            }
            State::Accepting { tag, link, sent } => {
                if let Some(repetition) = sent.repetition.next(now, &timing) {
                    let sent = Sent { repetition, ..sent };
                    self.repeat(comm_id, State::Accepting { tag, link, sent });
                    return;
                }
                // The peer may have sent packets already, so that a time-wait follows.
                let remote = link.remote;
                self.send_reject_timeout(comm_id, remote.comm_id, MessageKind::Reply);
                self.enter_time_wait(now, comm_id, Some(tag), Some(remote));
                self.counters.timed_out += 1;
                self.push_event(Event::TimedOut { tag });
            }
            State::Disconnecting { .. } => self.expire_disconnecting(now, comm_id),
            State::TimeWait { tag, .. } => {
                self.table.remove(comm_id);
                self.counters.time_waits_exited += 1;
                if let Some(tag) = tag {
                    self.push_event(Event::TimeWaitExited { tag });
                }
            }
            // These wait for the owner or the peer, not for a time.
            State::Replied { .. } | State::Requested { .. } | State::Established { .. } => {}
        }
    }

    fn expire_disconnecting(&mut self, now: Instant, comm_id: CommId) {
        let Some(connection) = self.table.get(comm_id) else {
            return;
        };
        let State::Disconnecting { tag, link, transaction, repetition, is_reported } =
            connection.state
        else {
            return;
        };
        if let Some(repetition) = repetition.next(now, &connection.timing) {
            let state = State::Disconnecting { tag, link, transaction, repetition, is_reported };
            self.table.replace(comm_id, state);
            self.counters.mads_repeated += 1;
            self.send_disconnect_request(comm_id, link, transaction);
            return;
        }
        self.enter_time_wait(now, comm_id, tag, Some(link.remote));
        self.counters.disconnects_unanswered += 1;
        if let Some(tag) = tag.filter(|_| !is_reported) {
            let cause = DisconnectCause::Unanswered;
            self.push_event(Event::Disconnected { tag, cause });
        }
    }

    fn repeat(&mut self, comm_id: CommId, state: State<T>) {
        self.table.replace(comm_id, state);
        self.counters.mads_repeated += 1;
        self.send_kept(comm_id);
    }
}
