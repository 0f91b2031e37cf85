//! What a request does with its cache: it finds its response there, follows one that comes, or asks for one.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_base::Limit;
use tw_cache::format::Meta;
use tw_cache::policy::{self, ForwardReason, NoStoreReason, Reuse, Rules, Ruleset, ValidateReason, Window};
use tw_cache::{Claim, EntryState, Key};
use tw_http::range::ByteRange;
use tw_http::{Known, Method};
use tw_log::{Level, Text};

use super::Status;
use super::entry::{self, Stood};
use super::fill::{Begun, Continuation, Fill, Follower, Over};
use super::invalidate;
use super::miss_reason::Reason;
use super::open_entries::Entry;
use super::purge;
use super::purge_rule::PurgeTarget;
use super::settings::CacheSettings;
use super::times::begin_hit;
use super::zone::{Cache, CacheUser, Joined, Lead};
use crate::http::background_subrequest::{self, By, Copied};
use crate::http::body::{Body, FileSpan};
use crate::http::proxy::codec::UpstreamResponse;
use crate::http::proxy::retry_conditions::RetryOn;
use crate::http::request::{Request, Uri};

/// How long a response that is complete is waited for until it has its place.
const PLACING: Duration = Duration::from_secs(1);

pub(super) const LIMITS: &[Limit] = &[Limit::micros(
    "PLACING",
    PLACING.as_micros() as u64,
    "Time for which a request waits until a response that has just come is stored",
    "the upstream server is asked",
)];

/// What came of a visit.
pub(crate) enum LookupResult {
    /// There is no cache for this request.
    None,
    /// A response.
    Ready(Ready),
    /// The upstream server is to be asked.
    Ask(Box<Lookup>),
    /// There is nothing more to do: the status.
    Status(u16),
}

/// A response from a cache.
pub(crate) struct Ready {
    /// Its head, as the upstream server sent it.
    pub(crate) head: Head,
    /// Its body.
    pub(crate) body: Body,
}

/// The head of a response, wherever it is.
pub(crate) struct Head(Of);

/// Where it is.
enum Of {
    Entry(Rc<Entry>),
    Begun(Arc<Begun>),
}

impl Head {
    fn meta(&self) -> &Meta {
        match &self.0 {
            Of::Entry(entry) => &entry.meta,
            Of::Begun(begun) => &begun.meta,
        }
    }

    /// Writes it as if the upstream server had just sent it.
    pub(crate) fn tell(&self, answer: &mut UpstreamResponse) {
        let meta = self.meta();
        answer.clear();
        answer.status = meta.status;
        answer.status_line = meta.status_line.clone();
        answer.fields.clone_from(&meta.fields);
        answer.content_length = match &self.0 {
            Of::Entry(entry) => Some(entry.len),
            Of::Begun(begun) => begun.len,
        };
    }
}

/// A request that goes to the upstream server, as its cache sees it.
pub struct Lookup {
    pub(super) cache: Arc<Cache>,
    /// The text of the key.
    pub(super) text: Bytes,
    pub(super) key: Key,
    /// The key that was last looked for: this, or that of a variant.
    sought: Key,
    /// `Vary` of what has the key, if this request is for another variant.
    pub(super) other: Option<Bytes>,
    /// What may answer if the upstream server cannot.
    pub(super) stale: Option<Rc<Entry>>,
    /// The right to store; `None` if the response is not kept.
    pub(super) lead: Option<FillLeader>,
    /// When the upstream server was asked, in seconds since 1970.
    pub(super) asked: i64,
    /// The part of the content that the key names.
    pub(super) part: Option<ByteRange>,
    /// The fill that the response is to continue.
    pub(super) continuation: Option<Continuation>,
}

/// The right to store, and the place where others look for what comes.
pub(super) struct FillLeader {
    pub(super) lead: Lead,
    pub(super) claim: Claim,
}

impl Lookup {
    /// Asks the cache of `settings`, if there is one for this request. `usual` is the key where none is configured. Waits for
    /// the disk and for others who ask for the same.
    pub(crate) async fn begin(
        r: &mut Request,
        settings: &CacheSettings,
        usual: impl FnOnce(&Request, &mut Vec<u8>),
    ) -> LookupResult {
        let purge = match settings.purge.asks(r) {
            PurgeTarget::Forbidden => return LookupResult::Status(403),
            PurgeTarget::Purge(asked) => Some(asked),
            PurgeTarget::Nothing => None,
        };
        if purge.is_none() && !settings.keeps(r.method()) {
            return invalidate::begin(r, settings).await;
        }
        let cache = match settings.cache(r) {
            Ok(Some(cache)) => cache.clone(),
            Ok(None) => return LookupResult::None,
            Err(name) => {
                r.log(Level::Error, format_args!("cache \"{}\" not found", Text(&name)));
                return LookupResult::Status(500);
            }
        };
        let mut text = Vec::new();
        r.facts.upstream.cache.part.set(None);
        match &settings.key {
            Some(key) => key.eval(r, &mut text),
            None => usual(r, &mut text),
        }
        let part = r.facts.upstream.cache.part.get();
        let text = Bytes::from(text);
        let facts = &mut r.facts.upstream.cache;
        (facts.key, facts.cache, facts.follows) = (text.clone(), Some(cache.clone()), false);
        if let Some(asked) = purge {
            return LookupResult::Status(purge::purge(r, settings, &cache, &text, asked).await);
        }
        let Some(disk) = r.disk().cloned() else { return LookupResult::Status(500) };
        if cache.held(CacheUser::Request, &disk, |level, message| r.log(level, message)).await.is_err() {
            // Nobody knows what was purged: the origin server answers, and nothing is kept.
            return LookupResult::None;
        }
        let key = Key::of(&text);
        let asked = tw_rt::clock::unix().secs;
        let (other, stale, lead) = (None, None, None);
        let continuation = r.facts.upstream.cache.continuation.take();
        let mut lookup =
            Self { cache, text, key, sought: key, other, stale, lead, asked, part, continuation };
        if lookup.continuation.is_some() {
            return LookupResult::Ask(Box::new(lookup));
        }
        if std::mem::take(&mut r.facts.upstream.cache.is_anew) || settings.is_bypassed(r) {
            lookup.asks(r, Status::Bypass, ForwardReason::Bypass);
            if policy::wants_only_stored(&r.head, &settings.rules) {
                return lookup.unsatisfiable(r);
            }
            if lookup.may_lead(r, settings) {
                lookup.lead();
            }
            return LookupResult::Ask(Box::new(lookup));
        }
        lookup.look(r, settings).await
    }

    /// Looks for a response, and for who asks for it, until there is one, or it is this request's turn to ask.
    async fn look(mut self, r: &mut Request, settings: &CacheSettings) -> LookupResult {
        let until = tw_rt::clock::now() + settings.lock_timeout;
        let rules = &*settings.rules;
        let is_update = r.facts.upstream.cache.is_update;
        let only_stored = !is_update && policy::wants_only_stored(&r.head, rules);
        let mut missed = None;
        loop {
            let hit = begin_hit(r);
            let found = self.find(r, rules).await;
            // What is being fetched is younger.
            if found.as_ref().is_none_or(|(_, stood)| stood.is_claimed) {
                match self.just_came(r, rules).await {
                    // Between the two looks it may have got its place.
                    JustCame::Nothing if found.is_none() => {
                        let stored = self.stored();
                        if stored.is_some() && stored != missed {
                            missed = stored;
                            continue;
                        }
                    }
                    JustCame::Nothing => {}
                    JustCame::Ready(ready) => return LookupResult::Ready(ready),
                    JustCame::Stored => continue,
                }
            }
            let now = tw_rt::clock::unix().secs;
            match found {
                Some((entry, stood)) => match stood.of(&entry.meta, r, now, rules) {
                    Reuse::Fresh { age } => {
                        self.answers(r, Status::Hit);
                        r.facts.upstream.cache.hit = Some(hit);
                        return LookupResult::Ready(serve(r, entry, age));
                    }
                    Reuse::Accepted { age } => {
                        self.answers(r, Status::Stale);
                        return LookupResult::Ready(serve(r, entry, age));
                    }
                    Reuse::Stale { age, while_revalidate, .. } => {
                        if let Some(ready) = self.meanwhile(r, settings, &entry, age, while_revalidate) {
                            return LookupResult::Ready(ready);
                        }
                        self.asks(r, Status::Expired, ForwardReason::Stale);
                        self.remember(r, entry);
                    }
                    Reuse::Validate { because, .. } => {
                        let forward = match because {
                            ValidateReason::NoCache => ForwardReason::Stale,
                            _ if now >= entry.meta.lifetime.valid_until => ForwardReason::Stale,
                            _ => ForwardReason::Request,
                        };
                        self.asks(r, Status::Expired, forward);
                        self.remember(r, entry);
                    }
                    Reuse::Unsatisfiable => {
                        self.asks(r, Status::Expired, ForwardReason::Stale);
                        return self.unsatisfiable(r);
                    }
                },
                None => {
                    let is_variant = self.other.is_some();
                    let forward = if is_variant { ForwardReason::VaryMiss } else { ForwardReason::UriMiss };
                    self.asks(r, Status::Miss, forward);
                    if only_stored {
                        return self.unsatisfiable(r);
                    }
                    let counted =
                        self.cache.index().map(|index| index.count_use(self.key, super::seconds(now)));
                    let uses = counted.map_or(1, |counted| {
                        self.cache.push_out(r, counted.pushed_out);
                        u64::from(counted.uses)
                    });
                    if uses < settings.min_uses {
                        r.facts.upstream.cache.why = Some(Reason::MinUses);
                        return LookupResult::Ask(Box::new(self));
                    }
                }
            }
            if only_stored {
                return self.unsatisfiable(r);
            }
            if self.is_beyond(r, settings) {
                r.facts.upstream.cache.why = Some(Reason::RangeOffset);
                return LookupResult::Ask(Box::new(self));
            }
            if !self.may_lead(r, settings) {
                return LookupResult::Ask(Box::new(self));
            }
            if !settings.lock {
                self.lead();
                return LookupResult::Ask(Box::new(self));
            }
            let Some(fill) = self.try_lead(settings) else { return LookupResult::Ask(Box::new(self)) };
            let now = tw_rt::clock::now();
            // What cannot stall is waited for all the same no longer than until the next look.
            let stalls_at = fill.stalls_at(settings.lock_age).unwrap_or(now + settings.lock_age);
            let patience = until.min(stalls_at).saturating_duration_since(now);
            match self.follow(r, rules, &fill, patience).await {
                Followed::Ready(ready) => return LookupResult::Ready(ready),
                // What others were refused for this, it may be, too: they would wait for each other.
                Followed::Again if settings.is_rfc9111() && r.head.has(Known::Authorization) => {
                    r.facts.upstream.cache.why = Some(NoStoreReason::Authorization.into());
                    return LookupResult::Ask(Box::new(self));
                }
                Followed::Again => {}
                Followed::Alone => {
                    r.facts.upstream.cache.why = Some(NoStoreReason::Private.into());
                    return LookupResult::Ask(Box::new(self));
                }
                Followed::Late if tw_rt::clock::now() < until => {}
                Followed::Late => {
                    r.facts.upstream.cache.why = Some(Reason::LockTimeout);
                    return LookupResult::Ask(Box::new(self));
                }
                Followed::Gone => return LookupResult::Status(499),
            }
        }
    }

    /// The entry of this request, whichever variant it is.
    async fn find(&mut self, r: &mut Request, rules: &Rules) -> Option<(Rc<Entry>, Stood)> {
        (self.other, self.sought) = (None, self.key);
        let of =
            entry::Wanted { cache: &self.cache, key: self.key, main: self.key, text: &self.text, since: 0 };
        let (entry, stood) = entry::find(r, &of).await?;
        if entry.meta.vary.is_empty() {
            return Some((entry, stood));
        }
        let variant = policy::variant(self.key, &entry.meta.vary, &r.head, rules);
        if entry.meta.variant == Some(variant) {
            return Some((entry, stood));
        }
        (self.other, self.sought) = (Some(entry.meta.vary.clone()), variant);
        let of = entry::Wanted { key: variant, since: stood.since, ..of };
        let (entry, stood) = entry::find(r, &of).await?;
        // What it varies with has changed since.
        (entry.meta.variant == Some(variant)).then_some((entry, stood))
    }

    /// The number of the entry that was last sought, if it is there.
    fn stored(&self) -> Option<u64> {
        let found = self.cache.index()?.peek(self.sought)?;
        (found.holds == EntryState::File).then_some(found.sequence)
    }

    /// A response that is complete and not yet stored: it answers, or is waited for, a moment, until it has its place.
    async fn just_came(&self, r: &mut Request, rules: &Rules) -> JustCame {
        let fill = self.cache.fill(self.key).and_then(|fill| fill.youngest_whole());
        let Some(fill) = fill else { return JustCame::Nothing };
        let Some(begun) = fill.whole() else { return JustCame::Nothing };
        let now = tw_rt::clock::unix().secs;
        let used = policy::may_use(&begun.meta.lifetime, &r.head, now, rules);
        if matches!(used, Reuse::Fresh { .. } | Reuse::Accepted { .. })
            && let Some(ready) = self.join(r, rules, &fill, begun)
        {
            return JustCame::Ready(ready);
        }
        let wire = r.wire().clone();
        match tokio::time::timeout(PLACING, wire.unless_gone(pin!(fill.placed()))).await {
            Ok(Ok(())) => JustCame::Stored,
            Ok(Err(_)) | Err(_) => JustCame::Nothing,
        }
    }

    /// Whether what answers this request may be kept, as far as the request tells: nobody waits for what is not.
    fn may_lead(&self, r: &mut Request, settings: &CacheSettings) -> bool {
        if !settings.is_rfc9111() {
            return true;
        }
        let why = match () {
            () if self.method(r, settings) != Method::Get => NoStoreReason::Method,
            () if policy::wants_nothing_stored(&r.head, &settings.rules) => NoStoreReason::RequestNoStore,
            () => return true,
        };
        r.facts.upstream.cache.why = Some(why.into());
        false
    }

    /// Takes the right to store, whoever else has it: the youngest is kept.
    fn lead(&mut self) {
        let lead = self.cache.lead(self.key, tw_rt::clock::now());
        self.take(lead);
    }

    fn take(&mut self, lead: Lead) {
        self.asked = tw_rt::clock::unix().secs;
        let claim = self.cache.index().map(|index| index.claim(self.key, super::seconds(self.asked)));
        self.lead = claim.map(|claim| FillLeader { lead, claim });
    }

    /// Takes the right to store, or says who has it.
    fn try_lead(&mut self, settings: &CacheSettings) -> Option<Arc<Fill>> {
        match self.cache.join(self.key, tw_rt::clock::now(), settings.lock_age) {
            Joined::Lead(lead) => {
                self.take(lead);
                None
            }
            Joined::Follow(fill) => Some(fill),
        }
    }

    /// What is no longer valid, if it is to be used while somebody fetches it anew.
    fn meanwhile(
        &self,
        r: &mut Request,
        settings: &CacheSettings,
        entry: &Rc<Entry>,
        age: u32,
        window: Window,
    ) -> Option<Ready> {
        let is_allowed = match window {
            Window::Open => true,
            Window::Closed => settings.use_stale.has(RetryOn::UPDATING),
            Window::Forbidden => false,
        };
        if !is_allowed || r.facts.upstream.cache.is_update {
            return None;
        }
        // What the response itself allows needs no other word (RFC 5861 section 3).
        let may_update = settings.background_update || settings.is_rfc9111() && window == Window::Open;
        let status = if self.cache.fill(self.key).is_some() {
            Status::Updating
        } else if may_update && update(r) {
            Status::Stale
        } else {
            return None;
        };
        self.answers(r, status);
        Some(serve(r, entry.clone(), age))
    }

    fn remember(&mut self, r: &mut Request, entry: Rc<Entry>) {
        let facts = &mut r.facts.upstream.cache;
        let fields = &entry.meta.fields;
        let found = policy::validators(entry.meta.status, fields);
        let last_modified = found.last_modified.and_then(|_| fields.share(b"Last-Modified"));
        facts.last_modified = last_modified.unwrap_or_default();
        facts.etag = found.etag.and_then(|_| fields.share(b"ETag")).unwrap_or_default();
        self.stale = Some(entry);
    }

    /// Whether a range begins so far behind that the whole response is not fetched for it.
    fn is_beyond(&self, r: &Request, settings: &CacheSettings) -> bool {
        let Some(max) = settings.max_range_offset else { return false };
        r.head.field_known(Known::Range).is_some_and(|range| begins_behind(range, max))
    }

    // DIFF(nginx): who waits gets the response as it comes.
    /// Waits for a response that somebody else has asked for.
    async fn follow(&self, r: &mut Request, rules: &Rules, fill: &Arc<Fill>, patience: Duration) -> Followed {
        let wire = r.wire().clone();
        let is_head = r.method() == Method::Head;
        let waited = tokio::time::timeout(patience, wire.unless_gone(pin!(fill.begun(is_head)))).await;
        let begun = match waited {
            Err(_) => return Followed::Late,
            Ok(Err(_)) => return Followed::Gone,
            Ok(Ok(Err(Over::Private))) => return Followed::Alone,
            Ok(Ok(Err(Over::Abandoned))) => return Followed::Again,
            Ok(Ok(Ok(begun))) => begun,
        };
        match self.join(r, rules, fill, begun) {
            Some(ready) => Followed::Ready(ready),
            None => Followed::Alone,
        }
    }

    /// Gets what comes, unless that is for others.
    fn join(&self, r: &mut Request, rules: &Rules, fill: &Arc<Fill>, begun: Arc<Begun>) -> Option<Ready> {
        let meta = &begun.meta;
        let of_this = || policy::variant(self.key, &meta.vary, &r.head, rules);
        if meta.variant.is_some_and(|variant| variant != of_this()) {
            return None;
        }
        let now = tw_rt::clock::unix().secs;
        let may = policy::may_use(&meta.lifetime, &r.head, now, rules);
        if rules.reading == Ruleset::Rfc9111 && !matches!(may, Reuse::Fresh { .. } | Reuse::Accepted { .. }) {
            return None;
        }
        let disk = r.disk()?.clone();
        fill.share();
        let body = match begun.len {
            Some(0) => Body::Empty,
            len => Body::Pull(Box::new(Follower::new(fill.clone(), 0, len, disk)?)),
        };
        self.cache.zone.counts.collapsed.add(1);
        let facts = &mut r.facts.upstream.cache;
        (facts.status, facts.is_collapsed) = (Some(Status::Hit), facts.forward.is_some());
        facts.follows = true;
        facts.age = Some(policy::current_age(&meta.lifetime, now));
        facts.valid_until = Some(meta.lifetime.valid_until);
        Some(Ready { head: Head(Of::Begun(begun)), body })
    }

    pub(super) fn say(&self, r: &mut Request, status: Status) {
        r.facts.upstream.cache.status = Some(status);
    }

    /// The upstream server is asked, or would be.
    pub(super) fn asks(&self, r: &mut Request, status: Status, forward: ForwardReason) {
        self.say(r, status);
        r.facts.upstream.cache.forward = Some(forward);
    }

    /// What is kept answers, and nobody is asked for this request.
    pub(super) fn answers(&self, r: &mut Request, status: Status) {
        self.say(r, status);
        r.facts.upstream.cache.forward = None;
    }

    /// Nothing answers, and the client will not have the upstream server asked (RFC 9111 section 5.2.1.7).
    fn unsatisfiable(&self, r: &mut Request) -> LookupResult {
        r.facts.upstream.cache.why = Some(Reason::OnlyIfCached);
        LookupResult::Status(504)
    }

    /// Whether the response is to be kept, should it be one that may.
    pub fn leads(&self) -> bool {
        self.lead.is_some() || self.continuation.is_some()
    }

    /// The method that the upstream server is asked with.
    pub(super) fn method(&self, r: &Request, settings: &CacheSettings) -> Method {
        if self.asks_for_body(r, settings) { Method::Get } else { r.method() }
    }

    /// Whether `GET` is sent for `HEAD`.
    pub fn asks_for_body(&self, r: &Request, settings: &CacheSettings) -> bool {
        settings.convert_head && r.method() == Method::Head
    }

    /// What the upstream server is to be asked with in the place of what the client has said; `None` if its own conditions and
    /// ranges go on to it.
    pub fn conditions(&self, r: &Request, settings: &CacheSettings) -> Option<Conditions> {
        if !self.leads() {
            return None;
        }
        if let Some(Continuation { from, validator, .. }) = &self.continuation {
            let range = Bytes::from(format!("bytes={from}-"));
            return Some(Conditions { range, if_range: validator.clone(), ..Conditions::default() });
        }
        let facts = &r.facts.upstream.cache;
        Some(match settings.validates() {
            true => Conditions {
                since: facts.last_modified.clone(),
                none_match: facts.etag.clone(),
                ..Conditions::default()
            },
            false => Conditions::default(),
        })
    }
}

/// Conditions of a cache for an upstream server: whether a stored response has changed, or the rest of one. Empty for nothing.
#[derive(Default)]
pub struct Conditions {
    since: Bytes,
    none_match: Bytes,
    range: Bytes,
    if_range: Bytes,
}

impl Conditions {
    /// The fields, with their values; an empty one is left out.
    pub fn fields(&self) -> [(&'static [u8], &[u8]); 4] {
        [
            (b"If-Modified-Since", &self.since),
            (b"If-None-Match", &self.none_match),
            (b"Range", &self.range),
            (b"If-Range", &self.if_range),
        ]
    }
}

/// Sends the range request that continues a fill, beside `r`, which waits for it. Dropped if that is not possible.
pub(super) fn continue_fill(r: &mut Request, continuation: Continuation) {
    // A request with a body may change something.
    if r.method() != Method::Get {
        return;
    }
    let uri = Uri { path: r.uri.path.clone(), args: r.uri.args.clone() };
    let origin = r.state.origin;
    let prepare = |r: &mut Request| {
        r.state.origin = origin;
        r.facts.upstream.cache.continuation = Some(continuation);
    };
    // Too many beside others: the fill is left to what it has.
    let _ = background_subrequest::run_by(r, uri, Copied::Nothing, By::Parent, prepare);
}

/// Fetches a response anew, beside the request for it. Whether that was possible.
fn update(r: &mut Request) -> bool {
    let uri = Uri { path: r.uri.path.clone(), args: r.uri.args.clone() };
    // With the target as the client sent it: that is the key.
    let origin = r.state.origin;
    let prepare = |r: &mut Request| {
        r.state.origin = origin;
        r.facts.upstream.cache.is_update = true;
    };
    background_subrequest::run_by(r, uri, Copied::Nothing, By::Parent, prepare).is_ok()
}

pub(super) fn serve(r: &mut Request, entry: Rc<Entry>, age: u32) -> Ready {
    let facts = &mut r.facts.upstream.cache;
    (facts.age, facts.valid_until) = (Some(age), Some(entry.meta.lifetime.valid_until));
    let body = match &entry.body {
        Some(body) if body.is_empty() => Body::Empty,
        Some(body) => Body::Bytes(body.clone()),
        None => Body::File(FileSpan {
            file: entry.file.clone(),
            offset: u64::from(entry.meta.header_size),
            len: entry.len,
        }),
    };
    Ready { head: Head(Of::Entry(entry)), body }
}

/// What came of a response that is complete.
enum JustCame {
    /// There is none, or its place takes too long.
    Nothing,
    Ready(Ready),
    /// It has its place: look again.
    Stored,
}

enum Followed {
    Ready(Ready),
    /// Who asked is gone: look again.
    Again,
    /// The response is nobody else's.
    Alone,
    Late,
    /// The client is gone.
    Gone,
}

/// Whether a range begins behind `max`, or counts from the end (nginx: ngx_http_upstream_cache_check_range).
fn begins_behind(range: &[u8], max: u64) -> bool {
    let Some((unit, rest)) = range.split_at_checked(6) else { return false };
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return false;
    }
    let rest = rest.trim_ascii_start();
    if rest.first() == Some(&b'-') {
        return true;
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    tw_http::num::parse(&rest[..digits]).is_none_or(|start| start >= max)
}
