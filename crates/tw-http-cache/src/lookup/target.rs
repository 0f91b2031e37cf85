//! Cache and key of a request, before anything is looked up.

use std::sync::Arc;

use bytes::Bytes;
use tw_cache::Key;
use tw_cache::policy::ForwardReason;
use tw_http::range::ByteRange;
use tw_log::{Level, Text};

use crate::purge::invalidate;
use crate::settings::purge_rule::{PurgeRequest, PurgeTarget};
use crate::settings::{CacheSettings, SentBody};
use crate::zone::Cache;
use tw_request::cache_info::CacheReport;
use tw_request::miss_reason::MissReason;
use tw_request::request::Request;

/// Bytes of a key that needs no second allocation.
const KEY_ROOM: usize = 128;

/// Cache and key that a request names.
pub(crate) struct LookupTarget {
    /// Cache of the configuration, with all its members.
    pub(crate) whole: Arc<Cache>,
    /// The member that stores responses with this key, or the cache itself.
    pub(crate) cache: Arc<Cache>,
    /// Text of the key.
    pub(crate) text: Bytes,
    pub(crate) key: Key,
    /// Range of the content that the key names.
    pub(crate) part: Option<ByteRange>,
}

/// Use of a cache by a request.
pub(crate) enum CacheUse {
    /// The response is looked up.
    Lookup(LookupTarget),
    /// The request is an order to purge.
    Purge(LookupTarget, PurgeRequest),
    /// No lookup takes place. The cache is known if the response tells about it.
    Nothing(Option<Arc<Cache>>, CacheReport),
    /// The request ends with this status.
    Status(u16),
}

/// Determines the cache of `settings` and the key for `r`. `default_key` is the key where none is configured, `sent` is the body that the
/// upstream server would get. Waits for the disk if an unsafe request is the first use of the cache.
pub(crate) async fn determine(
    r: &Request,
    settings: &CacheSettings,
    sent: SentBody,
    default_key: impl FnOnce(&Request, &mut Vec<u8>),
) -> CacheUse {
    let purge = match settings.purge.purge_target(r) {
        PurgeTarget::Forbidden => return CacheUse::Status(403),
        PurgeTarget::Purge(request) => Some(request),
        PurgeTarget::Nothing => None,
    };
    if purge.is_none() && !settings.stores_method(r.method()) {
        let cache = invalidate::prepare(r, settings).await;
        let forward = cache.is_some().then_some(ForwardReason::Method);
        return CacheUse::Nothing(cache, CacheReport { forward, ..CacheReport::default() });
    }
    let whole = match settings.cache(r) {
        Ok(Some(cache)) => cache.clone(),
        Ok(None) => return CacheUse::Nothing(None, CacheReport::default()),
        Err(name) => {
            r.log(Level::Error, format_args!("cache \"{}\" not found", Text(&name)));
            return CacheUse::Status(500);
        }
    };
    // DIFF(nginx): a response to a request with a body is not stored where the next request, with another body, would get it.
    if purge.is_none() && !settings.serves_body(r, sent) {
        let (forward, why) = (Some(ForwardReason::Bypass), Some(MissReason::RequestBody));
        return CacheUse::Nothing(Some(whole), CacheReport { forward, why, ..CacheReport::default() });
    }
    let mut text = Vec::with_capacity(KEY_ROOM);
    // The key may name a part of the content, which its variable notes.
    r.upstream.cache.part.set(None);
    match &settings.key {
        Some(key) => key.eval(r, &mut text),
        None => default_key(r, &mut text),
    }
    let part = r.upstream.cache.part.get();
    let text = Bytes::from(text);
    let key = Key::of(&text);
    let cache = whole.owner(key).clone();
    let target = LookupTarget { whole, cache, text, key, part };
    match purge {
        Some(request) => CacheUse::Purge(target, request),
        None => CacheUse::Lookup(target),
    }
}
