//! HTTP on the loops: from an accepted connection to a logged response. A request goes down this list, and seldom back.
//!
//! ```text
//! accept     begin of a connection: steps of its address (tw_accept), choice of its protocol
//! handshake  a client during the handshake of its connection: server, certificates, protocol
//! h1, h2, h3 connections of each protocol: request heads in, response heads and bodies out
//! streams    parts that HTTP/2 and HTTP/3 have in common
//! variables  variables of the core
//! ```
//! Below the rooms stands what all of them share: the request, its wire, its body, the plan it runs by (crate `tw-request`), and the
//! phases that it runs (crate `tw-phases`), caches (crate `tw-http-cache`) and
//! the proxy (crate `tw-proxy`).
//!
//! A `Transport` (tw-net) carries bytes. A [`Client`](client::Client) has facts without I/O, for variables, logs and limits. A
//! [`Wire`](wire::Wire) is the access of a request to its client: send, sleep, notice that the client is gone. Another protocol
//! implements it; nothing but `h1`, `h2` and `h3` depends on the protocol of a request.
//!
//! A response of more than 64 KiB waits in the bulk queue of its loop before each piece, so a small request waits for at most one piece of
//! one large body. State of a module for a request is a variable that it stores, or a typed value in the request's extensions; state
//! beyond one configuration comes from `Resolve::keep`.

pub(crate) mod accept;
pub mod acme;
mod application;
pub(crate) mod handshake;
pub mod history;
mod ocsp_stapling;
pub mod variables;

pub use self::application::{BackgroundTask, HttpLoop, new_loop};
pub use tw_phases::{
    background_subrequest, content_coding, early_subrequest, error_response, forward_head, phases,
    prepare_response, subrequest, user_agent,
};
pub use tw_request::protocol::Http;
pub use tw_request::{
    body, body_buffer, client, files, generation, header_names, key_bandwidth, miss_reason, plan, request,
    request_body, retry_conditions, route, upstream_response, upstream_state, wire,
};
pub use {tw_http_cache as cache, tw_proxy as proxy};

#[cfg(test)]
mod quic_tests;
