//! Faults of servers behind `grpc_pass`: timeouts, floods, invalid frames and lengths. Each is logged, and affects only
//! its own stream or connection.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use h2::server::Builder as Settings;
use tw_testkit::http2::{END_HEADERS, END_STREAM, frame, head, hpack, kind};
use tw_testkit::http2_origin::{frames_origin, http2_origin};
use tw_testkit::wait;

use super::grpc::{CANCEL, INTERNAL_ERROR, PATH, call, start_grpc, start_grpc_to};
use crate::support::http2::connect;

const PUSH_PROMISE: u8 = 5;

#[test]
fn grpc_timeouts_are_kept() {
    let (sender, receiver) = channel();
    // Frame by frame: the connection may have ended before it is looked at.
    let addr = frames_origin(move |mut frames, _| {
        let Ok(Some(request)) = frames.wait(kind::HEADERS) else { return };
        let Ok(Some(reset)) = frames.wait(kind::RST_STREAM) else { return };
        let _ = sender.send((reset.stream == request.stream, reset.code()));
    });
    let server = start_grpc_to(addr, "grpc_read_timeout 100ms;");
    let mut client = connect(&server);
    assert_eq!(call(&mut client, b"a").unwrap().status, 504);
    server
        .wait_error_log("upstream timed out (110: Connection timed out) while reading response header")
        .unwrap();
    assert_eq!(
        receiver.recv_timeout(wait::TIMEOUT),
        Ok((true, Some(CANCEL))),
        "it is told that nobody waits"
    );
}

#[test]
fn grpc_send_timeout_ends_a_closed_window() {
    let mut settings = Settings::new();
    settings.initial_window_size(0);
    let addr = http2_origin(settings, |request| async move {
        let _kept = request;
        std::future::pending::<()>().await;
    });
    let server = start_grpc_to(addr, "grpc_send_timeout 100ms;");
    let mut client = connect(&server);
    let message = vec![0; 100_000];
    let status = client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (response, mut body) = requests.send_request(head("POST", PATH, &[]), false).unwrap();
        body.send_data(message.into(), true).unwrap();
        response.await.unwrap().status()
    });
    assert_eq!(status, 504);
    server.wait_error_log("upstream timed out (110: Connection timed out) while sending request").unwrap();
}

/// An origin that answers the first request of each connection with these bytes, and reads on.
fn answering(bytes: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    frames_origin(move |mut frames, _| {
        let Ok(Some(request)) = frames.wait(kind::HEADERS) else { return };
        // The server may close the connection before it has taken all bytes.
        let _ = frames.send(bytes(request.stream));
        while let Ok(Some(_)) = frames.next_frame() {}
    })
}

/// Bytes that the server sends in response to the request on a stream.
type Said = Box<dyn Fn(u32) -> Vec<u8> + Send + Sync>;

#[test]
fn protocol_errors_are_502() {
    let reading = "while reading response header from upstream";
    let cases: [(&str, Said, &str); 17] = [
        (
            "a head beyond the buffer",
            Box::new(|stream| {
                let long = "x".repeat(5000);
                let block = hpack(&[(":status", "200"), ("x-long", &long)]);
                frame(kind::HEADERS, END_HEADERS, stream, &block)
            }),
            "upstream sent too big header",
        ),
        (
            "a head that is not kept until its end",
            Box::new(|stream| {
                let long = "x".repeat(12_000);
                let block = hpack(&[(":status", "200"), ("x-long", &long)]);
                frame(kind::HEADERS, END_HEADERS, stream, &block)
            }),
            "upstream sent too big header",
        ),
        (
            "CONTINUATION without end",
            Box::new(|stream| {
                let mut bytes = frame(kind::HEADERS, 0, stream, &hpack(&[(":status", "200")]));
                for _ in 0..10_000 {
                    bytes.extend(frame(kind::CONTINUATION, 0, stream, &hpack(&[("a", "b")])));
                }
                bytes
            }),
            "upstream sent too large header block",
        ),
        (
            "CONTINUATION of nothing",
            Box::new(|stream| {
                let mut bytes = frame(kind::HEADERS, 0, stream, &hpack(&[(":status", "200")]));
                bytes.extend((0..200_000).flat_map(|_| frame(kind::CONTINUATION, 0, stream, b"")));
                bytes
            }),
            "upstream sent too many frames without content",
        ),
        (
            "pings without end",
            Box::new(|_| (0..200_000).flat_map(|_| frame(kind::PING, 0, 0, &[0; 8])).collect()),
            "upstream sent too many frames without content",
        ),
        (
            "content before a head",
            Box::new(|stream| frame(kind::DATA, END_STREAM, stream, b"a")),
            "upstream sent unexpected http2 frame",
        ),
        (
            "a header block that is none",
            Box::new(|stream| frame(kind::HEADERS, END_HEADERS, stream, &[0x80])),
            "upstream sent invalid hpack table index 0",
        ),
        (
            "a head without a status",
            Box::new(|stream| frame(kind::HEADERS, END_HEADERS, stream, &hpack(&[("a", "b")]))),
            "upstream sent no :status header",
        ),
        (
            "a status that is none",
            Box::new(|stream| frame(kind::HEADERS, END_HEADERS, stream, &hpack(&[(":status", "2000")]))),
            "upstream sent invalid :status header",
        ),
        (
            "another protocol",
            Box::new(|stream| frame(kind::HEADERS, END_HEADERS, stream, &hpack(&[(":status", "101")]))),
            "upstream sent unexpected :status \"101\"",
        ),
        (
            "nothing but a head in front of the response",
            Box::new(|stream| {
                frame(kind::HEADERS, END_STREAM | END_HEADERS, stream, &hpack(&[(":status", "103")]))
            }),
            "upstream prematurely closed stream",
        ),
        (
            "a value with a line end",
            Box::new(|stream| {
                frame(kind::HEADERS, END_HEADERS, stream, &hpack(&[(":status", "200"), ("a", "b\nc")]))
            }),
            "upstream sent header with invalid value",
        ),
        (
            "a length that is none",
            Box::new(|stream| {
                let fields = [(":status", "200"), ("content-length", "+5")];
                frame(kind::HEADERS, END_HEADERS, stream, &hpack(&fields))
            }),
            "upstream sent invalid \"Content-Length\" header: \"content-length: +5\"",
        ),
        (
            "two lengths",
            Box::new(|stream| {
                let fields = [(":status", "200"), ("content-length", "5"), ("content-length", "6")];
                frame(kind::HEADERS, END_HEADERS, stream, &hpack(&fields))
            }),
            "upstream sent duplicate header line: \"content-length: 6\", previous value: \"content-length: 5\"",
        ),
        (
            "a length of nothing",
            Box::new(|stream| {
                let fields = [(":status", "200"), ("content-length", "5")];
                frame(kind::HEADERS, END_STREAM | END_HEADERS, stream, &hpack(&fields))
            }),
            "upstream prematurely closed stream",
        ),
        (
            "settings of an odd length",
            Box::new(|_| frame(kind::SETTINGS, 0, 0, &[0; 5])),
            "upstream sent SETTINGS frame with incorrect length",
        ),
        (
            "a stream that is pushed",
            Box::new(|stream| frame(PUSH_PROMISE, END_HEADERS, stream, &[0, 0, 0, 2])),
            "upstream sent PUSH_PROMISE frame",
        ),
    ];
    for (what, bytes, line) in cases {
        let server = start_grpc_to(answering(bytes), "grpc_buffer_size 4k;");
        assert_eq!(call(&mut connect(&server), b"a").unwrap().status, 502, "{what}: {}", server.error_log());
        let log = server.wait_error_log(&format!("{line} {reading}"));
        assert!(log.is_ok(), "{what}: {}", server.error_log());
    }
}

#[test]
fn complete_response_is_kept_despite_later_errors() {
    let head =
        |stream, flags| frame(kind::HEADERS, END_HEADERS | flags, stream, &hpack(&[(":status", "200")]));
    let trailers =
        |stream| frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &hpack(&[("grpc-status", "0")]));
    for code in [0, INTERNAL_ERROR, CANCEL] {
        let reset = move |stream| frame(kind::RST_STREAM, 0, stream, &code.to_be_bytes());
        let cases: [(Said, &str); 3] = [
            (Box::new(move |stream| [head(stream, END_STREAM), reset(stream)].concat()), ""),
            (
                Box::new(move |stream| {
                    let data = frame(kind::DATA, END_STREAM, stream, b"fine");
                    [head(stream, 0), data, reset(stream), reset(stream)].concat()
                }),
                "fine",
            ),
            (
                Box::new(move |stream| {
                    let data = frame(kind::DATA, 0, stream, b"fine");
                    [head(stream, 0), data, trailers(stream), reset(stream)].concat()
                }),
                "fine",
            ),
        ];
        for (said, expected) in cases {
            let server = start_grpc_to(answering(said), "");
            let answer = call(&mut connect(&server), b"a").unwrap();
            assert_eq!((answer.status, answer.text().as_str()), (200, expected), "{code}");
            assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
        }
    }
}

#[test]
fn frame_as_large_as_the_window_is_accepted() {
    let content: Vec<u8> = (0..100_000_u32).map(|n| (n >> 3) as u8).collect();
    let said = content.clone();
    let server = start_grpc_to(
        answering(move |stream| {
            let head = frame(kind::HEADERS, END_HEADERS, stream, &hpack(&[(":status", "200")]));
            [head, frame(kind::DATA, END_STREAM, stream, &said)].concat()
        }),
        "",
    );
    let answer = call(&mut connect(&server), b"a").unwrap();
    assert!(answer.status == 200 && answer.body == content);
}

#[test]
fn wrong_content_length_is_an_error() {
    let begun = |stream, length| {
        frame(kind::HEADERS, END_HEADERS, stream, &hpack(&[(":status", "200"), ("content-length", length)]))
    };
    let end =
        |stream| frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &hpack(&[("grpc-status", "0")]));
    let cases: [(Said, &str); 3] = [
        (
            Box::new(move |stream| {
                [begun(stream, "42"), frame(kind::DATA, 0, stream, b"hello"), end(stream)].concat()
            }),
            "upstream prematurely closed stream",
        ),
        (
            Box::new(move |stream| {
                [begun(stream, "42"), frame(kind::DATA, END_STREAM, stream, b"")].concat()
            }),
            "upstream prematurely closed stream",
        ),
        (
            Box::new(move |stream| {
                [begun(stream, "4"), frame(kind::DATA, 0, stream, b"hello"), end(stream)].concat()
            }),
            "upstream sent response body larger than indicated content length",
        ),
    ];
    for (said, line) in cases {
        let server = start_grpc_to(answering(said), "");
        // The head was fine, and has left.
        assert!(call(&mut connect(&server), b"a").is_err(), "{line}");
        server.wait_error_log(&format!("{line} while reading upstream")).unwrap();
    }
}

#[test]
fn late_frames_of_reset_streams_are_not_a_flood() {
    const COUNT: usize = 30;
    let addr = frames_origin(|mut frames, nth| {
        while let Ok(Some(request)) = frames.wait(kind::HEADERS) {
            let head = hpack(&[(":status", "404"), ("x-conn", &nth.to_string())]);
            frames.send(frame(kind::HEADERS, END_HEADERS, request.stream, &head)).unwrap();
            // The content arrives after RST_STREAM, as if it had already been in flight.
            let Ok(Some(_)) = frames.wait(kind::RST_STREAM) else { return };
            let content = frame(kind::DATA, 0, request.stream, &[b'x'; 16 << 10]);
            frames.send(content.repeat(7)).unwrap();
        }
    });
    let server = start_grpc(
        &format!("upstream u {{ server {addr}; }}"),
        "location / { grpc_pass u; grpc_intercept_errors on; error_page 404 =200 @page; }
         location @page { return 200 $upstream_http_x_conn; }",
    );
    let mut client = connect(&server);
    for nth in 0..COUNT {
        assert_eq!(
            client.request("POST", PATH, &[], b"").unwrap().text(),
            "0",
            "{nth}: {}",
            server.error_log()
        );
    }
}

#[test]
fn closed_window_stops_reading_the_client() {
    let (go, going) = channel::<()>();
    let going = Mutex::new(going);
    let addr = frames_origin(move |mut frames, _| {
        let Ok(Some(request)) = frames.wait(kind::HEADERS) else { return };
        let room = (1_u32 << 30).to_be_bytes();
        let rooms = [0, request.stream].map(|stream| frame(kind::WINDOW_UPDATE, 0, stream, &room)).concat();
        frames.send(rooms).unwrap();
        // The origin does not read what its windows allow, until the client stops sending.
        let _ = going.lock().unwrap().recv();
    });
    let server = start_grpc_to(addr, "grpc_send_timeout 200ms; client_max_body_size 0;");
    let mut client = connect(&server);
    let (sent, status) = client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (response, mut body) = requests.send_request(head("POST", PATH, &[]), false).unwrap();
        let sending = tokio::spawn(async move {
            let mut sent = 0;
            loop {
                body.reserve_capacity(64 << 10);
                match std::future::poll_fn(|cx| body.poll_capacity(cx)).await {
                    Some(Ok(room)) => sent += room,
                    _ => return sent,
                }
                let room = body.capacity();
                if body.send_data(vec![0; room].into(), false).is_err() {
                    return sent;
                }
            }
        });
        let status = response.await.unwrap().status();
        (sending.await.unwrap(), status)
    });
    assert_eq!(status, 504);
    assert!(sent < 64 << 20, "{sent}");
    drop(go);
    server.wait_error_log("upstream timed out (110: Connection timed out) while sending request").unwrap();
}

#[test]
fn server_without_http2_is_502() {
    let addr = tw_testkit::origin::origin(|mut conn| {
        let _ = conn.head();
        conn.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    });
    let server = start_grpc_to(addr, "");
    assert_eq!(call(&mut connect(&server), b"a").unwrap().status, 502);
}
