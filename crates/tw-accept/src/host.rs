//! Host of a connection: the part of a protocol's server that a connection needs before the first byte of the protocol.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use rustls::ServerConfig;
use tw_core::event_loop::{EvictableConnection, Tally};
use tw_core::session::Session;
use tw_disk::{Disk, Pool};
use tw_log::Level;
use tw_net::proxy_protocol;
use tw_tls_settings::{
    CertificateNames, ClientAuthentication, DynamicCertificate, OcspClient, ServerTls, TlsInfo,
};

use crate::quic::ConnectionLog;

/// A client whose connection was accepted.
pub trait Host: Sized {
    /// Time at which the connection was accepted.
    fn accepted(&self) -> Instant;

    /// Address of the peer as text.
    fn peer_text(&self) -> &str;

    /// Counters of its loop.
    fn tally(&self) -> &Tally;

    /// Writes a line into the error log.
    fn log(&self, level: Level, message: fmt::Arguments<'_>);

    /// Lets the loop close the connection to make room, as long as the result lives.
    fn evictable(&self) -> EvictableConnection<'_>;

    /// Stores the PROXY protocol header. Called once at most.
    fn set_proxy_header(&self, header: proxy_protocol::Header);
}

/// A client of a protocol whose servers can use TLS.
pub trait TlsHost: Host {
    /// Sessions of the protocol, whose variables can name certificates.
    type Session: Session;
    /// Server of the configuration.
    type Server: Copy;

    /// Returns true if variables of the configuration need the fingerprints of clients.
    fn needs_fingerprint(&self) -> bool;

    /// Notes that the client does not speak TLS where TLS is expected.
    fn set_plain_on_tls(&self);

    /// Stores the result of the handshake. Called once at most.
    fn set_tls(&self, info: TlsInfo);

    /// Settings of the server with this name, in lower case, or of the default server; `None` if its handshakes are rejected.
    fn choose_server(&self, name: &str) -> Option<ChosenServer<Self>>;

    /// Names of the server's dynamic certificates for a client hello.
    fn certificate_names(
        &self,
        server: Self::Server,
        hello: TlsInfo,
        certificates: &[DynamicCertificate<Self::Session>],
    ) -> Vec<CertificateNames>;

    /// Disk that dynamic certificates are read from.
    fn disk(&self) -> Disk;

    /// OCSP client with the name servers of the server.
    fn ocsp_client(&self, server: Self::Server) -> impl OcspClient;

    /// Configuration of the answer to a pending tls-alpn-01 challenge for this name (RFC 8737).
    fn acme_challenge(&self, _name: &str) -> Option<Arc<ServerConfig>> {
        None
    }
}

/// Server that a client named in its hello, with settings of the handshake.
pub struct ChosenServer<H: TlsHost> {
    /// The server.
    pub server: H::Server,
    /// TLS configuration of the server, or of the default server.
    pub tls: Arc<ServerTls<H::Session>>,
    /// Index of the list that is offered (ALPN).
    pub alpn: usize,
    /// Pool for work that takes longer than a loop may; the loop does it without one.
    pub pool: Option<Pool>,
    /// Authentication of clients by certificates, if it is on.
    pub clients: Option<ClientAuthentication>,
    /// Record of the connection, if it is over QUIC and recorded.
    pub quic_log: Option<ConnectionLog>,
}
