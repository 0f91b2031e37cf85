//! Validation of challenges by the authority. All names resolve to this machine.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ALL_VERSIONS, ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

use super::jws;
use crate::Client;

/// Time limit of a validation.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The token of a challenge.
pub(super) fn token(order: usize, at: usize) -> String {
    jws::text(digest(&SHA256, format!("{order} {at}").as_bytes()).as_ref())
}

fn here(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// RFC 8555, section 8.3.
pub(super) fn http(name: &str, token: &str, answer: &str, port: u16) -> Result<(), String> {
    let fetch = || {
        let mut client = Client::connect(here(port))?.timeout(TIMEOUT);
        client.send(format!(
            "GET /.well-known/acme-challenge/{token} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        ))?;
        client.read_response()
    };
    let response = fetch().map_err(|error| error.to_string())?;
    if response.text() == answer && response.status == 200 {
        Ok(())
    } else {
        Err(format!("{} {}", response.status, response.text()))
    }
}

/// RFC 8555, section 8.4.
pub(super) fn record(name: &str, answer: &str, records: Option<&Path>) -> Result<(), String> {
    let name = name.strip_prefix("*.").unwrap_or(name);
    let file = records.ok_or("there is no DNS")?.join(format!("_acme-challenge.{name}."));
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let expected = jws::text(digest(&SHA256, answer.as_bytes()).as_ref());
    text.lines().any(|line| line == expected).then_some(()).ok_or_else(|| format!("there is only {text}"))
}

/// RFC 8737.
pub(super) fn handshake(name: &str, answer: &str, port: u16) -> Result<(), String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_protocol_versions(ALL_VERSIONS).map_err(|error| error.to_string())?;
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody)).with_no_client_auth();
    config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    let server = ServerName::try_from(name.to_owned()).map_err(|error| error.to_string())?;
    let mut session = ClientConnection::new(Arc::new(config), server).map_err(|error| error.to_string())?;
    let mut socket = TcpStream::connect(here(port)).map_err(|error| error.to_string())?;
    let patient =
        socket.set_read_timeout(Some(TIMEOUT)).and_then(|()| socket.set_write_timeout(Some(TIMEOUT)));
    patient.map_err(|error| error.to_string())?;
    while session.is_handshaking() {
        session.complete_io(&mut socket).map_err(|error| error.to_string())?;
    }
    if session.alpn_protocol() != Some(b"acme-tls/1") {
        return Err("another protocol".into());
    }
    let der = session.peer_certificates().and_then(|chain| chain.first()).ok_or("no certificate")?;
    // id-pe-acmeIdentifier, critical, an OCTET STRING in an OCTET STRING.
    let mut extension = vec![6, 8, 0x2b, 6, 1, 5, 5, 7, 1, 0x1f, 1, 1, 0xff, 4, 0x22, 4, 0x20];
    extension.extend_from_slice(digest(&SHA256, answer.as_bytes()).as_ref());
    let mut host = vec![0x82, name.len() as u8];
    host.extend_from_slice(name.as_bytes());
    let has = |what: &[u8]| der.windows(what.len()).any(|part| part == what);
    match (has(&extension), has(&host)) {
        (true, true) => Ok(()),
        (false, _) => Err("the extension is another one".into()),
        (_, false) => Err("the name is another one".into()),
    }
}

/// Verifier for validation: only the contents of a challenge certificate count.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A time as RFC 3339 has it.
pub(super) fn rfc3339(seconds: u64) -> String {
    let days = i64::try_from(seconds / 86_400).unwrap_or_default();
    let rest = seconds % 86_400;
    // Days since 0000-03-01: years begin in March, so that the leap day is the last one.
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year_of_era + era * 400 + next_year;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }
}
