//! What becomes of the response to a request that found nothing: something that is kept answers in its place, or it is kept
//! itself while the client gets it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_cache::Claim;
use tw_cache::format::{self, Meta, Tags, WrittenBy as MadeBy};
use tw_cache::policy::{self, IgnoredFields, NoStoreReason, Response, Reuse, Rules, Ruleset, Window};
use tw_disk::Disk;
use tw_http::range::{ByteRange, ContentRange};
use tw_http::{Fields, Known, Method, RequestHead, date};
use tw_log::Level;

use super::Status;
use super::feed::{self, Feed};
use super::fill::{Begun, Delivery, Ended, Fill, Follower, Over};
use super::lookup::{FillLeader, Lookup, Ready, serve};
use super::miss_reason::Reason;
use super::open_entries::Entry;
use super::settings::CacheSettings;
use super::writer::{Origin, ProgressReport, Refresh, Writer};
use super::zone::Cache;
use crate::http::body::Body;
use crate::http::proxy::ProxySettings;
use crate::http::proxy::retry_conditions::{self, RetryOn};
use crate::http::request::Request;

/// A response that goes into a cache while it comes.
pub(crate) enum StoreDecision {
    /// As an entry.
    Entry(Box<Entering>),
    /// As the rest of a fill.
    Rest(Continuing),
}

/// A response that is the rest of a fill.
pub(crate) struct Continuing {
    cache: Arc<Cache>,
    delivery: Delivery,
    stall_age: Option<Duration>,
}

/// A response that becomes an entry.
pub(crate) struct Entering {
    cache: Arc<Cache>,
    leading: FillLeader,
    meta: Meta,
    disk: Disk,
    /// After how long without progress its body is asked for anew.
    stall_age: Option<Duration>,
}

impl Lookup {
    /// What answers in the place of this response of the upstream server.
    ///
    /// # Errors
    /// Nothing does: the visit goes on.
    pub(crate) fn instead_of(
        mut self: Box<Self>,
        r: &mut Request,
        proxy: &ProxySettings,
        status: u16,
    ) -> Result<Ready, Box<Self>> {
        let settings = &proxy.cache;
        if status == 304
            && settings.validates()
            && let Some(stale) = self.stale.clone()
            && let Some(leading) = self.lead.take()
        {
            self.say(r, Status::Revalidated);
            return Ok(self.revalidated(r, settings, ignored(proxy.response.ignored), stale, leading));
        }
        let failure = RetryOn::of_status(status);
        // By nginx's rules a response may say that it is used in the place of a server that fails, not of one that answers.
        if !settings.is_rfc9111() && !settings.use_stale.has(failure) {
            return Err(self);
        }
        match self.instead(r, settings, failure) {
            Some(ready) => Ok(ready),
            None => Err(self),
        }
    }

    /// What may answer in the place of an upstream server that has failed like this.
    pub(crate) fn instead(
        &self,
        r: &mut Request,
        settings: &CacheSettings,
        failure: RetryOn,
    ) -> Option<Ready> {
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
        self.say(r, Status::Stale);
        Some(serve(r, entry, age))
    }

    /// The upstream server says that an entry is still valid: so it is from now on.
    fn revalidated(
        &self,
        r: &mut Request,
        settings: &CacheSettings,
        ignored: IgnoredFields,
        stale: Rc<Entry>,
        leading: FillLeader,
    ) -> Ready {
        let now = tw_rt::clock::unix().secs;
        let rules = &*settings.rules;
        let mut meta = stale.meta.clone();
        let FillLeader { lead, claim } = leading;
        // What was found beside the entry of the key is stored there again.
        let claim = match meta.variant.filter(|_| self.other.is_some()) {
            Some(variant) => claim.variant(variant, super::seconds(now)).ok(),
            None => Some(claim),
        };
        let update = &r.facts.upstream.answer.fields;
        let freshened = if policy::is_about(&meta.etag, update, rules) {
            policy::merge(&mut meta.fields, update, rules);
            date_it(&mut meta.fields, now, rules);
            let (status, fields) = (meta.status, &meta.fields);
            let is_slice = self.part.is_some();
            let response = Response { status, fields, request_time: self.asked, is_slice };
            let terms = settings.terms(status, ignored);
            let is_same = policy::vary(fields, rules, ignored).is_ok_and(|vary| vary == *meta.vary);
            match policy::freshen(&r.head, &response, update, now, rules, &terms) {
                Ok(_) if settings.is_rfc9111() && !is_same => Err(Reason::AnotherVary),
                freshened => freshened.map_err(Reason::from),
            }
        } else {
            Err(Reason::AnotherEtag)
        };
        let lifetime = match freshened {
            Ok(lifetime) => lifetime,
            Err(why) => {
                r.facts.upstream.cache.why = Some(why);
                // What may not be kept any more goes; what may only not be kept because of this client stays.
                if settings.is_rfc9111() && why != NoStoreReason::Authorization.into() {
                    let key = claim.as_ref().map_or(self.key, Claim::key);
                    let gone = self.cache.index().and_then(|i| i.remove_if_sequence(key, stale.sequence));
                    self.cache.push_out(r, gone);
                }
                return serve(r, Rc::new(stale.with(meta)), 0);
            }
        };
        meta.lifetime = lifetime;
        if settings.is_rfc9111() {
            meta.date = meta.fields.get_known(Known::Date).and_then(date::parse);
            meta.last_modified = meta.fields.get_known(Known::LastModified).and_then(date::parse);
            meta.etag = meta.fields.share(b"ETag").unwrap_or_default();
        }
        if let (Some(claim), Some(disk)) = (claim, r.disk().cloned()) {
            let cache = self.cache.clone();
            lead.fill.refresh(Begun { meta: meta.clone(), len: Some(stale.len) }, stale.file.file());
            Refresh { cache, meta: meta.clone(), was: stale.clone(), lead, claim, disk }.start(r);
        }
        let age = policy::current_age(&lifetime, now);
        serve(r, Rc::new(stale.with(meta)), age)
    }

    // DIFF(nginx): what is kept is not buffered for its client, so that need not be on.
    /// Whether the response of the upstream server is to be kept.
    pub(crate) fn keep(mut self, r: &mut Request, proxy: &ProxySettings) -> Option<StoreDecision> {
        let stall_age = proxy.cache.lock.then_some(proxy.cache.lock_age);
        if let Some(continuation) = self.continuation.take() {
            let answer = &r.facts.upstream.answer;
            let delivery = continuation.accept(answer.status, &answer.fields);
            if delivery.is_none() {
                r.log(
                    Level::Warn,
                    format_args!("upstream sent what does not continue a response that broke off or stalled"),
                );
            }
            return delivery.map(|delivery| {
                StoreDecision::Rest(Continuing { cache: self.cache.clone(), delivery, stall_age })
            });
        }
        let leading = self.lead.take()?;
        match self.judge(r, proxy, leading) {
            Ok((leading, meta, disk)) => {
                let cache = self.cache.clone();
                Some(StoreDecision::Entry(Box::new(Entering { cache, leading, meta, disk, stall_age })))
            }
            Err((leading, why)) => {
                r.facts.upstream.cache.why = Some(why);
                // Another request may be answered with what can be stored.
                let is_of_request = why == NoStoreReason::Authorization.into();
                leading.lead.give_up(if is_of_request { Over::Abandoned } else { Over::Private });
                None
            }
        }
    }

    fn judge(
        &self,
        r: &mut Request,
        proxy: &ProxySettings,
        leading: FillLeader,
    ) -> Result<(FillLeader, Meta, Disk), (FillLeader, Reason)> {
        let settings = &proxy.cache;
        let answer = &r.facts.upstream.answer;
        if settings.is_not_kept(r) {
            return Err((leading, Reason::NoCacheSet));
        }
        let now = tw_rt::clock::unix().secs;
        let ignored = ignored(proxy.response.ignored);
        let response = Response {
            status: answer.status,
            fields: &answer.fields,
            request_time: self.asked,
            is_slice: self.part.is_some(),
        };
        if answer.status == 206 && self.part.is_some_and(|part| !is_of(&answer.fields, part)) {
            return Err((leading, NoStoreReason::Partial.into()));
        }
        let terms = settings.terms(answer.status, ignored);
        let rules = &*settings.rules;
        let asked = Asked { method: self.method(r, settings), head: &r.head };
        let lifetime = match policy::may_store(&asked, &response, now, rules, &terms) {
            Ok(lifetime) => lifetime,
            Err(why) => return Err((leading, why.into())),
        };
        let vary = match policy::vary(&answer.fields, rules, ignored) {
            Ok(vary) => Bytes::from(vary),
            Err(why) => return Err((leading, why.into())),
        };
        let tags = settings.tags(r);
        let Some(tags) = Tags::of(tags.iter().map(Vec::as_slice)) else {
            return Err((leading, Reason::TooManyTags));
        };
        let variant = policy::variant(self.key, &vary, &r.head, rules);
        let FillLeader { lead, claim } = leading;
        // Beside what differs in the same fields; in its place, if it differs in others.
        let claim = match &self.other {
            Some(other) if *other == vary => match claim.variant(variant, super::seconds(now)) {
                Ok(variant) => variant,
                Err(_) => return Err((FillLeader { lead, claim }, Reason::Purged)),
            },
            _ => claim,
        };
        let leading = FillLeader { lead, claim };
        let Some(disk) = r.disk().cloned() else { return Err((leading, Reason::NoThreadPool)) };
        let answer = &r.facts.upstream.answer;
        let mut fields = answer.fields.clone();
        policy::exclude(&mut fields, rules, ignored);
        date_it(&mut fields, now, rules);
        let mut meta = Meta {
            key: self.key,
            variant: (!vary.is_empty()).then_some(variant),
            key_text: self.text.clone(),
            lifetime,
            date: fields.get_known(Known::Date).and_then(date::parse),
            last_modified: fields.get_known(Known::LastModified).and_then(date::parse),
            etag: fields.share(b"ETag").unwrap_or_default(),
            status: answer.status,
            status_line: answer.status_line.clone(),
            fields,
            vary,
            tags,
            sequence: leading.claim.sequence(),
            header_size: 0,
            body_len: None,
            writer: MadeBy::Tailwater,
        };
        meta.header_size = match format::place(&meta) {
            Ok(size) => size,
            Err(why) => return Err((leading, why.into())),
        };
        let facts = &mut r.facts.upstream.cache;
        (facts.is_stored, facts.valid_until) = (true, Some(meta.lifetime.valid_until));
        Ok((leading, meta, disk))
    }
}

impl StoreDecision {
    /// All of the body is there.
    pub(crate) fn whole(self, r: &Request, body: Bytes) {
        match self {
            Self::Entry(entering) => {
                let len = body.len() as u64;
                let fill = entering.begin(Some(len));
                fill.push(body);
                fill.end(Ended::Whole, None);
                entering.writer(r).start(None);
            }
            Self::Rest(Continuing { mut delivery, .. }) => {
                delivery.push(body);
                delivery.end(Ended::Whole, None);
            }
        }
    }

    /// The body comes from `origin`, at `rate` bytes a second at most; the result is for the client.
    pub(crate) fn while_it_comes(self, r: &Request, origin: Box<dyn Origin>, rate: Option<u64>) -> Body {
        match self {
            Self::Entry(entering) => {
                let len = r.facts.upstream.answer.content_length;
                let fill = entering.begin(len);
                if let Some(rate) = rate {
                    fill.expect_rate(rate);
                }
                let body = Follower::new(fill, 0, len, entering.disk.clone());
                entering.writer(r).start(Some(origin));
                // Nothing has come yet, so it begins where the response does.
                body.map_or(Body::Empty, |body| Body::Pull(Box::new(body.reporting())))
            }
            Self::Rest(Continuing { cache, delivery, stall_age }) => {
                let feed = Feed::new(delivery.fill().clone(), delivery, origin, stall_age);
                let telling = ProgressReport(r.generation().clone(), r.route.plan);
                feed::deliver(cache, feed, &r.client().home, telling);
                Body::Empty
            }
        }
    }
}

impl Entering {
    fn begin(&self, len: Option<u64>) -> Arc<Fill> {
        let FillLeader { lead, claim } = &self.leading;
        lead.begin(Begun { meta: self.meta.clone(), len }, claim);
        lead.fill.clone()
    }

    fn writer(self, r: &Request) -> Writer {
        let Self { cache, leading: FillLeader { lead, claim }, meta, disk, stall_age } = self;
        Writer {
            cache,
            meta,
            lead,
            claim,
            disk,
            home: r.client().home.clone(),
            generation: r.generation().clone(),
            plan: r.route.plan,
            stall_age,
        }
    }
}

/// A request as it was sent on.
struct Asked<'a> {
    method: Method,
    head: &'a RequestHead,
}

impl policy::Request for Asked<'_> {
    fn method(&self) -> Method {
        self.method
    }

    fn each_field(&self, name: &[u8], see: &mut dyn FnMut(&[u8])) {
        self.head.each_field(name, see);
    }
}

/// A response without `Date` is as old as it is here (RFC 9110 section 6.6.1).
fn date_it(fields: &mut Fields, now: i64, rules: &Rules) {
    if rules.reading == Ruleset::Rfc9111 && !fields.has(Known::Date) {
        fields.append_copy(Known::Date, &date::format(now));
    }
}

/// The fields that have no meaning here, as the policy has them.
fn ignored(these: retry_conditions::IgnoredHeaders) -> IgnoredFields {
    [
        (retry_conditions::IgnoredHeaders::EXPIRES_HERE, IgnoredFields::X_ACCEL_EXPIRES),
        (retry_conditions::IgnoredHeaders::EXPIRES, IgnoredFields::EXPIRES),
        (retry_conditions::IgnoredHeaders::CACHE_CONTROL, IgnoredFields::CACHE_CONTROL),
        (retry_conditions::IgnoredHeaders::SET_COOKIE, IgnoredFields::SET_COOKIE),
        (retry_conditions::IgnoredHeaders::VARY, IgnoredFields::VARY),
    ]
    .into_iter()
    .filter(|(here, _)| these.has(*here))
    .fold(IgnoredFields::NONE, |all, (_, one)| all | one)
}

/// Whether a response of these fields is this part of the content.
fn is_of(fields: &Fields, part: ByteRange) -> bool {
    fields
        .get_known(Known::ContentRange)
        .and_then(ContentRange::parse)
        .is_some_and(|said| said.is_all_of(part))
}
