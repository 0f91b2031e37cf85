//! RFC 9113 section by section: invalid bytes from a client and the reaction of the server. docs/conformance.md lists
//! these rules.

use std::io;

use tw_testkit::Server;
use tw_testkit::http2::{END_HEADERS, END_STREAM, Frame, Frames, PREFACE, frame, get, hpack, kind};

use crate::support::{server, start_server};

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const COMPRESSION_ERROR: u32 = 9;

const PUSH_PROMISE: u8 = 5;
const UNKNOWN: u8 = 0xee;
const ACK: u8 = 1;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

/// Reaction of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reaction {
    /// GOAWAY with this code.
    GoAway(u32),
    /// RST_STREAM with this code.
    Reset(u32),
    /// Response with this status.
    Answer(u16),
}
use Reaction::{Answer, GoAway, Reset};

fn start_http2() -> Server {
    start_server(
        server().file("html/a.txt", "hello"),
        "http2 on; location /to { proxy_pass http://127.0.0.1:1; } location /403 { return 403; }",
    )
}

/// First reaction of the server for a stream or the connection. Only the first frame of a head is looked at: its status
/// comes first, from the static table or as a literal.
fn reaction(frames: &mut Frames) -> io::Result<Option<Reaction>> {
    while let Some(frame) = frames.next_frame()? {
        match frame.kind {
            kind::GOAWAY => return Ok(frame.code().map(GoAway)),
            kind::RST_STREAM => return Ok(frame.code().map(Reset)),
            kind::HEADERS => return Ok(status(&frame).map(Answer)),
            _ => {}
        }
    }
    Ok(None)
}

/// `:status` of a head, which is its first field (RFC 7541 appendix A has some of them).
fn status(frame: &Frame) -> Option<u16> {
    let indexed = [(0x88, 200), (0x89, 204), (0x8a, 206), (0x8b, 304), (0x8c, 400), (0x8d, 404), (0x8e, 500)];
    let first = *frame.payload.first()?;
    let known_value = indexed.iter().find(|(byte, _)| *byte == first).map(|(_, status)| *status);
    // Digits in the code of Huffman, or as they are.
    known_value.or_else(|| match frame.payload.get(1)? & 0x80 {
        0 => std::str::from_utf8(frame.payload.get(2..5)?).ok()?.parse().ok(),
        _ => Some(0),
    })
}

fn pseudo(method: &str, path: &str) -> Vec<u8> {
    hpack(&[(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")])
}

/// A request with this field block and no content.
fn head_of(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(kind::HEADERS, END_STREAM | END_HEADERS, 1, &hpack(fields))
}

/// Head of a request whose content follows.
fn post(fields: &[(&str, &str)]) -> Vec<u8> {
    let block = [pseudo("POST", "/to"), hpack(fields)].concat();
    frame(kind::HEADERS, END_HEADERS, 1, &block)
}

/// A request whose stream depends on another one.
fn head_with_dependency(stream: u32, on: u32) -> Vec<u8> {
    let block = [&on.to_be_bytes()[..], &[7], &pseudo("GET", "/a.txt")].concat();
    frame(kind::HEADERS, END_STREAM | END_HEADERS | PRIORITY, stream, &block)
}

fn setting(id: u16, value: u32) -> Vec<u8> {
    frame(kind::SETTINGS, 0, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

fn check(table: &[(&str, Vec<u8>, &[Reaction])]) {
    let server = start_http2();
    let mut wrong = Vec::new();
    for (rule, bytes, expected) in table {
        let mut frames = Frames::connect(server.addr()).unwrap();
        frames.send(bytes).unwrap();
        let reaction_seen = reaction(&mut frames).unwrap();
        if !reaction_seen.is_some_and(|reaction_seen| expected.contains(&reaction_seen)) {
            wrong.push(format!("{rule}: {reaction_seen:?}, expected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let mut neighbour = tw_testkit::http2::Http2::connect(server.addr()).unwrap();
    assert_eq!(neighbour.get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn frame_rules_section_4() {
    let request = get(1, "/a.txt", &[]);
    let large = vec![0; 40_000];
    check(&[
        (
            "4.1 unknown types are passed over",
            [frame(UNKNOWN, 0xff, 0, b"x"), request.clone()].concat(),
            &[Answer(200)],
        ),
        (
            "4.1 unknown flags, too",
            frame(kind::HEADERS, END_STREAM | END_HEADERS | 0x40, 1, &request[9..]),
            &[Answer(200)],
        ),
        (
            "4.1 the reserved bit, too",
            {
                let mut request = request.clone();
                request[5] |= 0x80;
                request
            },
            &[Answer(200)],
        ),
        (
            "4.2 frames are as large as was said",
            [post(&[]), frame(kind::DATA, END_STREAM, 1, &large[..16_384])].concat(),
            &[Answer(502), Answer(0)],
        ),
        (
            "4.2 DATA is not larger",
            [post(&[]), frame(kind::DATA, END_STREAM, 1, &large[..16_385])].concat(),
            &[GoAway(FRAME_SIZE_ERROR), Reset(FRAME_SIZE_ERROR)],
        ),
        ("4.2 nor HEADERS", frame(kind::HEADERS, END_HEADERS, 1, &large), &[GoAway(FRAME_SIZE_ERROR)]),
        ("4.2 nor what is unknown", frame(UNKNOWN, 0, 0, &large), &[GoAway(FRAME_SIZE_ERROR)]),
        (
            "4.3 a block is not broken up",
            [frame(kind::HEADERS, END_STREAM, 1, &request[9..]), frame(kind::PING, 0, 0, &[0; 8])].concat(),
            &[GoAway(PROTOCOL_ERROR)],
        ),
        (
            "5.5 not by what is unknown either",
            [frame(kind::HEADERS, END_STREAM, 1, &request[9..]), frame(UNKNOWN, 0, 0, b"")].concat(),
            &[GoAway(PROTOCOL_ERROR)],
        ),
        (
            "4.3 a block that cannot be read ends the connection",
            frame(kind::HEADERS, END_STREAM | END_HEADERS, 1, &[0x80]),
            &[GoAway(COMPRESSION_ERROR)],
        ),
    ]);
}

#[test]
fn stream_state_rules_section_5() {
    let request = |stream| get(stream, "/a.txt", &[]);
    let reset = |stream| frame(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes());
    check(&[
        ("5.1 idle: no DATA", frame(kind::DATA, 0, 1, b"x"), &[GoAway(PROTOCOL_ERROR)]),
        ("5.1 idle: no RST_STREAM", reset(1), &[GoAway(PROTOCOL_ERROR)]),
        (
            "5.1 idle: no WINDOW_UPDATE",
            frame(kind::WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes()),
            &[GoAway(PROTOCOL_ERROR)],
        ),
        (
            "5.1 idle: no CONTINUATION",
            frame(kind::CONTINUATION, END_HEADERS, 1, &pseudo("GET", "/")),
            &[GoAway(PROTOCOL_ERROR)],
        ),
        ("5.1.1 numbers of clients are odd", request(2), &[GoAway(PROTOCOL_ERROR)]),
        (
            "5.1.1 they grow",
            [
                frame(kind::HEADERS, END_HEADERS, 5, &pseudo("POST", "/to")),
                frame(kind::HEADERS, END_STREAM | END_HEADERS, 3, &pseudo("GET", "/a.txt")),
            ]
            .concat(),
            &[GoAway(PROTOCOL_ERROR), Reset(STREAM_CLOSED), GoAway(STREAM_CLOSED)],
        ),
        (
            "5.3.1 (RFC 7540) a stream does not depend on itself: PRIORITY",
            [post(&[]), frame(kind::PRIORITY, 0, 1, &[0x80, 0, 0, 1, 7])].concat(),
            &[Reset(PROTOCOL_ERROR)],
        ),
        ("nor before it begins", frame(kind::PRIORITY, 0, 3, &[0, 0, 0, 3, 7]), &[GoAway(PROTOCOL_ERROR)]),
        ("nor HEADERS", head_with_dependency(1, 1), &[Reset(PROTOCOL_ERROR)]),
        ("but on any other", head_with_dependency(1, 3), &[Answer(200)]),
        (
            "8.1 a request has one head",
            [request(1), request(1)].concat(),
            &[Answer(200), Reset(STREAM_CLOSED), GoAway(STREAM_CLOSED), GoAway(PROTOCOL_ERROR)],
        ),
    ]);
}

#[test]
fn frame_definition_rules_section_6() {
    let length = |kind, stream, len: usize| frame(kind, 0, stream, &vec![0; len]);
    let padded = |kind, len: u8, rest: &[u8]| frame(kind, PADDED | END_HEADERS, 1, &[&[len], rest].concat());
    check(&[
        ("6.1 DATA is of a stream", frame(kind::DATA, 0, 0, b"x"), &[GoAway(PROTOCOL_ERROR)]),
        (
            "6.1 padding fits into its frame",
            [post(&[]), padded(kind::DATA, 5, b"xxx")].concat(),
            &[GoAway(PROTOCOL_ERROR)],
        ),
        (
            "6.2 HEADERS is of a stream",
            frame(kind::HEADERS, END_HEADERS, 0, &pseudo("GET", "/")),
            &[GoAway(PROTOCOL_ERROR)],
        ),
        (
            "6.2 padding fits into its frame",
            padded(kind::HEADERS, 200, &pseudo("GET", "/")),
            &[GoAway(PROTOCOL_ERROR)],
        ),
        (
            "6.2 padding is no field",
            padded(kind::HEADERS, 3, &[&pseudo("GET", "/403")[..], &[0; 3]].concat()),
            &[Answer(0), Answer(403)],
        ),
        ("6.3 PRIORITY is of a stream", length(kind::PRIORITY, 0, 5), &[GoAway(PROTOCOL_ERROR)]),
        (
            "6.3 PRIORITY has five bytes",
            length(kind::PRIORITY, 1, 4),
            &[GoAway(FRAME_SIZE_ERROR), Reset(FRAME_SIZE_ERROR), GoAway(PROTOCOL_ERROR)],
        ),
        ("6.4 RST_STREAM is of a stream", length(kind::RST_STREAM, 0, 4), &[GoAway(PROTOCOL_ERROR)]),
        (
            "6.4 RST_STREAM has four bytes",
            [post(&[]), length(kind::RST_STREAM, 1, 3)].concat(),
            &[GoAway(FRAME_SIZE_ERROR), GoAway(PROTOCOL_ERROR)],
        ),
        ("6.5 SETTINGS is of the connection", length(kind::SETTINGS, 1, 0), &[GoAway(PROTOCOL_ERROR)]),
        (
            "6.5 SETTINGS has sixes",
            length(kind::SETTINGS, 0, 5),
            &[GoAway(FRAME_SIZE_ERROR), GoAway(PROTOCOL_ERROR)],
        ),
        (
            "6.5 an acknowledgement says nothing",
            frame(kind::SETTINGS, ACK, 0, &[0; 6]),
            &[GoAway(FRAME_SIZE_ERROR), GoAway(PROTOCOL_ERROR)],
        ),
        ("6.5.2 ENABLE_PUSH is 0 or 1", setting(2, 2), &[GoAway(PROTOCOL_ERROR)]),
        (
            "6.5.2 windows have a largest size",
            setting(4, 1 << 31),
            &[GoAway(FLOW_CONTROL_ERROR), GoAway(PROTOCOL_ERROR)],
        ),
        ("6.5.2 frames have a smallest size", setting(5, 16_383), &[GoAway(PROTOCOL_ERROR)]),
        ("6.5.2 frames have a largest size", setting(5, 1 << 24), &[GoAway(PROTOCOL_ERROR)]),
        (
            "6.5.2 unknown ones are passed over",
            [setting(0xeeee, 7), get(1, "/a.txt", &[])].concat(),
            &[Answer(200)],
        ),
        (
            "6.6 clients promise nothing",
            frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]),
            &[GoAway(PROTOCOL_ERROR)],
        ),
        ("6.7 PING is of the connection", length(kind::PING, 1, 8), &[GoAway(PROTOCOL_ERROR)]),
        (
            "6.7 PING has eight bytes",
            length(kind::PING, 0, 7),
            &[GoAway(FRAME_SIZE_ERROR), GoAway(PROTOCOL_ERROR)],
        ),
        ("6.8 GOAWAY is of the connection", length(kind::GOAWAY, 1, 8), &[GoAway(PROTOCOL_ERROR)]),
        ("6.9 a window grows", frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]), &[GoAway(PROTOCOL_ERROR)]),
        (
            "6.9 that of a stream, too",
            [post(&[]), frame(kind::WINDOW_UPDATE, 0, 1, &[0; 4])].concat(),
            &[Reset(PROTOCOL_ERROR), GoAway(PROTOCOL_ERROR)],
        ),
        (
            "6.9 WINDOW_UPDATE has four bytes",
            length(kind::WINDOW_UPDATE, 0, 3),
            &[GoAway(FRAME_SIZE_ERROR), GoAway(PROTOCOL_ERROR)],
        ),
        (
            "6.9.1 no window is larger than the largest",
            frame(kind::WINDOW_UPDATE, 0, 0, &(u32::MAX >> 1).to_be_bytes()),
            &[GoAway(FLOW_CONTROL_ERROR)],
        ),
        (
            "6.9.1 that of a stream costs the stream",
            [post(&[]), frame(kind::WINDOW_UPDATE, 0, 1, &(u32::MAX >> 1).to_be_bytes())].concat(),
            &[Reset(FLOW_CONTROL_ERROR)],
        ),
        (
            "6.10 CONTINUATION is of a stream",
            frame(kind::CONTINUATION, END_HEADERS, 0, b""),
            &[GoAway(PROTOCOL_ERROR)],
        ),
        (
            "6.10 and follows a head of it",
            [
                frame(kind::HEADERS, END_STREAM, 1, &pseudo("GET", "/")),
                frame(kind::CONTINUATION, END_HEADERS, 3, b""),
            ]
            .concat(),
            &[GoAway(PROTOCOL_ERROR)],
        ),
    ]);
}

#[test]
fn request_rules_section_8() {
    const METHOD: (&str, &str) = (":method", "GET");
    const SCHEME: (&str, &str) = (":scheme", "http");
    const PATH: (&str, &str) = (":path", "/a.txt");
    const AUTHORITY: (&str, &str) = (":authority", "localhost");
    let with = |name, value| head_of(&[METHOD, SCHEME, PATH, AUTHORITY, (name, value)]);
    // A server may treat an error of a stream as one of its connection (5.4.1).
    let malformed: &[Reaction] = &[Reset(PROTOCOL_ERROR), GoAway(PROTOCOL_ERROR), Answer(400)];
    let trailers =
        |flags, fields: &[(&str, &str)]| [post(&[]), frame(kind::HEADERS, flags, 1, &hpack(fields))].concat();
    check(&[
        (
            "8.1 content is as long as it is said to be",
            [post(&[("content-length", "5")]), frame(kind::DATA, END_STREAM, 1, b"four")].concat(),
            malformed,
        ),
        (
            "8.1 and not longer",
            [post(&[("content-length", "3")]), frame(kind::DATA, END_STREAM, 1, b"four")].concat(),
            malformed,
        ),
        (
            "8.1 trailers are the end",
            trailers(END_HEADERS, &[("x", "y")]),
            &[Reset(PROTOCOL_ERROR), GoAway(PROTOCOL_ERROR)],
        ),
        (
            "8.1 trailers have no pseudo-fields",
            trailers(END_STREAM | END_HEADERS, &[(":path", "/")]),
            malformed,
        ),
        ("8.2.1 names are in lower case", with("X-Upper", "y"), malformed),
        ("8.2.1 and without DEL", with("x\u{7f}", "y"), malformed),
        ("8.2.1 and in ASCII", with("x-\u{e9}", "y"), malformed),
        ("8.2.1 names are not empty", with("", "y"), malformed),
        ("8.2.1 values have no line ends", with("x", "a\r\nb"), malformed),
        ("8.2.1 values have no zero bytes", with("x", "a\0b"), malformed),
        ("8.2.2 no fields of a connection", with("connection", "keep-alive"), malformed),
        ("8.2.2 nor of its end", with("transfer-encoding", "chunked"), malformed),
        ("8.2.2 nor of another protocol", with("upgrade", "h2c"), malformed),
        ("8.2.2 te is trailers", with("te", "gzip"), malformed),
        ("8.2.2 which is allowed", with("te", "trailers"), &[Answer(200)]),
        ("8.3 pseudo-fields come first", head_of(&[METHOD, SCHEME, PATH, ("x", "y"), AUTHORITY]), malformed),
        ("8.3 those are all there are", with(":other", "y"), malformed),
        ("8.3 none of responses", with(":status", "200"), malformed),
        ("8.3.1 once", head_of(&[METHOD, METHOD, SCHEME, PATH, AUTHORITY]), malformed),
        ("8.3.1 a method", head_of(&[SCHEME, PATH, AUTHORITY]), malformed),
        ("8.3.1 a scheme", head_of(&[METHOD, PATH, AUTHORITY]), malformed),
        ("8.3.1 a path", head_of(&[METHOD, SCHEME, AUTHORITY]), malformed),
        ("8.3.1 that is not empty", head_of(&[METHOD, SCHEME, (":path", ""), AUTHORITY]), malformed),
        ("8.3.1 a host that is the authority", with("host", "other"), malformed),
        (
            "8.3.1 no user in the authority",
            head_of(&[METHOD, SCHEME, PATH, (":authority", "me@localhost")]),
            malformed,
        ),
        ("8.3.1 Host stands for it", head_of(&[METHOD, SCHEME, PATH, ("host", "localhost")]), &[Answer(200)]),
        (
            "8.5 CONNECT has neither scheme nor path",
            head_of(&[(":method", "CONNECT"), SCHEME, PATH, AUTHORITY]),
            // CONNECT is not supported in its valid form either.
            &[Answer(405), Answer(0)],
        ),
        ("8.2.3 crumbs of cookies are joined", with("cookie", "a=b"), &[Answer(200)]),
    ]);
}

/// Reads frames of the first stream until `until` is true of one.
fn frames_until(frames: &mut Frames, until: impl Fn(&Frame) -> bool) -> Vec<Frame> {
    let mut heard = Vec::new();
    while let Some(frame) = frames.next_frame().unwrap() {
        let is_last = until(&frame);
        if frame.stream == 1 || is_last {
            heard.push(frame);
        }
        if is_last {
            break;
        }
    }
    heard
}

/// Sends another request, and returns the frames of the first stream up to its response.
fn until_next_answer(frames: &mut Frames, path: &str) -> Vec<Frame> {
    frames.send(get(3, path, &[])).unwrap();
    frames_until(frames, |frame| frame.stream == 3 && frame.flags & END_STREAM != 0)
}

#[test]
fn malformed_request_is_answered_and_its_stream_is_reset() {
    let server = start_server(
        server().file("html/a.txt", "hello"),
        "http2 on; error_page 405 = /a.txt; location /403 { return 403; }
         location /body { proxy_pass http://127.0.0.1:1; }",
    );
    const METHOD: (&str, &str) = (":method", "GET");
    const SCHEME: (&str, &str) = (":scheme", "http");
    const PATH: (&str, &str) = (":path", "/a.txt");
    const AUTHORITY: (&str, &str) = (":authority", "localhost");
    let with = |name, value| head_of(&[METHOD, SCHEME, PATH, AUTHORITY, (name, value)]);
    let open = |method, path, fields: &[(&str, &str)]| {
        frame(kind::HEADERS, END_HEADERS, 1, &[pseudo(method, path), hpack(fields)].concat())
    };
    let body = |method, path, length: &str, content: &[u8]| {
        let head = open(method, path, &[("content-length", length)]);
        [head, frame(kind::DATA, END_STREAM, 1, content)].concat()
    };
    let trailers = |path, name, value| {
        let fields = frame(kind::HEADERS, END_STREAM | END_HEADERS, 1, &hpack(&[(name, value)]));
        [open("POST", path, &[]), frame(kind::DATA, 0, 1, b"x"), fields].concat()
    };
    for (what, bytes, status) in [
        ("a capital", with("X-Upper", "y"), 400),
        ("DEL", with("x\u{7f}", "y"), 400),
        ("no ASCII", with("x-\u{e9}", "y"), 400),
        ("a field of the connection", with("connection", "close"), 400),
        ("no path", head_of(&[METHOD, SCHEME, AUTHORITY]), 400),
        ("two hosts", with("host", "other"), 400),
        ("no length", with("content-length", "x"), 400),
        ("no content", with("content-length", "5"), 400),
        // The request has not ended when the response is sent.
        ("a body to come", open("POST", "/403", &[("X", "y")]), 400),
        ("too short", body("POST", "/body", "5", b"four"), 400),
        ("too long", body("POST", "/body", "3", b"four"), 400),
        ("a pseudo-field at the end", trailers("/body", ":path", "/"), 400),
        ("DEL at the end", trailers("/body", "x\u{7f}", "y"), 400),
        ("too short for nobody", body("GET", "/a.txt", "5", b"four"), 200),
        ("too long for nobody", body("GET", "/a.txt", "3", b"four"), 200),
        ("a pseudo-field at the end, for nobody", trailers("/a.txt", ":path", "/"), 200),
        ("nobody's refused", body("POST", "/403", "5", b"four"), 403),
    ] {
        let mut frames = Frames::connect(server.addr()).unwrap();
        frames.send(bytes).unwrap();
        let heard = frames_until(&mut frames, |frame| matches!(frame.kind, kind::RST_STREAM | kind::GOAWAY));
        let of_answer: Vec<_> = heard.iter().filter(|frame| frame.kind < kind::PRIORITY).collect();
        let found_value = of_answer.first().and_then(|frame| status_of(frame));
        assert_eq!(found_value, Some(status), "{what}: {heard:?}");
        let ends = of_answer.iter().filter(|frame| frame.flags & END_STREAM != 0).count();
        assert_eq!(
            (ends, of_answer.last().unwrap().flags & END_STREAM),
            (1, END_STREAM),
            "{what}: {heard:?}"
        );
        let last = heard.last().unwrap();
        assert_eq!((last.kind, last.code()), (kind::RST_STREAM, Some(PROTOCOL_ERROR)), "{what}: {heard:?}");
        // The reset is the last frame, and other streams are not affected.
        let heard = until_next_answer(&mut frames, "/a.txt");
        assert!(heard.iter().all(|frame| frame.stream == 3), "{what}: {heard:?}");
    }
    // A well-formed request is not reset.
    for bytes in [body("GET", "/a.txt", "4", b"four"), trailers("/a.txt", "x", "y")] {
        let mut frames = Frames::connect(server.addr()).unwrap();
        frames.send(bytes).unwrap();
        frames_until(&mut frames, |frame| frame.flags & END_STREAM != 0 && frame.kind < kind::PRIORITY);
        let heard = until_next_answer(&mut frames, "/a.txt");
        assert!(heard.iter().all(|frame| frame.stream == 3), "{heard:?}");
    }
}

/// `:status`, 403 by its Huffman code.
fn status_of(frame: &Frame) -> Option<u16> {
    status(frame).map(|candidate| if candidate == 0 { 403 } else { candidate })
}

#[test]
fn data_on_a_closed_stream_is_an_error_unless_the_server_has_reset_it() {
    let server = start_http2();
    let data = frame(kind::DATA, 0, 1, b"x");
    let reset = frame(kind::RST_STREAM, 0, 1, &8_u32.to_be_bytes());
    // The client has ended the stream, by END_STREAM or by RST_STREAM.
    for (before, until) in [(get(1, "/a.txt", &[]), true), ([post(&[]), reset].concat(), false)] {
        let mut frames = Frames::connect(server.addr()).unwrap();
        frames.send(before).unwrap();
        if until {
            frames_until(&mut frames, |frame| frame.kind == kind::DATA && frame.flags & END_STREAM != 0);
        }
        frames.send(&data).unwrap();
        assert_eq!(frames.wait(kind::RST_STREAM).unwrap().unwrap().code(), Some(STREAM_CLOSED));
        // A second DATA frame is ignored: one RST_STREAM is enough.
        frames.send(&data).unwrap();
        let heard = until_next_answer(&mut frames, "/a.txt");
        assert!(heard.iter().all(|frame| frame.stream == 3), "{heard:?}");
    }
    // The server has reset the stream: frames that were in flight are ignored (section 5.1).
    let mut frames = Frames::connect(server.addr()).unwrap();
    frames.send(frame(kind::HEADERS, END_HEADERS, 1, &pseudo("POST", "/403"))).unwrap();
    frames_until(&mut frames, |frame| frame.kind == kind::RST_STREAM);
    frames.send(&data).unwrap();
    let heard = until_next_answer(&mut frames, "/a.txt");
    assert!(heard.iter().all(|frame| frame.stream == 3), "{heard:?}");
}

#[test]
fn field_sizes_are_counted_as_packed() {
    let server = start_server(
        server().file("html/a.txt", "hello"),
        "http2 on; location / { return 200 $http_x:$http_cookie:$request_uri; }",
    );
    let mut client = tw_testkit::http2::Http2::connect(server.addr()).unwrap();
    // The code of Huffman takes five bits for an `a`, and six for a hexadecimal letter at most.
    let token = "0123456789abcdef".repeat(9_000 / 16);
    let cookie = format!("c={}", "a1b2c3d4e5f6".repeat(10_500 / 12));
    let path = format!("/{}", "a".repeat(12_000));
    let answer = client.request("GET", "/", &[("x", &token), ("cookie", &cookie)], b"").unwrap();
    assert_eq!((answer.status, answer.text()), (200, format!("{token}:{cookie}:/")));
    assert_eq!(client.get(&path).unwrap().text(), format!("::{path}"));
    // Crumbs are fields of their own.
    let crumb = "a".repeat(9_000);
    let answer = client.request("GET", "/", &[("cookie", &crumb), ("cookie", &crumb)], b"").unwrap();
    assert_eq!(answer.text(), format!(":{crumb}; {crumb}:/"));
    // A buffer is full of the code: 13,200 bytes of five bits take 8,250.
    let long = "a".repeat(13_200);
    assert_eq!(client.request("GET", "/", &[("x", &long)], b"").unwrap().status, 400);
    assert_eq!(client.get(&format!("/{long}")).unwrap().status, 414);
    // The fields fill all buffers: 4 of 8 KiB.
    let third = "a".repeat(10_950);
    let fields = [("a", &*third), ("b", &third), ("c", &third)];
    assert_eq!(client.request("GET", "/", &fields[..2], b"").unwrap().status, 200);
    assert_eq!(client.request("GET", "/", &fields, b"").unwrap().status, 400);
    // Values that are not Huffman-coded count with their own length.
    for (len, status) in [(8_192, 0x88), (8_193, 0x8c)] {
        let mut frames = Frames::connect(server.addr()).unwrap();
        frames.send(get(1, "/", &[("x", &"a".repeat(len))])).unwrap();
        assert_eq!(frames.wait(kind::HEADERS).unwrap().unwrap().payload[0], status, "{len}");
    }
}

#[test]
fn server_begins_with_settings_and_acknowledges_those_of_its_client() {
    let server = start_http2();
    let mut frames = Frames::connect(server.addr()).unwrap();
    let first = frames.next_frame().unwrap().unwrap();
    assert_eq!((first.kind, first.flags, first.stream), (kind::SETTINGS, 0, 0));
    // 4.2: the initial maximum frame size, whether or not the setting is sent.
    let size = first.payload.chunks(6).find(|setting| setting[..2] == [0, 5]);
    assert!(size.is_none_or(|setting| setting[2..] == 16_384_u32.to_be_bytes()), "{size:?}");
    loop {
        let next = frames.wait(kind::SETTINGS).unwrap().unwrap();
        if next.flags == ACK {
            assert!(next.payload.is_empty());
            break;
        }
    }
    // 6.7: the same comes back.
    frames.send(frame(kind::PING, 0, 0, b"as it is")).unwrap();
    let pong = frames.wait(kind::PING).unwrap().unwrap();
    assert_eq!((pong.flags, &pong.payload[..]), (ACK, &b"as it is"[..]));
    // An acknowledgement is not acknowledged.
    frames.send(frame(kind::PING, ACK, 0, b"answered")).unwrap();
    frames.send(get(1, "/a.txt", &[])).unwrap();
    let next = frames.next_frame().unwrap().unwrap();
    assert_eq!(next.kind, kind::HEADERS, "{next:?}");
}

#[test]
fn invalid_preface_ends_the_connection() {
    let server = start_http2();
    let mut client = server.connect().unwrap();
    // The bytes begin like a preface, so they are no HTTP/1 request either (section 3.4).
    client.send(&PREFACE[..20]).unwrap();
    client.send("no\r\n\r\n").unwrap();
    let said = client.read_until_close().unwrap();
    assert!(!said.windows(5).any(|bytes| bytes == b" 200 "), "{said:?}");
}

#[test]
fn windows_are_kept() {
    let server = start_server(server().file("html/large", vec![b'x'; 200_000]), "http2 on;");
    let data = |frames: &mut Frames| frames.wait(kind::DATA).unwrap().unwrap();
    let mut frames = Frames::connect(server.addr()).unwrap();
    // 6.9.2: a window of 10 bytes, then of 30, which the stream that is open has, too.
    frames.send([setting(4, 10), get(1, "/large", &[])].concat()).unwrap();
    assert_eq!(data(&mut frames).payload.len(), 10);
    frames.send(setting(4, 30)).unwrap();
    assert_eq!(data(&mut frames).payload.len(), 20);
    // The window becomes negative, and has to be filled up first.
    frames.send(setting(4, 5)).unwrap();
    frames.send(frame(kind::WINDOW_UPDATE, 0, 1, &25_u32.to_be_bytes())).unwrap();
    frames.send(frame(kind::PING, 0, 0, &[1; 8])).unwrap();
    let next = frames.wait(kind::PING).unwrap().unwrap();
    assert_eq!(next.flags, ACK, "nothing came before it");
    frames.send(frame(kind::WINDOW_UPDATE, 0, 1, &7_u32.to_be_bytes())).unwrap();
    assert_eq!(data(&mut frames).payload.len(), 7);
    // 6.9.1: the window of the connection applies to all streams.
    frames.send(frame(kind::WINDOW_UPDATE, 0, 1, &100_000_u32.to_be_bytes())).unwrap();
    let mut came = 37;
    while came < 65_535 {
        came += data(&mut frames).payload.len();
    }
    frames.send(frame(kind::PING, 0, 0, &[2; 8])).unwrap();
    assert_eq!(frames.next_frame().unwrap().unwrap().kind, kind::PING);
    assert_eq!(came, 65_535);
    // 4.2: no frame is larger than its receiver allows.
    let mut frames = Frames::connect(server.addr()).unwrap();
    frames.send(get(1, "/large", &[])).unwrap();
    let mut remaining = 65_535;
    while remaining > 0 {
        let frame = data(&mut frames);
        assert!(frame.payload.len() <= 16 << 10);
        remaining -= frame.payload.len();
    }
}

#[test]
fn exceeded_window_is_an_error() {
    let server = start_http2();
    let mut frames = Frames::connect(server.addr()).unwrap();
    frames.send(post(&[])).unwrap();
    // Nothing is read while there is no upstream, and the window has 64 KiB.
    let much = frame(kind::DATA, 0, 1, &[0; 16 << 10]);
    for _ in 0..200 {
        if frames.send(&much).is_err() {
            break;
        }
    }
    let reaction_seen = reaction(&mut frames).unwrap();
    // A stream that was answered may be closed without an error (section 5.1).
    assert!(!matches!(reaction_seen, Some(Answer(200))), "{reaction_seen:?}");
}

#[test]
fn late_frames_of_a_stream_are_ignored() {
    let server = start_http2();
    let mut frames = Frames::connect(server.addr()).unwrap();
    frames.send(get(1, "/a.txt", &[])).unwrap();
    assert_eq!(reaction(&mut frames).unwrap(), Some(Answer(200)));
    // 5.1: for some time after its end.
    frames.send(frame(kind::WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes())).unwrap();
    frames.send(frame(kind::RST_STREAM, 0, 1, &8_u32.to_be_bytes())).unwrap();
    frames.send(frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 0, 1])).unwrap();
    frames.send(get(3, "/a.txt", &[])).unwrap();
    assert_eq!(reaction(&mut frames).unwrap(), Some(Answer(200)));
    // 5.4.1, 6.8: requests that a client sent before its GOAWAY are answered.
    frames.send(get(5, "/a.txt", &[])).unwrap();
    frames.send(frame(kind::GOAWAY, 0, 0, &[0; 8])).unwrap();
    assert_eq!(reaction(&mut frames).unwrap(), Some(Answer(200)));
}
