//! HTTP/2 (RFC 9113): connections, streams as requests, responses as frames. The crate `tw-http2` knows frames, HPACK and windows;
//! this folder has the transport of its bytes, its streams, and the limits of clients.
//!
//! ```text
//! serve ─ a stream ─► streams::serve_request ─► lifecycle ─► streams::send_response
//!   │                                                           │
//!   │                                  stream: frames ◄─────────┤ in the order of stream_scheduler
//!   │                                     ▲      stream_tunnel ◄┘
//!   └── conn: frames of all streams ◄─────┘
//! ```
//! `streams` has all that HTTP/3 shares.
//!
//! A connection is one task in which each stream begins; a request that has to wait becomes a task of its own. A request head is written down as in
//! HTTP/1, so that all other code finds the same `RequestHead`. A body is pulled when the flow-control windows have room and the stream
//! scheduler chooses its stream (RFC 9218); the bytes that were made and not yet written are limited for each connection. A WebSocket on a
//! stream (RFC 8441) is an upgrade to all other code, and the ends of a tunnel (`RelayEnd`) are a transport or a stream.

mod conn;
pub mod directives;
mod protocol;
mod request_stream;
pub mod serve;
mod settings;
mod stream;
mod stream_scheduler;
mod stream_tunnel;
mod untried_bytes;
mod wire;

pub(crate) use self::conn::Http2Connection;
pub use self::untried_bytes::UntriedBytes;
/// Connection preface of HTTP/2.
pub use tw_http2::PREFACE;
