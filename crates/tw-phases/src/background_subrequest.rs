//! Background subrequests: copies of requests (`mirror`), and updates of a cache.
//!
//! Such a request begins with the data of its parent and then is independent: neither the response of the parent nor the next
//! request of the client waits for it, and it does not end when the client goes away. Its handlers bound its duration.

use std::rc::Rc;

use tw_log::{Level, Text};
use tw_rt::watch::Subject;

use super::prepare_response;
use super::subrequest::{self, Refused};
use crate::phases;
use tw_request::body::Body;
use tw_request::event_loop::Loop;
use tw_request::request::{After, Request, SubrequestPosition, Uri};

/// Size of one read of the body.
const STEP: usize = 32 << 10;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Requests that run beside others on one loop, as `mirror` makes them.
    const BACKGROUND_SUBREQUESTS_MAX: u32 = 1024, count, "further ones are left out";
    /// Bytes of a response that nobody gets, which are read so that its connection can be used again.
    const UNWANTED_MAX: usize = 64 << 10, bytes, "the connection is closed";
}

/// Counts one while it runs.
struct Running(Rc<Loop>);

impl Running {
    fn begin(event_loop: &Rc<Loop>) -> Option<Self> {
        let running = &event_loop.background.running;
        (running.get() < BACKGROUND_SUBREQUESTS_MAX).then(|| {
            running.set(running.get() + 1);
            Self(event_loop.clone())
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let running = &self.0.background.running;
        running.set(running.get() - 1);
    }
}

/// The body of a request that runs beside another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// The parent's body as far as it was read, which must be to its end.
    Body,
    /// None.
    Nothing,
}

/// Location that answers a background request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The one of its URI.
    Uri,
    /// The parent's, at once: its phases have run.
    Parent,
}

// DIFF(nginx): a request that runs beside another holds neither that nor its connection.
/// Starts a background request for `uri` with the method of `parent`. Its response is discarded. Never waits.
///
/// # Errors
/// The reason why there is none; too many of them on the loop were logged.
pub fn run(parent: &mut Request, uri: Uri, copied: Copied) -> Result<(), Refused> {
    run_by(parent, uri, copied, By::Uri, |_| ())
}

/// Starts a background request that `by` answers; `prepare` changes the request before it runs.
pub fn run_by(
    parent: &mut Request,
    uri: Uri,
    copied: Copied,
    by: By,
    prepare: impl FnOnce(&mut Request),
) -> Result<(), Refused> {
    let position = subrequest::position_below(parent)?;
    start(parent, position, uri, copied, by, prepare)
}

/// Starts a background request for the URI of `parent`, answered by its location, that does not count as one of its subrequests:
/// the caller limits their number. `prepare` changes the request before it runs.
pub fn run_again(parent: &Request, prepare: impl FnOnce(&mut Request)) -> Result<(), Refused> {
    let position = subrequest::uncounted_position_below(parent)?;
    let uri = Uri { path: parent.uri.path.clone(), args: parent.uri.args.clone() };
    start(parent, position, uri, Copied::Nothing, By::Parent, prepare)
}

fn start(
    parent: &Request,
    position: SubrequestPosition,
    uri: Uri,
    copied: Copied,
    by: By,
    prepare: impl FnOnce(&mut Request),
) -> Result<(), Refused> {
    let event_loop = parent.client().event_loop.clone();
    let Some(running) = Running::begin(&event_loop) else {
        let now = tw_rt::clock::unix().secs;
        if event_loop.background.warned_at.replace(now) != now {
            let refused = Refused::Crowded;
            parent.log(Level::Warn, format_args!("{refused} while processing \"{}\"", Text(&uri.path)));
        }
        return Err(Refused::Crowded);
    };
    let path = Text(&uri.path);
    let args = Text(&uri.args);
    parent.debug(format_args!("http background request \"{path}?{args}\""));
    let mut r = event_loop.take_request();
    r.bind_to(parent, uri, position);
    r.part_from(parent);
    if by == By::Parent {
        r.stay_where(parent);
    }
    if copied == Copied::Body {
        r.body = parent.body.copy();
    }
    prepare(&mut r);
    let subject = Subject { kind: "background request", id: parent.client().id };
    event_loop.connections.spawn_counted(subject, async move {
        // The response of the parent comes first, and copies come in the order they were asked for.
        tw_rt::requeue().await;
        let body = match by {
            By::Uri => phases::run_part(&mut r).await,
            By::Parent => phases::run_content(&mut r).await,
        };
        let body =
            if r.state.after == After::Abort { Body::Empty } else { prepare_response::filter(&mut r, body) };
        discard(body, &mut r).await;
        subrequest::log(&mut r);
        running.0.give_back(r);
    });
    Ok(())
}

/// Reads a body and discards it, if it is short. Waits for it.
pub(crate) async fn discard(mut body: Body, r: &mut Request) {
    let mut taken = 0;
    while taken <= UNWANTED_MAX
        && let Ok(Some(piece)) = body.next(STEP, r).await
    {
        taken += piece.len();
    }
    r.costs.sent.complete = true;
}
