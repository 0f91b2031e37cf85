//! Entry points of the engine: a request to a group of servers, and a CONNECT tunnel to one of them.

use std::pin::pin;

use tw_connect::reading::READ_SIZE;
use tw_http::Method;
use tw_log::Level;

use super::codec::Codec;
use super::codec::connect_tunnel::ConnectTunnel;
use super::exchange::{Exchange, record_traffic};
use super::response_head::ResponseHead;
use super::retry::{NoResponse, try_upstreams};
use super::settings::ProxySettings;
use super::tunnel;
use super::upstream_request::UpstreamRequest;
use tw_http_cache::{self as cache, Lookup};
use tw_phases::forward_head::RewriteFields;
use tw_request::client_gone::ClientGone;
use tw_request::plan::Outcome;
use tw_request::request::{ConditionCheck, Request};
use tw_request::sticky;

/// Sends `request` to servers until one responds, and answers the client with the response, or with what the cache of `lookup`
/// has instead. Waits for the servers, and for the client's body.
pub async fn pass<C: Codec + Clone>(
    r: &mut Request,
    settings: &ProxySettings,
    rewrite: &dyn RewriteFields,
    lookup: Option<Box<Lookup>>,
    request: &UpstreamRequest<'_, C>,
) -> Outcome {
    // DIFF(nginx): only `tunnel_pass` takes CONNECT: a client that wants a tunnel wants no response of a server behind this one.
    if r.method() == Method::Connect {
        return Outcome::Status(405);
    }
    // A response that is stored serves other clients, too.
    let is_for_others = lookup.as_ref().is_some_and(|lookup| lookup.leads());
    let mut exchange = None;
    // DIFF(nginx): a client that closes its side right behind a body which is not buffered is gone, too.
    let tried = if settings.request.ignore_client_abort || is_for_others {
        Ok(try_upstreams(r, request, &mut exchange).await)
    } else {
        let wire = r.wire().clone();
        // The future is passed by reference, so that the waiting future holds it only once.
        wire.unless_gone(pin!(try_upstreams(r, request, &mut exchange))).await
    };
    sticky::set_cookie(r);
    match tried {
        Ok(Ok(())) => match exchange {
            Some(exchange) => {
                let head = ResponseHead::begin(r, settings, rewrite, exchange);
                head.decide(r, lookup).respond(r, settings)
            }
            None => Outcome::Status(502),
        },
        Ok(Err(NoResponse { status, failure })) => {
            match lookup.and_then(|lookup| lookup.replace_failure(r, &settings.cache, failure)) {
                Some(ready) => {
                    cache::serve_hit(r, &settings.cache, &settings.response.forward, rewrite, ready)
                }
                None => Outcome::Status(status),
            }
        }
        Err(client_gone) => end_cancelled(r, exchange, &client_gone),
    }
}

/// Connects to a server of the group of `request`, and answers CONNECT with a tunnel to it.
pub async fn open_tunnel(r: &mut Request, request: UpstreamRequest<'_, ConnectTunnel>) -> Outcome {
    let mut exchange = None;
    let wire = r.wire().clone();
    let tried = wire.unless_gone(pin!(try_upstreams(r, &request, &mut exchange))).await;
    sticky::set_cookie(r);
    match tried {
        Ok(Ok(())) => {}
        Ok(Err(NoResponse { status, .. })) => return Outcome::Status(status),
        Err(client_gone) => return end_cancelled(r, exchange, &client_gone),
    }
    let Some(exchange) = exchange else { return Outcome::Status(502) };
    r.response.status = r.upstream.answer.status;
    r.state.conditions = ConditionCheck::Answered;
    if let Some(attempt) = r.upstream.current() {
        attempt.status = r.response.status;
    }
    record_traffic(r, &exchange.connection);
    let settings = request.settings;
    tunnel::open(r, exchange, &settings.timeouts, settings.buffer_size.min(READ_SIZE))
}

/// Ends the attempt of a client that is gone.
fn end_cancelled<C>(r: &mut Request, exchange: Option<Exchange<C>>, client_gone: &ClientGone) -> Outcome {
    if let Some(exchange) = exchange {
        exchange.cancel(r);
    }
    if let Some(attempt) = r.upstream.current() {
        attempt.end();
    }
    r.log(Level::Info, format_args!("{client_gone}, so upstream connection is closed too"));
    Outcome::Status(499)
}
