//! A client during the handshake of its connection (`tw_accept`): its server, certificates and protocol.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use rustls::ServerConfig;
use tw_accept::{ChosenServer, Host, TlsHost};
use tw_core::event_loop::{EvictableConnection, Tally};
use tw_core::regex::Captures;
use tw_core::vars::CLIENT_HELLO;
use tw_disk::Disk;
use tw_log::Level;
use tw_net::proxy_protocol;
use tw_tls_settings::{CertificateNames, DynamicCertificate, OcspClient, TlsInfo};

use super::acme;
use tw_http_versions::h3::directives::Http3;
use tw_phases::synthetic_request;
use tw_proxy::ocsp_client::LoopOcspClient;
use tw_request::client::Client;
use tw_request::generation::{PlanId, ServedProtocols, ServerId};
use tw_request::request::Request;

/// Index of the list of [`QUIC_ALPN`](tw_request::alpn::QUIC_ALPN) that a server offers.
fn quic_alpn(protocols: ServedProtocols) -> usize {
    match (protocols.http3, protocols.hq) {
        (true, false) => 0,
        (true, true) => 1,
        (false, true) => 2,
        (false, false) => 3,
    }
}

/// A client, as the steps of its connection know it.
pub(super) struct AcceptingClient<'c>(pub(super) &'c Client);

impl Host for AcceptingClient<'_> {
    fn tally(&self) -> &Tally {
        &self.0.event_loop.tally
    }

    fn accepted(&self) -> Instant {
        self.0.accepted
    }

    fn peer_text(&self) -> &str {
        self.0.peer_text()
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.0.log(level, message);
    }

    fn evictable(&self) -> EvictableConnection<'_> {
        self.0.evictable()
    }

    fn set_proxy_header(&self, header: proxy_protocol::Header) {
        // Set once: a connection has one header.
        let _ = self.0.proxy.set(Box::new(header));
    }
}

impl TlsHost for AcceptingClient<'_> {
    type Session = Request;
    /// Server and the plan of its own block.
    type Server = (ServerId, PlanId);

    fn needs_fingerprint(&self) -> bool {
        self.0.event_loop.generation().slots.prepared.has(CLIENT_HELLO)
    }

    fn set_plain_on_tls(&self) {
        self.0.is_plain_on_tls.set(true);
    }

    fn set_tls(&self, info: TlsInfo) {
        // Set once: a connection has one handshake.
        let _ = self.0.tls.set(Box::new(info));
    }

    /// A server without a certificate has that of the default server, as in nginx.
    fn choose_server(&self, name: &str) -> Option<ChosenServer<Self>> {
        let generation = self.0.event_loop.generation();
        let group = self.0.group(&generation)?;
        let named = group.names.find(name.as_bytes(), &mut Captures::default());
        let id = named.ok().flatten().map_or(group.default_server, |(id, _)| id);
        let server = generation.server(id);
        let ssl = &server.ssl;
        if ssl.reject_handshake {
            return None;
        }
        let default = &generation.server(group.default_server).ssl;
        let tls = ssl.tls.as_ref().or(default.tls.as_ref())?.clone();
        let clients = ssl.clients.as_ref().or(default.clients.as_ref()).cloned();
        let pool = ssl.sign_pool.of(&generation.disks);
        let alpn = if group.is_quic() {
            quic_alpn(server.protocols)
        } else {
            usize::from(group.speaks_http2(server))
        };
        let quic_log = Http3::of(server).filter(|_| group.is_quic()).and_then(|http3| http3.log.as_ref());
        let quic_log = quic_log.map(|log| log.connection(self.0.id));
        Some(ChosenServer { server: (id, server.plan), tls, alpn, pool, clients, quic_log })
    }

    fn certificate_names(
        &self,
        server: (ServerId, PlanId),
        hello: TlsInfo,
        certificates: &[DynamicCertificate<Request>],
    ) -> Vec<CertificateNames> {
        let client = self.0.introduced(hello);
        let r = synthetic_request::request(&client, server, b"/");
        let names = certificates.iter().map(|certificate| certificate.names(&r)).collect();
        client.event_loop.give_back(r);
        names
    }

    fn disk(&self) -> Disk {
        self.0.event_loop.generation().disks.default_disk().clone()
    }

    fn ocsp_client(&self, (_, plan): (ServerId, PlanId)) -> impl OcspClient {
        let resolving = self.0.event_loop.generation().plan(plan).core.resolving.clone();
        LoopOcspClient { event_loop: self.0.event_loop.clone(), resolving }
    }

    fn acme_challenge(&self, name: &str) -> Option<Arc<ServerConfig>> {
        acme::answers(&self.0.event_loop.generation()).tls(name)
    }
}
