//! Lookup of one request as a state machine. It only reads the request; its result is one value.
//!
//! ```text
//! Search ─► Candidate ─── fresh, or stale and allowed ──► Done: a response of the cache
//!  ▲  │         └─ stale ──► Fetch ─► Follow ───────────► Done: the response of another request
//!  │  └───► Missed ─────────►  │        │
//!  │                           └────────┼───────────────► Done: the request is forwarded, with the permit to store
//!  └─────────── again ──────────────────┘
//! ```

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tw_cache::policy::{self, ForwardReason, NoStoreReason, Reuse, ValidateReason, Window};
use tw_cache::{EntryState, Key};
use tw_disk::Account;
use tw_http::HeaderName;

use super::background::{BackgroundFetch, UpdateStart, update_in_background};
use super::cached_response::CachedResponse;
use super::follow::{FillJoiner, FollowOutcome, RecentFill};
use super::forward::{Lookup, StorePermit};
use super::hedge::{HedgeWinner, LookupHedge};
use super::permission::{check_storing, is_range_beyond_max, may_fetch_for_others};
use super::refresh_ahead::{FreshEntry, refresh_ahead};
use super::search::{self, EntryQuery, FoundState, SearchOutcome};
use super::target::LookupTarget;
use crate::entry::open_entries::OpenEntry;
use crate::fill::{Continuation, Fill, take_continuation};
use crate::guard::background::{FetchPermit, FetchPurpose};
use crate::settings::CacheSettings;
use crate::time::seconds;
use crate::zone::stats::begin_hit;
use crate::zone::{Cache, FillLead, JoinOutcome};
use tw_request::cache_info::{CacheReport, PendingHit, UpstreamCacheStatus};
use tw_request::miss_reason::MissReason;
use tw_request::request::Request;
use tw_request::retry_conditions::RetryOn;

/// Result of a lookup, with all that the request is told about it.
pub(crate) struct LookupOutcome {
    pub(crate) result: LookupResult,
    pub(crate) report: CacheReport,
    /// Disk operations of the lookup, if there were any.
    pub(crate) account: Option<Account>,
    /// Member that had the response, if that is not the owner of the key.
    pub(crate) other_member: Option<Arc<Cache>>,
}

/// Result of a lookup.
pub(crate) enum LookupResult {
    /// A response from the cache.
    Ready(CachedResponse),
    /// The request goes to the upstream server.
    Forward(Box<Lookup>),
    /// The request ends with this status.
    Status(u16),
}

/// State of a lookup.
enum LookupState {
    /// The entry, or a fill that is complete, is searched for.
    Search,
    Candidate(CandidateEntry),
    /// There is no entry.
    Missed,
    /// The response is to be fetched for the cache.
    Fetch,
    /// Another request fetches the response.
    Follow(Arc<Fill>),
    Done(LookupDecision),
}

/// Entry that was found.
struct CandidateEntry {
    entry: Rc<OpenEntry>,
    state: FoundState,
    hit: PendingHit,
}

/// Decision about a request.
enum LookupDecision {
    Serve(CachedResponse),
    Forward,
    Status(u16),
}

/// Lookup in progress.
pub(crate) struct LookupRun<'a> {
    r: &'a Request,
    settings: &'a CacheSettings,
    target: LookupTarget,
    report: CacheReport,
    account: Option<Account>,
    other_member: Option<Arc<Cache>>,
    /// Key of the last search: the main key or that of a variant.
    searched: Key,
    /// `Vary` of the entry with the key, if this request is for another variant.
    other: Option<Bytes>,
    /// Stale entry that may be served if the upstream server fails.
    stale: Option<Rc<OpenEntry>>,
    /// Permit to store.
    lead: Option<StorePermit>,
    /// Time of the request to the upstream server, in seconds since 1970.
    request_time: i64,
    continuation: Option<Continuation>,
    /// Purpose of a background fetch, and its permit until there is one to store.
    purpose: Option<FetchPurpose>,
    permit: Option<FetchPermit>,
    hedge: Option<LookupHedge>,
    /// Sequence number of an entry that was stored between two searches, and not found.
    missed: Option<u64>,
    /// True if the client wants a stored response, or none.
    only_stored: bool,
    /// End of waiting for other requests.
    until: Instant,
}

impl<'a> LookupRun<'a> {
    pub(crate) fn new(r: &'a Request, settings: &'a CacheSettings, target: LookupTarget) -> Self {
        Self {
            r,
            settings,
            searched: target.key,
            target,
            report: CacheReport::default(),
            account: None,
            other_member: None,
            other: None,
            stale: None,
            lead: None,
            request_time: tw_rt::clock::unix().secs,
            continuation: None,
            purpose: None,
            permit: None,
            hedge: None,
            missed: None,
            only_stored: policy::wants_only_stored(&r.head, &settings.rules),
            until: tw_rt::clock::now() + settings.lock_timeout,
        }
    }

    /// Runs the lookup to its end. `is_anew` is true if the stored response is to be replaced. Waits for the disk, and for other
    /// requests that fetch the same response.
    pub(crate) async fn run(mut self, is_anew: bool) -> LookupOutcome {
        let mut state = self.begin(is_anew).await;
        let decision = loop {
            state = match state {
                LookupState::Search => self.search().await,
                LookupState::Candidate(candidate_entry) => self.use_entry(candidate_entry),
                LookupState::Missed => self.miss(),
                LookupState::Fetch => self.fetch(),
                LookupState::Follow(fill) => self.follow(&fill).await,
                LookupState::Done(decision) => break decision,
            };
        };
        let result = match decision {
            LookupDecision::Serve(ready) => LookupResult::Ready(ready),
            LookupDecision::Status(status) => LookupResult::Status(status),
            LookupDecision::Forward => {
                let LookupTarget { cache, text, key, part, .. } = self.target;
                let Self { other, stale, lead, request_time, continuation, purpose, .. } = self;
                LookupResult::Forward(Box::new(Lookup {
                    cache,
                    text,
                    key,
                    other,
                    stale,
                    lead,
                    request_time,
                    part,
                    continuation,
                    purpose,
                }))
            }
        };
        let Self { report, account, other_member, .. } = self;
        LookupOutcome { result, report, account, other_member }
    }

    /// First state: requests that the server itself has made, and those that do not want the stored response, do not search.
    async fn begin(&mut self, is_anew: bool) -> LookupState {
        self.continuation = take_continuation(self.r);
        if self.continuation.is_some() {
            return LookupState::Done(LookupDecision::Forward);
        }
        if let Some(fetch) = BackgroundFetch::take(self.r) {
            (self.purpose, self.permit) = (Some(fetch.purpose), Some(fetch.permit));
            self.other = fetch.other;
            if let Some(entry) = fetch.entry {
                self.keep_stale(entry);
            }
            if let Some(lead) = fetch.lead {
                self.report.forward(UpstreamCacheStatus::Expired, ForwardReason::Stale);
                self.hold(lead);
                return LookupState::Done(LookupDecision::Forward);
            }
        }
        if is_anew || self.settings.is_bypassed(self.r) {
            self.report.forward(UpstreamCacheStatus::Bypass, ForwardReason::Bypass);
            if self.only_stored {
                return self.unsatisfiable();
            }
            if self.check_storing() {
                let lead = self.target.cache.lead(self.target.key, tw_rt::clock::now());
                self.hold(lead);
            }
            return LookupState::Done(LookupDecision::Forward);
        }
        let is_update = self.r.upstream.cache.is_update;
        self.only_stored &= !is_update;
        let LookupTarget { whole, cache, key, .. } = &self.target;
        if let Some(other) = whole.elsewhere(cache, *key).cloned()
            && let Some(ready) = self.search_elsewhere(other).await
        {
            return LookupState::Done(LookupDecision::Serve(ready));
        }
        let LookupTarget { cache, key, .. } = &self.target;
        let may_hedge = !is_update
            && !self.only_stored
            && cache.hedges()
            && may_fetch_for_others(self.r, self.settings, cache, *key);
        self.hedge = may_hedge.then(|| LookupHedge::new(self.settings));
        LookupState::Search
    }

    /// Finds a fresh response in a member of the cache that had this key before its present owner.
    async fn search_elsewhere(&mut self, other: Arc<Cache>) -> Option<CachedResponse> {
        let owner = std::mem::replace(&mut self.target.cache, other);
        let hit = self.begin_hit();
        if let SearchOutcome::Entry(entry, state) = self.find_entry().await {
            let now = tw_rt::clock::unix().secs;
            let usage = state.usage(&entry.meta, self.r, now, &self.settings.rules);
            if matches!(usage, Reuse::Fresh { .. } | Reuse::Accepted { .. })
                && let LookupState::Done(LookupDecision::Serve(ready)) =
                    self.use_entry(CandidateEntry { entry, state, hit })
            {
                self.other_member = Some(self.target.cache.clone());
                return Some(ready);
            }
        }
        self.target.cache = owner;
        None
    }

    /// Searches for the entry, and for a fill that is younger.
    async fn search(&mut self) -> LookupState {
        let hit = self.begin_hit();
        let candidate_entry = match self.find_entry().await {
            SearchOutcome::Entry(entry, state) => Some(CandidateEntry { entry, state, hit }),
            SearchOutcome::Nothing => None,
            SearchOutcome::Hedged(winner) => return self.join_hedge(winner),
        };
        // A fill in progress is younger than the entry.
        if candidate_entry.as_ref().is_none_or(|candidate_entry| candidate_entry.state.is_claimed) {
            match self.joiner().find_recent().await {
                // The fill may have been stored between the two searches.
                RecentFill::Nothing => {
                    let sequence =
                        candidate_entry.as_ref().map(|candidate_entry| candidate_entry.entry.sequence);
                    let stored = self.stored();
                    if stored.is_some() && stored != sequence && stored != self.missed {
                        self.missed = stored;
                        return LookupState::Search;
                    }
                }
                RecentFill::Ready(ready) => return self.serve(UpstreamCacheStatus::Hit, ready),
                RecentFill::Stored => return LookupState::Search,
            }
        }
        candidate_entry.map_or(LookupState::Missed, LookupState::Candidate)
    }

    /// Finds the entry of this request, main or variant.
    async fn find_entry(&mut self) -> SearchOutcome {
        let (r, rules) = (self.r, &*self.settings.rules);
        let LookupTarget { cache, text, key, .. } = &self.target;
        (self.other, self.searched) = (None, *key);
        let of = EntryQuery { cache, key: *key, main: *key, text, since: 0 };
        let hedge = self.hedge.as_ref();
        let (entry, state) = match search::find(r, &of, None, hedge, &mut self.account).await {
            SearchOutcome::Entry(entry, state) => (entry, state),
            other => return other,
        };
        if entry.meta.vary.is_empty() {
            return SearchOutcome::Entry(entry, state);
        }
        let variant = policy::variant(*key, &entry.meta.vary, &r.head, rules);
        if entry.meta.variant == Some(variant) {
            return SearchOutcome::Entry(entry, state);
        }
        (self.other, self.searched) = (Some(entry.meta.vary.clone()), variant);
        let of = EntryQuery { key: variant, since: state.since, ..of };
        match search::find(r, &of, self.other.as_ref(), hedge, &mut self.account).await {
            // The fields that it varies with have changed since.
            SearchOutcome::Entry(entry, _) if entry.meta.variant != Some(variant) => SearchOutcome::Nothing,
            other => other,
        }
    }

    /// Joins the fill that began to answer before the disk did, unless its response is not for this request.
    fn join_hedge(&mut self, winner: HedgeWinner) -> LookupState {
        self.report.forward(UpstreamCacheStatus::Miss, ForwardReason::Miss);
        let Some(ready) = self.joiner().join(&winner.fill, winner.begun) else { return LookupState::Search };
        self.report.why = Some(MissReason::Hedged);
        self.serve(UpstreamCacheStatus::Miss, ready)
    }

    /// Serves an entry, or keeps it for a failure of the upstream server or for validation.
    fn use_entry(&mut self, candidate_entry: CandidateEntry) -> LookupState {
        let CandidateEntry { entry, state, hit } = candidate_entry;
        let (r, settings) = (self.r, self.settings);
        let now = tw_rt::clock::unix().secs;
        self.confirm_quota(&entry);
        match state.usage(&entry.meta, r, now, &settings.rules) {
            Reuse::Fresh { age } => {
                let fresh = FreshEntry { entry: &entry, state, other: self.other.as_ref() };
                refresh_ahead(r, settings, &self.target, fresh, now);
                (self.report.forward, self.report.hit) = (None, Some(hit));
                self.serve(UpstreamCacheStatus::Hit, CachedResponse::of_entry(entry, age))
            }
            Reuse::Accepted { age } => {
                self.report.forward = None;
                self.serve(UpstreamCacheStatus::Stale, CachedResponse::of_entry(entry, age))
            }
            Reuse::Stale { age, while_revalidate, .. } => {
                if let Some(status) = self.stale_status(while_revalidate) {
                    self.report.forward = None;
                    return self.serve(status, CachedResponse::of_entry(entry, age));
                }
                self.report.forward(UpstreamCacheStatus::Expired, ForwardReason::Stale);
                self.keep_stale(entry);
                LookupState::Fetch
            }
            Reuse::Validate { because, .. } => {
                let forward = match because {
                    ValidateReason::NoCache => ForwardReason::Stale,
                    _ if now >= entry.meta.lifetime.valid_until => ForwardReason::Stale,
                    _ => ForwardReason::Request,
                };
                self.report.forward(UpstreamCacheStatus::Expired, forward);
                self.keep_stale(entry);
                LookupState::Fetch
            }
            Reuse::Unsatisfiable => {
                self.report.forward(UpstreamCacheStatus::Expired, ForwardReason::Stale);
                self.unsatisfiable()
            }
        }
    }

    /// Counts the entry in the quota of its owner, if that was not done.
    fn confirm_quota(&self, entry: &OpenEntry) {
        let Some(quota) = self.settings.quota(self.r) else { return };
        let LookupTarget { cache, key, .. } = &self.target;
        let key = entry.meta.variant.filter(|_| self.other.is_some()).unwrap_or(*key);
        let above = cache.confirm_quota(key, entry, &quota);
        cache.remove_evicted(self.r, above);
    }

    /// Returns the status with which a stale entry is served while another request updates it, if that is allowed.
    fn stale_status(&mut self, window: Window) -> Option<UpstreamCacheStatus> {
        let (r, settings) = (self.r, self.settings);
        let is_allowed = match window {
            Window::Open => true,
            Window::Closed => settings.use_stale.has(RetryOn::UPDATING),
            Window::Forbidden => false,
        };
        if !is_allowed || r.upstream.cache.is_update {
            return None;
        }
        if self.target.cache.fill(self.target.key).is_some() {
            return Some(UpstreamCacheStatus::Updating);
        }
        // A permission of the response itself is enough (RFC 5861 section 3).
        let may_update = settings.background_update || settings.is_rfc9111() && window == Window::Open;
        if !may_update {
            return None;
        }
        match update_in_background(r, &self.target.cache, settings) {
            UpdateStart::Impossible => return None,
            UpdateStart::TooMany => self.report.why = Some(MissReason::BackgroundMax),
            UpdateStart::Started => {}
        }
        Some(UpstreamCacheStatus::Stale)
    }

    /// Counts a request without an entry. The response is fetched for the cache from `cache_min_uses` requests on.
    fn miss(&mut self) -> LookupState {
        let is_variant = self.other.is_some();
        let forward = if is_variant { ForwardReason::VaryMiss } else { ForwardReason::UriMiss };
        self.report.forward(UpstreamCacheStatus::Miss, forward);
        if self.only_stored {
            return self.unsatisfiable();
        }
        let LookupTarget { cache, key, .. } = &self.target;
        let now = seconds(tw_rt::clock::unix().secs);
        let uses = cache.index().map_or(1, |index| {
            let counted = index.count_use(*key, now);
            cache.remove_evicted(self.r, counted.pushed_out);
            u64::from(counted.uses)
        });
        if uses < self.settings.min_uses {
            return self.forward_because(MissReason::MinUses);
        }
        LookupState::Fetch
    }

    /// Takes the permit to store, or finds the request that has it.
    fn fetch(&mut self) -> LookupState {
        if self.only_stored {
            return self.unsatisfiable();
        }
        if is_range_beyond_max(self.r, self.settings) {
            return self.forward_because(MissReason::RangeOffset);
        }
        if !self.check_storing() {
            return LookupState::Done(LookupDecision::Forward);
        }
        let (LookupTarget { cache, key, .. }, now) = (&self.target, tw_rt::clock::now());
        let lead = match self.settings.lock {
            // The youngest response is kept.
            false => cache.lead(*key, now),
            true => match cache.join(*key, now, self.settings.lock_age) {
                JoinOutcome::Follow(fill) => return LookupState::Follow(fill),
                JoinOutcome::Lead(lead) => lead,
            },
        };
        self.hold(lead);
        LookupState::Done(LookupDecision::Forward)
    }

    /// Waits for the response of the request that fetches it, until the time is over.
    async fn follow(&mut self, fill: &Arc<Fill>) -> LookupState {
        let (settings, now) = (self.settings, tw_rt::clock::now());
        // A fill that cannot stall is waited for until the next check at most.
        let stalls_at = fill.stalls_at(settings.lock_age).unwrap_or(now + settings.lock_age);
        let timeout = self.until.min(stalls_at).saturating_duration_since(now);
        match self.joiner().follow(fill, timeout).await {
            FollowOutcome::Ready(ready) => self.serve(UpstreamCacheStatus::Hit, ready),
            // Others were refused a stored response for this field, and this request may be, too: they would wait for each other.
            FollowOutcome::Again if settings.is_rfc9111() && self.r.head.has(HeaderName::Authorization) => {
                self.forward_because(NoStoreReason::Authorization.into())
            }
            FollowOutcome::Again => LookupState::Search,
            FollowOutcome::Alone => self.forward_because(NoStoreReason::Private.into()),
            FollowOutcome::Late if tw_rt::clock::now() < self.until => LookupState::Search,
            FollowOutcome::Late => self.forward_because(MissReason::LockTimeout),
            FollowOutcome::Gone => LookupState::Done(LookupDecision::Status(499)),
        }
    }

    /// Begins a hit with the turn in which the cache is searched.
    fn begin_hit(&self) -> PendingHit {
        let hit = begin_hit(self.r);
        PendingHit { jobs: hit.jobs + self.account.as_ref().map_or(0, Account::jobs), ..hit }
    }

    fn joiner(&self) -> FillJoiner<'_> {
        let LookupTarget { cache, key, .. } = &self.target;
        FillJoiner { r: self.r, cache, key: *key, rules: &self.settings.rules }
    }

    /// Sequence number of the entry with the last searched key, if it is stored.
    fn stored(&self) -> Option<u64> {
        let entry = self.target.cache.index()?.peek(self.searched)?;
        (entry.holds == EntryState::File).then_some(entry.sequence)
    }

    /// Returns true if the request and the disk permit the response to be stored.
    fn check_storing(&mut self) -> bool {
        let LookupTarget { cache, key, .. } = &self.target;
        match check_storing(self.r, self.settings, cache, *key) {
            Ok(()) => true,
            Err(why) => {
                self.report.why = Some(why);
                false
            }
        }
    }

    fn hold(&mut self, mut lead: FillLead) {
        lead.permit = self.permit.take();
        self.request_time = tw_rt::clock::unix().secs;
        let LookupTarget { cache, key, .. } = &self.target;
        let claim = cache.index().map(|index| index.claim(*key, seconds(self.request_time)));
        self.lead = claim.map(|claim| StorePermit { lead, claim });
    }

    fn keep_stale(&mut self, entry: Rc<OpenEntry>) {
        let fields = &entry.meta.fields;
        let validators = policy::validators(entry.meta.status, fields);
        let last_modified = validators.last_modified.and_then(|_| fields.share(b"Last-Modified"));
        self.report.last_modified = last_modified.unwrap_or_default();
        self.report.etag = validators.etag.and_then(|_| fields.share(b"ETag")).unwrap_or_default();
        self.stale = Some(entry);
    }

    fn serve(&mut self, status: UpstreamCacheStatus, ready: CachedResponse) -> LookupState {
        self.report.serve(status, ready.facts);
        LookupState::Done(LookupDecision::Serve(ready))
    }

    fn forward_because(&mut self, why: MissReason) -> LookupState {
        self.report.why = Some(why);
        LookupState::Done(LookupDecision::Forward)
    }

    /// Fails a request with `only-if-cached` (RFC 9111 section 5.2.1.7).
    fn unsatisfiable(&mut self) -> LookupState {
        self.report.why = Some(MissReason::OnlyIfCached);
        LookupState::Done(LookupDecision::Status(504))
    }
}
