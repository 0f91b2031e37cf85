//! Cache directives of all gateways.

use tw_conf::{Args, Directive, HTTP, LOCATION, SERVER, record};

use super::{
    CacheStatusField, CacheValid, HasCacheSettings, METHODS, RawQuota, RefreshAhead, background_max, targeted,
};
use crate::cache_path::RawCachePath;
use tw_request::retry_conditions::RetryWords;

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
        .doc("Directory, zone and limits of a cache.")
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
            .doc("Sets the key of a response in the cache.")
            .set(|raw, node, _| {
                let word = node.arg(0)?.clone();
                raw.cache_settings().key.set_once(node, word)
            }),
        record::new("cache_valid", "[code …] time", ALL, Args::at_least(1))
            .doc("Time for which responses are valid that have no time of their own.")
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
            .doc("Number of requests after which a response is stored.")
            .set(|raw, node, _| raw.cache_settings().min_uses.set_number(node)),
        record::new(
            "cache_use_stale",
            Self::USE_STALE.syntax,
            ALL,
            Args::at_least(1),
        )
        .default("off")
        .doc("Cases in which a stale response is used.")
        .set(|raw, node, cx| raw.cache_settings().use_stale.add_bits(node, Self::USE_STALE.words, cx)),
        record::new("cache_bypass", "string …", ALL, Args::at_least(1))
            .doc("Bypasses the stored response if a string is neither empty nor 0.")
            .set(|raw, node, _| {
                node.args.iter().for_each(|word| raw.cache_settings().bypass.push(node, word.clone()));
                Ok(())
            }),
        record::new("no_cache", "string …", ALL, Args::at_least(1))
            .doc("Does not store the response if a string is neither empty nor 0.")
            .set(|raw, node, _| {
                node.args.iter().for_each(|word| raw.cache_settings().no_cache.push(node, word.clone()));
                Ok(())
            }),
        record::flag("cache_lock", ALL)
            .default("off")
            .since("1.1.12")
            .doc("Lets only one request at a time fetch a response for the cache; others get the response as it arrives.")
            .set(|raw, node, _| raw.cache_settings().lock.set_flag(node)),
        record::time("cache_lock_timeout", ALL)
            .default("5s")
            .since("1.1.12")
            .doc("Time for which a request waits for the first byte of the response that another request fetches.")
            .set(|raw, node, _| raw.cache_settings().lock_timeout.set_msec(node)),
        record::time("cache_lock_age", ALL)
            .default("5s")
            .since("1.7.8")
            .doc("Time without progress (1 KiB per second) of a response that others wait for; then another request fetches it, or the rest of it.")
            .set(|raw, node, _| raw.cache_settings().lock_age.set_msec(node)),
        record::flag("cache_revalidate", ALL)
            .default("off")
            .since("1.5.7")
            .doc("Asks the upstream server by a conditional request if a stale response has changed.")
            .set(|raw, node, _| raw.cache_settings().revalidate.set_flag(node)),
        record::flag("cache_background_update", ALL)
            .default("off")
            .since("1.11.10")
            .doc("Fetches a stale response anew in the background, while the client gets the stale one.")
            .set(|raw, node, _| raw.cache_settings().background_update.set_flag(node)),
        record::new("cache_background_max", "number | off", ALL, Args::exact(1))
            .default("256")
            .since("Tailwater 0.2")
            .doc("Maximum number of responses that a cache fetches in the background at the same time; further fetches are not started, and clients get the stored response.")
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
            .doc("Makes a request remove the stored response with its key if a string is neither empty nor 0; with the value soft, the response becomes stale instead. A * at the end of the key stands for all keys with that beginning.")
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
            .doc("Maximum number of bytes in the cache for responses with one value of the string, such as one host; the oldest responses with that value are evicted first. An empty value has no quota.")
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
            .doc("Stores and uses responses by the rules of RFC 9111: fields of responses and requests, Age, validation, and invalidation by unsafe requests. With off, nginx's rules apply.")
            .set(|raw, node, _| raw.cache_settings().rfc9111.set_flag(node)),
        record::new("cache_targeted", "field … | off", ALL, Args::at_least(1))
            .since("Tailwater 0.2")
            .default("off")
            .doc("Fields such as CDN-Cache-Control (RFC 9213) that take the place of Cache-Control and Expires in responses that have them, the most important one first.")
            .set(|raw, node, _| raw.cache_settings().targeted.set_with(node, targeted)),
        record::new("cache_status", "name [key] | off", ALL, Args::range(1, 2))
            .since("Tailwater 0.2")
            .default("off")
            .doc("Adds the field Cache-Status with the decision of the cache of this name, and with the key if that is given.")
            .set(|raw, node, _| raw.cache_settings().status_field.set_with(node, CacheStatusField::read)),
        record::number("cache_max_range_offset", ALL)
            .since("1.11.6")
            .doc("A range that begins behind so many bytes is asked of the upstream server, and its response is not kept.")
            .set(|raw, node, _| raw.cache_settings().max_range_offset.set_offset(node)),
    ];
}
