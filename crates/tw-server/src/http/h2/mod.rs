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
mod exchange;
mod head;
mod head_out;
mod input;
mod other;
mod payload;
mod send;
mod serve;
mod stream;
mod turns;

pub(crate) use conn::Conn;
pub use exchange::Exchange;
pub use input::Input;
pub use other::Other;
pub(crate) use send::{inform, send};
pub(crate) use serve::{LIMITS, serve};
/// What every client of HTTP/2 begins with.
pub(crate) use tw_http2::PREFACE;
