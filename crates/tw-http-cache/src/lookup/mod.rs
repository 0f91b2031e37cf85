//! Cache lookup of one request: a hit, a fill in progress that it joins, or a miss that goes to the upstream server.
//!
//! | file | content |
//! |---|---|
//! | `target` | cache and key of a request |
//! | `states` | state machine of a lookup: from the key to its outcome |
//! | `search`, `follow`, `hedge` | ways to a response: entry, fill, race of both |
//! | `permission`, `refresh_ahead`, `background` | conditions of storing, and fetches beside the requests of clients |
//! | `cached_response`, `serve_hit`, `cache_headers` | from a stored response to that of the client |
//! | `forward`, `conditions`, `store_response` | a lookup that goes to the upstream server, and the response of that |
//!
//! The request is only read until its lookup has ended; then [`look_up`] tells it the outcome.

pub(crate) mod background;
pub(crate) mod cache_headers;
pub(crate) mod cached_response;
pub(crate) mod conditions;
pub(crate) mod follow;
pub(crate) mod forward;
pub(crate) mod hedge;
mod permission;
pub(crate) mod refresh_ahead;
pub(crate) mod search;
pub(crate) mod serve_hit;
mod states;
pub(crate) mod store_response;
mod target;

use std::sync::Arc;

use super::purge;
use super::settings::{CacheSettings, SentBody};
use super::zone::{Cache, CacheUser};
use serve_hit::serve_hit;
use states::{LookupOutcome, LookupResult, LookupRun};
use target::{CacheUse, LookupTarget};
use tw_phases::forward_head::{ForwardRules, RewriteFields};
use tw_request::cache_info::{CacheReport, UsedCache};
use tw_request::local_future::boxed;
use tw_request::miss_reason::MissReason;
use tw_request::plan::Outcome;
use tw_request::request::Request;

pub use forward::Lookup;

/// Looks `r` up in the cache of `settings`, if there is one. Returns the lookup with which the upstream server is asked; the error
/// is the outcome without it, a hit for example. `default_key` is used where no `cache_key` is configured, `sent` is the body that the
/// server would get. Waits for the disk, and for other requests that fetch the same response.
pub async fn look_up(
    r: &mut Request,
    settings: &CacheSettings,
    rules: &ForwardRules,
    rewrite: &dyn RewriteFields,
    sent: SentBody,
    default_key: impl FnOnce(&Request, &mut Vec<u8>),
) -> Result<Option<Box<Lookup>>, Outcome> {
    if !settings.is_on() {
        return Ok(None);
    }
    let began = r.lookup_began();
    let result = boxed(|| use_cache(r, settings, sent, default_key)).await;
    if let Some(began) = began {
        r.record_lookup(began);
    }
    match result {
        None => Ok(None),
        Some(LookupResult::Ready(ready)) => Err(serve_hit(r, settings, rules, rewrite, ready)),
        Some(LookupResult::Forward(lookup)) => Ok(Some(lookup)),
        Some(LookupResult::Status(status)) => Err(Outcome::Status(status)),
    }
}

/// Uses the cache of `settings` for `r`, and tells `r` the outcome. Returns `None` if no lookup takes place.
async fn use_cache(
    r: &mut Request,
    settings: &CacheSettings,
    sent: SentBody,
    default_key: impl FnOnce(&Request, &mut Vec<u8>),
) -> Option<LookupResult> {
    let target = match target::determine(r, settings, sent, default_key).await {
        CacheUse::Lookup(target) => target,
        CacheUse::Purge(target, order) => {
            name_cache(r, &target);
            let LookupTarget { whole, text, .. } = target;
            let status = purge::purge(r, settings, &whole, &text, order).await;
            return Some(LookupResult::Status(status));
        }
        CacheUse::Nothing(cache, report) => {
            if let Some(cache) = cache {
                (r.upstream.cache.cache, r.upstream.cache.report) =
                    (Some(cache as Arc<dyn UsedCache>), report);
            }
            return None;
        }
        CacheUse::Status(status) => return Some(LookupResult::Status(status)),
    };
    name_cache(r, &target);
    let Some(disk) = r.disk().cloned() else { return Some(LookupResult::Status(500)) };
    let log = |level, message: std::fmt::Arguments<'_>| r.log(level, message);
    if target.cache.load_index(CacheUser::Request, &disk, log).await.is_err() {
        // The purges are not known: the request goes to the origin server, and nothing is stored.
        r.upstream.cache.report = CacheReport { why: Some(MissReason::SlowDisk), ..CacheReport::default() };
        return None;
    }
    let is_anew = std::mem::take(&mut r.upstream.cache.is_anew);
    let LookupOutcome { result, report, account, other_member } =
        LookupRun::new(r, settings, target).run(is_anew).await;
    r.upstream.cache.report = report;
    if let Some(cache) = other_member {
        r.upstream.cache.cache = Some(cache as Arc<dyn UsedCache>);
    }
    if let Some(account) = account {
        r.costs.account.add_part(&account);
    }
    Some(result)
}

/// Tells the request its cache, which may have a disk of its own, and its key.
fn name_cache(r: &mut Request, target: &LookupTarget) {
    let LookupTarget { cache, text, .. } = target;
    let cache: Arc<Cache> = cache.clone();
    (r.upstream.cache.key, r.upstream.cache.cache) = (text.clone(), Some(cache as Arc<dyn UsedCache>));
}
