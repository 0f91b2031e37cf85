//! Counters of one loop for its connections and sessions; readers add up those of all loops.
//!
//! Every loop has a tally of its own and is the only one that writes to it. A tally is never freed: it keeps the
//! numbers of a loop that has ended, and the next loop that starts goes on with them.

use std::iter::successors;
use std::ops::Deref;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, OnceLock};

/// Counter or level that only the thread of its loop writes and any thread may read. Writing costs two plain memory
/// accesses.
#[derive(Debug, Default)]
pub struct LoopCounter(AtomicU64);

impl LoopCounter {
    /// Adds `n`; wraps after 2^64.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Subtracts `n`, for levels.
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(n), Relaxed);
    }

    /// Sets it to `n`, for values that are neither sums nor levels.
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// Current value.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Reason why a TLS handshake with a client has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// `ssl_reject_handshake`, or no server has a certificate.
    Rejected,
    /// The client took too long.
    Timeout,
    /// The client closed the connection, or the connection failed.
    Closed,
    /// The client broke the protocol, or offered nothing that the server accepts.
    Protocol,
    /// The certificate of the server could not be loaded or used.
    Certificate,
    /// No room: the loop closed the connection for another one, or the pool for signatures was full.
    Overload,
}

impl HandshakeFailure {
    /// All reasons, in the order of the counters.
    pub const ALL: [Self; 6] =
        [Self::Rejected, Self::Timeout, Self::Closed, Self::Protocol, Self::Certificate, Self::Overload];

    /// Name of the reason in metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Timeout => "timeout",
            Self::Closed => "closed",
            Self::Protocol => "protocol",
            Self::Certificate => "certificate",
            Self::Overload => "overload",
        }
    }
}

/// Counters of one loop, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Tally {
    /// Connections accepted.
    pub accepted: LoopCounter,
    /// Connections open now.
    pub open: LoopCounter,
    /// Open connections that speak HTTP/2.
    pub open_http2: LoopCounter,
    /// Open connections that speak HTTP/3.
    pub open_http3: LoopCounter,
    /// Open connections that are sessions of `stream`.
    pub open_stream: LoopCounter,
    /// Open connections that are sessions of `mail`.
    pub open_mail: LoopCounter,
    /// Logins of mail that were asked about.
    pub mail_logins: LoopCounter,
    /// Logins of mail that a mail server has accepted.
    pub mail_logins_accepted: LoopCounter,
    /// Logins of mail that the auth server has refused.
    pub mail_logins_refused: LoopCounter,
    /// Logins of mail that ended with a failure of the auth server or of a mail server.
    pub mail_logins_failed: LoopCounter,
    /// Connections open now to upstream servers.
    pub upstream_open: LoopCounter,
    /// Connections of which a part of what opens a session has been read, and that wait for the rest.
    pub reading: LoopCounter,
    /// Connections that wait for the first byte of a session.
    pub waiting: LoopCounter,
    /// Connections closed at once for want of `worker_connections`.
    pub refused: LoopCounter,
    /// TLS handshakes with clients that were completed without a session from before.
    pub tls_full: LoopCounter,
    /// TLS handshakes with clients that have resumed a session.
    pub tls_resumed: LoopCounter,
    /// TLS handshakes with clients that have failed, by [`HandshakeFailure`].
    pub tls_failed: [LoopCounter; HandshakeFailure::ALL.len()],
    /// Datagrams from clients or for them that were dropped: no room, no session, or more than one may get.
    pub datagrams_dropped: LoopCounter,
    /// Datagrams that were handed to the loop with their session or connection.
    pub datagrams_forwarded: LoopCounter,
    /// Datagrams that were handed to the process with their connection.
    pub datagrams_passed_to_processes: LoopCounter,
    /// Sessions over datagrams that ended to make room.
    pub datagram_sessions_evicted: LoopCounter,
    /// Connections over QUIC open now, with those whose handshake goes on.
    pub quic_open: LoopCounter,
    /// Connections over QUIC that were accepted.
    pub quic_accepted: LoopCounter,
    /// Handshakes over QUIC that were refused or have failed at once.
    pub quic_refused: LoopCounter,
    /// Clients of QUIC that had to prove their address first.
    pub quic_retries: LoopCounter,
    /// Stateless resets, for clients of QUIC whose connection is lost.
    pub quic_resets: LoopCounter,
    /// Panics of the QUIC engine.
    pub quic_panics: LoopCounter,
    /// Sessions over datagrams that were taken over from another process.
    pub datagram_sessions_taken_over: LoopCounter,
    /// Sessions over datagrams of another process that were not.
    pub datagram_sessions_not_taken_over: LoopCounter,
    /// Sessions begun.
    pub sessions: LoopCounter,
    /// Sessions begun by version of the protocol, which numbers its versions.
    pub by_version: [LoopCounter; 3],
    /// Sessions that are over by class of status: index 1 to 5; 0 is none of them.
    pub by_class: [LoopCounter; 6],
    /// Bytes from clients in sessions that are over.
    pub received: LoopCounter,
    /// Bytes sent to clients.
    pub sent: LoopCounter,
    /// Bodies of requests that were given up because the client was too slow.
    pub slow_bodies: LoopCounter,
    /// Responses that were given up because the client was too slow.
    pub slow_responses: LoopCounter,
    /// Requests that wait for memory.
    pub memory_waiting: LoopCounter,
    /// Requests that were refused for want of memory.
    pub memory_refused: LoopCounter,
    /// Connections it accepted and gave to other loops.
    pub passed_on: LoopCounter,
    /// Connections it got from other loops.
    pub taken_over: LoopCounter,
    /// Number of the generation it serves by.
    pub generation: LoopCounter,
    /// Set while a loop uses this tally.
    is_taken: AtomicBool,
    next: Tallies,
}

impl Tally {
    /// Connections open now, to clients and to upstream servers.
    pub(super) fn connections(&self) -> u64 {
        self.open.value() + self.upstream_open.value()
    }

    /// Counts a TLS handshake with a client that was completed.
    pub fn handshake_completed(&self, is_resumed: bool) {
        let count = if is_resumed { &self.tls_resumed } else { &self.tls_full };
        count.add(1);
    }

    /// Counts a TLS handshake with a client that has failed.
    pub fn handshake_failed(&self, failure: HandshakeFailure) {
        self.tls_failed[failure as usize].add(1);
    }

    /// Counts the status that a session ended with.
    pub fn status(&self, status: u16) {
        let class = usize::from(status / 100);
        self.by_class[if class < self.by_class.len() { class } else { 0 }].add(1);
    }
}

/// Linked list of all tallies. It only grows, and is read without a lock.
#[derive(Debug, Default)]
pub(super) struct Tallies(OnceLock<Arc<Tally>>);

impl Tallies {
    /// Claims a tally for the loop of the calling thread, until the result is dropped.
    pub(super) fn claim(&self) -> OwnTally {
        let mut link = self;
        loop {
            let tally = link.0.get_or_init(Arc::default);
            // Acquire: the last owner's writes are visible.
            if tally.is_taken.compare_exchange(false, true, Acquire, Relaxed).is_ok() {
                return OwnTally(tally.clone());
            }
            link = &tally.next;
        }
    }

    /// Sum of one counter over all loops.
    pub(super) fn total(&self, which: impl Fn(&Tally) -> &LoopCounter) -> u64 {
        successors(self.0.get(), |tally| tally.next.0.get())
            .fold(0, |sum: u64, tally| sum.wrapping_add(which(tally).0.load(Relaxed)))
    }
}

/// Tally that a loop has claimed.
pub struct OwnTally(Arc<Tally>);

impl OwnTally {
    /// Shared reference for readers.
    pub(super) fn share(&self) -> Arc<Tally> {
        self.0.clone()
    }
}

impl Deref for OwnTally {
    type Target = Tally;

    fn deref(&self) -> &Tally {
        &self.0
    }
}

impl Drop for OwnTally {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Release);
    }
}

/// Keeps a level one higher while it lives.
pub struct LevelGuard<'c>(&'c LoopCounter);

impl<'c> LevelGuard<'c> {
    /// Raises `level` by one.
    pub fn new(level: &'c LoopCounter) -> Self {
        level.add(1);
        Self(level)
    }
}

impl Drop for LevelGuard<'_> {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_count_separately_and_leave_their_totals() {
        let tallies = Tallies::default();
        assert_eq!(tallies.total(|tally| &tally.sent), 0);
        let one = tallies.claim();
        let two = tallies.claim();
        one.sent.add(5);
        two.sent.add(7);
        two.open.add(2);
        two.open.sub(1);
        for status in [200, 204, 404, 0, 999] {
            one.status(status);
        }
        drop(one);
        let three = tallies.claim();
        three.sent.add(100);
        assert_eq!(tallies.total(|tally| &tally.sent), 112);
        assert_eq!(tallies.total(|tally| &tally.open), 1);
        assert_eq!([0, 2, 4].map(|class| tallies.total(|tally| &tally.by_class[class])), [2, 2, 1]);
        assert_eq!((three.sent.0.load(Relaxed), two.sent.0.load(Relaxed)), (105, 7));
    }
}
