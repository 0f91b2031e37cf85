//! Gateways: a request goes to a server behind this one, and its response comes back. One engine for all languages that
//! upstream servers speak.
//!
//! ```text
//! Order ─► exchange: a peer of the group ─► link: idle or new (upstream_tls) ─► sending ┐   answer: the head as the client gets it
//!            ▲                                                 codec ◄───┴─► body: pulled, or read ahead of a slow client
//!            └──────────────── fault: the next peer ──────────────┘         tunnel: both ways, after an upgrade
//! ```
//! Requests in HTTP/2 share connections (`h2_pool`). Beside requests, `health` asks peers whether they are well.

pub mod attempts;
pub mod bind;
pub mod codec;
pub mod directives;
pub(crate) mod exchange;
mod failure;
pub mod h2_pool;
pub mod health;
pub mod keepalive_pool;
pub(crate) mod ocsp_client;
pub mod queue;
mod read_body;
mod read_rate;
pub(crate) mod resolve;
mod response;
mod response_body;
mod response_buffer;
mod send_request;
pub mod settings;
pub mod sticky;
pub mod store;
mod tunnel;
mod upstream_connection;
pub mod upstream_tls;

pub use exchange::{BuiltRequest, RequestBody, RequestBuilder, UpstreamGroup, UpstreamRequest, pass};
pub use failure::{Stage, UpstreamFailure};
pub use read_body::read_body;
pub use settings::ProxySettings;
