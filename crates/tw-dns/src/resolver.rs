//! Resolver of one `resolver` directive: the interface for loops.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};

use tw_base::FatalMutex;
use tw_rt::clock;
use tw_rt::time::sleep_until;

use crate::answer::{Kind, Question, Records};
use crate::cache::{self, Answer, Cache};
use crate::error::ResolveError;
use crate::flight::{CurrentAnswer, Lookup, Shared};
use crate::hosts::Hosts;
use crate::name::Name;
use crate::servers::Servers;
use crate::stats::Stats;

/// Time for a server to answer before the next one is queried as well. nginx waits for 5 s.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of queries to every server. With one server, the lookup fails after 10 s.
const ATTEMPTS: u32 = 5;
/// Time for which the addresses of one family wait for those of the other: some servers never answer for IPv6.
const FAMILY_WAIT: Duration = Duration::from_secs(1);
/// Lifetime of an answer with only one of two families.
const HALF_TTL: Duration = Duration::from_secs(5);
/// Lifetime of an address that needs no server, and the longest duration used here.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);
/// Number of targets of a service whose addresses are queried at a time.
const TARGETS_AT_ONCE: usize = 32;

/// Address families to query.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Families {
    /// IPv4 and IPv6.
    #[default]
    Both,
    /// `ipv6=off`
    Ipv4,
    /// `ipv4=off`
    Ipv6,
}

/// Settings of a resolver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Name servers. Without any every name fails that is no address and not in `hosts`.
    pub servers: Vec<SocketAddr>,
    /// Lifetime of answers. `None`: their own TTL.
    pub valid: Option<Duration>,
    /// Address families to query.
    pub families: Families,
    /// Time for a server to answer before the next one is queried as well. Default 2 s.
    pub attempt_timeout: Duration,
    /// Number of queries to every server, at most 16 in all. Default 5.
    pub attempts: u32,
    /// Names with local addresses.
    pub hosts: Option<Arc<Hosts>>,
    /// Each question begins with another server; otherwise with the first one that answers. Default on.
    pub rotate: bool,
    /// Queries over TCP only. Default off.
    pub tcp_only: bool,
}

impl Settings {
    /// These servers, and every default.
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self {
            servers,
            valid: None,
            families: Families::Both,
            attempt_timeout: ATTEMPT_TIMEOUT,
            attempts: ATTEMPTS,
            hosts: None,
            rotate: true,
            tcp_only: false,
        }
    }
}

/// Finds the addresses of names. One for all loops: what one of them has learnt, all know.
#[derive(Debug)]
pub struct Resolver {
    pub(crate) settings: Settings,
    pub(crate) servers: Servers,
    pub(crate) stats: Arc<Stats>,
    pub(crate) shared: FatalMutex<Shared>,
    /// Rotation: index of the first address next time.
    turn: AtomicUsize,
}

/// The addresses of a name, at least one.
#[derive(Debug, Clone)]
pub struct Addresses {
    ipv4: Arc<[IpAddr]>,
    ipv6: Arc<[IpAddr]>,
    first: usize,
    /// Until when they hold.
    pub expires: Instant,
    /// They hold no more, but no server has answered.
    pub is_stale: bool,
}

impl Addresses {
    /// Number of addresses.
    pub fn count(&self) -> usize {
        self.ipv4.len() + self.ipv6.len()
    }

    /// All of them; each lookup begins with another one.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        let all = || self.ipv4.iter().chain(&*self.ipv6);
        let first = self.first.checked_rem(self.count()).unwrap_or_default();
        all().skip(first).chain(all().take(first)).copied()
    }
}

/// The servers of a service, at least one, in the order of their priorities.
#[derive(Debug, Clone)]
pub struct Services {
    /// The servers.
    pub targets: Vec<Target>,
    /// Until when all of this holds.
    pub expires: Instant,
    /// Anything of it holds no more, but no server has answered.
    pub is_stale: bool,
}

/// A server of a service.
#[derive(Debug, Clone)]
pub struct Target {
    /// Host name of the service.
    pub name: Name,
    /// Servers with the lowest one are used first.
    pub priority: u16,
    /// Weight among the services of one priority.
    pub weight: u16,
    /// Port of the service.
    pub port: u16,
    /// Addresses of the host, or the error.
    pub addresses: Result<Addresses, ResolveError>,
}

impl Resolver {
    /// Makes a resolver with an empty cache. `stats` may be shared.
    pub fn new(mut settings: Settings, stats: Arc<Stats>) -> Arc<Self> {
        // A time that cannot be represented would be a panic.
        settings.valid = settings.valid.map(|span| span.min(FOREVER));
        settings.attempt_timeout = settings.attempt_timeout.min(FOREVER);
        let servers = Servers::new(&settings.servers, settings.rotate, clock::now());
        let shared = Shared { cache: Cache::new(cache::ENTRIES_MAX), flights: HashMap::new() };
        Arc::new(Self {
            settings,
            servers,
            stats,
            shared: FatalMutex::new(shared),
            turn: AtomicUsize::new(0),
        })
    }

    /// Settings of the resolver.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Counters of the resolver.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Addresses of `name`, which may be an address itself. Waits for at most `timeout`; on a loop only. Dropping the
    /// future cancels the query if there are no other waiters.
    pub async fn addresses(
        self: &Arc<Self>,
        name: &[u8],
        timeout: Duration,
    ) -> Result<Addresses, ResolveError> {
        self.stats.name.add(1);
        let deadline = self.deadline(timeout);
        match self.without_servers(name) {
            Some(addresses) => Ok(addresses),
            None => {
                let name = Name::parse(name).ok_or(ResolveError::NotFound)?;
                self.begin_addresses(name).finish(self, deadline).await
            }
        }
    }

    /// The end of a span that begins now.
    pub(crate) fn deadline(&self, timeout: Duration) -> Instant {
        clock::now() + timeout.min(FOREVER)
    }

    /// Queries the addresses of a full name.
    pub(crate) async fn query_addresses(
        self: &Arc<Self>,
        name: Name,
        deadline: Instant,
    ) -> Result<Addresses, ResolveError> {
        self.stats.name.add(1);
        self.begin_addresses(name).finish(self, deadline).await
    }

    /// Targets of a service of `name`: of `_service._tcp.name`, or of `service.name` if there is a dot in `service`,
    /// as in nginx. `timeout` is for all queries together. Errors are those of the service; a target has its own.
    pub async fn services(
        self: &Arc<Self>,
        service: &[u8],
        name: &[u8],
        timeout: Duration,
    ) -> Result<Services, ResolveError> {
        self.stats.srv.add(1);
        let deadline = clock::now() + timeout.min(FOREVER);
        let full = if service.contains(&b'.') {
            [service, b".", name].concat()
        } else {
            [b"_", service, b"._tcp.", name].concat()
        };
        let name = Name::parse(&full).ok_or(ResolveError::NotFound)?;
        let answer = self.begin(Question { name, kind: Kind::Srv }).finish(self, deadline).await?;
        let Answer::Found(Records::Services(services)) = answer.settled.outcome else {
            return Err(ResolveError::NotFound);
        };
        let mut all =
            Services { targets: Vec::new(), expires: answer.settled.expires, is_stale: answer.is_stale };
        for some in services.chunks(TARGETS_AT_ONCE) {
            let pending = some.iter().map(|service| (service, self.begin_addresses(service.target.clone())));
            // All queries are sent before the first one is waited for.
            let pending: Vec<_> = pending.collect();
            for (service, pending) in pending {
                let addresses = pending.finish(self, deadline).await;
                if let Ok(addresses) = &addresses {
                    all.expires = all.expires.min(addresses.expires);
                    all.is_stale |= addresses.is_stale;
                }
                let name = service.target.clone();
                let priority = service.priority;
                let weight = service.weight;
                let port = service.port;
                all.targets.push(Target { name, priority, weight, port, addresses });
            }
        }
        Ok(all)
    }

    /// Names of an address (PTR). Anyone can give an address of theirs any name: ask for the addresses of a name before you trust
    /// it. Waits for at most `timeout`; on a loop only.
    ///
    /// # Errors
    /// Reason why there are none.
    pub async fn names(
        self: &Arc<Self>,
        addr: IpAddr,
        timeout: Duration,
    ) -> Result<Arc<[Name]>, ResolveError> {
        self.stats.addr.add(1);
        let deadline = self.deadline(timeout);
        let question = Question { name: Name::reverse(addr), kind: Kind::Ptr };
        let answer = self.begin(question).finish(self, deadline).await?;
        match answer.settled.outcome {
            Answer::Found(Records::Names(names)) => Ok(names),
            _ => Err(ResolveError::NotFound),
        }
    }

    /// Addresses that need no query: `name` is one, or a name in `hosts`.
    pub(crate) fn without_servers(&self, name: &[u8]) -> Option<Addresses> {
        let address = str::from_utf8(name).ok().and_then(|text| text.parse::<IpAddr>().ok());
        let expires = clock::now() + FOREVER;
        let find_known = |ipv4: Vec<IpAddr>, ipv6: Vec<IpAddr>| {
            let is_any = !ipv4.is_empty() || !ipv6.is_empty();
            is_any.then(|| Addresses {
                ipv4: ipv4.into(),
                ipv6: ipv6.into(),
                first: 0,
                expires,
                is_stale: false,
            })
        };
        if let Some(address) = address {
            return find_known(vec![address], Vec::new());
        }
        let addrs = self.settings.hosts.as_ref()?.find(&Name::parse(name)?)?;
        let (ipv4, ipv6) = addrs.iter().partition(|addr| addr.is_ipv4());
        match self.settings.families {
            Families::Both => find_known(ipv4, ipv6),
            Families::Ipv4 => find_known(ipv4, Vec::new()),
            Families::Ipv6 => find_known(Vec::new(), ipv6),
        }
    }

    /// Starts queries for all addresses of a name.
    fn begin_addresses(self: &Arc<Self>, name: Name) -> Pending {
        let families = self.settings.families;
        let ask4 = families != Families::Ipv6;
        let ask6 = families != Families::Ipv4;
        let begin = |kind| self.begin(Question { name: name.clone(), kind });
        Pending { ipv4: ask4.then(|| begin(Kind::A)), ipv6: ask6.then(|| begin(Kind::Aaaa)) }
    }
}

/// The addresses of a name, on their way.
struct Pending {
    ipv4: Option<Lookup>,
    ipv6: Option<Lookup>,
}

impl Pending {
    async fn finish(self, resolver: &Resolver, deadline: Instant) -> Result<Addresses, ResolveError> {
        let half = |lookup: Option<Lookup>| async move {
            match lookup {
                Some(lookup) => Some(lookup.finish(resolver, deadline).await),
                None => None,
            }
        };
        let (ipv4, ipv6) = both(half(self.ipv4), half(self.ipv6)).await;
        unite(ipv4, ipv6, resolver.turn.fetch_add(1, Relaxed))
    }
}

/// Result of one family; `None` if it was not queried.
type FamilyAnswer = Option<Result<CurrentAnswer, ResolveError>>;

/// Waits for both; for the second one only a while once the first one has found something.
async fn both(
    ipv4: impl Future<Output = FamilyAnswer>,
    ipv6: impl Future<Output = FamilyAnswer>,
) -> (FamilyAnswer, FamilyAnswer) {
    let mut ipv4 = pin!(ipv4);
    let mut ipv6 = pin!(ipv6);
    let (mut first, mut second): (Option<FamilyAnswer>, Option<FamilyAnswer>) = (None, None);
    let mut timer = pin!(None);
    poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(half) = ipv4.as_mut().poll(cx)
        {
            first = Some(half);
        }
        if second.is_none()
            && let Poll::Ready(half) = ipv6.as_mut().poll(cx)
        {
            second = Some(half);
        }
        let is_over = match (&first, &second) {
            (Some(_), Some(_)) => true,
            (Some(half), None) | (None, Some(half)) if addresses_of(half).is_some() => {
                if timer.is_none() {
                    timer.set(Some(sleep_until(clock::now() + FAMILY_WAIT)));
                }
                timer.as_mut().as_pin_mut().is_some_and(|timer| timer.poll(cx).is_ready())
            }
            _ => false,
        };
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let late = || Some(Err(ResolveError::TimedOut));
    (first.unwrap_or_else(late), second.unwrap_or_else(late))
}

/// The addresses of a half.
fn addresses_of(half: &FamilyAnswer) -> Option<(&CurrentAnswer, &Arc<[IpAddr]>)> {
    match half {
        Some(Ok(answer)) => match &answer.settled.outcome {
            Answer::Found(Records::Addresses(addrs)) => Some((answer, addrs)),
            _ => None,
        },
        _ => None,
    }
}

/// Makes one of two halves.
fn unite(ipv4: FamilyAnswer, ipv6: FamilyAnswer, first: usize) -> Result<Addresses, ResolveError> {
    let errors = [&ipv4, &ipv6].into_iter().flatten().filter_map(|half| half.as_ref().err().copied());
    // An error that a server reports says more than a timeout.
    let error = errors.clone().find(|error| !error.is_timeout()).or_else(|| errors.clone().next());
    let mut expires: Option<Instant> = None;
    let mut is_stale = false;
    let mut take = |half: &FamilyAnswer| match addresses_of(half) {
        Some((answer, addrs)) => {
            expires = Some(expires.map_or(answer.settled.expires, |at| at.min(answer.settled.expires)));
            is_stale |= answer.is_stale;
            Arc::clone(addrs)
        }
        None => Arc::default(),
    };
    let ipv4 = take(&ipv4);
    let ipv6 = take(&ipv6);
    match (expires, error) {
        (Some(expires), None) => Ok(Addresses { ipv4, ipv6, first, expires, is_stale }),
        // DIFF(nginx): half an answer is one; the other half is asked for again soon.
        (Some(expires), Some(_)) => {
            let expires = expires.min(clock::now() + HALF_TTL);
            Ok(Addresses { ipv4, ipv6, first, expires, is_stale })
        }
        (None, Some(error)) => Err(error),
        (None, None) => Err(ResolveError::NotFound),
    }
}
