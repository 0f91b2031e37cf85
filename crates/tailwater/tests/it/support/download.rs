//! Downloads that are under way, of a file that no socket buffer takes as a whole.

use tw_testkit::server::Builder;
use tw_testkit::{Client, Server};

use super::server;

/// Size of `/large`.
pub(crate) const LARGE: usize = 24 << 20;

/// A server with the files `/large` and `/small`.
pub(crate) fn with_large_file() -> Builder {
    server().file("html/large", vec![b'x'; LARGE]).file("html/small", "small")
}

/// Begins a download of `/large` and leaves it in the middle.
pub(crate) fn begin_download(server: &Server) -> Client {
    let mut client = server.connect().unwrap();
    client.send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().field("Content-Length"), Some(&*LARGE.to_string()));
    client
}
