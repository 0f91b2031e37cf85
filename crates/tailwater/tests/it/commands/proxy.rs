//! `tailwater proxy`: a reverse proxy without a configuration file.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use tw_testkit::origin::counting;
use tw_testkit::ports::Port;
use tw_testkit::process::Group;
use tw_testkit::{Client, Signal, TempDir, wait};

use crate::support::origin::mirror;
use tw_testkit::origin::{Conn, origin};

/// A running `tailwater proxy`.
pub(super) struct Proxied {
    out: TempDir,
    port: Port,
    pub(super) group: Group,
}

impl Proxied {
    /// Starts it, and waits for its first line of output.
    pub(super) fn start(words: &[&str]) -> Self {
        let port = Port::reserve().expect("a port is free");
        let out = TempDir::new("proxy").expect("a directory can be made");
        let file = |name| File::create(out.join(name)).expect("a file can be written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
        command.arg("proxy").args(words).arg(format!("--listen={}", port.number()));
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let group = Group::new(command.process_group(0).spawn().expect("the binary can be started"));
        let proxied = Self { out, port, group };
        let line = format!("Passing http://{}/ on to ", proxied.addr());
        let is_ready = wait::until(wait::TIMEOUT, || proxied.printed().starts_with(&line));
        assert!(is_ready, "{}{}", proxied.printed(), proxied.said());
        proxied
    }

    pub(super) fn addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port.number()).into()
    }

    fn printed(&self) -> String {
        fs::read_to_string(self.out.join("stdout")).unwrap_or_default()
    }

    /// Standard error so far.
    pub(super) fn said(&self) -> String {
        fs::read_to_string(self.out.join("stderr")).unwrap_or_default()
    }

    #[track_caller]
    fn says(&self, line: &str) {
        let is_said = wait::until(wait::TIMEOUT, || self.said().lines().any(|said| said == line));
        assert!(is_said, "{line} is not in: {}", self.said());
    }

    /// Ends it as Ctrl-C does.
    pub(super) fn end(mut self) -> String {
        self.group.signal(Signal::INT).unwrap();
        assert_eq!(self.group.wait(wait::TIMEOUT).unwrap().code(), Some(0), "{}", self.said());
        self.said()
    }
}

/// An address without a listener.
fn unused_addr() -> SocketAddr {
    // The port is below those that the kernel assigns, and is reserved as long as the process lives.
    let port = Port::reserve().unwrap();
    let addr = ([127, 0, 0, 1], port.number()).into();
    std::mem::forget(port);
    addr
}

#[test]
fn requests_are_passed_with_forwarded_fields() {
    let origin = mirror();
    let proxied = Proxied::start(&[&format!("http://{origin}/")]);
    assert_eq!(proxied.printed(), format!("Passing http://{}/ on to http://{origin}\n", proxied.addr()));
    let mut client = Client::connect(proxied.addr()).unwrap();
    client
        .send(
            "GET /a%20b?c HTTP/1.1\r\nHost: Example.org:81\r\nX-Forwarded-For: 192.0.2.1\r\n\
             X-Forwarded-Proto: https\r\nX-Real-IP: 192.0.2.1\r\nCookie: a\r\n\r\n",
        )
        .unwrap();
    let response = client.read_response().unwrap();
    assert_eq!(response.status, 200);
    let text = response.text();
    let mut lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
    lines[1..].sort_unstable();
    assert_eq!(
        lines,
        [
            "GET /a%20b?c HTTP/1.1",
            "0 bytes",
            "Cookie: a",
            "Host: example.org:81",
            "X-Forwarded-For: 192.0.2.1, 127.0.0.1",
            "X-Forwarded-Host: example.org:81",
            "X-Forwarded-Proto: http",
            "X-Real-IP: 127.0.0.1",
        ]
    );
    // A request without `Host` gets one, because the origin needs it.
    let mut old = Client::connect(proxied.addr()).unwrap();
    old.send("GET / HTTP/1.0\r\n\r\n").unwrap();
    let text = old.read_response().unwrap().text();
    assert!(text.contains(&format!("\r\nHost: {origin}\r\n")), "{text}");
    let upload = "x".repeat(3 << 20);
    client
        .send(format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{upload}", upload.len()))
        .unwrap();
    assert!(client.read_response().unwrap().text().ends_with("3145728 bytes"));
    let line = "\"GET /a%20b?c HTTP/1.1\" 200 ";
    assert!(wait::until(wait::TIMEOUT, || proxied.printed().contains(line)), "{}", proxied.printed());
    assert_eq!(proxied.end(), "");
    assert!(client.read_until_close().unwrap().is_empty());
}

#[test]
fn requests_are_balanced_and_a_dead_server_is_skipped() {
    let named = |name: &'static str| {
        origin(move |mut conn: Conn| {
            while conn.head().is_some() {
                conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{name}"));
            }
        })
    };
    let a = named("a");
    let b = named("b");
    let none = unused_addr();
    let [first, second, third] = [a, b, none].map(|addr| addr.to_string());
    let proxied = Proxied::start(&[&first, &second, &third]);
    proxied.says(&format!("tailwater: [warn] http://{none} does not answer yet: connection refused"));
    let request = || {
        let response = Client::get(proxied.addr(), "/").unwrap();
        assert_eq!(response.status, 200);
        response.text()
    };
    let all: Vec<_> = (0..12).map(|_| request()).collect();
    assert!(["a", "b"].iter().all(|name| all.iter().filter(|text| text == name).count() >= 4), "{all:?}");
    proxied.says(&format!("tailwater: [error] {none}: connection refused (GET / was answered 200)"));
}

#[test]
fn upstream_faults_are_printed_in_one_line() {
    let broken = origin(|mut conn| {
        let Some(head) = conn.head() else { return };
        let path = head.split(' ').nth(1).unwrap_or_default();
        match path {
            "/silent" => while conn.head().is_some() {},
            "/cut" => conn.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"),
            "/garbage" => conn.send("SSH-2.0-OpenSSH_9.2\r\n\r\n"),
            _ => {}
        }
    });
    let said = |what: &str| format!("tailwater: [error] {broken}: {what}");
    let proxied = Proxied::start(&[&broken.to_string(), "--timeout", "300ms"]);
    assert_eq!(Client::get(proxied.addr(), "/silent").unwrap().status, 504);
    proxied.says(&said("no answer in time (GET /silent was answered 504)"));
    assert_eq!(proxied.end().lines().count(), 1);

    // Origins that respond have more time than that, because a busy machine may need it.
    let proxied = Proxied::start(&[&broken.to_string()]);
    for path in ["/closed", "/garbage"] {
        assert_eq!(Client::get(proxied.addr(), path).unwrap().status, 502, "{path}");
    }
    assert!(Client::get(proxied.addr(), "/cut").is_err(), "what is not whole does not look whole");
    proxied.says(&said("connection closed before the answer was complete (GET /closed was answered 502)"));
    proxied.says(&said("connection closed before the answer was complete (GET /cut was answered 200)"));
    let garbage =
        |line: &str| line.starts_with(&said("")) && line.ends_with("(GET /garbage was answered 502)");
    assert!(wait::until(wait::TIMEOUT, || proxied.said().lines().any(garbage)), "{}", proxied.said());
    assert_eq!(proxied.end().lines().count(), 3);

    let none = unused_addr();
    let proxied = Proxied::start(&[&format!("http://{none}")]);
    assert_eq!(Client::get(proxied.addr(), "/x?y").unwrap().status, 502);
    let expected = format!(
        "tailwater: [warn] http://{none} does not answer yet: connection refused\n\
         tailwater: [error] {none}: connection refused (GET /x?y was answered 502)\n"
    );
    assert_eq!(proxied.end(), expected);
}

/// A frame as RFC 6455 has it, up to 125 bytes; clients mask theirs.
pub(super) fn frame(opcode: u8, data: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let len = u8::try_from(data.len()).unwrap();
    let mut frame = vec![0x80 | opcode, len | if mask.is_some() { 0x80 } else { 0 }];
    frame.extend_from_slice(mask.as_ref().map_or(&[], |mask| &mask[..]));
    let mask = mask.unwrap_or_default();
    frame.extend(data.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
    frame
}

/// Opcode and data of a frame that a client sends; `None` at the end.
fn read_frame(from: &mut impl Read) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 6];
    from.read_exact(&mut head).ok()?;
    assert!(head[1] & 0x80 != 0, "a client masks");
    let mut data = vec![0; usize::from(head[1] & 0x7f)];
    from.read_exact(&mut data).ok()?;
    data.iter_mut().enumerate().for_each(|(at, byte)| *byte ^= head[2 + at % 4]);
    Some((head[0] & 0xf, data))
}

/// Key and answer of section 1.3 of RFC 6455.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
pub(super) const TEXT: u8 = 1;
pub(super) const CLOSE: u8 = 8;

/// Opens a WebSocket through the proxy.
pub(super) fn open_websocket(addr: SocketAddr) -> Client {
    let mut client = Client::connect(addr).unwrap();
    client
        .send(format!(
            "GET /chat HTTP/1.1\r\nHost: {addr}\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
             Origin: http://{addr}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
        ))
        .unwrap();
    let head = client.read_head().unwrap();
    assert_eq!((head.status, head.field("Sec-WebSocket-Accept")), (101, Some(ACCEPT)), "{}", head.head);
    let is_upgrade = |field: &str| field.eq_ignore_ascii_case("upgrade");
    assert!(head.field("Connection").is_some_and(is_upgrade), "{}", head.head);
    client
}

#[test]
fn websocket_is_bidirectional() {
    let echo = origin(|mut conn| {
        let Some(head) = conn.head() else { return };
        let has =
            |field: &str| assert!(head.contains(&format!("\r\n{field}\r\n")), "{field} is not in {head}");
        has("Upgrade: websocket");
        has("Connection: upgrade");
        has(&format!("Sec-WebSocket-Key: {KEY}"));
        conn.send(format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
        ));
        conn.send(frame(TEXT, b"welcome", None));
        while let Some((opcode, data)) = read_frame(&mut conn.reader) {
            conn.send(frame(opcode, &data, None));
            if opcode == CLOSE {
                return;
            }
        }
    });
    // A WebSocket may be silent for longer than a server that has a request.
    let proxied = Proxied::start(&[&echo.to_string(), "--timeout=100ms"]);
    let mut client = open_websocket(proxied.addr());
    let expect = |client: &mut Client, opcode, data: &[u8]| {
        let expected = frame(opcode, data, None);
        assert_eq!(client.read_bytes(expected.len()).unwrap(), expected);
    };
    expect(&mut client, TEXT, b"welcome");
    assert!(client.silent_for(std::time::Duration::from_millis(300)).unwrap());
    for text in ["one", "two", ""] {
        client.send(frame(TEXT, text.as_bytes(), Some([1, 2, 3, 4]))).unwrap();
        expect(&mut client, TEXT, text.as_bytes());
    }
    client.send(frame(CLOSE, &1000_u16.to_be_bytes(), Some([9, 8, 7, 6]))).unwrap();
    expect(&mut client, CLOSE, &1000_u16.to_be_bytes());
    assert!(client.read_until_close().unwrap().is_empty());
    drop(client);
    let line = "\"GET /chat HTTP/1.1\" 101 ";
    assert!(wait::until(wait::TIMEOUT, || proxied.printed().contains(line)), "{}", proxied.printed());
    assert_eq!(proxied.end(), "");
}

#[test]
fn unix_socket_is_an_upstream_server() {
    let dir = TempDir::new("socket").unwrap();
    let path = dir.join("app one.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            // The first connection only checks that the upstream server listens.
            if stream.read(&mut head).unwrap() > 0 {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nlocal").unwrap();
            }
        }
    });
    let proxied = Proxied::start(&[&format!("unix:{}", path.display())]);
    assert_eq!(Client::get(proxied.addr(), "/").unwrap().text(), "local");
    assert_eq!(proxied.end(), "");
}

#[test]
fn host_of_the_url_is_sent_on_request() {
    let origin = origin(|mut conn| {
        while let Some(head) = conn.head() {
            let host = head.lines().find_map(|line| line.strip_prefix("Host: ")).unwrap_or_default();
            conn.send(format!(
                "HTTP/1.1 302 Found\r\nLocation: http://{host}/there\r\nContent-Length: 0\r\n\r\n"
            ));
        }
    });
    for option in [None, Some("--change-host")] {
        let url = origin.to_string();
        let words: Vec<_> = [Some(&*url), option].into_iter().flatten().collect();
        let proxied = Proxied::start(&words);
        let response = Client::get(proxied.addr(), "/").unwrap();
        // A redirect to the origin leads here.
        let here = match option {
            None => "http://localhost/there".to_owned(),
            Some(_) => format!("http://localhost:{}/there", proxied.addr().port()),
        };
        assert_eq!(response.field("Location"), Some(&*here), "{option:?}");
    }
}

#[test]
fn cache_option_stores_responses_that_survive_restart() {
    let (origin, request_count) = counting(|conn, head, nth| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        let fields = match path {
            "/kept" => "Cache-Control: max-age=3600\r\nX-Cache-Status: of another\r\n",
            "/short" => "Cache-Control: max-age=1\r\n",
            _ => "",
        };
        match (path, nth) {
            ("/short", 1..) => conn.send("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
            _ => conn.answer(fields, format!("{path} {nth}")),
        }
    });
    let dir = TempDir::new("kept").unwrap();
    let cache = dir.join("not/there yet");
    let words = [&*origin.to_string(), "--cache", cache.to_str().unwrap(), "--cache-size=100m"];
    let request = |proxied: &Proxied, path: &str, field: &str| {
        let mut client = Client::connect(proxied.addr()).unwrap();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{field}\r\n")).unwrap();
        let response = client.read_response().unwrap();
        let status = response.values("X-Cache-Status").collect::<Vec<_>>().join(", ");
        (response.status, status, response.text())
    };
    let said = |status: u16, cache: &str, text: &str| (status, cache.to_owned(), text.to_owned());
    let is_stored = || {
        // Each response is one file in two levels of directories, named by the hash of its key.
        let below = |dir: std::path::PathBuf| {
            fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
        };
        let names = below(cache.clone()).flat_map(below).flat_map(below);
        names.filter(|path| path.file_name().is_some_and(|name| name.len() == 32)).count()
    };

    let proxied = Proxied::start(&words);
    let greeting = format!("Keeping what may be kept in {}, 100m at most\n", cache.display());
    assert!(proxied.printed().ends_with(&greeting), "{}", proxied.printed());
    assert_eq!(request(&proxied, "/short", ""), said(200, "MISS", "/short 0"));
    assert_eq!(request(&proxied, "/kept", ""), said(200, "MISS", "/kept 1"));
    assert!(wait::until(wait::TIMEOUT, || is_stored() == 2));
    assert_eq!(request(&proxied, "/kept", ""), said(200, "HIT", "/kept 1"));
    // A response without freshness information may not be stored.
    assert_eq!(request(&proxied, "/other", ""), said(200, "MISS", "/other 2"));
    assert_eq!(request(&proxied, "/other", ""), said(200, "MISS", "/other 3"));
    assert_eq!(request(&proxied, "/kept", "Authorization: Basic eDp5\r\n"), said(200, "BYPASS", "/kept 4"));
    // The log has the cache status, and the reason why a response is not stored.
    for line in [" MISS (no-validity) ", " BYPASS (no-cache-set) "] {
        let is_said = || proxied.printed().lines().any(|said| said.contains(line));
        assert!(wait::until(wait::TIMEOUT, is_said), "{line}: {}", proxied.printed());
    }
    let line = " HIT -";
    assert!(wait::until(wait::TIMEOUT, || proxied.printed().lines().any(|said| said.ends_with(line))));
    // The server fails from now on.
    let is_stale = || request(&proxied, "/short", "") == said(200, "STALE", "/short 0");
    assert!(wait::until(wait::TIMEOUT, is_stale), "{:?}", request(&proxied, "/short", ""));
    proxied.end();

    let proxied = Proxied::start(&words);
    let before = request_count.load(SeqCst);
    assert_eq!(request(&proxied, "/kept", ""), said(200, "HIT", "/kept 1"));
    assert_eq!(request_count.load(SeqCst), before);
    let output = Command::new(env!("CARGO_BIN_EXE_tailwater")).arg("proxy").args(words).output().unwrap();
    let refused = String::from_utf8_lossy(&output.stderr);
    let expected =
        format!("another process (pid {}) has its cache in \"{}\"", proxied.group.pid(), cache.display());
    assert!(output.status.code() == Some(1) && refused.contains(&expected), "{refused}");
    assert_eq!(proxied.end(), "");
}

#[test]
fn ctrl_c_finishes_requests() {
    let (go, wait_for_it) = channel::<()>();
    let wait_for_it = Arc::new(Mutex::new(wait_for_it));
    let origin = origin(move |mut conn| {
        if conn.head().is_some() {
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc");
            let _ = wait_for_it.lock().map(|go| go.recv());
            conn.send("def");
        }
    });
    let mut proxied = Proxied::start(&[&origin.to_string()]);
    let mut client = Client::connect(proxied.addr()).unwrap();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    client.read_head().unwrap();
    // Bytes that have arrived are passed on at once.
    assert_eq!(client.read_bytes(3).unwrap(), b"abc");
    proxied.group.signal(Signal::INT).unwrap();
    assert!(wait::until(wait::TIMEOUT, || Client::connect(proxied.addr()).is_err()), "nobody new is served");
    assert!(!proxied.group.ended());
    go.send(()).unwrap();
    assert_eq!(client.read_bytes(3).unwrap(), b"def");
    assert_eq!(proxied.group.wait(wait::TIMEOUT).unwrap().code(), Some(0));
}

#[test]
fn unusable_arguments_are_refused_with_their_reason() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let none = unused_addr().to_string();
    for (words, expected) in [
        (vec![], "tailwater: no URL: where are the requests to go?".to_owned()),
        (
            vec!["https://localhost:3000", "http://localhost:3001"],
            "tailwater: [emerg] https://localhost:3000 and http://localhost:3001 are two protocols".to_owned(),
        ),
        (
            vec!["http://localhost:3000/app"],
            "tailwater: [emerg] \"http://localhost:3000/app\" has a path: requests are passed on with the paths they \
             come with"
                .to_owned(),
        ),
        (vec!["localhost:x"], "tailwater: [emerg] invalid port in \"localhost:x\"".to_owned()),
        (vec!["http://"], "tailwater: [emerg] no host in \"http://\"".to_owned()),
        (
            vec![&none, "--listen", &none],
            format!("tailwater: [emerg] \"--listen {none}\" is where the requests are to go"),
        ),
        (vec![&none, "--listen", &taken], format!("tailwater: [emerg] another process listens on {taken}")),
        (
            vec!["1", "--cache", "/dev/null"],
            "tailwater: [emerg] mkdir() \"/dev/null\" failed (17: File exists)".to_owned(),
        ),
        (vec!["1", "--cache-size", "1g"], "tailwater: [emerg] \"--cache-size\" without \"--cache\"".to_owned()),
        (vec!["1", "--timeout", "soon"], "tailwater: [emerg] invalid time in \"--timeout soon\"".to_owned()),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_tailwater")).arg("proxy").args(&words).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let has = said.lines().any(|line| line == expected);
        assert!(output.status.code() == Some(1) && has, "{words:?}: {said}");
    }
}
