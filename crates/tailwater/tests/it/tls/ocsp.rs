//! OCSP: stapling for clients (`ssl_stapling`), and checks of client certificates (`ssl_ocsp`).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use rustls::ALL_VERSIONS;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tw_testkit::acme::{Ca, Script};
use tw_testkit::origin::{Conn, origin};
use tw_testkit::server::Builder;
use tw_testkit::tls::{Authority, Certificate, OcspStatus};
use tw_testkit::{Client, Server, wait};

use crate::support::reload::reload;
use crate::support::{refusal_of, server};

/// An OCSP responder over HTTP.
struct Responder {
    authority: Arc<Authority>,
    addr: SocketAddr,
    /// Status that it returns; without one it closes the connection.
    says: Arc<Mutex<Option<OcspStatus>>>,
    request_count: Arc<AtomicUsize>,
}

impl Responder {
    fn start(says: Option<OcspStatus>) -> Self {
        Self::of(Arc::new(Authority::new()), says)
    }

    fn of(authority: Arc<Authority>, says: Option<OcspStatus>) -> Self {
        let says = Arc::new(Mutex::new(says));
        let request_count = Arc::new(AtomicUsize::new(0));
        let its = authority.clone();
        let words = says.clone();
        let count = request_count.clone();
        let addr = origin(move |mut conn| {
            let Some(question) = ocsp_request(&mut conn) else { return };
            count.fetch_add(1, SeqCst);
            if let Some(standing) = *words.lock().unwrap() {
                conn.answer("Content-Type: application/ocsp-response\r\n", its.vouch(&question, standing));
            }
        });
        Self { authority, addr, says, request_count }
    }

    fn certify(&self, names: &[&str]) -> Certificate {
        self.authority.certify_with_responder(names, &format!("http://{}/ask", self.addr))
    }

    fn set_status(&self, says: Option<OcspStatus>) {
        *self.says.lock().unwrap() = says;
    }
}

/// OCSP request of a `GET`, which has it in its path (RFC 6960, appendix A.1).
fn ocsp_request(conn: &mut Conn) -> Option<Vec<u8>> {
    let head = conn.head()?;
    let text = head.strip_prefix("GET /ask/").and_then(|rest| rest.split(' ').next()).unwrap();
    let text = text.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=");
    let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    // `from_pem_slice` only decodes base64, whatever the content is.
    Some(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec())
}

const LISTEN: &str = "listen 127.0.0.1:{port} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;";

/// A server with the certificate followed by that of its authority.
fn with_chain(made: &Certificate, authority: &Authority) -> Builder {
    server().file("conf/one.crt", made.pem.clone() + &authority.pem()).file("conf/one.key", &made.key)
}

fn start(builder: Builder, more: &str) -> Server {
    let http = format!("server {{ {LISTEN} {more} location / {{ return 200 $ssl_client_verify; }} }}");
    builder.start(&format!("worker_processes 2; http {{ {http} }}")).unwrap()
}

#[test]
fn ocsp_response_is_stapled() {
    let responder = Responder::start(Some(OcspStatus::Good));
    let authority = &responder.authority;
    let made = responder.certify(&["localhost"]);
    let (config, noted) = authority.client_noting(ALL_VERSIONS);
    let mut server = start(with_chain(&made, authority), "ssl_stapling on; ssl_stapling_verify on;");
    let is_shown = |server: &Server| {
        Client::connect_tls(server.addr(), &config, "localhost").unwrap();
        !noted.last().is_empty()
    };
    assert!(wait::until(wait::TIMEOUT, || is_shown(&server)), "{}", server.error_log());
    assert_eq!(responder.request_count.load(SeqCst), 1, "one loop asks, once");
    // The next generation knows it already.
    responder.set_status(None);
    let http = format!("server {{ {LISTEN} ssl_stapling on; ssl_stapling_verify on; return 200 new; }}");
    reload(&mut server, &format!("worker_processes 2; http {{ {http} }}"));
    let is_new = || {
        let mut client = Client::connect_tls(server.addr(), &config, "localhost").unwrap();
        assert!(!noted.last().is_empty());
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        client.read_response().unwrap().text() == "new"
    };
    assert!(wait::until(wait::TIMEOUT, is_new));
    assert_eq!(responder.request_count.load(SeqCst), 1);
}

#[test]
fn bad_ocsp_response_is_not_stapled() {
    for (says, expected) in [
        (Some(OcspStatus::Revoked), "certificate status \"revoked\" in the OCSP response while requesting"),
        (Some(OcspStatus::Unknown), "certificate status \"unknown\" in the OCSP response while requesting"),
        (
            None,
            "upstream prematurely closed connection while reading response header from upstream while requesting certificate status, responder: http://",
        ),
    ] {
        let responder = Responder::start(says);
        let made = responder.certify(&["localhost"]);
        let server = start(with_chain(&made, &responder.authority), "ssl_stapling on;");
        server.wait_error_log(expected).unwrap();
        let (config, noted) = responder.authority.client_noting(ALL_VERSIONS);
        Client::connect_tls(server.addr(), &config, "localhost").unwrap();
        assert!(noted.last().is_empty());
    }
    // A responder of another authority answers.
    let responder = Responder::start(Some(OcspStatus::Good));
    let other = Authority::new();
    let made = other.certify(&["localhost"]);
    let more = format!("ssl_stapling on; ssl_stapling_responder http://{}/ask;", responder.addr);
    let server = start(with_chain(&made, &other), &more);
    server.wait_error_log("OCSP_basic_verify() failed while requesting certificate status").unwrap();
}

#[test]
fn ssl_stapling_file_is_stapled() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let builder = with_chain(&made, &authority).file("conf/response", b"whatever it says");
    let server = start(builder, "ssl_stapling on; ssl_stapling_file response;");
    for version in ALL_VERSIONS {
        let (config, noted) = authority.client_noting(&[version]);
        Client::connect_tls(server.addr(), &config, "localhost").unwrap();
        assert_eq!(noted.last(), b"whatever it says");
    }
}

#[test]
fn replaced_certificate_is_queried_again() {
    let responder = Responder::start(Some(OcspStatus::Good));
    let authority = &responder.authority;
    let one = responder.certify(&["localhost"]);
    let two = responder.certify(&["localhost"]);
    let (config, noted) = authority.client_noting(ALL_VERSIONS);
    let server = start(with_chain(&one, authority), "ssl_stapling on; ssl_certificate_watch on;");
    // The response, and the certificate with which it was shown.
    let shown = || {
        let client = Client::connect_tls(server.addr(), &config, "localhost").unwrap();
        (noted.last(), client.session().unwrap().peer_certificates().unwrap()[0].to_vec())
    };
    assert!(wait::until(wait::TIMEOUT, || !shown().0.is_empty()), "{}", server.error_log());
    let (first, before) = shown();
    std::fs::write(server.prefix().join("conf/one.crt"), two.pem + &authority.pem()).unwrap();
    std::fs::write(server.prefix().join("conf/one.key"), two.key).unwrap();
    let is_asked = || {
        let (response, leaf) = shown();
        assert!(leaf == before || response != first, "what was said of another certificate");
        leaf != before && !response.is_empty()
    };
    assert!(wait::until(wait::TIMEOUT, is_asked), "{}", server.error_log());
    assert_eq!(responder.request_count.load(SeqCst), 2);
}

#[test]
fn acme_certificates_are_stapled() {
    let ca = Ca::start(Script::default());
    let responder = Responder::of(ca.authority.clone(), Some(OcspStatus::Good));
    ca.change(|script| script.responder = Some(format!("http://{}/ask", responder.addr)));
    let http = format!(
        "acme_issuer ca {{ uri {}; ssl_trusted_certificate ca.crt; state_path off; challenge tls-alpn-01; }}
         server {{ listen 127.0.0.1:{{port}} ssl; server_name example.com; acme_certificate ca; ssl_stapling on;
                  ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; return 204; }}",
        ca.uri()
    );
    let server = server().file("conf/ca.crt", &ca.trust).start(&format!("http {{ {http} }}")).unwrap();
    ca.change(|script| script.ports = Some((0, server.addr().port())));
    let (config, noted) = ca.authority.client_noting(ALL_VERSIONS);
    let is_shown =
        || Client::connect_tls(server.addr(), &config, "example.com").is_ok() && !noted.last().is_empty();
    assert!(wait::until(wait::TIMEOUT, is_shown), "{:?} {}", ca.said(), server.error_log());
    assert_eq!(responder.request_count.load(SeqCst), 1);
    assert!(!server.error_log().contains("ssl_stapling"), "nobody is told of the temporary one");
}

#[test]
fn certificate_without_responder_is_warned_of() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let conf = |more: &str| format!("http {{ server {{ {LISTEN} {more} }} }}");
    for (chain, more, expected) in [
        (
            false,
            "ssl_stapling on;",
            "\"ssl_stapling\" ignored, issuer certificate not found for certificate \"",
        ),
        (true, "ssl_stapling on;", "\"ssl_stapling\" ignored, no OCSP responder URL in the certificate \""),
        (
            true,
            "ssl_stapling on; ssl_stapling_responder https://a/;",
            "\"ssl_stapling\" ignored, invalid URL \"https://a/\" of the OCSP responder for certificate \"",
        ),
    ] {
        let builder = if chain {
            with_chain(&made, &authority)
        } else {
            with_chain(&made, &authority).file("conf/one.crt", &made.pem)
        };
        let said = builder.arg("-t").run(&conf(more)).unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.success() && text.contains(expected), "{text}");
    }
    for (more, expected) in [
        ("ssl_ocsp_cache shared:a;", "invalid OCSP cache \"shared:a\""),
        ("ssl_ocsp_cache shared:a:1k;", "OCSP cache \"shared:a:1k\" is too small"),
        ("ssl_ocsp maybe;", "invalid value \"maybe\""),
        (
            "ssl_reject_handshake on; ssl_ocsp on; ssl_verify_client optional_no_ca;",
            "\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"",
        ),
    ] {
        let said = refusal_of(&format!("http {{ server {{ listen 127.0.0.1:{{port}}; {more} }} }}"));
        assert!(said.contains(expected), "{more}: {said}");
    }
}

#[test]
fn ssl_ocsp_checks_client_certificates() {
    let responder = Responder::start(Some(OcspStatus::Good));
    let authority = &responder.authority;
    let own = authority.certify(&["localhost"]);
    let client = authority.client_with(ALL_VERSIONS, &responder.certify(&["client.example"]));
    let silent = authority.client_with(ALL_VERSIONS, &authority.certify(&["client.example"]));
    let more = |ocsp: &str| {
        format!(
            "ssl_client_certificate ca.crt; ssl_verify_client on; ssl_ocsp {ocsp}; error_page 495 =200 /bad; location = /bad {{ return 200 $ssl_client_verify; }}"
        )
    };
    let builder = || with_chain(&own, authority).file("conf/ca.crt", authority.pem());
    let request = |server: &Server, config: &Arc<rustls::ClientConfig>| {
        let mut client = Client::connect_tls(server.addr(), config, "localhost").unwrap();
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        client.read_response().unwrap().text()
    };
    let server = start(builder(), &more("on"));
    for (says, expected) in [
        (Some(OcspStatus::Good), "SUCCESS"),
        (Some(OcspStatus::Revoked), "FAILED:certificate revoked"),
        (Some(OcspStatus::Unknown), "FAILED:certificate status unknown"),
        (None, "FAILED:certificate status request failed"),
    ] {
        responder.set_status(says);
        assert_eq!(request(&server, &client), expected);
    }
    assert_eq!(request(&server, &silent), "FAILED:certificate status request failed");
    server
        .wait_error_log("client SSL certificate verify error: certificate revoked while reading client")
        .unwrap();
    server
        .wait_error_log("no OCSP responder URL in certificate while requesting certificate status")
        .unwrap();

    // The status is cached, and another responder may be configured.
    responder.set_status(Some(OcspStatus::Good));
    let before = responder.request_count.load(SeqCst);
    let url =
        format!("leaf; ssl_ocsp_responder http://{}/ask; ssl_ocsp_cache shared:ocsp:1m", responder.addr);
    let server = start(builder(), &more(&url));
    for config in [&client, &silent] {
        for _ in 0..4 {
            assert_eq!(request(&server, config), "SUCCESS");
        }
    }
    assert_eq!(responder.request_count.load(SeqCst), before + 2);
}
