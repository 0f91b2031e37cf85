//! HTTP/2 (RFC 9113): connections, streams as requests, responses as frames. The crate `tw-http2` knows frames, HPACK and windows;
//! this folder has the transport of its bytes, its streams, and the limits of clients.
//!
//! ```text
//! serve ─ a stream ─→ stream ──→ lifecycle::serve ──→ send ─┐ stream_scheduler: order of streams
//!   │                              └── stream_tunnel ────────┤
//!   └── conn: frames of all streams leave together ◄─────────┘
//! ```
//! Heads, bodies of requests and pieces of responses are in `streams`, which HTTP/3 shares.

mod conn;
mod send;
pub(crate) mod serve;
mod settings;
mod stream;
mod stream_handle;
mod stream_scheduler;
mod stream_tunnel;

pub(crate) use self::conn::Http2Connection;
pub(crate) use self::send::{inform, send};
pub use self::stream_handle::StreamHandle;
pub use self::stream_tunnel::StreamTunnel;
/// Connection preface of HTTP/2.
pub(crate) use tw_http2::PREFACE;
