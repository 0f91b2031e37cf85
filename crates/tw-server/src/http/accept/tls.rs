//! The handshake of TLS, as far as it has to wait: for the client, or for a thread that signs.
//!
//! The hello of the client is read first, so that the settings of the server it names hold from the first record on. A
//! signature of RSA takes longer than a turn may: a pool makes it. How much is under way at a time is bounded ([`handshake_budget`]).

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::server::{Accepted, ServerConnection};
use rustls::{HandshakeKind, SignatureScheme};
use tw_core::regex::Captures;
use tw_disk::{Account, DiskError, JobSource, Pool};
use tw_log::Level;
use tw_net::Transport;
use tw_net::tls::{self, ClientHelloReader, ClientMessage, Handshake, HandshakeError, Step, TlsStream};
use tw_rt::Socket;
use tw_tls::{Cost, Identity, Verdict, client_scheme, judge};

use super::tls_info::{ClientCertificate, ClientHelloInfo, TlsInfo};
use super::{PendingConnection, acme_challenge, handshake_budget};
use crate::config::ssl::dynamic_certificate::DynamicCertificate;
use crate::config::ssl::ocsp::Standing;
use crate::config::ssl::{Clients, Tls};
use crate::http::client_wait::WaitError;
use crate::http::generation::{PlanId, ServerId};
use crate::http::synthetic_request;

/// The record that tells a client that nobody here has the name it asked for (RFC 8446, section 6.2).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Certificates of a chain that is judged at once: a signature or two.
const CHAIN_INLINE_MAX: usize = 2;

/// The record that tells a client that it is not its fault.
const INTERNAL_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

/// The settings of the server that a client asked for.
struct Chosen {
    /// By number, and the plan of the server itself.
    server: (ServerId, PlanId),
    tls: Arc<Tls>,
    /// Whether the client may choose HTTP/2.
    speaks_http2: bool,
    /// Who does what takes longer than a loop has; the loop without a pool.
    pool: Option<Pool>,
    clients: Option<Clients>,
}

/// Shakes hands with a client of which `early` was read already. A client that speaks no TLS is served as one of plain HTTP:
/// it is told so. `None` if nothing came of it, which has been logged.
pub(super) async fn accept(
    pending: &PendingConnection<'_>,
    socket: Socket,
    early: Vec<u8>,
) -> Option<(Transport, Vec<u8>)> {
    let mut greeting = ClientHelloReader::new(socket, early);
    let accepted = loop {
        match greeting.read() {
            Ok(Some(ClientMessage::Hello(accepted))) => break accepted,
            Ok(Some(ClientMessage::Plain(bytes))) => {
                pending.client.is_plain_on_tls.set(true);
                return Some((Transport::Plain(greeting.into_socket()), bytes));
            }
            Ok(None) => pending.ready(|cx| greeting.socket().poll_readable(cx)).await?,
            Err(failure) => return pending.failed(&failure),
        }
    };
    let socket = greeting.into_socket();
    if let Some(config) = acme_challenge::question(pending, &accepted) {
        return acme_challenge::answer(pending, socket, *accepted, config).await;
    }
    let offered = ClientHelloInfo::new(&accepted);
    let Some(chosen) = choose(pending, &accepted) else {
        // A client that takes nothing need not know.
        let _ = socket.try_write(&UNRECOGNIZED_NAME);
        pending.log(
            Level::Info,
            format_args!("SSL_do_handshake() failed (SSL: rejected by \"ssl_reject_handshake\")"),
        );
        return None;
    };
    let (config, signature) = match &chosen.tls.named[..] {
        [] => (
            chosen.tls.config(chosen.speaks_http2).clone(),
            chosen.tls.signature_for(&accepted.client_hello()),
        ),
        named => match pending.load(named, &chosen, &accepted).await? {
            Ok(identities) => chosen.tls.with(identities, &accepted.client_hello(), chosen.speaks_http2),
            Err(error) => {
                let _ = socket.try_write(&INTERNAL_ERROR);
                pending.log(Level::Error, format_args!("{error}"));
                return None;
            }
        },
    };
    let Chosen { server: (_, plan), pool, clients, .. } = chosen;
    let signer = pool.clone().filter(|_| signature.cost == Cost::Slow);
    let session = match pending.work(signer.as_ref(), move || tls::begin(*accepted, config)).await? {
        Ok(session) => session,
        Err((error, alert)) => {
            let _ = socket.try_write(&alert);
            return pending.failed(&HandshakeError::Tls(error));
        }
    };
    let mut handshake = Handshake::new(socket, session);
    let mut client_scheme = None;
    // What came behind the hello may be data already.
    if clients.is_none() && handshake.is_resumed() {
        (handshake, _) = process(pending, handshake, None).await?;
    }
    loop {
        match handshake.step() {
            Ok(Step::Readable) if clients.is_none() && handshake.has_early_data() => break,
            Ok(Step::Done) => break,
            Ok(Step::Readable) => pending.ready(|cx| handshake.socket().poll_readable(cx)).await?,
            Ok(Step::Writable) => pending.ready(|cx| handshake.socket().poll_writable(cx)).await?,
            Ok(Step::Process) => {
                let (processed, scheme) = process(pending, handshake, signer.as_ref()).await?;
                (handshake, client_scheme) = (processed, scheme.or(client_scheme));
            }
            Err(failure) => return pending.failed(&failure),
        }
    }
    let mut client = client_certificate(pending, handshake.session(), clients, pool.as_ref(), plan).await?;
    if let Some(client) = &mut client {
        client.scheme = client_scheme;
    }
    let secured = TlsInfo::new(&handshake, client, offered, signature.scheme);
    let is_early = secured.is_early.clone();
    // Set once: a connection has one handshake.
    let _ = pending.client.tls.set(Box::new(secured));
    let stream = match is_early.get() {
        true => {
            let (socket, session) = handshake.into_session();
            TlsStream::with_early_data(socket, session, is_early)
        }
        false => handshake.into_stream(),
    };
    Some((Transport::Tls(Box::new(stream)), Vec::new()))
}

/// The settings of the server whose name the client sent. A server without a certificate has that of the default server, as in
/// nginx; `None` if handshakes with that name are refused.
fn choose(pending: &PendingConnection<'_>, accepted: &Accepted) -> Option<Chosen> {
    let generation = pending.client.home.generation();
    let group = pending.client.group(&generation)?;
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
    let pool = ssl.sign_pool.of(&generation);
    let server = (id, generation.server(id).plan);
    let speaks_http2 = group.speaks_http2(generation.server(id));
    Some(Chosen { server, tls: tls.clone(), speaks_http2, pool, clients: clients.cloned() })
}

/// The certificate of the client, and what is to be thought of it. Every time anew, also where a session was taken up again.
async fn client_certificate(
    pending: &PendingConnection<'_>,
    session: &ServerConnection,
    clients: Option<Clients>,
    pool: Option<&Pool>,
    plan: PlanId,
) -> Option<Option<ClientCertificate>> {
    let (Some(clients), Some(chain)) = (clients, session.peer_certificates()) else { return Some(None) };
    let Some(der) = chain.first().map(|der| der.clone().into_owned()) else { return Some(None) };
    let now = tw_rt::clock::unix().secs.unsigned_abs();
    let pool = pool.filter(|_| chain.len() > CHAIN_INLINE_MAX);
    let chain: Vec<_> = chain.iter().map(|der| der.clone().into_owned()).collect();
    let shown = chain.clone();
    let trust = clients.trust.clone();
    let verdict = pending.work(pool, move || judge(&shown, &trust, now)).await?;
    let mut standing = Standing::Good;
    if let (Verdict::Good, Some(inquirer)) = (verdict, &clients.inquirer) {
        let home = &pending.client.home;
        let resolving = home.generation().plan(plan).core.resolving.clone();
        let asked = inquirer.ask(home, &resolving, (&chain, &clients.trust), now);
        let (found, why) = pending.in_time(asked).await?;
        standing = found;
        if let Some(why) = why {
            pending.log(Level::Error, format_args!("{why} while requesting certificate status"));
        }
    }
    Some(Some(ClientCertificate { der, verdict, standing, scheme: None }))
}

/// Processes what a handshake has read, and tells in which scheme the client has signed, if it has. After a second hello there is
/// something to sign once more.
async fn process(
    pending: &PendingConnection<'_>,
    handshake: Handshake<ServerConnection>,
    signer: Option<&Pool>,
) -> Option<(Handshake<ServerConnection>, Option<SignatureScheme>)> {
    let is_second_hello =
        handshake.session().handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
    let (socket, session, sent) = handshake.into_parts();
    let process = move || (tls::process(session), client_scheme());
    let ((session, processed), scheme): ((Box<ServerConnection>, _), _) =
        pending.work(signer.filter(|_| is_second_hello), process).await?;
    let handshake = Handshake::from_parts(socket, session, sent);
    match processed {
        Ok(()) => Some((handshake, scheme)),
        Err(error) => {
            handshake.refuse();
            pending.failed(&HandshakeError::Tls(error))
        }
    }
}

impl PendingConnection<'_> {
    /// Reads the certificates that variables name for this client. What cannot be read is an error, in words of the log; `None`
    /// when the time is over.
    async fn load(
        &self,
        named: &[DynamicCertificate],
        chosen: &Chosen,
        accepted: &Accepted,
    ) -> Option<Result<Vec<Identity>, String>> {
        let client = self.client.introduced(TlsInfo::announced(accepted));
        let r = synthetic_request::request(&client, chosen.server, b"/");
        let names: Vec<_> = named.iter().map(|named| named.names(&r)).collect();
        client.home.app.give_back(r);
        let disk = client.home.generation().disks.default_disk().clone();
        let mut by = Account::hit(JobSource::of(self.client.peer_text().as_bytes()));
        let mut identities = Vec::with_capacity(named.len());
        for (named, names) in named.iter().zip(&names) {
            match self.in_time(named.load(names, &mut by, &disk, chosen.pool.as_ref())).await? {
                Ok(identity) => identities.push(identity),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(identities))
    }

    /// Waits for `ready`; `None` if that came to nothing, which has been logged.
    pub(super) async fn ready(
        &self,
        ready: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Option<()> {
        match self.wait(ready).await {
            Ok(()) => Some(()),
            Err(WaitError::Timeout) => {
                self.log(Level::Info, format_args!("client timed out (110: Connection timed out)"));
                None
            }
            Err(WaitError::Called | WaitError::Failed) => None,
        }
    }

    /// Has `pool` do some work for the handshake, or does it here without one, when it is its turn; `None` if it cannot be done,
    /// which has been logged.
    async fn work<T: Send + 'static>(
        &self,
        pool: Option<&Pool>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let Some(pool) = pool else { return self.in_time(handshake_budget::here(work)).await };
        let _permit = self.in_time(handshake_budget::permit()).await?;
        let mut by = Account::hit(JobSource::of(self.client.peer_text().as_bytes()));
        match pool.run(&mut by, work).await {
            Ok(done) => Some(done),
            Err(error) => {
                self.tell(&error);
                None
            }
        }
    }

    /// Waits for `event` as long as the handshake may take.
    async fn in_time<T>(&self, event: impl Future<Output = T>) -> Option<T> {
        let (mut event, mut came) = (pin!(event), None);
        self.ready(|cx| {
            event.as_mut().poll(cx).map(|it| {
                came = Some(it);
                Ok(())
            })
        })
        .await?;
        came
    }

    fn tell(&self, error: &DiskError) {
        self.log(Level::Error, format_args!("{error}"));
    }

    /// Writes down why a handshake failed.
    pub(super) fn failed<T>(&self, failure: &HandshakeError) -> Option<T> {
        match failure {
            HandshakeError::Closed => {
                self.log(Level::Info, format_args!("peer closed connection in SSL handshake"))
            }
            HandshakeError::Io(error) => {
                let text = tw_base::Errno(error.raw_os_error().unwrap_or_default());
                self.log(Level::Info, format_args!("SSL_do_handshake() failed ({text})"));
            }
            HandshakeError::Tls(error) => {
                self.log(Level::Info, format_args!("SSL_do_handshake() failed (SSL: {error})"));
            }
        }
        None
    }

    fn log(&self, level: Level, message: std::fmt::Arguments<'_>) {
        self.client.log(level, format_args!("{message} while SSL handshaking"));
    }
}
