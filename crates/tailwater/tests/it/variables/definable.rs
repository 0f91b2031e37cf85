//! Variables of a configuration whose names Tailwater or nginx know, too.

use std::collections::BTreeMap;

use tw_app::{Modules, load};
use tw_conf::{Diagnostics, Level, MemoryFiles, Reader, Tree};
use tw_core::load::Prefixes;
use tw_core::shared_objects::SharedObjects;
use tw_core::vars::{VarDef, VarKind};
use tw_testkit::wait;

use crate::support::origin::mirror;
use crate::support::{get, server, start};

/// Variables of nginx's documentation, by module.
const NGINX: &str = include_str!("../../docs/nginx/variables.tsv");

/// Modules of the documentation that the free nginx does not have.
const COMMERCIAL: &[&str] = &[
    "ngx_http_acme_module",
    "ngx_http_auth_jwt_module",
    "ngx_http_oidc_module",
    "ngx_http_proxy_protocol_vendor_module",
    "ngx_http_session_log_module",
    "ngx_otel_module",
    "ngx_stream_mqtt_preread_module",
    "ngx_stream_proxy_protocol_vendor_module",
];

/// Other variables of the documentation that the free nginx 1.31.5 does not have.
const COMMERCIAL_VARIABLES: &[&str] = &[
    "memcached_key",
    "time_iso8601_ms",
    "upstream_last_addr",
    "upstream_last_server_name",
    "upstream_queue_time",
];

/// Variables of nginx that its documentation does not list, as they are members of a family, for one.
const UNDOCUMENTED: &[&str] = &[
    "http_cookie",
    "http_host",
    "http_referer",
    "http_user_agent",
    "http_via",
    "http_x_forwarded_for",
    "sent_http_cache_control",
    "sent_http_connection",
    "sent_http_content_length",
    "sent_http_content_type",
    "sent_http_keep_alive",
    "sent_http_last_modified",
    "sent_http_link",
    "sent_http_location",
    "sent_http_transfer_encoding",
    "tcpinfo_rcv_space",
    "tcpinfo_rttvar",
    "tcpinfo_snd_cwnd",
    "upstream_cache_etag",
    "upstream_cache_last_modified",
];

/// Variables that nginx lets a configuration define, besides those of TLS.
const CHANGEABLE: &[&str] = &[
    "ancient_browser",
    "args",
    "invalid_referer",
    "limit_rate",
    "modern_browser",
    "msie",
    "proxy_host",
    "proxy_port",
    "uid_reset",
];

/// True for each variable of nginx in `http`, or in `stream`, that a configuration may define.
fn nginx(of_stream: bool) -> BTreeMap<&'static str, bool> {
    let modules = NGINX.lines().skip(1).filter_map(|line| line.split_once('\t'));
    let here = modules
        .filter(|(module, _)| module.starts_with("ngx_stream_") == of_stream && !COMMERCIAL.contains(module));
    let documented = here.flat_map(|(_, names)| names.split_ascii_whitespace());
    let others: &[&str] = if of_stream { &["server_name", "ssl_client_escaped_cert"] } else { UNDOCUMENTED };
    let all = documented.chain(others.iter().copied());
    let all = all.filter(|name| !name.ends_with('_') && !COMMERCIAL_VARIABLES.contains(name));
    let is_changeable = |name: &str| {
        name.starts_with("ssl_") && !name.starts_with("ssl_preread_") || CHANGEABLE.contains(&name)
    };
    all.map(|name| (name, is_changeable(name))).collect()
}

/// The first mistake of a configuration, and its notes.
fn loaded(text: &str) -> (Option<String>, Vec<String>) {
    let mut tree = Tree::default();
    let text = format!("events {{ }} {text}");
    Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text.as_bytes()).unwrap();
    let prefixes = Prefixes {
        prefix: b"/p/".to_vec(),
        conf: b"/p/".to_vec(),
        error_log: b"stderr".to_vec(),
        hostname: b"h".to_vec(),
    };
    let modules = Modules {
        http: tw_modules::MODULES,
        stream: tw_modules::STREAM_MODULES,
        mail: tw_modules::MAIL_MODULES,
    };
    let mut diagnostics = Diagnostics::default();
    let files = MemoryFiles::default();
    let loaded = load(&mut tree, &files, &prefixes, modules, &SharedObjects::default(), &mut diagnostics);
    let notes = diagnostics.into_iter().filter(|said| said.level == Level::Notice);
    (loaded.err().map(|rejected| rejected.mistake.message), notes.map(|note| note.message).collect())
}

/// Checks every variable that Tailwater declares: nginx's as in nginx, others can be defined in all ways of `definitions`.
fn check_all<S>(
    declared: Vec<&'static VarDef<S>>,
    nginx: &BTreeMap<&str, bool>,
    definitions: &[&str],
    conf: impl Fn(&str) -> String,
) {
    let mut own = 0;
    for def in declared {
        let (name, is_family) = match def.get {
            VarKind::Family(_) => (format!("{}x_y", def.name), true),
            _ => (def.name.to_owned(), false),
        };
        let all: Vec<_> = definitions.iter().map(|text| text.replace("NAME", &name)).collect();
        match nginx.get(&*name) {
            Some(false) => {
                for definition in all {
                    let refusal = format!("the duplicate \"{name}\" variable");
                    assert_eq!(loaded(&conf(&definition)).0, Some(refusal), "{definition}");
                }
            }
            is_known => {
                let (mistake, notes) = loaded(&conf(&all.concat()));
                assert_eq!(mistake, None, "{all:?}");
                let is_hidden = is_known.is_none() && !is_family;
                let expected = format!("\"${name}\" hides the variable of that name that Tailwater has");
                assert_eq!(notes, Vec::from_iter(is_hidden.then_some(expected)), "{name}");
                own += usize::from(is_hidden);
            }
        }
    }
    assert!(own > 5, "some variables are Tailwater's own");
}

#[test]
fn http_variables_that_nginx_does_not_have_can_be_defined() {
    let core = tw_server::http::variables::VARIABLES.iter().copied().flatten();
    let modules = tw_server::load::modules(tw_modules::MODULES).flat_map(|module| module.variables());
    let definitions = [
        "map $uri $NAME { default a; }",
        "geo $NAME { default a; }",
        "split_clients $uri $NAME { * a; }",
        "num_map $arg_n $NAME { default a; }",
        "keyval_zone zone=z:64k; keyval $uri $NAME zone=z;",
        "json_set $NAME $arg_a a;",
        "auth_jwt_claim_set $NAME a;",
        "server { listen 127.0.0.1:1; server_name ~^(?<NAME>a)$; }",
        "server { listen 127.0.0.1:2; set $NAME a; }",
        "server { listen 127.0.0.1:3; rewrite ^(?<NAME>/a) /b; }",
        "server { listen 127.0.0.1:4; location ~ ^/(?<NAME>a) { } }",
        "server { listen 127.0.0.1:5; location / { auth_request_set $NAME a; } }",
    ];
    // A variable that takes new values itself is not hidden by `set`, but by all others.
    check_all(core.chain(modules).collect(), &nginx(false), &definitions, |text| {
        format!("http {{ {text} }}")
    });
    for name in UNDOCUMENTED {
        let refusal = format!("the duplicate \"{name}\" variable");
        assert_eq!(loaded(&format!("http {{ map $uri ${name} {{ }} }}")).0, Some(refusal));
    }
}

#[test]
fn stream_variables_that_nginx_does_not_have_can_be_defined() {
    let core = tw_stream::variables::VARIABLES.iter().copied().flatten();
    let modules = tw_stream::load::modules(tw_modules::STREAM_MODULES).flat_map(|module| module.variables());
    let definitions = [
        "map $remote_addr $NAME { default a; }",
        "geo $NAME { default a; }",
        "split_clients $remote_addr $NAME { * a; }",
        "server { listen 127.0.0.1:1; server_name ~^(?<NAME>a)$; return a; }",
        "server { listen 127.0.0.1:2; set $NAME a; return a; }",
    ];
    check_all(core.chain(modules).collect(), &nginx(true), &definitions, |text| {
        format!("stream {{ {text} }}")
    });
}

#[test]
fn definitions_of_the_configuration_hold() {
    let origin = mirror();
    let server = start(
        server().file("html/ssi.html", "<!--#echo var='worker' -->"),
        &format!(
            "log_format own '$time_iso8601_ms|$worker|$deny_reason|$uri'; access_log logs/own.log own;
             map '$time_iso8601 # $msec' $time_iso8601_ms {{ '~# \\d+\\.(?<otel_trace_id>\\d{{3}})$' 'ms'; }}
             map $uri $upstream_cache_key {{ default key; }}
             gzip on; gzip_min_length 1; gzip_types text/plain; brotli on; brotli_min_length 1; brotli_types text/plain;
             server {{ listen 127.0.0.1:{{port}}; root html; ssi on;
                 location = /ssi.html {{ set $worker other; }}
                 location /set {{ set $WORKER \"w$arg_w\"; set $deny_reason why; set $brotli_ratio kept;
                     return 200 '$worker $deny_reason $upstream_cache_key $brotli_ratio $time_iso8601_ms'; }}
                 location /unset {{ return 200 '<$worker>'; }}
                 location /pass {{ set $proxy_host own; set $proxy_port 1; proxy_set_header X-Own '$proxy_host:$proxy_port';
                     proxy_pass http://{origin}; }}
                 location /usual {{ proxy_set_header X-Usual '$proxy_host:$proxy_port'; proxy_pass http://{origin}; }}
             }}"
        ),
    );
    assert_eq!(get(&server, "/set?w=1").text(), "w1 why key kept ms");
    assert_eq!(get(&server, "/unset").text(), "<>");
    assert_eq!(get(&server, "/ssi.html").text(), "other");
    let passed = get(&server, "/pass").text();
    assert!(passed.contains(&format!("\r\nHost: {origin}\r\n")), "{passed}");
    assert!(passed.contains("\r\nX-Own: own:1\r\n"), "{passed}");
    let usual = get(&server, "/usual").text();
    assert!(usual.contains(&format!("\r\nX-Usual: {origin}:{}\r\n", origin.port())), "{usual}");
    server.wait_error_log("using uninitialized \"worker\" variable").unwrap();
    let log = server.prefix().join("logs/own.log");
    let is_logged = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("ms|w1|why|/set\n"));
    assert!(wait::until(wait::TIMEOUT, is_logged));
}

#[test]
fn sessions_use_the_definitions_of_the_configuration() {
    let server = server()
        .start(
            "stream { map $remote_addr $worker { default mapped; }
                 server { listen 127.0.0.1:{port}; set $ssl_cipher own; return '$worker|$ssl_cipher|$ssl_protocol'; } }",
        )
        .unwrap();
    let said = server.connect().unwrap().read_until_close().unwrap();
    assert_eq!(String::from_utf8_lossy(&said), "mapped|own|");
}

#[test]
fn notes_of_a_test_name_what_is_hidden() {
    let conf = "http { server { listen 127.0.0.1:{port}; set $worker a; set $proxy_host a; set $args a; } }";
    let output = server().arg("-t").run(conf).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("[notice] \"$worker\" hides the variable of that name that Tailwater has"),
        "{said}"
    );
    assert!(said.contains("that one is: Number of the loop"), "{said}");
    assert_eq!(said.matches(" hides ").count(), 1, "{said}");
}
