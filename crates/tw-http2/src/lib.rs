//! HTTP/2 (RFC 9113) without I/O and without a clock, for one thread: either end of a connection takes what its peer has sent and
//! says what is to be written, and each message has a [`Stream`] of its own.
//!
//! ```text
//!             bytes ─► reader ─ frames ─► connection ─┬─ requests, priorities ─► Connection::next
//!                                        ▲   │        └─ heads, data ─► inbox ─► Stream::poll_came
//!                           list ─ hpack ┘   │
//!             bytes ◄─ out ◄─ frames ◄───────┴◄ Stream::send_head, send_data (as the windows have room)
//! ```
//! Nothing of a frame is kept but the pieces that somebody waits for: data goes on as it comes, however large its frame, and an idle
//! connection has no buffer. What is sent is shared with whoever made it until the socket has taken it.
//!
//! No input of a peer can cause a panic: `indexing_slicing` is denied, and a fuzz target covers all of it.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod connection;
mod end;
mod entry;
mod frame;
mod hpack;
mod list;
mod out;
mod reader;
mod reason;
mod receive;
mod rules;
mod settings;
mod state;
mod stream;
mod terms;
#[cfg(test)]
mod tests;

pub use connection::{Connection, Event};
pub use end::{Broken, Cut};
pub use frame::PREFACE;
pub use list::{Fields, List};
pub use reason::Reason;
pub use rules::{Fault, Pseudo};
pub use stream::{Came, Stream};
pub use terms::{LIMITS, Terms};
