//! Cache settings of a location, as written and as used.

mod directives;
mod explain;
pub(crate) mod purge_rule;
mod quota;
mod refresh_ahead;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_cache::policy::{IgnoredFields, Rules, Ruleset, StoreSettings};
use tw_conf::{ConfError, Node, Setting, Word, units};
use tw_core::reach::Reach;
use tw_http::fields::is_name;
use tw_http::{Framing, Method};

use super::cache_path::RawCachePath;
use super::guard::background::BACKGROUND_MAX;
use super::guard::quota::QuotaClaim;
use super::open;
use super::zone::{Cache, Caches};
use purge_rule::{PurgeLocation, PurgeRule};
use quota::Quota;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::retry_conditions::RetryOn;
use tw_request::vars::{Template, names_in};

pub use directives::CacheDirectives;
pub use quota::RawQuota;
pub use refresh_ahead::RefreshAhead;

/// `cache_valid` without codes.
const USUALLY_VALID: [u16; 3] = [200, 301, 302];
/// The code that stands for all.
const ANY: u16 = 0;

/// Settings as written.
#[derive(Default)]
pub struct Raw {
    /// `cache_path`
    pub paths: Vec<RawCachePath>,
    /// `cache`
    pub zone: Setting<Word>,
    /// `cache_key`
    pub key: Setting<Word>,
    /// `cache_valid`
    pub valid: Setting<Vec<CacheValid>>,
    /// `cache_methods`
    pub methods: Setting<u32>,
    /// `cache_min_uses`
    pub min_uses: Setting<u64>,
    /// `cache_use_stale`
    pub use_stale: Setting<u32>,
    /// `cache_bypass`
    pub bypass: Setting<Vec<Word>>,
    /// `no_cache`
    pub no_cache: Setting<Vec<Word>>,
    /// `cache_lock`
    pub lock: Setting<bool>,
    /// `cache_lock_timeout`
    pub lock_timeout: Setting<Duration>,
    /// `cache_lock_age`
    pub lock_age: Setting<Duration>,
    /// `cache_revalidate`
    pub revalidate: Setting<bool>,
    /// `cache_background_update`
    pub background_update: Setting<bool>,
    /// `cache_background_max`
    pub background_max: Setting<u32>,
    /// `cache_refresh_ahead`
    pub refresh_ahead: Setting<Option<RefreshAhead>>,
    /// `cache_convert_head`
    pub convert_head: Setting<bool>,
    /// `cache_max_range_offset`
    pub max_range_offset: Setting<u64>,
    /// `cache_purge`
    pub purge: Setting<Vec<Word>>,
    /// `cache_purge_tag`
    pub purge_tag: Setting<Vec<Word>>,
    /// `cache_tag`
    pub tag: Setting<Vec<Word>>,
    /// `cache_quota`
    pub quota: Setting<Option<RawQuota>>,
    /// `cache_rfc9111`
    pub rfc9111: Setting<bool>,
    /// `cache_targeted`
    pub targeted: Setting<Vec<Bytes>>,
    /// `cache_status`
    pub status_field: Setting<Option<CacheStatusField>>,
}

/// Settings as written that include those of a cache.
pub trait HasCacheSettings {
    /// The settings of the cache.
    fn cache_settings(&mut self) -> &mut Raw;
}

/// One `cache_valid`.
#[derive(Debug, Clone, Copy)]
pub struct CacheValid {
    status: u16,
    span: Duration,
}

impl CacheValid {
    /// Reads the directive: one value for each status.
    ///
    /// # Errors
    /// nginx's words.
    pub fn read(node: &Node) -> Result<Vec<Self>, ConfError> {
        let (last, codes) = node.args.split_last().ok_or_else(|| node.fail("no time".to_owned()))?;
        let span = units::sec(&last.bytes)
            .ok_or_else(|| node.fail(format!("invalid time value \"{last}\"")).at(last.span))?;
        if codes.is_empty() {
            return Ok(USUALLY_VALID.map(|status| Self { status, span }).into());
        }
        let status = |word: &Word| match &*word.bytes {
            b"any" => Ok(ANY),
            code => units::number(code)
                .and_then(|code| u16::try_from(code).ok())
                .filter(|code| (100..=599).contains(code))
                .ok_or_else(|| node.fail(format!("invalid status \"{word}\"")).at(word.span)),
        };
        codes.iter().map(|word| Ok(Self { status: status(word)?, span })).collect()
    }
}

/// `cache_status`: contents of the field `Cache-Status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheStatusField {
    /// Name of the cache in the field.
    pub(crate) name: Box<str>,
    /// True if the field includes the key.
    pub(crate) has_key: bool,
}

impl CacheStatusField {
    /// Reads `cache_status`; `None` for `off`.
    ///
    /// # Errors
    /// A name with bytes that the field cannot have, or another word than `key` behind it.
    pub fn read(node: &Node) -> Result<Option<Self>, ConfError> {
        let name = node.arg(0)?;
        let has_key = match node.args.get(1) {
            None if &*name.bytes == b"off" => return Ok(None),
            None => false,
            Some(word) if &*word.bytes == b"key" => true,
            Some(word) => return Err(node.invalid_value(word)),
        };
        let text = std::str::from_utf8(&name.bytes).ok();
        match text.filter(|text| !text.is_empty() && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))) {
            Some(text) => Ok(Some(Self { name: text.into(), has_key })),
            None => Err(node.invalid_value(name)),
        }
    }
}

/// Reads `cache_targeted`: names of fields, none for `off`.
///
/// # Errors
/// Invalid name of a field.
pub fn targeted(node: &Node) -> Result<Vec<Bytes>, ConfError> {
    if let [word] = &node.args[..]
        && &*word.bytes == b"off"
    {
        return Ok(Vec::new());
    }
    let name = |word: &Word| match is_name(&word.bytes) {
        true => Ok(Bytes::copy_from_slice(&word.bytes)),
        false => Err(node.invalid_value(word)),
    };
    node.args.iter().map(name).collect()
}

/// Methods whose responses may be stored; those of GET and HEAD always are.
pub const METHODS: &[(&str, u32)] = &[("GET", 1), ("HEAD", 2), ("POST", 4)];

/// Cache settings of a location.
#[derive(Clone)]
pub struct CacheSettings {
    which: CacheChoice,
    caches: Arc<Caches>,
    pub(crate) key: Option<Template>,
    /// True if the key contains the body of the request.
    is_key_of_body: bool,
    valid: Arc<[CacheValid]>,
    posts: bool,
    pub(crate) min_uses: u64,
    pub(crate) use_stale: RetryOn,
    bypass: Arc<[Template]>,
    no_cache: Arc<[Template]>,
    pub(crate) lock: bool,
    pub(crate) lock_timeout: Duration,
    pub(crate) lock_age: Duration,
    revalidate: bool,
    pub(crate) background_update: bool,
    pub(crate) background_max: u32,
    pub(crate) refresh_ahead: Option<RefreshAhead>,
    pub(crate) convert_head: bool,
    pub(crate) max_range_offset: Option<u64>,
    pub(crate) purge: PurgeRule,
    purge_tag: Arc<[Template]>,
    tag: Arc<[Template]>,
    quota: Option<Arc<Quota>>,
    /// Rules for storing and using responses, nginx's or those of RFC 9111.
    pub(crate) rules: Arc<Rules>,
    pub(crate) status_field: Option<Arc<CacheStatusField>>,
}

/// Cache of a location.
#[derive(Clone)]
enum CacheChoice {
    Off,
    One(Arc<Cache>),
    /// The cache with this name.
    Named(Template),
}

impl CacheSettings {
    /// Resolves the settings as written. `prefix` is that of the directives, such as `proxy_`; `converts_head` is the default of
    /// `cache_convert_head`.
    pub fn resolve(
        raw: Raw,
        outer: Option<&Self>,
        prefix: &str,
        converts_head: bool,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let caches = match outer {
            Some(outer) => outer.caches.clone(),
            None => Arc::new(open::declare(raw.paths, cx)?),
        };
        let which = match raw.zone.take() {
            Some(word) if &*word.bytes == b"off" => CacheChoice::Off,
            Some(word) if word.bytes.contains(&b'$') => CacheChoice::Named(cx.template(&word)?),
            Some(word) => match caches.get(&word.bytes) {
                Some(cache) => CacheChoice::One(cache.clone()),
                None => {
                    return Err(
                        ConfError::new(format!("\"{prefix}cache\" zone \"{word}\" is unknown")).at(word.span)
                    );
                }
            },
            None => outer.map_or(CacheChoice::Off, |o| o.which.clone()),
        };
        let (key, is_key_of_body) = match raw.key.take() {
            Some(word) => {
                let names_body = names_in(&word.bytes).any(|name| name.starts_with("request_body"));
                (Some(cx.template(&word)?), names_body)
            }
            None => (outer.and_then(|o| o.key.clone()), outer.is_some_and(|o| o.is_key_of_body)),
        };
        let mut templates = |words: Setting<Vec<Word>>, outer: Option<&Arc<[Template]>>| match words.take() {
            Some(words) => words.iter().map(|word| cx.template(word)).collect::<Result<Arc<[_]>, _>>(),
            None => Ok(outer.cloned().unwrap_or_else(|| [].into())),
        };
        let bypass = templates(raw.bypass, outer.map(|o| &o.bypass))?;
        let no_cache = templates(raw.no_cache, outer.map(|o| &o.no_cache))?;
        let purge_tag = templates(raw.purge_tag, outer.map(|o| &o.purge_tag))?;
        let tag = templates(raw.tag, outer.map(|o| &o.tag))?;
        let quota = match raw.quota.take() {
            Some(Some(quota)) => Some(Arc::new(quota.resolve(|word| cx.template(word))?)),
            Some(None) => None,
            None => outer.and_then(|o| o.quota.clone()),
        };
        if quota.is_some() {
            let switch_on = |cache: &Cache| cache.parts().for_each(|part| part.zone.quotas.switch_on());
            match &which {
                CacheChoice::Off => {}
                CacheChoice::One(cache) => switch_on(cache),
                CacheChoice::Named(_) => caches.values().for_each(|cache| switch_on(cache)),
            }
        }
        let purge = match raw.purge.take() {
            Some(words) => PurgeRule::read(&words, &caches, cx)?,
            // A location that purges is itself the handler, and none below it is.
            None => outer
                .map(|o| &o.purge)
                .filter(|rule| rule.location().is_none() || cx.block.is_nameless())
                .cloned()
                .unwrap_or_else(PurgeRule::none),
        };
        let use_stale = match raw.use_stale.take() {
            Some(bits) => RetryOn::of_bits(bits),
            None => outer.map_or(RetryOn::NONE, |o| o.use_stale),
        };
        let status_field = match raw.status_field.take() {
            Some(status_field) => status_field.map(Arc::new),
            None => outer.and_then(|o| o.status_field.clone()),
        };
        Ok(Self {
            which,
            caches,
            key,
            is_key_of_body,
            valid: raw.valid.take().map(Into::into).or(outer.map(|o| o.valid.clone())).unwrap_or_default(),
            posts: raw.methods.take().map(|bits| bits & 4 != 0).or(outer.map(|o| o.posts)).unwrap_or(false),
            min_uses: raw.min_uses.or(outer.map(|o| o.min_uses), 1),
            use_stale,
            bypass,
            no_cache,
            lock: raw.lock.or(outer.map(|o| o.lock), false),
            lock_timeout: raw.lock_timeout.or(outer.map(|o| o.lock_timeout), Duration::from_secs(5)),
            lock_age: raw.lock_age.or(outer.map(|o| o.lock_age), Duration::from_secs(5)),
            revalidate: raw.revalidate.or(outer.map(|o| o.revalidate), false),
            background_update: raw.background_update.or(outer.map(|o| o.background_update), false),
            background_max: raw.background_max.or(outer.map(|o| o.background_max), BACKGROUND_MAX),
            refresh_ahead: raw.refresh_ahead.or(outer.map(|o| o.refresh_ahead), None),
            convert_head: raw.convert_head.or(outer.map(|o| o.convert_head), converts_head),
            max_range_offset: raw.max_range_offset.take().or(outer.and_then(|o| o.max_range_offset)),
            purge,
            purge_tag,
            tag,
            quota,
            rules: rules(raw.rfc9111, raw.targeted, outer.map(|o| &o.rules)),
            status_field,
        })
    }

    /// Returns true if some requests have a cache.
    pub fn is_on(&self) -> bool {
        !matches!(self.which, CacheChoice::Off)
    }

    /// Returns the cache for `r`; `None` if there is none.
    ///
    /// # Errors
    /// A name that no cache has.
    pub(crate) fn cache(&self, r: &Request) -> Result<Option<&Arc<Cache>>, Vec<u8>> {
        match &self.which {
            CacheChoice::Off => Ok(None),
            CacheChoice::One(cache) => Ok(Some(cache)),
            CacheChoice::Named(name) => {
                let name = name.value(r);
                match &*name {
                    b"" | b"off" => Ok(None),
                    known_name => self.caches.get(known_name).map(Some).ok_or(name),
                }
            }
        }
    }

    /// Returns true if `cache_key` is configured.
    pub fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Returns true if responses are stored and used by the rules of RFC 9111.
    pub fn is_rfc9111(&self) -> bool {
        self.rules.reading == Ruleset::Rfc9111
    }

    /// Returns true if responses to this method are stored.
    pub(crate) fn stores_method(&self, method: Method) -> bool {
        let may_post = self.posts && !self.is_rfc9111();
        matches!(method, Method::Get | Method::Head) || method == Method::Post && may_post
    }

    /// Returns true if the cache is for `r`, whose body is `sent` to the upstream server or not. A response that depends on a body is
    /// another one for the next request with the same key, unless the key has the body in it or the configuration caches POST.
    pub(crate) fn serves_body(&self, r: &Request, sent: SentBody) -> bool {
        let has_none = || matches!(r.body.framing(r.head.framing()), Framing::None | Framing::Length(0));
        sent == SentBody::None || self.posts || self.is_key_of_body || has_none()
    }

    /// Returns true if stale entries are validated by conditional requests.
    pub(crate) fn validates(&self) -> bool {
        self.revalidate || self.is_rfc9111()
    }

    /// Settings for a response with this status, with the ignored fields.
    pub(crate) fn terms(&self, status: u16, ignored: IgnoredFields) -> StoreSettings {
        let valid = self.valid.iter().find(|valid| valid.status == status || valid.status == ANY);
        let seconds = |span: Duration| u32::try_from(span.as_secs()).unwrap_or(u32::MAX);
        StoreSettings { valid_s: valid.map(|valid| seconds(valid.span)), ignored }
    }

    /// Returns true if `r` bypasses the cache.
    pub(crate) fn is_bypassed(&self, r: &Request) -> bool {
        any(&self.bypass, r)
    }

    /// Returns true if the response to `r` is not stored (`no_cache`).
    pub(crate) fn skips_storing(&self, r: &Request) -> bool {
        any(&self.no_cache, r)
    }

    /// Returns the content handler of a location that only purges.
    pub fn purge_location(&self) -> Option<Arc<PurgeLocation>> {
        self.purge.location()
    }

    /// Tags that `r` purges.
    pub(crate) fn purged_tags(&self, r: &Request) -> Vec<Vec<u8>> {
        tags(&self.purge_tag, r)
    }

    /// Tags of the response to `r`.
    pub(crate) fn tags(&self, r: &Request) -> Vec<Vec<u8>> {
        tags(&self.tag, r)
    }

    /// Owner of the response to `r` by `cache_quota`.
    pub(crate) fn quota(&self, r: &Request) -> Option<QuotaClaim> {
        self.quota.as_ref()?.claim(r)
    }

    /// Declares the paths that the sandbox must allow.
    pub fn reach(&self, reach: &mut Reach) {
        let mut changes = |cache: &Cache| {
            for part in cache.parts() {
                reach.changes(&Template::text(part.place.dir.to_bytes()), None);
            }
        };
        match &self.which {
            CacheChoice::Off => {}
            CacheChoice::One(cache) => changes(cache),
            CacheChoice::Named(_) => self.caches.values().for_each(|cache| changes(cache)),
        }
    }
}

/// Body of the request to the upstream server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SentBody {
    /// None, or one that the configuration says.
    None,
    /// Body of the client, if it has sent one.
    Client,
}

/// Rules of a location; nginx's are the default.
fn rules(rfc9111: Setting<bool>, targeted: Setting<Vec<Bytes>>, outer: Option<&Arc<Rules>>) -> Arc<Rules> {
    let (rfc9111, targeted) = (rfc9111.take(), targeted.take());
    if let (None, None, Some(outer)) = (rfc9111, &targeted, outer) {
        return outer.clone();
    }
    let is_rfc9111 = rfc9111.unwrap_or_else(|| outer.is_some_and(|o| o.reading == Ruleset::Rfc9111));
    let usual = if is_rfc9111 { Rules::RFC9111 } else { Rules::NGINX };
    let targeted = targeted.or(outer.map(|o| o.targeted.clone())).unwrap_or_default();
    Arc::new(Rules { targeted, ..usual })
}

/// Returns true if one of the values is neither empty nor `0`.
fn any(templates: &[Template], r: &Request) -> bool {
    templates.iter().any(|template| template.is_set(r))
}

/// Words of the values, separated by spaces and commas.
fn tags(templates: &[Template], r: &Request) -> Vec<Vec<u8>> {
    let mut results = Vec::new();
    for template in templates {
        let value = template.value(r);
        let words = value.split(|byte| matches!(byte, b' ' | b',' | b'\t'));
        results.extend(words.filter(|word| !word.is_empty()).map(<[u8]>::to_vec));
    }
    results
}

/// Reads `cache_background_max`; `off` is no limit but that of the event loop.
///
/// # Errors
/// Another value than `off` or a number above zero.
pub fn background_max(node: &Node) -> Result<u32, ConfError> {
    let word = node.arg(0)?;
    if &*word.bytes == b"off" {
        return Ok(u32::MAX);
    }
    let max = units::number(&word.bytes).and_then(|max| u32::try_from(max).ok()).filter(|max| *max > 0);
    max.ok_or_else(|| node.invalid_value(word))
}
