//! The program, with scripted servers and, if it was built, the real one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;

use tw_testkit::origin::{origin, secured};
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Lacks, Server, TempDir, leave_out};
use tw_tls::rustls;

const FIRST: &[u8] = include_bytes!("../testdata/first.json");
const SECOND: &[u8] = include_bytes!("../testdata/second.json");

fn run(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-top"));
    command.args(["-n", "0.1"]).args(words).env("TERM", "xterm").output().unwrap()
}

/// Standard output of a run that succeeds.
fn printed(words: &[&str]) -> String {
    let output = run(words);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a run that fails, and its status.
fn refused(words: &[&str]) -> (String, Option<i32>) {
    let output = run(words);
    assert!(output.stdout.is_empty(), "{output:?}");
    (String::from_utf8(output.stderr).unwrap(), output.status.code())
}

#[test]
fn one_frame_is_printed_as_text() {
    let server = origin(|mut conn| {
        let head = conn.head().unwrap_or_default();
        assert!(
            head.starts_with("GET /s?format=json HTTP/1.1\r\n") && head.contains("\r\nX-Key: 1\r\n"),
            "{head}"
        );
        conn.answer("", if conn.nth == 0 { FIRST } else { SECOND });
    });
    let url = format!("http://{server}/s");
    let text = printed(&[&url, "--once", "-H", "X-Key: 1"]);
    for expected in
        ["tailwater 0.1.0 on web1 ", "\nLoops\nLOOP ", "\nConnections\nPROTOCOL ", " 10.0.0.9:9000 unavail "]
    {
        assert!(text.contains(expected), "{expected} is not in:\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
    let server = origin(|mut conn| {
        conn.head();
        conn.answer("", SECOND);
    });
    let text = printed(&[&server.to_string(), "--once", "-t", "upstreams", "-f", "10.0.0.9"]);
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn document_comes_through_a_unix_socket() {
    let dir = TempDir::new("top").unwrap();
    let path = dir.join("status.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // The head is shorter than one read.
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
            stream.write_all(SECOND).unwrap();
        }
    });
    let text = printed(&[&format!("unix:{}:/status", path.display()), "--once", "--table=loops"]);
    assert!(text.starts_with("LOOP "), "{text}");
}

#[test]
fn servers_are_verified_over_https() {
    let authority = Authority::new();
    let other = Authority::new();
    let dir = TempDir::new("top").unwrap();
    let config = Authority::server(rustls::ALL_VERSIONS, &authority.certify(&["localhost"]));
    let server = secured(config, |mut conn| {
        conn.head();
        conn.answer("", SECOND);
        conn.close_notify();
    });
    let file =
        |name: &str, authority: &Authority| dir.write(name, authority.pem()).unwrap().display().to_string();
    let ours = file("ours.pem", &authority);
    let theirs = file("theirs.pem", &other);
    let (named, address) =
        (format!("https://localhost:{}", server.port()), format!("https://{server}/status"));
    for words in [[&*named, "--ca", &ours].as_slice(), &[&address, "--insecure"]] {
        let text = printed(&[words, &["--once", "--table=loops"]].concat());
        assert!(text.starts_with("LOOP "), "{words:?}: {text}");
    }
    for (words, expected) in [
        ([&*named, "--ca", &theirs], "the server's certificate verify error: ("),
        ([&address, "--ca", &ours], "certificate does not match \"127.0.0.1\""),
        ([&address, "--ca", "/none"], "\"/none\": No such file or directory"),
    ] {
        let (error, status) = refused(&[&words[..], &["--once"]].concat());
        assert!(error.contains(expected) && status == Some(1), "{words:?}: {error}");
    }
    let plain = origin(|mut conn| conn.send("HTTP/1.1 400 Bad Request\r\n\r\n"));
    let (error, _) = refused(&[&format!("https://{plain}"), "--insecure", "--once"]);
    assert!(error.contains(": TLS: "), "{error}");
}

#[test]
fn token_of_a_control_api_is_sent() {
    let dir = TempDir::new("top").unwrap();
    let token = dir.write("token", "0123456789abcdef\n").unwrap().display().to_string();
    let server = origin(|mut conn| {
        let head = conn.head().unwrap_or_default();
        if !head.contains("\r\nAuthorization: Bearer 0123456789abcdef\r\n") {
            return conn.send("HTTP/1.1 401 Unauthorized\r\n\r\n");
        }
        assert!(head.starts_with("GET /1/tailwater/metrics HTTP/1.1\r\n"), "{head}");
        conn.answer("", SECOND);
    });
    let address = server.to_string();
    let text = printed(&["--control", &address, "--control-token", &token, "--once", "-t", "loops"]);
    assert!(text.starts_with("LOOP "), "{text}");
    let (error, status) = refused(&["--control", &address, "--once"]);
    assert!(error.contains("a token (--control-token)") && status == Some(1), "{error}");
}

#[test]
fn servers_that_say_nothing_useful_are_errors() {
    for (response, expected) in [
        ("HTTP/1.1 404 Not Found\r\n\r\n", "the server answers with status 404"),
        ("HTTP/1.1 200 OK\r\n\r\n{\"metrics\"", "the response is damaged JSON"),
        ("HTTP/1.1 200 OK\r\n\r\n<html>", "is this the URL of a status_page?"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "the response is not HTTP, or cut off"),
        ("", "the response is not HTTP, or cut off"),
    ] {
        let server = origin(move |mut conn| {
            conn.head();
            conn.send(response);
        });
        let (error, status) = refused(&[&server.to_string(), "--once"]);
        assert!(error.contains(expected) && status == Some(1), "{response}: {error}");
    }
}

#[test]
fn screens_need_a_terminal() {
    let (error, status) = refused(&["127.0.0.1:1"]);
    assert!(error.contains("this is no terminal: --once prints text") && status == Some(1), "{error}");
    let (error, status) = refused(&["--bogus"]);
    assert!(error.contains("tailwater-top --help lists the options") && status == Some(2), "{error}");
    assert!(printed(&["--help"]).starts_with("Usage: tailwater-top [URL] "));
    assert!(printed(&["--version"]).starts_with("tailwater-top version: "));
}

/// The server that tests of this workspace have built; leaves the test out if there is none.
fn server_binary() -> Option<PathBuf> {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_tailwater-top")).with_file_name("tailwater");
    if !binary.is_file() {
        leave_out(Lacks::Run, "tailwater is not built: cargo build");
        return None;
    }
    Some(binary)
}

#[test]
fn running_server_is_shown() {
    let Some(binary) = server_binary() else { return };
    let conf = "worker_processes 2; http { proxy_cache_path kept keys_zone=site:1m;
         upstream app { server 127.0.0.1:{port1}; }
         server { listen 127.0.0.1:{port}; location = /status { status_page; } location = /metrics { metrics; }
         location / { proxy_pass http://app; proxy_cache site; proxy_cache_valid 1h; } }
         server { listen 127.0.0.1:{port1}; location / { return 200 hello; } } }";
    let dir = TempDir::new("top").unwrap();
    let socket = dir.join("control.sock");
    let server =
        Server::build(binary).arg("-l").arg(format!("unix:{}", socket.display())).start(conf).unwrap();
    for _ in 0..3 {
        assert_eq!(Client::get(server.addr(), "/page").unwrap().status, 200);
    }
    let text = printed(&[&server.addr().to_string(), "--once"]);
    let app = format!("\napp          {} up ", server.addr_of(1));
    for expected in
        ["\nLoops\nLOOP ", "\n0 ", "\n1 ", "\npool   default ", "\nsite ", &app, "/page\n", "\nHTTP/1.1 "]
    {
        assert!(text.contains(expected), "{expected} is not in:\n{text}");
    }
    let text = printed(&["--control", &format!("unix:{}", socket.display()), "--once"]);
    for expected in ["\nLoops\nLOOP ", "\npool   default ", "\nsite ", &app, "/page\n", "\nHTTP/1.1 "] {
        assert!(text.contains(expected), "{expected} is not in:\n{text}");
    }
    let text = printed(&[&format!("{}/metrics", server.addr()), "--once"]);
    for expected in
        ["\n0 ", "\npool   default ", "\nsite ", &app, "this URL does not show requests", "\nHTTP/1.1 "]
    {
        assert!(text.contains(expected), "{expected} is not in:\n{text}");
    }
}
