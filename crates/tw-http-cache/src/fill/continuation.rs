//! Continuation of a fill by a range request in the background of one of its followers.

use std::cell::Cell;
use std::rc::Rc;

use tw_http::Method;

use super::Continuation;
use tw_phases::background_subrequest::{self, By, Copied};
use tw_request::request::{Request, Uri};

/// Fill that a background request continues, until its lookup takes it.
struct PendingContinuation(Cell<Option<Continuation>>);

/// Sends the range request that continues a fill, in the background of `r`. Drops the permit if that is not possible.
pub(crate) fn continue_fill(r: &mut Request, continuation: Continuation) {
    // A request with a body may change something.
    if r.method() != Method::Get {
        return;
    }
    let uri = Uri { path: r.uri.path.clone(), args: r.uri.args.clone() };
    let origin = r.state.origin;
    let prepare = |r: &mut Request| {
        r.state.origin = origin;
        r.extensions.put(Rc::new(PendingContinuation(Cell::new(Some(continuation)))));
    };
    // With too many background requests the fill ends with what it has.
    let _ = background_subrequest::run_by(r, uri, Copied::Nothing, By::Parent, prepare);
}

/// Takes the fill that `r` continues.
pub(crate) fn take_continuation(r: &Request) -> Option<Continuation> {
    r.extensions.get::<PendingContinuation>().and_then(|pending| pending.0.take())
}
