//! TLS handshake with its waits: for the client, and for threads that sign.
//!
//! The client hello is read first, so that the settings of the server it names are in effect from the first record on. A signature
//! of RSA takes longer than a turn may: a pool makes it. The work under way is bounded ([`handshake_budget`]).

use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use rustls::pki_types::CertificateDer;
use rustls::server::{Accepted, ServerConnection};
use rustls::{HandshakeKind, SignatureScheme};
use tw_core::event_loop::HandshakeFailure;
use tw_disk::{Account, JobSource, Pool};
use tw_log::Level;
use tw_net::Transport;
use tw_net::tls::{self, ClientHelloReader, ClientMessage, Handshake, HandshakeError, Step, TlsStream};
use tw_rt::Socket;
use tw_tls::{Cost, Fingerprint, Identity, Verdict, client_scheme, verify_chain};
use tw_tls_settings::{ClientAuthentication, ClientCertificate, ClientHelloInfo, RevocationStatus, TlsInfo};

use crate::connection::PendingConnection;
use crate::host::{ChosenServer, TlsHost};
use crate::wait::WaitError;
use crate::{acme_challenge, handshake_budget, handshake_result};

/// Record with the alert `unrecognized_name` (RFC 8446, section 6.2).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Certificates of a chain that a loop verifies itself: a signature or two.
const CHAIN_INLINE_MAX: usize = 2;

/// Record with the alert `internal_error`.
const INTERNAL_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

/// Completes the handshake with a client of which `early` was read already. A client that does not speak TLS gets a plain transport,
/// and its protocol has to refuse it. `None` if the handshake failed; the reason is logged.
pub(crate) async fn accept<H: TlsHost>(
    pending: &PendingConnection<'_, H>,
    socket: Socket,
    early: Vec<u8>,
) -> Option<(Transport, Vec<u8>)> {
    let mut greeting = ClientHelloReader::new(socket, early);
    if pending.host.needs_fingerprint() {
        greeting.keep_bytes();
    }
    let accepted = loop {
        match greeting.read() {
            Ok(Some(ClientMessage::Hello(accepted))) => break accepted,
            Ok(Some(ClientMessage::Plain(bytes))) => {
                pending.host.set_plain_on_tls();
                return Some((Transport::Plain(greeting.into_socket()), bytes));
            }
            Ok(None) => pending.ready(|cx| greeting.socket().poll_readable(cx)).await?,
            Err(failure) => return pending.failed(&failure),
        }
    };
    let fingerprint = greeting.take_bytes().and_then(|bytes| Fingerprint::of_records(&bytes));
    let socket = greeting.into_socket();
    if let Some(config) = acme_challenge::find(pending, &accepted) {
        return acme_challenge::answer(pending, socket, *accepted, config).await;
    }
    let offered = ClientHelloInfo::new(&accepted, fingerprint);
    let name = accepted.client_hello().server_name().unwrap_or_default().to_ascii_lowercase();
    let Some(chosen) = pending.host.choose_server(&name) else {
        // A client that does not read needs no alert.
        let _ = socket.try_write(&UNRECOGNIZED_NAME);
        return pending.rejected();
    };
    let (config, signature) = match &chosen.tls.dynamic[..] {
        [] => (chosen.tls.config(chosen.alpn).clone(), chosen.tls.signature_for(&accepted.client_hello())),
        _ => match pending.load_certificates(&chosen, &accepted).await? {
            Ok(identities) => {
                let base = chosen.tls.config(chosen.alpn);
                chosen.tls.with(identities, &accepted.client_hello(), base)
            }
            Err(error) => {
                let _ = socket.try_write(&INTERNAL_ERROR);
                return pending.fail(HandshakeFailure::Certificate, Level::Error, format_args!("{error}"));
            }
        },
    };
    let ChosenServer { server, pool, clients, .. } = chosen;
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
    // The bytes behind the hello may be early data.
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
    let chain = handshake.session().peer_certificates().unwrap_or_default();
    let mut client = client_certificate(pending, chain, clients, pool.as_ref(), server).await?;
    if let Some(client) = &mut client {
        client.scheme = client_scheme;
    }
    let secured = handshake_result::of_tcp(&handshake, client, offered, signature.scheme);
    let is_early = secured.is_early.clone();
    pending.complete(secured);
    let stream = match is_early.get() {
        true => {
            let (socket, session) = handshake.into_session();
            TlsStream::with_early_data(socket, session, is_early)
        }
        false => handshake.into_stream(),
    };
    Some((Transport::Tls(Box::new(stream)), Vec::new()))
}

/// Verifies the certificate of the client, also where a session was resumed.
pub(crate) async fn client_certificate<H: TlsHost>(
    pending: &PendingConnection<'_, H>,
    chain: &[CertificateDer<'_>],
    clients: Option<ClientAuthentication>,
    pool: Option<&Pool>,
    server: H::Server,
) -> Option<Option<ClientCertificate>> {
    let Some(clients) = clients else { return Some(None) };
    let Some(der) = chain.first().map(|der| der.clone().into_owned()) else { return Some(None) };
    let now = tw_rt::clock::unix().secs.unsigned_abs();
    let pool = pool.filter(|_| chain.len() > CHAIN_INLINE_MAX);
    let chain: Vec<_> = chain.iter().map(|der| der.clone().into_owned()).collect();
    let shown = chain.clone();
    let trust = clients.trust.clone();
    let verdict = pending.work(pool, move || verify_chain(&shown, &trust, now)).await?;
    let mut revocation = RevocationStatus::Good;
    if let (Verdict::Good, Some(ocsp)) = (verdict, &clients.ocsp) {
        let client = pending.host.ocsp_client(server);
        let checked = ocsp.check(&client, (&chain, &clients.trust), now);
        let (found, why) = pending.in_time(checked).await?;
        revocation = found;
        if let Some(why) = why {
            pending.log_handshake(Level::Error, format_args!("{why} while requesting certificate status"));
        }
    }
    Some(Some(ClientCertificate { der, verdict, revocation, scheme: None }))
}

/// Processes the bytes that were read, and returns the signature scheme of the client, if it has signed. A second client hello
/// needs a signature, too.
async fn process<H: TlsHost>(
    pending: &PendingConnection<'_, H>,
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

impl<H: TlsHost> PendingConnection<'_, H> {
    /// Reads the certificates that variables name for this client. The inner error is a line of the log; `None` when the time is
    /// over.
    pub(crate) async fn load_certificates(
        &self,
        chosen: &ChosenServer<H>,
        accepted: &Accepted,
    ) -> Option<Result<Vec<Identity>, String>> {
        let dynamic = &chosen.tls.dynamic;
        let names = self.host.certificate_names(chosen.server, TlsInfo::of_hello(accepted), dynamic);
        let disk = self.host.disk();
        let mut account = Account::hit(JobSource::of(self.host.peer_text().as_bytes()));
        let mut identities = Vec::with_capacity(dynamic.len());
        for (certificate, names) in dynamic.iter().zip(&names) {
            match self
                .in_time(certificate.reader().load(names, &mut account, &disk, chosen.pool.as_ref()))
                .await?
            {
                Ok(identity) => identities.push(identity),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(identities))
    }

    /// Waits for `ready`; `None` if the wait failed. The reason is logged.
    pub(crate) async fn ready(
        &self,
        ready: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Option<()> {
        match self.wait(ready).await {
            Ok(()) => Some(()),
            Err(WaitError::Timeout) => {
                let message = format_args!("client timed out (110: Connection timed out)");
                self.fail(HandshakeFailure::Timeout, Level::Info, message)
            }
            Err(WaitError::Evicted) => {
                self.host.tally().handshake_failed(HandshakeFailure::Overload);
                None
            }
            Err(WaitError::Failed) => {
                self.host.tally().handshake_failed(HandshakeFailure::Closed);
                None
            }
        }
    }

    /// Does work of the handshake on `pool`, or without one on the loop, within the budget. `None` if it cannot be done; the reason
    /// is logged.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        pool: Option<&Pool>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let Some(pool) = pool else { return self.in_time(handshake_budget::run_on_loop(work)).await };
        let _permit = self.in_time(handshake_budget::pool_permit()).await?;
        let mut account = Account::hit(JobSource::of(self.host.peer_text().as_bytes()));
        match pool.run(&mut account, work).await {
            Ok(done) => Some(done),
            Err(error) => self.fail(HandshakeFailure::Overload, Level::Error, format_args!("{error}")),
        }
    }

    /// Waits for `event` as long as the handshake may take.
    pub(crate) async fn in_time<T>(&self, event: impl Future<Output = T>) -> Option<T> {
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

    /// Stores the result of the handshake, and counts it.
    pub(crate) fn complete(&self, info: TlsInfo) {
        self.host.tally().handshake_completed(info.is_resumed);
        self.host.set_tls(info);
    }

    /// Logs and counts a handshake that was rejected because of the name of the server.
    pub(crate) fn rejected<T>(&self) -> Option<T> {
        let message = format_args!("SSL_do_handshake() failed (SSL: rejected by \"ssl_reject_handshake\")");
        self.fail(HandshakeFailure::Rejected, Level::Info, message)
    }

    /// Logs and counts a handshake that ended with an error of the client or of the connection.
    pub(crate) fn failed<T>(&self, error: &HandshakeError) -> Option<T> {
        let fail = |failure, message: std::fmt::Arguments<'_>| self.fail(failure, Level::Info, message);
        match error {
            HandshakeError::Closed => {
                fail(HandshakeFailure::Closed, format_args!("peer closed connection in SSL handshake"))
            }
            HandshakeError::Io(error) => {
                let text = tw_base::Errno(error.raw_os_error().unwrap_or_default());
                fail(HandshakeFailure::Closed, format_args!("SSL_do_handshake() failed ({text})"))
            }
            HandshakeError::Tls(error) => {
                let message = format_args!("SSL_do_handshake() failed (SSL: {error})");
                fail(HandshakeFailure::Protocol, message)
            }
        }
    }

    /// Logs and counts the failure of a handshake.
    pub(crate) fn fail<T>(
        &self,
        failure: HandshakeFailure,
        level: Level,
        message: std::fmt::Arguments<'_>,
    ) -> Option<T> {
        self.host.tally().handshake_failed(failure);
        self.log_handshake(level, message);
        None
    }

    fn log_handshake(&self, level: Level, message: std::fmt::Arguments<'_>) {
        self.host.log(level, format_args!("{message} while SSL handshaking"));
    }
}
