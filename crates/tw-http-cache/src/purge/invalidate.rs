//! Invalidation by unsafe requests: stored responses of the URLs that they name are not used again (RFC 9111 section 4.4).
//!
//! An entry is found by its key, and the key of another URL is the value of `cache_key` in a request for that URL. So such a
//! request is simulated, with GET and the fields of the current one, and its key computed. Other parts of a key (values that
//! `set` has stored, groups of the location's regular expression) are those of the current request; a URL of another location
//! gets the key that it would have in this one.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tw_cache::policy::{self, UriOrigin};
use tw_cache::{Key, Purge};
use tw_core::session::Session as _;
use tw_http::{Escape, Fields, HeaderName, Method, Progress, RequestHead};

use crate::settings::CacheSettings;
use crate::store::context::ZoneIndex;
use crate::zone::{Cache, CacheUser};
use tw_phases::forward_head::RewriteFields;
use tw_request::request::{Request, RequestOrigin};

/// Prepares a request that no cache serves: the index is loaded before its response arrives. Waits for the disk the first time.
/// Returns the cache, if the response tells about it or makes entries invalid.
pub(crate) async fn prepare(r: &Request, settings: &CacheSettings) -> Option<Arc<Cache>> {
    if settings.status_field.is_none() && !settings.is_rfc9111() {
        return None;
    }
    let cache = settings.cache(r).ok()??.clone();
    if settings.is_rfc9111()
        && !r.method().is_safe()
        && let Some(disk) = r.disk().cloned()
    {
        for part in cache.parts() {
            // If the index cannot be loaded, nothing can be invalidated now.
            let _ = part.load_index(CacheUser::Request, &disk, |level, message| r.log(level, message)).await;
        }
    }
    Some(cache)
}

/// Invalidates the stored responses that the response to `r` makes invalid. Never waits: files are removed in the background.
pub fn invalidate(r: &mut Request, settings: &CacheSettings, rewrite: &dyn RewriteFields) {
    if !settings.is_on() || !settings.is_rfc9111() || r.method().is_safe() {
        return;
    }
    let Ok(Some(cache)) = settings.cache(r) else { return };
    let cache = cache.clone();
    for key in keys(r, settings, rewrite) {
        // A member that had the key before may still have an old response.
        for part in cache.held_parts() {
            match part.zone.loaded() {
                Some(zone_index) => invalidate_key(r, part, zone_index, key),
                None => part.zone.member.purge_later(key),
            }
        }
    }
}

/// Removes the response of `r` from its cache, stored or still being received: it is of another version than the rest of its
/// object. Never waits: the file is removed in the background.
pub fn discard(r: &Request) {
    let facts = &r.upstream.cache;
    let cache = facts
        .cache
        .clone()
        .and_then(|cache| Arc::downcast::<Cache>(cache as Arc<dyn Any + Send + Sync>).ok());
    if let Some((cache, zone_index)) = cache.as_ref().and_then(|cache| Some((cache, cache.zone.loaded()?))) {
        invalidate_key(r, cache, zone_index, Key::of(&facts.key));
    }
}

/// Keys of the stored responses that the response makes invalid.
fn keys(r: &mut Request, settings: &CacheSettings, rewrite: &dyn RewriteFields) -> Vec<Key> {
    let answer = &r.upstream.answer;
    // Rewritten as for the client: a `Location` may name the upstream server.
    let mut fields = Fields::new();
    for name in ["Location", "Content-Location"] {
        if let Some(value) = answer.fields.get(name.as_bytes()) {
            let changed = rewrite.location(r, value, false);
            fields.append_copy(name, changed.as_deref().unwrap_or(value));
        }
    }
    let target = match r.target_as_sent() {
        Some(target) => target.to_vec(),
        None => current_target(r),
    };
    let site = UriOrigin {
        is_https: r.client().scheme().is_secure(),
        host: &r.route.host,
        port: r.head.host_port(),
    };
    let mut urls = Vec::new();
    let see = &mut |url: &[u8]| urls.push(url.to_vec());
    policy::invalidated(r.method(), answer.status, &site, &target, &fields, &settings.rules, see);
    let mut urls = urls.into_iter();
    let Some(_own) = urls.next() else { return Vec::new() };
    let method = r.state.method.replace(Method::Get);
    let mut keys = vec![key(r, settings, rewrite)];
    r.state.method = method;
    keys.extend(urls.filter_map(|url| with_url(r, &url, |r| key(r, settings, rewrite))));
    keys
}

/// Path and arguments of the current URI, escaped.
fn current_target(r: &Request) -> Vec<u8> {
    let mut target = Vec::new();
    Escape::Uri.push(&r.uri.path, &mut target);
    if !r.uri.args.is_empty() {
        target.push(b'?');
        target.extend_from_slice(&r.uri.args);
    }
    target
}

fn key(r: &Request, settings: &CacheSettings, rewrite: &dyn RewriteFields) -> Key {
    let mut text = Vec::new();
    match &settings.key {
        Some(key) => key.eval(r, &mut text),
        None => rewrite.cache_key(r, &mut text),
    }
    Key::of(&text)
}

/// Calls `then` with the request that the client would have sent for `url` (path and arguments). Returns `None` if that is no
/// valid request.
fn with_url<T>(r: &mut Request, url: &[u8], then: impl FnOnce(&Request) -> T) -> Option<T> {
    let mut head = RequestHead::new();
    head.push(&[b"GET ", url, b" HTTP/1.1\r\n"].concat());
    for (name, value) in r.head.fields() {
        // There is no body.
        let is_of_body = matches!(
            HeaderName::find(name),
            Some(
                HeaderName::ContentLength
                    | HeaderName::TransferEncoding
                    | HeaderName::Trailer
                    | HeaderName::Expect
            )
        );
        if !is_of_body {
            head.push(&[name, b": ", value, b"\r\n"].concat());
        }
    }
    head.push(b"\r\n");
    let limits = r.generation().server(r.route.server).settings.head;
    if !matches!(head.parse(&limits), Ok(Progress::Complete)) {
        return None;
    }
    let (mut path, mut args) = (head.path().to_vec(), head.args().to_vec());
    let mut bindings = r.bindings.without_computed(r.slots());
    let (mut method, mut origin, mut has_client_target) = (None, RequestOrigin::Client, true);
    let mut swap = |r: &mut Request| {
        std::mem::swap(&mut r.head, &mut head);
        std::mem::swap(&mut r.uri.path, &mut path);
        std::mem::swap(&mut r.uri.args, &mut args);
        std::mem::swap(&mut r.bindings, &mut bindings);
        std::mem::swap(&mut r.state.method, &mut method);
        std::mem::swap(&mut r.state.origin, &mut origin);
        std::mem::swap(&mut r.state.has_client_target, &mut has_client_target);
    };
    swap(r);
    let said = then(r);
    swap(r);
    Some(said)
}

/// Invalidates the entry with this key, its variants, and a fill in progress.
fn invalidate_key(r: &Request, cache: &Arc<Cache>, zone_index: &ZoneIndex, key: Key) {
    let purged = zone_index.index.purge(key);
    cache.remove_fill(key);
    let mut removed_entry = purged.removed_entry;
    cache.zone.counts.purged.add(u64::from(removed_entry.is_some()));
    if !cache.zone.is_loaded.load(Relaxed) {
        // It may still be on the disk, and be found there before it is removed.
        let sequence = zone_index.purges.purge_key(key, Purge::Hard);
        removed_entry = removed_entry.or_else(|| Some(zone_index.index.remove_unknown(key, sequence)));
    }
    cache.remove_evicted(r, removed_entry);
}
