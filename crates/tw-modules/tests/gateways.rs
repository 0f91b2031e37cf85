//! The directives of gateways come from one list with a prefix and a few differences. This table has nginx 1.31's
//! directives, and is compared with the records.

use std::collections::BTreeSet;

/// Directives of every gateway.
const CONNECTION: &[&str] = &[
    "allow_upstream",
    "bind",
    "bind_dynamic",
    "buffer_size",
    "connect_timeout",
    "next_upstream",
    "next_upstream_timeout",
    "next_upstream_tries",
    "pass",
    "read_timeout",
    "send_timeout",
    "socket_keepalive",
];

/// Directives of every gateway that nginx does not have.
const ADDED_TO_ALL: &[&str] = &["next_upstream_budget"];

/// Directives of gateways whose connections may carry much.
const SOCKETS: &[&str] = &["socket_rcvbuf", "socket_sndbuf"];

/// Directives of gateways whose servers respond to requests.
const RESPONSES: &[&str] =
    &["hide_header", "ignore_headers", "intercept_errors", "pass_header", "request_dynamic"];

/// Directives of gateways that buffer bodies.
const BODIES: &[&str] = &[
    "buffering",
    "buffers",
    "busy_buffers_size",
    "cache",
    "cache_background_update",
    "cache_bypass",
    "cache_key",
    "cache_lock",
    "cache_lock_age",
    "cache_lock_timeout",
    "cache_max_range_offset",
    "cache_methods",
    "cache_min_uses",
    "cache_path",
    "cache_purge",
    "cache_revalidate",
    "cache_use_stale",
    "cache_valid",
    "force_ranges",
    "ignore_client_abort",
    "limit_rate",
    "max_temp_file_size",
    "no_cache",
    "pass_request_body",
    "pass_request_headers",
    "request_buffering",
    "store",
    "store_access",
    "temp_file_write_size",
    "temp_path",
];

/// Directives of gateways that may reach their servers over TLS.
const TLS: &[&str] = &[
    "ssl_certificate",
    "ssl_certificate_cache",
    "ssl_certificate_key",
    "ssl_ciphers",
    "ssl_conf_command",
    "ssl_crl",
    "ssl_key_log",
    "ssl_name",
    "ssl_password_file",
    "ssl_protocols",
    "ssl_server_name",
    "ssl_session_reuse",
    "ssl_trusted_certificate",
    "ssl_verify",
    "ssl_verify_depth",
];

/// Directives that nginx does not have, of gateways with caches.
const ADDED: &[&str] = &[
    "cache_background_max",
    "cache_purge_tag",
    "cache_quota",
    "cache_refresh_ahead",
    "cache_rfc9111",
    "cache_status",
    "cache_tag",
    "cache_targeted",
];

/// Names of directives, without a prefix.
type Names = &'static [&'static str];

/// A gateway: its prefix, its groups, and what it has besides.
const GATEWAYS: &[(&str, &[Names], Names)] = &[
    (
        "proxy_",
        &[CONNECTION, SOCKETS, RESPONSES, BODIES, TLS],
        &[
            "cache_convert_head",
            "cookie_domain",
            "cookie_flags",
            "cookie_path",
            "headers_hash_bucket_size",
            "headers_hash_max_size",
            "http_version",
            "method",
            "pass_trailers",
            "redirect",
            "send_lowat",
            "set_body",
            "set_header",
        ],
    ),
    (
        "fastcgi_",
        &[CONNECTION, SOCKETS, RESPONSES, BODIES],
        &["catch_stderr", "index", "keep_conn", "param", "send_lowat", "split_path_info"],
    ),
    ("uwsgi_", &[CONNECTION, SOCKETS, RESPONSES, BODIES, TLS], &["modifier1", "modifier2", "param"]),
    ("scgi_", &[CONNECTION, SOCKETS, RESPONSES, BODIES], &["param"]),
    ("grpc_", &[CONNECTION, SOCKETS, RESPONSES, TLS], &["set_header"]),
    ("memcached_", &[CONNECTION], &["gzip_flag"]),
    ("tunnel_", &[CONNECTION, SOCKETS], &["send_lowat"]),
];

#[test]
fn every_gateway_has_the_directives_of_nginx() {
    let all = tw_server::load::all_directives(tw_modules::MODULES);
    for (prefix, groups, own) in GATEWAYS {
        // proxy_connect is a module of its own.
        let is_of_gateway = |name: &&str| *name == "connect_timeout" || !name.starts_with("connect");
        let ours: BTreeSet<&str> =
            all.iter().filter_map(|(_, info)| info.name.strip_prefix(prefix)).filter(is_of_gateway).collect();
        let theirs = groups.iter().copied().flatten().chain(*own).copied();
        let added: &[&str] = if groups.contains(&BODIES) { ADDED } else { &[] };
        let added = added.iter().chain(ADDED_TO_ALL).copied();
        let expected: BTreeSet<&str> = theirs.chain(added).collect();
        let lacks: Vec<_> = expected.difference(&ours).collect();
        let more: Vec<_> = ours.difference(&expected).collect();
        assert!(lacks.is_empty() && more.is_empty(), "{prefix}: lacks {lacks:?}, has {more:?}");
    }
}

#[test]
fn shared_directives_are_equal_in_all_gateways() {
    let all = tw_server::load::all_directives(tw_modules::MODULES);
    let of = |prefix: &str, name: &str| {
        let entry = all.iter().find(|(_, info)| info.name.strip_prefix(prefix) == Some(name));
        entry.map(|(_, info)| (info.contexts, info.args, info.default, info.doc))
    };
    // Words, names and places differ with the prefix.
    let differs = |name: &str| matches!(name, "pass" | "next_upstream" | "cache_use_stale" | "ssl_name");
    for (prefix, groups, _) in GATEWAYS {
        for name in groups.iter().copied().flatten().filter(|name| !differs(name)) {
            // `tunnel_buffer_size` is about relayed data, not about a response head.
            if (*prefix, *name) == ("tunnel_", "buffer_size") {
                continue;
            }
            assert_eq!(of(prefix, name), of("proxy_", name), "{prefix}{name}");
        }
    }
}
