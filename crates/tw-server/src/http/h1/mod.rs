//! HTTP/1.0 and 1.1: where bytes become requests, and responses bytes. Nothing outside this folder knows how they travel.
//!
//! ```text
//! serve ─ idle ─→ head ─→ (a request: phases, filters) ─→ head_out ─→ send ─→ drain ─→ serve
//!                           └── input: the body, as it is asked for
//! ```

mod conn;
mod input;
mod keepalive;
mod request_head;
mod response_head;
mod send;
mod send_file;
mod serve;

pub use conn::Conn;
pub use input::Input;
pub(crate) use keepalive::LAST_WAIT;
pub(crate) use response_head::{Delimiter, delimiter};
pub(crate) use send::{inform, send};
#[cfg(test)]
pub(crate) use serve::begin_body;
pub(crate) use serve::serve;
