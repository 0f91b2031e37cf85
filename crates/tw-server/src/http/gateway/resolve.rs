//! The addresses of servers that have names. They are asked for when the first request needs them, and again when they hold no
//! more; requests go on with those there are meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tw_base::Whole;
use tw_dns::ResolveError;
use tw_rt::watch::Subject;
use tw_upstream::{Address, Group, Place, ServerId};

use super::exchange::now_ms;
use super::fault::Fault;
use crate::core::location::Resolving;

/// A server of a group that has a name.
struct Named {
    id: ServerId,
    host: Arc<str>,
    service: Option<Arc<str>>,
    port: u16,
    /// `resolve`: whether it is asked for again.
    follows: bool,
    /// Until when its addresses hold, in milliseconds; 0 until there are any.
    until: AtomicU64,
    is_asked: AtomicBool,
}

/// The servers of a group that have names, as far as somebody has looked.
#[derive(Default)]
pub struct Names(Whole<Known>);

#[derive(Default)]
struct Known {
    /// The list they are from.
    generation: u64,
    all: Arc<[Arc<Named>]>,
}

impl Names {
    /// Those of the group now. Those that were known stay the same.
    fn of(&self, group: &Group) -> Arc<[Arc<Named>]> {
        let (list, mut known) = (group.list(), self.0.lock());
        if known.generation < list.generation() {
            known.generation = list.generation();
            let named = list.servers().iter().filter_map(|(id, server)| match &server.place {
                Place::Fixed(_) => None,
                Place::Named { host, service, port, follows } => {
                    let same = known.all.iter().find(|named| named.id == *id);
                    Some(same.cloned().unwrap_or_else(|| {
                        Arc::new(Named {
                            id: *id,
                            host: host.clone(),
                            service: service.clone(),
                            port: *port,
                            follows: *follows,
                            until: AtomicU64::new(0),
                            is_asked: AtomicBool::new(false),
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
struct Asking(Arc<Named>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.is_asked.store(false, Relaxed);
    }
}

/// Sees to it that servers with names have addresses, as far as names have any. Waits only while nobody in the group has one:
/// a name server that says nothing costs those that need it.
pub(super) async fn ready(names: &Names, group: &Arc<Group>, resolving: &Resolving) -> Result<(), Fault> {
    let has_peers = || group.list().peers().next().is_some();
    let mut failed = None;
    for named in names.of(group).iter() {
        let until = named.until.load(Relaxed);
        if until != 0 && !(named.follows && now_ms() >= until) {
            continue;
        }
        if until == 0 && !has_peers() {
            if let Err(error) = named.ask(group, resolving).await {
                failed = Some(named.fault(error));
            }
        } else if !named.is_asked.swap(true, Relaxed) {
            let (asking, group, resolving) = (Asking(named.clone()), group.clone(), resolving.clone());
            tw_rt::spawn_local(Subject { kind: "name", id: 0 }, async move {
                // Those there are go on being used.
                let _ = asking.0.ask(&group, &resolving).await;
            });
        }
    }
    match failed {
        Some(fault) if !has_peers() => Err(fault),
        _ => Ok(()),
    }
}

impl Named {
    async fn ask(&self, group: &Group, resolving: &Resolving) -> Result<(), ResolveError> {
        let (resolver, timeout) = (&resolving.resolver, resolving.timeout);
        let (addresses, expires): (Vec<Address>, _) = match &self.service {
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
                    let Ok(of_target) = &target.addresses else { continue };
                    addresses.extend(of_target.iter().map(|ip| Address {
                        addr: tw_net::Addr::Inet((ip, target.port).into()),
                        name: Some(String::from_utf8_lossy(target.name.as_bytes()).into()),
                        weight: Some(u32::from(target.weight)),
                        backup: Some(target.priority) != best,
                    }));
                }
                (addresses, found.expires)
            }
        };
        // A server that was removed meanwhile needs no addresses.
        let _ = group.resolved(self.id, &addresses);
        let holds = expires.saturating_duration_since(tw_rt::clock::now());
        self.until.store(now_ms() + u64::try_from(holds.as_millis()).unwrap_or(u64::MAX / 2).max(1), Relaxed);
        Ok(())
    }

    fn fault(&self, error: ResolveError) -> Fault {
        let name = tw_dns::NotResolved { name: self.host.as_bytes(), error };
        Fault::NoName(name.to_string().into())
    }
}
