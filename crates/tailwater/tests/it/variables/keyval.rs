//! `keyval_zone`, `keyval`, and their API.

use std::fs;

use tw_testkit::{Response, Server, wait};

use crate::support::reload::reload_until;
use crate::support::{get, page, refusal_of, server, start_as_we_are};

fn send(server: &Server, line: &str, body: &str) -> Response {
    let mut client = server.connect().unwrap();
    let length = body.len();
    client
        .send(format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
        .unwrap();
    client.read_response().unwrap()
}

/// Status of a change of the zone `k`.
fn change(server: &Server, method: &str, body: &str) -> u16 {
    let response = send(server, &format!("{method} /api/9/http/keyvals/k"), body);
    match response.status {
        201 | 204 => assert_eq!(response.text(), ""),
        status => assert!(response.text().contains(&format!("\"status\":{status}")), "{}", response.text()),
    }
    response.status
}

/// The `http` block with the zone `k` of these parameters and a variable with the value of `$arg_k`.
fn http(parameters: &str) -> String {
    format!(
        "keyval_zone zone=k:64k {parameters}; keyval $arg_k $value zone=k;
         server {{
           listen 127.0.0.1:{{port}};
           location / {{ return 200 '[$value]'; }}
           location /api/ {{ api write=on; }}
           location /read/ {{ api; }}
         }}"
    )
}

fn value(server: &Server, key: &str) -> String {
    page(server, &format!("/?k={key}")).1
}

#[test]
fn api_adds_changes_and_removes_pairs() {
    let server = start_as_we_are(server(), &http(""));
    assert_eq!(value(&server, "a"), "[]");
    assert_eq!(page(&server, "/api/9/http/keyvals").1, "{\"k\":{}}");
    assert_eq!(change(&server, "POST", "{\"a\":\"1\",\"b\\\"\":\"2\"}"), 201);
    assert_eq!(value(&server, "a"), "[1]");
    assert_eq!(page(&server, "/api/http/keyvals/k").1, "{\"a\":\"1\",\"b\\\"\":\"2\"}");
    assert_eq!(page(&server, "/read/http/keyvals").1, "{\"k\":{\"a\":\"1\",\"b\\\"\":\"2\"}}");
    assert_eq!(page(&server, "/read/http/keyvals/k?key=b%22").1, "{\"b\\\"\":\"2\"}");
    assert_eq!(change(&server, "PATCH", "{\"a\":\"3\",\"b\\\"\":null}"), 204);
    assert_eq!(value(&server, "a"), "[3]");
    assert_eq!(page(&server, "/read/http/keyvals/k").1, "{\"a\":\"3\"}");
    assert_eq!(change(&server, "DELETE", ""), 204);
    assert_eq!((value(&server, "a"), page(&server, "/read/http/keyvals/k").1), ("[]".into(), "{}".into()));
}

#[test]
fn wrong_changes_are_refused_and_change_nothing() {
    let server = start_as_we_are(server(), &http(""));
    assert_eq!(change(&server, "POST", "{\"a\":\"1\"}"), 201);
    for (method, body, status, code) in [
        ("POST", "{\"a\":\"2\"}", 409, "KeyvalKeyExists"),
        ("POST", "{\"b\":\"2\",\"a\":\"2\"}", 409, "KeyvalKeyExists"),
        ("POST", "{}", 400, "KeyvalFormatError"),
        ("POST", "{\"b\":2}", 400, "KeyvalFormatError"),
        ("POST", "{\"b\":null}", 400, "KeyvalFormatError"),
        ("POST", "{\"b\":\"1\",\"b\":\"2\"}", 400, "KeyvalFormatError"),
        ("POST", "{\"b\":{\"value\":\"1\",\"more\":1}}", 400, "KeyvalFormatError"),
        ("POST", "{\"b\":{\"value\":\"1\",\"expire\":1}}", 400, "KeyvalFormatError"),
        ("POST", "[\"b\"]", 400, "KeyvalFormatError"),
        ("POST", "{\"b\"", 415, "JsonError"),
        ("PATCH", "{\"b\":\"2\"}", 404, "KeyvalKeyNotFound"),
        ("PATCH", "{\"a\":\"2\",\"b\":null}", 404, "KeyvalKeyNotFound"),
        ("PUT", "{\"b\":\"2\"}", 405, "MethodDisabled"),
    ] {
        let response = send(&server, &format!("{method} /api/http/keyvals/k"), body);
        assert_eq!(response.status, status, "{method} {body}");
        assert!(response.text().contains(code), "{method} {body}: {}", response.text());
    }
    let large = format!("{{\"b\":\"{}\"}}", "x".repeat(15 << 10));
    let full = (0..8).map(|n| change(&server, "POST", &large.replace("\"b\"", &format!("\"{n}\"")))).max();
    assert_eq!(full, Some(507));
    assert_eq!(change(&server, "POST", &"x".repeat(20 << 10)), 413);
    assert_eq!(value(&server, "a"), "[1]");
    for (target, code) in [
        ("/api/http/keyvals/none", "KeyvalNotFound"),
        ("/api/stream/keyvals/k", "KeyvalNotFound"),
        ("/api/http/keyvals/k?key=none", "KeyvalKeyNotFound"),
    ] {
        let (status, text) = page(&server, target);
        assert!(status == 404 && text.contains(code), "{target}: {text}");
    }
    let refused = send(&server, "POST /read/http/keyvals/k", "{\"c\":\"1\"}");
    assert_eq!((refused.status, refused.field("Allow")), (405, Some("GET, HEAD")));
}

#[test]
fn pairs_expire_after_the_timeout() {
    let server = start_as_we_are(server(), &http("timeout=1h"));
    assert_eq!(change(&server, "POST", "{\"a\":{\"value\":\"1\",\"expire\":100},\"b\":\"2\"}"), 201);
    assert!(wait::until(wait::TIMEOUT, || value(&server, "a") == "[]"));
    assert_eq!(value(&server, "b"), "[2]");
    assert_eq!(change(&server, "POST", "{\"a\":\"again\"}"), 201);
    assert_eq!(change(&server, "PATCH", "{\"b\":{\"expire\":1}}"), 204);
    assert!(wait::until(wait::TIMEOUT, || value(&server, "b") == "[]"));
    assert_eq!(value(&server, "a"), "[again]");
}

#[test]
fn keys_are_prefixes_or_networks() {
    let prefixes = start_as_we_are(server(), &http("type=prefix"));
    assert_eq!(change(&prefixes, "POST", "{\"/a\":\"short\",\"/a/b\":\"long\"}"), 201);
    for (key, expected) in [("/a/bc", "[long]"), ("/ab", "[short]"), ("/", "[]")] {
        assert_eq!(value(&prefixes, key), expected, "{key}");
    }
    let networks = start_as_we_are(server(), &http("type=ip"));
    assert_eq!(
        change(&networks, "POST", "{\"10.0.0.0/8\":\"net\",\"10.1.2.3\":\"host\",\"2001:db8::/32\":\"v6\"}"),
        201
    );
    assert_eq!(change(&networks, "POST", "{\"text\":\"1\"}"), 400);
    for (key, expected) in [
        ("10.9.9.9", "[net]"),
        ("10.1.2.3", "[host]"),
        ("2001:db8::7", "[v6]"),
        ("11.0.0.1", "[]"),
        ("x", "[]"),
    ] {
        assert_eq!(value(&networks, key), expected, "{key}");
    }
}

#[test]
fn pairs_survive_reload() {
    let mut server = start_as_we_are(server(), &http("timeout=1h"));
    assert_eq!(change(&server, "POST", "{\"a\":\"1\"}"), 201);
    let other = http("").replace("[$value]", "<$value>");
    let user = crate::support::own_user();
    reload_until(&mut server, &format!("{user} http {{ {other} }}"), "/?k=a", "<1>");
    // A pair that was set with a timeout still expires; without `timeout` no new pair may have one.
    assert_eq!(change(&server, "POST", "{\"b\":{\"value\":\"1\",\"expire\":1}}"), 400);
}

#[test]
fn state_file_keeps_pairs_over_a_restart() {
    let conf = http("timeout=1h state=logs/k.json");
    let first = start_as_we_are(server(), &conf);
    assert_eq!(change(&first, "POST", "{\"a\":\"1\",\"b\":{\"value\":\"2\",\"expire\":1}}"), 201);
    let text = || fs::read_to_string(first.prefix().join("logs/k.json")).unwrap();
    assert!(text().starts_with("{\"a\":{\"value\":\"1\",\"expires\":"), "{}", text());
    assert_eq!(change(&first, "PATCH", "{\"a\":\"3\"}"), 204);
    let second = start_as_we_are(server().file("logs/k.json", text()), &conf);
    assert_eq!((value(&second, "a"), value(&second, "b")), ("[3]".to_owned(), "[]".to_owned()));
    assert_eq!(change(&first, "DELETE", ""), 204);
    assert_eq!(text(), "{}");
}

#[test]
fn state_that_cannot_be_saved_is_reported() {
    let server = start_as_we_are(server().file("conf/k.json", "{\"a\":\"1\"}"), &http("state=conf/k.json"));
    let conf = server.prefix().join("conf");
    fs::rename(&conf, server.prefix().join("gone")).unwrap();
    assert_eq!(change(&server, "PATCH", "{\"a\":\"2\"}"), 500);
    assert_eq!(value(&server, "a"), "[2]");
    server.wait_error_log("while saving the state of a keyval zone").unwrap();
}

#[test]
fn sessions_of_stream_have_tables_of_their_own() {
    let server = server()
        .start(
            "http { server { listen 127.0.0.1:{port}; location /api/ { api write=on; } } }
             stream {
               keyval_zone zone=s:64k type=ip; keyval $remote_addr $value zone=s;
               server { listen 127.0.0.1:{port1}; return '[$value]'; }
             }",
        )
        .unwrap();
    let text = || {
        let mut client = tw_testkit::Client::connect(server.addr_of(1)).unwrap();
        String::from_utf8(client.read_until_close().unwrap()).unwrap()
    };
    assert_eq!(text(), "[]");
    assert_eq!(send(&server, "POST /api/stream/keyvals/s", "{\"127.0.0.0/8\":\"local\"}").status, 201);
    assert_eq!(text(), "[local]");
    assert_eq!(get(&server, "/api/stream/keyvals").text(), "{\"s\":{\"127.0.0.0/8\":\"local\"}}");
    assert_eq!(get(&server, "/api/http/keyvals").text(), "{}");
}

#[test]
fn wrong_zones_are_refused() {
    for (wrong, message) in [
        ("keyval_zone zone=k;", "invalid zone size \"zone=k\""),
        ("keyval_zone zone=k:1k;", "zone \"zone=k:1k\" is too small"),
        ("keyval_zone type=ip;", "\"keyval_zone\" must have \"zone\" parameter"),
        ("keyval_zone zone=k:64k type=x;", "invalid parameter \"type=x\""),
        ("keyval_zone zone=k:64k timeout=0;", "invalid parameter \"timeout=0\""),
        ("keyval_zone zone=k:64k state=;", "invalid parameter \"state=\""),
        ("keyval_zone zone=k:64k sync;", "\"sync\" requires the \"timeout\" parameter"),
        ("keyval_zone zone=k:64k; keyval_zone zone=k:64k;", "duplicate keyval zone \"k\""),
        (
            "keyval_zone zone=k:64k; limit_conn_zone $uri zone=k:64k;",
            "is already declared for a different use",
        ),
        ("keyval $uri $x zone=k;", "zero size shared memory zone \"k\""),
        ("keyval_zone zone=k:64k; keyval $uri x zone=k;", "invalid variable name \"x\""),
        ("keyval_zone zone=k:64k; keyval $uri $x k;", "invalid parameter \"k\""),
        ("keyval_zone zone=k:64k; keyval $uri $uri zone=k;", "the duplicate \"uri\" variable"),
        ("keyval_zone zone=k:64k state=s; keyval_zone zone=l:64k state=s;", "is already used in keyval zone"),
    ] {
        let refused = refusal_of(&format!("http {{ {wrong} server {{ listen 127.0.0.1:{{port}}; }} }}"));
        assert!(refused.contains(message), "{wrong}: {refused}");
    }
    for text in ["{", "{\"a\":1}", "[]"] {
        let conf = format!("http {{ {} }}", http("state=conf/k.json"));
        let started = server().file("conf/k.json", text).start(&conf);
        let refused = started.map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("state file"), "{text}: {refused}");
    }
}

#[test]
fn sync_is_worth_a_warning() {
    let server = start_as_we_are(server(), &http("timeout=1h sync"));
    assert!(server.stderr().contains("\"sync\" has no effect"), "{}", server.stderr());
}
