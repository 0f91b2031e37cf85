//! Responses whose body a filter changes: the body, piece by piece, and the head: length, ranges, validators.

use std::io;
use std::task::Context;

use bytes::Bytes;
use tw_http::{HeaderName, ResponseHead};
use tw_request::body::{Body, Pull};
use tw_request::plan::LocalFuture;
use tw_request::request::{Ranges, Request};

/// Removes the length, which is unknown now.
pub fn remove_length(r: &mut Request) {
    r.response.fields.remove_known(HeaderName::ContentLength);
}

/// Refuses ranges of the response.
pub fn refuse_ranges(r: &mut Request) {
    r.state.ranges = Ranges::Refused;
    r.response.fields.remove_known(HeaderName::AcceptRanges);
}

/// Treatment of `Last-Modified` and `ETag` (`ssi_last_modified`, `sub_filter_last_modified`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validators {
    /// Removes both: the time of the last change of the whole is unknown.
    Remove,
    /// The time stays, the tag becomes a weak one.
    Keep,
}

impl Validators {
    /// Treatment for a flag that keeps the time.
    pub fn of(keep: bool) -> Self {
        if keep { Self::Keep } else { Self::Remove }
    }

    /// Changes the head accordingly.
    pub fn apply(self, head: &mut ResponseHead) {
        match self {
            Self::Keep => head.weaken_etag(),
            Self::Remove => {
                head.last_modified = None;
                head.fields.remove_known(HeaderName::LastModified);
                head.fields.remove_known(HeaderName::ETag);
            }
        }
    }
}

/// End of a body that is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// More pieces may come.
    Open,
    /// The last piece is there.
    Reached,
}

/// Change of a body whose pieces come one by one.
pub trait Change {
    /// The next piece of the result: about `want` bytes, made from the beginning of `rest`, which is removed there.
    /// An empty piece lets others run. `None` once `rest` is used up: the result of all bytes before is complete, but for
    /// those that depend on the next ones.
    ///
    /// # Errors
    /// The body cannot be changed; the response ends there.
    fn change(&mut self, rest: &mut Bytes, end: End, want: usize, r: &Request) -> io::Result<Option<Bytes>>;
}

/// A body with a change.
struct ChangedBody<C> {
    change: C,
    body: Body,
    /// Bytes of the body that were pulled and not yet changed.
    rest: Bytes,
    end: End,
}

/// The body with this change.
pub fn changed(body: Body, change: impl Change + 'static) -> Body {
    Body::Pull(Box::new(ChangedBody { change, body, rest: Bytes::new(), end: End::Open }))
}

impl<C: Change> Pull for ChangedBody<C> {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            loop {
                if let Some(piece) = self.change.change(&mut self.rest, self.end, want, r)? {
                    return Ok(Some(piece));
                }
                if self.end == End::Reached {
                    return Ok(None);
                }
                match self.body.next(want, r).await? {
                    Some(piece) if piece.is_empty() => return Ok(Some(piece)),
                    Some(piece) => self.rest = piece,
                    None => self.end = End::Reached,
                }
            }
        })
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.body.run_ahead(cx);
    }

    fn flushes(&self) -> bool {
        self.body.flushes()
    }

    fn holds_head(&self) -> bool {
        self.body.holds_head()
    }
}

/// A body whose length its head does not announce.
struct UnannouncedLength(Body);

/// The body without an announcement of its length.
pub fn without_length(body: Body) -> Body {
    Body::Pull(Box::new(UnannouncedLength(body)))
}

impl Pull for UnannouncedLength {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        self.0.next(want, r)
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.0.run_ahead(cx);
    }

    fn flushes(&self) -> bool {
        self.0.flushes()
    }

    fn holds_head(&self) -> bool {
        self.0.holds_head()
    }
}
