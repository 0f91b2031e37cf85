//! HTTP/2 (RFC 9113): where frames become requests, and responses frames. The crate `h2` knows frames, HPACK and windows; here
//! is what it runs over, what its streams are, and what clients may do to it.
//!
//! ```text
//! serve ─ a stream ─→ stream ─ head ─→ (a request: phases, filters) ─→ head_out ─→ send ─┐ turns: who is next
//!   │                              ├── input: the body, as it is asked for               │
//!   │                              └── other: both ways, in another protocol ────────────┤ payload
//!   └── conn, out: frames of all streams leave together, when nothing more is to be done ◄┘
//! ```

mod conn;
mod exchange;
mod head;
mod head_out;
mod input;
mod other;
mod out;
mod payload;
mod send;
mod serve;
pub mod sight;
mod stream;
mod turns;

pub(crate) use conn::Conn;
pub use exchange::Exchange;
pub use input::Input;
pub use other::Other;
pub(crate) use payload::Payload;
pub(crate) use send::{inform, send};
pub(crate) use serve::{LIMITS, serve};

/// What every client of HTTP/2 begins with (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
