//! TLS handshake with its waits: for the client, and for threads that sign.
//!
//! The client hello is read first, so that the settings of the server it names are in effect from the first record on. A signature
//! of RSA takes longer than a turn may: a pool makes it. The work under way is bounded (`handshake_budget`).

use rustls::pki_types::CertificateDer;
use rustls::server::ServerConnection;
use rustls::{HandshakeKind, SignatureScheme};
use tw_core::event_loop::HandshakeFailure;
use tw_disk::Pool;
use tw_log::Level;
use tw_net::Transport;
use tw_net::tls::{self, ClientHelloReader, ClientMessage, Handshake, HandshakeError, Step, TlsStream};
use tw_rt::Socket;
use tw_tls::{Cost, Fingerprint, Verdict, client_scheme, verify_chain};
use tw_tls_settings::{ClientAuthentication, ClientCertificate, ClientHelloInfo, RevocationStatus};

use crate::host::{ChosenServer, TlsHost};
use crate::pending_connection::PendingConnection;
use crate::{acme_challenge, handshake_result};

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
        let checked = ocsp.check(&client, &chain, &clients.trust, now);
        let (revocation_status, why) = pending.in_time(checked).await?;
        revocation = revocation_status;
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
