//! Error log: levels, contexts, forged lines, and full disks.

use std::fs;

use tw_testkit::Client;

use crate::support::{get, server, start, start_server};

#[test]
fn level_and_context_select_the_error_log() {
    let server = start(
        server(),
        "error_log logs/http.log error;
         server { listen 127.0.0.1:{port}; root html; error_log logs/server.log info;
           location /own { error_log logs/own.log; } location /crit { error_log logs/crit.log crit; }
           location /two { error_log logs/one.log; error_log logs/two.log notice; } location /null { error_log /dev/null; } }
         server { listen 127.0.0.1:{port1}; root html; }",
    );
    for target in ["/missing", "/own", "/crit", "/two", "/null"] {
        assert_eq!(get(&server, target).status, 404, "{target}");
    }
    assert_eq!(Client::get(server.addr_of(1), "/other").unwrap().status, 404);
    for (name, text) in [
        ("logs/server.log", "html/missing\" failed"),
        ("logs/own.log", "html/own\" failed"),
        ("logs/one.log", "html/two\" failed"),
        ("logs/two.log", "html/two\" failed"),
        ("logs/http.log", "html/other\" failed"),
    ] {
        let lines = server.log(name, 1).unwrap();
        assert!(
            lines.len() == 1 && lines[0].contains("[error]") && lines[0].contains(text),
            "{name}: {lines:?}"
        );
    }
    assert_eq!(fs::read(server.prefix().join("logs/crit.log")).unwrap(), b"");
    assert!(!server.error_log().contains("failed (2"), "{}", server.error_log());
}

#[test]
fn error_log_line_names_client_server_and_request() {
    let server = start(
        server().in_one_process(),
        "server { listen 127.0.0.1:{port}; server_name first second; root html; }",
    );
    let mut client = server.connect().unwrap();
    client
        .send("GET /x?y HTTP/1.1\r\nHost: second\r\nReferer: http://r/\r\nConnection: close\r\n\r\n")
        .unwrap();
    client.read_response().unwrap();
    let line = server.wait_error_log("html/x").unwrap();
    let expected = ", client: 127.0.0.1, server: first, request: \"GET /x?y HTTP/1.1\", host: \"second\", referrer: \"http://r/\"";
    assert!(line.ends_with(expected), "{line}");
    let pid = server.pid();
    assert!(line.contains(&format!(" [error] {pid}#")) && line.contains(": *"), "{line}");
}

#[test]
fn error_log_line_names_request_id_and_trace_if_configured() {
    let server = start(
        server(),
        "otel_trace on; otel_exporter { endpoint 127.0.0.1:1; }
         server { listen 127.0.0.1:{port}; root html; add_header X-Ids \"$request_id $otel_trace_id $otel_span_id\" always;
             location /on { error_log_request_id on; } location /untraced { error_log_request_id on; otel_trace off; }
             location /off { } }",
    );
    let line = |target: &str| {
        let response = get(&server, target);
        let ids: Vec<String> = response.field("X-Ids").unwrap().split(' ').map(str::to_owned).collect();
        (server.wait_error_log(&format!("html{target}\"")).unwrap(), ids)
    };
    let (text, ids) = line("/on");
    let [request_id, trace_id, span_id] = &ids[..] else { panic!("{ids:?}") };
    let expected =
        format!(", request_id: \"{request_id}\", trace_id: \"{trace_id}\", span_id: \"{span_id}\"");
    assert!(text.ends_with(&expected), "{text}");
    let (text, ids) = line("/untraced");
    assert!(text.ends_with(&format!(", request_id: \"{}\"", ids[0])), "{text}");
    assert!(!line("/off").0.contains("request_id"));
}

#[test]
fn log_lines_cannot_be_forged() {
    let server = start_server(server(), "access_log logs/access.log;");
    let mut client = server.connect().unwrap();
    client
        .send("GET /%0a2026/01/01%0d%1b[31m\"x HTTP/1.1\r\nHost: a\r\nReferer: \u{1b}[2J\"\\\r\nConnection: close\r\n\r\n")
        .unwrap();
    client.read_response().unwrap();
    server.wait_error_log("html/").unwrap();
    for log in [server.error_log(), server.access_log(1).unwrap().join("\n")] {
        assert!(!log.contains('\u{1b}') && !log.contains('\r'), "{log:?}");
        assert!(!log.lines().any(|line| line.starts_with("2026/01/01\r")), "{log:?}");
    }
    assert_eq!(server.access_log(1).unwrap().len(), 1);
}

#[test]
fn full_disk_blocks_no_request() {
    let server = start_server(
        server().file("html/a", "x"),
        "access_log /dev/full; error_log /dev/full; location /ok { error_log logs/error.log; access_log logs/access.log; }",
    );
    let mut client = server.connect().unwrap();
    for _ in 0..500 {
        for target in ["/a", "/missing"] {
            client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
            client.read_response().unwrap();
        }
    }
    // The failure does not affect other logs.
    get(&server, "/ok");
    assert_eq!(server.access_log(1).unwrap().len(), 1);
    server.wait_error_log("html/ok").unwrap();
}

#[test]
fn unwritable_log_is_refused_at_start() {
    let conf = "http { access_log /proc/nowhere/access.log; server { listen 127.0.0.1:{port}; } }";
    let error = server().start(conf).unwrap_err().to_string();
    assert!(
        error.contains("open() \"") && error.contains("nowhere/access.log\" failed (2: No such file"),
        "{error}"
    );
    assert!(error.contains("[emerg]"), "{error}");
}
