//! Name servers: their order, their state, and the tries of one query. Without I/O or a clock.
//!
//! A query goes to the next server when one has not answered in time, cannot be reached, or returns a failure. A
//! server that failed is not tried again for this query; the others are, for some rounds.
// DIFF(nginx): that one server cannot answer is no answer as long as others were not asked.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::error::ResolveError;
use crate::wire::Case;

/// Time for which a server that did not answer is tried last.
const SILENT_FOR: Duration = Duration::from_secs(10);

tw_base::limits! {
    /// Limits of the traffic of one query.
    pub(crate) const LIMITS;

    /// Times that a question is sent to name servers.
    pub(crate) const TRIES_MAX: usize = 16, count, "the name cannot be resolved";
}

/// Treatment of mixed case by a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CaseHandling {
    /// Not known yet: no query in mixed case has found anything.
    Unknown,
    /// Case-insensitive, and preserved in the response.
    Kept,
    /// Not handled: queries are in lower case.
    Confused,
}

/// A name server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    /// In milliseconds since `Servers::start`; 0 for one that answers.
    silent_until_ms: AtomicU64,
    letters: AtomicU8,
}

impl Server {
    pub(crate) fn case_handling(&self) -> CaseHandling {
        match self.letters.load(Relaxed) {
            known_value if known_value == CaseHandling::Kept as u8 => CaseHandling::Kept,
            known_value if known_value == CaseHandling::Confused as u8 => CaseHandling::Confused,
            _ => CaseHandling::Unknown,
        }
    }

    pub(crate) fn set_case_handling(&self, letters: CaseHandling) {
        self.letters.store(letters as u8, Relaxed);
    }

    /// Case for the next query. `again` is true if this query in mixed case failed.
    pub(crate) fn case(&self, again: bool) -> Case {
        match self.case_handling() {
            CaseHandling::Confused => Case::Lower,
            CaseHandling::Unknown if again => Case::Lower,
            _ => Case::Mixed,
        }
    }
}

/// The name servers of a resolver.
#[derive(Debug)]
pub(crate) struct Servers {
    all: Box<[Server]>,
    next: AtomicUsize,
    rotates: bool,
    start: Instant,
}

impl Servers {
    pub(crate) fn new(addrs: &[SocketAddr], rotates: bool, now: Instant) -> Self {
        let server = |addr: &SocketAddr| Server {
            addr: *addr,
            silent_until_ms: AtomicU64::new(0),
            letters: AtomicU8::new(0),
        };
        Self { all: addrs.iter().map(server).collect(), next: AtomicUsize::new(0), rotates, start: now }
    }

    pub(crate) fn at(&self, index: usize) -> Option<&Server> {
        self.all.get(index)
    }

    /// The tries of the next question: another server is the first every time if they rotate; silent ones are last.
    pub(crate) fn tries(&self, rounds: u32, now: Instant) -> Tries {
        let count = self.all.len();
        let first = if self.rotates { self.next.fetch_add(1, Relaxed) } else { 0 };
        let mut order: Vec<usize> = (0..count).map(|n| first.wrapping_add(n) % count.max(1)).collect();
        let now_ms = self.millis(now);
        let is_silent = |server: &Server| server.silent_until_ms.load(Relaxed) > now_ms;
        order.sort_by_key(|index| self.at(*index).is_some_and(is_silent));
        let tries_max = (count * rounds.max(1) as usize).min(TRIES_MAX);
        let tries =
            order.into_iter().map(|server| ServerTry { server, queries: 0, has_failed: false }).collect();
        Tries {
            tries,
            next: 0,
            remaining: tries_max,
            last: None,
            may_query: true,
            failure: None,
            unreachable: None,
        }
    }

    /// A server has not answered in time, or could not be reached.
    pub(crate) fn set_silent(&self, index: usize, now: Instant) {
        if let Some(server) = self.at(index) {
            server.silent_until_ms.store(self.millis(now + SILENT_FOR), Relaxed);
        }
    }

    /// A server has answered.
    pub(crate) fn set_answering(&self, index: usize) {
        if let Some(server) = self.at(index) {
            server.silent_until_ms.store(0, Relaxed);
        }
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }
}

/// The tries of one question.
#[derive(Debug)]
pub(crate) struct Tries {
    tries: Vec<ServerTry>,
    /// Place in `tries` of the one whose turn it is.
    next: usize,
    remaining: usize,
    /// Index of the server that was queried last.
    last: Option<usize>,
    may_query: bool,
    /// Last failure returned by a server.
    failure: Option<ResolveError>,
    /// Why the last server could not be reached.
    unreachable: Option<ResolveError>,
}

/// A server in the tries of a question.
#[derive(Debug)]
struct ServerTry {
    server: usize,
    /// Number of queries sent to it.
    queries: u32,
    /// True after a failure; the server is not tried again.
    has_failed: bool,
}

/// Next step of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Query this server; `again` if it was queried before.
    Query { server: usize, again: bool },
    /// Wait for answers, or for the timeout of a server.
    Wait,
    /// Fail: no server is left.
    GiveUp(ResolveError),
}

impl Tries {
    /// Next step to take now.
    pub(crate) fn next(&mut self) -> Step {
        let Some(at) = self.candidate() else {
            // `ServerFailure` covers the case that there are no servers.
            return Step::GiveUp(self.failure.unwrap_or(ResolveError::ServerFailure));
        };
        if !self.may_query {
            return Step::Wait;
        }
        let Some(turn) = self.tries.get_mut(at).filter(|_| self.remaining > 0) else {
            return Step::GiveUp(self.failure.or(self.unreachable).unwrap_or(ResolveError::TimedOut));
        };
        let again = turn.queries > 0;
        turn.queries += 1;
        self.remaining -= 1;
        self.last = Some(at);
        self.next = at + 1;
        self.may_query = false;
        Step::Query { server: turn.server, again }
    }

    /// Handles the timeout of a server before the next one is queried. Returns the server.
    pub(crate) fn time_is_over(&mut self) -> Option<usize> {
        self.may_query = true;
        self.last.and_then(|at| self.tries.get(at)).map(|turn| turn.server)
    }

    /// Records a failure of a server. A server that was queried less often is queried at once.
    pub(crate) fn set_failed(&mut self, server: usize, error: ResolveError) {
        self.failure = Some(error);
        if let Some(turn) = self.tries.iter_mut().find(|turn| turn.server == server) {
            turn.has_failed = true;
        }
        self.hurry(server);
    }

    /// Records an unreachable server. One that was queried less often is queried at once.
    pub(crate) fn set_unreachable(&mut self, server: usize, error: ResolveError) {
        self.unreachable = Some(error);
        self.hurry(server);
    }

    /// Place of the server to ask next.
    fn candidate(&self) -> Option<usize> {
        let count = self.tries.len();
        let mut places = (0..count).map(|n| (self.next + n) % count);
        places.find(|at| self.tries.get(*at).is_some_and(|turn| !turn.has_failed))
    }

    /// Stops waiting for the server if it was queried last.
    fn hurry(&mut self, server: usize) {
        let turn = |at: Option<usize>| at.and_then(|at| self.tries.get(at));
        if let (Some(last), Some(next)) = (turn(self.last), turn(self.candidate())) {
            self.may_query |= last.server == server && next.queries < last.queries;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: fn(usize, bool) -> Step = |server, again| Step::Query { server, again };

    fn servers(count: u16) -> (Servers, Instant) {
        let now = Instant::now();
        let addrs: Vec<SocketAddr> = (0..count).map(|n| ([192, 0, 2, 1], 53 + n).into()).collect();
        (Servers::new(&addrs, true, now), now)
    }

    #[test]
    fn queries_rotate_the_servers() {
        let (servers, now) = servers(3);
        for expected in [0, 1, 2, 0, 1] {
            assert_eq!(servers.tries(1, now).next(), QUERY(expected, false));
        }
    }

    #[test]
    fn ordered_servers_start_with_the_first_responsive_one() {
        let (mut servers, now) = servers(3);
        servers.rotates = false;
        for _ in 0..3 {
            assert_eq!(servers.tries(1, now).next(), QUERY(0, false));
        }
        servers.set_silent(0, now);
        assert_eq!(servers.tries(1, now).next(), QUERY(1, false));
    }

    #[test]
    fn silent_servers_are_queried_last() {
        let (servers, now) = servers(3);
        servers.set_silent(0, now);
        for expected in [1, 1, 2, 1] {
            assert_eq!(servers.tries(1, now + SILENT_FOR / 2).next(), QUERY(expected, false));
        }
        servers.next.store(0, Relaxed);
        assert_eq!(servers.tries(1, now + SILENT_FOR).next(), QUERY(0, false));
        servers.set_silent(1, now);
        assert_eq!(servers.tries(1, now).next(), QUERY(2, false), "0 is silent as well");
        servers.set_answering(0);
        servers.next.store(0, Relaxed);
        assert_eq!(servers.tries(1, now).next(), QUERY(0, false));
    }

    #[test]
    fn silent_server_is_followed_by_the_next_and_retried_later() {
        let (servers, now) = servers(2);
        let mut tries = servers.tries(2, now);
        for (server, again) in [(0, false), (1, false), (0, true), (1, true)] {
            assert_eq!(tries.next(), QUERY(server, again));
            assert_eq!(tries.next(), Step::Wait);
            assert_eq!(tries.time_is_over(), Some(server));
        }
        assert_eq!(tries.next(), Step::GiveUp(ResolveError::TimedOut));
    }

    #[test]
    fn failed_server_is_not_queried_again() {
        let (servers, now) = servers(3);
        let mut tries = servers.tries(5, now);
        assert_eq!(tries.next(), QUERY(0, false));
        tries.set_failed(0, ResolveError::Refused);
        assert_eq!(tries.next(), QUERY(1, false));
        tries.time_is_over();
        assert_eq!(tries.next(), QUERY(2, false));
        // A late answer of 1 while 2 is asked changes nothing for 2.
        tries.set_failed(1, ResolveError::ServerFailure);
        assert_eq!(tries.next(), Step::Wait);
        tries.time_is_over();
        assert_eq!(tries.next(), QUERY(2, true));
        tries.set_failed(2, ResolveError::Format);
        assert_eq!(tries.next(), Step::GiveUp(ResolveError::Format));
    }

    #[test]
    fn pending_query_is_waited_for() {
        let (servers, now) = servers(2);
        let mut tries = servers.tries(2, now);
        assert_eq!(tries.next(), QUERY(0, false));
        tries.time_is_over();
        assert_eq!(tries.next(), QUERY(1, false));
        tries.set_failed(1, ResolveError::ServerFailure);
        assert_eq!(tries.next(), Step::Wait, "0 was asked as often and may still answer");
        tries.time_is_over();
        assert_eq!(tries.next(), QUERY(0, true));
        tries.time_is_over();
        assert_eq!(tries.next(), QUERY(0, true));
        tries.time_is_over();
        assert_eq!(
            tries.next(),
            Step::GiveUp(ResolveError::ServerFailure),
            "what it said is better than nothing"
        );
    }

    #[test]
    fn unreachable_servers_are_retried_later() {
        let (servers, now) = servers(2);
        let error = ResolveError::System(tw_base::Errno(111));
        let mut tries = servers.tries(2, now);
        assert_eq!(tries.next(), QUERY(0, false));
        tries.set_unreachable(0, error);
        assert_eq!(tries.next(), QUERY(1, false));
        tries.set_unreachable(1, error);
        assert_eq!(tries.next(), Step::Wait);
        tries.time_is_over();
        assert_eq!(tries.next(), QUERY(0, true));
        tries.set_unreachable(0, error);
        assert_eq!(tries.next(), QUERY(1, true));
        tries.set_unreachable(1, error);
        assert_eq!(tries.next(), Step::Wait);
        tries.time_is_over();
        assert_eq!(tries.next(), Step::GiveUp(error));
    }

    #[test]
    fn tries_are_bounded_and_an_empty_list_is_an_error() {
        let (many, now) = servers(5);
        let mut tries = many.tries(100, now);
        let mut queries = 0;
        while let Step::Query { .. } = tries.next() {
            queries += 1;
            tries.time_is_over();
        }
        assert_eq!(queries, TRIES_MAX);
        let (none, now) = servers(0);
        assert_eq!(none.tries(3, now).next(), Step::GiveUp(ResolveError::ServerFailure));
    }

    #[test]
    fn case_is_mixed_until_a_server_fails_with_it() {
        let (servers, _) = servers(1);
        let server = servers.at(0).unwrap();
        assert_eq!((server.case(false), server.case(true)), (Case::Mixed, Case::Lower));
        server.set_case_handling(CaseHandling::Kept);
        assert_eq!((server.case(false), server.case(true)), (Case::Mixed, Case::Mixed));
        server.set_case_handling(CaseHandling::Confused);
        assert_eq!((server.case(false), server.case(true)), (Case::Lower, Case::Lower));
    }
}
