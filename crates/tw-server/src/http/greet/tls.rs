//! The handshake of TLS, as far as it has to wait: for the client, or for a thread that signs.
//!
//! The hello of the client is read first, so that the settings of the server it names hold from the first record on. A
//! signature of RSA takes longer than a turn may: a pool makes it, whose threads and queue bound what is under way.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::server::{Accepted, ServerConnection};
use rustls::{HandshakeKind, ServerConfig};
use tw_core::regex::Captures;
use tw_disk::{Account, DiskError, Source};
use tw_log::Level;
use tw_net::Transport;
use tw_net::tls::{self, Failure, Greeting, Handshake, Said, Step};
use tw_rt::{Socket, watch};
use tw_tls::{Cost, judge};

use super::Visitor;
use super::secured::{ClientCertificate, Offered, Secured};
use crate::core::ssl::{self, Clients};
use crate::http::waiting::Unready;

/// The record that tells a client that nobody here has the name it asked for (RFC 8446, section 6.2).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Certificates of a chain that is judged at once: a signature or two.
const CHAIN_INLINE_MAX: usize = 2;

/// The settings of the server that a client asked for.
struct Chosen {
    config: Arc<ServerConfig>,
    cost: Cost,
    clients: Option<Clients>,
}

/// Shakes hands with a client of which `early` was read already. A client that speaks no TLS is served as one of plain HTTP:
/// it is told so. `None` if nothing came of it, which has been logged.
pub(super) async fn accept(
    visitor: &Visitor<'_>,
    socket: Socket,
    early: Vec<u8>,
) -> Option<(Transport, Vec<u8>)> {
    let mut greeting = Greeting::new(socket, early);
    let accepted = loop {
        match greeting.read() {
            Ok(Some(Said::Hello(accepted))) => break accepted,
            Ok(Some(Said::Plain(bytes))) => {
                visitor.client.is_plain_on_tls.set(true);
                return Some((Transport::Plain(greeting.into_socket()), bytes));
            }
            Ok(None) => visitor.ready(|cx| greeting.socket().poll_readable(cx)).await?,
            Err(failure) => return visitor.failed(&failure),
        }
    };
    let socket = greeting.into_socket();
    let offered = Offered::new(&accepted);
    let Some(chosen) = choose(visitor, &accepted) else {
        // A client that takes nothing need not know.
        let _ = socket.try_write(&UNRECOGNIZED_NAME);
        visitor.log(
            Level::Info,
            format_args!("SSL_do_handshake() failed (SSL: rejected by \"ssl_reject_handshake\")"),
        );
        return None;
    };
    let Chosen { config, cost, clients } = chosen;
    let is_slow = cost == Cost::Slow;
    let begin = move || tls::begin(*accepted, config);
    let session = match if is_slow {
        visitor.by_pool(begin).await?
    } else {
        watch::operation("shaking hands", begin)
    } {
        Ok(session) => session,
        Err((error, alert)) => {
            let _ = socket.try_write(&alert);
            return visitor.failed(&Failure::Tls(error));
        }
    };
    let mut handshake = Handshake::new(socket, session);
    loop {
        match handshake.step() {
            Ok(Step::Done) => break,
            Ok(Step::Readable) => visitor.ready(|cx| handshake.socket().poll_readable(cx)).await?,
            Ok(Step::Writable) => visitor.ready(|cx| handshake.socket().poll_writable(cx)).await?,
            Ok(Step::Process) => handshake = process(visitor, handshake, is_slow).await?,
            Err(failure) => return visitor.failed(&failure),
        }
    }
    let client = client_certificate(visitor, handshake.session(), clients).await?;
    // Set once: a connection has one handshake.
    let _ = visitor.client.tls.set(Box::new(Secured::new(handshake.session(), client, offered)));
    Some((Transport::Tls(Box::new(handshake.into_stream())), Vec::new()))
}

/// The settings of the server whose name the client sent. A server without a certificate has that of the default server, as in
/// nginx; `None` if handshakes with that name are refused.
fn choose(visitor: &Visitor<'_>, accepted: &Accepted) -> Option<Chosen> {
    let generation = visitor.client.home.generation();
    let group = visitor.client.group(&generation)?;
    let hello = accepted.client_hello();
    let name = hello.server_name().unwrap_or_default().to_ascii_lowercase();
    let named = group.names.find(name.as_bytes(), &mut Captures::default());
    let id = named.ok().flatten().map_or(group.default_server, |(id, _)| id);
    let ssl = &generation.server(id).ssl;
    if ssl.reject_handshake {
        return None;
    }
    let default = &generation.server(group.default_server).ssl;
    let tls = ssl.tls.as_ref().or(default.tls.as_ref())?;
    let clients = ssl.clients.as_ref().or(default.clients.as_ref());
    Some(Chosen { config: tls.config.clone(), cost: tls.cost_of(&hello), clients: clients.cloned() })
}

/// The certificate of the client, and what is to be thought of it. Every time anew, also where a session was taken up again.
async fn client_certificate(
    visitor: &Visitor<'_>,
    session: &ServerConnection,
    clients: Option<Clients>,
) -> Option<Option<ClientCertificate>> {
    let (Some(clients), Some(chain)) = (clients, session.peer_certificates()) else { return Some(None) };
    let Some(der) = chain.first().map(|der| der.clone().into_owned()) else { return Some(None) };
    let now = tw_rt::clock::unix().secs.unsigned_abs();
    let verdict = match chain.len() {
        ..=CHAIN_INLINE_MAX => {
            watch::operation("judging a certificate", || judge(chain, &clients.trust, now))
        }
        _ => {
            let chain: Vec<_> = chain.iter().map(|der| der.clone().into_owned()).collect();
            visitor.by_pool(move || judge(&chain, &clients.trust, now)).await?
        }
    };
    Some(Some(ClientCertificate { der, verdict }))
}

/// Processes what a handshake has read. After a second hello there is something to sign once more.
async fn process(
    visitor: &Visitor<'_>,
    handshake: Handshake<ServerConnection>,
    is_slow: bool,
) -> Option<Handshake<ServerConnection>> {
    let signs =
        is_slow && handshake.session().handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
    let (socket, session) = handshake.into_parts();
    let process = move || tls::process(session);
    let (session, processed): (Box<ServerConnection>, _) = match signs {
        true => visitor.by_pool(process).await?,
        false => watch::operation("shaking hands", process),
    };
    let handshake = Handshake::new(socket, session);
    match processed {
        Ok(()) => Some(handshake),
        Err(error) => {
            handshake.refuse();
            visitor.failed(&Failure::Tls(error))
        }
    }
}

impl Visitor<'_> {
    /// Waits for `ready`; `None` if that came to nothing, which has been logged.
    async fn ready(&self, ready: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>) -> Option<()> {
        match self.wait(ready).await {
            Ok(()) => Some(()),
            Err(Unready::Timeout) => {
                self.log(Level::Info, format_args!("client timed out (110: Connection timed out)"));
                None
            }
            Err(Unready::Called | Unready::Failed) => None,
        }
    }

    /// Has the pool for handshakes do `work`; `None` if it cannot, which has been logged.
    async fn by_pool<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let generation = self.client.home.generation();
        let pool = ssl::pool_of(&generation);
        drop(generation);
        let mut by = Account::hit(Source::of(self.client.peer_text().as_bytes()));
        match pool.run(&mut by, work).await {
            Ok(done) => Some(done),
            Err(error) => {
                self.tell(&error);
                None
            }
        }
    }

    fn tell(&self, error: &DiskError) {
        self.log(Level::Error, format_args!("{error}"));
    }

    /// Writes down why a handshake failed.
    fn failed<T>(&self, failure: &Failure) -> Option<T> {
        match failure {
            Failure::Closed => self.log(Level::Info, format_args!("peer closed connection in SSL handshake")),
            Failure::Io(error) => {
                let text = tw_base::Errno(error.raw_os_error().unwrap_or_default());
                self.log(Level::Info, format_args!("SSL_do_handshake() failed ({text})"));
            }
            Failure::Tls(error) => {
                self.log(Level::Info, format_args!("SSL_do_handshake() failed (SSL: {error})"));
            }
        }
        None
    }

    fn log(&self, level: Level, message: std::fmt::Arguments<'_>) {
        self.client.log(level, format_args!("{message} while SSL handshaking"));
    }
}
