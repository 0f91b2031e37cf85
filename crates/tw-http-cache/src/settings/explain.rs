//! `--explain` of a request: its cache, the key, and the path of the entry.

use tw_cache::{Key, Purge};
use tw_log::Text;

use super::purge_rule::PurgeTarget;
use super::{CacheSettings, SentBody};
use tw_request::request::Request;

impl CacheSettings {
    /// Explains the lookup of `r`, in lines as [`Handler::explain`](tw_request::plan::Handler::explain) has them; none without
    /// a cache. `default_key` is the key where none is configured.
    pub fn explain(
        &self,
        r: &Request,
        default_key: impl FnOnce(&Request, &mut Vec<u8>),
    ) -> Vec<(&'static str, String)> {
        let cache = match self.cache(r) {
            Ok(Some(cache)) => cache,
            Ok(None) => return Vec::new(),
            Err(name) => return vec![("cache", format!("\"{}\", which is none: 500", Text(&name)))],
        };
        let mut text = Vec::new();
        match &self.key {
            Some(key) => key.eval(r, &mut text),
            None => default_key(r, &mut text),
        }
        let purge = match self.purge.purge_target(r) {
            PurgeTarget::Purge(request) => Some(request.mode),
            PurgeTarget::Forbidden => {
                return vec![("cache", "a purge that is not allowed from this address: 403".to_owned())];
            }
            PurgeTarget::Nothing => None,
        };
        let mode = match purge {
            Some(Purge::Hard) => "purged, ",
            Some(Purge::Soft) => "made stale, ",
            None if !self.stores_method(r.method()) => "not asked for this method, ",
            None if !self.serves_body(r, SentBody::Client) => "not asked because of the body, ",
            None if self.is_bypassed(r) => "bypassed, ",
            None => "",
        };
        let mut lines = vec![("cache", format!("{}: {mode}key {}", Text(cache.name()), Text(&text)))];
        if purge.is_none() || !text.ends_with(b"*") {
            let key = Key::of(&text);
            let path = cache.owner(key).place.path(key);
            // Of a response with Vary it is the file of one variant.
            lines.push(("", format!("kept in {}", Text(path.to_bytes()))));
        }
        lines
    }
}
