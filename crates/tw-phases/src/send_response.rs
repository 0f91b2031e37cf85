//! Sending of a response: filters, range, framing, then head and body through the wire.

use bytes::Bytes;
use tw_http::{HeaderName, range};

use super::prepare_response::{self, NotSatisfiable};
use crate::phases;
use tw_request::body::Body;
use tw_request::request::{After, Ranges, Request};

/// Filters, frames and sends a response; `r.costs.sent` and `r.state.after` tell how it went. `TIMED` is that of its caller.
pub(crate) async fn send<const TIMED: bool>(r: &mut Request, mut body: Body) {
    if r.state.after == After::Abort {
        return;
    }
    if r.plan().has_waits_before_filters() {
        body = Box::pin(run_waiting_steps(r, body)).await;
        if r.state.after == After::Abort {
            return;
        }
    }
    let own_fields = r.response.fields.len();
    let body = prepare_response::filter(r, body);
    let body = match prepare_response::part(r, body) {
        Ok(body) => body,
        Err(NotSatisfiable(length)) => {
            r.response.fields.truncate(own_fields);
            Box::pin(not_satisfiable(r, length)).await
        }
    };
    if r.state.after == After::Abort {
        return;
    }
    r.response.content_length = body.len();
    r.response.remove_framing_fields();
    let wire = r.wire().clone();
    wire.send(r, body).await;
}

/// Runs the filters of whole bodies and the steps before the header filters.
async fn run_waiting_steps(r: &mut Request, body: Body) -> Body {
    let body = filter_whole_bodies(r, body).await;
    if r.state.after == After::Abort { body } else { run_response_steps(r, body).await }
}

/// Runs the steps before the header filters. A response that one of them refuses is replaced, and the page is sent as it is.
pub(super) async fn run_response_steps(r: &mut Request, mut body: Body) -> Body {
    let generation = r.generation().clone();
    for step in generation.plan(r.route.plan).response_steps() {
        match step.run(r, body).await {
            Ok(filtered) => body = filtered,
            Err(status) => return phases::replace_response(r, status).await,
        }
    }
    body
}

/// Lets the filters of whole bodies see the response. If one refuses that, and the error page comes from another location, the
/// filters of that one see the page: once, because a page for its refusal could come from anywhere.
async fn filter_whole_bodies(r: &mut Request, mut body: Body) -> Body {
    let generation = r.generation().clone();
    for _ in 0..2 {
        let plan = r.route.plan;
        let mut refused = None;
        for filter in generation.plan(plan).whole_body_filters() {
            match filter.filter(r, body).await {
                Ok(filtered) => body = filtered,
                Err(status) => {
                    body = Body::Empty;
                    refused = Some(status);
                    break;
                }
            }
        }
        let Some(status) = refused else { break };
        body = phases::replace_response(r, status).await;
        if r.route.plan == plan || r.state.after == After::Abort {
            break;
        }
    }
    body
}

/// The response to a range that is not there. Its own ranges are of no interest to anybody.
async fn not_satisfiable(r: &mut Request, length: u64) -> Body {
    let mut field = Vec::new();
    range::push_unsatisfied_range(length, &mut field);
    r.response.fields.set(HeaderName::ContentRange, Bytes::from(field));
    prepare_response::remove_description(r);
    let body = phases::replace_response(r, 416).await;
    r.state.ranges = Ranges::NotSatisfiable;
    prepare_response::filter(r, body)
}
