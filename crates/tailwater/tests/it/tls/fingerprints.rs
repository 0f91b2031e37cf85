//! `$ssl_ja3`, `$ssl_ja3_hash` and `$ssl_ja4`

use rustls::version::{TLS12, TLS13};
use tw_testkit::TempDir;
use tw_testkit::tls::Authority;

use crate::support::http3::start_http3;
use crate::support::program::run;
use crate::support::server;
use crate::support::tls::try_get_tls;

#[test]
fn clients_over_tcp_have_fingerprints() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let server = server()
        .certificate("one", &made)
        .start(
            "http { server { listen 127.0.0.1:{port} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
               location / { set_md5 $sum $ssl_ja3; return 200 '$ssl_ja4|$ssl_ja3|$ssl_ja3_hash|$sum'; } } }",
        )
        .unwrap();
    let words = |version| -> Vec<String> {
        let config = authority.client(&[version]);
        let (_, response) = try_get_tls(&server, &config, "localhost").unwrap();
        response.text().split('|').map(str::to_owned).collect()
    };
    for (version, begin) in [(&TLS13, "t13d"), (&TLS12, "t12d")] {
        let first = words(version);
        let second = words(version);
        assert!(first[0].starts_with(begin) && first[0].len() == 36, "{first:?}");
        // This client shuffles its extensions.
        assert_eq!(first[0], second[0]);
        assert!(first[1].starts_with("771,") && first[1].split(',').count() == 5, "{first:?}");
        assert_eq!(first[2], first[3], "{first:?}");
    }
}

#[test]
fn clients_over_quic_have_fingerprints() {
    let server = start_http3("location /own { return 200 '$ssl_ja4 $ssl_ja3_hash'; }");
    let text = server.client().get("/own").text();
    let (ja4, hash) = text.split_once(' ').unwrap();
    assert!(ja4.starts_with("q13d") && ja4[8..].starts_with("h3_") && hash.len() == 32, "{text}");
}

#[test]
fn fingerprints_are_missing_without_tls() {
    let server = server()
        .start("http { server { listen 127.0.0.1:{port}; return 200 '[$ssl_ja3$ssl_ja3_hash$ssl_ja4]'; } }")
        .unwrap();
    assert_eq!(crate::support::page(&server, "/").1, "[]");
}

/// Both see the same hello: the one that ends TLS, and the one that passes it on.
#[test]
fn stream_has_the_fingerprints_of_openssl() {
    let authority = Authority::new();
    let dir = TempDir::new("fingerprints").unwrap();
    dir.write("ca.crt", authority.pem()).unwrap();
    let server = server()
        .certificate("one", &authority.certify(&["one.example"]))
        .start(
            "stream {
                 log_format l '$ssl_preread_ja4 $ssl_preread_ja3_hash $ssl_preread_ja3';
                 server { listen 127.0.0.1:{port}; ssl_preread on; proxy_pass 127.0.0.1:{port1};
                          access_log logs/access.log l; }
                 server { listen 127.0.0.1:{port1} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
                          return '<$ssl_ja4 $ssl_ja3_hash $ssl_ja3>'; }
             }",
        )
        .unwrap();
    let addr = server.addr().to_string();
    let common = ["s_client", "-quiet", "-connect", &addr, "-CAfile", "ca.crt"];
    for (index, (args, begin, ja3)) in [
        (&["-servername", "one.example", "-alpn", "h2,x"][..], "t13d", "771,4866-4867-4865-"),
        (
            &["-noservername", "-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"],
            "t12i0206",
            "771,49195-255,",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let Some(output) = run("openssl", &dir, &[&common[..], args].concat(), "") else { return };
        let said = output.split('<').nth(1).and_then(|rest| rest.split('>').next()).unwrap_or_default();
        assert!(said.starts_with(begin), "{args:?}: {output}");
        assert!(
            said.split(' ').nth(2).is_some_and(|candidate| candidate.starts_with(ja3)),
            "{args:?}: {output}"
        );
        assert_eq!(server.access_log(index + 1).unwrap()[index], said);
    }
}
