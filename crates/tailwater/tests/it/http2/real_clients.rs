//! Real clients of HTTP/2, if they are installed: curl, nghttp and h2load.

use tw_testkit::tls::Authority;
use tw_testkit::{Lacks, Server, TempDir, leave_out};

use crate::support::program::run;
use crate::support::{server, start};

fn start_servers() -> (Server, TempDir) {
    let authority = Authority::new();
    let own = authority.certify(&["localhost"]);
    let dir = TempDir::new("http2-clients").unwrap();
    dir.write("ca.crt", authority.pem()).unwrap();
    dir.write("body", vec![b'x'; 300_000]).unwrap();
    let server = start(
        server()
            .certificate("one", &own)
            .file("html/a.txt", "hello")
            .file("html/page.html", "<link rel=\"stylesheet\" href=\"/a.css\">")
            .file("html/a.css", "p { color: red }")
            .file("html/large", vec![b'x'; 1 << 20]),
        "root html; http2 on; keepalive_requests 100000; client_max_body_size 0; \
         server { listen 127.0.0.1:{port}; location /said { return 200 \"$http2 $request_method $content_length\"; } \
                  location /passed { proxy_pass http://127.0.0.1:{port}/said; } } \
         server { listen 127.0.0.1:{port1} ssl; ssl_certificate one.crt; ssl_certificate_key one.key; \
                  location /said { return 200 \"$http2 $ssl_alpn_protocol\"; } location /denied { deny all; } \
                  location /moved { return 301 /said; } }",
    );
    (server, dir)
}

#[test]
fn curl_speaks_http2() {
    let (server, dir) = start_servers();
    let Some(features) = run("curl", &dir, &["--version"], "") else { return };
    if !features.contains("HTTP2") {
        return leave_out(Lacks::Machine, "this curl has no HTTP/2");
    }
    let url = |scheme: &str, index: usize, path: &str| {
        format!("{scheme}://localhost:{}{path}", server.addr_of(index).port())
    };
    let common = ["--silent", "--show-error", "--ipv4", "--cacert", "ca.crt"];
    let curl = |args: &[&str]| run("curl", &dir, &[&common[..], args].concat(), "").unwrap();
    let plain = url("http", 0, "/said");
    let secured = url("https", 1, "/said");
    assert!(curl(&["--http2-prior-knowledge", &plain]).starts_with("h2c GET "));
    assert_eq!(curl(&["--http2", &secured]), "h2 h2");
    assert_eq!(curl(&["--http1.1", &secured]), " http/1.1");
    // A body with a length, and one without.
    let large = url("https", 1, "/large");
    let sizes = ["--output", "/dev/null", "--write-out", "%{http_version} %{http_code} %{size_download}"];
    assert_eq!(curl(&[&["--http2"], &sizes[..], &[&large]].concat()), "2 200 1048576");
    // A body goes through to a server of HTTP/1.
    let passed = url("http", 0, "/passed");
    let posted = curl(&["--http2-prior-knowledge", "--data-binary", "@body", &passed]);
    assert_eq!(posted, " POST 300000");
    // The server answers these requests without their bodies.
    for (path, body, status) in
        [("/denied", "@body", "403"), ("/moved", "@body", "301"), ("/moved", "12345678", "301")]
    {
        let url = url("https", 1, path);
        let code = ["--output", "/dev/null", "--write-out", "%{http_code}"];
        for _ in 0..5 {
            assert_eq!(
                curl(&[&["--http2", "--data-binary", body], &code[..], &[&url]].concat()),
                status,
                "{path} {body}"
            );
        }
    }
    // Several at once on one connection.
    let many = vec![&*large; 5];
    let said =
        curl(&[&["--http2", "--parallel", "--remove-on-error"], &sizes[..1], &["/dev/null"], &many].concat());
    assert!(!said.contains("curl:"), "{said}");
}

#[test]
fn nghttp_speaks_http2() {
    let (server, dir) = start_servers();
    let url = format!("http://127.0.0.1:{}/page.html", server.addr().port());
    let Some(said) = run("nghttp", &dir, &["--get-assets", "--stat", "--null-out", &url], "") else { return };
    // The status, the size and the path of each are its last words.
    let answers = |said: &str| -> Vec<String> {
        let lines = said.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        lines.filter(|words| words.len() == 7).map(|words| words[4..].join(" ")).collect()
    };
    assert_eq!(answers(&said), ["200 37 /page.html", "200 16 /a.css"], "{said}");
    // A client with small stream and connection windows.
    let large = format!("https://localhost:{}/large", server.addr_of(1).port());
    let said = run("nghttp", &dir, &["--null-out", "--stat", "-w", "14", "-W", "15", &large], "").unwrap();
    assert_eq!(answers(&said), ["200 1M /large"], "{said}");
}

#[test]
fn h2load_speaks_http2() {
    let (server, dir) = start_servers();
    for (scheme, index, path) in [("http", 0, "/a.txt"), ("https", 1, "/a.txt"), ("https", 1, "/large")] {
        let url = format!("{scheme}://localhost:{}{path}", server.addr_of(index).port());
        let Some(said) = run("h2load", &dir, &["-n", "400", "-c", "4", "-m", "10", &url], "") else { return };
        assert!(said.contains("400 succeeded, 0 failed, 0 errored"), "{said}");
        assert!(said.contains("400 2xx"), "{said}");
    }
}
