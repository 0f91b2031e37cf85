//! TLS handshake of a session: of `listen … ssl` before the greeting, and of STARTTLS behind a command.

use std::fmt;
use std::time::Instant;

use tw_accept::{ChosenServer, Host, TlsHost, accept_tls};
use tw_core::event_loop::{EvictableConnection, Tally};
use tw_core::session::Session;
use tw_core::vars::CLIENT_HELLO;
use tw_disk::Disk;
use tw_log::Level;
use tw_net::{Transport, proxy_protocol};
use tw_tls::ClientVerification;
use tw_tls::ocsp::ResponderUrl;
use tw_tls_settings::{CertificateNames, DynamicCertificate, OcspClient, TlsInfo};

use crate::config::ServerId;
use crate::session::{ClientFailure, MailSession};

/// Completes the handshake of a client of which `early` was read already, and checks its certificate.
pub(crate) async fn run(s: &mut MailSession, early: Vec<u8>) -> Result<(), ClientFailure> {
    s.action.set("SSL handshaking");
    let timeout = s.server().settings.timeout;
    let socket = match s.take_transport() {
        Some(Transport::Plain(socket)) => socket,
        Some(Transport::Tls(_)) | None => return Err(ClientFailure::Handshake),
    };
    let accepted =
        accept_tls(&SessionHost { session: s, begun: tw_rt::clock::now() }, socket, early, timeout).await;
    s.transport = Some(accepted.ok_or(ClientFailure::Handshake)?);
    check_client(s).await
}

/// Checks the certificate of the client, which gets a reply if it is refused.
async fn check_client(s: &mut MailSession) -> Result<(), ClientFailure> {
    let (Some(clients), Some(tls)) = (&s.server().ssl.clients, s.client.tls()) else { return Ok(()) };
    let Err(refusal) = clients.check(tls) else { return Ok(()) };
    s.action.set("");
    s.log(Level::Info, format_args!("{refusal}"));
    let is_missing = tls.client.is_none() && clients.verification == ClientVerification::Required;
    let protocol = s.server().protocol;
    s.send(if is_missing { protocol.no_certificate() } else { protocol.certificate_error() }).await?;
    Err(ClientFailure::Handshake)
}

/// A session during its handshake.
struct SessionHost<'a> {
    session: &'a MailSession,
    begun: Instant,
}

impl Host for SessionHost<'_> {
    fn tally(&self) -> &Tally {
        &self.session.client.event_loop.tally
    }

    fn accepted(&self) -> Instant {
        self.begun
    }

    fn peer_text(&self) -> &str {
        self.session.client.addr_text()
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        // The message says what is being done.
        let action = self.session.action.replace("");
        self.session.log(level, message);
        self.session.action.set(action);
    }

    fn evictable(&self) -> EvictableConnection<'_> {
        self.session.client.evictable()
    }

    // The header was read before.
    fn set_proxy_header(&self, _: proxy_protocol::Header) {}
}

impl TlsHost for SessionHost<'_> {
    type Session = MailSession;
    type Server = ServerId;

    fn needs_fingerprint(&self) -> bool {
        self.session.slots().prepared.has(CLIENT_HELLO)
    }

    fn set_plain_on_tls(&self) {
        let message = "SSL_do_handshake() failed (SSL: the client does not speak TLS) while SSL handshaking";
        Host::log(self, Level::Info, format_args!("{message}"));
    }

    fn set_tls(&self, info: TlsInfo) {
        self.session.client.set_tls(info);
    }

    fn choose_server(&self, _: &str) -> Option<ChosenServer<Self>> {
        let client = &self.session.client;
        let server = client.server();
        let tls = server.ssl.tls.as_ref()?.clone();
        let clients = server.ssl.clients.clone();
        let pool = server.ssl.sign_pool.of(&client.generation.disks);
        let alpn = server.protocol.alpn();
        Some(ChosenServer { server: client.server_id(), tls, alpn, pool, clients, quic_log: None })
    }

    fn certificate_names(
        &self,
        _: ServerId,
        hello: TlsInfo,
        certificates: &[DynamicCertificate<MailSession>],
    ) -> Vec<CertificateNames> {
        self.session.client.set_hello(hello);
        certificates.iter().map(|certificate| certificate.names(self.session)).collect()
    }

    fn disk(&self) -> Disk {
        self.session.client.generation.disks.default_disk().clone()
    }

    fn ocsp_client(&self, _: ServerId) -> impl OcspClient {
        NoOcsp
    }
}

/// OCSP client of a protocol that has no directives of OCSP.
struct NoOcsp;

impl OcspClient for NoOcsp {
    async fn query(&self, _: &ResponderUrl, _: &[u8], _: usize) -> Result<Vec<u8>, String> {
        Err("no OCSP client".to_owned())
    }
}

/// PROXY protocol header of a client, which is read before its session begins.
pub(crate) struct ProxyHost<'a>(pub(crate) &'a MailSession);

impl Host for ProxyHost<'_> {
    fn tally(&self) -> &Tally {
        &self.0.client.event_loop.tally
    }

    fn accepted(&self) -> Instant {
        self.0.client.accepted
    }

    fn peer_text(&self) -> &str {
        self.0.client.peer_text()
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.0.log(level, message);
    }

    fn evictable(&self) -> EvictableConnection<'_> {
        self.0.client.evictable()
    }

    fn set_proxy_header(&self, header: proxy_protocol::Header) {
        // Set once: a connection has one header.
        let _ = self.0.client.proxy.set(Box::new(header));
    }
}
