//! HTTP/2 (RFC 9113): where streams become requests, and responses frames. The crate `tw-http2` knows frames, HPACK and windows;
//! here is what carries its bytes, what its streams are, and what clients may do to a server.
//!
//! ```text
//! serve ─ a stream ─→ stream ─ head ─→ (a request: phases, filters) ─→ head_out ─→ send ─┐ turns: who is next
//!   │                              ├── input: the body, as it is asked for               │
//!   │                              └── other: both ways, in another protocol ────────────┤ payload
//!   └── conn: frames of all streams leave together, when nothing more is to be done ◄────┘
//! ```

mod conn;
mod input;
mod request_head;
mod response_head;
mod send;
mod serve;
mod stream;
mod stream_handle;
mod stream_scheduler;
mod stream_tunnel;
mod write_buffer;

pub(crate) use conn::Conn;
pub use input::Input;
pub(crate) use send::{inform, send};
pub(crate) use serve::{LIMITS, serve};
pub use stream_handle::StreamHandle;
pub use stream_tunnel::StreamTunnel;
/// What every client of HTTP/2 begins with.
pub(crate) use tw_http2::PREFACE;
