//! Synthetic requests, for variables that are evaluated without a request of a client.

use std::rc::Rc;

use tw_http::{HeadLimits, Progress, RequestHead};

use super::start;
use tw_request::client::Client;
use tw_request::generation::{PlanId, ServerId};
use tw_request::request::{Request, RequestWire};
use tw_request::request_body::RequestBody;

/// Returns a request for `uri`, which [`head`] accepts, with `plan` of `server`. To be given back to its loop.
pub fn request(client: &Rc<Client>, (server, plan): (ServerId, PlanId), uri: &[u8]) -> Box<Request> {
    let mut r = client.event_loop.take_request();
    r.bind(client, RequestWire::NONE);
    r.begin();
    (r.route.server, r.route.plan) = (server, plan);
    r.body = RequestBody::absent();
    // Callers pass only a URI that `head` accepts.
    let _ = head(&mut r.head, uri);
    start::set_uri(&mut r);
    r
}

/// Makes `head` that of a request for `uri`. Returns false if `uri` cannot be one.
pub fn head(head: &mut RequestHead, uri: &[u8]) -> bool {
    head.push(&[b"GET ", uri, b" HTTP/1.0\r\n\r\n"].concat());
    matches!(head.parse(&HeadLimits::default()), Ok(Progress::Complete)) && head.target() == uri
}
