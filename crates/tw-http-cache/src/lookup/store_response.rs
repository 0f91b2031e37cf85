//! Response of the upstream server after a lookup: a stored one replaces it, or it is stored while the client gets it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_cache::Claim;
use tw_cache::format::{self, Meta, Tags, WrittenBy as MadeBy};
use tw_cache::policy::{self, IgnoredFields, NoStoreReason, Response, Reuse, Rules, Ruleset, Window};
use tw_disk::Disk;
use tw_http::range::{ByteRange, ContentRange};
use tw_http::{Fields, HeaderName, Method, RequestHead, date};
use tw_log::Level;

use super::cached_response::CachedResponse;
use super::forward::{Lookup, StorePermit};
use super::permission::forwarded_method;
use crate::entry::open_entries::OpenEntry;
use crate::fill::{BodyEnd, Delivery, Fill, FillHead, FillRefusal, Follower};
use crate::guard::background::FetchPurpose;
use crate::guard::quota::QuotaClaim;
use crate::settings::CacheSettings;
use crate::store::NewEntry;
use crate::time::seconds;
use crate::writer::feed::{self, Feed};
use crate::writer::{BodyOrigin, FillLog, FillTask, FillWriter, HeadRefresh};
use crate::zone::Cache;
use tw_request::body::Body;
use tw_request::cache_info::UpstreamCacheStatus;
use tw_request::header_names::IgnoredHeaders;
use tw_request::miss_reason::MissReason;
use tw_request::request::Request;
use tw_request::retry_conditions::RetryOn;

/// Response that is stored while it is received.
pub enum StoreDecision {
    /// The response becomes an entry.
    Entry(Box<EntryResponse>),
    /// The response is the rest of a fill.
    Rest(RestResponse),
}

/// Response that is the rest of a fill.
pub struct RestResponse {
    cache: Arc<Cache>,
    delivery: Delivery,
    stall_age: Option<Duration>,
}

/// Response that becomes an entry.
pub struct EntryResponse {
    cache: Arc<Cache>,
    leading: StorePermit,
    meta: Box<Meta>,
    disk: Disk,
    quota: Option<QuotaClaim>,
    /// Time without progress after which the rest of the body is requested anew.
    stall_age: Option<Duration>,
}

impl Lookup {
    /// Returns the stored response that replaces this one of the upstream server.
    ///
    /// # Errors
    /// Nothing does: the lookup goes on.
    pub fn replace_response(
        mut self: Box<Self>,
        r: &mut Request,
        settings: &CacheSettings,
        ignored: IgnoredHeaders,
    ) -> Result<CachedResponse, Box<Self>> {
        let status = r.upstream.answer.status;
        // What is stored is better than an error, and nobody waits for this response.
        if status >= 500 && self.purpose.is_some_and(|purpose| purpose != FetchPurpose::Update) {
            self.lead = None;
        }
        if status == 304
            && settings.validates()
            && let Some(stale) = self.stale.clone()
            && let Some(leading) = self.lead.take()
        {
            let (ready, refused) = self.revalidate(r, settings, ignored_fields(ignored), stale, leading);
            let report = &mut r.upstream.cache.report;
            report.why = refused.or(report.why);
            report.serve(UpstreamCacheStatus::Revalidated, ready.facts);
            return Ok(ready);
        }
        let failure = RetryOn::of_status(status);
        // By nginx's rules a response may replace that of a server that fails (stale-if-error), not one of a server that responds.
        if !settings.is_rfc9111() && !settings.use_stale.has(failure) {
            return Err(self);
        }
        match self.replace_failure(r, settings, failure) {
            Some(ready) => Ok(ready),
            None => Err(self),
        }
    }

    /// Returns the stale response that may be served after this failure of the upstream server.
    pub fn replace_failure(
        &self,
        r: &mut Request,
        settings: &CacheSettings,
        failure: RetryOn,
    ) -> Option<CachedResponse> {
        let entry = self.stale.clone().filter(|_| failure != RetryOn::NONE)?;
        let now = tw_rt::clock::unix().secs;
        let rules = &*settings.rules;
        let (age, window) = match policy::may_use(&entry.meta.lifetime, &r.head, now, rules) {
            Reuse::Stale { age, if_error, .. } | Reuse::Validate { age, if_error, .. } => (age, if_error),
            Reuse::Fresh { age } | Reuse::Accepted { age } => (age, Window::Closed),
            Reuse::Unsatisfiable => return None,
        };
        let may = match window {
            // RFC 5861 section 4 means failures, not each status that may be named here.
            Window::Open if settings.is_rfc9111() => failure.is_failure() || settings.use_stale.has(failure),
            Window::Open => true,
            Window::Closed => settings.use_stale.has(failure),
            Window::Forbidden => false,
        };
        if !may {
            return None;
        }
        let ready = CachedResponse::of_entry(entry, age);
        r.upstream.cache.report.serve(UpstreamCacheStatus::Stale, ready.facts);
        Some(ready)
    }

    /// Updates an entry that the upstream server has validated (304). Returns its response, and the reason why the update is not
    /// stored, if there is one.
    fn revalidate(
        &self,
        r: &Request,
        settings: &CacheSettings,
        ignored: IgnoredFields,
        stale: Rc<OpenEntry>,
        leading: StorePermit,
    ) -> (CachedResponse, Option<MissReason>) {
        let now = tw_rt::clock::unix().secs;
        let rules = &*settings.rules;
        let mut meta = stale.meta.clone();
        let StorePermit { lead, claim } = leading;
        // A variant is stored as a variant again.
        let claim = match meta.variant.filter(|_| self.other.is_some()) {
            Some(variant) => claim.variant(variant, seconds(now)).ok(),
            None => Some(claim),
        };
        let update = &r.upstream.answer.fields;
        let freshened = if policy::is_about(&meta.etag, update, rules) {
            policy::merge(&mut meta.fields, update, rules);
            add_date(&mut meta.fields, now, rules);
            let (status, fields) = (meta.status, &meta.fields);
            let is_slice = self.part.is_some();
            let response = Response { status, fields, request_time: self.request_time, is_slice };
            let terms = settings.terms(status, ignored);
            let is_same = policy::vary(fields, rules, ignored).is_ok_and(|vary| vary == *meta.vary);
            match policy::freshen(&r.head, &response, update, now, rules, &terms) {
                Ok(_) if settings.is_rfc9111() && !is_same => Err(MissReason::AnotherVary),
                freshened => freshened.map_err(MissReason::from),
            }
        } else {
            Err(MissReason::AnotherEtag)
        };
        let lifetime = match freshened {
            Ok(lifetime) => lifetime,
            Err(why) => {
                // An entry that may not be stored any more is removed, unless that is because of this client only.
                if settings.is_rfc9111() && why != NoStoreReason::Authorization.into() {
                    let key = claim.as_ref().map_or(self.key, Claim::key);
                    let removed_entry =
                        self.cache.index().and_then(|i| i.remove_if_sequence(key, stale.sequence));
                    self.cache.remove_evicted(r, removed_entry);
                }
                return (CachedResponse::of_entry(Rc::new(stale.with(meta)), 0), Some(why));
            }
        };
        meta.lifetime = lifetime;
        if settings.is_rfc9111() {
            meta.date = meta.fields.get_known(HeaderName::Date).and_then(date::parse);
            meta.last_modified = meta.fields.get_known(HeaderName::LastModified).and_then(date::parse);
            meta.etag = meta.fields.share(b"ETag").unwrap_or_default();
        }
        if let (Some(claim), Some(disk)) = (claim, r.disk().cloned()) {
            let cache = self.cache.clone();
            let begun = FillHead { meta: meta.clone(), len: Some(stale.len) };
            lead.fill.refresh(begun, &stale.file, stale.body_offset());
            HeadRefresh { cache, meta: Box::new(meta.clone()), was: stale.clone(), lead, claim, disk }
                .start(r);
        }
        let age = policy::current_age(&lifetime, now);
        (CachedResponse::of_entry(Rc::new(stale.with(meta)), age), None)
    }

    // DIFF(nginx): a response that is stored is not buffered for its client, so buffering need not be on.
    /// Decides whether the response of the upstream server is stored.
    pub fn decide_store(
        mut self,
        r: &mut Request,
        settings: &CacheSettings,
        ignored: IgnoredHeaders,
    ) -> Option<StoreDecision> {
        let stall_age = settings.lock.then_some(settings.lock_age);
        if let Some(continuation) = self.continuation.take() {
            let answer = &r.upstream.answer;
            let delivery = continuation.accept(answer.status, &answer.fields);
            if delivery.is_none() {
                r.log(
                    Level::Warn,
                    format_args!("upstream sent what does not continue a response that broke off or stalled"),
                );
            }
            return delivery.map(|delivery| {
                StoreDecision::Rest(RestResponse { cache: self.cache.clone(), delivery, stall_age })
            });
        }
        let leading = self.lead.take()?;
        match self.prepare_entry(r, settings, ignored_fields(ignored), leading, stall_age) {
            Ok(entry) => {
                let report = &mut r.upstream.cache.report;
                (report.is_stored, report.valid_until) = (true, Some(entry.meta.lifetime.valid_until));
                Some(StoreDecision::Entry(Box::new(entry)))
            }
            Err((leading, why)) => {
                r.upstream.cache.report.why = Some(why);
                // The response to another request may be storable.
                let is_of_request = why == NoStoreReason::Authorization.into();
                leading.lead.give_up(if is_of_request {
                    FillRefusal::Abandoned
                } else {
                    FillRefusal::Private
                });
                None
            }
        }
    }

    fn prepare_entry(
        &self,
        r: &Request,
        settings: &CacheSettings,
        ignored: IgnoredFields,
        leading: StorePermit,
        stall_age: Option<Duration>,
    ) -> Result<EntryResponse, (StorePermit, MissReason)> {
        let answer = &r.upstream.answer;
        if settings.skips_storing(r) {
            return Err((leading, MissReason::NoCacheSet));
        }
        let now = tw_rt::clock::unix().secs;
        let response = Response {
            status: answer.status,
            fields: &answer.fields,
            request_time: self.request_time,
            is_slice: self.part.is_some(),
        };
        if answer.status == 206 && self.part.is_some_and(|part| !has_range(&answer.fields, part)) {
            return Err((leading, NoStoreReason::Partial.into()));
        }
        let terms = settings.terms(answer.status, ignored);
        let rules = &*settings.rules;
        let forwarded = ForwardedRequest { method: forwarded_method(r, settings), head: &r.head };
        let lifetime = match policy::may_store(&forwarded, &response, now, rules, &terms) {
            Ok(lifetime) => lifetime,
            Err(why) => return Err((leading, why.into())),
        };
        let vary = match policy::vary(&answer.fields, rules, ignored) {
            Ok(vary) => Bytes::from(vary),
            Err(why) => return Err((leading, why.into())),
        };
        let tags = settings.tags(r);
        let Some(tags) = Tags::of(tags.iter().map(Vec::as_slice)) else {
            return Err((leading, MissReason::TooManyTags));
        };
        let quota = settings.quota(r);
        if let (Some(quota), Some(size)) = (&quota, answer.content_length)
            && self.cache.is_above_quota(quota, size)
        {
            return Err((leading, MissReason::Quota));
        }
        let StorePermit { lead, claim } = leading;
        // As another variant if it varies with the same fields; in the place of the entry if it varies with others.
        // Beside the entry if nobody knows which variant that is.
        let is_beside = self.purpose == Some(FetchPurpose::Hedge) && self.other.is_none() && !vary.is_empty();
        let other = if is_beside { Some(&vary) } else { self.other.as_ref() };
        let is_other = other.is_some_and(|other| *other == vary);
        let has_variant = is_other || !vary.is_empty();
        let variant = has_variant.then(|| policy::variant(self.key, &vary, &r.head, rules));
        let claim = match variant.filter(|_| is_other) {
            Some(variant) => match claim.variant(variant, seconds(now)) {
                Ok(variant) => variant,
                Err(_) => return Err((StorePermit { lead, claim }, MissReason::Purged)),
            },
            None => claim,
        };
        let leading = StorePermit { lead, claim };
        let Some(disk) = r.disk().cloned() else { return Err((leading, MissReason::NoThreadPool)) };
        let answer = &r.upstream.answer;
        let mut fields = answer.fields.clone();
        policy::exclude(&mut fields, rules, ignored);
        add_date(&mut fields, now, rules);
        // Boxed once: the tasks and writers that the entry passes through are moved several times.
        let mut meta = Box::new(Meta {
            key: self.key,
            variant: variant.filter(|_| !vary.is_empty()),
            key_text: self.text.clone(),
            lifetime,
            date: fields.get_known(HeaderName::Date).and_then(date::parse),
            last_modified: fields.get_known(HeaderName::LastModified).and_then(date::parse),
            etag: fields.share(b"ETag").unwrap_or_default(),
            status: answer.status,
            status_line: answer.status_line.clone(),
            fields,
            vary,
            tags,
            sequence: leading.claim.sequence(),
            header_size: 0,
            body_len: None,
            body_sum: Some(0),
            writer: MadeBy::Tailwater,
        });
        meta.header_size = match format::place(&meta) {
            Ok(size) => size,
            Err(why) => return Err((leading, why.into())),
        };
        Ok(EntryResponse { cache: self.cache.clone(), leading, meta, disk, quota, stall_age })
    }
}

impl StoreDecision {
    /// Stores a response whose body is complete.
    pub fn store_whole(self, r: &Request, body: Bytes) {
        match self {
            Self::Entry(entering) => {
                let len = body.len() as u64;
                let fill = entering.begin(Some(len));
                fill.push(body);
                fill.end(BodyEnd::Whole, None);
                entering.writer(r, Some(len)).start(None);
            }
            Self::Rest(RestResponse { mut delivery, .. }) => {
                delivery.push(body);
                delivery.end(BodyEnd::Whole, None);
            }
        }
    }

    /// Stores a response while its body is received from `origin`, at `rate` bytes a second at most. Returns the body for the
    /// client.
    pub fn store_stream(self, r: &Request, origin: Box<dyn BodyOrigin>, rate: Option<u64>) -> Body {
        match self {
            Self::Entry(entering) => {
                let len = r.upstream.answer.content_length;
                let fill = entering.begin(len);
                if let Some(rate) = rate {
                    fill.expect_rate(rate);
                }
                let body = Follower::new(fill, 0, len, entering.disk.clone());
                entering.writer(r, len).start(Some(origin));
                // No byte has been received yet, so it begins at offset 0.
                body.map_or(Body::Empty, |body| Body::Pull(Box::new(body.reporting())))
            }
            Self::Rest(RestResponse { cache, delivery, stall_age }) => {
                let feed = Feed::new(delivery.fill().clone(), delivery, origin, stall_age);
                let fill_log = FillLog(r.generation().clone(), r.route.plan);
                feed::deliver(cache, feed, &r.client().event_loop, fill_log);
                Body::Empty
            }
        }
    }
}

impl EntryResponse {
    fn begin(&self, len: Option<u64>) -> Arc<Fill> {
        let StorePermit { lead, claim } = &self.leading;
        lead.begin(FillHead { meta: (*self.meta).clone(), len }, claim);
        lead.fill.clone()
    }

    fn writer(self, r: &Request, len: Option<u64>) -> FillWriter {
        let Self { cache, leading: StorePermit { lead, claim }, meta, disk, quota, stall_age } = self;
        let task = FillTask {
            cache,
            len,
            lead,
            disk,
            quota,
            event_loop: r.client().event_loop.clone(),
            generation: r.generation().clone(),
            plan: r.route.plan,
            stall_age,
        };
        FillWriter { entry: NewEntry { meta, claim, copied: None }, task }
    }
}

/// Request as it was forwarded.
struct ForwardedRequest<'a> {
    method: Method,
    head: &'a RequestHead,
}

impl policy::Request for ForwardedRequest<'_> {
    fn method(&self) -> Method {
        self.method
    }

    fn each_field(&self, name: &[u8], see: &mut dyn FnMut(&[u8])) {
        self.head.each_field(name, see);
    }
}

/// Adds the missing `Date` of a response (RFC 9110 section 6.6.1).
fn add_date(fields: &mut Fields, now: i64, rules: &Rules) {
    if rules.reading == Ruleset::Rfc9111 && !fields.has(HeaderName::Date) {
        fields.append_copy(HeaderName::Date, &date::format(now));
    }
}

/// Converts the ignored fields to those of the policy.
fn ignored_fields(these: IgnoredHeaders) -> IgnoredFields {
    [
        (IgnoredHeaders::ACCEL_EXPIRES, IgnoredFields::X_ACCEL_EXPIRES),
        (IgnoredHeaders::EXPIRES, IgnoredFields::EXPIRES),
        (IgnoredHeaders::CACHE_CONTROL, IgnoredFields::CACHE_CONTROL),
        (IgnoredHeaders::SET_COOKIE, IgnoredFields::SET_COOKIE),
        (IgnoredHeaders::VARY, IgnoredFields::VARY),
    ]
    .into_iter()
    .filter(|(here, _)| these.has(*here))
    .fold(IgnoredFields::NONE, |all, (_, one)| all | one)
}

/// Returns true if the fields say that the response is this range of the content.
fn has_range(fields: &Fields, part: ByteRange) -> bool {
    fields
        .get_known(HeaderName::ContentRange)
        .and_then(ContentRange::parse)
        .is_some_and(|said| said.is_all_of(part))
}
