//! Subrequests: requests to other locations for a part of a response, such as `include` of SSI and the additions before and after
//! a body, or for a decision.
//!
//! It runs through the phases as a request of its own, with its parent's head and variables, and is pulled like any other
//! body. Its own filters apply. It runs only when it is pulled for; one that runs before its turn is an `EarlySubrequest`.
//!
//! A background subrequest (`mirror`) is a task of its own without a client.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::prepare_response;
use super::send_response;
use crate::phases;
use tw_request::body::{Body, Pull};
use tw_request::plan::LocalFuture;
use tw_request::request::{After, Request, SubrequestPosition, Uri};
use tw_request::request_body::RequestBody;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Subrequests of subrequests of one request, counted inwards.
    ///
    /// Depth limit of nested subrequests (nginx: NGX_HTTP_MAX_SUBREQUESTS, which counts from 0).
    pub const SUBREQUEST_DEPTH_MAX: u8 = 51, count, "the innermost fails";
    /// Pieces of 32 KiB taken of the response to a request for access, so that its connection can be used again.
    const UNWANTED_PIECES_MAX: usize = 4, count, "the connection is closed";
    /// Subrequests of one request.
    ///
    /// Subrequests of one request of a client, at all depths: files that include each other twice double at each depth.
    pub const SUBREQUESTS_MAX: u32 = 10_000, count, "further ones fail";
}
/// Cost of a subrequest in the work of a turn of the loop, in bytes copied: some 30 microseconds.
const COST: usize = 64 << 10;
/// Size of one read of a body that is discarded.
const UNWANTED_STEP: usize = 32 << 10;

/// Position of one more subrequest of `parent`, counted for the client's request.
pub(super) fn position_below(parent: &mut Request) -> Result<SubrequestPosition, Refused> {
    let position = uncounted_position_below(parent)?;
    let remaining = &SubrequestCounts::of(parent).remaining;
    remaining.set(remaining.get().checked_sub(1).ok_or(Refused::TooMany)?);
    Ok(position)
}

/// Position of a subrequest of `parent` that is not counted.
pub(super) fn uncounted_position_below(parent: &Request) -> Result<SubrequestPosition, Refused> {
    let (outer, client_method) = match &parent.context.position {
        Some(position) => (position.depth, position.client_method),
        None => (0, parent.state.method),
    };
    let depth = outer + 1;
    if depth > SUBREQUEST_DEPTH_MAX {
        return Err(Refused::Cycle);
    }
    Ok(SubrequestPosition { depth, client_method })
}

/// Counts of the subrequests of a client's request, at all depths.
pub(super) struct SubrequestCounts {
    /// Subrequests that it may still make.
    remaining: Cell<u32>,
    /// Subrequests that run before their turn.
    pub(super) early: Cell<u32>,
}

impl SubrequestCounts {
    /// The counts of the client's request of which `r` is a part.
    pub(super) fn of(r: &mut Request) -> Rc<Self> {
        r.extensions.get().unwrap_or_else(|| {
            let counts = Rc::new(Self { remaining: Cell::new(SUBREQUESTS_MAX), early: Cell::new(0) });
            r.extensions.put(counts.clone());
            counts
        })
    }
}

/// Visibility of the client's request body to the variables of a subrequest, which itself has no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParentBody {
    /// `$request_body` and `$request_body_file` are those of the parent.
    Visible,
    /// Empty variables.
    Hidden,
}

/// Reason why there is no subrequest; `Display` has the text of the error log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Nesting beyond [`SUBREQUEST_DEPTH_MAX`].
    Cycle,
    /// The request has made [`SUBREQUESTS_MAX`] of them.
    TooMany,
    /// The loop runs as many beside others as it may.
    Crowded,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cycle => "subrequests cycle",
            Self::TooMany => "too many subrequests",
            Self::Crowded => "too many requests beside others",
        })
    }
}

/// A response to a subrequest: the head is there, the body is pulled.
pub struct Subrequest {
    /// `None` once it is over.
    r: Option<Box<Request>>,
    body: Body,
}

impl Subrequest {
    /// Asks for `uri` as a part of `parent`: waits for whatever its handlers wait for. A response that could not be made is
    /// one with an error's status and page. Dropping the future drops the subrequest.
    pub async fn run(parent: &mut Request, uri: Uri, parent_body: ParentBody) -> Result<Self, Refused> {
        let mut part = Self::begin(parent, uri, parent_body, position_below)?;
        part.respond().await;
        Ok(part)
    }

    /// Asks `parent`'s own location once more, with its method and body, for a part of the response that it gives already: its
    /// phases have run, and its filters see the body it pulls, so none sees this one. Bodies made of such parts say themselves
    /// how many there are. With `is_anew`, what a cache has of it does not answer, but is replaced.
    pub async fn again(parent: &mut Request, is_anew: bool) -> Result<Self, Refused> {
        let uri = Uri { path: parent.uri.path.clone(), args: parent.uri.args.clone() };
        let mut part =
            Self::begin(parent, uri, ParentBody::Hidden, |parent| uncounted_position_below(parent))?;
        if let Some(r) = &mut part.r {
            r.stay_where(parent);
            r.body = parent.body.copy();
            r.upstream.cache.is_anew = is_anew;
            wait_for_budget(r).await;
            let body = phases::run_content(r).await;
            part.body = if r.state.after == After::Abort { Body::Empty } else { body };
        }
        Ok(part)
    }

    /// A subrequest that has not run. Its variables are those of its parent.
    pub(super) fn begin(
        parent: &mut Request,
        uri: Uri,
        parent_body: ParentBody,
        position: impl FnOnce(&mut Request) -> Result<SubrequestPosition, Refused>,
    ) -> Result<Self, Refused> {
        let position = position(parent)?;
        let path = tw_log::Text(&uri.path);
        let args = tw_log::Text(&uri.args);
        parent.debug(format_args!("http subrequest \"{path}?{args}\""));
        let mut r = parent.client().event_loop.take_request();
        r.bind_to(parent, uri, position);
        r.bindings.share_values(&mut parent.bindings);
        if parent_body == ParentBody::Visible {
            r.body = RequestBody::borrowed_from(&parent.body);
        }
        Ok(Self { r: Some(r), body: Body::Empty })
    }

    /// Changes the request before it runs.
    pub(super) fn prepare(&mut self, change: impl FnOnce(&mut Request)) {
        if let Some(r) = &mut self.r {
            change(r);
        }
    }

    /// Keeps `state` with the request.
    pub(super) fn put_state<T: 'static>(&mut self, state: Rc<T>) {
        if let Some(r) = &mut self.r {
            r.extensions.put(state);
        }
    }

    /// Makes the response: runs the phases and the header filters. Waits for the handlers.
    pub(super) async fn respond(&mut self) {
        let Some(r) = &mut self.r else { return };
        wait_for_budget(r).await;
        let mut body = phases::run_part(r).await;
        if r.state.after != After::Abort && !r.plan().response_steps().is_empty() {
            body = Box::pin(send_response::run_response_steps(r, body)).await;
        }
        self.body =
            if r.state.after == After::Abort { Body::Empty } else { prepare_response::filter(r, body) };
    }

    /// The status of the response; 0 once it is over.
    pub fn status(&self) -> u16 {
        self.r.as_ref().map_or(0, |r| r.response.status)
    }

    /// The request with the head of its response, until it is over.
    pub fn request(&self) -> Option<&Request> {
        self.r.as_deref()
    }

    /// Ends it without its body, of which only is taken what need not be waited for: then the connection to an upstream
    /// server that has said all can be used again.
    pub async fn end(mut self, parent: &mut Request) {
        for _ in 0..UNWANTED_PIECES_MAX {
            let mut next = Box::pin(self.piece(UNWANTED_STEP));
            let piece = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await;
            drop(next);
            if !matches!(piece, Poll::Ready(Ok(Some(_)))) {
                break;
            }
        }
        self.finish(parent);
    }

    /// The next piece of the body; what follows the end is for [`finish`](Self::finish).
    pub(super) async fn piece(&mut self, want: usize) -> io::Result<Option<Bytes>> {
        let Some(r) = &mut self.r else { return Ok(None) };
        let piece = self.body.next(want, r).await?;
        if let Some(piece) = &piece {
            r.costs.sent.bytes += piece.len() as u64;
            if r.upstream.cache.awaits_first_byte() && !piece.is_empty() {
                r.record_first_byte();
            }
        }
        Ok(piece)
    }

    /// Ends it, on its parent's account.
    pub(super) fn finish(&mut self, parent: &mut Request) {
        if let Some(r) = &mut self.r {
            r.costs.sent.complete = true;
            parent.costs.account.add(&r.costs.account);
            log(r);
        }
        self.give_back();
    }

    fn give_back(&mut self) {
        if let Some(r) = self.r.take() {
            let event_loop = r.client().event_loop.clone();
            event_loop.give_back(r);
        }
    }
}

impl Pull for Subrequest {
    fn next<'a>(
        &'a mut self,
        want: usize,
        parent: &'a mut Request,
    ) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            let piece = self.piece(want).await;
            if !matches!(piece, Ok(Some(_))) {
                self.finish(parent);
            }
            piece
        })
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.body.run_ahead(cx);
    }

    fn remaining(&self) -> Option<u64> {
        if self.r.is_none() { Some(0) } else { self.body.len() }
    }
}

impl Drop for Subrequest {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Waits for a turn of the loop that has room for one more subrequest.
async fn wait_for_budget(r: &Request) {
    while !r.client().event_loop.budget.may_copy(COST) {
        tw_rt::yield_now().await;
    }
}

/// Ends a subrequest: writes about it, where that is wanted.
pub(super) fn log(r: &mut Request) {
    if r.plan().core.log_subrequest {
        phases::log(r);
    }
    r.end_trace();
}
