//! One stream as a request: head and body in, and the end of the stream after the response.

use std::rc::Rc;

use tw_http2::FieldSection;

use super::StreamHandle;
use crate::http::lifecycle::{self, ActiveRequest};
use crate::http::request::Request;
use crate::http::streams::request_head::{self, BAD_REQUEST};
use crate::http::streams::{BodyStream, Intent, StreamProtocol};
use crate::http::wire::Wire;

/// Serves the request whose head is `list`.
pub(super) async fn serve(stream: Rc<StreamHandle>, list: FieldSection) {
    let client = stream.conn.client.clone();
    let mut active = ActiveRequest::new(&client, Wire::H2(stream.clone()));
    let r = active.request();
    r.begin();
    let head = take_head(&stream, r, &list);
    drop(list);
    lifecycle::serve(r, head).await;
    stream.end(r.costs.sent.complete, r.out.status);
    active.finish(&client.home);
}

/// Moves the head into the request, and attaches the body. Returns the status of a malformed head as the error.
fn take_head(stream: &Rc<StreamHandle>, r: &mut Request, list: &FieldSection) -> Result<(), u16> {
    let taken = request_head::take(r, list, StreamProtocol::H2);
    if let Some(priority) = r.head.field("Priority") {
        stream.priority().set_from_request(priority);
    }
    match taken {
        Ok(()) => match request_head::intent(list) {
            Intent::Answer => request_head::begin_body(BodyStream::H2(stream.clone()), r),
            intent @ Intent::Tunnel => stream.set_intent(intent),
        },
        Err(BAD_REQUEST) => stream.set_malformed(),
        Err(_) => {}
    }
    taken
}
