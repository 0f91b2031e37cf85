//! Requests of nobody: variables that are wanted where no client has asked for anything yet are evaluated for one.

use std::rc::Rc;

use tw_http::{HeadLimits, Progress, RequestHead};

use super::client::Client;
use super::generation::{PlanId, ServerId};
use super::request::Request;
use super::request_body::RequestBody;
use super::start;
use super::wire::Wire;

/// One for `uri`, which [`head`] takes, that goes by `plan` of `server`. To be given back to its loop.
pub(crate) fn request(client: &Rc<Client>, (server, plan): (ServerId, PlanId), uri: &[u8]) -> Box<Request> {
    let mut r = client.home.app.take_request();
    r.bind(client, Wire::Nobody);
    r.begin();
    (r.route.server, r.route.plan) = (server, plan);
    r.body = RequestBody::absent();
    // Who asks has looked at it.
    let _ = head(&mut r.head, uri);
    start::take_over(&mut r);
    r
}

/// Makes `head` that of a request for `uri`, as if a client had sent it. Whether there can be one.
pub(crate) fn head(head: &mut RequestHead, uri: &[u8]) -> bool {
    head.push(&[b"GET ", uri, b" HTTP/1.0\r\n\r\n"].concat());
    matches!(head.parse(&HeadLimits::default()), Ok(Progress::Complete)) && head.target() == uri
}
