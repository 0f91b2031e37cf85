//! Servers of a group that have names, and the lookup of their addresses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tw_base::FatalMutex;
use tw_disk::{Account, Errno, JobClass, JobSource, Pool};
use tw_dns::ResolveError;
use tw_rt::watch::Subject;
use tw_upstream::{Group, ResolvedAddress, ServerAddress, ServerId};

use crate::failure::UpstreamFailure;
use crate::group_clock::now_ms;
use crate::resolving::Resolving;

/// Interval in which names are checked for expiry, and the least time between two lookups of one name (nginx: the same), even
/// if its addresses expire at once.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// A server of a group that has a name.
pub(crate) struct NamedServer {
    id: ServerId,
    host: Arc<str>,
    service: Option<Arc<str>>,
    port: u16,
    /// `resolve`: it is asked for again, and of `resolver`. Any other name is the system's.
    pub(crate) follows: bool,
    /// Expiry of its addresses, in milliseconds; 0 until there are any.
    pub(crate) until: AtomicU64,
    /// Time of the next lookup that no request waits for.
    pub(crate) due: AtomicU64,
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
    pub(crate) fn of(&self, group: &Group) -> Arc<[Arc<NamedServer>]> {
        let (list, mut names) = (group.list(), self.0.lock());
        if names.generation < list.generation() {
            names.generation = list.generation();
            let named = list.servers().iter().filter_map(|(id, server)| match &server.address {
                ServerAddress::Fixed(_) => None,
                ServerAddress::Named { host, service, port, follows } => {
                    let same = names.all.iter().find(|named| named.id == *id);
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
            names.all = named.collect();
        }
        names.all.clone()
    }
}

/// One that is being asked for, until this is dropped.
struct LookupGuard(Arc<NamedServer>);

impl Drop for LookupGuard {
    fn drop(&mut self) {
        self.0.is_resolving.store(false, Relaxed);
    }
}

/// Starts a lookup of a name in the background, unless one is running.
pub(crate) fn spawn_refresh(
    named: &Arc<NamedServer>,
    group: &Arc<Group>,
    resolving: &Resolving,
    pool: &Pool,
) {
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

/// Time of the next lookup for addresses that expire at `until`.
fn next_lookup(until: u64, now: u64) -> u64 {
    until.max(now + LOOK.as_millis() as u64)
}

impl NamedServer {
    /// Asks for its addresses, and says when to ask again.
    pub(crate) async fn refresh(
        &self,
        group: &Arc<Group>,
        resolving: &Resolving,
        pool: &Pool,
    ) -> Result<(), ResolveError> {
        let mut result = self.look_up_addresses(group, resolving, pool).await;
        if result == Err(ResolveError::NotFound) && self.follows {
            // The name does not exist any more, so its peers are removed.
            match self.set_addresses(group, Vec::new(), pool).await {
                Ok(()) => self.until.store(0, Relaxed),
                Err(error) => result = Err(error),
            }
        }
        let until = match &result {
            Ok(()) if self.follows => self.until.load(Relaxed),
            Ok(()) => u64::MAX,
            // nginx: the same.
            Err(_) => now_ms() + resolving.timeout.as_millis() as u64,
        };
        self.due.store(next_lookup(until, now_ms()), Relaxed);
        result
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
                let found_addresses = resolver.addresses(self.host.as_bytes(), timeout).await?;
                let addresses =
                    found_addresses.iter().map(|ip| tw_net::Addr::Inet((ip, self.port).into()).into());
                (addresses.collect(), found_addresses.expires)
            }
            Some(service) => {
                let services = resolver.services(service.as_bytes(), self.host.as_bytes(), timeout).await?;
                let best = services.targets.iter().map(|target| target.priority).min();
                let mut addresses = Vec::new();
                for target in &services.targets {
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
                (addresses, services.expires)
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

    /// Failure of a request that needs an address of the server.
    pub(crate) fn failure(&self, error: ResolveError) -> UpstreamFailure {
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
