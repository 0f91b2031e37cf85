//! Body of a request between its head and the next one on the connection.

use std::rc::Rc;

use tw_http::Framing;

use super::Http1Connection;
use super::input::Http1Body;
use tw_request::request::Request;
use tw_request::request_body::{IncomingBody, Source};

/// Attaches the body that follows the head, of which a part may have arrived with the head.
pub fn begin_body(conn: &Rc<Http1Connection>, r: &mut Request) {
    let framing = r.head.framing();
    if framing == Framing::None {
        return;
    }
    let came = r.head.rest().to_vec();
    let len = came.len();
    if let Some(input) = Http1Body::new(conn, framing, r.head.expect_continue(), came) {
        r.head.consume(len);
        r.body.begin(Source::Client(IncomingBody::new(input)));
    }
}

/// Returns the bytes received behind the body to the reader of the next head.
pub(super) fn end_body(r: &mut Request) {
    if let Some(Source::Client(body)) = r.body.finished() {
        r.head.push(&body.take_rest());
    }
}
