//! Connections to upstream servers, whatever protocol the clients speak.
//!
//! ```text
//! attempts: one peer after the other, for sessions of any protocol
//! upstream_names: addresses of names ─► group, queue: a peer ─► keepalive_pool: an idle connection, or
//!                                                              upstream_connection: connect ─► upstream_tls: handshake
//!                                                              h2_pool: a stream of a shared HTTP/2 connection
//! relay: bytes in both directions, once a client and a server are connected
//! health: checks of peers, apart from clients
//! ```
//! The configuration of a protocol is a [`ConnectingProtocol`]; its state on a loop has [`UpstreamConnections`].
//!
//! Peers, failures and counts of connections are shared by all loops (`tw-upstream`); keep-alive connections belong to one
//! loop. Over HTTP/2, many requests share a connection, each with a stream. After an upgrade (101) or CONNECT, the relay holds no buffer
//! while it is idle. DNS names of groups and health checks are background tasks of one loop, which end with their generation; the probe of a health
//! check is the protocol's.

pub mod attempts;
pub mod bind;
pub mod failure;
pub mod fleet;
pub mod group;
mod group_clock;
pub mod h2_pool;
pub mod health;
pub mod keepalive_pool;
mod keepalive_settings;
mod named_server;
pub mod observed_relay;
pub mod protocol;
pub mod queue;
pub mod read_rate;
pub mod reading;
pub mod relay;
pub mod resolving;
pub mod session_blocks;
pub mod settings;
#[cfg(test)]
mod test_session;
pub mod tls_directives;
pub mod tls_settings;
pub mod upstream_attempt;
pub mod upstream_block;
pub mod upstream_connection;
pub mod upstream_connections;
pub mod upstream_names;
pub mod upstream_tls;

pub use attempts::{AttemptLimits, AttemptingSession};
pub use failure::{AttemptFailure, AttemptStage, UpstreamFailure};
pub use group::UpstreamGroup;
pub use protocol::ConnectingProtocol;
pub use resolving::Resolving;
pub use upstream_attempt::{AttemptPeer, PassedSession, UpstreamAttempt, UpstreamVariables};
pub use upstream_block::UpstreamBlock;
pub use upstream_connection::{OpenParams, ReadOutcome, UpstreamConnection};
pub use upstream_connections::UpstreamConnections;

tw_base::limits! {
    /// Limits of connections to upstream servers.
    pub const LIMITS;

    section "upstream servers";
    use upstream_tls::LIMITS;
    use h2_pool::LIMITS;

    section "sessions of stream";
    use relay::LIMITS;
}
