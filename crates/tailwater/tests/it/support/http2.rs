//! HTTP/2 on a plain port, with prior knowledge.

use tw_testkit::Server;
use tw_testkit::http2::{END_HEADERS, Http2, frame, hpack, kind};

use super::{server, start_server};

/// Starts a server that speaks HTTP/2, with `/a.txt` and with `content` in its `server` block.
pub(crate) fn start_http2(content: &str) -> Server {
    start_server(server().file("html/a.txt", "hello"), &format!("http2 on; {content}"))
}

pub(crate) fn connect(server: &Server) -> Http2 {
    Http2::connect(server.addr()).unwrap()
}

/// Head of a `POST` whose content is to come.
pub(crate) fn post_frame(stream: u32, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let pseudo = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")];
    frame(kind::HEADERS, END_HEADERS, stream, &hpack(&[&pseudo, fields].concat()))
}
