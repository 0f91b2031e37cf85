//! What comes before the first request of a connection, in the order of its bytes: the header of the PROXY protocol, then the
//! handshake of TLS. What was agreed on says which protocol the requests are in.

mod acme_challenge;
mod handshake_budget;
mod preface;
mod proxy_protocol;
mod tls;
mod tls_info;

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_base::Limit;
use tw_log::Level;
use tw_net::Transport;
use tw_rt::{Deadline, Socket};

use self::proxy_protocol::Header;
use super::client::Client;
use super::client_wait::{WaitError, ready_or_called};
use super::generation::{ListenGroup, LoopGeneration};
use super::h1::{self, Http1Connection};
use super::h2;
use super::request::Request;
use crate::config::ssl::ocsp::Standing;
use crate::config::ssl::{self, EarlyData};

pub(crate) use tls_info::TlsInfo;

pub(crate) const LIMITS: &[&[Limit]] = &[proxy_protocol::LIMITS, handshake_budget::LIMITS];

/// Plain HTTP where TLS is expected: `error_page 497` may redirect it; the client sees 400.
const TO_HTTPS: u16 = 497;
/// The certificate of the client is not trusted; it sees 400.
const CERTIFICATE_ERROR: u16 = 495;
/// It has none; it sees 400.
const NO_CERTIFICATE: u16 = 496;
/// Nobody knows that it is no copy (RFC 8470, section 5.2).
const TOO_EARLY: u16 = 425;
/// Its certificate was asked for by another server (RFC 9110, section 15.5.20).
const MISDIRECTED_REQUEST: u16 = 421;

/// A connection that was just accepted.
struct PendingConnection<'a> {
    client: &'a Rc<Client>,
    deadline: RefCell<Deadline>,
    /// In which its greeting must be over.
    timeout: Duration,
}

impl<'a> PendingConnection<'a> {
    fn new(client: &'a Rc<Client>, timeout: Duration) -> Self {
        Self { client, deadline: RefCell::new(Deadline::new()), timeout }
    }

    /// Waits for `ready` until the time is over, or the place of the connection is wanted.
    async fn wait(
        &self,
        ready: impl FnMut(&mut Context<'_>) -> Poll<std::io::Result<()>>,
    ) -> Result<(), WaitError> {
        let until = self.client.accepted + self.timeout;
        let left = until.saturating_duration_since(tw_rt::clock::now());
        ready_or_called(self.client, &self.deadline, left, ready).await
    }
}

/// Why a request may not be served on its connection, as far as that was greeted otherwise: the status.
pub(crate) fn refusal(r: &Request) -> Option<u16> {
    if r.client().is_plain_on_tls.get() {
        let reading = r.head.reading();
        r.log(
            Level::Info,
            format_args!("client sent plain HTTP request to HTTPS port while reading {reading}"),
        );
        return Some(TO_HTTPS);
    }
    let secured = r.client().tls.get()?;
    let ssl = &r.generation().server(r.route.server).ssl;
    if secured.is_early.get() && ssl.early_data != EarlyData::Any && !r.method().is_safe() {
        let reading = r.head.reading();
        r.log(Level::Info, format_args!("client sent unsafe request as early data while reading {reading}"));
        return Some(TOO_EARLY);
    }
    let clients = r.generation().server(r.route.server).ssl.clients.as_ref()?;
    if secured.server_name.as_deref().is_some_and(|name| name.as_bytes() != &*r.route.host) {
        r.log(
            Level::Info,
            format_args!(
                "client attempted to request the server name different from the one that was negotiated while reading {}",
                r.head.reading()
            ),
        );
        return Some(MISDIRECTED_REQUEST);
    }
    let verdict = secured.client.as_ref().map(|client| client.verdict);
    let standing = secured.client.as_ref().map_or(Standing::Good, |client| client.standing);
    let reading = r.head.reading();
    match (clients.demand.admits(verdict), standing) {
        (true, Standing::Good) => return None,
        (true, standing) => {
            let said =
                format_args!("client SSL certificate verify error: {standing} while reading {reading}");
            r.log(Level::Info, said);
            return Some(CERTIFICATE_ERROR);
        }
        (false, _) => {}
    }
    match verdict {
        Some(verdict) => {
            let code = verdict.code();
            let said = format_args!(
                "client SSL certificate verify error: ({code}:{verdict}) while reading {reading}"
            );
            r.log(Level::Info, said);
            Some(CERTIFICATE_ERROR)
        }
        None => {
            r.log(
                Level::Info,
                format_args!("client sent no required SSL certificate while reading {reading}"),
            );
            Some(NO_CERTIFICATE)
        }
    }
}

/// What comes before the first request of a connection.
#[derive(Clone, Copy)]
struct Steps {
    proxied: bool,
    secured: bool,
    /// Whether a plain connection may be one of HTTP/2.
    http2: bool,
    /// In which all of it must be over.
    timeout: Duration,
}

impl Steps {
    /// Those of an address; `None` if there is nothing before the first request.
    fn of(group: &ListenGroup, generation: &LoopGeneration) -> Option<Self> {
        let server = generation.server(group.default_server);
        let (proxied, secured) = (group.proxy_protocol, group.ssl);
        let http2 = !secured && group.speaks_http2(server);
        let timeout = server.settings.client_header_timeout;
        (proxied || secured || http2).then_some(Self { proxied, secured, http2, timeout })
    }
}

/// A connection whose requests come next.
struct AcceptedTransport {
    transport: Transport,
    /// What came of them already.
    early: Vec<u8>,
    protocol: Protocol,
}

/// The protocol of requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// Serves a connection until it is closed.
pub(crate) async fn serve(client: Rc<Client>, socket: Socket) {
    let steps = {
        let generation = client.home.generation();
        let Some(group) = client.group(&generation) else { return };
        Steps::of(group, &generation)
    };
    // Who is not greeted does not carry the size of it.
    let Some(steps) = steps else {
        return h1::serve(Http1Connection::new(client, Transport::Plain(socket)), Vec::new()).await;
    };
    let Some(greeted) = Box::pin(accept(&client, socket, steps)).await else { return };
    let AcceptedTransport { transport, early, protocol } = greeted;
    match protocol {
        Protocol::Http1 => h1::serve(Http1Connection::new(client, transport), early).await,
        Protocol::Http2 => Box::pin(h2::serve(client, transport, early)).await,
    }
}

/// The transport of the requests, and bytes of the first that came already. `None` if there will be none; it has been logged.
async fn accept(client: &Rc<Client>, socket: Socket, steps: Steps) -> Option<AcceptedTransport> {
    let pending = PendingConnection::new(client, steps.timeout);
    let mut early = Vec::new();
    if steps.proxied {
        match proxy_protocol::read(&pending, &socket).await {
            Header::Accepted(rest) => early = rest,
            Header::Refused => return None,
        }
    }
    if steps.secured {
        let (transport, early) = tls::accept(&pending, socket, early).await?;
        let chosen = client.tls.get().and_then(|secured| secured.protocol.as_deref());
        let protocol = if chosen == Some(ssl::HTTP_2) { Protocol::Http2 } else { Protocol::Http1 };
        return Some(AcceptedTransport { transport, early, protocol });
    }
    let protocol = match steps.http2 {
        true => preface::read(&pending, &socket, &mut early).await?,
        false => Protocol::Http1,
    };
    Some(AcceptedTransport { transport: Transport::Plain(socket), early, protocol })
}
