//! HTTP/1.0 and 1.1: connections, request heads and bodies in, responses out. Other folders see only a [`Wire`](tw_request::wire::Wire).
//!
//! ```text
//! serve ─ keepalive ─→ request_head ─→ lifecycle::serve ─→ response_head ─→ send ─→ drain ─→ serve
//!                           └── input: the body, on demand
//! ```

mod body;
mod conn;
mod input;
mod keepalive;
mod request_head;
mod response_head;
mod send;
mod send_file;
pub mod serve;
mod wire;
mod write;

pub use self::body::begin_body;
pub use self::conn::Http1Connection;
