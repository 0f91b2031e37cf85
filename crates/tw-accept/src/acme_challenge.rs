//! Answer to the ACME challenge tls-alpn-01 (RFC 8737): the authority looks at the certificate of a handshake.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::Accepted;
use tw_acme::ALPN;
use tw_net::Transport;
use tw_net::tls::{self, Handshake, HandshakeError, Step};
use tw_rt::{Socket, watch};

use crate::host::TlsHost;
use crate::pending_connection::PendingConnection;

/// Configuration of the answer, if the client hello belongs to a pending challenge.
pub(crate) fn find<H: TlsHost>(
    pending: &PendingConnection<'_, H>,
    accepted: &Accepted,
) -> Option<Arc<ServerConfig>> {
    let hello = accepted.client_hello();
    let mut protocols = hello.alpn()?;
    if protocols.next() != Some(ALPN) || protocols.next().is_some() {
        return None;
    }
    pending.host.acme_challenge(&hello.server_name()?.to_ascii_lowercase())
}

/// Completes the handshake, after which the authority has seen the certificate: no request follows.
pub(crate) async fn answer<H: TlsHost>(
    pending: &PendingConnection<'_, H>,
    socket: Socket,
    accepted: Accepted,
    config: Arc<ServerConfig>,
) -> Option<(Transport, Vec<u8>)> {
    // The key is of ECDSA, which is fast enough for a loop.
    let session = match watch::operation("shaking hands", || tls::begin(accepted, config)) {
        Ok(session) => session,
        Err((error, alert)) => {
            // A client that does not read needs no alert.
            let _ = socket.try_write(&alert);
            return pending.failed(&HandshakeError::Tls(error));
        }
    };
    let mut handshake = Handshake::new(socket, session);
    loop {
        match handshake.step() {
            Ok(Step::Done) => return None,
            Ok(Step::Readable) => pending.ready(|cx| handshake.socket().poll_readable(cx)).await?,
            Ok(Step::Writable) => pending.ready(|cx| handshake.socket().poll_writable(cx)).await?,
            Ok(Step::Process) => {
                let (socket, session, sent) = handshake.into_parts();
                let (session, processed) = watch::operation("shaking hands", || tls::process(session));
                handshake = Handshake::from_parts(socket, session, sent);
                if let Err(error) = processed {
                    handshake.refuse();
                    return pending.failed(&HandshakeError::Tls(error));
                }
            }
            Err(failure) => return pending.failed(&failure),
        }
    }
}
