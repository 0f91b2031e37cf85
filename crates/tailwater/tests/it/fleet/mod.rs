//! Fleets: purges that several nodes share, and what an engine that is away, slow or has lost data does to them.

mod announcements;
mod commands;
mod purge;
mod quic_keys;
mod real_engine;
mod rollout;
mod ticket_keys;

use std::path::Path;

use tw_testkit::origin::origin;
use tw_testkit::server::Builder;
use tw_testkit::{Server, wait};

use crate::support::metrics::try_metric;
use crate::support::{request, server};

/// Origin that marks each response with a tag.
fn tagged_origin() -> std::net::SocketAddr {
    origin(|mut conn| {
        while conn.head().is_some() {
            conn.answer("X-Tag: news\r\n", "body");
        }
    })
}

/// Configuration of a node; `more` is in its `fleet` block.
fn conf(name: &str, engine: &str, origin: &std::net::SocketAddr, more: &str) -> String {
    format!(
        "user root root; fleet edge {{ node {name}; engine {engine}; publish_timeout 1s; {more} }} \
         http {{ proxy_cache_path cache keys_zone=zone:1m fleet=edge; \
           map $request_method $p {{ PURGE 1; REFRESH soft; default 0; }} \
           server {{ listen 127.0.0.1:{{port}}; \
             location / {{ proxy_pass http://{origin}; proxy_cache zone; proxy_cache_valid 1h; proxy_cache_key $uri; \
               proxy_cache_tag $upstream_http_x_tag; proxy_cache_purge_tag $http_purge_tag; proxy_cache_purge $p; \
               add_header X-Cache $upstream_cache_status; }} \
             location = /metrics {{ metrics; }} \
             location /api/ {{ api write=on; }} }} }}"
    )
}

fn start_node(builder: Builder, name: &str, engine: &str, origin: &std::net::SocketAddr) -> Server {
    builder.start(&conf(name, engine, origin, "")).unwrap()
}

/// Nodes of one fleet, all connected.
fn nodes<const N: usize>(engine: &str) -> [Server; N] {
    let origin = tagged_origin();
    let nodes = std::array::from_fn(|at| start_node(server(), &format!("n{at}"), engine, &origin));
    nodes.iter().for_each(wait_connected);
    nodes
}

fn fleet_metric(node: &Server, name: &str) -> u64 {
    try_metric(node, &format!("fleet_{name}{{fleet=\"edge\"}}")).unwrap_or(0)
}

fn wait_connected(node: &Server) {
    let is_connected = || fleet_metric(node, "connected") == 1;
    assert!(wait::until(wait::TIMEOUT, is_connected), "{}", node.error_log());
}

fn state(node: &Server, target: &str) -> String {
    request(node, &format!("GET {target}"), &[]).field("X-Cache").unwrap_or_default().to_owned()
}

/// Requests `target` until all nodes have it.
fn fill(nodes: &[Server], target: &str) {
    for node in nodes {
        assert!(
            wait::until(wait::TIMEOUT, || state(node, target) == "HIT"),
            "{target}: {}",
            node.error_log()
        );
    }
}

/// Waits until `target` is no hit; the lookup that finds that out fills it again.
fn wait_for(node: &Server, target: &str, expected: &str) {
    let mut last = String::new();
    let is_purged = || {
        last = state(node, target);
        last == expected
    };
    assert!(wait::until(wait::TIMEOUT, is_purged), "{target}: {last}, {}", node.error_log());
}

fn position(node: &Server) -> u64 {
    position_in(node.prefix())
}

fn position_in(prefix: &Path) -> u64 {
    let text = std::fs::read_to_string(prefix.join("fleet_edge/position")).unwrap_or_default();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    value["position"]["sequence"].as_u64().unwrap_or(0)
}
