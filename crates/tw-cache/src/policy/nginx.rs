//! nginx's interpretation of a response: line by line, in the order received; later lines can change the lifetime
//! (`ngx_http_upstream_process_cache_control` and its neighbours).
//!
//! | line | what it does |
//! |---|---|
//! | `X-Accel-Expires: N`, `@N` | the lifetime; takes back what `Cache-Control` and `Expires` refused |
//! | `X-Accel-Expires: 0` | refuses for good |
//! | `Cache-Control: no-cache`, `no-store`, `private`, `max-age=0` | refuses, until `X-Accel-Expires` |
//! | `Cache-Control: s-maxage`, else `max-age` | the lifetime, unless `X-Accel-Expires` has set one |
//! | `Expires` | the lifetime, unless there is one; refuses if it is past or no date, until one comes |
//! | `Set-Cookie`, `Vary: *` | refuse for good |
//! | `stale-while-revalidate`, `stale-if-error` | how long afterwards |
//!
//! A targeted field (`proxy_cache_targeted`, RFC 9213) that can be read stands for all lines of `Cache-Control` and
//! `Expires`, at the place of its first line. nginx has none.
//!
//! If none of them says anything, `proxy_cache_valid` does. Directives are found anywhere in the line, as nginx finds
//! them, also inside other words and quotes: `no-cache="Set-Cookie"` refuses. What the request says does not matter,
//! `Authorization` included.

use tw_http::{Fields, HeaderName, date, num};

use super::vary::{self, NGINX_VARY_MAX};
use super::{
    CacheControl, Directives, Duties, IgnoredFields, Lifetime, NoStoreReason, Response, Rules, StoreSettings,
    targeted,
};

pub(super) fn may_store(
    response: &Response<'_>,
    now: i64,
    rules: &Rules,
    terms: &StoreSettings,
) -> Result<Lifetime, NoStoreReason> {
    let mut state = State::default();
    state.read(response.fields, now, rules, terms.ignored);
    if !terms.ignored.has(IgnoredFields::VARY) {
        state.refuse(vary::check(response.fields, NGINX_VARY_MAX).err());
    }
    if let Some(why) = state.refused.or(state.no_cache).or(state.expired.then_some(NoStoreReason::Expired)) {
        return Err(why);
    }
    state.lifetime(now, terms)
}

/// Lifetime after a 304: by its own fields, else by the stored ones, counted from now, else by `proxy_cache_valid`
/// for the stored status. Refusals in the 304 are ignored (`ngx_http_upstream_test_next`).
pub(super) fn freshen(
    update: &Fields,
    stored: &Fields,
    now: i64,
    rules: &Rules,
    terms: &StoreSettings,
) -> Result<Lifetime, NoStoreReason> {
    let mut state = State::default();
    state.read(update, now, rules, terms.ignored);
    if state.valid_until.is_none() {
        let State { while_revalidate, if_error, .. } = state;
        state = State { while_revalidate, if_error, ..State::default() };
        state.read(stored, now, rules, terms.ignored);
    }
    state.lifetime(now, terms)
}

/// State of the interpretation so far.
#[derive(Default)]
struct State {
    /// Never 0: that is nginx's way of saying that there is none.
    valid_until: Option<i64>,
    while_revalidate: u32,
    if_error: u32,
    /// Refused for good.
    refused: Option<NoStoreReason>,
    /// Refusal that only `X-Accel-Expires` can revert.
    no_cache: Option<NoStoreReason>,
    /// Refused by `Expires`, unless a later field sets a lifetime.
    expired: bool,
    /// True if there was an `X-Accel-Expires`, even an ignored one.
    has_accel: bool,
    has_expires: bool,
}

impl State {
    fn read(&mut self, fields: &Fields, now: i64, rules: &Rules, ignored: IgnoredFields) {
        let mut targeted = None;
        if !ignored.has(IgnoredFields::CACHE_CONTROL) {
            targeted = rules.targeted.iter().find_map(|name| Some((name, targeted::read(fields, name)?)));
        }
        let control_fields =
            [HeaderName::XAccelExpires, HeaderName::CacheControl, HeaderName::Expires, HeaderName::SetCookie];
        if targeted.is_none() && !control_fields.iter().any(|&known_name| fields.has(known_name)) {
            return;
        }
        let is_targeted = targeted.is_some();
        let mut is_read = false;
        for (name, value) in fields.iter() {
            if let Some((targeted, says)) = &targeted
                && name.eq_ignore_ascii_case(targeted)
            {
                if !std::mem::replace(&mut is_read, true) {
                    self.targeted(says, now);
                }
                continue;
            }
            match HeaderName::find(name) {
                Some(HeaderName::CacheControl | HeaderName::Expires) if is_targeted => {}
                // The second one of these counts for nothing.
                Some(HeaderName::XAccelExpires) if !self.has_accel => {
                    self.has_accel = true;
                    if !ignored.has(IgnoredFields::X_ACCEL_EXPIRES) {
                        self.accel_expires(value, now);
                    }
                }
                Some(HeaderName::CacheControl) if !ignored.has(IgnoredFields::CACHE_CONTROL) => {
                    self.cache_control(value, now);
                }
                Some(HeaderName::Expires) if !self.has_expires => {
                    self.has_expires = true;
                    if !ignored.has(IgnoredFields::EXPIRES) {
                        self.expires(value, now);
                    }
                }
                Some(HeaderName::SetCookie) if !ignored.has(IgnoredFields::SET_COOKIE) => {
                    self.refuse(Some(NoStoreReason::SetCookie));
                }
                _ => {}
            }
        }
    }

    fn refuse(&mut self, why: Option<NoStoreReason>) {
        self.refused = self.refused.or(why);
    }

    fn accel_expires(&mut self, value: &[u8], now: i64) {
        let number = |text| num::parse(text).and_then(|number| i64::try_from(number).ok());
        let (number, since) = match value.strip_prefix(b"@") {
            Some(at) => (number(at), 0),
            None => (number(value), now),
        };
        match number {
            None => return,
            // `@0` is a time, which means here that there is none.
            Some(0) if since == 0 => self.valid_until = None,
            Some(0) => return self.refuse(Some(NoStoreReason::AccelExpires)),
            Some(number) => self.valid_until = Some(number.saturating_add(since)),
        }
        (self.no_cache, self.expired) = (None, false);
    }

    fn cache_control(&mut self, value: &[u8], now: i64) {
        if !(self.has_accel && self.valid_until.is_some()) {
            for (word, why) in [
                (&b"no-cache"[..], NoStoreReason::NoCache),
                (b"no-store", NoStoreReason::NoStore),
                (b"private", NoStoreReason::Private),
            ] {
                if behind(value, word).is_some() {
                    self.no_cache = self.no_cache.or(Some(why));
                    return;
                }
            }
            if let Some(number) = behind(value, b"s-maxage=").or_else(|| behind(value, b"max-age=")) {
                match seconds(number) {
                    None => return self.refuse(Some(NoStoreReason::BadNumber)),
                    Some(0) => {
                        self.no_cache = self.no_cache.or(Some(NoStoreReason::MaxAge));
                        return;
                    }
                    Some(seconds) => {
                        self.valid_until = Some(now.saturating_add(seconds));
                        self.expired = false;
                    }
                }
            }
        }
        if let Some(number) = behind(value, b"stale-while-revalidate=") {
            let Some(seconds) = seconds(number) else { return self.refuse(Some(NoStoreReason::BadNumber)) };
            self.while_revalidate = narrow(seconds);
            self.if_error = self.while_revalidate;
        }
        if let Some(number) = behind(value, b"stale-if-error=") {
            let Some(seconds) = seconds(number) else { return self.refuse(Some(NoStoreReason::BadNumber)) };
            self.if_error = narrow(seconds);
        }
    }

    /// Applies a targeted field (RFC 9213) in place of `Cache-Control`.
    fn targeted(&mut self, says: &CacheControl<'_>, now: i64) {
        if !(self.has_accel && self.valid_until.is_some()) {
            let refusals = [
                (says.has(Directives::NO_CACHE) || !says.no_cache.is_empty(), NoStoreReason::NoCache),
                (says.has(Directives::NO_STORE), NoStoreReason::NoStore),
                (says.has(Directives::PRIVATE) || !says.private.is_empty(), NoStoreReason::Private),
            ];
            let seconds = says.s_maxage.or(says.max_age);
            let refused = refusals.iter().find(|(is_said, _)| *is_said).map(|(_, why)| *why);
            if let Some(why) = refused.or((seconds == Some(0)).then_some(NoStoreReason::MaxAge)) {
                self.no_cache = self.no_cache.or(Some(why));
                return;
            }
            if let Some(seconds) = seconds {
                self.valid_until = Some(now.saturating_add(i64::from(seconds)));
                self.expired = false;
            }
        }
        if let Some(seconds) = says.stale_while_revalidate {
            (self.while_revalidate, self.if_error) = (seconds, seconds);
        }
        if let Some(seconds) = says.stale_if_error {
            self.if_error = seconds;
        }
    }

    fn expires(&mut self, value: &[u8], now: i64) {
        if self.valid_until.is_some() {
            return;
        }
        match date::parse(value).filter(|&time| time >= now) {
            Some(time) => self.valid_until = Some(time),
            None => self.expired = true,
        }
    }

    fn lifetime(&self, now: i64, terms: &StoreSettings) -> Result<Lifetime, NoStoreReason> {
        let by_status = || {
            let seconds = terms.valid_s.filter(|&seconds| seconds != 0)?;
            Some(now.saturating_add(i64::from(seconds)))
        };
        Ok(Lifetime {
            responded: now,
            valid_until: self.valid_until.or_else(by_status).ok_or(NoStoreReason::NoValidity)?,
            stale_while_revalidate_s: self.while_revalidate,
            stale_if_error_s: self.if_error,
            initial_age_s: 0,
            duties: Duties::NONE,
        })
    }
}

fn narrow(seconds: i64) -> u32 {
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// Text after the first occurrence of a word, anywhere in the value and in any case. Cost: the product of both
/// lengths, and words are short.
fn behind<'a>(value: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    let at = value.windows(word.len()).position(|part| part.eq_ignore_ascii_case(word))?;
    value.get(at + word.len()..)
}

/// Number up to a comma, a semicolon or a space; 0 without any characters, `None` if it is no number. Too large
/// numbers become the largest one.
fn seconds(text: &[u8]) -> Option<i64> {
    let mut sum: i64 = 0;
    for &byte in text {
        match byte {
            b',' | b';' | b' ' => break,
            b'0'..=b'9' => {
                let next = sum.checked_mul(10).and_then(|sum| sum.checked_add(i64::from(byte - b'0')));
                let Some(next) = next else { return Some(i64::MAX) };
                sum = next;
            }
            _ => return None,
        }
    }
    Some(sum)
}
