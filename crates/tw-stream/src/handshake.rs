//! TLS handshake of a session (`listen … ssl`), between the access and the preread phase as in nginx. The name that the client
//! sends selects the server of the session; the settings of that server hold from then on.

use std::fmt;
use std::mem;
use std::rc::Rc;
use std::time::Instant;

use tw_accept::{ChosenServer, Host, TlsHost, accept_tls};
use tw_core::event_loop::{EvictableConnection, Tally};
use tw_core::session::Session;
use tw_core::vars::CLIENT_HELLO;
use tw_disk::Disk;
use tw_log::Level;
use tw_net::{Transport, proxy_protocol};
use tw_tls_settings::{CertificateNames, DynamicCertificate, OcspClient, TlsInfo};

use crate::config::ServerId;
use crate::ocsp_client::LoopOcspClient;
use crate::server_choice::choose_server;
use crate::session::{SessionTransport, StreamSession};
use crate::status::{PhaseResult, SessionStatus};

/// Completes the handshake, and checks the certificate of the client.
pub(crate) async fn run(s: &mut StreamSession) -> PhaseResult {
    let settings = s.server();
    let timeout = settings.ssl.handshake_timeout;
    if let (true, Some(transport)) = (settings.settings.tcp_nodelay, s.transport.connection()) {
        transport.socket().set_nodelay();
    }
    let socket = match s.take_connection() {
        Some(Transport::Plain(socket)) => socket,
        // Passed on after its handshake.
        Some(secured @ Transport::Tls(_)) => {
            s.transport = SessionTransport::Connection(Rc::new(secured));
            return check_client(s);
        }
        None => return Err(SessionStatus::INTERNAL_SERVER_ERROR),
    };
    // Bytes behind a PROXY protocol header belong to the handshake.
    let early = mem::take(&mut s.preread).to_vec();
    s.received = 0;
    let accepted = accept_tls(&SessionHost(s), socket, early, timeout).await;
    let Some(transport) = accepted else { return Err(SessionStatus::INTERNAL_SERVER_ERROR) };
    s.transport = SessionTransport::Connection(Rc::new(transport));
    check_client(s)
}

/// Checks the certificate of the client.
fn check_client(s: &StreamSession) -> PhaseResult {
    let (Some(clients), Some(tls)) = (&s.server().ssl.clients, s.client.tls()) else { return Ok(()) };
    clients.check(tls).map_err(|refusal| {
        s.log(Level::Info, format_args!("{refusal} while SSL handshaking"));
        SessionStatus::INTERNAL_SERVER_ERROR
    })
}

/// A session during its handshake.
struct SessionHost<'a>(&'a StreamSession);

impl Host for SessionHost<'_> {
    fn tally(&self) -> &Tally {
        &self.0.client.event_loop.tally
    }

    fn accepted(&self) -> Instant {
        self.0.client.accepted
    }

    fn peer_text(&self) -> &str {
        self.0.client.addr_text()
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.0.log(level, message);
    }

    fn evictable(&self) -> EvictableConnection<'_> {
        self.0.client.evictable()
    }

    fn set_proxy_header(&self, header: proxy_protocol::Header) {
        self.0.client.set_proxy_header(header);
    }
}

impl TlsHost for SessionHost<'_> {
    type Session = StreamSession;
    type Server = ServerId;

    fn needs_fingerprint(&self) -> bool {
        self.0.slots().prepared.has(CLIENT_HELLO)
    }

    fn set_plain_on_tls(&self) {
        let message = "SSL_do_handshake() failed (SSL: the client does not speak TLS) while SSL handshaking";
        self.0.log(Level::Info, format_args!("{message}"));
    }

    fn set_tls(&self, info: TlsInfo) {
        self.0.client.set_tls(info);
    }

    /// A server without a certificate has that of the default server, as in nginx.
    fn choose_server(&self, name: &str) -> Option<ChosenServer<Self>> {
        let client = &self.0.client;
        choose_server(self.0, name.as_bytes());
        let ssl = &client.server().ssl;
        let default = client.group()?.servers.default_server;
        if ssl.reject_handshake {
            return None;
        }
        let default = &client.generation.server(default).ssl;
        let tls = ssl.tls.as_ref().or(default.tls.as_ref())?.clone();
        let clients = ssl.clients.as_ref().or(default.clients.as_ref()).cloned();
        let pool = ssl.sign_pool.of(&client.generation.disks);
        Some(ChosenServer { server: client.server_id(), tls, alpn: 0, pool, clients, quic_log: None })
    }

    fn certificate_names(
        &self,
        _: ServerId,
        hello: TlsInfo,
        certificates: &[DynamicCertificate<StreamSession>],
    ) -> Vec<CertificateNames> {
        self.0.client.set_hello(hello);
        certificates.iter().map(|certificate| certificate.names(self.0)).collect()
    }

    fn disk(&self) -> Disk {
        self.0.client.generation.disks.default_disk().clone()
    }

    fn ocsp_client(&self, server: ServerId) -> impl OcspClient {
        let client = &self.0.client;
        let resolving = client.generation.server(server).settings.resolving.clone();
        LoopOcspClient { event_loop: client.event_loop.clone(), resolving }
    }
}
