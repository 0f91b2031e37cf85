//! Accepted connections up to the first byte of a protocol: PROXY protocol, TLS handshake, choice of the protocol.
//!
//! ```text
//! socket ─► PROXY protocol header ─► TLS handshake: client hello ─► server, certificate ─► ALPN ─┐
//!                  │                                                                             ├─► AcceptedTransport
//!                  └───────────────────────────────► preface ────────────────────────────────────┘
//! ```
//! Nothing here knows a protocol of the configuration. A connection belongs to a [`Host`], which a protocol implements for its
//! clients, with TLS a [`TlsHost`]; [`listen`] is the directive. The settings of TLS are those of `tw-tls-settings`.

mod acme_challenge;
mod connection;
mod destination;
mod handshake;
mod handshake_budget;
mod handshake_result;
mod host;
pub mod listen;
mod pending_connection;
mod preface;
mod proxy_protocol;
pub mod quic;
#[cfg(test)]
mod test_host;
mod wait;

pub use connection::{AcceptedTransport, Steps, accept, accept_tls, read_proxy_header};
pub use destination::{find_destination, literal, local_address, no_destination};
pub use host::{ChosenServer, Host, TlsHost};
pub use preface::Preface;
pub use proxy_protocol::ProxyHeader;
pub use wait::{WaitError, ready_or_evicted};

tw_base::limits! {
    /// Limits of connections; those of TLS settings are [`tw_tls_settings::LIMITS`].
    pub const LIMITS;

    section "connections and loops";
    use listen::LIMITS;
    use proxy_protocol::LIMITS;
    use handshake_budget::LIMITS;

    section "HTTP/3";
    use quic::LIMITS;
}
