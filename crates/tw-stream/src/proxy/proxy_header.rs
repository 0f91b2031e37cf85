//! PROXY protocol header for upstream servers (`proxy_protocol`), with the facts of a TLS handshake in version 2.

use tw_core::session::Session;
use tw_net::listen::SocketKind;
use tw_net::proxy_protocol::{put_tlv, write_v1, write_v2};
use tw_tls::certificate::CertificateFields;
use tw_tls::{Verdict, names};
use tw_tls_settings::TlsInfo;

use crate::session::StreamSession;

/// PROXY protocol header for upstream servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// None.
    Off,
    /// Version 1.
    V1,
    /// Version 2.
    V2,
}

/// Types of values, and of those in the value of TLS.
const ALPN: u8 = 0x01;
const AUTHORITY: u8 = 0x02;
const SSL: u8 = 0x20;
const SSL_VERSION: u8 = 0x21;
const SSL_CN: u8 = 0x22;
const SSL_CIPHER: u8 = 0x23;
const SSL_SIG_ALG: u8 = 0x24;
const SSL_KEY_ALG: u8 = 0x25;
/// The client is connected over TLS; it has sent a certificate on this connection; in this session.
const CLIENT_SSL: u8 = 0x01;
const CLIENT_CERT_CONN: u8 = 0x02;
const CLIENT_CERT_SESS: u8 = 0x04;
/// Codes of results of a verification that is none, and of a certificate that is revoked.
const UNSPECIFIED: u32 = 1;
const REVOKED: u32 = 23;

/// The header for the session; empty without one.
pub(crate) fn proxy_header(s: &StreamSession, version: ProxyProtocol) -> Vec<u8> {
    let mut header = Vec::new();
    match version {
        ProxyProtocol::Off => {}
        ProxyProtocol::V1 => write_v1(&mut header, s.client_addr(), s.local_addr()),
        ProxyProtocol::V2 => {
            let tlvs = s.client.tls().map(|tls| tls_values(s, tls)).unwrap_or_default();
            let kind = match s.transport.datagrams() {
                Some(_) => SocketKind::Datagram,
                None => SocketKind::Stream,
            };
            write_v2(&mut header, kind, s.client_addr(), s.local_addr(), &tlvs);
        }
    }
    header
}

/// Values about a handshake, in the order of nginx.
fn tls_values(s: &StreamSession, tls: &TlsInfo) -> Vec<(u8, Vec<u8>)> {
    let mut values = Vec::new();
    if let Some(name) = &tls.server_name {
        values.push((AUTHORITY, name.as_bytes().to_vec()));
    }
    if let Some(protocol) = &tls.protocol {
        values.push((ALPN, protocol.to_vec()));
    }
    let mut flags = CLIENT_SSL;
    let mut verified = UNSPECIFIED;
    if let Some(client) = &tls.client {
        flags |= CLIENT_CERT_SESS | if tls.is_resumed { 0 } else { CLIENT_CERT_CONN };
        verified = match client.verdict {
            Verdict::Good if client.is_revoked() => REVOKED,
            verdict => verdict.code(),
        };
    }
    let mut ssl = vec![flags];
    ssl.extend_from_slice(&verified.to_be_bytes());
    if let Some(version) = tls.version {
        put_tlv(&mut ssl, SSL_VERSION, names::protocol(version).to_string().as_bytes());
    }
    let client = tls.client.as_ref().and_then(|client| CertificateFields::of(&client.der));
    if let Some(name) = client.and_then(|fields| fields.common_name()) {
        put_tlv(&mut ssl, SSL_CN, name.as_bytes());
    }
    if let Some(suite) = tls.suite {
        put_tlv(&mut ssl, SSL_CIPHER, names::suite(suite).to_string().as_bytes());
    }
    let (signature, key) = certificate_algorithms(s, tls).unwrap_or_default();
    if let Some(name) = signature {
        put_tlv(&mut ssl, SSL_SIG_ALG, name.as_bytes());
    }
    if let Some(name) = key {
        put_tlv(&mut ssl, SSL_KEY_ALG, name.as_bytes());
    }
    values.push((SSL, ssl));
    values
}

/// Algorithms of the certificate that the server of the session has shown: its signature and its key.
fn certificate_algorithms(
    s: &StreamSession,
    tls: &TlsInfo,
) -> Option<(Option<&'static str>, Option<String>)> {
    let default = s.client.group()?.servers.default_server;
    let own = s.server().ssl.tls.as_ref();
    own.or_else(|| s.client.generation.server(default).ssl.tls.as_ref())?.certificate_algorithms(tls.scheme)
}
