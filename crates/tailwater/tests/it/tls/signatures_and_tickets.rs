//! Signature schemes and session tickets of `listen … ssl`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, Error, NamedGroup, SignatureScheme};
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Server};

use crate::support::server;
use crate::support::tls::try_get_tls;

const ECDSA: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;
const PSS_256: SignatureScheme = SignatureScheme::RSA_PSS_SHA256;
const PSS_384: SignatureScheme = SignatureScheme::RSA_PSS_SHA384;

/// A client that offers these schemes in this order, and accepts every certificate.
#[derive(Debug)]
struct Offers(Vec<SignatureScheme>);

impl ServerCertVerifier for Offers {
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
        self.0.clone()
    }
}

/// Counts tickets and keeps none.
#[derive(Debug, Default)]
struct Tickets(AtomicUsize);

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, _: Tls13ClientSessionValue) {
        self.0.fetch_add(1, SeqCst);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        None
    }
}

fn client(authority: &Authority, offered: &[SignatureScheme], tickets: &Arc<Tickets>) -> Arc<ClientConfig> {
    let mut config = ClientConfig::clone(&authority.client(&[&TLS13]));
    config.dangerous().set_certificate_verifier(Arc::new(Offers(offered.to_vec())));
    config.resumption = Resumption::store(tickets.clone());
    Arc::new(config)
}

fn start(authority: &Authority, conf: &str) -> Server {
    let ecdsa = authority.certify(&["localhost"]);
    let rsa = authority.certify_rsa(&["localhost"]);
    let site = server().certificate("ecdsa", &ecdsa).certificate("rsa", &rsa);
    crate::support::start(
        site,
        &format!(
            "server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate ecdsa.crt; ssl_certificate_key ecdsa.key; \
             ssl_certificate rsa.crt; ssl_certificate_key rsa.key; {conf} return 200 $ssl_sigalg; }}"
        ),
    )
}

fn request(server: &Server, config: &Arc<ClientConfig>) -> String {
    try_get_tls(server, config, "localhost").unwrap().1.text()
}

#[test]
fn certificate_follows_the_order_of_signature_algorithms() {
    let authority = Authority::new();
    let tickets = Arc::default();
    for (conf, offered, expected) in [
        ("", [PSS_256, ECDSA], "rsa_pss_rsae"),
        ("", [ECDSA, PSS_256], "ecdsa_secp256r1_sha256"),
        ("ssl_prefer_server_ciphers off;", [PSS_256, ECDSA], "rsa_pss_rsae"),
        ("ssl_prefer_server_ciphers on;", [PSS_256, ECDSA], "ecdsa_secp256r1_sha256"),
        ("ssl_conf_command SignatureAlgorithms PSS+SHA256;", [ECDSA, PSS_256], "rsa_pss_rsae_sha256"),
        ("ssl_conf_command SignatureAlgorithms PSS+SHA256;", [PSS_384, PSS_256], "rsa_pss_rsae_sha256"),
        (
            "ssl_prefer_server_ciphers on; ssl_conf_command SignatureAlgorithms PSS+SHA256:ECDSA+SHA256;",
            [ECDSA, PSS_256],
            "rsa_pss_rsae_sha256",
        ),
    ] {
        let server = start(&authority, conf);
        let said = request(&server, &client(&authority, &offered, &tickets));
        assert!(said.starts_with(expected), "{conf} {offered:?}: {said}");
    }
    let server = start(&authority, "ssl_conf_command SignatureAlgorithms PSS+SHA256;");
    let config = client(&authority, &[ECDSA, PSS_384], &tickets);
    assert!(Client::connect_tls(server.addr(), &config, "localhost").is_err());
}

#[test]
fn num_tickets_of_the_configuration_are_sent() {
    let authority = Authority::new();
    for (conf, expected) in [
        ("", 2),
        ("ssl_conf_command NumTickets 0;", 0),
        ("ssl_conf_command NumTickets 1;", 1),
        ("ssl_conf_command NumTickets 5;", 5),
        ("ssl_conf_command NumTickets 5; ssl_session_tickets off; ssl_session_cache none;", 0),
    ] {
        let server = start(&authority, conf);
        let tickets = Arc::new(Tickets::default());
        // Tickets come before the response.
        request(&server, &client(&authority, &[ECDSA], &tickets));
        assert_eq!(tickets.0.load(SeqCst), expected, "{conf}");
    }
}

#[test]
fn directives_without_effect_are_warned_of() {
    let conf = "ssl_engine dynamic; ssl_object_cache_inheritable on; debug_points stop; http { }";
    let said = server().arg("-t").run(conf).unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success(), "{text}");
    for name in ["ssl_engine", "ssl_object_cache_inheritable", "debug_points"] {
        assert!(text.contains(&format!("\"{name}\" has no effect: ")), "{name}: {text}");
    }
}
