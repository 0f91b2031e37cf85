//! Entry of the engine: sends a request to a group and answers the client.

use std::pin::pin;

use tw_http::Method;
use tw_log::Level;

use super::attempt::PendingAttempt;
use super::codec::Codec;
use super::response;
use super::retry::{NoResponse, try_upstreams};
use super::sticky;
use super::upstream_request::UpstreamRequest;
use crate::http::plan::Outcome;
use crate::http::request::Request;

/// Sends `request` to servers until one responds, and answers the client with the response. Waits for the servers, and for the
/// client's body.
pub async fn pass<C: Codec + Clone>(r: &mut Request, mut request: UpstreamRequest<'_, C>) -> Outcome {
    // DIFF(nginx): a client that asks for a tunnel asks no server behind this one for something.
    if r.method() == Method::Connect && !request.codec.opens_at_once() {
        return Outcome::Status(405);
    }
    r.facts.upstream.url = Some(request.url.clone());
    let lookup = request.lookup.take();
    // A response that is stored serves other clients, too.
    let is_for_others = lookup.as_ref().is_some_and(|lookup| lookup.leads());
    let mut pending = None;
    // DIFF(nginx): a client that closes its side right behind a body which is not buffered is gone, too.
    let tried = if request.settings.ignore_client_abort || is_for_others {
        Ok(try_upstreams(r, &request, &mut pending).await)
    } else {
        let wire = r.wire().clone();
        // By reference: the waiting future holds it only once.
        wire.unless_gone(pin!(try_upstreams(r, &request, &mut pending))).await
    };
    sticky::set_cookie(r);
    match tried {
        Ok(Ok(exchange)) => response::respond(r, request.settings, request.rewrite, exchange, lookup),
        Ok(Err(NoResponse { status, failure })) => {
            match lookup.and_then(|lookup| lookup.instead(r, &request.settings.cache, failure)) {
                Some(ready) => response::ready(r, request.settings, request.rewrite, ready),
                None => Outcome::Status(status),
            }
        }
        Err(gone) => {
            if let Some(pending) = pending {
                pending.give_up(r);
            }
            if let Some(attempt) = r.facts.upstream.current() {
                attempt.end();
            }
            r.log(Level::Info, format_args!("{gone}, so upstream connection is closed too"));
            Outcome::Status(499)
        }
    }
}
