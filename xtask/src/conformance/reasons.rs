//! Known reasons why files of the suite fail.

/// Files, without their ending, and why they fail.
const REASONS: &[(&str, &str)] = &[
    (
        "access_log",
        "It reads a log at the moment the response is there. A line is written by another thread.",
    ),
    ("error_log", "It reads a log at the moment the response is there. A line is written by another thread."),
    (
        "grpc",
        "The suite's client sends frames of more than the 16 KiB that were announced, which nginx takes; here they are an error (RFC 9113, section 4.2), and each check behind waits for an answer.",
    ),
    (
        "grpc_request_buffering",
        "A client that sends more than the window of its stream, before that is made larger for its request.",
    ),
    ("grpc_ssl", "As `grpc`: a `DATA` frame of more than the 16 KiB that were announced."),
    (
        "h2",
        "Half a head ends with its connection, not with its stream; a reload keeps connections; frames of 16 KiB.",
    ),
    (
        "h2_fastcgi_request_buffering",
        "What completes the declared length is passed on when the stream has ended: more would make the request malformed.",
    ),
    (
        "h2_headers",
        "A list of fields that is too large costs its request, not the connection; a number in HPACK that its block cuts off is an error of compression, not of the size of a frame, and one whose frame is not complete is waited for; control characters in values of responses; `HEADERS` of more than 16 KiB, which nginx allows.",
    ),
    ("h2_keepalive", "The first `GOAWAY` names no last stream, the second does; a reload keeps connections."),
    ("h2_priority", "Priorities of RFC 7540, which RFC 9113 has taken back."),
    ("h2_proxy_request_buffering", "As `h2_fastcgi_request_buffering`."),
    ("h2_server_tokens", "It looks for `nginx` in `Server`."),
    (
        "http_resolver",
        "A name of more than 255 bytes is none; when the first name server cannot answer, the next one is asked.",
    ),
    (
        "http_resolver_aaaa",
        "As `http_resolver`; addresses of one family are used when there is an error instead of the other, and each family follows its own aliases.",
    ),
    (
        "memcached_keepalive",
        "It expects that `HEAD` costs the connection. Here it is kept if the value is there already.",
    ),
    ("proxy_bind_transparent", "It has a `user` of its own, beside the one that a run as root needs."),
    (
        "proxy_cache",
        "A response that is compressed here has a `Content-Length`, so what the check looks for in a chunked one is not there.",
    ),
    (
        "proxy_cache_lock_age",
        "It expects that who waits asks for himself while the response comes. Here he gets it as it comes.",
    ),
    ("proxy_cache_manager", "It has a `keys_zone` of 16 KiB, which is too small here."),
    (
        "proxy_cache_use_stale",
        "A connection of the client waits there for an update in the background, which here is a request of its own; several checks ask again before it is done.",
    ),
    ("proxy_cache_vary", "A variant that was revalidated is asked for once more where a hit is expected."),
    (
        "proxy_connection_headers",
        "`Upgrade` of an upstream response that is no 101 is not passed on: it is about the connection to the upstream (RFC 9110, section 7.6.1).",
    ),
    (
        "proxy_h2",
        "`$upstream_response_time` is known in the head, because the response was there as a whole.",
    ),
    ("proxy_h2_body_discard", "A response that has ended is good, whatever `RST_STREAM` comes behind it."),
    ("proxy_h2_cache", "As `proxy_cache`."),
    ("proxy_h2_headers", "A server may change the size of the table of HPACK."),
    (
        "proxy_if",
        "In an `if` without a handler, behind one with `proxy_pass`, nginx answers 500; here the `proxy_pass` holds.",
    ),
    (
        "proxy_merge_headers",
        "With `proxy_pass_header Date` (`Server`) and an upstream that sends none, nginx sends none; here there is our own.",
    ),
    (
        "proxy_ssl",
        "A second request goes out on the connection of the first, which was kept, so there is no session to take up.",
    ),
    (
        "proxy_ssl_certificate_cache",
        "As `proxy_ssl`: a connection on which a certificate was shown is used again when its file has changed.",
    ),
    ("proxy_ssl_conf_command", "The commands `Certificate` and `PrivateKey` are those of OpenSSL."),
    ("proxy_upgrade", "A 101 that no client asked for is a 502 with a page; nginx passes it on."),
    ("server_tokens", "It looks for `nginx` in `Server`. It passes when it looks for `tailwater`."),
    (
        "slice",
        "Of a response whose second slice is wrong a client gets the first one, where nginx has sent nothing yet.",
    ),
    ("ssl_cache_reload", "`ssl_object_cache_inheritable` is not there."),
    ("ssl_certificate_perl", "There is no Perl."),
    ("ssl_conf_command", "The commands `Certificate` and `PrivateKey` are those of OpenSSL."),
    ("ssl_engine_keys", "There are no engines of OpenSSL."),
    ("ssl_provider_keys", "There are no providers of OpenSSL."),
    ("ssl_proxy_upgrade", "As `proxy_upgrade`."),
    ("ssl_store_keys", "There are no stores of OpenSSL."),
    ("sub_filter_multi", "Not looked at closely: one check of the buffers at the border of a match."),
    (
        "tunnel_next_upstream",
        "It needs a network in which 240.0.0.1 answers nothing; where something does, nginx fails the same checks.",
    ),
    (
        "upstream_sticky_drain",
        "It waits until a reload has ended a worker process, which none does here. What it asks passes when it waits for the line that the new configuration is there.",
    ),
    ("upstream_sticky_learn", "As `upstream_sticky_drain`."),
    (
        "worker_shutdown_timeout",
        "It expects that a reload closes idle connections and tunnels. Here they outlive it; at the end of the process the directive does what it says.",
    ),
    ("worker_shutdown_timeout_h2", "As `worker_shutdown_timeout`."),
    ("worker_shutdown_timeout_proxy_upgrade", "As `worker_shutdown_timeout`."),
];

/// The reason why a file fails.
pub(super) fn reason(file: &str) -> Option<&'static str> {
    REASONS.iter().find(|(name, _)| *name == file).map(|(_, why)| *why)
}
