//! `error_log … json` and `error_log_tag`.

use std::fs;
use std::net::UdpSocket;

use serde_json::{Value, json};
use tw_testkit::{Server, wait};

use crate::support::reload::reload;
use crate::support::{get, refusal, refusal_of, server, start};

/// All lines of a log, each an object.
fn objects(server: &Server, name: &str) -> Vec<Value> {
    let text = fs::read(server.prefix().join(name)).unwrap_or_default();
    let text = String::from_utf8(text).expect("JSON is UTF-8");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// The first line whose message has this text.
fn line(server: &Server, name: &str, text: &str) -> Value {
    let find = || objects(server, name).into_iter().find(|line| message(line).contains(text));
    wait::some(wait::TIMEOUT, find).unwrap_or_else(|| panic!("{text}: {:#?}", objects(server, name)))
}

fn message(line: &Value) -> &str {
    line["message"].as_str().unwrap()
}

/// Checks the shape of `2026-11-20T11:00:00.123+00:00`.
fn is_time(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    matches!(&*shape, "0000-00-00T00:00:00.000+00:00" | "0000-00-00T00:00:00.000-00:00")
}

#[test]
fn line_is_an_object_with_all_facts() {
    let server = start(
        server().in_one_process(),
        "server { listen 127.0.0.1:{port}; server_name first; root html; error_log logs/json.log warn json; error_log logs/text.log;
             location /up { proxy_pass http://127.0.0.1:1/to; } location /id { error_log_request_id on; } }",
    );
    let mut client = server.connect().unwrap();
    client.send("GET /x?y HTTP/1.1\r\nHost: second\r\nReferer: http://r/\r\n\r\n").unwrap();
    client.read_response().unwrap();
    let value = line(&server, "logs/json.log", "html/x\" failed");
    let members: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "client",
        "connection",
        "host",
        "level",
        "message",
        "pid",
        "referrer",
        "request",
        "server",
        "tid",
        "time",
    ];
    assert_eq!(members, expected);
    for (name, expected) in [
        ("level", json!("error")),
        ("pid", json!(server.pid())),
        ("client", json!("127.0.0.1")),
        ("server", json!("first")),
        ("request", json!("GET /x?y HTTP/1.1")),
        ("host", json!("second")),
        ("referrer", json!("http://r/")),
    ] {
        assert_eq!(value[name], expected, "{name}");
    }
    assert!(is_time(value["time"].as_str().unwrap()) && value["connection"].is_u64(), "{value}");
    assert!(message(&value).ends_with("(2: No such file or directory)"), "{value}");
    // The same line in nginx's format, in the other log of the server.
    let text = server.log("logs/text.log", 1).unwrap();
    assert!(text[0].ends_with(", client: 127.0.0.1, server: first, request: \"GET /x?y HTTP/1.1\", host: \"second\", referrer: \"http://r/\""), "{text:?}");
    assert_eq!(get(&server, "/up").status, 502);
    let value = line(&server, "logs/json.log", "connect() failed");
    assert_eq!(value["upstream"], "http://127.0.0.1:1/to");
    get(&server, "/id");
    assert_eq!(line(&server, "logs/json.log", "html/id")["request_id"].as_str().unwrap().len(), 32);
}

#[test]
fn any_bytes_of_a_client_are_valid_json() {
    let server = start(
        server(),
        "error_log logs/json.log info json; error_log_tag agent $http_user_agent;
         server { listen 127.0.0.1:{port}; root html; large_client_header_buffers 4 16k; }",
    );
    let bytes: Vec<u8> = (1..=255).filter(|byte| !b"\r\n".contains(byte)).collect();
    let long = vec![b'"'; 10_000];
    for (field, count) in
        [(&bytes, 1), (&bytes, 8), (&long, 1), (&b"{}".to_vec(), 1), (&"é\u{2028}".into(), 900)]
    {
        let mut client = server.connect().unwrap();
        client.send(b"GET /").unwrap();
        client.send(b"%0a%22%ff".repeat(count)).unwrap();
        client.send(b" HTTP/1.1\r\nHost: a\r\nReferer: ").unwrap();
        client.send(field.repeat(count)).unwrap();
        client.send(b"\r\nUser-Agent: ").unwrap();
        client.send(field).unwrap();
        client.send(b"\r\nConnection: close\r\n\r\n").unwrap();
        client.read_until_close().unwrap();
    }
    for request in [&b"\xff\xfe\0\"\\\r\n\r\n"[..], b"GET \x01\x7f HTTP/1.1\r\n\r\n", b"{\"a\":1}\n\n"] {
        let mut client = server.connect().unwrap();
        client.send(request).unwrap();
        client.read_until_close().unwrap();
    }
    // Every line was parsed, so no client has forged one. Long lines are marked as cut.
    let lines = || objects(&server, "logs/json.log");
    let requests = || lines().into_iter().filter(|line| line["client"] == "127.0.0.1").collect::<Vec<_>>();
    assert!(wait::until(wait::TIMEOUT, || requests().len() >= 8), "{:#?}", lines());
    let cut = requests().iter().filter(|line| line["cut"] == true).count();
    assert!((2..8).contains(&cut), "{:#?}", requests());
    let agent = requests().iter().any(|line| line["tags"]["agent"] == "{}");
    assert!(agent, "{:#?}", requests());
}

#[test]
fn tags_are_inherited_and_evaluated_without_effects() {
    let server = start(
        server(),
        "error_log logs/json.log warn json; error_log logs/text.log; error_log_tag team web; error_log_tag uri \"<$uri>\";
         map $uri $once { ~^/m(?<tail>.*)$ \"$tail:$status\"; default none; } map $cycle $cycle { default $cycle; }
         log_format s '$uri $once'; access_log logs/access.log s;
         server { listen 127.0.0.1:{port}; root html;
             location /own { error_log_tag team \"a \\\"b\\\"\"; }
             location /mapped { error_log_tag value $once; }
             location /none { error_log_tag missing $arg_x; }
             location /cycle { error_log_tag cycle $cycle; error_log_tag after yes; } }",
    );
    for (target, expected) in [
        ("/x", json!({"team": "web", "uri": "</x>"})),
        ("/own", json!({"team": "a \"b\""})),
        ("/none", json!({"missing": ""})),
        // While the line is written, the status is not the last one.
        ("/mapped", json!({"value": "apped:200"})),
        ("/cycle", json!({"cycle": "", "after": "yes"})),
    ] {
        // A tag that fails does not fail the request.
        assert_eq!(get(&server, target).status, 404, "{target}");
        assert_eq!(line(&server, "logs/json.log", &format!("html{target}\""))["tags"], expected, "{target}");
    }
    // Variables that the log has evaluated are evaluated anew later.
    let lines = server.access_log(5).unwrap();
    assert_eq!(lines[3], "/mapped apped:404", "{lines:?}");
    assert!(
        fs::read_to_string(server.prefix().join("logs/text.log"))
            .unwrap()
            .lines()
            .all(|line| !line.contains("team"))
    );
}

#[test]
fn stream_master_and_other_targets_write_json() {
    let syslog = UdpSocket::bind("127.0.0.1:0").unwrap();
    syslog.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    let conf = format!(
        "error_log logs/all.log notice json; error_log stderr notice json; error_log syslog:server={} error json; error_log memory:8k error json;
         http {{ server {{ listen 127.0.0.1:{{port}}; root html; location /own {{ error_log syslog:server={} json; }} }} }}
         stream {{ error_log_tag kind tcp; server {{ listen 127.0.0.1:{{port1}}; error_log_tag from $remote_addr; proxy_pass 127.0.0.1:1; }}
             server {{ listen 127.0.0.1:{{port2}} udp; proxy_pass 127.0.0.1:1; error_log logs/udp.log info json; }} }}",
        syslog.local_addr().unwrap(),
        syslog.local_addr().unwrap(),
    );
    let mut server = server().with_master().start(&conf).unwrap();
    let own = server.pid();
    // Lines of the master.
    let start = line(&server, "logs/all.log", "start worker process");
    assert_eq!((&start["level"], &start["pid"]), (&json!("notice"), &json!(own)));
    assert!(start["connection"].is_null() && start["client"].is_null());
    let mut client = tw_testkit::Client::connect(server.addr_of(1)).unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"");
    let value = line(&server, "logs/all.log", "connect() failed");
    assert_eq!(value["tags"], json!({"from": "127.0.0.1"}));
    for (name, expected) in [
        ("upstream", "127.0.0.1:1"),
        ("client", "127.0.0.1"),
        ("bytes_from_client", "0"),
        ("bytes_to_upstream", "0"),
    ] {
        assert_eq!(value[name], expected, "{name}");
    }
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.send_to(b"x", server.addr_of(2)).unwrap();
    let value = line(&server, "logs/udp.log", "udp client");
    assert!(value["tags"].is_null() && value["level"] == "info", "{value}");
    let mut datagram = [0; 8192];
    let mut object = |text: &str| {
        loop {
            let len = syslog.recv(&mut datagram).unwrap();
            let datagram = std::str::from_utf8(&datagram[..len]).unwrap();
            let (head, object) = datagram.split_once(": ").unwrap();
            assert!(head.starts_with("<187>"), "{head}");
            let object: Value = serde_json::from_str(object).unwrap();
            if message(&object).contains(text) {
                return object;
            }
        }
    };
    assert_eq!(object("connect() failed")["server"].as_str().unwrap(), server.addr_of(1).to_string());
    get(&server, "/own");
    assert_eq!(object("html/own\"")["request"], "GET /own HTTP/1.1");
    // The next configuration may have another format.
    let conf = conf.replace("logs/all.log notice json", "logs/all.log notice");
    reload(&mut server, &conf);
    let text = || fs::read_to_string(server.prefix().join("logs/all.log")).unwrap();
    assert!(
        wait::until(wait::TIMEOUT, || text().lines().last().is_some_and(|line| !line.starts_with('{'))),
        "{}",
        text()
    );
    assert!(server.stderr().lines().any(|line| line.starts_with("{\"time\":\"")), "{}", server.stderr());
}

#[test]
fn wrong_formats_and_tags_are_refused() {
    for (content, expected) in [
        ("error_log logs/a json json;", "duplicate log format \"json\""),
        ("error_log logs/a xml;", "invalid log level \"xml\""),
        ("error_log_tag a;", "invalid number of arguments"),
        ("error_log_tag a b; error_log_tag a c;", "duplicate tag \"a\""),
        ("error_log_tag \"\" b;", "the name of a tag is empty"),
        ("error_log_tag a $nothing;", "unknown \"nothing\" variable"),
        ("error_log memory:3k json;", "invalid buffer size \"3k\""),
    ] {
        let error = refusal(content);
        assert!(error.contains(expected), "{content}: {error}");
    }
    let error = refusal_of("error_log_tag a b; http { server { listen 127.0.0.1:{port}; } }");
    assert!(error.contains("directive is not allowed here"), "{error}");
}
