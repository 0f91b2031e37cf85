//! HTTP/3 (RFC 9114): connections over QUIC, streams as requests, responses as frames. The crate `tw-http3` knows frames and QPACK,
//! `tw-quic` has the streams of bytes; this folder moves bytes between them, and has the limits of clients.
//!
//! ```text
//! serve ─ unidirectional streams, heads of requests ─► tw-http3 ─ a request ─► streams::serve_request ─► streams::send_response
//!   │                                                                               │                          │
//!   │        stream: the rest of a request is read when it is wanted ◄──────────────┤                          │
//!   │                its response is written to a QUIC stream, which bounds it ◄────┼──────────────────────────┘
//!   └── conn: one connection                                    stream_tunnel ◄─────┘
//! ```
//! The transport sends streams by their priorities (`transport_priority`), and takes only what its windows have room for; `write_order`
//! keeps that room for the most urgent streams. `streams` has all that HTTP/2 shares.

mod conn;
pub mod directives;
mod protocol;
mod request_stream;
pub mod serve;
mod stream;
mod stream_tunnel;
mod transport_priority;
mod wire;
mod write_order;

pub(crate) use self::conn::Http3Connection;
