//! Requests that turn out to be malformed, or are aborted, after their head: no upstream server sees a complete
//! request, and none is retried.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender};

use tw_testkit::http2::{END_HEADERS, END_STREAM, Frames, frame, hpack, kind};
use tw_testkit::http2_origin::frames_origin;
use tw_testkit::origin::{Conn, origin};
use tw_testkit::{Client, Server, wait};

use crate::support::http2::post_frame;
use crate::support::{server, start};

/// Trailers that make a request malformed, as clients of both versions send them.
const BAD_TRAILERS: [&str; 4] = ["x: a\0b", "x: a\nb", "x\u{7f}: a", "x\0: a"];

/// Report of an upstream server: its language, and what came to it.
type Report = (&'static str, &'static str);

/// An origin that reads one request after the other: `head` returns the framing of the body and reports false if the
/// body was truncated.
fn application(
    name: &'static str,
    sender: &Sender<Report>,
    head: fn(&mut Conn) -> Option<Body>,
    answer: fn(&mut Conn),
) -> SocketAddr {
    let sender = sender.clone();
    origin(move |mut conn| {
        while let Some(body) = head(&mut conn) {
            let _ = sender.send((name, "asked"));
            let is_whole = match body {
                Body::Length(length) => conn.exactly(length).is_some(),
                Body::Chunked => has_all_chunks(&mut conn),
                Body::Records => conn.fastcgi_body().is_some(),
            };
            let _ = sender.send((name, if is_whole { "ended" } else { "taken back" }));
            if !is_whole {
                return;
            }
            answer(&mut conn);
        }
    })
}

/// Framing of a request's body.
enum Body {
    Length(usize),
    Chunked,
    Records,
}

/// Returns true if a chunked body comes to its end.
fn has_all_chunks(conn: &mut Conn) -> bool {
    loop {
        let mut line = String::new();
        if io::BufRead::read_line(&mut conn.reader, &mut line).is_err() {
            return false;
        }
        match usize::from_str_radix(line.trim_end(), 16) {
            Ok(0) => return conn.exactly(2).is_some(),
            Ok(size) if conn.exactly(size + 2).is_some() => {}
            _ => return false,
        }
    }
}

fn http_head(conn: &mut Conn) -> Option<Body> {
    let head = conn.head()?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    Some(length.map_or(Body::Chunked, |length| Body::Length(length.parse().unwrap())))
}

/// An HTTP/2 origin that reports the same.
fn carried(sender: &Sender<Report>) -> SocketAddr {
    let sender = sender.clone();
    frames_origin(move |mut frames, _| {
        while let Ok(Some(came)) = frames.next_frame() {
            if came.kind == kind::HEADERS {
                let _ = sender.send(("carried", "asked"));
            }
            let has_content = matches!(came.kind, kind::DATA | kind::HEADERS);
            if has_content && came.flags & END_STREAM != 0 {
                let _ = sender.send(("carried", "ended"));
                // :status 200
                let _ = frames.send(frame(kind::HEADERS, END_STREAM | END_HEADERS, came.stream, &[0x88]));
            }
            if came.kind == kind::RST_STREAM {
                let _ = sender.send(("carried", "taken back"));
            }
        }
    })
}

/// A server in front of an origin of each gateway, with and without buffered bodies.
struct Site {
    server: Server,
    receiver: Receiver<Report>,
}

/// Path, origin, and true if the origin needs the length of a body.
const PLACES: [(&str, &str, bool); 7] = [
    ("plain", "plain", false),
    ("cached", "plain", false),
    ("carried", "carried", false),
    ("grpc", "carried", false),
    ("fastcgi", "fastcgi", false),
    ("uwsgi", "uwsgi", true),
    ("scgi", "scgi", true),
];

fn site() -> Site {
    let (sender, receiver) = mpsc::channel();
    let ok = |conn: &mut Conn| conn.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let http = |conn: &mut Conn| conn.answer("", "");
    let servers = [
        ("plain", application("plain", &sender, http_head, http)),
        ("carried", carried(&sender)),
        (
            "fastcgi",
            application(
                "fastcgi",
                &sender,
                |conn| conn.fastcgi_head().map(|_| Body::Records),
                |conn| conn.answer_fastcgi("Status: 200\r\n\r\n"),
            ),
        ),
        (
            "uwsgi",
            application("uwsgi", &sender, |conn| Some(Body::Length(conn.uwsgi_head()?.content_length())), ok),
        ),
        (
            "scgi",
            application("scgi", &sender, |conn| Some(Body::Length(conn.scgi_head()?.content_length())), ok),
        ),
    ];
    let groups: String = servers
        .iter()
        .map(|(name, addr)| {
            format!("upstream {name} {{ server {addr}; server {addr}; server {addr} backup; }}\n")
        })
        .collect();
    let next = "error timeout invalid_header http_500 http_503";
    let mut conf = format!(
        "{groups} proxy_cache_path cache keys_zone=z:1m; fastcgi_param CONTENT_LENGTH $content_length;
         uwsgi_param CONTENT_LENGTH $content_length; scgi_param CONTENT_LENGTH $content_length;
         proxy_next_upstream {next} non_idempotent; fastcgi_next_upstream {next} non_idempotent;
         uwsgi_next_upstream {next} non_idempotent; scgi_next_upstream {next} non_idempotent;
         grpc_next_upstream {next} non_idempotent; fastcgi_keep_conn on;
         server {{ listen 127.0.0.1:{{port}}; http2 on;\n"
    );
    for (prefix, switch) in [("", "on"), ("/off", "off")] {
        conf += &format!(
            "location {prefix}/plain {{ proxy_pass http://plain; proxy_request_buffering {switch}; }}
             location {prefix}/cached {{ proxy_pass http://plain; proxy_request_buffering {switch};
               proxy_cache z; proxy_cache_methods POST; proxy_cache_key $request_id; proxy_cache_valid 1m; }}
             location {prefix}/carried {{ proxy_pass http://carried; proxy_http_version 2; proxy_request_buffering {switch}; }}
             location {prefix}/fastcgi {{ fastcgi_pass fastcgi; fastcgi_request_buffering {switch}; }}
             location {prefix}/uwsgi {{ uwsgi_pass uwsgi; uwsgi_request_buffering {switch}; }}
             location {prefix}/scgi {{ scgi_pass scgi; scgi_request_buffering {switch}; }}\n"
        );
    }
    conf += "location /off/grpc { grpc_pass carried; } }";
    Site { server: start(server(), &conf), receiver }
}

impl Site {
    /// Next report of an origin.
    fn next(&self, what: &str) -> Report {
        let next = self.receiver.recv_timeout(wait::TIMEOUT);
        next.unwrap_or_else(|error| panic!("{what}: {error}: {}", self.server.error_log()))
    }

    /// Sends a valid request, and checks that nothing was reported before it.
    fn is_quiet(&self, path: &str, to: &'static str, what: &str) {
        let mut client = self.server.connect().unwrap();
        client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok")).unwrap();
        assert_eq!(client.read_response().unwrap().status, 200, "after {what}: {}", self.server.error_log());
        for expected in ["asked", "ended"] {
            assert_eq!(self.next(what), (to, expected), "after {what}");
        }
    }

    /// Sends a request by `client` to every path: it becomes malformed, or is aborted, after its beginning.
    fn check<C>(
        &self,
        case: &str,
        is_chunked: bool,
        client: impl Fn(&Server, &str) -> C,
        end: impl Fn(C) -> Option<u16>,
    ) {
        for (name, to, needs_length) in PLACES {
            for prefix in ["", "/off"] {
                let path = format!("{prefix}/{name}");
                if path == "/grpc" {
                    continue;
                }
                let what = format!("{path}: {case}");
                let client = client(&self.server, &path);
                let is_kept = prefix.is_empty() || needs_length && is_chunked;
                if !is_kept {
                    assert_eq!(self.next(&what), (to, "asked"), "{what}");
                }
                if let Some(status) = end(client) {
                    assert_eq!(status, 400, "{what}");
                }
                if !is_kept {
                    assert_eq!(self.next(&what), (to, "taken back"), "{what}");
                }
                self.is_quiet(&path, to, &what);
            }
        }
    }

    /// Ends the server and checks that nothing more was reported.
    fn end(self) {
        let Self { server, receiver } = self;
        assert_eq!(server.error_log().matches("[error]").count(), 0, "{}", server.error_log());
        drop(server);
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [], "nobody else was asked");
    }
}

fn begin_http1(server: &Server, path: &str, fields: &str, content: &str) -> Client {
    let mut client = server.connect().unwrap();
    client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n{content}")).unwrap();
    client
}

#[test]
fn malformed_http1_body_is_aborted_and_not_retried() {
    let site = site();
    let chunked = |server: &Server, path: &str| {
        begin_http1(server, path, "Transfer-Encoding: chunked\r\n", "7\r\ncontent\r\n")
    };
    let mut tails: Vec<String> = BAD_TRAILERS.iter().map(|line| format!("0\r\n{line}\r\n\r\n")).collect();
    for tail in
        ["zz\r\n", "5\r\nhelloX\r\n", "ffffffffffffffffff\r\n", "5;\0\r\nhello\r\n0\r\n\r\n", "-1\r\n"]
    {
        tails.push(tail.to_owned());
    }
    for tail in tails {
        site.check(&format!("{tail:?}"), true, chunked, |mut client| {
            client.send(&tail).unwrap();
            Some(client.read_response().unwrap().status)
        });
    }
    for tail in ["", "5\r\nhe", "0\r\n", "0\r\nx: y\r\n"] {
        site.check(&format!("{tail:?} and the end"), true, chunked, |mut client| {
            client.send(tail).unwrap();
            None
        });
    }
    let announced =
        |server: &Server, path: &str| begin_http1(server, path, "Content-Length: 20\r\n", "content");
    site.check("half of it and the end", false, announced, |client| {
        drop(client);
        None
    });
    site.check("half of it and no more", false, announced, |client| {
        client.finish_sending().unwrap();
        None
    });
    site.end();
}

fn begin_http2(server: &Server, path: &str, fields: &[(&str, &str)]) -> Frames {
    let mut frames = Frames::connect(server.addr()).unwrap();
    frames.send(post_frame(1, path, fields)).unwrap();
    frames.send(frame(kind::DATA, 0, 1, b"content")).unwrap();
    // The acknowledged PING shows that both frames were processed.
    frames.send(frame(kind::PING, 0, 0, &[0; 8])).unwrap();
    while frames.wait(kind::PING).unwrap().unwrap().flags == 0 {}
    frames
}

/// The status of a response whose head is of one byte.
fn status(frames: &mut Frames) -> Option<u16> {
    match frames.wait(kind::HEADERS).unwrap().map(|head| head.payload[0]) {
        Some(0x8c) => Some(400),
        _ => Some(0),
    }
}

#[test]
fn malformed_http2_body_is_aborted_and_not_retried() {
    let site = site();
    let trailers = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        frame(kind::HEADERS, END_STREAM | END_HEADERS, 1, &hpack(&[(name, value)]))
    };
    for line in BAD_TRAILERS {
        for fields in [&[] as &[_], &[("content-length", "7")]] {
            let begin = |server: &Server, path: &str| begin_http2(server, path, fields);
            site.check(&format!("{line:?} {fields:?}"), fields.is_empty(), begin, |mut frames| {
                frames.send(trailers(line)).unwrap();
                status(&mut frames)
            });
        }
    }
    for (length, end) in [
        ("20", frame(kind::DATA, END_STREAM, 1, b"content")),
        ("20", frame(kind::DATA, END_STREAM, 1, b"")),
        ("20", trailers("x: y")),
        ("9", frame(kind::DATA, END_STREAM, 1, b"content")),
        ("9", frame(kind::DATA, 0, 1, b"content")),
        ("7", frame(kind::DATA, END_STREAM, 1, b"content")),
        ("7", frame(kind::DATA, 0, 1, b"c")),
    ] {
        let begin = |server: &Server, path: &str| begin_http2(server, path, &[("content-length", length)]);
        site.check(&format!("{length} and {end:?}"), false, begin, |mut frames| {
            frames.send(&end).unwrap();
            status(&mut frames)
        });
    }
    for length in [None, Some(("content-length", "20")), Some(("content-length", "7"))] {
        let fields: Vec<_> = length.into_iter().collect();
        let begin = |server: &Server, path: &str| begin_http2(server, path, &fields);
        site.check(&format!("{length:?} and a reset"), length.is_none(), begin, |mut frames| {
            frames.send(frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8])).unwrap();
            None
        });
        site.check(&format!("{length:?} and the end"), length.is_none(), begin, |frames| {
            drop(frames);
            None
        });
    }
    site.end();
}

#[test]
fn malformed_body_after_the_response_head_truncates_the_response() {
    let (sender, receiver) = mpsc::channel();
    let addr = origin(move |mut conn| {
        while conn.head().is_some() {
            conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n");
            let mut rest = Vec::new();
            let _ = conn.reader.read_to_end(&mut rest);
            sender.send(rest.ends_with(b"0\r\n\r\n")).unwrap();
        }
    });
    let server = start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; http2 on; proxy_request_buffering off; location / {{ proxy_pass http://{addr}; }} }}"
        ),
    );
    for tail in ["zz\r\n", "0\r\nx\0: y\r\n\r\n"] {
        let mut client = begin_http1(&server, "/", "Transfer-Encoding: chunked\r\n", "7\r\ncontent\r\n");
        assert_eq!(client.read_head().unwrap().status, 200);
        client.send(tail).unwrap();
        let has_end = receiver.recv_timeout(wait::TIMEOUT);
        assert_eq!(has_end, Ok(false), "{tail:?}: {}", server.error_log());
        let rest = client.read_until_close().unwrap();
        assert!(!rest.ends_with(b"0\r\n\r\n"), "{tail:?}: the response is cut");
    }
    for end in [
        frame(kind::DATA, END_STREAM, 1, b""),
        frame(kind::DATA, 0, 1, &[b'x'; 14]),
        frame(kind::HEADERS, END_STREAM | END_HEADERS, 1, &hpack(&[("x", "a\0")])),
    ] {
        let mut frames = begin_http2(&server, "/", &[("content-length", "20")]);
        assert_eq!(frames.wait(kind::HEADERS).unwrap().unwrap().payload[0], 0x88);
        frames.send(&end).unwrap();
        let reset = frames.wait(kind::RST_STREAM).unwrap().and_then(|reset| reset.code());
        assert_eq!(reset, Some(1), "{end:?}: PROTOCOL_ERROR");
        let has_end = receiver.recv_timeout(wait::TIMEOUT);
        assert_eq!(has_end, Ok(false), "{end:?}: {}", server.error_log());
    }
    assert_eq!(server.error_log().matches("[error]").count(), 0, "{}", server.error_log());
}
