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

mod attempt;
pub mod attempts;
pub mod bind;
mod cache_lookup;
pub mod codec;
pub mod directives;
mod early_hints;
mod exchange;
mod failure;
mod group;
pub mod h2_pool;
pub mod header_names;
pub mod health;
mod hop_fields;
pub mod keepalive_pool;
pub(crate) mod ocsp_client;
mod pass;
pub mod queue;
mod read_rate;
mod reading;
pub(crate) mod resolve;
mod response;
mod response_body;
mod response_buffer;
pub(crate) mod retry;
pub mod retry_conditions;
mod send_request;
pub mod settings;
pub mod sticky;
pub mod store;
mod tunnel;
mod upstream_connection;
mod upstream_request;
pub mod upstream_tls;

pub use cache_lookup::{CONDITIONAL, find_cached, read_body};
pub use failure::{AttemptFailure, AttemptStage, UpstreamFailure};
pub use group::UpstreamGroup;
pub use pass::{open_tunnel, pass};
pub use settings::{ProxySettings, UpstreamSettings};
pub use upstream_request::{BuiltRequest, RequestBody, RequestBuilder, RewriteFields, UpstreamRequest};
