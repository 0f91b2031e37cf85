//! The variables `$vts_*`.

use tw_request::request::Request;
use tw_request::vars::{Value, VarDef};

use super::settings::Vts;
use super::stat::Stat;

/// Appends a number of the server of a request.
fn put(r: &Request, stat: Stat, out: &mut Vec<u8>) -> Value {
    r.plan().parts.get::<Vts>().map_or(Value::Missing, |vts| vts.put_server_stat(r, stat, out))
}

/// The variables; each is a counter of the server of the request.
pub(super) const VARIABLES: &[VarDef] = &[
    VarDef::one("vts_request_counter", |r, out| put(r, Stat::Requests, out), "Requests of the server (vts)."),
    VarDef::one("vts_in_bytes", |r, out| put(r, Stat::Received, out), "Bytes received from clients (vts)."),
    VarDef::one("vts_out_bytes", |r, out| put(r, Stat::Sent, out), "Bytes sent to clients (vts)."),
    VarDef::one(
        "vts_1xx_counter",
        |r, out| put(r, Stat::Class(0), out),
        "Responses with a status 1xx (vts).",
    ),
    VarDef::one(
        "vts_2xx_counter",
        |r, out| put(r, Stat::Class(1), out),
        "Responses with a status 2xx (vts).",
    ),
    VarDef::one(
        "vts_3xx_counter",
        |r, out| put(r, Stat::Class(2), out),
        "Responses with a status 3xx (vts).",
    ),
    VarDef::one(
        "vts_4xx_counter",
        |r, out| put(r, Stat::Class(3), out),
        "Responses with a status 4xx (vts).",
    ),
    VarDef::one(
        "vts_5xx_counter",
        |r, out| put(r, Stat::Class(4), out),
        "Responses with a status 5xx (vts).",
    ),
    VarDef::one("vts_cache_miss_counter", |r, out| put(r, Stat::Cache(0), out), "Cache misses (vts)."),
    VarDef::one(
        "vts_cache_bypass_counter",
        |r, out| put(r, Stat::Cache(1), out),
        "Bypasses of a cache (vts).",
    ),
    VarDef::one("vts_cache_expired_counter", |r, out| put(r, Stat::Cache(2), out), "Expired entries (vts)."),
    VarDef::one("vts_cache_stale_counter", |r, out| put(r, Stat::Cache(3), out), "Stale responses (vts)."),
    VarDef::one(
        "vts_cache_updating_counter",
        |r, out| put(r, Stat::Cache(4), out),
        "Stale responses during an update (vts).",
    ),
    VarDef::one(
        "vts_cache_revalidated_counter",
        |r, out| put(r, Stat::Cache(5), out),
        "Revalidated entries (vts).",
    ),
    VarDef::one("vts_cache_hit_counter", |r, out| put(r, Stat::Cache(6), out), "Cache hits (vts)."),
    VarDef::one("vts_cache_scarce_counter", |r, out| put(r, Stat::Cache(7), out), "Always 0 (vts)."),
    VarDef::one(
        "vts_request_time_counter",
        |r, out| put(r, Stat::Time, out),
        "Sum of the times of requests in milliseconds (vts).",
    ),
    VarDef::one(
        "vts_request_time",
        |r, out| put(r, Stat::AverageTime, out),
        "Average time of recent requests in milliseconds (vts).",
    ),
];
