//! The addresses of servers that have names. Those of `upstream` blocks are asked for beside the start, and again when they hold
//! no more, all others when a request needs them; requests go on with those there are meanwhile.

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use tw_base::FatalMutex;
use tw_disk::{Account, Errno, JobClass, JobSource, Pool};
use tw_dns::ResolveError;
use tw_log::{ErrorLog, Level};
use tw_rt::watch::Subject;
use tw_upstream::{Group, ResolvedAddress, ServerAddress, ServerId};

use crate::failure::UpstreamFailure;
use crate::group::{UpstreamGroup, now_ms};
use crate::protocol::ConnectingProtocol;
use crate::resolving::Resolving;

/// Interval in which names are checked for expiry, and the least time between two lookups of one name (nginx: the same), even
/// if its addresses expire at once.
const LOOK: Duration = Duration::from_secs(1);

/// A server of a group that has a name.
struct NamedServer {
    id: ServerId,
    host: Arc<str>,
    service: Option<Arc<str>>,
    port: u16,
    /// `resolve`: it is asked for again, and of `resolver`. Any other name is the system's.
    follows: bool,
    /// Expiry of its addresses, in milliseconds; 0 until there are any.
    until: AtomicU64,
    /// Time of the next lookup that no request waits for.
    due: AtomicU64,
    is_resolving: AtomicBool,
}

/// The servers of a group that have names, as far as somebody has looked.
#[derive(Default)]
pub struct UpstreamNames(FatalMutex<KnownNames>);

#[derive(Default)]
struct KnownNames {
    /// The list they are from.
    generation: u64,
    all: Arc<[Arc<NamedServer>]>,
}

impl UpstreamNames {
    /// Names in the group now. State of names that were known is kept.
    fn of(&self, group: &Group) -> Arc<[Arc<NamedServer>]> {
        let (list, mut known) = (group.list(), self.0.lock());
        if known.generation < list.generation() {
            known.generation = list.generation();
            let named = list.servers().iter().filter_map(|(id, server)| match &server.address {
                ServerAddress::Fixed(_) => None,
                ServerAddress::Named { host, service, port, follows } => {
                    let same = known.all.iter().find(|named| named.id == *id);
                    Some(same.cloned().unwrap_or_else(|| {
                        Arc::new(NamedServer {
                            id: *id,
                            host: host.clone(),
                            service: service.clone(),
                            port: *port,
                            follows: *follows,
                            until: AtomicU64::new(0),
                            due: AtomicU64::new(0),
                            is_resolving: AtomicBool::new(false),
                        })
                    }))
                }
            });
            known.all = named.collect();
        }
        known.all.clone()
    }
}

/// One that is being asked for, until this is dropped.
struct LookupGuard(Arc<NamedServer>);

impl Drop for LookupGuard {
    fn drop(&mut self) {
        self.0.is_resolving.store(false, Relaxed);
    }
}

/// Lookup of one name that a request waits for.
type Lookup = Pin<Box<dyn Future<Output = Result<(), UpstreamFailure>>>>;

/// Resolves the names of the servers of a group. Waits only if no server of the group has an address, and then for
/// the first answer: a silent name server delays only requests that need it. `pool` does the slow computations.
pub async fn ensure_addresses(
    names: &UpstreamNames,
    group: &Arc<Group>,
    resolving: &Resolving,
    pool: &Pool,
) -> Result<(), UpstreamFailure> {
    let has_peers = || group.list().peers().next().is_some();
    let mut lookups: Vec<Lookup> = Vec::new();
    for named in names.of(group).iter() {
        let until = named.until.load(Relaxed);
        if until != 0 && !(named.follows && now_ms() >= until) {
            continue;
        }
        if until == 0 && !has_peers() {
            let (named, group) = (named.clone(), group.clone());
            let (resolving, pool) = (resolving.clone(), pool.clone());
            lookups.push(Box::pin(async move {
                named.refresh(&group, &resolving, &pool).await.map_err(|error| named.failure(error))
            }));
        } else {
            spawn_refresh(named, group, resolving, pool);
        }
    }
    let mut failed = None;
    poll_fn(|cx| {
        lookups.retain_mut(|lookup| match lookup.as_mut().poll(cx) {
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(failure)) => {
                failed.get_or_insert(failure);
                false
            }
            Poll::Pending => true,
        });
        if lookups.is_empty() || has_peers() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    for lookup in lookups {
        tw_rt::spawn_local(Subject { kind: "name", id: 0 }, lookup);
    }
    match failed {
        Some(failure) if !has_peers() => Err(failure),
        _ => Ok(()),
    }
}

/// Starts a lookup of a name in the background, unless one is running.
fn spawn_refresh(named: &Arc<NamedServer>, group: &Arc<Group>, resolving: &Resolving, pool: &Pool) {
    if named.is_resolving.swap(true, Relaxed) {
        return;
    }
    let (lookup, group) = (LookupGuard(named.clone()), group.clone());
    let (resolving, pool) = (resolving.clone(), pool.clone());
    tw_rt::spawn_local(Subject { kind: "name", id: 0 }, async move {
        // If the lookup fails, the addresses known so far stay in use.
        let _ = lookup.0.refresh(&group, &resolving, &pool).await;
    });
}

/// Asks for the names of servers when they are due, for those of `groups` that fall to loop `index` of `loops`. Logs what a reload
/// has undone in them. Never ends by itself.
pub async fn refresh_names<P: ConnectingProtocol>(
    groups: &[Arc<UpstreamGroup<P>>],
    (index, loops): (usize, usize),
    pool: &Pool,
    log: &ErrorLog,
) {
    let groups: Vec<_> = groups.iter().skip(index % loops).step_by(loops).collect();
    for group in &groups {
        log_undone(group, log);
    }
    if groups.is_empty() {
        return pending().await;
    }
    loop {
        let now = now_ms();
        let mut next = now + LOOK.as_millis() as u64;
        for group in groups.iter().filter(|group| group.peers.has_host_names()) {
            let Some(resolving) = &group.resolving else { continue };
            for named in group.names.of(&group.peers).iter() {
                match named.due.load(Relaxed) {
                    due if due <= now => spawn_refresh(named, &group.peers, resolving, pool),
                    due => next = next.min(due),
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(next - now)).await;
    }
}

/// Logs the changes at run time that the reload has undone.
fn log_undone<P: ConnectingProtocol>(group: &UpstreamGroup<P>, log: &ErrorLog) {
    let undone = std::mem::take(&mut *group.undone.lock());
    if undone.is_empty() {
        return;
    }
    let (name, changes) = (group.peers.name(), undone.join(", "));
    let message = format_args!(
        "the reload has undone changes of the API in upstream \"{name}\", which has no \"state\": {changes}"
    );
    log.write(Level::Warn, None, message);
}

/// Time of the next lookup for addresses that expire at `until`.
fn next_lookup(until: u64, now: u64) -> u64 {
    until.max(now + LOOK.as_millis() as u64)
}

impl NamedServer {
    /// Asks for its addresses, and says when to ask again.
    async fn refresh(
        &self,
        group: &Arc<Group>,
        resolving: &Resolving,
        pool: &Pool,
    ) -> Result<(), ResolveError> {
        let mut found = self.look_up_addresses(group, resolving, pool).await;
        if found == Err(ResolveError::NotFound) && self.follows {
            // The name does not exist any more, so its peers are removed.
            match self.set_addresses(group, Vec::new(), pool).await {
                Ok(()) => self.until.store(0, Relaxed),
                Err(error) => found = Err(error),
            }
        }
        let until = match &found {
            Ok(()) if self.follows => self.until.load(Relaxed),
            Ok(()) => u64::MAX,
            // nginx: the same.
            Err(_) => now_ms() + resolving.timeout.as_millis() as u64,
        };
        self.due.store(next_lookup(until, now_ms()), Relaxed);
        found
    }

    async fn look_up_addresses(
        &self,
        group: &Arc<Group>,
        resolving: &Resolving,
        pool: &Pool,
    ) -> Result<(), ResolveError> {
        // The name of a service is followed or not, but nothing of a system's own.
        let is_run_time = self.follows || self.service.is_some();
        let (resolver, timeout) = resolving.service(is_run_time, pool).await;
        let (addresses, expires): (Vec<ResolvedAddress>, _) = match &self.service {
            None => {
                let found = resolver.addresses(self.host.as_bytes(), timeout).await?;
                let addresses = found.iter().map(|ip| tw_net::Addr::Inet((ip, self.port).into()).into());
                (addresses.collect(), found.expires)
            }
            Some(service) => {
                let found = resolver.services(service.as_bytes(), self.host.as_bytes(), timeout).await?;
                let best = found.targets.iter().map(|target| target.priority).min();
                let mut addresses = Vec::new();
                for target in &found.targets {
                    let of_target = match &target.addresses {
                        Ok(addresses) => addresses,
                        Err(ResolveError::NotFound) => continue,
                        // Half an answer changes nothing.
                        Err(error) => return Err(*error),
                    };
                    addresses.extend(of_target.iter().map(|ip| ResolvedAddress {
                        addr: tw_net::Addr::Inet((ip, target.port).into()),
                        name: Some(String::from_utf8_lossy(target.name.as_bytes()).into()),
                        weight: Some(u32::from(target.weight)),
                        backup: Some(target.priority) != best,
                    }));
                }
                (addresses, found.expires)
            }
        };
        self.set_addresses(group, addresses, pool).await?;
        let holds = expires.saturating_duration_since(tw_rt::clock::now());
        self.until.store(now_ms() + u64::try_from(holds.as_millis()).unwrap_or(u64::MAX / 2).max(1), Relaxed);
        Ok(())
    }

    /// Gives the server its addresses. `System` if the pool has no room for the work: those there are stay.
    async fn set_addresses(
        &self,
        group: &Arc<Group>,
        addresses: Vec<ResolvedAddress>,
        pool: &Pool,
    ) -> Result<(), ResolveError> {
        let (of_work, id) = (group.clone(), self.id);
        // A server that was removed meanwhile needs no addresses.
        let work = move || of_work.resolved(id, &addresses).map_or((), |_| ());
        if !group.method().has_ring() {
            work();
            return Ok(());
        }
        // The hash ring of the group is built anew: 26 ms for a thousand peers.
        let mut account = Account::new(JobClass::Hit, JobSource::NONE);
        let done = pool.run(&mut account, work).await;
        done.map_err(|error| ResolveError::System(error.errno().unwrap_or(Errno::AGAIN).into()))
    }

    fn failure(&self, error: ResolveError) -> UpstreamFailure {
        let name = tw_dns::ResolveFailure { name: self.host.as_bytes(), error };
        UpstreamFailure::NoName(name.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_hold_for_no_time_make_no_storm_of_questions() {
        for (until, expected) in [(0, 8000), (7001, 8000), (8000, 8000), (9500, 9500), (u64::MAX, u64::MAX)] {
            assert_eq!(next_lookup(until, 7000), expected, "{until}");
        }
    }
}
