//! Connections to upstream servers, whatever protocol the clients speak.
//!
//! ```text
//! upstream_names: addresses of names ─► group, queue: a peer ─► keepalive_pool: an idle connection, or
//!                                                              upstream_connection: connect ─► upstream_tls: handshake
//!                                                              h2_pool: a stream of a shared HTTP/2 connection
//! relay: bytes in both directions, once a client and a server are connected
//! health: checks of peers, apart from clients
//! ```
//! A protocol uses it through two traits: its configuration is a [`ConnectingProtocol`], its loop a [`Home`].

pub mod bind;
pub mod failure;
pub mod group;
pub mod h2_pool;
pub mod health;
pub mod home;
pub mod keepalive_pool;
pub mod protocol;
pub mod queue;
pub mod reading;
pub mod relay;
pub mod resolving;
pub mod settings;
pub mod tls_settings;
pub mod upstream_block;
pub mod upstream_connection;
pub mod upstream_names;
pub mod upstream_tls;

pub use failure::{AttemptFailure, AttemptStage, UpstreamFailure};
pub use group::UpstreamGroup;
pub use home::{Home, UpstreamConnections};
pub use protocol::ConnectingProtocol;
pub use resolving::Resolving;
pub use upstream_block::UpstreamBlock;
pub use upstream_connection::{ReadOutcome, UpstreamConnection};
