//! HTTP/3 (RFC 9114) without I/O and without a clock, for one thread. Either end of a connection takes received bytes of QUIC
//! streams by their number and returns bytes to write, and each message has a [`Stream`] of its own.
//!
//! ```text
//!   request streams   ─► raw ─ reader ─ frames ─┬─ head ─► Connection::next (server)
//!                                               └─ heads, data, trailers ─► Stream::poll_incoming
//!   control stream    ─► control ── settings, priorities, GOAWAY
//!   encoder stream    ─► qpack::Decoder ── dynamic table; blocked sections go on
//!
//!   Stream::send_head, send_data ─► Stream::output ─► the request stream
//!   Connection::write, next_signal ─► control and decoder streams; RESET_STREAM, STOP_SENDING
//! ```
//! A connection of HTTP/0.9 over QUIC (`hq`) has the same streams without frames, and no other ones.
//!
//! Frames of a request stream are parsed when its owner wants the next part: bytes that nobody has read yet are kept as they
//! came, so that the flow control of QUIC limits them. Nothing here knows QUIC: any transport with numbered streams will do.
//!
//! No input of a peer can cause a panic: `indexing_slicing` is denied, and fuzz targets cover all of it.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod config;
mod connection;
mod control;
mod entry;
mod error;
mod error_code;
mod frame;
mod hq;
mod qpack;
mod reader;
mod receive;
mod settings;
mod state;
mod stream;
#[cfg(test)]
mod tests;
mod transport;
mod unidirectional;
mod varint;

pub use config::{Config, LIMITS};
pub use connection::{Connection, Event};
pub use error::{ConnectionError, StreamError};
pub use error_code::ErrorCode;
pub use qpack::{DecodedSection, Decoder as QpackDecoder, Error as QpackError, FIELD_CODING};
pub use stream::Stream;
pub use transport::{LocalStream, Signal};
pub use tw_fields::{FieldSection, FieldWriter, Incoming, MalformedReason, Pseudo};
