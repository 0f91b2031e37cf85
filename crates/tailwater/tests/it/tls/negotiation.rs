//! Negotiation in handshakes: ticket keys, groups and record sizes.

use rustls::version::{TLS12, TLS13};
use rustls::{ALL_VERSIONS, ClientConfig, HandshakeKind};
use std::sync::Arc;
use tw_testkit::Server;
use tw_testkit::tls::{Authority, Certificate};

use crate::support::server;
use crate::support::tls::try_get_tls;

const LISTEN: &str = "listen 127.0.0.1:{port} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;";

fn started(made: &Certificate, files: &[(&str, &[u8])], more: &str) -> Server {
    let builder = server().certificate("one", made);
    let builder = files.iter().fold(builder, |builder, (name, bytes)| builder.file(name, bytes));
    builder.start(&format!("http {{ server {{ {LISTEN} {more} }} }}")).unwrap()
}

fn request(server: &Server, config: &Arc<ClientConfig>) -> (Option<HandshakeKind>, String) {
    let (client, response) = try_get_tls(server, config, "localhost").unwrap();
    (client.session().unwrap().handshake_kind(), response.text())
}

/// Rotation of keys on machines behind one name: the first key seals, all open, and a removed one opens nothing.
#[test]
fn ssl_session_ticket_keys_rotate() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    for size in [48, 80] {
        let keys: Vec<_> = (1..4).map(|byte| vec![byte; size]).collect();
        let with = |numbers: &[usize]| {
            let directives: String =
                numbers.iter().map(|number| format!("ssl_session_ticket_key {number}.key; ")).collect();
            let names: Vec<_> = numbers.iter().map(|number| format!("conf/{number}.key")).collect();
            let files: Vec<_> =
                names.iter().zip(numbers).map(|(name, number)| (&**name, &*keys[*number])).collect();
            started(&made, &files, &format!("{directives} return 200 here;"))
        };
        let old = with(&[0]);
        let both = with(&[1, 0]);
        let new = with(&[1]);
        for version in [&TLS12, &TLS13] {
            let config = authority.client(&[version]);
            let kind = |server| request(server, &config).0.unwrap();
            assert_eq!(kind(&old), HandshakeKind::Full);
            assert_eq!(kind(&both), HandshakeKind::Resumed, "{size} {:?}", version.version);
            // The client has a ticket of the new key by now.
            assert_eq!(kind(&new), HandshakeKind::Resumed);
            assert_eq!(kind(&old), HandshakeKind::Full);
        }
    }
}

#[test]
fn ssl_ecdh_curve_selects_groups() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let says = "return 200 \"$ssl_curve,$ssl_ech_status,$ssl_ech_outer_server_name.\";";
    let config = authority.client(&[&TLS13]);
    for (curve, expected) in
        [("X25519MLKEM768", "X25519MLKEM768"), ("prime256v1", "prime256v1"), ("secp384r1:X25519", "X25519")]
    {
        let server = started(&made, &[], &format!("ssl_ecdh_curve {curve}; {says}"));
        let (_, said) = request(&server, &config);
        assert!(said == format!("{expected},,.") || said == "secp384r1,,.", "{curve}: {said}");
        assert!(curve.contains(said.split(',').next().unwrap()), "{curve}: {said}");
    }
}

#[test]
fn test_of_the_configuration_notices_a_list_without_post_quantum_groups() {
    let made = Authority::new().certify(&["localhost"]);
    let test = |directives: &str| {
        let conf = format!("http {{ server {{ {LISTEN} {directives} }} }}");
        let output = server().certificate("one", &made).arg("-t").run(&conf).unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for classical in ["ssl_ecdh_curve X25519:prime256v1;", "ssl_conf_command Groups P-256:P-384;"] {
        let said = test(classical);
        assert!(said.contains("[notice]") && said.contains("no post-quantum key exchange"), "{said}");
    }
    for protected in [
        "",
        "ssl_ecdh_curve auto;",
        "ssl_ecdh_curve X25519MLKEM768:X25519;",
        "ssl_protocols TLSv1.2; ssl_ecdh_curve X25519;",
        "ssl_ecdh_curve X25519; ssl_conf_command Groups X25519MLKEM768:X25519;",
    ] {
        let said = test(protected);
        assert!(!said.contains("post-quantum"), "{protected}: {said}");
    }
}

#[test]
fn responses_pass_with_each_ssl_buffer_size() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let body = "0123456789".repeat(5_000);
    for size in ["1k", "4k", "16k"] {
        let more = format!("ssl_buffer_size {size}; root html;");
        let server = started(&made, &[("html/index.html", body.as_bytes())], &more);
        assert_eq!(request(&server, &authority.client(ALL_VERSIONS)).1, body, "{size}");
    }
}
