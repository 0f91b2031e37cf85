//! End-to-end tests: the binary, real sockets, the loop guard on; one file per feature.
//!
//! What is expected is what nginx does. `TAILWATER_TEST_BINARY` names another program to test, for example a script that
//! takes `loop_guard` out of the configuration and starts nginx: where a test fails then, its expectation is not nginx's.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it leaves out"
)]

mod accept;
mod access;
mod access_log;
mod access_time;
mod acme;
mod acme_pebble;
mod addition;
mod api;
mod applications;
mod auth_basic;
mod auth_request;
mod autoindex;
mod bodies;
mod browser;
mod browsers;
mod cache;
mod cache_article;
mod cache_continued;
mod cache_directories;
mod cache_disks;
mod cache_files_lost;
mod cache_killed;
mod cache_memory;
mod cache_nginx;
mod cache_orders;
mod cache_places;
mod cache_rfc9111;
mod caching;
mod charset;
mod cli;
mod conditions;
mod conformance;
mod containers;
mod dav;
mod deaths;
mod debug;
mod early_hints;
mod empty_gif;
mod error_page;
mod explain;
mod fair_turns;
mod fastcgi;
mod faults;
mod file_heads;
mod files;
mod geo;
mod grpc;
mod grpc_faults;
mod grpc_real;
mod gunzip;
mod gzip;
mod gzip_static;
mod headers;
mod health_apps;
mod health_check;
mod http2;
mod http2_attacks;
mod http2_clients;
mod http2_other;
mod http2_priority;
mod http2_requests;
mod http2_rfc;
mod hung;
mod index;
mod limit_conn;
mod limit_req;
mod limits;
mod listen;
mod load;
mod local_tls;
mod locations;
mod log_paths;
mod log_places;
mod logs;
mod lookup;
mod malformed;
mod malformed_bodies;
mod map;
mod master;
mod memcached;
mod memory;
mod memory_cgroup;
mod memory_lock;
mod metrics;
mod mirror;
mod mp4;
mod new_prefix;
mod own_faults;
mod packaging;
mod post_action;
mod proxied_parts;
mod proxy;
mod proxy_allow;
mod proxy_apps;
mod proxy_body;
mod proxy_changes;
mod proxy_command;
mod proxy_counts;
mod proxy_disks;
mod proxy_dynamic;
mod proxy_early;
mod proxy_http2;
mod proxy_store;
mod proxy_timeouts;
mod proxy_tls;
mod proxying;
mod purge_forms;
mod random_index;
mod real_ip;
mod referer;
mod refused;
mod reload;
mod resolver;
mod returns;
mod rewrite;
mod rewrite_if;
mod room;
mod sandbox;
mod scgi;
mod secure_link;
mod sendfile;
mod serve;
mod signals;
mod silence;
mod slice;
mod slow_ext4;
mod smuggling;
mod split_clients;
mod ssi;
mod static_files;
mod status_page;
mod status_zone;
mod stub_status;
mod sub_filter;
mod subrequest_concurrency;
mod subrequest_variables;
mod systemd;
mod tls;
mod tls_bad;
mod tls_clients;
mod tls_named;
mod tls_ocsp;
mod tls_settings;
mod tls_signatures;
mod tls_watch;
mod torture;
mod try_files;
mod tunnel;
mod upgrade;
mod upstream_names;
mod upstream_queue;
mod upstream_sticky;
mod used_up;
mod userid;
mod uwsgi;

use std::io;

use tw_testkit::server::Builder;
use tw_testkit::{Client, Lacks, Response, Server, leave_out};

/// A server to be described and started.
fn server() -> Builder {
    let other = std::env::var_os("TAILWATER_TEST_BINARY");
    Server::build(other.unwrap_or_else(|| env!("CARGO_BIN_EXE_tailwater").into()))
}

/// Starts the server of this test in an `http` block with this content.
fn start(builder: Builder, http: &str) -> Server {
    builder.start(&format!("http {{ {http} }}")).unwrap()
}

/// Starts a server with this content in its `server` block, beside `listen`.
fn start_server(builder: Builder, server: &str) -> Server {
    start(builder, &format!("server {{ listen 127.0.0.1:{{port}}; root html; {server} }}"))
}

/// The same, but the server keeps the user who runs the tests, for what it opens while it runs.
fn start_server_as_we_are(builder: Builder, server: &str) -> Server {
    start_as_we_are(builder, &format!("server {{ listen 127.0.0.1:{{port}}; root html; {server} }}"))
}

/// The same with the content of its `http` block.
fn start_as_we_are(builder: Builder, http: &str) -> Server {
    let user = if rustix::process::geteuid().is_root() { "user root root;" } else { "" };
    builder.start(&format!("{user} http {{ {http} }}")).unwrap()
}

/// What a server says that does not start with this content in its `server` block.
fn refusal(server: &str) -> String {
    refusal_of(&format!("http {{ server {{ listen 127.0.0.1:{{port}}; {server} }} }}"))
}

fn refusal_of(conf: &str) -> String {
    match server().start(conf) {
        Ok(_) => panic!("is not refused: {conf}"),
        Err(error) => error.to_string(),
    }
}

/// Asks on a connection of its own: `line` is method and target, `fields` whole field lines.
fn ask(server: &Server, line: &str, fields: &[&str]) -> Response {
    try_ask(server, line, fields).unwrap_or_else(|e| panic!("{line} {fields:?}: {e}"))
}

fn try_ask(server: &Server, line: &str, fields: &[&str]) -> io::Result<Response> {
    let mut client = server.connect()?;
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    client.send(format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n"))?;
    answer(&mut client, line)
}

fn answer(client: &mut Client, line: &str) -> io::Result<Response> {
    if !line.starts_with("HEAD ") {
        return client.read_response();
    }
    let response = client.read_head()?;
    let rest = client.read_until_close()?;
    assert!(rest.is_empty(), "{line} has a body: {}", String::from_utf8_lossy(&rest));
    Ok(response)
}

/// One `GET` on a connection of its own.
fn get(server: &Server, target: &str) -> Response {
    ask(server, &format!("GET {target}"), &[])
}

/// `GET` on a connection of its own; status and body as text.
fn page(server: &Server, target: &str) -> (u16, String) {
    let response = get(server, target);
    (response.status, response.text())
}

/// Sends `bytes` as they are on a connection of its own and reads all that comes until the server closes.
fn raw(server: &Server, bytes: impl AsRef<[u8]>) -> String {
    let mut client = server.connect().unwrap();
    client.send(bytes).unwrap();
    String::from_utf8_lossy(&client.read_until_close().unwrap()).into_owned()
}

/// Whether permissions mean nothing to this process; says that the test is left out.
fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if root {
        leave_out(Lacks::Run, format_args!("root may read everything: {what}"));
    }
    root
}
