//! One stream as a request: head and body in, and the end of the stream after the response.

use std::rc::Rc;

use tw_http::Priority;
use tw_http3::FieldSection;
use tw_net::Addr;

use super::Http3StreamHandle;
use crate::http::lifecycle::{self, ActiveRequest};
use crate::http::request::Request;
use crate::http::streams::request_head::{self, BAD_REQUEST};
use crate::http::streams::{BodyStream, Intent, StreamProtocol};
use crate::http::wire::Wire;

/// Serves the request whose head is `list`.
pub(super) async fn serve(stream: Rc<Http3StreamHandle>, list: FieldSection) {
    let client = stream.conn.client.clone();
    let mut active = ActiveRequest::new(&client, Wire::H3(stream.clone()));
    let r = active.request();
    r.begin();
    let peer = Addr::Inet(stream.conn.quic.peer());
    if peer != *client.peer() {
        r.set_moved_peer(peer);
    }
    let head = take_head(&stream, r, &list);
    drop(list);
    lifecycle::serve(r, head).await;
    stream.end(r.costs.sent.complete, r.out.status);
    active.finish(&client.home);
}

/// Moves the head into the request, and attaches the body. Returns the status of a malformed head as the error.
fn take_head(stream: &Rc<Http3StreamHandle>, r: &mut Request, list: &FieldSection) -> Result<(), u16> {
    let taken = request_head::take(r, list, StreamProtocol::H3);
    if let Some(priority) = r.head.field("Priority") {
        stream.set_priority(Priority::default().with(priority));
    }
    match taken {
        Ok(()) => match request_head::intent(list) {
            Intent::Answer => request_head::begin_body(BodyStream::H3(stream.clone()), r),
            intent @ Intent::Tunnel => stream.set_intent(intent),
        },
        Err(BAD_REQUEST) => stream.set_malformed(),
        Err(_) => {}
    }
    taken
}
