//! Gateways: a request goes to a server behind this one, and its response comes back. One engine for all languages that
//! upstream servers speak.
//!
//! ```text
//! recall: the body of the request, what a cache has
//! Order ─► exchange: a peer of the group ─► link: idle or new (upstream_tls) ─► sending ┐   answer: the head as the client gets it
//!            ▲                                                 codec ◄───┴─► body: pulled, or read ahead of a slow client
//!            └──────────────── fault: the next peer ──────────────┘         tunnel: both ways, after an upgrade
//! ```
//! Requests in HTTP/2 share connections (`h2_pool`). Beside requests, `health` asks peers whether they are well.

pub mod bind;
mod cache_lookup;
pub mod codec;
pub mod directives;
pub(crate) mod exchange;
mod failure;
pub mod h2_pool;
pub mod header_names;
pub mod health;
pub mod keepalive_pool;
pub(crate) mod ocsp_client;
pub mod queue;
mod read_rate;
pub(crate) mod resolve;
mod response;
mod response_body;
mod response_buffer;
pub mod retry_conditions;
mod send_request;
pub mod settings;
pub mod sticky;
pub mod store;
mod tunnel;
mod upstream_connection;
pub mod upstream_tls;

pub use cache_lookup::{CONDITIONAL, find_cached, read_body};
pub use exchange::{
    BuiltRequest, RequestBody, RequestBuilder, RewriteFields, UpstreamGroup, UpstreamRequest, pass,
};
pub use failure::{Stage, UpstreamFailure};
pub use settings::ProxySettings;
