//! A connection before the first byte of its protocol, in the order of its bytes: PROXY protocol header, TLS handshake, preface.

use std::time::Duration;

use tw_net::Transport;
use tw_rt::Socket;

use crate::handshake;
use crate::host::{Host, TlsHost};
use crate::pending_connection::PendingConnection;
use crate::preface::{self, Preface};
use crate::proxy_protocol::{self, ProxyHeader};

/// Steps of an address before the first byte of the protocol.
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    /// `listen … proxy_protocol`
    pub proxy_protocol: bool,
    /// `listen … ssl`
    pub tls: bool,
    /// First bytes of a protocol that clients may choose without TLS.
    pub preface: Option<&'static [u8]>,
    /// Time in which all steps must be complete.
    pub timeout: Duration,
}

/// Transport of a connection that is ready for its protocol.
pub struct AcceptedTransport {
    /// The transport.
    pub transport: Transport,
    /// Bytes that were read of the protocol.
    pub early: Vec<u8>,
    /// Result of the look for [`Steps::preface`]; with TLS, ALPN names the protocol instead ([`TlsInfo`](tw_tls_settings::TlsInfo)).
    pub preface: Preface,
}

/// Takes a connection, of which `early` was read already, through the steps of its address. `None` if it ends here; the reason is
/// logged.
pub async fn accept<H: TlsHost>(
    host: &H,
    socket: Socket,
    mut early: Vec<u8>,
    steps: Steps,
) -> Option<AcceptedTransport> {
    let pending = PendingConnection::new(host, host.accepted(), steps.timeout);
    if steps.proxy_protocol {
        match proxy_protocol::read(&pending, &socket, early).await {
            ProxyHeader::Accepted(rest) => early = rest,
            ProxyHeader::Invalid | ProxyHeader::Absent => return None,
        }
    }
    if steps.tls {
        let (transport, early) = handshake::accept(&pending, socket, early).await?;
        return Some(AcceptedTransport { transport, early, preface: Preface::Absent });
    }
    let preface = match steps.preface {
        Some(expected) => preface::read(&pending, &socket, expected, &mut early).await?,
        None => Preface::Absent,
    };
    Some(AcceptedTransport { transport: Transport::Plain(socket), early, preface })
}

/// Reads the PROXY protocol header alone, for a protocol that decides between its steps. `early` was read before.
pub async fn read_proxy_header<H: Host>(
    host: &H,
    socket: &Socket,
    early: Vec<u8>,
    timeout: Duration,
) -> ProxyHeader {
    proxy_protocol::read(&PendingConnection::new(host, host.accepted(), timeout), socket, early).await
}

/// Completes the TLS handshake alone, for a protocol that decides between its steps. `timeout` begins now; `early` was read before.
/// `None` if the handshake failed, or the client does not speak TLS; the reason is logged.
pub async fn accept_tls<H: TlsHost>(
    host: &H,
    socket: Socket,
    early: Vec<u8>,
    timeout: Duration,
) -> Option<Transport> {
    let pending = PendingConnection::new(host, tw_rt::clock::now(), timeout);
    let (transport, _) = handshake::accept(&pending, socket, early).await?;
    transport.tls().is_some().then_some(transport)
}
