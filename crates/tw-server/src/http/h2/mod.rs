//! HTTP/2 (RFC 9113): connections, streams as requests, responses as frames. The crate `tw-http2` knows frames, HPACK and windows;
//! this folder has the transport of its bytes, its streams, and the limits of clients.
//!
//! ```text
//! serve ─ a stream ─→ stream ─ request_head ─→ lifecycle::serve ─→ response_head ─→ send ─┐ stream_scheduler: order of streams
//!   │                              ├── input: the body, on demand                        │
//!   │                              └── stream_tunnel: another protocol, both ways ───────┤ write_buffer
//!   └── conn: frames of all streams leave together, when nothing more is to be done ◄─────┘
//! ```

mod conn;
mod input;
mod request_head;
mod response_head;
mod send;
pub(crate) mod serve;
mod settings;
mod stream;
mod stream_handle;
mod stream_scheduler;
mod stream_tunnel;
mod write_buffer;

pub(crate) use self::conn::Http2Connection;
pub use self::input::Http2Body;
pub(crate) use self::send::{inform, send};
pub use self::stream_handle::StreamHandle;
pub use self::stream_tunnel::StreamTunnel;
/// Connection preface of HTTP/2.
pub(crate) use tw_http2::PREFACE;
