//! Real clients of TLS, if they are installed: curl and openssl.

use tw_testkit::tls::Authority;
use tw_testkit::{Server, TempDir};

use crate::support::program::run;
use crate::support::server;

const REQUEST: &str = "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n";

/// A server, and a directory with the certificate of its authority.
fn start() -> (Server, TempDir) {
    let authority = Authority::new();
    let own = authority.certify(&["localhost"]);
    let client = authority.certify(&["client.example"]);
    let dir = TempDir::new("clients").unwrap();
    dir.write("ca.crt", authority.pem()).unwrap();
    dir.write("client.crt", &client.pem).unwrap();
    dir.write("client.key", &client.key).unwrap();
    let both = "ssl_certificate one.crt; ssl_certificate_key one.key;";
    let server = server()
        .certificate("one", &own)
        .file("conf/ca.crt", authority.pem())
        .start(&format!(
            "http {{
               server {{ listen 127.0.0.1:{{port}} ssl; {both} ssl_early_data on;
                         location / {{ return 200 \"reused=$ssl_session_reused early=$ssl_early_data;\"; }} }}
               server {{ listen 127.0.0.1:{{port1}} ssl; {both} ssl_verify_client on; ssl_client_certificate ca.crt;
                         location / {{ return 200 \"$ssl_client_verify $ssl_client_s_dn;\"; }} }} }}"
        ))
        .unwrap();
    (server, dir)
}

#[test]
fn curl_completes_handshakes() {
    let (server, dir) = start();
    for tls in [&["--tls-max", "1.2"][..], &["--tlsv1.3"]] {
        let url = |index: usize| format!("https://localhost:{}/", server.addr_of(index).port());
        let common = ["--silent", "--show-error", "--cacert", "ca.crt", "--ipv4"];
        let open = url(0);
        let args = [&common[..], tls, &[&open]].concat();
        let Some(said) = run("curl", &dir, &args, "") else { return };
        assert!(said.starts_with("reused=. "), "{said}");
        let closed = url(1);
        let args = [&common[..], tls, &["--cert", "client.crt", "--key", "client.key", &closed]].concat();
        let said = run("curl", &dir, &args, "").unwrap();
        assert_eq!(said, "SUCCESS CN=client.example;");
    }
}

#[test]
fn openssl_resumes_sessions_and_sends_early_data() {
    let (server, dir) = start();
    dir.write("request", REQUEST).unwrap();
    let addr = server.addr().to_string();
    let common = ["s_client", "-connect", &addr, "-servername", "localhost", "-CAfile", "ca.crt", "-ign_eof"];
    for version in ["-tls1_2", "-tls1_3"] {
        let args = [&common[..], &[version, "-sess_out", "session"]].concat();
        let Some(said) = run("openssl", &dir, &args, REQUEST) else { return };
        assert!(said.contains("Verify return code: 0 (ok)"), "{said}");
        assert!(said.contains("reused=. early=;"), "{said}");
        let args = [&common[..], &[version, "-sess_in", "session", "-sess_out", "next"]].concat();
        let said = run("openssl", &dir, &args, REQUEST).unwrap();
        assert!(said.contains("\nReused, TLSv1.") && said.contains("reused=r early=;"), "{said}");
    }
    let args = [&common[..], &["-tls1_3", "-sess_in", "next", "-early_data", "request"]].concat();
    let said = run("openssl", &dir, &args, "").unwrap();
    assert!(said.contains("Early data was accepted") && said.contains("reused=r early=1;"), "{said}");
}

#[test]
fn short_client_keys_end_no_handshake() {
    let authority = Authority::new();
    let own = authority.certify(&["localhost"]);
    let dir = TempDir::new("short").unwrap();
    let make = |args: &str| run("openssl", &dir, &args.split(' ').collect::<Vec<_>>(), "");
    for (name, bits) in [("known", "2048"), ("stranger", "2048"), ("self", "1024")] {
        let new = format!(
            "req -x509 -newkey rsa:{bits} -nodes -keyout {name}.key -out {name}.crt -subj /CN={name} -days 9"
        );
        if make(&new).is_none() {
            return;
        }
    }
    make("req -newkey rsa:1024 -nodes -keyout short.key -out short.csr -subj /CN=short").unwrap();
    for issuer in ["known", "stranger"] {
        let by = format!("-CA {issuer}.crt -CAkey {issuer}.key -CAcreateserial");
        make(&format!("x509 -req -in short.csr {by} -out by-{issuer}.crt -days 9")).unwrap();
    }
    let weak = "66:EE certificate key too weak";
    let unknown = "21:unable to verify the first certificate";
    for (demand, of_stranger) in [("on", 400), ("optional", 400), ("optional_no_ca", 200)] {
        let server = server()
            .certificate("one", &own)
            .file("conf/known.crt", std::fs::read(dir.join("known.crt")).unwrap())
            .start(&format!(
                "http {{ server {{ listen 127.0.0.1:{{port}} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
                     ssl_verify_client {demand}; ssl_client_certificate known.crt;
                     location / {{ return 200 \"$ssl_client_verify $ssl_client_s_dn;\"; }} }} }}"
            ))
            .unwrap();
        let addr = server.addr().to_string();
        for version in ["-tls1_2", "-tls1_3"] {
            for (cert, key, status, fault) in [
                ("by-known.crt", "short.key", 400, weak),
                ("self.crt", "self.key", 400, weak),
                ("by-stranger.crt", "short.key", of_stranger, unknown),
            ] {
                let shown = ["-cert", cert, "-key", key, "-cipher", "DEFAULT@SECLEVEL=0"];
                let args = [&["s_client", "-connect", &addr, "-ign_eof", version][..], &shown].concat();
                let said = run("openssl", &dir, &args, REQUEST).unwrap();
                assert!(said.contains(&format!("HTTP/1.1 {status} ")), "{demand} {version} {cert}: {said}");
                if status == 200 {
                    let failed = "FAILED:unable to verify the first certificate CN=short;";
                    assert!(said.contains(failed), "{version}: {said}");
                } else {
                    let line = format!("client SSL certificate verify error: ({fault})");
                    server.wait_error_log(&line).unwrap();
                }
            }
        }
    }
}
