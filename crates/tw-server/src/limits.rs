//! The limits of the core and of the crates below it, gathered for `docs/limits.md`. Each stands beside the code that
//! keeps it; those of a module are in its [`Settings::LIMITS`](tw_core::module::Settings::LIMITS).

use tw_accept::{listen, quic};
use tw_base::Limit;
use tw_connect::{h2_pool, upstream_tls};
use tw_core::{event_loop, load, metrics, pools, process};

use crate::http::history;
use tw_http_cache as cache;
use tw_http_versions::{admission, h2, h3, streams};
use tw_phases::{background_subrequest, early_subrequest, lifecycle, subrequest};
use tw_proxy::codec::{fastcgi, http2 as upstream_http2};
use tw_proxy::{health, ocsp_client, retry, spill_delay};
use tw_request::config::{location, server};
use tw_request::{files, request, request_body};

/// All of them, by what they protect. For documents: it copies every record.
pub fn core() -> Vec<(&'static str, Vec<Limit>)> {
    vec![
        (
            "connections and loops",
            [
                process::LIMITS,
                tw_base::memory::LIMITS,
                listen::LIMITS,
                event_loop::LIMITS,
                tw_request::event_loop::LIMITS,
                tw_accept::LIMITS,
            ]
            .concat(),
        ),
        (
            "HTTP/3",
            [h3::directives::LIMITS, h3::serve::LIMITS, tw_http3::LIMITS, tw_quic::LIMITS, quic::LIMITS]
                .concat(),
        ),
        ("HTTP/2 and HTTP/3", streams::LIMITS.to_vec()),
        ("HTTP/2", [h2::directives::LIMITS, h2::serve::LIMITS, tw_http2::LIMITS].concat()),
        ("request headers", server::LIMITS.to_vec()),
        ("upstream response headers", [tw_http::origin::LIMITS, tw_http::fields::LIMITS].concat()),
        (
            "upstream servers",
            [
                tw_upstream::LIMITS,
                health::LIMITS,
                upstream_tls::LIMITS,
                fastcgi::LIMITS,
                retry::LIMITS,
                spill_delay::LIMITS,
                h2_pool::LIMITS,
                upstream_http2::LIMITS,
            ]
            .concat(),
        ),
        ("DNS", tw_dns::LIMITS.to_vec()),
        ("TLS", [tw_tls::LIMITS, tw_acme::LIMITS, tw_tls_settings::LIMITS, ocsp_client::LIMITS].concat()),
        ("caches", [cache::LIMITS, tw_cache::LIMITS].concat()),
        ("fleet", tw_fleet::LIMITS.to_vec()),
        (
            "request bodies, responses and keep-alive",
            [tw_http::chunked::LIMITS, location::LIMITS, request_body::read::LIMITS].concat(),
        ),
        (
            "request processing",
            [
                request::LIMITS,
                admission::LIMITS,
                request::trace::LIMITS,
                subrequest::LIMITS,
                early_subrequest::LIMITS,
                background_subrequest::LIMITS,
                tw_core::regex::LIMITS,
                tw_core::vars::LIMITS,
            ]
            .concat(),
        ),
        ("disks and files", [pools::LIMITS, tw_disk::LIMITS, files::LIMITS].concat()),
        ("logs and the configuration", [tw_log::LIMITS, tw_conf::LIMITS, load::LIMITS].concat()),
        ("metrics and the status page", [metrics::LIMITS, history::LIMITS, lifecycle::LIMITS].concat()),
    ]
}
