//! Result of a handshake over TCP or QUIC, as variables and logs see it.

use std::cell::Cell;
use std::rc::Rc;

use rustls::server::ServerConnection;
use rustls::{HandshakeKind, ProtocolVersion, SignatureScheme};
use tw_net::tls::Handshake;
use tw_quic::TlsFacts;
use tw_tls_settings::{ClientCertificate, ClientHelloInfo, TlsInfo};

/// Information of a connection over QUIC, whose handshake is complete or far enough for early data.
pub(crate) fn of_quic(
    facts: TlsFacts,
    is_early: Rc<Cell<bool>>,
    client: Option<ClientCertificate>,
    offered: ClientHelloInfo,
    scheme: Option<SignatureScheme>,
) -> TlsInfo {
    let TlsFacts { server_name, protocol, suite, group, is_resumed, client_chain: _, client_scheme: _ } =
        facts;
    TlsInfo {
        server_name,
        version: Some(ProtocolVersion::TLSv1_3),
        suite,
        group,
        protocol,
        is_resumed,
        client,
        offered,
        id: None,
        scheme: scheme.filter(|_| !is_resumed),
        is_early,
    }
}

/// Information of a handshake over TCP that is complete, or far enough for early data.
pub(crate) fn of_tcp(
    handshake: &Handshake<ServerConnection>,
    client: Option<ClientCertificate>,
    offered: ClientHelloInfo,
    scheme: Option<SignatureScheme>,
) -> TlsInfo {
    let session = handshake.session();
    let is_resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
    TlsInfo {
        server_name: session.server_name().map(Into::into),
        version: session.protocol_version(),
        suite: session.negotiated_cipher_suite().map(|suite| suite.suite()),
        group: session.negotiated_key_exchange_group().map(|group| group.name()),
        protocol: session.alpn_protocol().map(Into::into),
        is_resumed,
        client,
        offered,
        id: handshake.session_id().map(Into::into),
        scheme: scheme.filter(|_| !is_resumed),
        is_early: Rc::new(Cell::new(session.is_handshaking())),
    }
}
