//! Table of raw requests with nginx's responses; limits, resumption, accessors.

use super::*;

const TABLE: &[u8] = include_bytes!("../../testdata/requests.tsv");

/// Undoes `\r \n \t \\ \xNN`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        let escaped = match byte {
            b'\\' => bytes.next().unwrap(),
            _ => {
                out.push(byte);
                continue;
            }
        };
        out.push(match escaped {
            b'r' => b'\r',
            b'n' => b'\n',
            b't' => b'\t',
            b'\\' => b'\\',
            b'x' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => panic!("unknown escape {other}"),
        });
    }
    out
}

fn escape(bytes: &[u8]) -> String {
    let mut out = String::new();
    for &byte in bytes {
        match byte {
            b'\r' => out.push_str("\\r"),
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b'\\' => out.push_str("\\\\"),
            b' '..=b'~' => out.push(byte as char),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out
}

/// Parses a request in two pieces, split at `at`; returns the result in the form of the table.
fn outcome(request: &[u8], at: usize, limits: &HeadLimits) -> (u16, String) {
    let mut head = RequestHead::new();
    let (first, second) = request.split_at(at);
    let mut result = Ok(Progress::NeedMore);
    for piece in [first, second] {
        head.push(piece);
        result = head.parse(limits);
        if result != Ok(Progress::NeedMore) {
            break;
        }
    }
    match result {
        Ok(Progress::NeedMore) => (0, String::new()),
        Ok(Progress::Complete) => {
            let host = escape(head.host().unwrap_or(b"-"));
            let port = head.host_port().map_or(String::new(), |port| port.to_string());
            (200, format!("{} ? {} @ {host} : {port}", escape(head.path()), escape(head.args())))
        }
        Err(error) => {
            let printed = |c: char| if c < ' ' { format!("\\x{:02x}", c as u32) } else { c.to_string() };
            (error.status(), head.error_text(error).to_string().chars().map(printed).collect())
        }
    }
}

fn rows() -> impl Iterator<Item = (u16, String, Vec<u8>)> {
    TABLE.split(|&byte| byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"# ")).map(
        |line| {
            let mut columns = line.splitn(3, |&byte| byte == b'\t');
            let mut text = || String::from_utf8(columns.next().unwrap().to_vec()).unwrap();
            let status = text().parse().unwrap();
            let expected = text();
            (status, expected, unescape(columns.next().unwrap()))
        },
    )
}

#[test]
fn requests_are_answered_as_nginx_answers_them() {
    let mut count = 0;
    for (status, expected, request) in rows() {
        let got = outcome(&request, request.len(), &HeadLimits::default());
        assert_eq!(got, (status, expected), "{}", escape(&request));
        count += 1;
    }
    assert!(count > 300, "the table is short: {count} rows");
}

#[test]
fn repeated_cr_does_not_end_a_line() {
    for request in ["GET / HTTP/1.1\r\nHost: a\r\nX: y\r\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nX\r\r\n\r\n"]
    {
        let (status, said) = outcome(request.as_bytes(), 0, &HeadLimits::default());
        assert!(
            status == 400 && said.starts_with("client sent invalid header line: \"X"),
            "{request:?}: {said}"
        );
    }
}

#[test]
fn log_names_the_part_being_read_and_the_host() {
    for (sent, reading, host) in [
        ("", "client request line", None),
        ("GET / HT", "client request line", None),
        ("<\r\n", "client request line", None),
        ("GET /%0 HTTP/1.1\r\n", "client request line", None),
        ("GET / HTTP/1.1\r\nHo", "client request headers", None),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n", "client request headers", Some("a/b")),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n", "client request headers", Some("a")),
        ("GET / HTTP/1.1\r\n\r\n", "client request headers", None),
    ] {
        let mut head = RequestHead::new();
        head.push(sent.as_bytes());
        let _ = head.parse(&HeadLimits::default());
        assert_eq!(head.reading(), reading, "{sent:?}");
        assert_eq!(
            head.field_all(b"host").collect::<Vec<_>>(),
            Vec::from_iter(host.map(str::as_bytes)),
            "{sent:?}"
        );
    }
}

#[test]
fn limits_may_change_after_the_host_is_known() {
    let first = HeadLimits { large_buffers_count: 0, ..HeadLimits::default() };
    let then = HeadLimits { underscores_in_headers: true, ..HeadLimits::default() };
    let long = "x".repeat(4000);
    for (sent, host) in [
        ("GET / HTTP/1.1\r\nA_B: 1\r\nHost: a\r\nA_C: 2\r\n", Some("a")),
        ("GET http://a/ HTTP/1.1\r\nA_C: 2\r\nHost: b\r\n", Some("a")),
        ("GET / HTTP/1.0\r\nA_B: 1\r\n", None),
    ] {
        let mut head = RequestHead::new();
        head.push(sent.as_bytes());
        let progress = head.parse_to_host(&first);
        assert_eq!(progress, Ok(host.is_none().then_some(Progress::NeedMore)), "{sent}");
        assert_eq!(head.host(), host.map(str::as_bytes), "{sent}");
        head.push(format!("X: {long}\r\n\r\n").as_bytes());
        match host {
            Some(_) => {
                assert_eq!(head.parse_to_host(&then), Ok(Some(Progress::Complete)), "{sent}");
                assert_eq!((head.field("A_B"), head.field("A_C")), (None, Some(&b"2"[..])), "{sent}");
            }
            None => assert_eq!(head.parse_to_host(&first), Err(HeadError::HeaderLineTooLong), "{sent}"),
        }
    }
}

#[test]
fn a_split_at_any_byte_changes_nothing() {
    for (status, expected, request) in rows() {
        for at in 0..request.len() {
            let got = outcome(&request, at, &HeadLimits::default());
            assert_eq!(got, (status, expected.clone()), "{} split at {at}", escape(&request));
        }
    }
}

#[test]
fn byte_by_byte_gives_the_same_head() {
    for (status, _, request) in rows() {
        let mut whole = RequestHead::new();
        whole.push(&request);
        let expected = whole.parse(&HeadLimits::default());

        let mut head = RequestHead::new();
        let mut result = Ok(Progress::NeedMore);
        for &byte in &request {
            if result == Ok(Progress::NeedMore) {
                head.push(&[byte]);
                result = head.parse(&HeadLimits::default());
            }
        }
        assert_eq!(result, expected, "{}", escape(&request));
        if status == 200 {
            assert_eq!(head.request_line(), whole.request_line());
            assert_eq!(head.head_len(), whole.head_len());
            assert!(head.fields().eq(whole.fields()), "{}", escape(&request));
        }
    }
}

fn parsed(request: &[u8]) -> RequestHead {
    let mut head = RequestHead::new();
    head.push(request);
    assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::Complete), "{}", escape(request));
    head
}

#[test]
fn accessors() {
    let head = parsed(
        b"\r\nPOST http://Up.Example:8080/a/%62.tar.gz?x=1 HTTP/1.1  \r\nhost: other\r\nX-One: 1\r\n\
          Content-Length: 5\r\nx-one:  2 \r\nCookie: a=1\r\nCookie: b=2\r\nBad_Name: z\r\n\r\nhello",
    );
    assert_eq!((head.method(), head.method_bytes()), (Method::Post, &b"POST"[..]));
    assert_eq!(head.target(), b"/a/%62.tar.gz?x=1");
    assert_eq!(head.path(), b"/a/b.tar.gz");
    assert!(!head.path_is_raw() && head.path_is_quoted() && head.target_has_path());
    assert_eq!((head.args(), head.exten()), (&b"x=1"[..], &b"gz"[..]));
    assert_eq!(
        (head.scheme(), head.host(), head.host_port()),
        (Some(&b"http"[..]), Some(&b"up.example"[..]), Some(8080))
    );
    assert_eq!((head.version(), head.protocol()), (Version::HTTP_11, &b"HTTP/1.1"[..]));
    assert_eq!(head.request_line(), b"POST http://Up.Example:8080/a/%62.tar.gz?x=1 HTTP/1.1  ");
    assert_eq!(head.field("x-one"), Some(&b"1"[..]));
    assert_eq!(head.field_all(b"X-ONE").collect::<Vec<_>>(), [b"1", b"2"]);
    assert_eq!(head.field_all(b"cookie").collect::<Vec<_>>(), [b"a=1", b"b=2"]);
    assert_eq!(head.field_known(HeaderName::Cookie), Some(&b"a=1"[..]));
    assert_eq!((head.field("Host"), head.field("bad_name")), (Some(&b"other"[..]), None));
    assert_eq!(head.ignored_lines().collect::<Vec<_>>(), [b"Bad_Name: z"]);
    let names: Vec<_> = head.fields().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect();
    assert_eq!(names, ["host", "X-One", "Content-Length", "x-one", "Cookie", "Cookie"]);
    assert_eq!((head.field_count(), head.framing(), head.rest()), (6, Framing::Length(5), &b"hello"[..]));
}

#[test]
fn targets_without_a_path_of_their_own() {
    let table: &[(&[u8], &[u8], bool)] = &[
        (b"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n", b"/", true),
        (b"GET http://a?b HTTP/1.1\r\nHost: a\r\n\r\n", b"?b", false),
        (b"GET http://a/?b HTTP/1.1\r\nHost: a\r\n\r\n", b"/?b", true),
    ];
    for (request, target, has_path) in table {
        let head = parsed(request);
        assert_eq!((head.target(), head.path(), head.target_has_path()), (*target, &b"/"[..], *has_path));
    }
    let mut head = RequestHead::new();
    head.push(b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n");
    let limits = HeadLimits { allow_connect: true, ..HeadLimits::default() };
    assert_eq!(head.parse(&limits), Ok(Progress::Complete));
    assert_eq!(
        (head.target(), head.path(), head.host(), head.host_port()),
        (&b"/"[..], &b"/"[..], Some(&b"a"[..]), Some(443))
    );
    head.clear();
    head.push(b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
    assert_eq!(head.parse(&limits), Err(HeadError::ConnectWithBody));
}

#[test]
fn keep_alive_and_expect() {
    let table = [
        ("HTTP/1.1", "", true, false),
        ("HTTP/1.0", "", false, false),
        ("HTTP/1.0", "Connection: keep-alive\r\n", true, false),
        ("HTTP/1.1", "Connection: close\r\n", false, false),
        ("HTTP/1.1", "Connection: Upgrade, Close\r\n", false, false),
        ("HTTP/1.1", "Connection: keep-alive, close\r\n", false, false),
        ("HTTP/1.1", "Connection: close\r\nConnection: keep-alive\r\n", true, false),
        ("HTTP/1.1", "Connection: close\r\nConnection: upgrade\r\n", false, false),
        ("HTTP/1.1", "Expect: 100-Continue\r\n", true, true),
        ("HTTP/1.1", "Expect: 100-continue, x\r\n", true, false),
        ("HTTP/1.0", "Expect: 100-continue\r\n", false, false),
    ];
    for (version, fields, keep_alive, expect) in table {
        let head = parsed(format!("GET / {version}\r\nHost: a\r\n{fields}\r\n").as_bytes());
        assert_eq!((head.keep_alive(), head.expect_continue()), (keep_alive, expect), "{version} {fields}");
    }
    assert!(!parsed(b"GET /\r\n").keep_alive());
}

#[test]
fn framing_rfc9112_section_6() {
    let table = [
        ("", Framing::None),
        ("Content-Length: 0\r\n", Framing::Length(0)),
        ("Content-Length: 9223372036854775807\r\n", Framing::Length(i64::MAX as u64)),
        ("Transfer-Encoding: Chunked\r\n", Framing::Chunked),
    ];
    for (fields, framing) in table {
        let head = parsed(format!("PUT / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
        assert_eq!(head.framing(), framing, "{fields}");
    }
}

#[test]
fn pipelined_requests_follow_each_other_in_one_buffer() {
    let mut head = RequestHead::new();
    head.push(b"POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc\r\n");
    head.push(b"GET /%32 HTTP/1.1\r\nHost: B\r\n\r\nGET /3 HT");
    assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::Complete));
    assert_eq!((head.path(), head.rest().len()), (&b"/1"[..], 44));
    head.consume(2);
    head.consume(1);
    assert_eq!(head.path(), b"/1");
    head.next_request();

    assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::Complete));
    assert_eq!((head.path(), head.host(), head.framing()), (&b"/2"[..], Some(&b"b"[..]), Framing::None));
    head.next_request();

    assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::NeedMore));
    assert!(!head.is_idle());
    let before = head.spare(0).capacity();
    head.spare(before).extend_from_slice(b"TP/1.1\r\nHost: c\r\n\r\n");
    assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::Complete));
    assert_eq!((head.path(), head.host(), head.rest()), (&b"/3"[..], Some(&b"c"[..]), &b""[..]));
    head.next_request();
    assert!(head.is_idle());
    head.consume(10);
    assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::NeedMore));
}

#[test]
fn body_after_the_head_takes_no_memory() {
    const PIECE: usize = 4096;
    let mut head = RequestHead::new();
    head.push(b"GET /0 HTTP/1.1\r\nHost: a\r\n\r\nPUT /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n");
    assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::Complete));
    head.next_request();
    assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::Complete));
    let mut expected = 0u8;
    for round in 0..1000 {
        let sent = (0..PIECE).map(|at| (round * PIECE + at) as u8);
        head.spare(PIECE).extend(sent);
        // Sometimes a few bytes stay for the next round, sometimes none.
        let take = head.rest().len() - round % 3 * 100;
        for &byte in &head.rest()[..take] {
            assert_eq!(byte, expected);
            expected = expected.wrapping_add(1);
        }
        head.consume(take);
    }
    assert!(head.spare(0).capacity() < 8 * PIECE, "{}", head.spare(0).capacity());
    assert_eq!((head.path(), head.field("host")), (&b"/1"[..], Some(&b"a"[..])));

    head.consume(usize::MAX);
    head.push(b"GET /2 HTTP/1.1\r\nHost: b\r\n\r\n");
    head.next_request();
    assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::Complete));
    assert_eq!((head.path(), head.host()), (&b"/2"[..], Some(&b"b"[..])));
}

#[test]
fn empty_lines_take_no_memory() {
    let mut head = RequestHead::new();
    for _ in 0..1000 {
        head.push(b"\r\n\n\r");
        assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::NeedMore));
    }
    assert!(head.is_idle());
    assert!(head.spare(0).capacity() < 1000);
}

#[test]
fn request_line_of_a_bad_request_is_the_received_part() {
    let table: &[(&[u8], &[u8])] = &[
        (b"GET /a\x01b HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /a\x01b HTTP/1.1"),
        (b"\x16\x03\x01", b"\x16\x03\x01"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n", b"GET / HTTP/1.1"),
        (b"GET / HT", b"GET / HT"),
        (b"", b""),
    ];
    for (request, line) in table {
        let mut head = RequestHead::new();
        head.push(request);
        assert_ne!(head.parse(&HeadLimits::default()), Ok(Progress::Complete));
        assert_eq!(head.request_line(), *line);
    }
}

#[test]
fn the_lines_that_were_read_are_counted() {
    let table: &[(&[u8], usize)] = &[
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\nrest", 27),
        (b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 27),
        (b"GET /\r\n", 7),
        (b"GET / HT", 0),
        (b"GET / HTTP/1.1\r\nHo", 16),
        (b"GET /%zz HTTP/1.1\r\n", 19),
        (b"GET / HTTP/1.1\r\n\r\n", 18),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 34),
        (b"GET / HTTP/1.1\r\nBad\x01: a\r\n", 16),
    ];
    for (request, len) in table {
        let mut head = RequestHead::new();
        head.push(request);
        let progress = head.parse(&HeadLimits::default());
        assert_eq!(head.read_len(), *len, "{}", request.escape_ascii());
        if progress == Ok(Progress::Complete) {
            assert_eq!(head.head_len(), *len);
        }
    }
}

#[test]
fn method_and_version_of_an_invalid_line() {
    for (line, method, version) in [
        ("HEAD /a HTTP/x\r\n\r\n", Method::Head, Version::HTTP_10),
        ("HEAD /a b\r\n\r\n", Method::Head, Version::HTTP_10),
        ("HEAD /a\r\n", Method::Other, Version::HTTP_09),
        ("head /a HTTP/1.1\r\n\r\n", Method::Other, Version::HTTP_10),
    ] {
        let mut head = RequestHead::new();
        head.spare(line.len()).extend_from_slice(line.as_bytes());
        assert!(head.parse(&HeadLimits::default()).is_err(), "{line:?}");
        assert_eq!((head.method(), head.version()), (method, version), "{line:?}");
    }
}

#[test]
fn released_head_parses_the_same() {
    let text = b"GET /a HTTP/1.1\r\nHost: b\r\n\r\nrest";
    let mut head = RequestHead::new();
    head.spare(4096).extend_from_slice(text);
    assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::Complete));
    head.shrink();
    assert!(head.buf.capacity() < 64, "{}", head.buf.capacity());
    assert_eq!((head.path(), head.rest()), (&b"/a"[..], &b"rest"[..]));
    head.push(b" of it");
    assert_eq!(head.rest(), b"rest of it");
}
