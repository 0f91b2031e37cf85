use super::*;
use crate::chunked::ChunkError;
use crate::method::Method;

const LIMITS: OriginLimits = OriginLimits { head_size: 4096, fields_count: 20 };

/// Result of parsing a response, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    result: Result<Progress, OriginError>,
    /// The log line of an error, else the status line and the fields.
    text: String,
    duplicates: Vec<String>,
    rest: Vec<u8>,
}

fn outcome(pieces: &[&[u8]], limits: &OriginLimits) -> Outcome {
    let mut head = OriginHead::new();
    let mut result = Ok(Progress::NeedMore);
    let mut pieces = pieces.iter();
    while result == Ok(Progress::NeedMore)
        && let Some(piece) = pieces.next()
    {
        head.push(piece);
        result = head.parse(limits);
    }
    // Bytes behind the head belong to the caller, whether the parser has them or not.
    let behind = if result == Ok(Progress::Complete) { head.rest().to_vec() } else { Vec::new() };
    let rest = [behind, pieces.flat_map(|piece| piece.iter().copied()).collect()].concat();
    Outcome { result, text: described(&head, result), duplicates: texts(head.duplicates()), rest }
}

fn texts<T: ToString>(items: impl Iterator<Item = T>) -> Vec<String> {
    items.map(|item| item.to_string()).collect()
}

fn described(head: &OriginHead, result: Result<Progress, OriginError>) -> String {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    match result {
        Ok(Progress::NeedMore) => String::new(),
        Ok(Progress::Complete) => {
            let fields = head.fields().map(|field| format!("|{}={}", text(field.name), text(field.value)));
            text(head.status_line()) + &fields.collect::<String>()
        }
        Err(error) => head.error_text(error).to_string(),
    }
}

/// Responses, and their status line and fields, or the line in the log.
const HEADS: &[(&[u8], &str)] = &[
    // Status lines.
    (b"HTTP/1.1 200 OK\r\n\r\n", "200 OK"),
    (b"HTTP/1.0 200 OK\r\n\r\n", "200 OK"),
    (b"HTTP/1.9 200 OK\r\n\r\n", "200 OK"),
    (b"HTTP/1.1 200 OK\n\n", "200 OK"),
    (b"HTTP/1.1 200\r\n\r\n", "200"),
    (b"HTTP/1.1 200\n\n", "200"),
    (b"HTTP/1.1 200 \r\n\r\n", "200 "),
    (b"HTTP/1.1   404 Not  Here\r\n\r\n", "404 Not  Here"),
    (b"HTTP/1.1 599 a\tb\xe9\r\n\r\n", "599 a\\tb\\xe9"),
    (b"HTTP/1.1 999 x\r\n\r\n", "999 x"),
    (b"HTTP/1.1 101 Switching\r\n\r\n", "101 Switching"),
    (b"HTTP/1.0 101 Switching\r\n\r\n", "101 Switching"),
    (b"HTTP/1.1 100 Continue\r\n\r\n", "100 Continue"),
    (b"HTTP/1.0 100 Continue\r\n", "upstream sent HTTP/1.0 response with status 100"),
    (b"HTTP/1.0 103 x\r\n", "upstream sent HTTP/1.0 response with early hints"),
    (b"<html>", "upstream sent no valid HTTP/1.0 header"),
    (b"\r\nHTTP/1.1 200 OK\r\n\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"http/1.1 200 OK\r\n\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTPS", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/0.9 200 OK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/2.0 200 OK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1 200 OK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.10 200 OK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1\t200 OK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 \r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 20\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 2 00 OK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 2000 OK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 099 OK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 000 OK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 +20 OK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 200.1 OK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 200\tOK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 200 O\rK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 200 OK\r\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 200 O\0K\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 200 O\x1bK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"HTTP/1.1 200 O\x7fK\r\n", "upstream sent no valid HTTP/1.0 header"),
    (b"", ""),
    (b"HT", ""),
    (b"HTTP/1.1 200 OK\r", ""),
    (b"HTTP/1.1 200 OK\r\n", ""),
    (b"HTTP/1.1 200 OK\r\nX: y\r\n", ""),
    (b"HTTP/1.1 200 OK\r\nX: y\r\n\r", ""),
    // Field lines.
    (b"HTTP/1.1 200 OK\r\nX-a: b\r\nx-A:c\r\nZ_@:  d e \r\n\r\n", "200 OK|X-a=b|x-A=c|Z_@=d e"),
    (b"HTTP/1.1 200 OK\nX: a\nY: b\r\nZ:\n\n", "200 OK|X=a|Y=b|Z="),
    (b"HTTP/1.1 200 OK\r\nX:\ta\t\r\n\r\n", "200 OK|X=\\ta\\t"),
    (b"HTTP/1.1 200 OK\r\nX: \xff\xc3\xa9\r\n\r\n", "200 OK|X=\\xff\\xc3\\xa9"),
    (b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "upstream sent invalid header: \"\\x20...\""),
    (b"HTTP/1.1 200 OK\r\n\tX: a\r\n\r\n", "upstream sent invalid header: \"\\x09...\""),
    (b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n", "upstream sent invalid header: \"X\\x20...\""),
    (b"HTTP/1.1 200 OK\r\nX\t: a\r\n\r\n", "upstream sent invalid header: \"X\\x09...\""),
    (b"HTTP/1.1 200 OK\r\n: a\r\n\r\n", "upstream sent invalid header: \"\\x3a...\""),
    (b"HTTP/1.1 200 OK\r\nX\0: a\r\n\r\n", "upstream sent invalid header: \"X\\x00...\""),
    (b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n", "upstream sent invalid header: \"X: a\\x00...\""),
    (b"HTTP/1.1 200 OK\r\nX: a\x01b\r\n\r\n", "upstream sent invalid header: \"X: a\\x01...\""),
    (b"HTTP/1.1 200 OK\r\nX: a\x7f\r\n\r\n", "upstream sent invalid header: \"X: a\\x7f...\""),
    (b"HTTP/1.1 200 OK\r\nX: \x0bchunked\r\n\r\n", "upstream sent invalid header: \"X: \\x0b...\""),
    (b"HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n", "upstream sent invalid header: \"X: a\\x0d...\""),
    (b"HTTP/1.1 200 OK\r\nX: a\r\r\n\r\n", "upstream sent invalid header: \"X: a\\x0d...\""),
    (b"HTTP/1.1 200 OK\r\n\rX", "upstream sent invalid header: \"\\x0d...\""),
    (b"HTTP/1.1 200 OK\r\nHTTP/1.1 200 OK\r\n\r\n", "upstream sent invalid header: \"HTTP/1.1\\x20...\""),
    // Fields that tell the length of the body.
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "200 OK|Content-Length=5"),
    (b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n", "200 OK|transfer-encoding=Chunked"),
    (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\ncontent-length: 6\r\n\r\n",
        "upstream sent duplicate header line: \"content-length: 6\", previous value: \"Content-Length: 5\"",
    ),
    (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        "upstream sent duplicate header line: \"Content-Length: 5\", previous value: \"Content-Length: 5\"",
    ),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "upstream sent duplicate header line: \"Transfer-Encoding: chunked\", \
         previous value: \"Transfer-Encoding: chunked\"",
    ),
    (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
    ),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
    ),
    (
        b"HTTP/1.1 200 OK\r\nContent-length: +5\r\n\r\n",
        "upstream sent invalid \"Content-Length\" header: \"Content-length: +5\"",
    ),
    (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
        "upstream sent invalid \"Content-Length\" header: \"Content-Length: 5, 5\"",
    ),
    (
        b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
        "upstream sent invalid \"Content-Length\" header: \"Content-Length: \"",
    ),
    (
        b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\n",
        "upstream sent invalid \"Content-Length\" header: \"Content-Length: 9223372036854775808\"",
    ),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "upstream sent unknown \"Transfer-Encoding\": \"gzip, chunked\"",
    ),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\t\r\n\r\n",
        "upstream sent unknown \"Transfer-Encoding\": \"chunked\t\"",
    ),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n", "upstream sent unknown \"Transfer-Encoding\": \"\""),
    (
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "upstream sent HTTP/1.0 response with \"Transfer-Encoding\" header",
    ),
    // An interim response has no body, whatever its fields are.
    (
        b"HTTP/1.1 103 x\r\nLink: a\r\nContent-Length: x\r\nTransfer-Encoding: y\r\n\r\n",
        "103 x|Link=a|Content-Length=x|Transfer-Encoding=y",
    ),
    // Other fields that occur once.
    (b"HTTP/1.1 200 OK\r\nETag: 1\r\netag: 2\r\nVary: a\r\nVary: b\r\n\r\n", "200 OK|ETag=1|Vary=a|Vary=b"),
    (b"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n", "200 OK|Set-Cookie=a|Set-Cookie=b"),
];

#[test]
fn heads_are_read_as_nginx_reads_them_or_refused() {
    for (response, expected) in HEADS {
        let got = outcome(&[response], &LIMITS);
        assert_eq!(got.text, *expected, "{}", response.escape_ascii());
        match got.result {
            Ok(progress) => assert_eq!(progress == Progress::NeedMore, expected.is_empty()),
            Err(_) => assert!(expected.starts_with("upstream sent ")),
        }
    }
}

#[test]
fn a_split_at_any_byte_changes_nothing() {
    for (response, _) in HEADS {
        let whole = outcome(&[response, b"body"], &LIMITS);
        for at in 0..response.len() {
            let (first, second) = response.split_at(at);
            let got = outcome(&[first, second, b"body"], &LIMITS);
            assert_eq!(
                (&got.result, &got.text),
                (&whole.result, &whole.text),
                "{} at {at}",
                response.escape_ascii()
            );
            assert_eq!(got.duplicates, whole.duplicates);
            if got.result == Ok(Progress::Complete) {
                assert_eq!(got.rest, whole.rest);
            }
        }
        let mut bytes: Vec<&[u8]> = response.chunks(1).collect();
        bytes.push(b"body");
        let got = outcome(&bytes, &LIMITS);
        assert_eq!((&got.result, &got.text), (&whole.result, &whole.text), "{}", response.escape_ascii());
    }
}

#[test]
fn missing_head_differs_from_an_invalid_status_line() {
    for (response, error) in [
        ("<html>", OriginError::NoStatusLine),
        ("HTTX", OriginError::NoStatusLine),
        ("HTTP/x", OriginError::InvalidStatusLine),
        ("HTTP/1.1 x", OriginError::InvalidStatusLine),
    ] {
        let mut head = OriginHead::new();
        head.push(response.as_bytes());
        assert_eq!(head.parse(&LIMITS), Err(error), "{response}");
        assert_eq!(head.rest(), response.as_bytes());
    }
}

#[test]
fn answer_in_another_protocol_is_named() {
    for (response, expected) in [
        (b"\x15\x03\x01\x00\x02\x02\x46".as_slice(), ": the answer is TLS; does this port need https://?"),
        (
            b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
            ": the answer is a frame of HTTP/2; does the server speak only HTTP/2?",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ""),
        (b"HTTP/x", ""),
    ] {
        let mut head = OriginHead::new();
        head.push(response);
        let error = head.parse(&LIMITS).unwrap_err();
        let text = head.error_text(error).to_string();
        assert_eq!(text, format!("upstream sent no valid HTTP/1.0 header{expected}"));
    }
}

#[test]
fn unique_fields_are_kept_once() {
    let got =
        outcome(&[b"HTTP/1.1 200 OK\r\nETag: 1\r\netag: 2\r\nLocation: a\r\nLocation: b\r\n\r\n"], &LIMITS);
    assert_eq!(
        got.duplicates,
        [
            "upstream sent duplicate header line: \"etag: 2\", previous value: \"ETag: 1\", ignored",
            "upstream sent duplicate header line: \"Location: b\", previous value: \"Location: a\", ignored",
        ]
    );
}

#[test]
fn the_head_has_limits() {
    let response = b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n".as_slice();
    let sized = |head_size| OriginLimits { head_size, fields_count: 20 };
    assert_eq!(outcome(&[response], &sized(response.len())).result, Ok(Progress::Complete));
    for size in 0..response.len() {
        let got = outcome(&[response], &sized(size));
        assert_eq!(got.result, Err(OriginError::TooBigHeader), "{size}");
        assert_eq!(got.text, "upstream sent too big header");
        // A head is known to be too big only when the limit is reached.
        assert_eq!(outcome(&[&response[..size]], &sized(size + 1)).result, Ok(Progress::NeedMore), "{size}");
    }

    let many = |count: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "ETag: 1\r\n".repeat(count));
    assert_eq!(outcome(&[many(20).as_bytes()], &LIMITS).result, Ok(Progress::Complete));
    let got = outcome(&[many(21).as_bytes()], &LIMITS);
    assert_eq!(
        (got.result, got.text.as_str()),
        (Err(OriginError::TooManyFields), "upstream sent too many header lines")
    );
}

#[test]
fn accessors() {
    let mut head = OriginHead::new();
    assert!(head.is_empty());
    head.push(b"HTTP/1.1 201 Made\r\ncontent-TYPE: a\r\nX-One: 1\r\nx-one: 2\r\nUpgrade: w\r\n\r\nbody");
    assert_eq!(head.parse(&LIMITS), Ok(Progress::Complete));
    assert_eq!(head.parse(&LIMITS), Ok(Progress::Complete));
    assert_eq!(
        (head.status(), head.version(), head.status_line()),
        (201, Version::HTTP_11, &b"201 Made"[..])
    );
    let first = head.fields().next().unwrap();
    assert_eq!(first, Field { name: b"content-TYPE", value: b"a", known: Some(HeaderName::ContentType) });
    assert_eq!(
        (head.field("X-ONE"), head.field_known(HeaderName::ContentType)),
        (Some(&b"1"[..]), Some(&b"a"[..]))
    );
    assert_eq!(head.field_all(b"X-One").collect::<Vec<_>>(), [b"1", b"2"]);
    assert!(head.has(HeaderName::Upgrade) && !head.has(HeaderName::Server) && !head.is_empty());
    assert_eq!((head.field_count(), head.head_len(), head.rest()), (4, 70, &b"body"[..]));
    head.clear();
    assert!(head.is_empty() && head.field_count() == 0 && head.rest().is_empty());
    head.push(b"HTTP/1.0 200 OK\r\n\r\n");
    assert_eq!(head.parse(&LIMITS), Ok(Progress::Complete));
    assert_eq!((head.version(), head.status_line()), (Version::HTTP_10, &b"200 OK"[..]));
}

#[test]
fn interim_responses_come_first() {
    let mut head = OriginHead::new();
    head.push(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nX: y\r\n\r\nbody");
    let mut seen_values = Vec::new();
    loop {
        assert_eq!(head.parse(&LIMITS), Ok(Progress::Complete));
        seen_values.push((head.status(), head.field("Link").is_some()));
        if !head.is_interim() {
            break;
        }
        head.next_response();
    }
    assert_eq!(seen_values, [(100, false), (103, true), (200, false)]);
    assert_eq!((head.field("X"), head.rest()), (Some(&b"y"[..]), &b"body"[..]));
    assert!(!OriginHead::new().is_interim());
}

#[test]
fn head_is_split_from_read_bytes() {
    let sent: &[u8] = b"HTTP/1.1 103 x\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nX: y\r\n\r\nbody";
    let first_len = 16 + 9 + 2;
    for at in 0..=sent.len() {
        let (first, second) = sent.split_at(at);
        let mut head = OriginHead::new();
        let mut seen_values = Vec::new();
        let mut body = Vec::new();
        for piece in [first, second] {
            let mut input = Bytes::copy_from_slice(piece);
            while !input.is_empty() {
                if seen_values.last() == Some(&200) {
                    body.extend_from_slice(&std::mem::take(&mut input));
                    break;
                }
                match head.feed(&mut input, &LIMITS) {
                    Ok(Progress::NeedMore) => assert!(input.is_empty()),
                    Ok(Progress::Complete) => {
                        assert!(head.rest().is_empty());
                        seen_values.push(head.status());
                        if head.is_interim() {
                            assert_eq!(head.head_len(), first_len);
                            head.next_response();
                        }
                    }
                    Err(error) => panic!("{error:?} at {at}"),
                }
            }
        }
        assert_eq!((seen_values, body.as_slice()), (vec![103, 200], &b"body"[..]), "{at}");
        assert_eq!(head.field("X"), Some(&b"y"[..]), "{at}");
    }

    // For a head that is one byte too long, and for bytes that are no head at all, no byte is lost.
    let mut head = OriginHead::new();
    let mut input = Bytes::from_static(b"HTTP/1.1 200 OK\r\n\r\n");
    let limits = OriginLimits::of_size(18);
    assert_eq!(head.feed(&mut input, &limits), Err(OriginError::TooBigHeader));
    let mut head = OriginHead::new();
    let mut input = Bytes::from_static(b"HT");
    assert_eq!(head.feed(&mut input, &limits), Ok(Progress::NeedMore));
    let mut input = Bytes::from_static(b"ML, and more than a head may have");
    assert_eq!(head.feed(&mut input, &limits), Err(OriginError::NoStatusLine));
    assert_eq!([head.rest(), &input].concat(), b"HTML, and more than a head may have");
}

#[test]
fn number_of_interim_responses_is_limited() {
    let mut head = OriginHead::new();
    for _ in 0..INTERIM_MAX {
        head.push(b"HTTP/1.1 102 Processing\r\n\r\n");
        assert_eq!(head.parse(&LIMITS), Ok(Progress::Complete));
        head.next_response();
    }
    assert!(head.capacity() < 1000 && !head.is_empty());
    head.push(b"HTTP/1.1 102 Processing\r\n\r\n");
    let error = head.parse(&LIMITS);
    assert_eq!(error, Err(OriginError::TooManyInterim));
    assert_eq!(described(&head, error), "upstream sent too many interim responses");
    head.clear();
    head.push(b"HTTP/1.1 102 Processing\r\n\r\n");
    assert_eq!(head.parse(&LIMITS), Ok(Progress::Complete));
}

fn parsed(line: &str, fields: &str) -> OriginHead {
    let mut head = OriginHead::new();
    head.push(format!("{line}\r\n{fields}\r\n").as_bytes());
    assert_eq!(head.parse(&LIMITS), Ok(Progress::Complete), "{line} {fields}");
    head
}

#[test]
fn framing_rfc9112_section_6_3() {
    use ResponseFraming::{Chunked, Close, Length, None, Tunnel};
    let length = "Content-Length: 7\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n";
    let table = [
        (Method::Get, "HTTP/1.1 200 OK", "", Close),
        (Method::Get, "HTTP/1.1 200 OK", length, Length(7)),
        (Method::Get, "HTTP/1.1 200 OK", "Content-Length: 0\r\n", Length(0)),
        (Method::Get, "HTTP/1.1 200 OK", "Content-Length: 9223372036854775807\r\n", Length(i64::MAX as u64)),
        (Method::Get, "HTTP/1.1 200 OK", chunked, Chunked),
        (Method::Get, "HTTP/1.1 404 No", length, Length(7)),
        (Method::Head, "HTTP/1.1 200 OK", length, None),
        (Method::Head, "HTTP/1.1 200 OK", chunked, None),
        (Method::Head, "HTTP/1.1 200 OK", "", None),
        (Method::Get, "HTTP/1.1 204 No", "", None),
        (Method::Get, "HTTP/1.1 204 No", length, None),
        (Method::Get, "HTTP/1.1 304 Not", length, None),
        (Method::Get, "HTTP/1.1 304 Not", chunked, None),
        (Method::Get, "HTTP/1.1 103 Hints", length, None),
        (Method::Get, "HTTP/1.1 101 Switch", length, Tunnel),
        (Method::Head, "HTTP/1.1 101 Switch", "", Tunnel),
        (Method::Connect, "HTTP/1.1 200 OK", length, Tunnel),
        (Method::Connect, "HTTP/1.1 204 OK", "", Tunnel),
        (Method::Connect, "HTTP/1.1 403 No", length, Length(7)),
        (Method::Other, "HTTP/1.0 200 OK", "", Close),
    ];
    for (method, line, fields, expected) in table {
        assert_eq!(parsed(line, fields).framing(method), expected, "{method:?} {line} {fields}");
    }
    assert_eq!(parsed("HTTP/1.1 200 OK", length).content_length(), Some(7));
    assert_eq!(parsed("HTTP/1.1 200 OK", chunked).content_length(), Option::None);
}

#[test]
fn connections_that_can_be_used_again() {
    let length = "Content-Length: 7\r\n";
    let table = [
        (Method::Get, "HTTP/1.1 200 OK", length, "", true),
        (Method::Get, "HTTP/1.1 200 OK", "Transfer-Encoding: chunked\r\n", "", true),
        (Method::Get, "HTTP/1.1 200 OK", "", "", false),
        (Method::Get, "HTTP/1.1 200 OK", length, "Connection: close\r\n", false),
        (Method::Get, "HTTP/1.1 200 OK", length, "Connection: X, Close\r\n", false),
        (Method::Get, "HTTP/1.1 200 OK", length, "Connection: close\r\nConnection: keep-alive\r\n", false),
        (Method::Get, "HTTP/1.1 200 OK", length, "Connection: keep-alive\r\n", true),
        (Method::Get, "HTTP/1.0 200 OK", length, "Connection: keep-alive\r\n", false),
        (Method::Get, "HTTP/1.0 200 OK", length, "", false),
        (Method::Head, "HTTP/1.1 200 OK", "", "", true),
        (Method::Get, "HTTP/1.1 304 Not", length, "", true),
        (Method::Get, "HTTP/1.1 204 No", "", "", true),
        (Method::Get, "HTTP/1.1 204 No", "Content-Length: 0\r\n", "", true),
        (Method::Get, "HTTP/1.1 204 No", length, "", false),
        (Method::Get, "HTTP/1.1 204 No", "Transfer-Encoding: chunked\r\n", "", false),
        (Method::Get, "HTTP/1.1 101 Switch", "", "", false),
        (Method::Connect, "HTTP/1.1 200 OK", length, "", false),
    ];
    for (method, line, framing, connection, expected) in table {
        let head = parsed(line, &[framing, connection].concat());
        assert_eq!(head.keeps_alive(method), expected, "{method:?} {line} {framing} {connection}");
    }
}

/// Result of decoding a body: data, whether it ended, the rest, trailers; or the log line.
type Body = Result<(Vec<u8>, bool, usize, Vec<String>), String>;

fn decoded(framing: ResponseFraming, trailers: Option<usize>, pieces: &[&[u8]]) -> Body {
    let mut decoder = BodyDecoder::new(framing, trailers);
    let mut data = Vec::new();
    let mut rest = Vec::new();
    for piece in pieces {
        rest.extend_from_slice(piece);
        loop {
            let (used, found_piece) =
                decoder.decode(&rest).map_err(|error| decoder.error_text(error).to_string())?;
            if let Piece::Data(range) = &found_piece {
                assert!(!range.is_empty() && range.end == used);
                data.extend_from_slice(&rest[range.clone()]);
            }
            rest.drain(..used);
            match found_piece {
                Piece::Data(_) => {}
                Piece::NeedMore => {
                    assert!(rest.is_empty());
                    break;
                }
                Piece::End => {
                    assert!(decoder.is_done());
                    break;
                }
            }
        }
    }
    let mut fields = Vec::new();
    if let Some(trailers) = decoder.take_trailers() {
        fields.extend(
            trailers.iter().map(|(name, value)| [name, b"=", value].concat().escape_ascii().to_string()),
        );
    }
    Ok((data, decoder.is_done(), rest.len(), fields))
}

#[test]
fn bodies() {
    use ResponseFraming::{Chunked, Close, Length, None, Tunnel};
    let body = |data: &str, done, remaining, trailers: &[&str]| {
        Ok((data.as_bytes().to_vec(), done, remaining, trailers.iter().map(|&one| one.to_owned()).collect()))
    };
    let error = |text: &str| Err(text.to_owned());
    let table: &[(ResponseFraming, Option<usize>, &str, Body)] = &[
        (None, Option::None, "", body("", true, 0, &[])),
        (None, Option::None, "x", body("", true, 1, &[])),
        (Tunnel, Option::None, "x", body("", true, 1, &[])),
        (Length(0), Option::None, "x", body("", true, 1, &[])),
        (Length(3), Option::None, "ab", body("ab", false, 0, &[])),
        (Length(3), Option::None, "abc", body("abc", true, 0, &[])),
        (Length(3), Option::None, "abcde", body("abc", true, 2, &[])),
        (Length(u64::MAX), Option::None, "abcde", body("abcde", false, 0, &[])),
        (Close, Option::None, "0\r\n\r\n", body("0\r\n\r\n", false, 0, &[])),
        (Chunked, Option::None, "2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\nX", body("abc", true, 1, &[])),
        (Chunked, Option::None, "0\r\nX: y\r\n\r\nab", body("", true, 2, &[])),
        (Chunked, Option::None, "2\r\nab\r\n0\r\n", body("ab", false, 0, &[])),
        (Chunked, Option::None, "2\nab\r\n0\r\n\r\n", error("upstream sent invalid chunked response")),
        (Chunked, Option::None, "x", error("upstream sent invalid chunked response")),
        (Chunked, Some(99), "0\r\n\r\n", body("", true, 0, &[])),
        (Chunked, Some(99), "1\r\na\r\n0\r\nX: y\r\nZ-w:v\r\n\r\nab", body("a", true, 2, &["X=y", "Z-w=v"])),
        (Chunked, Some(99), "0\r\nX: y\n\nab", body("", true, 2, &["X=y"])),
        (Chunked, Some(99), "0\r\nContent-Length: 9\r\nX: y\r\nHost: a\r\n\r\n", body("", true, 0, &["X=y"])),
        (Chunked, Some(99), "0\r\nX: y\r\n", body("", false, 0, &[])),
        (Chunked, Some(8), "0\r\nX: y\r\n\r\n", body("", true, 0, &["X=y"])),
        (Chunked, Some(7), "0\r\nX: y\r\n\r\n", error("upstream sent too big trailers")),
        (Chunked, Some(99), "0\r\nX: y\r\n z\r\n\r\n", error("upstream sent invalid trailer: \"\\x20...\"")),
        (Chunked, Some(99), "0\r\nX y\r\n\r\n", error("upstream sent invalid trailer: \"X\\x20...\"")),
        (Chunked, Some(99), "0\r\nX: y\0\r\n\r\n", error("upstream sent invalid trailer: \"X: y\\x00...\"")),
        (Chunked, Some(99), "0\r\nX: y\rz\r\n\r\n", error("upstream sent invalid trailer: \"X: y\\x0d...\"")),
    ];
    for (framing, trailers, input, expected) in table {
        let name = format!("{framing:?} {trailers:?} {input:?}");
        assert_eq!(decoded(*framing, *trailers, &[input.as_bytes()]), *expected, "{name}");
        for at in 0..input.len() {
            let (first, second) = input.as_bytes().split_at(at);
            assert_eq!(decoded(*framing, *trailers, &[first, second]), *expected, "{name} at {at}");
        }
        let bytes: Vec<&[u8]> = input.as_bytes().chunks(1).collect();
        assert_eq!(decoded(*framing, *trailers, &bytes), *expected, "{name} byte by byte");
    }
}

#[test]
fn the_origin_closes() {
    use ResponseFraming::{Chunked, Close, Length, None};
    for (framing, input, expected) in [
        (None, "", Ok(())),
        (Close, "", Ok(())),
        (Close, "abc", Ok(())),
        (Length(3), "abc", Ok(())),
        (Length(3), "ab", Err(BodyError::PrematureClose)),
        (Length(3), "", Err(BodyError::PrematureClose)),
        (Chunked, "1\r\na\r\n0\r\n\r\n", Ok(())),
        (Chunked, "1\r\na\r\n", Err(BodyError::PrematureClose)),
        (Chunked, "1\r\na\r\n0\r\n", Err(BodyError::PrematureClose)),
        (Chunked, "1\r\na\r\n0\r\nX: y\r\n", Err(BodyError::PrematureClose)),
        (Chunked, "", Err(BodyError::PrematureClose)),
    ] {
        for trailers in [Option::None, Some(99)] {
            let mut decoder = BodyDecoder::new(framing, trailers);
            let mut input = input.as_bytes();
            while let (used, Piece::Data(_)) = decoder.decode(input).unwrap() {
                input = &input[used..];
            }
            assert_eq!(decoder.close(), expected, "{framing:?} {input:?}");
            assert_eq!(decoder.is_done(), expected.is_ok());
            assert!(!decoder.is_done() || decoder.decode(b"x") == Ok((0, Piece::End)));
        }
    }
    let decoder = BodyDecoder::new(Length(1), Option::None);
    let text = |error| decoder.error_text(error).to_string();
    assert_eq!(text(BodyError::PrematureClose), "upstream prematurely closed connection");
    assert_eq!(
        text(BodyError::Chunked(ChunkError::TooMuchOverhead)),
        "upstream sent too long chunk extensions or trailers"
    );
}

#[test]
fn remaining_and_excess_bytes() {
    let mut decoder = BodyDecoder::new(ResponseFraming::Length(10), None);
    assert_eq!(decoder.remaining(), 10);
    assert_eq!(decoder.decode(b"abc"), Ok((3, Piece::Data(0..3))));
    assert_eq!(decoder.remaining(), 7);
    assert_eq!(decoder.excess(), "upstream sent more data than specified in \"Content-Length\" header");

    let mut decoder = BodyDecoder::new(ResponseFraming::Chunked, None);
    assert_eq!(decoder.decode(b"a\r\nabc"), Ok((6, Piece::Data(3..6))));
    assert_eq!(decoder.remaining(), 7);
    assert_eq!(decoder.excess(), "upstream sent data after final chunk");
}

#[test]
fn shared_input_is_not_copied() {
    let whole = Bytes::from_static(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nrest");
    let mut input = whole.clone();
    let mut decoder = BodyDecoder::new(ResponseFraming::Chunked, None);
    let mut bytes = Vec::new();
    while let Some(piece) = decoder.take(&mut input).unwrap() {
        assert!(whole.as_ptr_range().contains(&piece.as_ptr()));
        bytes.push(piece);
    }
    assert_eq!(bytes, [&b"abc"[..], b"de"]);
    assert!(decoder.is_done());
    assert_eq!(input, b"rest"[..]);
}

/// Results for heads without a status line: status, rest, number of fields, or the log line.
#[test]
fn heads_of_applications() {
    let read = |start: HeadStart, pieces: &[&[u8]]| {
        let mut head = OriginHead::new();
        head.begin_with(start);
        let mut result = Ok(Progress::NeedMore);
        for piece in pieces {
            if result == Ok(Progress::NeedMore) {
                head.push(piece);
                result = head.parse(&LIMITS);
            }
        }
        match result {
            Ok(Progress::Complete) => {
                let line = String::from_utf8_lossy(head.status_line()).into_owned();
                format!("{} {line:?} {} {:?}", head.status(), head.field_count(), head.framing(Method::Get))
            }
            Ok(Progress::NeedMore) => "more".to_owned(),
            Err(error) => head.error_text(error).to_string(),
        }
    };
    for (text, of_fields, of_either) in [
        ("A: b\r\n\r\n", "200 \"\" 1 Close", "200 \"\" 1 Close"),
        ("\n", "200 \"\" 0 Close", "200 \"\" 0 Close"),
        ("Status: 404 Gone Away\r\n\r\n", "404 \"404 Gone Away\" 1 Close", "404 \"404 Gone Away\" 1 Close"),
        ("Status: 404\r\n\r\n", "404 \"\" 1 Close", "404 \"\" 1 Close"),
        ("Location: a\r\nContent-Length: 3\r\n\r\n", "302 \"\" 2 Length(3)", "302 \"\" 2 Length(3)"),
        ("Transfer-Encoding: chunked\r\n\r\n", "200 \"\" 1 Close", "200 \"\" 1 Close"),
        ("Status: 204\r\n\r\n", "204 \"\" 1 None", "204 \"\" 1 None"),
        (
            "Status: 103\r\n\r\n",
            "upstream sent invalid status \"103\"",
            "upstream sent invalid status \"103\"",
        ),
        (
            "Status: 200OK\r\n\r\n",
            "upstream sent invalid status \"200OK\"",
            "upstream sent invalid status \"200OK\"",
        ),
        ("Status:\r\n\r\n", "upstream sent invalid status \"\"", "upstream sent invalid status \"\""),
        ("Status", "more", "more"),
        ("HT", "more", "more"),
        (
            "HTTP/1.1 201 Made\r\nA: b\r\n\r\n",
            "upstream sent invalid header: \"HTTP/1.1\\x20...\"",
            "201 \"201 Made\" 1 Close",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "upstream sent invalid header: \"HTTP/1.1\\x20...\"",
            "200 \"200 OK\" 1 Close",
        ),
        (
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
            "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
        ),
    ] {
        for (start, expected) in [(HeadStart::Fields, of_fields), (HeadStart::Either, of_either)] {
            let bytes = text.as_bytes();
            assert_eq!(read(start, &[bytes]), expected, "{text} {start:?}");
            for at in 0..bytes.len() {
                let (first, second) = bytes.split_at(at);
                assert_eq!(read(start, &[first, second]), expected, "{text} {start:?} split at {at}");
            }
        }
    }
}
