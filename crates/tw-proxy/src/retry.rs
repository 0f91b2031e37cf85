//! Retries (`next_upstream`): attempts at one server after another, until one responds or no further attempt is allowed.

use std::time::Instant;

use tw_connect::attempts::{self, AttemptingSession};
use tw_connect::failure::{AttemptFailure, UpstreamFailure};
use tw_http::Method;
use tw_log::Level;
use tw_upstream::{Lease, PeerOutcome, PeerSelection, RetryPermit};

use super::attempt::{self, AttemptError, ConnectionUse, FailedAttempt, RequestProgress};
use super::codec::Codec;
use super::connect::AttemptContext;
use super::exchange::Exchange;
use super::upstream_request::{UpstreamRequest, UpstreamRequestBody};
use tw_request::request::Request;
use tw_request::request_body;
use tw_request::retry_conditions::RetryOn;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Times that a request is sent again for free, because an upstream server says that it had no look at it (HTTP/2).
    const REFUSALS_MAX: u32 = 3, count, "each further time counts as one of its tries";
}

/// Result if no server gave a response that the client could get.
pub(super) struct NoResponse {
    /// Status for the client.
    pub(super) status: u16,
    /// Reason, in the terms of `cache_use_stale`.
    pub(super) failure: RetryOn,
}

impl NoResponse {
    /// An error that no server is responsible for.
    fn local(status: u16) -> Self {
        Self { status, failure: RetryOn::NONE }
    }
}

/// Effect of a failed attempt on its peer and on the tries left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counting {
    /// Counts as a failure of the peer, and as a try.
    Counted,
    /// Counts as neither.
    Excused,
}

/// Permission to send a request to another server.
enum RetryGrant {
    /// The location has no budget, or the failed server did not process the request.
    Free,
    /// The retry is one of those that the budget allows.
    Budgeted(RetryPermit),
}

impl RetryGrant {
    /// Grants a retry within the budget; `None` if that is used up.
    fn within_budget<C>(r: &Request, request: &UpstreamRequest<'_, C>) -> Option<Self> {
        let Some(budget) = request.settings.retry.budget else { return Some(Self::Free) };
        let permit = request.group.peers.begin_retry(budget);
        if permit.is_none() {
            let group = request.group.peers.name();
            r.log(Level::Info, format_args!("retry budget of upstream \"{group}\" is used up"));
        }
        permit.map(Self::Budgeted)
    }

    fn permit(self) -> Option<RetryPermit> {
        match self {
            Self::Free => None,
            Self::Budgeted(permit) => Some(permit),
        }
    }
}

/// Runs attempts until a server responds. `exchange` is that of the attempt under way, and then of the response.
pub(super) async fn try_upstreams<C: Codec + Clone>(
    r: &mut Request,
    request: &UpstreamRequest<'_, C>,
    exchange: &mut Option<Exchange<C>>,
) -> Result<(), NoResponse> {
    let began = tw_rt::clock::now();
    if request.group.peers.has_host_names() {
        let resolving = r.plan().core.resolving.clone();
        let pool = r.generation().disks.default_disk().pool().clone();
        let resolved = Box::pin(attempts::resolve_names(r, request.group, &resolving, &pool)).await;
        if let Err(failure) = resolved {
            r.record_failure(&failure);
            return Err(NoResponse { status: failure.cause.status(), failure: RetryOn::ERROR });
        }
    }
    let mut attempts = begin(r, request);
    let mut refusals = 0;
    let mut retry: Option<RetryPermit> = None;
    loop {
        *exchange = None;
        let mut grant = None;
        let failed = match attempt::run(r, request, &mut attempts, exchange).await {
            Ok(()) => {
                let retried = retried_status(r, request, &attempts.selection, began);
                grant = retried.as_ref().and_then(|_| RetryGrant::within_budget(r, request));
                let retried = retried.filter(|_| grant.is_some());
                let Some((failure, answered)) = retried.and_then(|failure| Some((failure, exchange.take()?)))
                else {
                    begin_session(r, request, attempts, exchange);
                    if let Some(exchange) = exchange {
                        exchange.retry = retry;
                    }
                    return Ok(());
                };
                FailedAttempt::after_head(r, answered, failure)
            }
            Err(AttemptError::Failed(failed)) => failed,
            Err(AttemptError::Client(error)) => {
                return Err(NoResponse::local(request_body::read::failed(r, error)));
            }
            Err(AttemptError::Unbuildable(status)) => return Err(NoResponse::local(status)),
        };
        r.record_failure(&failed.failure);
        let is_refused = matches!(failed.failure.cause, UpstreamFailure::Refused(_));
        // A server that refused the request has not processed it.
        let progress = if is_refused { RequestProgress::NotSent } else { failed.request };
        let may_retry = may_retry(r, request, &failed.failure.cause, progress, began);
        let counting = counting(&failed, refusals);
        refusals += u32::from(is_refused);
        if let Some(lease) = failed.lease {
            end_lease(r, lease, &failed.failure, counting);
        }
        if counting == Counting::Excused {
            attempts.selection.grant_try();
            grant = Some(RetryGrant::Free);
        }
        let may_retry = may_retry && attempts.selection.tries_left() > 0;
        if may_retry && grant.is_none() {
            grant = RetryGrant::within_budget(r, request);
        }
        let Some(grant) = grant.filter(|_| may_retry) else {
            let cause = &failed.failure.cause;
            return Err(NoResponse { status: cause.status(), failure: RetryOn::stale_of_failure(cause) });
        };
        retry = grant.permit();
    }
}

/// State of the attempts of `r` before the first one.
fn begin<C>(r: &Request, request: &UpstreamRequest<'_, C>) -> AttemptContext {
    let sticky = request.group.sticky.as_ref();
    AttemptContext {
        selection: attempts::begin_selection(r, request.group, &request.settings.retry.limits),
        sticky_id: sticky.map(|sticky| sticky.read_id(r)).unwrap_or_default(),
        local: request.settings.connection.local_address_once(r),
    }
}

/// Adds the session that `sticky learn` stores when the exchange ends.
fn begin_session<C>(
    r: &Request,
    request: &UpstreamRequest<'_, C>,
    attempts: AttemptContext,
    exchange: &mut Option<Exchange<C>>,
) {
    if let (Some(sticky), Some(exchange)) = (&request.group.sticky, exchange) {
        exchange.session = sticky.begin_session(r, attempts.sticky_id, &exchange.lease).map(Box::new);
    }
}

/// Failure of a response whose status sends the request to the next server; `None` if the client gets the response.
fn retried_status<C>(
    r: &Request,
    request: &UpstreamRequest<'_, C>,
    selection: &PeerSelection,
    began: Instant,
) -> Option<UpstreamFailure> {
    let failure = UpstreamFailure::Status(r.upstream.answer.status);
    let is_named = RetryOn::of_failure(&failure) != RetryOn::NONE;
    let is_retried = is_named
        && selection.tries_left() > 0
        && may_retry(r, request, &failure, RequestProgress::Sent, began);
    is_retried.then_some(failure)
}

/// Returns true if the request may be sent to another server after `failure`.
fn may_retry<C>(
    r: &Request,
    request: &UpstreamRequest<'_, C>,
    failure: &UpstreamFailure,
    progress: RequestProgress,
    began: Instant,
) -> bool {
    let settings = request.settings;
    let was_sent = progress == RequestProgress::Sent;
    let is_risky = was_sent && matches!(r.method(), Method::Post | Method::Lock | Method::Patch);
    let needed = if is_risky {
        RetryOn::of_failure(failure).and(RetryOn::NON_IDEMPOTENT)
    } else {
        RetryOn::of_failure(failure)
    };
    // The part already taken of a body that is not kept is lost, whether the server got it or not.
    let is_body_begun = was_sent || r.body.received() > 0;
    let is_body_lost =
        matches!(request.body, UpstreamRequestBody::Client) && !r.body.is_kept() && is_body_begun;
    RetryOn::of_failure(failure) != RetryOn::NONE
        && settings.retry.on.has(needed)
        && !is_body_lost
        && !settings.retry.limits.is_past_deadline(began)
}

/// Decides on the effect of a failed attempt, after `refusals` earlier ones that were refused.
// DIFF(nginx): an error on a kept connection, which the server may just have closed, is not counted against the server.
fn counting(failed: &FailedAttempt, refusals: u32) -> Counting {
    let is_excused = match &failed.failure.cause {
        UpstreamFailure::Refused(_) => refusals < REFUSALS_MAX,
        failure => {
            failed.connection == ConnectionUse::Reused
                && matches!(RetryOn::of_failure(failure), RetryOn::ERROR)
        }
    };
    if is_excused { Counting::Excused } else { Counting::Counted }
}

/// Ends the lease of a failed attempt.
fn end_lease(r: &Request, lease: Lease, failure: &AttemptFailure, counting: Counting) {
    if let Some(attempt) = r.upstream.last() {
        lease.sent(attempt.sent);
        lease.received(attempt.received);
    }
    if counting == Counting::Excused {
        return drop(lease);
    }
    let outcome = match &failure.cause {
        UpstreamFailure::Status(403 | 404) => PeerOutcome::Next,
        _ => PeerOutcome::Failed,
    };
    if let UpstreamFailure::Status(status) = &failure.cause {
        lease.status(*status);
    }
    attempts::end_lease(r, lease, failure, outcome);
}
