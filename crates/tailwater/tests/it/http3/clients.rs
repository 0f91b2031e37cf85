//! Real clients of HTTP/3, where they are installed: libcurl (ngtcp2), aioquic, quic-go and Chromium.

use std::path::Path;
use std::process::Command;

use tw_testkit::tls::Authority;
use tw_testkit::{Lacks, TempDir, leave_out};

use crate::support::http3::{Http3Server, start_http3_with};
use crate::support::program::{browse, run};
use crate::support::{server, start};

/// Objects of the page that a browser loads.
const OBJECTS: usize = 100;

/// A server for the requests of all clients, and a directory with the certificate of its authority.
fn start_for_clients() -> (Http3Server, TempDir) {
    let big: Vec<u8> = (0..1_000_000u32).map(|n| (n * 7 % 251) as u8).collect();
    let server = start_http3_with(
        server().file("html/big", &big),
        "log_format all '$request $status $ssl_session_reused'; client_max_body_size 10m;",
        "access_log logs/access.log all; quic_gso on;
         location /protocol { return 200 $server_protocol; }
         location = /n { return 200 $arg_n; }
         location /length { proxy_pass http://127.0.0.1:{port1}; }
         } server { listen 127.0.0.1:{port1}; access_log off; location / { return 200 $content_length; }",
    );
    let dir = TempDir::new("clients").unwrap();
    dir.write("ca.crt", server.authority.pem()).unwrap();
    dir.write("big", &big).unwrap();
    (server, dir)
}

/// Checks what a client has printed: one line for each of its requests.
fn check(server: &Http3Server, said: &str) {
    let said = said.to_lowercase();
    for expected in
        ["/protocol 200 http/3.0", "/big 200 true", "/none 404", "/length 200 300000", "parallel true"]
    {
        assert!(said.lines().any(|line| line.starts_with(expected)), "{expected}: {said}");
    }
    let log = server.server.access_log(54).unwrap();
    assert!(log.iter().all(|line| line.contains(" HTTP/3.0 ")), "{log:?}");
}

/// Output of a script in Python, unless what it needs is not installed.
fn python(script: &str, server: &Http3Server, dir: &TempDir) -> Option<String> {
    let port = server.server.addr().port().to_string();
    let said = run("python3", dir, &["-c", script, &port], "")?;
    match said.strip_prefix("absent: ") {
        None => Some(said),
        Some(what) => {
            leave_out(Lacks::Machine, format_args!("{}", what.trim_end()));
            None
        }
    }
}

#[test]
fn libcurl_gets_and_posts() {
    let (server, dir) = start_for_clients();
    if let Some(said) = python(include_str!("clients/curl.py"), &server, &dir) {
        check(&server, &said);
    }
}

#[test]
fn aioquic_updates_keys_and_resumes_sessions() {
    let (server, dir) = start_for_clients();
    if let Some(said) = python(include_str!("clients/aioquic.py"), &server, &dir) {
        check(&server, &said);
        assert!(said.contains("resumed True 200 HTTP/3.0"), "{said}");
    }
}

#[test]
fn quic_go_gets_and_posts() {
    let (server, dir) = start_for_clients();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/http3/clients/quic-go");
    // Go modules come from the local module cache, if they were downloaded before.
    let program = dir.join("client");
    let mut build = Command::new("go");
    build.args(["build", "-mod=readonly", "-o"]).arg(&program).arg(".").current_dir(&source);
    build.env("GOPROXY", "off").env("GOFLAGS", "").env("GOTOOLCHAIN", "local");
    match build.output() {
        Err(_) => return leave_out(Lacks::Machine, "no go to build a client with quic-go"),
        Ok(built) if !built.status.success() => {
            let why = String::from_utf8_lossy(&built.stderr).into_owned();
            let is_absent = ["GOPROXY=off", "requires go", "toolchain not available"];
            assert!(is_absent.iter().any(|words| why.contains(words)), "{why}");
            return leave_out(Lacks::Machine, "no quic-go among the modules of go");
        }
        Ok(_) => {}
    }
    let port = server.server.addr().port().to_string();
    let said = run(program.to_str().unwrap(), &dir, &[port], "").unwrap();
    check(&server, &said);
}

/// Hash of a certificate's key as Chromium names it; `None` if OpenSSL is not installed.
fn key_hash(dir: &TempDir) -> Option<String> {
    let key = run("openssl", dir, &["x509", "-in", "one.crt", "-noout", "-pubkey"], "")?;
    run("openssl", dir, &["pkey", "-pubin", "-outform", "DER", "-out", "key.der"], &key)?;
    run("openssl", dir, &["dgst", "-sha256", "-binary", "-out", "hash", "key.der"], "")?;
    Some(run("openssl", dir, &["base64", "-in", "hash"], "")?.trim_end().to_owned())
}

#[test]
fn chromium_loads_a_page_with_many_objects() {
    let made = Authority::new().certify(&["127.0.0.1"]);
    let dir = TempDir::new("chromium").unwrap();
    dir.write("one.crt", &made.pem).unwrap();
    let Some(hash) = key_hash(&dir) else { return };
    let images: String = (0..OBJECTS).map(|n| format!("<img src=/o/{n}.svg onload=loaded()>")).collect();
    let page = format!(
        "<!doctype html><body><script>let n = 0; const loaded = () => document.title = ++n;</script>{images}</body>"
    );
    let image =
        "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><rect width='9' height='9'/></svg>";
    let server = start(
        server().certificate("one", &made).file("html/index.html", page).file("html/o.svg", image),
        "ssl_certificate one.crt; ssl_certificate_key one.key; types { text/html html; image/svg+xml svg; }
         log_format all '$uri $server_protocol $status $connection';
         server { listen 127.0.0.1:{port} quic reuseport; listen 127.0.0.1:{port} ssl; access_log logs/access.log all;
                  root html; location /o/ { try_files /o.svg =404; } }",
    );
    let url = format!("https://{}/", server.addr());
    let options = [
        "--virtual-time-budget=20000".to_owned(),
        format!("--origin-to-force-quic-on={}", server.addr()),
        format!("--ignore-certificate-errors-spki-list={hash}"),
    ];
    let Some(document) = browse(&url, &options) else { return };
    assert!(
        document.contains(&format!("<title>{OBJECTS}</title>")),
        "{}",
        &document[..document.len().min(400)]
    );
    let lines = server.access_log(OBJECTS + 1).unwrap();
    let objects =
        lines.iter().filter(|line| line.contains(" HTTP/3.0 200 ") && line.starts_with("/o")).count();
    assert_eq!(objects, OBJECTS, "{lines:?}");
}
