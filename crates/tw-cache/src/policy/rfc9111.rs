//! Interpretation of a response by RFC 9111 as a shared cache: storability (section 3), age (4.2.3) and freshness
//! (4.2.1, 4.2.2).

use tw_http::{Fields, HeaderName, Method, date, hop};

use super::directive::delta;
use super::{
    CacheControl, DELTA_MAX, Directives, Duties, IgnoredFields, Lifetime, NoStoreReason, Request, Response,
    Rules, StoreSettings, targeted, validators, vary,
};

/// Cache directives of a response, from `Cache-Control` or a targeted field.
pub(super) struct ResponseDirectives<'a> {
    pub(super) says: CacheControl<'a>,
    /// True for a targeted field, in which case `Expires` is ignored.
    is_targeted: bool,
}

impl<'a> ResponseDirectives<'a> {
    /// Directives of the first targeted field that is valid and not empty, which replaces `Cache-Control` and
    /// `Expires` (RFC 9213 section 2.2).
    pub(super) fn of(fields: &'a Fields, rules: &Rules, ignored: IgnoredFields) -> Self {
        if ignored.has(IgnoredFields::CACHE_CONTROL) {
            return Self { says: CacheControl::default(), is_targeted: false };
        }
        let targeted = rules.targeted.iter().find_map(|name| targeted::read(fields, name));
        if let Some(says) = targeted {
            return Self { says, is_targeted: true };
        }
        let mut says = CacheControl::default();
        if fields.has(HeaderName::CacheControl) {
            says = CacheControl::of(fields.get_all(b"Cache-Control"));
        }
        Self { says, is_targeted: false }
    }
}

/// Calls `then` with the cache directives of a request. `Pragma: no-cache` counts if there is no `Cache-Control` (RFC
/// 9111 section 5.4).
pub(super) fn with_request_directives<T>(
    request: &impl Request,
    then: impl FnOnce(&CacheControl<'_>) -> T,
) -> T {
    let mut directives = CacheControl::default();
    let mut is_there = false;
    request.each_field(b"Cache-Control", &mut |line| {
        is_there = true;
        // Lists of fields have no meaning in a request, so nothing of the line has to be kept.
        directives = merge(&directives, &CacheControl::of([line]));
    });
    if !is_there {
        request.each_field(b"Pragma", &mut |line| {
            if hop::has_element(line, b"no-cache") {
                directives.line(b"no-cache");
            }
        });
    }
    then(&directives)
}

/// Merges two lines of a request; of a repeated directive the first counts.
fn merge(first: &CacheControl<'_>, second: &CacheControl<'_>) -> CacheControl<'static> {
    CacheControl {
        directives: first.directives.and(second.directives),
        max_age: first.max_age.or(second.max_age),
        s_maxage: None,
        stale_while_revalidate: None,
        stale_if_error: first.stale_if_error.or(second.stale_if_error),
        max_stale: first.max_stale.or(second.max_stale),
        min_fresh: first.min_fresh.or(second.min_fresh),
        ..CacheControl::default()
    }
}

/// Section 3.
pub(super) fn may_store(
    request: &impl Request,
    response: &Response<'_>,
    now: i64,
    rules: &Rules,
    terms: &StoreSettings,
) -> Result<Lifetime, NoStoreReason> {
    if request.method() != Method::Get {
        return Err(NoStoreReason::Method);
    }
    // Section 3.3: nothing here puts parts together.
    if response.status == 206 && !response.is_slice {
        return Err(NoStoreReason::Partial);
    }
    // Section 5.2.1.5.
    if with_request_directives(request, |directives| directives.has(Directives::NO_STORE)) {
        return Err(NoStoreReason::RequestNoStore);
    }
    let control = ResponseDirectives::of(response.fields, rules, terms.ignored);
    allows(request, response, &control, terms)?;
    lifetime(response, &control, now, rules, terms)
}

/// Checks the directives that forbid storing or keeping the response.
pub(super) fn allows(
    request: &impl Request,
    response: &Response<'_>,
    control: &ResponseDirectives<'_>,
    terms: &StoreSettings,
) -> Result<(), NoStoreReason> {
    let says = &control.says;
    // Section 5.2.2.3: a cache that understands the status ignores `no-store`; one that does not, does not store the
    // response.
    if says.has(Directives::MUST_UNDERSTAND) {
        if !is_understood(response.status) {
            return Err(NoStoreReason::NotUnderstood);
        }
    } else if says.has(Directives::NO_STORE) {
        return Err(NoStoreReason::NoStore);
    }
    // Section 5.2.2.7; fields it names are left out (`exclude`).
    if says.has(Directives::PRIVATE) {
        return Err(NoStoreReason::Private);
    }
    let is_for_all = says.has(Directives::PUBLIC) || says.s_maxage.is_some();
    // Section 3.5.
    let mut has_authorization = false;
    request.each_field(b"Authorization", &mut |_| has_authorization = true);
    if has_authorization && !is_for_all && !says.has(Directives::MUST_REVALIDATE) {
        return Err(NoStoreReason::Authorization);
    }
    // Section 7.3 leaves this to the origin, which says `public` without thinking of cookies. A cookie of one client
    // never reaches another one, unless the directives exclude it from the stored response, or the operator allows it.
    let is_left_out = says.no_cache.has(b"Set-Cookie") || says.private.has(b"Set-Cookie");
    let sets_cookie =
        response.fields.has(HeaderName::SetCookie) && !terms.ignored.has(IgnoredFields::SET_COOKIE);
    if sets_cookie && !is_left_out {
        return Err(NoStoreReason::SetCookie);
    }
    if terms.ignored.has(IgnoredFields::VARY) { Ok(()) } else { vary::check(response.fields, vary::VARY_MAX) }
}

/// The lifetime of a response that may be stored: sections 4.2.1 to 4.2.4, 5.2.2.
pub(super) fn lifetime(
    response: &Response<'_>,
    control: &ResponseDirectives<'_>,
    now: i64,
    rules: &Rules,
    terms: &StoreSettings,
) -> Result<Lifetime, NoStoreReason> {
    let says = &control.says;
    let fields = response.fields;
    // Section 4.2.3. A response without a valid `Date` gets the time of its arrival (RFC 9110 section 6.6.1).
    let date = time(fields, HeaderName::Date).unwrap_or(now);
    let apparent_age = bounded(now.saturating_sub(date));
    let response_delay = bounded(now.saturating_sub(response.request_time));
    let initial_age = apparent_age.max(age(fields).saturating_add(response_delay)).min(DELTA_MAX);

    let validators = validators(response.status, fields);
    let has_validator = validators.etag.is_some() || validators.last_modified.is_some();
    let (fresh, why) = freshness(response, control, date, rules, terms);
    let is_no_cache = says.has(Directives::NO_CACHE);
    let fresh = match fresh {
        Some(seconds) => seconds,
        None if is_no_cache && is_default_cacheable(response.status) => 0,
        None => return Err(why),
    };
    // Section 4.2.4; 5.2.2.10 says that `s-maxage` has the meaning of `proxy-revalidate`.
    let never_stale = says.has(Directives::MUST_REVALIDATE)
        || says.has(Directives::PROXY_REVALIDATE)
        || says.s_maxage.is_some();
    let window = |seconds: Option<u32>| if never_stale || is_no_cache { 0 } else { seconds.unwrap_or(0) };
    let while_revalidate = window(says.stale_while_revalidate);
    let if_error = window(says.stale_if_error);
    // A response that can be used neither now nor later, nor be validated, is not worth storing.
    if is_no_cache && !has_validator {
        return Err(NoStoreReason::NoCache);
    }
    if fresh <= initial_age && !has_validator && while_revalidate == 0 && if_error == 0 {
        return Err(why);
    }
    let mut duties = if is_no_cache { Duties::VALIDATE } else { Duties::NONE };
    if never_stale {
        duties = duties | Duties::NEVER_STALE;
    }
    if says.has(Directives::IMMUTABLE) {
        duties = duties | Duties::IMMUTABLE;
    }
    Ok(Lifetime {
        responded: now,
        valid_until: now.saturating_add(i64::from(fresh) - i64::from(initial_age)),
        stale_while_revalidate_s: while_revalidate,
        stale_if_error_s: if_error,
        initial_age_s: initial_age,
        duties,
    })
}

/// Freshness lifetime (sections 4.2.1 and 4.2.2), counted from when the origin made the response, or the reason for
/// having none. `proxy_cache_valid` replaces the heuristic.
fn freshness(
    response: &Response<'_>,
    control: &ResponseDirectives<'_>,
    date: i64,
    rules: &Rules,
    terms: &StoreSettings,
) -> (Option<u32>, NoStoreReason) {
    let fields = response.fields;
    if let Some(seconds) = control.says.s_maxage.or(control.says.max_age) {
        return (Some(seconds), NoStoreReason::MaxAge);
    }
    let counts = !control.is_targeted && !terms.ignored.has(IgnoredFields::EXPIRES);
    if counts && fields.has(HeaderName::Expires) {
        // Section 5.3: an invalid date is in the past.
        let seconds =
            time(fields, HeaderName::Expires).map_or(0, |expires| bounded(expires.saturating_sub(date)));
        return (Some(seconds), NoStoreReason::Expired);
    }
    if let Some(seconds) = terms.valid_s {
        return ((seconds != 0).then_some(seconds), NoStoreReason::NoValidity);
    }
    let may_guess = is_default_cacheable(response.status) || control.says.has(Directives::PUBLIC);
    let modified = time(fields, HeaderName::LastModified).filter(|_| may_guess && rules.heuristic_max_s != 0);
    let guess =
        modified.map(|modified| (bounded(date.saturating_sub(modified)) / 10).min(rules.heuristic_max_s));
    (guess.filter(|&seconds| seconds != 0), NoStoreReason::NoValidity)
}

/// Non-negative seconds within the range of directives.
fn bounded(seconds: i64) -> u32 {
    u32::try_from(seconds.max(0)).unwrap_or(DELTA_MAX).min(DELTA_MAX)
}

/// Section 4.2: a time in another zone than GMT is none.
fn time(fields: &Fields, name: HeaderName) -> Option<i64> {
    date::parse_gmt(fields.get_known(name)?)
}

/// Section 5.1: of several values the first counts, and one that is no number does not.
fn age(fields: &Fields) -> u32 {
    let value = fields.get_known(HeaderName::Age).and_then(|value| hop::elements(value).next());
    value.and_then(delta).unwrap_or(0)
}

/// Statuses that are heuristically cacheable (RFC 9110 section 15.1).
fn is_default_cacheable(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Statuses whose meaning for caches is known: those of RFC 9110 that end an exchange, and are no part of another
/// response.
fn is_understood(status: u16) -> bool {
    matches!(status, 200..=206 | 300..=303 | 307 | 308 | 400..=417 | 421 | 422 | 426 | 500..=505)
}
