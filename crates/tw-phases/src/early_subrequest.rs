//! Subrequests that run before their turn: the parts of a page are fetched side by side, and sent in order.
//!
//! ```text
//! handlers, filters ─► body ─► pieces, at most SUBREQUEST_BUFFER_MAX ─► the parent, in its turn
//! ```
//! Such a subrequest is a future that its parent's body polls while it waits for something else. Once its buffer is full it
//! pulls no further, but lets a proxy read on into buffers and temporary files of its own, as for a slow client.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;

use super::subrequest::{ParentBody, Refused, Subrequest, SubrequestCounts, position_below};
use tw_request::body::Pull as _;
use tw_request::request::{ErrorPages, Request, Uri};

// DIFF(nginx): there all subrequests of a page begin at once.
/// Size of one read of the body.
const STEP: usize = 32 << 10;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Subrequests of one request that run before their turn.
    const EARLY_SUBREQUESTS_MAX: u32 = 32, count, "further ones begin when another has ended or it is their turn";
    /// Bytes of the response to a subrequest that wait for their turn, and up to 32 KiB more.
    ///
    /// Bytes of the response to one of them that wait for their turn: what nginx's `proxy_buffers` have by default.
    const SUBREQUEST_BUFFER_MAX: usize = 64 << 10, bytes, "the response is not pulled further until then";
}

/// Turn of a subrequest: whether all that stands in front of its response has been sent.
pub struct SubrequestTurn {
    has_come: Cell<bool>,
    /// The turn of the subrequest of which this one is a part.
    outer: Option<Rc<Self>>,
}

impl SubrequestTurn {
    /// The turn of `r`; `None` if it is not a part of anything that runs early.
    pub fn of(r: &Request) -> Option<Rc<Self>> {
        r.extensions.get()
    }

    /// Returns true if its turn has come, here and further out.
    pub fn has_come(&self) -> bool {
        self.has_come.get() && self.outer.as_ref().is_none_or(|outer| outer.has_come())
    }
}

/// Facts about the response, known when its head is.
#[derive(Debug, Clone, Copy)]
pub struct SubrequestHead {
    /// Status.
    pub status: u16,
    /// Maker of the subrequest.
    pub made_by: MadeBy,
    /// Bytes of its body, if that is known.
    pub length: Option<u64>,
    /// `subrequest_output_buffer_size` of its location.
    pub buffer_size: usize,
}

/// Maker of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MadeBy {
    /// Location of the subrequest.
    Location,
    /// An error's page.
    Error,
}

/// A subrequest that may run before its turn. Dropping it ends it.
pub struct EarlySubrequest {
    state: Rc<State>,
    /// `None` once it is over.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    turn: Rc<SubrequestTurn>,
    permit: Option<EarlyPermit>,
    woken: Arc<AtomicBool>,
    /// Waker of the poller, and the one made of it.
    wakers: Option<(Waker, Waker)>,
}

/// State that the future and its owner share.
#[derive(Default)]
struct State {
    head: Cell<Option<SubrequestHead>>,
    pieces: RefCell<VecDeque<Bytes>>,
    /// Bytes in `pieces`.
    buffered: Cell<usize>,
    /// The subrequest, after its body has ended as said.
    ended: RefCell<Option<(Subrequest, io::Result<()>)>>,
}

impl State {
    /// Keeps a piece. One that is empty says that there was something; a second one would say nothing more.
    fn push(&self, piece: Bytes) {
        let mut pieces = self.pieces.borrow_mut();
        if !piece.is_empty() || pieces.is_empty() {
            self.buffered.set(self.buffered.get() + piece.len());
            pieces.push_back(piece);
        }
    }
}

/// Leave to run before the turn, until this is dropped.
struct EarlyPermit(Rc<SubrequestCounts>);

impl EarlyPermit {
    fn take(r: &mut Request) -> Option<Self> {
        let counts = SubrequestCounts::of(r);
        let early = &counts.early;
        (early.get() < EARLY_SUBREQUESTS_MAX).then(|| {
            early.set(early.get() + 1);
            Self(counts.clone())
        })
    }
}

impl Drop for EarlyPermit {
    fn drop(&mut self) {
        let early = &self.0.early;
        early.set(early.get() - 1);
    }
}

/// Notes that a future was woken, and wakes its poller.
struct Note {
    woken: Arc<AtomicBool>,
    outer: Waker,
}

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Relaxed);
        self.outer.wake_by_ref();
    }
}

impl EarlySubrequest {
    /// Begins a subrequest before its turn; `None` if the most that may run at once are running. The subrequest runs
    /// when it is polled.
    pub fn begin_early(
        parent: &mut Request,
        uri: impl FnOnce() -> Uri,
        parent_body: ParentBody,
    ) -> Option<Result<Self, Refused>> {
        Self::begin_early_with(parent, uri, parent_body, |_| ())
    }

    /// Begins a subrequest like [`begin_early`](Self::begin_early); `prepare` changes it before it runs.
    pub fn begin_early_with(
        parent: &mut Request,
        uri: impl FnOnce() -> Uri,
        parent_body: ParentBody,
        prepare: impl FnOnce(&mut Request),
    ) -> Option<Result<Self, Refused>> {
        let permit = EarlyPermit::take(parent)?;
        Some(Self::new(parent, uri(), parent_body, prepare, Some(permit)))
    }

    /// Begins a subrequest in its turn. The subrequest runs when it is polled.
    pub fn begin(parent: &mut Request, uri: Uri, parent_body: ParentBody) -> Result<Self, Refused> {
        Self::begin_with(parent, uri, parent_body, |_| ())
    }

    /// Begins a subrequest like [`begin`](Self::begin); `prepare` changes it before it runs.
    pub fn begin_with(
        parent: &mut Request,
        uri: Uri,
        parent_body: ParentBody,
        prepare: impl FnOnce(&mut Request),
    ) -> Result<Self, Refused> {
        let begun = Self::new(parent, uri, parent_body, prepare, None)?;
        begun.turn.has_come.set(true);
        Ok(begun)
    }

    fn new(
        parent: &mut Request,
        uri: Uri,
        parent_body: ParentBody,
        prepare: impl FnOnce(&mut Request),
        permit: Option<EarlyPermit>,
    ) -> Result<Self, Refused> {
        let mut part = Subrequest::begin(parent, uri, parent_body, position_below)?;
        part.prepare(prepare);
        let turn = Rc::new(SubrequestTurn { has_come: Cell::new(false), outer: SubrequestTurn::of(parent) });
        part.put_state(turn.clone());
        let state = Rc::new(State::default());
        let future = Some(Box::pin(run(part, state.clone())) as Pin<Box<dyn Future<Output = ()>>>);
        Ok(Self { state, future, turn, permit, woken: Arc::new(AtomicBool::new(true)), wakers: None })
    }

    /// Makes it the one whose response is sent.
    pub fn take_turn(&mut self) {
        self.turn.has_come.set(true);
        self.permit = None;
    }

    /// Goes on if there is anything to go on with.
    pub fn run_ahead(&mut self, cx: &mut Context<'_>) {
        let is_known = self.wakers.as_ref().is_some_and(|(outer, _)| outer.will_wake(cx.waker()));
        if !is_known || self.woken.load(Relaxed) {
            self.poll(cx);
        }
    }

    /// The head of the response.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<SubrequestHead> {
        if self.state.head.get().is_none() {
            self.poll(cx);
        }
        self.state.head.get().map_or(Poll::Pending, Poll::Ready)
    }

    /// The next piece of the body; `None` at its end.
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if self.state.pieces.borrow().is_empty() {
            self.poll(cx);
        }
        if let Some(piece) = self.state.pieces.borrow_mut().pop_front() {
            self.state.buffered.set(self.state.buffered.get() - piece.len());
            // The buffer may have room now.
            self.woken.store(true, Relaxed);
            return Poll::Ready(Ok(Some(piece)));
        }
        match &mut *self.state.ended.borrow_mut() {
            Some((_, ended)) => Poll::Ready(std::mem::replace(ended, Ok(())).map(|()| None)),
            None => Poll::Pending,
        }
    }

    /// Evaluates something of the request with the head of its response, after the end of its body. `None` before that.
    pub fn with_ended<T>(&self, evaluate: impl FnOnce(&Request) -> T) -> Option<T> {
        let ended = self.state.ended.borrow();
        let (part, _) = ended.as_ref()?;
        part.request().map(evaluate)
    }

    /// Ends it, on its parent's account.
    pub fn finish(self, parent: &mut Request) {
        if let Some((mut part, _)) = self.state.ended.take() {
            part.finish(parent);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        let Some(future) = &mut self.future else { return };
        let outer = cx.waker();
        let own = match &mut self.wakers {
            Some((waker, own)) if waker.will_wake(outer) => &*own,
            wakers => {
                let note = Note { woken: self.woken.clone(), outer: outer.clone() };
                &wakers.insert((outer.clone(), Arc::new(note).into())).1
            }
        };
        self.woken.store(false, Relaxed);
        if future.as_mut().poll(&mut Context::from_waker(own)).is_ready() {
            // The permit is kept, because it accounts for the buffered response.
            self.future = None;
        }
    }
}

/// Runs a subrequest to its end, as far as there is room for its response.
async fn run(mut part: Subrequest, state: Rc<State>) {
    part.respond().await;
    state.head.set(Some(head(&part)));
    let ended = loop {
        poll_fn(|cx| {
            if state.buffered.get() < SUBREQUEST_BUFFER_MAX {
                return Poll::Ready(());
            }
            part.run_ahead(cx);
            Poll::Pending
        })
        .await;
        match part.piece(STEP).await {
            Ok(Some(piece)) => {
                let is_empty = piece.is_empty();
                state.push(piece);
                if is_empty {
                    tw_rt::requeue().await;
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    state.ended.replace(Some((part, ended)));
}

fn head(part: &Subrequest) -> SubrequestHead {
    let status = part.status();
    let length = part.remaining();
    let Some(r) = part.request() else {
        return SubrequestHead { status, made_by: MadeBy::Error, length, buffer_size: 0 };
    };
    let is_error = r.state.error_status.is_some() || r.state.error_pages == ErrorPages::Used;
    let made_by = if is_error { MadeBy::Error } else { MadeBy::Location };
    SubrequestHead { status, made_by, length, buffer_size: r.plan().core.subrequest_buffer_size }
}
