//! QUIC (RFC 9000, 9001, 9002) for servers, without I/O and without a clock, for one thread: datagrams, addresses and times are arguments.
//!
//! ```text
//!  datagrams ─► Endpoint::receive ─► IncomingConnection ─► begin, run, accept ─► Connection ◄─ tasks: poll_accept_bidi, poll_read …
//!  datagrams ◄─ Endpoint::fill ◄──────────────────────────────────────┘
//! ```
//! The packets, loss recovery and congestion control are those of `quinn-proto`, of which no type is part of this interface. Its own are
//! the choice of a TLS configuration for each client, limits, connection IDs that tell their loop, and that a panic of the engine ends
//! no more than the connections of one endpoint.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod config;
mod connection;
mod endpoint;
mod error;
mod hello;
mod incoming;
mod keys;
mod next_key;
mod path_mtu;
mod path_watch;
mod peer_address;
mod qlog;
mod shared;
mod silence;
mod stream_id;
mod tls;
mod tokens;
mod transmit;
mod varint;
mod version;
mod waiters;
mod wall_clock;

pub use config::{EndpointConfig, LIMITS, RetryPolicy, TransportConfig, TransportSettings};
pub use connection::{Connection, ConnectionStatistics};
pub use endpoint::{Datagram, Endpoint, EndpointStatistics, Received, Work};
pub use error::{ConnectionError, StreamError};
pub use incoming::{BegunHandshake, HandshakeFailure, HandshakeStart, IncomingConnection};
pub use keys::{CONNECTION_ID_LEN, HostKeys, Origin, SecretKeys, SharedHostKeys, SharedHostSecrets};
pub use qlog::RecordWriter;
pub use stream_id::StreamId;
pub use tls::{ClientScheme, TlsFacts};
pub use transmit::{BATCH, Outgoing, TransmitBatch};
