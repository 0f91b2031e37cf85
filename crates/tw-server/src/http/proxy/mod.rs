//! Engine of the `*_pass` modules: sends a request to a server of a group and its response to the client, whatever protocol
//! the server speaks.
//!
//! ```text
//! UpstreamRequest ─► pass ─► retry: one attempt after another
//!                              └─► attempt: peer ─► connection (idle, new, or a stream of h2_pool) ─► send_request ─► head (codec)
//!                                                                                                                     │
//! client ◄── tunnel: both directions, after an upgrade or CONNECT ◄───────────────────────────────────── response ◄───┘
//!        ◄── response_body: pulled, or read ahead of a slow client (response_buffer) ◄───────────────────────┘
//! ```
//! Apart from requests, `health` checks peers, and `resolve` looks up the addresses of names.

mod attempt;
pub mod bind;
pub mod codec;
pub mod directives;
mod early_hints;
mod exchange;
mod failure;
mod group;
pub mod h2_pool;
pub mod health;
pub mod keepalive_pool;
pub(crate) mod ocsp_client;
mod pass;
pub mod queue;
mod read_body;
mod read_rate;
mod reading;
pub(crate) mod resolve;
mod response;
mod response_body;
mod response_buffer;
pub(crate) mod retry;
mod send_request;
pub mod settings;
pub mod sticky;
pub mod store;
mod tunnel;
mod upstream_connection;
mod upstream_request;
pub mod upstream_tls;

pub use failure::{AttemptFailure, AttemptStage, UpstreamFailure};
pub use group::UpstreamGroup;
pub use pass::{open_tunnel, pass};
pub use read_body::read_body;
pub use settings::{ProxySettings, UpstreamSettings};
pub use upstream_request::{BuiltRequest, RequestBuilder, UpstreamRequest, UpstreamRequestBody};
