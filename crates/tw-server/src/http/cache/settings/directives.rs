//! Cache directives of all gateways.

use tw_conf::{Args, Directive, HTTP, LOCATION, SERVER, record};

use super::{
    CacheStatusField, CacheValid, HasCacheSettings, METHODS, RawQuota, RefreshAhead, background_max, targeted,
};
use crate::http::cache::cache_path::RawCachePath;
use crate::http::retry_conditions::RetryWords;

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Cache directives of a gateway.
pub trait CacheDirectives: HasCacheSettings + Sized + 'static {
    /// Words of `cache_use_stale`.
    const USE_STALE: RetryWords;

    /// Records of the directives, named without the prefix of the gateway.
    const CACHE: &'static [Directive<Self>] = &[
        record::new(
            "cache_path",
            "path [levels=levels] [use_temp_path=on|off] keys_zone=name:size [inactive=time] [max_size=size] [min_free=size] [manager_files=number] [manager_sleep=time] [manager_threshold=time] [loader_files=number] [loader_sleep=time] [loader_threshold=time] [loader=nginx] [policy=lru|s3fifo] [thread_pool=name] [snapshot=time|off] [slow=time] [hedge=auto|time|off] [hedge_max=percent] [verify=on|off] [member=path[:size] [:device=path] [:drain] …] [fleet=name] [store=files|log] [segment=size] [direct=on|off] [device=path]",
            HTTP,
            Args::at_least(2),
        )
        .doc("Where a cache is, and what it may hold.")
        .set(|raw, node, _| {
            let place = RawCachePath::read(node)?;
            raw.cache_settings().paths.push(place);
            Ok(())
        }),
        record::new("cache", "zone | off", ALL, Args::exact(1))
            .default("off")
            .doc("The cache that responses are kept in; may hold variables.")
            .set(|raw, node, _| {
                let word = node.arg(0)?.clone();
                raw.cache_settings().zone.set_once(node, word)
            }),
        record::new("cache_key", "string", ALL, Args::exact(1))
            .doc("What tells one response from another.")
            .set(|raw, node, _| {
                let word = node.arg(0)?.clone();
                raw.cache_settings().key.set_once(node, word)
            }),
        record::new("cache_valid", "[code …] time", ALL, Args::at_least(1))
            .doc("How long responses are valid that do not say so themselves.")
            .set(|raw, node, _| {
                for valid in CacheValid::read(node)? {
                    raw.cache_settings().valid.push(node, valid);
                }
                Ok(())
            }),
        record::new("cache_methods", "GET | HEAD | POST …", ALL, Args::at_least(1))
            .default("GET HEAD")
            .since("0.7.59")
            .doc("Methods whose responses are kept; GET and HEAD always are.")
            .set(|raw, node, cx| raw.cache_settings().methods.add_bits(node, METHODS, cx)),
        record::number("cache_min_uses", ALL)
            .default("1")
            .doc("After how many requests a response is kept.")
            .set(|raw, node, _| raw.cache_settings().min_uses.set_number(node)),
        record::new(
            "cache_use_stale",
            Self::USE_STALE.syntax,
            ALL,
            Args::at_least(1),
        )
        .default("off")
        .doc("When a response is used that is no longer valid.")
        .set(|raw, node, cx| raw.cache_settings().use_stale.add_bits(node, Self::USE_STALE.words, cx)),
        record::new("cache_bypass", "string …", ALL, Args::at_least(1))
            .doc("When a response is not taken from the cache: if a string is neither empty nor 0.")
            .set(|raw, node, _| {
                node.args.iter().for_each(|word| raw.cache_settings().bypass.push(node, word.clone()));
                Ok(())
            }),
        record::new("no_cache", "string …", ALL, Args::at_least(1))
            .doc("When a response is not kept: if a string is neither empty nor 0.")
            .set(|raw, node, _| {
                node.args.iter().for_each(|word| raw.cache_settings().no_cache.push(node, word.clone()));
                Ok(())
            }),
        record::flag("cache_lock", ALL)
            .default("off")
            .since("1.1.12")
            .doc("Whether one request at a time asks for a response that is to be kept, and the others get it as it comes.")
            .set(|raw, node, _| raw.cache_settings().lock.set_flag(node)),
        record::time("cache_lock_timeout", ALL)
            .default("5s")
            .since("1.1.12")
            .doc("How long a request waits for the first byte of another one's response.")
            .set(|raw, node, _| raw.cache_settings().lock_timeout.set_msec(node)),
        record::time("cache_lock_age", ALL)
            .default("5s")
            .since("1.7.8")
            .doc("How long a response that others wait for may make no progress, 1 KiB a second: then another request asks for it, or for its rest.")
            .set(|raw, node, _| raw.cache_settings().lock_age.set_msec(node)),
        record::flag("cache_revalidate", ALL)
            .default("off")
            .since("1.5.7")
            .doc("Whether the upstream server is asked if a response that is no longer valid has changed.")
            .set(|raw, node, _| raw.cache_settings().revalidate.set_flag(node)),
        record::flag("cache_background_update", ALL)
            .default("off")
            .since("1.11.10")
            .doc("Whether a response that is no longer valid is fetched anew beside the request that got it.")
            .set(|raw, node, _| raw.cache_settings().background_update.set_flag(node)),
        record::new("cache_background_max", "number | off", ALL, Args::exact(1))
            .default("256")
            .since("Tailwater 0.2")
            .doc("How many responses may be fetched for one cache at once beside the requests of clients; further fetches are not started, and clients get the stored response.")
            .set(|raw, node, _| raw.cache_settings().background_max.set_with(node, background_max)),
        record::new(
            "cache_refresh_ahead",
            "percent | time [min_uses=number] | off",
            ALL,
            Args::range(1, 2),
        )
            .default("off")
            .since("Tailwater 0.2")
            .doc("The last part of the lifetime of a response, at most half of it, in which a request for it starts an update in the background; min_uses leaves out responses that were used less often since they were stored.")
            .set(|raw, node, _| raw.cache_settings().refresh_ahead.set_with(node, RefreshAhead::read)),
        record::new(
            "cache_purge",
            "string … | method [purge_all] [from address …] | zone key",
            ALL,
            Args::at_least(1),
        )
            .since("1.5.7")
            .doc("When a request removes what it would be answered with: if a string is neither empty nor 0; if it is soft, that is stale from now on. A * at the end of the key stands for all that begin like it.")
            .set(|raw, node, _| {
                node.args.iter().for_each(|word| raw.cache_settings().purge.push(node, word.clone()));
                Ok(())
            }),
        record::new("cache_purge_tag", "string …", ALL, Args::at_least(1))
            .since("Tailwater 0.2")
            .doc("The tags that such a request purges, in the place of its key; spaces or commas between.")
            .set(|raw, node, _| {
                node.args.iter().for_each(|word| raw.cache_settings().purge_tag.push(node, word.clone()));
                Ok(())
            }),
        record::new("cache_quota", "string size | off", ALL, Args::range(1, 2))
            .default("off")
            .since("Tailwater 0.2")
            .doc("How many bytes of a cache the responses with one value of the string may take, such as those of a host; the oldest of the value are evicted first. An empty value has no quota.")
            .set(|raw, node, _| {
                let quota = RawQuota::read(node)?;
                raw.cache_settings().quota.set_once(node, quota)
            }),
        record::new("cache_tag", "string …", ALL, Args::at_least(1))
            .since("Tailwater 0.2")
            .doc("The tags of a response by which it can be purged, such as $upstream_http_surrogate_key; spaces or commas between.")
            .set(|raw, node, _| {
                node.args.iter().for_each(|word| raw.cache_settings().tag.push(node, word.clone()));
                Ok(())
            }),
        record::flag("cache_rfc9111", ALL)
            .since("Tailwater 0.2")
            .default("off")
            .doc("Whether responses are kept and used as RFC 9111 has it: by what their fields say and what clients ask for, with Age, validation, and invalidation by requests that change something. Off is as nginx does.")
            .set(|raw, node, _| raw.cache_settings().rfc9111.set_flag(node)),
        record::new("cache_targeted", "field … | off", ALL, Args::at_least(1))
            .since("Tailwater 0.2")
            .default("off")
            .doc("Fields such as CDN-Cache-Control (RFC 9213) that take the place of Cache-Control and Expires in responses that have them, the most important one first.")
            .set(|raw, node, _| raw.cache_settings().targeted.set_with(node, targeted)),
        record::new("cache_status", "name [key] | off", ALL, Args::range(1, 2))
            .since("Tailwater 0.2")
            .default("off")
            .doc("Whether responses tell in Cache-Status what the cache of this name did, and on request the key.")
            .set(|raw, node, _| raw.cache_settings().status_field.set_with(node, CacheStatusField::read)),
        record::number("cache_max_range_offset", ALL)
            .since("1.11.6")
            .doc("A range that begins behind so many bytes is asked of the upstream server, and its response is not kept.")
            .set(|raw, node, _| raw.cache_settings().max_range_offset.set_offset(node)),
    ];
}
