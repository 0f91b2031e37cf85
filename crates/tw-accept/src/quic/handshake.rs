//! Handshake of a QUIC connection: the server that the client hello names, its certificates, then the engine.
//!
//! The answer to the hello is written before the engine knows the connection: on the loop within the budget of handshakes, or with a key
//! of RSA by a pool. Datagrams that arrive meanwhile wait in the engine.

use std::future::poll_fn;
use std::time::Duration;

use rustls::server::{Accepted, Acceptor};
use tw_core::event_loop::HandshakeFailure;
use tw_log::Level;
use tw_net::route_mtu;
use tw_net::tls::HandshakeError;
use tw_quic::{Connection, ConnectionError, IncomingConnection, TransportConfig};
use tw_tls::{Cost, Fingerprint, TlsTransport, client_scheme};
use tw_tls_settings::ClientHelloInfo;

use crate::handshake::client_certificate;
use crate::handshake_result;
use crate::host::{ChosenServer, TlsHost};
use crate::pending_connection::PendingConnection;

/// Alerts of TLS (RFC 8446, section 6.2).
const DECODE_ERROR: u8 = 50;
const INTERNAL_ERROR: u8 = 80;
const UNRECOGNIZED_NAME: u8 = 112;
/// Bytes of a record of TLS before its content.
const RECORD_HEADER: usize = 5;

/// Takes a client through the handshake, which has to be complete after `timeout`. With early data, it goes on while the connection is
/// served. `None` if the connection ends here; the reason is logged, and the client gets it.
pub async fn accept<H: TlsHost>(
    host: &H,
    mut incoming: IncomingConnection,
    transport: &TransportConfig,
    timeout: Duration,
) -> Option<Connection> {
    let pending = PendingConnection::new(host, host.accepted(), timeout);
    let now = tw_rt::clock::now;
    let accepted = match parse(incoming.hello()) {
        Ok(accepted) => accepted,
        Err(error) => {
            incoming.reject(now(), DECODE_ERROR);
            return pending.failed(&HandshakeError::Tls(error));
        }
    };
    let hello = Some(incoming.hello()).filter(|_| host.needs_fingerprint());
    let fingerprint = hello.and_then(|hello| Fingerprint::of_message(hello, TlsTransport::Quic));
    let offered = ClientHelloInfo::new(&accepted, fingerprint);
    let name = accepted.client_hello().server_name().unwrap_or_default().to_ascii_lowercase();
    let Some(mut chosen) = host.choose_server(&name) else {
        incoming.reject(now(), UNRECOGNIZED_NAME);
        return pending.rejected();
    };
    if let Some(log) = chosen.quic_log.take() {
        log.record(&mut incoming);
    }
    let Some(config) = chosen.tls.quic_config(chosen.alpn).cloned() else {
        // The configuration was checked; a server without TLSv1.3 is not the default one.
        incoming.reject(now(), INTERNAL_ERROR);
        let message = format_args!("SSL_do_handshake() failed (SSL: server without TLSv1.3)");
        return pending.fail(HandshakeFailure::Rejected, Level::Info, message);
    };
    let (config, signature) = match &chosen.tls.dynamic[..] {
        [] => (config, chosen.tls.signature_for(&accepted.client_hello())),
        _ => match pending.load_certificates(&chosen, &accepted).await? {
            Ok(identities) => chosen.tls.with(identities, &accepted.client_hello(), &config),
            Err(error) => {
                incoming.reject(now(), INTERNAL_ERROR);
                return pending.fail(HandshakeFailure::Certificate, Level::Error, format_args!("{error}"));
            }
        },
    };
    drop(accepted);
    incoming.allow_large_datagrams(|peer| route_mtu(peer).ok());
    let ChosenServer { server, pool, clients, .. } = chosen;
    let signer = pool.clone().filter(|_| signature.cost == Cost::Slow);
    let start = incoming.begin(config, client_scheme, transport);
    let begun = match pending.work(signer.as_ref(), move || start.run()).await? {
        Ok(begun) => begun,
        Err(failure) => {
            incoming.reject(now(), failure.alert);
            return pending.failed(&HandshakeError::Tls(failure.error));
        }
    };
    let connection = match incoming.accept(now(), begun) {
        Ok(connection) => connection,
        Err(error) => {
            let message = format_args!("SSL_do_handshake() failed (SSL: {error})");
            return pending.fail(HandshakeFailure::Protocol, Level::Info, message);
        }
    };
    if clients.is_some() || !connection.has_early_data() {
        let established = pending.in_time(poll_fn(|cx| connection.poll_established(cx)));
        if let Err(error) = established.await? {
            let message = format_args!("SSL_do_handshake() failed (SSL: {error})");
            return pending.fail(failure_of(&error), Level::Info, message);
        }
    }
    // A connection that has ended meanwhile tells nothing.
    let facts = connection.take_tls_facts()?;
    let mut client =
        client_certificate(&pending, &facts.client_chain, clients, pool.as_ref(), server).await?;
    if let Some(client) = &mut client {
        client.scheme = facts.client_scheme;
    }
    let is_early = connection.handshaking();
    pending.complete(handshake_result::of_quic(facts, is_early, client, offered, signature.scheme));
    Some(connection)
}

fn failure_of(error: &ConnectionError) -> HandshakeFailure {
    match error {
        ConnectionError::ClosedByPeer { .. } | ConnectionError::Reset => HandshakeFailure::Closed,
        ConnectionError::TimedOut => HandshakeFailure::Timeout,
        _ => HandshakeFailure::Protocol,
    }
}

/// Parses a client hello, a message without a record.
fn parse(hello: &[u8]) -> Result<Accepted, rustls::Error> {
    let mut acceptor = Acceptor::default();
    // Records hold 16 KiB at most, which is the limit of a hello, too; one that needs two is split.
    for part in hello.chunks(16 << 10) {
        let mut record = Vec::with_capacity(RECORD_HEADER + part.len());
        let [high, low] = u16::try_from(part.len()).unwrap_or_default().to_be_bytes();
        record.extend_from_slice(&[22, 3, 1, high, low]);
        record.extend_from_slice(part);
        let mut rest = &record[..];
        while !rest.is_empty() {
            acceptor.read_tls(&mut rest).map_err(|error| rustls::Error::General(error.to_string()))?;
            if let Some(accepted) = acceptor.accept().map_err(|(error, _)| error)? {
                return Ok(accepted);
            }
        }
    }
    Err(rustls::Error::General("client hello is not whole".to_owned()))
}
