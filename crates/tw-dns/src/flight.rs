//! Query in flight: sent once for all waiters, on the loop of the first one.
//!
//! The answer goes to the cache and to all waiters on all loops. When there are no waiters left, the query is dropped
//! with its sockets, unless a waiter has taken a stale answer meanwhile: then the next ones want a new one.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tw_rt::time::{Sleep, sleep_until, timeout_at};
use tw_rt::{Subject, clock, spawn_local};

use crate::answer::{CHAIN_MAX, Question, Reply};
use crate::cache::{self, Answer, Cache, CacheLookup, CachedAnswer};
use crate::error::ResolveError;
use crate::exchange::{self, ExchangeResult};
use crate::resolver::Resolver;
use crate::servers::Step;

/// Time to wait for a new answer if there is a stale one (RFC 8767, section 5: 1.8 s).
const STALE_AFTER: Duration = Duration::from_millis(1800);

tw_base::limits! {
    /// Limits of queries.
    pub(crate) const LIMITS;

    /// Different questions of a resolver that wait for an answer.
    pub(crate) const FLIGHTS_MAX: usize = 1024, count, "another name cannot be resolved (11: Resource temporarily unavailable)";
    /// Sockets of one question to name servers.
    ///
    /// Servers that may still answer one question, each with a socket: a late answer is an answer.
    const OPEN_MAX: usize = 4, count, "the oldest is closed";
}

/// State shared by all loops.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) cache: Cache,
    pub(crate) flights: HashMap<Question, Arc<QueryInFlight>>,
}

type Landed = Option<Result<CachedAnswer, ResolveError>>;

/// A question on its way.
#[derive(Debug)]
pub(crate) struct QueryInFlight {
    landed: watch::Sender<Landed>,
    /// True if the query continues without waiters.
    goes_on: AtomicBool,
}

/// A question that may have its answer already.
#[derive(Debug)]
pub(crate) enum Lookup {
    Known(CurrentAnswer),
    Flying {
        flight: Arc<QueryInFlight>,
        landed: watch::Receiver<Landed>,
        old: Option<CachedAnswer>,
    },
    /// There are too many.
    Busy,
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct CurrentAnswer {
    pub(crate) settled: CachedAnswer,
    /// True for an expired answer, used because no server has answered.
    pub(crate) is_stale: bool,
}

impl CurrentAnswer {
    fn new(settled: CachedAnswer) -> Self {
        Self { settled, is_stale: false }
    }

    fn stale(settled: CachedAnswer) -> Self {
        Self { settled, is_stale: true }
    }
}

impl Lookup {
    /// Waits for the answer, at most until `deadline`.
    pub(crate) async fn finish(
        self,
        resolver: &Resolver,
        deadline: Instant,
    ) -> Result<CurrentAnswer, ResolveError> {
        let (flight, mut landed, old) = match self {
            Self::Known(answer) => return Ok(answer),
            Self::Busy => return Err(ResolveError::BUSY),
            Self::Flying { flight, landed, old } => (flight, landed, old),
        };
        let until = match old {
            Some(_) => deadline.min(clock::now() + STALE_AFTER),
            None => deadline,
        };
        let waited = timeout_at(until, landed.wait_for(Option::is_some)).await;
        let error = match waited {
            Ok(Ok(landed)) => match &*landed {
                Some(Ok(settled)) => return Ok(CurrentAnswer::new(settled.clone())),
                Some(Err(error)) => *error,
                None => ResolveError::TimedOut,
            },
            // The loop that asked has ended.
            Ok(Err(_)) => ResolveError::TimedOut,
            Err(_) => {
                flight.goes_on.fetch_or(old.is_some(), SeqCst);
                ResolveError::TimedOut
            }
        };
        match old {
            Some(old) if error.is_timeout() => {
                resolver.stats.stale.add(1);
                Ok(CurrentAnswer::stale(old))
            }
            _ => Err(error),
        }
    }
}

/// Guard that removes a query from the table when it ends in any way.
struct FlightGuard<'a> {
    resolver: &'a Resolver,
    question: &'a Question,
    flight: &'a Arc<QueryInFlight>,
}

impl Drop for FlightGuard<'_> {
    fn drop(&mut self) {
        self.resolver.shared.lock().remove(self.question, self.flight);
    }
}

impl Shared {
    fn remove(&mut self, question: &Question, flight: &Arc<QueryInFlight>) {
        // A newer query may be in its place.
        if self.flights.get(question).is_some_and(|other| Arc::ptr_eq(other, flight)) {
            self.flights.remove(question);
        }
    }
}

impl Resolver {
    /// Looks an answer up, and starts a query if needed. Never waits; has to be called on a loop.
    pub(crate) fn begin(self: &Arc<Self>, question: Question) -> Lookup {
        let mut shared = self.shared.lock();
        let old = match shared.cache.lookup(&question, clock::now()) {
            CacheLookup::Fresh(settled) => {
                self.stats.cached.add(1);
                return Lookup::Known(CurrentAnswer::new(settled));
            }
            CacheLookup::Stale { old, retry: false } => {
                self.stats.stale.add(1);
                return Lookup::Known(CurrentAnswer::stale(old));
            }
            CacheLookup::Stale { old, retry: true } => Some(old),
            CacheLookup::Absent => None,
        };
        if let Some(flight) = shared.flights.get(&question) {
            return Lookup::Flying { flight: Arc::clone(flight), landed: flight.landed.subscribe(), old };
        }
        if shared.flights.len() >= FLIGHTS_MAX {
            return old.map_or(Lookup::Busy, |old| Lookup::Known(CurrentAnswer::stale(old)));
        }
        let (sender, landed) = watch::channel(None);
        let flight = Arc::new(QueryInFlight { landed: sender, goes_on: AtomicBool::new(false) });
        shared.flights.insert(question.clone(), Arc::clone(&flight));
        drop(shared);

        static IDS: AtomicU64 = AtomicU64::new(1);
        let subject = Subject { kind: "name", id: IDS.fetch_add(1, Relaxed) };
        // The task ends by itself, or when this loop does.
        drop(spawn_local(subject, Arc::clone(self).fly(question, Arc::clone(&flight))));
        Lookup::Flying { flight, landed, old }
    }

    /// Brings a question to its end.
    async fn fly(self: Arc<Self>, question: Question, flight: Arc<QueryInFlight>) {
        let _landing = FlightGuard { resolver: &self, question: &question, flight: &flight };
        let mut finding = pin!(self.find(&question));
        let answer = loop {
            let mut left_alone = pin!(flight.landed.closed());
            let result = poll_fn(|cx| match finding.as_mut().poll(cx) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending => left_alone.as_mut().poll(cx).map(|()| None),
            });
            match result.await {
                Some(answer) => break answer,
                None if flight.goes_on.load(SeqCst) => break finding.as_mut().await,
                None => {
                    let mut shared = self.shared.lock();
                    // A new waiter may have joined just now.
                    if flight.landed.receiver_count() == 0 {
                        shared.remove(&question, &flight);
                        return;
                    }
                }
            }
        };
        let mut shared = self.shared.lock();
        match &answer {
            // An answer that has expired already is only for the current waiters.
            Ok(settled) if settled.expires > clock::now() => shared.cache.store(&question, settled.clone()),
            Ok(_) => {}
            Err(error) if error.is_timeout() => shared.cache.delay_retry(&question, clock::now()),
            Err(_) => {}
        }
        shared.remove(&question, &flight);
        drop(shared);
        flight.landed.send_replace(Some(answer));
    }

    /// Queries, and follows aliases.
    async fn find(&self, wanted_question: &Question) -> Result<CachedAnswer, ResolveError> {
        let mut question = wanted_question.clone();
        let mut ttl = u32::MAX;
        for _ in 0..=CHAIN_MAX {
            let (outcome, said) = match self.query(&question).await? {
                Reply::Found { records, ttl } => (Answer::Found(records), Some(ttl)),
                Reply::Missing { ttl, .. } => (Answer::Missing, ttl),
                Reply::Failed(error) => return Err(error),
                Reply::Alias { to, ttl: alias_ttl } => {
                    question.name = to;
                    ttl = ttl.min(alias_ttl);
                    let cache_lookup = self.shared.lock().cache.lookup(&question, clock::now());
                    match cache_lookup {
                        CacheLookup::Fresh(settled) => {
                            self.stats.cached.add(1);
                            let own = self.settle(settled.outcome.clone(), Some(ttl));
                            return Ok(CachedAnswer { expires: own.expires.min(settled.expires), ..settled });
                        }
                        CacheLookup::Stale { .. } | CacheLookup::Absent => continue,
                    }
                }
            };
            return Ok(self.settle(outcome, said.map(|said| said.min(ttl))));
        }
        Ok(self.settle(Answer::Missing, None))
    }

    fn settle(&self, outcome: Answer, ttl: Option<u32>) -> CachedAnswer {
        let span = cache::lifetime(&outcome, ttl, self.settings.valid).unwrap_or_default();
        CachedAnswer { outcome, expires: clock::now() + span }
    }

    /// Queries one server after the other, until one answers.
    async fn query(&self, question: &Question) -> ExchangeResult {
        let mut tries = self.servers.tries(self.settings.attempts, clock::now());
        let mut open: Vec<Open<'_>> = Vec::new();
        let mut timer = sleep_until(clock::now());
        loop {
            match tries.next() {
                Step::GiveUp(error) => return Err(error),
                Step::Wait => {}
                Step::Query { server: index, again } => {
                    timer.reset(clock::now() + self.settings.attempt_timeout);
                    if open.len() == OPEN_MAX {
                        open.remove(0);
                    }
                    if let Some(server) = self.servers.at(index) {
                        let exchange: Pin<Box<dyn Future<Output = ExchangeResult>>> =
                            if self.settings.tcp_only {
                                Box::pin(exchange::query_over_tcp(server, question, &self.stats))
                            } else {
                                Box::pin(exchange::query(server, question, again, &self.stats))
                            };
                        open.push(Open { server: index, exchange });
                    }
                }
            }
            match first(&mut open, &mut timer).await {
                Event::Ended(server, Ok(Reply::Failed(error))) => {
                    self.servers.set_answering(server);
                    tries.set_failed(server, error);
                }
                Event::Ended(server, Ok(reply)) => {
                    self.servers.set_answering(server);
                    return Ok(reply);
                }
                Event::Ended(server, Err(error)) => {
                    self.servers.set_silent(server, clock::now());
                    tries.set_unreachable(server, error);
                }
                Event::TimeIsOver => {
                    let queried = tries.time_is_over();
                    let is_open = |server: &usize| open.iter().any(|open| open.server == *server);
                    if let Some(server) = queried.filter(is_open) {
                        self.stats.timedout.add(1);
                        self.servers.set_silent(server, clock::now());
                    }
                }
            }
        }
    }
}

/// A server that may still answer.
struct Open<'a> {
    server: usize,
    exchange: Pin<Box<dyn Future<Output = ExchangeResult> + 'a>>,
}

enum Event {
    Ended(usize, ExchangeResult),
    TimeIsOver,
}

/// Waits for the first server that answers, or for `timer`.
async fn first(open: &mut Vec<Open<'_>>, timer: &mut Sleep) -> Event {
    poll_fn(|cx| {
        for at in 0..open.len() {
            let Some(Open { server, exchange }) = open.get_mut(at) else { break };
            if let Poll::Ready(exchanged) = exchange.as_mut().poll(cx) {
                let ended = Event::Ended(*server, exchanged);
                open.remove(at);
                return Poll::Ready(ended);
            }
        }
        Pin::new(&mut *timer).poll(cx).map(|()| Event::TimeIsOver)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use tw_rt::{LoopOptions, LoopThread, yield_now};
    use tw_testkit::wait::TIMEOUT;

    use super::*;
    use crate::answer::Kind;
    use crate::name::Name;
    use crate::{Settings, Stats};

    #[test]
    fn query_survives_dropped_waiters_but_not_the_last_one() {
        // This server never answers.
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let settings = Settings::new(vec![server.local_addr().unwrap()]);
        let main = |_| async move {
            let resolver = Resolver::new(settings, Arc::new(Stats::default()));
            let question = Question { name: Name::parse(b"a.example").unwrap(), kind: Kind::A };
            let first = resolver.begin(question.clone());
            let second = resolver.begin(question.clone());
            let count = || resolver.shared.lock().flights.len();
            drop(first);
            for _ in 0..100 {
                yield_now().await;
                assert_eq!(count(), 1);
            }
            drop(second);
            // Another waiter joins before the query is dropped.
            let third = resolver.begin(question.clone());
            for _ in 0..100 {
                yield_now().await;
                assert_eq!(count(), 1);
            }
            drop(third);
            let deadline = Instant::now() + TIMEOUT;
            while count() > 0 && Instant::now() < deadline {
                yield_now().await;
            }
            assert_eq!(count(), 0);
            // The task is gone with all that it had.
            while Arc::strong_count(&resolver) > 1 && Instant::now() < deadline {
                yield_now().await;
            }
            assert_eq!(Arc::strong_count(&resolver), 1);
        };
        LoopThread::<()>::start(LoopOptions::new(0), main).unwrap().join().unwrap();
    }

    #[test]
    fn questions_are_bounded() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let settings = Settings::new(vec![server.local_addr().unwrap()]);
        let main = |_| async move {
            let resolver = Resolver::new(settings, Arc::new(Stats::default()));
            let begin = |n: usize| {
                let name = Name::parse(format!("n{n}.example").as_bytes()).unwrap();
                resolver.begin(Question { name, kind: Kind::A })
            };
            let lookups: Vec<Lookup> = (0..FLIGHTS_MAX).map(begin).collect();
            assert!(lookups.iter().all(|lookup| matches!(lookup, Lookup::Flying { .. })));
            assert!(matches!(begin(FLIGHTS_MAX), Lookup::Busy));
            assert!(matches!(begin(0), Lookup::Flying { .. }), "it is on its way");
        };
        LoopThread::<()>::start(LoopOptions::new(0), main).unwrap().join().unwrap();
    }
}
