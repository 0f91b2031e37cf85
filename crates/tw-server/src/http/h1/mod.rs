//! HTTP/1.0 and 1.1: where bytes become requests, and responses bytes. Nothing outside this folder knows how they travel.
//!
//! ```text
//! serve ─ idle ─→ head ─→ (a request: phases, filters) ─→ head_out ─→ send ─→ drain ─→ serve
//!                           └── input: the body, as it is asked for
//! ```

mod conn;
mod head;
mod head_out;
mod idle;
mod input;
mod send;
mod send_file;
mod serve;

pub use conn::Conn;
pub(crate) use head_out::{Delimiter, delimiter};
pub(crate) use idle::LAST_WAIT;
pub use input::Input;
pub(crate) use send::{inform, send};
#[cfg(test)]
pub(crate) use serve::begin_body;
pub(crate) use serve::serve;
