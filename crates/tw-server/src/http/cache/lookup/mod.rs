//! Cache lookup of one request: a hit, a fill in progress that it joins, or a miss that goes to the upstream server.

pub(crate) mod background;
pub(crate) mod cache_headers;
pub(crate) mod cached_response;
pub(crate) mod conditions;
pub(crate) mod follow;
pub(crate) mod hedge;
pub(crate) mod refresh_ahead;
pub(crate) mod search;
pub(crate) mod serve_hit;
pub(crate) mod store_response;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tw_cache::policy::{self, ForwardReason, NoStoreReason, Reuse, Rules, ValidateReason, Window};
use tw_cache::{Claim, EntryState, Key};
use tw_http::range::ByteRange;
use tw_http::{Known, Method};
use tw_log::{Level, Text};

use super::entry::open_entries::OpenEntry;
use super::fill::{Continuation, Fill, take_continuation};
use super::guard::background::{FetchPermit, FetchPurpose};
use super::miss_reason::MissReason;
use super::purge;
use super::purge::invalidate;
use super::settings::purge_rule::PurgeTarget;
use super::settings::{CacheSettings, SentBody};
use super::zone::stats::begin_hit;
use super::zone::{Cache, CacheUser, FillLead, JoinOutcome};
use crate::http::cache::time::seconds;
use crate::http::cache_info::{PendingHit, UpstreamCacheStatus, UsedCache};
use crate::http::forward_head::{ForwardRules, RewriteFields};
use crate::http::plan::Outcome;
use crate::http::request::Request;
use crate::http::retry_conditions::RetryOn;
use background::BackgroundFetch;
use cached_response::{CachedResponse, serve_entry};
use conditions::begins_behind;
use follow::{FollowOutcome, RecentFill};
use hedge::LookupHedge;
use search::{FoundState, SearchOutcome};
use serve_hit::serve_hit;

/// Bytes of a key that needs no second allocation.
const KEY_ROOM: usize = 128;

/// Result of a lookup.
pub(crate) enum LookupResult {
    /// The request has no cache.
    None,
    /// A response from the cache.
    Ready(CachedResponse),
    /// The request goes to the upstream server.
    Forward(Box<Lookup>),
    /// The request ends with this status.
    Status(u16),
}

/// Lookup of a request that goes to the upstream server, with its permits.
pub struct Lookup {
    pub(crate) cache: Arc<Cache>,
    /// Text of the key.
    pub(crate) text: Bytes,
    pub(crate) key: Key,
    /// Key of the last search: the main key or that of a variant.
    searched: Key,
    /// `Vary` of the entry with the key, if this request is for another variant.
    pub(crate) other: Option<Bytes>,
    /// Stale entry that may be served if the upstream server fails.
    pub(crate) stale: Option<Rc<OpenEntry>>,
    /// Permit to store; `None` if the response is not stored.
    pub(crate) lead: Option<StorePermit>,
    /// Time of the request to the upstream server, in seconds since 1970.
    pub(crate) request_time: i64,
    /// Range of the content that the key names.
    pub(crate) part: Option<ByteRange>,
    /// Fill that the response is to continue.
    pub(crate) continuation: Option<Continuation>,
    /// Purpose of a background fetch.
    pub(crate) purpose: Option<FetchPurpose>,
    /// Permit of a background fetch, until there is a permit to store.
    permit: Option<FetchPermit>,
}

/// Permit to store, with the fill that other requests can join.
pub(crate) struct StorePermit {
    pub(crate) lead: FillLead,
    pub(crate) claim: Claim,
}

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
    let result = Box::pin(Lookup::begin(r, settings, sent, default_key)).await;
    if let Some(began) = began {
        r.record_lookup(began);
    }
    match result {
        LookupResult::None => Ok(None),
        LookupResult::Ready(ready) => Err(serve_hit(r, settings, rules, rewrite, ready)),
        LookupResult::Forward(lookup) => Ok(Some(lookup)),
        LookupResult::Status(status) => Err(Outcome::Status(status)),
    }
}

impl Lookup {
    /// Starts the lookup in the cache of `settings`, if there is one for this request. `default_key` is the key where none is
    /// configured. Waits for the disk and for other requests for the same.
    async fn begin(
        r: &mut Request,
        settings: &CacheSettings,
        sent: SentBody,
        default_key: impl FnOnce(&Request, &mut Vec<u8>),
    ) -> LookupResult {
        let purge = match settings.purge.purge_target(r) {
            PurgeTarget::Forbidden => return LookupResult::Status(403),
            PurgeTarget::Purge(request) => Some(request),
            PurgeTarget::Nothing => None,
        };
        if purge.is_none() && !settings.stores_method(r.method()) {
            invalidate::begin(r, settings).await;
            return LookupResult::None;
        }
        let cache = match settings.cache(r) {
            Ok(Some(cache)) => cache.clone(),
            Ok(None) => return LookupResult::None,
            Err(name) => {
                r.log(Level::Error, format_args!("cache \"{}\" not found", Text(&name)));
                return LookupResult::Status(500);
            }
        };
        // DIFF(nginx): a response to a request with a body is not stored where the next request, with another body, would get it.
        if purge.is_none() && !settings.serves_body(r, sent) {
            let facts = &mut r.upstream.cache;
            facts.cache = Some(cache as Arc<dyn UsedCache>);
            (facts.forward, facts.why) = (Some(ForwardReason::Bypass), Some(MissReason::RequestBody));
            return LookupResult::None;
        }
        let mut text = Vec::with_capacity(KEY_ROOM);
        r.upstream.cache.part.set(None);
        match &settings.key {
            Some(key) => key.eval(r, &mut text),
            None => default_key(r, &mut text),
        }
        let part = r.upstream.cache.part.get();
        let text = Bytes::from(text);
        let key = Key::of(&text);
        let (all, cache) = (cache.clone(), cache.owner(key).clone());
        let facts = &mut r.upstream.cache;
        (facts.key, facts.cache, facts.follows) =
            (text.clone(), Some(cache.clone() as Arc<dyn UsedCache>), false);
        if let Some(request) = purge {
            return LookupResult::Status(purge::purge(r, settings, &all, &text, request).await);
        }
        let Some(disk) = r.disk().cloned() else { return LookupResult::Status(500) };
        if cache.load_index(CacheUser::Request, &disk, |level, message| r.log(level, message)).await.is_err()
        {
            // The purges are not known: the request goes to the origin server, and nothing is stored.
            r.upstream.cache.why = Some(MissReason::SlowDisk);
            return LookupResult::None;
        }
        let request_time = tw_rt::clock::unix().secs;
        let (other, stale, lead) = (None, None, None);
        let continuation = take_continuation(r);
        let mut lookup = Self {
            cache,
            text,
            key,
            searched: key,
            other,
            stale,
            lead,
            request_time,
            part,
            continuation,
            purpose: None,
            permit: None,
        };
        if lookup.continuation.is_some() {
            return LookupResult::Forward(Box::new(lookup));
        }
        if let Some(fetch) = BackgroundFetch::take(r) {
            (lookup.purpose, lookup.permit) = (Some(fetch.purpose), Some(fetch.permit));
            lookup.other = fetch.other;
            if let Some(entry) = fetch.entry {
                lookup.keep_stale(r, entry);
            }
            if let Some(lead) = fetch.lead {
                lookup.set_forwarded(r, UpstreamCacheStatus::Expired, ForwardReason::Stale);
                lookup.hold(lead);
                return LookupResult::Forward(Box::new(lookup));
            }
        }
        if std::mem::take(&mut r.upstream.cache.is_anew) || settings.is_bypassed(r) {
            lookup.set_forwarded(r, UpstreamCacheStatus::Bypass, ForwardReason::Bypass);
            if policy::wants_only_stored(&r.head, &settings.rules) {
                return LookupResult::Status(lookup.unsatisfiable(r));
            }
            if lookup.permits_storing(r, settings) {
                lookup.lead();
            }
            return LookupResult::Forward(Box::new(lookup));
        }
        if let Some(other) = all.elsewhere(&lookup.cache, key)
            && let Some(ready) = lookup.find_elsewhere(r, settings, other).await
        {
            return LookupResult::Ready(ready);
        }
        lookup.find_response(r, settings).await
    }

    /// Finds a fresh response in a member of the cache that had this key before its present owner.
    async fn find_elsewhere(
        &mut self,
        r: &mut Request,
        settings: &CacheSettings,
        other: &Arc<Cache>,
    ) -> Option<CachedResponse> {
        let (owner, hit) = (std::mem::replace(&mut self.cache, other.clone()), begin_hit(r));
        if let SearchOutcome::Entry(entry, state) = self.find_entry(r, &settings.rules, None).await {
            let now = tw_rt::clock::unix().secs;
            let usage = state.usage(&entry.meta, r, now, &settings.rules);
            if matches!(usage, Reuse::Fresh { .. } | Reuse::Accepted { .. })
                && let LookupStep::Ready(ready) = self.use_entry(r, settings, entry, state, hit)
            {
                r.upstream.cache.cache = Some(self.cache.clone() as Arc<dyn UsedCache>);
                return Some(ready);
            }
        }
        self.cache = owner;
        None
    }

    /// Searches until there is a response, or until the request has to go to the upstream server.
    async fn find_response(mut self, r: &mut Request, settings: &CacheSettings) -> LookupResult {
        let until = tw_rt::clock::now() + settings.lock_timeout;
        let rules = &*settings.rules;
        let is_update = r.upstream.cache.is_update;
        let only_stored = !is_update && policy::wants_only_stored(&r.head, rules);
        let mut missed = None;
        let may_hedge =
            !is_update && !only_stored && self.cache.hedges() && self.may_fetch_for_others(r, settings);
        let hedge = may_hedge.then(|| LookupHedge::new(settings));
        loop {
            let hit = begin_hit(r);
            let found = match self.find_entry(r, rules, hedge.as_ref()).await {
                SearchOutcome::Entry(entry, state) => Some((entry, state)),
                SearchOutcome::Nothing => None,
                SearchOutcome::Hedged(winner) => {
                    if let Some(ready) = self.join_hedge(r, rules, winner) {
                        return LookupResult::Ready(ready);
                    }
                    continue;
                }
            };
            // A fill in progress is younger than the entry.
            if found.as_ref().is_none_or(|(_, state)| state.is_claimed) {
                match self.find_recent_fill(r, rules).await {
                    // The fill may have been stored between the two searches.
                    RecentFill::Nothing => {
                        let known = found.as_ref().map(|(entry, _)| entry.sequence);
                        let stored = self.stored();
                        if stored.is_some() && stored != known && stored != missed {
                            missed = stored;
                            continue;
                        }
                    }
                    RecentFill::Ready(ready) => return LookupResult::Ready(ready),
                    RecentFill::Stored => continue,
                }
            }
            let mut step = match found {
                Some((entry, state)) => self.use_entry(r, settings, entry, state, hit),
                None => self.miss(r, settings, only_stored),
            };
            if let LookupStep::Fetch = step {
                step = self.fetch(r, settings, only_stored, until).await;
            }
            match step {
                LookupStep::Ready(ready) => return LookupResult::Ready(ready),
                LookupStep::Forward => return LookupResult::Forward(Box::new(self)),
                LookupStep::Status(status) => return LookupResult::Status(status),
                LookupStep::Fetch | LookupStep::Again => {}
            }
        }
    }

    /// Serves an entry, or keeps it for a failure of the upstream server or for validation.
    fn use_entry(
        &mut self,
        r: &mut Request,
        settings: &CacheSettings,
        entry: Rc<OpenEntry>,
        state: FoundState,
        hit: PendingHit,
    ) -> LookupStep {
        let now = tw_rt::clock::unix().secs;
        if let Some(quota) = settings.quota(r) {
            let key = entry.meta.variant.filter(|_| self.other.is_some()).unwrap_or(self.key);
            let above = self.cache.confirm_quota(key, &entry, &quota);
            self.cache.remove_evicted(r, above);
        }
        match state.usage(&entry.meta, r, now, &settings.rules) {
            Reuse::Fresh { age } => {
                self.refresh_ahead(r, settings, &entry, state, now);
                self.set_served(r, UpstreamCacheStatus::Hit);
                r.upstream.cache.hit = Some(hit);
                LookupStep::Ready(serve_entry(r, entry, age))
            }
            Reuse::Accepted { age } => {
                self.set_served(r, UpstreamCacheStatus::Stale);
                LookupStep::Ready(serve_entry(r, entry, age))
            }
            Reuse::Stale { age, while_revalidate, .. } => {
                if let Some(ready) = self.serve_stale(r, settings, &entry, age, while_revalidate) {
                    return LookupStep::Ready(ready);
                }
                self.set_forwarded(r, UpstreamCacheStatus::Expired, ForwardReason::Stale);
                self.keep_stale(r, entry);
                LookupStep::Fetch
            }
            Reuse::Validate { because, .. } => {
                let forward = match because {
                    ValidateReason::NoCache => ForwardReason::Stale,
                    _ if now >= entry.meta.lifetime.valid_until => ForwardReason::Stale,
                    _ => ForwardReason::Request,
                };
                self.set_forwarded(r, UpstreamCacheStatus::Expired, forward);
                self.keep_stale(r, entry);
                LookupStep::Fetch
            }
            Reuse::Unsatisfiable => {
                self.set_forwarded(r, UpstreamCacheStatus::Expired, ForwardReason::Stale);
                LookupStep::Status(self.unsatisfiable(r))
            }
        }
    }

    /// Counts a request without an entry. The response is fetched for the cache from `cache_min_uses` requests on.
    fn miss(&self, r: &mut Request, settings: &CacheSettings, only_stored: bool) -> LookupStep {
        let is_variant = self.other.is_some();
        let forward = if is_variant { ForwardReason::VaryMiss } else { ForwardReason::UriMiss };
        self.set_forwarded(r, UpstreamCacheStatus::Miss, forward);
        if only_stored {
            return LookupStep::Status(self.unsatisfiable(r));
        }
        let now = seconds(tw_rt::clock::unix().secs);
        let counted = self.cache.index().map(|index| index.count_use(self.key, now));
        let uses = counted.map_or(1, |counted| {
            self.cache.remove_evicted(r, counted.pushed_out);
            u64::from(counted.uses)
        });
        if uses < settings.min_uses {
            r.upstream.cache.why = Some(MissReason::MinUses);
            return LookupStep::Forward;
        }
        LookupStep::Fetch
    }

    /// Takes the permit to store, or waits for the response of the request that has it, until `until` at most.
    async fn fetch(
        &mut self,
        r: &mut Request,
        settings: &CacheSettings,
        only_stored: bool,
        until: Instant,
    ) -> LookupStep {
        if only_stored {
            return LookupStep::Status(self.unsatisfiable(r));
        }
        if self.is_range_beyond_max(r, settings) {
            return forward_because(r, MissReason::RangeOffset);
        }
        if !self.permits_storing(r, settings) {
            return LookupStep::Forward;
        }
        if !settings.lock {
            self.lead();
            return LookupStep::Forward;
        }
        let Some(fill) = self.join_or_lead(settings) else { return LookupStep::Forward };
        let now = tw_rt::clock::now();
        // A fill that cannot stall is waited for until the next check at most.
        let stalls_at = fill.stalls_at(settings.lock_age).unwrap_or(now + settings.lock_age);
        let timeout = until.min(stalls_at).saturating_duration_since(now);
        match self.follow(r, &settings.rules, &fill, timeout).await {
            FollowOutcome::Ready(ready) => LookupStep::Ready(ready),
            // Others were refused a stored response for this field, and this request may be, too: they would wait for each other.
            FollowOutcome::Again if settings.is_rfc9111() && r.head.has(Known::Authorization) => {
                forward_because(r, NoStoreReason::Authorization.into())
            }
            FollowOutcome::Again => LookupStep::Again,
            FollowOutcome::Alone => forward_because(r, NoStoreReason::Private.into()),
            FollowOutcome::Late if tw_rt::clock::now() < until => LookupStep::Again,
            FollowOutcome::Late => forward_because(r, MissReason::LockTimeout),
            FollowOutcome::Gone => LookupStep::Status(499),
        }
    }

    /// Finds the entry of this request, main or variant.
    async fn find_entry(
        &mut self,
        r: &mut Request,
        rules: &Rules,
        hedge: Option<&LookupHedge>,
    ) -> SearchOutcome {
        (self.other, self.searched) = (None, self.key);
        let of = search::EntryQuery {
            cache: &self.cache,
            key: self.key,
            main: self.key,
            text: &self.text,
            since: 0,
        };
        let (entry, stood) = match search::find(r, &of, None, hedge).await {
            SearchOutcome::Entry(entry, stood) => (entry, stood),
            other => return other,
        };
        if entry.meta.vary.is_empty() {
            return SearchOutcome::Entry(entry, stood);
        }
        let variant = policy::variant(self.key, &entry.meta.vary, &r.head, rules);
        if entry.meta.variant == Some(variant) {
            return SearchOutcome::Entry(entry, stood);
        }
        (self.other, self.searched) = (Some(entry.meta.vary.clone()), variant);
        let of = search::EntryQuery { key: variant, since: stood.since, ..of };
        match search::find(r, &of, self.other.as_ref(), hedge).await {
            // The fields that it varies with have changed since.
            SearchOutcome::Entry(entry, _) if entry.meta.variant != Some(variant) => SearchOutcome::Nothing,
            other => other,
        }
    }

    /// Sequence number of the entry with the last searched key, if it is stored.
    fn stored(&self) -> Option<u64> {
        let found = self.cache.index()?.peek(self.searched)?;
        (found.holds == EntryState::File).then_some(found.sequence)
    }

    /// Returns true if the request and the disk permit its response to be stored. If not, other requests do not wait for it.
    pub(crate) fn permits_storing(&self, r: &mut Request, settings: &CacheSettings) -> bool {
        if !self.cache.permits_storing(self.key, &|level, message| r.log(level, message)) {
            r.upstream.cache.why = Some(MissReason::SlowDisk);
            return false;
        }
        if !settings.is_rfc9111() {
            return true;
        }
        let why = match () {
            () if self.method(r, settings) != Method::Get => NoStoreReason::Method,
            () if policy::wants_nothing_stored(&r.head, &settings.rules) => NoStoreReason::RequestNoStore,
            () => return true,
        };
        r.upstream.cache.why = Some(why.into());
        false
    }

    /// Takes a permit to store, also if others have one: the youngest response is kept.
    fn lead(&mut self) {
        let lead = self.cache.lead(self.key, tw_rt::clock::now());
        self.hold(lead);
    }

    fn hold(&mut self, mut lead: FillLead) {
        lead.permit = self.permit.take();
        self.request_time = tw_rt::clock::unix().secs;
        let claim = self.cache.index().map(|index| index.claim(self.key, seconds(self.request_time)));
        self.lead = claim.map(|claim| StorePermit { lead, claim });
    }

    /// Takes the permit to store, or returns the fill of the request that has it.
    fn join_or_lead(&mut self, settings: &CacheSettings) -> Option<Arc<Fill>> {
        match self.cache.join(self.key, tw_rt::clock::now(), settings.lock_age) {
            JoinOutcome::Lead(lead) => {
                self.hold(lead);
                None
            }
            JoinOutcome::Follow(fill) => Some(fill),
        }
    }

    /// Serves a stale entry while another request updates it, if that is allowed.
    fn serve_stale(
        &self,
        r: &mut Request,
        settings: &CacheSettings,
        entry: &Rc<OpenEntry>,
        age: u32,
        window: Window,
    ) -> Option<CachedResponse> {
        let is_allowed = match window {
            Window::Open => true,
            Window::Closed => settings.use_stale.has(RetryOn::UPDATING),
            Window::Forbidden => false,
        };
        if !is_allowed || r.upstream.cache.is_update {
            return None;
        }
        // A permission of the response itself is enough (RFC 5861 section 3).
        let may_update = settings.background_update || settings.is_rfc9111() && window == Window::Open;
        let status = if self.cache.fill(self.key).is_some() {
            UpstreamCacheStatus::Updating
        } else if may_update && self.update_in_background(r, settings) {
            UpstreamCacheStatus::Stale
        } else {
            return None;
        };
        self.set_served(r, status);
        Some(serve_entry(r, entry.clone(), age))
    }

    pub(crate) fn keep_stale(&mut self, r: &mut Request, entry: Rc<OpenEntry>) {
        let facts = &mut r.upstream.cache;
        let fields = &entry.meta.fields;
        let found = policy::validators(entry.meta.status, fields);
        let last_modified = found.last_modified.and_then(|_| fields.share(b"Last-Modified"));
        facts.last_modified = last_modified.unwrap_or_default();
        facts.etag = found.etag.and_then(|_| fields.share(b"ETag")).unwrap_or_default();
        self.stale = Some(entry);
    }

    /// Returns true if the requested range begins behind `cache_max_range_offset`: then the whole response is not fetched.
    pub(crate) fn is_range_beyond_max(&self, r: &Request, settings: &CacheSettings) -> bool {
        let Some(max) = settings.max_range_offset else { return false };
        r.head.field_known(Known::Range).is_some_and(|range| begins_behind(range, max))
    }

    pub(crate) fn set_status(&self, r: &mut Request, status: UpstreamCacheStatus) {
        r.upstream.cache.status = Some(status);
    }

    /// Notes that the request is forwarded, or would be.
    pub(crate) fn set_forwarded(&self, r: &mut Request, status: UpstreamCacheStatus, forward: ForwardReason) {
        self.set_status(r, status);
        r.upstream.cache.forward = Some(forward);
    }

    /// Notes that a stored response is served without forwarding the request.
    pub(crate) fn set_served(&self, r: &mut Request, status: UpstreamCacheStatus) {
        self.set_status(r, status);
        r.upstream.cache.forward = None;
    }

    /// Fails a request with `only-if-cached` (RFC 9111 section 5.2.1.7). Returns the status.
    fn unsatisfiable(&self, r: &mut Request) -> u16 {
        r.upstream.cache.why = Some(MissReason::OnlyIfCached);
        504
    }

    /// Returns true if the response is stored, should it be storable.
    pub fn leads(&self) -> bool {
        self.lead.is_some() || self.continuation.is_some()
    }

    /// Method of the forwarded request.
    pub(crate) fn method(&self, r: &Request, settings: &CacheSettings) -> Method {
        if self.asks_for_body(r, settings) { Method::Get } else { r.method() }
    }

    /// Returns true if `GET` is sent for `HEAD`.
    pub fn asks_for_body(&self, r: &Request, settings: &CacheSettings) -> bool {
        settings.convert_head && r.method() == Method::Head
    }
}

/// Next step of a lookup.
enum LookupStep {
    /// The cache has a response.
    Ready(CachedResponse),
    /// The request goes to the upstream server.
    Forward,
    /// The request ends with this status.
    Status(u16),
    /// The response is to be fetched for the cache.
    Fetch,
    /// Search again.
    Again,
}

fn forward_because(r: &mut Request, why: MissReason) -> LookupStep {
    r.upstream.cache.why = Some(why);
    LookupStep::Forward
}
