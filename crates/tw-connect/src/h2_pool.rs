//! Shared HTTP/2 connections to upstream servers (RFC 9113; `tw-http2` has the state machine).
//!
//! ```text
//! table: connections of one loop ── StreamPermit ──► stream: one request and its response, used like a connection of its own
//!   └─► connection_task: one task for each connection: connect, handshake, frames ◄── io: frames leave together
//! ```
//! A permit is leased as an idle connection is taken. A connection that is still being opened has permits, too: requests wait
//! for it together. A failed stream affects no other one; the end of a connection ends its streams.

mod acquire;
mod connection;
mod connection_task;
mod head;
mod io;
mod stream;
mod table;

pub use acquire::{acquire_shared, open_dedicated};
pub use stream::{StreamEnd, StreamEvent, UpstreamStream};
pub use table::{H2Pool, StreamParams};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    use connection::LIMITS;
    use io::LIMITS;
    use acquire::LIMITS;
}
