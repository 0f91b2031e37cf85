//! Known reasons why files of the suite fail.

/// Files, without their ending, and why they fail.
const REASONS: &[(&str, &str)] = &[
    (
        "access_log",
        "It reads the log as soon as the response has arrived. Here another thread writes the line a moment later.",
    ),
    (
        "error_log",
        "It reads the log as soon as the response has arrived. Here another thread writes the line a moment later.",
    ),
    (
        "fastcgi_unix",
        "A client names a Unix socket by an argument of its request (`fastcgi_pass $arg_b`), which is refused: only the configuration names sockets.",
    ),
    (
        "grpc",
        "The client of the suite sends frames larger than the announced 16 KiB. nginx accepts them; here they are an error (RFC 9113, section 4.2), and each later check waits for a response.",
    ),
    ("grpc_request_buffering", "The client sends more than the initial window of its stream."),
    ("grpc_ssl", "As `grpc`: a `DATA` frame larger than the announced 16 KiB."),
    (
        "h2",
        "An incomplete header block ends with its connection, not with its stream; a reload keeps connections; frames larger than 16 KiB.",
    ),
    (
        "h2_fastcgi_request_buffering",
        "The last bytes of the declared length are passed on only when the stream has ended, because further data would make the request malformed.",
    ),
    (
        "h2_headers",
        "A header list that is too large fails its request, not the connection; a truncated integer in HPACK is a compression error, not a frame size error, and an incomplete frame is waited for; control characters in response fields; `HEADERS` of more than 16 KiB, which nginx allows.",
    ),
    (
        "h2_keepalive",
        "The first `GOAWAY` contains no last stream, the second does; a reload keeps connections.",
    ),
    ("h2_priority", "Priorities of RFC 7540, which RFC 9113 has deprecated."),
    ("h2_proxy_request_buffering", "As `h2_fastcgi_request_buffering`."),
    (
        "h3_congestion_ack",
        "The client of the suite acknowledges nothing for a while, so the server sends the session tickets again (RFC 9002, section 6.2.4; nginx sends `PING`). The client has deleted what it has read of them, and ends because the copy differs. With a client that ignores the copy, it passes.",
    ),
    (
        "h3_headers",
        "As `h3_congestion_ack`. With a client that ignores the copy, 6 checks fail: a reference to an evicted entry and too large a table end the connection with the error code of RFC 9204, in other words than nginx; the table has place for fields that are larger than a request may have (2 checks); control characters in response fields become spaces; a blocked request that its client resets is reset, not answered with 400.",
    ),
    (
        "h3_keepalive",
        "The first `GOAWAY` contains no last stream, the second does; a reload keeps connections.",
    ),
    ("h3_limit_req", "As `h3_congestion_ack`. With a client that ignores the copy, it passes."),
    (
        "h3_proxy",
        "As `h3_congestion_ack`. With a client that ignores the copy, 1 check fails: `limit_rate` does not delay the head of a response, so the client has the status before it stops the request.",
    ),
    (
        "h3_proxy_max_temp_file_size",
        "As `h3_congestion_ack`. With a client that ignores the copy, 2 checks fail, because it does not know that a server may update its keys (RFC 9001, section 6).",
    ),
    (
        "http_resolver",
        "A name of more than 255 bytes is invalid; if the first name server cannot answer, the next one is queried.",
    ),
    (
        "http_resolver_aaaa",
        "As `http_resolver`; if the query for one address family fails, addresses of the other are used, and each family follows its own aliases.",
    ),
    (
        "image_filter",
        "Pictures are not interlaced, and JPEG files have no comment of libgd with their quality.",
    ),
    (
        "memcached_keepalive",
        "It expects that `HEAD` closes the connection to memcached. Here the connection is kept if the value has already arrived.",
    ),
    ("proxy_bind_transparent", "It contains a `user` directive, and a run as root adds another one."),
    ("proxy_cache", "A compressed response has a `Content-Length` here; the check expects a chunked one."),
    (
        "proxy_cache_lock_age",
        "It expects that a waiting request is sent upstream while another response arrives. Here the waiting request receives that response as it arrives.",
    ),
    (
        "proxy_cache_manager",
        "With `max_size=0`, nothing is kept here, not even until the cache manager looks (2 checks). A key takes less memory, so a `keys_zone` of 16 KiB has room for all entries of the test.",
    ),
    (
        "proxy_cache_use_stale",
        "In nginx, the client connection waits for a background update. Here the update is a separate request, and several checks send the next request before it is done.",
    ),
    ("proxy_cache_vary", "A revalidated variant is requested once more where a hit is expected."),
    (
        "proxy_connection_headers",
        "`Upgrade` in an upstream response other than 101 is not passed on, because it applies to the upstream connection (RFC 9110, section 7.6.1).",
    ),
    (
        "proxy_h2",
        "`$upstream_response_time` is already known in the response header, because the response had arrived completely.",
    ),
    ("proxy_h2_body_discard", "A complete response is valid, also if `RST_STREAM` follows."),
    ("proxy_h2_cache", "As `proxy_cache`."),
    ("proxy_h2_headers", "An upstream server may change the size of the HPACK table."),
    (
        "proxy_if",
        "In an `if` without a handler after one with `proxy_pass`, nginx returns 500; here the `proxy_pass` applies.",
    ),
    (
        "proxy_merge_headers",
        "With `proxy_pass_header Date` (or `Server`) and an upstream server that sends none, nginx sends none; Tailwater sends its own.",
    ),
    ("proxy_ssl", "The second request uses the kept connection of the first, so no session is resumed."),
    (
        "proxy_ssl_certificate_cache",
        "As `proxy_ssl`: a connection with a client certificate is reused after the certificate file has changed.",
    ),
    ("proxy_ssl_conf_command", "The commands `Certificate` and `PrivateKey` exist only in OpenSSL."),
    ("proxy_unix", "As `fastcgi_unix`, with `proxy_pass http://$arg_b`."),
    (
        "proxy_upgrade",
        "A 101 without an upgrade request becomes a 502 with an error page; nginx passes it on.",
    ),
    (
        "quic_retry",
        "A token that cannot be decrypted is as none: the client gets a new `Retry` (RFC 9000, section 8.1.3). nginx ends the handshake, so a client with a token of another server or of an earlier key could not connect.",
    ),
    (
        "slice",
        "If the second slice is wrong, the client has already received the first one; nginx has sent nothing yet.",
    ),
    (
        "js_clone_failure",
        "A module that throws while it is loaded makes each request fail in njs. Here the configuration is refused.",
    ),
    ("js_engine", "Scripts always run on QuickJS, and `njs.engine` says so, also with `js_engine njs`."),
    (
        "js_fetch_keepalive",
        "Its upstream server closes connections by `add_header Connection close`, which is ignored here with a warning, because such fields frame the response.",
    ),
    (
        "js_headers",
        "It expects `nginx` in the `Server` field (1 check), and `Content-Length` behind other fields of the response.",
    ),
    ("js_native_module", "Native modules are not supported."),
    ("js_preload_object", "`js_preload_object` is not supported, as in njs on QuickJS."),
    (
        "js_request_body",
        "A script reads the temporary file of a request body by `fs`, which sees only directories that the configuration names.",
    ),
    (
        "js_subrequests",
        "A subrequest that a function of `js_set` begins ends with the function. In njs it goes on, and its callback answers in place of `js_content` (2 checks).",
    ),
    (
        "js_periodic",
        "It waits 0.2 s for the first calls; a debug build under load starts later. With a longer wait it passes.",
    ),
    (
        "js_periodic_file",
        "A script uses `fs` without the directive `js_fs_path`, which names the directories that scripts may use.",
    ),
    ("js_shared_dict", "It expects the first keys of a dictionary in the order of nginx's tree."),
    ("stream_js_exit", "`njs.on('exit')` is not called in `stream`."),
    (
        "stream_js_object",
        "`s.variables.status` is given a value, which only variables of `js_var`, `set` and their like can be given.",
    ),
    ("stream_js_periodic_file", "As `js_periodic_file`."),
    ("stream_js_variables", "As `stream_js_object`."),
    ("stream_js_variables_nocache", "As `js_variables_nocache`."),
    (
        "js_variables_nocache",
        "A variable with `nocache` is computed once for each handler that reads it, and two `set` of one location are one handler.",
    ),
    ("ssl_cache_reload", "`ssl_object_cache_inheritable` has no effect."),
    ("ssl_certificate_perl", "Perl is not supported."),
    ("ssl_conf_command", "The commands `Certificate` and `PrivateKey` exist only in OpenSSL."),
    ("ssl_engine_keys", "OpenSSL engines are not supported."),
    ("ssl_provider_keys", "OpenSSL providers are not supported."),
    ("ssl_proxy_upgrade", "As `proxy_upgrade`."),
    ("ssl_store_keys", "OpenSSL key stores are not supported."),
    ("sub_filter_multi", "Not investigated: one check of buffers at the boundary of a match."),
    (
        "tunnel_next_upstream",
        "It needs a network in which 240.0.0.1 does not respond. Otherwise nginx fails the same checks.",
    ),
    (
        "upstream_sticky_drain",
        "It waits until a reload has ended a worker process, which does not happen here. It passes if it waits for the log line about the new configuration.",
    ),
    ("upstream_sticky_learn", "As `upstream_sticky_drain`."),
    (
        "worker_shutdown_timeout",
        "It expects that a reload closes idle connections and tunnels. Here they stay open; the directive applies when the process ends.",
    ),
    ("worker_shutdown_timeout_h2", "As `worker_shutdown_timeout`."),
    ("worker_shutdown_timeout_mail", "As `worker_shutdown_timeout`: a reload ends no session."),
    ("worker_shutdown_timeout_proxy_upgrade", "As `worker_shutdown_timeout`."),
    ("worker_shutdown_timeout_stream", "As `worker_shutdown_timeout`: a reload ends no session."),
];

/// The reason why a file fails.
pub(super) fn reason(file: &str) -> Option<&'static str> {
    REASONS.iter().find(|(name, _)| *name == file).map(|(_, why)| *why)
}
