//! Control API of the master (`-l`): processes, configuration, reloads, purges, messages.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tw_testkit::ports::Port;
use tw_testkit::{Client, Server, Signal, TempDir, wait};

use crate::support::{own_user, server};

const CONF: &str = "http { server { listen 127.0.0.1:{port}; return 200 one; } }";

/// Sends a request and returns status and body.
fn exchange(mut stream: impl Read + Write, request: &str) -> (u16, Value) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() })
}

fn ask(socket: &Path, method: &str, path: &str, body: &str) -> (u16, Value) {
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
    exchange(UnixStream::connect(socket).unwrap(), &request)
}

/// A server with the API on a Unix socket.
fn start(conf: &str) -> (TempDir, PathBuf, Server) {
    let dir = TempDir::new("control-api").unwrap();
    let socket = dir.join("control.sock");
    let server =
        server().with_master().arg("-l").arg(format!("unix:{}", socket.display())).start(conf).unwrap();
    (dir, socket, server)
}

#[test]
fn processes_configuration_and_status_are_shown() {
    let (_dir, socket, server) = start(CONF);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let get = |path: &str| {
        let (status, body) = ask(&socket, "GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        body
    };
    assert_eq!(get("/"), json!(["1"]));
    assert_eq!(get("/1/"), json!(["control", "nginx", "tailwater"]));
    assert_eq!(get("/1/control"), json!(["processes", "config"]));
    assert!(get("/1/nginx")["version"].as_str().unwrap().starts_with("1."));
    let processes = get("/1/control/processes");
    assert_eq!(processes.as_array().unwrap().len(), 1, "{processes}");
    assert_eq!((&processes[0]["name"], &processes[0]["exiting"]), (&json!("worker process"), &json!(false)));
    assert_ne!(processes[0]["pid"], json!(server.pid()));
    let config = get("/1/control/config");
    assert!(config[0]["name"].as_str().unwrap().ends_with("nginx.conf"), "{config}");
    assert!(config[0]["content"].as_str().unwrap().contains("return 200 one"), "{config}");
    let status = get("/1/tailwater/status");
    assert_eq!((&status["state"], &status["pid"]), (&json!("serving"), &json!(server.pid())));
    assert_eq!(status["addresses"], json!([server.addr().to_string()]));
    let (status, body) = ask(&socket, "HEAD", "/1/nginx", "");
    assert_eq!((status, body), (200, Value::Null));
    for (method, path, expected) in [
        ("GET", "/2", 404),
        ("DELETE", "/1/control/config", 405),
        ("PATCH", "/1/control/processes", 405),
        ("GET", "/1/tailwater/caches/c/purge", 405),
    ] {
        assert_eq!(ask(&socket, method, path, "").0, expected, "{method} {path}");
    }
}

#[test]
fn reload_answers_with_its_result() {
    let (_dir, socket, mut server) = start(CONF);
    let body = || Client::get(server.addr(), "/").unwrap().text();
    assert_eq!(body(), "one");
    server.write_conf(&CONF.replace("one", "two")).unwrap();
    let (status, said) = ask(&socket, "PATCH", "/1/control/config", "");
    assert_eq!((status, said), (200, json!({ "logs": [] })));
    assert_eq!(Client::get(server.addr(), "/").unwrap().text(), "two");
    let config = ask(&socket, "GET", "/1/control/config", "").1;
    assert!(config[0]["content"].as_str().unwrap().contains("return 200 two"), "{config}");

    server.write_conf("http { nonsense; }").unwrap();
    let (status, said) = ask(&socket, "PATCH", "/1/control/config", "");
    assert_eq!(status, 422);
    let logs = said["logs"].as_array().unwrap();
    assert!(logs[0].as_str().unwrap().starts_with("[emerg] unknown directive \"nonsense\""), "{said}");
    // The response shows the configuration in use, not the one in the file.
    let config = ask(&socket, "GET", "/1/control/config", "").1;
    assert!(config[0]["content"].as_str().unwrap().contains("return 200 two"), "{config}");
    let status = ask(&socket, "GET", "/1/tailwater/status", "").1;
    assert_eq!((&status["reloads"]["succeeded"], &status["reloads"]["failed"]), (&json!(1), &json!(1)));
    let messages = ask(&socket, "GET", "/1/tailwater/messages", "").1;
    assert!(messages[0]["message"].as_str().unwrap().contains("nonsense"), "{messages}");
}

#[test]
fn purge_is_carried_out_by_the_worker_process() {
    let (_dir, socket, server) = start(&format!(
        "{} http {{ proxy_cache_path cache keys_zone=c:1m;
           server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://127.0.0.1:{{port1}}; proxy_cache c; proxy_cache_key $uri;
               proxy_cache_valid 200 1h; add_header X-Status $upstream_cache_status; }} }}
           server {{ listen 127.0.0.1:{{port1}}; return 200 origin; }} }}",
        own_user()
    ));
    let status_of = || {
        let response = Client::get(server.addr(), "/a").unwrap();
        response.field("X-Status").unwrap().to_owned()
    };
    assert_eq!(status_of(), "MISS");
    assert!(wait::until(wait::TIMEOUT, || status_of() == "HIT"));
    let path = "/1/tailwater/caches/c/purge";
    let (status, said) = ask(&socket, "POST", path, "{\"key\":\"/a\"}");
    assert_eq!(status, 200, "{said}");
    assert_eq!(status_of(), "MISS");
    for (path, body, expected) in [
        (path, "{\"key\":\"/none\"}", 200),
        ("/1/tailwater/caches/none/purge", "{\"key\":\"/a\"}", 422),
        (path, "{}", 400),
        (path, "nonsense", 400),
    ] {
        let (status, said) = ask(&socket, "POST", path, body);
        assert_eq!(status, expected, "{path} {body}: {said}");
    }
}

#[test]
fn metrics_are_those_of_the_status_page() {
    let conf = "http { server { listen 127.0.0.1:{port}; location / { return 200 one; } location = /status { status_page; } } }";
    let names = |document: &Value| {
        let metrics = document["metrics"].as_object().unwrap();
        metrics.keys().cloned().collect::<Vec<_>>()
    };
    for has_master in [true, false] {
        let dir = TempDir::new("control-api").unwrap();
        let socket = dir.join("control.sock");
        let builder = server().arg("-l").arg(format!("unix:{}", socket.display()));
        let server = if has_master { builder.with_master() } else { builder }.start(conf).unwrap();
        assert_eq!(Client::get(server.addr(), "/page").unwrap().text(), "one");
        let page = Client::get(server.addr(), "/status?format=json").unwrap();
        let page: Value = serde_json::from_slice(&page.body).unwrap();
        let (status, document) = ask(&socket, "GET", "/1/tailwater/metrics", "");
        assert_eq!(status, 200, "{document}");
        assert_eq!(names(&document), names(&page));
        for member in ["host", "bounds", "stall_threshold", "mounts"] {
            assert_eq!(document[member], page[member], "{member}");
        }
        let requests = document["slow_requests"].as_array().unwrap();
        assert!(requests.iter().any(|request| request["request"] == "GET /page"), "{document}");
        let memory = &document["metrics"]["process_resident_memory_bytes"]["samples"][0][1];
        assert!(memory.as_u64().is_some_and(|bytes| bytes > 1 << 20), "{memory}");
        assert_eq!(ask(&socket, "POST", "/1/tailwater/metrics", "").0, 405);
    }
}

#[test]
fn many_clients_of_metrics_are_answered_or_refused() {
    let (_dir, socket, server) = start(CONF);
    let mut unix_streams: Vec<_> = (0..12)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(b"GET /1/tailwater/metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            stream
        })
        .collect();
    for stream in &mut unix_streams {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).map(str::to_owned);
        assert!(matches!(status.as_deref(), Some("200" | "503")), "{text}");
    }
    assert!(wait::until(wait::TIMEOUT, || ask(&socket, "GET", "/1/tailwater/metrics", "").0 == 200));
    assert_eq!(Client::get(server.addr(), "/").unwrap().text(), "one");
}

#[test]
fn address_needs_a_token() {
    let dir = TempDir::new("control-api").unwrap();
    let port = Port::reserve().unwrap();
    let token = dir.write("token", "0123456789abcdef\n").unwrap();
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let number = port.number();
    let address = format!("127.0.0.1:{number}");
    let builder = || server().with_master().arg("-l").arg(&address);
    let refused = builder().run(CONF).unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("needs --control-token"), "{said}");
    let _server = builder().arg("--control-token").arg(token.display().to_string()).start(CONF).unwrap();
    let ask = |fields: &str| {
        let request = format!("GET /1/nginx HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        exchange(TcpStream::connect(&address).unwrap(), &request).0
    };
    assert_eq!(ask(""), 401);
    assert_eq!(ask("Authorization: Bearer 0123456789abcdeF\r\n"), 401);
    assert_eq!(ask("Authorization: Bearer 0123456789abcdef\r\n"), 200);
    assert_eq!(ask("Authorization: Bearer 0123456789abcdef\r\nOrigin: http://a\r\n"), 403);
}

#[test]
fn clients_that_hold_connections_delay_no_one() {
    let (_dir, socket, server) = start(CONF);
    let unix_streams: Vec<_> = (0..40).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let mut half = UnixStream::connect(&socket).unwrap();
    half.write_all(b"GET /1/nginx HT").unwrap();
    assert_eq!(ask(&socket, "GET", "/1/nginx", "").0, 200);
    let mut large = UnixStream::connect(&socket).unwrap();
    large.write_all(b"POST /1/nginx HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n").unwrap();
    let mut text = String::new();
    large.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 413"), "{text}");
    assert_eq!(exchange(UnixStream::connect(&socket).unwrap(), "nonsense\r\n\r\n").0, 400);
    // A client that sends nothing more is closed.
    half.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(half.read(&mut [0; 1]).unwrap(), 0);
    drop(unix_streams);
    assert_eq!(Client::get(server.addr(), "/").unwrap().text(), "one");
}

#[test]
fn new_binary_takes_over_the_socket() {
    let (_dir, socket, server) = start(CONF);
    let old = server.pid();
    server.signal(Signal::USR2).unwrap();
    let pid = || ask(&socket, "GET", "/1/tailwater/status", "").1["pid"].as_u64().unwrap();
    assert!(wait::until(wait::TIMEOUT, || pid() != u64::from(old)), "{}", server.error_log());
    let new = pid();
    server.signal(Signal::QUIT).unwrap();
    server.wait_error_log(&format!("{old}#{old}: exit")).unwrap();
    assert_eq!(pid(), new);
    let new = rustix::process::Pid::from_raw(i32::try_from(new).unwrap()).unwrap();
    rustix::process::kill_process(new, Signal::QUIT).unwrap();
    assert!(wait::until(wait::TIMEOUT, || !socket.exists()), "the last one removes its file");
}
