//! What a manager saw.

/// What a manager saw.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ManagerCounters {
    /// Messages given to be sent, repetitions included.
    pub mads_sent: u64,
    /// Messages given to be sent again because no answer came.
    pub mads_repeated: u64,
    /// Messages not sent because as many waited as can be.
    pub mads_unsent: u64,
    /// Messages received.
    pub mads_received: u64,
    /// Messages received that are none.
    pub mads_malformed: u64,
    /// Messages received that fit no connection, or not its state: late, repeated, or forged.
    pub mads_unexpected: u64,
    /// Messages received and dropped because as many events waited as can be.
    pub mads_deferred: u64,
    /// Services that were not listened for because the table was full.
    pub listens_table_full: u64,
    /// Connections asked for.
    pub connects: u64,
    /// Connections not asked for because the table was full.
    pub connects_table_full: u64,
    /// Requests of peers that were reported.
    pub requests: u64,
    /// Requests that came again.
    pub requests_duplicate: u64,
    /// Requests that cannot be granted as they are.
    pub requests_invalid: u64,
    /// Requests for a service that nobody listens for.
    pub requests_unserved: u64,
    /// Requests rejected because the table was full.
    pub requests_table_full: u64,
    /// Requests rejected because the peer's queue pair is taken for connected.
    pub requests_stale: u64,
    /// Requests given up by the peer before the owner decided.
    pub requests_withdrawn: u64,
    /// Requests accepted.
    pub accepts: u64,
    /// Replies that were reported.
    pub replies: u64,
    /// Replies that came again.
    pub replies_duplicate: u64,
    /// Replies rejected because the peer's queue pair is taken for connected.
    pub replies_stale: u64,
    /// Waits that the peer prolonged.
    pub waits_extended: u64,
    /// Waits that the peer was asked to prolong.
    pub extensions_sent: u64,
    /// Rejections sent.
    pub rejections_sent: u64,
    /// Rejections received that ended something.
    pub rejections: u64,
    /// Connections established.
    pub established: u64,
    /// Requests and replies that the peer did not answer.
    pub timed_out: u64,
    /// Connections ended by a message of the peer.
    pub disconnects_by_peer: u64,
    /// Connections that both sides ended at the same time.
    pub disconnects_crossed: u64,
    /// Connections ended by this side, with the peer's confirmation.
    pub disconnects_confirmed: u64,
    /// Connections ended by this side, without an answer.
    pub disconnects_unanswered: u64,
    /// Requests to end a connection that is not there; they are confirmed.
    pub disconnects_unknown: u64,
    /// Connections that the peer had forgotten.
    pub stale: u64,
    /// Connections whose time-wait is over.
    pub time_waits_exited: u64,
    /// Connections that their owner lost interest in.
    pub cancels: u64,
}
