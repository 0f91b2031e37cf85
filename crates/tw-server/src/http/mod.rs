//! HTTP on the loops: from an accepted connection to a logged response. A request goes down this list, and seldom back.
//!
//! ```text
//! accept     begin of a connection: steps of its address (tw_accept), choice of its protocol
//! handshake  a client during the handshake of its connection: server, certificates, protocol
//! h1, h2, h3 connections of each protocol: request heads in, response heads and bodies out
//! streams    parts that HTTP/2 and HTTP/3 have in common
//! routing    server, location, phases, error pages
//! response   conditions, filters, ranges, bodies, subrequests
//! files      files and their contents that a loop keeps open
//! proxy      upstream servers: retries, connections, requests, responses
//! cache      stored responses of upstream servers
//! variables  variables of the core
//! ```
//! Below the rooms stands what all of them share: the request, its wire, its body, the plan it runs by (crate `tw-request`).
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
pub(crate) mod admission;
mod application;
pub mod cache;
pub mod h1;
pub mod h2;
pub mod h3;
pub(crate) mod handshake;
pub mod history;
pub(crate) mod lifecycle;
mod lingering_close;
mod ocsp_stapling;
pub mod proxy;
mod response;
pub mod retry_conditions;
mod routing;
mod send_rate;
pub mod streams;
pub(crate) mod synthetic_request;
pub mod user_agent;
pub mod variables;

pub use self::application::{BackgroundTask, HttpLoop};
pub(crate) use self::response::hop_fields;
pub use self::response::{
    background_subrequest, content_coding, early_subrequest, forward_head, prepare_response, send_response,
    subrequest,
};
pub use self::routing::{error_response, phases};
pub(crate) use self::routing::{post_action, start, tls_requirements};
pub use tw_request::protocol::Http;
pub(crate) use tw_request::random_id;
pub use tw_request::{
    body, body_buffer, client, files, generation, header_names, key_bandwidth, miss_reason, plan, request,
    request_body, route, upstream_response, upstream_state, wire,
};

#[cfg(test)]
mod quic_tests;
