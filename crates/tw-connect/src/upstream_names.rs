//! The addresses of servers that have names. Those of `upstream` blocks are asked for beside the start, and again when they hold
//! no more, all others when a request needs them; requests go on with those there are meanwhile.

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use tw_core::event_loop::LoopShare;
use tw_disk::Pool;
use tw_log::{ErrorLog, Level};
use tw_rt::watch::Subject;
use tw_upstream::Group;

use crate::failure::UpstreamFailure;
use crate::group::UpstreamGroup;
use crate::group_clock::now_ms;
use crate::named_server::{LOOK, spawn_refresh};
use crate::protocol::ConnectingProtocol;
use crate::resolving::Resolving;

pub use crate::named_server::UpstreamNames;

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

/// Asks for the names of servers when they are due, for those of `groups` that are in the `share` of a loop. Logs what a reload
/// has undone in them. Never ends by itself.
pub async fn refresh_names<P: ConnectingProtocol>(
    groups: &[Arc<UpstreamGroup<P>>],
    share: LoopShare,
    pool: &Pool,
    log: &ErrorLog,
) {
    let groups: Vec<_> = groups.iter().skip(share.index % share.loops).step_by(share.loops).collect();
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
        tw_rt::time::sleep(Duration::from_millis(next - now)).await;
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
