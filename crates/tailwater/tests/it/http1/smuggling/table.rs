//! Known variants of request smuggling: the bytes that a client sends, and the requests in them for the origin.

/// Request that the attack tries to smuggle.
pub(super) const MARKER: &str = "GET /marker HTTP/1.1\r\nHost: a\r\n\r\n";
/// Beginning of the marker in a valid request of its own.
const SECOND: &str = "GET /marker ";

/// Field lines with ambiguous framing for some reader: each is refused, whatever follows it.
const FRAMINGS: &[&str] = &[
    // Both fields, in any order and spelling.
    "Content-Length: 6\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nContent-Length: 6",
    "Content-Length: 0\r\nTransfer-Encoding: chunked",
    "Content-Length: 6\r\nTransfer-Encoding: identity",
    "content-length: 5\r\ntransfer-encoding: CHUNKED",
    "Transfer-Encoding: chunked\r\nX: y\r\nCONTENT-LENGTH: 5",
    // Several lengths, equal or not.
    "Content-Length: 5\r\nContent-Length: 5",
    "Content-Length: 5\r\nContent-Length: 0",
    "Content-Length: 0\r\nContent-Length: 5",
    "Content-Length: 5, 5",
    "Content-Length: 5, 0",
    "Content-Length: 5,5",
    "Content-Length: 0 5",
    // Lengths that are no numbers, or too large ones.
    "Content-Length: +5",
    "Content-Length: -5",
    "Content-Length: 0x5",
    "Content-Length: 5.0",
    "Content-Length: 5e0",
    "Content-Length: 5;",
    "Content-Length: \"5\"",
    "Content-Length: 5\t",
    "Content-Length:\t5",
    "Content-Length: 5\u{b}",
    "Content-Length: \u{b}5",
    "Content-Length: five",
    "Content-Length:",
    "Content-Length: ",
    "Content-Length: 18446744073709551616",
    "Content-Length: 18446744073709551621",
    "Content-Length: 9223372036854775808",
    "Content-Length: 4294967296000000000000",
    // Names that are not quite one.
    "Content-Length : 5",
    "Content-Length\t: 5",
    " Content-Length: 5",
    "Content-Length\u{b}: 5",
    "Content-Length\0: 5",
    "X: y\r\n Content-Length: 5",
    "X: y\r\n\tTransfer-Encoding: chunked",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding\t: chunked",
    " Transfer-Encoding: chunked",
    "\tTransfer-Encoding: chunked",
    "\u{b}Transfer-Encoding: chunked",
    "Transfer-Encoding\u{c}: chunked",
    // Folded values.
    "Content-Length:\r\n 5",
    "Transfer-Encoding:\r\n chunked",
    "Transfer-Encoding:\r\n\tchunked",
    "Transfer-Encoding: x\r\n chunked",
    // Codings that are not quite the one.
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunkedx",
    "Transfer-Encoding: chunk",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding: 'chunked'",
    "Transfer-Encoding: [chunked]",
    "Transfer-Encoding: chunked;q=1",
    "Transfer-Encoding: chunked,",
    "Transfer-Encoding: ,chunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked, gzip",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: gzip",
    "Transfer-Encoding: cow",
    "Transfer-Encoding:",
    "Transfer-Encoding: \u{b}chunked",
    "Transfer-Encoding: chunked\u{b}",
    "Transfer-Encoding: \u{c}chunked",
    "Transfer-Encoding: \u{a0}chunked",
    "Transfer-Encoding: chun\u{212a}ed",
    "Transfer-Encoding:\tchunked",
    "Transfer-Encoding: chunked\t",
    "Transfer-Encoding: chunked\0",
    "Transfer-Encoding: chunked\r",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: cow\r\nTransfer-Encoding: chunked",
    // Lines hidden in lines.
    "X: y\rContent-Length: 5",
    "X: y\r\rContent-Length: 5",
    "X: y\rTransfer-Encoding: chunked",
    "X: y\0\r\nContent-Length: 5",
    "X\rTransfer-Encoding: chunked",
    "X: y\r\n\rTransfer-Encoding: chunked",
    // A request has exactly one Host field.
    "Host: b\r\nContent-Length: 5",
    "Host : b",
    "Content-Length: 5\r\nhost: a",
];

/// Chunked bodies that some reader could parse differently: none is ever complete for the origin.
const CHUNKS: &[&str] = &[
    "x\r\n",
    "\r\n5\r\nhello\r\n0\r\n\r\n",
    " 5\r\nhello\r\n0\r\n\r\n",
    "+5\r\nhello\r\n0\r\n\r\n",
    "-5\r\nhello\r\n0\r\n\r\n",
    "0x5\r\nhello\r\n0\r\n\r\n",
    "5 5\r\nhello\r\n0\r\n\r\n",
    "5,\r\nhello\r\n0\r\n\r\n",
    "5\u{b}\r\nhello\r\n0\r\n\r\n",
    "5\0\r\nhello\r\n0\r\n\r\n",
    "5\r\r\nhello\r\n0\r\n\r\n",
    "5\rhello\r\n0\r\n\r\n",
    "5\r\nhellox\r\n0\r\n\r\n",
    "5\r\nhello0\r\n\r\n",
    "5\r\nhelloxx0\r\n\r\n",
    "5\r\nhello\r0\r\n\r\n",
    "4\r\nhello\r\n0\r\n\r\n",
    "6\r\nhello\r\n0\r\n\r\n",
    "10000000000000005\r\nhello\r\n0\r\n\r\n",
    "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "8000000000000000\r\nhello\r\n0\r\n\r\n",
    "5;x\nhello\r\n0\r\n\r\n",
    "5;x\n\r\nhello\r\n0\r\n\r\n",
    "5\nhello\r\n0\r\n\r\n",
    "5\nhello\n0\n\n",
    "5\r\nhello\n0\r\n\r\n",
    "5\r\nhello\r\n0\n\r\n",
    "5\r\nhello\r\n0\r\n\n",
    "5\r\nhello\r\n0\r\nX: y\n\r\n",
    "5;\0\r\nhello\r\n0\r\n\r\n",
    "5;a\rb\r\nhello\r\n0\r\n\r\n",
    "5;a=b\rhello\r\n0\r\n\r\n",
    "5\r\nhello\r\n0\r\nX: y\rZ: z\r\n\r\n",
    "5\r\nhello\r\n0\r\n\0\r\n\r\n",
    "5\r\nhello\r\n-0\r\n\r\n",
    "5\r\nhello\r\n0x0\r\n\r\n",
    "5\r\nhello\r\n",
    "5\r\nhel",
];

/// Odd heads, and the requests that the origin gets: `METHOD target host body`, a line each.
const WHOLE: &[(&str, &[&str])] = &[
    // Pipelined requests are forwarded as separate requests.
    (
        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /marker HTTP/1.1\r\nHost: a\r\n\r\n",
        &["GET /1 a ", "GET /marker a "],
    ),
    ("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n@", &["POST /1 a ", SECOND]),
    ("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello@", &["POST /1 a hello", SECOND]),
    ("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 00005\r\n\r\nhello@", &["POST /1 a hello", SECOND]),
    ("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length:5 \r\n\r\nhello@", &["POST /1 a hello", SECOND]),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 33\r\n\r\n@",
        &["POST /1 a GET /marker HTTP/1.1\r\nHost: a\r\n\r\n"],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n@",
        &["POST /1 a hello", SECOND],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED \r\n\r\n5\r\nhello\r\n0\r\n\r\n@",
        &["POST /1 a hello", SECOND],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n21\r\n@\r\n0\r\n\r\n",
        &["POST /1 a GET /marker HTTP/1.1\r\nHost: a\r\n\r\n"],
    ),
    // Bodies where few expect one.
    ("GET /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello@", &["GET /1 a hello", SECOND]),
    (
        "GET /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n@",
        &["GET /1 a hello", SECOND],
    ),
    ("HEAD /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello@", &["HEAD /1 a hello", SECOND]),
    (
        "DELETE /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 33\r\n\r\n@",
        &["DELETE /1 a GET /marker HTTP/1.1\r\nHost: a\r\n\r\n"],
    ),
    // Chunk extensions, trailers, and the chunk boundaries of the client are not forwarded.
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=\"y\r\n0\r\n\r\nhello\r\n0\r\n\r\n@",
        &[],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y;z\r\nhello\r\n0;q\r\n\r\n@",
        &["POST /1 a hello", SECOND],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5 ;x\r\nhello\r\n0\r\n\r\n@",
        &["POST /1 a hello", SECOND],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0000000005\r\nhello\r\n000\r\n\r\n@",
        &["POST /1 a hello", SECOND],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nContent-Length: 9\r\nTransfer-Encoding: x\r\nHost: b\r\n\r\n@",
        &["POST /1 a hello", SECOND],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nTrailer: Content-Length\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 33\r\n\r\n@",
        &["POST /1 a ", SECOND],
    ),
    // Hop-by-hop fields, and framing fields, which a client cannot make hop-by-hop by listing them in Connection.
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nConnection: Content-Length\r\nContent-Length: 5\r\n\r\nhello@",
        &["POST /1 a hello", SECOND],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nConnection: Transfer-Encoding, Host\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n@",
        &["POST /1 a hello", SECOND],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nProxy-Connection: keep-alive\r\nKeep-Alive: 1\r\nTE: chunked\r\nContent-Length: 5\r\n\r\nhello@",
        &["POST /1 a hello", SECOND],
    ),
    (
        "GET /1 HTTP/1.1\r\nHost: a\r\nContent_Length: 33\r\nTransfer_Encoding: chunked\r\n\r\n@",
        &["GET /1 a ", SECOND],
    ),
    (
        "GET /1 HTTP/1.1\r\nHost: a\r\nX-Content-Length: 33\r\nContent-Length-X: 33\r\n\r\n@",
        &["GET /1 a ", SECOND],
    ),
    // Attempts to switch to another protocol.
    (
        "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n@",
        &["GET /1 a ", SECOND],
    ),
    (
        "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 777\r\n\r\n@",
        &["GET /1 a ", SECOND],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: TLS/1.0\r\nContent-Length: 5\r\n\r\nhello@",
        &["POST /1 a hello", SECOND],
    ),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n@", &[]),
    ("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n@", &[]),
    ("CONNECT /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n@", &[]),
    ("TRACE /1 HTTP/1.1\r\nHost: a\r\n\r\n", &[]),
    // Versions.
    ("POST /1 HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n@", &[]),
    (
        "POST /1 HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n@",
        &[],
    ),
    (
        "POST /1 HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello@",
        &["POST /1 a hello", SECOND],
    ),
    ("POST /1 HTTP/1.0\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello@", &["POST /1 a hello"]),
    ("GET /1 HTTP/0.9\r\nHost: a\r\n\r\n@", &[]),
    ("GET /1 HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n@", &[]),
    ("GET /1 HTTP/2.0\r\nHost: a\r\n\r\n@", &[]),
    ("GET /1 HTTP/1.1\r\n\r\n@", &[]),
    (
        "POST /1 HTTP/1.2\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n@",
        &["POST /1 a hello", SECOND],
    ),
    // Targets and hosts.
    ("GET http://b/1 HTTP/1.1\r\nHost: a\r\n\r\n@", &["GET /1 b ", SECOND]),
    ("GET http://b HTTP/1.1\r\nHost: a\r\n\r\n@", &["GET / b ", SECOND]),
    ("GET http://b?/1 HTTP/1.1\r\nHost: a\r\n\r\n@", &["GET /?/1 b ", SECOND]),
    ("GET http://a@b/1 HTTP/1.1\r\nHost: a\r\n\r\n", &[]),
    ("GET /1 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n@", &[]),
    ("GET /1 HTTP/1.1\r\nHost: a, b\r\n\r\n@", &[]),
    ("GET /1 HTTP/1.1\r\nHost: a/b\r\n\r\n@", &[]),
    ("GET /1 HTTP/1.1\r\nHost: a\r\nX-Forwarded-Host: b\r\n\r\n@", &["GET /1 a ", SECOND]),
    (
        "GET /1%20HTTP/1.1%0d%0aX:%20y HTTP/1.1\r\nHost: a\r\n\r\n@",
        &["GET /1%20HTTP/1.1%0d%0aX:%20y a ", SECOND],
    ),
    ("GET /1\u{b}HTTP/1.1\r\nHost: a\r\n\r\n@", &[]),
    ("GET /1\rX: y HTTP/1.1\r\nHost: a\r\n\r\n@", &[]),
    ("GET /1\0 HTTP/1.1\r\nHost: a\r\n\r\n@", &[]),
    ("GET\u{b}/1 HTTP/1.1\r\nHost: a\r\n\r\n@", &[]),
    ("POST /1 HTTP/1.1\r\nContent-Length: 5\r\nHost: a\r\n\r\nhello@", &["POST /1 a hello", SECOND]),
    // Ends of lines: nginx takes LF for one.
    ("\r\n\r\nGET /1 HTTP/1.1\r\nHost: a\r\n\r\n\r\n@", &["GET /1 a ", SECOND]),
    ("GET /1 HTTP/1.1\nHost: a\n\n@", &["GET /1 a ", SECOND]),
    ("POST /1 HTTP/1.1\nHost: a\nContent-Length: 5\n\nhello@", &["POST /1 a hello", SECOND]),
    ("POST /1 HTTP/1.1\r\nHost: a\nContent-Length: 5\r\n\nhello@", &["POST /1 a hello", SECOND]),
    ("GET /1 HTTP/1.1\rHost: a\r\r@", &[]),
    ("GET /1 HTTP/1.1\r\nHost: a\r\n\r@", &[]),
    ("GET /1 HTTP/1.1\r\r\nHost: a\r\n\r\n@", &[]),
    ("GET /1 HTTP/1.1\r\nHost: a\r\n\u{b}\r\n@", &[]),
    // The body is awaited, or not.
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello@",
        &["POST /1 a hello", SECOND],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 33\r\n\r\n@",
        &["POST /1 a GET /marker HTTP/1.1\r\nHost: a\r\n\r\n"],
    ),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n@",
        &["POST /1 a ", SECOND],
    ),
    ("GET /1 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n@", &["GET /1 a ", SECOND]),
    ("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n@", &[]),
    (
        "POST /1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello@",
        &["POST /1 a hello"],
    ),
];

/// All variants: name, bytes sent, and requests that the origin gets.
pub(super) fn rows() -> Vec<(String, String, Vec<String>)> {
    let row = |sent: &str, expected: &[&str]| {
        let sent = sent.replace('@', MARKER);
        let expected = expected.iter().map(|one| if *one == SECOND { "GET /marker a " } else { one });
        (sent.escape_debug().to_string(), sent, expected.map(str::to_owned).collect())
    };
    let framings = FRAMINGS
        .iter()
        .map(|lines| row(&format!("POST /1 HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n0\r\n\r\n@"), &[]));
    let chunks = CHUNKS.iter().map(|body| {
        row(&format!("POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}@"), &[])
    });
    framings.chain(chunks).chain(WHOLE.iter().map(|(sent, expected)| row(sent, expected))).collect()
}
