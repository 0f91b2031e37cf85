//! HTTP/3 (RFC 9114): connections over QUIC, streams as requests, responses as frames. The crate `tw-http3` knows frames and QPACK,
//! `tw-quic` has the streams of bytes; this folder moves bytes between them, and has the limits of clients.
//!
//! ```text
//! serve ─ unidirectional streams, heads of requests ─► tw-http3 ─ a request ─► stream ─► lifecycle::serve ─► send
//!   │                                                                            │                            │
//!   │        stream_handle: the rest of a request is read when it is wanted ◄────┴── stream_tunnel            │
//!   └── conn: one connection           what is sent is written to its QUIC stream, which bounds it ◄──────────┘
//! ```
//! There is no scheduler of streams as in HTTP/2: the transport sends streams by their priorities, and takes only what its windows
//! have room for.

mod conn;
mod send;
pub(crate) mod serve;
mod settings;
mod stream;
mod stream_handle;
mod stream_tunnel;

pub(crate) use self::conn::Http3Connection;
pub(crate) use self::send::{inform, send};
pub use self::stream_handle::Http3StreamHandle;
pub use self::stream_tunnel::Http3StreamTunnel;
