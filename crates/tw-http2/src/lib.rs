//! HTTP/2 (RFC 9113) without I/O and without a clock, for one thread. Either end of a connection takes received bytes
//! and returns bytes to write, and each message has a [`Stream`] of its own.
//!
//! ```text
//!             bytes ─► reader ─ frames ─► connection ─┬─ requests, priorities ─► Connection::next
//!                                        ▲   │        └─ heads, data ─► inbox ─► Stream::poll_incoming
//!                           list ─ hpack ┘   │
//!             bytes ◄─ out ◄─ frames ◄───────┴◄ Stream::send_head, send_data (as the windows have room)
//! ```
//! Of a frame only the parts are kept that have not been read: data is passed on as it arrives, however large its
//! frame, and an idle connection has no buffer. Sent data is shared with its producer until the socket has taken it.
//!
//! No input of a peer can cause a panic: `indexing_slicing` is denied, and a fuzz target covers all of it.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod config;
mod connection;
mod entry;
mod error;
mod error_code;
mod frame;
mod hpack;
mod out;
mod reader;
mod receive;
mod settings;
mod state;
mod stream;
#[cfg(test)]
mod tests;

pub use config::{Config, LIMITS};
pub use connection::{Connection, Event};
pub use error::{ConnectionError, StreamError};
pub use error_code::ErrorCode;
pub use frame::PREFACE;
pub use stream::Stream;
pub use tw_fields::{FieldSection, FieldWriter, Incoming, MalformedReason, Pseudo};
