//! Engine of the `*_pass` modules: sends a request to a server of a group and its response to the client, whatever protocol
//! the server speaks.
//!
//! ```text
//! UpstreamRequest ─► pass ─► retry: one attempt after another
//!                              └─► attempt: peer ─► connect (idle, new, or a stream of h2_pool) ─► send_request ─► read_head
//!                                                                                                                    │ Exchange
//!                      tunnel: both directions, after an upgrade or CONNECT ◄── response_head: what the client gets ◄─┘
//!                                                                                      │
//! client ◄── flowing_body: pulled, or read_ahead of a slow client ◄── response_body ◄──┘
//! ```
//! Each stage consumes the one before it, and the last one ends the `Exchange`.
//! Apart from requests, `health` checks peers, `resolve` looks up the addresses of names, and `own_request` and `host_request` send
//! requests of the server's own.
//!
//! A `Codec` turns bytes into events and does no I/O: HTTP/1, HTTP/2, FastCGI, memcached (uwsgi and SCGI respond in HTTP/1). The
//! request is built anew, field by field. The response is pulled; if the client is slow, the proxy reads on into a `ResponseBuffer`, in
//! memory and then in a temporary file, so the upstream server is free early.

mod attempt;
pub mod codec;
mod connect;
pub mod directives;
mod early_hints;
mod exchange;
mod flowing_body;
pub mod health;
pub mod host_request;
pub mod names;
pub mod ocsp_client;
pub mod own_request;
mod pass;
mod read_ahead;
mod read_body;
mod read_head;
mod read_piece;
mod response_body;
mod response_buffer;
mod response_head;
pub mod retry;
mod send_request;
pub mod settings;
pub mod spill_delay;
pub mod store;
mod tunnel;
mod upstream_request;
mod warnings;

pub use pass::{open_tunnel, pass};
pub use read_body::read_body;
pub use settings::{ProxySettings, UpstreamSettings};
pub use upstream_request::{BuiltRequest, RequestBuilder, UpstreamRequest, UpstreamRequestBody};

tw_base::limits! {
    /// Limits of requests to upstream servers; those of a `*_pass` module are in its settings.
    pub const LIMITS;

    section "upstream servers";
    use health::LIMITS;
    use codec::fastcgi::LIMITS;
    use retry::LIMITS;
    use spill_delay::LIMITS;
    use codec::http2::LIMITS;

    section "TLS";
    use ocsp_client::LIMITS;
}
