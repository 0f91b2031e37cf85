//! Request smuggling: forwarded bytes are read by a strict reader and by two lenient ones, and all find the same
//! requests.

mod lenient;
mod recorder;
mod strict;
mod table;

use std::io::Read;
use std::net::SocketAddr;
use std::thread;

use tw_testkit::{Random, Server};

use crate::support::origin::mirror;
use crate::support::{server, start};
use lenient::Habit;
use recorder::Recorder;
use tw_testkit::origin::origin;

/// Number of servers, each with an origin of its own, that run at the same time.
const LANES: usize = 8;
/// Number of random requests.
const RANDOM_COUNT: usize = 1000;
const SEED: u64 = 20_261_122;

/// A request as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ObservedRequest {
    method: String,
    target: String,
    host: String,
    body: Vec<u8>,
}

/// End of a connection behind its last complete request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum End {
    #[default]
    Nothing,
    /// The beginning of another one.
    Short,
    /// Text that this reader cannot parse.
    Wrong(String),
}

/// Requests that a reader finds on a connection, and its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Reading {
    requests: Vec<ObservedRequest>,
    end: End,
}

impl ObservedRequest {
    fn text(&self) -> String {
        let Self { method, target, host, body } = self;
        format!("{method} {target} {host} {}", String::from_utf8_lossy(body))
    }
}

/// Server between a client and a recorder.
struct Lane<'a> {
    server: &'a Server,
    nth: usize,
    origin: &'a Recorder,
}

impl Lane<'_> {
    /// Sends `bytes` on a connection of their own, and returns the requests that the origin received, on which all
    /// readers agree.
    fn pass(&self, bytes: &[u8]) -> Result<Vec<ObservedRequest>, String> {
        let mut client = tw_testkit::Client::connect(self.server.addr_of(self.nth)).unwrap();
        // A client that is refused early cannot send all bytes.
        let _ = client.send(bytes);
        let _ = client.read_until_close();
        // Once the client has closed its connection, the server waits for no more of the request.
        drop(client);
        let mut all = Vec::new();
        for got in self.origin.take() {
            let reading = strict::read(&got);
            let shown = got.escape_ascii();
            if matches!(reading.end, End::Wrong(_)) {
                return Err(format!("not strict: {shown}: {reading:?}"));
            }
            for habit in [Habit::Length, Habit::Coding] {
                let other = lenient::read(&got, habit);
                if other != reading {
                    return Err(format!("{shown}: {reading:?}, but for {habit:?} {other:?}"));
                }
            }
            all.extend(reading.requests);
        }
        Ok(all)
    }
}

/// A server for each lane; half of them pass bodies on as they come.
fn lanes(more: &str) -> (Server, Vec<Recorder>) {
    let (recorders, origins): (Vec<_>, Vec<_>) = (0..LANES).map(|_| Recorder::start()).unzip();
    let servers = origins.iter().enumerate().map(|(nth, origin)| {
        let buffering = if nth % 2 == 0 { "on" } else { "off" };
        format!(
            "server {{ listen 127.0.0.1:{{port{nth}}}; proxy_request_buffering {buffering};
                 location / {{ proxy_pass http://{origin}; proxy_set_header Host $host;
                     proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $http_connection; }} }}"
        )
    });
    // A client that sends nothing for that long has sent everything.
    let times = "client_header_timeout 200ms; client_body_timeout 200ms; keepalive_timeout 50ms;";
    let http = format!("{times} {more} {}", servers.collect::<String>());
    (start(server(), &http), recorders)
}

/// Runs `test` on every lane at the same time, and says what went wrong.
fn on_all_lanes(more: &str, test: impl Fn(&Lane<'_>) -> Vec<String> + Sync) {
    let (server, recorders) = lanes(more);
    let wrong: Vec<String> = thread::scope(|scope| {
        let lanes = recorders.iter().enumerate().map(|(nth, origin)| Lane { server: &server, nth, origin });
        let threads: Vec<_> = lanes.map(|lane| scope.spawn(|| test(&{ lane }))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn known_smuggling_variants_are_read_alike_by_all_readers() {
    let rows = table::rows();
    on_all_lanes("", |lane| {
        // Each row passes a server that buffers bodies and one that does not.
        let mine = rows.iter().skip(lane.nth / 2).step_by(LANES / 2);
        mine.filter_map(|(name, sent, expected)| match lane.pass(sent.as_bytes()) {
            Ok(observed_requests) => {
                let seen_values: Vec<_> = observed_requests.iter().map(ObservedRequest::text).collect();
                (seen_values != *expected).then(|| format!("{name}: {seen_values:?} instead of {expected:?}"))
            }
            Err(wrong) => Some(format!("{name}: {wrong}")),
        })
        .collect()
    });
}

/// A server that forwards every `Upgrade`.
fn upgrading(origin: SocketAddr) -> Server {
    start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; proxy_request_buffering off;
                 location / {{ proxy_pass http://{origin}; proxy_set_header Upgrade $http_upgrade;
                     proxy_set_header Connection upgrade; }} }}"
        ),
    )
}

#[test]
fn connection_fields_are_not_forwarded() {
    let server = upgrading(mirror());
    for (fields, passed, rest) in [
        ("Connection: X-Hop, close\r\nX-Hop: 1\r\nx-hop: 2\r\nX-Hops: 3", "X-Hops: 3", "X-Hop:"),
        ("Connection: Cookie\r\nCookie: a", "Cookie: a", "Close"),
        ("Connection: X-A\r\nConnection: keep-alive,\tx-b\r\nX-A: 1\r\nX-B: 2", "Host: ", "X-"),
        (
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM",
            "Connection: upgrade",
            "h2c",
        ),
        ("Connection: Upgrade\r\nUpgrade: websocket, H2C", "Connection: upgrade", "Upgrade:"),
        ("Connection: Upgrade\r\nUpgrade: tls/1.2", "Connection: upgrade", "tls"),
        ("Connection: Upgrade\r\nUpgrade: websocket", "Upgrade: websocket", "h2c"),
    ] {
        let mut client = server.connect().unwrap();
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n")).unwrap();
        let text = client.read_response().unwrap().text();
        assert!(text.contains(passed) && !text.contains(rest), "{fields}: {text}");
    }
}

#[test]
fn unrequested_upgrade_opens_no_tunnel() {
    let wish = "Host: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
    for (chosen, rest, status) in [
        ("websocket", "\r\n", 101),
        ("websocket", "Content-Length: 5\r\n\r\nhello", 101),
        ("h2c", "\r\n", 502),
        ("websocket, TLS/1.0", "\r\n", 502),
        ("websocket", "Content-Length: 50\r\n\r\nhello", 502),
        ("websocket", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", 502),
    ] {
        let said =
            format!("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: {chosen}\r\n\r\n");
        let server = upgrading(origin(move |mut conn| {
            let _ = conn.head();
            let mut some = [0; 5];
            if rest.len() > 2 {
                conn.reader.read_exact(&mut some).unwrap();
            }
            conn.send(&said);
            // The origin sends back what comes through the tunnel.
            let mut all = Vec::new();
            let _ = conn.reader.read_to_end(&mut all);
            conn.send(all);
        }));
        let mut client = server.connect().unwrap();
        let early = if status == 101 { "early" } else { "" };
        client.send(format!("POST / HTTP/1.1\r\n{wish}{rest}{early}")).unwrap();
        assert_eq!(client.read_head().unwrap().status, status, "{chosen} {rest:?}");
        if status == 101 {
            client.finish_sending().unwrap();
            assert_eq!(client.read_until_close().unwrap(), b"early", "{chosen} {rest:?}");
        }
    }
}

/// Pieces of requests, most of them valid, so that some combinations are accepted.
const STARTS: &[&str] = &[
    "DELETE /1 HTTP/1.1",
    "POST /1 HTTP/1.1",
    "GET /1 HTTP/1.1",
    "POST /1 HTTP/1.0",
    "PUT /1?x=%0d%0a HTTP/1.1",
    "HEAD /1 HTTP/1.1",
];
const FIELDS: &[&str] = &[
    "Content-Length: 5",
    "Content-Length: 33",
    "content-length:5",
    "Content-Length: 0",
    "Transfer-Encoding: chunked",
    "transfer-encoding:chunked",
    "Transfer-Encoding: identity",
    "Transfer-Encoding\u{b}: chunked",
    "X: y\rTransfer-Encoding: chunked",
    " folded: 1",
    "\tContent-Length: 5",
    "X",
    "X: \u{b}",
    "X: \u{e9}\u{7f}",
    ": x",
    "Connection: close",
    "Connection: Content-Length, X-Hop",
    "Connection: Upgrade",
    "Upgrade: h2c",
    "X-Hop: 1",
    "Expect: 100-continue",
    "Trailer: Content-Length",
    "TE: trailers",
    "Cookie: a=b",
    "X!#$%&'*+.^`|~: 1",
];
const ENDS: &[&str] = &["\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r\r\n", "\r"];
const BODIES: &[&str] = &[
    "",
    "hello",
    "5\r\nhello\r\n0\r\n\r\n",
    "5\nhello\n0\n\n",
    "5;x\r\nhello\r\n0\r\nX: y\r\n\r\n",
    "0\r\n\r\n",
    "21\r\nGET /marker HTTP/1.1\r\nHost: a\r\n\r\n\r\n0\r\n\r\n",
];

/// A random request followed by the marker.
fn put_together(random: &mut Random) -> String {
    let mut text = String::new();
    let usual = "\r\n";
    let end = |random: &mut Random| if random.happens(90) { usual } else { random.one_of(ENDS) };
    text.push_str(random.one_of(STARTS));
    text.push_str(end(random));
    text.push_str("Host: a");
    text.push_str(end(random));
    for _ in 0..random.below(4) {
        text.push_str(random.one_of(FIELDS));
        text.push_str(end(random));
    }
    text.push_str(end(random));
    text.push_str(random.one_of(BODIES));
    text + table::MARKER
}

/// Requests that all lenient readers find in the sent text; `None` if they do not agree.
fn unambiguous(sent: &str) -> Option<Vec<ObservedRequest>> {
    let [one, other] = [Habit::Length, Habit::Coding].map(|habit| lenient::read(sent.as_bytes(), habit));
    (one.requests == other.requests).then_some(one.requests)
}

#[test]
fn random_variants_are_read_alike_by_all_readers() {
    for more in ["", "ignore_invalid_headers off;"] {
        on_all_lanes(more, |lane| {
            let mut random = Random::new(SEED + lane.nth as u64);
            let sent = std::iter::repeat_with(|| put_together(&mut random)).take(RANDOM_COUNT / LANES / 2);
            sent.filter_map(|sent| {
                let shown = sent.escape_debug();
                let observed_requests = match lane.pass(sent.as_bytes()) {
                    Ok(observed_requests) => observed_requests,
                    Err(wrong) => return Some(format!("{shown}: {wrong}")),
                };
                let has_marker =
                    observed_requests.iter().any(|observed_request| observed_request.target == "/marker");
                let is_right = match unambiguous(&sent) {
                    Some(requests) => requests.starts_with(&observed_requests),
                    None => !has_marker,
                };
                (!is_right).then(|| format!("{shown}: {observed_requests:?}"))
            })
            .collect()
        });
    }
}
