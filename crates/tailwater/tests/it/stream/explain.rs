//! `-t --explain tcp://host:port`

use crate::support::server;

const CONF: &str = "http { server { listen 127.0.0.1:8398; } }
stream {
    log_format l $status;
    upstream db { server 127.0.0.1:5432 weight=2; server db.test:5432 backup; least_conn; }
    limit_conn_zone $binary_remote_addr zone=c:1m;
    server { listen 127.0.0.1:8399; proxy_pass db; allow 127.0.0.1; deny all; limit_conn c 1; access_log logs/s.log l; }
    server { listen 8400 proxy_protocol; proxy_pass 127.0.0.1:9; }
    server { listen 8401; return hello; }
    server { listen 8402; proxy_pass $remote_addr:9; }
    server { listen 8401 udp; proxy_pass 127.0.0.1:53; }
}";

fn explained(url: &str) -> (String, String) {
    let output = server().arg("-q").arg("--explain").arg(url).run(CONF).unwrap();
    let text = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes).unwrap();
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>().join("\n")
    };
    (text(output.stdout), text(output.stderr))
}

#[test]
fn session_is_explained_without_a_server() {
    let (text, _) = explained("tcp://db.example:8399");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("listen 127.0.0.1:8399 ") && lines[0].contains(".conf:"), "{text}");
    let expected = [
        "preaccess limit_conn",
        "access access",
        "content stream_proxy",
        "upstream db",
        "127.0.0.1:5432 weight=2",
        "db.test:5432 backup",
        "log log",
    ];
    assert_eq!(lines[1..], expected, "{text}");
    for (url, expected) in [
        ("tcp://127.0.0.1:8400", "0.0.0.0:8400, behind the PROXY protocol"),
        ("tcp://127.0.0.1:8400/", "upstream 127.0.0.1:9"),
        ("tcp://127.0.0.1:8401", "content stream_return"),
        ("udp://127.0.0.1:8401", "upstream 127.0.0.1:53"),
        ("tcp://127.0.0.1:8402", "upstream depends on the session: \"proxy_pass\" has variables"),
    ] {
        let (text, error) = explained(url);
        assert!(text.contains(expected), "{url}: {text} {error}");
    }
}

#[test]
fn invalid_sessions_are_refused() {
    for (url, expected) in [
        (
            "tcp://a:8398",
            "no server listens on port 8398 (listening: 127.0.0.1:8399, 0.0.0.0:8400, 0.0.0.0:8401, 0.0.0.0:8402)",
        ),
        ("tcp://a", "invalid URL \"tcp://a\" in option \"--explain\""),
        ("tls://a:8398", "no server listens on port 8398"),
        ("tls://a", "invalid URL \"tls://a\" in option \"--explain\""),
    ] {
        let (text, error) = explained(url);
        assert!(text.is_empty() && error.contains(expected), "{url}: {text} {error}");
    }
    let output =
        server().arg("-q").arg("--explain").arg("tcp://a:1").run("http { server { listen 8398; } }").unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("there is no \"stream\" block"));
}

#[test]
fn server_name_of_a_tls_client_selects_server_and_target() {
    let conf = "stream {
        map $ssl_preread_server_name $to { hostnames; mail.example 127.0.0.1:25; *.app.example apps; default 127.0.0.1:443; }
        upstream apps { server 127.0.0.1:81; server 127.0.0.1:82 backup; }
        server { listen 8401 default_server; ssl_preread on; proxy_pass $to; allow all; }
        server { listen 8401; server_name db.example; proxy_pass 127.0.0.1:5432; }
        server { listen 8402 ssl default_server; ssl_reject_handshake on; return $ssl_server_name; }
        server { listen 8402 ssl; server_name *.example; pass 127.0.0.1:8401; ssl_reject_handshake on; }
        server { listen 8403; proxy_pass 127.0.0.1:9; }
    }";
    let explained = |url: &str| {
        let output = server().arg("-q").arg("--explain").arg(url).run(conf).unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let lines = explained("tls://one.app.example:8401");
    assert!(lines[0].starts_with("listen 0.0.0.0:8401 "), "{lines:?}");
    assert!(lines[2].starts_with("server without a name: default server "), "{lines:?}");
    let expected = [
        "preread stream_ssl_preread",
        "content stream_proxy",
        "upstream apps",
        "127.0.0.1:81",
        "127.0.0.1:82 backup",
    ];
    assert_eq!(lines[3..], expected, "{lines:?}");
    for (url, expected) in [
        ("tls://mail.example:8401", &["upstream 127.0.0.1:25"][..]),
        ("tls://other.example:8401", &["upstream 127.0.0.1:443"]),
        ("tls://127.0.0.1:8401", &["upstream 127.0.0.1:443"]),
        (
            "tls://DB.example:8401",
            &["server db.example: the client names \"db.example\" (SNI)", "upstream 127.0.0.1:5432"],
        ),
        (
            "tls://a.example:8402",
            &["server *.example: the client names \"a.example\" (SNI)", "pass 127.0.0.1:8401"],
        ),
        ("tls://other:8402", &["server without a name: default server", "content stream_return"]),
        ("tls://a.example:8403", &["server without a name: default server", "upstream 127.0.0.1:9"]),
    ] {
        let lines = explained(url);
        for expected in expected {
            assert!(lines.iter().any(|line| line.starts_with(expected)), "{url}: {expected}: {lines:?}");
        }
    }
}
