//! Requirements of a server on the TLS of a connection, checked before a request is routed further: plain HTTP on a TLS port,
//! early data, client certificates.

use tw_log::Level;
use tw_tls_settings::{ClientRefusal, EarlyData, TlsInfo};

use tw_request::request::Request;

/// Plain HTTP where TLS is expected: `error_page 497` may redirect it; the client sees 400.
const TO_HTTPS: u16 = 497;
/// The certificate of the client is not trusted; the client sees 400.
const CERTIFICATE_ERROR: u16 = 495;
/// The client sent no certificate; it sees 400.
const NO_CERTIFICATE: u16 = 496;
/// An unsafe request in early data, which may be replayed (RFC 8470, section 5.2).
const TOO_EARLY: u16 = 425;
/// The certificate was requested for another server name (RFC 9110, section 15.5.20).
const MISDIRECTED_REQUEST: u16 = 421;

/// Returns the status of a request that its connection does not satisfy; the reason is logged.
pub(crate) fn check(r: &Request) -> Option<u16> {
    if r.client().is_plain_on_tls.get() {
        let reading = r.head.reading();
        r.log(
            Level::Info,
            format_args!("client sent plain HTTP request to HTTPS port while reading {reading}"),
        );
        return Some(TO_HTTPS);
    }
    let secured = r.client().tls.get()?;
    let ssl = &r.generation().server(r.route.server).ssl;
    if secured.is_early.get() && ssl.early_data != EarlyData::Any && !r.method().is_safe() {
        let reading = r.head.reading();
        r.log(Level::Info, format_args!("client sent unsafe request as early data while reading {reading}"));
        return Some(TOO_EARLY);
    }
    let clients = r.generation().server(r.route.server).ssl.clients.as_ref()?;
    if is_misdirected(r, secured) {
        r.log(
            Level::Info,
            format_args!(
                "client attempted to request the server name different from the one that was negotiated while reading {}",
                r.head.reading()
            ),
        );
        return Some(MISDIRECTED_REQUEST);
    }
    let refusal = clients.check(secured).err()?;
    r.log(Level::Info, format_args!("{refusal} while reading {}", r.head.reading()));
    Some(match refusal {
        ClientRefusal::Untrusted(_) | ClientRefusal::Revocation(_) => CERTIFICATE_ERROR,
        ClientRefusal::NoCertificate => NO_CERTIFICATE,
    })
}

// DIFF(nginx): another name of the same server is served, also if its address has several servers.
/// Returns true if the client named a server in its handshake that is not the one of the request: its certificate was verified by the
/// authorities of that server.
fn is_misdirected(r: &Request, secured: &TlsInfo) -> bool {
    let is_other = |name: &str| name.as_bytes() != &*r.route.host;
    secured.server_name.as_deref().is_some_and(is_other)
        && r.client()
            .group(r.generation())
            .is_none_or(|group| r.client().named_server(group) != r.route.server)
}
