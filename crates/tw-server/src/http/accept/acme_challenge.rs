//! An authority that looks at the certificate of a handshake, to see whether a name is ours (RFC 8737).

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::Accepted;
use tw_acme::ALPN;
use tw_net::Transport;
use tw_net::tls::{self, Handshake, HandshakeError, Step};
use tw_rt::{Socket, watch};

use super::PendingConnection;
use crate::config::acme;

/// The settings for the hello of an authority whose question is open; everybody else is a client.
pub(super) fn question(pending: &PendingConnection<'_>, accepted: &Accepted) -> Option<Arc<ServerConfig>> {
    let hello = accepted.client_hello();
    let mut protocols = hello.alpn()?;
    if protocols.next() != Some(ALPN) || protocols.next().is_some() {
        return None;
    }
    let name = hello.server_name()?.to_ascii_lowercase();
    let generation = pending.client.home.generation();
    acme::answers(&generation).tls(&name)
}

/// Shakes hands. With that the authority has seen what it wanted to see: there is no request.
pub(super) async fn answer(
    pending: &PendingConnection<'_>,
    socket: Socket,
    accepted: Accepted,
    config: Arc<ServerConfig>,
) -> Option<(Transport, Vec<u8>)> {
    // Its key is of ECDSA: a loop has the time.
    let session = match watch::operation("shaking hands", || tls::begin(accepted, config)) {
        Ok(session) => session,
        Err((error, alert)) => {
            // Who takes nothing need not know.
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
