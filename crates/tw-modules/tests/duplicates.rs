//! Every directive has a field of its own: given twice it is refused where nginx refuses it, and no two directives set
//! the same field. Checks all records, so a new directive is tested without being named here, unless it may be given
//! twice or takes words that its default does not show.

mod support;

use tw_conf::{
    Contexts, DirectiveInfo, EVENTS, HTTP, IF_IN_LOCATION, IF_IN_SERVER, LIMIT_EXCEPT, LOCATION, Level, MAIN,
    MODULE_BLOCK, SERVER, UPSTREAM,
};

/// Directives that may be given several times in a block. Facts of nginx 1.31: lists, bits that add up, and handlers,
/// of which the last one counts.
const REPEATABLE: &[&str] = &[
    "access_log",
    "add_header",
    "add_trailer",
    "addition_types",
    "allow",
    "ancient_browser",
    "auth_request_set",
    "break",
    "brotli_types",
    "charset_map",
    "charset_types",
    "contact",
    "dav_methods",
    "debug_connection",
    "debug_disk_fault",
    "deny",
    "early_hints",
    "empty_gif",
    "env",
    "error_log",
    "error_page",
    "fastcgi_allow_upstream",
    "fastcgi_cache_bypass",
    "fastcgi_cache_methods",
    "fastcgi_cache_path",
    "fastcgi_cache_purge",
    "fastcgi_cache_purge_tag",
    "fastcgi_cache_tag",
    "fastcgi_cache_use_stale",
    "fastcgi_cache_valid",
    "fastcgi_catch_stderr",
    "fastcgi_hide_header",
    "fastcgi_ignore_headers",
    "fastcgi_next_upstream",
    "fastcgi_no_cache",
    "fastcgi_param",
    "fastcgi_pass_header",
    "flv",
    "geo",
    "grpc_allow_upstream",
    "grpc_hide_header",
    "grpc_ignore_headers",
    "grpc_next_upstream",
    "grpc_pass_header",
    "grpc_set_header",
    "grpc_ssl_conf_command",
    "gzip_disable",
    "gzip_proxied",
    "gzip_types",
    "hash",
    "http2_idle_timeout",
    "http2_max_concurrent_pushes",
    "http2_max_field_size",
    "http2_max_header_size",
    "http2_max_requests",
    "http2_push",
    "http2_push_preload",
    "http2_recv_timeout",
    "index",
    "ip_hash",
    "keepalive_disable",
    "least_conn",
    "least_time",
    "limit_conn_zone",
    "limit_req_zone",
    "listen",
    "load_module",
    "log_format",
    "map",
    "match",
    "memcached_allow_upstream",
    "memcached_next_upstream",
    "mirror",
    "modern_browser",
    "mp4",
    "otel_resource_attr",
    "otel_span_attr",
    "proxy_allow_upstream",
    "proxy_cache_bypass",
    "proxy_cache_methods",
    "proxy_cache_path",
    "proxy_cache_purge",
    "proxy_cache_purge_tag",
    "proxy_cache_tag",
    "proxy_cache_use_stale",
    "proxy_cache_valid",
    "proxy_cookie_domain",
    "proxy_cookie_flags",
    "proxy_cookie_path",
    "proxy_hide_header",
    "proxy_ignore_headers",
    "proxy_next_upstream",
    "proxy_no_cache",
    "proxy_pass_header",
    "proxy_redirect",
    "proxy_set_header",
    "proxy_ssl_conf_command",
    "random",
    "return",
    "rewrite",
    "scgi_allow_upstream",
    "scgi_cache_bypass",
    "scgi_cache_methods",
    "scgi_cache_path",
    "scgi_cache_purge",
    "scgi_cache_purge_tag",
    "scgi_cache_tag",
    "scgi_cache_use_stale",
    "scgi_cache_valid",
    "scgi_hide_header",
    "scgi_ignore_headers",
    "scgi_next_upstream",
    "scgi_no_cache",
    "scgi_param",
    "scgi_pass_header",
    "server",
    "server_name",
    "set",
    "set_decode_base32",
    "set_decode_base64",
    "set_decode_base64url",
    "set_decode_hex",
    "set_encode_base32",
    "set_encode_base64",
    "set_encode_base64url",
    "set_encode_hex",
    "set_escape_uri",
    "set_formatted_gmt_time",
    "set_formatted_local_time",
    "set_hashed_upstream",
    "set_hmac_sha1",
    "set_hmac_sha256",
    "set_if_empty",
    "set_local_today",
    "set_md5",
    "set_quote_json_str",
    "set_quote_pgsql_str",
    "set_quote_sql_str",
    "set_random",
    "set_real_ip_from",
    "set_rotate",
    "set_secure_random_alphanum",
    "set_secure_random_lcalpha",
    "set_sha1",
    "set_unescape_uri",
    "split_clients",
    "ssi_types",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_conf_command",
    "ssl_session_ticket_key",
    "stub_status",
    "sub_filter",
    "sub_filter_types",
    "thread_pool",
    "tunnel_allow_upstream",
    "tunnel_next_upstream",
    "types",
    "upstream_list",
    "userid_flags",
    "uwsgi_allow_upstream",
    "uwsgi_cache_bypass",
    "uwsgi_cache_methods",
    "uwsgi_cache_path",
    "uwsgi_cache_purge",
    "uwsgi_cache_purge_tag",
    "uwsgi_cache_tag",
    "uwsgi_cache_use_stale",
    "uwsgi_cache_valid",
    "uwsgi_hide_header",
    "uwsgi_ignore_headers",
    "uwsgi_next_upstream",
    "uwsgi_no_cache",
    "uwsgi_param",
    "uwsgi_pass_header",
    "uwsgi_ssl_conf_command",
    "valid_referers",
    "zstd_types",
];

/// Words for those whose default does not show any.
const WORDS: &[(&str, &str)] = &[
    ("debug_disk_fault", "path=/a op=open delay=1s"),
    ("debug_points", "stop"),
    ("acme_certificate", "a b.example"),
    ("acme_issuer", "a { uri https://a.example/; ssl_verify off; }"),
    ("access_log", "off"),
    ("add_after_body", "/a"),
    ("add_before_body", "/a"),
    ("add_header", "a b"),
    ("add_trailer", "a b"),
    ("alias", "/a/"),
    ("allow", "all"),
    ("ancient_browser", "a"),
    ("api", "write=on"),
    ("auth_basic_user_file", "a"),
    ("auth_request", "/a"),
    ("auth_request_set", "$e 1"),
    ("charset_map", "koi8-r utf-8 { 80 E282AC; }"),
    ("client_body_early_read", "a"),
    ("debug_connection", "127.0.0.1"),
    ("deny", "all"),
    ("external_account_key", "a data:AAAA"),
    ("early_hints", "a"),
    ("error_log", "stderr"),
    ("error_page", "404 /a"),
    ("geo", "$a { default 1; }"),
    ("gzip_disable", "a"),
    ("hash", "$uri"),
    ("health_check", "fails=2"),
    ("least_time", "header"),
    ("limit_conn", "a 1"),
    ("limit_conn_zone", "$uri zone=a:1m"),
    ("limit_req", "zone=a"),
    ("limit_req_zone", "$uri zone=b:1m rate=1r/s"),
    ("listen", "127.0.0.1:1"),
    ("load_module", "ngx_http_brotli_filter_module.so"),
    ("lock_file", "a"),
    ("log_format", "a b"),
    ("map", "$uri $b { default 1; }"),
    ("match", "a { status 200; }"),
    ("otel_exporter", "{ endpoint localhost:4317; }"),
    ("otel_resource_attr", "a b"),
    ("otel_span_attr", "a b"),
    ("mirror", "/a"),
    ("modern_browser", "gecko 1.0"),
    ("post_action", "/a"),
    ("proxy_allow_upstream", "a"),
    ("proxy_bind", "127.0.0.1"),
    ("proxy_buffer_size", "4k"),
    ("proxy_buffers", "8 4k"),
    ("proxy_busy_buffers_size", "8k"),
    ("proxy_cache_key", "a"),
    ("proxy_cache_path", "a keys_zone=a:1m"),
    ("proxy_cache_valid", "1m"),
    ("proxy_cookie_domain", "a b"),
    ("proxy_cookie_flags", "a secure"),
    ("proxy_cookie_path", "a b"),
    ("proxy_hide_header", "a"),
    ("proxy_ignore_headers", "Vary"),
    ("proxy_method", "GET"),
    ("proxy_pass", "http://127.0.0.1"),
    ("proxy_pass_header", "a"),
    ("proxy_redirect", "a b"),
    ("proxy_set_body", "a"),
    ("proxy_set_header", "a b"),
    ("proxy_ssl_conf_command", "MinProtocol TLSv1.2"),
    ("proxy_socket_rcvbuf", "1k"),
    ("proxy_socket_sndbuf", "1k"),
    ("proxy_temp_file_write_size", "8k"),
    ("proxy_temp_path", "a"),
    ("random", "two"),
    ("resolver", "127.0.0.1"),
    ("return", "404"),
    ("rewrite", "a b"),
    ("secure_link", "$arg_a"),
    ("secure_link_md5", "$arg_a"),
    ("secure_link_secret", "a"),
    ("server", "127.0.0.1:1"),
    ("server_name", "a"),
    ("server_tokens", "on"),
    ("set", "$c 1"),
    ("set_decode_base32", "$c a"),
    ("set_decode_base64", "$c a"),
    ("set_decode_base64url", "$c a"),
    ("set_decode_hex", "$c a"),
    ("set_encode_base32", "$c a"),
    ("set_encode_base64", "$c a"),
    ("set_encode_base64url", "$c a"),
    ("set_encode_hex", "$c a"),
    ("set_escape_uri", "$c a"),
    ("set_formatted_gmt_time", "$c a"),
    ("set_formatted_local_time", "$c a"),
    ("set_hashed_upstream", "$c $uri a"),
    ("set_hmac_sha1", "$c a b"),
    ("set_hmac_sha256", "$c a b"),
    ("set_if_empty", "$c a"),
    ("set_local_today", "$c"),
    ("set_md5", "$c a"),
    ("set_quote_json_str", "$c a"),
    ("set_quote_pgsql_str", "$c a"),
    ("set_quote_sql_str", "$c a"),
    ("set_random", "$c 1 2"),
    ("set_rotate", "$c 1 2"),
    ("set_secure_random_alphanum", "$c 8"),
    ("set_secure_random_lcalpha", "$c 8"),
    ("set_sha1", "$c a"),
    ("set_unescape_uri", "$c a"),
    ("upstream_list", "a b"),
    ("set_real_ip_from", "127.0.0.1"),
    ("source_charset", "utf-8"),
    ("split_clients", "$uri $d { * 1; }"),
    ("state", "a"),
    ("ssl_conf_command", "MinProtocol TLSv1.2"),
    ("sticky", "cookie a"),
    ("ssl_conf_command", "MinProtocol TLSv1.2"),
    ("sub_filter", "a b"),
    ("subrequest_output_buffer_size", "4k"),
    ("thread_pool", "a threads=1"),
    ("timer_resolution", "1s"),
    ("try_files", "$uri /a"),
    ("types", "{ a/b c; }"),
    ("uri", "https://a.example/"),
    ("user", "nobody"),
    ("userid_service", "1"),
    ("valid_referers", "a.b"),
    ("worker_cpu_affinity", "auto"),
    // The default counts as not given, as in nginx.
    ("worker_priority", "1"),
    ("working_directory", "/"),
    ("zone", "a 64k"),
    ("grpc_allow_upstream", "a"),
    ("grpc_bind", "127.0.0.1"),
    ("grpc_buffer_size", "4k"),
    ("grpc_hide_header", "a"),
    ("grpc_ignore_headers", "Vary"),
    ("grpc_pass", "a:1"),
    ("grpc_pass_header", "a"),
    ("grpc_set_header", "a b"),
    ("grpc_ssl_name", "a"),
    ("grpc_ssl_conf_command", "MinProtocol TLSv1.2"),
    ("grpc_socket_rcvbuf", "1k"),
    ("grpc_socket_sndbuf", "1k"),
    ("fastcgi_allow_upstream", "a"),
    ("fastcgi_bind", "127.0.0.1"),
    ("fastcgi_buffer_size", "4k"),
    ("fastcgi_buffers", "8 4k"),
    ("fastcgi_busy_buffers_size", "8k"),
    ("fastcgi_cache_key", "a"),
    ("fastcgi_cache_path", "a keys_zone=f:1m"),
    ("fastcgi_cache_valid", "1m"),
    ("fastcgi_catch_stderr", "a"),
    ("fastcgi_hide_header", "a"),
    ("fastcgi_ignore_headers", "Vary"),
    ("fastcgi_index", "a"),
    ("fastcgi_param", "a b"),
    ("fastcgi_pass", "127.0.0.1:1"),
    ("fastcgi_pass_header", "a"),
    ("fastcgi_socket_rcvbuf", "1k"),
    ("fastcgi_socket_sndbuf", "1k"),
    ("fastcgi_split_path_info", "^(a)(b)$"),
    ("fastcgi_temp_file_write_size", "8k"),
    ("fastcgi_temp_path", "a"),
    ("memcached_allow_upstream", "a"),
    ("memcached_bind", "127.0.0.1"),
    ("memcached_buffer_size", "4k"),
    ("memcached_pass", "127.0.0.1:1"),
    ("scgi_allow_upstream", "a"),
    ("scgi_bind", "127.0.0.1"),
    ("scgi_buffer_size", "4k"),
    ("scgi_buffers", "8 4k"),
    ("scgi_busy_buffers_size", "8k"),
    ("scgi_cache_key", "a"),
    ("scgi_cache_path", "a keys_zone=s:1m"),
    ("scgi_cache_valid", "1m"),
    ("scgi_hide_header", "a"),
    ("scgi_ignore_headers", "Vary"),
    ("scgi_param", "a b"),
    ("scgi_pass", "127.0.0.1:1"),
    ("scgi_pass_header", "a"),
    ("scgi_socket_rcvbuf", "1k"),
    ("scgi_socket_sndbuf", "1k"),
    ("scgi_temp_file_write_size", "8k"),
    ("scgi_temp_path", "a"),
    ("tunnel_allow_upstream", "a"),
    ("tunnel_bind", "127.0.0.1"),
    ("tunnel_pass", "127.0.0.1:1"),
    ("tunnel_socket_rcvbuf", "1k"),
    ("tunnel_socket_sndbuf", "1k"),
    ("uwsgi_allow_upstream", "a"),
    ("uwsgi_bind", "127.0.0.1"),
    ("uwsgi_buffer_size", "4k"),
    ("uwsgi_buffers", "8 4k"),
    ("uwsgi_busy_buffers_size", "8k"),
    ("uwsgi_cache_key", "a"),
    ("uwsgi_cache_path", "a keys_zone=u:1m"),
    ("uwsgi_cache_valid", "1m"),
    ("uwsgi_hide_header", "a"),
    ("uwsgi_ignore_headers", "Vary"),
    ("uwsgi_param", "a b"),
    ("uwsgi_pass", "127.0.0.1:1"),
    ("uwsgi_pass_header", "a"),
    ("uwsgi_socket_rcvbuf", "1k"),
    ("uwsgi_socket_sndbuf", "1k"),
    ("uwsgi_ssl_conf_command", "MinProtocol TLSv1.2"),
    ("uwsgi_ssl_name", "a"),
    ("uwsgi_temp_file_write_size", "8k"),
    ("uwsgi_temp_path", "a"),
];

/// A directive as it may stand in a configuration.
fn sample(info: &DirectiveInfo) -> String {
    let words = match (WORDS.iter().find(|(name, _)| *name == info.name), info.default, info.syntax) {
        (Some((_, words)), _, _) => words,
        (None, Some(default), _) => default,
        (None, None, "") => "",
        (None, None, "on | off") => "on",
        (None, None, _) => "1",
    };
    let end = if words.ends_with('}') { "" } else { ";" };
    format!("{} {words}{end}", info.name)
}

/// A configuration with this in a block of one context.
fn within(context: Contexts, text: &str) -> String {
    match context {
        MAIN => format!("{text} events {{ }}"),
        EVENTS => format!("events {{ {text} }}"),
        HTTP => format!("events {{ }} http {{ {text} }}"),
        SERVER => within(HTTP, &format!("server {{ {text} }}")),
        LOCATION => within(SERVER, &format!("location /a/ {{ {text} }}")),
        IF_IN_SERVER => within(SERVER, &format!("if ($uri) {{ {text} }}")),
        IF_IN_LOCATION => within(LOCATION, &format!("if ($uri) {{ {text} }}")),
        LIMIT_EXCEPT => within(LOCATION, &format!("limit_except GET {{ {text} }}")),
        UPSTREAM => within(HTTP, &format!("upstream u {{ server 127.0.0.1; {text} }}")),
        MODULE_BLOCK => within(HTTP, &format!("acme_issuer a {{ {text} }}")),
        _ => panic!("no record of ours has another context"),
    }
}

/// Messages of the mistakes of a configuration.
fn mistakes(text: &str) -> Vec<String> {
    let errors = support::mistakes(text).into_iter().filter(|mistake| mistake.level == Level::Emerg);
    errors.map(|mistake| mistake.message).collect()
}

/// Every record but those of blocks that make the structure, each with its contexts one by one.
fn records() -> Vec<(DirectiveInfo, Vec<Contexts>)> {
    let all = tw_server::load::all_directives(tw_modules::MODULES).into_iter();
    let all = all.filter(|(module, _)| *module != tw_modules::TRAP).map(|(_, info)| info);
    // One that is always refused has no place.
    let all = all.filter(|info| info.name != "zstd_dict_file");
    all.map(|info| (info, (0..32).map(|bit| 1 << bit).filter(|bit| info.contexts & bit != 0).collect()))
        .collect()
}

#[test]
fn repeated_directives_are_refused_where_nginx_refuses_them() {
    let mut wrong = Vec::new();
    for (info, contexts) in records() {
        for context in contexts {
            let text = sample(&info);
            let once = mistakes(&within(context, &text));
            if once.iter().any(|said| said.contains("duplicate")) {
                wrong.push(format!("once: {text}: {once:?}"));
            }
            let twice = mistakes(&within(context, &format!("{text} {text}")));
            let refusal = format!("\"{}\" directive is duplicate", info.name);
            let is_refused = twice.contains(&refusal);
            if is_refused == REPEATABLE.contains(&info.name) {
                wrong.push(format!("twice in context {context:#x}: {text}: {twice:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_two_directives_share_a_place() {
    let records = records();
    let contexts = [
        MAIN,
        EVENTS,
        HTTP,
        SERVER,
        LOCATION,
        IF_IN_SERVER,
        IF_IN_LOCATION,
        LIMIT_EXCEPT,
        UPSTREAM,
        MODULE_BLOCK,
    ];
    for context in contexts {
        let here = records.iter().filter(|(_, contexts)| contexts.contains(&context));
        // These are two words for one thing.
        let here = here.filter(|(info, _)| context != LOCATION || info.name != "alias");
        let mut text: Vec<String> = here.map(|(info, _)| sample(info)).collect();
        assert!(!text.is_empty(), "{context:#x}");
        // Of two that share a place, perhaps only one looks whether it is taken.
        for _ in 0..2 {
            let said = mistakes(&within(context, &text.join("\n")));
            let collisions: Vec<_> = said.iter().filter(|said| said.contains("is duplicate")).collect();
            assert!(collisions.is_empty(), "context {context:#x}: {collisions:?}");
            text.reverse();
        }
    }
}

#[test]
fn the_lists_name_directives() {
    let records = records();
    for name in REPEATABLE.iter().chain(WORDS.iter().map(|(name, _)| name)) {
        assert!(records.iter().any(|(info, _)| info.name == *name), "{name}");
    }
    // What is refused for another reason would pass for a directive that may be given twice.
    for (info, contexts) in &records {
        let said = mistakes(&within(contexts[0], &sample(info)));
        let about: Vec<_> = said.iter().filter(|said| said.contains(&format!("\"{}\"", info.name))).collect();
        assert!(about.is_empty(), "{}: {about:?}", sample(info));
    }
}
