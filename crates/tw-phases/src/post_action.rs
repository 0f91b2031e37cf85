//! `post_action`: a further location for the request after its response was sent (nginx: ngx_http_post_action).
//!
//! The request goes on in another location, whose variables describe the response that was sent; the response of that location is discarded.
//! The access log is written behind it, by that location. The connection waits for it.

use super::phases;
use crate::background_subrequest;
use tw_request::plan::Outcome;
use tw_request::request::{ErrorPages, Request};
use tw_request::request_body::RequestBody;

// DIFF(nginx): a location that runs so has no such action of its own, the body of the request is not sent again, and what
// the access log says of the response is what its client got.
/// Runs the action of the location that has answered `r`, if there is one.
pub(crate) async fn run(r: &mut Request) {
    let Some(target) = r.plan().core.post_action.clone() else { return };
    r.debug(format_args!("post action: \"{}\"", tw_log::Text(&target)));
    let wire = r.leave_client();
    let body = std::mem::replace(&mut r.body, RequestBody::absent());
    let out = r.response.clone();
    let sent = r.costs.sent;
    let after = r.state.after;
    let error_status = r.state.error_status.take();
    r.state.error_pages = ErrorPages::Allowed;
    r.state.after = after.or_close();
    let action = match target.first() {
        Some(b'/') => Outcome::Redirect { path: target.to_vec(), args: Vec::new() },
        _ => Outcome::Named(target.to_vec().into()),
    };
    let answer = phases::follow(r, action).await;
    background_subrequest::discard(answer, r).await;
    (r.response, r.costs.sent, r.state.after) = (out, sent, after);
    r.state.error_status = error_status;
    r.body = body;
    r.return_to(wire);
}
